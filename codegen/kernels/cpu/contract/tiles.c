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
  RUN = 16,        /* steps that are transposed together */
  STEPS = 8,       /* that are packed before the next panel's or tile's */
  SHORT_ROW = 512, /* columns */
  AHEAD = 4096,    /* bytes that are packed in the time that memory takes */
};

/* ---- state of a work item ---------------------------------------------------------------------------------------- */

static bool one_line(const kva_tile *x) {
  return kva_expr_is(x->c->lines, 1);
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* Where step k of a slice, lead and phase begin in x->packed. */
static const kva_expr *segment_at(const kva_tile *x, const kva_expr *k, const kva_expr *lead, const kva_expr *phase) {
  const kva_expr *which =
      kva_tile_plus(x, kva_tile_times(x, kva_tile_plus(x, kva_tile_times(x, k, x->c->leads), lead), x->phases), phase);
  return kva_tile_plus(x, x->packed0, kva_tile_times(x, which, x->segment));
}

/* An element at a column, 0 past the last one. */
kva_kval kva_tile_element(const kva_tile *x, kva_tile_element_fn element, kva_contract_at *at, const kva_expr *column) {
  kva_kval inside = kva_k_index_lt(x->kb, column, x->columns);
  kva_kval outer = kva_k_guard_begin(x->kb, inside);
  at->line = kva_tile_num(x, 0);
  at->position = column;
  kva_kval v = element(x->c, at);
  kva_k_guard_end(x->kb, outer);
  return kva_k_select(x->kb, inside, v, kva_k_const(x->kb, v->dtype, 0));
}

const kva_value *kva_tile_in_memory(const kva_tile *x, uint32_t operand) {
  const kva_lower *l = x->c->l;
  const kva_value *v = kva_operand(x->c->n, operand);
  while (l->computes(l, v) && kva_is(v->def, KVA_OP_reshape)) v = kva_operand(v->def, 0);
  return l->computes(l, v) ? NULL : v;
}

bool kva_tile_is_large(const kva_tile *x, const kva_value *v) {
  int64_t elements = 1, extent;
  for (uint32_t d = 0; d < v->type->rank; d++) {
    if (!kva_expr_is_const(v->type->dims[d], &extent)) return true;
    elements *= extent;
  }
  return elements * kva_dtype_bits(v->type->dtype) / 8 > x->c->l->target->l2_bytes / 4;
}

/* Bytes from what a step packs of an operand to what a later step packs (kva_kb.prefetch_bytes). A step packs part of a
 * row of the matrix, which is too short for a CPU to see the next row's part coming. `row`: elements from one step to
 * the next. `packed`: elements that a step packs. 0: the distance is not known, or the matrix is in the caches. */
static int64_t bytes_to_later(const kva_tile *x, uint32_t operand, kva_dim row, int64_t packed) {
  const kva_value *v = kva_is(x->c->n, KVA_OP_matmul) ? kva_tile_in_memory(x, operand) : NULL;
  int64_t length, size = v ? kva_dtype_bits(v->type->dtype) / 8 : 0;
  if (!size || !kva_expr_is_const(row, &length) || !kva_tile_is_large(x, v)) return 0;
  return kva_ceil_div(AHEAD, packed * size) * length * size;
}

/* The columns lie on one line. */
static void pack_straight(const kva_tile *x, kva_contract_at *at, const kva_expr *base) {
  kva_tile_element_fn element = x->factor_block ? x->c->b_rest : x->c->b;
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, x->segment), "j");
  x->kb->prefetch_bytes = bytes_to_later(x, 1, x->c->line, x->together ? x->t.panels * x->segment : x->segment);
  kva_kval v = kva_tile_element(x, element, at, kva_tile_plus(x, x->col0, j->var));
  x->kb->prefetch_bytes = 0;
  kva_k_store(x->kb, x->packed, kva_tile_plus(x, base, j->var), v);
  kva_k_loop_end(x->kb, j);
}

static void pack_of_block(const kva_tile *x, kva_kbuf *to, kva_tile_element_fn element, kva_contract_at *at,
                          const kva_expr *q, const kva_expr *j) {
  kva_kval v = kva_tile_element(x, element, at, kva_tile_plus(x, x->col0, j));
  kva_k_store(x->kb, to, kva_tile_plus(x, kva_tile_times(x, q, x->t.panel), j), v);
}

/* The factors of a slice, and its zero points: a row of the panel's columns for each block. */
static void pack_factors(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  const kva_expr *blocks = kva_expr_ceildiv(x->e, slice, kva_tile_num(x, x->factor_block));
  kva_kloop *q = kva_k_loop_begin(x->kb, KVA_K_SERIAL, blocks, "q");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, x->t.panel), "j");
  kva_contract_at at = {.batch = x->batch,
                        .k = kva_tile_plus(x, k0, kva_tile_times(x, q->var, x->factor_block)),
                        .lead = kva_tile_num(x, 0),
                        .phase = kva_tile_num(x, 0)};
  pack_of_block(x, x->factors, x->c->b_factor, &at, q->var, j->var);
  if (x->zeros) pack_of_block(x, x->zeros, x->c->b_zero, &at, q->var, j->var);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, q);
}

/* For each line that positions first .. end - 1 touch: the range inside it and inside its first `used` positions. */
typedef void (*stretch_body)(const kva_tile *x, kva_contract_at *at, const kva_expr *column, const void *user);
static void over_lines(const kva_tile *x, const kva_expr *first, const kva_expr *end, kva_dim used, kva_contract_at *at,
                       stretch_body body, const void *user) {
  kva_expr_ctx *e = x->e;
  kva_dim length = x->c->line;
  const kva_expr *first_line = kva_expr_div(e, first, length),
                 *last = kva_expr_div(e, kva_expr_addi(e, end, -1), length);
  kva_kloop *l = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_addi(e, kva_expr_sub(e, last, first_line), 1), "line");
  at->line = kva_tile_plus(x, first_line, l->var);
  const kva_expr *begin = kva_expr_mul(e, at->line, length);
  const kva_expr *from = kva_expr_max(e, first, begin), *to = kva_expr_min(e, end, kva_tile_plus(x, begin, used));
  const kva_expr *count = kva_expr_max(e, kva_tile_num(x, 0), kva_expr_sub(e, to, from));
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, count, "j");
  const kva_expr *column = kva_tile_plus(x, from, j->var);
  at->position = kva_expr_sub(e, column, begin);
  body(x, at, column, user);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, l);
}

static void pack_element(const kva_tile *x, kva_contract_at *at, const kva_expr *column, const void *user) {
  const kva_expr *base = user;
  const kva_expr *to = kva_tile_plus(x, base, kva_expr_sub(x->e, column, x->col0));
  kva_k_store(x->kb, x->packed, to, x->c->b(x->c, at));
}

static void pack_lines(const kva_tile *x, kva_contract_at *at, const kva_expr *base) {
  const kva_expr *end = kva_expr_min(x->e, kva_expr_addi(x->e, x->col0, x->segment), x->columns);
  over_lines(x, x->col0, end, x->c->line, at, pack_element, base);
}

/* Step k of a slice. */
static void pack_step(const kva_tile *x, const kva_expr *k0, const kva_expr *k) {
  kva_kloop *lead = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, x->c->leads), "lead");
  kva_kloop *phase = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, x->phases), "phase");
  kva_contract_at at = {.batch = x->batch, .k = kva_tile_plus(x, k0, k), .lead = lead->var, .phase = phase->var};
  const kva_expr *base = segment_at(x, k, lead->var, phase->var);
  if (one_line(x))
    pack_straight(x, &at, base);
  else
    pack_lines(x, &at, base);
  kva_k_loop_end(x->kb, phase);
  kva_k_loop_end(x->kb, lead);
}

static void pack_columns(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, slice, "k");
  pack_step(x, k0, k->var);
  kva_k_loop_end(x->kb, k);
}

/* One element of a transposed panel. */
static void pack_one(const kva_tile *x, const kva_expr *k0, const kva_expr *k, const kva_expr *lead,
                     const kva_expr *j) {
  kva_contract_at at = {.batch = x->batch, .k = kva_tile_plus(x, k0, k), .lead = lead, .phase = kva_tile_num(x, 0)};
  kva_kval v = kva_tile_element(x, x->c->b, &at, kva_tile_plus(x, x->col0, j));
  kva_k_store(x->kb, x->packed, kva_tile_plus(x, segment_at(x, k, lead, kva_tile_num(x, 0)), j), v);
}

/* Copies `run` elements of every column from `first` on. */
static void pack_run(const kva_tile *x, const kva_expr *k0, const kva_expr *step, const kva_expr *first, int64_t run) {
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, x->t.panel), "j");
  kva_kloop *u = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_tile_num(x, run), "u");
  const kva_expr *at = kva_tile_plus(x, first, u->var), *zero = kva_tile_num(x, 0);
  pack_one(x, k0, step ? step : at, step ? at : zero, j->var);
  kva_k_loop_end(x->kb, u);
  kva_k_loop_end(x->kb, j);
}

/* As many steps of every column as there are lanes: squares that registers transpose (llvm_transpose.c). */
static void pack_squares(const kva_tile *x, const kva_expr *k0, const kva_expr *first) {
  int64_t lanes = x->t.panel / x->t.vectors;
  kva_kloop *v = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, x->t.vectors), "v");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, lanes), "j");
  kva_kloop *u = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_tile_num(x, lanes), "u");
  pack_one(x, k0, kva_tile_plus(x, first, u->var), kva_tile_num(x, 0),
           kva_tile_plus(x, kva_tile_times(x, v->var, lanes), j->var));
  kva_k_loop_end(x->kb, u);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, v);
}

/* Memory is one array of 32-bit elements, and a panel's columns are all there. */
static bool in_squares(const kva_tile *x) {
  const kva_expr *last = kva_expr_addi(x->e, x->col0, x->t.panel - 1);
  const kva_value *b = kva_operand(x->c->n, 1);
  return x->c->leads == 1 && kva_expr_is_const(x->c->depth, NULL) && kva_dtype_bits(b->type->dtype) == 32 &&
         !x->c->l->computes(x->c->l, b) && kva_expr_provably_less(x->e, last, x->columns);
}

/* Copies runs of columns, if memory is contiguous along the depth: along the leads of a step, or along its steps. The
 * part of the panel that the runs of all columns fill stays in L1 meanwhile. */
static void pack_transposed(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  bool leads = x->c->leads > 1, squares = in_squares(x);
  int64_t length = squares ? x->t.panel / x->t.vectors : RUN;
  const kva_expr *run = kva_tile_num(x, length), *n = leads ? kva_tile_num(x, x->c->leads) : slice;
  kva_kloop *step = kva_k_loop_begin(x->kb, KVA_K_SERIAL, leads ? slice : kva_tile_num(x, 1), "step");
  const kva_expr *of_step = leads ? step->var : NULL;
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_div(x->e, n, run), "i");
  if (squares)
    pack_squares(x, k0, kva_tile_times(x, i->var, length));
  else
    pack_run(x, k0, of_step, kva_tile_times(x, i->var, length), length);
  kva_k_loop_end(x->kb, i);
  kva_kloop *rest = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_mod(x->e, n, run), "rest");
  pack_run(x, k0, of_step, kva_tile_plus(x, kva_tile_times(x, kva_expr_div(x->e, n, run), length), rest->var), 1);
  kva_k_loop_end(x->kb, rest);
  kva_k_loop_end(x->kb, step);
}

/* Tile `tile` of the block, step k of the slice, row of the tile. */
static const kva_expr *packed_a_at(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *k,
                                   const kva_expr *row) {
  return kva_tile_plus(
      x, kva_tile_times(x, kva_tile_plus(x, kva_tile_times(x, tile_of_block, x->t.depth), k), x->t.tile_rows), row);
}

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

/* Row `row` of the block, block q of a slice. */
static const kva_expr *sum_of_a_at(const kva_tile *x, const kva_expr *row, const kva_expr *q) {
  return kva_tile_plus(x, kva_tile_times(x, row, x->t.depth / x->factor_block), q);
}

/* The last row instead of those past the edge, whose sums are never stored. */
static const kva_expr *row_that_exists(const kva_tile *x, const kva_expr *row) {
  if (kva_expr_provably_less(x->e, row, x->c->rows)) return row;
  return kva_expr_min(x->e, row, kva_expr_addi(x->e, x->c->rows, -1));
}

/* Sums of the block's rows of a over blocks with a zero point in common. */
static void sum_rows(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_times(x, x->tiles, x->t.tile_rows), "i");
  const kva_expr *blocks = kva_expr_div(x->e, slice, kva_tile_num(x, x->factor_block));
  kva_kloop *q = kva_k_loop_begin(x->kb, KVA_K_SERIAL, blocks, "q");
  const kva_expr *row = kva_tile_plus(x, kva_tile_times(x, x->first_tile, x->t.tile_rows), i->var);
  kva_contract_at at = {.batch = x->batch,
                        .k = kva_tile_plus(x, k0, kva_tile_times(x, q->var, x->factor_block)),
                        .lead = kva_tile_num(x, 0),
                        .row = row_that_exists(x, row),
                        .tap = kva_tile_num(x, 0)};
  kva_k_store(x->kb, x->sums_a, sum_of_a_at(x, i->var, q->var), kva_contract_block_sum(x->c, &at));
  kva_k_loop_end(x->kb, q);
  kva_k_loop_end(x->kb, i);
}

/* n steps from k on of the rows of a that tiles of the block have. whole: all rows of these tiles exist. Step by step,
 * each tile would get a part of a line: the first cache has few places for lines at such distances, and would lose them
 * before they are full. */
static void pack_row_steps(const kva_tile *x, const kva_expr *k0, const kva_expr *k, const kva_expr *n, bool whole) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, x->tiles, "i");
  const kva_expr *row = kva_tile_first_row(x, i->var);
  const kva_expr *rows = whole ? kva_tile_num(x, x->t.tile_rows) : kva_tile_rows(x, row);
  kva_kloop *u = kva_k_loop_begin(x->kb, KVA_K_SERIAL, n, "u");
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_VECTOR, rows, "r");
  const kva_expr *step = kva_tile_plus(x, k, u->var);
  kva_contract_at at = {.batch = x->batch,
                        .k = kva_tile_plus(x, k0, step),
                        .lead = kva_tile_num(x, 0),
                        .row = kva_tile_plus(x, row, r->var),
                        .tap = kva_tile_num(x, 0)};
  x->kb->prefetch_bytes = bytes_to_later(x, 0, x->c->rows, x->t.tiles * x->t.tile_rows);
  kva_kval v = x->c->a(x->c, &at);
  x->kb->prefetch_bytes = 0;
  kva_k_store(x->kb, x->packed_a, packed_a_at(x, i->var, step, r->var), v);
  kva_k_loop_end(x->kb, r);
  kva_k_loop_end(x->kb, u);
  kva_k_loop_end(x->kb, i);
}

/* The block's rows of a for a slice, if memory is contiguous along them. Most blocks have whole tiles, whose loops have
 * a constant extent. */
static void pack_rows(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  const kva_expr *end = kva_tile_times(x, kva_tile_plus(x, x->first_tile, x->tiles), x->t.tile_rows);
  bool always = kva_expr_is(kva_expr_mod(x->e, x->c->rows, kva_tile_num(x, x->t.tile_rows)), 0);
  const kva_expr *length = kva_tile_num(x, STEPS);
  kva_kloop *run = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_ceildiv(x->e, slice, length), "run");
  const kva_expr *k = kva_tile_times(x, run->var, STEPS), *n = kva_expr_min(x->e, length, kva_expr_sub(x->e, slice, k));
  kva_kinstr *branch = always ? NULL : kva_k_if_begin(x->kb, kva_k_index_le(x->kb, end, x->c->rows));
  pack_row_steps(x, k0, k, n, true);
  if (branch) {
    kva_k_if_else(x->kb, branch);
    pack_row_steps(x, k0, k, n, false);
    kva_k_if_end(x->kb, branch);
  }
  kva_k_loop_end(x->kb, run);
}

/* The panel's part of b. */
static void pack(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  if (x->factor_block) pack_factors(x, k0, slice);
  if (x->c->amx)
    kva_amx_pack_columns(x, k0, slice);
  else if (x->c->along_depth)
    pack_transposed(x, k0, slice);
  else
    pack_columns(x, k0, slice);
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
  kva_k_store(x->kb, x->acc, acc_at(x, r, j), kva_k_const(x->kb, x->c->type, 0));
}

/* A block of steps with a zero point in common begins with it. */
static void start_acc(const kva_tile *x, const kva_expr *r, const kva_expr *j, const tile_step *s) {
  const kva_expr *row = kva_tile_plus(x, kva_tile_times(x, s->tile, x->t.tile_rows), r);
  kva_kval zero = kva_k_load(x->kb, x->zeros, kva_tile_plus(x, kva_tile_times(x, s->q, x->t.panel), j));
  kva_kval sum = kva_k_load(x->kb, x->sums_a, sum_of_a_at(x, row, s->q));
  kva_k_store(x->kb, x->acc, acc_at(x, r, j), kva_k2(x->kb, KVA_K_mul, zero, sum));
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
  kva_k_store(x->kb, x->block, at, kva_lower_multiply_add(x->c->l, sum, factor, kva_k_load(x->kb, x->block, at)));
}

/* Rows past the edge read whatever the panel holds, if there is one; their sums are never stored. */
static kva_kval factor_a(const kva_tile *x, const kva_expr *r, const tile_step *s) {
  const kva_contraction *c = x->c;
  const kva_expr *row = kva_tile_plus(x, s->row, r);
  if (c->across_rows) return kva_k_load(x->kb, x->packed_a, packed_a_at(x, s->tile, s->k, r));
  kva_contract_at at = {.batch = x->batch,
                        .k = kva_tile_plus(x, s->k0, s->k),
                        .lead = s->lead,
                        .row = row_that_exists(x, row),
                        .tap = s->tap};
  return c->a(c, &at);
}

static kva_kval packed_b(const kva_tile *x, const kva_expr *j, const tile_step *s) {
  const kva_expr *moved = kva_tile_times(x, s->tap, x->c->spread), *stride = kva_tile_num(x, x->c->stride);
  const kva_expr *from = segment_at(x, s->k, s->lead, kva_expr_mod(x->e, moved, stride));
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

static void over_steps(const kva_tile *x, tile_step *s, const kva_expr *first, const kva_expr *n, bool fetches) {
  kva_kloop_kind kind = x->c->taps <= MAX_UNROLLED_TAPS ? KVA_K_UNROLL : KVA_K_SERIAL;
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, n, "k");
  s->k = kva_tile_plus(x, first, k->var);
  if (fetches) kva_tile_fetch(x, s->tile, s->k0, s->k);
  kva_kloop *lead = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, x->c->leads), "lead");
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
  over_tile(x, x->zeros ? start_acc : clear_acc, s);
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
  if (!(x->by_tile || x->in_last_slice) || !one_line(x)) return 0;
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
  if (one_line(x)) {
    const kva_expr *n = kva_expr_min(e, kva_tile_num(x, x->t.panel), kva_expr_sub(e, x->c->used, x->col0));
    kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, n, "j");
    at.position = kva_tile_plus(x, x->col0, j->var);
    store_element(x, &at, at.position, &from);
    kva_k_loop_end(x->kb, j);
  } else {
    const kva_expr *end = kva_expr_min(e, kva_expr_addi(e, x->col0, x->t.panel), x->columns);
    over_lines(x, x->col0, end, x->c->used, &at, store_element, &from);
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
  if (!x->together && !x->in_place) pack(x, k0, slice);
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
  kva_kloop *u = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_tile_num(x, STEPS), "u");
  pack_step(x, k0, kva_tile_plus(x, k, u->var));
  kva_k_loop_end(x->kb, u);
}

static void pack_together(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  const kva_expr *length = kva_tile_num(x, STEPS), *whole = kva_expr_div(x->e, slice, length);
  kva_kloop *run = kva_k_loop_begin(x->kb, KVA_K_SERIAL, whole, "run");
  over_panels(x, pack_steps, k0, kva_tile_times(x, run->var, STEPS));
  kva_k_loop_end(x->kb, run);
  kva_kloop *rest = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_mod(x->e, slice, length), "rest");
  over_panels(x, pack_step, k0, kva_tile_plus(x, kva_tile_times(x, whole, STEPS), rest->var));
  kva_k_loop_end(x->kb, rest);
}

static void multiply_part(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  if (kva_tiling_packs_a(x->c)) (x->c->amx ? kva_amx_pack_rows : pack_rows)(x, k0, slice);
  if (x->zeros) sum_rows(x, k0, slice);
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

static kva_tile tile_of(const kva_contraction *c) {
  kva_kb *kb = c->l->kb;
  kva_tile x = {.c = c,
                .kb = kb,
                .e = kb->exprs,
                .t = kva_tiling_choose(c),
                .phases = kva_tiling_phases(c),
                .columns = kva_tiling_columns(c)};
  x.segment = x.t.panel + kva_tiling_reach(c), x.factor_block = kva_contract_block(c);
  int64_t depth, rows = x.t.tile_rows, block_rows = x.t.tiles * rows;
  x.one_slice = kva_expr_is_const(c->depth, &depth) && depth <= x.t.depth;
  x.by_tile = x.one_slice && !c->any;
  x.in_last_slice = !x.one_slice && kva_expr_is_const(c->depth, NULL) && !c->any && !c->amx;
  x.together = kva_tiling_packs_together(c, &x.t);
  x.packed0 = x.block0 = kva_tile_num(&x, 0);
  x.panel_packed =
      c->amx ? x.t.depth / kva_contract_amx_depth(c) * kva_amx_step(c) : x.t.depth * c->leads * x.phases * x.segment;
  int64_t panels = x.together ? x.t.panels : 1;
  x.in_place = kva_tiling_in_place(c);
  if (!x.in_place)
    x.packed = c->amx ? kva_amx_local(&x, true, panels) : kva_k_local(kb, "packed", c->type, x.panel_packed * panels);
  if (x.factor_block) x.factors = kva_k_local(kb, "factors", c->type, x.t.depth / x.factor_block * x.t.panel);
  if (x.factor_block && c->b_zero) {
    x.zeros = kva_k_local(kb, "zeros", c->type, x.t.depth / x.factor_block * x.t.panel);
    x.sums_a = kva_k_local(kb, "sums_a", c->type, block_rows * (x.t.depth / x.factor_block));
  }
  if (c->amx)
    x.packed_a = kva_amx_local(&x, false, x.t.tiles);
  else if (kva_tiling_packs_a(c))
    x.packed_a = kva_k_local(kb, "packed_a", c->type, x.t.depth * block_rows);
  if (c->amx && (c->across_rows || c->along_depth)) x.squares = kva_k_local(kb, "squares", c->type, kva_amx_step(c));
  if (c->amx && !c->words) x.seen = kva_k_local(kb, "seen", KVA_U32, 2 * KVA_AMX_BLOCK);
  x.block = kva_k_local(kb, "block", c->type, (x.by_tile ? rows : block_rows * x.t.panels) * x.t.panel);
  if (!c->amx) x.acc = kva_k_local(kb, "acc", c->type, rows * x.t.panel);
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
