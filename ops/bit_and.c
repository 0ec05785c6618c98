/* bit_and: z = x and y, bit by bit. Exact. */
#include "ops/elementwise.h"

static int64_t and_i(int64_t x, int64_t y) {
  return x & y;
}
KVA_BINARY_OP(bit_and, and, NULL, and_i)
