/* reciprocal: y = 1 / x. Gradient: -g y^2.
 * Tolerance 1: one division. */
#include "ops/elementwise.h"

KVA_ELEMENTWISE_INFER(reciprocal)

static double reciprocal_f(double x) {
  return 1 / x;
}
KVA_UNARY_REF(reciprocal, reciprocal_f, NULL)
KVA_UNARY_VJP(reciprocal, kva_neg(b, kva_mul(b, g, kva_mul(b, r, r))))
KVA_UNARY_LOWER(reciprocal, kva_k2(b, KVA_K_div, KVA_KNUM(1), x))
