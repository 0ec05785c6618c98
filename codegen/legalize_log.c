/* log on f32, and functions made of a logarithm or of its exponential (pow) through f64, in which 1 + x, x^2 - 1 and y
 * log x lose nothing that is visible in f32. */
#include "codegen/legalize.h"

#include <math.h>

static const double LN2 = 0.69314718055994531;
static const double INF = (double)INFINITY;

/* (log(1+f) - f + f^2/2) / f^3 on 1+f in [sqrt(1/2), sqrt(2)]; error of log(1+f)/f 7e-10. */
static const double LOG_TAIL[] = {0.333333105,  -0.249999866, 0.200022265,  -0.166692525, 0.142186642,
                                  -0.123843357, 0.118729271,  -0.117898636, 0.0691553578};

/* r for 0 < x < inf; x itself for inf and NaN; -inf at `zero`, NaN below it. */
static kva_kval log_ends(kva_mb *b, kva_kval x, kva_kval r, double zero) {
  kva_kval z = kva_mb_f32(b, zero);
  r = mb_select(b, mb_lt(b, x, kva_mb_f32(b, INF)), r, x);
  r = mb_select(b, mb_eq(b, x, z), kva_mb_f32(b, -INF), r);
  return mb_select(b, mb_lt(b, x, z), kva_mb_f32(b, (double)NAN), r);
}

kva_kval kva_math_log(kva_mb *b, kva_kval x) {
  kva_kval subnormal = mb_lt(b, x, kva_mb_f32(b, 0x1p-126));
  kva_kval scaled = mb_select(b, subnormal, mb_mul(b, x, kva_mb_f32(b, 0x1p23)), x);
  kva_kval root_half = kva_mb_i32(b, 0x3F3504F3); /* bits of sqrt(1/2) */
  kva_kval above = mb_sub(b, mb_bits(b, scaled), root_half), exponent = mb_shr(b, above, kva_mb_i32(b, 23));
  kva_kval mantissa = mb_add(b, mb_and(b, above, kva_mb_i32(b, 0x7FFFFF)), root_half);
  kva_kval f = mb_sub(b, mb_float(b, mantissa), kva_mb_f32(b, 1)), z = mb_mul(b, f, f);
  kva_kval n = kva_mb_cast(b, KVA_K_CONVERT, exponent, KVA_F32);
  n = mb_select(b, subnormal, mb_sub(b, n, kva_mb_f32(b, 23)), n);
  kva_kval r = mb_mul(b, mb_mul(b, f, z), kva_mb_poly(b, f, 9, LOG_TAIL));
  r = mb_fma(b, n, kva_mb_f32(b, LN2 - 0.693359375), r);
  r = mb_add(b, f, mb_fma(b, z, kva_mb_f32(b, -0.5), r));
  return log_ends(b, x, mb_fma(b, n, kva_mb_f32(b, 0.693359375), r), 0);
}

/* ---- through f64 ------------------------------------------------------------------------------------------------- */

const double kva_log_tail_f64[KVA_LOG_TAIL_F64] = {0.6666666666666734,  0.39999999999413544, 0.28571428742664179,
                                                   0.22222198542467311, 0.18183566037022464, 0.15314003994448333,
                                                   0.14796442202693241};

static kva_kval wide(kva_mb *b, kva_kval x) {
  return kva_mb_cast(b, KVA_K_CONVERT, x, KVA_F64);
}

static kva_kval narrow(kva_mb *b, kva_kval x) {
  return kva_mb_cast(b, KVA_K_CONVERT, x, KVA_F32);
}

/* log x for normal x > 0, in f64. */
static kva_kval log64(kva_mb *b, kva_kval x) {
  kva_kval root_half = kva_mb_i64(b, 0x3FE6A09E667F3BCD), one = kva_mb_f64(b, 1);
  kva_kval above = mb_sub(b, mb_bits(b, x), root_half), exponent = mb_shr(b, above, kva_mb_i64(b, 52));
  kva_kval m = mb_float(b, mb_add(b, mb_and(b, above, kva_mb_i64(b, 0xFFFFFFFFFFFFF)), root_half));
  kva_kval s = mb_div(b, mb_sub(b, m, one), mb_add(b, m, one)), z = mb_mul(b, s, s);
  kva_kval r = mb_fma(b, mb_mul(b, s, z), kva_mb_poly(b, z, KVA_LOG_TAIL_F64, kva_log_tail_f64), mb_add(b, s, s));
  return mb_fma(b, kva_mb_cast(b, KVA_K_CONVERT, exponent, KVA_F64), kva_mb_f64(b, LN2), r);
}

/* x + c x^3, accurate below 2^-10. */
static kva_kval cubic(kva_mb *b, kva_kval x, double c) {
  return mb_fma(b, mb_mul(b, x, mb_mul(b, x, x)), kva_mb_f32(b, c), x);
}

static kva_kval pick_small(kva_mb *b, kva_kval a, double limit, kva_kval small, kva_kval large) {
  return mb_select(b, mb_lt(b, a, kva_mb_f32(b, limit)), small, large);
}

kva_kval kva_math_log1p(kva_mb *b, kva_kval x) {
  kva_kval large = narrow(b, log64(b, mb_add(b, wide(b, x), kva_mb_f64(b, 1))));
  static const double tail[] = {-0.5, 1.0 / 3};
  kva_kval small = mb_fma(b, mb_mul(b, x, x), kva_mb_poly(b, x, 2, tail), x);
  return log_ends(b, x, pick_small(b, mb_abs(b, x), 0x1p-12, small, large), -1);
}

kva_kval kva_math_asinh(kva_mb *b, kva_kval x) {
  kva_kval a = mb_abs(b, x), d = wide(b, a);
  kva_kval root = mb_sqrt(b, mb_fma(b, d, d, kva_mb_f64(b, 1)));
  kva_kval r = pick_small(b, a, 0x1p-10, cubic(b, a, -1.0 / 6), narrow(b, log64(b, mb_add(b, d, root))));
  return kva_mb_copy_sign(b, mb_select(b, mb_lt(b, a, kva_mb_f32(b, INF)), r, a), x);
}

kva_kval kva_math_acosh(kva_mb *b, kva_kval x) {
  kva_kval d = wide(b, x), root = mb_sqrt(b, mb_fma(b, d, d, kva_mb_f64(b, -1)));
  kva_kval r = narrow(b, log64(b, mb_add(b, d, root)));
  r = mb_select(b, mb_lt(b, x, kva_mb_f32(b, INF)), r, x);
  return mb_select(b, mb_lt(b, x, kva_mb_f32(b, 1)), kva_mb_f32(b, (double)NAN), r);
}

kva_kval kva_math_atanh(kva_mb *b, kva_kval x) {
  kva_kval a = mb_abs(b, x), d = wide(b, a), one = kva_mb_f64(b, 1), limit = kva_mb_f32(b, 1);
  kva_kval ratio = mb_div(b, mb_add(b, one, d), mb_sub(b, one, d));
  kva_kval large = narrow(b, mb_mul(b, log64(b, ratio), kva_mb_f64(b, 0.5)));
  kva_kval r = pick_small(b, a, 0x1p-10, cubic(b, a, 1.0 / 3), large);
  r = mb_select(b, mb_eq(b, a, limit), kva_mb_f32(b, INF), r);
  kva_kval inside = mb_or(b, mb_lt(b, a, limit), mb_eq(b, a, limit));
  return kva_mb_copy_sign(b, mb_select(b, inside, r, kva_mb_f32(b, (double)NAN)), x);
}

/* ---- pow --------------------------------------------------------------------------------------------------------- */

/* 2^g on |g| <= 1/2; error 1.4e-14. */
static const double EXP2_64[] = {1.0000000000000138,     0.69314718055995395,    0.24022650695635955,
                                 0.05550410866423431,    0.0096181291949827396,  0.0013333558260918976,
                                 0.00015403432970710333, 1.5252640845586223e-05, 1.3259823178477398e-06,
                                 1.0211610662920597e-07};

/* 2^t in f64, for results within f32's range; the clamps are far outside. */
static kva_kval exp2_64(kva_mb *b, kva_kval t) {
  kva_kval magic = kva_mb_f64(b, 0x1.8p52);
  t = mb_at_least(b, mb_at_most(b, t, kva_mb_f64(b, 200)), kva_mb_f64(b, -200));
  kva_kval shifted = mb_add(b, t, magic), g = mb_sub(b, t, mb_sub(b, shifted, magic));
  kva_kval n = mb_sub(b, mb_bits(b, shifted), mb_bits(b, magic));
  kva_kval scale = mb_float(b, mb_shl(b, mb_add(b, n, kva_mb_i64(b, 1023)), kva_mb_i64(b, 52)));
  return mb_mul(b, kva_mb_poly(b, g, 10, EXP2_64), scale);
}

/* |x|^y. Sets log 0 = -inf and log inf = inf, and makes log 1 immune to infinite exponents. */
static kva_kval pow_magnitude(kva_mb *b, kva_kval a, kva_kval y) {
  kva_kval l = log64(b, wide(b, a)), inf = kva_mb_f64(b, INF);
  l = mb_select(b, mb_eq(b, a, kva_mb_f32(b, 0)), kva_mb_f64(b, -INF), l);
  l = mb_select(b, mb_eq(b, a, kva_mb_f32(b, INF)), inf, l);
  kva_kval t = mb_mul(b, mb_mul(b, l, wide(b, y)), kva_mb_f64(b, 1.4426950408889634));
  t = mb_select(b, mb_eq(b, a, kva_mb_f32(b, 1)), kva_mb_f64(b, 0), t);
  kva_kval r = narrow(b, exp2_64(b, t));
  return mb_select(b, mb_eq(b, a, a), r, a);
}

kva_kval kva_math_pow(kva_mb *b, kva_kval x, kva_kval y) {
  kva_kval a = mb_abs(b, x), one = kva_mb_f32(b, 1), zero = kva_mb_f32(b, 0), nan = kva_mb_f32(b, (double)NAN);
  kva_kval half = mb_mul(b, y, kva_mb_f32(b, 0.5));
  kva_kval whole = mb_eq(b, mb_trunc(b, y), y), even = mb_eq(b, mb_trunc(b, half), half);
  kva_kval odd = mb_and(b, whole, mb_not(b, even));
  kva_kval r = pow_magnitude(b, a, y);
  kva_kval negative = mb_and(b, odd, mb_lt(b, mb_bits(b, x), kva_mb_i32(b, 0)));
  r = mb_select(b, negative, mb_neg(b, r), r);
  kva_kval finite_below_zero = mb_and(b, mb_lt(b, x, zero), mb_lt(b, a, kva_mb_f32(b, INF)));
  r = mb_select(b, mb_and(b, finite_below_zero, mb_not(b, whole)), nan, r);
  r = mb_select(b, mb_eq(b, y, y), r, y);
  return mb_select(b, mb_or(b, mb_eq(b, y, zero), mb_eq(b, x, one)), one, r);
}
