/* less: z = whether x is less than y; false where either is NaN. Exact. */
#include "ops/elementwise.h"
#include "ops/facts.h"
#include "ops/shape_values.h"

KVA_ELEMENTWISE_INFER(less)

static double less_f(double x, double y) {
  return x < y;
}
static int64_t less_i(int64_t x, int64_t y) {
  return x < y;
}
static int64_t less_u(int64_t x, int64_t y) {
  return (uint64_t)x < (uint64_t)y;
}
KVA_BINARY_REF_U64(less, less_f, less_i, less_u)
KVA_BINARY_LOWER(less, kva_k2(b, KVA_K_lt, x, y))

static kva_dim is_less(kva_expr_ctx *c, kva_dim a, kva_dim b) {
  return kva_shape_value_bool(c, kva_expr_provably_less(c, a, b), kva_expr_provably_le(c, b, a));
}

bool kva_less_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_map2(v, n, is_less);
}
