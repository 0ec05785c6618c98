/* Rules: pools and local response normalisation. */
#include "frontend/onnx_window.h"
#include "ops/ids.h"

#include <math.h>

/* What is no maximum of other elements. */
static kva_value *lowest_like(kva_builder *b, const kva_value *x) {
  kva_dtype t = x->type->dtype;
  return kva_scalar_like(b, x, kva_dtype_is_float(t) ? -(double)INFINITY : t == KVA_I8 ? INT8_MIN : 0);
}

kva_status kva_onnx_max_pool(kva_onnx_call *k) {
  kva_onnx_window w;
  kva_value *x = kva_onnx_in(k, 0);
  KVA_TRY(kva_onnx_read_window(k, NULL, &w));
  bool indexed = kva_onnx_wants(k, 1); /* places count in x, not in what is padded */
  if (!indexed && kva_onnx_pads_by_extent(&w, x)) x = kva_onnx_pad_same(k, x, lowest_like(k->b, x), &w);
  KVA_TRY(kva_onnx_resolve_same(k, &w));
  kva_max_pool_attrs attrs = {.kernel = {w.n, w.kernel},
                              .strides = {w.n, w.strides},
                              .pads = {2 * w.n, w.pads},
                              .dilations = {w.n, w.dilations},
                              .ceil_mode = kva_onnx_int(k, "ceil_mode", 0) != 0,
                              .column_major = kva_onnx_int(k, "storage_order", 0) != 0};
  kva_node *n = kva_build_node(k->b, KVA_OP_max_pool, 1, &x, 2, &attrs);
  kva_onnx_set_out(k, 1, kva_result(n, 1));
  return kva_onnx_done(k, kva_result(n, 0));
}

static kva_value *average(kva_onnx_call *k, kva_value *x, const kva_onnx_window *w, bool ceil_mode, bool count_pad) {
  kva_avg_pool_attrs attrs = {.kernel = {w->n, w->kernel},
                              .strides = {w->n, w->strides},
                              .pads = {2 * w->n, w->pads},
                              .dilations = {w->n, w->dilations},
                              .ceil_mode = ceil_mode,
                              .count_include_pad = count_pad};
  return kva_build(k->b, KVA_OP_avg_pool, 1, &x, &attrs);
}

/* Under auto_pad's zeros, whose number is not known. Without them, the mean is that of x with zeros, over that of ones.
 */
static kva_value *average_same(kva_onnx_call *k, kva_value *x, const kva_onnx_window *w, bool ceil_mode,
                               bool count_pad) {
  kva_builder *b = k->b;
  kva_onnx_window of_x = *w, of_ones = *w;
  kva_dim one = kva_expr_const(kva_onnx_exprs(k), 1), dims[KVA_MAX_RANK] = {one, one};
  kva_value *y = average(k, kva_onnx_pad_same(k, x, NULL, &of_x), &of_x, ceil_mode, true);
  if (count_pad || b->failed) return y;
  memcpy(dims + 2, x->type->dims + 2, w->n * sizeof *dims);
  kva_value *ones = kva_expand(b, kva_scalar_like(b, x, 1), w->n + 2, dims);
  ones = kva_onnx_pad_same(k, ones, NULL, &of_ones);
  return kva_div(b, y, average(k, ones, &of_ones, ceil_mode, true));
}

kva_status kva_onnx_average(kva_onnx_call *k, kva_value *x, kva_value **out) {
  kva_onnx_window w;
  bool ceil_mode = kva_onnx_int(k, "ceil_mode", 0) != 0, count_pad = kva_onnx_int(k, "count_include_pad", 0) != 0;
  KVA_TRY(kva_onnx_read_window(k, NULL, &w));
  if (kva_onnx_pads_by_extent(&w, x)) return *out = average_same(k, x, &w, ceil_mode, count_pad), KVA_OK;
  KVA_TRY(kva_onnx_resolve_same(k, &w));
  *out = average(k, x, &w, ceil_mode, count_pad);
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

/* x with zeros at the ends that the last windows need, which ceil_mode adds. */
static kva_value *complete_windows(kva_onnx_call *k, kva_value *x, const kva_onnx_window *w) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_dim before[KVA_ONNX_MAX_SPATIAL], after[KVA_ONNX_MAX_SPATIAL], none = kva_expr_const(e, 0);
  for (uint32_t i = 0; i < w->n; i++) {
    kva_dim stride = kva_expr_const(e, w->strides[i]), starts = kva_expr_addi(e, kva_onnx_dim(x, i + 2), w->pads[i]);
    kva_dim room = kva_expr_addi(e, starts, w->pads[w->n + i] - kva_onnx_span(w, i));
    kva_dim last = kva_expr_ceildiv(e, room, stride); /* which must not begin behind x */
    last = kva_expr_min(e, last, kva_expr_addi(e, kva_expr_ceildiv(e, starts, stride), -1));
    before[i] = none;
    after[i] = kva_expr_max(e, none, kva_expr_sub(e, kva_expr_mul(e, last, stride), room));
  }
  return kva_onnx_pad_spatial(k, x, NULL, before, after);
}

/* (sum |x|^p)^(1/p) over windows; the sum is the mean over all taps times their number. */
kva_status kva_onnx_lp_pool(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_onnx_window w;
  double p = norm_order(k), taps = 1;
  KVA_TRY(kva_onnx_read_window(k, NULL, &w));
  kva_value *x = power(b, kva_build1(b, KVA_OP_abs, kva_onnx_in(k, 0)), p);
  if (kva_onnx_pads_by_extent(&w, x)) x = kva_onnx_pad_same(k, x, NULL, &w);
  KVA_TRY(kva_onnx_resolve_same(k, &w));
  if (kva_onnx_int(k, "ceil_mode", 0)) x = complete_windows(k, x, &w);
  if (b->failed) return KVA_INVALID;
  for (uint32_t i = 0; i < w.n; i++) taps *= (double)w.kernel[i];
  kva_value *mean = average(k, x, &w, false, true);
  return kva_onnx_done(k, kva_onnx_norm(b, kva_mul(b, mean, kva_scalar_like(b, mean, taps)), p));
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
  return kva_onnx_done(k, kva_onnx_norm(k->b, y, p));
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
  kva_value *mean = average(k, kva_reshape(b, kva_mul(b, x, x), 4, dims), &w, false, true);
  kva_value *scale = kva_add(b, kva_mul(b, mean, kva_scalar_like(b, x, alpha)), kva_scalar_like(b, x, bias));
  return kva_onnx_done(k, kva_div(b, x, kva_reshape_like(b, power(b, scale, beta), x->type)));
}
