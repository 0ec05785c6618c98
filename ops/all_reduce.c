/* all_reduce: y = the sum of x over all processes. A run is one process so far, so y = x. A call of the runtime
 * (runtime/call_all_reduce.c), since no kernel sees other processes. */
#include "ops/elementwise.h"

KVA_ELEMENTWISE_INFER(all_reduce)

static double same_f(double x) {
  return x;
}
static int64_t same_i(int64_t x) {
  return x;
}
KVA_UNARY_REF(all_reduce, same_f, same_i)
