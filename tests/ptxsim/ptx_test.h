/* What the simulator's tests share: running a kernel from text on arrays. */
#ifndef KVA_TESTS_PTXSIM_PTX_TEST_H
#define KVA_TESTS_PTXSIM_PTX_TEST_H

#include "runtime/ptxsim/ptxsim.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

#define PTX_HEAD ".version 8.3\n.target sm_90\n.address_size 64\n"
/* Lines of PTX_HEAD, for tests that name lines. */
enum { PTX_HEAD_LINES = 3 };

/* Parses; fails the test with the diagnostics when that is not possible. */
static inline kva_ptx_module *ptx_parse(const char *text) {
  kva_diag *diag = kva_diag_create();
  kva_ptx_module *m = NULL;
  kva_status status = kva_ptx_module_create(text, strlen(text), "test.ptx", diag, &m);
  if (status != KVA_OK) kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  kva_diag_destroy(diag);
  return m;
}

typedef struct ptx_case {
  const char *kernel;
  kva_ptx_dim3 grid, block;
  uint32_t shared;
  void *arrays[6]; /* registered, and passed as the first parameters */
  size_t sizes[6];
  const void *scalars[6]; /* the parameters after them */
  uint32_t n_arrays, n_scalars;
  kva_ptx_options options;
} ptx_case;

static inline kva_ptx_report ptx_run(const kva_ptx_module *m, const ptx_case *c) {
  const kva_ptx_kernel *kernel = c->kernel ? kva_ptx_module_get_kernel(m, c->kernel) : kva_ptx_module_kernel_at(m, 0);
  assert_non_null(kernel);
  kva_ptx_memory *memory = kva_ptx_memory_create();
  const void *params[12];
  for (uint32_t k = 0; k < c->n_arrays; k++) {
    assert_int_equal(kva_ptx_memory_add(memory, c->arrays[k], c->sizes[k], true, "array"), KVA_OK);
    params[k] = &c->arrays[k];
  }
  for (uint32_t k = 0; k < c->n_scalars; k++) params[c->n_arrays + k] = c->scalars[k];
  kva_diag *diag = kva_diag_create();
  kva_ptx_report report;
  kva_ptx_dim3 one = {1, 1, 1};
  kva_status status = kva_ptx_launch(kernel, memory, c->grid.x ? c->grid : one, c->block, c->shared, params,
                                     c->n_arrays + c->n_scalars, &c->options, diag, &report);
  if (status != KVA_OK) kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  kva_diag_destroy(diag);
  kva_ptx_memory_destroy(memory);
  return report;
}

/* Runs and expects no finding. */
static inline void ptx_run_clean(const kva_ptx_module *m, const ptx_case *c) {
  kva_ptx_report report = ptx_run(m, c);
  kva_ptx_report_print_findings(&report, "test.ptx", stderr);
  assert_int_equal(report.n_findings, 0);
  kva_ptx_report_free(&report);
}

static inline uint64_t ptx_random(uint64_t *state) {
  kva_philox p = kva_philox4x32((*state)++, 0, 42);
  return p.v[0] | (uint64_t)p.v[1] << 32;
}

/* The report has a finding of this kind at this line of the text. */
static inline void ptx_expect_finding(const kva_ptx_report *report, kva_ptx_finding_kind kind, uint32_t line,
                                      const char *body) {
  bool found = false;
  for (uint32_t k = 0; k < report->n_findings; k++)
    found |= report->findings[k].kind == kind && report->findings[k].line == line;
  if (!found) {
    fprintf(stderr, "no '%s' at line %u; the body is:\n%s\n", kva_ptx_finding_name(kind), line, body);
    kva_ptx_report_print_findings(report, "test.ptx", stderr);
  }
  assert_true(found);
}

#endif
