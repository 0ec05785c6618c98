/* div: z = x / y with NumPy broadcasting. Integers truncate toward zero; x / 0 is 0 and the least integer / -1 wraps,
 * so that no input can trap. Gradients: g / y and -g z / y.
 * Tolerance 1: one rounding. */
#include "ops/elementwise.h"

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
