/* sgd(p, g, lr): p' = p - lr * (g + weight_decay * p).
 * Tolerance 4: three roundings. */
#include "ops/optimizer.h"

KVA_OP_FUNCTIONS(sgd)

kva_status kva_sgd_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  return kva_optimizer_infer(m, n, 2, 1, out_types);
}

kva_status kva_sgd_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  const kva_sgd_attrs *a = n->attrs;
  for (int64_t i = 0; i < in[0]->n; i++) {
    double p = in[0]->f[i];
    out[0]->f[i] = p - in[2]->f[0] * kva_decayed(in[1]->f[i], a->weight_decay, p);
  }
  return KVA_OK;
}

kva_kval kva_sgd_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_sgd_attrs *a = n->attrs;
  kva_kval g = kva_decayed_gradient(l, n, a->weight_decay, idx);
  kva_kval step = kva_k2(l->kb, KVA_K_mul, kva_optimizer_operand(l, n, 2, idx), g);
  return kva_k2(l->kb, KVA_K_sub, kva_optimizer_operand(l, n, 0, idx), step);
}
