/* mul: z = x y with NumPy broadcasting; integers wrap. Gradients: g y and g x, summed over what was broadcast.
 * Tolerance 1: one rounding. */
#include "ops/elementwise.h"

static double mul_f(double x, double y) {
  return x * y;
}
static int64_t mul_i(int64_t x, int64_t y) {
  return (int64_t)((uint64_t)x * (uint64_t)y);
}
KVA_BINARY_OP(mul, mul, mul_f, mul_i)
KVA_BINARY_VJP(mul, kva_mul(b, g, y), kva_mul(b, g, x))
