/* mul: z = x y with NumPy broadcasting; integers wrap. Gradients: g y and g x, summed over what was broadcast.
 * Tolerance 1: one rounding. */
#include "ops/elementwise.h"
#include "ops/facts.h"
#include "ops/shape_values.h"

static double mul_f(double x, double y) {
  return x * y;
}
static int64_t mul_i(int64_t x, int64_t y) {
  return (int64_t)((uint64_t)x * (uint64_t)y);
}
KVA_BINARY_OP(mul, mul, mul_f, mul_i)
KVA_BINARY_VJP(mul, kva_mul(b, g, y), kva_mul(b, g, x))

bool kva_mul_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_map2(v, n, kva_expr_mul);
}
