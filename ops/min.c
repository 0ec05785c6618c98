/* min: z = the smaller of x and y; NaN if either is NaN. Gradient: g to the smaller, half to each where they are equal.
 * Exact. */
#include "ops/elementwise.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/shape_values.h"

#include <math.h>

KVA_ELEMENTWISE_INFER(min)

static double min_f(double x, double y) {
  return isnan(x) || x < y ? x : y;
}
static int64_t min_i(int64_t x, int64_t y) {
  return x < y ? x : y;
}
static int64_t min_u(int64_t x, int64_t y) {
  return (uint64_t)x < (uint64_t)y ? x : y;
}
KVA_BINARY_REF_U64(min, min_f, min_i, min_u)

/* The share of g that x receives: 1, 1/2 or 0. */
static kva_value *share(kva_builder *b, kva_value *x, kva_value *y) {
  kva_value *wins = kva_build2(b, KVA_OP_less, x, y);
  kva_value *tie = kva_build3(b, KVA_OP_where, kva_build2(b, KVA_OP_equal, x, y), KVA_NUM(0.5), KVA_NUM(0));
  return kva_build3(b, KVA_OP_where, wins, KVA_NUM(1), tie);
}
KVA_BINARY_VJP(min, kva_mul(b, g, share(b, x, y)), kva_mul(b, g, share(b, y, x)))
KVA_BINARY_LOWER(min, kva_k2(b, KVA_K_min, x, y))

bool kva_min_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_map2(v, n, kva_expr_min);
}
