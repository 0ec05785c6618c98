/* The gradient of queries by warpgroups (hopper.h), in the notation of flash_backward.c:
 *
 *   for every tile i: issue S = Q K_i^T;  issue dP = dY V_i^T;  issue dQ += dS K_{i-1}
 *                     wait for S;  P = exp2(S - lse);  wait for dP;  dS = P (dP - delta);  wait for dQ
 *   dQ += dS K_last
 *
 * So a tile's exponentials overlap the product of the previous one. */
#include "codegen/kernels/nv/attention/hopper.h"

enum { TILE_BYTES = 16 * 1024, MAX_KEYS = 128 };

typedef struct gradient {
  kva_hopper h;
  kva_flash_softmax x;        /* for its scores */
  kva_kbuf *s, *dp, *ds, *dq; /* scores, then dS; ds: rounded */
  kva_kbuf *lse, *delta;      /* of the thread's two rows, lse times log2 e */
} gradient;

static const kva_expr *num(const gradient *w, int64_t v) {
  return kva_expr_const(w->h.f.s.kb->exprs, v);
}

static void load_rows(gradient *w) {
  kva_kb *kb = w->h.f.s.kb;
  w->lse = kva_k_local(kb, "lse", KVA_F32, 2);
  w->delta = kva_k_local(kb, "delta", KVA_F32, 2);
  for (int64_t r = 0; r < 2; r++) {
    kva_flash_query q = kva_flash_load_query(&w->h.f, kva_flash_row(&w->h.f, num(w, r)));
    kva_k_store(kb, w->lse, num(w, r), q.lse);
    kva_k_store(kb, w->delta, num(w, r), q.delta);
  }
}

/* s = exp(score - lse) */
static void probabilities(const gradient *w, const kva_expr *i, bool masked) {
  const kva_flash *f = &w->h.f;
  kva_kb *kb = f->s.kb;
  kva_flash_softmax_scores(&w->x, kva_hopper_position(&w->h, i), masked);
  kva_flash_element e = kva_flash_each(f, w->h.far / 2);
  kva_kval p = kva_flash_probability(f, kva_k_load(kb, w->s, e.i), kva_k_load(kb, w->lse, e.row));
  kva_k_store(kb, w->s, e.i, p);
  kva_k_loop_end(kb, e.loop);
}

/* s = s * (dp - delta) */
static void slopes(const gradient *w) {
  kva_kb *kb = w->h.f.s.kb;
  kva_flash_element e = kva_flash_each(&w->h.f, w->h.far / 2);
  kva_kval change = kva_k2(kb, KVA_K_sub, kva_k_load(kb, w->dp, e.i), kva_k_load(kb, w->delta, e.row));
  kva_k_store(kb, w->s, e.i, kva_k2(kb, KVA_K_mul, kva_k_load(kb, w->s, e.i), change));
  kva_k_loop_end(kb, e.loop);
}

/* before: the tile whose product with dS overlaps; NULL: none. */
static void step(const gradient *w, const kva_expr *i, const kva_expr *before, bool masked) {
  const kva_hopper *h = &w->h;
  int32_t beside = before ? 1 : 0;
  kva_hopper_wait_full(h, KVA_HOPPER_A, i);
  if (before) kva_hopper_await_turn(h);
  kva_hopper_begin_scores(h, w->s, 0, KVA_HOPPER_A, i);
  kva_hopper_wait_full(h, KVA_HOPPER_B, i);
  kva_hopper_begin_scores(h, w->dp, 1, KVA_HOPPER_B, i);
  if (before) kva_hopper_begin_results(h, w->dq, w->ds, KVA_HOPPER_A, before);
  if (before) kva_hopper_pass_turn(h);
  kva_hopper_wait_scores(h, w->s, 1 + beside);
  probabilities(w, i, masked);
  kva_hopper_wait_scores(h, w->dp, beside);
  slopes(w);
  if (before) kva_hopper_wait_results(h, w->dq, w->s);
  if (before) kva_hopper_release(h, KVA_HOPPER_A, before);
  if (before) kva_hopper_refill(h, KVA_HOPPER_A, KVA_HOPPER_B, before);
  kva_hopper_round(h, w->ds, w->s);
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

static const char *choose(gradient *w, kva_lower *l, const kva_node *n) {
  *w = (gradient){
      .h = {.n_own = 2, .own = {KVA_ATTENTION_Q, KVA_ATTENTION_DY}, .far_side = {KVA_ATTENTION_K, KVA_ATTENTION_V}}};
  if (!kva_hopper_has_gradients(n, l->kb->exprs)) return "general scores or large heads";
  return kva_hopper_choose(&w->h, l, n, MAX_KEYS, TILE_BYTES);
}

const char *kva_hopper_grad_q_refuses(kva_lower *l, const kva_node *n) {
  gradient w;
  const char *reason = kva_flash_grad_q_refuses(l, n);
  return reason ? reason : choose(&w, l, n);
}

void kva_hopper_grad_q_emit(kva_lower *l, const kva_node *n) {
  gradient w;
  kva_hopper *h = &w.h;
  const char *reason = choose(&w, l, n);
  KVA_ASSERT(!reason);
  kva_hopper_begin(h, l, n);
  w.dq = kva_hopper_sums(h, "dq");
  w.s = kva_hopper_scores(h, "s");
  w.dp = kva_hopper_scores(h, "dp");
  w.ds = kva_hopper_operand(h, "ds");
  w.x = (kva_flash_softmax){.f = &h->f, .s = w.s};
  load_rows(&w);
  kva_kinstr *some = kva_k_if_begin(l->kb, kva_hopper_has_tiles(h));
  kva_hopper_begin_turns(h);
  kva_hopper_wait_own(h);
  step(&w, num(&w, 0), NULL, true);
  over_tiles(&w, num(&w, 1), h->masked, true);
  if (h->masked != h->tiles) over_tiles(&w, h->masked, h->tiles, false);
  kva_hopper_begin_results(h, w.dq, w.ds, KVA_HOPPER_A, kva_expr_addi(l->kb->exprs, h->tiles, -1));
  kva_hopper_wait_results(h, w.dq, w.s);
  kva_hopper_end_turns(h);
  kva_k_if_end(l->kb, some);
  kva_hopper_scale(h, w.dq, h->f.s.a.attrs.scale);
  kva_hopper_begin_stores(h);
  kva_hopper_store(h, w.dq, 0);
  kva_hopper_end(h);
}
