/* Rules: pools and local response normalisation. */
#include "frontend/onnx_window.h"
#include "ops/ids.h"

kva_status kva_onnx_max_pool(kva_onnx_call *k) {
  kva_onnx_window w;
  KVA_TRY(kva_onnx_read_window(k, NULL, &w));
  KVA_TRY(kva_onnx_resolve_same(k, &w));
  kva_max_pool_attrs attrs = {.kernel = {w.n, w.kernel},
                              .strides = {w.n, w.strides},
                              .pads = {2 * w.n, w.pads},
                              .dilations = {w.n, w.dilations},
                              .ceil_mode = kva_onnx_int(k, "ceil_mode", 0) != 0,
                              .column_major = kva_onnx_int(k, "storage_order", 0) != 0};
  kva_node *n = kva_build_node(k->b, KVA_OP_max_pool, 1, k->n->inputs, 2, &attrs);
  kva_onnx_set_out(k, 1, kva_result(n, 1));
  return kva_onnx_done(k, kva_result(n, 0));
}

static kva_value *average(kva_onnx_call *k, kva_value *x, const kva_onnx_window *w, bool count_pad) {
  kva_avg_pool_attrs attrs = {.kernel = {w->n, w->kernel},
                              .strides = {w->n, w->strides},
                              .pads = {2 * w->n, w->pads},
                              .dilations = {w->n, w->dilations},
                              .ceil_mode = kva_onnx_int(k, "ceil_mode", 0) != 0,
                              .count_include_pad = count_pad};
  return kva_build(k->b, KVA_OP_avg_pool, 1, &x, &attrs);
}

kva_status kva_onnx_average(kva_onnx_call *k, kva_value *x, kva_value **out) {
  kva_onnx_window w;
  KVA_TRY(kva_onnx_read_window(k, NULL, &w));
  KVA_TRY(kva_onnx_resolve_same(k, &w));
  *out = average(k, x, &w, kva_onnx_int(k, "count_include_pad", 0) != 0);
  return KVA_OK;
}

kva_status kva_onnx_average_pool(kva_onnx_call *k) {
  kva_value *y = NULL;
  KVA_TRY(kva_onnx_average(k, kva_onnx_in(k, 0), &y));
  return kva_onnx_done(k, y);
}

static kva_value *power(kva_builder *b, kva_value *x, double p) {
  return p == 1 ? x : kva_build2(b, KVA_OP_pow, x, kva_scalar_like(b, x, p));
}

/* p is a float in version 1. */
static double norm_order(kva_onnx_call *k) {
  const kva_onnx_attr *a = kva_onnx_find_attr(k, "p");
  return a && a->kind == KVA_ONNX_FLOAT ? a->f : (double)kva_onnx_int(k, "p", 2);
}

/* (sum |x|^p)^(1/p) over windows; the sum is the mean over all taps times their number. */
kva_status kva_onnx_lp_pool(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_onnx_window w;
  double p = norm_order(k), taps = 1;
  if (kva_onnx_int(k, "ceil_mode", 0)) return kva_onnx_fail(k, KVA_UNSUPPORTED, "ceil_mode");
  KVA_TRY(kva_onnx_read_window(k, NULL, &w));
  KVA_TRY(kva_onnx_resolve_same(k, &w));
  for (uint32_t i = 0; i < w.n; i++) taps *= (double)w.kernel[i];
  kva_value *x = power(b, kva_build1(b, KVA_OP_abs, kva_onnx_in(k, 0)), p), *mean = average(k, x, &w, true);
  return kva_onnx_done(k, power(b, kva_mul(b, mean, kva_scalar_like(b, mean, taps)), 1 / p));
}

/* ---- global ------------------------------------------------------------------------------------------------------ */

static kva_status over_spatial_axes(kva_onnx_call *k, kva_op_id op, kva_value *x, kva_value **out) {
  int64_t axes[KVA_MAX_RANK];
  uint32_t rank = x->type->rank;
  if (rank < 3) return kva_onnx_fail(k, KVA_INVALID, "expected rank 3 or more, found %u", rank);
  for (uint32_t i = 2; i < rank; i++) axes[i - 2] = i;
  *out = kva_reduce(k->b, op, x, rank - 2, axes, true);
  return KVA_OK;
}

kva_status kva_onnx_global_pool(kva_onnx_call *k) {
  kva_value *y = NULL;
  KVA_TRY(over_spatial_axes(k, (kva_op_id)k->arg, kva_onnx_in(k, 0), &y));
  return kva_onnx_done(k, y);
}

kva_status kva_onnx_global_lp_pool(kva_onnx_call *k) {
  double p = norm_order(k);
  kva_value *y = NULL, *x = power(k->b, kva_build1(k->b, KVA_OP_abs, kva_onnx_in(k, 0)), p);
  KVA_TRY(over_spatial_axes(k, KVA_OP_reduce_sum, x, &y));
  return kva_onnx_done(k, power(k->b, y, 1 / p));
}

/* ---- local response normalisation -------------------------------------------------------------------------------- */

/* x / (bias + alpha / size * sum of x^2 over the `size` channels around)^beta. The mean over a window of channels is an
 * average pool of [N, 1, C, rest]. */
kva_status kva_onnx_lrn(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0);
  int64_t size = kva_onnx_int(k, "size", 0);
  uint32_t rank = x->type->rank;
  double alpha = kva_onnx_float(k, "alpha", 1e-4), beta = kva_onnx_float(k, "beta", 0.75);
  double bias = kva_onnx_float(k, "bias", 1);
  if (rank < 3) return kva_onnx_fail(k, KVA_INVALID, "expected rank 3 or more, found %u", rank);
  if (size < 1 || size > INT32_MAX) return kva_onnx_fail(k, KVA_INVALID, "attribute 'size': %lld", (long long)size);
  kva_dim dims[4] = {kva_onnx_dim(x, 0), kva_expr_const(kva_onnx_exprs(k), 1), kva_onnx_dim(x, 1),
                     kva_onnx_product(b, x->type->dims, 2, rank)};
  kva_onnx_window w = {.n = 2, .kernel = {size, 1}, .strides = {1, 1}, .dilations = {1, 1}};
  w.pads[0] = (size - 1) / 2;
  w.pads[2] = size - 1 - w.pads[0];
  kva_value *mean = average(k, kva_reshape(b, kva_mul(b, x, x), 4, dims), &w, true);
  kva_value *scale = kva_add(b, kva_mul(b, mean, kva_scalar_like(b, x, alpha)), kva_scalar_like(b, x, bias));
  return kva_onnx_done(k, kva_div(b, x, kva_reshape_like(b, power(b, scale, beta), x->type)));
}
