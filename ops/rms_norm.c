/* rms_norm(x, scale): y = x * r * scale with r = 1 / sqrt(mean(x^2) + eps), the mean over the axes from `axis` to the
 * last. scale broadcasts to x; it is usually [D].
 * Gradient, with xhat = x * r and g = dy * scale: dx = r * (g - xhat * mean(g * xhat)); dscale = dy * xhat, summed to
 * scale's shape.
 * Tolerance 16: a mean of D squares in several accumulators, a square root and three roundings. */
#include "ops/build.h"
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/row.h"

#include <math.h>

KVA_OP_FUNCTIONS(rms_norm)

kva_status kva_rms_norm_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_rms_norm_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  KVA_TRY(kva_row_infer(m, n, a->axis, out_types));
  KVA_TRY(kva_check_same_dtype(m, n, 1, 0));
  return kva_check_broadcasts_to(m, n, 1, x->rank, x->dims);
}

kva_status kva_rms_norm_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                            kva_ref_tensor *const *out) {
  (void)r;
  const kva_rms_norm_attrs *a = n->attrs;
  uint32_t rank = in[0]->rank, axis = kva_axis(a->axis, rank);
  kva_rows rows = kva_rows_of(in[0], axis, rank - axis);
  int64_t idx[KVA_MAX_RANK] = {0};
  for (int64_t i = 0; i < rows.n && rows.len > 0; i++) {
    const double *x = in[0]->f + i * rows.len;
    double sum = 0;
    for (int64_t k = 0; k < rows.len; k++) sum += x[k] * x[k];
    double scale = 1 / sqrt(sum / (double)rows.len + a->eps);
    for (int64_t k = 0; k < rows.len; k++) {
      out[0]->f[i * rows.len + k] = x[k] * scale * in[1]->f[kva_ref_broadcast_offset(in[1], rank, idx)];
      kva_next_index(rank, in[0]->dims, idx);
    }
  }
  return KVA_OK;
}

kva_status kva_rms_norm_vjp(kva_vjp *c, kva_node *n) {
  const kva_rms_norm_attrs *a = n->attrs;
  kva_builder *b = c->b;
  const kva_type *x_type = kva_operand_type(n, 0);
  kva_row_axes axes = kva_row_axes_from(a->axis, x_type->rank);
  kva_value *x = kva_widen(b, kva_operand(n, 0)), *dy = kva_widen(b, c->grad_out[0]);
  kva_value *mean = kva_reduce(b, KVA_OP_reduce_mean, kva_mul(b, x, x), axes.n, axes.v, true);
  kva_value *root = kva_build1(b, KVA_OP_sqrt, kva_add(b, mean, kva_scalar_like(b, x, a->eps)));
  kva_value *inverse = kva_build1(b, KVA_OP_reciprocal, root), *xhat = kva_mul(b, x, inverse);
  if (c->wants[0]) {
    kva_value *g = kva_mul(b, dy, kva_widen(b, kva_operand(n, 1)));
    kva_value *dot = kva_reduce(b, KVA_OP_reduce_mean, kva_mul(b, g, xhat), axes.n, axes.v, true);
    kva_value *dx = kva_mul(b, inverse, kva_sub(b, g, kva_mul(b, xhat, dot)));
    c->grad_in[0] = kva_cast(b, dx, x_type->dtype);
  }
  if (c->wants[1]) c->grad_in[1] = kva_grad_to(b, kva_mul(b, dy, xhat), kva_operand_type(n, 1));
  return KVA_OK;
}

static kva_kval square(kva_lower *l, const kva_node *n, const kva_expr *const *idx, void *user) {
  (void)user;
  kva_kval x = l->operand(l, n, 0, idx);
  return kva_k2(l->kb, KVA_K_mul, x, x);
}

kva_kval kva_rms_norm_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_rms_norm_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  uint32_t axis = kva_axis(a->axis, x->rank);
  kva_kval sum = kva_reduce_axes(l, n, KVA_COMBINE_ADD, idx, axis, x->rank - axis, square, NULL);
  kva_kval mean = kva_k2(l->kb, KVA_K_div, sum, kva_row_length(l, x, axis, sum->dtype));
  kva_kval inverse = kva_inverse_root(l, mean, a->eps);
  kva_kval xhat = kva_k2(l->kb, KVA_K_mul, l->operand(l, n, 0, idx), inverse);
  return kva_k2(l->kb, KVA_K_mul, xhat, kva_lower_broadcast(l, n, 1, idx));
}

int kva_rms_norm_row_dims(const kva_node *n) {
  return kva_row_dims_before(n, ((const kva_rms_norm_attrs *)n->attrs)->axis);
}

int kva_rms_norm_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  int64_t first = ((const kva_rms_norm_attrs *)n->attrs)->axis;
  if (operand) return kva_broadcast_source_axis(n, operand, axis);
  return axis < kva_axis(first, kva_operand_type(n, 0)->rank) ? (int)axis : KVA_MIXED;
}
