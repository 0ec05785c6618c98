/* Index arithmetic for the matchers: integer tensors that are affine in their own indices. Axes are counted from the
 * right (0: the last), as broadcasting aligns them. */
#ifndef KVA_PASSES_RAISE_INDEX_H
#define KVA_PASSES_RAISE_INDEX_H

#include "passes/passes_internal.h"

/* v[.., i1, i0] = base + sum_k c[k] i_k; c is 0 for axes of extent 1. */
typedef struct kva_line {
  int64_t c[KVA_MAX_RANK];
  kva_dim base;
} kva_line;

/* Handles iota, shapes, small constants in arithmetic progression, and sums, products, movements and casts of
 * these, as far as their types hold every position; pieces that continue each other; comparisons that are the same
 * everywhere (0 or 1). */
bool kva_line_of(kva_expr_ctx *c, const kva_value *v, kva_line *out);
/* A comparison of lines, as one with 0: true where out <= 0, or for kv.equal where out == 0. */
bool kva_line_of_comparison(kva_expr_ctx *c, const kva_node *n, kva_line *out);
/* Whether a line is a number everywhere. */
bool kva_line_is_constant(const kva_line *line, int64_t *out);
/* Maps the line of n's operand to that of n, if n only moves elements. */
bool kva_line_move(kva_expr_ctx *c, const kva_node *n, kva_line *line);

#endif
