/* The gradient of queries by warpgroups (attention_flash_hopper.h), in the notation of attention_flash_backward.c:
 *
 *   for every tile i: begin S = Q K_i^T;  begin dP = dY V_i^T;  begin dQ += dS K_{i-1}
 *                     wait for S;  P = exp2(S - lse);  wait for dP;  dS = P (dP - delta);  wait for dQ
 *   dQ += dS K_last
 *
 * so that a tile's exponentials run beside the product of the one before. Scores that need more than a factor and
 * visibility, and heads wider than 128, are left to attention_flash_backward.c. */
#include "ops/attention_flash_hopper.h"

#include <math.h>

enum { TILE_BYTES = 16 * 1024, WIDEST = 128 /* heads, for which registers do */ };

typedef struct gradient {
  kva_hopper h;
  kva_flash_softmax x; /* for its scores */
  kva_kbuf *dp;
  kva_kbuf *lse, *delta; /* of the thread's two rows, lse times log2 e */
} gradient;

static const kva_expr *num(const gradient *w, int64_t v) {
  return kva_expr_const(w->h.f.s.kb->exprs, v);
}

static kva_kval row_operand(const gradient *w, uint32_t operand, const kva_expr *row, double outside) {
  const kva_strip *s = &w->h.f.s;
  kva_kval inside = kva_k_index_lt(s->kb, row, s->a.T), outer = kva_k_guard_begin(s->kb, inside);
  kva_kval v = s->l->operand(s->l, s->a.n, operand, (const kva_expr *[]){s->b, s->h, row});
  kva_k_guard_end(s->kb, outer);
  return kva_k_select(s->kb, inside, kva_k_convert(s->kb, v, KVA_F32), kva_k_const_f(s->kb, KVA_F32, outside));
}

/* A query that is not or sees nothing has lse +inf, which makes its probabilities 0. */
static void load_rows(gradient *w) {
  kva_kb *kb = w->h.f.s.kb;
  w->lse = kva_k_local(kb, "lse", KVA_F32, 2);
  w->delta = kva_k_local(kb, "delta", KVA_F32, 2);
  kva_kval nothing = kva_k_const_f(kb, KVA_F32, -INFINITY), log2e = kva_k_const_f(kb, KVA_F32, 1 / log(2.0));
  for (int64_t r = 0; r < 2; r++) {
    const kva_expr *row = kva_flash_row(&w->h.f, num(w, r));
    kva_kval lse = row_operand(w, KVA_ATTENTION_LSE, row, -INFINITY);
    lse = kva_k_select(kb, kva_k2(kb, KVA_K_eq, lse, nothing), kva_k_const_f(kb, KVA_F32, INFINITY), lse);
    kva_k_store(kb, w->lse, num(w, r), kva_k2(kb, KVA_K_mul, lse, log2e));
    kva_k_store(kb, w->delta, num(w, r), row_operand(w, KVA_ATTENTION_DELTA, row, 0));
  }
}

/* s = exp2(factor * s - lse) */
static void probabilities(const gradient *w, const kva_expr *i, bool masked) {
  const kva_flash *f = &w->h.f;
  kva_kb *kb = f->s.kb;
  kva_flash_softmax_scores(&w->x, kva_hopper_key(&w->h, i), masked);
  kva_kval factor = kva_k_const_f(kb, KVA_F32, f->factor);
  kva_flash_element e = kva_flash_each(f, w->h.keys / 2);
  kva_kval shift = kva_k1(kb, KVA_K_neg, kva_k_load(kb, w->lse, e.row));
  kva_kval p = kva_flash_exp2(f, kva_k_op(kb, KVA_K_fma, kva_k_load(kb, w->h.s, e.i), factor, shift));
  kva_k_store(kb, w->h.s, e.i, p);
  kva_k_loop_end(kb, e.loop);
}

/* s = s * (dp - delta) */
static void slopes(const gradient *w) {
  kva_kb *kb = w->h.f.s.kb;
  kva_flash_element e = kva_flash_each(&w->h.f, w->h.keys / 2);
  kva_kval change = kva_k2(kb, KVA_K_sub, kva_k_load(kb, w->dp, e.i), kva_k_load(kb, w->delta, e.row));
  kva_k_store(kb, w->h.s, e.i, kva_k2(kb, KVA_K_mul, kva_k_load(kb, w->h.s, e.i), change));
  kva_k_loop_end(kb, e.loop);
}

/* before: the tile whose product with dS is to run beside; NULL: none. */
static void step(const gradient *w, const kva_expr *i, const kva_expr *before, bool masked) {
  const kva_hopper *h = &w->h;
  int32_t beside = before ? 1 : 0;
  kva_hopper_wait_full(h, KVA_HOPPER_FULL_K, i);
  if (before) kva_hopper_await_turn(h);
  kva_hopper_begin_scores(h, h->s, 0, KVA_ATTENTION_K, i);
  kva_hopper_wait_full(h, KVA_HOPPER_FULL_V, i);
  kva_hopper_begin_scores(h, w->dp, 1, KVA_ATTENTION_V, i);
  if (before) kva_hopper_begin_results(h, KVA_ATTENTION_K, before);
  if (before) kva_hopper_pass_turn(h);
  kva_hopper_wait_scores(h, h->s, 1 + beside);
  probabilities(w, i, masked);
  kva_hopper_wait_scores(h, w->dp, beside);
  kva_hopper_release(h, KVA_HOPPER_EMPTY_V, i);
  slopes(w);
  if (before) kva_hopper_wait_results(h);
  if (before) kva_hopper_release(h, KVA_HOPPER_EMPTY_K, before);
  kva_hopper_round(h);
}

/* Tiles from .. to - 1, from >= 1. */
static void over_tiles(const gradient *w, const kva_expr *from, const kva_expr *to, bool masked) {
  kva_kb *kb = w->h.f.s.kb;
  kva_expr_ctx *c = kb->exprs;
  const kva_expr *n = kva_expr_max(c, num(w, 0), kva_expr_sub(c, to, from));
  kva_kloop *loop = kva_k_loop_begin(kb, KVA_K_SERIAL, n, "tile");
  const kva_expr *i = kva_expr_add(c, from, loop->var);
  step(w, i, kva_expr_addi(c, i, -1), masked);
  kva_k_loop_end(kb, loop);
}

static void scale_results(const gradient *w) {
  kva_kb *kb = w->h.f.s.kb;
  kva_kbuf *y = w->h.y;
  kva_kval scale = kva_k_const_f(kb, KVA_F32, w->h.f.s.a.attrs.scale);
  kva_kloop *i = kva_k_loop_begin(kb, KVA_K_UNROLL, y->extent, "i");
  kva_k_store(kb, y, i->var, kva_k2(kb, KVA_K_mul, kva_k_load(kb, y, i->var), scale));
  kva_k_loop_end(kb, i);
}

/* Scores are a factor above 0 and visibility. */
static bool suits(const kva_node *n, kva_expr_ctx *c) {
  kva_attention a = kva_attention_get(n, c);
  bool operands = kva_operand(n, KVA_ATTENTION_MASK) || kva_operand(n, KVA_ATTENTION_SLOPES);
  return !operands && a.attrs.softcap <= 0 && a.attrs.scale > 0 && a.D <= WIDEST;
}

bool kva_flash_hopper_grad_q(kva_lower *l, const kva_node *n) {
  gradient w = {.h = {.n_own = 2, .own = {KVA_ATTENTION_Q, KVA_ATTENTION_DY}}};
  kva_hopper *h = &w.h;
  if (!suits(n, l->kb->exprs) || !kva_hopper_choose(h, l, n, TILE_BYTES)) return false;
  kva_hopper_begin(h, l, n);
  w.x = (kva_flash_softmax){.f = &h->f, .s = h->s};
  w.dp = kva_k_local(l->kb, "dp", KVA_F32, h->keys / 2);
  load_rows(&w);
  kva_kinstr *some = kva_k_if_begin(l->kb, kva_hopper_has_tiles(h));
  kva_hopper_begin_turns(h);
  kva_hopper_wait_own(h);
  step(&w, num(&w, 0), NULL, true);
  over_tiles(&w, num(&w, 1), h->masked, true);
  if (h->masked != h->tiles) over_tiles(&w, h->masked, h->tiles, false);
  kva_hopper_begin_results(h, KVA_ATTENTION_K, kva_expr_addi(l->kb->exprs, h->tiles, -1));
  kva_hopper_wait_results(h);
  kva_hopper_end_turns(h);
  kva_k_if_end(l->kb, some);
  scale_results(&w);
  kva_hopper_store(h);
  kva_hopper_end(h);
  return true;
}
