/* exp and functions derived from it, on f32. */
#include "codegen/legalize.h"

#include <math.h>

static const double LOG2E = 1.4426950408889634;
static const double LN2_HI = 0.693147182464599609375; /* ln 2 rounded to f32, and the remainder */
static const double LN2_LO = -1.904654290582768e-9;
/* (e^r - 1 - r) / r^2 on |r| <= ln(2)/2; error of e^r 3.3e-9. */
static const double EXP_TAIL[] = {0.5, 0.166665167, 0.0416661985, 0.00836923905, 0.00139510981};

/* x = n ln 2 + r, |r| <= ln(2)/2. Returns e^r - 1; *out_n is KVA_K_ROUNDER + n. */
static kva_kval reduce(kva_mb *b, kva_kval x, kva_kval *out_n) {
  kva_kval rounder = kva_mb_f32(b, KVA_K_ROUNDER);
  kva_kval shifted = mb_fma(b, x, kva_mb_f32(b, LOG2E), rounder), n = mb_sub(b, shifted, rounder);
  kva_kval r = mb_fma(b, n, kva_mb_f32(b, -LN2_HI), x);
  r = mb_fma(b, n, kva_mb_f32(b, -LN2_LO), r);
  *out_n = shifted;
  return mb_fma(b, mb_mul(b, r, r), kva_mb_poly(b, r, 5, EXP_TAIL), r);
}

/* e^x * 2^extra. */
static kva_kval exp_scaled(kva_mb *b, kva_kval x, int extra) {
  kva_kval n, inside = mb_at_least(b, mb_at_most(b, x, kva_mb_f32(b, 90)), kva_mb_f32(b, -105));
  kva_kval e = mb_add(b, reduce(b, inside, &n), kva_mb_f32(b, 1));
  return mb_scalef(b, e, extra ? mb_add(b, n, kva_mb_f32(b, extra)) : n);
}

kva_kval kva_math_exp(kva_mb *b, kva_kval x) {
  return exp_scaled(b, x, 0);
}

/* 2^(n - 1): its exponent is shifted into place, which drops the bits of KVA_K_ROUNDER. */
static kva_kval half_power(kva_mb *b, kva_kval n) {
  kva_kval exponent = mb_add(b, mb_bits(b, n), kva_mb_i32(b, 127 - 1));
  return mb_float(b, mb_shl(b, exponent, kva_mb_i32(b, 23)));
}

/* 2^n (e^r - 1) + (2^n - 1), with half the scale so that n = 128 is in range. */
kva_kval kva_math_expm1(kva_mb *b, kva_kval x) {
  kva_kval n, inside = mb_at_least(b, mb_at_most(b, x, kva_mb_f32(b, 88.8)), kva_mb_f32(b, -30));
  kva_kval e = reduce(b, inside, &n), half = half_power(b, n);
  kva_kval sum = mb_fma(b, half, e, mb_sub(b, half, kva_mb_f32(b, 0.5)));
  return kva_mb_copy_sign(b, mb_add(b, sum, sum), x);
}

/* (e^2a - 1) / (e^2a + 1); 1 from 10 on. */
kva_kval kva_math_tanh(kva_mb *b, kva_kval x) {
  kva_kval a = mb_at_most(b, mb_abs(b, x), kva_mb_f32(b, 10));
  kva_kval e = kva_math_expm1(b, mb_add(b, a, a));
  return kva_mb_copy_sign(b, mb_div(b, e, mb_add(b, e, kva_mb_f32(b, 2))), x);
}

/* (sinh(a) - a) / a^3 over a^2, a <= 1; error of sinh(a)/a 6e-11. */
static const double SINH_TAIL[] = {0.166666672, 0.00833335053, 0.000198360663, 2.81743951e-06};

/* h - 1/(4h) with h = e^a / 2, which is finite wherever the result is. */
kva_kval kva_math_sinh(kva_mb *b, kva_kval x) {
  kva_kval a = mb_abs(b, x), z = mb_mul(b, a, a), h = exp_scaled(b, a, -1);
  kva_kval large = mb_sub(b, h, mb_div(b, kva_mb_f32(b, 0.25), h));
  kva_kval small = mb_fma(b, mb_mul(b, a, z), kva_mb_poly(b, z, 4, SINH_TAIL), a);
  return kva_mb_copy_sign(b, mb_select(b, mb_lt(b, a, kva_mb_f32(b, 1)), small, large), x);
}

kva_kval kva_math_cosh(kva_mb *b, kva_kval x) {
  kva_kval h = exp_scaled(b, mb_abs(b, x), -1);
  return mb_add(b, h, mb_div(b, kva_mb_f32(b, 0.25), h));
}

/* erf(a)/a - 1 over a^2, a <= 1, error 1.2e-9; and -log(erfc(a)) on [1, 4], error of erf(a) 2e-11. */
static const double ERF_SMALL[] = {0.128379166,   -0.37612626,     0.112836003,   -0.0268544443,
                                   0.00518953521, -0.000802084222, 7.88912221e-05};
static const double ERFC_LOG[] = {-0.000188034959, 1.12957835,    0.633219957,    0.108418532,
                                  -0.0252082292,   0.00420455215, -0.00044133453, 2.16867011e-05};

kva_kval kva_math_erf(kva_mb *b, kva_kval x) {
  kva_kval one = kva_mb_f32(b, 1), a = mb_at_most(b, mb_abs(b, x), kva_mb_f32(b, 4));
  kva_kval small = mb_fma(b, a, kva_mb_poly(b, mb_mul(b, a, a), 7, ERF_SMALL), a);
  kva_kval erfc = kva_math_exp(b, mb_neg(b, kva_mb_poly(b, a, 8, ERFC_LOG)));
  return kva_mb_copy_sign(b, mb_select(b, mb_lt(b, a, one), small, mb_sub(b, one, erfc)), x);
}
