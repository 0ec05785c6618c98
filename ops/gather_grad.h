/* What the two kernels of gather_grad share. */
#ifndef KVA_OPS_GATHER_GRAD_H
#define KVA_OPS_GATHER_GRAD_H

#include "ops/sort_indices.h"

enum { KVA_GATHER_GRAD_KEYS = 2, KVA_GATHER_GRAD_BOUNDS };

typedef struct kva_gather_layout {
  uint32_t axis, n_indices, rank; /* axis of the result that indices name; rank of the indices, of the result */
} kva_gather_layout;
kva_gather_layout kva_gather_grad_layout(const kva_node *n);

/* What the sorted indices of n, which has some, are like. */
kva_sorted kva_gather_grad_sorted(kva_expr_ctx *c, const kva_node *n);

/* Offset in the result of element c of row `row` of the axis (`extent` rows of `inner` elements), behind outer position
 * `outer`. */
const kva_expr *kva_gather_grad_offset(kva_expr_ctx *e, const kva_expr *outer, const kva_expr *row, kva_dim extent,
                                       const kva_expr *c, const kva_expr *inner);

/* For GPUs: gives the gather_grads of g, of types of whole bytes, their indices sorted, by nodes that those of the same
 * indices share; owners: of rows, see sort_indices.c. False: there is none without. */
bool kva_gather_grads_sort(kva_module *m, kva_graph *g, int64_t owners);

/* The kernel for GPUs, with sorted indices: gather_grad_blocks.c. */
void kva_gather_grad_by_blocks(kva_lower *l, const kva_node *n);

#endif
