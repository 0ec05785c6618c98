/* softmax(x): y_i = exp(x_i - max_k x_k) / sum_k exp(x_k - max_k x_k) along `axis`. A row that is all -inf gives NaN.
 * Gradient: dx = y * (dy - sum_k dy_k y_k).
 * Tolerance 16: the exponential's error (4) enters numerator and sum, plus the sum's own rounding and the
 * product with its reciprocal. */
#include "ops/build.h"
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/row.h"

KVA_OP_FUNCTIONS(softmax)

kva_status kva_softmax_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_softmax_attrs *a = n->attrs;
  return kva_row_infer(m, n, a->axis, out_types);
}

kva_status kva_softmax_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  const kva_softmax_attrs *a = n->attrs;
  kva_rows rows = kva_rows_of(in[0], kva_axis(a->axis, in[0]->rank), 1);
  for (int64_t i = 0; i < rows.n; i++) {
    const double *x = in[0]->f + kva_row_offset(&rows, i);
    double *y = out[0]->f + kva_row_offset(&rows, i), max = kva_row_max(&rows, x);
    double sum = kva_row_exp_sum(&rows, x, max);
    for (int64_t k = 0; k < rows.len; k++) y[k * rows.stride] = exp(x[k * rows.stride] - max) / sum;
  }
  return KVA_OK;
}

kva_status kva_softmax_vjp(kva_vjp *c, kva_node *n) {
  const kva_softmax_attrs *a = n->attrs;
  kva_builder *b = c->b;
  int64_t axis = kva_axis(a->axis, n->results[0].type->rank);
  kva_value *y = kva_widen(b, kva_result(n, 0)), *dy = kva_widen(b, c->grad_out[0]);
  kva_value *dot = kva_reduce(b, KVA_OP_reduce_sum, kva_mul(b, dy, y), 1, &axis, true);
  c->grad_in[0] = kva_cast(b, kva_mul(b, y, kva_sub(b, dy, dot)), n->results[0].type->dtype);
  return KVA_OK;
}

kva_kval kva_softmax_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_softmax_attrs *a = n->attrs;
  uint32_t axis = kva_axis(a->axis, kva_operand_type(n, 0)->rank);
  kva_kval max = kva_reduce_axes(l, n, KVA_COMBINE_MAX, idx, axis, 1, kva_term_element, NULL);
  kva_kval sum = kva_reduce_axes(l, n, KVA_COMBINE_ADD, idx, axis, 1, kva_term_exp, max);
  kva_kval inverse = kva_k2(l->kb, KVA_K_div, kva_k_const_f(l->kb, sum->dtype, 1), sum);
  return kva_k2(l->kb, KVA_K_mul, kva_term_exp(l, n, idx, max), inverse);
}

int kva_softmax_row_dims(const kva_node *n) {
  return kva_row_dims_of_last(n, ((const kva_softmax_attrs *)n->attrs)->axis);
}

int kva_softmax_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  int64_t along = ((const kva_softmax_attrs *)n->attrs)->axis;
  return axis == kva_axis(along, kva_operand_type(n, operand)->rank) ? KVA_MIXED : (int)axis;
}
