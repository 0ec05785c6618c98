/* scatter_nd: work items are slices of the inner axes. */
#include "codegen/kernels/any/scatter/scatter.h"
#include "ops/index.h"
#include "ops/shape.h"

static kva_scatter_mode mode_of(const kva_node *n) {
  return kva_scatter_mode_of(((const kva_scatter_nd_attrs *)n->attrs)->reduction);
}

void kva_scatter_nd_emit(kva_lower *l, const kva_node *n) {
  kva_kb *b = l->kb;
  kva_expr_ctx *e = b->exprs;
  const kva_type *x = kva_operand_type(n, 0), *indices = kva_operand_type(n, 1);
  uint32_t length = kva_index_length(kva_operand_type(n, 1)), n_lead = indices->rank - 1, n_inner = x->rank - length;
  kva_kbuf *buf = kva_scatter_result(l, n, 0);
  const kva_expr *inner = kva_shape_product(e, n_inner, x->dims + length);
  const kva_expr *at[KVA_MAX_RANK], *from[KVA_MAX_RANK], *index_at[KVA_MAX_RANK];
  kva_kloop *rows[KVA_MAX_RANK], *leads[KVA_MAX_RANK];
  kva_slice_loop slice = kva_slices_begin(l, inner);

  kva_nest_begin(l, KVA_K_PARALLEL, length, x->dims, rows, at);
  kva_kloop *copy = kva_k_loop_begin(b, KVA_K_PARALLEL, slice.width, "c");
  kva_shape_split(e, n_inner, x->dims + length, kva_expr_add(e, slice.start, copy->var), at + length);
  kva_k_store(b, buf, kva_shape_linear(e, x->rank, x->dims, at), l->operand(l, n, 0, at));
  kva_k_loop_end(b, copy);
  kva_nest_end(l, length, rows);

  kva_nest_begin(l, KVA_K_SERIAL, n_lead, indices->dims, leads, from);
  kva_kval some = NULL;
  for (uint32_t k = 0; k < length; k++) {
    memcpy(index_at, from, sizeof index_at[0] * n_lead);
    index_at[n_lead] = kva_expr_const(e, k);
    at[k] = kva_index_lower(l, n, 1, index_at, x->dims[k]);
    some = kva_index_nonempty(l, some, x->dims[k]);
  }
  kva_kloop *apply = kva_k_loop_begin(b, KVA_K_PARALLEL, slice.width, "c");
  kva_shape_split(e, n_inner, x->dims + length, kva_expr_add(e, slice.start, apply->var), at + length);
  memcpy(from + n_lead, at + length, sizeof at[0] * n_inner);
  kva_kval guard = kva_k_guard_begin(b, some);
  kva_kval v = l->operand(l, n, 2, from);
  kva_scatter_store(l, mode_of(n), buf, kva_shape_linear(e, x->rank, x->dims, at), v);
  kva_k_guard_end(b, guard);
  kva_k_loop_end(b, apply);
  kva_nest_end(l, n_lead, leads);

  kva_slices_end(l, &slice);
}
