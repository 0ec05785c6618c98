/* logical_or: z = x or y. Exact. */
#include "ops/elementwise.h"

static int64_t or_i(int64_t x, int64_t y) {
  return x || y;
}
KVA_BINARY_OP(logical_or, or, NULL, or_i)
