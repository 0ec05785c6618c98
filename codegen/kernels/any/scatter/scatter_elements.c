/* scatter_elements: work items are lines along the axis. */
#include "codegen/kernels/any/scatter/scatter.h"
#include "ops/check.h"
#include "ops/index.h"
#include "ops/shape.h"

static uint32_t axis_of(const kva_node *n) {
  return kva_axis(((const kva_scatter_elements_attrs *)n->attrs)->axis, kva_operand_type(n, 0)->rank);
}

static kva_scatter_mode mode_of(const kva_node *n) {
  return kva_scatter_mode_of(((const kva_scatter_elements_attrs *)n->attrs)->reduction);
}

void kva_scatter_elements_emit(kva_lower *l, const kva_node *n) {
  kva_kb *b = l->kb;
  kva_expr_ctx *e = b->exprs;
  const kva_type *x = kva_operand_type(n, 0), *indices = kva_operand_type(n, 1);
  uint32_t axis = axis_of(n);
  kva_kbuf *buf = kva_scatter_result(l, n, 0);
  kva_kloop *lines[KVA_MAX_RANK];
  const kva_expr *at[KVA_MAX_RANK], *from[KVA_MAX_RANK];
  kva_kval covered = NULL; /* the line has updates */
  for (uint32_t k = 0; k < x->rank; k++) {
    if (k == axis) continue;
    lines[k] = kva_k_loop_begin(b, KVA_K_PARALLEL, x->dims[k], "i");
    at[k] = from[k] = lines[k]->var;
    if (indices->dims[k] != x->dims[k]) covered = kva_k_and(b, covered, kva_k_index_lt(b, at[k], indices->dims[k]));
  }

  kva_kloop *copy = kva_k_loop_begin(b, KVA_K_PARALLEL, x->dims[axis], "k");
  at[axis] = copy->var;
  kva_k_store(b, buf, kva_shape_linear(e, x->rank, x->dims, at), l->operand(l, n, 0, at));
  kva_k_loop_end(b, copy);

  kva_kloop *walk = kva_k_loop_begin(b, KVA_K_SERIAL, indices->dims[axis], "k");
  from[axis] = walk->var;
  covered = kva_index_nonempty(l, covered, x->dims[axis]);
  kva_kval guard = kva_k_guard_begin(b, covered);
  at[axis] = kva_index_lower(l, n, 1, from, x->dims[axis]);
  kva_kval v = l->operand(l, n, 2, from);
  kva_scatter_store(l, mode_of(n), buf, kva_shape_linear(e, x->rank, x->dims, at), v);
  kva_k_guard_end(b, guard);
  kva_k_loop_end(b, walk);

  for (uint32_t k = x->rank; k-- > 0;)
    if (k != axis) kva_k_loop_end(b, lines[k]);
}
