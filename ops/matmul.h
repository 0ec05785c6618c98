/* The shape of a matrix product, for the operator and its kernels. */
#ifndef KVA_OPS_MATMUL_H
#define KVA_OPS_MATMUL_H

#include "ops/ops.h"

typedef struct kva_matmul_shape {
  kva_dim M, N, K, K_of_b; /* K_of_b: according to operand 1; equal to K after inference */
  bool transpose_a, transpose_b;
} kva_matmul_shape;

kva_matmul_shape kva_matmul_get(const kva_node *n);
/* Products of at most this many rows read the second operand once on a CPU, from where it lies. */
enum { KVA_FEW_ROWS = 8 };
/* Products of at least this many rows with a constant read it from panels that are made once
 * (passes/layout_products.c); their sums have the order of those with other operands. */
enum { KVA_PANEL_ROWS = KVA_FEW_ROWS + 1 };
/* Vectors of a panel that the tiles of a CPU read where it lies (codegen/kernels/cpu/contract/tiling.c). */
static inline int64_t kva_panel_vectors(const kva_target *t) {
  return t->vector_registers >= 32 ? 4 : 2;
}
/* Whether sums over blocks of so many steps of a depth may be of bytes (kva_matmul_byte_block). */
bool kva_matmul_sums_bytes(int64_t block, int64_t depth);
/* n multiplies dequantised bytes, with a scale for each block of steps of a row. */
bool kva_matmul_takes_bytes(const kva_node *n);
/* The steps that have scales in common in both factors of n, dequantised bytes with a sign and unsigned codes with a
 * zero point: a kernel may sum up such a block in integers. 0: it may not. */
int64_t kva_matmul_byte_block(const kva_node *n);
/* The product as a GPU's library computes it: `batch` row-major products of float types, with strides between matrices
 * in elements (0: one shared matrix). See kva_gemm_desc. */
typedef struct kva_matmul_plain {
  kva_dim batch, m, n, k, step_a, step_b, step_d;
  bool transpose_a, transpose_b;
} kva_matmul_plain;
/* False: not such a product (integers, double, an operand shared by a part of the batch). */
bool kva_matmul_get_plain(kva_module *m, const kva_node *n, kva_matmul_plain *out);
/* Whether code for t leaves n to the device's library: such a product, but not one of few rows with one matrix, which
 * takes no longer generated, and then with what is fused into it. */
bool kva_matmul_is_for_library(const kva_target *t, const kva_node *n);

#endif
