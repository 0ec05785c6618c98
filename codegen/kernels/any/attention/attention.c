/* Kernels of attention and its gradients: flash style, nothing of size T x S is stored. Query tiles: query_tile.h.
 *
 * Forward (queries across lanes), for every block of keys:
 *   S = K q^T;  m' = max(m, rows of S);  P = exp(S - m')
 *   sum = sum * exp(m - m') + rows of P;  O = O * exp(m - m') + V^T P
 * Backward recomputes P = exp(S - lse), and with delta_t = dy_t . y_t:  dS = P * (V dy^T - delta) * cap'
 *   dq = scale * K^T dS              (queries across lanes)
 *   dV = dy^T P;  dK = scale * q^T dS, summed over the queries of every head of the group   (keys across lanes)
 *
 * Two backward kernels instead of one: each owns its results, so there are no atomics and one order of summation. Where
 * the heads are items enough, one kernel (attention_grad) computes P and dS once: an item owns a head of keys and the
 * query heads of its group, walks the keys in the same order, and keeps dq in a local matrix.
 * Blocks that causality hides from a whole query tile are skipped. */
#include "codegen/kernels/any/attention/query_tile.h"

#include <math.h>

static const kva_expr *num(const kva_query_tile *s, int64_t v) {
  return kva_expr_const(s->kb->exprs, v);
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

typedef struct forward {
  kva_kbuf *q, *p, *y, *max, *sum, *next_max, *rescale;
  const kva_expr *key0;
} forward;

static void score_and_max(const kva_query_tile *s, const kva_expr *r, const kva_expr *lane, void *user) {
  const forward *f = user;
  const kva_expr *at = kva_query_tile_at(s, r, lane), *q = kva_expr_add(s->kb->exprs, s->first, lane);
  kva_kval x = kva_query_tile_score(s, q, kva_expr_add(s->kb->exprs, f->key0, r), kva_k_load(s->kb, f->p, at), NULL);
  kva_k_store(s->kb, f->p, at, x);
  kva_kval max = kva_k_load(s->kb, f->next_max, lane);
  kva_k_store(s->kb, f->next_max, lane, kva_k_select(s->kb, kva_k2(s->kb, KVA_K_lt, max, x), x, max));
}

static void rescale_sum(const kva_query_tile *s, const kva_expr *r, const kva_expr *lane, void *user) {
  (void)r;
  const forward *f = user;
  kva_kb *kb = s->kb;
  kva_kval next = kva_k_load(kb, f->next_max, lane);
  kva_kval change = kva_k2(kb, KVA_K_sub, kva_k_load(kb, f->max, lane), kva_query_tile_finite_max(s, next));
  kva_kval factor = kva_k1(kb, KVA_K_exp, change);
  kva_k_store(kb, f->rescale, lane, factor);
  kva_k_store(kb, f->max, lane, next);
  kva_k_store(kb, f->sum, lane, kva_k2(kb, KVA_K_mul, kva_k_load(kb, f->sum, lane), factor));
}

static void exponentials(const kva_query_tile *s, const kva_expr *r, const kva_expr *lane, void *user) {
  const forward *f = user;
  kva_kb *kb = s->kb;
  const kva_expr *at = kva_query_tile_at(s, r, lane);
  kva_kval max = kva_query_tile_finite_max(s, kva_k_load(kb, f->max, lane));
  kva_kval p = kva_k1(kb, KVA_K_exp, kva_k2(kb, KVA_K_sub, kva_k_load(kb, f->p, at), max));
  kva_k_store(kb, f->p, at, p);
  kva_k_store(kb, f->sum, lane, kva_k2(kb, KVA_K_add, kva_k_load(kb, f->sum, lane), p));
}

static void copy_max(const kva_query_tile *s, const kva_expr *r, const kva_expr *lane, void *user) {
  (void)r;
  const forward *f = user;
  kva_k_store(s->kb, f->next_max, lane, kva_k_load(s->kb, f->max, lane));
}

/* rescale = 1 / sum and max = lse; 0 and -inf for a query that sees nothing. */
static void finish_rows(const kva_query_tile *s, const kva_expr *r, const kva_expr *lane, void *user) {
  (void)r;
  const forward *f = user;
  kva_kb *kb = s->kb;
  kva_kval sum = kva_k_load(kb, f->sum, lane), zero = kva_query_tile_const(s, 0);
  kva_kval empty = kva_k2(kb, KVA_K_eq, sum, zero);
  kva_kval inverse = kva_k2(kb, KVA_K_div, kva_query_tile_const(s, 1), sum);
  kva_kval lse = kva_k2(kb, KVA_K_add, kva_k_load(kb, f->max, lane), kva_k1(kb, KVA_K_log, sum));
  kva_k_store(kb, f->rescale, lane, kva_k_select(kb, empty, zero, inverse));
  kva_k_store(kb, f->max, lane, kva_k_select(kb, empty, kva_query_tile_const(s, -INFINITY), lse));
}

static void store_lse(const kva_query_tile *s, const forward *f) {
  kva_expr_ctx *c = s->kb->exprs;
  const kva_expr *n = kva_expr_min(c, num(s, s->width), kva_expr_sub(c, s->extent, s->first));
  kva_kloop *lane = kva_k_loop_begin(s->kb, KVA_K_VECTOR, n, "lane");
  kva_query_place at = kva_query_tile_place(s, s->h, kva_expr_add(c, s->first, lane->var));
  const kva_expr *idx[3] = {s->b, at.head, at.t};
  s->l->store(s->l, s->a.n, 1, idx, kva_k_load(s->kb, f->max, lane->var));
  kva_k_loop_end(s->kb, lane);
}

/* A block of keys lies in one page. */
const char *kva_attention_cached_refuses(kva_lower *l, const kva_node *n) {
  (void)l;
  int64_t rows;
  if (n->n_operands <= KVA_ATTENTION_PAGES || !kva_operand(n, KVA_ATTENTION_PAGES)) return NULL;
  bool whole =
      kva_expr_is_const(kva_operand_type(n, KVA_ATTENTION_K)->dims[2], &rows) && rows % KVA_ATTENTION_BLOCK == 0;
  return whole ? NULL : "pages of rows that are no multiple of 64";
}

void kva_attention_emit(kva_lower *l, const kva_node *n) {
  kva_query_tile s;
  kva_kloop *g = kva_query_tile_begin(&s, l, n, KVA_TILES_OF_QUERIES);
  forward f = {.q = kva_query_tile_matrix(&s, "q", s.a.D),
               .p = kva_query_tile_matrix(&s, "p", s.block),
               .y = kva_query_tile_matrix(&s, "y", s.a.D_v),
               .max = kva_query_tile_matrix(&s, "max", 1),
               .sum = kva_query_tile_matrix(&s, "sum", 1),
               .next_max = kva_query_tile_matrix(&s, "next_max", 1),
               .rescale = kva_query_tile_matrix(&s, "rescale", 1)};
  kva_query_tile_pack(&s, f.q, KVA_ATTENTION_Q, s.h, s.a.D, s.a.attrs.scale);
  kva_query_tile_fill(&s, f.y, s.a.D_v, 0);
  kva_query_tile_fill(&s, f.sum, 1, 0);
  kva_query_tile_fill(&s, f.max, 1, -INFINITY);
  kva_far_loop keys = kva_query_tile_keys_begin(&s);
  f.key0 = keys.first;
  kva_query_tile_turn_page(&s, f.key0);
  kva_query_tile_multiply(&s, &(kva_query_tile_product){.out = f.p,
                                                        .in = f.q,
                                                        .channels = s.a.D,
                                                        .head = s.h_kv,
                                                        .operand = KVA_ATTENTION_K,
                                                        .far = &keys,
                                                        .by_row = true,
                                                        .clear = true});
  kva_query_tile_each(&s, 1, copy_max, &f);
  kva_query_tile_each_far(&s, &keys, score_and_max, &f);
  kva_query_tile_each(&s, 1, rescale_sum, &f);
  kva_query_tile_each_far(&s, &keys, exponentials, &f);
  kva_query_tile_multiply(&s, &(kva_query_tile_product){.out = f.y,
                                                        .in = f.p,
                                                        .channels = s.a.D_v,
                                                        .head = s.h_kv,
                                                        .operand = KVA_ATTENTION_V,
                                                        .far = &keys,
                                                        .rescale = f.rescale});
  kva_k_loop_end(l->kb, keys.loop);
  kva_query_tile_each(&s, 1, finish_rows, &f);
  kva_query_tile_unpack(&s, f.y, 0, s.h, s.a.D_v, 1, f.rescale);
  if (n->n_results > 1) store_lse(&s, &f);
  kva_k_loop_end(l->kb, g);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

typedef struct backward {
  kva_kbuf *p, *dp;      /* [block][query tile]: scores, then probabilities; V dy^T, then dS */
  kva_kbuf *lse, *delta; /* of the queries: query tile (dq) or block (dk, dv) */
  const kva_expr *far0;
} backward;

/* lse of a query that sees nothing is -inf; +inf makes its probabilities 0. */
static kva_kval usable_lse(const kva_query_tile *s, const kva_expr *q) {
  kva_kval lse = s->l->operand(s->l, s->a.n, KVA_ATTENTION_LSE, (const kva_expr *[]){s->b, s->h, q});
  lse = kva_k_convert(s->kb, lse, s->t);
  kva_kval none = kva_k2(s->kb, KVA_K_eq, lse, kva_query_tile_const(s, -INFINITY));
  return kva_k_select(s->kb, none, kva_query_tile_const(s, INFINITY), lse);
}

/* Loads lse and delta of queries first .. first + n, none past the edge. */
static void load_query_rows(const kva_query_tile *s, const backward *b, const kva_expr *first, int64_t n) {
  kva_expr_ctx *c = s->kb->exprs;
  const kva_expr *inside = kva_expr_min(c, num(s, n), kva_expr_sub(c, s->a.T, first));
  kva_kloop *i = kva_k_loop_begin(s->kb, KVA_K_SERIAL, inside, "i");
  const kva_expr *q = kva_expr_add(c, first, i->var);
  kva_k_store(s->kb, b->lse, i->var, usable_lse(s, q));
  kva_k_store(s->kb, b->delta, i->var, kva_query_tile_delta(s, q));
  kva_k_loop_end(s->kb, i);
}

/* P and dS of one (query, key); `row`: position of the query's lse and delta. */
static void differentiate(const kva_query_tile *s, const backward *b, const kva_expr *at, const kva_expr *q,
                          const kva_expr *key, const kva_expr *row) {
  kva_kb *kb = s->kb;
  kva_kval cap, x = kva_query_tile_score(s, q, key, kva_k_load(kb, b->p, at), &cap), zero = kva_query_tile_const(s, 0);
  kva_kval p = kva_k1(kb, KVA_K_exp, kva_k2(kb, KVA_K_sub, x, kva_k_load(kb, b->lse, row)));
  p = kva_k_select(kb, kva_k_index_lt(kb, q, s->a.T), p, zero);
  kva_kval ds =
      kva_k2(kb, KVA_K_mul, p, kva_k2(kb, KVA_K_sub, kva_k_load(kb, b->dp, at), kva_k_load(kb, b->delta, row)));
  ds = kva_k_select(kb, kva_k2(kb, KVA_K_eq, p, zero), zero, ds);
  if (cap) ds = kva_k2(kb, KVA_K_mul, ds, cap);
  kva_k_store(kb, b->p, at, p);
  kva_k_store(kb, b->dp, at, ds);
}

static void differentiate_key_row(const kva_query_tile *s, const kva_expr *r, const kva_expr *lane, void *user) {
  const backward *b = user;
  kva_expr_ctx *c = s->kb->exprs;
  differentiate(s, b, kva_query_tile_at(s, r, lane), kva_expr_add(c, s->first, lane), kva_expr_add(c, b->far0, r),
                lane);
}

static void differentiate_query_row(const kva_query_tile *s, const kva_expr *r, const kva_expr *lane, void *user) {
  const backward *b = user;
  kva_expr_ctx *c = s->kb->exprs;
  differentiate(s, b, kva_query_tile_at(s, r, lane), kva_expr_add(c, b->far0, r), kva_expr_add(c, s->first, lane), r);
}

static void grad_q_item(const kva_query_tile *s) {
  kva_kbuf *q = kva_query_tile_matrix(s, "q", s->a.D), *dy = kva_query_tile_matrix(s, "dy", s->a.D_v);
  kva_kbuf *dq = kva_query_tile_matrix(s, "dq", s->a.D);
  backward b = {.p = kva_query_tile_matrix(s, "p", s->block),
                .dp = kva_query_tile_matrix(s, "dp", s->block),
                .lse = kva_query_tile_matrix(s, "lse", 1),
                .delta = kva_query_tile_matrix(s, "delta", 1)};
  kva_query_tile_pack(s, q, KVA_ATTENTION_Q, s->h, s->a.D, s->a.attrs.scale);
  kva_query_tile_pack(s, dy, KVA_ATTENTION_DY, s->h, s->a.D_v, 1);
  kva_query_tile_fill(s, b.lse, 1, 0);
  kva_query_tile_fill(s, b.delta, 1, 0);
  load_query_rows(s, &b, s->first, s->width);
  kva_query_tile_fill(s, dq, s->a.D, 0);
  kva_far_loop keys = kva_query_tile_keys_begin(s);
  b.far0 = keys.first;
  kva_query_tile_product scores = {.out = b.p,
                                   .in = q,
                                   .channels = s->a.D,
                                   .operand = KVA_ATTENTION_K,
                                   .head = s->h_kv,
                                   .far = &keys,
                                   .by_row = true,
                                   .clear = true};
  kva_query_tile_product dp = {.out = b.dp,
                               .in = dy,
                               .channels = s->a.D_v,
                               .operand = KVA_ATTENTION_V,
                               .head = s->h_kv,
                               .far = &keys,
                               .by_row = true,
                               .clear = true};
  kva_query_tile_product add_dq = {
      .out = dq, .in = b.dp, .channels = s->a.D, .operand = KVA_ATTENTION_K, .head = s->h_kv, .far = &keys};
  kva_query_tile_multiply(s, &scores);
  kva_query_tile_multiply(s, &dp);
  kva_query_tile_each_far(s, &keys, differentiate_key_row, &b);
  kva_query_tile_multiply(s, &add_dq);
  kva_k_loop_end(s->kb, keys.loop);
  kva_query_tile_unpack(s, dq, 0, s->h, s->a.D, s->a.attrs.scale, NULL);
}

void kva_attention_grad_q_emit(kva_lower *l, const kva_node *n) {
  kva_query_tile s;
  kva_kloop *g = kva_query_tile_begin(&s, l, n, KVA_TILES_OF_QUERIES);
  grad_q_item(&s);
  kva_k_loop_end(l->kb, g);
}

/* What an item of the kernels with keys across lanes adds to. */
typedef struct key_sums {
  kva_kbuf *k, *v;   /* of the query tile */
  kva_kbuf *dk, *dv; /* likewise */
  kva_kbuf *rows;    /* k by rows; NULL: dq is not wanted */
  kva_kbuf *dq;      /* by rows, [head of the group][T] */
} key_sums;

static key_sums key_sums_of(const kva_query_tile *s) {
  return (key_sums){.k = kva_query_tile_matrix(s, "k", s->a.D),
                    .v = kva_query_tile_matrix(s, "v", s->a.D_v),
                    .dk = kva_query_tile_matrix(s, "dk", s->a.D),
                    .dv = kva_query_tile_matrix(s, "dv", s->a.D_v)};
}

static void add_head(kva_query_tile *s, backward *b, const key_sums *sums, const kva_expr *member) {
  kva_far_loop queries = kva_query_tile_queries_begin(s);
  b->far0 = queries.first;
  load_query_rows(s, b, b->far0, s->block);
  kva_query_tile_product scores = {.out = b->p,
                                   .in = sums->k,
                                   .channels = s->a.D,
                                   .operand = KVA_ATTENTION_Q,
                                   .head = s->h,
                                   .far = &queries,
                                   .by_row = true,
                                   .clear = true};
  kva_query_tile_product dp = {.out = b->dp,
                               .in = sums->v,
                               .channels = s->a.D_v,
                               .operand = KVA_ATTENTION_DY,
                               .head = s->h,
                               .far = &queries,
                               .by_row = true,
                               .clear = true};
  kva_query_tile_product add_dv = {
      .out = sums->dv, .in = b->p, .channels = s->a.D_v, .operand = KVA_ATTENTION_DY, .head = s->h, .far = &queries};
  kva_query_tile_product add_dk = {
      .out = sums->dk, .in = b->dp, .channels = s->a.D, .operand = KVA_ATTENTION_Q, .head = s->h, .far = &queries};
  kva_query_tile_multiply(s, &scores);
  kva_query_tile_multiply(s, &dp);
  kva_query_tile_each_far(s, &queries, differentiate_query_row, b);
  kva_query_tile_multiply(s, &add_dv);
  kva_query_tile_multiply(s, &add_dk);
  if (sums->rows) {
    kva_expr_ctx *c = s->kb->exprs;
    kva_query_tile_rows add_dq = {.out = sums->dq,
                                  .out_row = kva_expr_add(c, kva_expr_mul(c, member, s->a.T), queries.first),
                                  .in = b->dp,
                                  .rows = sums->rows,
                                  .channels = s->a.D,
                                  .far = &queries};
    kva_query_tile_add_rows(s, &add_dq);
  }
  kva_k_loop_end(s->kb, queries.loop);
}

/* dk and dv of a query tile; they are results `first` and the next one. */
static void add_group(kva_query_tile *s, backward *b, const key_sums *sums, uint32_t first) {
  kva_expr_ctx *c = s->kb->exprs;
  kva_query_tile_pack(s, sums->k, KVA_ATTENTION_K, s->h_kv, s->a.D, s->a.attrs.scale);
  kva_query_tile_pack(s, sums->v, KVA_ATTENTION_V, s->h_kv, s->a.D_v, 1);
  kva_query_tile_fill(s, sums->dk, s->a.D, 0);
  kva_query_tile_fill(s, sums->dv, s->a.D_v, 0);
  if (sums->rows) kva_query_tile_copy_rows(s, sums->rows, KVA_ATTENTION_K, s->a.D);
  kva_kloop *member = kva_k_loop_begin(s->kb, KVA_K_SERIAL, s->a.group, "member");
  s->h = kva_expr_add(c, kva_expr_mul(c, s->h_kv, s->a.group), member->var);
  add_head(s, b, sums, member->var);
  kva_k_loop_end(s->kb, member);
  kva_query_tile_unpack(s, sums->dk, first, s->h_kv, s->a.D, s->a.attrs.scale, NULL);
  kva_query_tile_unpack(s, sums->dv, first + 1, s->h_kv, s->a.D_v, 1, NULL);
}

static backward backward_of_keys(const kva_query_tile *s) {
  return (backward){.p = kva_query_tile_matrix(s, "p", s->block),
                    .dp = kva_query_tile_matrix(s, "dp", s->block),
                    .lse = kva_k_local(s->kb, "lse", s->t, s->block),
                    .delta = kva_k_local(s->kb, "delta", s->t, s->block)};
}

/* `first`: the number of result dk. */
static void grad_kv_item(kva_query_tile *s, uint32_t first) {
  key_sums sums = key_sums_of(s);
  backward b = backward_of_keys(s);
  add_group(s, &b, &sums, first);
}

void kva_attention_grad_kv_emit(kva_lower *l, const kva_node *n) {
  kva_query_tile s;
  kva_kloop *g = kva_query_tile_begin(&s, l, n, KVA_TILES_OF_KEYS);
  grad_kv_item(&s, 0);
  kva_k_loop_end(l->kb, g);
}

/* ---- all gradients ----------------------------------------------------------------------------------------------- */

static void clear_dq(const kva_query_tile *s, kva_kbuf *dq, int64_t elements) {
  kva_kloop *i = kva_k_loop_begin(s->kb, KVA_K_VECTOR, num(s, elements), "i");
  kva_k_store(s->kb, dq, i->var, kva_query_tile_const(s, 0));
  kva_k_loop_end(s->kb, i);
}

static void store_dq(const kva_query_tile *s, kva_kbuf *dq) {
  kva_expr_ctx *c = s->kb->exprs;
  kva_kloop *loops[2];
  const kva_expr *at[2]; /* head of the group, position */
  kva_nest_begin(s->l, KVA_K_SERIAL, 2, (const kva_dim[]){s->a.group, s->a.T}, loops, at);
  kva_kloop *d = kva_k_loop_begin(s->kb, KVA_K_VECTOR, num(s, s->a.D), "d");
  const kva_expr *row = kva_expr_add(c, kva_expr_mul(c, at[0], s->a.T), at[1]);
  const kva_expr *head = kva_expr_add(c, kva_expr_mul(c, s->h_kv, s->a.group), at[0]);
  kva_kval v = kva_k_load(s->kb, dq, kva_expr_add(c, kva_expr_muli(c, row, s->a.D), d->var));
  v = kva_k2(s->kb, KVA_K_mul, v, kva_query_tile_const(s, s->a.attrs.scale));
  s->l->store(s->l, s->a.n, 0, (const kva_expr *[]){s->b, head, at[1], d->var}, v);
  kva_k_loop_end(s->kb, d);
  kva_nest_end(s->l, 2, loops);
}

static int64_t rows_of_dq(const kva_node *n) {
  return kva_attention_grad_rows(kva_operand_type(n, KVA_ATTENTION_Q), kva_operand_type(n, KVA_ATTENTION_K));
}

const char *kva_attention_grad_heads_refuses(kva_lower *l, const kva_node *n) {
  (void)l;
  return rows_of_dq(n) >= 0 ? NULL : "rows of dq that exceed a core's caches";
}

void kva_attention_grad_heads_emit(kva_lower *l, const kva_node *n) {
  kva_query_tile s;
  kva_kloop *g = kva_query_tile_begin_heads(&s, l, n);
  int64_t elements = rows_of_dq(n) * s.a.D;
  key_sums sums = key_sums_of(&s);
  backward b = backward_of_keys(&s);
  sums.rows = kva_query_tile_matrix(&s, "rows", s.a.D);
  sums.dq = kva_k_local(l->kb, "dq", s.t, elements);
  clear_dq(&s, sums.dq, elements);
  kva_kloop *tile = kva_query_tile_next(&s);
  add_group(&s, &b, &sums, 1);
  kva_k_loop_end(l->kb, tile);
  store_dq(&s, sums.dq);
  kva_k_loop_end(l->kb, g);
}

/* Items of attention_grad_q, then those of attention_grad_kv. What has no items has no code: it would divide by 0. */
void kva_attention_grad_emit(kva_lower *l, const kva_node *n) {
  kva_expr_ctx *c = l->kb->exprs;
  kva_query_tile q, kv;
  kva_query_tile_describe(&q, l, n, KVA_TILES_OF_QUERIES);
  kva_query_tile_describe(&kv, l, n, KVA_TILES_OF_KEYS);
  const kva_expr *of_q = kva_query_tile_items(&q), *of_kv = kva_query_tile_items(&kv);
  bool has_q = !kva_expr_is(of_q, 0), has_kv = !kva_expr_is(of_kv, 0);
  kva_kloop *g = kva_k_loop_begin(l->kb, KVA_K_GRID, kva_expr_add(c, of_q, of_kv), "item");
  kva_kinstr *branch = has_q && has_kv ? kva_k_if_begin(l->kb, kva_k_index_lt(l->kb, g->var, of_q)) : NULL;
  if (has_q) {
    kva_query_tile_place_item(&q, kva_k_name(l->kb, g->var, of_q));
    grad_q_item(&q);
  }
  if (branch) kva_k_if_else(l->kb, branch);
  if (has_kv) {
    kva_query_tile_place_item(&kv, kva_k_name(l->kb, kva_expr_sub(c, g->var, of_q), of_kv));
    grad_kv_item(&kv, 1);
  }
  if (branch) kva_k_if_end(l->kb, branch);
  kva_k_loop_end(l->kb, g);
}
