/* bit_not: y = x with every bit flipped. Exact. */
#include "ops/elementwise.h"

static int64_t not_i(int64_t x) {
  return ~x;
}
KVA_UNARY_OP(bit_not, not, NULL, not_i)
