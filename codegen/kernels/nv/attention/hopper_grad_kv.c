/* The gradients of keys and values by warpgroups (hopper.h), in the notation of flash_backward.c. S, dP are
 * [key][query]:
 *
 *   for every tile i of a head:  issue S = K Q_i^T;  issue dK += dS Q_{i-1}
 *                                wait for S;  P = exp2(S - lse);  wait for dK
 *                                issue dP = V dY_i^T;  issue dV += P dY_i
 *                                wait for dP;  dS = P (dP - delta);  wait for dV
 *   dK += dS Q_last
 *
 * So exponentials and dS overlap a product, and S is dead when dP arrives: registers are scarce. lse and delta belong
 * to columns: a warpgroup loads those of the next tile during the computation, and shares them. */
#include "codegen/kernels/nv/attention/hopper.h"

enum { TILE_BYTES = 16 * 1024, MAX_QUERIES = 64, SHARED_TILES = 2, GROUPS = 2, GROUP_THREADS = 128 };

typedef struct gradient {
  kva_hopper h;
  kva_kbuf *s, *dp, *p, *ds, *dk, *dv; /* s: scores, then probabilities; dp: then dS */
  kva_kbuf *lse, *delta;               /* [tile][warpgroup][query], shared */
} gradient;

static const kva_expr *num(const gradient *w, int64_t v) {
  return kva_expr_const(w->h.f.s.kb->exprs, v);
}

/* ---- lse and delta ----------------------------------------------------------------------------------------------- */

static const kva_expr *group_thread(const gradient *w) {
  return kva_expr_mod(w->h.f.s.kb->exprs, w->h.f.thread, num(w, GROUP_THREADS));
}

/* Start of the values of tile i. */
static const kva_expr *shared_tile(const gradient *w, const kva_expr *i) {
  kva_expr_ctx *c = w->h.f.s.kb->exprs;
  const kva_expr *group = kva_expr_div(c, w->h.f.thread, num(w, GROUP_THREADS));
  const kva_expr *tile = kva_expr_muli(c, kva_expr_mod(c, i, num(w, SHARED_TILES)), GROUPS);
  return kva_expr_muli(c, kva_expr_add(c, tile, group), w->h.far);
}

/* Each of the warpgroup's threads loads one query of tile `of` of the walk. */
static kva_flash_query load_query(const gradient *w, const kva_expr *of) {
  const kva_expr *q = kva_expr_add(w->h.f.s.kb->exprs, kva_hopper_position(&w->h, of), group_thread(w));
  return kva_flash_load_query(&w->h.f, q);
}

/* The warpgroup reads it after its next barrier. */
static void share_query(const gradient *w, const kva_expr *i, kva_flash_query q) {
  kva_kb *kb = w->h.f.s.kb;
  const kva_expr *at = kva_expr_add(kb->exprs, shared_tile(w, i), group_thread(w));
  kva_kval outer = kva_k_guard_begin(kb, kva_k_index_lt(kb, group_thread(w), num(w, w->h.far)));
  kva_k_store(kb, w->lse, at, q.lse);
  kva_k_store(kb, w->delta, at, q.delta);
  kva_k_guard_end(kb, outer);
}

/* ---- a tile ------------------------------------------------------------------------------------------------------ */

/* s = exp(score - lse) */
static void probabilities(const gradient *w, const kva_expr *of, const kva_expr *i, bool masked) {
  const kva_flash *f = &w->h.f;
  kva_kb *kb = f->s.kb;
  kva_expr_ctx *c = kb->exprs;
  kva_flash_element e = kva_flash_each(f, w->h.far / 2);
  const kva_expr *q = kva_expr_add(c, kva_hopper_position(&w->h, of), e.column);
  kva_kval x = kva_flash_score(f, q, kva_flash_row(f, e.row), kva_k_load(kb, w->s, e.i), masked, NULL);
  kva_kval lse = kva_k_load(kb, w->lse, kva_expr_add(c, shared_tile(w, i), e.column));
  kva_k_store(kb, w->s, e.i, kva_flash_probability(f, x, lse));
  kva_k_loop_end(kb, e.loop);
}

/* dp = p * (dp - delta), with the rounded p, so that s need not be kept: registers are scarce. */
static void slopes(const gradient *w, const kva_expr *i) {
  kva_kb *kb = w->h.f.s.kb;
  kva_flash_element e = kva_flash_each(&w->h.f, w->h.far / 2);
  kva_kval delta = kva_k_load(kb, w->delta, kva_expr_add(kb->exprs, shared_tile(w, i), e.column));
  kva_kval change = kva_k2(kb, KVA_K_sub, kva_k_load(kb, w->dp, e.i), delta);
  kva_kval p = kva_k_convert(kb, kva_k_load(kb, w->p, e.i), KVA_F32);
  kva_k_store(kb, w->dp, e.i, kva_k2(kb, KVA_K_mul, p, change));
  kva_k_loop_end(kb, e.loop);
}

/* Tile `of` of the walk, tile i of the block; follows: the walk has a tile before it. */
static void step(const gradient *w, const kva_expr *of, const kva_expr *i, bool follows, bool masked) {
  const kva_hopper *h = &w->h;
  kva_expr_ctx *c = h->f.s.kb->exprs;
  const kva_expr *before = kva_expr_addi(c, i, -1);
  kva_hopper_barrier(h);
  kva_flash_query next = load_query(w, kva_expr_addi(c, of, 1));
  kva_hopper_wait_full(h, KVA_HOPPER_A, i);
  kva_hopper_begin_scores(h, w->s, 0, KVA_HOPPER_A, i);
  if (follows) kva_hopper_begin_results(h, w->dk, w->ds, KVA_HOPPER_A, before);
  kva_hopper_wait_scores(h, w->s, follows ? 1 : 0);
  probabilities(w, of, i, masked);
  if (follows) kva_hopper_wait_results(h, w->dk, w->s);
  if (follows) kva_hopper_release(h, KVA_HOPPER_A, before);
  if (follows) kva_hopper_refill(h, KVA_HOPPER_A, KVA_HOPPER_B, before);
  kva_hopper_round(h, w->p, w->s);
  kva_hopper_wait_full(h, KVA_HOPPER_B, i);
  kva_hopper_begin_scores(h, w->dp, 1, KVA_HOPPER_B, i);
  kva_hopper_begin_results(h, w->dv, w->p, KVA_HOPPER_B, i);
  kva_hopper_wait_scores(h, w->dp, 1);
  slopes(w, i);
  kva_hopper_wait_results(h, w->dv, w->dp);
  kva_hopper_round(h, w->ds, w->dp);
  share_query(w, kva_expr_addi(c, i, 1), next);
}

/* Tiles from .. to - 1 of the walk, from >= 1, after `before` tiles of the block. */
static void over_tiles(const gradient *w, const kva_expr *from, const kva_expr *to, const kva_expr *before,
                       bool masked) {
  kva_kb *kb = w->h.f.s.kb;
  kva_expr_ctx *c = kb->exprs;
  const kva_expr *n = kva_expr_max(c, num(w, 0), kva_expr_sub(c, to, from));
  kva_kloop *loop = kva_k_loop_begin(kb, KVA_K_SERIAL, n, "tile");
  const kva_expr *of = kva_expr_add(c, from, loop->var);
  step(w, of, kva_expr_add(c, before, of), true, masked);
  kva_k_loop_end(kb, loop);
}

static void walk_heads(gradient *w) {
  kva_hopper *h = &w->h;
  kva_kb *kb = h->f.s.kb;
  kva_expr_ctx *c = kb->exprs;
  const kva_expr *zero = num(w, 0), *one = num(w, 1);
  kva_kloop *head = kva_hopper_each_head(h);
  const kva_expr *before = kva_expr_mul(c, head->var, h->tiles);
  const kva_expr *last = kva_expr_addi(c, kva_expr_add(c, before, h->tiles), -1);
  bool hides = !kva_expr_is(h->masked, 0);
  share_query(w, before, load_query(w, zero));
  step(w, zero, before, false, hides);
  if (hides) over_tiles(w, one, h->masked, before, true);
  if (h->masked != h->tiles) over_tiles(w, kva_expr_max(c, one, h->masked), h->tiles, before, false);
  kva_hopper_begin_results(h, w->dk, w->ds, KVA_HOPPER_A, last);
  kva_hopper_wait_results(h, w->dk, w->dv);
  kva_hopper_release(h, KVA_HOPPER_A, last);
  kva_hopper_refill(h, KVA_HOPPER_A, KVA_HOPPER_B, last);
  kva_k_loop_end(kb, head);
}

static void create_buffers(gradient *w) {
  kva_kb *kb = w->h.f.s.kb;
  int64_t queries = SHARED_TILES * GROUPS * w->h.far;
  w->dk = kva_hopper_sums(&w->h, "dk");
  w->dv = kva_hopper_sums(&w->h, "dv");
  w->s = kva_hopper_scores(&w->h, "s");
  w->dp = kva_hopper_scores(&w->h, "dp");
  w->p = kva_hopper_operand(&w->h, "p");
  w->ds = kva_hopper_operand(&w->h, "ds");
  w->lse = kva_k_shared(kb, "lse", KVA_F32, queries);
  w->delta = kva_k_shared(kb, "delta", KVA_F32, queries);
}

static const char *choose(gradient *w, kva_lower *l, const kva_node *n) {
  *w = (gradient){.h = {.by_key = true,
                        .n_own = 2,
                        .own = {KVA_ATTENTION_K, KVA_ATTENTION_V},
                        .far_side = {KVA_ATTENTION_Q, KVA_ATTENTION_DY}}};
  if (!kva_hopper_has_gradients(n, l->kb->exprs)) return "general scores or large heads";
  return kva_hopper_choose(&w->h, l, n, MAX_QUERIES, TILE_BYTES);
}

const char *kva_hopper_grad_kv_refuses(kva_lower *l, const kva_node *n) {
  gradient w;
  const char *reason = kva_flash_grad_kv_refuses(l, n);
  return reason ? reason : choose(&w, l, n);
}

void kva_hopper_grad_kv_emit(kva_lower *l, const kva_node *n) {
  gradient w;
  kva_hopper *h = &w.h;
  const char *reason = choose(&w, l, n);
  KVA_ASSERT(!reason);
  kva_hopper_begin(h, l, n);
  create_buffers(&w);
  kva_kinstr *some = kva_k_if_begin(l->kb, kva_hopper_has_tiles(h));
  kva_hopper_wait_own(h);
  walk_heads(&w);
  kva_k_if_end(l->kb, some);
  kva_hopper_scale(h, w.dk, h->f.s.a.attrs.scale);
  kva_hopper_begin_stores(h);
  kva_hopper_store(h, w.dk, 0);
  kva_hopper_store(h, w.dv, 1);
  kva_hopper_end(h);
}
