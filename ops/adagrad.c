/* adagrad(p, g, h, lr) -> p', h': with d = g + weight_decay * p,
 *
 *   h' = h + d^2,   p' = p - lr * d / (sqrt(h') + eps)          (Duchi, Hazan, Singer, JMLR 12, 2011)
 *
 * Tolerance 8: the square root and the division on top of three roundings. */
#include "ops/optimizer.h"

#include <math.h>

KVA_OP_FUNCTIONS(adagrad)

kva_status kva_adagrad_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  return kva_optimizer_infer(m, n, 3, 2, out_types);
}

kva_status kva_adagrad_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  const kva_adagrad_attrs *a = n->attrs;
  for (int64_t i = 0; i < in[0]->n; i++) {
    double p = in[0]->f[i], d = kva_decayed(in[1]->f[i], a->weight_decay, p), h = in[2]->f[i] + d * d;
    out[0]->f[i] = p - in[3]->f[0] * d / (sqrt(h) + a->eps);
    out[1]->f[i] = h;
  }
  return KVA_OK;
}

kva_kval kva_adagrad_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  const kva_adagrad_attrs *a = n->attrs;
  kva_kb *kb = l->kb;
  kva_kval d = kva_decayed_gradient(l, n, a->weight_decay, idx);
  kva_kval h = kva_k_op(kb, KVA_K_fma, d, d, kva_optimizer_operand(l, n, 2, idx));
  if (result == 1) return h;
  kva_kval denominator = kva_k2(kb, KVA_K_add, kva_k1(kb, KVA_K_sqrt, h), kva_k_const(kb, h->dtype, a->eps));
  kva_kval step = kva_k2(kb, KVA_K_mul, kva_optimizer_operand(l, n, 3, idx), kva_k2(kb, KVA_K_div, d, denominator));
  return kva_k2(kb, KVA_K_sub, kva_optimizer_operand(l, n, 0, idx), step);
}
