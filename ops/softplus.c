/* softplus: y = ln(1 + e^x), computed as max(x, 0) + log1p(e^-|x|), which neither overflows nor cancels.
 * Gradient: g sigmoid(x).
 * Tolerance 8: an exponential, a logarithm and a sum. */
#include "ops/elementwise.h"
#include "ops/ids.h"

#include <math.h>

KVA_ELEMENTWISE_INFER(softplus)

static double softplus_f(double x) {
  return (x < 0 ? 0 : x) + log1p(exp(-fabs(x)));
}
KVA_UNARY_REF(softplus, softplus_f, NULL)
KVA_UNARY_VJP(softplus, kva_mul(b, g, kva_build1(b, KVA_OP_sigmoid, x)))

static kva_kval lower_softplus(kva_kb *b, kva_kval x) {
  kva_kval decay = kva_k1(b, KVA_K_exp, kva_k1(b, KVA_K_neg, kva_k1(b, KVA_K_abs, x)));
  return kva_k2(b, KVA_K_add, kva_k2(b, KVA_K_max, x, KVA_KNUM(0)), kva_k1(b, KVA_K_log1p, decay));
}
KVA_UNARY_LOWER(softplus, lower_softplus(b, x))
