/* Proof of e >= 0 from ranges.
 *
 * Atoms with a known range (loop variables, quotients, remainders, min, max) are eliminated one by one, the youngest
 * first, because ranges mention only older symbols. With e = k*v + rest and the sign of k known, e is minimal at an end
 * of v's range; this remains true if k and rest mention v again, so every step is sound on its own. The result is a
 * polynomial in sizes, which are >= 0, and >= 1 if a loop runs over them or a division is by them: substituting 1 + n
 * for those reduces the test to "no negative coefficient", which interval arithmetic decides. */
#include "ir/expr_internal.h"

enum { MAX_STEPS = 128, MAX_NESTING = 3, MAX_SHIFTS = 16, MAX_FACTS = 4 };

typedef struct proof {
  kva_expr_ctx *c;
  uint32_t steps; /* left */
  uint32_t n_positive;
  const kva_expr *positive[MAX_SHIFTS];
  uint32_t n_facts;
  const kva_expr *facts[MAX_FACTS]; /* sums that are >= 1, such as T + P */
} proof;

static bool nonnegative(proof *p, const kva_expr *e);

/* ---- facts about sizes ------------------------------------------------------------------------------------------- */

static void note_positive(proof *p, const kva_expr *symbol) {
  for (uint32_t i = 0; i < p->n_positive; i++) {
    if (p->positive[i] == symbol) return;
  }
  if (p->n_positive < MAX_SHIFTS) p->positive[p->n_positive++] = symbol;
}

static bool all_nonnegative(const kva_expr_term *t) {
  for (uint32_t i = 0; i < t->n_factors; i++) {
    if (kva_expr_lo(t->factors[i]) < 0) return false;
  }
  return true;
}

/* Notes that e >= 1 (or e >= 0 and e != 0). If a product of sizes is >= 1, so is each of them. */
static void note_positive_size(proof *p, const kva_expr *e) {
  kva_terms terms;
  kva_expr_terms(e, &terms);
  if (terms.n != 1 || terms.constant) {
    if (terms.n && p->n_facts < MAX_FACTS) p->facts[p->n_facts++] = e;
    return;
  }
  if (!all_nonnegative(&terms.v[0])) return;
  for (uint32_t i = 0; i < terms.v[0].n_factors; i++) {
    const kva_expr *s = terms.v[0].factors[i];
    if (s->kind == KVA_EXPR_SYMBOL && !s->extent && s->lo == 0) note_positive(p, s);
  }
}

static void note_extents(proof *p, const kva_expr *e) {
  const kva_expr_node *n = kva_expr_node_of(e);
  for (uint32_t i = 0; i < n->n_symbols; i++) {
    const kva_expr *s = n->symbols[i];
    if (!s->extent) continue;
    if (s->lo >= 0) note_positive_size(p, s->extent);
    note_extents(p, s->extent);
  }
}

/* The symbol as lo + a fresh symbol >= 0 (lo 1 for a positive size), created once. */
static const kva_expr *shifted(kva_expr_ctx *c, const kva_expr *s) {
  const kva_expr *e = kva_expr_recall(c, KVA_EXPR_SYMBOL, s, s);
  if (e) return e;
  e = kva_expr_addi(c, kva_expr_fresh(c, s->name, 0, NULL), s->lo ? s->lo : 1);
  kva_expr_remember(c, KVA_EXPR_SYMBOL, s, s, e);
  return e;
}

/* e has no negative part after its sizes are shifted. */
static bool nonnegative_shifted(proof *p, const kva_expr *e) {
  const kva_expr_node *n = kva_expr_node_of(e);
  const kva_expr *from[MAX_SHIFTS], *to[MAX_SHIFTS];
  uint32_t n_shifts = 0;
  for (uint32_t i = 0; i < n->n_symbols && n_shifts < MAX_SHIFTS; i++) {
    const kva_expr *s = n->symbols[i];
    bool shift = !s->extent && s->lo != 0 && s->lo != INT64_MIN;
    for (uint32_t k = 0; k < p->n_positive; k++) shift |= p->positive[k] == s;
    if (!shift) continue;
    from[n_shifts] = s;
    to[n_shifts++] = shifted(p->c, s);
  }
  return kva_expr_lo(kva_expr_substitute(p->c, e, n_shifts, from, to)) >= 0;
}

/* The case without atoms to eliminate. */
static bool nonnegative_sizes(proof *p, const kva_expr *e) {
  if (nonnegative_shifted(p, e)) return true;
  for (uint32_t i = 0; i < p->n_facts; i++) {
    const kva_expr *less = kva_expr_addi(p->c, kva_expr_sub(p->c, e, p->facts[i]), 1);
    if (nonnegative_shifted(p, less)) return true;
  }
  return false;
}

/* ---- elimination of atoms ---------------------------------------------------------------------------------------- */

static bool has_range(const kva_expr *atom) {
  switch (atom->kind) {
  case KVA_EXPR_SYMBOL: return atom->extent != NULL;
  case KVA_EXPR_DIV:
  case KVA_EXPR_MOD: return kva_expr_lo(atom->b) >= 0;
  case KVA_EXPR_MIN:
  case KVA_EXPR_MAX: return true;
  case KVA_EXPR_SUM:
  case KVA_EXPR_OVERFLOW: break;
  }
  return false;
}

/* The youngest atom with a range that is older than `than` (NULL: any). */
static const kva_expr *youngest(const kva_expr *e, const kva_expr *than) {
  kva_terms terms;
  kva_expr_terms(e, &terms);
  const kva_expr *best = NULL;
  for (uint32_t i = 0; i < terms.n; i++) {
    for (uint32_t f = 0; f < terms.v[i].n_factors; f++) {
      const kva_expr *a = terms.v[i].factors[f];
      if (has_range(a) && (!than || a->id < than->id) && (!best || a->id > best->id)) best = a;
    }
  }
  return best;
}

static int sign_of(proof *p, const kva_expr *k) {
  if (nonnegative(p, k)) return 1;
  if (nonnegative(p, kva_expr_muli(p->c, k, -1))) return -1;
  return 0;
}

/* e with k*atom replaced by k*value. */
static const kva_expr *replaced(proof *p, const kva_expr *k, const kva_expr *rest, const kva_expr *value) {
  return kva_expr_add(p->c, rest, kva_expr_mul(p->c, k, value));
}

/* An end of a loop variable's range, or NULL. */
static const kva_expr *symbol_end(proof *p, const kva_expr *s, bool upper) {
  if (upper) return kva_expr_addi(p->c, s->extent, -1);
  return s->lo == INT64_MIN ? NULL : kva_expr_const(p->c, s->lo);
}

/* An upper (or lower) bound of x, free of ranged atoms as far as possible. */
static const kva_expr *extreme(proof *p, const kva_expr *x, bool upper) {
  const kva_expr *atom = NULL;
  while (p->steps && (atom = youngest(x, atom))) {
    p->steps--;
    const kva_expr *k, *rest, *end = NULL;
    kva_expr_split_atom(p->c, x, atom, &k, &rest);
    int sign = sign_of(p, k);
    if (!sign) continue;
    bool up = upper == (sign > 0);
    if (atom->kind == KVA_EXPR_SYMBOL) end = symbol_end(p, atom, up);
    if (atom->kind == KVA_EXPR_MOD) end = up ? kva_expr_addi(p->c, atom->b, -1) : kva_expr_const(p->c, 0);
    if (atom->kind == KVA_EXPR_DIV) end = kva_expr_div(p->c, extreme(p, atom->a, up), atom->b);
    if (!end || end == atom) continue;
    x = replaced(p, k, rest, end);
  }
  return x;
}

/* e = k*(x / n) + rest, from n*(x / n) in [x - n + 1, x]. If n divides k, that bounds e directly. If n is a constant,
 * it bounds n*e, and e >= 0 follows from n*e >= 1 - n because e is an integer. */
static bool relax_div(proof *p, const kva_expr *k, const kva_expr *rest, const kva_expr *div, int sign) {
  kva_expr_ctx *c = p->c;
  const kva_expr *x = div->a, *n = div->b;
  if (sign > 0) x = kva_expr_addi(c, kva_expr_sub(c, x, n), 1);
  const kva_expr *whole = kva_expr_exact_quotient(c, k, n);
  if (whole) return nonnegative(p, replaced(p, whole, rest, x));
  if (!kva_expr_is_const(n, NULL)) return false;
  const kva_expr *scaled = replaced(p, k, kva_expr_mul(c, n, rest), x);
  return nonnegative(p, kva_expr_addi(c, kva_expr_add(c, scaled, n), -1));
}

static bool eliminate_div(proof *p, const kva_expr *k, const kva_expr *rest, const kva_expr *div, int sign) {
  if (relax_div(p, k, rest, div, sign)) return true;
  const kva_expr *end = kva_expr_div(p->c, extreme(p, div->a, sign < 0), div->b);
  return end != div && nonnegative(p, replaced(p, k, rest, end));
}

static bool eliminate_mod(proof *p, const kva_expr *k, const kva_expr *rest, const kva_expr *mod, int sign) {
  if (sign > 0) return nonnegative(p, rest);
  if (nonnegative(p, replaced(p, k, rest, kva_expr_addi(p->c, mod->b, -1)))) return true;
  return nonnegative(p, mod->a) && nonnegative(p, replaced(p, k, rest, mod->a));
}

/* Both cases are sufficient; one is if it bounds in the right direction: min(a, b) <= a. */
static bool eliminate_extremum(proof *p, const kva_expr *k, const kva_expr *rest, const kva_expr *atom, int sign) {
  bool one_is_enough = (atom->kind == KVA_EXPR_MIN) == (sign < 0);
  bool a = nonnegative(p, replaced(p, k, rest, atom->a));
  if (a == one_is_enough) return a;
  return nonnegative(p, replaced(p, k, rest, atom->b));
}

static bool eliminate(proof *p, const kva_expr *k, const kva_expr *rest, const kva_expr *atom, int sign) {
  switch (atom->kind) {
  case KVA_EXPR_SYMBOL: {
    const kva_expr *end = symbol_end(p, atom, sign < 0);
    return end && nonnegative(p, replaced(p, k, rest, end));
  }
  case KVA_EXPR_DIV: return eliminate_div(p, k, rest, atom, sign);
  case KVA_EXPR_MOD: return eliminate_mod(p, k, rest, atom, sign);
  case KVA_EXPR_MIN:
  case KVA_EXPR_MAX: return eliminate_extremum(p, k, rest, atom, sign);
  case KVA_EXPR_SUM:
  case KVA_EXPR_OVERFLOW: break;
  }
  return false;
}

static bool nonnegative(proof *p, const kva_expr *e) {
  if (kva_expr_lo(e) >= 0) return true;
  if (kva_expr_hi(e) < 0 || kva_expr_is_overflow(e)) return false;
  if (!p->steps) {
    p->c->gave_up = true;
    return false;
  }
  p->steps--;
  for (const kva_expr *atom = youngest(e, NULL); atom; atom = youngest(e, atom)) {
    const kva_expr *k, *rest;
    kva_expr_split_atom(p->c, e, atom, &k, &rest);
    int sign = sign_of(p, k);
    if (sign && eliminate(p, k, rest, atom, sign)) return true;
    /* A quotient of sizes may have to stay. For other atoms failure is final, which keeps failing cheap. */
    if (sign && atom->kind != KVA_EXPR_DIV) return false;
  }
  return nonnegative_sizes(p, e);
}

static bool prove(kva_expr_ctx *c, const kva_expr *e, const kva_expr *nonzero) {
  if (c->proof_depth == MAX_NESTING) {
    c->gave_up = true;
    return false;
  }
  proof p = {.c = c, .steps = MAX_STEPS};
  note_extents(&p, e);
  if (nonzero) {
    if (kva_expr_lo(nonzero) >= 0) note_positive_size(&p, nonzero);
    note_extents(&p, nonzero);
  }
  c->proof_depth++;
  bool proven = nonnegative(&p, e);
  c->proof_depth--;
  return proven;
}

bool kva_expr_prove_nonnegative(kva_expr_ctx *c, const kva_expr *e, const kva_expr *nonzero) {
  if (kva_expr_lo(e) >= 0) return true;
  if (kva_expr_hi(e) < 0 || kva_expr_is_overflow(e)) return false;
  const kva_expr *key = nonzero ? nonzero : e;
  const kva_expr *known = kva_expr_recall(c, KVA_EXPR_SUM, e, key);
  if (known) return !kva_expr_is_overflow(known);
  bool outer = c->gave_up;
  c->gave_up = false;
  bool proven = prove(c, e, nonzero);
  if (!c->gave_up && !kva_expr_recall(c, KVA_EXPR_SUM, e, key)) {
    kva_expr_remember(c, KVA_EXPR_SUM, e, key, proven ? e : c->overflow);
  }
  c->gave_up |= outer;
  return proven;
}

bool kva_expr_provably_le(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b) {
  return kva_expr_prove_nonnegative(c, kva_expr_sub(c, b, a), NULL);
}

bool kva_expr_provably_less(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b) {
  return kva_expr_prove_nonnegative(c, kva_expr_addi(c, kva_expr_sub(c, b, a), -1), NULL);
}
