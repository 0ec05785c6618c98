/* Rules: shapes, and tensors created from a shape only. Shape operands are read through kva_onnx_contents, so that a
 * model's shape computations become expressions here and leave no tensors. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

#include <math.h>

static kva_value *dims_value(kva_onnx_call *k, uint32_t n, const kva_dim *dims) {
  int64_t numbers[KVA_MAX_RANK];
  bool all_const = true;
  for (uint32_t i = 0; i < n; i++) all_const &= kva_expr_is_const(dims[i], &numbers[i]);
  if (all_const) return kva_const_i64s(k->b, n, numbers);
  return kva_build(k->b, KVA_OP_dims, 0, NULL, &(kva_dims_attrs){.values = {n, dims}});
}

static int64_t clamp(int64_t v, int64_t low, int64_t high) {
  return v < low ? low : v > high ? high : v;
}

kva_status kva_onnx_shape(kva_onnx_call *k) {
  const kva_type *t = kva_onnx_in(k, 0)->type;
  int64_t rank = t->rank, start = kva_onnx_int(k, "start", 0), end = kva_onnx_int(k, "end", rank);
  start = clamp(start < 0 ? start + rank : start, 0, rank);
  end = clamp(end < 0 ? end + rank : end, start, rank);
  return kva_onnx_done(k, dims_value(k, (uint32_t)(end - start), t->dims + start));
}

kva_status kva_onnx_size(kva_onnx_call *k) {
  kva_dim n = kva_type_elements(k->b->m, kva_onnx_in(k, 0)->type);
  return kva_onnx_done(k, kva_dim_scalar(k->b, KVA_I64, n));
}

/* ---- reshape ----------------------------------------------------------------------------------------------------- */

/* Product of `dims` over product of `known`, if that is provably whole: equal factors cancel first, because the algebra
 * does not divide products of symbols. */
static kva_dim quotient(kva_builder *b, const kva_type *t, uint32_t n, const kva_dim *known) {
  kva_expr_ctx *x = b->m->exprs;
  bool used[KVA_MAX_RANK] = {false};
  kva_dim top = kva_expr_const(x, 1), bottom = top;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t j = 0;
    while (j < t->rank && (used[j] || t->dims[j] != known[i])) j++;
    if (j < t->rank)
      used[j] = true;
    else
      bottom = kva_expr_mul(x, bottom, known[i]);
  }
  for (uint32_t j = 0; j < t->rank; j++)
    if (!used[j]) top = kva_expr_mul(x, top, t->dims[j]);
  return kva_expr_is(bottom, 0) ? kva_expr_const(x, 0) : kva_expr_div(x, top, bottom);
}

/* Resolves the codes of a reshape: 0 copies a dimension (unless allowzero), one -1 takes the rest. */
static kva_status resolve_shape(kva_onnx_call *k, kva_dims codes, kva_dim *out) {
  const kva_type *t = kva_onnx_in(k, 0)->type;
  bool allow_zero = kva_onnx_int(k, "allowzero", 0) != 0;
  kva_dim known[KVA_MAX_RANK];
  uint32_t n_known = 0, rest = UINT32_MAX;
  if (codes.n > KVA_MAX_RANK)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "rank %u is more than the supported %d", codes.n, KVA_MAX_RANK);
  for (uint32_t i = 0; i < codes.n; i++) {
    int64_t v;
    bool number = kva_expr_is_const(codes.v[i], &v);
    if (number && v == -1 && rest == UINT32_MAX) {
      rest = i;
      continue;
    }
    if (number && v < 0) return kva_onnx_fail(k, KVA_INVALID, "shape: entry %u is %lld", i, (long long)v);
    if (number && !v && !allow_zero && i >= t->rank)
      return kva_onnx_fail(k, KVA_INVALID, "shape: entry %u copies a dimension that data of rank %u lacks", i, t->rank);
    out[i] = number && !v && !allow_zero ? t->dims[i] : codes.v[i];
    known[n_known++] = out[i];
  }
  if (rest != UINT32_MAX) out[rest] = quotient(k->b, t, n_known, known);
  return KVA_OK;
}

/* Extents, int64[n], of codes that data decides. */
static kva_value *resolve_codes(kva_onnx_call *k, kva_value *codes) {
  kva_builder *b = k->b;
  const kva_type *t = kva_onnx_in(k, 0)->type;
  kva_dim own[KVA_ONNX_MAX_BOUND], none = kva_expr_const(kva_onnx_exprs(k), 0);
  int64_t n = 0, axis = 0;
  if (!kva_expr_is_const(kva_onnx_dim(codes, 0), &n) || n > KVA_ONNX_MAX_BOUND) return codes;
  for (int64_t i = 0; i < n; i++) own[i] = i < t->rank ? t->dims[i] : none;
  kva_value *zero = kva_const_scalar(b, KVA_I64, 0), *one = kva_const_scalar(b, KVA_I64, 1);
  kva_value *lengths = kva_build(b, KVA_OP_dims, 0, NULL, &(kva_dims_attrs){.values = {(uint32_t)n, own}});
  if (!kva_onnx_int(k, "allowzero", 0))
    codes = kva_onnx_where(b, kva_build2(b, KVA_OP_equal, codes, zero), lengths, codes);
  kva_value *rest = kva_build2(b, KVA_OP_equal, codes, kva_neg(b, one));
  kva_value *known = kva_reduce(b, KVA_OP_reduce_prod, kva_onnx_where(b, rest, one, codes), 1, &axis, false);
  kva_value *all = kva_dim_scalar(b, KVA_I64, kva_type_elements(b->m, t));
  kva_value *divisor = kva_build2(b, KVA_OP_max, known, one); /* exported, a division by 0 may end a run elsewhere */
  return kva_onnx_where(b, rest, kva_div(b, all, divisor), codes);
}

/* Codes that are numbers beside others that data decides: extents above 0. A symbol in their place would not be known
 * to be 1, which broadcasts. */
static void keep_numbers(kva_onnx_call *k, const kva_value *codes, kva_dim *dims) {
  const kva_node *n = codes->def;
  uint32_t at = 0;
  if (!n || !kva_is(n, KVA_OP_concat)) return;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_dims *part = kva_onnx_contents(k->c, kva_operand(n, i));
    int64_t count = 0, v;
    if (!kva_expr_is_const(kva_operand_type(n, i)->dims[0], &count)) return;
    for (uint32_t j = 0; part && j < part->n; j++)
      if (kva_expr_is_const(part->v[j], &v) && v > 0) dims[at + j] = part->v[j];
    at += (uint32_t)count;
  }
}

/* Extents that data decides are those of the codes, which cannot be told from extents then. */
static kva_status reshape_by_data(kva_onnx_call *k, kva_value *codes) {
  if (codes->type->rank != 1 || codes->type->dtype != KVA_I64)
    return kva_onnx_fail(k, KVA_INVALID, "input 1 (shape): expected int64 of rank 1");
  const kva_dims *dims = kva_onnx_bind_elements(k->c, resolve_codes(k, codes), "shape");
  if (!dims)
    return kva_onnx_fail(k, KVA_UNSUPPORTED,
                         "input 1 (shape) depends on data, and has no known number of at most %d elements",
                         KVA_ONNX_MAX_BOUND);
  kva_dim extents[KVA_ONNX_MAX_BOUND];
  memcpy(extents, dims->v, sizeof *extents * dims->n);
  keep_numbers(k, codes, extents);
  return kva_onnx_done(k, kva_reshape(k->b, kva_onnx_in(k, 0), dims->n, extents));
}

kva_status kva_onnx_reshape(kva_onnx_call *k) {
  kva_dims codes;
  kva_dim dims[KVA_MAX_RANK];
  if (k->version >= 5 && !kva_onnx_contents(k->c, kva_onnx_in(k, 1))) return reshape_by_data(k, kva_onnx_in(k, 1));
  if (k->version < 5)
    codes = kva_onnx_dims_of(k, kva_onnx_ints(k, "shape"));
  else
    KVA_TRY(kva_onnx_need_dims(k, 1, "shape", &codes));
  KVA_TRY(resolve_shape(k, codes, dims));
  return kva_onnx_done(k, kva_reshape(k->b, kva_onnx_in(k, 0), codes.n, dims));
}

kva_status kva_onnx_flatten(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  int64_t axis = kva_onnx_int(k, "axis", 1), rank = x->type->rank;
  if (axis < 0) axis += rank;
  if (axis < 0 || axis > rank)
    return kva_onnx_fail(k, KVA_INVALID, "axis %lld is outside [-%lld, %lld]", (long long)axis, (long long)rank,
                         (long long)rank);
  return kva_onnx_done(k, kva_onnx_flatten_2d(k->b, x, (uint32_t)axis));
}

/* Marks the axes of a list; duplicates and axes out of range are errors. */
static kva_status mark_axes(kva_onnx_call *k, kva_ints axes, uint32_t rank, bool *marked) {
  for (uint32_t i = 0; i < rank; i++) marked[i] = false;
  for (uint32_t i = 0; i < axes.n; i++) {
    uint32_t axis;
    KVA_TRY(kva_onnx_axis(k, axes.v[i], rank, &axis));
    if (marked[axis]) return kva_onnx_fail(k, KVA_INVALID, "axis %u is named twice", axis);
    marked[axis] = true;
  }
  return KVA_OK;
}

kva_status kva_onnx_squeeze(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  kva_ints axes;
  bool given, drop[KVA_MAX_RANK];
  KVA_TRY(kva_onnx_list(k, "axes", 1, &axes, &given));
  KVA_TRY(mark_axes(k, axes, x->type->rank, drop));
  kva_dim dims[KVA_MAX_RANK];
  uint32_t rank = 0;
  for (uint32_t i = 0; i < x->type->rank; i++) {
    kva_dim d = kva_onnx_dim(x, i);
    if (!given)
      drop[i] = kva_expr_is(d, 1);
    else if (drop[i] && kva_expr_is_const(d, NULL) && !kva_expr_is(d, 1))
      return kva_onnx_fail(k, KVA_INVALID, "axis %u cannot be squeezed: its extent is not 1", i);
    if (!drop[i]) dims[rank++] = d;
  }
  return kva_onnx_done(k, kva_reshape(k->b, x, rank, dims));
}

kva_status kva_onnx_unsqueeze_op(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  kva_ints axes;
  bool given, added[KVA_MAX_RANK];
  KVA_TRY(kva_onnx_list(k, "axes", 1, &axes, &given));
  if (!given) return kva_onnx_fail(k, KVA_INVALID, "axes are missing");
  uint32_t rank = x->type->rank + axes.n;
  if (axes.n > KVA_MAX_RANK || rank > KVA_MAX_RANK)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "rank %u is more than the supported %d", rank, KVA_MAX_RANK);
  KVA_TRY(mark_axes(k, axes, rank, added));
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t i = 0, from = 0; i < rank; i++)
    dims[i] = added[i] ? kva_expr_const(kva_onnx_exprs(k), 1) : kva_onnx_dim(x, from++);
  return kva_onnx_done(k, kva_reshape(k->b, x, rank, dims));
}

/* ---- expansion --------------------------------------------------------------------------------------------------- */

/* Broadcast of x and the requested shape, which may be smaller than x. */
/* `own` for a wanted extent of 1 or `own`, else another number. */
static kva_dim one_or(kva_expr_ctx *x, kva_dim own, kva_dim wanted) {
  return kva_expr_add(x, own, kva_expr_mul(x, kva_expr_addi(x, wanted, -1), kva_expr_sub(x, wanted, own)));
}

kva_status kva_onnx_expand(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  kva_dims shape;
  KVA_TRY(kva_onnx_need_dims(k, 1, "shape", &shape));
  uint32_t rank = shape.n > x->type->rank ? shape.n : x->type->rank;
  if (rank > KVA_MAX_RANK)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "rank %u is more than the supported %d", rank, KVA_MAX_RANK);
  kva_dim dims[KVA_MAX_RANK], checked[KVA_MAX_RANK], repeated[KVA_MAX_RANK];
  for (uint32_t i = 0; i < x->type->rank; i++) checked[i] = repeated[i] = kva_onnx_dim(x, i);
  uint32_t new_axes = rank - x->type->rank, skipped = rank - shape.n;
  for (uint32_t i = 0; i < rank; i++) {
    kva_dim own = i < new_axes ? kva_expr_const(kva_onnx_exprs(k), 1) : kva_onnx_dim(x, i - new_axes);
    kva_dim wanted = i < skipped ? own : shape.v[i - skipped];
    dims[i] = kva_expr_is(wanted, 1) ? own : wanted;
    if (i < new_axes || kva_expr_is(own, 1)) continue;
    bool grows = kva_at_most_one(own) && !kva_at_most_one(dims[i]);
    bool stays = kva_at_most_one(wanted) && !kva_at_most_one(own);
    if (stays || (kva_expr_is_const(own, NULL) && !kva_expr_is_const(dims[i], NULL))) {
      checked[i - new_axes] = one_or(kva_onnx_exprs(k), own, wanted);
      dims[i] = own;
    } else if (!kva_expr_is_const(own, NULL)) {
      checked[i - new_axes] = repeated[i - new_axes] = grows ? kva_expr_const(kva_onnx_exprs(k), 1) : dims[i];
    }
  }
  const char *user = "the operand of an expansion";
  if (k->b->assumes) x = kva_assume(k->b, kva_assume(k->b, x, checked, user), repeated, user);
  return kva_onnx_done(k, kva_expand(k->b, x, rank, dims));
}

/* The single element of a one-element tensor, as a constant of rank 0. */
static kva_value *scalar_constant(kva_onnx_call *k, const kva_tensor_data *t) {
  kva_tensor_data *scalar = KVA_NEW(k->b->m->arena, kva_tensor_data);
  *scalar = *t;
  scalar->rank = 0;
  return kva_const_tensor(k->b, scalar);
}

kva_status kva_onnx_constant_of_shape(kva_onnx_call *k) {
  kva_dims shape;
  const kva_onnx_attr *value = kva_onnx_find_attr(k, "value");
  int64_t n = 1;
  KVA_TRY(kva_onnx_need_dims(k, 0, "shape", &shape));
  if (shape.n > KVA_MAX_RANK)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "rank %u is more than the supported %d", shape.n, KVA_MAX_RANK);
  for (uint32_t i = 0; i < shape.n; i++) {
    int64_t d;
    if (kva_expr_is_const(shape.v[i], &d) && d < 0)
      return kva_onnx_fail(k, KVA_INVALID, "shape: entry %u is %lld", i, (long long)d);
  }
  for (uint32_t i = 0; value && value->tensor && i < value->tensor->rank; i++) n *= value->tensor->dims[i] == 1;
  if (value && (value->kind != KVA_ONNX_TENSOR || n != 1))
    return kva_onnx_fail(k, KVA_INVALID, "attribute 'value': expected a tensor of one element");
  kva_value *scalar = value ? scalar_constant(k, value->tensor) : kva_const_scalar(k->b, KVA_F32, 0);
  return kva_onnx_done(k, kva_expand(k->b, scalar, shape.n, shape.v));
}

/* ---- constants --------------------------------------------------------------------------------------------------- */

kva_value *kva_onnx_const_list(kva_builder *b, kva_dtype t, uint32_t rank, int64_t n, const void *source) {
  kva_arena *arena = b->m->arena;
  kva_tensor_data *data = KVA_NEW(arena, kva_tensor_data);
  *data = (kva_tensor_data){.dtype = t, .rank = rank, .bytes = n * (kva_dtype_bits(t) / 8)};
  data->dims = kva_arena_memdup(arena, &n, sizeof n);
  void *elements = kva_arena_alloc(arena, (size_t)data->bytes + 1);
  for (int64_t i = 0; i < n; i++) {
    if (t == KVA_STRING)
      ((const char **)elements)[i] = kva_arena_strdup(arena, ((const char *const *)source)[i]);
    else if (kva_dtype_is_float(t))
      kva_store_f64(t, elements, i, ((const double *)source)[i]);
    else
      kva_store_i64(t, elements, i, ((const int64_t *)source)[i]);
  }
  data->data = elements;
  return kva_const_tensor(b, data);
}

kva_status kva_onnx_constant_op(kva_onnx_call *k) {
  for (uint32_t i = 0; i < k->n->n_attrs; i++) {
    const kva_onnx_attr *a = kva_onnx_find_attr(k, k->n->attrs[i].name);
    if (!strcmp(a->name, "value") && a->kind == KVA_ONNX_TENSOR)
      return kva_onnx_done(k, kva_const_tensor(k->b, a->tensor));
    if (!strcmp(a->name, "value_float") && a->kind == KVA_ONNX_FLOAT)
      return kva_onnx_done(k, kva_const_scalar(k->b, KVA_F32, a->f));
    if (!strcmp(a->name, "value_int") && a->kind == KVA_ONNX_INT)
      return kva_onnx_done(k, kva_onnx_const_list(k->b, KVA_I64, 0, 1, &a->i));
    if (!strcmp(a->name, "value_floats") && a->kind == KVA_ONNX_FLOATS)
      return kva_onnx_done(k, kva_onnx_const_list(k->b, KVA_F32, 1, a->n, a->floats));
    if (!strcmp(a->name, "value_ints") && a->kind == KVA_ONNX_INTS)
      return kva_onnx_done(k, kva_onnx_const_list(k->b, KVA_I64, 1, a->n, a->ints));
    if (!strcmp(a->name, "value_string") && a->kind == KVA_ONNX_STRING)
      return kva_onnx_done(k, kva_onnx_const_list(k->b, KVA_STRING, 0, 1, &a->s));
    if (!strcmp(a->name, "value_strings") && a->kind == KVA_ONNX_STRINGS)
      return kva_onnx_done(k, kva_onnx_const_list(k->b, KVA_STRING, 1, a->n, a->strings));
  }
  return kva_onnx_fail(k, KVA_UNSUPPORTED,
                       "expected value, value_float(s), value_int(s) or value_string(s); sparse tensors are not "
                       "supported");
}

/* ---- generators -------------------------------------------------------------------------------------------------- */

/* start, limit and delta of Range. */
static const char *const range_parts[] = {"start", "limit", "delta"};

static kva_status range_length_of_constants(kva_onnx_call *k, const kva_ref_tensor *const *w, kva_dim *out) {
  double n = ceil((kva_ref_tensor_get(w[1], 0) - kva_ref_tensor_get(w[0], 0)) / kva_ref_tensor_get(w[2], 0));
  if (!(fabs(n) < 9e15)) return kva_onnx_fail(k, KVA_INVALID, "the range has no finite length");
  *out = kva_expr_const(kva_onnx_exprs(k), n > 0 ? (int64_t)n : 0);
  return KVA_OK;
}

/* A float as an expression: a constant that is a whole number, or one that follows from shapes, which a cast made of
 * integers. NULL: it is neither. */
static kva_dim whole_number(kva_onnx_call *k, const kva_value *v) {
  const kva_ref_tensor *w = kva_onnx_constant(k->c, v);
  if (w && kva_ref_tensor_get(w, 0) == floor(kva_ref_tensor_get(w, 0)) && fabs(kva_ref_tensor_get(w, 0)) < 9e15)
    return kva_expr_const(kva_onnx_exprs(k), (int64_t)kva_ref_tensor_get(w, 0));
  bool exact = v->type->dtype == KVA_F32 || v->type->dtype == KVA_F64;
  while (v->def && v->def->op == kva_ops.ops[KVA_OP_reshape]) v = kva_operand(v->def, 0);
  if (!exact || !v->def || v->def->op != kva_ops.ops[KVA_OP_cast]) return NULL;
  const kva_dims *d = kva_onnx_contents(k->c, kva_operand(v->def, 0));
  return d ? d->v[0] : NULL;
}

/* ceil((limit - start) / delta), at least 0, which a run finds. */
static kva_status range_length_by_data(kva_onnx_call *k, kva_dim *out) {
  kva_builder *b = k->b;
  kva_value *v[3];
  for (uint32_t i = 0; i < 3; i++) v[i] = kva_cast(b, kva_reshape(b, kva_onnx_in(k, i), 0, NULL), KVA_F64);
  kva_value *n = kva_build1(b, KVA_OP_ceil, kva_div(b, kva_sub(b, v[1], v[0]), v[2]));
  n = kva_cast(b, kva_build2(b, KVA_OP_max, n, kva_scalar_like(b, n, 0)), KVA_I64);
  const kva_dims *bound = kva_onnx_bind_elements(k->c, n, "range");
  if (bound) *out = bound->v[0];
  return bound ? KVA_OK : KVA_INVALID;
}

/* ceil((limit - start) / delta), clamped to 0 if it may be negative. */
static kva_status range_length(kva_onnx_call *k, const kva_dim *d, kva_dim *out) {
  kva_expr_ctx *x = kva_onnx_exprs(k);
  int64_t delta, low;
  if (!kva_expr_is_const(d[2], &delta)) return range_length_by_data(k, out);
  if (!delta || delta == INT64_MIN) return kva_onnx_fail(k, KVA_INVALID, "delta is %lld", (long long)delta);
  kva_dim span = delta > 0 ? kva_expr_sub(x, d[1], d[0]) : kva_expr_sub(x, d[0], d[1]);
  kva_dim n = kva_expr_ceildiv(x, span, kva_expr_const(x, delta > 0 ? delta : -delta));
  *out = kva_expr_lower_bound(n, &low) && low >= 0 ? n : kva_expr_max(x, n, kva_expr_const(x, 0));
  return KVA_OK;
}

static kva_status range_length_of_floats(kva_onnx_call *k, kva_dim *out) {
  const kva_ref_tensor *w[3];
  kva_dim d[3];
  bool constant = true, whole = true;
  for (uint32_t i = 0; i < 3; i++) {
    constant &= (w[i] = kva_onnx_constant(k->c, kva_onnx_in(k, i))) != NULL;
    whole &= (d[i] = whole_number(k, kva_onnx_in(k, i))) != NULL;
  }
  if (constant) return range_length_of_constants(k, w, out);
  return whole ? range_length(k, d, out) : range_length_by_data(k, out);
}

/* Whether data decides the start or limit, and nothing says that it is no less than 0, as a symbol has to be: the other
 * one is a constant, and not the start of a range that ascends from 0 or more. */
static bool data_of_any_sign(kva_onnx_call *k) {
  const kva_dims *d[3];
  int64_t number, delta;
  for (uint32_t i = 0; i < 3; i++) d[i] = kva_onnx_contents(k->c, kva_onnx_in(k, i));
  if (!d[0] == !d[1] || !d[2] || !kva_expr_is_const(d[2]->v[0], &delta)) return false;
  if (!kva_expr_is_const(d[0] ? d[0]->v[0] : d[1]->v[0], &number)) return false;
  return d[1] || number < 0 || delta < 0;
}

static kva_status range_length_of_integers(kva_onnx_call *k, kva_dim *out) {
  kva_dims list;
  kva_dim d[3];
  if (data_of_any_sign(k)) return range_length_by_data(k, out);
  for (uint32_t i = 0; i < 3; i++) {
    KVA_TRY(kva_onnx_need_dims(k, i, range_parts[i], &list));
    d[i] = list.v[0];
  }
  return range_length(k, d, out);
}

kva_status kva_onnx_range(kva_onnx_call *k) {
  kva_value *start = kva_onnx_in(k, 0), *delta = kva_onnx_in(k, 2);
  kva_dtype t = start->type->dtype;
  kva_dim n = NULL;
  for (uint32_t i = 0; i < 3; i++)
    if (!kva_expr_is(kva_type_elements(k->b->m, kva_onnx_in(k, i)->type), 1))
      return kva_onnx_fail(k, KVA_INVALID, "input %u (%s): expected one number", i, range_parts[i]);
  KVA_TRY(kva_dtype_is_float(t) ? range_length_of_floats(k, &n) : range_length_of_integers(k, &n));
  kva_value *steps = kva_onnx_iota(k->b, t, 1, &n, 0);
  kva_value *offsets = kva_mul(k->b, steps, kva_reshape(k->b, delta, 0, NULL));
  return kva_onnx_done(k, kva_add(k->b, offsets, kva_reshape(k->b, start, 0, NULL)));
}

kva_status kva_onnx_eye_like(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  int64_t t = kva_onnx_int(k, "dtype", x->type->dtype);
  if (x->type->rank != 2) return kva_onnx_fail(k, KVA_INVALID, "expected rank 2, found %u", x->type->rank);
  if (t <= 0 || t >= KVA_DTYPE_COUNT) return kva_onnx_fail(k, KVA_INVALID, "attribute 'dtype' is not a data type");
  kva_value *row = kva_onnx_ramp(k->b, KVA_I64, 2, 0, kva_onnx_dim(x, 0));
  kva_value *col = kva_onnx_ramp(k->b, KVA_I64, 2, 1, kva_onnx_dim(x, 1));
  kva_value *diagonal = kva_add(k->b, row, kva_scalar_like(k->b, row, (double)kva_onnx_int(k, "k", 0)));
  return kva_onnx_done(k, kva_cast(k->b, kva_build2(k->b, KVA_OP_equal, col, diagonal), (kva_dtype)t));
}

/* An offset beyond all extents as one whose sum with a row does not overflow. */
static kva_value *bounded_offset(kva_onnx_call *k, kva_value *offset) {
  const double most = (double)((int64_t)1 << 52);
  const kva_ref_tensor *w = kva_onnx_constant(k->c, offset);
  if (w && fabs(kva_ref_tensor_get(w, 0)) <= most) return offset;
  offset = kva_build2(k->b, KVA_OP_min, offset, kva_scalar_like(k->b, offset, most));
  return kva_build2(k->b, KVA_OP_max, offset, kva_scalar_like(k->b, offset, -most));
}

/* Upper keeps col >= row + k, lower keeps col <= row + k. */
kva_status kva_onnx_trilu(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0), *offset = kva_onnx_in(k, 1);
  uint32_t rank = x->type->rank;
  if (rank < 2) return kva_onnx_fail(k, KVA_INVALID, "expected rank 2 or more, found %u", rank);
  kva_value *diagonal = kva_onnx_ramp(b, KVA_I64, 2, 0, kva_onnx_dim(x, rank - 2));
  kva_value *col = kva_onnx_ramp(b, KVA_I64, 2, 1, kva_onnx_dim(x, rank - 1));
  if (offset) diagonal = kva_add(b, diagonal, bounded_offset(k, kva_reshape(b, offset, 0, NULL)));
  bool upper = kva_onnx_int(k, "upper", 1) != 0;
  kva_value *dropped = upper ? kva_build2(b, KVA_OP_less, col, diagonal) : kva_build2(b, KVA_OP_less, diagonal, col);
  return kva_onnx_done(k, kva_onnx_where(b, dropped, kva_scalar_like(b, x, 0), x));
}

static kva_status one_hot_depth(kva_onnx_call *k, kva_dim *out) {
  const kva_ref_tensor *w = kva_onnx_constant(k->c, kva_onnx_in(k, 1));
  int64_t depth = 1;
  if (w && w->f && w->n == 1 && fabs(w->f[0]) < 9e15) {
    depth = w->f[0] == floor(w->f[0]) ? (int64_t)w->f[0] : 0;
    *out = kva_expr_const(kva_onnx_exprs(k), depth);
  } else {
    kva_dims d;
    KVA_TRY(kva_onnx_need_dims(k, 1, "depth", &d));
    if (d.n != 1) return kva_onnx_fail(k, KVA_INVALID, "input 1 (depth): expected one number");
    *out = d.v[0];
  }
  if (!kva_expr_is_const(*out, &depth) || depth >= 1) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "input 1 (depth): expected a whole number of at least 1, found %g",
                       w ? kva_ref_tensor_get(w, 0) : (double)depth);
}

kva_status kva_onnx_one_hot(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *values = kva_onnx_in(k, 2), *index = kva_cast(b, kva_onnx_in(k, 0), KVA_I64);
  kva_dim depth = NULL;
  uint32_t axis, rank = index->type->rank + 1;
  KVA_TRY(one_hot_depth(k, &depth));
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", -1), rank, &axis));
  kva_dim two = kva_expr_const(kva_onnx_exprs(k), 2);
  if (values->type->rank == 1) values = kva_onnx_with_extent(k, values, 0, two, "the values of OneHot");
  if (values->type->rank != 1 || values->type->dims[0] != two)
    return kva_onnx_fail(k, KVA_INVALID, "input 2 (values): expected two elements");
  kva_value *negative = kva_build2(b, KVA_OP_less, index, kva_scalar_like(b, index, 0));
  kva_value *wrapped = kva_add(b, index, kva_dim_scalar(b, KVA_I64, depth));
  index = kva_onnx_unsqueeze(b, kva_onnx_where(b, negative, wrapped, index), axis, 1);
  if (b->failed) return KVA_INVALID;
  kva_value *hit = kva_build2(b, KVA_OP_equal, index, kva_onnx_ramp(b, KVA_I64, rank, axis, depth));
  kva_dim one = kva_expr_const(kva_onnx_exprs(k), 1), zero = kva_expr_const(kva_onnx_exprs(k), 0);
  kva_value *off = kva_reshape(b, kva_onnx_slice(b, values, 0, zero, one), 0, NULL);
  kva_value *on = kva_reshape(b, kva_onnx_slice(b, values, 0, one, one), 0, NULL);
  return kva_onnx_done(k, kva_onnx_where(b, hit, on, off));
}
