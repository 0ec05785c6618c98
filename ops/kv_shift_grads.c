/* kv_shift_grads(dy, w, x, segments?) -> dx, dw: both gradients of kv_shift (see there) for weights [H,W], boundary
 * "zero", no past or padding, in one pass over dy and x:
 *
 *   dx[b,h,s,:]   = sum_{j<W, s+j<T} w[h,j] * dy[b,h,s+j,:]
 *   dw[b,c,h,j]   = sum_{16c<=s<16c+16, s+j<T} dy[b,h,s+j,:] . x[b,h,s,:]
 *
 * where rows s and s+j are of one document. dw is [B, ceil(T/16), H, W], float (double for double): its sum over b and
 * c, which is left to the caller, is the gradient of w. passes/opt_split_shift.c makes this operator for GPUs, after
 * differentiation: no gradient.
 *
 * On a GPU a warp takes 16 rows s of a head; a thread takes the same channels of both halves of all of them, as
 * straight code. So every element of dy and x is loaded once, but for the rows of dy behind the 16, also where dy is a
 * rotary embedding of what is loaded, whose halves go together. Rows that do not exist are read as the last one and
 * count as zero: a branch would keep loads apart. A block takes the same 16 rows of many heads and sequences,
 * and loads the angles of an embedding once for all of them (kva_kloop.stage).
 *
 * Tolerance 16: as kv_shift_weight_grad. */
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/kv_shift.h"

KVA_OP_FUNCTIONS(kv_shift_grads)

enum { ROWS = 16, WARP = 32, BLOCK = 256, PAIRS = 64, DY = 0, X = 2 };

typedef struct shift_grads {
  kva_lower *l;
  kva_kb *kb;
  kva_expr_ctx *c;
  kva_shift s;
  kva_dtype type; /* of dw */
  kva_shift_at at;
  const kva_expr *block, *first; /* of the rows: its number, its first */
} shift_grads;

static kva_shift shift_of(const kva_node *n) {
  const kva_kv_shift_grads_attrs *a = n->attrs;
  const kva_type *w = kva_operand_type(n, 1);
  return kva_shift_get(n, kva_operand_type(n, 0), a->time_axis, NULL, w->rank, w->dims);
}

kva_status kva_kv_shift_grads_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_kv_shift_grads_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0), *w = kva_operand_type(n, 1);
  KVA_TRY(kva_check_float(m, n, 0));
  KVA_TRY(kva_check_rank(m, n, 0, 4));
  KVA_TRY(kva_check_rank(m, n, 1, 2));
  KVA_TRY(kva_check_same_dtype(m, n, X, 0));
  KVA_TRY(kva_check_shape(m, n, X, x->rank, x->dims));
  KVA_TRY(kva_check_int(m, n, KVA_SHIFT_SEGMENTS));
  if (a->time_axis != 1 && a->time_axis != 2)
    return kva_error(m->diag, &n->loc, "kv.%s: time_axis must be 1 ([B,T,H,D]) or 2 ([B,H,T,D]), found %lld",
                     n->op->name, (long long)a->time_axis);
  KVA_TRY(kva_check_shape(m, n, 1, 2, (kva_dim[]){x->dims[3 - a->time_axis], w->dims[1]}));
  KVA_TRY(kva_check_shape(m, n, KVA_SHIFT_SEGMENTS, 2, (kva_dim[]){x->dims[0], x->dims[a->time_axis]}));
  if (!kva_expr_is_const(w->dims[1], NULL)) return kva_operand_error(m, n, 1, "the number of taps must be a constant");
  kva_shift s = shift_of(n);
  kva_dim blocks = kva_expr_ceildiv(m->exprs, s.T, kva_expr_const(m->exprs, ROWS));
  out_types[0] = x;
  out_types[1] = kva_type_tensor(m, kva_ref_tensor_dtype(x->dtype), 4, (kva_dim[]){s.B, blocks, s.H, w->dims[1]});
  return KVA_OK;
}

kva_status kva_kv_shift_grads_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                  kva_ref_tensor *const *out) {
  (void)r;
  kva_shift form = shift_of(n);
  kva_shift_ref s = kva_shift_ref_get(
      &form, in[0], (const kva_ref_tensor *const[]){in[0], in[1], NULL, n->n_operands > 3 ? in[3] : NULL});
  int64_t dims[4] = {s.B, s.T, s.H, s.D}, i[4] = {0}, blocks = out[1]->dims[1];
  if (in[0]->n == 0) return KVA_OK;
  do {
    int64_t b = i[0], t = i[1], h = i[2], d = i[3];
    double dy = in[DY]->f[kva_shift_offset(&s, s.T, b, t, h, d)];
    for (int64_t j = 0; j < s.W && j <= t; j++) {
      if (kva_shift_read(&s, b, t, j).from == KVA_FROM_NOTHING) continue;
      int64_t from = kva_shift_offset(&s, s.T, b, t - j, h, d);
      out[0]->f[from] += in[1]->f[h * s.W + j] * dy;
      out[1]->f[((b * blocks + (t - j) / ROWS) * s.H + h) * s.W + j] += dy * in[X]->f[from];
    }
  } while (kva_next_index(4, dims, i));
  return KVA_OK;
}

/* ---- one element ------------------------------------------------------------------------------------------------- */

static const kva_expr *num(const shift_grads *g, int64_t v) {
  return kva_expr_const(g->c, v);
}

/* Element of dy `by` rows behind at.t, zero where that is no row of the same document. known: there is that row. */
static kva_kval dy_element(const shift_grads *g, kva_shift_at at, int64_t by, bool known) {
  const kva_expr *row = at.t;
  at.t = kva_expr_addi(g->c, row, by);
  kva_kval counts = known ? NULL : kva_k_index_lt(g->kb, at.t, g->s.T);
  if (!known) at.t = kva_expr_min(g->c, at.t, kva_expr_addi(g->c, g->s.T, -1));
  if (by) counts = kva_k_and(g->kb, counts, kva_shift_same_segment(g->l, &g->s, at.b, row, at.t, NULL));
  kva_kval dy = kva_shift_operand(g->l, &g->s, DY, at, NULL);
  return counts ? kva_k_select(g->kb, counts, dy, kva_k_const(g->kb, dy->dtype, 0)) : dy;
}

/* after: this many rows behind at.t exist. */
static void store_dx(const shift_grads *g, kva_shift_at at, int64_t after) {
  kva_kval sum = NULL;
  for (int64_t j = 0; j < g->s.window; j++) {
    kva_kval w = kva_shift_weight(g->l, &g->s, at, num(g, j), NULL), dy = dy_element(g, at, j, j <= after);
    sum = sum ? kva_k_op(g->kb, KVA_K_fma, w, dy, sum) : kva_k2(g->kb, KVA_K_mul, w, dy);
  }
  const kva_expr *idx[4] = {at.b, NULL, NULL, at.d};
  idx[g->s.time] = at.t;
  idx[g->s.head] = at.h;
  g->l->store(g->l, g->s.n, 0, idx, sum);
}

/* Summand of tap j. */
static kva_kval summand(const shift_grads *g, kva_shift_at at, int64_t j, int64_t after) {
  return kva_k2(g->kb, KVA_K_mul, dy_element(g, at, j, j <= after), kva_shift_operand(g->l, &g->s, X, at, NULL));
}

static void store_dw(const shift_grads *g, int64_t j, kva_kval sum) {
  g->l->store(g->l, g->s.n, 1, (const kva_expr *[]){g->at.b, g->block, g->at.h, num(g, j)}, sum);
}

static const kva_expr *rows_of_block(const shift_grads *g) {
  return kva_expr_min(g->c, num(g, ROWS), kva_expr_sub(g->c, g->s.T, g->first));
}

static const kva_expr *block_count(const shift_grads *g) {
  return kva_expr_ceildiv(g->c, g->s.T, num(g, ROWS));
}

/* ---- loops over elements ----------------------------------------------------------------------------------------- */

static kva_kloop *map(shift_grads *g, const kva_expr *extent, const kva_expr **out_var) {
  kva_kloop *l = kva_k_loop_begin(g->kb, KVA_K_PARALLEL, extent, "i");
  *out_var = l->var;
  return l;
}

static void all_dx(shift_grads *g) {
  bool by_time = g->s.time == 1;
  kva_kloop *b = map(g, g->s.B, &g->at.b), *outer = map(g, by_time ? g->s.T : g->s.H, by_time ? &g->at.t : &g->at.h);
  kva_kloop *inner = map(g, by_time ? g->s.H : g->s.T, by_time ? &g->at.h : &g->at.t), *d = map(g, g->s.D, &g->at.d);
  store_dx(g, g->at, 0);
  kva_k_loop_end(g->kb, d);
  kva_k_loop_end(g->kb, inner);
  kva_k_loop_end(g->kb, outer);
  kva_k_loop_end(g->kb, b);
}

/* dw of all taps for a block of rows and a head. */
static void store_block(shift_grads *g) {
  kva_kb *kb = g->kb;
  kva_kval *sums = KVA_NEW_ARRAY(kb->arena, kva_kval, g->s.window), zero = kva_k_const(kb, g->type, 0);
  kva_kloop *row = kva_k_loop_begin(kb, KVA_K_SERIAL, rows_of_block(g), "r");
  kva_kloop *d = kva_k_loop_begin(kb, KVA_K_SERIAL, g->s.D, "d");
  g->at.t = kva_expr_add(g->c, g->first, row->var);
  g->at.d = d->var;
  for (int64_t j = 0; j < g->s.window; j++)
    sums[j] = kva_k_reduce(kb, d, KVA_COMBINE_ADD, zero, summand(g, g->at, j, 0));
  kva_k_loop_end(kb, d);
  for (int64_t j = 0; j < g->s.window; j++) sums[j] = kva_k_reduce(kb, row, KVA_COMBINE_ADD, zero, sums[j]);
  kva_k_loop_end(kb, row);
  for (int64_t j = 0; j < g->s.window; j++) store_dw(g, j, sums[j]);
}

static void all_dw(shift_grads *g) {
  kva_kloop *b = map(g, g->s.B, &g->at.b), *block = map(g, block_count(g), &g->block), *h = map(g, g->s.H, &g->at.h);
  g->first = kva_expr_muli(g->c, g->block, ROWS);
  store_block(g);
  kva_k_loop_end(g->kb, h);
  kva_k_loop_end(g->kb, block);
  kva_k_loop_end(g->kb, b);
}

/* ---- warps of a GPU ---------------------------------------------------------------------------------------------- */

/* dx of row `row` of the block, both halves, and its part of the sums. */
static void add_row(const shift_grads *g, const kva_expr *row, int64_t half, int64_t after, kva_kval *sums) {
  kva_shift_at at = g->at;
  at.t = kva_expr_add(g->c, g->first, row);
  for (int64_t part = 0; part < 2; part++) {
    at.d = kva_expr_addi(g->c, g->at.d, part * half);
    store_dx(g, at, after);
    for (int64_t j = 0; j < g->s.window; j++) {
      kva_kval x = summand(g, at, j, after);
      sums[j] = sums[j] ? kva_k2(g->kb, KVA_K_add, sums[j], x) : x;
    }
  }
}

static void whole_block(const shift_grads *g, int64_t half, kva_kval *sums) {
  for (int64_t i = 0; i < ROWS; i++) add_row(g, num(g, i), half, ROWS - 1 - i, sums);
}

static void rest_of_block(const shift_grads *g, int64_t half, kva_kval *sums) {
  kva_kloop *r = kva_k_loop_begin(g->kb, KVA_K_SERIAL, rows_of_block(g), "r");
  kva_kval zero = kva_k_const(g->kb, g->type, 0);
  add_row(g, r->var, half, 0, sums);
  for (int64_t j = 0; j < g->s.window; j++) sums[j] = kva_k_reduce(g->kb, r, KVA_COMBINE_ADD, zero, sums[j]);
  kva_k_loop_end(g->kb, r);
}

/* Channels of each half that a warp takes at once: more would not leave registers for 16 rows. 0: halves do not divide
 * into such parts. */
static int64_t part_of_half(const kva_shift *s, int64_t half) {
  enum { LANE_BYTES = 8, MAX_PARTS = 8 };
  int64_t most = WARP * (LANE_BYTES * 8 / kva_dtype_bits(kva_operand_type(s->n, DY)->dtype));
  for (int64_t n = 1; n <= MAX_PARTS; n++)
    if (half % n == 0 && half / n <= most) return half / n;
  return 0;
}

/* How many of them are a lane's. */
static uint32_t width_of(int64_t part) {
  int64_t width = 1;
  while (part > width * WARP && part % (2 * width) == 0) width *= 2;
  return (uint32_t)width;
}

/* Channels from `before` on, of each half. */
static void each_lane(shift_grads *g, const kva_expr *before, int64_t half, bool whole, kva_kval *sums) {
  kva_kb *kb = g->kb;
  int64_t part = part_of_half(&g->s, half);
  kva_kloop *lane = kva_k_loop_begin(kb, KVA_K_THREAD, num(g, part), "d");
  kva_kval zero = kva_k_const(kb, g->type, 0);
  g->at.d = kva_expr_add(g->c, before, lane->var);
  lane->width = width_of(part);
  (whole ? whole_block : rest_of_block)(g, half, sums);
  for (int64_t j = 0; j < g->s.window; j++) sums[j] = kva_k_reduce(kb, lane, KVA_COMBINE_ADD, zero, sums[j]);
  kva_k_loop_end(kb, lane);
}

static void each_part(shift_grads *g, int64_t half, bool whole, kva_kval *sums) {
  kva_kb *kb = g->kb;
  int64_t part = part_of_half(&g->s, half);
  if (part == half) {
    each_lane(g, num(g, 0), half, whole, sums);
    return;
  }
  kva_kloop *parts = kva_k_loop_begin(kb, KVA_K_SERIAL, num(g, half / part), "part");
  kva_kval zero = kva_k_const(kb, g->type, 0);
  each_lane(g, kva_expr_muli(g->c, parts->var, part), half, whole, sums);
  for (int64_t j = 0; j < g->s.window; j++) sums[j] = kva_k_reduce(kb, parts, KVA_COMBINE_ADD, zero, sums[j]);
  kva_k_loop_end(kb, parts);
}

/* The block's rows of each of its heads, a warp for each. */
static void each_pair(shift_grads *g, const kva_expr *before, int64_t half, bool whole) {
  kva_kb *kb = g->kb;
  kva_kval sums[KVA_SHIFT_GRADS_TAPS] = {NULL};
  const kva_expr *left = kva_expr_sub(g->c, kva_expr_mul(g->c, g->s.B, g->s.H), before);
  kva_kloop *pair = kva_k_loop_begin(kb, KVA_K_THREAD, kva_expr_min(g->c, num(g, PAIRS), left), "pair");
  const kva_expr *f = kva_expr_add(g->c, before, pair->var);
  pair->subgroup = WARP;
  pair->stage = true;
  g->at.b = kva_expr_div(g->c, f, g->s.H);
  g->at.h = kva_expr_mod(g->c, f, g->s.H);
  each_part(g, half, whole, sums);
  kva_kloop *first = kva_k_loop_begin(kb, KVA_K_THREAD, num(g, 1), "first");
  for (int64_t j = 0; j < g->s.window; j++) store_dw(g, j, sums[j]);
  kva_k_loop_end(kb, first);
  kva_k_loop_end(kb, pair);
}

static void each_block(shift_grads *g, const kva_expr *before, int64_t half) {
  bool all_whole = kva_expr_is(kva_expr_mod(g->c, g->s.T, num(g, ROWS)), 0);
  if (all_whole) {
    each_pair(g, before, half, true);
    return;
  }
  kva_kval whole = kva_k_index_le(g->kb, kva_expr_addi(g->c, g->first, ROWS), g->s.T);
  kva_kinstr *branch = kva_k_if_begin(g->kb, whole);
  each_pair(g, before, half, true);
  kva_k_if_else(g->kb, branch);
  each_pair(g, before, half, false);
  kva_k_if_end(g->kb, branch);
}

static void by_warps(shift_grads *g, int64_t half) {
  kva_kb *kb = g->kb;
  const kva_expr *pairs = kva_expr_mul(g->c, g->s.B, g->s.H), *chunks = kva_expr_ceildiv(g->c, pairs, num(g, PAIRS));
  kva_kloop *grid = kva_k_loop_begin(kb, KVA_K_GRID, kva_expr_mul(g->c, block_count(g), chunks), "item");
  kb->kernel->threads = BLOCK;
  kb->kernel->blocks = 1; /* with registers for 16 rows */
  g->block = kva_expr_div(g->c, grid->var, chunks);
  g->first = kva_expr_muli(g->c, g->block, ROWS);
  each_block(g, kva_expr_muli(g->c, kva_expr_mod(g->c, grid->var, chunks), PAIRS), half);
  kva_k_loop_end(kb, grid);
}

void kva_kv_shift_grads_kernel(kva_lower *l, const kva_node *n) {
  shift_grads g = {.l = l, .kb = l->kb, .c = l->kb->exprs, .s = shift_of(n)};
  g.type = kva_k_compute_type(n->results[1].type->dtype);
  int64_t d = 0;
  bool halves = kva_expr_is_const(g.s.D, &d) && d > 0 && d % 2 == 0 && part_of_half(&g.s, d / 2);
  if (kva_lower_for_gpu(l) && halves && g.s.window <= KVA_SHIFT_GRADS_TAPS) {
    by_warps(&g, d / 2);
    return;
  }
  all_dx(&g);
  all_dw(&g);
}

kva_operand_role kva_kv_shift_grads_role(const kva_node *n, uint32_t operand) {
  (void)n;
  return operand == DY || operand == X ? KVA_ONCE : KVA_STREAMED;
}
