/* Mathematical functions on f64 as arithmetic, for targets without a C library: exp, log and functions derived from
 * them; legalize_f64_trig.c has the trigonometric ones. Integers go through f64.
 *
 * Largest errors found, in units in the last place (tests/codegen/test_math_f64.c): exp 0.9, log 0.8, sin 0.9, cos 0.7,
 * tan 1.9, asin 2.1, acos 1.1, atan 1.8, sinh 1.5, cosh 1.3, tanh 2.4, asinh 1.5, acosh 1.7, atanh 1.8, erf 1.1, log1p
 * 0.8, expm1 1.7, pow 2.9. Polynomials are Taylor sums if those are short enough, else Chebyshev fits made for this
 * file. */
#include "codegen/legalize.h"

#include <math.h>

static const double INF = (double)INFINITY, QUIET = (double)NAN;
static const double LOG2E = 1.4426950408889634;
static const double LN2 = 0.69314718055994531, LN2_REST = 2.3190468138462996e-17;
static const double LN2_TOP = 0x1.62e42feep-1, LN2_BELOW = 1.9082149292705877e-10; /* n * LN2_TOP is exact */
static const double MAGIC = 0x1.8p52; /* adding it rounds to an integer, whose value is in the low bits */

static kva_kval c64(kva_mb *b, double v) {
  return kva_mb_f64(b, v);
}

/* ---- exp --------------------------------------------------------------------------------------------------------- */

/* (e^r - 1 - r) / r^2: 1/2! ... 1/13!; for |r| <= ln(2)/2 the truncation error is below 5e-18 of e^r. */
static const double EXP_TAIL[] = {0.5,
                                  0.16666666666666666,
                                  0.041666666666666664,
                                  0.008333333333333333,
                                  0.001388888888888889,
                                  0.0001984126984126984,
                                  2.48015873015873e-05,
                                  2.7557319223985893e-06,
                                  2.755731922398589e-07,
                                  2.505210838544172e-08,
                                  2.08767569878681e-09,
                                  1.6059043836821613e-10};

/* x = n ln 2 + r, |r| <= ln(2)/2. Returns e^(r + low) - 1; *out_n is n as an i64. low: NULL, or tiny. */
static kva_kval reduce(kva_mb *b, kva_kval x, kva_kval low, kva_kval *out_n) {
  kva_kval magic = c64(b, MAGIC), shifted = mb_fma(b, x, c64(b, LOG2E), magic), n = mb_sub(b, shifted, magic);
  kva_kval r = mb_fma(b, n, c64(b, -LN2), x), rest = mb_mul(b, n, c64(b, -LN2_REST));
  r = mb_add(b, r, low ? mb_add(b, rest, low) : rest);
  *out_n = mb_sub(b, mb_bits(b, shifted), mb_bits(b, magic));
  return mb_fma(b, mb_mul(b, r, r), kva_mb_poly(b, r, 12, EXP_TAIL), r);
}

static kva_kval power_of_two(kva_mb *b, kva_kval n) {
  return mb_float(b, mb_shl(b, mb_add(b, n, kva_mb_i64(b, 1023)), kva_mb_i64(b, 52)));
}

/* e^(x + low) 2^extra. Applies the scale in two halves, so that neither factor over- or underflows unless the product
 * does. */
static kva_kval exp_scaled(kva_mb *b, kva_kval x, kva_kval low, int extra) {
  kva_kval n, inside = mb_at_least(b, mb_at_most(b, x, c64(b, 711)), c64(b, -747));
  kva_kval e = mb_add(b, reduce(b, inside, low, &n), c64(b, 1));
  if (extra) n = mb_add(b, n, kva_mb_i64(b, extra));
  kva_kval half = mb_shr(b, n, kva_mb_i64(b, 1));
  return mb_mul(b, mb_mul(b, e, power_of_two(b, half)), power_of_two(b, mb_sub(b, n, half)));
}

static kva_kval exp_f64(kva_mb *b, kva_kval x) {
  return exp_scaled(b, x, NULL, 0);
}

/* 2^n (e^r - 1) + (2^n - 1), with half the scale so that n = 1024 is in range. */
static kva_kval expm1_f64(kva_mb *b, kva_kval x) {
  kva_kval n, inside = mb_at_least(b, mb_at_most(b, x, c64(b, 709.8)), c64(b, -60));
  kva_kval e = reduce(b, inside, NULL, &n), half = power_of_two(b, mb_sub(b, n, kva_mb_i64(b, 1)));
  kva_kval sum = mb_fma(b, half, e, mb_sub(b, half, c64(b, 0.5)));
  return kva_mb_copy_sign(b, mb_add(b, sum, sum), x);
}

/* (e^2a - 1) / (e^2a + 1); 1 from 20 on. */
static kva_kval tanh_f64(kva_mb *b, kva_kval x) {
  kva_kval a = mb_at_most(b, mb_abs(b, x), c64(b, 20)), e = expm1_f64(b, mb_add(b, a, a));
  return kva_mb_copy_sign(b, mb_div(b, e, mb_add(b, e, c64(b, 2))), x);
}

/* (sinh(a) - a) / a^3 over a^2: 1/3! ... 1/19!; for a <= 1 the truncation error is below 2e-20. */
static const double SINH_TAIL[] = {0.16666666666666666,    0.008333333333333333,   0.0001984126984126984,
                                   2.7557319223985893e-06, 2.505210838544172e-08,  1.6059043836821613e-10,
                                   7.647163731819816e-13,  2.8114572543455206e-15, 8.22063524662433e-18};

/* h - 1/(4h) with h = e^a / 2, which is finite wherever the result is. */
static kva_kval sinh_f64(kva_mb *b, kva_kval x) {
  kva_kval a = mb_abs(b, x), z = mb_mul(b, a, a), h = exp_scaled(b, a, NULL, -1);
  kva_kval large = mb_sub(b, h, mb_div(b, c64(b, 0.25), h));
  kva_kval small = mb_fma(b, mb_mul(b, a, z), kva_mb_poly(b, z, 9, SINH_TAIL), a);
  return kva_mb_copy_sign(b, mb_select(b, mb_lt(b, a, c64(b, 1)), small, large), x);
}

static kva_kval cosh_f64(kva_mb *b, kva_kval x) {
  kva_kval h = exp_scaled(b, mb_abs(b, x), NULL, -1);
  return mb_add(b, h, mb_div(b, c64(b, 0.25), h));
}

/* erf(a)/a - 1 over a^2, a <= 1, error 2e-17; and -log(erfc(a)) on [1, 6], error 3e-16 plus rounding. */
static const double ERF_SMALL[] = {0.1283791670955126,      -0.3761263890318375,     0.11283791670954879,
                                   -0.026866170645076792,   0.0052239776248180145,   -0.000854832698083379,
                                   0.0001205533111164271,   -1.4925595266831182e-05, 1.6461000484121368e-06,
                                   -1.6350312701054695e-07, 1.4659775274047436e-08,  -1.1372848856791674e-09,
                                   5.957176147748911e-11};
static const double ERFC_LOG[] = {
    5.442051963983573e-08,   1.1283787825197156,      0.6366206965657829,      0.10277298786463396,
    -0.019136993126873038,   -0.00018134612945957767, 0.0016410725055028398,   -0.0005115746202377613,
    -5.9988163202506775e-05, 0.00013878978515156762,  -8.134663117117e-05,     3.223400632863468e-05,
    -9.88504231580783e-06,   2.452846118538208e-06,   -5.008717897920234e-07,  8.454071020048298e-08,
    -1.1757498115750717e-08, 1.3348440700984947e-09,  -1.2176913893331286e-10, 8.710329646313464e-12,
    -4.704754571528763e-13,  1.803681420277295e-14,   -4.372730657464627e-16,  5.038175090820216e-18};

static kva_kval erf_f64(kva_mb *b, kva_kval x) {
  kva_kval one = c64(b, 1), a = mb_at_most(b, mb_abs(b, x), c64(b, 6));
  kva_kval small = mb_fma(b, a, kva_mb_poly(b, mb_mul(b, a, a), 13, ERF_SMALL), a);
  kva_kval erfc = exp_f64(b, mb_neg(b, kva_mb_poly(b, a, 24, ERFC_LOG)));
  return kva_mb_copy_sign(b, mb_select(b, mb_lt(b, a, one), small, mb_sub(b, one, erfc)), x);
}

/* ---- log --------------------------------------------------------------------------------------------------------- */

/* x = 2^n (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)], for 0 < x < inf; s = f / (2 + f). */
typedef struct split {
  kva_kval n, f, s, tail; /* tail: log(1 + f) = 2s + s tail */
} split;

static split split_of(kva_mb *b, kva_kval x) {
  kva_kval tiny = mb_lt(b, x, c64(b, 0x1p-1022)), scaled = mb_select(b, tiny, mb_mul(b, x, c64(b, 0x1p54)), x);
  kva_kval root_half = kva_mb_i64(b, 0x3FE6A09E667F3BCD), above = mb_sub(b, mb_bits(b, scaled), root_half);
  kva_kval mantissa = mb_add(b, mb_and(b, above, kva_mb_i64(b, 0xFFFFFFFFFFFFF)), root_half);
  kva_kval n = kva_mb_cast(b, KVA_K_CONVERT, mb_shr(b, above, kva_mb_i64(b, 52)), KVA_F64);
  split r = {.f = mb_sub(b, mb_float(b, mantissa), c64(b, 1))};
  r.n = mb_select(b, tiny, mb_sub(b, n, c64(b, 54)), n);
  r.s = mb_div(b, r.f, mb_add(b, r.f, c64(b, 2)));
  kva_kval z = mb_mul(b, r.s, r.s);
  r.tail = mb_mul(b, z, kva_mb_poly(b, z, KVA_LOG_TAIL_F64, kva_log_tail_f64));
  return r;
}

/* r for 0 < x < inf; x itself for inf and NaN; -inf at `zero`, NaN below it. */
static kva_kval log_ends(kva_mb *b, kva_kval x, kva_kval r, double zero) {
  kva_kval z = c64(b, zero);
  r = mb_select(b, mb_lt(b, x, c64(b, INF)), r, x);
  r = mb_select(b, mb_eq(b, x, z), c64(b, -INF), r);
  return mb_select(b, mb_lt(b, x, z), c64(b, QUIET), r);
}

/* log(x) + low for 0 < x < inf, low tiny. Writes 2s as f - s f: f is exact, f^2/2 the dominant correction. */
static kva_kval log_plus(kva_mb *b, kva_kval x, kva_kval low) {
  split p = split_of(b, x);
  kva_kval half = mb_mul(b, mb_mul(b, p.f, p.f), c64(b, 0.5));
  kva_kval rest = mb_fma(b, p.n, c64(b, LN2_BELOW), mb_mul(b, p.s, mb_add(b, half, p.tail)));
  if (low) rest = mb_add(b, rest, low);
  kva_kval r = mb_sub(b, p.f, mb_sub(b, half, rest));
  return mb_fma(b, p.n, c64(b, LN2_TOP), r);
}

static kva_kval log_f64(kva_mb *b, kva_kval x) {
  return log_ends(b, x, log_plus(b, x, NULL), 0);
}

/* log(u) for u = 1 + x, plus a correction for the rounding of u. */
static kva_kval log1p_f64(kva_mb *b, kva_kval x) {
  kva_kval one = c64(b, 1), u = mb_add(b, one, x), larger = mb_lt(b, one, x);
  kva_kval lost = mb_sub(b, mb_select(b, larger, one, x), mb_sub(b, u, mb_select(b, larger, x, one)));
  kva_kval r = log_plus(b, u, mb_div(b, lost, u));
  r = mb_select(b, mb_lt(b, mb_abs(b, x), c64(b, 0x1p-53)), x, r);
  return log_ends(b, x, r, -1);
}

/* log(2x) for x beyond 2^28, where sqrt(x^2 +- 1) rounds to x. */
static kva_kval log_twice(kva_mb *b, kva_kval x) {
  return mb_add(b, log_f64(b, x), c64(b, LN2));
}

/* log1p(a + a^2 / (1 + sqrt(a^2 + 1))) */
static kva_kval asinh_f64(kva_mb *b, kva_kval x) {
  kva_kval a = mb_abs(b, x), one = c64(b, 1), square = mb_mul(b, a, a);
  kva_kval root = mb_sqrt(b, mb_add(b, square, one));
  kva_kval r = log1p_f64(b, mb_add(b, a, mb_div(b, square, mb_add(b, one, root))));
  return kva_mb_copy_sign(b, mb_select(b, mb_lt(b, c64(b, 0x1p28), a), log_twice(b, a), r), x);
}

/* log1p(t + sqrt(2t + t^2)) with t = x - 1 */
static kva_kval acosh_f64(kva_mb *b, kva_kval x) {
  kva_kval t = mb_sub(b, x, c64(b, 1)), root = mb_sqrt(b, mb_fma(b, t, t, mb_add(b, t, t)));
  kva_kval r = log1p_f64(b, mb_add(b, t, root));
  r = mb_select(b, mb_lt(b, c64(b, 0x1p28), x), log_twice(b, x), r);
  return mb_select(b, mb_lt(b, x, c64(b, 1)), c64(b, QUIET), r);
}

/* log1p(2a / (1 - a)) / 2 */
static kva_kval atanh_f64(kva_mb *b, kva_kval x) {
  kva_kval a = mb_abs(b, x), one = c64(b, 1);
  kva_kval r = log1p_f64(b, mb_div(b, mb_add(b, a, a), mb_sub(b, one, a)));
  r = mb_mul(b, r, c64(b, 0.5));
  r = mb_select(b, mb_eq(b, a, one), c64(b, INF), r);
  return kva_mb_copy_sign(b, mb_select(b, mb_lt(b, one, a), c64(b, QUIET), r), x);
}

/* ---- pow --------------------------------------------------------------------------------------------------------- */

/* An unevaluated sum of two floats, the second below the first's last place. */
typedef struct pair {
  kva_kval high, low;
} pair;

/* a + b; requires |a| >= |b| or a = 0. */
static pair sum(kva_mb *b, kva_kval x, kva_kval y) {
  kva_kval high = mb_add(b, x, y);
  return (pair){high, mb_sub(b, y, mb_sub(b, high, x))};
}

static pair product(kva_mb *b, kva_kval x, kva_kval y) {
  kva_kval high = mb_mul(b, x, y);
  return (pair){high, mb_fma(b, x, y, mb_neg(b, high))};
}

/* log(a) to about 2^-63 relative: s = f / (2 + f) with the remainder of the division, and the first term of the tail,
 * about 2/3 s^3, as products with their rounding errors. */
static pair log_pair(kva_mb *b, kva_kval a) {
  split p = split_of(b, a);
  kva_kval two = c64(b, 2), below = mb_add(b, p.f, two), below_low = mb_sub(b, p.f, mb_sub(b, below, two));
  kva_kval left = mb_fma(b, mb_neg(b, p.s), below, p.f);
  kva_kval s_low = mb_div(b, mb_fma(b, mb_neg(b, p.s), below_low, left), below);
  pair z = product(b, p.s, p.s), cube = product(b, p.s, z.high);
  kva_kval cube_low = mb_fma(b, p.s, z.low, cube.low);
  pair first = product(b, cube.high, c64(b, kva_log_tail_f64[0]));
  kva_kval first_low = mb_fma(b, cube_low, c64(b, kva_log_tail_f64[0]), first.low);
  kva_kval tail =
      mb_mul(b, mb_mul(b, cube.high, z.high), kva_mb_poly(b, z.high, KVA_LOG_TAIL_F64 - 1, kva_log_tail_f64 + 1));
  pair whole = sum(b, mb_mul(b, p.n, c64(b, LN2_TOP)), mb_add(b, p.s, p.s));
  pair more = sum(b, whole.high, first.high);
  kva_kval low = mb_fma(b, p.n, c64(b, LN2_BELOW), mb_add(b, s_low, s_low));
  low = mb_add(b, mb_add(b, low, first_low), mb_add(b, tail, mb_add(b, whole.low, more.low)));
  return sum(b, more.high, low);
}

/* |x|^y. Sets log 0 = -inf and log inf = inf, and makes log 1 immune to infinite exponents. */
static kva_kval pow_magnitude(kva_mb *b, kva_kval a, kva_kval y) {
  kva_kval inf = c64(b, INF), zero = c64(b, 0);
  pair l = log_pair(b, a), t = product(b, l.high, y);
  kva_kval low = mb_fma(b, l.low, y, t.low), high = t.high;
  kva_kval end = mb_or(b, mb_eq(b, a, zero), mb_eq(b, a, inf));
  kva_kval end_log = mb_mul(b, mb_select(b, mb_eq(b, a, zero), c64(b, -INF), inf), y);
  high = mb_select(b, end, end_log, high);
  high = mb_select(b, mb_eq(b, a, c64(b, 1)), zero, high);
  kva_kval moderate = mb_lt(b, mb_abs(b, high), c64(b, 800));
  low = mb_select(b, moderate, low, zero);
  low = mb_select(b, mb_or(b, end, mb_eq(b, a, c64(b, 1))), zero, low);
  kva_kval r = exp_scaled(b, high, low, 0);
  return mb_select(b, mb_eq(b, a, a), r, a);
}

static kva_kval pow_f64(kva_mb *b, kva_kval x, kva_kval y) {
  kva_kval a = mb_abs(b, x), one = c64(b, 1), zero = c64(b, 0), half = mb_mul(b, y, c64(b, 0.5));
  kva_kval whole = mb_eq(b, mb_trunc(b, y), y), even = mb_eq(b, mb_trunc(b, half), half);
  kva_kval odd = mb_and(b, whole, mb_not(b, even)), r = pow_magnitude(b, a, y);
  kva_kval negative = mb_and(b, odd, mb_lt(b, mb_bits(b, x), kva_mb_i64(b, 0)));
  r = mb_select(b, negative, mb_neg(b, r), r);
  kva_kval finite_below_zero = mb_and(b, mb_lt(b, x, zero), mb_lt(b, a, c64(b, INF)));
  r = mb_select(b, mb_and(b, finite_below_zero, mb_not(b, whole)), c64(b, QUIET), r);
  r = mb_select(b, mb_eq(b, y, y), r, y);
  return mb_select(b, mb_or(b, mb_eq(b, y, zero), mb_eq(b, x, one)), one, r);
}

/* ---- rewriting --------------------------------------------------------------------------------------------------- */

static kva_kval expand(kva_mb *b, kva_kop op, kva_kval x, kva_kval y) {
  switch (op) {
  case KVA_K_exp: return exp_f64(b, x);
  case KVA_K_log: return log_f64(b, x);
  case KVA_K_sin: return kva_math_sin_f64(b, x);
  case KVA_K_cos: return kva_math_cos_f64(b, x);
  case KVA_K_tan: return kva_math_tan_f64(b, x);
  case KVA_K_asin: return kva_math_asin_f64(b, x);
  case KVA_K_acos: return kva_math_acos_f64(b, x);
  case KVA_K_atan: return kva_math_atan_f64(b, x);
  case KVA_K_sinh: return sinh_f64(b, x);
  case KVA_K_cosh: return cosh_f64(b, x);
  case KVA_K_tanh: return tanh_f64(b, x);
  case KVA_K_asinh: return asinh_f64(b, x);
  case KVA_K_acosh: return acosh_f64(b, x);
  case KVA_K_atanh: return atanh_f64(b, x);
  case KVA_K_erf: return erf_f64(b, x);
  case KVA_K_pow: return pow_f64(b, x, y);
  case KVA_K_log1p: return log1p_f64(b, x);
  case KVA_K_expm1: return expm1_f64(b, x);
  default: return NULL;
  }
}

static void legalize(void *user, kva_kinstr *i) {
  if (i->op < KVA_K_exp || i->op > KVA_K_expm1 || i->dtype == KVA_F32) return;
  kva_mb b = {user, i};
  bool integer = i->dtype != KVA_F64;
  kva_kval args[2] = {i->args[0], i->n_args > 1 ? i->args[1] : NULL};
  for (uint32_t a = 0; integer && a < i->n_args; a++) args[a] = kva_mb_cast(&b, KVA_K_CONVERT, args[a], KVA_F64);
  kva_kval last = expand(&b, i->op, args[0], args[1]);
  if (integer) last = kva_mb_cast(&b, KVA_K_CONVERT, last, i->dtype);
  kva_mb_become(i, last);
}

void kva_legalize_math_f64(kva_kernel *k) {
  kva_k_each_instr(k, legalize, k);
}
