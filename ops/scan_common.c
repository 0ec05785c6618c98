/* Running sums and products. */
#include "ops/scan_common.h"

#include "ops/check.h"

static const kva_scan_attrs *attrs_of(const kva_node *n) {
  return n->attrs;
}

kva_status kva_scan_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_check_class(m, n, 0));
  uint32_t axis;
  KVA_TRY(kva_normalize_axis(m, n, attrs_of(n)->axis, kva_operand_type(n, 0)->rank, &axis));
  out_types[0] = kva_operand_type(n, 0);
  return KVA_OK;
}

static void step(const kva_ref_tensor *x, int64_t at, bool product, double *f, uint64_t *i) {
  if (x->f)
    *f = product ? *f * x->f[at] : *f + x->f[at];
  else
    *i = product ? *i * (uint64_t)x->i[at] : *i + (uint64_t)x->i[at];
}

void kva_scan_ref(const kva_node *n, const kva_ref_tensor *x, kva_ref_tensor *y, bool product) {
  const kva_scan_attrs *a = attrs_of(n);
  uint32_t axis = kva_axis(a->axis, x->rank);
  int64_t extent = x->dims[axis], inner = 1;
  for (uint32_t k = axis + 1; k < x->rank; k++) inner *= x->dims[k];
  for (int64_t line = 0; extent && line < x->n / extent; line++) {
    int64_t base = line / inner * extent * inner + line % inner;
    double f = product;
    uint64_t i = product;
    for (int64_t k = 0; k < extent; k++) {
      int64_t at = base + (a->reverse ? extent - 1 - k : k) * inner;
      if (!a->exclusive) step(x, at, product, &f, &i);
      if (y->f)
        y->f[at] = f;
      else
        y->i[at] = (int64_t)i;
      if (a->exclusive) step(x, at, product, &f, &i);
    }
  }
}

/* One work item a line; along the line a sequential carry. */
void kva_scan_kernel(kva_lower *l, const kva_node *n, bool product) {
  kva_kb *b = l->kb;
  const kva_scan_attrs *a = attrs_of(n);
  const kva_type *x = kva_operand_type(n, 0);
  uint32_t axis = kva_axis(a->axis, x->rank);
  if (kva_gpu_scan_kernel(l, n, product)) return;
  kva_kloop *maps[KVA_MAX_RANK];
  const kva_expr *idx[KVA_MAX_RANK];
  for (uint32_t k = 0; k < x->rank; k++) {
    if (k == axis) continue;
    maps[k] = kva_k_loop_begin(b, KVA_K_PARALLEL, x->dims[k], "i");
    idx[k] = maps[k]->var;
  }
  kva_kloop *scan = kva_k_loop_begin(b, KVA_K_SERIAL, x->dims[axis], "k");
  const kva_expr *last = kva_expr_addi(b->exprs, x->dims[axis], -1);
  idx[axis] = a->reverse ? kva_expr_sub(b->exprs, last, scan->var) : scan->var;
  kva_kval before = kva_k_carry(b, scan, kva_k_const(b, kva_k_compute_type(x->dtype), product));
  kva_kval after = kva_k2(b, product ? KVA_K_mul : KVA_K_add, before, l->operand(l, n, 0, idx));
  l->store(l, n, 0, idx, a->exclusive ? before : after);
  kva_k_carry_next(b, scan, before, after);
  kva_k_loop_end(b, scan);
  for (uint32_t k = x->rank; k-- > 0;)
    if (k != axis) kva_k_loop_end(b, maps[k]);
}
