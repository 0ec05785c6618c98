/* Window attributes; see onnx_window.h. */
#include "frontend/onnx_window.h"

enum { MAX_WINDOW = 1 << 20 }; /* limit for kernel, stride, dilation, pad: keeps products in range */

static kva_status read_auto_pad(kva_onnx_call *k, kva_onnx_auto_pad *out) {
  static const char *const names[] = {"NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"};
  const char *mode = kva_onnx_string(k, "auto_pad", "NOTSET");
  for (int i = 0; i < 4; i++)
    if (!strcmp(mode, names[i])) return *out = (kva_onnx_auto_pad)i, KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "attribute 'auto_pad': '%s'", mode);
}

static kva_status read_list(kva_onnx_call *k, const char *name, uint32_t n, int64_t low, int64_t absent, int64_t *out) {
  kva_ints v = kva_onnx_ints(k, name);
  if (v.n && v.n != n) return kva_onnx_fail(k, KVA_INVALID, "attribute '%s': %u values, expected %u", name, v.n, n);
  for (uint32_t i = 0; i < n; i++) {
    out[i] = v.n ? v.v[i] : absent;
    if (out[i] < low || out[i] > MAX_WINDOW)
      return kva_onnx_fail(k, KVA_INVALID, "attribute '%s': value %lld", name, (long long)out[i]);
  }
  return KVA_OK;
}

static kva_status read_kernel(kva_onnx_call *k, const kva_value *weight, kva_onnx_window *w) {
  kva_ints shape = kva_onnx_ints(k, "kernel_shape");
  if (!weight && shape.n != w->n)
    return kva_onnx_fail(k, KVA_INVALID, "attribute 'kernel_shape': %u values, expected %u", shape.n, w->n);
  for (uint32_t i = 0; i < w->n; i++) {
    if (weight && !kva_expr_is_const(kva_onnx_dim(weight, i + 2), &w->kernel[i])) {
      w->kernel[i] = 0, w->free = true;
      continue;
    }
    if (!weight)
      w->kernel[i] = shape.v[i];
    else if (shape.n && (shape.n != w->n || shape.v[i] != w->kernel[i]))
      return kva_onnx_fail(k, KVA_INVALID, "kernel_shape differs from the shape of the weights");
    if (w->kernel[i] < 1 || w->kernel[i] > MAX_WINDOW)
      return kva_onnx_fail(k, KVA_INVALID, "kernel extent %lld", (long long)w->kernel[i]);
  }
  return KVA_OK;
}

kva_status kva_onnx_read_window(kva_onnx_call *k, const kva_value *weight, kva_onnx_window *w) {
  const kva_type *t = kva_onnx_in(k, 0)->type;
  *w = (kva_onnx_window){0};
  if (t->rank < 3) return kva_onnx_fail(k, KVA_INVALID, "expected rank 3 or more, found %u", t->rank);
  if (weight && weight->type->rank != t->rank)
    return kva_onnx_fail(k, KVA_INVALID, "weights of rank %u for data of rank %u", weight->type->rank, t->rank);
  w->n = t->rank - 2;
  KVA_TRY(read_kernel(k, weight, w));
  KVA_TRY(read_list(k, "strides", w->n, 1, 1, w->strides));
  KVA_TRY(read_list(k, "dilations", w->n, 1, 1, w->dilations));
  KVA_TRY(read_auto_pad(k, &w->auto_pad));
  if (w->auto_pad == KVA_PAD_EXPLICIT) return read_list(k, "pads", 2 * w->n, 0, 0, w->pads);
  return KVA_OK;
}

void kva_onnx_same_padding(kva_onnx_call *k, const kva_onnx_window *w, uint32_t i, kva_dim span, kva_dim *before,
                           kva_dim *after) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_dim extent = kva_onnx_dim(kva_onnx_in(k, 0), i + 2), stride = kva_expr_const(e, w->strides[i]);
  kva_dim last = kva_expr_addi(e, kva_expr_ceildiv(e, extent, stride), -1), two = kva_expr_const(e, 2);
  kva_dim total = kva_expr_sub(e, kva_expr_add(e, kva_expr_mul(e, last, stride), span), extent);
  if (!kva_expr_provably_le(e, stride, span)) total = kva_expr_max(e, total, kva_expr_const(e, 0));
  *before = w->auto_pad == KVA_PAD_SAME_UPPER ? kva_expr_div(e, total, two) : kva_expr_ceildiv(e, total, two);
  *after = kva_expr_sub(e, total, *before);
}

/* Total padding that yields ceil(extent / stride) outputs. */
static kva_status same_padding(kva_onnx_call *k, const kva_onnx_window *w, uint32_t i, int64_t *out) {
  int64_t extent, span = kva_onnx_span(w, i), stride = w->strides[i];
  if (stride == 1) return *out = span - 1, KVA_OK;
  if (!kva_expr_is_const(kva_onnx_dim(kva_onnx_in(k, 0), i + 2), &extent))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "auto_pad SAME with stride %lld on a symbolic extent", (long long)stride);
  int64_t outputs = extent / stride + (extent % stride != 0);
  int64_t total = (outputs - 1) * stride + span - extent;
  return *out = total > 0 ? total : 0, KVA_OK;
}

kva_status kva_onnx_resolve_same(kva_onnx_call *k, kva_onnx_window *w) {
  if (w->auto_pad != KVA_PAD_SAME_UPPER && w->auto_pad != KVA_PAD_SAME_LOWER) return KVA_OK;
  for (uint32_t i = 0; i < w->n; i++) {
    int64_t total = 0;
    KVA_TRY(same_padding(k, w, i, &total));
    int64_t small = total / 2, large = total - small;
    bool upper = w->auto_pad == KVA_PAD_SAME_UPPER;
    w->pads[i] = upper ? small : large;
    w->pads[i + w->n] = upper ? large : small;
  }
  return KVA_OK;
}

bool kva_onnx_pads_by_extent(const kva_onnx_window *w, const kva_value *x) {
  bool same = w->auto_pad == KVA_PAD_SAME_UPPER || w->auto_pad == KVA_PAD_SAME_LOWER, found = false;
  for (uint32_t i = 0; same && i < w->n; i++)
    found |= w->strides[i] > 1 && !kva_expr_is_const(kva_onnx_dim(x, i + 2), NULL);
  return found;
}

kva_value *kva_onnx_pad_same(kva_onnx_call *k, kva_value *x, kva_value *fill, kva_onnx_window *w) {
  kva_dim before[KVA_ONNX_MAX_SPATIAL], after[KVA_ONNX_MAX_SPATIAL];
  for (uint32_t i = 0; i < w->n; i++)
    kva_onnx_same_padding(k, w, i, kva_expr_const(kva_onnx_exprs(k), kva_onnx_span(w, i)), &before[i], &after[i]);
  w->auto_pad = KVA_PAD_VALID;
  return kva_onnx_pad_spatial(k, x, fill, before, after);
}
