/* cache_append: stores the new rows alone (KVA_UPDATES_PART). */
#include "codegen/kernels/any/scatter/scatter.h"
#include "ops/cache_append.h"
#include "ops/shape.h"

void kva_cache_append_emit(kva_lower *l, const kva_node *n) {
  kva_kb *b = l->kb;
  kva_expr_ctx *e = b->exprs;
  const kva_type *cache = kva_operand_type(n, KVA_CACHE), *rows = kva_operand_type(n, KVA_CACHE_ROWS);
  uint32_t axis = kva_cache_axis(n), last = rows->rank - 1;
  kva_kbuf *buf = kva_scatter_result(l, n, 0);
  const kva_expr *from[KVA_MAX_RANK], *to[KVA_MAX_RANK];
  kva_kloop *outer[KVA_MAX_RANK];
  kva_nest_begin(l, KVA_K_PARALLEL, last, rows->dims, outer, from);
  const kva_expr *position = kva_k_symbol(b, l->operand(l, n, KVA_CACHE_POSITION, from));
  kva_kloop *inner = kva_k_loop_begin(b, KVA_K_PARALLEL, rows->dims[last], "i");
  from[last] = inner->var;
  memcpy(to, from, sizeof *to * rows->rank);
  to[axis] = kva_expr_add(e, position, from[axis]);
  kva_kval inside =
      kva_k_and(b, kva_k_index_le(b, kva_expr_const(e, 0), to[axis]), kva_k_index_lt(b, to[axis], cache->dims[axis]));
  kva_kval guard = kva_k_guard_begin(b, inside);
  kva_k_store(b, buf, kva_shape_linear(e, cache->rank, cache->dims, to), l->operand(l, n, KVA_CACHE_ROWS, from));
  kva_k_guard_end(b, guard);
  kva_k_loop_end(b, inner);
  kva_nest_end(l, last, outer);
}
