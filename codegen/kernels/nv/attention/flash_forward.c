/* Forward attention on tensor cores (flash.h): the online softmax of any/attention/attention.c, after FlashAttention-2
 * (Dao 2023). One step over the keys, K and V in one tile each:
 *
 *   wait for K_j;  start copying V_j;      S = Q K_j^T, maxima, probabilities, rescaling of the sums
 *   wait for V_j;  start copying K_{j+1};  O += P V_j
 *
 * So one of the products hides the latency of every copy, and a barrier separates the last read of a tile from the copy
 * that overwrites it. Keys that every query of the block sees come first, without a visibility test. */
#include "codegen/kernels/nv/attention/flash.h"

#include <math.h>

enum { WIDE_HEAD = 128 };

typedef struct forward {
  kva_flash f;
  kva_kbuf *q, *k, *v;
  kva_kbuf *s, *p, *y, *max, *sum, *rescale;
  kva_kbuf *rounded;                  /* sum of the probabilities as they are multiplied; NULL: sum is taken for it */
  const kva_expr *begin, *full, *end; /* keys: the first, the end of those visible to all queries, the end */
} forward;

static const kva_expr *num(const forward *w, int64_t v) {
  return kva_expr_const(w->f.s.kb->exprs, v);
}

/* ---- range of keys ----------------------------------------------------------------------------------------------- */

static void set_range(forward *w) {
  kva_expr_ctx *c = w->f.s.kb->exprs;
  const kva_attention *a = &w->f.s.a;
  const kva_expr *position = kva_expr_add(c, w->f.s.first, a->offset), *zero = num(w, 0), *keys = num(w, w->f.far);
  const kva_expr *seen_by_all = a->S;
  bool causal = a->attrs.causal || a->attrs.window > 0;
  w->begin = zero, w->end = a->S;
  if (causal) {
    w->end = kva_expr_max(c, zero, kva_expr_min(c, a->S, kva_expr_addi(c, position, KVA_FLASH_ROWS)));
    seen_by_all = kva_expr_max(c, zero, kva_expr_min(c, a->S, kva_expr_addi(c, position, 1)));
  }
  if (a->attrs.window > 0) {
    w->begin = kva_expr_max(c, zero, kva_expr_addi(c, position, 1 - a->attrs.window));
    w->begin = kva_expr_mul(c, kva_expr_div(c, w->begin, keys), keys);
  }
  bool tests = a->attrs.window > 0 || kva_operand(a->n, KVA_ATTENTION_MASK);
  w->full = tests ? w->begin : kva_expr_mul(c, kva_expr_div(c, seen_by_all, keys), keys);
}

static void load(const forward *w, kva_kbuf *tile, uint32_t operand, const kva_expr *first) {
  kva_flash_load(&w->f, &(kva_flash_copy){.tile = tile,
                                          .at = num(w, 0),
                                          .operand = operand,
                                          .head = w->f.s.h_kv,
                                          .first = first,
                                          .limit = w->end,
                                          .rows = w->f.far});
  kva_flash_commit(&w->f);
}

/* ---- softmax ----------------------------------------------------------------------------------------------------- */

static void scores(const forward *w, const kva_expr *key0, bool masked) {
  const kva_flash *f = &w->f;
  kva_flash_scores(f, w->s, w->q, w->k, num(w, 0));
  if (!masked && !f->general) return;
  kva_flash_element e = kva_flash_each(f, f->far / 2);
  const kva_expr *key = kva_expr_add(f->s.kb->exprs, key0, e.column);
  kva_kval x = kva_flash_score(f, kva_flash_row(f, e.row), key, kva_k_load(f->s.kb, w->s, e.i), masked, NULL);
  kva_k_store(f->s.kb, w->s, e.i, x);
  kva_k_loop_end(f->s.kb, e.loop);
}

/* A row that has seen nothing has maximum -inf; differences use 0 instead, so its exponentials are 0. */
static kva_kval finite_max(const forward *w, kva_kval max) {
  kva_kb *kb = w->f.s.kb;
  kva_kval none = kva_k2(kb, KVA_K_eq, max, kva_k_const_f(kb, KVA_F32, -INFINITY));
  return kva_k_select(kb, none, kva_k_const_f(kb, KVA_F32, 0), max);
}

static void scale_row(const forward *w, kva_kbuf *sum, const kva_expr *row, kva_kval factor) {
  kva_kb *kb = w->f.s.kb;
  kva_k_store(kb, sum, row, kva_k2(kb, KVA_K_mul, kva_k_load(kb, sum, row), factor));
}

/* max' of the row, exp2(factor * (max - max')), and the rescaled sums. */
static void raise_max(const forward *w) {
  const kva_flash *f = &w->f;
  kva_kb *kb = f->s.kb;
  kva_kloop *r = kva_k_loop_begin(kb, KVA_K_UNROLL, num(w, 2), "row");
  kva_kval before = kva_k_load(kb, w->max, r->var), max = before;
  for (int64_t part = 0; part < f->far / 8; part++) {
    for (int64_t i = 0; i < 2; i++) {
      const kva_expr *at = kva_expr_addi(kb->exprs, kva_expr_muli(kb->exprs, r->var, 2), 4 * part + i);
      max = kva_k2(kb, KVA_K_max, max, kva_k_load(kb, w->s, at));
    }
  }
  max = kva_flash_combine_row(f, KVA_K_max, max);
  kva_kval factor = kva_k_const_f(kb, KVA_F32, f->factor);
  kva_kval change = kva_k2(kb, KVA_K_mul, kva_k2(kb, KVA_K_sub, before, finite_max(w, max)), factor);
  kva_kval rescale = kva_flash_exp2(f, change);
  kva_k_store(kb, w->max, r->var, max);
  kva_k_store(kb, w->rescale, r->var, rescale);
  scale_row(w, w->sum, r->var, rescale);
  if (w->rounded) scale_row(w, w->rounded, r->var, rescale);
  kva_k_loop_end(kb, r);
}

static void add_to_row(const forward *w, kva_kbuf *sum, const kva_expr *row, kva_kval p) {
  kva_kb *kb = w->f.s.kb;
  kva_k_store(kb, sum, row, kva_k2(kb, KVA_K_add, kva_k_load(kb, sum, row), p));
}

static void probabilities(const forward *w) {
  const kva_flash *f = &w->f;
  kva_kb *kb = f->s.kb;
  kva_flash_element e = kva_flash_each(f, f->far / 2);
  kva_kval shift = kva_flash_shift(f, finite_max(w, kva_k_load(kb, w->max, e.row)));
  kva_kval p = kva_flash_probability(f, kva_k_load(kb, w->s, e.i), shift);
  kva_k_store(kb, w->p, e.i, p);
  add_to_row(w, w->sum, e.row, p);
  if (w->rounded) add_to_row(w, w->rounded, e.row, kva_k_convert(kb, kva_k_load(kb, w->p, e.i), KVA_F32));
  kva_k_loop_end(kb, e.loop);
}

static void rescale_result(const forward *w) {
  kva_kb *kb = w->f.s.kb;
  kva_flash_element e = kva_flash_each(&w->f, 8 * w->f.depth16);
  kva_kval y = kva_k2(kb, KVA_K_mul, kva_k_load(kb, w->y, e.i), kva_k_load(kb, w->rescale, e.row));
  kva_k_store(kb, w->y, e.i, y);
  kva_k_loop_end(kb, e.loop);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static void over_keys(const forward *w, const kva_expr *from, const kva_expr *to, bool masked) {
  kva_kb *kb = w->f.s.kb;
  kva_expr_ctx *c = kb->exprs;
  const kva_expr *left = kva_expr_max(c, num(w, 0), kva_expr_sub(c, to, from));
  kva_kloop *j = kva_k_loop_begin(kb, KVA_K_SERIAL, kva_expr_ceildiv(c, left, num(w, w->f.far)), "step");
  const kva_expr *key0 = kva_expr_add(c, from, kva_expr_muli(c, j->var, w->f.far));
  kva_flash_wait(&w->f, 0);
  load(w, w->v, KVA_ATTENTION_V, key0);
  scores(w, key0, masked);
  raise_max(w);
  probabilities(w);
  rescale_result(w);
  kva_flash_wait(&w->f, 0);
  load(w, w->k, KVA_ATTENTION_K, kva_expr_addi(c, key0, w->f.far));
  kva_flash_multiply(
      &w->f, &(kva_flash_product){
                 .out = w->y, .p = w->p, .far_tile = w->v, .at = num(w, 0), .first16 = num(w, 0), .n16 = w->f.depth16});
  kva_k_loop_end(kb, j);
}

/* rescale = 1 / sum, max = lse; 0 and -inf for a query that sees nothing. */
static void finish_rows(const forward *w) {
  const kva_flash *f = &w->f;
  kva_kb *kb = f->s.kb;
  kva_kloop *r = kva_k_loop_begin(kb, KVA_K_UNROLL, num(w, 2), "row");
  kva_kval sum = kva_flash_combine_row(f, KVA_K_add, kva_k_load(kb, w->sum, r->var));
  kva_kval zero = kva_k_const_f(kb, KVA_F32, 0), empty = kva_k2(kb, KVA_K_eq, sum, zero);
  kva_kval natural = kva_k_const_f(kb, KVA_F32, f->factor * log(2.0));
  kva_kval max = kva_k2(kb, KVA_K_mul, kva_k_load(kb, w->max, r->var), natural);
  kva_kval lse = kva_k2(kb, KVA_K_add, max, kva_k1(kb, KVA_K_log, sum));
  lse = kva_k_select(kb, empty, kva_k_const_f(kb, KVA_F32, -INFINITY), lse);
  if (w->rounded) sum = kva_flash_combine_row(f, KVA_K_add, kva_k_load(kb, w->rounded, r->var));
  kva_kval inverse = kva_k2(kb, KVA_K_div, kva_k_const_f(kb, KVA_F32, 1), sum);
  kva_k_store(kb, w->rescale, r->var, kva_k_select(kb, empty, zero, inverse));
  const kva_expr *row = kva_flash_row(f, r->var);
  kva_kval first = kva_k_index_eq(kb, kva_expr_mod(kb->exprs, f->lane, num(w, 4)), num(w, 0));
  kva_kval outer = kva_k_guard_begin(kb, kva_k_and(kb, first, kva_k_index_lt(kb, row, f->s.extent)));
  f->s.l->store(f->s.l, f->s.a.n, 1, (const kva_expr *[]){f->s.b, f->s.h, row}, lse);
  kva_k_guard_end(kb, outer);
  kva_k_loop_end(kb, r);
}

static void fill(const forward *w, kva_kbuf *m, int64_t n, double v) {
  kva_kloop *i = kva_k_loop_begin(w->f.s.kb, KVA_K_UNROLL, num(w, n), "i");
  kva_k_store(w->f.s.kb, m, i->var, kva_k_const_f(w->f.s.kb, KVA_F32, v));
  kva_k_loop_end(w->f.s.kb, i);
}

static void start(forward *w) {
  const kva_flash *f = &w->f;
  kva_kb *kb = f->s.kb;
  w->q = kva_flash_tile(f, "q", KVA_FLASH_ROWS);
  w->k = kva_flash_tile(f, "k", w->f.far);
  w->v = kva_flash_tile(f, "v", w->f.far);
  w->s = kva_k_local(kb, "s", KVA_F32, w->f.far / 2);
  w->p = kva_k_local(kb, "p", f->type, w->f.far / 2);
  w->y = kva_k_local(kb, "y", KVA_F32, 8 * f->depth16);
  w->max = kva_k_local(kb, "max", KVA_F32, 2);
  w->sum = kva_k_local(kb, "sum", KVA_F32, 2);
  w->rescale = kva_k_local(kb, "rescale", KVA_F32, 2);
  fill(w, w->y, 8 * f->depth16, 0);
  fill(w, w->sum, 2, 0);
  /* float16 divides by the sum of what it multiplied, so that numerator and denominator err together: a result is at
   * most 0.6 units off, not 0.9. bfloat16 saves the instructions. */
  w->rounded = f->type == KVA_F16 ? kva_k_local(kb, "rounded", KVA_F32, 2) : NULL;
  if (w->rounded) fill(w, w->rounded, 2, 0);
  fill(w, w->max, 2, -INFINITY);
  kva_flash_load(f, &(kva_flash_copy){.tile = w->q,
                                      .at = num(w, 0),
                                      .operand = KVA_ATTENTION_Q,
                                      .head = f->s.h,
                                      .first = f->s.first,
                                      .limit = f->s.extent,
                                      .rows = KVA_FLASH_ROWS});
  load(w, w->k, KVA_ATTENTION_K, w->begin);
}

const char *kva_flash_forward_refuses(kva_lower *l, const kva_node *n) {
  (void)l;
  return kva_flash_refuses(n);
}

void kva_flash_forward_emit(kva_lower *l, const kva_node *n) {
  forward w;
  int64_t d = 0;
  kva_expr_is_const(kva_operand_type(n, 0)->dims[3], &d);
  kva_flash_begin(&w.f, l, n, false, d > WIDE_HEAD ? 16 : kva_operand_type(n, 0)->dtype == KVA_F32 ? 32 : 64, 1, NULL);
  if (w.f.type != KVA_F32 && d <= WIDE_HEAD / 2) l->kb->kernel->blocks = 3;
  if (d > WIDE_HEAD) l->kb->kernel->blocks = 0;
  set_range(&w);
  start(&w);
  if (w.full != w.begin) over_keys(&w, w.begin, w.full, false);
  over_keys(&w, w.full, w.end, true);
  kva_flash_drain(&w.f);
  finish_rows(&w);
  kva_flash_store_rows(&w.f, &(kva_flash_store){.m = w.y,
                                                .result = 0,
                                                .head = w.f.s.h,
                                                .first16 = num(&w, 0),
                                                .n16 = w.f.depth16,
                                                .factor = 1,
                                                .scale = w.rescale});
  kva_flash_end(&w.f);
}
