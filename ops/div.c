/* div: z = x / y with NumPy broadcasting. Integers truncate toward zero; x / 0 is 0 and the least integer / -1 wraps,
 * so that no input can trap. Gradients: g / y and -g z / y.
 * Tolerance 1: one rounding. */
#include "ops/elementwise.h"
#include "ops/facts.h"
#include "ops/shape_values.h"

KVA_ELEMENTWISE_INFER(div)

static double div_f(double x, double y) {
  return x / y;
}
static int64_t div_i(int64_t x, int64_t y) {
  if (!y) return 0;
  return y == -1 ? (int64_t)(0 - (uint64_t)x) : x / y;
}
static int64_t div_u(int64_t x, int64_t y) {
  return y ? (int64_t)((uint64_t)x / (uint64_t)y) : 0;
}
KVA_BINARY_REF_U64(div, div_f, div_i, div_u)
KVA_BINARY_VJP(div, kva_div(b, g, y), kva_neg(b, kva_div(b, kva_mul(b, g, r), y)))
KVA_BINARY_LOWER(div, kva_k2(b, KVA_K_div, x, y))

/* The operator truncates toward zero, the algebra's division rounds toward minus infinity: equal for non-negative
 * values. */
static kva_dim quotient(kva_expr_ctx *c, kva_dim a, kva_dim b) {
  int64_t lo, va, vb;
  if (kva_expr_is_const(a, &va) && kva_expr_is_const(b, &vb)) {
    if (!vb || (va == INT64_MIN && vb == -1)) return NULL;
    return kva_expr_const(c, va / vb);
  }
  if (!kva_shape_value_divides(b) || !kva_expr_lower_bound(a, &lo) || lo < 0) return NULL;
  return kva_expr_div(c, a, b);
}

bool kva_div_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_map2(v, n, quotient);
}
