/* Small compositions of internal nodes, shared by several rules. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

/* Whether x has the axes in front of number `least`; else the builder fails. */
static bool has_axes(kva_builder *b, const kva_value *x, uint32_t least) {
  if (x->type->rank >= least) return true;
  b->failed = true;
  (void)kva_error(b->m->diag, &b->loc, "expected an operand of rank %u or more, found %u", least, x->type->rank);
  return false;
}

kva_value *kva_onnx_unsqueeze(kva_builder *b, kva_value *x, uint32_t axis, uint32_t count) {
  kva_dim dims[2 * KVA_MAX_RANK];
  uint32_t rank = x->type->rank;
  if (b->failed || !count || !has_axes(b, x, axis)) return x;
  if (rank + count > KVA_MAX_RANK) {
    b->failed = true;
    (void)kva_fail(b->m->diag, KVA_UNSUPPORTED, &b->loc, "needs a tensor of rank %u, more than the supported %d",
                   rank + count, KVA_MAX_RANK);
    return x;
  }
  for (uint32_t i = 0; i < axis; i++) dims[i] = x->type->dims[i];
  for (uint32_t i = 0; i < count; i++) dims[axis + i] = kva_expr_const(b->m->exprs, 1);
  for (uint32_t i = axis; i < rank; i++) dims[i + count] = x->type->dims[i];
  return kva_reshape(b, x, rank + count, dims);
}

kva_value *kva_onnx_slice(kva_builder *b, kva_value *x, uint32_t axis, kva_dim start, kva_dim length) {
  uint32_t rank = x->type->rank;
  kva_dim starts[KVA_MAX_RANK], shape[KVA_MAX_RANK];
  int64_t steps[KVA_MAX_RANK];
  if (b->failed || !has_axes(b, x, axis + 1)) return x;
  if (kva_expr_is(start, 0) && length == x->type->dims[axis]) return x;
  for (uint32_t i = 0; i < rank; i++) {
    starts[i] = i == axis ? start : kva_expr_const(b->m->exprs, 0);
    shape[i] = i == axis ? length : x->type->dims[i];
    steps[i] = 1;
  }
  kva_slice_attrs attrs = {.starts = {rank, starts}, .shape = {rank, shape}, .steps = {rank, steps}};
  return kva_build(b, KVA_OP_slice, 1, &x, &attrs);
}

kva_value *kva_onnx_flip(kva_builder *b, kva_value *x, uint32_t axis) {
  kva_dim starts[KVA_MAX_RANK];
  int64_t steps[KVA_MAX_RANK];
  for (uint32_t i = 0; i < x->type->rank; i++) {
    steps[i] = i == axis ? -1 : 1;
    starts[i] = i == axis ? kva_expr_addi(b->m->exprs, x->type->dims[i], -1) : kva_expr_const(b->m->exprs, 0);
  }
  kva_slice_attrs attrs = {{x->type->rank, starts}, {x->type->rank, x->type->dims}, {x->type->rank, steps}};
  return kva_build(b, KVA_OP_slice, 1, &x, &attrs);
}

kva_value *kva_onnx_concat(kva_builder *b, kva_value *x, kva_value *y, int64_t axis) {
  return kva_build(b, KVA_OP_concat, 2, (kva_value *[]){x, y}, &(kva_concat_attrs){.axis = axis});
}

kva_value *kva_onnx_gather(kva_builder *b, kva_value *x, kva_value *indices, int64_t axis) {
  return kva_build(b, KVA_OP_gather, 2, (kva_value *[]){x, indices}, &(kva_gather_attrs){.axis = axis});
}

kva_value *kva_onnx_iota(kva_builder *b, kva_dtype t, uint32_t rank, const kva_dim *shape, int64_t axis) {
  kva_iota_attrs attrs = {.shape = {rank, shape}, .axis = axis, .dtype = t};
  return kva_build(b, KVA_OP_iota, 0, NULL, &attrs);
}

kva_value *kva_onnx_ramp(kva_builder *b, kva_dtype t, uint32_t rank, uint32_t axis, kva_dim n) {
  kva_dim shape[KVA_MAX_RANK];
  for (uint32_t i = 0; i < rank; i++) shape[i] = i == axis ? n : kva_expr_const(b->m->exprs, 1);
  return kva_onnx_iota(b, t, rank, shape, axis);
}

kva_value *kva_onnx_where(kva_builder *b, kva_value *cond, kva_value *x, kva_value *y) {
  return kva_build3(b, KVA_OP_where, cond, x, y);
}

kva_value *kva_onnx_norm(kva_builder *b, kva_value *s, double p) {
  if (p == 1) return s;
  kva_value *zero = kva_scalar_like(b, s, 0), *is_zero = kva_build2(b, KVA_OP_equal, s, zero);
  kva_value *safe = kva_onnx_where(b, is_zero, kva_scalar_like(b, s, 1), s);
  kva_value *root =
      p == 2 ? kva_build1(b, KVA_OP_sqrt, safe) : kva_build2(b, KVA_OP_pow, safe, kva_scalar_like(b, s, 1 / p));
  return kva_onnx_where(b, is_zero, zero, root);
}

kva_value *kva_onnx_channels(kva_builder *b, kva_value *x, uint32_t rank) {
  return rank > 2 ? kva_onnx_unsqueeze(b, x, x->type->rank, rank - 2) : x;
}

kva_dim kva_onnx_product(kva_builder *b, const kva_dim *dims, uint32_t from, uint32_t to) {
  kva_dim product = kva_expr_const(b->m->exprs, 1);
  for (uint32_t i = from; i < to; i++) product = kva_expr_mul(b->m->exprs, product, dims[i]);
  return product;
}

kva_value *kva_onnx_flatten_2d(kva_builder *b, kva_value *x, uint32_t axis) {
  kva_dim dims[2] = {kva_onnx_product(b, x->type->dims, 0, axis),
                     kva_onnx_product(b, x->type->dims, axis, x->type->rank)};
  return kva_reshape(b, x, 2, dims);
}

kva_value *kva_onnx_widen(kva_builder *b, kva_value *x) {
  kva_dtype t = x->type->dtype;
  return t == KVA_F64 ? x : kva_cast(b, x, KVA_F32);
}
