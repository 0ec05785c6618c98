/* stop_gradient: y = x, through which no gradient flows. Exact. */
#include "ops/elementwise.h"

KVA_ELEMENTWISE_INFER(stop_gradient)

static double same_f(double x) {
  return x;
}
static int64_t same_i(int64_t x) {
  return x;
}
KVA_UNARY_REF(stop_gradient, same_f, same_i)
KVA_UNARY_LOWER(stop_gradient, x)
