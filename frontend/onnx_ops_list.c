/* Rules: sequences and optionals (frontend/onnx_list.h). */
#include "frontend/frontend_internal.h"
#include "frontend/onnx_list.h"
#include "ops/ids.h"

static kva_status sequence_in(kva_onnx_call *k, uint32_t i, const kva_list **out) {
  *out = kva_list_of(kva_onnx_in(k, i));
  if (*out && (*out)->v.type->kind == KVA_TYPE_SEQUENCE) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "input %u: expected a sequence, found %s", i, *out ? "an optional" : "a tensor");
}

static kva_status tensor_in(kva_onnx_call *k, uint32_t i) {
  if (!kva_onnx_in(k, i) || !kva_is_list(kva_onnx_in(k, i))) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "input %u: expected a tensor, found a sequence or optional", i);
}

static kva_status set_sequence(kva_onnx_call *k, kva_dtype element, uint32_t n, kva_value *const *items) {
  if (n > KVA_ONNX_MAX_LIST)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "a sequence of more than %d elements", KVA_ONNX_MAX_LIST);
  return kva_onnx_done(k, kva_list_create(k->c, KVA_TYPE_SEQUENCE, element, n, items));
}

static kva_status same_element(kva_onnx_call *k, uint32_t i, kva_dtype element) {
  KVA_TRY(tensor_in(k, i));
  kva_dtype found = kva_onnx_in(k, i)->type->dtype;
  if (found == element) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "input %u is %s, the sequence holds %s", i, kva_dtype_name(found),
                       kva_dtype_name(element));
}

/* ---- making sequences -------------------------------------------------------------------------------------------- */

kva_status kva_onnx_sequence_construct(kva_onnx_call *k) {
  kva_dtype element = kva_onnx_in(k, 0)->type->dtype;
  for (uint32_t i = 0; i < k->n->n_inputs; i++) {
    if (!kva_onnx_in(k, i)) return kva_onnx_fail(k, KVA_INVALID, "input %u is required but was left out", i);
    KVA_TRY(same_element(k, i, element));
  }
  return set_sequence(k, element, k->n->n_inputs, k->n->inputs);
}

kva_status kva_onnx_sequence_empty(kva_onnx_call *k) {
  int64_t element = kva_onnx_int(k, "dtype", KVA_F32);
  if (element <= 0 || element >= KVA_DTYPE_COUNT)
    return kva_onnx_fail(k, KVA_INVALID, "attribute 'dtype': %lld is not a data type", (long long)element);
  return set_sequence(k, (kva_dtype)element, 0, NULL);
}

/* Sizes of the parts along an axis; one for each position without input `split`. */
static kva_status split_sizes(kva_onnx_call *k, kva_dim extent, kva_ints *out) {
  int64_t total, step = 1;
  kva_ints split = {0};
  bool equal = !kva_onnx_in(k, 1) || !kva_onnx_in(k, 1)->type->rank;
  if (kva_onnx_in(k, 1)) KVA_TRY(kva_onnx_need_ints(k, 1, "split", &split));
  if (!equal) return *out = split, KVA_OK;
  if (split.n) step = split.v[0];
  if (!kva_expr_is_const(extent, &total))
    return kva_onnx_fail(k, KVA_UNSUPPORTED,
                         "the number of parts depends on a symbolic extent; pin the symbol (--pin)");
  if (step < 1) return kva_onnx_fail(k, KVA_INVALID, "input 1 (split) is %lld, expected 1 or more", (long long)step);
  int64_t n = (total + step - 1) / step;
  if (n > KVA_ONNX_MAX_LIST)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "a sequence of more than %d elements", KVA_ONNX_MAX_LIST);
  int64_t *sizes = KVA_NEW_ARRAY(k->c->arena, int64_t, n + 1);
  for (int64_t i = 0; i < n; i++) sizes[i] = i + 1 < n ? step : total - i * step;
  *out = (kva_ints){(uint32_t)n, sizes};
  return KVA_OK;
}

static kva_value *without_axis(kva_onnx_call *k, kva_value *x, uint32_t axis) {
  kva_dim dims[KVA_MAX_RANK];
  uint32_t rank = 0;
  for (uint32_t i = 0; i < x->type->rank; i++)
    if (i != axis) dims[rank++] = kva_onnx_dim(x, i);
  return kva_reshape(k->b, x, rank, dims);
}

kva_status kva_onnx_split_to_sequence(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  kva_expr_ctx *e = kva_onnx_exprs(k);
  bool keep = kva_onnx_int(k, "keepdims", 1) || kva_onnx_in(k, 1);
  uint32_t axis;
  kva_ints sizes = {0};
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", 0), x->type->rank, &axis));
  KVA_TRY(split_sizes(k, kva_onnx_dim(x, axis), &sizes));
  kva_value **parts = KVA_NEW_ARRAY(k->c->arena, kva_value *, sizes.n + 1);
  int64_t at = 0, extent;
  for (uint32_t i = 0; i < sizes.n; i++) {
    parts[i] = kva_onnx_slice(k->b, x, axis, kva_expr_const(e, at), kva_expr_const(e, sizes.v[i]));
    if (!keep) parts[i] = without_axis(k, parts[i], axis);
    if (sizes.v[i] < 0 || __builtin_add_overflow(at, sizes.v[i], &at))
      return kva_onnx_fail(k, KVA_INVALID, "input 1 (split) has negative or too large sizes");
  }
  if (kva_expr_is_const(kva_onnx_dim(x, axis), &extent) && at != extent)
    return kva_onnx_fail(k, KVA_INVALID, "the parts have %lld elements, axis %u has %lld", (long long)at, axis,
                         (long long)extent);
  return set_sequence(k, x->type->dtype, sizes.n, parts);
}

/* ---- editing and reading sequences ------------------------------------------------------------------------------- */

/* The position that input i gives among n; its default if it is left out. Negative ones count from the end. */
static kva_status position_in(kva_onnx_call *k, uint32_t i, uint32_t n, uint32_t absent, uint32_t *out) {
  kva_ints at = {0};
  *out = absent;
  KVA_TRY(tensor_in(k, i));
  if (!kva_onnx_in(k, i)) return KVA_OK;
  KVA_TRY(kva_onnx_need_ints(k, i, "position", &at));
  if (at.n != 1) return kva_onnx_fail(k, KVA_INVALID, "input %u (position): expected one number, found %u", i, at.n);
  int64_t v = at.v[0] < 0 ? at.v[0] + n : at.v[0];
  if (v < 0 || v >= (int64_t)n)
    return kva_onnx_fail(k, KVA_INVALID, "position %lld is outside [-%u, %u)", (long long)at.v[0], n, n);
  *out = (uint32_t)v;
  return KVA_OK;
}

/* A new element may also come after the last, at position n; -1 is before the last. */
static kva_status insert_position(kva_onnx_call *k, uint32_t n, uint32_t *out) {
  const kva_dims *known = kva_onnx_in(k, 2) ? kva_onnx_contents(k->c, kva_onnx_in(k, 2)) : NULL;
  *out = n;
  if (known && known->n == 1 && kva_expr_is(known->v[0], n)) return KVA_OK;
  return position_in(k, 2, n, n, out);
}

kva_status kva_onnx_sequence_insert(kva_onnx_call *k) {
  const kva_list *list = NULL;
  uint32_t at;
  KVA_TRY(sequence_in(k, 0, &list));
  KVA_TRY(same_element(k, 1, list->v.type->dtype));
  KVA_TRY(insert_position(k, list->n, &at));
  kva_value **items = KVA_NEW_ARRAY(k->c->arena, kva_value *, list->n + 1);
  for (uint32_t i = 0; i <= list->n; i++) items[i] = i == at ? kva_onnx_in(k, 1) : list->items[i < at ? i : i - 1];
  return set_sequence(k, list->v.type->dtype, list->n + 1, items);
}

kva_status kva_onnx_sequence_erase(kva_onnx_call *k) {
  const kva_list *list = NULL;
  uint32_t at;
  KVA_TRY(sequence_in(k, 0, &list));
  if (!list->n) return kva_onnx_fail(k, KVA_INVALID, "the sequence is empty");
  KVA_TRY(position_in(k, 1, list->n, list->n - 1, &at));
  kva_value **items = KVA_NEW_ARRAY(k->c->arena, kva_value *, list->n);
  for (uint32_t i = 0; i + 1 < list->n; i++) items[i] = list->items[i < at ? i : i + 1];
  return set_sequence(k, list->v.type->dtype, list->n - 1, items);
}

kva_status kva_onnx_sequence_length(kva_onnx_call *k) {
  const kva_list *list = NULL;
  KVA_TRY(sequence_in(k, 0, &list));
  return kva_onnx_done(k, kva_const_scalar(k->b, KVA_I64, list->n));
}

static kva_status join(kva_onnx_call *k, const kva_list *list, int64_t axis, bool new_axis, kva_value **out) {
  kva_value **parts = KVA_NEW_ARRAY(k->c->arena, kva_value *, list->n + 1);
  uint32_t at;
  if (!list->n) return kva_onnx_fail(k, KVA_INVALID, "the sequence is empty");
  KVA_TRY(kva_onnx_axis(k, axis, list->items[0]->type->rank + new_axis, &at));
  for (uint32_t i = 0; i < list->n; i++) parts[i] = kva_onnx_unsqueeze(k->b, list->items[i], at, new_axis);
  *out = list->n == 1 ? parts[0] : kva_build(k->b, KVA_OP_concat, list->n, parts, &(kva_concat_attrs){.axis = at});
  return KVA_OK;
}

kva_status kva_onnx_concat_from_sequence(kva_onnx_call *k) {
  const kva_list *list = NULL;
  kva_value *y = NULL;
  KVA_TRY(sequence_in(k, 0, &list));
  if (!kva_onnx_find_attr(k, "axis")) return kva_onnx_fail(k, KVA_INVALID, "attribute 'axis' is missing");
  KVA_TRY(join(k, list, kva_onnx_int(k, "axis", 0), kva_onnx_int(k, "new_axis", 0) != 0, &y));
  return kva_onnx_done(k, y);
}

/* A position that data decides is a row of the stacked elements. */
static kva_status element_by_data(kva_onnx_call *k, const kva_list *list) {
  kva_value *rows = NULL, *at = kva_cast(k->b, kva_reshape(k->b, kva_onnx_in(k, 1), 0, NULL), KVA_I64);
  for (uint32_t i = 1; i < list->n; i++)
    if (list->items[i]->type != list->items[0]->type)
      return kva_onnx_fail(k, KVA_UNSUPPORTED, "the position depends on data, and elements 0 and %u differ in shape",
                           i);
  KVA_TRY(join(k, list, 0, true, &rows));
  kva_value *zero = kva_const_scalar(k->b, KVA_I64, 0), *n = kva_const_scalar(k->b, KVA_I64, list->n);
  kva_value *negative = kva_build2(k->b, KVA_OP_less, at, zero);
  at = kva_onnx_where(k->b, negative, kva_add(k->b, at, n), at);
  return kva_onnx_done(k, kva_onnx_gather(k->b, rows, at, 0));
}

kva_status kva_onnx_sequence_at(kva_onnx_call *k) {
  const kva_list *list = NULL;
  uint32_t at;
  KVA_TRY(sequence_in(k, 0, &list));
  KVA_TRY(tensor_in(k, 1));
  if (!kva_onnx_contents(k->c, kva_onnx_in(k, 1))) return element_by_data(k, list);
  KVA_TRY(position_in(k, 1, list->n, 0, &at));
  return kva_onnx_done(k, list->items[at]);
}

/* ---- sequence map ------------------------------------------------------------------------------------------------ */

/* Further inputs are sequences of the first one's length, or tensors that each call of the body gets. */
static kva_status map_inputs(kva_onnx_call *k, const kva_list *first, uint32_t at, kva_value **in) {
  in[0] = first->items[at];
  for (uint32_t i = 1; i < k->n->n_inputs; i++) {
    kva_value *v = kva_onnx_in(k, i);
    const kva_list *list = v ? kva_list_of(v) : NULL;
    if (!v) return kva_onnx_fail(k, KVA_INVALID, "input %u is required but was left out", i);
    if (list) KVA_TRY(sequence_in(k, i, &list));
    if (list && list->n != first->n)
      return kva_onnx_fail(k, KVA_INVALID, "input %u has %u elements, input 0 has %u", i, list->n, first->n);
    in[i] = list ? list->items[at] : v;
  }
  return KVA_OK;
}

kva_status kva_onnx_sequence_map(kva_onnx_call *k) {
  const kva_onnx_attr *a = kva_onnx_find_attr(k, "body");
  const kva_list *first = NULL;
  KVA_TRY(sequence_in(k, 0, &first));
  if (!a || a->kind != KVA_ONNX_GRAPH) return kva_onnx_fail(k, KVA_INVALID, "attribute 'body' is missing");
  const kva_onnx_subgraph *body = a->graph;
  uint32_t n = k->n->n_outputs;
  if (body->n_inputs != k->n->n_inputs || body->n_outputs < n)
    return kva_onnx_fail(k, KVA_INVALID, "the body has %u inputs and %u outputs, expected %u and %u", body->n_inputs,
                         body->n_outputs, k->n->n_inputs, n);
  kva_value **in = KVA_NEW_ARRAY(k->c->arena, kva_value *, body->n_inputs);
  kva_value **out = KVA_NEW_ARRAY(k->c->arena, kva_value *, body->n_outputs);
  kva_value **rows = KVA_NEW_ARRAY(k->c->arena, kva_value *, (size_t)n * first->n + 1);
  for (uint32_t at = 0; at < first->n; at++) {
    KVA_TRY(map_inputs(k, first, at, in));
    KVA_TRY(body->build(k->c, body, in, out));
    for (uint32_t i = 0; i < n; i++) rows[i * first->n + at] = out[i];
  }
  for (uint32_t i = 0; i < n; i++) {
    kva_dtype element = first->n ? rows[i * first->n]->type->dtype : first->v.type->dtype;
    kva_onnx_set_out(k, i, kva_list_create(k->c, KVA_TYPE_SEQUENCE, element, first->n, rows + i * first->n));
  }
  return KVA_OK;
}

/* ---- optionals --------------------------------------------------------------------------------------------------- */

/* Attribute `type` says what an absent value would be, which has no effect. */
kva_status kva_onnx_optional(kva_onnx_call *k) {
  kva_value *v = kva_onnx_in(k, 0);
  if (!kva_onnx_find_attr(k, "type") && !v)
    return kva_onnx_fail(k, KVA_INVALID, "expected an input or attribute 'type'");
  return kva_onnx_done(k, kva_list_create(k->c, KVA_TYPE_OPTIONAL, KVA_F32, v != NULL, &v));
}

static const kva_list *optional_in(const kva_onnx_call *k) {
  const kva_list *list = kva_onnx_in(k, 0) ? kva_list_of(kva_onnx_in(k, 0)) : NULL;
  return list && list->v.type->kind == KVA_TYPE_OPTIONAL ? list : NULL;
}

kva_status kva_onnx_optional_has_element(kva_onnx_call *k) {
  const kva_list *list = optional_in(k);
  return kva_onnx_done(k, kva_const_scalar(k->b, KVA_BOOL, list ? list->n : kva_onnx_in(k, 0) != NULL));
}

kva_status kva_onnx_optional_get_element(kva_onnx_call *k) {
  const kva_list *list = optional_in(k);
  if (list && !list->n) return kva_onnx_fail(k, KVA_INVALID, "the optional has no value");
  return kva_onnx_done(k, list ? list->items[0] : kva_onnx_in(k, 0));
}
