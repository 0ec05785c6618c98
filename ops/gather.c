/* gather: y[a.., i.., c..] = x[a.., indices[i..], c..]: whole rows of x along `axis` (0: embedding lookup); indices may
 * be negative, see ops/index.h. Gradient of x: gather_grad.
 * Exact: moves elements. */
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/index.h"
#include "ops/partition.h"
#include "ops/shape.h"
#include "ops/shape_values.h"

KVA_OP_FUNCTIONS(gather)

static uint32_t axis_of(const kva_node *n) {
  return kva_axis(((const kva_gather_attrs *)n->attrs)->axis, kva_operand_type(n, 0)->rank);
}

kva_status kva_gather_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *x = kva_operand_type(n, 0), *indices = kva_operand_type(n, 1);
  uint32_t axis;
  KVA_TRY(kva_check_class(m, n, 0));
  KVA_TRY(kva_index_check(m, n, 1));
  KVA_TRY(kva_normalize_axis(m, n, ((const kva_gather_attrs *)n->attrs)->axis, x->rank, &axis));
  if (x->rank - 1 + indices->rank > KVA_MAX_RANK)
    return kva_error(m->diag, &n->loc, "kv.gather: the result has rank %u, more than %d", x->rank - 1 + indices->rank,
                     KVA_MAX_RANK);
  kva_dim dims[KVA_MAX_RANK];
  uint32_t rank = 0;
  for (uint32_t k = 0; k < axis; k++) dims[rank++] = x->dims[k];
  for (uint32_t k = 0; k < indices->rank; k++) dims[rank++] = indices->dims[k];
  for (uint32_t k = axis + 1; k < x->rank; k++) dims[rank++] = x->dims[k];
  out_types[0] = kva_type_tensor(m, x->dtype, rank, dims);
  return KVA_OK;
}

kva_status kva_gather_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  const kva_ref_tensor *x = in[0], *indices = in[1];
  kva_ref_tensor *y = out[0];
  uint32_t axis = axis_of(n);
  int64_t idx[KVA_MAX_RANK] = {0}, at[KVA_MAX_RANK];
  for (int64_t i = 0; i < y->n; i++, kva_next_index(y->rank, y->dims, idx)) {
    int64_t index = indices->i[kva_ref_offset(indices, idx + axis)];
    KVA_TRY(kva_index_ref(r, n, index, axis, x->dims[axis], &at[axis]));
    for (uint32_t k = 0; k < axis; k++) at[k] = idx[k];
    for (uint32_t k = axis + 1; k < x->rank; k++) at[k] = idx[k - 1 + indices->rank];
    kva_ref_copy(x, kva_ref_offset(x, at), y, i);
  }
  return KVA_OK;
}

/* Sums many rows into one, so narrow floats accumulate in float and round once. */
kva_status kva_gather_vjp(kva_vjp *c, kva_node *n) {
  kva_value *operands[2] = {kva_widen(c->b, c->grad_out[0]), kva_operand(n, 1)};
  const kva_type *x = kva_operand_type(n, 0);
  if (!c->wants[0]) return KVA_OK;
  kva_gather_grad_attrs attrs = {.axis = axis_of(n), .extent = x->dims[axis_of(n)]};
  c->grad_in[0] = kva_cast(c->b, kva_build(c->b, KVA_OP_gather_grad, 2, operands, &attrs), x->dtype);
  return KVA_OK;
}

kva_kval kva_gather_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_type *x = kva_operand_type(n, 0), *indices = kva_operand_type(n, 1);
  uint32_t axis = axis_of(n);
  const kva_expr *at[KVA_MAX_RANK];
  for (uint32_t k = 0; k < axis; k++) at[k] = idx[k];
  at[axis] = kva_index_lower(l, n, 1, idx + axis, x->dims[axis]);
  for (uint32_t k = axis + 1; k < x->rank; k++) at[k] = idx[k - 1 + indices->rank];
  return kva_masked_operand(l, n, 0, at, kva_index_nonempty(l, NULL, x->dims[axis]));
}

bool kva_gather_shape_values(kva_shape_values *v, const kva_node *n) {
  const kva_dims *a = v->operand(v, n, 0), *index = v->operand(v, n, 1);
  if (!a || !index || kva_operand_type(n, 0)->rank != 1 || index->n != v->len) return false;
  for (uint32_t i = 0; i < v->len; i++) {
    int64_t at;
    if (!kva_expr_is_const(index->v[i], &at)) return false;
    if (at < 0) at += a->n;
    if (at < 0 || at >= a->n) return false;
    v->out[i] = a->v[at];
  }
  return true;
}

void kva_gather_indexing(const kva_node *n, kva_indexing *out) {
  uint32_t axis = axis_of(n);
  *out = (kva_indexing){
      .operand = 1, .n = 1, .extents = {kva_operand_type(n, 0)->dims[axis]}, .axis = axis, .from_end = true};
}

int kva_gather_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  uint32_t first = axis_of(n), indices = kva_operand_type(n, 1)->rank;
  bool in_indices = axis >= first && axis < first + indices;
  if (operand) return in_indices ? (int)(axis - first) : KVA_SAME_FOR_ALL;
  if (in_indices) return KVA_SAME_FOR_ALL;
  return (int)(axis < first ? axis : axis - indices + 1);
}

/* Rows of a table at positions; or of a lifted table at fixed indices. */
kva_value *kva_gather_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs) {
  (void)attrs;
  bool table = kva_is_lifted(n, 0, operands), indices = kva_is_lifted(n, 1, operands);
  if ((table && indices) || (indices && axis_of(n))) return NULL;
  return kva_build(c->b, KVA_OP_gather, 2, operands, &(kva_gather_attrs){.axis = axis_of(n) + table});
}

/* i as an index of this process's slice of an axis: `own` where it has it, 0 where another process has, and out of
 * range where it is out of the axis. */
typedef struct local_index {
  kva_value *at, *own;
} local_index;

static local_index localise(kva_partition *p, kva_value *i, int64_t extent) {
  kva_builder *b = p->b;
  int64_t each = extent / p->parts;
  kva_value *zero = kva_const_scalar(b, KVA_I64, 0), *end = kva_const_scalar(b, KVA_I64, (double)extent);
  i = kva_cast(b, i, KVA_I64);
  i = kva_build3(b, KVA_OP_where, kva_build2(b, KVA_OP_less, i, zero), kva_add(b, i, end), i);
  kva_value *first = kva_mul(b, kva_own_index(p), kva_const_scalar(b, KVA_I64, (double)each));
  kva_value *local = kva_sub(b, i, first);
  kva_value *own = kva_build2(b, KVA_OP_logical_and, kva_build2(b, KVA_OP_less_equal, zero, local),
                              kva_build2(b, KVA_OP_less, local, kva_const_scalar(b, KVA_I64, (double)each)));
  kva_value *known =
      kva_build2(b, KVA_OP_logical_and, kva_build2(b, KVA_OP_less_equal, zero, i), kva_build2(b, KVA_OP_less, i, end));
  return (local_index){kva_build3(b, KVA_OP_where, own, local, kva_build3(b, KVA_OP_where, known, zero, end)), own};
}

/* If the table is split along the axis of its rows, each process gives the rows that it has, and zeros for others. */
bool kva_gather_partition(kva_partition *p, const kva_node *n) {
  uint32_t axis = axis_of(n), behind = kva_operand_type(n, 0)->rank - 1 - axis;
  const kva_type *indices = kva_operand_type(n, 1);
  int64_t extent;
  if (kva_split_axis(p, n, 0) != (int)axis || !kva_dtype_is_float(kva_operand_type(n, 0)->dtype)) return false;
  if (!kva_expr_is_const(kva_operand_type(n, 0)->dims[axis], &extent)) return false;
  local_index l = localise(p, kva_whole_operand(p, n, 1), extent);
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t k = 0; k < indices->rank + behind; k++)
    dims[k] = k < indices->rank ? indices->dims[k] : kva_expr_const(p->b->m->exprs, 1);
  kva_value *rows =
      kva_build(p->b, KVA_OP_gather, 2, (kva_value *[]){kva_slice_operand(p, n, 0, axis), l.at}, n->attrs);
  kva_value *own = kva_reshape(p->b, l.own, indices->rank + behind, dims);
  rows = kva_build3(p->b, KVA_OP_where, own, rows, kva_scalar_like(p->b, rows, 0));
  p->results[0] = kva_sum_over_processes(p, rows);
  p->axes[0] = KVA_WHOLE;
  return true;
}

/* Axes move of x, when a list picks rows along one of them, or of indices into a list. */
kva_value *kva_gather_permute(kva_builder *b, const kva_node *n, kva_value *const *operands, const uint32_t *moved) {
  kva_gather_attrs attrs = {.axis = kva_operand_type(n, 0)->rank == 1 ? 0 : moved[axis_of(n)]};
  return kva_build(b, KVA_OP_gather, n->n_operands, operands, &attrs);
}
