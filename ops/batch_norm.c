/* batch_norm(x[N, C, ...], scale[C], bias[C], mean[C], var[C]): y = (x - mean) * r * scale + bias with
 * r = 1 / sqrt(var + eps), the inference form: mean and variance are operands. With `training`, a training step
 * (passes/train_norm.c) takes those of x instead, and moves the operands towards them:
 *
 *   running = momentum * running + (1 - momentum) * current      (ONNX BatchNormalization 14, training_mode)
 *
 * Gradient of the inference form, with xhat = (x - mean) * r, sums over all axes but the channel's: dx = dy * scale *
 * r; dscale = sum dy * xhat; dbias = sum dy; dmean = -scale * r * sum dy; dvar = -scale * r^2 / 2 * sum dy * xhat.
 * Tolerance 8: a root, a division and four roundings; relative to the largest of |x|, |mean| where they cancel. */
#include "ops/batch_norm.h"
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/row.h"

#include <math.h>

KVA_OP_FUNCTIONS(batch_norm)

enum { X = KVA_NORM_X, SCALE = KVA_NORM_SCALE, BIAS = KVA_NORM_BIAS, MEAN = KVA_NORM_MEAN, VAR = KVA_NORM_VAR };

/* Channels are axis 1 of x and all that the others have. */
int kva_batch_norm_agrees(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis) {
  (void)attrs, (void)t;
  return axis == (operand ? 0 : 1) ? KVA_AGREES_FULL : -1;
}

kva_status kva_batch_norm_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *x = kva_operand_type(n, X);
  KVA_TRY(kva_check_float(m, n, X));
  KVA_TRY(kva_check_min_rank(m, n, X, 2));
  for (uint32_t i = SCALE; i <= VAR; i++) {
    KVA_TRY(kva_check_same_dtype(m, n, i, X));
    KVA_TRY(kva_check_shape(m, n, i, 1, x->dims + 1));
  }
  double momentum = ((const kva_batch_norm_attrs *)n->attrs)->momentum;
  if (!(momentum >= 0 && momentum <= 1))
    return kva_error(m->diag, &n->loc, "kv.batch_norm: expected 0 <= momentum <= 1, found %g", momentum);
  out_types[0] = x;
  return KVA_OK;
}

kva_status kva_batch_norm_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                              kva_ref_tensor *const *out) {
  (void)r;
  const kva_batch_norm_attrs *a = n->attrs;
  kva_rows rows = kva_rows_of(in[X], 1, 1);
  for (int64_t i = 0; i < in[X]->n; i++) {
    int64_t c = i / rows.stride % rows.len;
    double xhat = (in[X]->f[i] - in[MEAN]->f[c]) / sqrt(in[VAR]->f[c] + a->eps);
    out[0]->f[i] = xhat * in[SCALE]->f[c] + in[BIAS]->f[c];
  }
  return KVA_OK;
}

/* v[C] in wide arithmetic as [C, 1, ...], which broadcasts along x's channels. */
static kva_value *per_channel(kva_builder *b, kva_value *v, uint32_t x_rank) {
  kva_dim shape[KVA_MAX_RANK] = {v->type->dims[0]};
  for (uint32_t i = 1; i + 1 < x_rank; i++) shape[i] = kva_expr_const(b->m->exprs, 1);
  return kva_reshape(b, kva_widen(b, v), x_rank - 1, shape);
}

/* A reduction over all axes except the channel's, [C]. */
static kva_value *over_channels(kva_builder *b, kva_op_id op, kva_value *x) {
  int64_t axes[KVA_MAX_RANK] = {0};
  for (uint32_t i = 2; i < x->type->rank; i++) axes[i - 1] = i;
  return kva_reduce(b, op, x, x->type->rank - 1, axes, false);
}

void kva_batch_statistics(kva_builder *b, kva_value *x, kva_value **out_mean, kva_value **out_var) {
  *out_mean = over_channels(b, KVA_OP_reduce_mean, x);
  kva_dim shape[KVA_MAX_RANK];
  for (uint32_t i = 0; i < x->type->rank; i++) shape[i] = i == 1 ? x->type->dims[1] : kva_expr_const(b->m->exprs, 1);
  kva_value *centred = kva_sub(b, x, kva_reshape(b, *out_mean, x->type->rank, shape));
  *out_var = over_channels(b, KVA_OP_reduce_mean, kva_mul(b, centred, centred));
}

kva_value *kva_running_statistic(kva_builder *b, kva_value *running, kva_value *current, double momentum) {
  current = kva_cast(b, current, running->type->dtype);
  return kva_add(b, kva_mul(b, running, kva_scalar_like(b, running, momentum)),
                 kva_mul(b, current, kva_scalar_like(b, running, 1 - momentum)));
}

kva_status kva_batch_norm_vjp(kva_vjp *c, kva_node *n) {
  const kva_batch_norm_attrs *a = n->attrs;
  kva_builder *b = c->b;
  uint32_t rank = kva_operand_type(n, X)->rank;
  kva_dtype t = kva_operand_type(n, X)->dtype;
  kva_value *dy = kva_widen(b, c->grad_out[0]), *var = kva_widen(b, kva_operand(n, VAR));
  kva_value *root = kva_build1(b, KVA_OP_sqrt, kva_add(b, var, kva_scalar_like(b, var, a->eps)));
  kva_value *inverse = kva_build1(b, KVA_OP_reciprocal, root);
  kva_value *slope = kva_mul(b, kva_widen(b, kva_operand(n, SCALE)), inverse);
  kva_value *centred = kva_sub(b, kva_widen(b, kva_operand(n, X)), per_channel(b, kva_operand(n, MEAN), rank));
  kva_value *xhat = kva_mul(b, centred, per_channel(b, inverse, rank));
  kva_value *sum = over_channels(b, KVA_OP_reduce_sum, dy);
  kva_value *dot = over_channels(b, KVA_OP_reduce_sum, kva_mul(b, dy, xhat));
  kva_value *half = kva_mul(b, kva_mul(b, slope, inverse), kva_scalar_like(b, slope, -0.5));
  kva_value *grads[5] = {kva_mul(b, dy, per_channel(b, slope, rank)), dot, sum, kva_neg(b, kva_mul(b, slope, sum)),
                         kva_mul(b, half, dot)};
  for (uint32_t i = X; i <= VAR; i++) {
    if (c->wants[i]) c->grad_in[i] = kva_cast(b, grads[i], t);
  }
  return KVA_OK;
}

kva_kval kva_batch_norm_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_batch_norm_attrs *a = n->attrs;
  kva_kb *kb = l->kb;
  const kva_expr *const *c = idx + 1;
  kva_kval inverse = kva_inverse_root(l, l->operand(l, n, VAR, c), a->eps);
  kva_kval centred = kva_k2(kb, KVA_K_sub, l->operand(l, n, X, idx), l->operand(l, n, MEAN, c));
  kva_kval slope = kva_k2(kb, KVA_K_mul, inverse, l->operand(l, n, SCALE, c));
  return kva_k_op(kb, KVA_K_fma, centred, slope, l->operand(l, n, BIAS, c));
}

int kva_batch_norm_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  (void)n;
  if (operand == X) return (int)axis;
  return axis == 1 ? 0 : KVA_SAME_FOR_ALL;
}
