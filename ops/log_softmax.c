/* log_softmax(x): y_i = (x_i - max) - log sum_k exp(x_k - max) along `axis`, max = max_k x_k.
 * Gradient: dx = dy - exp(y) * sum_k dy_k.
 * Tolerance 16: as softmax; the logarithm adds its own error (4) to that of the sum. */
#include "ops/build.h"
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/row.h"

KVA_OP_FUNCTIONS(log_softmax)

kva_status kva_log_softmax_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_log_softmax_attrs *a = n->attrs;
  return kva_row_infer(m, n, a->axis, out_types);
}

kva_status kva_log_softmax_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                               kva_ref_tensor *const *out) {
  (void)r;
  const kva_log_softmax_attrs *a = n->attrs;
  kva_rows rows = kva_rows_of(in[0], kva_axis(a->axis, in[0]->rank), 1);
  for (int64_t i = 0; i < rows.n; i++) {
    const double *x = in[0]->f + kva_row_offset(&rows, i);
    double *y = out[0]->f + kva_row_offset(&rows, i), max = kva_row_max(&rows, x);
    double log_sum = log(kva_row_exp_sum(&rows, x, max));
    for (int64_t k = 0; k < rows.len; k++) y[k * rows.stride] = x[k * rows.stride] - max - log_sum;
  }
  return KVA_OK;
}

kva_status kva_log_softmax_vjp(kva_vjp *c, kva_node *n) {
  const kva_log_softmax_attrs *a = n->attrs;
  kva_builder *b = c->b;
  int64_t axis = kva_axis(a->axis, n->results[0].type->rank);
  kva_value *y = kva_widen(b, kva_result(n, 0)), *dy = kva_widen(b, c->grad_out[0]);
  kva_value *sum = kva_reduce(b, KVA_OP_reduce_sum, dy, 1, &axis, true);
  kva_value *dx = kva_sub(b, dy, kva_mul(b, kva_build1(b, KVA_OP_exp, y), sum));
  c->grad_in[0] = kva_cast(b, dx, n->results[0].type->dtype);
  return KVA_OK;
}

kva_kval kva_log_softmax_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_log_softmax_attrs *a = n->attrs;
  uint32_t axis = kva_axis(a->axis, kva_operand_type(n, 0)->rank);
  kva_kval max = kva_reduce_axes(l, n, KVA_COMBINE_MAX, idx, axis, 1, kva_term_element, NULL);
  kva_kval sum = kva_reduce_axes(l, n, KVA_COMBINE_ADD, idx, axis, 1, kva_term_exp, max);
  kva_kval shifted = kva_k2(l->kb, KVA_K_sub, l->operand(l, n, 0, idx), max);
  return kva_k2(l->kb, KVA_K_sub, shifted, kva_k1(l->kb, KVA_K_log, sum));
}

int kva_log_softmax_row_dims(const kva_node *n) {
  return kva_row_dims_of_last(n, ((const kva_log_softmax_attrs *)n->attrs)->axis);
}

int kva_log_softmax_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  int64_t along = ((const kva_log_softmax_attrs *)n->attrs)->axis;
  return axis == kva_axis(along, kva_operand_type(n, operand)->rank) ? KVA_MIXED : (int)axis;
}
