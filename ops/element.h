/* Shared pieces of lowering: guarded operands, sums over axes. */
#ifndef KVA_OPS_ELEMENT_H
#define KVA_OPS_ELEMENT_H

#include "ops/build.h"

/* Operand element idx if `cond` holds, else 0 without a memory access. cond NULL: always. */
kva_kval kva_masked_operand(kva_lower *l, const kva_node *n, uint32_t operand, const kva_expr *const *idx,
                            kva_kval cond);

/* The contribution of operand 0 at idx to a reduction. */
typedef kva_kval (*kva_term)(kva_lower *l, const kva_node *n, const kva_expr *const *idx, void *user);
/* Reduces term over `n_axes` axes of operand 0 from `axis` on; the other entries of idx are kept. */
kva_kval kva_reduce_axes(kva_lower *l, const kva_node *n, kva_combine combine, const kva_expr *const *idx,
                         uint32_t axis, uint32_t n_axes, kva_term term, void *user);
/* A kva_term: the element itself. */
kva_kval kva_term_element(kva_lower *l, const kva_node *n, const kva_expr *const *idx, void *user);

/* The type in which gradients of x are computed: float for narrower floats, else x's type. */
static inline kva_dtype kva_ref_tensor_dtype(kva_dtype t) {
  return t == KVA_F64 ? KVA_F64 : KVA_F32;
}
static inline kva_value *kva_widen(kva_builder *b, kva_value *x) {
  return kva_cast(b, x, kva_ref_tensor_dtype(x->type->dtype));
}

#endif
