/* See optimizer.h. */
#include "ops/optimizer.h"
#include "ops/check.h"

kva_status kva_optimizer_infer(kva_module *m, const kva_node *n, uint32_t n_tensors, uint32_t n_results,
                               const kva_type **out_types) {
  const kva_type *p = kva_operand_type(n, 0);
  KVA_TRY(kva_check_float(m, n, 0));
  for (uint32_t i = 1; i < n_tensors; i++) {
    KVA_TRY(kva_check_same_dtype(m, n, i, 0));
    KVA_TRY(kva_check_shape(m, n, i, p->rank, p->dims));
  }
  KVA_TRY(kva_check_float(m, n, n_tensors));
  KVA_TRY(kva_check_rank(m, n, n_tensors, 0));
  for (uint32_t i = 0; i < n_results; i++) out_types[i] = p;
  return KVA_OK;
}

kva_kval kva_optimizer_operand(kva_lower *l, const kva_node *n, uint32_t i, const kva_expr *const *idx) {
  kva_dtype t = kva_k_compute_type(kva_operand_type(n, 0)->dtype);
  return kva_k_convert(l->kb, kva_lower_broadcast(l, n, i, idx), t);
}

kva_kval kva_k_scaled(kva_lower *l, kva_kval x, double scale, kva_kval y) {
  return kva_k_op(l->kb, KVA_K_fma, x, kva_k_const(l->kb, x->dtype, scale), y);
}

kva_kval kva_decayed_gradient(kva_lower *l, const kva_node *n, double weight_decay, const kva_expr *const *idx) {
  kva_kval g = kva_optimizer_operand(l, n, 1, idx);
  return weight_decay == 0 ? g : kva_k_scaled(l, kva_optimizer_operand(l, n, 0, idx), weight_decay, g);
}
