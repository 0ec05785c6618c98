/* What the matchers know of index arithmetic: integer tensors that are affine in their own index, and masks that are
 * comparisons of such. Axes are counted from the right (0: the last), which is how broadcasting aligns them. */
#ifndef KVA_PASSES_RAISE_INDEX_H
#define KVA_PASSES_RAISE_INDEX_H

#include "passes/passes_internal.h"

/* v[.., i1, i0] = base + sum_k c[k] i_k; c is 0 for axes of extent 1. */
typedef struct kva_line {
  int64_t c[KVA_MAX_RANK];
  kva_dim base;
} kva_line;

/* iota, shapes, small constants in arithmetic progression, and sums, movements and casts of these. */
bool kva_line_of(kva_expr_ctx *c, const kva_value *v, kva_line *out);

/* A mask: true (or 1) where the line is <= 0 (IS_LE), or == 0; or exactly elsewhere with `negated`. */
typedef struct kva_predicate {
  kva_line line;
  bool equal, negated;
} kva_predicate;
bool kva_predicate_of(kva_expr_ctx *c, const kva_value *v, kva_predicate *out);

/* v is a mask that depends on one axis alone and has one value (*out_first) in the first *out_rows rows, the other one
 * after them. Bools, and floats that are 0 and 1. */
bool kva_head_mask(kva_expr_ctx *c, const kva_value *v, uint32_t axis, int64_t *out_rows, bool *out_first);

#endif
