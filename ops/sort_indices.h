/* Indices sorted by the GPU blocks that own the rows they name: ops/sort_indices.c. */
#ifndef KVA_OPS_SORT_INDICES_H
#define KVA_OPS_SORT_INDICES_H

#include "ops/build.h"

typedef struct kva_sorted {
  kva_dim positions, rows; /* number of indices; number of rows they may name */
  kva_dim owners, each;    /* blocks that share the rows; maximum rows per block */
  kva_dim chunks;
  int64_t chunk;   /* indices per chunk, a power of two */
  kva_dtype dtype; /* type of the keys */
} kva_sorted;
kva_sorted kva_sorted_of(kva_expr_ctx *c, const kva_type *indices, kva_dim rows, kva_dim owners);
/* Reads a sort_indices node. */
kva_sorted kva_sort_indices_of(kva_expr_ctx *c, const kva_node *n);

#endif
