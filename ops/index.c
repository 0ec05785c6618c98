/* Data-dependent indices. */
#include "ops/index.h"

kva_status kva_index_check(kva_module *m, const kva_node *n, uint32_t operand) {
  kva_dtype t = kva_operand_type(n, operand)->dtype;
  if (t == KVA_I32 || t == KVA_I64) return KVA_OK;
  return kva_operand_error(m, n, operand, "expected indices of int32 or int64, found %s; insert a cast",
                           kva_dtype_name(t));
}

kva_status kva_index_ref(kva_ref *r, const kva_node *n, int64_t index, uint32_t axis, int64_t extent,
                         int64_t *out_index) {
  *out_index = index < 0 ? index + extent : index;
  if (index >= -extent && index < extent) return KVA_OK;
  return kva_error(r->diag, &n->loc, "kv.%s: index %lld is out of range for axis %u of extent %lld", n->op->name,
                   (long long)index, axis, (long long)extent);
}

const kva_expr *kva_index_lower(kva_lower *l, const kva_node *n, uint32_t operand, const kva_expr *const *at,
                                kva_dim extent) {
  kva_kb *b = l->kb;
  kva_kval i = kva_k_convert(b, l->operand(l, n, operand, at), KVA_I64);
  kva_kval zero = kva_k_const_i(b, KVA_I64, 0), end = kva_k_index(b, extent);
  i = kva_k_select(b, kva_k2(b, KVA_K_lt, i, zero), kva_k2(b, KVA_K_add, i, end), i);
  kva_kval last = kva_k_index(b, kva_expr_addi(b->exprs, extent, -1));
  return kva_k_symbol(b, kva_k2(b, KVA_K_max, kva_k2(b, KVA_K_min, i, last), zero));
}

kva_kval kva_index_nonempty(kva_lower *l, kva_kval condition, kva_dim extent) {
  kva_expr_ctx *c = l->kb->exprs;
  const kva_expr *zero = kva_expr_const(c, 0);
  if (kva_expr_provably_less(c, zero, extent)) return condition;
  return kva_k_and(l->kb, condition, kva_k_index_lt(l->kb, zero, extent));
}

uint32_t kva_index_length(const kva_type *indices) {
  int64_t length = 0;
  kva_expr_is_const(indices->dims[indices->rank - 1], &length);
  return (uint32_t)length;
}
