/* Rules: convolutions. The bias is a separate addition; fusion joins it again. */
#include "frontend/onnx_window.h"

static kva_value *add_bias(kva_onnx_call *k, kva_value *y, uint32_t rank) {
  kva_value *bias = kva_onnx_in(k, 2);
  return bias ? kva_add(k->b, y, kva_onnx_channels(k->b, bias, rank)) : y;
}

static kva_status read_group(kva_onnx_call *k, int64_t *out) {
  *out = kva_onnx_int(k, "group", 1);
  return *out < 1 ? kva_onnx_fail(k, KVA_INVALID, "attribute 'group': %lld", (long long)*out) : KVA_OK;
}

kva_status kva_onnx_conv(kva_onnx_call *k) {
  kva_onnx_window w;
  int64_t group;
  KVA_TRY(kva_onnx_read_window(k, kva_onnx_in(k, 1), &w));
  KVA_TRY(kva_onnx_resolve_same(k, &w));
  KVA_TRY(read_group(k, &group));
  kva_conv_attrs attrs = {
      .strides = {w.n, w.strides}, .pads = {2 * w.n, w.pads}, .dilations = {w.n, w.dilations}, .group = group};
  kva_value *y = kva_build(k->b, KVA_OP_conv, 2, k->n->inputs, &attrs);
  return kva_onnx_done(k, add_bias(k, y, w.n + 2));
}

/* ---- transposed -------------------------------------------------------------------------------------------------- */

/* Splits the padding that makes the output `extent` long: the odd element goes to the begin, except SAME_UPPER. */
static void split_padding(kva_onnx_window *w, uint32_t i, int64_t total) {
  int64_t half = total / 2;
  w->pads[i] = w->auto_pad == KVA_PAD_SAME_UPPER ? half : total - half;
  w->pads[i + w->n] = total - w->pads[i];
}

/* Output extent of axis i and its pads. Without an explicit output: stride * (in - 1) + output_padding + span - pads.
 */
static kva_status transposed_extent(kva_onnx_call *k, kva_onnx_window *w, uint32_t i, kva_ints wanted, kva_dim *out) {
  kva_expr_ctx *x = kva_onnx_exprs(k);
  kva_ints padding = kva_onnx_ints(k, "output_padding");
  kva_dim in = kva_onnx_dim(kva_onnx_in(k, 0), i + 2);
  if ((padding.n && padding.n != w->n) || (wanted.n && wanted.n != w->n))
    return kva_onnx_fail(k, KVA_INVALID, "output_padding and output_shape need %u values", w->n);
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
  KVA_TRY(kva_onnx_read_window(k, kva_onnx_in(k, 1), &w));
  KVA_TRY(read_group(k, &group));
  if (wanted.n == w.n + 2) wanted = (kva_ints){w.n, wanted.v + 2}; /* old exporters give batch and channels too */
  for (uint32_t i = 0; i < w.n; i++) KVA_TRY(transposed_extent(k, &w, i, wanted, &spatial[i]));
  kva_conv_input_grad_attrs attrs = {.strides = {w.n, w.strides},
                                     .pads = {2 * w.n, w.pads},
                                     .dilations = {w.n, w.dilations},
                                     .group = group,
                                     .spatial = {w.n, spatial}};
  kva_value *y = kva_build(k->b, KVA_OP_conv_input_grad, 2, k->n->inputs, &attrs);
  return kva_onnx_done(k, add_bias(k, y, w.n + 2));
}
