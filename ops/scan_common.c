/* Prefix sums and products. */
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
