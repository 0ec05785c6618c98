/* The shape of a matrix product, for the operator and its kernels. */
#ifndef KVA_OPS_MATMUL_H
#define KVA_OPS_MATMUL_H

#include "ops/ops.h"

typedef struct kva_matmul_shape {
  kva_dim M, N, K, K_of_b; /* K_of_b: as operand 1 has it; equal to K once inference has passed */
  bool transpose_a, transpose_b;
} kva_matmul_shape;

kva_matmul_shape kva_matmul_get(const kva_node *n);
/* Float products by register tiles over packed panels (matmul_tile.c). */
void kva_matmul_tile_kernel(kva_lower *l, const kva_node *n);

#endif
