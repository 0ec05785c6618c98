/* Rules: reductions, arg-reductions and scans. Axes are an attribute in old versions and an input in new ones
 * (ReduceSum since 13, the others since 18); none means all, or nothing with noop_with_empty_axes. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

typedef struct reduction {
  kva_ints axes;
  bool keepdims, noop;
} reduction;

static kva_status read_reduction(kva_onnx_call *k, reduction *out) {
  bool given;
  KVA_TRY(kva_onnx_list(k, "axes", 1, &out->axes, &given));
  out->keepdims = kva_onnx_int(k, "keepdims", 1) != 0;
  out->noop = !out->axes.n && kva_onnx_int(k, "noop_with_empty_axes", 0) != 0;
  uint32_t unused;
  for (uint32_t i = 0; i < out->axes.n; i++)
    KVA_TRY(kva_onnx_axis(k, out->axes.v[i], kva_onnx_in(k, 0)->type->rank, &unused));
  return KVA_OK;
}

static kva_value *apply(kva_onnx_call *k, const reduction *r, kva_op_id op, kva_value *x) {
  return r->noop ? x : kva_reduce(k->b, op, x, r->axes.n, r->axes.v, r->keepdims);
}

/* Integer mean: the sum divided with truncation. */
static kva_value *integer_mean(kva_onnx_call *k, const reduction *r, kva_value *x) {
  kva_value *sum = apply(k, r, KVA_OP_reduce_sum, x);
  kva_dim count = kva_expr_const(kva_onnx_exprs(k), 1);
  for (uint32_t i = 0; i < x->type->rank; i++) {
    bool reduced = !r->axes.n;
    for (uint32_t j = 0; j < r->axes.n; j++) reduced |= (r->axes.v[j] + x->type->rank) % x->type->rank == i;
    if (reduced) count = kva_expr_mul(kva_onnx_exprs(k), count, kva_onnx_dim(x, i));
  }
  return r->noop ? sum : kva_div(k->b, sum, kva_dim_scalar(k->b, x->type->dtype, count));
}

kva_status kva_onnx_reduce(kva_onnx_call *k) {
  reduction r;
  kva_value *x = kva_onnx_in(k, 0);
  KVA_TRY(read_reduction(k, &r));
  if (k->arg == KVA_OP_reduce_mean && !kva_dtype_is_float(x->type->dtype))
    return kva_onnx_done(k, integer_mean(k, &r, x));
  return kva_onnx_done(k, apply(k, &r, (kva_op_id)k->arg, x));
}

kva_status kva_onnx_reduce_l1(kva_onnx_call *k) {
  reduction r;
  KVA_TRY(read_reduction(k, &r));
  return kva_onnx_done(k, apply(k, &r, KVA_OP_reduce_sum, kva_build1(k->b, KVA_OP_abs, kva_onnx_in(k, 0))));
}

static kva_value *sum_of_squares(kva_onnx_call *k, const reduction *r, kva_value *x) {
  return apply(k, r, KVA_OP_reduce_sum, kva_mul(k->b, x, x));
}

kva_status kva_onnx_reduce_sum_square(kva_onnx_call *k) {
  reduction r;
  KVA_TRY(read_reduction(k, &r));
  return kva_onnx_done(k, sum_of_squares(k, &r, kva_onnx_in(k, 0)));
}

/* These reductions use float functions; integers are computed in float and truncated. */
static kva_status done_as_input(kva_onnx_call *k, kva_value *y) {
  return kva_onnx_done(k, kva_cast(k->b, y, kva_onnx_in(k, 0)->type->dtype));
}

kva_status kva_onnx_reduce_l2(kva_onnx_call *k) {
  reduction r;
  KVA_TRY(read_reduction(k, &r));
  kva_value *x = kva_onnx_widen(k->b, kva_onnx_in(k, 0));
  return done_as_input(k, kva_onnx_norm(k->b, sum_of_squares(k, &r, x), 2));
}

kva_status kva_onnx_reduce_log_sum(kva_onnx_call *k) {
  reduction r;
  KVA_TRY(read_reduction(k, &r));
  kva_value *x = kva_onnx_widen(k->b, kva_onnx_in(k, 0));
  return done_as_input(k, kva_build1(k->b, KVA_OP_log, apply(k, &r, KVA_OP_reduce_sum, x)));
}

/* m + log(sum(exp(x - m))) with m = max(x), or 0 if that is infinite (-inf: an empty or fully masked row). */
kva_status kva_onnx_reduce_log_sum_exp(kva_onnx_call *k) {
  kva_builder *b = k->b;
  reduction r;
  KVA_TRY(read_reduction(k, &r));
  kva_value *x = kva_onnx_widen(b, kva_onnx_in(k, 0));
  if (r.noop || !x->type->rank) return done_as_input(k, x);
  reduction kept = r;
  kept.keepdims = true;
  kva_value *top = apply(k, &kept, KVA_OP_reduce_max, x);
  top = kva_onnx_where(b, kva_build1(b, KVA_OP_is_inf, top), kva_scalar_like(b, top, 0), top);
  kva_value *sum = apply(k, &r, KVA_OP_reduce_sum, kva_build1(b, KVA_OP_exp, kva_sub(b, x, top)));
  kva_value *log = kva_build1(b, KVA_OP_log, sum);
  return done_as_input(k, kva_add(b, log, kva_reshape_like(b, top, log->type)));
}

kva_status kva_onnx_arg(kva_onnx_call *k) {
  kva_argmax_attrs attrs = {.keepdims = kva_onnx_int(k, "keepdims", 1) != 0,
                            .select_last = kva_onnx_int(k, "select_last_index", 0) != 0};
  uint32_t axis;
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", 0), kva_onnx_in(k, 0)->type->rank, &axis));
  attrs.axis = axis;
  return kva_onnx_done(k, kva_build(k->b, (kva_op_id)k->arg, 1, k->n->inputs, &attrs));
}

kva_status kva_onnx_scan(kva_onnx_call *k) {
  kva_cumsum_attrs attrs = {.exclusive = kva_onnx_int(k, "exclusive", 0) != 0,
                            .reverse = kva_onnx_int(k, "reverse", 0) != 0};
  kva_ints axes;
  uint32_t axis;
  KVA_TRY(kva_onnx_need_ints(k, 1, "axis", &axes));
  if (axes.n != 1) return kva_onnx_fail(k, KVA_INVALID, "input 1 (axis): expected one number, found %u", axes.n);
  KVA_TRY(kva_onnx_axis(k, axes.v[0], kva_onnx_in(k, 0)->type->rank, &axis));
  attrs.axis = axis;
  return kva_onnx_done(k, kva_build(k->b, (kva_op_id)k->arg, 1, k->n->inputs, &attrs));
}
