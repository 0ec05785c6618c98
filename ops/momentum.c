/* momentum(p, g, v, lr) -> p', v': with d = g + weight_decay * p,
 *
 *   v' = momentum * v + d,   p' = p - lr * v'   (nesterov: p' = p - lr * (d + momentum * v'))
 *
 * Tolerance 4: five roundings, none of which is amplified. */
#include "ops/optimizer.h"

KVA_OP_FUNCTIONS(momentum)

kva_status kva_momentum_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  return kva_optimizer_infer(m, n, 3, 2, out_types);
}

kva_status kva_momentum_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                            kva_ref_tensor *const *out) {
  (void)r;
  const kva_momentum_attrs *a = n->attrs;
  for (int64_t i = 0; i < in[0]->n; i++) {
    double p = in[0]->f[i], d = kva_decayed(in[1]->f[i], a->weight_decay, p), v = a->momentum * in[2]->f[i] + d;
    out[0]->f[i] = p - in[3]->f[0] * (a->nesterov ? d + a->momentum * v : v);
    out[1]->f[i] = v;
  }
  return KVA_OK;
}

kva_kval kva_momentum_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  const kva_momentum_attrs *a = n->attrs;
  kva_kval d = kva_decayed_gradient(l, n, a->weight_decay, idx);
  kva_kval v = kva_k_scaled(l, kva_optimizer_operand(l, n, 2, idx), a->momentum, d);
  if (result == 1) return v;
  kva_kval direction = a->nesterov ? kva_k_scaled(l, v, a->momentum, d) : v;
  kva_kval step = kva_k2(l->kb, KVA_K_mul, kva_optimizer_operand(l, n, 3, idx), direction);
  return kva_k2(l->kb, KVA_K_sub, kva_optimizer_operand(l, n, 0, idx), step);
}
