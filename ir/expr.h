/* Integer expressions over symbols, interned and canonical: equal expressions are equal pointers.
 *
 * One algebra serves two purposes: shapes (`B`, `T + P`, `ceil(N / 2)`) and the index arithmetic of kernels, whose loop
 * variables are symbols with a range. An expression is a sum of products with integer coefficients whose factors are
 * atoms: symbols, floordiv, mod, min, max. Construction simplifies with what ranges prove, e.g. for 0 <= j < N: (i*N +
 * j) / N -> i and (i*N + j) % N -> j; so reshapes are free after fusion.
 *
 * Arithmetic on constants is checked. An overflow yields the expression of kind KVA_EXPR_OVERFLOW, which absorbs
 * everything and which shape checks report. */
#ifndef KVA_IR_EXPR_H
#define KVA_IR_EXPR_H

#include "runtime/base/base.h"

typedef struct kva_expr kva_expr;
typedef const kva_expr *kva_dim; /* an expression that is a tensor's extent (>= 0) */
typedef struct kva_expr_ctx kva_expr_ctx;

typedef enum kva_expr_kind {
  KVA_EXPR_SUM, /* constant + sum of terms; a plain constant is a sum of no terms */
  KVA_EXPR_SYMBOL,
  KVA_EXPR_DIV, /* floor(a / b) */
  KVA_EXPR_MOD, /* a - b * floor(a / b) */
  KVA_EXPR_MIN,
  KVA_EXPR_MAX,
  KVA_EXPR_OVERFLOW,
} kva_expr_kind;

/* coefficient * factors[0] * ... ; factors are atoms sorted by id, repeated for powers. */
typedef struct kva_expr_term {
  int64_t coefficient;
  uint32_t n_factors;
  const kva_expr *const *factors;
} kva_expr_term;

struct kva_expr {
  kva_expr_kind kind;
  uint32_t id;      /* dense in its context; also the canonical order */
  int64_t constant; /* SUM */
  uint32_t n_terms; /* SUM; terms sorted */
  const kva_expr_term *terms;
  const kva_expr *a, *b; /* DIV, MOD, MIN, MAX */
  const char *name;      /* SYMBOL */
  /* SYMBOL: lo <= value; value < extent if extent is not NULL (loop variables). Shape symbols: lo = 0, NULL. */
  int64_t lo;
  const kva_expr *extent;
};

kva_expr_ctx *kva_expr_ctx_create(kva_arena *arena);

const kva_expr *kva_expr_const(kva_expr_ctx *c, int64_t v);
/* The shape symbol of this name (created on first use). */
const kva_expr *kva_expr_symbol(kva_expr_ctx *c, const char *name);
/* A new shape symbol: `name`, or the first free one of name_2, name_3, ... */
const kva_expr *kva_expr_new_symbol(kva_expr_ctx *c, const char *name);
/* A new symbol distinct from every other, lo <= v < extent (extent NULL: only >= lo). For loop variables and values
 * read from memory (gather indices: extent NULL, lo = INT64_MIN if nothing is known). */
const kva_expr *kva_expr_fresh(kva_expr_ctx *c, const char *name, int64_t lo, const kva_expr *extent);

const kva_expr *kva_expr_add(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b);
const kva_expr *kva_expr_sub(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b);
const kva_expr *kva_expr_mul(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b);
const kva_expr *kva_expr_div(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b); /* floor; b != 0 */
const kva_expr *kva_expr_ceildiv(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b);
const kva_expr *kva_expr_mod(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b);
const kva_expr *kva_expr_min(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b);
const kva_expr *kva_expr_max(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b);
/* With a C integer on the right. */
const kva_expr *kva_expr_addi(kva_expr_ctx *c, const kva_expr *a, int64_t v);
const kva_expr *kva_expr_muli(kva_expr_ctx *c, const kva_expr *a, int64_t v);

bool kva_expr_is_const(const kva_expr *e, int64_t *out_v); /* out_v may be NULL */
bool kva_expr_is(const kva_expr *e, int64_t v);            /* is the constant v */
/* Proven bounds; false: none is known on that side. Loop variables with symbolic extents have only a lower bound here,
 * but kva_expr_provably_less uses their extents. */
bool kva_expr_lower_bound(const kva_expr *e, int64_t *out_lo);
bool kva_expr_upper_bound(const kva_expr *e, int64_t *out_hi);
/* a < b (a <= b) for all values of the symbols in their ranges; false: not proven. */
bool kva_expr_provably_less(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b);
bool kva_expr_provably_le(kva_expr_ctx *c, const kva_expr *a, const kva_expr *b);

/* The greatest common divisor, 0 of two zeros; 1 instead of 2^63. */
int64_t kva_gcd(int64_t a, int64_t b);

bool kva_expr_uses(const kva_expr *e, const kva_expr *symbol);
/* Nodes of e as a tree, which is about what computing it takes; for overflow more than any budget. */
uint32_t kva_expr_size(const kva_expr *e);
/* e = coefficient * symbol + rest with both free of symbol; false: e is not affine in it. */
bool kva_expr_affine(kva_expr_ctx *c, const kva_expr *e, const kva_expr *symbol, const kva_expr **out_coefficient,
                     const kva_expr **out_rest);
/* Replaces symbols from[i] by to[i]. */
const kva_expr *kva_expr_substitute(kva_expr_ctx *c, const kva_expr *e, uint32_t n, const kva_expr *const *from,
                                    const kva_expr *const *to);
/* Calls visit once for every distinct symbol in e. */
void kva_expr_each_symbol(const kva_expr *e, void (*visit)(void *user, const kva_expr *symbol), void *user);

/* Value under a binding: lookup(user, symbol, &v) returns false for unbound symbols. False: unbound or overflow. */
typedef bool (*kva_expr_lookup)(void *user, const kva_expr *symbol, int64_t *out_v);
bool kva_expr_eval(const kva_expr *e, kva_expr_lookup lookup, void *user, int64_t *out_v);

/* Text in `.kv` syntax: `B`, `T + 1`, `2*B*T`, `floordiv(N, 2)`, `mod(i, 4)`, `min(a, b)`; constants plain. */
void kva_expr_print(const kva_expr *e, kva_text *out);

#endif
