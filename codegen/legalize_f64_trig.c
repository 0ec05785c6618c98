/* Trigonometric functions on f64 and their inverses: see legalize_f64.c. Errors of sin, cos and tan from 2^50 on: see
 * tests/codegen/test_math_f64.c. */
#include "codegen/legalize.h"

#include <math.h>

/* pi/2 in three parts, each the f64 nearest to the remainder of the previous ones. */
static const double PI_2[] = {1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33};

/* (sin r - r) / r^3 and (cos r - 1 + r^2/2) / r^4 over r^2: Taylor sums, truncation error below 2e-18 for |r| <=
 * pi/4. */
static const double SIN_TAIL[] = {-0.16666666666666666,   0.008333333333333333,   -0.0001984126984126984,
                                  2.7557319223985893e-06, -2.505210838544172e-08, 1.6059043836821613e-10,
                                  -7.647163731819816e-13, 2.8114572543455206e-15};
static const double COS_TAIL[] = {0.041666666666666664,   -0.001388888888888889, 2.48015873015873e-05,
                                  -2.755731922398589e-07, 2.08767569878681e-09,  -1.1470745597729725e-11,
                                  4.779477332387385e-14};

static kva_kval c64(kva_mb *b, double v) {
  return kva_mb_f64(b, v);
}

/* |x| = q pi/2 + r with |r| <= pi/4 */
typedef struct reduced {
  kva_kval sin, cos; /* of r */
  kva_kval q;        /* i64 */
} reduced;

/* r + low = |x| - n pi/2. low is below r's last place; it enters sin and cos before their final rounding. */
static reduced reduce(kva_mb *b, kva_kval x) {
  kva_kval a = mb_abs(b, x), magic = c64(b, 0x1.8p52), one = c64(b, 1);
  kva_kval shifted = mb_fma(b, a, c64(b, 0.63661977236758138), magic), n = mb_sub(b, shifted, magic);
  kva_kval most = mb_fma(b, n, c64(b, -PI_2[0]), a), r = mb_fma(b, n, c64(b, -PI_2[1]), most);
  kva_kval low = mb_fma(b, n, c64(b, -PI_2[1]), mb_sub(b, most, r));
  low = mb_fma(b, n, c64(b, -PI_2[2]), low);
  low = mb_select(b, mb_lt(b, a, c64(b, KVA_FAR_ANGLE)), low, c64(b, 0));
  r = mb_far_rest(b, r, a);
  kva_kval z = mb_mul(b, r, r), half = mb_mul(b, z, c64(b, 0.5)), top = mb_sub(b, one, half);
  kva_kval s = mb_fma(b, mb_mul(b, r, z), kva_mb_poly(b, z, 8, SIN_TAIL), mb_mul(b, low, top));
  kva_kval c = mb_fma(b, mb_mul(b, z, z), kva_mb_poly(b, z, 7, COS_TAIL), mb_neg(b, mb_mul(b, r, low)));
  c = mb_add(b, c, mb_sub(b, mb_sub(b, one, top), half)); /* rounding error of `top` */
  return (reduced){.sin = mb_add(b, r, s), .cos = mb_add(b, top, c), .q = mb_bits(b, mb_far_quarter(b, shifted, a))};
}

static kva_kval has_bit(kva_mb *b, kva_kval q, int bit) {
  return mb_eq(b, mb_and(b, q, kva_mb_i64(b, bit)), kva_mb_i64(b, bit));
}

/* Flips the sign of v if bit 1 of q is set. */
static kva_kval flip(kva_mb *b, kva_kval v, kva_kval q) {
  kva_kval sign = mb_shl(b, mb_and(b, q, kva_mb_i64(b, 2)), kva_mb_i64(b, 62));
  return mb_float(b, mb_xor(b, mb_bits(b, v), sign));
}

static kva_kval odd(kva_mb *b, kva_kval v, kva_kval x) {
  kva_kval sign = mb_and(b, mb_bits(b, x), kva_mb_i64(b, INT64_MIN));
  return mb_float(b, mb_xor(b, mb_bits(b, v), sign));
}

kva_kval kva_math_sin_f64(kva_mb *b, kva_kval x) {
  reduced r = reduce(b, x);
  kva_kval v = mb_select(b, has_bit(b, r.q, 1), r.cos, r.sin);
  return odd(b, flip(b, v, r.q), x);
}

kva_kval kva_math_cos_f64(kva_mb *b, kva_kval x) {
  reduced r = reduce(b, x);
  kva_kval v = mb_select(b, has_bit(b, r.q, 1), r.sin, r.cos);
  return flip(b, v, mb_add(b, r.q, kva_mb_i64(b, 1)));
}

kva_kval kva_math_tan_f64(kva_mb *b, kva_kval x) {
  reduced r = reduce(b, x);
  kva_kval swap = has_bit(b, r.q, 1);
  kva_kval above = mb_select(b, swap, mb_neg(b, r.cos), r.sin), below = mb_select(b, swap, r.sin, r.cos);
  return odd(b, mb_div(b, above, below), x);
}

/* ---- inverses ---------------------------------------------------------------------------------------------------- */

/* (asin(s) - s) / s^3 over s^2, s <= 1/2, error 2.2e-17. */
static const double ASIN_TAIL[] = {
    0.16666666666666669,  0.07499999999998433,   0.04464285714635543,  0.030381944138531247, 0.02237217294214989,
    0.017352392720869973, 0.013971212973552933,  0.011479177415184906, 0.01032281435018578,  0.005457506718640358,
    0.01740087944269402,  -0.014851887071247204, 0.028757851367421566};

/* asin(s) for s = |x| <= 1/2, or else for s = sqrt((1 - |x|)/2), where asin|x| = pi/2 - 2 asin(s). */
static kva_kval asin_core(kva_mb *b, kva_kval a, kva_kval is_large) {
  kva_kval z = mb_fma(b, a, c64(b, -0.5), c64(b, 0.5));
  z = mb_select(b, is_large, z, mb_mul(b, a, a));
  kva_kval s = mb_select(b, is_large, mb_sqrt(b, z), a);
  return mb_fma(b, mb_mul(b, s, z), kva_mb_poly(b, z, 13, ASIN_TAIL), s);
}

/* c pi/2 - v, with pi/2 in two parts. */
static kva_kval minus_from_pi(kva_mb *b, double c, kva_kval v) {
  return mb_sub(b, c64(b, c * PI_2[0]), mb_sub(b, v, c64(b, c * PI_2[1])));
}

kva_kval kva_math_asin_f64(kva_mb *b, kva_kval x) {
  kva_kval a = mb_abs(b, x), is_large = mb_lt(b, c64(b, 0.5), a), p = asin_core(b, a, is_large);
  return kva_mb_copy_sign(b, mb_select(b, is_large, minus_from_pi(b, 1, mb_add(b, p, p)), p), x);
}

kva_kval kva_math_acos_f64(kva_mb *b, kva_kval x) {
  kva_kval a = mb_abs(b, x), is_large = mb_lt(b, c64(b, 0.5), a), p = asin_core(b, a, is_large);
  kva_kval twice = mb_add(b, p, p), below = mb_lt(b, x, c64(b, 0));
  kva_kval large = mb_select(b, below, minus_from_pi(b, 2, twice), twice);
  kva_kval small = minus_from_pi(b, 1, mb_select(b, below, mb_neg(b, p), p));
  return mb_select(b, is_large, large, small);
}

/* (atan(t) - t) / t^3 over t^2, t <= tan(pi/8), error 4.5e-17. */
static const double ATAN_TAIL[] = {-0.3333333333333333,  0.1999999999999552,  -0.14285714284666542, 0.11111111015256361,
                                   -0.09090904578123903, 0.07692183190826087, -0.06664511447381948, 0.0585814891280221,
                                   -0.0508544973794026,  0.03923165829558718, -0.01917688711906225};

/* a up to tan(pi/8); pi/4 + atan((a - 1)/(a + 1)) up to tan(3 pi/8); pi/2 - atan(1/a) beyond. */
kva_kval kva_math_atan_f64(kva_mb *b, kva_kval x) {
  kva_kval a = mb_abs(b, x), one = c64(b, 1), zero = c64(b, 0);
  kva_kval middle = mb_lt(b, c64(b, 0.41421356237309503), a), large = mb_lt(b, c64(b, 2.4142135623730950), a);
  kva_kval above = mb_select(b, large, c64(b, -1), mb_sub(b, a, one)),
           below = mb_select(b, large, a, mb_add(b, a, one));
  kva_kval t = mb_select(b, middle, mb_div(b, above, below), a), z = mb_mul(b, t, t);
  kva_kval p = mb_mul(b, mb_mul(b, t, z), kva_mb_poly(b, z, 11, ATAN_TAIL));
  kva_kval low = mb_select(b, large, c64(b, PI_2[1]), mb_select(b, middle, c64(b, PI_2[1] / 2), zero));
  kva_kval high = mb_select(b, large, c64(b, PI_2[0]), mb_select(b, middle, c64(b, PI_2[0] / 2), zero));
  return kva_mb_copy_sign(b, mb_add(b, high, mb_add(b, t, mb_add(b, p, low))), x);
}
