/* Contractions (any/contract/contraction.h) on CPUs: register tiles of explicit vectors over packed panels of b.
 *
 * A work item computes a block of rows x some panels of columns. For every slice of `depth` steps it packs its rows of
 * a, if memory is contiguous along them (for each tile, step by step), and then for each panel the part of b that its
 * columns read (contiguous: for each step, lead and phase one segment of panel + reach positions). Every tile of
 * `tile_rows` rows runs
 *
 *   acc[r][j] += a[r][k, lead, tap] * packed[k, lead, phase of tap][offset of tap + j]      r unrolled, j in vectors
 *
 * with the accumulators in registers: (tile_rows + 1) * vectors + 1 of them fit the register file. If one slice is the
 * whole depth, a tile goes through the fused epilogue to memory while it is in L1; else accumulators are stored in a
 * local block between slices, which takes that way after the last one. Every element is one sum in the order of (k,
 * lead, tap), whatever the thread count, the tile and the slices. Where steps have a factor in common (quantised
 * weights), the panel is packed without it, and accumulators are added to the block times the factor. A constant b in
 * panels of the tile's width is not packed: tiles read it where it lies.
 *
 * tiling.c chooses shapes. Positions after `used` are computed and discarded; packed values for positions after the
 * last line affect only those.
 *
 * With AMX (c.amx, amx.c) a tile is a block of the dialect: a is packed in any case, in steps of KVA_AMX_WORDS, the
 * depth of a slice is a multiple of them, and accumulators are the registers of the dialect. */
#include "codegen/kernels/cpu/contract/tile.h"
#include "ir/dialect_amx.h"
#include "ops/ids.h"

enum {
  MAX_UNROLLED_TAPS = 8,
  FEW_REGISTERS = 16,
  SHORT_ROW = 512, /* columns */
};

/* ---- state of a work item ---------------------------------------------------------------------------------------- */

/* A row of the result: that of a tile of the block. Tiles have names, so that bounds are seen. */
const kva_expr *kva_tile_first_row(const kva_tile *x, const kva_expr *tile_of_block) {
  return kva_tile_times(x, kva_k_name(x->kb, kva_tile_plus(x, x->first_tile, tile_of_block), x->all_tiles),
                        x->t.tile_rows);
}

/* The rows of a tile that exist. */
const kva_expr *kva_tile_rows(const kva_tile *x, const kva_expr *row) {
  const kva_expr *last = kva_expr_addi(x->e, row, x->t.tile_rows - 1), *rows = kva_tile_num(x, x->t.tile_rows);
  if (kva_expr_provably_less(x->e, last, x->c->rows)) return rows;
  return kva_expr_min(x->e, rows, kva_expr_sub(x->e, x->c->rows, row));
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* State of one step of a tile's inner loop. */
typedef struct tile_step {
  const kva_expr *tile, *row; /* of the block; its first row of the result */
  const kva_expr *k0, *k, *lead, *tap;
  const kva_expr *q; /* block with a factor in common */
} tile_step;

/* for r unrolled, j in vectors: body */
typedef void (*tile_body)(const kva_tile *x, const kva_expr *r, const kva_expr *j, const tile_step *s);
static void over_tile(const kva_tile *x, tile_body body, const tile_step *s) {
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_tile_num(x, x->t.tile_rows), "r");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, x->t.panel), "j");
  body(x, r->var, j->var, s);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, r);
}

static const kva_expr *acc_at(const kva_tile *x, const kva_expr *r, const kva_expr *j) {
  return kva_tile_plus(x, kva_tile_times(x, r, x->t.panel), j);
}

const kva_expr *kva_tile_block(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *r, const kva_expr *j) {
  const kva_expr *first =
      x->by_tile ? kva_tile_num(x, 0) : kva_tile_times(x, tile_of_block, x->t.tile_rows * x->t.panel);
  return kva_tile_plus(x, kva_tile_plus(x, x->block0, first), acc_at(x, r, j));
}

static void clear_acc(const kva_tile *x, const kva_expr *r, const kva_expr *j, const tile_step *s) {
  (void)s;
  kva_k_store(x->kb, x->acc, acc_at(x, r, j), kva_k_const(x->kb, kva_contract_block_type(x->c), 0));
}

/* A block of steps with a zero point in common begins with it. */
static void start_acc(const kva_tile *x, const kva_expr *r, const kva_expr *j, const tile_step *s) {
  const kva_expr *row = kva_tile_plus(x, kva_tile_times(x, s->tile, x->t.tile_rows), r);
  kva_kval start = kva_k_load(x->kb, x->sums_a, kva_tile_sum_of_a(x, row, s->q));
  if (x->zeros) {
    kva_kval zero = kva_k_load(x->kb, x->zeros, kva_tile_plus(x, kva_tile_times(x, s->q, x->t.panel), j));
    start = kva_k2(x->kb, KVA_K_mul, zero, start);
  }
  kva_k_store(x->kb, x->acc, acc_at(x, r, j), start);
}

static void load_acc(const kva_tile *x, const kva_expr *r, const kva_expr *j, const tile_step *s) {
  kva_kval v = kva_k_load(x->kb, x->block, kva_tile_block(x, s->tile, r, j));
  kva_k_store(x->kb, x->acc, acc_at(x, r, j), v);
}

static void save_acc(const kva_tile *x, const kva_expr *r, const kva_expr *j, const tile_step *s) {
  kva_kval v = kva_k_load(x->kb, x->acc, acc_at(x, r, j));
  kva_k_store(x->kb, x->block, kva_tile_block(x, s->tile, r, j), v);
}

/* Adds the sums of a block of steps times its factor. */
static void add_acc(const kva_tile *x, const kva_expr *r, const kva_expr *j, const tile_step *s) {
  const kva_expr *at = kva_tile_block(x, s->tile, r, j);
  kva_kval factor = kva_k_load(x->kb, x->factors, kva_tile_plus(x, kva_tile_times(x, s->q, x->t.panel), j));
  kva_kval sum = kva_k_load(x->kb, x->acc, acc_at(x, r, j));
  kva_contract_at row = {.batch = x->batch,
                         .k = kva_tile_plus(x, s->k0, kva_tile_times(x, s->q, x->factor_block)),
                         .lead = kva_tile_num(x, 0),
                         .row = kva_tile_row_that_exists(x, kva_tile_plus(x, s->row, r)),
                         .tap = kva_tile_num(x, 0)};
  kva_k_store(x->kb, x->block, at, kva_contract_add_block(x->c, &row, sum, factor, kva_k_load(x->kb, x->block, at)));
}

/* Rows past the edge read whatever the panel holds, if there is one; their sums are never stored. */
static kva_kval factor_a(const kva_tile *x, const kva_expr *r, const tile_step *s) {
  const kva_contraction *c = x->c;
  const kva_expr *row = kva_tile_plus(x, s->row, r);
  if (c->across_rows) return kva_k_load(x->kb, x->packed_a, kva_tile_packed_a(x, s->tile, s->k, r));
  kva_contract_at at = {.batch = x->batch,
                        .k = kva_tile_plus(x, s->k0, s->k),
                        .lead = s->lead,
                        .row = kva_tile_row_that_exists(x, row),
                        .tap = s->tap};
  return c->a(c, &at);
}

static kva_kval packed_b(const kva_tile *x, const kva_expr *j, const tile_step *s) {
  const kva_expr *moved = kva_tile_times(x, s->tap, x->c->spread), *stride = kva_tile_num(x, x->c->stride);
  const kva_expr *from = kva_tile_segment(x, s->k, s->lead, kva_expr_mod(x->e, moved, stride));
  return kva_k_load(x->kb, x->packed, kva_tile_plus(x, kva_tile_plus(x, from, kva_expr_div(x->e, moved, stride)), j));
}

/* Panels are whole in memory, those past the last column, too. */
static kva_kval panel_element(const kva_tile *x, const kva_expr *j, const tile_step *s) {
  const kva_expr *zero = kva_tile_num(x, 0);
  kva_contract_at at = {.batch = x->batch,
                        .k = kva_tile_plus(x, s->k0, s->k),
                        .lead = zero,
                        .phase = zero,
                        .line = zero,
                        .position = kva_tile_plus(x, x->col0, j)};
  return x->c->b(x->c, &at);
}

static void multiply_add(const kva_tile *x, const kva_expr *r, const kva_expr *j, const tile_step *s) {
  const kva_contraction *c = x->c;
  kva_kval b = x->in_place ? panel_element(x, j, s) : packed_b(x, j, s);
  kva_kval acc = kva_k_load(x->kb, x->acc, acc_at(x, r, j));
  kva_k_store(x->kb, x->acc, acc_at(x, r, j), kva_contract_multiply(c, factor_a(x, r, s), b, acc));
}

/* Taps with copies of their own read panels that follow each other in memory, which LLVM would load together, before
 * they are multiplied: that takes registers beside those of the sums. */
static bool unrolls_taps(const kva_tile *x) {
  bool apart = x->phases > 1 && x->phases == x->c->taps;
  return x->c->taps <= MAX_UNROLLED_TAPS && (!apart || x->c->l->target->vector_registers > FEW_REGISTERS);
}

static void over_steps(const kva_tile *x, tile_step *s, const kva_expr *first, const kva_expr *n, bool fetches) {
  kva_kloop_kind kind = unrolls_taps(x) ? KVA_K_UNROLL : KVA_K_SERIAL;
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, n, "k");
  s->k = kva_tile_plus(x, first, k->var);
  if (fetches) kva_tile_fetch(x, s->tile, s->k0, s->k);
  kva_kloop *lead = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, x->c->leads), "lead");
  if (kva_tile_fetches_filters(x)) kva_tile_fetch_filters(x, s->row, kva_tile_plus(x, s->k0, s->k), lead->var);
  kva_kloop *tap = kva_k_loop_begin(x->kb, kind, kva_tile_num(x, x->c->taps), "tap");
  s->lead = lead->var, s->tap = tap->var;
  over_tile(x, multiply_add, s);
  kva_k_loop_end(x->kb, tap);
  kva_k_loop_end(x->kb, lead);
  kva_k_loop_end(x->kb, k);
}

/* n steps of the slice, from `first` on. Steps that fetch nothing do not look whether they are to. */
static void multiply_steps(const kva_tile *x, tile_step *s, const kva_expr *first, const kva_expr *n) {
  kva_kval fetches = kva_tile_fetches(x, s->tile);
  kva_kinstr *branch = fetches ? kva_k_if_begin(x->kb, fetches) : NULL;
  if (branch) {
    over_steps(x, s, first, n, true);
    kva_k_if_else(x->kb, branch);
  }
  over_steps(x, s, first, n, false);
  if (branch) kva_k_if_end(x->kb, branch);
}

static void clear_tile(const kva_tile *x, const kva_expr *tile_of_block) {
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, x->t.tile_rows), "r");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, x->t.panel), "j");
  kva_k_store(x->kb, x->block, kva_tile_block(x, tile_of_block, r->var, j->var), kva_k_const(x->kb, x->c->type, 0));
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, r);
}

/* The slice, block by block. */
static void multiply_blocks(const kva_tile *x, tile_step *s, const kva_expr *slice) {
  const kva_expr *steps = kva_tile_num(x, x->factor_block);
  kva_kloop *q = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_ceildiv(x->e, slice, steps), "q");
  const kva_expr *first = kva_tile_times(x, q->var, x->factor_block);
  s->q = q->var;
  over_tile(x, x->sums_a ? start_acc : clear_acc, s);
  multiply_steps(x, s, first, kva_expr_min(x->e, steps, kva_expr_sub(x->e, slice, first)));
  over_tile(x, add_acc, s);
  kva_k_loop_end(x->kb, q);
}

static void store_tile(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *row);

int64_t kva_tile_all_steps(const kva_tile *x) {
  int64_t depth;
  (void)kva_expr_is_const(x->c->depth, &depth);
  return kva_round_up(depth, x->t.depth);
}

/* In the last slice. The tile's sums are in L1 then, and its part of the result has been fetched while it was
 * multiplied. An arm for one iteration leaves the result in the memory of an operand (ir/kernel_alias.c). */
static void store_after_last(const kva_tile *x, const tile_step *s) {
  const kva_expr *last = kva_tile_num(x, kva_tile_all_steps(x) / x->t.depth - 1);
  kva_kinstr *earlier = kva_k_if_begin(x->kb, kva_k_index_lt(x->kb, x->slice, last));
  kva_k_if_else(x->kb, earlier);
  store_tile(x, s->tile, s->row);
  kva_k_if_end(x->kb, earlier);
}

static void multiply_slice(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, x->tiles, "i");
  tile_step s = {.tile = i->var, .row = kva_tile_first_row(x, i->var), .k0 = k0};
  if (x->c->amx) {
    kva_amx_multiply(x, s.tile, k0, slice);
  } else if (x->factor_block) {
    if (x->by_tile) clear_tile(x, i->var);
    multiply_blocks(x, &s, slice);
  } else {
    over_tile(x, x->one_slice ? clear_acc : load_acc, &s);
    multiply_steps(x, &s, kva_tile_num(x, 0), slice);
    over_tile(x, save_acc, &s);
  }
  if (x->by_tile) store_tile(x, i->var, s.row);
  if (x->in_last_slice) store_after_last(x, &s);
  kva_k_loop_end(x->kb, i);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

typedef struct stored_row {
  const kva_expr *tile, *r; /* of the block, of the tile */
} stored_row;

/* 0 where the next tile is not at a known distance. Results of an unknown number of rows count as large. */
static int64_t bytes_to_next(const kva_tile *x) {
  int64_t rows = INT32_MAX, columns, depth;
  if (!(x->by_tile || x->in_last_slice) || !kva_tile_one_line(x)) return 0;
  if (!kva_expr_is_const(x->columns, &columns) || !kva_expr_is_const(x->c->depth, &depth)) return 0;
  (void)kva_expr_is_const(x->c->rows, &rows);
  int64_t row = columns * kva_dtype_bits(x->c->n->results[0].type->dtype) / 8;
  return kva_contract_ahead(x->c->l->target, depth, rows * row, x->t.tile_rows * row);
}

static void store_element(const kva_tile *x, kva_contract_at *at, const kva_expr *column, const void *user) {
  const stored_row *row = user;
  const kva_expr *from = kva_tile_block(x, row->tile, row->r, kva_expr_sub(x->e, column, x->col0));
  kva_kval sum = kva_k_load(x->kb, x->block, from);
  x->kb->prefetch_bytes = bytes_to_next(x);
  kva_contract_store(x->c, at, sum);
  x->kb->prefetch_bytes = 0;
}

static void store_tile(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *row) {
  kva_expr_ctx *e = x->e;
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_rows(x, row), "r");
  kva_contract_at at = {.batch = x->batch, .row = kva_tile_plus(x, row, r->var), .line = kva_tile_num(x, 0)};
  const stored_row from = {tile_of_block, r->var};
  if (kva_tile_one_line(x)) {
    const kva_expr *n = kva_expr_min(e, kva_tile_num(x, x->t.panel), kva_expr_sub(e, x->c->used, x->col0));
    kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, n, "j");
    at.position = kva_tile_plus(x, x->col0, j->var);
    store_element(x, &at, at.position, &from);
    kva_k_loop_end(x->kb, j);
  } else {
    const kva_expr *end = kva_expr_min(e, kva_expr_addi(e, x->col0, x->t.panel), x->columns);
    kva_tile_over_lines(x, x->col0, end, x->c->used, &at, store_element, &from);
  }
  kva_k_loop_end(x->kb, r);
}

static void store_block(const kva_tile *x) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, x->tiles, "i");
  store_tile(x, i->var, kva_tile_first_row(x, i->var));
  kva_k_loop_end(x->kb, i);
}

static void clear_block(const kva_tile *x) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, x->tiles, "i");
  clear_tile(x, i->var);
  kva_k_loop_end(x->kb, i);
}

typedef void (*panel_body)(const kva_tile *x, const kva_expr *k0, const kva_expr *slice);

/* The panels of an item, each with its columns and its part of the block. */
static void over_panels(const kva_tile *x, panel_body body, const kva_expr *k0, const kva_expr *slice) {
  const kva_expr *left = kva_expr_sub(x->e, x->all_panels, x->first_panel);
  kva_kloop *p = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_min(x->e, kva_tile_num(x, x->t.panels), left), "p");
  kva_tile y = *x;
  y.col0 = kva_tile_times(x, kva_k_name(x->kb, kva_tile_plus(x, x->first_panel, p->var), x->all_panels), x->t.panel);
  y.panel = p->var;
  if (x->together) y.packed0 = kva_tile_times(x, p->var, x->panel_packed);
  if (!x->by_tile) y.block0 = kva_tile_times(x, p->var, x->t.tiles * x->t.tile_rows * x->t.panel);
  body(&y, k0, slice);
  kva_k_loop_end(x->kb, p);
}

static void multiply_panel(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  if (!x->together && !x->in_place) kva_tile_pack(x, k0, slice);
  multiply_slice(x, k0, slice);
}

static void clear_panel(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  (void)k0, (void)slice;
  clear_block(x);
}

static void store_panel(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  (void)k0, (void)slice;
  store_block(x);
}

static void pack_amx_together(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  const kva_expr *steps = kva_expr_div(x->e, slice, kva_tile_num(x, kva_contract_amx_depth(x->c)));
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, steps, "k");
  over_panels(x, kva_amx_pack_step, k0, k->var);
  kva_k_loop_end(x->kb, k);
}

/* Lines of panels are filled at once, as those of tiles. Rows of b lie in several pages, whose loads wait together. */
static void pack_steps(const kva_tile *x, const kva_expr *k0, const kva_expr *k) {
  kva_kloop *u = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_tile_num(x, KVA_TILE_STEPS), "u");
  kva_tile_pack_step(x, k0, kva_tile_plus(x, k, u->var));
  kva_k_loop_end(x->kb, u);
}

static void pack_together(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  const kva_expr *length = kva_tile_num(x, KVA_TILE_STEPS), *whole = kva_expr_div(x->e, slice, length);
  kva_kloop *run = kva_k_loop_begin(x->kb, KVA_K_SERIAL, whole, "run");
  over_panels(x, pack_steps, k0, kva_tile_times(x, run->var, KVA_TILE_STEPS));
  kva_k_loop_end(x->kb, run);
  kva_kloop *rest = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_mod(x->e, slice, length), "rest");
  over_panels(x, kva_tile_pack_step, k0, kva_tile_plus(x, kva_tile_times(x, whole, KVA_TILE_STEPS), rest->var));
  kva_k_loop_end(x->kb, rest);
}

static void multiply_part(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  if (kva_tiling_packs_a(x->c)) (x->c->amx ? kva_amx_pack_rows : kva_tile_pack_rows)(x, k0, slice);
  if (x->sums_a) kva_tile_sum_rows(x, k0, slice);
  if (x->together) (x->c->amx ? pack_amx_together : pack_together)(x, k0, slice);
  over_panels(x, multiply_panel, k0, slice);
}

static void over_depth(const kva_tile *x) {
  if (x->one_slice) {
    multiply_part(x, kva_tile_num(x, 0), x->c->depth);
    return;
  }
  const kva_expr *slices = kva_expr_ceildiv(x->e, x->c->depth, kva_tile_num(x, x->t.depth));
  kva_kloop *s = kva_k_loop_begin(x->kb, KVA_K_SERIAL, slices, "s");
  const kva_expr *k0 = kva_tile_times(x, s->var, x->t.depth);
  kva_tile y = *x;
  y.slice = s->var;
  multiply_part(&y, k0, kva_expr_min(x->e, kva_tile_num(x, x->t.depth), kva_expr_sub(x->e, x->c->depth, k0)));
  kva_k_loop_end(x->kb, s);
}

static kva_dim row_blocks(const kva_tile *x) {
  return kva_expr_ceildiv(x->e, x->all_tiles, kva_tile_num(x, x->t.tiles));
}

static kva_dim column_blocks(const kva_tile *x) {
  return kva_expr_ceildiv(x->e, x->all_panels, kva_tile_num(x, x->t.panels));
}

static const kva_expr *items_of(const kva_tile *x) {
  return kva_expr_mul(x->e, kva_expr_mul(x->e, row_blocks(x), column_blocks(x)), x->c->batch);
}

/* Work item -> (batch, panels, block of rows). Rows vary fastest, so that consecutive items share the panels of b. If
 * rows of the result are short, panels vary fastest: otherwise two threads write adjacent ranges of the same rows, and
 * their prefetchers contend for the cache lines. */
static void place_item(kva_tile *x, const kva_expr *item) {
  int64_t n;
  bool short_rows = !x->c->across_rows && kva_expr_is_const(x->columns, &n) && n <= SHORT_ROW;
  const kva_expr *inner = short_rows ? column_blocks(x) : row_blocks(x);
  const kva_expr *outer = short_rows ? row_blocks(x) : column_blocks(x);
  const kva_expr *first = kva_expr_mod(x->e, item, inner), *rest = kva_expr_div(x->e, item, inner);
  const kva_expr *second = kva_expr_mod(x->e, rest, outer);
  x->first_tile = kva_tile_times(x, short_rows ? second : first, x->t.tiles);
  x->first_panel = kva_tile_times(x, short_rows ? first : second, x->t.panels);
  x->batch = kva_expr_div(x->e, rest, outer);
  x->tiles = kva_expr_min(x->e, kva_tile_num(x, x->t.tiles), kva_expr_sub(x->e, x->all_tiles, x->first_tile));
}

/* The item that this core takes next: those of a core follow each other (runtime/base/pool.c). */
static void place_next(kva_tile *x, const kva_expr *item) {
  kva_tile next = *x;
  const kva_expr *after = kva_expr_addi(x->e, item, 1);
  place_item(&next, kva_expr_min(x->e, after, kva_expr_addi(x->e, items_of(x), -1)));
  x->next_batch = next.batch, x->next_panel = next.first_panel;
}

const char *kva_cpu_tiles_refuses(kva_lower *l, const kva_node *n) {
  kva_contraction c = kva_contract_of(l, n);
  return kva_contract_refuses(&c);
}

/* Memory of b is contiguous along the leads of a step. */
static bool leads_in_squares(const kva_contraction *c) {
  return c->along_depth && c->leads > 1 && !c->amx && kva_dtype_bits(c->type) == 32;
}

static kva_tile tile_of(const kva_contraction *c) {
  kva_kb *kb = c->l->kb;
  kva_tile x = {.c = c,
                .kb = kb,
                .e = kb->exprs,
                .t = kva_tiling_choose(c),
                .phases = kva_tiling_phases(c),
                .columns = kva_tiling_columns(c)};
  x.segment = x.t.panel + kva_tiling_reach(c), x.factor_block = kva_contract_block(c);
  kva_dtype block_type = kva_contract_block_type(c);
  int64_t depth, rows = x.t.tile_rows, block_rows = x.t.tiles * rows;
  x.one_slice = kva_expr_is_const(c->depth, &depth) && depth <= x.t.depth;
  x.by_tile = x.one_slice && !c->any;
  x.in_last_slice = !x.one_slice && kva_expr_is_const(c->depth, NULL) && !c->any && !c->amx;
  x.together = kva_tiling_packs_together(c, &x.t);
  x.packed0 = x.block0 = kva_tile_num(&x, 0);
  x.panel_packed =
      c->amx ? x.t.depth / kva_contract_amx_depth(c) * kva_amx_step(c) : x.t.depth * c->leads * x.phases * x.segment;
  int64_t panels = x.together ? x.t.panels : 1, behind = leads_in_squares(c) ? (kva_tile_lanes(&x) - 1) * x.segment : 0;
  x.in_place = kva_tiling_in_place(c);
  if (!x.in_place)
    x.packed = c->amx ? kva_amx_local(&x, true, panels)
                      : kva_k_local(kb, "packed", block_type, x.panel_packed * panels + behind);
  if (x.factor_block) x.factors = kva_k_local(kb, "factors", c->type, x.t.depth / x.factor_block * x.t.panel);
  if (x.factor_block && c->b_zero) {
    if (!c->one_zero) x.zeros = kva_k_local(kb, "zeros", block_type, x.t.depth / x.factor_block * x.t.panel);
    x.sums_a = kva_k_local(kb, "sums_a", block_type, block_rows * (x.t.depth / x.factor_block));
  }
  if (c->amx)
    x.packed_a = kva_amx_local(&x, false, x.t.tiles);
  else if (kva_tiling_packs_a(c))
    x.packed_a = kva_k_local(kb, "packed_a", c->type, x.t.depth * block_rows);
  if (c->amx && (c->across_rows || c->along_depth)) x.squares = kva_k_local(kb, "squares", c->type, kva_amx_step(c));
  if (leads_in_squares(c)) x.squares = kva_k_local(kb, "squares", c->type, x.t.panel * kva_tile_lanes(&x));
  if (c->amx && !c->words) x.seen = kva_k_local(kb, "seen", KVA_U32, 2 * KVA_AMX_BLOCK);
  x.block = kva_k_local(kb, "block", c->type, (x.by_tile ? rows : block_rows * x.t.panels) * x.t.panel);
  if (!c->amx) x.acc = kva_k_local(kb, "acc", block_type, rows * x.t.panel);
  x.all_tiles = kva_expr_ceildiv(x.e, c->rows, kva_tile_num(&x, rows));
  x.all_panels = kva_expr_ceildiv(x.e, x.columns, kva_tile_num(&x, x.t.panel));
  return x;
}

static void emit_item(kva_tile *x, const kva_expr *item) {
  const kva_contraction *c = x->c;
  place_item(x, item);
  if (kva_tile_fetches_panels(x)) place_next(x, item);
  kva_kval any = c->any ? c->any(c, &(kva_contract_at){.batch = x->batch}) : NULL;
  bool adds = any || !x->one_slice || x->factor_block; /* to the block */
  if (adds && !x->by_tile) over_panels(x, clear_panel, NULL, NULL);
  kva_kinstr *branch = any ? kva_k_if_begin(x->kb, any) : NULL;
  if (c->amx) kva_amx_begin(x);
  over_depth(x);
  if (c->amx) kva_amx_end(x);
  if (branch) kva_k_if_end(x->kb, branch);
  if (!x->by_tile && !x->in_last_slice) over_panels(x, store_panel, NULL, NULL);
}

/* Where the number of rows is not known: items of the loops for few rows, or else of tiles. The other kind has none. */
static void emit_versions(kva_tile *x) {
  const kva_contraction *c = x->c;
  kva_expr_ctx *e = x->e;
  const kva_expr *many =
      kva_expr_min(e, kva_tile_num(x, 1), kva_expr_div(e, c->rows, kva_tile_num(x, KVA_FEW_ROWS + 1)));
  const kva_expr *few_items = kva_expr_mul(e, kva_expr_sub(e, kva_tile_num(x, 1), many), kva_skinny_items(c));
  const kva_expr *items = kva_expr_mul(e, many, items_of(x));
  kva_kloop *g = kva_k_loop_begin(x->kb, KVA_K_GRID, kva_expr_add(e, few_items, items), "item");
  kva_kinstr *branch = kva_k_if_begin(x->kb, kva_k_index_lt(x->kb, g->var, few_items));
  kva_skinny_emit_item(c, kva_k_name(x->kb, g->var, kva_skinny_items(c)));
  kva_k_if_else(x->kb, branch);
  emit_item(x, kva_k_name(x->kb, kva_expr_sub(e, g->var, few_items), items_of(x)));
  kva_k_if_end(x->kb, branch);
  kva_k_loop_end(x->kb, g);
}

void kva_cpu_tiles_emit(kva_lower *l, const kva_node *n) {
  kva_contraction c = kva_contract_of(l, n);
  kva_tile x = tile_of(&c);
  if (kva_skinny_suits_unknown_rows(&c)) {
    emit_versions(&x);
    return;
  }
  kva_kloop *g = kva_k_loop_begin(l->kb, KVA_K_GRID, items_of(&x), "item");
  emit_item(&x, g->var);
  kva_k_loop_end(l->kb, g);
}
