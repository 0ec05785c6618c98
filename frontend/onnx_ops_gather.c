/* Rules: indexed reads and writes. Negative indices count from the end, here as in the internal operators. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

kva_status kva_onnx_gather_op(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  uint32_t axis;
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", 0), x->type->rank, &axis));
  return kva_onnx_done(k, kva_onnx_gather(k->b, x, kva_onnx_in(k, 1), axis));
}

/* v with extents within those of x, which they have to be beside the axis: where that is not provable it is assumed. */
static kva_value *within(kva_onnx_call *k, kva_value *v, const kva_value *x, uint32_t axis, const char *user) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  uint32_t rank = v->type->rank;
  kva_dim dims[KVA_MAX_RANK];
  if (!k->b->assumes || rank != x->type->rank) return v;
  for (uint32_t i = 0; i < rank; i++) {
    kva_dim own = kva_onnx_dim(v, i), least = kva_expr_min(e, own, kva_onnx_dim(x, i));
    bool known = kva_expr_is_const(own, NULL) && kva_expr_is_const(kva_onnx_dim(x, i), NULL);
    dims[i] = i == axis || known ? own : least;
  }
  return kva_assume(k->b, v, dims, user);
}

kva_status kva_onnx_gather_elements(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0), *indices = kva_onnx_in(k, 1);
  uint32_t axis;
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", 0), x->type->rank, &axis));
  kva_gather_elements_attrs attrs = {.axis = axis};
  kva_value *in[] = {x, within(k, indices, x, axis, "indices of GatherElements")};
  kva_value *y = kva_build(k->b, KVA_OP_gather_elements, 2, in, &attrs);
  return kva_onnx_done(k, k->b->failed ? y : kva_assume(k->b, y, indices->type->dims, "indices of GatherElements"));
}

/* The internal operators represent "none" by an absent reduction. */
static kva_status reduction_of(kva_onnx_call *k, const char **out) {
  static const char *const known[] = {"add", "mul", "max", "min"};
  const char *mode = kva_onnx_string(k, "reduction", "none");
  *out = NULL;
  if (!strcmp(mode, "none")) return KVA_OK;
  for (int i = 0; i < 4; i++)
    if (!strcmp(mode, known[i])) return *out = mode, KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "attribute 'reduction': '%s' is not none, add, mul, max or min", mode);
}

kva_status kva_onnx_scatter_elements(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0);
  kva_scatter_elements_attrs attrs = {0};
  uint32_t axis;
  KVA_TRY(reduction_of(k, &attrs.reduction));
  KVA_TRY(kva_onnx_axis(k, kva_onnx_int(k, "axis", 0), x->type->rank, &axis));
  attrs.axis = axis;
  kva_value *indices = within(k, kva_onnx_in(k, 1), x, axis, "indices of ScatterElements");
  kva_value *updates = kva_onnx_in(k, 2);
  if (k->b->assumes && updates->type->rank == indices->type->rank)
    updates = kva_assume(k->b, updates, indices->type->dims, "updates of ScatterElements");
  return kva_onnx_done(k, kva_build(k->b, KVA_OP_scatter_elements, 3, (kva_value *[]){x, indices, updates}, &attrs));
}

kva_status kva_onnx_gather_nd(kva_onnx_call *k) {
  kva_gather_nd_attrs attrs = {.batch_dims = kva_onnx_int(k, "batch_dims", 0)};
  kva_value *x = kva_onnx_in(k, 0), *indices = kva_onnx_in(k, 1);
  kva_dim batch[KVA_MAX_RANK] = {NULL};
  for (uint32_t i = 0; i < x->type->rank && i + 1 < indices->type->rank; i++)
    if (i < attrs.batch_dims) batch[i] = kva_onnx_dim(x, i);
  indices = kva_onnx_with_dims(k, indices, batch, "indices of GatherND");
  return kva_onnx_done(k, kva_build(k->b, KVA_OP_gather_nd, 2, (kva_value *[]){x, indices}, &attrs));
}

/* The length of an index follows from the ranks, and the updates' extents from those of data and indices. */
static void agree_on_updates(kva_onnx_call *k, kva_value *x, kva_value **indices, kva_value **updates) {
  int64_t lead = (int64_t)(*indices)->type->rank - 1, rank = x->type->rank, found = (*updates)->type->rank;
  int64_t length = lead + rank - found;
  kva_dim dims[KVA_MAX_RANK] = {NULL};
  if (lead < 0 || found < lead || length < 1) return;
  *indices = kva_onnx_with_extent(k, *indices, (uint32_t)lead, kva_expr_const(kva_onnx_exprs(k), length),
                                  "indices of ScatterND");
  for (int64_t i = 0; i < found; i++)
    dims[i] = i < lead ? kva_onnx_dim(*indices, (uint32_t)i) : kva_onnx_dim(x, (uint32_t)(i - lead + length));
  *updates = kva_onnx_with_dims(k, *updates, dims, "updates of ScatterND");
}

kva_status kva_onnx_scatter_nd(kva_onnx_call *k) {
  kva_scatter_nd_attrs attrs = {0};
  KVA_TRY(reduction_of(k, &attrs.reduction));
  kva_value *x = kva_onnx_in(k, 0), *indices = kva_onnx_in(k, 1), *updates = kva_onnx_in(k, 2);
  agree_on_updates(k, x, &indices, &updates);
  return kva_onnx_done(k, kva_build(k->b, KVA_OP_scatter_nd, 3, (kva_value *[]){x, indices, updates}, &attrs));
}
