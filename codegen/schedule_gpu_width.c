/* How many consecutive elements a thread takes at once. */
#include "codegen/schedule_gpu.h"

enum { ACCESS_BYTES = 16, MAX_WIDTH = 8 };

typedef struct width_scan {
  kva_kernel *k;
  const kva_kloop *l;
  bool *varying;        /* by instruction id: differs between iterations */
  uint32_t width;       /* that all accesses so far allow */
  bool behind;          /* accesses are aligned after a peel */
  const kva_expr *rest; /* with a peel: what the first access adds to the loop's variable */
} width_scan;

static int64_t common_divisor(int64_t a, int64_t b) {
  while (b) {
    int64_t r = a % b;
    a = b;
    b = r;
  }
  return a < 0 ? -a : a;
}

/* A divisor of every value of x; 0: x is 0. */
static int64_t divisor_of(const kva_expr *x) {
  if (x->kind != KVA_EXPR_SUM) return 1;
  int64_t d = x->constant;
  for (uint32_t i = 0; i < x->n_terms; i++) d = common_divisor(d, x->terms[i].coefficient);
  return common_divisor(d, 0);
}

static void limit(width_scan *s, int64_t divisor) {
  while (s->width > 1 && divisor % s->width) s->width /= 2;
}

/* The loop's variable, or mod(variable + rest, period) with rest and period multiples of the width, so that the lanes
 * stay within one period. */
static bool scan_moving(width_scan *s, const kva_expr *x) {
  const kva_expr *var = s->l->var, *coefficient, *rest;
  int64_t period;
  if (x == var) return true;
  if (x->kind != KVA_EXPR_MOD || !kva_expr_is_const(x->b, &period) || period <= 0) return false;
  if (!kva_expr_affine(s->k->exprs, x->a, var, &coefficient, &rest) || !kva_expr_is(coefficient, 1)) return false;
  limit(s, period);
  limit(s, divisor_of(rest));
  return true;
}

/* Consecutive and aligned indices: one term has stride 1, the others are multiples of the width. */
static bool scan_terms(width_scan *s, const kva_expr *x) {
  uint32_t moving = 0;
  if (x->kind != KVA_EXPR_SUM) return scan_moving(s, x);
  limit(s, x->constant);
  for (uint32_t i = 0; i < x->n_terms; i++) {
    const kva_expr_term *t = &x->terms[i];
    bool moves = false;
    for (uint32_t f = 0; f < t->n_factors; f++) moves |= kva_expr_uses(t->factors[f], s->l->var);
    if (!moves) limit(s, t->coefficient);
    if (!moves) continue;
    if (t->n_factors != 1 || t->coefficient != 1 || !scan_moving(s, t->factors[0])) return false;
    moving++;
  }
  return moving == 1;
}

static void find_inner(void *user, const kva_expr *symbol) {
  width_scan *s = user;
  const kva_kregion *r = kva_k_symbol_region(s->k, symbol);
  if (r && kva_k_encloses(s->l->body, r)) s->width = 1;
}

/* The index is the loop's variable plus an offset that is known before the loop and is the same for all accesses modulo
 * KVA_K_PEEL, so that one peel aligns them all. */
static bool scan_behind(width_scan *s, const kva_expr *x) {
  const kva_expr *coefficient, *rest;
  if (!kva_expr_affine(s->k->exprs, x, s->l->var, &coefficient, &rest) || !kva_expr_is(coefficient, 1)) return false;
  kva_expr_each_symbol(rest, find_inner, s);
  if (!s->rest) s->rest = rest;
  return divisor_of(kva_expr_sub(s->k->exprs, rest, s->rest)) % KVA_K_PEEL == 0;
}

static void scan_access(width_scan *s, const kva_kinstr *i) {
  int bits = kva_dtype_bits(i->buf->dtype);
  if (bits < 8) s->width = 1;
  if (!s->varying[i->id] || s->width == 1) return;
  if (s->width > (uint32_t)(ACCESS_BYTES * 8 / bits)) s->width = (uint32_t)(ACCESS_BYTES * 8 / bits);
  if (!kva_expr_uses(i->index, s->l->var)) s->width = 1;
  if (s->width > 1 && !(s->behind ? scan_behind(s, i->index) : scan_terms(s, i->index))) s->width = 1;
}

typedef struct symbol_search {
  const width_scan *s;
  bool found;
} symbol_search;

static void find_varying(void *user, const kva_expr *symbol) {
  symbol_search *q = user;
  q->found |= symbol == q->s->l->var;
  for (uint32_t i = 0; i < q->s->k->value_symbols.len; i++) {
    if (q->s->k->value_symbols.data[i] == symbol) q->found |= q->s->varying[q->s->k->values.data[i]->id];
  }
}

static bool varies(const width_scan *s, const kva_kinstr *i) {
  symbol_search q = {s, false};
  if (i->index) kva_expr_each_symbol(i->index, find_varying, &q);
  for (uint32_t a = 0; a < i->n_args; a++) q.found |= s->varying[i->args[a]->id];
  return q.found;
}

static const kva_kinstr *predicate_of(const kva_kinstr *i) {
  uint32_t at = i->op == KVA_K_STORE;
  return i->n_args > at ? i->args[at] : NULL;
}

/* Visits in text order, so operands come before their users. A predicate that varies by lane, or an irregular index,
 * would split the access into single elements anyway: width 1. */
static void scan(void *user, kva_kinstr *i) {
  width_scan *s = user;
  s->varying[i->id] = varies(s, i);
  if (i->op == KVA_K_LOOP || i->op == KVA_K_IF || i->op == KVA_K_BARRIER) s->width = 1;
  if (i->op != KVA_K_LOAD && i->op != KVA_K_STORE) return;
  const kva_kinstr *p = predicate_of(i);
  if (p && s->varying[p->id]) s->width = 1;
  if (s->width > 1) scan_access(s, i);
}

uint32_t kva_sched_width(kva_kernel *k, const kva_kloop *l) {
  width_scan s = {.k = k, .l = l, .varying = KVA_NEW_ARRAY(k->arena, bool, k->next_id + 1), .width = MAX_WIDTH};
  int64_t extent;
  kva_k_each_instr_in(l->body, scan, &s);
  if (kva_expr_is_const(l->extent, &extent)) {
    while (s.width > 1 && extent < 4 * (int64_t)s.width && extent % s.width) s.width /= 2;
  }
  return s.width;
}

uint32_t kva_sched_width_behind(kva_kernel *k, const kva_kloop *l, const kva_expr **out_peel) {
  width_scan s = {.k = k, .l = l, .varying = KVA_NEW_ARRAY(k->arena, bool, k->next_id + 1), .width = MAX_WIDTH};
  s.behind = true;
  kva_k_each_instr_in(l->body, scan, &s);
  if (!s.rest || s.width == 1) return 1;
  /* (KVA_K_PEEL - 1) * rest = -rest modulo KVA_K_PEEL, and is not negative. */
  *out_peel =
      kva_expr_mod(k->exprs, kva_expr_muli(k->exprs, s.rest, KVA_K_PEEL - 1), kva_expr_const(k->exprs, KVA_K_PEEL));
  return s.width;
}

static void note_bytes(void *user, kva_kinstr *i) {
  int bytes = i->buf ? kva_dtype_bits(i->buf->dtype) / 8 : 0;
  if (bytes > *(int *)user) *(int *)user = bytes;
}

int kva_sched_widest_element(const kva_kregion *r) {
  int bytes = 1;
  kva_k_each_instr_in(r, note_bytes, &bytes);
  return bytes;
}

bool kva_sched_is_rectangular(const kva_kernel *k, uint32_t n, kva_kloop *const *nest) {
  for (uint32_t d = 0; d < n; d++)
    for (uint32_t o = 0; o < n; o++)
      if (kva_expr_uses(nest[d]->extent, nest[o]->var)) return false;
  return k->values.len == 0;
}
