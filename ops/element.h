/* Pieces that the lowering of several operators shares: guarded operands, sums over axes. */
#ifndef KVA_OPS_ELEMENT_H
#define KVA_OPS_ELEMENT_H

#include "ops/build.h"

/* Operand element idx where `cond` holds, else 0: no memory is touched where it does not. cond NULL: always. */
kva_kval kva_masked_operand(kva_lower *l, const kva_node *n, uint32_t operand, const kva_expr *const *idx,
                            kva_kval cond);

/* Operand 0 at idx, as a contribution to a reduction. */
typedef kva_kval (*kva_term)(kva_lower *l, const kva_node *n, const kva_expr *const *idx, void *user);
/* Reduces term over the `n_axes` axes of operand 0 that start at `axis`; the other entries of idx stay. */
kva_kval kva_reduce_axes(kva_lower *l, const kva_node *n, kva_combine combine, const kva_expr *const *idx,
                         uint32_t axis, uint32_t n_axes, kva_term term, void *user);
/* The element itself: a kva_term. */
kva_kval kva_term_element(kva_lower *l, const kva_node *n, const kva_expr *const *idx, void *user);

/* The type in which gradients of x are computed: float for narrower floats, else x's own. */
static inline kva_dtype kva_ref_tensor_dtype(kva_dtype t) {
  return t == KVA_F64 ? KVA_F64 : KVA_F32;
}
static inline kva_value *kva_widen(kva_builder *b, kva_value *x) {
  return kva_cast(b, x, kva_ref_tensor_dtype(x->type->dtype));
}

#endif
