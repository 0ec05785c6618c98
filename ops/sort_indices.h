/* Indices sorted by the blocks of a GPU that own the rows which they name: ops/sort_indices.c. */
#ifndef KVA_OPS_SORT_INDICES_H
#define KVA_OPS_SORT_INDICES_H

#include "ops/build.h"

typedef struct kva_sorted {
  kva_dim positions, rows; /* indices in all; rows that they may name */
  kva_dim owners, each;    /* blocks that the rows belong to; rows of one, at most */
  kva_dim chunks;
  int64_t chunk;   /* indices of one, a power of two */
  kva_dtype dtype; /* of keys */
} kva_sorted;
kva_sorted kva_sorted_of(kva_expr_ctx *c, const kva_type *indices, kva_dim rows, kva_dim owners);
/* Of a sort_indices node. */
kva_sorted kva_sort_indices_of(kva_expr_ctx *c, const kva_node *n);

#endif
