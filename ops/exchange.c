#include "ops/exchange.h"

#include "ops/check.h"

kva_status kva_check_exchange(kva_module *m, const kva_node *n) {
  int64_t parts = kva_exchange_parts(n), stride = kva_exchange_stride(n), processes;
  if (parts >= 1 && stride >= 1 && !__builtin_mul_overflow(parts, stride, &processes) && processes <= INT32_MAX)
    return KVA_OK;
  return kva_error(m->diag, &n->loc, "kv.%s: expected parts and stride of at least 1, found %lld and %lld", n->op->name,
                   (long long)parts, (long long)stride);
}

const kva_type *kva_part_type(kva_module *m, const kva_type *t, int64_t parts) {
  int64_t n;
  if (!kva_expr_is_const(kva_type_elements(m, t), &n)) return NULL;
  kva_dim each = kva_expr_const(m->exprs, kva_part_elements(n, parts));
  return kva_type_tensor(m, t->dtype, 1, &each);
}

kva_status kva_infer_part(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_check_exchange(m, n));
  KVA_TRY(kva_check_class(m, n, 0));
  out_types[0] = kva_part_type(m, kva_operand_type(n, 0), kva_exchange_parts(n));
  return out_types[0] ? KVA_OK : kva_operand_error(m, n, 0, "has a shape that depends on the inputs");
}

void kva_ref_part(const kva_ref_tensor *x, kva_ref_tensor *y, int64_t factor) {
  for (int64_t i = 0; i < y->n && i < x->n; i++) {
    if (x->f)
      y->f[i] = (double)factor * x->f[i];
    else
      y->i[i] = (int64_t)((uint64_t)factor * (uint64_t)x->i[i]);
  }
}
