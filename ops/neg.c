/* neg: y = -x; integers wrap. Gradient: -g.
 * Exact. */
#include "ops/elementwise.h"

static double neg_f(double x) {
  return -x;
}
static int64_t neg_i(int64_t x) {
  return (int64_t)(0 - (uint64_t)x);
}
KVA_UNARY_OP(neg, neg, neg_f, neg_i)
KVA_UNARY_VJP(neg, kva_neg(b, g))
