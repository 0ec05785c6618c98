/* Expressions as text. Ids depend on which expression was made first, so sums and pairs are printed in an order of
 * their own, and a text that is read back prints the same: numbers, symbols in the order in which they were made (texts
 * and models name them in one), then compounds by what they are made of. */
#include "ir/expr_internal.h"

#include <inttypes.h>

static int compare(const kva_expr *a, const kva_expr *b);

static int sign_of(int64_t a, int64_t b) {
  return (a > b) - (a < b);
}

/* Compares items x[i] and y[k] of two lists. */
typedef int (*compare_items)(const void *x, uint32_t i, const void *y, uint32_t k);

/* The item that follows number `last` (n: none yet) when a list is sorted; equal ones stand as in the list. */
static uint32_t next_item(const void *list, uint32_t n, uint32_t last, compare_items order) {
  uint32_t best = n;
  for (uint32_t i = 0; i < n; i++) {
    int behind = last == n ? 1 : order(list, i, list, last);
    if (behind < 0 || (!behind && i <= last)) continue;
    if (best == n || order(list, i, list, best) < 0) best = i;
  }
  return best;
}

/* Two lists of one length, each sorted. */
static int compare_sorted(const void *x, const void *y, uint32_t n, compare_items order) {
  uint32_t a = n, b = n;
  int found = 0;
  for (uint32_t i = 0; i < n && !found; i++) {
    a = next_item(x, n, a, order), b = next_item(y, n, b, order);
    found = order(x, a, y, b);
  }
  return found;
}

static int compare_factors(const void *x, uint32_t i, const void *y, uint32_t k) {
  return compare(((const kva_expr *const *)x)[i], ((const kva_expr *const *)y)[k]);
}

/* The most factors first, as sums have them (expr_sum.c). */
static int compare_terms(const void *x, uint32_t i, const void *y, uint32_t k) {
  const kva_expr_term *a = (const kva_expr_term *)x + i, *b = (const kva_expr_term *)y + k;
  if (a->n_factors != b->n_factors) return a->n_factors > b->n_factors ? -1 : 1;
  int found = compare_sorted(a->factors, b->factors, a->n_factors, compare_factors);
  return found ? found : sign_of(a->coefficient, b->coefficient);
}

static int compare_sums(const kva_expr *a, const kva_expr *b) {
  if (a->n_terms != b->n_terms) return sign_of(a->n_terms, b->n_terms);
  int found = compare_sorted(a->terms, b->terms, a->n_terms, compare_terms);
  return found ? found : sign_of(a->constant, b->constant);
}

static int rank_of(const kva_expr *e) {
  return kva_expr_is_const(e, NULL) ? 0 : e->kind == KVA_EXPR_SYMBOL ? 1 : 2 + (int)e->kind;
}

static bool commutes(const kva_expr *e) {
  return e->kind == KVA_EXPR_MIN || e->kind == KVA_EXPR_MAX;
}

static int compare_pairs(const kva_expr *a, const kva_expr *b) {
  const kva_expr *x[] = {a->a, a->b}, *y[] = {b->a, b->b};
  if (commutes(a)) return compare_sorted(x, y, 2, compare_factors);
  int found = compare(x[0], y[0]);
  return found ? found : compare(x[1], y[1]);
}

static int compare(const kva_expr *a, const kva_expr *b) {
  if (a == b) return 0;
  if (rank_of(a) != rank_of(b)) return sign_of(rank_of(a), rank_of(b));
  if (a->kind == KVA_EXPR_SYMBOL) return sign_of(a->id, b->id);
  return a->kind == KVA_EXPR_SUM ? compare_sums(a, b) : a->a ? compare_pairs(a, b) : 0;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void print_term(const kva_expr_term *t, bool first, kva_text *out) {
  if (!first) {
    kva_text_add(out, t->coefficient < 0 ? " - " : " + ");
  } else if (t->coefficient < 0) {
    kva_text_add(out, "-");
  }
  uint64_t magnitude = t->coefficient < 0 ? -(uint64_t)t->coefficient : (uint64_t)t->coefficient;
  if (magnitude != 1) kva_text_add(out, "%" PRIu64 "*", magnitude);
  uint32_t n = t->n_factors, f = n;
  for (uint32_t i = 0; i < n; i++) {
    if (i) kva_text_add(out, "*");
    f = next_item(t->factors, n, f, compare_factors);
    kva_expr_print(t->factors[f], out);
  }
}

static void print_sum(const kva_expr *e, kva_text *out) {
  uint32_t n = e->n_terms, at = n;
  for (uint32_t i = 0; i < n; i++) {
    at = next_item(e->terms, n, at, compare_terms);
    print_term(&e->terms[at], i == 0, out);
  }
  if (!e->n_terms) {
    kva_text_add(out, "%" PRId64, e->constant);
  } else if (e->constant) {
    uint64_t magnitude = e->constant < 0 ? -(uint64_t)e->constant : (uint64_t)e->constant;
    kva_text_add(out, " %c %" PRIu64, e->constant < 0 ? '-' : '+', magnitude);
  }
}

static void print_pair(const char *name, const kva_expr *e, kva_text *out) {
  bool swap = commutes(e) && compare(e->a, e->b) > 0;
  kva_text_add(out, "%s(", name);
  kva_expr_print(swap ? e->b : e->a, out);
  kva_text_add(out, ", ");
  kva_expr_print(swap ? e->a : e->b, out);
  kva_text_add(out, ")");
}

/* Imported models may use any string as a size's name. */
static void print_symbol(const char *name, kva_text *out) {
  bool plain = !(*name >= '0' && *name <= '9') && *name;
  for (const char *s = name; *s; s++) {
    plain &= (*s >= '0' && *s <= '9') || (*s >= 'a' && *s <= 'z') || (*s >= 'A' && *s <= 'Z') || *s == '_';
  }
  if (plain)
    kva_text_add(out, "%s", name);
  else
    kva_text_add_quoted(out, name);
}

void kva_expr_print(const kva_expr *e, kva_text *out) {
  switch (e->kind) {
  case KVA_EXPR_SUM: print_sum(e, out); break;
  case KVA_EXPR_SYMBOL: print_symbol(e->name, out); break;
  case KVA_EXPR_DIV: print_pair("floordiv", e, out); break;
  case KVA_EXPR_MOD: print_pair("mod", e, out); break;
  case KVA_EXPR_MIN: print_pair("min", e, out); break;
  case KVA_EXPR_MAX: print_pair("max", e, out); break;
  case KVA_EXPR_OVERFLOW: kva_text_add(out, "overflow"); break;
  }
}
