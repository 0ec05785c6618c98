/* Plain kernels of attention and its gradients: a work item is one row of the result (one query, or one key), scores
 * are computed anew wherever they are used, a row of the result is gathered in a local buffer. */
#include "ops/attention.h"
#include "ops/element.h"

#include <math.h>

typedef struct row {
  kva_lower *l;
  kva_attention *a;
  kva_dtype t;                      /* arithmetic */
  const kva_expr *b, *h, *h_kv, *q; /* q: number of the query, t in attention.c */
} row;

static kva_kval constant(const row *r, double v) {
  return kva_k_const(r->l->kb, r->t, v);
}

static kva_kval element(const row *r, uint32_t operand, const kva_expr *h, const kva_expr *at, const kva_expr *d) {
  return r->l->operand(r->l, r->a->n, operand, (const kva_expr *[]){r->b, h, at, d});
}

/* ---- dot products
 * ---------------------------------------------------------------------------------------------------- */

typedef struct dot {
  const row *r;
  uint32_t x, y;
  const kva_expr *x_head, *x_row, *y_head, *y_row;
} dot;

static kva_kval dot_product(kva_kb *kb, void *user, const kva_expr *const *vars) {
  const dot *p = user;
  return kva_k2(kb, KVA_K_mul, element(p->r, p->x, p->x_head, p->x_row, vars[0]),
                element(p->r, p->y, p->y_head, p->y_row, vars[0]));
}

static kva_kval dot_over(dot *p, int64_t len) {
  kva_kb *kb = p->r->l->kb;
  const kva_expr *extent = kva_expr_const(kb->exprs, len);
  return kva_k_reduce_over(kb, KVA_COMBINE_ADD, p->r->t, 1, &extent, dot_product, p);
}

/* ---- scores
 * ---------------------------------------------------------------------------------------------------------- */

static kva_kval masked(const row *r, const kva_expr *s, kva_kval x) {
  const kva_type *t = kva_operand_type(r->a->n, KVA_ATTENTION_MASK);
  const kva_expr *const all[4] = {r->b, r->h, r->q, s};
  const kva_expr *idx[4];
  for (uint32_t i = 0; i < t->rank; i++) {
    idx[i] = kva_expr_is(t->dims[i], 1) ? kva_expr_const(r->l->kb->exprs, 0) : all[4 - t->rank + i];
  }
  kva_kval mask = r->l->operand(r->l, r->a->n, KVA_ATTENTION_MASK, idx);
  if (t->dtype == KVA_BOOL) return kva_k_select(r->l->kb, mask, x, constant(r, -INFINITY));
  return kva_k2(r->l->kb, KVA_K_add, x, kva_k_convert(r->l->kb, mask, r->t));
}

static kva_kval alibi(const row *r, const kva_expr *distance, kva_kval x) {
  kva_kb *kb = r->l->kb;
  kva_kval slope = r->l->operand(r->l, r->a->n, KVA_ATTENTION_SLOPES, &r->h);
  kva_kval far = kva_k1(kb, KVA_K_abs, kva_k_convert(kb, kva_k_index(kb, distance), r->t));
  return kva_k2(kb, KVA_K_sub, x, kva_k2(kb, KVA_K_mul, kva_k_convert(kb, slope, r->t), far));
}

/* Whether query r->q sees key s by position; NULL: always. */
static kva_kval visible(const row *r, const kva_expr *position, const kva_expr *s) {
  kva_kb *kb = r->l->kb;
  int64_t window = r->a->attrs.window;
  kva_kval seen = r->a->attrs.causal || window > 0 ? kva_k_index_le(kb, s, position) : NULL;
  if (window <= 0) return seen;
  return kva_k_and(kb, seen, kva_k_index_lt(kb, kva_expr_addi(kb->exprs, position, -window), s));
}

/* The score of key s; out_bent (may be NULL): tanh of the soft cap, NULL when there is none. */
static kva_kval score(const row *r, const kva_expr *s, kva_kval *out_bent) {
  kva_kb *kb = r->l->kb;
  const kva_attention_attrs *attrs = &r->a->attrs;
  const kva_expr *position = kva_expr_add(kb->exprs, r->q, r->a->offset);
  dot qk = {r, KVA_ATTENTION_Q, KVA_ATTENTION_K, r->h, r->q, r->h_kv, s};
  kva_kval x = kva_k2(kb, KVA_K_mul, dot_over(&qk, r->a->D), constant(r, attrs->scale)), bent = NULL;
  if (attrs->softcap > 0) {
    bent = kva_k1(kb, KVA_K_tanh, kva_k2(kb, KVA_K_div, x, constant(r, attrs->softcap)));
    x = kva_k2(kb, KVA_K_mul, bent, constant(r, attrs->softcap));
  }
  if (out_bent) *out_bent = bent;
  if (kva_operand(r->a->n, KVA_ATTENTION_SLOPES)) x = alibi(r, kva_expr_sub(kb->exprs, position, s), x);
  if (kva_operand(r->a->n, KVA_ATTENTION_MASK)) x = masked(r, s, x);
  kva_kval seen = visible(r, position, s);
  return seen ? kva_k_select(kb, seen, x, constant(r, -INFINITY)) : x;
}

static kva_kval score_term(kva_kb *kb, void *user, const kva_expr *const *vars) {
  (void)kb;
  return score(user, vars[0], NULL);
}

/* ---- rows of results
 * ------------------------------------------------------------------------------------------------- */

/* A row of a result, summed in a local buffer. */
typedef struct sum_row {
  kva_kbuf *buf;
  int64_t len;
} sum_row;

static kva_kloop *channels_begin(const row *r, int64_t len) {
  return kva_k_loop_begin(r->l->kb, KVA_K_MAP, kva_expr_const(r->l->kb->exprs, len), "d");
}

static sum_row sum_row_begin(const row *r, const char *name, int64_t len) {
  sum_row sum = {kva_k_local(r->l->kb, name, r->t, len), len};
  kva_kloop *d = channels_begin(r, len);
  kva_k_store(r->l->kb, sum.buf, d->var, constant(r, 0));
  kva_k_loop_end(r->l->kb, d);
  return sum;
}

/* sum[d] += weight * operand[b, head, at, d] */
static void sum_row_add(const row *r, sum_row sum, kva_kval weight, uint32_t operand, const kva_expr *head,
                        const kva_expr *at) {
  kva_kb *kb = r->l->kb;
  kva_kloop *d = channels_begin(r, sum.len);
  kva_kval before = kva_k_load(kb, sum.buf, d->var);
  kva_k_store(kb, sum.buf, d->var, kva_k_op(kb, KVA_K_fma, weight, element(r, operand, head, at, d->var), before));
  kva_k_loop_end(kb, d);
}

static void sum_row_store(const row *r, sum_row sum, kva_kval factor, uint32_t result, const kva_expr *head,
                          const kva_expr *at) {
  kva_kb *kb = r->l->kb;
  kva_kloop *d = channels_begin(r, sum.len);
  kva_kval v = kva_k2(kb, KVA_K_mul, kva_k_load(kb, sum.buf, d->var), factor);
  r->l->store(r->l, r->a->n, result, (const kva_expr *[]){r->b, head, at, d->var}, v);
  kva_k_loop_end(kb, d);
}

/* ---- kernels
 * --------------------------------------------------------------------------------------------------------- */

typedef struct row_loops {
  kva_kloop *b, *h, *at;
} row_loops;

static row_loops rows_begin(kva_kb *kb, kva_dim b, kva_dim h, kva_dim at) {
  row_loops loops;
  loops.b = kva_k_loop_begin(kb, KVA_K_MAP, b, "b");
  loops.h = kva_k_loop_begin(kb, KVA_K_MAP, h, "h");
  loops.at = kva_k_loop_begin(kb, KVA_K_MAP, at, "t");
  return loops;
}

static void rows_end(kva_kb *kb, row_loops loops) {
  kva_k_loop_end(kb, loops.at);
  kva_k_loop_end(kb, loops.h);
  kva_k_loop_end(kb, loops.b);
}

static row query_row(kva_lower *l, kva_attention *a, row_loops loops) {
  kva_dtype t = kva_k_compute_type(kva_operand_type(a->n, 0)->dtype);
  const kva_expr *h = loops.h->var;
  return (row){l, a, t, loops.b->var, h, kva_expr_div(l->kb->exprs, h, a->group), loops.at->var};
}

void kva_attention_kernel(kva_lower *l, const kva_node *n) {
  kva_kb *kb = l->kb;
  kva_attention a = kva_attention_get(n, kb->exprs);
  row_loops loops = rows_begin(kb, a.B, a.H, a.T);
  row r = query_row(l, &a, loops);
  kva_kval max = kva_k_reduce_over(kb, KVA_COMBINE_MAX, r.t, 1, &a.S, score_term, &r);
  kva_kval none = constant(&r, -INFINITY), zero = constant(&r, 0);
  /* A row that sees nothing has max -inf; exp(-inf - 0) is then 0 for every key, and so is the sum. */
  max = kva_k_select(kb, kva_k2(kb, KVA_K_eq, max, none), zero, max);
  sum_row y = sum_row_begin(&r, "y", a.D_v);
  kva_kloop *s = kva_k_loop_begin(kb, KVA_K_SERIAL, a.S, "s");
  kva_kval p = kva_k1(kb, KVA_K_exp, kva_k2(kb, KVA_K_sub, score(&r, s->var, NULL), max));
  kva_kval sum = kva_k_reduce(kb, s, KVA_COMBINE_ADD, zero, p);
  sum_row_add(&r, y, p, KVA_ATTENTION_V, r.h_kv, s->var);
  kva_k_loop_end(kb, s);
  kva_kval empty = kva_k2(kb, KVA_K_eq, sum, zero);
  kva_kval factor = kva_k_select(kb, empty, zero, kva_k2(kb, KVA_K_div, constant(&r, 1), sum));
  sum_row_store(&r, y, factor, 0, r.h, r.q);
  kva_kval lse = kva_k_select(kb, empty, none, kva_k2(kb, KVA_K_add, max, kva_k1(kb, KVA_K_log, sum)));
  l->store(l, n, 1, (const kva_expr *[]){r.b, r.h, r.q}, lse);
  rows_end(kb, loops);
}

typedef struct slope {
  kva_kval p, ds; /* probability; dL/d(scale * q.k) */
} slope;

static slope slope_at(const row *r, const kva_expr *s) {
  kva_kb *kb = r->l->kb;
  dot dy_v = {r, KVA_ATTENTION_DY, KVA_ATTENTION_V, r->h, r->q, r->h_kv, s};
  dot dy_y = {r, KVA_ATTENTION_DY, KVA_ATTENTION_Y, r->h, r->q, r->h, r->q};
  kva_kval lse = r->l->operand(r->l, r->a->n, KVA_ATTENTION_LSE, (const kva_expr *[]){r->b, r->h, r->q});
  kva_kval bent, x = score(r, s, &bent), zero = constant(r, 0);
  kva_kval empty = kva_k2(kb, KVA_K_eq, lse, constant(r, -INFINITY));
  kva_kval p = kva_k_select(kb, empty, zero, kva_k1(kb, KVA_K_exp, kva_k2(kb, KVA_K_sub, x, lse)));
  kva_kval difference = kva_k2(kb, KVA_K_sub, dot_over(&dy_v, r->a->D_v), dot_over(&dy_y, r->a->D_v));
  kva_kval ds = kva_k2(kb, KVA_K_mul, p, difference);
  if (!bent) return (slope){p, ds};
  kva_kval cap = kva_k_op(kb, KVA_K_fma, kva_k1(kb, KVA_K_neg, bent), bent, constant(r, 1));
  return (slope){p, kva_k2(kb, KVA_K_mul, ds, cap)};
}

void kva_attention_grad_q_kernel(kva_lower *l, const kva_node *n) {
  kva_kb *kb = l->kb;
  kva_attention a = kva_attention_get(n, kb->exprs);
  row_loops loops = rows_begin(kb, a.B, a.H, a.T);
  row r = query_row(l, &a, loops);
  sum_row dq = sum_row_begin(&r, "dq", a.D);
  kva_kloop *s = kva_k_loop_begin(kb, KVA_K_SERIAL, a.S, "s");
  sum_row_add(&r, dq, slope_at(&r, s->var).ds, KVA_ATTENTION_K, r.h_kv, s->var);
  kva_k_loop_end(kb, s);
  sum_row_store(&r, dq, constant(&r, a.attrs.scale), 0, r.h, r.q);
  rows_end(kb, loops);
}

void kva_attention_grad_kv_kernel(kva_lower *l, const kva_node *n) {
  kva_kb *kb = l->kb;
  kva_attention a = kva_attention_get(n, kb->exprs);
  row_loops loops = rows_begin(kb, a.B, a.H_kv, a.S);
  row r = {l, &a, kva_k_compute_type(kva_operand_type(n, 0)->dtype), loops.b->var, NULL, loops.h->var, NULL};
  const kva_expr *s = loops.at->var;
  sum_row dk = sum_row_begin(&r, "dk", a.D), dv = sum_row_begin(&r, "dv", a.D_v);
  kva_kloop *member = kva_k_loop_begin(kb, KVA_K_SERIAL, a.group, "g");
  kva_kloop *query = kva_k_loop_begin(kb, KVA_K_SERIAL, a.T, "q");
  r.h = kva_expr_add(kb->exprs, kva_expr_mul(kb->exprs, r.h_kv, a.group), member->var);
  r.q = query->var;
  slope g = slope_at(&r, s);
  sum_row_add(&r, dk, g.ds, KVA_ATTENTION_Q, r.h, r.q);
  sum_row_add(&r, dv, g.p, KVA_ATTENTION_DY, r.h, r.q);
  kva_k_loop_end(kb, query);
  kva_k_loop_end(kb, member);
  sum_row_store(&r, dk, constant(&r, a.attrs.scale), 0, r.h_kv, s);
  sum_row_store(&r, dv, constant(&r, 1), 1, r.h_kv, s);
  rows_end(kb, loops);
}
