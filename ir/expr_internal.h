/* Shared by the files of the expression algebra (expr*.c) and private to them. */
#ifndef KVA_IR_EXPR_INTERNAL_H
#define KVA_IR_EXPR_INTERNAL_H

#include "ir/expr.h"

/* Limits that keep printing, evaluation and recursion cheap, whatever a model's shape arithmetic builds. An expression
 * beyond them becomes `overflow`. */
enum {
  KVA_EXPR_MAX_SIZE = 1 << 14,    /* nodes of the expression as a tree */
  KVA_EXPR_MAX_DEPTH = 128,       /* nesting of div, mod, min, max */
  KVA_EXPR_MAX_PRODUCT = 1 << 12, /* terms of an expanded product */
  KVA_EXPR_MAX_DEGREE = 32,       /* factors of a term */
};

/* An expression with the context's data about it. `e` is the first member, so an expression's address is its node's. */
typedef struct kva_expr_node {
  kva_expr e;
  int64_t lo, hi; /* proven constant bounds; INT64_MIN, INT64_MAX: none */
  uint32_t size, depth;
  uint32_t n_symbols; /* distinct, sorted by id */
  const kva_expr *const *symbols;
} kva_expr_node;

static inline const kva_expr_node *kva_expr_node_of(const kva_expr *e) {
  return (const kva_expr_node *)(const void *)e;
}
static inline int64_t kva_expr_lo(const kva_expr *e) {
  return kva_expr_node_of(e)->lo;
}
static inline int64_t kva_expr_hi(const kva_expr *e) {
  return kva_expr_node_of(e)->hi;
}
static inline bool kva_expr_is_overflow(const kva_expr *e) {
  return e->kind == KVA_EXPR_OVERFLOW;
}

/* Open-addressed set of pointers with their hashes. */
typedef struct kva_expr_table {
  uint64_t *hashes;
  const void **items;
  uint32_t len, cap;
} kva_expr_table;

/* A sum under construction: terms in any order, possibly repeated. Recycled by its context. */
typedef struct kva_poly {
  kva_expr_ctx *ctx;
  int64_t constant;
  bool overflow;
  KVA_VEC(kva_expr_term) terms;
  struct kva_poly *next_free;
} kva_poly;

struct kva_expr_ctx {
  kva_arena *arena;
  kva_map *symbols;         /* by name */
  kva_expr_table exprs;     /* kva_expr_node */
  kva_expr_table monomials; /* sorted factor lists: equal lists are equal pointers */
  kva_expr_table memo;      /* results of div, mod, min, max and proofs */
  kva_poly *free_polys;
  const kva_expr *overflow;
  KVA_VEC(const kva_expr *) all;     /* by id */
  KVA_VEC(const kva_expr *) waiting; /* symbols of the expression that is being interned */
  uint32_t proof_depth;              /* nesting of proofs: simplification inside a proof starts proofs */
  bool gave_up; /* a proof ran out of steps since this was cleared: results that depend on it are not memoised */
};

/* ---- sums (expr_sum.c) ------------------------------------------------------------------------------------------- */

kva_poly *kva_poly_create(kva_expr_ctx *c);
void kva_poly_discard(kva_poly *p);
/* p += scale * e */
void kva_poly_add(kva_poly *p, const kva_expr *e, int64_t scale);
void kva_poly_add_const(kva_poly *p, int64_t v);
/* p += scale * product of n factors (atoms, in any order) */
void kva_poly_add_term(kva_poly *p, int64_t scale, uint32_t n, const kva_expr *const *factors);
/* p += scale * e * product of n factors */
void kva_poly_add_scaled(kva_poly *p, const kva_expr *e, int64_t scale, uint32_t n, const kva_expr *const *factors);
/* Sorts, merges equal monomials, drops zeros. */
void kva_poly_normalize(kva_poly *p);
/* Returns the canonical expression; discards p. */
const kva_expr *kva_poly_finish(kva_poly *p);

/* An expression as terms; an atom is a single term, which is stored here. */
typedef struct kva_terms {
  int64_t constant;
  uint32_t n;
  const kva_expr_term *v;
  kva_expr_term one;
  const kva_expr *factor[1];
} kva_terms;
void kva_expr_terms(const kva_expr *e, kva_terms *out);
/* Removes the factors of `divisor` (sorted) from those of t; false if t lacks one. out has room for t->n_factors -
 * n_divisor. */
bool kva_factors_divide(const kva_expr_term *t, uint32_t n_divisor, const kva_expr *const *divisor,
                        const kva_expr **out);
/* The interned list with the contents of `factors` (sorted). */
const kva_expr *const *kva_expr_monomial(kva_expr_ctx *c, uint32_t n, const kva_expr *const *factors);
/* e = coefficient * atom + rest, taking one power of atom from each term that contains it; both may still use atom. */
void kva_expr_split_atom(kva_expr_ctx *c, const kva_expr *e, const kva_expr *atom, const kva_expr **out_coefficient,
                         const kva_expr **out_rest);

/* ---- interning (expr.c) ------------------------------------------------------------------------------------------ */

const kva_expr *kva_expr_intern(kva_expr_ctx *c, const kva_expr *e);
const void *kva_expr_table_find(const kva_expr_table *t, uint64_t hash, bool (*same)(const void *item, const void *key),
                                const void *key);
void kva_expr_table_add(kva_arena *arena, kva_expr_table *t, uint64_t hash, const void *item);
/* A context with equal expressions under equal ids: e's copy is all.data[e->id]. */
kva_expr_ctx *kva_expr_ctx_clone(const kva_expr_ctx *c, kva_arena *arena);
/* A structural hash that does not depend on ids; symbol_hash hashes symbols. */
uint64_t kva_expr_hash(const kva_expr *e, uint64_t (*symbol_hash)(void *user, const kva_expr *symbol), void *user);
/* Constant bounds of an expression from those of its parts (expr_bounds.c). */
void kva_expr_bounds(const kva_expr *e, int64_t *out_lo, int64_t *out_hi);

/* ---- simplification and proof ------------------------------------------------------------------------------------ */

/* Replaces t*n*(x / n) + t*(x % n) by t*x, and similar sums (expr_join.c). True: p changed. */
bool kva_poly_recombine(kva_poly *p);
/* Memoised results (expr_memo.c). The prover uses the kinds KVA_EXPR_SYMBOL and KVA_EXPR_SUM. */
const kva_expr *kva_expr_recall(kva_expr_ctx *c, kva_expr_kind kind, const kva_expr *a, const kva_expr *b);
void kva_expr_remember(kva_expr_ctx *c, kva_expr_kind kind, const kva_expr *a, const kva_expr *b,
                       const kva_expr *result);
typedef const kva_expr *(*kva_expr_simplifier)(kva_expr_ctx *c, kva_expr_kind kind, const kva_expr *a,
                                               const kva_expr *b);
/* compute(c, kind, a, b), memoised; overflow if a or b is. */
const kva_expr *kva_expr_memoised(kva_expr_ctx *c, kva_expr_kind kind, const kva_expr *a, const kva_expr *b,
                                  kva_expr_simplifier compute);
/* q with a = q * b, or NULL if b does not divide a term by term (expr_simplify.c). */
const kva_expr *kva_expr_exact_quotient(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b);
/* Proves e >= 0 for every value of its symbols (expr_prove.c). nonzero: an expression known not to be 0, or NULL. */
bool kva_expr_prove_nonnegative(kva_expr_ctx *c, const kva_expr *e, const kva_expr *nonzero);

static inline int64_t kva_floor_div(int64_t a, int64_t b) {
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
static inline int64_t kva_floor_mod(int64_t a, int64_t b) {
  return a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
}

#endif
