/* sigmoid: y = 1 / (1 + e^-x). Gradient: g y (1 - y).
 * Tolerance 6: an exponential, a sum, a quotient. Overflow of e^-x to infinity gives the right 0. */
#include "ops/elementwise.h"

#include <math.h>

KVA_ELEMENTWISE_INFER(sigmoid)

static double sigmoid_f(double x) {
  return 1 / (1 + exp(-x));
}
KVA_UNARY_REF(sigmoid, sigmoid_f, NULL)
KVA_UNARY_VJP(sigmoid, kva_mul(b, g, kva_mul(b, r, kva_sub(b, KVA_NUM(1), r))))
KVA_UNARY_LOWER(sigmoid, kva_k2(b, KVA_K_div, KVA_KNUM(1),
                                kva_k2(b, KVA_K_add, KVA_KNUM(1), kva_k1(b, KVA_K_exp, kva_k1(b, KVA_K_neg, x)))))
