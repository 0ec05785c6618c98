/* Shared by the reductions. Axes: the listed ones, each once, or all if none are listed; keepdims keeps them with
 * extent 1. */
#ifndef KVA_OPS_REDUCE_COMMON_H
#define KVA_OPS_REDUCE_COMMON_H

#include "ops/build.h"

KVA_MUST_USE kva_status kva_reduce_infer(kva_module *m, const kva_node *n, const kva_type **out_types);
/* Sets out_reduced[k] for every axis k of the operand; returns the number of reduced axes. */
uint32_t kva_reduction_axes(const kva_node *n, bool *out_reduced);
/* n reduces a whole tensor, of known extents, which a block of a GPU keeps in registers. */
bool kva_reduces_few(const kva_node *n);
/* Product of the reduced extents. */
const kva_expr *kva_reduce_count(kva_module *m, const kva_node *n);

/* One step of a reduction in the reference, by kind of element; u is for uint64. */
typedef struct kva_reduce_step {
  double (*f)(double acc, double x);
  int64_t (*i)(int64_t acc, int64_t x), (*u)(int64_t acc, int64_t x);
} kva_reduce_step;
void kva_reduce_ref(const kva_node *n, const kva_ref_tensor *x, kva_ref_tensor *y, kva_reduce_step step, double start_f,
                    int64_t start_i);
/* The least or greatest value of an integer or bool dtype. */
int64_t kva_int_limit(kva_dtype t, bool greatest);

/* v, shaped like the result, with the reduced axes as extent 1, so that it broadcasts against the operand. */
kva_value *kva_reduce_keep(kva_builder *b, const kva_node *n, kva_value *v);
/* Gradient of max and min: g split evenly among the elements equal to the result. */
kva_value *kva_reduce_extremum_vjp(kva_builder *b, kva_node *n, kva_value *g);

kva_kval kva_reduce_lower(kva_lower *l, const kva_node *n, kva_combine combine, const kva_expr *const *idx);

/* argmax and argmin. */
KVA_MUST_USE kva_status kva_arg_infer(kva_module *m, const kva_node *n, const kva_type **out_types);
KVA_MUST_USE kva_status kva_arg_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *x, kva_ref_tensor *y,
                                    bool greatest);
kva_kval kva_arg_lower(kva_lower *l, const kva_node *n, const kva_expr *const *idx, bool greatest);

#define KVA_REDUCE_INFER(op)                                                                  \
  KVA_OP_FUNCTIONS(op)                                                                        \
  kva_status kva_##op##_infer(kva_module *m, const kva_node *n, const kva_type **out_types) { \
    return kva_reduce_infer(m, n, out_types);                                                 \
  }
#define KVA_REDUCE_REF(op, step, start_f, start_i)                                          \
  kva_status kva_##op##_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, \
                            kva_ref_tensor *const *out) {                                   \
    (void)r;                                                                                \
    kva_reduce_ref(n, in[0], out[0], step, start_f, start_i);                               \
    return KVA_OK;                                                                          \
  }
#define KVA_REDUCE_LOWER(op, combine)                                                                       \
  kva_kval kva_##op##_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) { \
    (void)result;                                                                                           \
    return kva_reduce_lower(l, n, combine, idx);                                                            \
  }

#endif
