/* Implements row.h. */
#include "ops/row.h"
#include "ops/check.h"
#include "ops/shape.h"

kva_status kva_row_infer(kva_module *m, const kva_node *n, int64_t axis, const kva_type **out_types) {
  uint32_t ignored;
  KVA_TRY(kva_check_float(m, n, 0));
  KVA_TRY(kva_normalize_axis(m, n, axis, kva_operand_type(n, 0)->rank, &ignored));
  out_types[0] = kva_operand_type(n, 0);
  return KVA_OK;
}

kva_rows kva_rows_of(const kva_ref_tensor *x, uint32_t axis, uint32_t n_axes) {
  kva_rows rows = {.n = 1, .len = 1, .stride = 1};
  for (uint32_t i = 0; i < x->rank; i++) {
    bool along = i >= axis && i < axis + n_axes;
    if (along) rows.len *= x->dims[i];
    if (!along) rows.n *= x->dims[i];
    if (i >= axis + n_axes) rows.stride *= x->dims[i];
  }
  return rows;
}

double kva_row_max(const kva_rows *rows, const double *x) {
  double max = -INFINITY;
  for (int64_t k = 0; k < rows->len; k++) {
    double v = x[k * rows->stride];
    if (v > max || isnan(v)) max = v;
  }
  return max;
}

double kva_row_exp_sum(const kva_rows *rows, const double *x, double max) {
  double sum = 0;
  for (int64_t k = 0; k < rows->len; k++) sum += exp(x[k * rows->stride] - max);
  return sum;
}

kva_kval kva_term_exp(kva_lower *l, const kva_node *n, const kva_expr *const *idx, void *user) {
  kva_kval x = l->operand(l, n, 0, idx);
  return kva_k1(l->kb, KVA_K_exp, kva_k2(l->kb, KVA_K_sub, x, user));
}

kva_kval kva_row_length(kva_lower *l, const kva_type *x, uint32_t axis, kva_dtype t) {
  const kva_expr *len = kva_shape_product(l->kb->exprs, x->rank - axis, x->dims + axis);
  return kva_k_convert(l->kb, kva_k_index(l->kb, len), t);
}

kva_kval kva_inverse_root(kva_lower *l, kva_kval x, double eps) {
  kva_kval sum = kva_k2(l->kb, KVA_K_add, x, kva_k_const(l->kb, x->dtype, eps));
  return kva_k2(l->kb, KVA_K_div, kva_k_const(l->kb, x->dtype, 1), kva_k1(l->kb, KVA_K_sqrt, sum));
}

int kva_row_dims_before(const kva_node *n, int64_t axis) {
  uint32_t first = kva_axis(axis, kva_operand_type(n, 0)->rank);
  return first > 0 ? (int)first : -1;
}

int kva_row_dims_of_last(const kva_node *n, int64_t axis) {
  uint32_t rank = kva_operand_type(n, 0)->rank;
  return kva_axis(axis, rank) + 1 == rank ? kva_row_dims_before(n, axis) : -1;
}

kva_row_axes kva_row_axes_from(int64_t axis, uint32_t rank) {
  kva_row_axes axes = {0};
  for (uint32_t i = kva_axis(axis, rank); i < rank; i++) axes.v[axes.n++] = i;
  return axes;
}

kva_value *kva_grad_to(kva_builder *b, kva_value *x, const kva_type *type) {
  return kva_cast(b, kva_reduce_to(b, x, kva_type_with_dtype(b->m, type, x->type->dtype)), type->dtype);
}
