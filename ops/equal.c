/* equal: z = whether x = y; NaN equals nothing. Exact. */
#include "ops/elementwise.h"
#include "ops/facts.h"
#include "ops/shape_values.h"

static double equal_f(double x, double y) {
  return x == y;
}
static int64_t equal_i(int64_t x, int64_t y) {
  return x == y;
}
KVA_BINARY_OP(equal, eq, equal_f, equal_i)

static kva_dim is_equal(kva_expr_ctx *c, kva_dim a, kva_dim b) {
  return kva_shape_value_bool(c, a == b,
                              a != b && (kva_expr_provably_less(c, a, b) || kva_expr_provably_less(c, b, a)));
}

bool kva_equal_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_map2(v, n, is_equal);
}
