/* logical_not: y = not x. Exact. */
#include "ops/elementwise.h"

static int64_t not_i(int64_t x) {
  return !x;
}
KVA_UNARY_OP(logical_not, not, NULL, not_i)
