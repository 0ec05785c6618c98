/* logical_xor: z = whether exactly one of x and y is true. Exact. */
#include "ops/elementwise.h"

static int64_t xor_i(int64_t x, int64_t y) {
  return !x != !y;
}
KVA_BINARY_OP(logical_xor, xor, NULL, xor_i)
