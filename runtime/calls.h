/* Steps that are not kernels: the implementation of the rows of calls.def. */
#ifndef KVA_RUNTIME_CALLS_H
#define KVA_RUNTIME_CALLS_H

#include "runtime/device.h"

/* One row. Each member of a step's descriptor has been checked (calls.def) before these functions see it. */
typedef struct kva_call_class {
  int32_t n_args, n_results; /* -1: any number */
  /* Whether types and numbers are consistent; appends the reason to *why if not. NULL: nothing to check. */
  bool (*check)(const kva_program *p, const kva_step_desc *s, kva_text *why);
  /* Whether the call stays within its buffers, bytes[...] by buffer; NULL: it always does. */
  bool (*fits)(const kva_program *p, const kva_step_desc *s, const int64_t *sizes, const int64_t *bytes);
  /* Performs the call in host memory. On failure returns a status; the session's error has the reason. */
  kva_status (*run)(kva_session *s, const kva_device_call *call);
} kva_call_class;

/* The row of a checked CALL step. */
const kva_call_class *kva_call_class_of(const kva_step_desc *s);

/* The number of formulas in a step's descriptor, and formula i in order of the members. */
int32_t kva_step_size_count(const kva_step_desc *s);
const kva_formula *kva_step_size(const kva_step_desc *s, int32_t i);

/* Sizes of KVA_CALL_GEMM: the formulas of kva_gemm_desc in order. */
typedef struct kva_gemm_sizes {
  int64_t batch, m, n, k;
  int64_t step_a, step_b, step_d; /* elements */
} kva_gemm_sizes;
kva_gemm_sizes kva_gemm_sizes_of(const int64_t *sizes);

#endif
