/* Plans of training steps, compiled as `kvasir train` compiles them. */
#include "tools/planner/planner.h"

/* ---- one plan ---------------------------------------------------------------------------------------------------- */

static kva_status state_bytes(kva_module *m, const kva_state *s, int64_t *out) {
  int64_t n;
  if (kva_expr_is_const(kva_type_elements(m, s->type), &n) && kva_dtype_bytes(s->type->dtype, n, out)) return KVA_OK;
  return kva_error(m->diag, &s->loc, "the size of state '%s' does not fit 64 bits", s->name);
}

static kva_status add_states(kva_module *m, kva_paper *p) {
  for (uint32_t i = 0; i < m->states.len; i++) {
    const kva_state *s = m->states.data[i];
    int64_t bytes;
    KVA_TRY(state_bytes(m, s, &bytes));
    *(s->kind == KVA_STATE_PARAM             ? &p->params
      : s->kind == KVA_STATE_MOMENT          ? &p->moments
      : s->kind != KVA_STATE_CACHE || !s->of ? &p->states
      : s->init == KVA_INIT_COPY             ? &p->copies
                                             : &p->gradients) += bytes;
  }
  return KVA_OK;
}

/* How often a step calls the function. */
static int64_t calls_of(const kva_function *f, int64_t passes) {
  if (!strcmp(f->name, "grad_step")) return passes;
  return !strcmp(f->name, "train_step") || !strcmp(f->name, "apply_step") ? 1 : 0;
}

static kva_status measure(const kva_planner *planner, kva_module *m, const kva_target *target, kva_paper *p) {
  KVA_TRY(add_states(m, p));
  for (uint32_t i = 0; i < m->functions.len; i++) {
    kva_function *f = m->functions.data[i];
    int64_t calls = calls_of(f, p->passes);
    if (!calls) continue;
    KVA_TRY(kva_codegen_settle(m->arena, f->plan, target));
    KVA_TRY(kva_paper_add(planner, m, f->plan, calls, p));
  }
  return KVA_OK;
}

/* cuBLASLt makes products, as on device cuda. */
static kva_status plan_module(const kva_planner *planner, kva_module *m, kva_paper *p) {
  kva_compile_options options = {.train = true,
                                 .target = {.arch = planner->cluster.gpu->arch, .library_gemm = true},
                                 .passes = {.control = planner->control,
                                            .train = p->passes > 1 ? KVA_TRAIN_MICRO_BATCHES : KVA_TRAIN_WHOLE,
                                            .adjustable = true,
                                            .compute = planner->compute,
                                            .memory = p->memory,
                                            .mesh = p->mesh}};
  kva_target target;
  bool changed = false;
  KVA_TRY(kva_codegen_describe(&options.target, m->diag, &target));
  KVA_TRY(kva_compile_graph(m, &options));
  KVA_TRY(kva_run_pass(m, KVA_PASS_plan, &options.passes, &changed));
  return measure(planner, m, &target, p);
}

kva_status kva_planner_plan(const kva_planner *planner, const kva_mesh *mesh, int64_t rows, int64_t passes,
                            int64_t memory, kva_diag *diag, kva_paper *out) {
  kva_module *m = NULL;
  *out = (kva_paper){.mesh = *mesh, .rows = rows, .passes = passes, .memory = memory};
  KVA_TRY(planner->load(planner->user, rows, diag, &m));
  kva_status status = plan_module(planner, m, out);
  kva_module_destroy(m);
  return status;
}

kva_status kva_planner_measure(kva_planner *planner, kva_diag *diag) {
  kva_paper one;
  KVA_TRY(kva_planner_plan(planner, &(kva_mesh){0}, 1, 1, 0, diag, &one));
  planner->row_tokens = one.tokens;
  for (int i = 0; i < one.n_programs; i++) planner->row_flops += (double)one.programs[i].calls * one.programs[i].flops;
  return KVA_OK;
}

double kva_planner_tokens(const kva_planner *planner, const kva_paper *p) {
  int64_t each = planner->row_tokens ? planner->row_tokens : 1;
  return (double)(planner->batch * each) / kva_paper_seconds(p);
}

double kva_planner_mfu(const kva_planner *planner, const kva_paper *p) {
  double peak = planner->cluster.gpu->flops * (double)kva_cluster_gpus(&planner->cluster);
  return planner->row_flops * (double)planner->batch / kva_paper_seconds(p) / peak;
}

/* ---- micro-batches ----------------------------------------------------------------------------------------------- */

kva_status kva_planner_rows(const kva_planner *planner, const kva_mesh *mesh, kva_diag *diag, int64_t *out) {
  int64_t groups = kva_mesh_extent(mesh->data);
  *out = planner->batch / groups;
  if (*out * groups != planner->batch)
    return kva_error(diag, NULL, "a batch of %lld rows does not divide among data=%lld", (long long)planner->batch,
                     (long long)groups);
  if (planner->rows && *out % planner->rows)
    return kva_error(diag, NULL, "%lld rows of each process do not divide into micro-batches of %lld", (long long)*out,
                     (long long)planner->rows);
  return KVA_OK;
}

int64_t kva_planner_divisor(int64_t n, int64_t most) {
  int64_t divisor = most < n ? most : n;
  while (divisor > 1 && n % divisor) divisor--;
  return divisor > 1 ? divisor : 1;
}

/* Rows that fit by what one row takes: temporaries grow with the rows at most as fast as rows do. */
static int64_t fitting_rows(const kva_planner *planner, const kva_paper *one) {
  int64_t temporaries = kva_paper_temporaries(one), fixed = kva_paper_bytes(one) - temporaries;
  return (planner->memory - fixed) / (temporaries + 1);
}

static kva_status check_fits(const kva_planner *planner, const kva_paper *p, kva_diag *diag) {
  int64_t bytes = kva_paper_bytes(p), states = bytes - kva_paper_temporaries(p);
  if (bytes <= planner->memory) return KVA_OK;
  return kva_error(diag, NULL,
                   "states, inputs and outputs of a process take %.3f GB, and what it computes %.3f more, of %.3f",
                   (double)states / 1e9, (double)(bytes - states) / 1e9, (double)planner->memory / 1e9);
}

/* Values computed again where they do not fit. */
static kva_status plan_within(const kva_planner *planner, const kva_mesh *mesh, int64_t rows, int64_t passes,
                              kva_diag *diag, kva_paper *out) {
  KVA_TRY(kva_planner_plan(planner, mesh, rows, passes, 0, diag, out));
  if (kva_paper_bytes(out) <= planner->memory) return KVA_OK;
  if (kva_paper_bytes(out) - kva_paper_temporaries(out) >= planner->memory) return check_fits(planner, out, diag);
  KVA_TRY(kva_planner_plan(planner, mesh, rows, passes, planner->memory, diag, out));
  return check_fits(planner, out, diag);
}

kva_status kva_planner_fit(const kva_planner *planner, const kva_mesh *mesh, kva_diag *diag, kva_paper *out) {
  int64_t each;
  KVA_TRY(kva_planner_rows(planner, mesh, diag, &each));
  if (planner->rows) return plan_within(planner, mesh, planner->rows, each / planner->rows, diag, out);
  KVA_TRY(plan_within(planner, mesh, 1, each, diag, out));
  const kva_paper one = *out;
  int64_t rows = one.memory ? 1 : kva_planner_divisor(each, fitting_rows(planner, &one));
  for (; rows > 1; rows = kva_planner_divisor(each, rows - 1)) {
    KVA_TRY(kva_planner_plan(planner, mesh, rows, each / rows, 0, diag, out));
    if (kva_paper_bytes(out) <= planner->memory) return KVA_OK;
  }
  *out = one;
  return KVA_OK;
}
