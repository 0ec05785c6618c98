/* gather_grad: the gradient of gather. Operands: g of shape [a.., i.., c..] and indices [i..]; the result has shape
 * [a.., extent, c..]:  dx[a.., v, c..] = sum of g[a.., i.., c..] over all i with indices[i] = v.
 * The sum runs in the order of i and is rounded at every step, on every target.
 * Tolerance 8: kernels of narrow floats may keep more bits between two steps. */
#include "ops/gather_grad.h"
#include "ops/check.h"
#include "ops/index.h"
#include "ops/scatter_common.h"
#include "ops/shape.h"

kva_gather_layout kva_gather_grad_layout(const kva_node *n) {
  kva_gather_layout y = {.n_indices = kva_operand_type(n, 1)->rank};
  y.rank = kva_operand_type(n, 0)->rank + 1 - y.n_indices;
  y.axis = kva_axis(((const kva_gather_grad_attrs *)n->attrs)->axis, y.rank);
  return y;
}

kva_status kva_gather_grad_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_gather_grad_attrs *a = n->attrs;
  const kva_type *g = kva_operand_type(n, 0), *indices = kva_operand_type(n, 1);
  uint32_t axis;
  KVA_TRY(kva_check_class(m, n, 0));
  KVA_TRY(kva_index_check(m, n, 1));
  KVA_TRY(kva_check_min_rank(m, n, 0, indices->rank));
  if (!a->extent) return kva_error(m->diag, &n->loc, "kv.gather_grad: attribute extent is missing");
  kva_gather_layout y = {.n_indices = indices->rank, .rank = g->rank + 1 - indices->rank};
  KVA_TRY(kva_normalize_axis(m, n, a->axis, y.rank, &axis));
  for (uint32_t k = 0; k < indices->rank; k++)
    if (g->dims[axis + k] != indices->dims[k])
      return kva_operand_error(m, n, 0, "axis %u differs from axis %u of the indices", axis + k, k);
  kva_dim dims[KVA_MAX_RANK];
  if (y.rank > KVA_MAX_RANK) return kva_error(m->diag, &n->loc, "kv.gather_grad: the result has rank %u", y.rank);
  for (uint32_t k = 0; k < y.rank; k++)
    dims[k] = k < axis ? g->dims[k] : k == axis ? a->extent : g->dims[k - 1 + y.n_indices];
  out_types[0] = kva_type_tensor(m, g->dtype, y.rank, dims);
  return KVA_OK;
}

kva_status kva_gather_grad_ref(kva_ref *r, const kva_node *n, const kva_wide *const *in, kva_wide *const *out) {
  const kva_wide *g = in[0], *indices = in[1];
  kva_gather_layout y = kva_gather_grad_layout(n);
  int64_t idx[KVA_MAX_RANK] = {0}, at[KVA_MAX_RANK];
  for (int64_t i = 0; i < g->n; i++, kva_next_index(g->rank, g->dims, idx)) {
    int64_t index = indices->i[kva_ref_offset(indices, idx + y.axis)];
    KVA_TRY(kva_index_ref(r, n, index, y.axis, out[0]->dims[y.axis], &at[y.axis]));
    for (uint32_t k = 0; k < y.axis; k++) at[k] = idx[k];
    for (uint32_t k = y.axis + 1; k < y.rank; k++) at[k] = idx[k - 1 + y.n_indices];
    kva_scatter_ref(KVA_SCATTER_ADD, g, i, out[0], kva_ref_offset(out[0], at));
  }
  return KVA_OK;
}

const kva_expr *kva_gather_grad_offset(kva_expr_ctx *e, const kva_expr *outer, const kva_expr *row, kva_dim extent,
                                       const kva_expr *c, const kva_expr *inner) {
  row = kva_expr_add(e, kva_expr_mul(e, outer, extent), row);
  return kva_expr_add(e, kva_expr_mul(e, row, inner), c);
}

/* ---- work items: outer position x slice of the inner axes -------------------------------------------------------- */

static void by_slices(kva_lower *l, const kva_node *n) {
  kva_kb *b = l->kb;
  kva_expr_ctx *e = b->exprs;
  kva_gather_layout y = kva_gather_grad_layout(n);
  const kva_type *g = kva_operand_type(n, 0), *type = n->results[0].type;
  kva_kbuf *buf = kva_scatter_result(l, n, 0);
  uint32_t n_inner = y.rank - 1 - y.axis;
  const kva_dim *inner_dims = type->dims + y.axis + 1;
  const kva_expr *inner = kva_shape_product(e, n_inner, inner_dims), *at[KVA_MAX_RANK];
  kva_kloop *outer_loops[KVA_MAX_RANK], *index_loops[KVA_MAX_RANK];
  kva_nest_begin(l, KVA_K_MAP, y.axis, type->dims, outer_loops, at);
  const kva_expr *outer = kva_shape_linear(e, y.axis, type->dims, at);
  kva_slice_loop slice = kva_slices_begin(l, inner);

  kva_kloop *rows = kva_k_loop_begin(b, KVA_K_MAP, type->dims[y.axis], "row");
  kva_kloop *fill = kva_k_loop_begin(b, KVA_K_MAP, slice.width, "c");
  const kva_expr *c = kva_expr_add(e, slice.start, fill->var);
  kva_k_store(b, buf, kva_gather_grad_offset(e, outer, rows->var, type->dims[y.axis], c, inner),
              kva_k_const(b, kva_k_compute_type(type->dtype), 0));
  kva_k_loop_end(b, fill);
  kva_k_loop_end(b, rows);

  kva_nest_begin(l, KVA_K_SERIAL, y.n_indices, g->dims + y.axis, index_loops, at + y.axis);
  const kva_expr *row = kva_index_lower(l, n, 1, at + y.axis, type->dims[y.axis]);
  kva_kloop *add = kva_k_loop_begin(b, KVA_K_MAP, slice.width, "c");
  c = kva_expr_add(e, slice.start, add->var);
  kva_shape_split(e, n_inner, inner_dims, c, at + y.axis + y.n_indices);
  kva_kval guard = kva_k_guard_begin(b, kva_index_nonempty(l, NULL, type->dims[y.axis]));
  kva_kval v = l->operand(l, n, 0, at);
  kva_scatter_store(l, KVA_SCATTER_ADD, buf, kva_gather_grad_offset(e, outer, row, type->dims[y.axis], c, inner), v);
  kva_k_guard_end(b, guard);
  kva_k_loop_end(b, add);
  kva_nest_end(l, y.n_indices, index_loops);

  kva_slices_end(l, &slice);
  kva_nest_end(l, y.axis, outer_loops);
}

void kva_gather_grad_kernel(kva_lower *l, const kva_node *n) {
  bool whole_bytes = kva_dtype_bits(n->results[0].type->dtype) >= 8;
  (l->gpu && whole_bytes ? kva_gather_grad_by_blocks : by_slices)(l, n);
}
