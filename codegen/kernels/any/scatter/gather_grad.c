/* The gradient of gather: work items are an outer position and a slice of the inner axes. */
#include "codegen/kernels/any/scatter/gather_grad.h"
#include "ops/index.h"
#include "ops/shape.h"

const kva_expr *kva_gather_grad_offset(kva_expr_ctx *e, const kva_expr *outer, const kva_expr *row, kva_dim extent,
                                       const kva_expr *c, const kva_expr *inner) {
  row = kva_expr_add(e, kva_expr_mul(e, outer, extent), row);
  return kva_expr_add(e, kva_expr_mul(e, row, inner), c);
}

void kva_gather_grad_emit(kva_lower *l, const kva_node *n) {
  kva_kb *b = l->kb;
  kva_expr_ctx *e = b->exprs;
  kva_gather_layout y = kva_gather_grad_layout(n);
  const kva_type *g = kva_operand_type(n, 0), *type = n->results[0].type;
  kva_kbuf *buf = kva_scatter_result(l, n, 0);
  uint32_t n_inner = y.rank - 1 - y.axis;
  const kva_dim *inner_dims = type->dims + y.axis + 1;
  const kva_expr *inner = kva_shape_product(e, n_inner, inner_dims), *at[KVA_MAX_RANK];
  kva_kloop *outer_loops[KVA_MAX_RANK], *index_loops[KVA_MAX_RANK];
  kva_nest_begin(l, KVA_K_PARALLEL, y.axis, type->dims, outer_loops, at);
  const kva_expr *outer = kva_shape_linear(e, y.axis, type->dims, at);
  kva_slice_loop slice = kva_slices_begin(l, inner);

  kva_kloop *rows = kva_k_loop_begin(b, KVA_K_PARALLEL, type->dims[y.axis], "row");
  kva_kloop *fill = kva_k_loop_begin(b, KVA_K_PARALLEL, slice.width, "c");
  const kva_expr *c = kva_expr_add(e, slice.start, fill->var);
  kva_k_store(b, buf, kva_gather_grad_offset(e, outer, rows->var, type->dims[y.axis], c, inner),
              kva_k_const(b, kva_k_compute_type(type->dtype), 0));
  kva_k_loop_end(b, fill);
  kva_k_loop_end(b, rows);

  kva_nest_begin(l, KVA_K_SERIAL, y.n_indices, g->dims + y.axis, index_loops, at + y.axis);
  const kva_expr *row = kva_index_lower(l, n, 1, at + y.axis, type->dims[y.axis]);
  kva_kloop *add = kva_k_loop_begin(b, KVA_K_PARALLEL, slice.width, "c");
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
