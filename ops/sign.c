/* sign: y = -1, 0 or 1 as x < 0, x = 0 or x > 0; NaN stays NaN. Gradient: zero.
 * Exact: comparisons and selections. */
#include "ops/elementwise.h"

KVA_ELEMENTWISE_INFER(sign)

static double sign_f(double x) {
  return x > 0 ? 1 : x < 0 ? -1 : x;
}
static int64_t sign_i(int64_t x) {
  return (x > 0) - (x < 0);
}
static int64_t sign_u(int64_t x) {
  return x != 0;
}
KVA_UNARY_REF_U64(sign, sign_f, sign_i, sign_u)

static kva_kval lower_sign(kva_kb *b, kva_kval x) {
  kva_kval zero = KVA_KNUM(0);
  kva_kval not_positive = x;
  if (!kva_dtype_is_unsigned(x->dtype)) not_positive = kva_k_select(b, kva_k2(b, KVA_K_lt, x, zero), KVA_KNUM(-1), x);
  return kva_k_select(b, kva_k2(b, KVA_K_lt, zero, x), KVA_KNUM(1), not_positive);
}
KVA_UNARY_LOWER(sign, lower_sign(b, x))
