/* A work item of the tiles of contractions (tiles.c), for the parts that AMX does otherwise (amx.c). */
#ifndef KVA_KERNELS_CPU_CONTRACT_TILE_H
#define KVA_KERNELS_CPU_CONTRACT_TILE_H

#include "codegen/kernels/cpu/contract/contract.h"

typedef struct kva_tiling {
  int64_t vectors, panel;   /* columns of a tile, in vectors and in elements */
  int64_t tile_rows, tiles; /* rows of a tile, tiles of a block */
  int64_t panels;           /* of an item */
  int64_t depth;            /* steps of a slice */
} kva_tiling;

/* ---- tiling.c ---------------------------------------------------------------------------------------------------- */

kva_tiling kva_tiling_choose(const kva_contraction *c);
/* Columns of the result, over lines. */
kva_dim kva_tiling_columns(const kva_contraction *c);
/* Positions of a segment beyond its panel, and phases of a step. */
int64_t kva_tiling_reach(const kva_contraction *c);
int64_t kva_tiling_phases(const kva_contraction *c);
/* Whether rows of a are packed, too; whether all panels of an item are before the first is multiplied. */
bool kva_tiling_packs_a(const kva_contraction *c);
bool kva_tiling_packs_together(const kva_contraction *c, const kva_tiling *t);
/* Whether b is not packed: tiles are as wide as its panels and read them. */
bool kva_tiling_in_place(const kva_contraction *c);

/* ---- tiles.c ----------------------------------------------------------------------------------------------------- */

/* State of an item while its code is made. */
typedef struct kva_tile {
  const kva_contraction *c;
  kva_kb *kb;
  kva_expr_ctx *e;
  kva_tiling t;
  int64_t phases, segment; /* positions of a segment */
  int64_t panel_packed;    /* elements that a panel's part of b takes */
  int64_t factor_block;    /* kva_contract_block */
  kva_dim columns, all_tiles, all_panels;
  bool one_slice;     /* the sums start at 0 in registers */
  bool together;      /* all panels of an item are packed before the first is multiplied, row by row of b */
  bool in_place;      /* b is read where it lies, in panels */
  bool by_tile;       /* the block is that of one tile, whose results leave before the next one's are made */
  bool in_last_slice; /* results leave tile by tile, in the last of several slices */
  const kva_expr *batch, *first_tile, *first_panel; /* of the item */
  const kva_expr *tiles;                            /* of the item */
  const kva_expr *slice;                            /* of several, its number */
  const kva_expr *next_batch, *next_panel;          /* of the item that this core takes next */
  const kva_expr *panel, *col0;                     /* which one of the item, and its first column */
  const kva_expr *packed0, *block0;                 /* where its packed part and its part of the block begin */
  kva_kbuf *packed, *factors, *zeros, *sums_a, *packed_a, *squares, *seen, *acc, *block;
} kva_tile;

static inline const kva_expr *kva_tile_num(const kva_tile *x, int64_t v) {
  return kva_expr_const(x->e, v);
}
static inline const kva_expr *kva_tile_plus(const kva_tile *x, const kva_expr *a, const kva_expr *b) {
  return kva_expr_add(x->e, a, b);
}
static inline const kva_expr *kva_tile_times(const kva_tile *x, const kva_expr *a, int64_t v) {
  return kva_expr_muli(x->e, a, v);
}

typedef kva_kval (*kva_tile_element_fn)(const kva_contraction *c, const kva_contract_at *at);

/* An element at a column, 0 past the last one. Sets at->line and at->position. */
kva_kval kva_tile_element(const kva_tile *x, kva_tile_element_fn element, kva_contract_at *at, const kva_expr *column);
/* The tensor in memory whose elements the operand has, in the same order; NULL: the kernel computes them. */
const kva_value *kva_tile_in_memory(const kva_tile *x, uint32_t operand);
/* Too large to stay in L2 beside what is packed, or of a size that is not known. */
bool kva_tile_is_large(const kva_tile *x, const kva_value *v);
/* The first row of the result of a tile of the block. */
const kva_expr *kva_tile_first_row(const kva_tile *x, const kva_expr *tile_of_block);
/* How many rows of a tile exist, whose first one is `row`. */
const kva_expr *kva_tile_rows(const kva_tile *x, const kva_expr *row);
/* Row r, column j of a tile's sums in x->block. */
const kva_expr *kva_tile_block(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *r, const kva_expr *j);

/* Steps of all slices, where the depth is known. */
int64_t kva_tile_all_steps(const kva_tile *x);

/* ---- pack.c ------------------------------------------------------------------------------------------------------ */

enum { KVA_TILE_STEPS = 8 }; /* that are packed before the next panel's or tile's */

static inline bool kva_tile_one_line(const kva_tile *x) {
  return kva_expr_is(x->c->lines, 1);
}
static inline int64_t kva_tile_lanes(const kva_tile *x) {
  return x->t.panel / x->t.vectors;
}
/* Where step k of a slice, lead and phase begin in x->packed. */
const kva_expr *kva_tile_segment(const kva_tile *x, const kva_expr *k, const kva_expr *lead, const kva_expr *phase);
/* Where x->packed_a has a row of a tile of the block at step k of the slice. */
const kva_expr *kva_tile_packed_a(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *k,
                                  const kva_expr *row);
/* Where x->sums_a has a row of the block for block q of a slice. */
const kva_expr *kva_tile_sum_of_a(const kva_tile *x, const kva_expr *row, const kva_expr *q);
const kva_expr *kva_tile_row_that_exists(const kva_tile *x, const kva_expr *row);
/* For each line that positions first .. end - 1 touch: the range inside it and inside its first `used` positions. */
typedef void (*kva_tile_stretch)(const kva_tile *x, kva_contract_at *at, const kva_expr *column, const void *user);
void kva_tile_over_lines(const kva_tile *x, const kva_expr *first, const kva_expr *end, kva_dim used,
                         kva_contract_at *at, kva_tile_stretch body, const void *user);
/* The block's rows of a for a slice, and their sums by blocks; the panel's part of b; one step of that. */
void kva_tile_pack_rows(const kva_tile *x, const kva_expr *k0, const kva_expr *slice);
void kva_tile_sum_rows(const kva_tile *x, const kva_expr *k0, const kva_expr *slice);
void kva_tile_pack(const kva_tile *x, const kva_expr *k0, const kva_expr *slice);
void kva_tile_pack_step(const kva_tile *x, const kva_expr *k0, const kva_expr *k);

/* ---- fetch.c ----------------------------------------------------------------------------------------------------- */

/* Columns are fetched panel by panel; then next_batch and next_panel are read. */
bool kva_tile_fetches_panels(const kva_tile *x);
/* Whether a tile fetches lines of what is packed next; NULL: none does. */
kva_kval kva_tile_fetches(const kva_tile *x, const kva_expr *tile_of_block);
/* Whether tiles fetch filters that the next one reads where they lie. */
bool kva_tile_fetches_filters(const kva_tile *x);
/* Those of step k of the depth and a lead, for the tile after that whose first row this is. */
void kva_tile_fetch_filters(const kva_tile *x, const kva_expr *row, const kva_expr *k, const kva_expr *lead);
/* Those of step k of a slice. */
void kva_tile_fetch(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *k0, const kva_expr *k);

/* ---- amx.c ------------------------------------------------------------------------------------------------------- */

/* The words that a step of the dialect is packed in. */
int64_t kva_amx_step(const kva_contraction *c);
/* Memory for so many panels of b, or tiles of a. */
kva_kbuf *kva_amx_local(const kva_tile *x, bool is_b, int64_t n);
/* The block's rows of a for a slice, the panel's part of b, and one step of that. */
void kva_amx_pack_rows(const kva_tile *x, const kva_expr *k0, const kva_expr *slice);
void kva_amx_pack_columns(const kva_tile *x, const kva_expr *k0, const kva_expr *slice);
void kva_amx_pack_step(const kva_tile *x, const kva_expr *k0, const kva_expr *step);
/* Around the products of an item. */
void kva_amx_begin(const kva_tile *x);
void kva_amx_end(const kva_tile *x);
/* Adds the products of a slice to a tile's sums, or makes them where one slice is the whole depth. */
void kva_amx_multiply(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *k0, const kva_expr *slice);

#endif
