/* Index arithmetic on shapes, for operators that move elements: as expressions (infer, lower) and as numbers (ref). */
#ifndef KVA_OPS_SHAPE_H
#define KVA_OPS_SHAPE_H

#include "ops/build.h"

/* Product of n extents; 1 for none. */
const kva_expr *kva_shape_product(kva_expr_ctx *c, uint32_t n, const kva_dim *dims);
/* Row-major position of idx, and the inverse. Axes of constant extent 1 have index 0. */
const kva_expr *kva_shape_linear(kva_expr_ctx *c, uint32_t rank, const kva_dim *dims, const kva_expr *const *idx);
void kva_shape_split(kva_expr_ctx *c, uint32_t rank, const kva_dim *dims, const kva_expr *linear,
                     const kva_expr **out_idx);
/* Prints "[B, 4, T]" to a text that the caller frees. */
void kva_shape_print(uint32_t rank, const kva_dim *dims, kva_text *out);
/* Values of an extent and of a number of elements; 0 if they exceed 64 bits. */
double kva_extent_of(const kva_sizes *s, kva_dim extent);
double kva_elements_of(const kva_sizes *s, const kva_type *t);
/* Offset of idx in w. */
int64_t kva_ref_offset(const kva_ref_tensor *w, const int64_t *idx);
/* Copies element `from` of x to element `to` of y (same dtype). */
static inline void kva_ref_copy(const kva_ref_tensor *x, int64_t from, kva_ref_tensor *y, int64_t to) {
  if (y->f)
    y->f[to] = x->f[from];
  else
    y->i[to] = x->i[from];
}

#endif
