/* kv_shift_grads by warps: a warp takes 16 rows s of a head, a thread the same channels of both halves of all of them,
 * as straight-line code. So every element of dy and x is loaded once, except the rows of dy after the 16; this also
 * holds if dy is a rotary embedding of what is loaded, whose halves belong together. Rows that do not exist are read as
 * the last one and count as zero: a branch would separate the loads. A block takes the same 16 rows of many heads and
 * sequences, and loads the angles of an embedding once for all of them (kva_kloop.stage). */
#include "codegen/kernels/any/shift/shift_grads.h"

enum { WARP = 32, BLOCK = 256, PAIRS = 64 };

/* dx of row `row` of the block, both halves, and its contribution to the sums. */
static void add_row(const kva_shift_grads *g, const kva_expr *row, int64_t half, int64_t after, kva_kval *sums) {
  kva_shift_at at = g->at;
  at.t = kva_expr_add(g->c, g->first, row);
  for (int64_t part = 0; part < 2; part++) {
    at.d = kva_expr_addi(g->c, g->at.d, part * half);
    kva_shift_grads_store_dx(g, at, after);
    for (int64_t j = 0; j < g->s.window; j++) {
      kva_kval x = kva_shift_grads_summand(g, at, j, after);
      sums[j] = sums[j] ? kva_k2(g->kb, KVA_K_add, sums[j], x) : x;
    }
  }
}

static void whole_block(const kva_shift_grads *g, int64_t half, kva_kval *sums) {
  for (int64_t i = 0; i < KVA_SHIFT_GRADS_ROWS; i++)
    add_row(g, kva_shift_grads_num(g, i), half, KVA_SHIFT_GRADS_ROWS - 1 - i, sums);
}

static void rest_of_block(const kva_shift_grads *g, int64_t half, kva_kval *sums) {
  kva_kloop *r = kva_k_loop_begin(g->kb, KVA_K_SERIAL, kva_shift_grads_rows(g), "r");
  kva_kval zero = kva_k_const(g->kb, g->type, 0);
  add_row(g, r->var, half, 0, sums);
  for (int64_t j = 0; j < g->s.window; j++) sums[j] = kva_k_reduce(g->kb, r, KVA_COMBINE_ADD, zero, sums[j]);
  kva_k_loop_end(g->kb, r);
}

/* Channels of each half that a warp takes at once: more would exceed the registers for 16 rows. 0: halves do not divide
 * into such parts. */
static int64_t part_of_half(const kva_shift *s, int64_t half) {
  enum { LANE_BYTES = 8, MAX_PARTS = 8 };
  int64_t most = WARP * (LANE_BYTES * 8 / kva_dtype_bits(kva_operand_type(s->n, KVA_SHIFT_GRADS_DY)->dtype));
  for (int64_t n = 1; n <= MAX_PARTS; n++)
    if (half % n == 0 && half / n <= most) return half / n;
  return 0;
}

/* Channels per lane. */
static uint32_t width_of(int64_t part) {
  int64_t width = 1;
  while (part > width * WARP && part % (2 * width) == 0) width *= 2;
  return (uint32_t)width;
}

/* Channels from `before` on, of each half. */
static void each_lane(kva_shift_grads *g, const kva_expr *before, int64_t half, bool whole, kva_kval *sums) {
  kva_kb *kb = g->kb;
  int64_t part = part_of_half(&g->s, half);
  kva_kloop *lane = kva_k_loop_begin(kb, KVA_K_THREAD, kva_shift_grads_num(g, part), "d");
  kva_kval zero = kva_k_const(kb, g->type, 0);
  g->at.d = kva_expr_add(g->c, before, lane->var);
  lane->width = width_of(part);
  (whole ? whole_block : rest_of_block)(g, half, sums);
  for (int64_t j = 0; j < g->s.window; j++) sums[j] = kva_k_reduce(kb, lane, KVA_COMBINE_ADD, zero, sums[j]);
  kva_k_loop_end(kb, lane);
}

static void each_part(kva_shift_grads *g, int64_t half, bool whole, kva_kval *sums) {
  kva_kb *kb = g->kb;
  int64_t part = part_of_half(&g->s, half);
  if (part == half) {
    each_lane(g, kva_shift_grads_num(g, 0), half, whole, sums);
    return;
  }
  kva_kloop *parts = kva_k_loop_begin(kb, KVA_K_SERIAL, kva_shift_grads_num(g, half / part), "part");
  kva_kval zero = kva_k_const(kb, g->type, 0);
  each_lane(g, kva_expr_muli(g->c, parts->var, part), half, whole, sums);
  for (int64_t j = 0; j < g->s.window; j++) sums[j] = kva_k_reduce(kb, parts, KVA_COMBINE_ADD, zero, sums[j]);
  kva_k_loop_end(kb, parts);
}

/* The block's rows of each of its heads, a warp for each head. */
static void each_pair(kva_shift_grads *g, const kva_expr *before, int64_t half, bool whole) {
  kva_kb *kb = g->kb;
  kva_kval sums[KVA_SHIFT_GRADS_TAPS] = {NULL};
  const kva_expr *left = kva_expr_sub(g->c, kva_expr_mul(g->c, g->s.B, g->s.H), before);
  kva_kloop *pair = kva_k_loop_begin(kb, KVA_K_THREAD, kva_expr_min(g->c, kva_shift_grads_num(g, PAIRS), left), "pair");
  const kva_expr *f = kva_expr_add(g->c, before, pair->var);
  pair->subgroup = WARP;
  pair->stage = true;
  g->at.b = kva_expr_div(g->c, f, g->s.H);
  g->at.h = kva_expr_mod(g->c, f, g->s.H);
  each_part(g, half, whole, sums);
  kva_kloop *first = kva_k_loop_begin(kb, KVA_K_THREAD, kva_shift_grads_num(g, 1), "first");
  for (int64_t j = 0; j < g->s.window; j++) kva_shift_grads_store_dw(g, j, sums[j]);
  kva_k_loop_end(kb, first);
  kva_k_loop_end(kb, pair);
}

static void each_block(kva_shift_grads *g, const kva_expr *before, int64_t half) {
  bool all_whole = kva_expr_is(kva_expr_mod(g->c, g->s.T, kva_shift_grads_num(g, KVA_SHIFT_GRADS_ROWS)), 0);
  if (all_whole) {
    each_pair(g, before, half, true);
    return;
  }
  kva_kval whole = kva_k_index_le(g->kb, kva_expr_addi(g->c, g->first, KVA_SHIFT_GRADS_ROWS), g->s.T);
  kva_kinstr *branch = kva_k_if_begin(g->kb, whole);
  each_pair(g, before, half, true);
  kva_k_if_else(g->kb, branch);
  each_pair(g, before, half, false);
  kva_k_if_end(g->kb, branch);
}

static void by_warps(kva_shift_grads *g, int64_t half) {
  kva_kb *kb = g->kb;
  const kva_expr *pairs = kva_expr_mul(g->c, g->s.B, g->s.H),
                 *chunks = kva_expr_ceildiv(g->c, pairs, kva_shift_grads_num(g, PAIRS));
  kva_kloop *grid = kva_k_loop_begin(kb, KVA_K_GRID, kva_expr_mul(g->c, kva_shift_grads_blocks(g), chunks), "item");
  kb->kernel->threads = BLOCK;
  kb->kernel->blocks = 1; /* allows registers for 16 rows */
  g->block = kva_expr_div(g->c, grid->var, chunks);
  g->first = kva_expr_muli(g->c, g->block, KVA_SHIFT_GRADS_ROWS);
  each_block(g, kva_expr_muli(g->c, kva_expr_mod(g->c, grid->var, chunks), PAIRS), half);
  kva_k_loop_end(kb, grid);
}

/* Half of the channels if they have halves that warps can take; else 0. */
static int64_t half_of(const kva_shift *s) {
  int64_t d = 0;
  bool halves = kva_expr_is_const(s->D, &d) && d > 0 && d % 2 == 0 && part_of_half(s, d / 2);
  return halves ? d / 2 : 0;
}

const char *kva_nv_shift_grads_refuses(kva_lower *l, const kva_node *n) {
  (void)l;
  kva_shift s = kva_shift_grads_get(n);
  if (s.window > KVA_SHIFT_GRADS_TAPS) return "more taps than registers";
  return half_of(&s) ? NULL : "channels that a warp cannot halve";
}

void kva_nv_shift_grads_emit(kva_lower *l, const kva_node *n) {
  kva_shift_grads g = kva_shift_grads_of(l, n);
  by_warps(&g, half_of(&g.s));
}
