/* logical_and: z = x and y. Exact. */
#include "ops/elementwise.h"

static int64_t and_i(int64_t x, int64_t y) {
  return x && y;
}
KVA_BINARY_OP(logical_and, and, NULL, and_i)
