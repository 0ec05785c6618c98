/* less_equal: z = whether x is at most y; false where either is NaN. Exact. */
#include "ops/elementwise.h"
#include "ops/facts.h"
#include "ops/shape_values.h"

KVA_ELEMENTWISE_INFER(less_equal)

static double less_equal_f(double x, double y) {
  return x <= y;
}
static int64_t less_equal_i(int64_t x, int64_t y) {
  return x <= y;
}
static int64_t less_equal_u(int64_t x, int64_t y) {
  return (uint64_t)x <= (uint64_t)y;
}
KVA_BINARY_REF_U64(less_equal, less_equal_f, less_equal_i, less_equal_u)
KVA_BINARY_LOWER(less_equal, kva_k2(b, KVA_K_le, x, y))

static kva_dim is_less_equal(kva_expr_ctx *c, kva_dim a, kva_dim b) {
  return kva_shape_value_bool(c, kva_expr_provably_le(c, a, b), kva_expr_provably_less(c, b, a));
}

bool kva_less_equal_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_map2(v, n, is_less_equal);
}
