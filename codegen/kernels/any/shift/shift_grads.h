/* Shared by the kernels of kv_shift_grads: one element of its results. Definition: ops/kv_shift_grads.c. */
#ifndef KVA_KERNELS_ANY_SHIFT_SHIFT_GRADS_H
#define KVA_KERNELS_ANY_SHIFT_SHIFT_GRADS_H

#include "codegen/kernels/kernels.h"
#include "ops/kv_shift.h"

typedef struct kva_shift_grads {
  kva_lower *l;
  kva_kb *kb;
  kva_expr_ctx *c;
  kva_shift s;
  kva_dtype type; /* of dw */
  kva_shift_at at;
  const kva_expr *block, *first; /* of the rows: its number, its first */
} kva_shift_grads;

kva_shift_grads kva_shift_grads_of(kva_lower *l, const kva_node *n);
static inline const kva_expr *kva_shift_grads_num(const kva_shift_grads *g, int64_t v) {
  return kva_expr_const(g->c, v);
}
/* Element `at` of dx; after: this many rows after at.t exist. */
void kva_shift_grads_store_dx(const kva_shift_grads *g, kva_shift_at at, int64_t after);
/* Summand of tap j; after: as above. */
kva_kval kva_shift_grads_summand(const kva_shift_grads *g, kva_shift_at at, int64_t j, int64_t after);
/* The block's dw of tap j. */
void kva_shift_grads_store_dw(const kva_shift_grads *g, int64_t j, kva_kval sum);
/* Rows of the block; blocks of a sequence. */
const kva_expr *kva_shift_grads_rows(const kva_shift_grads *g);
const kva_expr *kva_shift_grads_blocks(const kva_shift_grads *g);

#endif
