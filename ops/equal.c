/* equal: z = whether x = y; NaN equals nothing. Exact. */
#include "ops/elementwise.h"

static double equal_f(double x, double y) {
  return x == y;
}
static int64_t equal_i(int64_t x, int64_t y) {
  return x == y;
}
KVA_BINARY_OP(equal, eq, equal_f, equal_i)
