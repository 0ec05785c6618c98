/* Attention on tensor cores: the basis of the kernels in flash_forward.c and flash_backward.c.
 *
 * A block owns a query tile of 16 rows for each of its warps (queries, or keys for dk and dv) and walks the other axis
 * ("far") in steps of `far` positions. Tiles are in shared memory as [position][width] in the operands' 16-bit type. A
 * warp multiplies fragments of them (m16n8k16, float sums) and keeps the results in registers:
 *
 *   scores    [16][far]    row r of a warp times every far row: both operands have the depth contiguous
 *   products  [16][width]  probabilities, from registers, times the far tile: its rows are the depth
 *
 * Element i of a thread's part of a [16][n] result is in row lane / 4 + 8 * (i / 2 % 2), column 8 * (i / 4) + 2 * (lane
 * % 4) + i % 2 (PTX ISA, mma.m16n8k16). Two adjacent 8-column parts of a result are exactly one 16-deep left operand,
 * in order: rounding turns probabilities into an operand, without shuffles.
 *
 * In shared memory, chunk c of 16 bytes of row r is at c rotated by r within 128 bytes. So the 8 rows of one column
 * that a matrix load reads at once are in different banks, and so are the chunks of a row that copies write.
 *
 * Floats are multiplied without tensor cores, whose 10 bits of mantissa do not suffice, in the same layout. */
#ifndef KVA_KERNELS_NV_ATTENTION_FLASH_H
#define KVA_KERNELS_NV_ATTENTION_FLASH_H

#include "codegen/kernels/any/attention/query_tile.h"
#include "codegen/kernels/kernels.h"

enum { KVA_FLASH_WARPS = 4, KVA_FLASH_ROWS = 16 * KVA_FLASH_WARPS };

typedef struct kva_flash {
  kva_query_tile s; /* the node, heads and positions; arithmetic is float */
  kva_dtype type;   /* of tiles */
  int64_t far;      /* far positions per step, a multiple of 16 */
  int64_t chunk;    /* elements in 16 bytes */
  int64_t width;    /* elements of a tile's row: D rounded up to 128 bytes, 0 from D on */
  int64_t depth16;  /* ceil(D / 16) */
  bool general;     /* scores need more than a factor and visibility */
  double factor;    /* exp(score) = exp2(factor * score), for scores as kva_flash_score gives them */
  bool added;       /* a mask is added, whose finite values may be as large as floats are */
  const kva_expr *thread, *lane, *warp;
  kva_kloop *grid, *threads;
  kva_kbuf
      *turned; /* float: probabilities, transposed from the threads that computed them to the threads of their rows */
} kva_flash;

/* Why n, one of the three attention operators, has no such kernel: see kva_kernel_row. With 16-bit types all heads have
 * one size, a multiple of 8 and at most 256; with floats a multiple of 4 and at most 128. */
const char *kva_flash_refuses(const kva_node *n);

/* Opens grid and threads over (b, heads, query tiles of `extent`, parts), the last varying fastest; out_part may be
 * NULL for one part. Longest query tiles come first if causality makes their lengths differ. */
void kva_flash_begin(kva_flash *f, kva_lower *l, const kva_node *n, bool kv_heads, int64_t far, int64_t parts,
                     const kva_expr **out_part);
/* The same for block sizes other than KVA_FLASH_ROWS and KVA_FLASH_WARPS. */
typedef struct kva_flash_block {
  bool kv_heads;
  int64_t far, parts, rows, threads;
  uint32_t blocks; /* minimum resident blocks per multiprocessor, see kva_kernel */
} kva_flash_block;
void kva_flash_begin_block(kva_flash *f, kva_lower *l, const kva_node *n, const kva_flash_block *block,
                           const kva_expr **out_part);
void kva_flash_end(kva_flash *f);

/* Shared memory for `rows` positions, times stages. */
kva_kbuf *kva_flash_tile(const kva_flash *f, const char *name, int64_t rows);

/* Starts copying rows first .. first + rows of operand [b, head] to `tile` from its row `at` on; positions from `limit`
 * on become 0. Complete for all threads after copy_wait and a block barrier. */
typedef struct kva_flash_copy {
  kva_kbuf *tile;
  const kva_expr *at;
  uint32_t operand;
  const kva_expr *head, *first, *limit;
  int64_t rows;
} kva_flash_copy;
void kva_flash_load(const kva_flash *f, const kva_flash_copy *c);
void kva_flash_commit(const kva_flash *f);
/* Waits until at most `groups` copies are pending, then a block barrier. */
void kva_flash_wait(const kva_flash *f, int32_t groups);
/* Waits for all copies of the thread, including those issued after the last step, which nothing reads. */
void kva_flash_drain(const kva_flash *f);

/* out[far / 2] = this warp's 16 rows of `rows` times every row of `far_tile` from its row `at` on. */
void kva_flash_scores(const kva_flash *f, kva_kbuf *out, kva_kbuf *rows, kva_kbuf *far_tile, const kva_expr *at);
/* out[8 * n16] += p[far / 2] times columns 16 * first16 .. 16 * (first16 + n16) of far_tile from its row `at` on. */
typedef struct kva_flash_product {
  kva_kbuf *out, *p, *far_tile;
  const kva_expr *at, *first16;
  int64_t n16;
  bool again; /* not the first product since the last block barrier */
} kva_flash_product;
void kva_flash_multiply(const kva_flash *f, const kva_flash_product *p);

/* Opens an UNROLL loop over the n elements of a thread's part of a result, with their row (0 or 1: which of its two)
 * and column. */
typedef struct kva_flash_element {
  kva_kloop *loop;
  const kva_expr *i, *row, *column;
} kva_flash_element;
kva_flash_element kva_flash_each(const kva_flash *f, int64_t n);
/* Position of one of the thread's two rows. */
const kva_expr *kva_flash_row(const kva_flash *f, const kva_expr *row);

/* The score of (query, key) from q.k, in units of `factor`; `masked`: the key may be invisible, then the score is -inf.
 * out_cap as in kva_query_tile_score. */
kva_kval kva_flash_score(const kva_flash *f, const kva_expr *q, const kva_expr *key, kva_kval dot, bool masked,
                         kva_kval *out_cap);
kva_kval kva_flash_exp2(const kva_flash *f, kva_kval x);
/* exp2(factor * (score - max)) is kva_flash_probability(score, kva_flash_shift(max)). */
kva_kval kva_flash_shift(const kva_flash *f, kva_kval max);
kva_kval kva_flash_probability(const kva_flash *f, kva_kval score, kva_kval shift);
/* The forward pass's values for query [s.b, s.h, q]; lse as a shift. A query that does not exist or sees nothing has
 * +inf there, which makes its probabilities 0. */
typedef struct kva_flash_query {
  kva_kval lse, delta;
} kva_flash_query;
kva_flash_query kva_flash_load_query(const kva_flash *f, const kva_expr *q);
/* v combined over the four threads that share a row. */
kva_kval kva_flash_combine_row(const kva_flash *f, kva_kop op, kva_kval v);

/* result[b, head, row, d] = factor * m for this thread's part of m[16][16 * n16], columns from 16 * first16 on; scale:
 * by row, or NULL. */
typedef struct kva_flash_store {
  kva_kbuf *m;
  uint32_t result;
  const kva_expr *head, *first16;
  int64_t n16;
  double factor;
  kva_kbuf *scale;
} kva_flash_store;
void kva_flash_store_rows(const kva_flash *f, const kva_flash_store *s);

#endif
