/* Masks whose pattern is a function of the indices: the first rows of an axis, causal masks, windows. Axes are counted
 * from the right, as in raise_index.h. */
#ifndef KVA_PASSES_RAISE_MASK_H
#define KVA_PASSES_RAISE_MASK_H

#include "passes/raise_index.h"

/* Whether v is a mask (bool, or float 0 and 1) that depends on one axis only, with the value *out_first in the first
 * *out_rows rows and the other value after them. */
bool kva_head_mask(kva_expr_ctx *c, const kva_value *v, uint32_t axis, int64_t *out_rows, bool *out_first);

/* The keys s (axis 0) visible to query t (axis 1): t + lower < s <= t + upper. NULL: no bound. */
typedef struct kva_visibility {
  kva_dim upper, lower;
} kva_visibility;

typedef enum kva_mask_kind {
  KVA_MASK_VISIBLE, /* bool, true: visible */
  KVA_MASK_HIDDEN,  /* bool, true: hidden */
  KVA_MASK_ADDED,   /* float, 0: visible, at most KVA_HIDDEN_SCORE: hidden */
} kva_mask_kind;
/* exp() of it is negligible beside realistic scores. */
#define KVA_HIDDEN_SCORE (-1e4)

/* If v hides exactly what bounds on s - t hide, for plane[0] queries and plane[1] keys, merges these into *io. False,
 * with *io unchanged: v does not, or conflicting bounds are already present. */
bool kva_visibility_of(kva_expr_ctx *c, const kva_value *v, kva_mask_kind kind, const kva_dim plane[2],
                       kva_visibility *io);

#endif
