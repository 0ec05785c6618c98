/* Shared by gather_grad and its kernels. */
#ifndef KVA_OPS_GATHER_GRAD_H
#define KVA_OPS_GATHER_GRAD_H

#include "ops/sort_indices.h"

enum { KVA_GATHER_GRAD_KEYS = 2, KVA_GATHER_GRAD_BOUNDS };

typedef struct kva_gather_layout {
  uint32_t axis, n_indices, rank; /* axis of the result that is indexed; ranks of the indices and of the result */
} kva_gather_layout;
kva_gather_layout kva_gather_grad_layout(const kva_node *n);

/* Describes the sorted indices of n, which must have them. */
kva_sorted kva_gather_grad_sorted(kva_expr_ctx *c, const kva_node *n);

/* For GPUs: adds sorted indices to gather_grads of g with types of whole bytes. Nodes with the same indices share them.
 * owners: see sort_indices.c. False: there was nothing to do. */
bool kva_gather_grads_sort(kva_module *m, kva_graph *g, int64_t owners);

#endif
