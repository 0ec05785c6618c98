/* Checks of operand types for inference functions. Each reports at the node what it expected and what it found; omitted
 * operands pass. */
#ifndef KVA_OPS_CHECK_H
#define KVA_OPS_CHECK_H

#include "ops/build.h"

/* Operand i is a tensor of a dtype class that the operator's row names. */
KVA_MUST_USE kva_status kva_check_class(kva_module *m, const kva_node *n, uint32_t i);
KVA_MUST_USE kva_status kva_check_float(kva_module *m, const kva_node *n, uint32_t i);
KVA_MUST_USE kva_status kva_check_bool(kva_module *m, const kva_node *n, uint32_t i);
KVA_MUST_USE kva_status kva_check_int(kva_module *m, const kva_node *n, uint32_t i);
KVA_MUST_USE kva_status kva_check_same_dtype(kva_module *m, const kva_node *n, uint32_t i, uint32_t as);
KVA_MUST_USE kva_status kva_check_rank(kva_module *m, const kva_node *n, uint32_t i, uint32_t rank);
KVA_MUST_USE kva_status kva_check_min_rank(kva_module *m, const kva_node *n, uint32_t i, uint32_t rank);
/* Exactly this shape, with any dtype. */
KVA_MUST_USE kva_status kva_check_shape(kva_module *m, const kva_node *n, uint32_t i, uint32_t rank,
                                        const kva_dim *dims);
/* Broadcasts to this shape without enlarging it (NumPy's rule, aligned from the right). */
KVA_MUST_USE kva_status kva_check_broadcasts_to(kva_module *m, const kva_node *n, uint32_t i, uint32_t rank,
                                                const kva_dim *dims);
/* axis in [-rank, rank) -> [0, rank), after inference has checked it. */
static inline uint32_t kva_axis(int64_t axis, uint32_t rank) {
  return (uint32_t)(axis < 0 ? axis + (int64_t)rank : axis);
}

/* Operands 0 and 1 are integers of 8 bits, and a contraction's attribute `to` says that their products are summed in
 * int32. */
bool kva_sums_bytes(const kva_node *n, kva_dtype to);
/* Attribute `to` of a contraction: out_result is its result type, operand 0's or a wider float. */
KVA_MUST_USE kva_status kva_check_result_dtype(kva_module *m, const kva_node *n, kva_dtype to, kva_dtype *out_result);

#endif
