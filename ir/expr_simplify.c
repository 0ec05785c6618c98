/* floordiv, mod, min and max.
 *
 * Division of a by b, b != 0 by contract, in this order (q, r, y, m, g are expressions):
 *   1. a = q*b + r by polynomial division:        a / b = q + r / b,            a % b = r % b
 *   2. 0 <= r < b:                                r / b = 0,                    r % b = r
 *      -b <= r < 0:                               r / b = -1,                   r % b = r + b
 *   3. b = g*m, r = g*y + s, 0 <= s < g, m > 0:   r / b = y / m,                r % b = g * (y % m) + s
 *   4. nested, n > 0:  (x / m + k) / n = (x + k*m) / (m*n),   (x % (m*n)) / n = (x / n) % m,
 *                      (t * (x % n) + s) % b = (t*x + s) % b  when b divides t*n */
#include "ir/expr_internal.h"

static const kva_expr *make_atom(kva_expr_ctx *c, kva_expr_kind kind, const kva_expr *a, const kva_expr *b) {
  return kva_expr_intern(c, &(kva_expr){.kind = kind, .a = a, .b = b});
}

/* ---- step 1: polynomial division --------------------------------------------------------------------------------- */

/* By a constant n > 0. Coefficients divide toward zero (-i stays -i), the constant part rounds down. */
static const kva_expr *split_const(kva_expr_ctx *c, const kva_expr *a, int64_t n, const kva_expr **out_rest) {
  kva_poly *q = kva_poly_create(c), *r = kva_poly_create(c);
  kva_terms terms;
  kva_expr_terms(a, &terms);
  for (uint32_t i = 0; i < terms.n; i++) {
    const kva_expr_term *t = &terms.v[i];
    int64_t whole = t->coefficient / n, part = t->coefficient % n;
    if (whole) kva_poly_add_term(q, whole, t->n_factors, t->factors);
    if (part) kva_poly_add_term(r, part, t->n_factors, t->factors);
  }
  kva_poly_add_const(q, kva_floor_div(terms.constant, n));
  kva_poly_add_const(r, kva_floor_mod(terms.constant, n));
  *out_rest = kva_poly_finish(r);
  return kva_poly_finish(q);
}

static uint32_t term_count(const kva_expr *e) {
  return e->kind == KVA_EXPR_SUM ? e->n_terms + (e->constant != 0) : 1;
}

/* One step of long division, on the first term of *rest that b's leading term divides. A divisor of several terms must
 * make the rest shorter, otherwise (T*i + j) / (T + P) would only grow. */
static bool split_step(kva_expr_ctx *c, const kva_expr *b, kva_poly *q, const kva_expr **rest) {
  kva_terms terms, divisor;
  kva_expr_terms(*rest, &terms);
  kva_expr_terms(b, &divisor);
  const kva_expr_term *lead = &divisor.v[0];
  bool single = term_count(b) == 1;
  for (uint32_t i = 0; i < terms.n; i++) {
    const kva_expr_term *t = &terms.v[i];
    const kva_expr *others[KVA_EXPR_MAX_DEGREE];
    if (lead->coefficient == -1 && t->coefficient == INT64_MIN) continue;
    int64_t k = t->coefficient / lead->coefficient;
    if (!k || k == INT64_MIN || !kva_factors_divide(t, lead->n_factors, lead->factors, others)) continue;
    uint32_t n = t->n_factors - lead->n_factors;
    kva_poly *p = kva_poly_create(c);
    kva_poly_add(p, *rest, 1);
    kva_poly_add_scaled(p, b, -k, n, others);
    const kva_expr *shorter = kva_poly_finish(p);
    if (kva_expr_is_overflow(shorter) || (!single && term_count(shorter) >= term_count(*rest))) continue;
    kva_poly_add_term(q, k, n, others);
    *rest = shorter;
    return true;
  }
  return false;
}

static const kva_expr *split(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b, const kva_expr **out_rest) {
  int64_t n;
  if (kva_expr_is_const(b, &n)) return split_const(c, a, n, out_rest);
  kva_poly *q = kva_poly_create(c);
  const kva_expr *rest = a;
  /* Every step removes a term or reduces a coefficient below the divisor's; the limit is only a backstop. */
  for (uint32_t steps = 0; steps < KVA_EXPR_MAX_PRODUCT && split_step(c, b, q, &rest); steps++) continue;
  *out_rest = rest;
  return kva_poly_finish(q);
}

const kva_expr *kva_expr_exact_quotient(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b) {
  int64_t n;
  if (kva_expr_is_overflow(a) || kva_expr_is_overflow(b) || (kva_expr_is_const(b, &n) && n <= 0)) return NULL;
  const kva_expr *rest, *q = split(c, a, b, &rest);
  return kva_expr_is(rest, 0) && !kva_expr_is_overflow(q) ? q : NULL;
}

/* ---- step 2: ranges ---------------------------------------------------------------------------------------------- */

static bool in_range(kva_expr_ctx *c, const kva_expr *r, const kva_expr *b) {
  return kva_expr_prove_nonnegative(c, r, b) &&
         kva_expr_prove_nonnegative(c, kva_expr_addi(c, kva_expr_sub(c, b, r), -1), b);
}

/* Finds the quotient r / b if ranges prove it to be a constant: 0 or -1 for symbolic b. */
static bool known_quotient(kva_expr_ctx *c, const kva_expr *r, const kva_expr *b, int64_t *out_q) {
  int64_t n, lo = kva_expr_lo(r), hi = kva_expr_hi(r);
  if (kva_expr_is_const(b, &n) && lo != INT64_MIN && hi != INT64_MAX && kva_floor_div(lo, n) == kva_floor_div(hi, n)) {
    *out_q = kva_floor_div(lo, n);
    return true;
  }
  *out_q = 0;
  if (in_range(c, r, b)) return true;
  *out_q = -1;
  return lo < 0 && in_range(c, kva_expr_add(c, r, b), b);
}

/* ---- step 3: common divisors ------------------------------------------------------------------------------------- */

typedef struct divisor {
  int64_t coefficient;
  uint32_t n;
  const kva_expr *factors[KVA_EXPR_MAX_DEGREE];
} divisor;

int64_t kva_gcd(int64_t a, int64_t b) {
  uint64_t x = a < 0 ? -(uint64_t)a : (uint64_t)a, y = b < 0 ? -(uint64_t)b : (uint64_t)b;
  while (y) {
    uint64_t rest = x % y;
    x = y;
    y = rest;
  }
  return x > INT64_MAX ? 1 : (int64_t)x;
}

/* The greatest common monomial of d and a term. */
static void common_divisor(divisor *d, int64_t coefficient, uint32_t n, const kva_expr *const *factors) {
  d->coefficient = kva_gcd(d->coefficient, coefficient);
  uint32_t kept = 0;
  for (uint32_t i = 0, j = 0; i < d->n && j < n;) {
    if (d->factors[i] == factors[j]) {
      d->factors[kept++] = d->factors[i];
      i++, j++;
    } else if (d->factors[i]->id < factors[j]->id) {
      i++;
    } else {
      j++;
    }
  }
  d->n = kept;
}

/* The greatest monomial that divides every term of e. */
static divisor content(const kva_expr *e) {
  kva_terms terms;
  kva_expr_terms(e, &terms);
  divisor d = {.coefficient = terms.constant};
  if (!terms.n) return d;
  if (!terms.constant) {
    d.coefficient = terms.v[0].coefficient;
    d.n = terms.v[0].n_factors;
    memcpy(d.factors, terms.v[0].factors, d.n * sizeof *d.factors);
  }
  for (uint32_t i = 0; i < terms.n; i++) {
    common_divisor(&d, terms.v[i].coefficient, terms.v[i].n_factors, terms.v[i].factors);
  }
  return d;
}

/* e = g * (result) + rest; the rest has the terms that g does not divide. */
static const kva_expr *split_monomial(kva_expr_ctx *c, const kva_expr *e, const divisor *g, const kva_expr **out_rest) {
  kva_poly *q = kva_poly_create(c), *r = kva_poly_create(c);
  kva_terms terms;
  kva_expr_terms(e, &terms);
  for (uint32_t i = 0; i < terms.n; i++) {
    const kva_expr_term *t = &terms.v[i];
    const kva_expr *others[KVA_EXPR_MAX_DEGREE];
    if (t->coefficient % g->coefficient == 0 && kva_factors_divide(t, g->n, g->factors, others)) {
      kva_poly_add_term(q, t->coefficient / g->coefficient, t->n_factors - g->n, others);
    } else {
      kva_poly_add_term(r, t->coefficient, t->n_factors, t->factors);
    }
  }
  kva_poly_add_const(q, g->n ? 0 : kva_floor_div(terms.constant, g->coefficient));
  kva_poly_add_const(r, g->n ? terms.constant : kva_floor_mod(terms.constant, g->coefficient));
  *out_rest = kva_poly_finish(r);
  return kva_poly_finish(q);
}

static bool larger(const divisor *x, const divisor *y) {
  return x->n != y->n ? x->n > y->n : x->coefficient > y->coefficient;
}

/* Candidates for g, distinct, largest first: common divisors of b and a single term of r. */
enum { MAX_CANDIDATES = 8 };
static uint32_t find_candidates(const kva_expr *r, const divisor *of_b, divisor *out) {
  kva_terms terms;
  kva_expr_terms(r, &terms);
  uint32_t n = 0;
  for (uint32_t i = 0; i < terms.n && n < MAX_CANDIDATES; i++) {
    divisor d = *of_b;
    common_divisor(&d, terms.v[i].coefficient, terms.v[i].n_factors, terms.v[i].factors);
    if (d.coefficient == 1 && !d.n) continue;
    uint32_t at = n;
    bool known = false;
    for (uint32_t k = 0; k < n; k++) {
      known |= out[k].coefficient == d.coefficient && out[k].n == d.n &&
               !memcmp(out[k].factors, d.factors, d.n * sizeof *d.factors);
    }
    if (known) continue;
    for (; at && larger(&d, &out[at - 1]); at--) out[at] = out[at - 1];
    out[at] = d;
    n++;
  }
  return n;
}

/* r = g*y + s with 0 <= s < g, b = g*m. */
typedef struct reduction {
  const kva_expr *g, *y, *s, *m;
} reduction;

static bool reduce_by(kva_expr_ctx *c, const kva_expr *r, const kva_expr *b, const divisor *g, reduction *out) {
  const kva_expr *rest;
  kva_poly *p = kva_poly_create(c);
  kva_poly_add_term(p, g->coefficient, g->n, g->factors);
  out->g = kva_poly_finish(p);
  out->y = split_monomial(c, r, g, &out->s);
  out->m = split_monomial(c, b, g, &rest);
  if (kva_expr_is(out->s, 0)) return true;
  if (kva_expr_lo(out->m) < 0) return false;
  int64_t k;
  if (!known_quotient(c, out->s, out->g, &k)) return false;
  out->y = kva_expr_addi(c, out->y, k);
  out->s = kva_expr_sub(c, out->s, kva_expr_muli(c, out->g, k));
  return true;
}

static bool reduce(kva_expr_ctx *c, const kva_expr *r, const kva_expr *b, reduction *out) {
  divisor of_b = content(b), candidates[MAX_CANDIDATES];
  uint32_t n = find_candidates(r, &of_b, candidates);
  for (uint32_t i = 0; i < n; i++) {
    if (reduce_by(c, r, b, &candidates[i], out)) return true;
  }
  return false;
}

/* ---- step 4 and division ----------------------------------------------------------------------------------------- */

/* (x / m + k) / n = (x + k*m) / (m*n) for a constant k and n > 0, since floor(floor(y) / n) = floor(y / n). */
static const kva_expr *div_of_div(kva_expr_ctx *c, const kva_expr *r, const kva_expr *n) {
  kva_terms terms;
  kva_expr_terms(r, &terms);
  if (terms.n != 1 || terms.v[0].n_factors != 1 || terms.v[0].coefficient != 1 || kva_expr_lo(n) < 0) return NULL;
  const kva_expr *d = terms.v[0].factors[0];
  if (d->kind != KVA_EXPR_DIV) return NULL;
  const kva_expr *x = kva_expr_add(c, d->a, kva_expr_muli(c, d->b, terms.constant)), *mn = kva_expr_mul(c, d->b, n);
  if (kva_expr_is_overflow(x) || kva_expr_is_overflow(mn)) return NULL;
  return kva_expr_div(c, x, mn);
}

/* (x % (m*n)) / n = (x / n) % m for m, n > 0. */
static const kva_expr *div_of_mod(kva_expr_ctx *c, const kva_expr *r, const kva_expr *n) {
  if (r->kind != KVA_EXPR_MOD || kva_expr_lo(n) < 0) return NULL;
  const kva_expr *m = kva_expr_exact_quotient(c, r->b, n);
  if (!m || kva_expr_lo(m) < 0) return NULL;
  return kva_expr_mod(c, kva_expr_div(c, r->a, n), m);
}

static const kva_expr *div_rest(kva_expr_ctx *c, const kva_expr *r, const kva_expr *b) {
  int64_t k;
  reduction d;
  if (known_quotient(c, r, b, &k)) return kva_expr_const(c, k);
  if (reduce(c, r, b, &d)) return kva_expr_div(c, d.y, d.m);
  const kva_expr *e = div_of_div(c, r, b);
  if (!e) e = div_of_mod(c, r, b);
  return e ? e : make_atom(c, KVA_EXPR_DIV, r, b);
}

/* Divisors of known sign are made positive. */
static bool is_negative_divisor(const kva_expr *b) {
  return kva_expr_hi(b) <= 0 && kva_expr_lo(b) < 0;
}

static const kva_expr *simplify_div(kva_expr_ctx *c, kva_expr_kind kind, const kva_expr *a, const kva_expr *b) {
  (void)kind;
  if (kva_expr_is(b, 0)) return c->overflow;
  if (kva_expr_is(b, 1) || kva_expr_is(a, 0)) return a;
  if (is_negative_divisor(b)) return kva_expr_div(c, kva_expr_muli(c, a, -1), kva_expr_muli(c, b, -1));
  const kva_expr *r, *q = split(c, a, b, &r);
  return kva_expr_add(c, q, div_rest(c, r, b));
}

/* Removes mods that are redundant modulo b: t * (x % n) -> t*x if b divides t*n. */
static const kva_expr *strip_mods(kva_expr_ctx *c, const kva_expr *r, const kva_expr *b) {
  kva_terms terms;
  kva_expr_terms(r, &terms);
  kva_poly *p = kva_poly_create(c);
  kva_poly_add_const(p, terms.constant);
  for (uint32_t i = 0; i < terms.n; i++) {
    const kva_expr_term *t = &terms.v[i];
    const kva_expr *others[KVA_EXPR_MAX_DEGREE], *x = NULL;
    for (uint32_t f = 0; f < t->n_factors && !x; f++) {
      if (t->factors[f]->kind != KVA_EXPR_MOD) continue;
      kva_factors_divide(t, 1, &t->factors[f], others);
      kva_poly *tn = kva_poly_create(c);
      kva_poly_add_scaled(tn, t->factors[f]->b, t->coefficient, t->n_factors - 1, others);
      if (kva_expr_exact_quotient(c, kva_poly_finish(tn), b)) x = t->factors[f]->a;
    }
    if (x) {
      kva_poly_add_scaled(p, x, t->coefficient, t->n_factors - 1, others);
    } else {
      kva_poly_add_term(p, t->coefficient, t->n_factors, t->factors);
    }
  }
  return kva_poly_finish(p);
}

static const kva_expr *simplify_mod(kva_expr_ctx *c, kva_expr_kind kind, const kva_expr *a, const kva_expr *b) {
  if (kva_expr_is(b, 0)) return c->overflow;
  if (is_negative_divisor(b)) {
    const kva_expr *positive = kva_expr_mod(c, kva_expr_muli(c, a, -1), kva_expr_muli(c, b, -1));
    return kva_expr_muli(c, positive, -1);
  }
  const kva_expr *r;
  split(c, a, b, &r);
  int64_t k;
  reduction d;
  if (known_quotient(c, r, b, &k)) return kva_expr_sub(c, r, kva_expr_muli(c, b, k));
  const kva_expr *stripped = strip_mods(c, r, b);
  if (stripped != r && !kva_expr_is_overflow(stripped)) return kva_expr_mod(c, stripped, b);
  if (reduce(c, r, b, &d)) return kva_expr_add(c, kva_expr_mul(c, d.g, kva_expr_mod(c, d.y, d.m)), d.s);
  return make_atom(c, kind, r, b);
}

const kva_expr *kva_expr_div(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b) {
  return kva_expr_memoised(c, KVA_EXPR_DIV, a, b, simplify_div);
}

const kva_expr *kva_expr_mod(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b) {
  return kva_expr_memoised(c, KVA_EXPR_MOD, a, b, simplify_mod);
}

const kva_expr *kva_expr_ceildiv(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b) {
  if (kva_expr_lo(b) >= 0) return kva_expr_div(c, kva_expr_addi(c, kva_expr_add(c, a, b), -1), b);
  return kva_expr_muli(c, kva_expr_div(c, kva_expr_muli(c, a, -1), b), -1);
}

/* ---- min and max ------------------------------------------------------------------------------------------------- */

enum { MAX_OPERANDS = 16 };
typedef struct operands {
  uint32_t n;
  const kva_expr *v[MAX_OPERANDS];
} operands;

/* Chains nest to the left: min(min(a, b), c). */
static void flatten(kva_expr_kind kind, const kva_expr *e, operands *out) {
  while (e->kind == kind && out->n < MAX_OPERANDS / 2 - 1) {
    out->v[out->n++] = e->b;
    e = e->a;
  }
  out->v[out->n++] = e;
}

static bool decides(kva_expr_ctx *c, kva_expr_kind kind, const kva_expr *x, const kva_expr *y) {
  return kind == KVA_EXPR_MIN ? kva_expr_provably_le(c, x, y) : kva_expr_provably_le(c, y, x);
}

/* Removes operands of `from` that an operand of `by` makes redundant. */
static void drop_decided(kva_expr_ctx *c, kva_expr_kind kind, operands *from, const operands *by) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < from->n; i++) {
    bool redundant = false;
    for (uint32_t j = 0; j < by->n && !redundant; j++) redundant = decides(c, kind, by->v[j], from->v[i]);
    if (!redundant) from->v[kept++] = from->v[i];
  }
  from->n = kept;
}

static const kva_expr *simplify_extremum(kva_expr_ctx *c, kva_expr_kind kind, const kva_expr *a, const kva_expr *b) {
  operands x = {0}, y = {0};
  flatten(kind, a, &x);
  flatten(kind, b, &y);
  drop_decided(c, kind, &y, &x);
  drop_decided(c, kind, &x, &y);
  for (uint32_t i = 0; i < y.n; i++) x.v[x.n++] = y.v[i];
  for (uint32_t i = 1; i < x.n; i++) {
    const kva_expr *v = x.v[i];
    uint32_t at = i;
    for (; at && x.v[at - 1]->id > v->id; at--) x.v[at] = x.v[at - 1];
    x.v[at] = v;
  }
  const kva_expr *e = x.v[0];
  for (uint32_t i = 1; i < x.n; i++) {
    e = kva_expr_is_overflow(e) ? e : make_atom(c, kind, e, x.v[i]);
  }
  return e;
}

const kva_expr *kva_expr_min(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b) {
  return kva_expr_memoised(c, KVA_EXPR_MIN, a, b, simplify_extremum);
}

const kva_expr *kva_expr_max(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b) {
  return kva_expr_memoised(c, KVA_EXPR_MAX, a, b, simplify_extremum);
}
