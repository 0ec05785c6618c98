/* Rules: slices, pads, joins and permutations. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

kva_status kva_onnx_transpose(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  kva_ints perm = kva_onnx_ints(k, "perm");
  int64_t reversed[KVA_MAX_RANK];
  bool seen[KVA_MAX_RANK] = {false};
  uint32_t rank = x->type->rank;
  for (uint32_t i = 0; i < rank; i++) reversed[i] = rank - 1 - i;
  if (!kva_onnx_find_attr(k, "perm")) return kva_onnx_done(k, kva_transpose(k->b, x, reversed));
  if (perm.n != rank) return kva_onnx_fail(k, KVA_INVALID, "perm has %u entries for rank %u", perm.n, rank);
  for (uint32_t i = 0; i < rank; i++) {
    if (perm.v[i] < 0 || perm.v[i] >= rank)
      return kva_onnx_fail(k, KVA_INVALID, "perm[%u] is %lld; expected an axis, 0 to %u", i, (long long)perm.v[i],
                           rank - 1);
    uint32_t axis = (uint32_t)perm.v[i];
    if (seen[axis]) return kva_onnx_fail(k, KVA_INVALID, "perm names axis %u twice", axis);
    seen[axis] = true;
    reversed[i] = axis;
  }
  return kva_onnx_done(k, kva_transpose(k->b, x, reversed));
}

/* ---- slice ------------------------------------------------------------------------------------------------------- */

typedef struct slicing {
  kva_dim starts[KVA_MAX_RANK], shape[KVA_MAX_RANK];
  kva_dim assumed[KVA_MAX_RANK]; /* shape, for the sizes that the model is meant for */
  int64_t steps[KVA_MAX_RANK];
} slicing;

static void slice_numbers(kva_expr_ctx *x, int64_t extent, int64_t start, int64_t end, int64_t step, uint32_t axis,
                          slicing *out) {
  int64_t low = step > 0 ? 0 : -1, high = step > 0 ? extent : extent - 1, n = 0;
  if (start < 0) start = start < -extent ? 0 : start + extent;
  if (end < 0) end = end < -extent ? low : end + extent;
  if (start > high) start = high;
  if (end > high) end = high;
  if (step > 0 && end > start) n = (end - start - 1) / step + 1;
  if (step < 0 && start > end) n = (start - end - 1) / (step == INT64_MIN ? INT64_MAX : -step) + 1;
  out->starts[axis] = kva_expr_const(x, n ? start : 0);
  out->shape[axis] = out->assumed[axis] = kva_expr_const(x, n);
  out->steps[axis] = n ? step : 1;
}

/* A bound on a symbolic extent d, as a position. Negative bounds count from the end. A bound that may exceed d is
 * clamped if `cut` is set. -1 is d - 1 without a clamp: see at_most. */
static kva_dim slice_bound(kva_expr_ctx *x, kva_dim d, kva_dim bound, bool cut) {
  int64_t v;
  bool number = kva_expr_is_const(bound, &v);
  if (number && v >= INT32_MAX) return d;
  if (number && v < 0) return kva_expr_addi(x, d, v);
  if (!cut || kva_expr_provably_le(x, bound, d)) return bound;
  return kva_expr_min(x, bound, d);
}

/* The number of elements from `from` to `to`; 0 if the slice starts after its end. That is left out where it would take
 * an empty operand: lengths like T - 1 are compared with those of other tensors. */
static kva_dim slice_length(kva_expr_ctx *x, kva_dim d, kva_dim from, kva_dim to, int64_t step) {
  kva_dim n = kva_expr_ceildiv(x, kva_expr_sub(x, to, from), kva_expr_const(x, step));
  kva_dim zero = kva_expr_const(x, 0), most_missing = kva_expr_addi(x, d, -1);
  bool fits = kva_expr_provably_le(x, zero, n) || kva_expr_provably_le(x, most_missing, kva_expr_sub(x, to, from));
  return fits ? n : kva_expr_max(x, n, zero);
}

/* A slice that begins at d - 1 has n elements by its bounds, also where d is 0: it has no more than d. */
static kva_dim at_most(kva_expr_ctx *x, kva_dim d, kva_dim n) {
  return kva_expr_provably_le(x, n, d) ? n : kva_expr_min(x, n, d);
}

/* A bound of a backward slice: numbers count from the end if they are negative, and are clamped to [low, d - 1]. False:
 * the sign of an expression is not known. */
static bool backward_bound(kva_expr_ctx *x, kva_dim d, kva_dim bound, int64_t low, kva_dim *out) {
  int64_t v;
  kva_dim last = kva_expr_addi(x, d, -1), least = kva_expr_const(x, low);
  bool number = kva_expr_is_const(bound, &v);
  if (!number && !(kva_expr_lower_bound(bound, &v) && v >= 0)) return false;
  if (number && v >= INT32_MAX)
    *out = last;
  else if (number && v <= INT32_MIN)
    *out = least;
  else if (number && v < 0)
    *out = v == -1 ? last : kva_expr_max(x, kva_expr_addi(x, d, v), least);
  else
    *out = kva_expr_min(x, bound, last);
  return true;
}

static kva_status slice_backward(kva_onnx_call *k, kva_dim d, kva_dim start, kva_dim end, int64_t step, uint32_t axis,
                                 slicing *out) {
  kva_expr_ctx *x = kva_onnx_exprs(k);
  kva_dim from, to;
  if (step == INT64_MIN || !backward_bound(x, d, start, 0, &from) || !backward_bound(x, d, end, -1, &to))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "backward slice of axis %u, whose bounds may count from the end", axis);
  kva_dim n = kva_expr_ceildiv(x, kva_expr_sub(x, from, to), kva_expr_const(x, -step)), none = kva_expr_const(x, 0);
  if (!kva_expr_provably_le(x, none, n)) n = kva_expr_max(x, n, none);
  out->starts[axis] = from;
  out->shape[axis] = out->assumed[axis] = at_most(x, d, n);
  out->steps[axis] = step;
  return KVA_OK;
}

/* Forward slice of a symbolic extent. A start before the first element would read out of bounds, so it is clamped if
 * the extent may be smaller. The last element is taken to be there: models know that it is one. */
static kva_status slice_symbolic(kva_onnx_call *k, kva_dim d, kva_dim start, kva_dim end, int64_t step, uint32_t axis,
                                 slicing *out) {
  kva_expr_ctx *x = kva_onnx_exprs(k);
  int64_t s, low;
  bool number = kva_expr_is_const(start, &s);
  if (step < 1) return slice_backward(k, d, start, end, step, axis, out);
  kva_dim from = slice_bound(x, d, start, false), to = slice_bound(x, d, end, true);
  bool in_doubt = number ? s < -1 : !kva_expr_lower_bound(from, &low) || low < 0;
  if (in_doubt) from = kva_expr_max(x, from, kva_expr_const(x, 0));
  kva_dim n = slice_length(x, d, from, to, step);
  out->starts[axis] = from;
  out->shape[axis] = number && s == -1 ? at_most(x, d, n) : n;
  out->assumed[axis] = kva_expr_is(n, 1) ? n : out->shape[axis];
  out->steps[axis] = step;
  return KVA_OK;
}

static kva_status slice_axis(kva_onnx_call *k, uint32_t axis, kva_dim start, kva_dim end, int64_t step, slicing *out) {
  kva_dim d = kva_onnx_dim(kva_onnx_in(k, 0), axis);
  int64_t extent, s, e;
  if (!step) return kva_onnx_fail(k, KVA_INVALID, "the step of axis %u is 0", axis);
  if (kva_expr_is_const(d, &extent) && kva_expr_is_const(start, &s) && kva_expr_is_const(end, &e)) {
    slice_numbers(kva_onnx_exprs(k), extent, s, e, step, axis, out);
    return KVA_OK;
  }
  return slice_symbolic(k, d, start, end, step, axis, out);
}

/* Bounds from input i, one for each axis: those that data decides count from the end if they are negative, and are
 * clamped to 0. */
static kva_status slice_bounds(kva_onnx_call *k, uint32_t i, const char *what, kva_ints axes, kva_dims *out) {
  kva_builder *b = k->b;
  kva_value *v = kva_onnx_in(k, i), *x = kva_onnx_in(k, 0), *zero = kva_const_scalar(b, KVA_I64, 0);
  kva_dim extents[KVA_MAX_RANK];
  int64_t n = 0;
  if (kva_onnx_contents(k->c, v) || v->type->rank != 1 || kva_dtype_is_float(v->type->dtype))
    return kva_onnx_need_dims(k, i, what, out);
  if (!kva_expr_is_const(kva_onnx_dim(v, 0), &n) || n > x->type->rank || (axes.n && axes.n != n))
    return kva_onnx_fail(k, KVA_INVALID, "input %u (%s): expected one number for each axis", i, what);
  for (uint32_t j = 0; j < n; j++) {
    uint32_t axis;
    KVA_TRY(kva_onnx_axis(k, axes.n ? axes.v[j] : j, x->type->rank, &axis));
    extents[j] = kva_onnx_dim(x, axis);
  }
  kva_value *lengths = kva_build(b, KVA_OP_dims, 0, NULL, &(kva_dims_attrs){.values = {(uint32_t)n, extents}});
  v = kva_cast(b, v, KVA_I64);
  v = kva_onnx_where(b, kva_build2(b, KVA_OP_less, v, zero), kva_add(b, v, lengths), v);
  const kva_dims *bound = kva_onnx_bind_elements(k->c, kva_build2(b, KVA_OP_max, v, zero), what);
  if (!bound) return kva_onnx_fail(k, KVA_UNSUPPORTED, "input %u (%s) depends on data", i, what);
  *out = *bound;
  return KVA_OK;
}

static bool goes_back(kva_ints steps) {
  bool back = false;
  for (uint32_t i = 0; i < steps.n; i++) back |= steps.v[i] < 0;
  return back;
}

static kva_status slice_operands(kva_onnx_call *k, kva_dims *starts, kva_dims *ends, kva_ints *axes, kva_ints *steps) {
  *steps = *axes = (kva_ints){0, NULL};
  if (k->version < 10) {
    *starts = kva_onnx_dims_of(k, kva_onnx_ints(k, "starts"));
    *ends = kva_onnx_dims_of(k, kva_onnx_ints(k, "ends"));
    *axes = kva_onnx_ints(k, "axes");
  } else {
    if (kva_onnx_in(k, 3)) KVA_TRY(kva_onnx_need_ints(k, 3, "axes", axes));
    if (kva_onnx_in(k, 4)) KVA_TRY(kva_onnx_need_ints(k, 4, "steps", steps));
    if (goes_back(*steps) &&
        !(kva_onnx_contents(k->c, kva_onnx_in(k, 1)) && kva_onnx_contents(k->c, kva_onnx_in(k, 2))))
      return kva_onnx_fail(k, KVA_UNSUPPORTED, "backward slice whose bounds depend on data");
    KVA_TRY(slice_bounds(k, 1, "starts", *axes, starts));
    KVA_TRY(slice_bounds(k, 2, "ends", *axes, ends));
  }
  if (starts->n != ends->n || (axes->n && axes->n != starts->n) || (steps->n && steps->n != starts->n))
    return kva_onnx_fail(k, KVA_INVALID, "%u starts, %u ends, %u axes and %u steps", starts->n, ends->n, axes->n,
                         steps->n);
  return KVA_OK;
}

static const kva_value *behind_reshapes(const kva_value *v) {
  while (v && v->def && kva_is(v->def, KVA_OP_reshape)) v = kva_operand(v->def, 0);
  return v;
}

static bool is_one(kva_onnx_call *k, const kva_value *v) {
  const kva_ref_tensor *w = kva_onnx_constant(k->c, v);
  return w && w->i && w->n == 1 && w->i[0] == 1;
}

/* end is start + 1. */
static bool is_next(kva_onnx_call *k, const kva_value *start, const kva_value *end) {
  const kva_node *sum = behind_reshapes(end)->def;
  start = behind_reshapes(start);
  if (!sum || !kva_is(sum, KVA_OP_add)) return false;
  for (uint32_t i = 0; i < 2; i++)
    if (behind_reshapes(kva_operand(sum, i)) == start && is_one(k, kva_operand(sum, 1 - i))) return true;
  return false;
}

/* x[start : start + 1] where start depends on data: one row, gathered. */
static bool is_row_by_data(kva_onnx_call *k) {
  const kva_value *start = kva_onnx_in(k, 1);
  if (k->version < 10 || kva_onnx_contents(k->c, start) || kva_onnx_in(k, 4)) return false;
  return start->type->rank == 1 && kva_expr_is(start->type->dims[0], 1) && is_next(k, start, kva_onnx_in(k, 2));
}

static kva_status row_by_data(kva_onnx_call *k) {
  kva_ints axes = {0, NULL};
  uint32_t axis;
  if (kva_onnx_in(k, 3)) KVA_TRY(kva_onnx_need_ints(k, 3, "axes", &axes));
  KVA_TRY(kva_onnx_axis(k, axes.n ? axes.v[0] : 0, kva_onnx_in(k, 0)->type->rank, &axis));
  return kva_onnx_done(k, kva_onnx_gather(k->b, kva_onnx_in(k, 0), kva_onnx_in(k, 1), axis));
}

kva_status kva_onnx_slice_op(kva_onnx_call *k) {
  if (is_row_by_data(k)) return row_by_data(k);
  kva_value *x = kva_onnx_in(k, 0);
  uint32_t rank = x->type->rank, axis;
  kva_dims starts, ends;
  kva_ints axes, steps;
  slicing s;
  KVA_TRY(slice_operands(k, &starts, &ends, &axes, &steps));
  for (uint32_t i = 0; i < rank; i++) {
    s.starts[i] = kva_expr_const(kva_onnx_exprs(k), 0);
    s.shape[i] = s.assumed[i] = kva_onnx_dim(x, i);
    s.steps[i] = 1;
  }
  for (uint32_t i = 0; i < starts.n; i++) {
    KVA_TRY(kva_onnx_axis(k, axes.n ? axes.v[i] : i, rank, &axis));
    KVA_TRY(slice_axis(k, axis, starts.v[i], ends.v[i], steps.n ? steps.v[i] : 1, &s));
  }
  kva_slice_attrs attrs = {.starts = {rank, s.starts}, .shape = {rank, s.shape}, .steps = {rank, s.steps}};
  kva_value *y = kva_build(k->b, KVA_OP_slice, 1, &x, &attrs);
  bool assumes = k->b->assumes && !k->b->failed;
  return kva_onnx_done(k, assumes ? kva_assume(k->b, y, s.assumed, "the last elements, of Slice") : y);
}

/* ---- pad --------------------------------------------------------------------------------------------------------- */

/* Amounts: attribute `paddings` (1), `pads` (2), inputs since 11, with axes since 18. */
static kva_status pad_amounts(kva_onnx_call *k, kva_dims *pads, kva_ints *axes) {
  *axes = (kva_ints){0, NULL};
  if (k->version < 11) {
    *pads = kva_onnx_dims_of(k, kva_onnx_ints(k, k->version < 2 ? "paddings" : "pads"));
    return KVA_OK;
  }
  KVA_TRY(kva_onnx_need_dims(k, 1, "pads", pads));
  return kva_onnx_in(k, 3) ? kva_onnx_need_ints(k, 3, "axes", axes) : KVA_OK;
}

static kva_value *pad_value(kva_onnx_call *k, kva_value *x) {
  if (k->version >= 11) return kva_onnx_in(k, 2) ? kva_reshape(k->b, kva_onnx_in(k, 2), 0, NULL) : NULL;
  return kva_scalar_like(k->b, x, kva_onnx_float(k, "value", 0));
}

static kva_value *build_pad(kva_onnx_call *k, kva_value *x, const kva_dim *before, const kva_dim *after,
                            const char *mode, kva_value *value) {
  uint32_t rank = x->type->rank;
  kva_pad_attrs attrs = {.before = {rank, before}, .after = {rank, after}, .mode = mode};
  return kva_build(k->b, KVA_OP_pad, value ? 2 : 1, (kva_value *[]){x, value}, &attrs);
}

/* Crops by the negative amounts and leaves the others. The standard does not say which elements a mode repeats where an
 * amount is negative; ONNX Runtime repeats those that cropping leaves, while kv.pad repeats all of x. */
static kva_value *crop_first(kva_onnx_call *k, kva_value *x, kva_dim *before, kva_dim *after) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_dim zero = kva_expr_const(e, 0), first[KVA_MAX_RANK], last[KVA_MAX_RANK];
  bool crops = false;
  for (uint32_t i = 0; i < x->type->rank; i++) {
    first[i] = kva_expr_min(e, before[i], zero), before[i] = kva_expr_max(e, before[i], zero);
    last[i] = kva_expr_min(e, after[i], zero), after[i] = kva_expr_max(e, after[i], zero);
    crops |= first[i] != zero || last[i] != zero;
  }
  return crops ? build_pad(k, x, first, last, NULL, NULL) : x;
}

kva_status kva_onnx_pad(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  const char *mode = kva_onnx_string(k, "mode", "constant");
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  uint32_t rank = x->type->rank;
  kva_dims pads;
  kva_ints axes;
  KVA_TRY(pad_amounts(k, &pads, &axes));
  uint32_t n = axes.n ? axes.n : rank;
  if (pads.n != 2 * n) return kva_onnx_fail(k, KVA_INVALID, "%u pads for %u axes", pads.n, n);
  for (uint32_t i = 0; i < rank; i++) before[i] = after[i] = kva_expr_const(kva_onnx_exprs(k), 0);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t axis;
    KVA_TRY(kva_onnx_axis(k, axes.n ? axes.v[i] : i, rank, &axis));
    before[axis] = pads.v[i];
    after[axis] = pads.v[i + n];
  }
  bool constant = !strcmp(mode, "constant");
  kva_value *value = constant ? pad_value(k, x) : NULL;
  if (!constant) x = crop_first(k, x, before, after);
  return kva_onnx_done(k, build_pad(k, x, before, after, constant ? NULL : mode, value));
}

/* max(floor(v / 2), 0) + min(ceil(v / 2), 0) */
static kva_dim half_towards_zero(kva_expr_ctx *e, kva_dim v) {
  kva_dim zero = kva_expr_const(e, 0), two = kva_expr_const(e, 2);
  return kva_expr_add(e, kva_expr_max(e, kva_expr_div(e, v, two), zero),
                      kva_expr_min(e, kva_expr_ceildiv(e, v, two), zero));
}

/* Pads with zeros or crops to the requested extents; an odd element goes to the end. */
kva_status kva_onnx_center_crop_pad(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_ints axes = kva_onnx_ints(k, "axes");
  kva_dims shape;
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  uint32_t rank = x->type->rank;
  KVA_TRY(kva_onnx_need_dims(k, 1, "shape", &shape));
  if (shape.n != (axes.n ? axes.n : rank))
    return kva_onnx_fail(k, KVA_INVALID, "%u extents for %u axes", shape.n, axes.n ? axes.n : rank);
  for (uint32_t i = 0; i < rank; i++) before[i] = after[i] = kva_expr_const(kva_onnx_exprs(k), 0);
  for (uint32_t i = 0; i < shape.n; i++) {
    uint32_t axis;
    KVA_TRY(kva_onnx_axis(k, axes.n ? axes.v[i] : i, rank, &axis));
    kva_dim change = kva_expr_sub(e, shape.v[i], kva_onnx_dim(x, axis));
    before[axis] = half_towards_zero(e, change);
    after[axis] = kva_expr_sub(e, change, before[axis]);
  }
  return kva_onnx_done(k, build_pad(k, x, before, after, NULL, NULL));
}

/* ---- concat, split, tile ----------------------------------------------------------------------------------------- */

kva_status kva_onnx_concat_op(kva_onnx_call *k) {
  uint32_t axis;
  for (uint32_t i = 0; i < k->n->n_inputs; i++)
    if (!kva_onnx_in(k, i)) return kva_onnx_fail(k, KVA_INVALID, "input %u is required but was left out", i);
  if (k->version >= 4 && !kva_onnx_find_attr(k, "axis"))
    return kva_onnx_fail(k, KVA_INVALID, "attribute 'axis' missing");
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", 1), kva_onnx_in(k, 0)->type->rank, &axis));
  kva_concat_attrs attrs = {.axis = axis};
  return kva_onnx_done(k, kva_build(k->b, KVA_OP_concat, k->n->n_inputs, k->n->inputs, &attrs));
}

/* Equal parts; the last one gets the rest (num_outputs, opset 18). */
static kva_dim equal_part(kva_onnx_call *k, kva_dim extent, uint32_t parts, uint32_t i) {
  kva_expr_ctx *x = kva_onnx_exprs(k);
  kva_dim part = kva_expr_ceildiv(x, extent, kva_expr_const(x, parts));
  return i + 1 < parts ? part : kva_expr_sub(x, extent, kva_expr_muli(x, part, i));
}

/* num_outputs, since opset 18, is an alternative to sizes and repeats the number of outputs. */
static kva_status check_split_attrs(kva_onnx_call *k, bool sizes_given) {
  const kva_onnx_attr *a = kva_onnx_find_attr(k, "num_outputs");
  int64_t parts = kva_onnx_int(k, "num_outputs", k->n->n_outputs);
  if (a && sizes_given) return kva_onnx_fail(k, KVA_INVALID, "both num_outputs and split are given");
  if (parts == (int64_t)k->n->n_outputs) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "num_outputs is %lld, but the node has %u outputs", (long long)parts,
                       k->n->n_outputs);
}

kva_status kva_onnx_split(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  uint32_t axis, parts = k->n->n_outputs;
  kva_dims sizes = {0, NULL};
  bool given = kva_onnx_find_attr(k, "split") != NULL;
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", 0), x->type->rank, &axis));
  if (given)
    sizes = kva_onnx_dims_of(k, kva_onnx_ints(k, "split"));
  else if ((given = kva_onnx_in(k, 1) != NULL))
    KVA_TRY(kva_onnx_need_dims(k, 1, "split", &sizes));
  KVA_TRY(check_split_attrs(k, given));
  if (given && sizes.n != parts) return kva_onnx_fail(k, KVA_INVALID, "%u sizes for %u outputs", sizes.n, parts);
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_dim at = kva_expr_const(e, 0), extent, sum = at;
  for (uint32_t i = 0; i < sizes.n; i++) sum = kva_expr_add(e, sum, sizes.v[i]);
  if (given) x = kva_onnx_with_extent(k, x, axis, sum, "the operand of Split");
  extent = kva_onnx_dim(x, axis);
  for (uint32_t i = 0; i < parts; i++) {
    kva_dim n = given ? sizes.v[i] : equal_part(k, extent, parts, i);
    int64_t number, total;
    kva_dim end = kva_expr_add(e, at, n);
    if (kva_expr_is_const(n, &number) &&
        (number < 0 || (kva_expr_is_const(extent, &total) && !kva_expr_provably_le(e, end, extent))))
      return kva_onnx_fail(k, KVA_INVALID, "part %u of %lld elements does not fit", i, (long long)number);
    kva_onnx_set_out(k, i, kva_onnx_slice(k->b, x, axis, at, n));
    at = end;
  }
  if (kva_expr_is_const(at, NULL) && kva_expr_is_const(extent, NULL) && at != extent)
    return kva_onnx_fail(k, KVA_INVALID, "the parts do not add up to the extent of axis %u", axis);
  return KVA_OK;
}

/* [outer, d, inner] -> [outer, 1, d inner] -> [outer, times, d inner] -> [outer, times d, inner] */
static kva_value *tile_axis(kva_builder *b, kva_value *x, uint32_t axis, kva_dim times) {
  const kva_type *t = x->type;
  if (b->failed || kva_expr_is(times, 1)) return x;
  kva_dim dims[3] = {kva_onnx_product(b, t->dims, 0, axis), kva_expr_const(b->m->exprs, 1),
                     kva_onnx_product(b, t->dims, axis, t->rank)};
  kva_value *y = kva_reshape(b, x, 3, dims);
  dims[1] = times;
  y = kva_expand(b, y, 3, dims);
  kva_dim shape[KVA_MAX_RANK];
  for (uint32_t i = 0; i < t->rank; i++)
    shape[i] = i == axis ? kva_expr_mul(b->m->exprs, t->dims[i], times) : t->dims[i];
  return kva_reshape(b, y, t->rank, shape);
}

static kva_status tile_old(kva_onnx_call *k) {
  kva_ints tiles, axes;
  uint32_t axis;
  KVA_TRY(kva_onnx_need_ints(k, 1, "tiles", &tiles));
  KVA_TRY(kva_onnx_need_ints(k, 2, "axis", &axes));
  if (tiles.n != 1 || axes.n != 1 || tiles.v[0] < 0)
    return kva_onnx_fail(k, KVA_INVALID, "expected one repeat count and one axis");
  KVA_TRY(kva_onnx_axis(k, axes.v[0], kva_onnx_in(k, 0)->type->rank, &axis));
  kva_dim times = kva_expr_const(kva_onnx_exprs(k), tiles.v[0]);
  return kva_onnx_done(k, tile_axis(k->b, kva_onnx_in(k, 0), axis, times));
}

kva_status kva_onnx_tile(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  kva_dims repeats;
  if (k->version < 6) return tile_old(k);
  KVA_TRY(kva_onnx_need_dims(k, 1, "repeats", &repeats));
  if (repeats.n != x->type->rank)
    return kva_onnx_fail(k, KVA_INVALID, "%u repeats for rank %u", repeats.n, x->type->rank);
  for (uint32_t i = 0; i < repeats.n; i++) {
    int64_t v;
    if (kva_expr_is_const(repeats.v[i], &v) && v < 0) return kva_onnx_fail(k, KVA_INVALID, "repeat %u is negative", i);
    x = tile_axis(k->b, x, i, repeats.v[i]);
  }
  return kva_onnx_done(k, x);
}

/* ---- depth and space --------------------------------------------------------------------------------------------- */

static kva_status block_size(kva_onnx_call *k, kva_dim *out_channels, int64_t *out) {
  kva_value *x = kva_onnx_in(k, 0);
  *out = kva_onnx_int(k, "blocksize", 0);
  if (x->type->rank != 4) return kva_onnx_fail(k, KVA_INVALID, "expected rank 4, found %u", x->type->rank);
  if (*out < 1 || *out > INT32_MAX) return kva_onnx_fail(k, KVA_INVALID, "blocksize %lld", (long long)*out);
  *out_channels = kva_onnx_dim(x, 1);
  return KVA_OK;
}

/* Attribute mode: DCR, the default, or CRD. */
static kva_status is_depth_first(kva_onnx_call *k, bool *out) {
  const char *mode = kva_onnx_string(k, "mode", "DCR");
  *out = !strcmp(mode, "CRD");
  if (*out || !strcmp(mode, "DCR")) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "attribute 'mode': expected DCR or CRD, found '%s'", mode);
}

/* DCR: channels are [block, block, depth]; CRD: [depth, block, block]. */
kva_status kva_onnx_depth_to_space(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_value *x = kva_onnx_in(k, 0);
  kva_dim channels = NULL;
  int64_t s = 1;
  bool depth_first;
  KVA_TRY(block_size(k, &channels, &s));
  KVA_TRY(is_depth_first(k, &depth_first));
  kva_dim block = kva_expr_const(e, s), depth = kva_expr_div(e, channels, kva_expr_const(e, s * s));
  const kva_dim *d = x->type->dims;
  kva_dim dcr[6] = {d[0], block, block, depth, d[2], d[3]}, crd[6] = {d[0], depth, block, block, d[2], d[3]};
  kva_value *y = kva_reshape(b, x, 6, depth_first ? crd : dcr);
  if (b->failed) return KVA_INVALID;
  y = kva_transpose(b, y, depth_first ? (int64_t[]){0, 1, 4, 2, 5, 3} : (int64_t[]){0, 3, 4, 1, 5, 2});
  kva_dim out[4] = {d[0], depth, kva_expr_muli(e, d[2], s), kva_expr_muli(e, d[3], s)};
  return kva_onnx_done(k, kva_reshape(b, y, 4, out));
}

kva_status kva_onnx_space_to_depth(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_value *x = kva_onnx_in(k, 0);
  kva_dim channels = NULL;
  int64_t s = 1;
  bool depth_first;
  KVA_TRY(block_size(k, &channels, &s));
  KVA_TRY(is_depth_first(k, &depth_first));
  const kva_dim *d = x->type->dims;
  kva_dim block = kva_expr_const(e, s), h = kva_expr_div(e, d[2], block), w = kva_expr_div(e, d[3], block);
  kva_value *y = kva_reshape(b, x, 6, (kva_dim[]){d[0], channels, h, block, w, block});
  if (b->failed) return KVA_INVALID;
  y = kva_transpose(b, y, depth_first ? (int64_t[]){0, 1, 3, 5, 2, 4} : (int64_t[]){0, 3, 5, 1, 2, 4});
  return kva_onnx_done(k, kva_reshape(b, y, 4, (kva_dim[]){d[0], kva_expr_muli(e, channels, s * s), h, w}));
}
