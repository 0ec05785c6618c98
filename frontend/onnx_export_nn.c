/* Exports contractions, windows, normalisations and losses as ONNX nodes. */
#include "frontend/onnx_export.h"
#include "ops/pool.h"

/* ---- contraction and windows ------------------------------------------------------------------------------------- */

static const char *swap_last(kva_export *e, const char *x, uint32_t rank) {
  int64_t perm[KVA_MAX_RANK];
  for (uint32_t i = 0; i < rank; i++) perm[i] = i;
  perm[rank - 1] = rank - 2;
  perm[rank - 2] = rank - 1;
  kva_pb_node *p = kva_export_node(e, "Transpose", 1, &x, NULL);
  kva_export_ints(e, p, "perm", (kva_ints){rank, perm});
  return kva_export_out(p);
}

kva_status kva_export_matmul(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_matmul_attrs *a = n->attrs;
  const char *x = kva_export_in(e, n, 0), *y = kva_export_in(e, n, 1);
  bool exact = a->to == KVA_I32; /* of integers of 8 bits */
  if (a->to && !exact) x = kva_export_cast(e, x, a->to), y = kva_export_cast(e, y, a->to);
  if (a->transpose_a) x = swap_last(e, x, kva_operand(n, 0)->type->rank);
  if (a->transpose_b) y = swap_last(e, y, kva_operand(n, 1)->type->rank);
  return kva_export_done(e, n, kva_export_2(e, exact ? "MatMulInteger" : op_type, x, y));
}

static void window_attrs(kva_export *e, kva_pb_node *p, kva_ints strides, kva_ints pads, kva_ints dilations) {
  if (strides.n) kva_export_ints(e, p, "strides", strides);
  if (pads.n) kva_export_ints(e, p, "pads", pads);
  if (dilations.n) kva_export_ints(e, p, "dilations", dilations);
}

kva_status kva_export_conv(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_conv_attrs *a = n->attrs;
  kva_pb_node *p = kva_export_like(e, n, a->to == KVA_I32 ? "ConvInteger" : op_type); /* of integers of 8 bits */
  window_attrs(e, p, a->strides, a->pads, a->dilations);
  kva_export_int(e, p, "group", a->group);
  return KVA_OK;
}

static int64_t entry(kva_ints v, uint32_t i, int64_t absent) {
  return v.n ? v.v[i] : absent;
}

/* output_padding supplies the part of the result's extent that stride, kernel and pads do not determine. */
kva_status kva_export_conv_transpose(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_conv_input_grad_attrs *a = n->attrs;
  const kva_type *x = kva_operand(n, 0)->type, *w = kva_operand(n, 1)->type;
  kva_expr_ctx *c = e->m->exprs;
  int64_t extra[KVA_MAX_RANK], kernel;
  uint32_t spatial = x->rank - 2;
  for (uint32_t i = 0; i < spatial; i++) {
    if (!kva_expr_is_const(w->dims[i + 2], &kernel)) return kva_export_unsupported(e, n, "symbolic kernel");
    int64_t stride = entry(a->strides, i, 1), span = (kernel - 1) * entry(a->dilations, i, 1) + 1;
    int64_t constant = span - stride - entry(a->pads, i, 0) - entry(a->pads, i + spatial, 0);
    kva_dim plain = kva_expr_addi(c, kva_expr_muli(c, x->dims[i + 2], stride), constant);
    if (!kva_expr_is_const(kva_expr_sub(c, a->spatial.v[i], plain), &extra[i]))
      return kva_export_unsupported(e, n, "its result's extent does not follow from its operand's");
  }
  kva_pb_node *p = kva_export_like(e, n, op_type);
  window_attrs(e, p, a->strides, a->pads, a->dilations);
  kva_export_ints(e, p, "output_padding", (kva_ints){spatial, extra});
  kva_export_int(e, p, "group", a->group);
  return KVA_OK;
}

/* ceil_mode leaves out a window that would begin in the padding behind x. The shape inference of the exported opset
 * counts it, so pads that end with the last window are written instead. false: this is not so, or not known, or a pad
 * would be as large as the kernel, which ONNX Runtime refuses. */
static bool ends_with_window(const kva_node *n, const kva_window *w, int64_t *pads) {
  const kva_type *x = kva_operand_type(n, 0), *y = n->results[0].type;
  bool counted = false;
  for (uint32_t i = 0; i < w->n; i++) {
    int64_t in, out, span = (w->kernel[i] - 1) * w->dilation[i] + 1;
    if (!kva_expr_is_const(x->dims[i + 2], &in) || !kva_expr_is_const(y->dims[i + 2], &out)) return false;
    int64_t needed = (out - 1) * w->stride[i] + span - in - w->before[i];
    pads[i] = w->before[i];
    if (needed >= w->kernel[i] && needed > w->after[i]) return false;
    pads[w->n + i] = needed > 0 ? needed : 0;
    counted |= w->after[i] > needed;
  }
  return w->ceil_mode && counted;
}

/* Whether pads keep what a mean divides by where it counts them: none is larger than it was. */
static bool keeps_counts(const kva_window *w, const int64_t *pads) {
  uint32_t i = 0;
  while (i < w->n && pads[w->n + i] <= w->after[i]) i++;
  return i == w->n;
}

kva_status kva_export_max_pool(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_max_pool_attrs *a = n->attrs;
  int64_t pads[2 * KVA_MAX_SPATIAL];
  kva_window w = KVA_POOL_WINDOW(a);
  bool whole = ends_with_window(n, &w, pads);
  kva_pb_node *p = kva_export_like(e, n, op_type);
  kva_export_ints(e, p, "kernel_shape", a->kernel);
  window_attrs(e, p, a->strides, whole ? (kva_ints){2 * w.n, pads} : a->pads, a->dilations);
  kva_export_int(e, p, "ceil_mode", a->ceil_mode && !whole);
  if (!n->results[1].uses) return KVA_OK;
  kva_export_int(e, p, "storage_order", a->column_major);
  const char *indices = kva_export_result_name(e, n, 1);
  kva_export_add_output(e, p, indices);
  kva_export_set(e, n, 1, indices);
  return KVA_OK;
}

kva_status kva_export_avg_pool(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_avg_pool_attrs *a = n->attrs;
  int64_t pads[2 * KVA_MAX_SPATIAL];
  kva_window w = KVA_POOL_WINDOW(a);
  bool whole = ends_with_window(n, &w, pads) && (!a->count_include_pad || keeps_counts(&w, pads));
  kva_pb_node *p = kva_export_like(e, n, op_type);
  kva_export_ints(e, p, "kernel_shape", a->kernel);
  window_attrs(e, p, a->strides, whole ? (kva_ints){2 * w.n, pads} : a->pads, a->dilations);
  kva_export_int(e, p, "ceil_mode", a->ceil_mode && !whole);
  kva_export_int(e, p, "count_include_pad", a->count_include_pad);
  return KVA_OK;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static kva_dtype compute_type(const kva_node *n) {
  return kva_operand(n, 0)->type->dtype == KVA_F64 ? KVA_F64 : KVA_F32;
}

static const char *widened(kva_export *e, const kva_node *n, uint32_t i) {
  const kva_value *v = kva_operand(n, i);
  return v->type->dtype == compute_type(n) ? kva_export_in(e, n, i)
                                           : kva_export_cast(e, kva_export_in(e, n, i), compute_type(n));
}

static const char *narrowed(kva_export *e, const kva_node *n, const char *x) {
  kva_dtype t = n->results[0].type->dtype;
  return t == compute_type(n) ? x : kva_export_cast(e, x, t);
}

/* x * rsqrt(mean(x^2) + eps) over the axes from `axis`. */
static const char *normalised(kva_export *e, const kva_node *n, const char *x, int64_t axis, double eps) {
  int64_t axes[KVA_MAX_RANK];
  uint32_t rank = kva_operand(n, 0)->type->rank, first = (uint32_t)(axis < 0 ? axis + rank : axis), count = 0;
  for (uint32_t i = first; i < rank; i++) axes[count++] = i;
  const char *mean = kva_export_reduce(e, "ReduceMean", kva_export_2(e, "Mul", x, x), count, axes, true);
  const char *shifted = kva_export_2(e, "Add", mean, kva_export_scalar(e, compute_type(n), eps));
  return kva_export_2(e, "Div", x, kva_export_1(e, "Sqrt", shifted));
}

kva_status kva_export_rms_norm(kva_export *e, const kva_node *n, const char *op_type) {
  (void)op_type;
  const kva_rms_norm_attrs *a = n->attrs;
  const char *y = normalised(e, n, widened(e, n, 0), a->axis, a->eps);
  return kva_export_done(e, n, narrowed(e, n, kva_export_2(e, "Mul", y, widened(e, n, 1))));
}

kva_status kva_export_layer_norm(kva_export *e, const kva_node *n, const char *op_type) {
  (void)op_type;
  const kva_layer_norm_attrs *a = n->attrs;
  int64_t axes[KVA_MAX_RANK];
  uint32_t rank = kva_operand(n, 0)->type->rank, count = 0;
  for (uint32_t i = (uint32_t)(a->axis < 0 ? a->axis + rank : a->axis); i < rank; i++) axes[count++] = i;
  const char *x = widened(e, n, 0), *mean = kva_export_reduce(e, "ReduceMean", x, count, axes, true);
  const char *y = normalised(e, n, kva_export_2(e, "Sub", x, mean), a->axis, a->eps);
  y = kva_export_2(e, "Mul", y, widened(e, n, 1));
  if (kva_operand(n, 2)) y = kva_export_2(e, "Add", y, widened(e, n, 2));
  return kva_export_done(e, n, narrowed(e, n, y));
}

kva_status kva_export_batch_norm(kva_export *e, const kva_node *n, const char *op_type) {
  kva_export_float(e, kva_export_like(e, n, op_type), "epsilon", ((const kva_batch_norm_attrs *)n->attrs)->eps);
  return KVA_OK;
}

kva_status kva_export_cross_entropy(kva_export *e, const kva_node *n, const char *op_type) {
  (void)op_type;
  const kva_value *target = kva_operand(n, 1);
  int64_t last = -1;
  const char *x = widened(e, n, 0), *t = kva_export_in(e, n, 1), *zero = kva_export_scalar(e, target->type->dtype, 0);
  double ignored = (double)((const kva_cross_entropy_attrs *)n->attrs)->ignore_index;
  const char *skip = kva_export_2(e, "Equal", t, kva_export_scalar(e, target->type->dtype, ignored));
  const char *lse = kva_export_reduce(e, "ReduceLogSumExp", x, 1, &last, false);
  const char *index = kva_export_unsqueeze(e, kva_export_3(e, "Where", skip, zero, t), 1, &last);
  kva_pb_node *gather = kva_export_node(e, "GatherElements", 2, (const char *[]){x, index}, NULL);
  kva_export_int(e, gather, "axis", -1);
  const char *picked = kva_export_2(e, "Squeeze", kva_export_out(gather), kva_export_i64(e, -1));
  const char *loss = kva_export_2(e, "Sub", lse, picked);
  kva_export_set(e, n, 1, lse);
  return kva_export_done(e, n, kva_export_3(e, "Where", skip, kva_export_scalar(e, compute_type(n), 0), loss));
}
