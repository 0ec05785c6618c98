/* Packing of what tiles multiply (tiles.c): panels of b, and the block's rows of a. */
#include "codegen/kernels/cpu/contract/tile.h"
#include "ops/ids.h"

enum {
  RUN = 16,     /* steps that are transposed together */
  AHEAD = 4096, /* bytes that are packed in the time that memory takes */
};

const kva_expr *kva_tile_segment(const kva_tile *x, const kva_expr *k, const kva_expr *lead, const kva_expr *phase) {
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

void kva_tile_over_lines(const kva_tile *x, const kva_expr *first, const kva_expr *end, kva_dim used,
                         kva_contract_at *at, kva_tile_stretch body, const void *user) {
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
  kva_tile_over_lines(x, x->col0, end, x->c->line, at, pack_element, base);
}

/* Step k of a slice. */
void kva_tile_pack_step(const kva_tile *x, const kva_expr *k0, const kva_expr *k) {
  kva_kloop *lead = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, x->c->leads), "lead");
  kva_kloop *phase = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, x->phases), "phase");
  kva_contract_at at = {.batch = x->batch, .k = kva_tile_plus(x, k0, k), .lead = lead->var, .phase = phase->var};
  const kva_expr *base = kva_tile_segment(x, k, lead->var, phase->var);
  if (kva_tile_one_line(x))
    pack_straight(x, &at, base);
  else
    pack_lines(x, &at, base);
  kva_k_loop_end(x->kb, phase);
  kva_k_loop_end(x->kb, lead);
}

static void pack_columns(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  kva_kloop *k = kva_k_loop_begin(x->kb, KVA_K_SERIAL, slice, "k");
  kva_tile_pack_step(x, k0, k->var);
  kva_k_loop_end(x->kb, k);
}

/* One element of a transposed panel. */
static kva_kval element_at(const kva_tile *x, const kva_expr *k0, const kva_expr *k, const kva_expr *lead,
                           const kva_expr *j) {
  kva_contract_at at = {.batch = x->batch, .k = kva_tile_plus(x, k0, k), .lead = lead, .phase = kva_tile_num(x, 0)};
  return kva_tile_element(x, x->c->b, &at, kva_tile_plus(x, x->col0, j));
}

static void store_packed(const kva_tile *x, const kva_expr *k, const kva_expr *lead, const kva_expr *j, kva_kval v) {
  kva_k_store(x->kb, x->packed, kva_tile_plus(x, kva_tile_segment(x, k, lead, kva_tile_num(x, 0)), j), v);
}

static void pack_one(const kva_tile *x, const kva_expr *k0, const kva_expr *k, const kva_expr *lead,
                     const kva_expr *j) {
  store_packed(x, k, lead, j, element_at(x, k0, k, lead, j));
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
  int64_t lanes = kva_tile_lanes(x);
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

/* Leads of a step, for every column, by vectors: into rows of a local square, with zeros where a window leaves the
 * image, and from there transposed (llvm_transpose.c). Behind the last lead rows of the next step are written, which
 * come later, or room behind the last step. */
static void pack_leads(const kva_tile *x, const kva_expr *k0, const kva_expr *step, const kva_expr *first) {
  int64_t lanes = kva_tile_lanes(x), turn = x->c->turn && x->t.panel % x->c->turn == 0 ? x->c->turn : 1;
  kva_kloop *turns = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, x->t.panel / turn), "turn");
  kva_kloop *of_turn = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_tile_num(x, turn), "row");
  kva_kloop *lead = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, lanes), "lead");
  const kva_expr *row = kva_tile_plus(x, kva_tile_times(x, turns->var, turn), of_turn->var);
  kva_kval v = element_at(x, k0, step, kva_tile_plus(x, first, lead->var), row);
  kva_k_store(x->kb, x->squares, kva_tile_plus(x, kva_tile_times(x, row, lanes), lead->var), v);
  kva_k_loop_end(x->kb, lead);
  kva_k_loop_end(x->kb, of_turn);
  kva_k_loop_end(x->kb, turns);
  kva_kloop *square = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, x->t.vectors), "square");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_VECTOR, kva_tile_num(x, lanes), "j");
  kva_kloop *u = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_tile_num(x, lanes), "u");
  const kva_expr *column = kva_tile_plus(x, kva_tile_times(x, square->var, lanes), j->var);
  v = kva_k_load(x->kb, x->squares, kva_tile_plus(x, kva_tile_times(x, column, lanes), u->var));
  store_packed(x, step, kva_tile_plus(x, first, u->var), column, v);
  kva_k_loop_end(x->kb, u);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, square);
}

static void pack_all_leads(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  int64_t lanes = kva_tile_lanes(x);
  kva_kloop *step = kva_k_loop_begin(x->kb, KVA_K_SERIAL, slice, "step");
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_num(x, kva_ceil_div(x->c->leads, lanes)), "i");
  pack_leads(x, k0, step->var, kva_tile_times(x, i->var, lanes));
  kva_k_loop_end(x->kb, i);
  kva_k_loop_end(x->kb, step);
}

/* Copies runs of columns, if memory is contiguous along the depth: along the leads of a step, or along its steps. The
 * part of the panel that the runs of all columns fill stays in L1 meanwhile. */
static void pack_transposed(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  if (x->squares) {
    pack_all_leads(x, k0, slice);
    return;
  }
  bool leads = x->c->leads > 1, squares = in_squares(x);
  int64_t length = squares ? kva_tile_lanes(x) : RUN;
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

const kva_expr *kva_tile_packed_a(const kva_tile *x, const kva_expr *tile_of_block, const kva_expr *k,
                                  const kva_expr *row) {
  return kva_tile_plus(
      x, kva_tile_times(x, kva_tile_plus(x, kva_tile_times(x, tile_of_block, x->t.depth), k), x->t.tile_rows), row);
}

const kva_expr *kva_tile_sum_of_a(const kva_tile *x, const kva_expr *row, const kva_expr *q) {
  return kva_tile_plus(x, kva_tile_times(x, row, x->t.depth / x->factor_block), q);
}

/* The last row instead of those past the edge, whose sums are never stored. */
const kva_expr *kva_tile_row_that_exists(const kva_tile *x, const kva_expr *row) {
  if (kva_expr_provably_less(x->e, row, x->c->rows)) return row;
  return kva_expr_min(x->e, row, kva_expr_addi(x->e, x->c->rows, -1));
}

/* Sums of the block's rows of a over blocks with a zero point in common. */
void kva_tile_sum_rows(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_tile_times(x, x->tiles, x->t.tile_rows), "i");
  const kva_expr *blocks = kva_expr_div(x->e, slice, kva_tile_num(x, x->factor_block));
  kva_kloop *q = kva_k_loop_begin(x->kb, KVA_K_SERIAL, blocks, "q");
  const kva_expr *row = kva_tile_plus(x, kva_tile_times(x, x->first_tile, x->t.tile_rows), i->var);
  kva_contract_at at = {.batch = x->batch,
                        .k = kva_tile_plus(x, k0, kva_tile_times(x, q->var, x->factor_block)),
                        .lead = kva_tile_num(x, 0),
                        .row = kva_tile_row_that_exists(x, row),
                        .tap = kva_tile_num(x, 0)};
  kva_k_store(x->kb, x->sums_a, kva_tile_sum_of_a(x, i->var, q->var), kva_contract_block_sum(x->c, &at));
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
  kva_k_store(x->kb, x->packed_a, kva_tile_packed_a(x, i->var, step, r->var), v);
  kva_k_loop_end(x->kb, r);
  kva_k_loop_end(x->kb, u);
  kva_k_loop_end(x->kb, i);
}

/* The block's rows of a for a slice, if memory is contiguous along them. Most blocks have whole tiles, whose loops have
 * a constant extent. */
void kva_tile_pack_rows(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  const kva_expr *end = kva_tile_times(x, kva_tile_plus(x, x->first_tile, x->tiles), x->t.tile_rows);
  bool always = kva_expr_is(kva_expr_mod(x->e, x->c->rows, kva_tile_num(x, x->t.tile_rows)), 0);
  const kva_expr *length = kva_tile_num(x, KVA_TILE_STEPS);
  kva_kloop *run = kva_k_loop_begin(x->kb, KVA_K_SERIAL, kva_expr_ceildiv(x->e, slice, length), "run");
  const kva_expr *k = kva_tile_times(x, run->var, KVA_TILE_STEPS),
                 *n = kva_expr_min(x->e, length, kva_expr_sub(x->e, slice, k));
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
void kva_tile_pack(const kva_tile *x, const kva_expr *k0, const kva_expr *slice) {
  if (x->factor_block) pack_factors(x, k0, slice);
  if (x->c->amx)
    kva_amx_pack_columns(x, k0, slice);
  else if (x->c->along_depth)
    pack_transposed(x, k0, slice);
  else
    pack_columns(x, k0, slice);
}
