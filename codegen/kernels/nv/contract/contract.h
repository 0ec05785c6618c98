/* Products (any/contract/contraction.h) by blocks of a GPU's threads. contract.c chooses the tile, fills the ring of
 * shared memory and stores results; mma.c and simt.c multiply a slice of the depth from the ring. wgmma.c has a
 * separate ring, filled through tensor maps. Products of few rows have no tiles: skinny.c. */
#ifndef KVA_KERNELS_NV_CONTRACT_CONTRACT_H
#define KVA_KERNELS_NV_CONTRACT_CONTRACT_H

#include "codegen/kernels/any/contract/contraction.h"

enum { KVA_GPU_BATCH, KVA_GPU_OUTER, KVA_GPU_DEPTH, KVA_GPU_PROBES };

/* One factor's part of the ring: a tile of `outer` rows of a (columns of b) x the slice's depth. */
typedef struct kva_gpu_factor {
  bool is_b;
  bool along_depth; /* neighbours in memory are consecutive along the depth, else along `outer` */
  bool row_is_step; /* a row of the ring is a step of the depth, its elements are along `outer`; else reversed */
  int64_t outer, length, at; /* length: pitch of rows; at: position in a stage */
  kva_kbuf *from;            /* copied asynchronously from here; NULL: computed, through registers */
  const kva_expr *index;     /* in `from`, over these symbols */
  const kva_expr *symbols[KVA_GPU_PROBES];
  kva_kbuf *fetched; /* registers */
  int32_t map;       /* wgmma: number of its tensor map */
  bool batched;      /* wgmma: the map has a dimension for the batch */
} kva_gpu_factor;

typedef struct kva_gpu_tile kva_gpu_tile;

/* How the products of a slice are computed. */
typedef struct kva_gpu_engine {
  /* Place of element (row of the ring, position in it) in a factor's tile; the position of a copy is a multiple of 16
   * bytes. */
  const kva_expr *(*place)(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *row,
                           const kva_expr *position);
  void (*multiply)(const kva_gpu_tile *x, const kva_expr *stage); /* adds to the sums */
  void (*stage_sums)(const kva_gpu_tile *x);                      /* registers -> `staged` */
} kva_gpu_engine;

struct kva_gpu_tile {
  const kva_contraction *c;
  kva_kb *kb;
  kva_expr_ctx *e;
  const kva_gpu_engine *engine;
  kva_dtype dtype;         /* of the ring */
  kva_dim columns, depth;  /* totals: lines with their used positions; steps, leads and taps */
  int64_t bm, bn, bk;      /* of a block */
  int64_t stages, threads; /* threads divide every tile of the ring evenly */
  int64_t wm, wn;          /* of a warp, or of a thread */
  int64_t stage;           /* elements */
  kva_gpu_factor a, b;
  kva_kbuf *ring, *sums, *staged;
  kva_kbuf *fragments_a, *fragments_b; /* registers */
  kva_kbuf *barriers;                  /* wgmma: of full stages, then of empty ones */
  const kva_expr *batch, *row0, *col0, *thread, *slices;
};

static inline const kva_expr *kva_gpu_num(const kva_gpu_tile *x, int64_t v) {
  return kva_expr_const(x->e, v);
}
static inline const kva_expr *kva_gpu_plus(const kva_gpu_tile *x, const kva_expr *a, const kva_expr *b) {
  return kva_expr_add(x->e, a, b);
}
static inline const kva_expr *kva_gpu_times(const kva_gpu_tile *x, const kva_expr *a, int64_t v) {
  return kva_expr_muli(x->e, a, v);
}
static inline const kva_expr *kva_gpu_div(const kva_gpu_tile *x, const kva_expr *a, int64_t v) {
  return kva_expr_div(x->e, a, kva_expr_const(x->e, v));
}
static inline const kva_expr *kva_gpu_mod(const kva_gpu_tile *x, const kva_expr *a, int64_t v) {
  return kva_expr_mod(x->e, a, kva_expr_const(x->e, v));
}

/* Begins an if; NULL if the condition is known to hold. */
static inline kva_kinstr *kva_gpu_if_needed(const kva_gpu_tile *x, kva_kval cond) {
  bool always = cond->op == KVA_K_CONST && cond->imm.i;
  return always ? NULL : kva_k_if_begin(x->kb, cond);
}

extern const kva_gpu_engine kva_gpu_mma, kva_gpu_simt;

/* wgmma.c. Why target, types and shape do not suit warpgroups, for a tile with known factors; NULL: they do. */
const char *kva_gpu_wgmma_refuses(const kva_gpu_tile *x);
/* Chooses the tile and creates its buffers. */
void kva_gpu_wgmma_set(kva_gpu_tile *x);
/* Code of the block's threads: from the factors to `staged`. */
void kva_gpu_wgmma_block(kva_gpu_tile *x);

/* Sums in fragments of 16 x 8 -> `staged`: `rows` / 16 by `columns` / 8 of them from (row, column) of the block on. */
void kva_gpu_stage_fragments(const kva_gpu_tile *x, const kva_expr *row, const kva_expr *column, int64_t rows,
                             int64_t columns);
/* Blocks of bm x bn results; unknown extents count as large. */
double kva_gpu_blocks(const kva_gpu_tile *x, int64_t bm, int64_t bn);

/* Place of the sum at (row, column) of the block in `staged`. Rows are rotated by 8 columns each, so that threads with
 * the same columns of adjacent rows write to different banks. Pairs, and aligned groups of 4, stay together. */
static inline const kva_expr *kva_gpu_staged(const kva_gpu_tile *x, const kva_expr *row, const kva_expr *column) {
  const kva_expr *rotated = kva_gpu_mod(x, kva_gpu_plus(x, column, kva_gpu_times(x, row, 8)), x->bn);
  return kva_gpu_plus(x, kva_gpu_times(x, row, x->bn), rotated);
}

#endif
