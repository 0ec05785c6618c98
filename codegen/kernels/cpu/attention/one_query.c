/* Attention of one query, as in decoding: there are no other queries for the lanes of a query tile, so keys and
 * channels lie across them. An item takes the heads that share keys, block by block:
 *
 *   s[key] = sum_d K[key][d] q[d]     keys across lanes; K is read in blocks that loads transpose (llvm_transpose.c)
 *   p = exp(s - max)                  keys across lanes
 *   sum += p                          key by key
 *   y[d] += p[key] V[key][d]          channels across lanes, key by key
 *
 * Pages of a cache lie apart, so hardware prefetching begins anew with each block. The next one is fetched meanwhile,
 * values while scores are computed and keys while values are added: a few lines at a time, since more of them wait for
 * each other, and what follows waits for them.
 *
 * Each number is rounded as any/attention/attention.c rounds it: sums run over the same elements in the same order. So
 * a token that is decoded has the bits that it has in a prompt. */
#include "codegen/kernels/any/attention/query_tile.h"
#include "ir/dialect_cpu.h"

#include <math.h>

enum {
  MAX_GROUP = 8, /* heads whose scores of a block fit in registers beside the block of keys */
  LINE = 64      /* bytes that a prefetch brings */
};

typedef struct one_query {
  kva_query_tile s;
  int64_t group, lanes;
  kva_kbuf *q, *p, *y, *max, *sum;  /* [group][D], [group][block], [group][D_v], [group], [group] */
  kva_kbuf *scores, *part;          /* registers: [group][lanes]; [D_v] */
  const kva_expr *key0, *next_key0; /* first keys of the block and of the next one; of the last block, its own again */
  kva_query_tile next;              /* s in the page of the next block */
} one_query;

static const kva_expr *num(const one_query *o, int64_t v) {
  return kva_expr_const(o->s.kb->exprs, v);
}
static const kva_expr *plus(const one_query *o, const kva_expr *a, const kva_expr *b) {
  return kva_expr_add(o->s.kb->exprs, a, b);
}
/* Element k of row g of n elements. */
static const kva_expr *at(const one_query *o, const kva_expr *g, int64_t n, const kva_expr *k) {
  return plus(o, kva_expr_muli(o->s.kb->exprs, g, n), k);
}

static kva_kloop *loop(const one_query *o, kva_kloop_kind kind, int64_t extent, const char *name) {
  return kva_k_loop_begin(o->s.kb, kind, num(o, extent), name);
}

const char *kva_cpu_one_query_refuses(kva_lower *l, const kva_node *n) {
  kva_attention a = kva_attention_get(n, l->kb->exprs);
  int64_t group;
  const char *pages = kva_attention_cached_refuses(l, n);
  if (pages) return pages;
  if (!a.page_rows) return "keys that are not in pages";
  if (!kva_expr_is(a.T, 1)) return "more than one query";
  if (!kva_expr_is_const(a.group, &group) || group > MAX_GROUP) return "more than 8 heads for a key head";
  if (kva_k_compute_type(kva_operand_type(n, KVA_ATTENTION_Q)->dtype) != KVA_F32) return "not computed in floats";
  return a.D % kva_target_lanes(l->target, KVA_F32) ? "head size is not a multiple of the vector width" : NULL;
}

/* ---- the next block ---------------------------------------------------------------------------------------------- */

/* Elements of a cache line. */
static int64_t line_of(const one_query *o, uint32_t operand) {
  return LINE * 8 / kva_dtype_bits(kva_operand_type(o->s.a.n, operand)->dtype);
}

/* The line with a channel of a key of the next block; k: in the block. */
static void fetch(const one_query *o, uint32_t operand, const kva_expr *k, const kva_expr *d) {
  kva_kval v = kva_query_tile_far(&o->next, operand, o->s.h_kv, plus(o, o->next_key0, k), d);
  if (v->op == KVA_K_LOAD && v->buf->space == KVA_K_PARAM) kva_cpu_prefetch(o->s.kb, v->buf, v->index);
}

/* A step of the scores fetches some rows of values. */
static void fetch_values(const one_query *o, const kva_expr *step) {
  int64_t rows = kva_ceil_div(o->s.block, o->s.block / o->lanes * (o->s.a.D / o->lanes));
  kva_kloop *i = loop(o, KVA_K_SERIAL, rows, "i");
  const kva_expr *k = kva_expr_min(o->s.kb->exprs, at(o, step, rows, i->var), num(o, o->s.block - 1));
  for (int64_t d = 0; d < o->s.a.D_v; d += line_of(o, KVA_ATTENTION_V)) fetch(o, KVA_ATTENTION_V, k, num(o, d));
  kva_k_loop_end(o->s.kb, i);
}

/* A key of the values fetches the same key; the heads divide its lines. */
static void fetch_key(const one_query *o, const kva_expr *g, const kva_expr *k) {
  int64_t elements = line_of(o, KVA_ATTENTION_K), lines = kva_ceil_div(kva_ceil_div(o->s.a.D, elements), o->group);
  for (int64_t i = 0; i < lines; i++) {
    const kva_expr *line = at(o, g, lines, num(o, i)), *d = kva_expr_muli(o->s.kb->exprs, line, elements);
    fetch(o, KVA_ATTENTION_K, k, kva_expr_min(o->s.kb->exprs, d, num(o, o->s.a.D - 1)));
  }
}

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* The loop over g is code: an index that is no constant would keep scores out of registers. */
static void each_score(const one_query *o, const kva_expr *r0,
                       void (*body)(const one_query *o, const kva_expr *score, const kva_expr *p)) {
  for (int64_t g = 0; g < o->group; g++) {
    kva_kloop *r = loop(o, KVA_K_VECTOR, o->lanes, "r");
    body(o, at(o, num(o, g), o->lanes, r->var), plus(o, at(o, num(o, g), o->s.block, r0), r->var));
    kva_k_loop_end(o->s.kb, r);
  }
}

static void clear_score(const one_query *o, const kva_expr *score, const kva_expr *p) {
  (void)p;
  kva_k_store(o->s.kb, o->scores, score, kva_query_tile_const(&o->s, 0));
}

static void keep_score(const one_query *o, const kva_expr *score, const kva_expr *p) {
  kva_k_store(o->s.kb, o->p, p, kva_k_load(o->s.kb, o->scores, score));
}

/* What a block holds behind the last key is read, too, and no query sees it: pages are whole blocks. */
static void add_channel(const one_query *o, const kva_expr *r0, const kva_expr *r, const kva_expr *d) {
  const kva_query_tile *s = &o->s;
  kva_kval key = kva_query_tile_far(s, KVA_ATTENTION_K, s->h_kv, plus(o, o->key0, plus(o, r0, r)), d);
  for (int64_t g = 0; g < o->group; g++) {
    const kva_expr *head = num(o, g), *score = at(o, head, o->lanes, r);
    kva_kval q = kva_k_load(s->kb, o->q, at(o, head, s->a.D, d));
    kva_k_store(s->kb, o->scores, score, kva_lower_multiply_add(s->l, key, q, kva_k_load(s->kb, o->scores, score)));
  }
}

/* A vector of keys at a time: a block of them that is transposed fits in registers. */
static void multiply_keys(const one_query *o) {
  kva_kb *kb = o->s.kb;
  int64_t steps = o->s.a.D / o->lanes;
  kva_kloop *v = loop(o, KVA_K_SERIAL, o->s.block / o->lanes, "v");
  const kva_expr *r0 = kva_expr_muli(kb->exprs, v->var, o->lanes);
  each_score(o, r0, clear_score);
  kva_kloop *d0 = loop(o, KVA_K_SERIAL, steps, "d0");
  fetch_values(o, at(o, v->var, steps, d0->var));
  kva_kloop *r = loop(o, KVA_K_VECTOR, o->lanes, "r");
  kva_kloop *d = loop(o, KVA_K_UNROLL, o->lanes, "d");
  add_channel(o, r0, r->var, at(o, d0->var, o->lanes, d->var));
  kva_k_loop_end(kb, d);
  kva_k_loop_end(kb, r);
  kva_k_loop_end(kb, d0);
  each_score(o, r0, keep_score);
  kva_k_loop_end(kb, v);
}

/* The maximum of what the query saw before and of this block, in which p becomes the scores. */
static kva_kval mask_scores(const one_query *o, const kva_expr *g) {
  const kva_query_tile *s = &o->s;
  kva_kval before = kva_k_load(s->kb, o->max, g);
  kva_kloop *r = loop(o, KVA_K_VECTOR, s->block, "r");
  const kva_expr *p = at(o, g, s->block, r->var);
  kva_kval x = kva_query_tile_score(s, g, plus(o, o->key0, r->var), kva_k_load(s->kb, o->p, p), NULL);
  kva_k_store(s->kb, o->p, p, x);
  kva_kval max = kva_k_reduce(s->kb, r, KVA_COMBINE_MAX, before, x);
  kva_k_loop_end(s->kb, r);
  return max;
}

/* ---- softmax and values ------------------------------------------------------------------------------------------ */

static void exponentials(const one_query *o, const kva_expr *g, kva_kval max) {
  kva_kb *kb = o->s.kb;
  kva_kloop *r = loop(o, KVA_K_VECTOR, o->s.block, "r");
  const kva_expr *p = at(o, g, o->s.block, r->var);
  kva_k_store(kb, o->p, p, kva_k1(kb, KVA_K_exp, kva_k2(kb, KVA_K_sub, kva_k_load(kb, o->p, p), max)));
  kva_k_loop_end(kb, r);
}

static kva_kval sum_of(const one_query *o, const kva_expr *g, kva_kval before) {
  kva_kb *kb = o->s.kb;
  kva_kloop *k = loop(o, KVA_K_SERIAL, o->s.block, "k");
  k->strict_order = true;
  kva_kval p = kva_k_load(kb, o->p, at(o, g, o->s.block, k->var));
  kva_kval sum = kva_k_reduce(kb, k, KVA_COMBINE_ADD, before, p);
  kva_k_loop_end(kb, k);
  return sum;
}

/* to[d] = factor * from[d] for the channels of the values. */
static void scale(const one_query *o, kva_kbuf *from, const kva_expr *from_row, kva_kbuf *to, const kva_expr *to_row,
                  kva_kval factor) {
  kva_kb *kb = o->s.kb;
  int64_t n = o->s.a.D_v;
  kva_kloop *d = loop(o, KVA_K_VECTOR, n, "d");
  kva_kval v = kva_k_load(kb, from, at(o, from_row, n, d->var));
  kva_k_store(kb, to, at(o, to_row, n, d->var), factor ? kva_k2(kb, KVA_K_mul, v, factor) : v);
  kva_k_loop_end(kb, d);
}

static void multiply_values(const one_query *o, const kva_expr *g, kva_kval rescale) {
  const kva_query_tile *s = &o->s;
  scale(o, o->y, g, o->part, num(o, 0), rescale);
  kva_kloop *k = loop(o, KVA_K_SERIAL, s->block, "k");
  fetch_key(o, g, k->var);
  kva_kval p = kva_k_load(s->kb, o->p, at(o, g, s->block, k->var));
  const kva_expr *key = kva_query_tile_clamp_far(s, plus(o, o->key0, k->var));
  kva_kloop *d = loop(o, KVA_K_VECTOR, s->a.D_v, "d");
  kva_kval v = kva_query_tile_far(s, KVA_ATTENTION_V, s->h_kv, key, d->var);
  kva_k_store(s->kb, o->part, d->var, kva_lower_multiply_add(s->l, v, p, kva_k_load(s->kb, o->part, d->var)));
  kva_k_loop_end(s->kb, d);
  kva_k_loop_end(s->kb, k);
  scale(o, o->part, num(o, 0), o->y, g, NULL);
}

static void add_block(const one_query *o, const kva_expr *g) {
  kva_kb *kb = o->s.kb;
  kva_kval before = kva_k_load(kb, o->max, g), max = mask_scores(o, g), finite = kva_query_tile_finite_max(&o->s, max);
  kva_kval rescale = kva_k1(kb, KVA_K_exp, kva_k2(kb, KVA_K_sub, before, finite));
  kva_k_store(kb, o->max, g, max);
  exponentials(o, g, finite);
  kva_k_store(kb, o->sum, g, sum_of(o, g, kva_k2(kb, KVA_K_mul, kva_k_load(kb, o->sum, g), rescale)));
  multiply_values(o, g, rescale);
}

/* ---- the item ---------------------------------------------------------------------------------------------------- */

static void start(const one_query *o, const kva_expr *g) {
  const kva_query_tile *s = &o->s;
  kva_kloop *d = loop(o, KVA_K_VECTOR, s->a.D, "d");
  const kva_expr *idx[4] = {s->b, kva_query_tile_place(s, NULL, g).head, num(o, 0), d->var};
  kva_kval q = kva_k2(s->kb, KVA_K_mul, s->l->operand(s->l, s->a.n, KVA_ATTENTION_Q, idx),
                      kva_query_tile_const(s, s->a.attrs.scale));
  kva_k_store(s->kb, o->q, at(o, g, s->a.D, d->var), q);
  kva_k_loop_end(s->kb, d);
  kva_kloop *v = loop(o, KVA_K_VECTOR, s->a.D_v, "d");
  kva_k_store(s->kb, o->y, at(o, g, s->a.D_v, v->var), kva_query_tile_const(s, 0));
  kva_k_loop_end(s->kb, v);
  kva_k_store(s->kb, o->max, g, kva_query_tile_const(s, -INFINITY));
  kva_k_store(s->kb, o->sum, g, kva_query_tile_const(s, 0));
}

/* y / sum; 0 for a query that saw nothing. */
static void finish(const one_query *o, const kva_expr *g) {
  const kva_query_tile *s = &o->s;
  kva_kval sum = kva_k_load(s->kb, o->sum, g), zero = kva_query_tile_const(s, 0);
  kva_kval inverse = kva_k2(s->kb, KVA_K_div, kva_query_tile_const(s, 1), sum);
  inverse = kva_k_select(s->kb, kva_k2(s->kb, KVA_K_eq, sum, zero), zero, inverse);
  kva_kloop *d = loop(o, KVA_K_VECTOR, s->a.D_v, "d");
  const kva_expr *idx[4] = {s->b, kva_query_tile_place(s, NULL, g).head, num(o, 0), d->var};
  kva_kval y = kva_k_load(s->kb, o->y, at(o, g, s->a.D_v, d->var));
  s->l->store(s->l, s->a.n, 0, idx, kva_k2(s->kb, KVA_K_mul, y, inverse));
  kva_k_loop_end(s->kb, d);
}

static void each_head(const one_query *o, void (*body)(const one_query *o, const kva_expr *g)) {
  kva_kloop *g = loop(o, KVA_K_SERIAL, o->group, "g");
  body(o, g->var);
  kva_k_loop_end(o->s.kb, g);
}

static kva_kbuf *local(const one_query *o, const char *name, int64_t extent) {
  return kva_k_local(o->s.kb, name, o->s.t, extent);
}

static void turn_pages(one_query *o) {
  kva_expr_ctx *c = o->s.kb->exprs;
  const kva_expr *last = kva_expr_addi(c, kva_query_tile_keys_end(&o->s), -1), *block = num(o, o->s.block);
  const kva_expr *last_block = kva_expr_sub(c, last, kva_expr_mod(c, last, block));
  o->next_key0 = kva_expr_min(c, plus(o, o->key0, block), last_block);
  o->next = o->s;
  kva_query_tile_turn_page(&o->s, o->key0);
  kva_query_tile_turn_page(&o->next, o->next_key0);
}

void kva_cpu_one_query_emit(kva_lower *l, const kva_node *n) {
  one_query o = {.lanes = kva_target_lanes(l->target, KVA_F32)};
  kva_kloop *item = kva_query_tile_begin(&o.s, l, n, KVA_TILES_OF_QUERIES);
  kva_expr_is_const(o.s.a.group, &o.group);
  o.q = local(&o, "q", o.group * o.s.a.D), o.y = local(&o, "y", o.group * o.s.a.D_v);
  o.p = local(&o, "p", o.group * o.s.block), o.scores = local(&o, "scores", o.group * o.lanes);
  o.max = local(&o, "max", o.group), o.sum = local(&o, "sum", o.group);
  o.part = local(&o, "part", o.s.a.D_v);
  each_head(&o, start);
  kva_far_loop keys = kva_query_tile_keys_begin(&o.s);
  o.key0 = keys.first;
  turn_pages(&o);
  multiply_keys(&o);
  each_head(&o, add_block);
  kva_k_loop_end(l->kb, keys.loop);
  each_head(&o, finish);
  kva_k_loop_end(l->kb, item);
}
