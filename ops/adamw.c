/* adamw(p, g, m, v, lr, step) -> p', m', v': Adam with decoupled weight decay (Loshchilov, Hutter, arXiv 1711.05101; as
 * PyTorch's AdamW). step is an int64 scalar that counts from 1.
 *
 *   m' = beta1 m + (1 - beta1) g        v' = beta2 v + (1 - beta2) g^2
 *   p' = p (1 - lr weight_decay) - lr * (m' / (1 - beta1^step)) / (sqrt(v' / (1 - beta2^step)) + eps)
 *
 * 1 - beta^step is -expm1(step log beta): the difference itself would lose most digits for beta near 1.
 * Tolerance 16: about a dozen roundings; expm1 and sqrt enter once each. */
#include "ops/check.h"
#include "ops/optimizer.h"

#include <math.h>

KVA_OP_FUNCTIONS(adamw)

enum { P, G, M, V, LR, STEP };

kva_status kva_adamw_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_optimizer_infer(m, n, 4, 3, out_types));
  KVA_TRY(kva_check_int(m, n, STEP));
  return kva_check_rank(m, n, STEP, 0);
}

kva_status kva_adamw_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  const kva_adamw_attrs *a = n->attrs;
  double step = (double)in[STEP]->i[0], lr = in[LR]->f[0];
  double c1 = -expm1(step * log(a->beta1)), c2 = -expm1(step * log(a->beta2));
  for (int64_t i = 0; i < in[P]->n; i++) {
    double g = in[G]->f[i];
    double m = a->beta1 * in[M]->f[i] + (1 - a->beta1) * g;
    double v = a->beta2 * in[V]->f[i] + (1 - a->beta2) * g * g;
    out[0]->f[i] = in[P]->f[i] * (1 - lr * a->weight_decay) - lr * (m / c1) / (sqrt(v / c2) + a->eps);
    out[1]->f[i] = m;
    out[2]->f[i] = v;
  }
  return KVA_OK;
}

/* 1 - beta^step */
static kva_kval correction(kva_lower *l, const kva_node *n, double beta, const kva_expr *const *idx) {
  kva_kval step = kva_optimizer_operand(l, n, STEP, idx);
  kva_kval exponent = kva_k2(l->kb, KVA_K_mul, step, kva_k_const(l->kb, step->dtype, log(beta)));
  return kva_k1(l->kb, KVA_K_neg, kva_k1(l->kb, KVA_K_expm1, exponent));
}

/* beta * moment + (1 - beta) * x */
static kva_kval average(kva_lower *l, const kva_node *n, uint32_t moment, double beta, kva_kval x,
                        const kva_expr *const *idx) {
  kva_kval part = kva_k2(l->kb, KVA_K_mul, x, kva_k_const(l->kb, x->dtype, 1 - beta));
  return kva_k_scaled(l, kva_optimizer_operand(l, n, moment, idx), beta, part);
}

kva_kval kva_adamw_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  const kva_adamw_attrs *a = n->attrs;
  kva_kb *kb = l->kb;
  kva_kval g = kva_optimizer_operand(l, n, G, idx);
  kva_kval m = average(l, n, M, a->beta1, g, idx);
  if (result == 1) return m;
  kva_kval v = average(l, n, V, a->beta2, kva_k2(kb, KVA_K_mul, g, g), idx);
  if (result == 2) return v;
  kva_kval p = kva_optimizer_operand(l, n, P, idx), lr = kva_optimizer_operand(l, n, LR, idx);
  kva_kval root = kva_k1(kb, KVA_K_sqrt, kva_k2(kb, KVA_K_div, v, correction(l, n, a->beta2, idx)));
  kva_kval denominator = kva_k2(kb, KVA_K_add, root, kva_k_const(kb, p->dtype, a->eps));
  kva_kval rate = kva_k2(kb, KVA_K_div, lr, correction(l, n, a->beta1, idx));
  kva_kval update = kva_k2(kb, KVA_K_mul, rate, kva_k2(kb, KVA_K_div, m, denominator));
  kva_kval kept = kva_k_scaled(l, lr, -a->weight_decay, kva_k_const(kb, p->dtype, 1));
  return kva_k2(kb, KVA_K_sub, kva_k2(kb, KVA_K_mul, p, kept), update);
}
