/* Recombines what division split: t*n * (x / n) + t * (x % n) = t*x, and, one level down,
 * t*n * ((x / n) % k) + t * (x % n) = t * (x % (n*k)). */
#include "ir/expr_internal.h"

/* p contains every term of q. */
static bool contains(const kva_poly *p, const kva_poly *q) {
  for (uint32_t i = 0, j = 0; i < q->terms.len; i++) {
    while (j < p->terms.len && p->terms.data[j].factors != q->terms.data[i].factors) j++;
    int64_t k = q->terms.data[i].coefficient;
    if (j == p->terms.len || p->terms.data[j].coefficient != k || k == INT64_MIN) return false;
  }
  return true;
}

/* x / n, or NULL if proofs are nested so deep that computing it might not terminate. */
static const kva_expr *quotient_if_known(kva_expr_ctx *c, const kva_expr *x, const kva_expr *n) {
  if (c->proof_depth < 2) return kva_expr_div(c, x, n);
  const kva_expr *found = kva_expr_recall(c, KVA_EXPR_DIV, x, n);
  if (!found) c->gave_up = true;
  return found;
}

/* Term t of p contains mod = x % n. Replaces t*n*f + t by t' * joined, where f is x / n (joined: x) or (x / n) % k
 * (joined: x % (n*k)). */
static bool join(kva_poly *p, const kva_expr_term *t, const kva_expr *mod, const kva_expr *f) {
  kva_expr_ctx *c = p->ctx;
  const kva_expr *factors[KVA_EXPR_MAX_DEGREE];
  kva_factors_divide(t, 1, &mod, factors);
  uint32_t n = t->n_factors;
  factors[n - 1] = f;
  kva_poly *q = kva_poly_create(c);
  kva_poly_add_scaled(q, mod->b, t->coefficient, n, factors);
  kva_poly_normalize(q);
  bool found = !q->overflow && contains(p, q);
  if (found) {
    kva_expr_term own = *t;
    const kva_expr *joined = f->kind == KVA_EXPR_DIV ? mod->a : kva_expr_mod(c, mod->a, kva_expr_mul(c, mod->b, f->b));
    for (uint32_t i = 0; i < q->terms.len; i++) {
      kva_expr_term *u = &q->terms.data[i];
      kva_poly_add_term(p, -u->coefficient, u->n_factors, u->factors);
    }
    kva_poly_add_term(p, -own.coefficient, own.n_factors, own.factors);
    kva_poly_add_scaled(p, joined, own.coefficient, n - 1, factors);
  }
  kva_poly_discard(q);
  return found;
}

static bool join_mod(kva_poly *p, const kva_expr_term *t, const kva_expr *mod) {
  const kva_expr *quotient = NULL;
  for (uint32_t i = 0; i < p->terms.len; i++) {
    const kva_expr_term *u = &p->terms.data[i];
    for (uint32_t f = 0; f < u->n_factors; f++) {
      const kva_expr *atom = u->factors[f];
      bool candidate = atom->kind == KVA_EXPR_DIV || (atom->kind == KVA_EXPR_MOD && atom->a->kind == KVA_EXPR_DIV);
      if (!candidate || atom == mod) continue;
      if (!quotient) quotient = quotient_if_known(p->ctx, mod->a, mod->b);
      if (!quotient) return false;
      bool fits = atom == quotient || (atom->kind == KVA_EXPR_MOD && atom->a == quotient);
      if (fits && quotient->kind == KVA_EXPR_DIV && join(p, t, mod, atom)) return true;
    }
  }
  return false;
}

bool kva_poly_recombine(kva_poly *p) {
  for (uint32_t i = 0; i < p->terms.len; i++) {
    const kva_expr_term t = p->terms.data[i];
    for (uint32_t f = 0; f < t.n_factors; f++) {
      if (t.factors[f]->kind == KVA_EXPR_MOD && t.coefficient != INT64_MIN && join_mod(p, &t, t.factors[f]))
        return true;
    }
  }
  return false;
}
