/* Masks whose pattern follows from the index alone: the first rows of an axis, causal masks, windows. Axes are counted
 * from the right, as in raise_index.h. */
#ifndef KVA_PASSES_RAISE_MASK_H
#define KVA_PASSES_RAISE_MASK_H

#include "passes/raise_index.h"

/* v is a mask that depends on one axis alone and has one value (*out_first) in the first *out_rows rows, the other one
 * after them. Bools, and floats that are 0 and 1. */
bool kva_head_mask(kva_expr_ctx *c, const kva_value *v, uint32_t axis, int64_t *out_rows, bool *out_first);

/* Which keys s (axis 0) a query t (axis 1) sees: t + lower < s <= t + upper. NULL: no bound. */
typedef struct kva_visibility {
  kva_dim upper, lower;
} kva_visibility;

typedef enum kva_mask_kind {
  KVA_MASK_VISIBLE, /* bool, true: visible */
  KVA_MASK_HIDDEN,  /* bool, true: hidden */
  KVA_MASK_ADDED,   /* float, 0: visible, KVA_HIDDEN_SCORE or less: hidden */
} kva_mask_kind;
/* exp() of it vanishes beside any score of a sane model. */
#define KVA_HIDDEN_SCORE (-1e4)

/* v hides exactly what bounds on s - t hide, in a plane of plane[0] queries and plane[1] keys: they are merged into
 * *io. False: it does not, or other bounds of the same kind are there already; *io is unchanged. */
bool kva_visibility_of(kva_expr_ctx *c, const kva_value *v, kva_mask_kind kind, const kva_dim plane[2],
                       kva_visibility *io);

#endif
