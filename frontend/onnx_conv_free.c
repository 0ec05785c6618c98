/* Convolutions whose windows have extents that are known at run time only; see onnx_window.h. Every axis is gathered
 * into [outputs, taps], and one product sums over channels and taps. */
#include "frontend/onnx_window.h"
#include "ops/ids.h"

/* (extent - 1) * dilation + 1 */
static kva_dim span_of(kva_expr_ctx *e, kva_dim extent, int64_t dilation) {
  return kva_expr_addi(e, kva_expr_muli(e, kva_expr_addi(e, extent, -1), dilation), 1);
}

/* The axis of x as two, [outputs, taps]: the element that a tap of an output reads. */
static kva_value *windows_of_axis(kva_builder *b, kva_value *x, uint32_t axis, kva_dim taps, int64_t stride,
                                  int64_t dilation) {
  kva_expr_ctx *e = b->m->exprs;
  if (b->failed) return x;
  kva_dim room = kva_expr_sub(e, x->type->dims[axis], span_of(e, taps, dilation));
  kva_dim outputs = kva_expr_addi(e, kva_expr_div(e, room, kva_expr_const(e, stride)), 1);
  kva_value *output = kva_onnx_ramp(b, KVA_I64, 2, 0, outputs), *tap = kva_onnx_ramp(b, KVA_I64, 2, 1, taps);
  output = kva_mul(b, output, kva_const_scalar(b, KVA_I64, (double)stride));
  tap = kva_mul(b, tap, kva_const_scalar(b, KVA_I64, (double)dilation));
  return kva_onnx_gather(b, x, kva_add(b, output, tap), axis);
}

/* [N, C, out, kernel, out, kernel, ..] -> [N, group, C / group * all taps, all outputs] */
static kva_value *columns_of(kva_builder *b, kva_value *x, uint32_t n, kva_dim group, kva_dim depth) {
  kva_expr_ctx *e = b->m->exprs;
  int64_t perm[KVA_MAX_RANK] = {0, 1};
  if (b->failed) return x;
  kva_dim plane = kva_expr_const(e, 1);
  for (uint32_t i = 0; i < n; i++) {
    perm[2 + i] = 3 + 2 * (int64_t)i;
    perm[2 + n + i] = 2 + 2 * (int64_t)i;
    plane = kva_expr_mul(e, plane, x->type->dims[2 + 2 * i]);
  }
  x = kva_transpose(b, x, perm);
  return kva_reshape(b, x, 4, (kva_dim[]){x->type->dims[0], group, depth, plane});
}

kva_status kva_onnx_correlate(kva_onnx_call *k, kva_value *x, kva_value *weight, kva_dim group, const int64_t *strides,
                              const int64_t *dilations, kva_value **out) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  uint32_t n = x->type->rank - 2;
  if (2 + 2 * n > KVA_MAX_RANK)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "a kernel of symbolic extents over %u axes; pin them (--pin)", n);
  weight = kva_onnx_with_extent(k, weight, 1, kva_expr_div(e, kva_onnx_dim(x, 1), group), "weights of a convolution");
  if (b->failed) return KVA_INVALID;
  kva_dim rows = kva_expr_div(e, kva_onnx_dim(weight, 0), group);
  kva_dim depth = kva_onnx_product(b, weight->type->dims, 1, n + 2);
  for (uint32_t i = 0; i < n; i++)
    x = windows_of_axis(b, x, 2 + 2 * i, kva_onnx_dim(weight, i + 2), strides[i], dilations[i]);
  if (b->failed) return KVA_INVALID;
  kva_dim dims[KVA_MAX_RANK] = {kva_onnx_dim(x, 0), kva_onnx_dim(weight, 0)};
  for (uint32_t i = 0; i < n; i++) dims[2 + i] = kva_onnx_dim(x, 2 + 2 * i);
  x = columns_of(b, x, n, group, depth);
  weight = kva_reshape(b, weight, 4, (kva_dim[]){kva_expr_const(e, 1), group, rows, depth});
  *out = kva_reshape(b, kva_matmul(b, weight, x, false, false), n + 2, dims);
  return b->failed ? KVA_INVALID : KVA_OK;
}

kva_value *kva_onnx_pad_spatial(kva_onnx_call *k, kva_value *x, kva_value *fill, const kva_dim *before,
                                const kva_dim *after) {
  kva_dim first[KVA_MAX_RANK], last[KVA_MAX_RANK], none = kva_expr_const(kva_onnx_exprs(k), 0);
  uint32_t rank = x->type->rank;
  for (uint32_t i = 0; i < rank; i++) {
    first[i] = i < 2 ? none : before[i - 2];
    last[i] = i < 2 ? none : after[i - 2];
  }
  kva_pad_attrs attrs = {.before = {rank, first}, .after = {rank, last}};
  return kva_build(k->b, KVA_OP_pad, fill ? 2 : 1, (kva_value *[]){x, fill}, &attrs);
}

kva_status kva_onnx_convolve_free(kva_onnx_call *k, kva_value *x, kva_value *weight, const kva_onnx_window *w,
                                  int64_t group, kva_value **out) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_dim before[KVA_ONNX_MAX_SPATIAL], after[KVA_ONNX_MAX_SPATIAL];
  for (uint32_t i = 0; i < w->n; i++) {
    before[i] = kva_expr_const(e, w->pads[i]);
    after[i] = kva_expr_const(e, w->pads[i + w->n]);
    if (w->auto_pad == KVA_PAD_EXPLICIT || w->auto_pad == KVA_PAD_VALID) continue;
    kva_dim span = span_of(e, kva_onnx_dim(weight, i + 2), w->dilations[i]);
    kva_onnx_same_padding(k, w, i, span, &before[i], &after[i]);
  }
  x = kva_onnx_pad_spatial(k, x, NULL, before, after);
  return kva_onnx_correlate(k, x, weight, kva_expr_const(e, group), w->strides, w->dilations, out);
}

/* ---- transposed -------------------------------------------------------------------------------------------------- */

/* stride - 1 zeros after every element of an axis. */
static kva_value *spread_axis(kva_builder *b, kva_value *x, uint32_t axis, int64_t stride) {
  kva_expr_ctx *e = b->m->exprs;
  if (stride == 1 || b->failed) return x;
  kva_dim none = kva_expr_const(e, 0), dims[KVA_MAX_RANK], before[3] = {none, none, none};
  kva_dim after[3] = {none, kva_expr_const(e, stride - 1), none};
  kva_dim split[3] = {kva_onnx_product(b, x->type->dims, 0, axis + 1), kva_expr_const(e, 1),
                      kva_onnx_product(b, x->type->dims, axis + 1, x->type->rank)};
  uint32_t rank = x->type->rank;
  memcpy(dims, x->type->dims, sizeof *dims * rank);
  dims[axis] = kva_expr_muli(e, dims[axis], stride);
  kva_value *y = kva_reshape(b, x, 3, split);
  y = kva_build(b, KVA_OP_pad, 1, &y, &(kva_pad_attrs){.before = {3, before}, .after = {3, after}});
  return kva_reshape(b, y, rank, dims);
}

/* w[C, M / group, kernel..] -> [M, C / group, kernel..], each kernel backwards. */
static kva_value *turned_weight(kva_builder *b, kva_value *w, int64_t group) {
  kva_expr_ctx *e = b->m->exprs;
  uint32_t rank = w->type->rank;
  const kva_dim *d = w->type->dims;
  kva_dim inputs = kva_expr_div(e, d[0], kva_expr_const(e, group)), split[KVA_MAX_RANK + 1], dims[KVA_MAX_RANK];
  int64_t perm[KVA_MAX_RANK + 1] = {0, 2, 1};
  split[0] = kva_expr_const(e, group), split[1] = inputs;
  dims[0] = kva_expr_muli(e, d[1], group), dims[1] = inputs;
  for (uint32_t i = 1; i < rank; i++) split[i + 1] = d[i];
  for (uint32_t i = 2; i < rank; i++) dims[i] = d[i], perm[i + 1] = i + 1;
  w = kva_reshape(b, w, rank + 1, split);
  if (b->failed) return w;
  w = kva_reshape(b, kva_transpose(b, w, perm), rank, dims);
  for (uint32_t i = 2; i < rank && !b->failed; i++) w = kva_onnx_flip(b, w, i);
  return w;
}

/* What the zeros around axis i of the spread operand are, for a plain convolution that gives the result's extent. That
 * is stride * (in - 1) + output_padding + span - pads, or what is wanted; an odd element of its padding goes to the
 * beginning, except for SAME_UPPER. */
static void transposed_padding(kva_onnx_call *k, const kva_value *weight, const kva_onnx_window *w, uint32_t i,
                               kva_ints wanted, kva_dim *before, kva_dim *after) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_ints padding = kva_onnx_ints(k, "output_padding");
  bool same = w->auto_pad == KVA_PAD_SAME_UPPER || w->auto_pad == KVA_PAD_SAME_LOWER;
  kva_dim reach = kva_expr_addi(e, span_of(e, kva_onnx_dim(weight, i + 2), w->dilations[i]), -1);
  kva_dim spread = kva_expr_muli(e, kva_onnx_dim(kva_onnx_in(k, 0), i + 2), w->strides[i]);
  kva_dim full = kva_expr_addi(e, spread, (padding.n ? padding.v[i] : 0) - w->strides[i] + 1);
  full = kva_expr_add(e, full, reach);
  kva_dim first = kva_expr_const(e, w->pads[i]), length = kva_expr_addi(e, full, -(w->pads[i] + w->pads[i + w->n]));
  if (wanted.n || same) {
    length = wanted.n ? kva_expr_const(e, wanted.v[i]) : spread;
    kva_dim total = kva_expr_max(e, kva_expr_sub(e, full, length), kva_expr_const(e, 0)), two = kva_expr_const(e, 2);
    first = w->auto_pad == KVA_PAD_SAME_UPPER ? kva_expr_div(e, total, two) : kva_expr_ceildiv(e, total, two);
  }
  *before = kva_expr_sub(e, reach, first);
  *after = kva_expr_sub(e, kva_expr_add(e, length, first), spread);
}

kva_status kva_onnx_convolve_transposed_free(kva_onnx_call *k, kva_value *weight, const kva_onnx_window *w,
                                             int64_t group, kva_ints wanted, kva_value **out) {
  static const int64_t ones[KVA_ONNX_MAX_SPATIAL] = {1, 1, 1, 1, 1, 1};
  kva_value *x = kva_onnx_in(k, 0);
  kva_dim before[KVA_ONNX_MAX_SPATIAL], after[KVA_ONNX_MAX_SPATIAL];
  for (uint32_t i = 0; i < w->n; i++) {
    transposed_padding(k, weight, w, i, wanted, &before[i], &after[i]);
    x = spread_axis(k->b, x, i + 2, w->strides[i]);
  }
  x = kva_onnx_pad_spatial(k, x, NULL, before, after);
  weight = kva_onnx_with_extent(k, weight, 0, kva_onnx_dim(x, 1), "weights of a convolution");
  weight = turned_weight(k->b, weight, group);
  if (k->b->failed) return KVA_INVALID;
  return kva_onnx_correlate(k, x, weight, kva_expr_const(kva_onnx_exprs(k), group), ones, w->dilations, out);
}
