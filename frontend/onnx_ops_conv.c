/* Rules: convolutions. The bias is a separate addition, which fusion merges again. */
#include "frontend/onnx_window.h"
#include "ops/ids.h"

static kva_value *add_bias(kva_onnx_call *k, kva_value *y, uint32_t rank) {
  kva_value *bias = kva_onnx_in(k, 2);
  return bias ? kva_add(k->b, y, kva_onnx_channels(k->b, bias, rank)) : y;
}

static kva_status read_group(kva_onnx_call *k, int64_t *out) {
  *out = kva_onnx_int(k, "group", 1);
  return *out < 1 ? kva_onnx_fail(k, KVA_INVALID, "attribute 'group': %lld", (long long)*out) : KVA_OK;
}

kva_value *kva_onnx_shaped_weight(kva_onnx_call *k, kva_value *weight) {
  kva_ints shape = kva_onnx_ints(k, "kernel_shape");
  for (uint32_t i = 0; i < shape.n && i + 2 < weight->type->rank; i++)
    if (shape.v[i] > 0)
      weight = kva_onnx_with_extent(k, weight, i + 2, kva_expr_const(kva_onnx_exprs(k), shape.v[i]),
                                    "weights of a convolution");
  return weight;
}

/* Each group's channels are those of the weights. */
static void agree_on_channels(kva_onnx_call *k, kva_value **x, kva_value **weight, int64_t group) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_dim channels = kva_onnx_dim(*x, 1);
  if (kva_expr_is_const(channels, NULL))
    *weight = kva_onnx_with_extent(k, *weight, 1, kva_expr_div(e, channels, kva_expr_const(e, group)),
                                   "weights of a convolution");
  else
    *x = kva_onnx_with_extent(k, *x, 1, kva_expr_muli(e, kva_onnx_dim(*weight, 1), group),
                              "the operand of a convolution");
}

/* Window and group of a convolution, whose operands then agree. */
static kva_status read_convolution(kva_onnx_call *k, kva_value **x, kva_value **weight, kva_onnx_window *w,
                                   int64_t *group) {
  *weight = kva_onnx_shaped_weight(k, *weight);
  KVA_TRY(kva_onnx_read_window(k, *weight, w));
  KVA_TRY(read_group(k, group));
  agree_on_channels(k, x, weight, *group);
  return KVA_OK;
}

/* w has no symbolic extent, and its pads are known. */
static kva_conv_attrs attrs_of(const kva_onnx_window *w, int64_t group) {
  return (kva_conv_attrs){
      .strides = {w->n, w->strides}, .pads = {2 * w->n, w->pads}, .dilations = {w->n, w->dilations}, .group = group};
}

/* Whether the kernel covers the whole image, at one position, as after a global pooling. */
static bool is_product(const kva_onnx_window *w, const kva_value *x, const kva_value *weight, int64_t group) {
  bool whole = group == 1 && kva_onnx_dim(x, 1) == kva_onnx_dim(weight, 1);
  for (uint32_t i = 0; i < w->n; i++) {
    int64_t extent;
    whole = whole && kva_expr_is_const(kva_onnx_dim(x, i + 2), &extent) && extent == w->kernel[i] && !w->pads[i] &&
            !w->pads[i + w->n] && (w->dilations[i] == 1 || extent == 1);
  }
  return whole;
}

/* x[N, C * extents] times weight[M, C * extents]: a kernel for one row or few, which a convolution has not. */
static kva_value *build_product(kva_builder *b, kva_value *x, kva_value *weight) {
  kva_dim depth = kva_onnx_product(b, weight->type->dims, 1, weight->type->rank);
  kva_dim rows = kva_onnx_dim(x, 0), columns = kva_onnx_dim(weight, 0);
  kva_value *y = kva_matmul(b, kva_reshape(b, x, 2, (const kva_dim[]){rows, depth}),
                            kva_reshape(b, weight, 2, (const kva_dim[]){columns, depth}), false, true);
  return kva_onnx_unsqueeze(b, y, 2, x->type->rank - 2);
}

kva_status kva_onnx_convolve(kva_onnx_call *k, kva_value *x, kva_value *weight, kva_value **out) {
  kva_onnx_window w;
  int64_t group;
  KVA_TRY(read_convolution(k, &x, &weight, &w, &group));
  if (w.free) return kva_onnx_convolve_free(k, x, weight, &w, group, out);
  if (kva_onnx_pads_by_extent(&w, x)) x = kva_onnx_pad_same(k, x, NULL, &w);
  KVA_TRY(kva_onnx_resolve_same(k, &w));
  kva_conv_attrs attrs = attrs_of(&w, group);
  *out = is_product(&w, x, weight, group) ? build_product(k->b, x, weight)
                                          : kva_build(k->b, KVA_OP_conv, 2, (kva_value *[]){x, weight}, &attrs);
  return KVA_OK;
}

/* x - zero in double, in which products of codes are summed exactly. */
static kva_value *exact(kva_builder *b, kva_codes x) {
  kva_value *y = kva_cast(b, x.codes, KVA_I32), *zero = x.zero ? kva_cast(b, x.zero, KVA_I32) : NULL;
  if (zero && zero->type->rank) zero = kva_onnx_unsqueeze(b, zero, 1, y->type->rank - 1);
  return kva_cast(b, zero ? kva_sub(b, y, zero) : y, KVA_F64);
}

kva_status kva_onnx_convolve_codes(kva_onnx_call *k, kva_codes x, kva_codes w, kva_value **out) {
  kva_onnx_window window;
  int64_t group;
  KVA_TRY(read_convolution(k, &x.codes, &w.codes, &window, &group));
  if (window.free || kva_onnx_pads_by_extent(&window, x.codes) || !kva_is_byte(x.codes) || !kva_is_byte(w.codes)) {
    KVA_TRY(kva_onnx_convolve(k, exact(k->b, x), exact(k->b, w), out));
    *out = kva_cast(k->b, *out, KVA_I32);
    return KVA_OK;
  }
  KVA_TRY(kva_onnx_resolve_same(k, &window));
  kva_conv_attrs attrs = attrs_of(&window, group);
  *out = kva_conv_codes(k->b, x, w, &attrs);
  return KVA_OK;
}

kva_status kva_onnx_conv(kva_onnx_call *k) {
  kva_value *y = NULL;
  KVA_TRY(kva_onnx_convolve(k, kva_onnx_in(k, 0), kva_onnx_in(k, 1), &y));
  return kva_onnx_done(k, add_bias(k, y, kva_onnx_in(k, 0)->type->rank));
}

/* ---- transposed -------------------------------------------------------------------------------------------------- */

/* Splits the padding that makes the output `extent` long: an odd element goes to the beginning, except for
 * SAME_UPPER. */
static void split_padding(kva_onnx_window *w, uint32_t i, int64_t total) {
  int64_t half = total / 2;
  w->pads[i] = w->auto_pad == KVA_PAD_SAME_UPPER ? half : total - half;
  w->pads[i + w->n] = total - w->pads[i];
}

static kva_status check_lengths(kva_onnx_call *k, const kva_onnx_window *w, kva_ints wanted) {
  kva_ints padding = kva_onnx_ints(k, "output_padding");
  if ((!padding.n || padding.n == w->n) && (!wanted.n || wanted.n == w->n)) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "output_padding and output_shape need %u values", w->n);
}

/* Whether a kernel's extent is symbolic, or the padding that gives the wanted one. */
static bool depends_on_extents(const kva_onnx_window *w, const kva_value *x, kva_ints wanted) {
  bool depends = w->free;
  for (uint32_t i = 0; wanted.n && i < w->n; i++) depends |= !kva_expr_is_const(kva_onnx_dim(x, i + 2), NULL);
  return depends;
}

/* Output extent of axis i and its pads. Default: stride * (in - 1) + output_padding + span - pads. */
static kva_status transposed_extent(kva_onnx_call *k, kva_onnx_window *w, uint32_t i, kva_ints wanted, kva_dim *out) {
  kva_expr_ctx *x = kva_onnx_exprs(k);
  kva_ints padding = kva_onnx_ints(k, "output_padding");
  kva_dim in = kva_onnx_dim(kva_onnx_in(k, 0), i + 2);
  int64_t constant = (padding.n ? padding.v[i] : 0) + kva_onnx_span(w, i) - w->strides[i], n;
  kva_dim full = kva_expr_addi(x, kva_expr_muli(x, in, w->strides[i]), constant);
  bool same = w->auto_pad == KVA_PAD_SAME_UPPER || w->auto_pad == KVA_PAD_SAME_LOWER;
  if (wanted.n || same) {
    *out = wanted.n ? kva_expr_const(x, wanted.v[i]) : kva_expr_muli(x, in, w->strides[i]);
    if (!kva_expr_is_const(kva_expr_sub(x, full, *out), &n))
      return kva_onnx_fail(k, KVA_UNSUPPORTED, "output_shape on a symbolic extent");
    split_padding(w, i, n > 0 ? n : 0);
    return KVA_OK;
  }
  *out = kva_expr_addi(x, full, -(w->pads[i] + w->pads[i + w->n]));
  return KVA_OK;
}

kva_status kva_onnx_conv_transpose(kva_onnx_call *k) {
  kva_onnx_window w;
  int64_t group;
  kva_dim spatial[KVA_ONNX_MAX_SPATIAL];
  kva_ints wanted = kva_onnx_ints(k, "output_shape");
  kva_value *x = kva_onnx_in(k, 0), *weight = kva_onnx_shaped_weight(k, kva_onnx_in(k, 1)), *y = NULL;
  KVA_TRY(kva_onnx_read_window(k, weight, &w));
  KVA_TRY(read_group(k, &group));
  if (wanted.n == w.n + 2) wanted = (kva_ints){w.n, wanted.v + 2}; /* old exporters include batch and channels */
  KVA_TRY(check_lengths(k, &w, wanted));
  weight = kva_onnx_with_extent(k, weight, 0, kva_onnx_dim(x, 1), "weights of a convolution");
  if (depends_on_extents(&w, x, wanted)) {
    KVA_TRY(kva_onnx_convolve_transposed_free(k, weight, &w, group, wanted, &y));
    return kva_onnx_done(k, add_bias(k, y, w.n + 2));
  }
  for (uint32_t i = 0; i < w.n; i++) KVA_TRY(transposed_extent(k, &w, i, wanted, &spatial[i]));
  kva_conv_input_grad_attrs attrs = {.strides = {w.n, w.strides},
                                     .pads = {2 * w.n, w.pads},
                                     .dilations = {w.n, w.dilations},
                                     .group = group,
                                     .spatial = {w.n, spatial}};
  y = kva_build(k->b, KVA_OP_conv_input_grad, 2, (kva_value *[]){x, weight}, &attrs);
  return kva_onnx_done(k, add_bias(k, y, w.n + 2));
}

/* ---- columns to image -------------------------------------------------------------------------------------------- */

static kva_status image_window(kva_onnx_call *k, kva_ints image, kva_ints block, kva_onnx_window *w) {
  kva_ints strides = kva_onnx_ints(k, "strides"), pads = kva_onnx_ints(k, "pads");
  kva_ints dilations = kva_onnx_ints(k, "dilations");
  *w = (kva_onnx_window){.n = image.n};
  if (!image.n || image.n > KVA_ONNX_MAX_SPATIAL || block.n != image.n || (strides.n && strides.n != w->n) ||
      (pads.n && pads.n != 2 * w->n) || (dilations.n && dilations.n != w->n))
    return kva_onnx_fail(k, KVA_INVALID, "image_shape, block_shape and attributes differ in length");
  for (uint32_t i = 0; i < w->n; i++) {
    w->kernel[i] = block.v[i];
    w->strides[i] = strides.n ? strides.v[i] : 1;
    w->dilations[i] = dilations.n ? dilations.v[i] : 1;
    if (w->kernel[i] < 1 || w->kernel[i] > 4096 || w->strides[i] < 1 || w->dilations[i] < 1)
      return kva_onnx_fail(k, KVA_INVALID, "blocks, strides and dilations must be above 0");
  }
  for (uint32_t i = 0; pads.n && i < 2 * w->n; i++) w->pads[i] = pads.v[i];
  return KVA_OK;
}

/* Summing columns into an image is the transpose of a convolution whose output channels are the taps: channel j of w is
 * 1 at tap j, and the columns [N, C K, L], as [N C, K, L], are dy. */
kva_status kva_onnx_col2im(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_value *x = kva_onnx_in(k, 0);
  kva_ints image, block;
  kva_onnx_window w;
  int64_t taps = 1, length = 1;
  KVA_TRY(kva_onnx_need_ints(k, 1, "image_shape", &image));
  KVA_TRY(kva_onnx_need_ints(k, 2, "block_shape", &block));
  KVA_TRY(image_window(k, image, block, &w));
  for (uint32_t i = 0; i < w.n; i++) taps *= w.kernel[i];
  if (x->type->rank != 3 || taps > 4096) return kva_onnx_fail(k, KVA_INVALID, "expected columns [N, C * taps, L]");
  kva_dim channels = kva_expr_div(e, kva_onnx_dim(x, 1), kva_expr_const(e, taps)), spatial[KVA_ONNX_MAX_SPATIAL];
  x = kva_onnx_with_extent(k, x, 1, kva_expr_muli(e, channels, taps), "columns of Col2Im");
  if (kva_onnx_dim(x, 1) != kva_expr_muli(e, channels, taps))
    return kva_onnx_fail(k, KVA_INVALID, "expected columns [N, C * %lld, L]", (long long)taps);
  kva_dim t = kva_expr_const(e, taps), one = kva_expr_const(e, 1);
  kva_dim columns[KVA_MAX_RANK] = {kva_expr_mul(e, kva_onnx_dim(x, 0), channels), t};
  kva_dim kernel[KVA_MAX_RANK] = {t, one}, out[KVA_MAX_RANK] = {kva_onnx_dim(x, 0), channels};
  for (uint32_t i = 0; i < w.n; i++) {
    int64_t rest = image.v[i] + w.pads[i] + w.pads[i + w.n] - kva_onnx_span(&w, i);
    if (rest < 0) return kva_onnx_fail(k, KVA_INVALID, "the block is larger than the image");
    columns[i + 2] = kva_expr_const(e, rest / w.strides[i] + 1);
    length *= rest / w.strides[i] + 1;
    kernel[i + 2] = kva_expr_const(e, w.kernel[i]);
    out[i + 2] = spatial[i] = kva_expr_const(e, image.v[i]);
  }
  x = kva_onnx_with_extent(k, x, 2, kva_expr_const(e, length), "columns of Col2Im");
  kva_value *eye = kva_build2(b, KVA_OP_equal, kva_onnx_ramp(b, KVA_I64, 2, 0, t), kva_onnx_ramp(b, KVA_I64, 2, 1, t));
  eye = kva_reshape(b, kva_cast(b, eye, x->type->dtype), w.n + 2, kernel);
  kva_conv_input_grad_attrs attrs = {.strides = {w.n, w.strides},
                                     .pads = {2 * w.n, w.pads},
                                     .dilations = {w.n, w.dilations},
                                     .group = 1,
                                     .spatial = {w.n, spatial}};
  kva_value *in[] = {kva_reshape(b, x, w.n + 2, columns), eye};
  return kva_onnx_done(k, kva_reshape(b, kva_build(b, KVA_OP_conv_input_grad, 2, in, &attrs), w.n + 2, out));
}
