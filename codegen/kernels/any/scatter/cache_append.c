/* cache_append: stores the new rows alone (KVA_UPDATES_PART). */
#include "codegen/kernels/any/scatter/scatter.h"
#include "ops/cache_append.h"
#include "ops/shape.h"

/* Where element `from` of the rows goes; returns whether that is in the cache. */
static kva_kval place_row(kva_lower *l, const kva_node *n, const kva_expr *const *from, const kva_expr **to) {
  kva_kb *b = l->kb;
  kva_expr_ctx *e = b->exprs;
  const kva_type *cache = kva_operand_type(n, KVA_CACHE);
  uint32_t axis = kva_cache_axis(n);
  const kva_expr *zero = kva_expr_const(e, 0), *extent = cache->dims[axis];
  const kva_expr *position = kva_k_symbol(b, l->operand(l, n, KVA_CACHE_POSITION, from));
  memcpy(to, from, sizeof *to * cache->rank);
  to[axis] = kva_expr_add(e, position, from[axis]);
  kva_kval inside =
      kva_k_and(b, kva_k_index_le(b, zero, to[axis]), kva_k_index_lt(b, to[axis], kva_cache_capacity(n, e)));
  if (!kva_operand(n, KVA_CACHE_PAGES)) return inside;
  const kva_expr *idx[2] = {from[0], kva_expr_div(e, to[axis], extent)};
  kva_kval before = kva_k_guard_begin(b, inside);
  to[0] = kva_k_symbol(b, kva_k_convert(b, l->operand(l, n, KVA_CACHE_PAGES, idx), KVA_I64));
  kva_k_guard_end(b, before);
  to[axis] = kva_expr_mod(e, to[axis], extent);
  kva_kval known = kva_k_and(b, kva_k_index_le(b, zero, to[0]), kva_k_index_lt(b, to[0], cache->dims[0]));
  return kva_k_and(b, inside, known);
}

void kva_cache_append_emit(kva_lower *l, const kva_node *n) {
  kva_kb *b = l->kb;
  kva_expr_ctx *e = b->exprs;
  const kva_type *cache = kva_operand_type(n, KVA_CACHE), *rows = kva_operand_type(n, KVA_CACHE_ROWS);
  uint32_t last = rows->rank - 1;
  kva_kbuf *buf = kva_scatter_result(l, n, 0);
  const kva_expr *from[KVA_MAX_RANK], *to[KVA_MAX_RANK];
  kva_kloop *outer[KVA_MAX_RANK];
  kva_nest_begin(l, KVA_K_PARALLEL, last, rows->dims, outer, from);
  kva_kloop *inner = kva_k_loop_begin(b, KVA_K_PARALLEL, rows->dims[last], "i");
  from[last] = inner->var;
  kva_kval guard = kva_k_guard_begin(b, place_row(l, n, from, to));
  kva_k_store(b, buf, kva_shape_linear(e, cache->rank, cache->dims, to), l->operand(l, n, KVA_CACHE_ROWS, from));
  kva_k_guard_end(b, guard);
  kva_k_loop_end(b, inner);
  kva_nest_end(l, last, outer);
}
