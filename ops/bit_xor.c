/* bit_xor: z = x exclusive or y, bit by bit. Exact. */
#include "ops/elementwise.h"

static int64_t xor_i(int64_t x, int64_t y) {
  return x ^ y;
}
KVA_BINARY_OP(bit_xor, xor, NULL, xor_i)
