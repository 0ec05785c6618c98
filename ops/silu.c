/* silu (Swish): y = x sigmoid(x) = x / (1 + e^-x). Gradient: g s (1 + x (1 - s)) with s = sigmoid(x).
 * Tolerance 8: an exponential, a sum, a quotient. */
#include "ops/elementwise.h"
#include "ops/ids.h"

#include <math.h>

KVA_ELEMENTWISE_INFER(silu)

static double silu_f(double x) {
  return x / (1 + exp(-x));
}
KVA_UNARY_REF(silu, silu_f, NULL)

static kva_value *silu_slope(kva_builder *b, kva_value *x) {
  kva_value *s = kva_build1(b, KVA_OP_sigmoid, x);
  kva_value *rest = kva_mul(b, x, kva_sub(b, KVA_NUM(1), s));
  return kva_mul(b, s, kva_add(b, KVA_NUM(1), rest));
}
KVA_UNARY_VJP(silu, kva_mul(b, g, silu_slope(b, x)))
KVA_UNARY_LOWER(silu, kva_k2(b, KVA_K_div, x,
                             kva_k2(b, KVA_K_add, KVA_KNUM(1), kva_k1(b, KVA_K_exp, kva_k1(b, KVA_K_neg, x)))))
