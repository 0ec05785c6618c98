/* Shared by the kernels of sort_indices: keys and their places. Definition: ops/sort_indices.c. */
#ifndef KVA_KERNELS_ANY_SCATTER_SORT_INDICES_H
#define KVA_KERNELS_ANY_SCATTER_SORT_INDICES_H

#include "codegen/kernels/kernels.h"
#include "ops/sort_indices.h"

typedef struct kva_sorting {
  kva_lower *l;
  kva_kb *b;
  kva_expr_ctx *e;
  const kva_node *n;
  kva_sorted s;
  kva_kbuf *keys, *bounds;
} kva_sorting;

kva_sorting kva_sorting_of(kva_lower *l, const kva_node *n);
static inline const kva_expr *kva_sorting_num(const kva_sorting *s, int64_t v) {
  return kva_expr_const(s->e, v);
}
/* Place of key i of a chunk among all. */
const kva_expr *kva_sorting_key_place(const kva_sorting *s, const kva_expr *chunk, const kva_expr *i);
/* The first key that owner b may have. */
const kva_expr *kva_sorting_first_key(const kva_sorting *s, const kva_expr *b);
/* The chunk has `below` keys of owners before this one. */
void kva_sorting_store_bound(const kva_sorting *s, const kva_expr *chunk, const kva_expr *owner, kva_kval below);
/* The key of the chunk's i-th index. */
kva_kval kva_sorting_key_at(const kva_sorting *s, const kva_expr *chunk, const kva_expr *i);

#endif
