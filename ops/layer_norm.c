/* layer_norm(x, scale, bias?): y = (x - mean) * r * scale + bias with r = 1 / sqrt(var + eps); mean and (biased)
 * variance over the axes from `axis` to the last. scale and bias broadcast to x. Gradient, with xhat = (x - mean) * r
 * and g = dy * scale: dx = r * (g - mean(g) - xhat * mean(g * xhat)); dscale and dbias are dy * xhat and dy, summed to
 * their shapes. Tolerance 32: two passes over the row, the second on differences; x - mean cancels where a row is
 * nearly constant, so the error is relative to the largest |x|. */
#include "ops/build.h"
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/row.h"

#include <math.h>

KVA_OP_FUNCTIONS(layer_norm)

kva_status kva_layer_norm_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_layer_norm_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  KVA_TRY(kva_row_infer(m, n, a->axis, out_types));
  for (uint32_t i = 1; i < 3; i++) {
    KVA_TRY(kva_check_same_dtype(m, n, i, 0));
    KVA_TRY(kva_check_broadcasts_to(m, n, i, x->rank, x->dims));
  }
  return KVA_OK;
}

typedef struct moments {
  double mean, inverse;
} moments;

static moments moments_of(const double *x, int64_t len, double eps) {
  double sum = 0, squares = 0;
  for (int64_t k = 0; k < len; k++) sum += x[k];
  double mean = sum / (double)len;
  for (int64_t k = 0; k < len; k++) squares += (x[k] - mean) * (x[k] - mean);
  return (moments){mean, 1 / sqrt(squares / (double)len + eps)};
}

kva_status kva_layer_norm_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                              kva_ref_tensor *const *out) {
  (void)r;
  const kva_layer_norm_attrs *a = n->attrs;
  const kva_ref_tensor *bias = n->n_operands > 2 ? in[2] : NULL;
  uint32_t rank = in[0]->rank, axis = kva_axis(a->axis, rank);
  kva_rows rows = kva_rows_of(in[0], axis, rank - axis);
  int64_t idx[KVA_MAX_RANK] = {0};
  for (int64_t i = 0; i < rows.n && rows.len > 0; i++) {
    const double *x = in[0]->f + i * rows.len;
    moments m = moments_of(x, rows.len, a->eps);
    for (int64_t k = 0; k < rows.len; k++) {
      double y = (x[k] - m.mean) * m.inverse * in[1]->f[kva_ref_broadcast_offset(in[1], rank, idx)];
      out[0]->f[i * rows.len + k] = y + (bias ? bias->f[kva_ref_broadcast_offset(bias, rank, idx)] : 0);
      kva_next_index(rank, in[0]->dims, idx);
    }
  }
  return KVA_OK;
}

kva_status kva_layer_norm_vjp(kva_vjp *c, kva_node *n) {
  const kva_layer_norm_attrs *a = n->attrs;
  kva_builder *b = c->b;
  const kva_type *x_type = kva_operand_type(n, 0);
  kva_row_axes axes = kva_row_axes_from(a->axis, x_type->rank);
  kva_value *x = kva_widen(b, kva_operand(n, 0)), *dy = kva_widen(b, c->grad_out[0]);
  kva_value *centred = kva_sub(b, x, kva_reduce(b, KVA_OP_reduce_mean, x, axes.n, axes.v, true));
  kva_value *var = kva_reduce(b, KVA_OP_reduce_mean, kva_mul(b, centred, centred), axes.n, axes.v, true);
  kva_value *root = kva_build1(b, KVA_OP_sqrt, kva_add(b, var, kva_scalar_like(b, x, a->eps)));
  kva_value *inverse = kva_build1(b, KVA_OP_reciprocal, root), *xhat = kva_mul(b, centred, inverse);
  if (c->wants[0]) {
    kva_value *g = kva_mul(b, dy, kva_widen(b, kva_operand(n, 1)));
    kva_value *mean = kva_reduce(b, KVA_OP_reduce_mean, g, axes.n, axes.v, true);
    kva_value *dot = kva_reduce(b, KVA_OP_reduce_mean, kva_mul(b, g, xhat), axes.n, axes.v, true);
    kva_value *dx = kva_mul(b, inverse, kva_sub(b, kva_sub(b, g, mean), kva_mul(b, xhat, dot)));
    c->grad_in[0] = kva_cast(b, dx, x_type->dtype);
  }
  if (c->wants[1]) c->grad_in[1] = kva_grad_to(b, kva_mul(b, dy, xhat), kva_operand_type(n, 1));
  if (kva_operand(n, 2) && c->wants[2]) c->grad_in[2] = kva_grad_to(b, dy, kva_operand_type(n, 2));
  return KVA_OK;
}

static kva_kval squared_distance(kva_lower *l, const kva_node *n, const kva_expr *const *idx, void *mean) {
  kva_kval centred = kva_k2(l->kb, KVA_K_sub, l->operand(l, n, 0, idx), mean);
  return kva_k2(l->kb, KVA_K_mul, centred, centred);
}

kva_kval kva_layer_norm_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_layer_norm_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  uint32_t axis = kva_axis(a->axis, x->rank);
  kva_kval sum = kva_reduce_axes(l, n, KVA_COMBINE_ADD, idx, axis, x->rank - axis, kva_term_element, NULL);
  kva_kval len = kva_row_length(l, x, axis, sum->dtype);
  kva_kval mean = kva_k2(l->kb, KVA_K_div, sum, len);
  kva_kval squares = kva_reduce_axes(l, n, KVA_COMBINE_ADD, idx, axis, x->rank - axis, squared_distance, mean);
  kva_kval inverse = kva_inverse_root(l, kva_k2(l->kb, KVA_K_div, squares, len), a->eps);
  kva_kval centred = kva_k2(l->kb, KVA_K_sub, l->operand(l, n, 0, idx), mean);
  kva_kval y = kva_k2(l->kb, KVA_K_mul, kva_k2(l->kb, KVA_K_mul, centred, inverse), kva_lower_broadcast(l, n, 1, idx));
  return kva_operand(n, 2) ? kva_k2(l->kb, KVA_K_add, y, kva_lower_broadcast(l, n, 2, idx)) : y;
}

int kva_layer_norm_row_dims(const kva_node *n) {
  return kva_row_dims_before(n, ((const kva_layer_norm_attrs *)n->attrs)->axis);
}

int kva_layer_norm_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  int64_t first = ((const kva_layer_norm_attrs *)n->attrs)->axis;
  if (operand) return kva_broadcast_source_axis(n, operand, axis);
  return axis < kva_axis(first, kva_operand_type(n, 0)->rank) ? (int)axis : KVA_MIXED;
}
