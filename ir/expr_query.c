/* Queries on expressions: affine form, substitution, evaluation. */
#include "ir/expr_internal.h"

bool kva_expr_affine(kva_expr_ctx *c, const kva_expr *e, const kva_expr *symbol, const kva_expr **out_coefficient,
                     const kva_expr **out_rest) {
  KVA_ASSERT(symbol->kind == KVA_EXPR_SYMBOL);
  if (kva_expr_is_overflow(e)) return false;
  kva_expr_split_atom(c, e, symbol, out_coefficient, out_rest);
  return !kva_expr_uses(*out_coefficient, symbol) && !kva_expr_uses(*out_rest, symbol);
}

uint32_t kva_expr_size(const kva_expr *e) {
  return kva_expr_is_overflow(e) ? KVA_EXPR_MAX_SIZE + 1 : kva_expr_node_of(e)->size;
}

/* ---- substitution ------------------------------------------------------------------------------------------------ */

typedef struct mapping {
  uint32_t n;
  const kva_expr *const *from, *const *to;
} mapping;

static bool is_touched(const kva_expr *e, const mapping *m) {
  for (uint32_t i = 0; i < m->n; i++) {
    if (kva_expr_uses(e, m->from[i])) return true;
  }
  return false;
}

static const kva_expr *substitute(kva_expr_ctx *c, const kva_expr *e, const mapping *m);

static const kva_expr *substitute_sum(kva_expr_ctx *c, const kva_expr *e, const mapping *m) {
  kva_poly *p = kva_poly_create(c);
  kva_poly_add_const(p, e->constant);
  for (uint32_t i = 0; i < e->n_terms; i++) {
    const kva_expr_term *t = &e->terms[i];
    const kva_expr *kept[KVA_EXPR_MAX_DEGREE], *product = NULL;
    uint32_t n_kept = 0;
    for (uint32_t f = 0; f < t->n_factors; f++) {
      const kva_expr *x = substitute(c, t->factors[f], m);
      if (x == t->factors[f]) {
        kept[n_kept++] = x;
      } else {
        product = product ? kva_expr_mul(c, product, x) : x;
      }
    }
    if (product) {
      kva_poly_add_scaled(p, product, t->coefficient, n_kept, kept);
    } else {
      kva_poly_add_term(p, t->coefficient, n_kept, kept);
    }
  }
  return kva_poly_finish(p);
}

static const kva_expr *substitute(kva_expr_ctx *c, const kva_expr *e, const mapping *m) {
  if (!is_touched(e, m)) return e;
  const kva_expr *a = e->a ? substitute(c, e->a, m) : NULL, *b = e->b ? substitute(c, e->b, m) : NULL;
  switch (e->kind) {
  case KVA_EXPR_SUM: return substitute_sum(c, e, m);
  case KVA_EXPR_SYMBOL:
    for (uint32_t i = 0; i < m->n; i++) {
      if (m->from[i] == e) return m->to[i];
    }
    break;
  case KVA_EXPR_DIV: return kva_expr_div(c, a, b);
  case KVA_EXPR_MOD: return kva_expr_mod(c, a, b);
  case KVA_EXPR_MIN: return kva_expr_min(c, a, b);
  case KVA_EXPR_MAX: return kva_expr_max(c, a, b);
  case KVA_EXPR_OVERFLOW: break;
  }
  return e;
}

const kva_expr *kva_expr_substitute(kva_expr_ctx *c, const kva_expr *e, uint32_t n, const kva_expr *const *from,
                                    const kva_expr *const *to) {
  for (uint32_t i = 0; i < n; i++) KVA_ASSERT(from[i]->kind == KVA_EXPR_SYMBOL && to[i]);
  return substitute(c, e, &(mapping){n, from, to});
}

/* ---- evaluation -------------------------------------------------------------------------------------------------- */

static bool eval_sum(const kva_expr *e, kva_expr_lookup lookup, void *user, int64_t *out_v) {
  int64_t sum = e->constant;
  for (uint32_t i = 0; i < e->n_terms; i++) {
    int64_t product = e->terms[i].coefficient, x;
    for (uint32_t f = 0; f < e->terms[i].n_factors; f++) {
      if (!kva_expr_eval(e->terms[i].factors[f], lookup, user, &x)) return false;
      if (__builtin_mul_overflow(product, x, &product)) return false;
    }
    if (__builtin_add_overflow(sum, product, &sum)) return false;
  }
  *out_v = sum;
  return true;
}

static bool eval_pair(kva_expr_kind kind, int64_t a, int64_t b, int64_t *out_v) {
  KVA_ASSERT(kind >= KVA_EXPR_DIV && kind <= KVA_EXPR_MAX);
  bool division = kind == KVA_EXPR_DIV || kind == KVA_EXPR_MOD;
  if (division && (b == 0 || (a == INT64_MIN && b == -1))) return false;
  if (kind == KVA_EXPR_DIV) *out_v = kva_floor_div(a, b);
  if (kind == KVA_EXPR_MOD) *out_v = kva_floor_mod(a, b);
  if (kind == KVA_EXPR_MIN) *out_v = a < b ? a : b;
  if (kind == KVA_EXPR_MAX) *out_v = a > b ? a : b;
  return true;
}

bool kva_expr_eval(const kva_expr *e, kva_expr_lookup lookup, void *user, int64_t *out_v) {
  if (e->kind == KVA_EXPR_OVERFLOW) return false;
  if (e->kind == KVA_EXPR_SUM) return eval_sum(e, lookup, user, out_v);
  if (e->kind == KVA_EXPR_SYMBOL) return lookup(user, e, out_v);
  int64_t a, b;
  return kva_expr_eval(e->a, lookup, user, &a) && kva_expr_eval(e->b, lookup, user, &b) &&
         eval_pair(e->kind, a, b, out_v);
}
