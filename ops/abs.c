/* abs: y = |x|; the least signed integer is unchanged. Gradient: g sign(x), 0 at 0. Exact. */
#include "ops/elementwise.h"
#include "ops/ids.h"

#include <math.h>

KVA_ELEMENTWISE_INFER(abs)

static int64_t abs_i(int64_t x) {
  return x < 0 ? (int64_t)(0 - (uint64_t)x) : x;
}
static int64_t abs_u(int64_t x) {
  return x;
}
KVA_UNARY_REF_U64(abs, fabs, abs_i, abs_u)
KVA_UNARY_VJP(abs, kva_mul(b, g, kva_build1(b, KVA_OP_sign, x)))
KVA_UNARY_LOWER(abs, kva_dtype_is_unsigned(x->dtype) ? x : kva_k1(b, KVA_K_abs, x))
