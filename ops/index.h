/* Data-dependent indices (gather, scatter): int32 or int64; negative ones count from the end. Outside [-extent, extent)
 * the reference reports an error, and so does the builder for constants; compiled code clamps, and reports with
 * --check-indices (passes/check_indices.c). */
#ifndef KVA_OPS_INDEX_H
#define KVA_OPS_INDEX_H

#include "ops/build.h"

KVA_MUST_USE kva_status kva_index_check(kva_module *m, const kva_node *n, uint32_t operand);
/* Maps index to [0, extent), or reports an error that names index, axis and extent. */
KVA_MUST_USE kva_status kva_index_ref(kva_ref *r, const kva_node *n, int64_t index, uint32_t axis, int64_t extent,
                                      int64_t *out_index);
/* kva_op_info.indexing of operand 1 that holds index tuples into operand 0's axes from `axis` on. */
void kva_index_tuples(const kva_node *n, uint32_t axis, kva_indexing *out);
/* The values allowed for extent k of an operand, as expressions: [*low, *high). */
void kva_index_range(kva_expr_ctx *c, const kva_indexing *x, uint32_t k, kva_dim *low, kva_dim *high);
/* Reports the first index of n that is a constant and out of range. */
KVA_MUST_USE kva_status kva_index_check_constant(kva_module *m, const kva_node *n);
/* Length of the index tuples in `indices` (gather_nd, scatter_nd): the last extent, constant after inference. */
uint32_t kva_index_length(const kva_type *indices);
/* Element `at` of an index operand as an index expression in [0, extent) (0 if extent is 0). */
const kva_expr *kva_index_lower(kva_lower *l, const kva_node *n, uint32_t operand, const kva_expr *const *at,
                                kva_dim extent);
/* The condition extent > 0; NULL if that is known to hold. */
kva_kval kva_index_nonempty(kva_lower *l, kva_kval condition, kva_dim extent);

#endif
