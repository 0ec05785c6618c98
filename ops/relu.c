/* relu: y = max(x, 0). NaN stays NaN. Gradient: dy where x > 0, else 0 (0 at x = 0).
 * Exact on every target: a comparison and a selection. */
#include "ops/elementwise.h"
#include "ops/ids.h"

KVA_ELEMENTWISE_INFER(relu)

static double relu_f(double x) {
  return x < 0 ? 0 : x;
}
static int64_t relu_i(int64_t x) {
  return x < 0 ? 0 : x;
}
static int64_t relu_u(int64_t x) {
  return x;
}
KVA_UNARY_REF_U64(relu, relu_f, relu_i, relu_u)

kva_status kva_relu_vjp(kva_vjp *c, kva_node *n) {
  kva_value *x = kva_operand(n, 0);
  kva_value *zero = kva_scalar_like(c->b, x, 0);
  kva_value *positive = kva_build2(c->b, KVA_OP_less, zero, x);
  c->grad_in[0] = kva_build3(c->b, KVA_OP_where, positive, c->grad_out[0], zero);
  return KVA_OK;
}

kva_kval kva_relu_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  kva_kval x = kva_lower_broadcast(l, n, 0, idx);
  kva_kval zero = kva_k_const(l->kb, x->dtype, 0);
  return kva_k_select(l->kb, kva_k2(l->kb, KVA_K_lt, x, zero), zero, x);
}
