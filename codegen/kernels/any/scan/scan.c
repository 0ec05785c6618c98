/* Running sums and products (ops/scan_common.h), line by line. */
#include "codegen/kernels/kernels.h"
#include "ops/check.h"

/* One work item per line, with a sequential carry along it. */
static void scan(kva_lower *l, const kva_node *n, bool product) {
  kva_kb *b = l->kb;
  const kva_scan_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  uint32_t axis = kva_axis(a->axis, x->rank);
  kva_kloop *maps[KVA_MAX_RANK];
  const kva_expr *idx[KVA_MAX_RANK];
  for (uint32_t k = 0; k < x->rank; k++) {
    if (k == axis) continue;
    maps[k] = kva_k_loop_begin(b, KVA_K_PARALLEL, x->dims[k], "i");
    idx[k] = maps[k]->var;
  }
  kva_kloop *line = kva_k_loop_begin(b, KVA_K_SERIAL, x->dims[axis], "k");
  const kva_expr *last = kva_expr_addi(b->exprs, x->dims[axis], -1);
  idx[axis] = a->reverse ? kva_expr_sub(b->exprs, last, line->var) : line->var;
  kva_kval before = kva_k_carry(b, line, kva_k_const(b, kva_k_compute_type(x->dtype), product));
  kva_kval after = kva_k2(b, product ? KVA_K_mul : KVA_K_add, before, l->operand(l, n, 0, idx));
  l->store(l, n, 0, idx, a->exclusive ? before : after);
  kva_k_carry_next(b, line, before, after);
  kva_k_loop_end(b, line);
  for (uint32_t k = x->rank; k-- > 0;)
    if (k != axis) kva_k_loop_end(b, maps[k]);
}

void kva_cumsum_emit(kva_lower *l, const kva_node *n) {
  scan(l, n, false);
}

void kva_cumprod_emit(kva_lower *l, const kva_node *n) {
  scan(l, n, true);
}
