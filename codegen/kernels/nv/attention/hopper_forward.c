/* Forward attention by warpgroups (hopper.h):
 *
 *   S = Q K_0^T;  P = softmax step of S
 *   for i = 1 ..: issue S = Q K_i^T;  issue O += P V_{i-1};  wait for S;  softmax step of S
 *                 wait for O;  O = O * rescale;  P = S
 *   O += P V_last
 *
 * So the exponentials of a tile overlap the product of the previous one. P stays in registers: the parts of a result
 * are the left operand of the next product (flash.h). It is rounded only after the wait for O, whose product still
 * reads the old one. */
#include "codegen/kernels/nv/attention/hopper.h"

enum { TILE_BYTES = 32 * 1024, MAX_KEYS = 128, MAX_CROWDED = 64 };

typedef struct forward {
  kva_hopper h;
  kva_flash_softmax x;
  kva_kbuf *s, *p, *y; /* scores; rounded scores; results */
} forward;

static const kva_expr *num(const forward *w, int64_t v) {
  return kva_expr_const(w->h.f.s.kb->exprs, v);
}

static void softmax_step(const forward *w, const kva_expr *i, bool masked) {
  kva_flash_softmax_scores(&w->x, kva_hopper_position(&w->h, i), masked);
  kva_flash_softmax_raise(&w->x);
  kva_flash_softmax_exponentials(&w->x);
}

static void rescale_results(const forward *w) {
  kva_kb *kb = w->h.f.s.kb;
  kva_kbuf *y = w->y;
  kva_flash_element e = kva_flash_each(&w->h.f, w->h.f.s.a.D / 2);
  kva_k_store(kb, y, e.i, kva_k2(kb, KVA_K_mul, kva_k_load(kb, y, e.i), kva_k_load(kb, w->x.rescale, e.row)));
  kva_k_loop_end(kb, e.loop);
}

static void first_tile(const forward *w) {
  const kva_hopper *h = &w->h;
  const kva_expr *zero = num(w, 0);
  kva_hopper_wait_own(h);
  kva_hopper_wait_full(h, KVA_HOPPER_A, zero);
  kva_hopper_begin_scores(h, w->s, 0, KVA_HOPPER_A, zero);
  kva_hopper_wait_scores(h, w->s, 0);
  kva_hopper_release(h, KVA_HOPPER_A, zero);
  kva_hopper_refill(h, KVA_HOPPER_A, KVA_HOPPER_A, zero);
  softmax_step(w, zero, true);
  kva_hopper_round(h, w->p, w->s);
}

/* Tiles from .. to - 1, from >= 1. */
static void over_tiles(const forward *w, const kva_expr *from, const kva_expr *to, bool masked) {
  const kva_hopper *h = &w->h;
  kva_kb *kb = h->f.s.kb;
  kva_expr_ctx *c = kb->exprs;
  const kva_expr *n = kva_expr_max(c, num(w, 0), kva_expr_sub(c, to, from));
  kva_kloop *loop = kva_k_loop_begin(kb, KVA_K_SERIAL, n, "tile");
  const kva_expr *i = kva_expr_add(c, from, loop->var), *before = kva_expr_addi(c, i, -1);
  kva_hopper_wait_full(h, KVA_HOPPER_A, i);
  kva_hopper_await_turn(h);
  kva_hopper_begin_scores(h, w->s, 0, KVA_HOPPER_A, i);
  kva_hopper_wait_full(h, KVA_HOPPER_B, before);
  kva_hopper_begin_results(h, w->y, w->p, KVA_HOPPER_B, before);
  kva_hopper_pass_turn(h);
  kva_hopper_wait_scores(h, w->s, 1);
  kva_hopper_release(h, KVA_HOPPER_A, i);
  kva_hopper_refill(h, KVA_HOPPER_A, KVA_HOPPER_A, i);
  softmax_step(w, i, masked);
  kva_hopper_wait_results(h, w->y, w->s);
  kva_hopper_release(h, KVA_HOPPER_B, before);
  kva_hopper_refill(h, KVA_HOPPER_B, KVA_HOPPER_B, before);
  rescale_results(w);
  kva_hopper_round(h, w->p, w->s);
  kva_k_loop_end(kb, loop);
}

static void last_product(const forward *w) {
  const kva_expr *last = kva_expr_addi(w->h.f.s.kb->exprs, w->h.tiles, -1);
  kva_hopper_wait_full(&w->h, KVA_HOPPER_B, last);
  kva_hopper_begin_results(&w->h, w->y, w->p, KVA_HOPPER_B, last);
  kva_hopper_wait_results(&w->h, w->y, w->s);
}

static const char *choose(forward *w, kva_lower *l, const kva_node *n) {
  *w = (forward){.h = {.n_own = 1, .own = {KVA_ATTENTION_Q}, .far_side = {KVA_ATTENTION_K, KVA_ATTENTION_V}}};
  bool crowded = kva_operand(n, KVA_ATTENTION_MASK) || kva_operand(n, KVA_ATTENTION_SLOPES) ||
                 ((const kva_attention_attrs *)n->attrs)->softcap > 0;
  return kva_hopper_choose(&w->h, l, n, crowded ? MAX_CROWDED : MAX_KEYS, TILE_BYTES);
}

const char *kva_hopper_forward_refuses(kva_lower *l, const kva_node *n) {
  forward w;
  const char *reason = kva_flash_refuses(n);
  return reason ? reason : choose(&w, l, n);
}

void kva_hopper_forward_emit(kva_lower *l, const kva_node *n) {
  forward w;
  kva_hopper *h = &w.h;
  const char *reason = choose(&w, l, n);
  KVA_ASSERT(!reason);
  kva_hopper_begin(h, l, n);
  w.y = kva_hopper_sums(h, "y");
  w.s = kva_hopper_scores(h, "s");
  w.p = kva_hopper_operand(h, "p");
  kva_flash_softmax_start(&w.x, &h->f, w.s);
  kva_kinstr *some = kva_k_if_begin(l->kb, kva_hopper_has_tiles(h));
  kva_hopper_begin_turns(h);
  first_tile(&w);
  over_tiles(&w, num(&w, 1), h->masked, true);
  if (h->masked != h->tiles) over_tiles(&w, h->masked, h->tiles, false);
  last_product(&w);
  kva_hopper_end_turns(h);
  kva_k_if_end(l->kb, some);
  kva_flash_softmax_finish(&w.x);
  rescale_results(&w);
  kva_hopper_begin_stores(h);
  kva_hopper_store(h, w.y, 0);
  kva_hopper_end(h);
}
