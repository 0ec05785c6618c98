/* Contractions: result[batch][row][column] = sum over k of a[batch][row][k] * b[batch][k][column], whatever a, b and
 * the columns are: matrices, images seen through a window, gradients of those. The operator describes them by functions
 * of index expressions; cpu/contract and nv/contract provide loops and tiles.
 *
 * Columns are on `lines` of `line` positions, of which the first `used` hold results: the rows of an image, with space
 * for the positions that a window reads after the last result. For each of `leads` segments, one step of the depth
 * reads `taps` positions that are `spread` apart in units of 1 / stride: tap t of a column at position p reads position
 * p + t * spread / stride of the phase t * spread mod stride. So a convolution window reads one packed copy of a line
 * with all its taps. A matrix has one line, one lead, one tap. */
#ifndef KVA_KERNELS_ANY_CONTRACT_CONTRACTION_H
#define KVA_KERNELS_ANY_CONTRACT_CONTRACTION_H

#include "codegen/kernels/kernels.h"

typedef struct kva_contraction kva_contraction;

/* One factor of a product. k: step of the depth. */
typedef struct kva_contract_at {
  const kva_expr *batch, *k, *lead;
  const kva_expr *row, *tap;               /* of a */
  const kva_expr *phase, *line, *position; /* of b; a result's column: line and position */
} kva_contract_at;

struct kva_contraction {
  kva_lower *l;
  const kva_node *n;
  const void *user;
  kva_dtype type; /* of the sums */
  /* A step of the depth is a word in the type of the sums: four bytes of an int32, whose product is dot4, or the bits
   * of two bf16 as float, whose product is dot2. The depth is rounded up, with zeros. */
  const kva_contraction *words; /* what words are made of; NULL: there are none */
  kva_dtype a_type, b_type;     /* of its elements */
  bool b_unsigned;              /* b is, and a is signed; else a is unsigned, and b signed */
  bool amx; /* CPU: words, or floats, are multiplied in blocks (ir/dialect_amx.h) of kva_contract_amx_depth steps */
  kva_dim batch, rows, depth, lines, line, used;
  int64_t leads, taps, spread, stride;
  bool along_depth;   /* memory of b is contiguous along the depth, not along the columns; taps = 1 */
  int64_t turn;       /* columns after which b's conditions are the same again: the taps of a line; 0: not known */
  int64_t panel;      /* columns that memory of b has together; 0: all */
  int64_t panel_word; /* steps of a column that these have side by side */
  bool by_elements;   /* a CPU is as fast without tiles */
  int64_t gpu_rows;   /* with fewer rows a GPU is, too */
  bool across_rows;   /* memory of a is contiguous along the rows, not along k; leads = taps = 1 */
  /* Elements in the type of the sums. b accepts any position of a line and gives 0 for positions without an element. */
  kva_kval (*a)(const kva_contraction *c, const kva_contract_at *at);
  kva_kval (*b)(const kva_contraction *c, const kva_contract_at *at);
  /* b is b_rest times b_factor, and so many steps from a multiple of it on share the factor. A kernel may sum up a
   * block with b_rest, from 0 and in the order of steps, and then add it times the factor: all kernels of a target do
   * or none does, so that a row's bits do not depend on how many rows there are. 0: there is no factor. */
  int64_t factor_block;
  kva_kval (*b_rest)(const kva_contraction *c, const kva_contract_at *at);
  kva_kval (*b_factor)(const kva_contraction *c, const kva_contract_at *at);
  /* b_rest is a code minus b_zero, which a block has in common: where this is not NULL, b_rest gives the code, and the
   * sum of a block begins with kva_contract_block_sum times b_zero. Blocks are whole then. */
  kva_kval (*b_zero)(const kva_contraction *c, const kva_contract_at *at);
  /* CPU: factors are bytes in blocks (kva_matmul_byte_block). A step is a word of four bytes of each, factor_block
   * counts steps, and sums of a block are int32: a and b_rest are words, b_zero is one of bytes, in int32, and a
   * block's sum is times both factors. b is not there. a_byte: of a step that counts bytes, in int32. b_mask: of the
   * bits that bytes of b have, for a target whose product of small bytes is shorter; else 0. */
  bool byte_blocks;
  int64_t b_mask;
  bool one_zero; /* b_zero is one number for all, and part of kva_contract_block_sum, with which the sum begins */
  kva_kval (*a_byte)(const kva_contraction *c, const kva_contract_at *at);
  kva_kval (*a_factor)(const kva_contraction *c, const kva_contract_at *at);
  /* Part of the batch has products (NULL: always); without, its results are 0. */
  kva_kval (*any)(const kva_contraction *c, const kva_contract_at *at);
  /* Index of the result for at's batch, row, line and position; returns whether it exists (NULL: always). */
  kva_kval (*result)(const kva_contraction *c, const kva_contract_at *at, const kva_expr **out_index);
};

/* A matmul of floats or of bytes of both signs, conv or one of conv's gradients as a contraction. `user` data lives as
 * long as l's kernel. */
kva_contraction kva_contract_of(kva_lower *l, const kva_node *n);
kva_contraction kva_contract_of_matmul(kva_lower *l, const kva_node *n);
kva_contraction kva_contract_of_conv(kva_lower *l, const kva_node *n);
kva_contraction kva_contract_of_conv_input_grad(kva_lower *l, const kva_node *n);
kva_contraction kva_contract_of_conv_weight_grad(kva_lower *l, const kva_node *n);

/* sum + a * b for factors at one step. */
kva_kval kva_contract_multiply(const kva_contraction *c, kva_kval a, kva_kval b, kva_kval sum);
/* Zero-extends a byte to int32; inserts such a byte into `word`, whose bits there are 0, at bit `at`. Elements that
 * follow each other in memory become one load of a word (LLVM combines such loads). */
kva_kval kva_contract_bits_of_byte(kva_kb *b, kva_kval v);
kva_kval kva_contract_put_bits(kva_kb *b, kva_kval word, kva_kval bits, int64_t at);
/* c rewritten to multiply four bytes per step (words.c), if one factor is signed and the other unsigned, both of 8
 * bits, and the sum int32; otherwise c. c.a and c.b give elements as they are. */
kva_contraction kva_contract_bytes(const kva_contraction *c, kva_dtype a, kva_dtype b);
/* The same where both factors are bf16, summed in float, and the target has dot2, or AMX that they fill. */
kva_contraction kva_contract_pairs(const kva_contraction *c, kva_dtype a, kva_dtype b);
/* Steps of the depth that one of AMX takes. */
int64_t kva_contract_amx_depth(const kva_contraction *c);
/* c, with c.amx if it is a matrix product by words, or of floats where the target's choice is bf16x3, that fills the
 * blocks of a target with AMX. */
kva_contraction kva_contract_blocks(const kva_contraction *c);
/* The type of sums of a block of steps with a factor in common. */
static inline kva_dtype kva_contract_block_type(const kva_contraction *c) {
  return c->byte_blocks ? KVA_I32 : c->type;
}
/* block + sum * factors, for the sum of a block of steps; `at` is where a's factor is, b's is `factor`. */
kva_kval kva_contract_add_block(const kva_contraction *c, const kva_contract_at *at, kva_kval sum, kva_kval factor,
                                kva_kval block);
/* Minus the sum of a over the block of steps from at's k on. */
kva_kval kva_contract_block_sum(const kva_contraction *c, const kva_contract_at *at);
/* Splits a flat index over extents[0..n). */
void kva_contract_split(kva_expr_ctx *e, const kva_expr *flat, uint32_t n, const kva_dim *extents,
                        const kva_expr **out_idx);
/* The result has at least `rows` rows, as far as is known. */
bool kva_contract_has_rows(const kva_contraction *c, int64_t rows);
/* Passes v through the epilogue as the result at `at`. */
void kva_contract_store(const kva_contraction *c, const kva_contract_at *at, kva_kval v);

#endif
