/* Index arithmetic on shapes. */
#include "ops/shape.h"

const kva_expr *kva_shape_product(kva_expr_ctx *c, uint32_t n, const kva_dim *dims) {
  const kva_expr *product = kva_expr_const(c, 1);
  for (uint32_t i = 0; i < n; i++) product = kva_expr_mul(c, product, dims[i]);
  return product;
}

const kva_expr *kva_shape_linear(kva_expr_ctx *c, uint32_t rank, const kva_dim *dims, const kva_expr *const *idx) {
  const kva_expr *linear = kva_expr_const(c, 0);
  for (uint32_t i = 0; i < rank; i++) {
    if (kva_expr_is(dims[i], 1)) continue;
    linear = kva_expr_add(c, kva_expr_mul(c, linear, dims[i]), idx[i]);
  }
  return linear;
}

void kva_shape_split(kva_expr_ctx *c, uint32_t rank, const kva_dim *dims, const kva_expr *linear,
                     const kva_expr **out_idx) {
  uint32_t first = 0; /* the outermost axis needs no remainder */
  while (first < rank && kva_expr_is(dims[first], 1)) first++;
  for (uint32_t i = rank; i-- > 0;) {
    bool trivial = kva_expr_is(dims[i], 1) || kva_expr_is(dims[i], 0);
    if (trivial)
      out_idx[i] = kva_expr_const(c, 0);
    else if (i == first)
      out_idx[i] = linear;
    else {
      out_idx[i] = kva_expr_mod(c, linear, dims[i]);
      linear = kva_expr_div(c, linear, dims[i]);
    }
  }
}

void kva_shape_print(uint32_t rank, const kva_dim *dims, kva_text *out) {
  kva_text_add(out, "[");
  for (uint32_t i = 0; i < rank; i++) {
    if (i) kva_text_add(out, ", ");
    kva_expr_print(dims[i], out);
  }
  kva_text_add(out, "]");
}

int64_t kva_ref_offset(const kva_ref_tensor *w, const int64_t *idx) {
  int64_t offset = 0;
  for (uint32_t i = 0; i < w->rank; i++) offset = offset * w->dims[i] + idx[i];
  return offset;
}

double kva_extent_of(const kva_sizes *s, kva_dim extent) {
  int64_t v;
  return kva_expr_eval(extent, s->lookup, s->user, &v) ? (double)v : 0;
}

double kva_elements_of(const kva_sizes *s, const kva_type *t) {
  return kva_extent_of(s, kva_type_elements(s->m, t));
}
