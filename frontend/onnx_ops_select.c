/* Rules that select elements by position or by order: TopK, ReverseSequence, TensorScatter, MaxUnpool. */
#include "frontend/onnx_window.h"
#include "ops/ids.h"

/* ---- top k ------------------------------------------------------------------------------------------------------- */

static kva_status top_count(kva_onnx_call *k, kva_dim *out) {
  kva_dims count;
  int64_t known;
  *out = kva_expr_const(kva_onnx_exprs(k), kva_onnx_int(k, "k", -1));
  if (k->version >= 10) KVA_TRY(kva_onnx_need_dims(k, 1, "K", &count));
  if (k->version >= 10 && count.n != 1) return kva_onnx_fail(k, KVA_INVALID, "input 1 (K): expected one number");
  if (k->version >= 10) *out = count.v[0];
  if (!kva_expr_is_const(*out, &known) || known >= 0) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "K is %lld", (long long)known);
}

/* x, whose axis must have at least `count` elements: an error where both are known, else checked at run time. */
static kva_status check_count(kva_onnx_call *k, uint32_t axis, kva_dim count, kva_value **x) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  int64_t n, have;
  kva_dim extent = kva_onnx_dim(*x, axis), own[KVA_MAX_RANK], checked[KVA_MAX_RANK];
  bool known = kva_expr_is_const(extent, &have);
  if (known && kva_expr_is_const(count, &n) && n > have)
    return kva_onnx_fail(k, KVA_INVALID, "K is %lld for %lld elements", (long long)n, (long long)have);
  for (uint32_t i = 0; i < (*x)->type->rank; i++) own[i] = checked[i] = kva_onnx_dim(*x, i);
  checked[axis] = kva_expr_add(e, extent, kva_expr_sub(e, count, kva_expr_min(e, count, extent)));
  if (known && kva_expr_is_const(checked[axis], NULL)) return KVA_OK;
  *x = kva_assume(k->b, kva_assume(k->b, *x, checked, "rows of at least K elements"), own, "rows of TopK");
  return KVA_OK;
}

kva_status kva_onnx_top_k(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0);
  uint32_t axis;
  kva_dim count = NULL;
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", -1), x->type->rank, &axis));
  KVA_TRY(top_count(k, &count));
  KVA_TRY(check_count(k, axis, count, &x));
  kva_top_k_attrs attrs = {.axis = axis, .count = count, .smallest = kva_onnx_int(k, "largest", 1) == 0};
  kva_value *index = kva_build(b, KVA_OP_top_k, 1, &x, &attrs);
  if (b->failed) return KVA_INVALID;
  kva_gather_elements_attrs gather = {.axis = axis};
  kva_onnx_set_out(k, 1, index);
  return kva_onnx_done(k, kva_build(b, KVA_OP_gather_elements, 2, (kva_value *[]){x, index}, &gather));
}

/* ---- along one axis ---------------------------------------------------------------------------------------------- */

/* v[batch] shaped to broadcast along `axis` of rank `rank`. */
static kva_value *along(kva_builder *b, kva_value *v, uint32_t axis, uint32_t rank) {
  v = kva_onnx_unsqueeze(b, kva_cast(b, v, KVA_I64), 1, rank - 1 - axis);
  return kva_onnx_unsqueeze(b, v, 0, axis);
}

static kva_value *gather_along(kva_builder *b, kva_value *x, kva_value *index, const kva_type *like, int64_t axis) {
  index = kva_expand_like(b, index, kva_type_with_dtype(b->m, like, KVA_I64));
  return kva_build(b, KVA_OP_gather_elements, 2, (kva_value *[]){x, index}, &(kva_gather_elements_attrs){.axis = axis});
}

/* Row t of sequence b comes from row len[b] - 1 - t if t < len[b], else from row t. */
kva_status kva_onnx_reverse_sequence(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0);
  uint32_t rank = x->type->rank, batch, time;
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "batch_axis", 1), rank, &batch));
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "time_axis", 0), rank, &time));
  KVA_TRY(kva_onnx_check_vector(k, kva_onnx_in(k, 1), "sequence_lens"));
  kva_value *length =
      along(b, kva_onnx_with_extent(k, kva_onnx_in(k, 1), 0, kva_onnx_dim(x, batch), "sequence_lens"), batch, rank);
  kva_value *t = kva_onnx_ramp(b, KVA_I64, rank, time, kva_onnx_dim(x, time));
  kva_value *mirrored = kva_sub(b, kva_sub(b, length, kva_const_scalar(b, KVA_I64, 1)), t);
  kva_value *index = kva_onnx_where(b, kva_build2(b, KVA_OP_less, t, length), mirrored, t);
  return kva_onnx_done(k, gather_along(b, x, index, x->type, time));
}

/* The cache with `update` written from row write[b] on; circular: rows wrap around. */
kva_status kva_onnx_tensor_scatter(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *cache = kva_onnx_in(k, 0), *update = kva_onnx_in(k, 1), *write = kva_onnx_in(k, 2);
  const char *mode = kva_onnx_string(k, "mode", "linear");
  bool circular = !strcmp(mode, "circular");
  uint32_t rank = cache->type->rank, axis;
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", -2), rank, &axis));
  if (!circular && strcmp(mode, "linear"))
    return kva_onnx_fail(k, KVA_INVALID, "attribute 'mode': expected linear or circular, found '%s'", mode);
  if (update->type->rank != rank) return kva_onnx_fail(k, KVA_INVALID, "update and cache differ in rank");
  kva_dim others[KVA_MAX_RANK];
  memcpy(others, cache->type->dims, sizeof *others * rank);
  others[axis] = NULL;
  update = kva_onnx_with_dims(k, update, others, "the update of TensorScatter");
  for (uint32_t i = 0; i < rank; i++)
    if (i != axis && kva_onnx_never_equal(k, kva_onnx_dim(update, i), kva_onnx_dim(cache, i)))
      return kva_onnx_fail(k, KVA_INVALID, "update and cache differ in the extent of axis %u", i);
  if (write) KVA_TRY(kva_onnx_check_vector(k, write, "write_indices"));
  if (write) write = kva_onnx_with_extent(k, write, 0, kva_onnx_dim(cache, 0), "write_indices");
  kva_value *row = kva_onnx_ramp(b, KVA_I64, rank, axis, kva_onnx_dim(cache, axis));
  kva_value *zero = kva_const_scalar(b, KVA_I64, 0), *one = kva_const_scalar(b, KVA_I64, 1);
  kva_value *count = kva_dim_scalar(b, KVA_I64, kva_onnx_dim(update, axis));
  if (write) row = kva_sub(b, row, along(b, write, 0, rank));
  kva_value *extent = kva_dim_scalar(b, KVA_I64, kva_onnx_dim(cache, axis));
  if (circular) row = kva_build2(b, KVA_OP_mod, row, extent);
  kva_value *inside = kva_build2(b, KVA_OP_less, row, count);
  inside = kva_build2(b, KVA_OP_logical_and, inside, kva_build2(b, KVA_OP_less_equal, zero, row));
  kva_value *index = kva_build2(b, KVA_OP_max, kva_build2(b, KVA_OP_min, row, kva_sub(b, count, one)), zero);
  return kva_onnx_done(k, kva_onnx_where(b, inside, gather_along(b, update, index, cache->type, axis), cache));
}

/* ---- unpooling --------------------------------------------------------------------------------------------------- */

/* Extents of the pool's operand: (out - 1) * stride + kernel - pads. Indices number the elements of that tensor; a
 * larger output_shape appends zeros. */
static kva_status unpooled_shape(kva_onnx_call *k, kva_dim *dims) {
  kva_onnx_window w;
  kva_value *x = kva_onnx_in(k, 0);
  KVA_TRY(kva_onnx_read_window(k, NULL, &w));
  dims[0] = kva_onnx_dim(x, 0);
  dims[1] = kva_onnx_dim(x, 1);
  for (uint32_t i = 0; i < w.n; i++) {
    kva_dim full = kva_expr_muli(kva_onnx_exprs(k), kva_onnx_dim(x, i + 2), w.strides[i]);
    dims[i + 2] = kva_expr_addi(kva_onnx_exprs(k), full, w.kernel[i] - w.strides[i] - w.pads[i] - w.pads[i + w.n]);
  }
  return KVA_OK;
}

static kva_status enlarge(kva_onnx_call *k, kva_value *y, const kva_dim *dims) {
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  kva_dims wanted;
  uint32_t rank = kva_onnx_in(k, 0)->type->rank;
  if (!kva_onnx_in(k, 2)) return kva_onnx_done(k, y);
  KVA_TRY(kva_onnx_need_dims(k, 2, "output_shape", &wanted));
  if (wanted.n != rank) return kva_onnx_fail(k, KVA_INVALID, "output_shape of another rank");
  for (uint32_t i = 0; i < rank; i++) {
    before[i] = kva_expr_const(kva_onnx_exprs(k), 0);
    after[i] = kva_expr_sub(kva_onnx_exprs(k), wanted.v[i], dims[i]);
  }
  kva_pad_attrs attrs = {.before = {rank, before}, .after = {rank, after}};
  return kva_onnx_done(k, kva_build(k->b, KVA_OP_pad, 1, &y, &attrs));
}

kva_status kva_onnx_max_unpool(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0);
  kva_dim dims[KVA_MAX_RANK];
  uint32_t rank = x->type->rank;
  KVA_TRY(unpooled_shape(k, dims));
  kva_dim flat = kva_onnx_product(b, dims, 0, rank), n = kva_type_elements(b->m, x->type);
  kva_value *zeros = kva_zeros(b, kva_type_tensor(b->m, x->type->dtype, 1, &flat));
  kva_value *in[] = {zeros, kva_reshape(b, kva_onnx_in(k, 1), 1, &n), kva_reshape(b, x, 1, &n)};
  kva_value *y = kva_build(b, KVA_OP_scatter_elements, 3, in, &(kva_scatter_elements_attrs){.axis = 0});
  return enlarge(k, kva_reshape(b, y, rank, dims), dims);
}
