/* What the two kernels of gather_grad share. */
#ifndef KVA_OPS_GATHER_GRAD_H
#define KVA_OPS_GATHER_GRAD_H

#include "ops/build.h"

typedef struct kva_gather_layout {
  uint32_t axis, n_indices, rank; /* axis of the result that indices name; rank of the indices, of the result */
} kva_gather_layout;
kva_gather_layout kva_gather_grad_layout(const kva_node *n);

/* Offset in the result of element c of row `row` of the axis (`extent` rows of `inner` elements), behind outer position
 * `outer`. */
const kva_expr *kva_gather_grad_offset(kva_expr_ctx *e, const kva_expr *outer, const kva_expr *row, kva_dim extent,
                                       const kva_expr *c, const kva_expr *inner);

/* The kernel for GPUs, of types of whole bytes: gather_grad_blocks.c. */
void kva_gather_grad_by_blocks(kva_lower *l, const kva_node *n);

#endif
