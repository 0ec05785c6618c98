/* Gradients of attention on tensor cores (flash.h). Probabilities are computed again from lse, in the
 * notation of attention_grad_q.c:
 *
 *   P = exp(S - lse),  dP = dY V^T,  dS = P (dP - delta) cap'
 *   dq = scale * dS K            a block owns queries and walks the keys:    S, dP are [query][key]
 *   dv = P^T dY, dk = scale * dS^T Q    a block owns keys and walks the queries of every head of the group in order:
 *                                S, dP are [key][query], so that P and dS are left operands as they come
 *
 * Each block owns its results: no atomics, one order of summation. Both walks keep two stages of the far tiles, so that
 * a step is copied while the one before it is computed. Heads wider than 128 would need more registers for dk and dv
 * than a thread has: two blocks then make half of the columns each, and both compute P and dS. */
#include "codegen/kernels/nv/attention/flash.h"

enum { WIDE_HEAD = 128, STAGES = 2, MIN_FAR = 16 };

typedef struct backward {
  kva_flash f;
  bool by_key;                   /* the block owns keys */
  uint32_t left[2], far_side[2]; /* operands: q, dy or k, v; and the others */
  kva_kbuf *own[2], *tile[2];    /* tiles of those; `tile` has STAGES of them */
  kva_kbuf *s, *dp, *p, *ds;
  kva_kbuf *lse, *delta;       /* of the thread's rows (dq), or STAGES of the far queries in shared memory (dk, dv) */
  const kva_expr *begin, *end; /* far positions */
} backward;

static const kva_expr *num(const backward *w, int64_t v) {
  return kva_expr_const(w->f.s.kb->exprs, v);
}

/* ---- range of positions ------------------------------------------------------------------------------------------ */

static const kva_expr *round_down(const backward *w, const kva_expr *x) {
  kva_expr_ctx *c = w->f.s.kb->exprs;
  return kva_expr_mul(c, kva_expr_div(c, kva_expr_max(c, num(w, 0), x), num(w, w->f.far)), num(w, w->f.far));
}

static void set_range(backward *w) {
  kva_expr_ctx *c = w->f.s.kb->exprs;
  const kva_attention *a = &w->f.s.a;
  const kva_expr *first = w->f.s.first;
  bool causal = a->attrs.causal || a->attrs.window > 0;
  w->begin = num(w, 0), w->end = w->f.s.far_extent;
  if (!causal) return;
  if (w->by_key) {
    w->begin = round_down(w, kva_expr_sub(c, first, a->offset));
    if (a->attrs.window <= 0) return;
    const kva_expr *last = kva_expr_addi(c, kva_expr_sub(c, first, a->offset), KVA_FLASH_ROWS + a->attrs.window);
    w->end = kva_expr_max(c, num(w, 0), kva_expr_min(c, w->end, last));
    return;
  }
  const kva_expr *position = kva_expr_add(c, first, a->offset);
  const kva_expr *seen = kva_expr_min(c, w->end, kva_expr_addi(c, position, KVA_FLASH_ROWS));
  w->end = kva_expr_max(c, num(w, 0), seen);
  if (a->attrs.window > 0) w->begin = round_down(w, kva_expr_addi(c, position, 1 - a->attrs.window));
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static const kva_expr *far_head(const backward *w) {
  return w->by_key ? w->f.s.h : w->f.s.h_kv;
}

static void load_own(const backward *w) {
  for (int i = 0; i < 2; i++) {
    kva_flash_load(&w->f, &(kva_flash_copy){.tile = w->own[i],
                                            .at = num(w, 0),
                                            .operand = w->left[i],
                                            .head = w->by_key ? w->f.s.h_kv : w->f.s.h,
                                            .first = w->f.s.first,
                                            .limit = w->f.s.extent,
                                            .rows = KVA_FLASH_ROWS});
  }
}

static void load_far(const backward *w, const kva_expr *first, const kva_expr *stage_row) {
  for (int i = 0; i < 2; i++) {
    kva_flash_load(&w->f, &(kva_flash_copy){.tile = w->tile[i],
                                            .at = stage_row,
                                            .operand = w->far_side[i],
                                            .head = far_head(w),
                                            .first = first,
                                            .limit = w->end,
                                            .rows = w->f.far});
  }
  kva_flash_commit(&w->f);
}

static void store_query(const backward *w, const kva_expr *to, kva_flash_query q) {
  kva_k_store(w->f.s.kb, w->lse, to, q.lse);
  kva_k_store(w->f.s.kb, w->delta, to, q.delta);
}

/* Loads lse and delta of the thread's two queries. */
static void load_rows(const backward *w) {
  kva_kloop *r = kva_k_loop_begin(w->f.s.kb, KVA_K_UNROLL, num(w, 2), "row");
  store_query(w, r->var, kva_flash_load_query(&w->f, kva_flash_row(&w->f, r->var)));
  kva_k_loop_end(w->f.s.kb, r);
}

/* Each of the first threads loads one far query; the block reads them after the next barrier. */
static kva_flash_query load_far_query(const backward *w, const kva_expr *first) {
  if (!w->by_key) return (kva_flash_query){0};
  return kva_flash_load_query(&w->f, kva_expr_add(w->f.s.kb->exprs, first, w->f.thread));
}

static void share_far_query(const backward *w, const kva_expr *stage_row, kva_flash_query q) {
  if (!w->by_key) return;
  kva_kb *kb = w->f.s.kb;
  kva_kval outer = kva_k_guard_begin(kb, kva_k_index_lt(kb, w->f.thread, num(w, w->f.far)));
  store_query(w, kva_expr_add(kb->exprs, stage_row, w->f.thread), q);
  kva_k_guard_end(kb, outer);
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

/* P and dS from S and dP, rounded to the operands' type. */
static void differentiate(const backward *w, const kva_expr *far0, const kva_expr *stage_row) {
  const kva_flash *f = &w->f;
  kva_kb *kb = f->s.kb;
  kva_expr_ctx *c = kb->exprs;
  kva_flash_element e = kva_flash_each(f, f->far / 2);
  const kva_expr *own = kva_flash_row(f, e.row), *far = kva_expr_add(c, far0, e.column);
  const kva_expr *q = w->by_key ? far : own, *key = w->by_key ? own : far;
  const kva_expr *at = w->by_key ? kva_expr_add(c, stage_row, e.column) : e.row;
  kva_kval cap, zero = kva_k_const_f(kb, KVA_F32, 0), lse = kva_k_load(kb, w->lse, at);
  kva_kval x = kva_flash_score(f, q, key, kva_k_load(kb, w->s, e.i), true, &cap);
  kva_kval p = kva_flash_probability(f, x, lse);
  kva_kval change = kva_k2(kb, KVA_K_sub, kva_k_load(kb, w->dp, e.i), kva_k_load(kb, w->delta, at));
  kva_kval ds = kva_k_select(kb, kva_k2(kb, KVA_K_eq, p, zero), zero, kva_k2(kb, KVA_K_mul, p, change));
  if (cap) ds = kva_k2(kb, KVA_K_mul, ds, cap);
  if (w->p) kva_k_store(kb, w->p, e.i, p);
  kva_k_store(kb, w->ds, e.i, ds);
  kva_k_loop_end(kb, e.loop);
}

typedef void (*step_products)(const backward *w, const kva_expr *stage_row, const void *user);

/* All steps of the walk; products: consumes P and dS. The last stage stays valid until the next walk begins. */
static void walk(const backward *w, step_products products, const void *user) {
  kva_kb *kb = w->f.s.kb;
  kva_expr_ctx *c = kb->exprs;
  const kva_expr *left = kva_expr_max(c, num(w, 0), kva_expr_sub(c, w->end, w->begin));
  load_far(w, w->begin, num(w, 0));
  share_far_query(w, num(w, 0), load_far_query(w, w->begin));
  kva_kloop *j = kva_k_loop_begin(kb, KVA_K_SERIAL, kva_expr_ceildiv(c, left, num(w, w->f.far)), "step");
  const kva_expr *far0 = kva_expr_add(c, w->begin, kva_expr_muli(c, j->var, w->f.far));
  const kva_expr *stage = kva_expr_muli(c, kva_expr_mod(c, j->var, num(w, STAGES)), w->f.far);
  const kva_expr *next = kva_expr_muli(c, kva_expr_mod(c, kva_expr_addi(c, j->var, 1), num(w, STAGES)), w->f.far);
  const kva_expr *far1 = kva_expr_addi(c, far0, w->f.far);
  load_far(w, far1, next);
  kva_flash_query q = load_far_query(w, far1);
  kva_flash_wait(&w->f, 1);
  kva_flash_scores(&w->f, w->s, w->own[0], w->tile[0], stage);
  kva_flash_scores(&w->f, w->dp, w->own[1], w->tile[1], stage);
  differentiate(w, far0, stage);
  products(w, stage, user);
  share_far_query(w, next, q);
  kva_k_intrinsic(kb, &(kva_kintrinsic){.op = KVA_TILE_block_barrier}, NULL);
  kva_k_loop_end(kb, j);
  kva_flash_drain(&w->f);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

/* Bytes of shared memory with steps of `far` positions. */
static int64_t bytes_of(const kva_node *n, bool by_key, int64_t far) {
  enum { LINE = 128 };
  const kva_type *q = kva_operand_type(n, KVA_ATTENTION_Q);
  int64_t d = 0, size = kva_dtype_bits(q->dtype) / 8;
  kva_expr_is_const(q->dims[3], &d);
  int64_t tiles = 2 * (KVA_FLASH_ROWS + STAGES * far) * ((d * size + LINE - 1) / LINE * LINE);
  int64_t turned = q->dtype == KVA_F32 ? KVA_FLASH_ROWS * (far + 4) * size : 0;
  return tiles + turned + (by_key ? 2 * STAGES * far * (int64_t)sizeof(float) : 0);
}

static const char *refuses(const kva_lower *l, const kva_node *n, bool by_key) {
  const char *reason = kva_flash_refuses(n);
  if (reason) return reason;
  return bytes_of(n, by_key, MIN_FAR) <= l->target->shared_bytes ? NULL : "more tiles than shared memory";
}

const char *kva_flash_grad_q_refuses(kva_lower *l, const kva_node *n) {
  return refuses(l, n, false);
}

const char *kva_flash_grad_kv_refuses(kva_lower *l, const kva_node *n) {
  return refuses(l, n, true);
}

/* As many far positions as registers and shared memory allow. */
static int64_t far_of(const backward *w, const kva_lower *l, const kva_node *n, int64_t d) {
  bool wide = d > WIDE_HEAD || kva_operand_type(n, 0)->dtype == KVA_F32;
  int64_t far = (wide ? 32 : 64) / (w->by_key ? 2 : 1);
  while (far > MIN_FAR && bytes_of(n, w->by_key, far) > l->target->shared_bytes) far /= 2;
  return far;
}

static void begin(backward *w, kva_lower *l, const kva_node *n, int64_t parts, const kva_expr **out_part) {
  static const uint32_t queries[2] = {KVA_ATTENTION_Q, KVA_ATTENTION_DY}, keys[2] = {KVA_ATTENTION_K, KVA_ATTENTION_V};
  const char *names[2] = {"left", "left_grad"}, *far_names[2] = {"far", "far_grad"};
  int64_t d = 0;
  kva_expr_is_const(kva_operand_type(n, 0)->dims[3], &d);
  kva_flash_begin(&w->f, l, n, w->by_key, far_of(w, l, n, d), parts, out_part);
  kva_kb *kb = l->kb;
  for (int i = 0; i < 2; i++) {
    w->left[i] = w->by_key ? keys[i] : queries[i];
    w->far_side[i] = w->by_key ? queries[i] : keys[i];
    w->own[i] = kva_flash_tile(&w->f, names[i], KVA_FLASH_ROWS);
    w->tile[i] = kva_flash_tile(&w->f, far_names[i], STAGES * w->f.far);
  }
  w->s = kva_k_local(kb, "s", KVA_F32, w->f.far / 2);
  w->dp = kva_k_local(kb, "dp", KVA_F32, w->f.far / 2);
  w->p = w->by_key ? kva_k_local(kb, "p", w->f.type, w->f.far / 2) : NULL;
  w->ds = kva_k_local(kb, "ds", w->f.type, w->f.far / 2);
  w->lse = w->by_key ? kva_k_shared(kb, "lse", KVA_F32, STAGES * w->f.far) : kva_k_local(kb, "lse", KVA_F32, 2);
  w->delta = w->by_key ? kva_k_shared(kb, "delta", KVA_F32, STAGES * w->f.far) : kva_k_local(kb, "delta", KVA_F32, 2);
  set_range(w);
  load_own(w);
}

static kva_kbuf *sums(const backward *w, const char *name, int64_t n16) {
  kva_kb *kb = w->f.s.kb;
  kva_kbuf *m = kva_k_local(kb, name, KVA_F32, 8 * n16);
  kva_kloop *i = kva_k_loop_begin(kb, KVA_K_UNROLL, num(w, 8 * n16), "i");
  kva_k_store(kb, m, i->var, kva_k_const_f(kb, KVA_F32, 0));
  kva_k_loop_end(kb, i);
  return m;
}

static void add_dq(const backward *w, const kva_expr *stage_row, const void *user) {
  kva_flash_product p = {.out = (kva_kbuf *)(uintptr_t)user,
                         .p = w->ds,
                         .far_tile = w->tile[0],
                         .at = stage_row,
                         .first16 = num(w, 0),
                         .n16 = w->f.depth16};
  kva_flash_multiply(&w->f, &p);
}

void kva_flash_grad_q_emit(kva_lower *l, const kva_node *n) {
  backward w = {.by_key = false};
  begin(&w, l, n, 1, NULL);
  kva_kbuf *dq = sums(&w, "dq", w.f.depth16);
  load_rows(&w);
  walk(&w, add_dq, dq);
  kva_flash_store_rows(&w.f, &(kva_flash_store){.m = dq,
                                                .result = 0,
                                                .head = w.f.s.h,
                                                .first16 = num(&w, 0),
                                                .n16 = w.f.depth16,
                                                .factor = w.f.s.a.attrs.scale});
  kva_flash_end(&w.f);
}

/* dk and dv: columns 16 * first16 .. 16 * (first16 + n16). */
typedef struct key_sums {
  kva_kbuf *dk, *dv;
  const kva_expr *first16;
  int64_t n16;
} key_sums;

static void add_dk_dv(const backward *w, const kva_expr *stage_row, const void *user) {
  const key_sums *k = user;
  kva_flash_product p = {
      .out = k->dv, .p = w->p, .far_tile = w->tile[1], .at = stage_row, .first16 = k->first16, .n16 = k->n16};
  kva_flash_multiply(&w->f, &p);
  p.out = k->dk, p.p = w->ds, p.far_tile = w->tile[0], p.again = true;
  kva_flash_multiply(&w->f, &p);
}

static void store_keys(const backward *w, const key_sums *k) {
  kva_flash_store s = {.m = k->dk,
                       .result = 0,
                       .head = w->f.s.h_kv,
                       .first16 = k->first16,
                       .n16 = k->n16,
                       .factor = w->f.s.a.attrs.scale};
  kva_flash_store_rows(&w->f, &s);
  s.m = k->dv, s.result = 1, s.factor = 1;
  kva_flash_store_rows(&w->f, &s);
}

void kva_flash_grad_kv_emit(kva_lower *l, const kva_node *n) {
  backward w = {.by_key = true};
  const kva_expr *part;
  int64_t d = 0;
  kva_expr_is_const(kva_operand_type(n, 0)->dims[3], &d);
  int64_t parts = d > WIDE_HEAD ? 2 : 1;
  begin(&w, l, n, parts, &part);
  kva_expr_ctx *c = l->kb->exprs;
  key_sums k = {.n16 = (w.f.depth16 + parts - 1) / parts};
  k.first16 = kva_expr_muli(c, part, k.n16);
  k.dk = sums(&w, "dk", k.n16);
  k.dv = sums(&w, "dv", k.n16);
  kva_kloop *head = kva_k_loop_begin(l->kb, KVA_K_SERIAL, w.f.s.a.group, "head");
  w.f.s.h = kva_expr_add(c, kva_expr_mul(c, w.f.s.h_kv, w.f.s.a.group), head->var);
  walk(&w, add_dk_dv, &k);
  kva_k_loop_end(l->kb, head);
  store_keys(&w, &k);
  kva_flash_end(&w.f);
}
