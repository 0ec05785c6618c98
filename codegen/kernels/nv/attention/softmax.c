/* See softmax.h. Of every 8 far positions of a tile a thread has 2, in both of its rows. */
#include "codegen/kernels/nv/attention/softmax.h"

#include <math.h>

static const kva_expr *num(const kva_flash_softmax *x, int64_t v) {
  return kva_expr_const(x->f->s.kb->exprs, v);
}

static kva_kbuf *two_rows(const kva_flash_softmax *x, const char *name, double v) {
  kva_kb *kb = x->f->s.kb;
  kva_kbuf *m = kva_k_local(kb, name, KVA_F32, 2);
  for (int64_t r = 0; r < 2; r++) kva_k_store(kb, m, num(x, r), kva_k_const_f(kb, KVA_F32, v));
  return m;
}

void kva_flash_softmax_start(kva_flash_softmax *x, const kva_flash *f, kva_kbuf *s) {
  *x = (kva_flash_softmax){.f = f, .s = s};
  x->max = two_rows(x, "max", -INFINITY);
  x->sum = two_rows(x, "sum", 0);
  x->shift = two_rows(x, "shift", 0);
  x->rescale = two_rows(x, "rescale", 0);
}

/* ---- visibility of keys ------------------------------------------------------------------------------------------ */

/* Columns of the tile before `key`, counted from the thread's first: a small number, so that each element needs only
 * one comparison with a constant. Half a column less keeps it a float; otherwise LLVM would compare the 64-bit integers
 * behind it. */
static kva_kval columns_before(const kva_flash_softmax *x, const kva_expr *key, const kva_expr *key0) {
  kva_kb *kb = x->f->s.kb;
  kva_expr_ctx *c = kb->exprs;
  const kva_expr *first = kva_expr_muli(c, kva_expr_mod(c, x->f->lane, num(x, 4)), 2);
  const kva_expr *n = kva_expr_sub(c, key, kva_expr_add(c, key0, first));
  n = kva_expr_min(c, kva_expr_max(c, n, num(x, 0)), num(x, x->f->far));
  kva_kval columns = kva_k_convert(kb, kva_k_convert(kb, kva_k_index(kb, n), KVA_I32), KVA_F32);
  return kva_k2(kb, KVA_K_sub, columns, kva_k_const_f(kb, KVA_F32, 0.5));
}

/* One row sees keys from .. to - 1. from NULL: no lower bound. */
static void mask_row(const kva_flash_softmax *x, int64_t row, kva_kval from, kva_kval to) {
  kva_kb *kb = x->f->s.kb;
  kva_kval unseen = kva_k_const_f(kb, KVA_F32, -INFINITY);
  for (int64_t i = 0; i < x->f->far / 4; i++) {
    const kva_expr *at = num(x, i / 2 * 4 + 2 * row + i % 2);
    kva_kval column = kva_k_const_f(kb, KVA_F32, (double)(i / 2 * 8 + i % 2)), v = kva_k_load(kb, x->s, at);
    v = kva_k_select(kb, kva_k2(kb, KVA_K_lt, column, to), v, unseen);
    if (from) v = kva_k_select(kb, kva_k2(kb, KVA_K_lt, column, from), unseen, v);
    kva_k_store(kb, x->s, at, v);
  }
}

static void mask(const kva_flash_softmax *x, const kva_expr *key0) {
  const kva_attention *a = &x->f->s.a;
  kva_expr_ctx *c = x->f->s.kb->exprs;
  bool causal = a->attrs.causal || a->attrs.window > 0;
  for (int64_t row = 0; row < 2; row++) {
    const kva_expr *position = kva_expr_add(c, kva_flash_row(x->f, num(x, row)), a->offset);
    const kva_expr *to = causal ? kva_expr_min(c, a->S, kva_expr_addi(c, position, 1)) : a->S;
    const kva_expr *from = kva_expr_addi(c, position, 1 - a->attrs.window);
    mask_row(x, row, a->attrs.window > 0 ? columns_before(x, from, key0) : NULL, columns_before(x, to, key0));
  }
}

void kva_flash_softmax_scores(const kva_flash_softmax *x, const kva_expr *key0, bool masked) {
  const kva_flash *f = x->f;
  if (!f->general) {
    if (masked) mask(x, key0);
    return;
  }
  kva_flash_element e = kva_flash_each(f, f->far / 2);
  const kva_expr *key = kva_expr_add(f->s.kb->exprs, key0, e.column);
  kva_kval v = kva_flash_score(f, kva_flash_row(f, e.row), key, kva_k_load(f->s.kb, x->s, e.i), masked, NULL);
  kva_k_store(f->s.kb, x->s, e.i, v);
  kva_k_loop_end(f->s.kb, e.loop);
}

/* ---- maxima and sums --------------------------------------------------------------------------------------------- */

/* Folds a row into v, combining the two elements of each part first: half as long a dependence chain. */
static kva_kval fold_row(const kva_flash_softmax *x, kva_kop op, const kva_expr *row, kva_kval v) {
  kva_kb *kb = x->f->s.kb;
  kva_expr_ctx *c = kb->exprs;
  for (int64_t part = 0; part < x->f->far / 8; part++) {
    const kva_expr *at = kva_expr_addi(c, kva_expr_muli(c, row, 2), 4 * part);
    kva_kval left = kva_k_load(kb, x->s, at), right = kva_k_load(kb, x->s, kva_expr_addi(c, at, 1));
    v = kva_k2(kb, op, v, kva_k2(kb, op, left, right));
  }
  return v;
}

void kva_flash_softmax_raise(const kva_flash_softmax *x) {
  kva_kb *kb = x->f->s.kb;
  kva_kval factor = kva_k_const_f(kb, KVA_F32, x->f->factor), zero = kva_k_const_f(kb, KVA_F32, 0);
  kva_kloop *r = kva_k_loop_begin(kb, KVA_K_UNROLL, num(x, 2), "row");
  kva_kval before = kva_k_load(kb, x->max, r->var);
  kva_kval max = kva_flash_combine_row(x->f, KVA_K_max, fold_row(x, KVA_K_max, r->var, before));
  kva_kval none = kva_k2(kb, KVA_K_eq, max, kva_k_const_f(kb, KVA_F32, -INFINITY));
  kva_kval finite = kva_k_select(kb, none, zero, max);
  kva_kval change = kva_k2(kb, KVA_K_mul, kva_k2(kb, KVA_K_sub, before, finite), factor);
  kva_kval rescale = kva_flash_exp2(x->f, change);
  kva_k_store(kb, x->max, r->var, max);
  kva_k_store(kb, x->shift, r->var, kva_flash_shift(x->f, finite));
  kva_k_store(kb, x->rescale, r->var, rescale);
  kva_k_store(kb, x->sum, r->var, kva_k2(kb, KVA_K_mul, kva_k_load(kb, x->sum, r->var), rescale));
  kva_k_loop_end(kb, r);
}

void kva_flash_softmax_exponentials(const kva_flash_softmax *x) {
  const kva_flash *f = x->f;
  kva_kb *kb = f->s.kb;
  kva_flash_element e = kva_flash_each(f, f->far / 2);
  kva_kval v = kva_flash_probability(f, kva_k_load(kb, x->s, e.i), kva_k_load(kb, x->shift, e.row));
  kva_k_store(kb, x->s, e.i, v);
  kva_k_loop_end(kb, e.loop);
  kva_kloop *r = kva_k_loop_begin(kb, KVA_K_UNROLL, num(x, 2), "row");
  kva_k_store(kb, x->sum, r->var, fold_row(x, KVA_K_add, r->var, kva_k_load(kb, x->sum, r->var)));
  kva_k_loop_end(kb, r);
}

static void store_lse(const kva_flash_softmax *x, const kva_expr *row, kva_kval lse) {
  const kva_query_tile *s = &x->f->s;
  const kva_expr *quad = kva_expr_mod(s->kb->exprs, x->f->lane, num(x, 4)), *position = kva_flash_row(x->f, row);
  kva_kval first = kva_k_index_eq(s->kb, quad, num(x, 0)), inside = kva_k_index_lt(s->kb, position, s->extent);
  kva_kval outer = kva_k_guard_begin(s->kb, kva_k_and(s->kb, first, inside));
  s->l->store(s->l, s->a.n, 1, (const kva_expr *[]){s->b, s->h, position}, lse);
  kva_k_guard_end(s->kb, outer);
}

void kva_flash_softmax_finish(const kva_flash_softmax *x) {
  kva_kb *kb = x->f->s.kb;
  kva_kval zero = kva_k_const_f(kb, KVA_F32, 0), natural = kva_k_const_f(kb, KVA_F32, x->f->added ? 1 : log(2.0));
  kva_kloop *r = kva_k_loop_begin(kb, KVA_K_UNROLL, num(x, 2), "row");
  kva_kval sum = kva_flash_combine_row(x->f, KVA_K_add, kva_k_load(kb, x->sum, r->var));
  kva_kval empty = kva_k2(kb, KVA_K_eq, sum, zero);
  kva_kval lse = kva_k2(kb, KVA_K_mul, kva_k_load(kb, x->shift, r->var), natural);
  lse = kva_k2(kb, KVA_K_add, lse, kva_k1(kb, KVA_K_log, sum));
  store_lse(x, r->var, kva_k_select(kb, empty, kva_k_const_f(kb, KVA_F32, -INFINITY), lse));
  kva_kval inverse = kva_k2(kb, KVA_K_div, kva_k_const_f(kb, KVA_F32, 1), sum);
  kva_k_store(kb, x->rescale, r->var, kva_k_select(kb, empty, zero, inverse));
  kva_k_loop_end(kb, r);
}
