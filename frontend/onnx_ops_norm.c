/* Rules: normalisations. Group and instance normalisation are layer normalisation of a reshaped tensor. */
#include "frontend/onnx_rules.h"
#include "ops/batch_norm.h"
#include "ops/ids.h"

/* ---- batch ------------------------------------------------------------------------------------------------------- */

/* Since version 15 statistics of narrow types may be floats: then all is. */
kva_status kva_onnx_batch_norm(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0), *in[5];
  kva_dtype result = x->type->dtype;
  if (kva_onnx_in(k, KVA_NORM_VAR)->type->dtype != result) x = kva_onnx_widen(b, x);
  double momentum = kva_onnx_float(k, "momentum", 0.9);
  if (x->type->rank < 2) return kva_onnx_fail(k, KVA_INVALID, "expected rank 2 or more, found %u", x->type->rank);
  if (k->version < 9 && !kva_onnx_int(k, "spatial", 1))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "spatial = 0 (statistics per position)");
  for (uint32_t i = 0; i < 5; i++) in[i] = i ? kva_cast(b, kva_onnx_in(k, i), x->type->dtype) : x;
  kva_batch_norm_attrs attrs = {.eps = kva_onnx_float(k, "epsilon", 1e-5), .momentum = momentum};
  bool by_batch = k->version >= 14 && kva_onnx_int(k, "training_mode", 0);
  attrs.training = by_batch && kva_onnx_as_inference(k, 1) && kva_onnx_as_inference(k, 2);
  if (by_batch && !attrs.training) kva_batch_statistics(b, x, &in[KVA_NORM_MEAN], &in[KVA_NORM_VAR]);
  for (uint32_t i = 1; by_batch && i <= 2; i++) {
    kva_value *old = kva_onnx_in(k, 2 + i), *current = in[2 + i];
    kva_onnx_set_out(k, i, attrs.training ? old : kva_running_statistic(b, old, current, momentum));
  }
  return kva_onnx_done(k, kva_cast(b, kva_build(b, KVA_OP_batch_norm, 5, in, &attrs), result));
}

/* ---- layer ------------------------------------------------------------------------------------------------------- */

static kva_value *layer_norm(kva_builder *b, kva_value *x, kva_value *scale, kva_value *bias, uint32_t axis,
                             double eps) {
  kva_layer_norm_attrs attrs = {.axis = axis, .eps = eps};
  return kva_build(b, KVA_OP_layer_norm, bias ? 3 : 2, (kva_value *[]){x, scale, bias}, &attrs);
}

/* Outputs 1 and 2: mean and 1 / sqrt(var + eps), of type stash_type, which is float or bfloat16. */
static void layer_statistics(kva_onnx_call *k, uint32_t axis, double eps) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_widen(b, kva_onnx_in(k, 0));
  int64_t axes[KVA_MAX_RANK];
  uint32_t n = x->type->rank - axis;
  for (uint32_t i = 0; i < n; i++) axes[i] = axis + i;
  kva_value *mean = kva_reduce(b, KVA_OP_reduce_mean, x, n, axes, true), *centred = kva_sub(b, x, mean);
  kva_dtype stash = kva_onnx_int(k, "stash_type", KVA_F32) == KVA_BF16 ? KVA_BF16 : KVA_F32;
  kva_onnx_set_out(k, 1, kva_cast(b, mean, stash));
  if (!kva_onnx_wants(k, 2)) return;
  kva_value *var = kva_reduce(b, KVA_OP_reduce_mean, kva_mul(b, centred, centred), n, axes, true);
  kva_value *deviation = kva_build1(b, KVA_OP_sqrt, kva_add(b, var, kva_scalar_like(b, var, eps)));
  kva_onnx_set_out(k, 2, kva_cast(b, kva_build1(b, KVA_OP_reciprocal, deviation), stash));
}

kva_status kva_onnx_layer_norm(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  double eps = kva_onnx_float(k, "epsilon", 1e-5);
  uint32_t axis;
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", -1), x->type->rank, &axis));
  if (kva_onnx_wants(k, 1) || kva_onnx_wants(k, 2)) layer_statistics(k, axis, eps);
  return kva_onnx_done(k, layer_norm(k->b, x, kva_onnx_in(k, 1), kva_onnx_in(k, 2), axis, eps));
}

kva_status kva_onnx_rms_norm(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0), *scale = kva_onnx_in(k, 1);
  uint32_t axis;
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", -1), x->type->rank, &axis));
  kva_rms_norm_attrs attrs = {.axis = axis, .eps = kva_onnx_float(k, "epsilon", 1e-5)};
  return kva_onnx_done(k, kva_build(k->b, KVA_OP_rms_norm, 2, (kva_value *[]){x, scale}, &attrs));
}

/* ---- instance and group ------------------------------------------------------------------------------------------ */

kva_status kva_onnx_instance_norm(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  uint32_t rank = x->type->rank;
  if (rank < 3) return kva_onnx_fail(k, KVA_INVALID, "expected rank 3 or more, found %u", rank);
  kva_value *scale = kva_onnx_channels(k->b, kva_onnx_in(k, 1), rank);
  kva_value *bias = kva_onnx_channels(k->b, kva_onnx_in(k, 2), rank);
  return kva_onnx_done(k, layer_norm(k->b, x, scale, bias, 2, kva_onnx_float(k, "epsilon", 1e-5)));
}

/* x as [N, G, C/G, rest], normalised over the last two. Scale and bias are per group before opset 21, then per channel.
 */
kva_status kva_onnx_group_norm(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_value *x = kva_onnx_in(k, 0);
  int64_t groups = kva_onnx_int(k, "num_groups", 0);
  uint32_t rank = x->type->rank;
  if (rank < 3 || groups < 1) return kva_onnx_fail(k, KVA_INVALID, "expected rank 3 or more and num_groups above 0");
  kva_dim group = kva_expr_const(e, groups), one = kva_expr_const(e, 1);
  kva_dim per_group = kva_expr_div(e, kva_onnx_dim(x, 1), group);
  kva_dim dims[4] = {kva_onnx_dim(x, 0), group, per_group, kva_onnx_product(b, x->type->dims, 2, rank)};
  kva_dim affine[3] = {group, k->version < 21 ? one : per_group, one};
  kva_value *scale = kva_reshape(b, kva_onnx_in(k, 1), 3, affine), *bias = kva_reshape(b, kva_onnx_in(k, 2), 3, affine);
  kva_value *y = layer_norm(b, kva_reshape(b, x, 4, dims), scale, bias, 2, kva_onnx_float(k, "epsilon", 1e-5));
  return kva_onnx_done(k, kva_reshape_like(b, y, x->type));
}

/* ---- others ------------------------------------------------------------------------------------------------------ */

/* x / |x|_p along an axis; 0 if the norm is 0. */
kva_status kva_onnx_lp_norm(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0);
  int64_t p = kva_onnx_int(k, "p", 2), axes[1];
  uint32_t axis;
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", -1), x->type->rank, &axis));
  if (p != 1 && p != 2)
    return kva_onnx_fail(k, KVA_INVALID, "attribute 'p': expected 1 or 2, found %lld", (long long)p);
  axes[0] = axis;
  kva_value *terms = p == 1 ? kva_build1(b, KVA_OP_abs, x) : kva_mul(b, x, x);
  kva_value *norm = kva_onnx_norm(b, kva_reduce(b, KVA_OP_reduce_sum, terms, 1, axes, true), (double)p);
  kva_value *zero = kva_scalar_like(b, x, 0), *is_zero = kva_build2(b, KVA_OP_equal, norm, zero);
  norm = kva_onnx_where(b, is_zero, kva_scalar_like(b, x, 1), norm);
  return kva_onnx_done(k, kva_onnx_where(b, is_zero, zero, kva_div(b, x, norm)));
}

/* (x - mean) / (sqrt(mean(x^2) - mean(x)^2) + 1e-9), with the variance computed from differences. */
kva_status kva_onnx_mean_variance_norm(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0);
  kva_ints axes = kva_onnx_ints(k, "axes");
  static const int64_t all_but_channels_2d[] = {0, 2, 3};
  if (!axes.n) axes = (kva_ints){3, all_but_channels_2d};
  uint32_t unused;
  for (uint32_t i = 0; i < axes.n; i++) KVA_TRY(kva_onnx_axis(k, axes.v[i], x->type->rank, &unused));
  kva_value *centred = kva_sub(b, x, kva_reduce(b, KVA_OP_reduce_mean, x, axes.n, axes.v, true));
  kva_value *var = kva_reduce(b, KVA_OP_reduce_mean, kva_mul(b, centred, centred), axes.n, axes.v, true);
  kva_value *deviation = kva_add(b, kva_build1(b, KVA_OP_sqrt, var), kva_scalar_like(b, x, 1e-9));
  return kva_onnx_done(k, kva_div(b, centred, deviation));
}
