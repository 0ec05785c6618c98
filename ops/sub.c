/* sub: z = x - y with NumPy broadcasting; integers wrap. Gradients: g and -g, summed over what was broadcast.
 * Tolerance 1: one rounding. */
#include "ops/elementwise.h"
#include "ops/facts.h"
#include "ops/shape_values.h"

static double sub_f(double x, double y) {
  return x - y;
}
static int64_t sub_i(int64_t x, int64_t y) {
  return (int64_t)((uint64_t)x - (uint64_t)y);
}
KVA_BINARY_OP(sub, sub, sub_f, sub_i)
KVA_BINARY_VJP(sub, g, kva_neg(b, g))

bool kva_sub_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_map2(v, n, kva_expr_sub);
}
