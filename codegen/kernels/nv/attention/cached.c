/* Attention over caches, for prompts and for single tokens: a block of threads takes one query of a head and walks its
 * keys in rounds.
 *
 *   s = q . K[key]                         a thread for each key of the round, whose page it looks up
 *   m' = max(m, s), p = exp(s - m')        maximum and sum of the block: warps by shuffles, then their results in order
 *   y[d] = y[d] exp(m - m') + p[key] V[key][d]
 *                                          a thread for each channel and part of the round; parts meet at the end
 *
 * Rounds begin at multiples of their length, and sums have one order, so that a query's result does not depend on how
 * many queries a call has. What a query reads is shared with others in the second-level cache alone. */
#include "codegen/kernels/any/attention/query_tile.h"
#include "ir/dialect_nv.h"

#include <math.h>

enum { WARP = 32, THREADS = 256, WARPS = THREADS / WARP, AT_ONCE = 8 /* loads of a thread in flight */ };

typedef struct cached {
  kva_query_tile s;
  const kva_expr *thread, *end;              /* end: of the keys that are read */
  int64_t width, parts;                      /* threads across channels; parts of a round */
  kva_kbuf *q, *p, *maxima, *sums, *partial; /* shared: [D], [THREADS], [WARPS], [WARPS], [THREADS] */
} cached;

static const kva_expr *num(const cached *o, int64_t v) {
  return kva_expr_const(o->s.kb->exprs, v);
}
static const kva_expr *plus(const cached *o, const kva_expr *a, const kva_expr *b) {
  return kva_expr_add(o->s.kb->exprs, a, b);
}
static const kva_expr *times(const cached *o, const kva_expr *a, int64_t v) {
  return kva_expr_muli(o->s.kb->exprs, a, v);
}

static void barrier(const cached *o) {
  kva_k_intrinsic(o->s.kb, &(kva_kintrinsic){.op = KVA_TILE_block_barrier}, NULL);
}

const char *kva_nv_cached_refuses(kva_lower *l, const kva_node *n) {
  int64_t d, d_v;
  const char *pages = kva_attention_cached_refuses(l, n);
  if (pages) return pages;
  bool known = kva_expr_is_const(kva_operand_type(n, KVA_ATTENTION_K)->dims[3], &d) &&
               kva_expr_is_const(kva_operand_type(n, KVA_ATTENTION_V)->dims[3], &d_v);
  if (!known || d > THREADS || d_v > THREADS || d % AT_ONCE) return "size of heads";
  return kva_k_compute_type(kva_operand_type(n, KVA_ATTENTION_Q)->dtype) == KVA_F32 ? NULL : "type";
}

/* ---- over the block ---------------------------------------------------------------------------------------------- */

/* v of all threads combined; contains a barrier. */
static kva_kval combine(const cached *o, kva_kop op, kva_kbuf *of_warps, kva_kval v) {
  kva_kb *kb = o->s.kb;
  for (int32_t bit = 1; bit < WARP; bit *= 2)
    v = kva_k2(kb, op, v, kva_k_intrinsic(kb, &(kva_kintrinsic){.op = KVA_TILE_shuffle_xor, .numbers = {bit}}, v));
  kva_k_store(kb, of_warps, kva_expr_div(kb->exprs, o->thread, num(o, WARP)), v);
  barrier(o);
  v = kva_k_load(kb, of_warps, num(o, 0));
  for (int64_t w = 1; w < WARPS; w++) v = kva_k2(kb, op, v, kva_k_load(kb, of_warps, num(o, w)));
  return v;
}

/* ---- a round ----------------------------------------------------------------------------------------------------- */

static kva_kval dot(cached *o, const kva_expr *key) {
  kva_kb *kb = o->s.kb;
  kva_query_tile_turn_page(&o->s, key);
  kva_kloop *d0 = kva_k_loop_begin(kb, KVA_K_SERIAL, num(o, o->s.a.D / AT_ONCE), "d");
  kva_kval sum = kva_k_carry(kb, d0, kva_query_tile_const(&o->s, 0)), next = sum;
  for (int64_t i = 0; i < AT_ONCE; i++) {
    const kva_expr *d = kva_expr_addi(kb->exprs, times(o, d0->var, AT_ONCE), i);
    kva_kval k = kva_query_tile_far(&o->s, KVA_ATTENTION_K, o->s.h_kv, key, d);
    next = kva_k_op(kb, KVA_K_fma, k, kva_k_load(kb, o->q, d), next);
  }
  kva_k_carry_next(kb, d0, sum, next);
  kva_k_loop_end(kb, d0);
  return kva_k_carry_result(kb, d0, sum);
}

/* y + the products of AT_ONCE keys from position `at` of the round on; what is behind the last key has p = 0. */
static kva_kval add_values(const cached *o, const kva_expr *first, const kva_expr *at, const kva_expr *channel,
                           kva_kval y) {
  kva_kb *kb = o->s.kb;
  kva_kval v[AT_ONCE];
  const kva_expr *last = kva_expr_addi(kb->exprs, o->end, -1);
  for (int64_t i = 0; i < AT_ONCE; i++) {
    const kva_expr *key = kva_expr_min(kb->exprs, plus(o, first, kva_expr_addi(kb->exprs, at, i)), last);
    v[i] = kva_query_tile_far(&o->s, KVA_ATTENTION_V, o->s.h_kv, key, channel);
  }
  for (int64_t i = 0; i < AT_ONCE; i++)
    y = kva_k_op(kb, KVA_K_fma, kva_k_load(kb, o->p, kva_expr_addi(kb->exprs, at, i)), v[i], y);
  return y;
}

/* The thread's part of the round, in blocks, each of which lies in one page. */
static kva_kval values(cached *o, const kva_expr *first, const kva_expr *channel, kva_kval y) {
  kva_kb *kb = o->s.kb;
  kva_expr_ctx *c = kb->exprs;
  int64_t keys = THREADS / o->parts, block = keys < KVA_ATTENTION_BLOCK ? keys : KVA_ATTENTION_BLOCK;
  const kva_expr *part = times(o, kva_expr_div(c, o->thread, num(o, o->width)), keys);
  const kva_expr *left = kva_expr_sub(c, o->end, plus(o, first, part));
  left = kva_expr_max(c, num(o, 0), kva_expr_min(c, num(o, keys), left));
  kva_kloop *blocks = kva_k_loop_begin(kb, KVA_K_SERIAL, kva_expr_ceildiv(c, left, num(o, block)), "block");
  kva_kval before = kva_k_carry(kb, blocks, y);
  const kva_expr *begin = plus(o, part, times(o, blocks->var, block));
  kva_query_tile_turn_page(&o->s, plus(o, first, begin));
  const kva_expr *rest = kva_expr_min(c, num(o, block), kva_expr_sub(c, left, times(o, blocks->var, block)));
  kva_kloop *some = kva_k_loop_begin(kb, KVA_K_SERIAL, kva_expr_ceildiv(c, rest, num(o, AT_ONCE)), "k");
  kva_kval sum = kva_k_carry(kb, some, before);
  kva_k_carry_next(kb, some, sum, add_values(o, first, plus(o, begin, times(o, some->var, AT_ONCE)), channel, sum));
  kva_k_loop_end(kb, some);
  kva_k_carry_next(kb, blocks, before, kva_k_carry_result(kb, some, sum));
  kva_k_loop_end(kb, blocks);
  return kva_k_carry_result(kb, blocks, before);
}

typedef struct state {
  kva_kval max, sum, y;
} state;

static state over_round(cached *o, const kva_expr *first, const kva_expr *channel, state before) {
  kva_kb *kb = o->s.kb;
  kva_expr_ctx *c = kb->exprs;
  const kva_expr *key = plus(o, first, o->thread), *last = kva_expr_addi(c, o->end, -1);
  kva_kval x = kva_query_tile_score(&o->s, o->s.first, key, dot(o, kva_expr_min(c, key, last)), NULL);
  x = kva_k_select(kb, kva_k_index_lt(kb, key, o->end), x, kva_query_tile_const(&o->s, -INFINITY));
  state after = {.max = kva_k2(kb, KVA_K_max, before.max, combine(o, KVA_K_max, o->maxima, x))};
  kva_kval finite = kva_query_tile_finite_max(&o->s, after.max);
  kva_kval rescale = kva_k1(kb, KVA_K_exp, kva_k2(kb, KVA_K_sub, before.max, finite));
  kva_kval p = kva_k1(kb, KVA_K_exp, kva_k2(kb, KVA_K_sub, x, finite));
  kva_k_store(kb, o->p, o->thread, p);
  kva_kval sum = combine(o, KVA_K_add, o->sums, p);
  after.sum = kva_k_op(kb, KVA_K_fma, before.sum, rescale, sum);
  after.y = values(o, first, channel, kva_k2(kb, KVA_K_mul, before.y, rescale));
  return after;
}

/* ---- the block of threads ---------------------------------------------------------------------------------------- */

static void open(cached *o, kva_lower *l, const kva_node *n, kva_kloop **out_grid, kva_kloop **out_threads) {
  kva_kb *kb = l->kb;
  kva_expr_ctx *c = kb->exprs;
  *o = (cached){.s = {.l = l, .kb = kb, .a = kva_attention_get(n, c), .t = KVA_F32, .width = 1, .block = THREADS}};
  kva_query_tile *s = &o->s;
  s->extent = s->a.T, s->far_extent = s->a.S;
  const kva_expr *items = kva_expr_mul(c, kva_expr_mul(c, s->a.T, s->a.H), s->a.B);
  kva_kloop *grid = *out_grid = kva_k_loop_begin(kb, KVA_K_GRID, items, "item");
  s->first = kva_expr_mod(c, grid->var, s->a.T);
  const kva_expr *rest = kva_expr_div(c, grid->var, s->a.T);
  s->h = kva_expr_mod(c, rest, s->a.H), s->b = kva_expr_div(c, rest, s->a.H);
  s->h_kv = kva_expr_div(c, s->h, s->a.group);
  kb->kernel->threads = THREADS, kb->kernel->blocks = 2;
  kva_kloop *threads = *out_threads = kva_k_loop_begin(kb, KVA_K_THREAD, num(o, THREADS), "thread");
  o->thread = threads->var;
  kva_query_tile_start_at_position(s);
  for (o->width = WARP; o->width < s->a.D_v;) o->width *= 2;
  o->parts = THREADS / o->width;
  o->q = kva_k_shared(kb, "q", KVA_F32, s->a.D), o->p = kva_k_shared(kb, "p", KVA_F32, THREADS);
  o->maxima = kva_k_shared(kb, "maxima", KVA_F32, WARPS), o->sums = kva_k_shared(kb, "sums", KVA_F32, WARPS);
  o->partial = kva_k_shared(kb, "partial", KVA_F32, THREADS);
}

static void load_query(const cached *o) {
  const kva_query_tile *s = &o->s;
  kva_kinstr *some = kva_k_if_begin(s->kb, kva_k_index_lt(s->kb, o->thread, num(o, s->a.D)));
  kva_kval q = s->l->operand(s->l, s->a.n, KVA_ATTENTION_Q, (const kva_expr *[]){s->b, s->h, s->first, o->thread});
  q = kva_k2(s->kb, KVA_K_mul, kva_k_convert(s->kb, q, KVA_F32), kva_query_tile_const(s, s->a.attrs.scale));
  kva_k_store(s->kb, o->q, o->thread, q);
  kva_k_if_end(s->kb, some);
  barrier(o);
}

/* y / sum; 0 for a query that saw nothing. */
static void finish(const cached *o, state end) {
  const kva_query_tile *s = &o->s;
  kva_kb *kb = s->kb;
  kva_k_store(kb, o->partial, o->thread, end.y);
  barrier(o);
  kva_kinstr *some = kva_k_if_begin(kb, kva_k_index_lt(kb, o->thread, num(o, s->a.D_v)));
  kva_kval y = kva_k_load(kb, o->partial, o->thread), zero = kva_query_tile_const(s, 0);
  for (int64_t i = 1; i < o->parts; i++)
    y = kva_k2(kb, KVA_K_add, y, kva_k_load(kb, o->partial, kva_expr_addi(kb->exprs, o->thread, i * o->width)));
  kva_kval inverse = kva_k2(kb, KVA_K_div, kva_query_tile_const(s, 1), end.sum);
  inverse = kva_k_select(kb, kva_k2(kb, KVA_K_eq, end.sum, zero), zero, inverse);
  const kva_expr *idx[4] = {s->b, s->h, s->first, o->thread};
  s->l->store(s->l, s->a.n, 0, idx, kva_k2(kb, KVA_K_mul, y, inverse));
  kva_k_if_end(kb, some);
}

void kva_nv_cached_emit(kva_lower *l, const kva_node *n) {
  cached o;
  kva_kloop *grid, *threads;
  open(&o, l, n, &grid, &threads);
  kva_kb *kb = l->kb;
  kva_kval zero = kva_query_tile_const(&o.s, 0);
  load_query(&o);
  o.end = kva_query_tile_keys_end(&o.s);
  const kva_expr *channel = kva_expr_mod(kb->exprs, o.thread, num(&o, o.width));
  channel = kva_expr_min(kb->exprs, channel, num(&o, o.s.a.D_v - 1));
  kva_far_loop keys = kva_query_tile_keys_begin(&o.s);
  state before = {.max = kva_k_carry(kb, keys.loop, kva_query_tile_const(&o.s, -INFINITY)),
                  .sum = kva_k_carry(kb, keys.loop, zero),
                  .y = kva_k_carry(kb, keys.loop, zero)};
  state after = over_round(&o, keys.first, channel, before);
  kva_k_carry_next(kb, keys.loop, before.max, after.max);
  kva_k_carry_next(kb, keys.loop, before.sum, after.sum);
  kva_k_carry_next(kb, keys.loop, before.y, after.y);
  kva_k_loop_end(kb, keys.loop);
  finish(&o, (state){.sum = kva_k_carry_result(kb, keys.loop, before.sum),
                     .y = kva_k_carry_result(kb, keys.loop, before.y)});
  kva_k_loop_end(kb, threads);
  kva_k_loop_end(kb, grid);
}
