/* Rules: quantisation. q = saturate(round(x / scale) + zero), x = (q - zero) * scale, in float; one scale per tensor,
 * per entry of an axis, or per block along it. */
#include "frontend/onnx_window.h"
#include "ops/ids.h"

#include <math.h>

static kva_status integer_range(kva_onnx_call *k, kva_dtype t, double *low, double *high) {
  int bits = kva_dtype_bits(t);
  if (!kva_dtype_is_int(t) || bits > 32)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "%s is no quantised type", kva_dtype_name(t));
  bool is_unsigned = kva_dtype_is_unsigned(t);
  *low = is_unsigned ? 0 : -ldexp(1, bits - 1);
  *high = ldexp(1, is_unsigned ? bits : bits - 1) - 1;
  return KVA_OK;
}

/* Expands blocks along the axis: [.., n, ..] -> [.., n, 1, ..] -> [.., n, block, ..] -> [.., n * block, ..], cropped to
 * x's extent. */
static kva_value *repeat_blocks(kva_builder *b, kva_value *p, const kva_type *x, uint32_t axis, int64_t block) {
  const kva_type *t = p->type;
  kva_expr_ctx *e = b->m->exprs;
  kva_dim shape[3] = {kva_onnx_product(b, t->dims, 0, axis + 1), kva_expr_const(e, 1),
                      kva_onnx_product(b, t->dims, axis + 1, t->rank)};
  kva_dim dims[KVA_MAX_RANK];
  kva_value *y = kva_reshape(b, p, 3, shape);
  shape[1] = kva_expr_const(e, block);
  for (uint32_t i = 0; i < t->rank; i++) dims[i] = i == axis ? kva_expr_muli(e, t->dims[i], block) : t->dims[i];
  y = kva_reshape(b, kva_expand(b, y, 3, shape), t->rank, dims);
  return kva_onnx_slice(b, y, axis, kva_expr_const(e, 0), x->dims[axis]);
}

/* Shapes a scale or zero point so that it broadcasts to x. */
static kva_status spread(kva_onnx_call *k, kva_value *p, kva_value **out) {
  const kva_type *x = kva_onnx_in(k, 0)->type;
  int64_t block = kva_onnx_int(k, "block_size", 0), axis = kva_onnx_int(k, "axis", 1);
  uint32_t at;
  *out = p;
  if (!p->type->rank) return KVA_OK;
  if (p->type->rank == 1 && kva_expr_is(p->type->dims[0], 1)) return *out = kva_reshape(k->b, p, 0, NULL), KVA_OK;
  KVA_TRY(kva_onnx_axis(k, axis, x->rank, &at));
  if (p->type->rank == 1 && !block)
    *out = kva_onnx_unsqueeze(k->b, p, 1, x->rank - 1 - at);
  else if (p->type->rank == x->rank && block > 0)
    *out = repeat_blocks(k->b, p, x, at, block);
  else
    return kva_onnx_fail(k, KVA_INVALID, "a scale of rank %u for data of rank %u", p->type->rank, x->rank);
  return KVA_OK;
}

/* round(x) + zero, saturated to t. x is float. */
static kva_status saturate(kva_onnx_call *k, kva_value *x, kva_value *zero, kva_dtype t, kva_value **out) {
  kva_builder *b = k->b;
  double low = 0, high = 0;
  if (kva_dtype_is_float(t)) {
    kva_cast_attrs attrs = {.to = t, .saturate = kva_onnx_int(k, "saturate", 1) != 0};
    *out = kva_build(b, KVA_OP_cast, 1, &x, &attrs);
    return KVA_OK;
  }
  KVA_TRY(integer_range(k, t, &low, &high));
  x = kva_build1(b, KVA_OP_round, x);
  if (zero) x = kva_add(b, x, kva_cast(b, zero, x->type->dtype));
  x = kva_build2(b, KVA_OP_max, x, kva_scalar_like(b, x, low));
  x = kva_build2(b, KVA_OP_min, x, kva_scalar_like(b, x, high));
  *out = kva_cast(b, kva_cast(b, x, KVA_I32), t);
  return KVA_OK;
}

kva_status kva_onnx_quantize(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *zero = kva_onnx_in(k, 2), *scale = NULL, *y = NULL;
  int64_t t = kva_onnx_int(k, "output_dtype", 0);
  if (!t) t = zero ? zero->type->dtype : KVA_U8;
  if (t < 0 || t >= KVA_DTYPE_COUNT) return kva_onnx_fail(k, KVA_INVALID, "output_dtype is no data type");
  KVA_TRY(spread(k, kva_onnx_in(k, 1), &scale));
  if (zero) KVA_TRY(spread(k, zero, &zero));
  kva_value *x = kva_onnx_widen(b, kva_onnx_in(k, 0));
  KVA_TRY(saturate(k, kva_div(b, x, kva_cast(b, scale, x->type->dtype)), zero, (kva_dtype)t, &y));
  return kva_onnx_done_like(k, y, x, "a scale or zero point");
}

/* A scale or zero point of one element is one for the whole tensor. */
static kva_value *as_scalar(kva_builder *b, kva_value *p) {
  return p->type->rank == 1 && kva_expr_is(p->type->dims[0], 1) ? kva_reshape(b, p, 0, NULL) : p;
}

/* Scales and zero points have the extents that the data gives them. */
static kva_status agree_on_scales(kva_onnx_call *k, const kva_dequantize_attrs *attrs, kva_value **in) {
  const kva_type *q = in[0]->type;
  uint32_t axis, rank = in[1]->type->rank;
  kva_dim dims[KVA_MAX_RANK];
  if (!rank || (attrs->block > 0 && rank != q->rank)) return KVA_OK;
  KVA_TRY(kva_onnx_axis(k, attrs->axis, q->rank, &axis));
  memcpy(dims, q->dims, sizeof *dims * q->rank);
  kva_dim blocks = kva_expr_const(kva_onnx_exprs(k), attrs->block);
  if (attrs->block > 0) dims[axis] = kva_expr_ceildiv(kva_onnx_exprs(k), dims[axis], blocks);
  for (uint32_t i = 1; i < 3; i++)
    if (in[i] && in[i]->type->rank == rank)
      in[i] = kva_onnx_with_dims(k, in[i], rank == 1 ? &dims[axis] : dims, i == 1 ? "scales" : "zero points");
  return KVA_OK;
}

kva_status kva_onnx_dequantize(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *q = kva_onnx_in(k, 0), *zero = kva_onnx_in(k, 2);
  kva_dequantize_attrs attrs = {.axis = kva_onnx_int(k, "axis", 1), .block = kva_onnx_int(k, "block_size", 0)};
  int64_t t = kva_onnx_int(k, "output_dtype", 0);
  if (t < 0 || t >= KVA_DTYPE_COUNT) return kva_onnx_fail(k, KVA_INVALID, "output_dtype is no data type");
  attrs.to = (kva_dtype)t;
  bool has_zero = zero && !kva_dtype_is_float(q->type->dtype); /* that of 8-bit floats must be 0 */
  bool whole = !attrs.block || !q->type->rank;
  kva_value *scale = kva_onnx_in(k, 1), *in[] = {q, scale, has_zero ? zero : NULL};
  for (uint32_t i = 1; whole && i < 3; i++) in[i] = in[i] ? as_scalar(b, in[i]) : NULL;
  if (!in[1]->type->rank) attrs.block = 0;
  if (in[2] && in[2]->type->rank != in[1]->type->rank)
    return kva_onnx_fail(k, KVA_INVALID, "zero points: expected the shape of the scales");
  KVA_TRY(agree_on_scales(k, &attrs, in));
  return kva_onnx_done(k, kva_build(b, KVA_OP_dequantize, has_zero ? 3 : 2, in, &attrs));
}

/* Quantises to uint8 over the range of x, extended to include 0. */
static kva_status quantize_dynamically(kva_onnx_call *k, kva_value *x, kva_value **codes, kva_value **out_scale,
                                       kva_value **zero) {
  kva_builder *b = k->b;
  kva_value *nought = kva_scalar_like(b, x, 0);
  kva_value *low = kva_build2(b, KVA_OP_min, kva_reduce(b, KVA_OP_reduce_min, x, 0, NULL, false), nought);
  kva_value *high = kva_build2(b, KVA_OP_max, kva_reduce(b, KVA_OP_reduce_max, x, 0, NULL, false), nought);
  kva_value *scale = kva_div(b, kva_sub(b, high, low), kva_scalar_like(b, x, 255));
  *out_scale = scale;
  KVA_TRY(saturate(k, kva_div(b, kva_neg(b, low), scale), NULL, KVA_U8, zero));
  return saturate(k, kva_div(b, x, scale), *zero, KVA_U8, codes);
}

kva_status kva_onnx_dynamic_quantize(kva_onnx_call *k) {
  kva_value *scale = NULL, *zero = NULL, *y = NULL;
  KVA_TRY(quantize_dynamically(k, kva_onnx_in(k, 0), &y, &scale, &zero));
  kva_onnx_set_out(k, 1, scale);
  kva_onnx_set_out(k, 2, zero);
  return kva_onnx_done(k, y);
}

/* ---- quantised products ------------------------------------------------------------------------------------------ */

/* Inputs of the QLinear operators: value, scale, zero. A vector applies to rows (or columns) of a matrix. */
static kva_value *as_rows(kva_builder *b, kva_value *p) {
  bool vector = p->type->rank == 1 && !kva_expr_is(p->type->dims[0], 1);
  return vector ? kva_onnx_unsqueeze(b, p, 1, 1) : p->type->rank == 1 ? kva_reshape(b, p, 0, NULL) : p;
}

/* product * (scale_a * scale_b / scale_y), quantised. */
static kva_status requantize(kva_onnx_call *k, kva_value *product, kva_value *scale_a, kva_value *scale_b, uint32_t y) {
  kva_builder *b = k->b;
  kva_value *scale = kva_div(b, kva_mul(b, kva_onnx_widen(b, scale_a), kva_onnx_widen(b, scale_b)),
                             kva_onnx_widen(b, as_rows(b, kva_onnx_in(k, y))));
  kva_value *zero = kva_onnx_in(k, y + 1), *out = NULL;
  KVA_TRY(saturate(k, kva_mul(b, product, scale), as_rows(b, zero), zero->type->dtype, &out));
  return kva_onnx_done_like(k, out, product, "a scale or zero point");
}

kva_status kva_onnx_qlinear_matmul(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0), *y = kva_onnx_in(k, 3);
  if (!x->type->rank || !y->type->rank) return kva_onnx_fail(k, KVA_INVALID, "an operand is a scalar");
  KVA_TRY(kva_onnx_check_zeros(k, 0, 2, 3, 5));
  kva_value *product = kva_onnx_integer_product(b, x, kva_onnx_in(k, 2), y, kva_onnx_in(k, 5));
  product = kva_cast(b, product, KVA_F32);
  return requantize(k, product, as_rows(b, kva_onnx_in(k, 1)), kva_onnx_in(k, 4), 6);
}

/* ---- quantised convolutions -------------------------------------------------------------------------------------- */

static kva_status convolve(kva_onnx_call *k, uint32_t x_zero, uint32_t w, uint32_t w_zero, kva_value **out) {
  kva_builder *b = k->b;
  kva_value *p = kva_onnx_in(k, x_zero), *q = kva_onnx_in(k, w_zero);
  kva_codes x = {kva_onnx_in(k, 0), p ? as_scalar(b, p) : NULL},
            weights = {kva_onnx_in(k, w), q ? as_scalar(b, q) : NULL};
  if (x.zero && x.zero->type->rank) return kva_onnx_fail(k, KVA_UNSUPPORTED, "several zero points of input 0");
  return kva_onnx_convolve_codes(k, x, weights, out);
}

kva_status kva_onnx_conv_integer(kva_onnx_call *k) {
  kva_value *y = NULL;
  KVA_TRY(convolve(k, 2, 1, 3, &y));
  return kva_onnx_done(k, y);
}

/* Weights may have one scale per output channel. */
static kva_value *channel_scale(kva_builder *b, kva_value *p, uint32_t rank) {
  if (!p->type->rank || kva_expr_is(p->type->dims[0], 1)) return kva_reshape(b, p, 0, NULL);
  return kva_onnx_channels(b, p, rank);
}

kva_status kva_onnx_qlinear_conv(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *y = NULL, *bias = kva_onnx_in(k, 8);
  uint32_t rank = kva_onnx_in(k, 0)->type->rank;
  KVA_TRY(convolve(k, 2, 3, 5, &y));
  if (bias) y = kva_add(b, y, kva_onnx_channels(b, kva_cast(b, bias, KVA_I32), rank));
  kva_value *scale = channel_scale(b, kva_onnx_in(k, 4), rank);
  return requantize(k, kva_cast(b, y, KVA_F32), kva_reshape(b, kva_onnx_in(k, 1), 0, NULL), scale, 6);
}

/* ---- operators on codes (com.microsoft) -------------------------------------------------------------------------- */

/* A scale or zero point of input `i`, one for the tensor; NULL stays. */
static kva_status for_tensor(kva_onnx_call *k, uint32_t i, kva_value **out) {
  kva_value *p = kva_onnx_in(k, i);
  *out = p ? as_scalar(k->b, p) : NULL;
  if (!*out || !(*out)->type->rank) return KVA_OK;
  return kva_onnx_fail(k, KVA_UNSUPPORTED, "input %u: expected one scale or zero point, found several", i);
}

/* Input i as int32 less its zero point, which is input i + 2. */
static kva_status centred(kva_onnx_call *k, uint32_t i, kva_value **out) {
  kva_value *zero = NULL, *codes = kva_onnx_in(k, i);
  if (!codes) return kva_onnx_fail(k, KVA_INVALID, "input %u is missing", i);
  KVA_TRY(for_tensor(k, i + 2, &zero));
  *out = kva_cast(k->b, codes, KVA_I32);
  if (zero) *out = kva_sub(k->b, *out, kva_cast(k->b, zero, KVA_I32));
  return KVA_OK;
}

/* Input i in float, by the scale and zero point that are the next two inputs. */
static kva_status decode(kva_onnx_call *k, uint32_t i, kva_value **out) {
  kva_value *scale = NULL;
  KVA_TRY(centred(k, i, out));
  KVA_TRY(for_tensor(k, i + 1, &scale));
  if (!scale) return kva_onnx_fail(k, KVA_INVALID, "input %u, a scale, is missing", i + 1);
  *out = kva_mul(k->b, kva_cast(k->b, *out, KVA_F32), scale);
  return KVA_OK;
}

/* The result: y as codes of type t by the scale in input i and the zero point in the next one. */
static kva_status encode(kva_onnx_call *k, kva_value *y, uint32_t i, kva_dtype t) {
  kva_value *scale = NULL, *zero = NULL;
  KVA_TRY(for_tensor(k, i, &scale));
  KVA_TRY(for_tensor(k, i + 1, &zero));
  if (!scale) return kva_onnx_fail(k, KVA_INVALID, "input %u, a scale, is missing", i);
  if (zero && zero->type->dtype != t)
    return kva_onnx_fail(k, KVA_INVALID, "the zero point is %s, expected %s", kva_dtype_name(zero->type->dtype),
                         kva_dtype_name(t));
  KVA_TRY(saturate(k, kva_div(k->b, y, scale), zero, t, &y));
  return kva_onnx_done(k, y);
}

static kva_dtype code_type(const kva_onnx_call *k, uint32_t i) {
  return kva_onnx_in(k, i)->type->dtype;
}

kva_status kva_onnx_qlinear_binary(kva_onnx_call *k) {
  kva_value *x = NULL, *y = NULL;
  KVA_TRY(decode(k, 0, &x));
  KVA_TRY(decode(k, 3, &y));
  return encode(k, kva_build2(k->b, (kva_op_id)k->arg, x, y), 6, code_type(k, 0));
}

kva_status kva_onnx_qlinear_where(kva_onnx_call *k) {
  kva_value *x = NULL, *y = NULL;
  KVA_TRY(decode(k, 1, &x));
  KVA_TRY(decode(k, 4, &y));
  return encode(k, kva_onnx_where(k->b, kva_onnx_in(k, 0), x, y), 7, code_type(k, 1));
}

kva_status kva_onnx_qlinear_sigmoid(kva_onnx_call *k) {
  kva_value *x = NULL;
  KVA_TRY(decode(k, 0, &x));
  return encode(k, kva_build1(k->b, KVA_OP_sigmoid, x), 3, code_type(k, 0));
}

kva_status kva_onnx_qlinear_leaky_relu(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = NULL;
  KVA_TRY(decode(k, 0, &x));
  kva_value *small = kva_mul(b, x, kva_scalar_like(b, x, kva_onnx_float(k, "alpha", 0.01)));
  kva_value *y = kva_onnx_where(b, kva_build2(b, KVA_OP_less, x, kva_scalar_like(b, x, 0)), small, x);
  return encode(k, y, 3, code_type(k, 0));
}

/* Below opset 13 of the standard's operator, axes from `axis` on are one. */
kva_status kva_onnx_qlinear_softmax(kva_onnx_call *k) {
  kva_value *x = NULL;
  uint32_t axis;
  int64_t opset = kva_onnx_int(k, "opset", 0);
  bool flat = opset < 13;
  if (opset < 1) return kva_onnx_fail(k, KVA_INVALID, "expected attribute 'opset', that of Softmax");
  KVA_TRY(decode(k, 0, &x));
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", flat ? 1 : -1), x->type->rank, &axis));
  kva_value *rows = flat ? kva_onnx_flatten_2d(k->b, x, axis) : x;
  kva_value *y = kva_build(k->b, KVA_OP_softmax, 1, &rows, &(kva_softmax_attrs){.axis = flat ? 1 : axis});
  return encode(k, kva_reshape_like(k->b, y, x->type), 3, code_type(k, 0));
}

kva_status kva_onnx_qlinear_average_pool(kva_onnx_call *k) {
  kva_value *x = NULL, *y = NULL;
  if (kva_onnx_int(k, "channels_last", 0)) return kva_onnx_fail(k, KVA_UNSUPPORTED, "channels_last");
  KVA_TRY(decode(k, 0, &x));
  KVA_TRY(kva_onnx_average(k, x, &y));
  return encode(k, y, 3, code_type(k, 0));
}

kva_status kva_onnx_qlinear_global_pool(kva_onnx_call *k) {
  kva_value *x = NULL;
  int64_t axes[KVA_MAX_RANK];
  KVA_TRY(decode(k, 0, &x));
  uint32_t rank = x->type->rank;
  if (rank < 3) return kva_onnx_fail(k, KVA_INVALID, "expected rank 3 or more, found %u", rank);
  if (kva_onnx_int(k, "channels_last", 0)) return kva_onnx_fail(k, KVA_UNSUPPORTED, "channels_last");
  for (uint32_t i = 2; i < rank; i++) axes[i - 2] = i;
  return encode(k, kva_reduce(k->b, KVA_OP_reduce_mean, x, rank - 2, axes, true), 3, code_type(k, 0));
}

/* Scale and zero point of the result, then three inputs for each part. */
kva_status kva_onnx_qlinear_concat(kva_onnx_call *k) {
  uint32_t n = (k->n->n_inputs - 2) / 3, axis;
  if (k->n->n_inputs != 2 + 3 * n) return kva_onnx_fail(k, KVA_INVALID, "expected three inputs for each part");
  if (!kva_onnx_find_attr(k, "axis")) return kva_onnx_fail(k, KVA_INVALID, "expected attribute 'axis'");
  kva_value **parts = KVA_NEW_ARRAY(k->c->arena, kva_value *, n);
  for (uint32_t i = 0; i < n; i++) KVA_TRY(decode(k, 2 + 3 * i, &parts[i]));
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", 0), parts[0]->type->rank, &axis));
  kva_value *y = kva_build(k->b, KVA_OP_concat, n, parts, &(kva_concat_attrs){.axis = axis});
  return encode(k, y, 0, code_type(k, 2));
}

/* alpha a b + c, where c has the scale of the product; without a scale for it the result is float. Scale and zero point
 * of b may be one for each column of the result. */
kva_status kva_onnx_qgemm(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = NULL, *scale_x = NULL, *scale_y = kva_onnx_in(k, 4), *zero = kva_onnx_in(k, 5), *c = kva_onnx_in(k, 6);
  double alpha = kva_onnx_float(k, "alpha", 1);
  bool transposed = kva_onnx_int(k, "transB", 0) != 0;
  KVA_TRY(centred(k, 0, &x));
  KVA_TRY(for_tensor(k, 1, &scale_x));
  if (!scale_x || !scale_y || x->type->rank != 2 || kva_onnx_in(k, 3)->type->rank != 2)
    return kva_onnx_fail(k, KVA_INVALID, "expected two matrices with their scales");
  kva_value *y = kva_cast(b, kva_onnx_in(k, 3), KVA_I32);
  if (zero) y = kva_sub(b, y, kva_cast(b, transposed ? as_rows(b, zero) : as_scalar(b, zero), KVA_I32));
  kva_value *z = kva_matmul(b, x, y, kva_onnx_int(k, "transA", 0) != 0, transposed);
  kva_value *scale = kva_mul(b, scale_x, as_scalar(b, scale_y));
  if (c) z = kva_add(b, z, c);
  if (alpha != 1) scale = kva_mul(b, scale, kva_scalar_like(b, scale, alpha));
  z = kva_mul(b, kva_cast(b, z, KVA_F32), scale);
  return kva_onnx_in(k, 7) ? encode(k, z, 7, code_type(k, 0)) : kva_onnx_done(k, z);
}

/* x y * scale_x * scale_y + bias, in float, from input `bias` of the call. Scales and zero points of y may be one for
 * each column. */
static kva_status scaled_product(kva_onnx_call *k, kva_codes x, kva_value *scale_x, kva_codes y, kva_value *scale_y,
                                 uint32_t bias) {
  kva_builder *b = k->b;
  kva_value *product = kva_onnx_integer_product(b, x.codes, x.zero, y.codes, y.zero), *added = kva_onnx_in(k, bias);
  kva_value *scale = kva_mul(b, as_scalar(b, scale_x), as_scalar(b, scale_y));
  kva_value *z = kva_mul(b, kva_cast(b, product, scale->type->dtype), scale);
  return kva_onnx_done_like(k, added ? kva_add(b, z, added) : z, product, "a scale or the bias");
}

static kva_status refuse_vectors(kva_onnx_call *k) {
  bool matrices = kva_onnx_in(k, 0)->type->rank >= 2 && kva_onnx_in(k, 1)->type->rank >= 2;
  return matrices ? KVA_OK : kva_onnx_fail(k, KVA_UNSUPPORTED, "operands of rank 1");
}

kva_status kva_onnx_integer_to_float(kva_onnx_call *k) {
  KVA_TRY(refuse_vectors(k));
  KVA_TRY(kva_onnx_check_zeros(k, 0, 4, 1, 5));
  kva_codes x = {kva_onnx_in(k, 0), kva_onnx_in(k, 4)}, y = {kva_onnx_in(k, 1), kva_onnx_in(k, 5)};
  return scaled_product(k, x, kva_onnx_in(k, 2), y, kva_onnx_in(k, 3), 6);
}

/* The same with a first operand that is quantised over its range, to one zero point. */
kva_status kva_onnx_dynamic_matmul(kva_onnx_call *k) {
  enum { NO_INPUT = 5 };
  kva_codes x = {0}, y = {kva_onnx_in(k, 1), kva_onnx_in(k, 3)};
  kva_value *scale = NULL;
  KVA_TRY(refuse_vectors(k));
  KVA_TRY(kva_onnx_check_zeros(k, 0, NO_INPUT, 1, 3));
  KVA_TRY(quantize_dynamically(k, kva_onnx_in(k, 0), &x.codes, &scale, &x.zero));
  return scaled_product(k, x, scale, y, kva_onnx_in(k, 2), 4);
}

/* ---- weights in blocks (MatMulNBits) ----------------------------------------------------------------------------- */

/* Packed bytes of a constant, reshaped or not, as a matrix of codes, each byte xor `flip`. NULL: not such a constant.
 */
static kva_value *codes_of(kva_onnx_call *k, kva_value *bytes, kva_dtype t, int64_t rows, int64_t columns,
                           uint8_t flip) {
  kva_arena *arena = k->b->m->arena;
  while (bytes->def && kva_is(bytes->def, KVA_OP_reshape)) bytes = kva_operand(bytes->def, 0);
  const kva_tensor_data *packed = kva_constant_of(bytes);
  kva_tensor_data *data = KVA_NEW(arena, kva_tensor_data);
  if (!packed || packed->dtype != KVA_U8 || !kva_dtype_bytes(t, rows * columns, &data->bytes)) return NULL;
  if (packed->bytes != data->bytes) return NULL;
  uint8_t *flipped = flip ? kva_arena_memdup(arena, packed->data, (size_t)packed->bytes) : NULL;
  for (int64_t i = 0; flip && i < packed->bytes; i++) flipped[i] ^= flip;
  data->dtype = t, data->rank = 2, data->data = flip ? flipped : packed->data;
  data->dims = kva_arena_memdup(arena, (int64_t[]){rows, columns}, 2 * sizeof *data->dims);
  return kva_const_tensor(k->b, data);
}

typedef struct nbits {
  int64_t n, depth, bits, block, blocks;
  kva_dtype type;
} nbits;

static kva_status read_nbits(kva_onnx_call *k, nbits *out) {
  *out = (nbits){.n = kva_onnx_int(k, "N", 0),
                 .depth = kva_onnx_int(k, "K", 0),
                 .bits = kva_onnx_int(k, "bits", 4),
                 .block = kva_onnx_int(k, "block_size", 0)};
  if (out->bits != 2 && out->bits != 4 && out->bits != 8)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "weights of %lld bits; expected 2, 4 or 8", (long long)out->bits);
  bool sane = out->n > 0 && out->depth > 0 && out->block >= 16 && out->n < INT32_MAX && out->depth < INT32_MAX &&
              out->block < INT32_MAX && (out->block & (out->block - 1)) == 0;
  if (!sane) return kva_onnx_fail(k, KVA_INVALID, "expected N and K above 0 and block_size a power of two from 16 on");
  if (kva_onnx_in(k, 4)) return kva_onnx_fail(k, KVA_UNSUPPORTED, "g_idx: rows of weights in another order");
  out->blocks = (out->depth + out->block - 1) / out->block;
  out->type = out->bits == 2 ? KVA_U2 : out->bits == 4 ? KVA_U4 : KVA_U8;
  return KVA_OK;
}

/* Rows of zero points end with a byte. */
static kva_status nbits_zero(kva_onnx_call *k, const nbits *w, kva_value *given, kva_value **out) {
  int64_t per_byte = 8 / w->bits, padded = (w->blocks + per_byte - 1) / per_byte * per_byte;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  *out = codes_of(k, given, w->type, w->n, padded, 0);
  if (!*out)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "zero_points: expected a constant of packed uint8, one for each block");
  if (padded != w->blocks) *out = kva_onnx_slice(k->b, *out, 1, kva_expr_const(e, 0), kva_expr_const(e, w->blocks));
  return KVA_OK;
}

/* A [.., K] by the transposed matrix [N, K] of codes in blocks along K. Without zero points codes are unsigned around
 * the middle of their range: the same bits with another sign are signed codes. */
kva_status kva_onnx_matmul_nbits(kva_onnx_call *k) {
  nbits w;
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0), *scale = kva_onnx_in(k, 2), *bias = kva_onnx_in(k, 5), *zero = NULL;
  KVA_TRY(read_nbits(k, &w));
  kva_expr_ctx *e = kva_onnx_exprs(k);
  bool centred = !kva_onnx_in(k, 3);
  if (centred) w.type = w.bits == 2 ? KVA_I2 : w.bits == 4 ? KVA_I4 : KVA_I8;
  uint8_t flip = !centred ? 0 : w.bits == 2 ? 0xaa : w.bits == 4 ? 0x88 : 0x80;
  kva_value *q = codes_of(k, kva_onnx_in(k, 1), w.type, w.n, w.blocks * w.block, flip);
  if (!q)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "B: expected a constant of N * blocks * block_size * bits / 8 bytes");
  if (!centred) KVA_TRY(nbits_zero(k, &w, kva_onnx_in(k, 3), &zero));
  if (w.depth != w.blocks * w.block) q = kva_onnx_slice(b, q, 1, kva_expr_const(e, 0), kva_expr_const(e, w.depth));
  scale = kva_reshape(b, scale, 2, (kva_dim[]){kva_expr_const(e, w.n), kva_expr_const(e, w.blocks)});
  kva_dequantize_attrs attrs = {.axis = 1, .block = w.block, .to = x->type->dtype};
  kva_value *y = kva_build(b, KVA_OP_dequantize, centred ? 2 : 3, (kva_value *[]){q, scale, zero}, &attrs);
  y = kva_matmul(b, x, y, false, true);
  return kva_onnx_done(k, bias ? kva_add(b, y, bias) : y);
}

/* ---- weights of few values (MatMulBnb4) -------------------------------------------------------------------------- */

enum { FP4, NF4, VALUE_TYPES, VALUES = 16 };

/* Values of 4 bits of bitsandbytes: floats of two exponent bits, whose least value is 1/192, and the quantiles of a
 * normal distribution (Dettmers et al., arXiv 2305.14314, appendix E). */
static const float values_of[VALUE_TYPES][VALUES] = {
    {0, 1.0f / 192, 2.0f / 3, 1, 1.0f / 3, 1.0f / 2, 1.0f / 6, 1.0f / 4, -0.0f, -1.0f / 192, -2.0f / 3, -1, -1.0f / 3,
     -1.0f / 2, -1.0f / 6, -1.0f / 4},
    {-1, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f,
     -0.18477343022823334f, -0.09105003625154495f, 0, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f,
     0.33791524171829224f, 0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1}};

/* The weights [N, K] in float, from codes, the first of a byte in its high bits, and the largest magnitude of every
 * `block` of them. */
static kva_value *weights_of_values(kva_onnx_call *k, const kva_tensor_data *codes, const kva_tensor_data *largest,
                                    const nbits *w, const float *value) {
  kva_arena *arena = k->b->m->arena;
  kva_tensor_data *data = KVA_NEW(arena, kva_tensor_data);
  float *x = kva_arena_alloc(arena, (size_t)(w->n * w->depth) * sizeof *x);
  const uint8_t *bytes = codes->data;
  for (int64_t i = 0; i < w->n * w->depth; i++) {
    int code = i % 2 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4;
    x[i] = value[code] * (float)kva_load_f64(largest->dtype, largest->data, i / w->block);
  }
  *data = (kva_tensor_data){.dtype = KVA_F32, .rank = 2, .data = x, .bytes = w->n * w->depth * (int64_t)sizeof *x};
  data->dims = kva_arena_memdup(arena, (int64_t[]){w->n, w->depth}, 2 * sizeof *data->dims);
  return kva_const_tensor(k->b, data);
}

/* A [.., K] by the transposed matrix, or [.., N] by the matrix itself. The weights are floats from here on. */
kva_status kva_onnx_matmul_bnb4(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0);
  const kva_tensor_data *codes = kva_constant_of(kva_onnx_in(k, 1)), *largest = kva_constant_of(kva_onnx_in(k, 2));
  nbits w = {.n = kva_onnx_int(k, "N", 0), .depth = kva_onnx_int(k, "K", 0), .block = kva_onnx_int(k, "block_size", 0)};
  int64_t type = kva_onnx_int(k, "quant_type", -1);
  if (type != FP4 && type != NF4)
    return kva_onnx_fail(k, KVA_INVALID, "quant_type %lld; expected 0 (FP4) or 1 (NF4)", (long long)type);
  if (w.n < 1 || w.depth < 1 || w.block < 1 || w.n > INT32_MAX || w.depth > INT32_MAX)
    return kva_onnx_fail(k, KVA_INVALID, "expected N, K and block_size above 0");
  int64_t count = w.n * w.depth, blocks = (count - 1) / w.block + 1;
  bool known = codes && largest && codes->dtype == KVA_U8 && codes->bytes == (count + 1) / 2 &&
               kva_tensor_elements(largest) == blocks && kva_dtype_is_float(largest->dtype);
  if (!known)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "expected constants of N * K codes and of a float for each block");
  kva_value *y = weights_of_values(k, codes, largest, &w, values_of[type]);
  bool transposed = kva_onnx_int(k, "transB", 1) != 0;
  return kva_onnx_done(k, kva_matmul(b, x, kva_cast(b, y, x->type->dtype), false, transposed));
}

/* ---- tables in blocks (GatherBlockQuantized) --------------------------------------------------------------------- */

/* The operands of dequantize: codes that have a type of 4 bits or an 8-bit float as they are, bytes as the matrix of
 * codes that is packed in them. Bytes are unsigned around the middle of their range where zero points are left out. */
static kva_status read_table(kva_onnx_call *k, int64_t block, kva_value *in[3], bool *has_zero) {
  kva_value *data = kva_onnx_in(k, 0), *scale = kva_onnx_in(k, 2), *zero = kva_onnx_in(k, 3);
  int64_t bits = kva_onnx_int(k, "bits", 4), rows, bytes, blocks;
  in[0] = data, in[1] = scale, in[2] = zero;
  *has_zero = zero != NULL;
  if (data->type->dtype != KVA_U8) return KVA_OK;
  if (bits != 4 && bits != 8)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "tables of %lld bits; expected 4 or 8", (long long)bits);
  bool known = data->type->rank == 2 && scale->type->rank == 2 && kva_expr_is_const(data->type->dims[0], &rows) &&
               kva_expr_is_const(data->type->dims[1], &bytes) && kva_expr_is_const(scale->type->dims[1], &blocks);
  int64_t per_byte = 8 / bits;
  if (!known || rows > INT32_MAX || bytes > INT32_MAX || blocks != (bytes * per_byte + block - 1) / block)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "expected bytes of rank 2 and a scale for each block of a row");
  kva_dtype t = bits == 4 ? (zero ? KVA_U4 : KVA_I4) : zero ? KVA_U8 : KVA_I8;
  in[0] = codes_of(k, data, t, rows, bytes * per_byte, zero ? 0 : bits == 4 ? 0x88 : 0x80);
  if (!in[0]) return kva_onnx_fail(k, KVA_UNSUPPORTED, "input 0: expected a constant");
  nbits w = {.n = rows, .bits = bits, .blocks = blocks, .type = t};
  return zero ? nbits_zero(k, &w, zero, &in[2]) : KVA_OK;
}

/* Rows of a quantised table, in the type of its scales. */
kva_status kva_onnx_gather_blocks(kva_onnx_call *k) {
  kva_value *in[3];
  bool has_zero;
  kva_dequantize_attrs attrs = {.axis = kva_onnx_int(k, "quantize_axis", 1),
                                .block = kva_onnx_int(k, "block_size", 128),
                                .to = kva_onnx_in(k, 2)->type->dtype};
  uint32_t rank = kva_onnx_in(k, 0)->type->rank, at, along;
  if (attrs.block < 16 || (attrs.block & (attrs.block - 1)))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "block_size %lld; expected a power of two from 16 on",
                         (long long)attrs.block);
  KVA_TRY(kva_onnx_axis(k, attrs.axis, rank, &at));
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "gather_axis", 0), rank, &along));
  KVA_TRY(read_table(k, attrs.block, in, &has_zero));
  attrs.axis = at;
  kva_value *table = kva_build(k->b, KVA_OP_dequantize, has_zero ? 3 : 2, in, &attrs);
  return kva_onnx_done(k, kva_onnx_gather(k->b, table, kva_onnx_in(k, 1), along));
}
