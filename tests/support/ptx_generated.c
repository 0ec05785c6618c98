/* Kernels that Kvasir generates as subjects of mutations: after the clean run of a case, the launch is repeated with
 * mutated texts, on the same memory. */
#include "tests/support/ptx_mutate.h"
#include "tests/support/target.h"

#include <stdlib.h>
#include <string.h>

typedef struct repeat {
  ptx_mutations *mutations;
  const ptx_generated *generated;
  const kva_ptx_step *step;
  kva_ptx_dim3 grid;
  void *expected[KVA_PTX_MAX_RESULTS];
  bool has_expected;
  uint32_t launches;
} repeat;

static kva_status run(void *user, const kva_ptx_kernel *kernel, const kva_ptx_options *options, kva_diag *diag,
                      kva_ptx_report *out_report, bool *out_right) {
  repeat *r = user;
  const kva_ptx_step *s = r->step;
  kva_ptx_options own = *options;
  own.cooperative = s->cooperative;
  for (uint32_t k = 0; k < s->n_results; k++) memset(s->results[k].data, KVA_PTX_UNWRITTEN, s->results[k].bytes);
  KVA_TRY(kva_ptx_launch(kernel, s->memory, r->grid, s->block, s->dynamic_bytes, s->params, s->n_params, &own, diag,
                         out_report));
  *out_right = true;
  for (uint32_t k = 0; k < s->n_results; k++) {
    if (r->has_expected)
      *out_right &= !memcmp(s->results[k].data, r->expected[k], s->results[k].bytes);
    else
      memcpy(r->expected[k], s->results[k].data, s->results[k].bytes);
  }
  r->has_expected = true;
  return KVA_OK;
}

/* The mutants, then the results as they were. What the first blocks alone compute is what the first run of the clean
 * text does. */
static void visit(void *user, const kva_ptx_step *step) {
  repeat *r = user;
  void *results[KVA_PTX_MAX_RESULTS];
  r->step = step;
  r->has_expected = false;
  r->launches++;
  r->grid = step->grid;
  if (r->generated->blocks && r->grid.x > r->generated->blocks) r->grid.x = r->generated->blocks;
  for (uint32_t k = 0; k < step->n_results; k++) {
    r->expected[k] = malloc(step->results[k].bytes + 1);
    results[k] = malloc(step->results[k].bytes + 1);
    memcpy(results[k], step->results[k].data, step->results[k].bytes);
  }
  ptx_subject subject = {.name = r->generated->name, .kernel = step->kernel, .text = step->text, .run = run, .user = r};
  ptx_mutations_check(r->mutations, &subject);
  for (uint32_t k = 0; k < step->n_results; k++) {
    memcpy(step->results[k].data, results[k], step->results[k].bytes);
    free(r->expected[k]);
    free(results[k]);
  }
}

static void check_kernel(ptx_mutations *t, const ptx_generated *g) {
  repeat r = {.mutations = t, .generated = g};
  kva_ptx_run options = {.cache = test_cache(), .arch = g->arch, .visit = visit, .visitor = &r};
  kva_check check = {0};
  bool ok = kva_case_check(&g->c, g->dtype, kva_run_ptx, &options, &check);
  if (!ok || !r.launches) {
    printf("FAILED: %s: %u launches; %s\n", g->name, r.launches, check.message.data ? check.message.data : "");
    t->failures++;
  }
  kva_text_free(&check.message);
}

void ptx_mutations_check_generated(ptx_mutations *t, const char *list_path, const ptx_generated *kernels, uint32_t n) {
  ptx_mutations_begin(t, list_path);
  for (uint32_t k = 0; k < n; k++) check_kernel(t, &kernels[k]);
  ptx_mutations_end(t);
}
