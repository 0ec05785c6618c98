/* pow: z = x^y. Integers: exact modulo 2^bits by repeated squaring; a negative exponent truncates the true value (1, -1
 * or 0). Gradients: g y x^(y-1), zero where y = 0; and g z ln x, zero where x <= 0 (for x < 0 no derivative exists).
 * Tolerance 16: e^(y ln x) multiplies the logarithm's error by the exponent's size. */
#include "ops/elementwise.h"
#include "ops/ids.h"

#include <math.h>

KVA_ELEMENTWISE_INFER(pow)

static int64_t power(uint64_t x, uint64_t y) {
  uint64_t z = 1;
  for (; y; y >>= 1, x *= x)
    if (y & 1) z *= x;
  return (int64_t)z;
}
static int64_t pow_i(int64_t x, int64_t y) {
  if (y >= 0) return power((uint64_t)x, (uint64_t)y);
  if (x == 1) return 1;
  return x == -1 ? (y & 1 ? -1 : 1) : 0;
}
static int64_t pow_u(int64_t x, int64_t y) {
  return power((uint64_t)x, (uint64_t)y);
}
KVA_BINARY_REF_U64(pow, pow, pow_i, pow_u)

static kva_value *slope_base(kva_builder *b, kva_value *x, kva_value *y) {
  kva_value *zero = KVA_NUM(0), *one = KVA_NUM(1);
  kva_value *slope = kva_mul(b, y, kva_build2(b, KVA_OP_pow, x, kva_sub(b, y, one)));
  return kva_build3(b, KVA_OP_where, kva_build2(b, KVA_OP_equal, y, zero), zero, slope);
}

static kva_value *slope_exponent(kva_builder *b, kva_value *x, kva_value *z) {
  kva_value *zero = KVA_NUM(0);
  kva_value *positive = kva_build2(b, KVA_OP_less, zero, x);
  kva_value *safe = kva_build3(b, KVA_OP_where, positive, x, KVA_NUM(1));
  return kva_mul(b, z, kva_build1(b, KVA_OP_log, safe));
}
KVA_BINARY_VJP(pow, kva_mul(b, g, slope_base(b, x, y)), kva_mul(b, g, slope_exponent(b, x, r)))

/* Repeated squaring over the exponent's bits, lowest first. */
static kva_kval lower_integer(kva_kb *b, kva_kval x, kva_kval y) {
  kva_kval one = KVA_KNUM(1), zero = KVA_KNUM(0);
  kva_kloop *bits = kva_k_loop_begin(b, KVA_K_SERIAL, kva_expr_const(b->exprs, kva_dtype_bits(x->dtype)), "bit");
  kva_kval z = kva_k_carry(b, bits, one), square = kva_k_carry(b, bits, x);
  kva_kval shift = kva_k_convert(b, kva_k_index(b, bits->var), x->dtype);
  kva_kval set = kva_k2(b, KVA_K_ne, kva_k2(b, KVA_K_and, kva_k2(b, KVA_K_shr, y, shift), one), zero);
  kva_k_carry_next(b, bits, z, kva_k_select(b, set, kva_k2(b, KVA_K_mul, z, square), z));
  kva_k_carry_next(b, bits, square, kva_k2(b, KVA_K_mul, square, square));
  kva_k_loop_end(b, bits);
  z = kva_k_carry_result(b, bits, z);
  if (kva_dtype_is_unsigned(x->dtype)) return z;
  kva_kval odd = kva_k2(b, KVA_K_ne, kva_k2(b, KVA_K_and, y, one), zero);
  kva_kval unit = kva_k_select(b, kva_k2(b, KVA_K_eq, x, KVA_KNUM(-1)), kva_k_select(b, odd, KVA_KNUM(-1), one), zero);
  unit = kva_k_select(b, kva_k2(b, KVA_K_eq, x, one), one, unit);
  return kva_k_select(b, kva_k2(b, KVA_K_lt, y, zero), unit, z);
}
KVA_BINARY_LOWER(pow, kva_dtype_is_float(x->dtype) ? kva_k2(b, KVA_K_pow, x, y) : lower_integer(b, x, y))
