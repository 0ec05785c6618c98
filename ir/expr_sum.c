/* Sums of products: the polynomial part of the algebra. */
#include "ir/expr_internal.h"

#include <stdlib.h>

/* ---- monomials --------------------------------------------------------------------------------------------------- */

typedef struct monomial {
  uint32_t n;
  const kva_expr *factors[];
} monomial;

static bool same_monomial(const void *item, const void *key) {
  const monomial *x = item;
  const kva_expr_term *t = key;
  return x->n == t->n_factors && !memcmp(x->factors, t->factors, x->n * sizeof *x->factors);
}

const kva_expr *const *kva_expr_monomial(kva_expr_ctx *c, uint32_t n, const kva_expr *const *factors) {
  uint64_t hash = n;
  for (uint32_t i = 0; i < n; i++) hash = (hash ^ factors[i]->id) * 0x9e3779b97f4a7c15u, hash ^= hash >> 31;
  kva_expr_term key = {.n_factors = n, .factors = factors};
  const monomial *found = kva_expr_table_find(&c->monomials, hash, same_monomial, &key);
  if (found) return found->factors;
  monomial *m = kva_arena_alloc(c->arena, sizeof *m + n * sizeof *factors);
  m->n = n;
  memcpy(m->factors, factors, n * sizeof *factors);
  kva_expr_table_add(c->arena, &c->monomials, hash, m);
  return (const kva_expr *const *)m->factors;
}

/* Order of monomials in a sum: graded lexicographic, highest first. It is compatible with multiplication, as polynomial
 * division requires. */
static int compare_terms(const void *left, const void *right) {
  const kva_expr_term *x = left, *y = right;
  if (x->n_factors != y->n_factors) return x->n_factors > y->n_factors ? -1 : 1;
  for (uint32_t i = 0; i < x->n_factors; i++) {
    uint32_t a = x->factors[i]->id, b = y->factors[i]->id;
    if (a != b) return a < b ? -1 : 1;
  }
  return 0;
}

bool kva_factors_divide(const kva_expr_term *t, uint32_t n_divisor, const kva_expr *const *divisor,
                        const kva_expr **out) {
  if (n_divisor > t->n_factors) return false;
  uint32_t d = 0, n = 0, kept = t->n_factors - n_divisor;
  for (uint32_t i = 0; i < t->n_factors; i++) {
    if (d < n_divisor && t->factors[i] == divisor[d]) {
      d++;
    } else if (n == kept) {
      return false;
    } else {
      out[n++] = t->factors[i];
    }
  }
  return true;
}

void kva_expr_terms(const kva_expr *e, kva_terms *out) {
  if (e->kind == KVA_EXPR_SUM) {
    out->constant = e->constant;
    out->n = e->n_terms;
    out->v = e->terms;
    return;
  }
  out->factor[0] = e;
  out->one = (kva_expr_term){.coefficient = 1, .n_factors = 1, .factors = out->factor};
  out->constant = 0;
  out->n = 1;
  out->v = &out->one;
}

/* ---- sums under construction ------------------------------------------------------------------------------------- */

kva_poly *kva_poly_create(kva_expr_ctx *c) {
  kva_poly *p = c->free_polys;
  if (!p) p = KVA_NEW(c->arena, kva_poly);
  c->free_polys = p->next_free;
  p->ctx = c;
  p->constant = 0;
  p->overflow = false;
  p->terms.len = 0;
  return p;
}

void kva_poly_discard(kva_poly *p) {
  p->next_free = p->ctx->free_polys;
  p->ctx->free_polys = p;
}

void kva_poly_add_const(kva_poly *p, int64_t v) {
  if (__builtin_add_overflow(p->constant, v, &p->constant)) p->overflow = true;
}

static void push_term(kva_poly *p, int64_t coefficient, uint32_t n, const kva_expr *const *factors) {
  KVA_ASSERT(n && n <= KVA_EXPR_MAX_DEGREE);
  kva_expr_term t = {.coefficient = coefficient, .n_factors = n, .factors = factors};
  KVA_PUSH(p->ctx->arena, &p->terms, t);
}

void kva_poly_add(kva_poly *p, const kva_expr *e, int64_t scale) {
  kva_poly_add_scaled(p, e, scale, 0, NULL);
}

void kva_poly_add_term(kva_poly *p, int64_t scale, uint32_t n, const kva_expr *const *factors) {
  if (!n) {
    kva_poly_add_const(p, scale);
    return;
  }
  if (n > KVA_EXPR_MAX_DEGREE) {
    p->overflow = true;
    return;
  }
  const kva_expr *sorted[KVA_EXPR_MAX_DEGREE];
  for (uint32_t i = 0; i < n; i++) {
    uint32_t at = i;
    for (; at && sorted[at - 1]->id > factors[i]->id; at--) sorted[at] = sorted[at - 1];
    sorted[at] = factors[i];
  }
  push_term(p, scale, n, kva_expr_monomial(p->ctx, n, sorted));
}

void kva_poly_add_scaled(kva_poly *p, const kva_expr *e, int64_t scale, uint32_t n, const kva_expr *const *factors) {
  if (kva_expr_is_overflow(e)) p->overflow = true;
  if (p->overflow || !scale) return;
  kva_terms terms;
  kva_expr_terms(e, &terms);
  const kva_expr *product[2 * KVA_EXPR_MAX_DEGREE];
  if (n > KVA_EXPR_MAX_DEGREE) {
    p->overflow = true;
    return;
  }
  if (n) memcpy(product, factors, n * sizeof *factors);
  int64_t v;
  for (uint32_t i = 0; i < terms.n; i++) {
    const kva_expr_term *t = &terms.v[i];
    if (__builtin_mul_overflow(t->coefficient, scale, &v)) p->overflow = true;
    memcpy(product + n, t->factors, t->n_factors * sizeof *t->factors);
    if (!n && e->kind == KVA_EXPR_SUM) {
      push_term(p, v, t->n_factors, t->factors);
    } else {
      kva_poly_add_term(p, v, n + t->n_factors, product);
    }
  }
  if (__builtin_mul_overflow(terms.constant, scale, &v)) p->overflow = true;
  if (v) kva_poly_add_term(p, v, n, factors);
}

void kva_poly_normalize(kva_poly *p) {
  if (p->overflow) return;
  if (p->terms.len > 1) qsort(p->terms.data, p->terms.len, sizeof *p->terms.data, compare_terms);
  uint32_t n = 0;
  for (uint32_t i = 0; i < p->terms.len;) {
    kva_expr_term t = p->terms.data[i++];
    for (; i < p->terms.len && p->terms.data[i].factors == t.factors; i++) {
      if (__builtin_add_overflow(t.coefficient, p->terms.data[i].coefficient, &t.coefficient)) p->overflow = true;
    }
    if (t.coefficient) p->terms.data[n++] = t;
  }
  p->terms.len = n;
}

const kva_expr *kva_poly_finish(kva_poly *p) {
  kva_expr_ctx *c = p->ctx;
  do kva_poly_normalize(p);
  while (!p->overflow && kva_poly_recombine(p));
  const kva_expr *e = c->overflow;
  const kva_expr_term *t = p->terms.data;
  if (!p->overflow && p->terms.len == 1 && !p->constant && t->coefficient == 1 && t->n_factors == 1) {
    e = t->factors[0];
  } else if (!p->overflow) {
    kva_expr sum = {.kind = KVA_EXPR_SUM, .constant = p->constant, .n_terms = p->terms.len};
    sum.terms = p->terms.len ? t : NULL;
    e = kva_expr_intern(c, &sum);
  }
  kva_poly_discard(p);
  return e;
}

void kva_expr_split_atom(kva_expr_ctx *c, const kva_expr *e, const kva_expr *atom, const kva_expr **out_coefficient,
                         const kva_expr **out_rest) {
  KVA_ASSERT(atom->kind != KVA_EXPR_SUM);
  kva_poly *coefficient = kva_poly_create(c), *rest = kva_poly_create(c);
  kva_terms terms;
  kva_expr_terms(e, &terms);
  kva_poly_add_const(rest, terms.constant);
  for (uint32_t i = 0; i < terms.n; i++) {
    const kva_expr_term *t = &terms.v[i];
    const kva_expr *others[KVA_EXPR_MAX_DEGREE];
    if (kva_factors_divide(t, 1, &atom, others)) {
      kva_poly_add_term(coefficient, t->coefficient, t->n_factors - 1, others);
    } else {
      kva_poly_add_term(rest, t->coefficient, t->n_factors, t->factors);
    }
  }
  *out_coefficient = kva_poly_finish(coefficient);
  *out_rest = kva_poly_finish(rest);
}

/* ---- public ------------------------------------------------------------------------------------------------------ */

static const kva_expr *linear(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b, int64_t scale_b) {
  kva_poly *p = kva_poly_create(c);
  kva_poly_add(p, a, 1);
  kva_poly_add(p, b, scale_b);
  return kva_poly_finish(p);
}

const kva_expr *kva_expr_add(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b) {
  return linear(c, a, b, 1);
}

const kva_expr *kva_expr_sub(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b) {
  return linear(c, a, b, -1);
}

const kva_expr *kva_expr_addi(kva_expr_ctx *c, const kva_expr *a, int64_t v) {
  kva_poly *p = kva_poly_create(c);
  kva_poly_add(p, a, 1);
  kva_poly_add_const(p, v);
  return kva_poly_finish(p);
}

const kva_expr *kva_expr_muli(kva_expr_ctx *c, const kva_expr *a, int64_t v) {
  kva_poly *p = kva_poly_create(c);
  kva_poly_add(p, a, v);
  if (kva_expr_is_overflow(a)) p->overflow = true;
  return kva_poly_finish(p);
}

const kva_expr *kva_expr_mul(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b) {
  if (kva_expr_is_overflow(a) || kva_expr_is_overflow(b)) return c->overflow;
  kva_terms terms;
  kva_expr_terms(b, &terms);
  uint32_t n_a = a->kind == KVA_EXPR_SUM ? a->n_terms : 1;
  if ((uint64_t)n_a * terms.n > KVA_EXPR_MAX_PRODUCT) return c->overflow;
  kva_poly *p = kva_poly_create(c);
  kva_poly_add(p, a, terms.constant);
  for (uint32_t i = 0; i < terms.n; i++) {
    kva_poly_add_scaled(p, a, terms.v[i].coefficient, terms.v[i].n_factors, terms.v[i].factors);
  }
  return kva_poly_finish(p);
}
