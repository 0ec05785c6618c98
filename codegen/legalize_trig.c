/* Trigonometric functions on f32 and their inverses. */
#include "codegen/legalize.h"

#include <math.h>

static const double PI_2_HI = 1.57079637050628662109375; /* pi/2 rounded to f32, and the remainder */
static const double PI_2_LO = -4.37113900018624283e-8;

/* (sin r - r) / r^3 and (cos r - 1 + r^2/2) / r^4 over r^2, |r| <= pi/4; errors 4e-9 and 1e-10. */
static const double SIN_TAIL[] = {-0.166666552, 0.00833215471, -0.000195140849};
static const double COS_TAIL[] = {0.0416666456, -0.00138873374, 2.44348466e-05};

/* |x| = q pi/2 + r with |r| <= pi/4. The reduction runs in f64, so r is accurate to f32's last place for x up to
 * 2^50. Beyond that far_rest and far_quarter have it, behind a branch. */
typedef struct reduced {
  kva_kval sin, cos; /* of r */
  kva_kval q;        /* i32 */
} reduced;

static reduced reduce(kva_mb *b, kva_kval x) {
  kva_kval a = mb_abs(b, x), d = kva_mb_cast(b, KVA_K_CONVERT, a, KVA_F64), magic = kva_mb_f64(b, 0x1.8p52);
  kva_kval shifted = mb_fma(b, d, kva_mb_f64(b, 0.63661977236758138), magic), n = mb_sub(b, shifted, magic);
  kva_kval r64 = mb_fma(b, n, kva_mb_f64(b, -1.5707963267948966), d);
  r64 = mb_fma(b, n, kva_mb_f64(b, -6.123233995736766e-17), r64);
  kva_kval r = mb_far_rest(b, kva_mb_cast(b, KVA_K_CONVERT, r64, KVA_F32), a), z = mb_mul(b, r, r);
  kva_kval q = mb_float(b, kva_mb_cast(b, KVA_K_CONVERT, mb_bits(b, shifted), KVA_I32));
  kva_kval c = mb_fma(b, z, kva_mb_poly(b, z, 3, COS_TAIL), kva_mb_f32(b, -0.5));
  return (reduced){.sin = mb_fma(b, mb_mul(b, r, z), kva_mb_poly(b, z, 3, SIN_TAIL), r),
                   .cos = mb_fma(b, z, c, kva_mb_f32(b, 1)),
                   .q = mb_bits(b, mb_far_quarter(b, q, a))};
}

static kva_kval has_bit(kva_mb *b, kva_kval q, int bit) {
  return mb_eq(b, mb_and(b, q, kva_mb_i32(b, bit)), kva_mb_i32(b, bit));
}

/* Flips the sign of v if bit 1 of q is set. */
static kva_kval flip(kva_mb *b, kva_kval v, kva_kval q) {
  kva_kval sign = mb_shl(b, mb_and(b, q, kva_mb_i32(b, 2)), kva_mb_i32(b, 30));
  return mb_float(b, mb_xor(b, mb_bits(b, v), sign));
}

static kva_kval odd(kva_mb *b, kva_kval v, kva_kval x) {
  kva_kval sign = mb_and(b, mb_bits(b, x), kva_mb_i32(b, INT32_MIN));
  return mb_float(b, mb_xor(b, mb_bits(b, v), sign));
}

kva_kval kva_math_sin(kva_mb *b, kva_kval x) {
  reduced r = reduce(b, x);
  kva_kval v = mb_select(b, has_bit(b, r.q, 1), r.cos, r.sin);
  return odd(b, flip(b, v, r.q), x);
}

kva_kval kva_math_cos(kva_mb *b, kva_kval x) {
  reduced r = reduce(b, x);
  kva_kval v = mb_select(b, has_bit(b, r.q, 1), r.sin, r.cos);
  return flip(b, v, mb_add(b, r.q, kva_mb_i32(b, 1)));
}

kva_kval kva_math_tan(kva_mb *b, kva_kval x) {
  reduced r = reduce(b, x);
  kva_kval swap = has_bit(b, r.q, 1);
  kva_kval above = mb_select(b, swap, mb_neg(b, r.cos), r.sin), below = mb_select(b, swap, r.sin, r.cos);
  return odd(b, mb_div(b, above, below), x);
}

/* ---- inverses ---------------------------------------------------------------------------------------------------- */

/* (asin(s) - s) / s^3 over s^2, s <= 1/2; error of asin(s)/s 5e-9. */
static const double ASIN_TAIL[] = {0.166667536, 0.0749524161, 0.0454770997, 0.0241475943, 0.0422185808};

/* asin(s) for s = |x| <= 1/2, or else for s = sqrt((1 - |x|)/2), where asin|x| = pi/2 - 2 asin(s). */
static kva_kval asin_core(kva_mb *b, kva_kval a, kva_kval is_large) {
  kva_kval z = mb_fma(b, a, kva_mb_f32(b, -0.5), kva_mb_f32(b, 0.5));
  z = mb_select(b, is_large, z, mb_mul(b, a, a));
  kva_kval s = mb_select(b, is_large, mb_sqrt(b, z), a);
  return mb_fma(b, mb_mul(b, s, z), kva_mb_poly(b, z, 5, ASIN_TAIL), s);
}

/* c pi/2 - v, with pi/2 in two parts. */
static kva_kval minus_from_pi(kva_mb *b, double c, kva_kval v) {
  return mb_sub(b, kva_mb_f32(b, c * PI_2_HI), mb_sub(b, v, kva_mb_f32(b, c * PI_2_LO)));
}

kva_kval kva_math_asin(kva_mb *b, kva_kval x) {
  kva_kval a = mb_abs(b, x), is_large = mb_lt(b, kva_mb_f32(b, 0.5), a), p = asin_core(b, a, is_large);
  return kva_mb_copy_sign(b, mb_select(b, is_large, minus_from_pi(b, 1, mb_add(b, p, p)), p), x);
}

kva_kval kva_math_acos(kva_mb *b, kva_kval x) {
  kva_kval a = mb_abs(b, x), is_large = mb_lt(b, kva_mb_f32(b, 0.5), a), p = asin_core(b, a, is_large);
  kva_kval twice = mb_add(b, p, p), below = mb_lt(b, x, kva_mb_f32(b, 0));
  kva_kval large = mb_select(b, below, minus_from_pi(b, 2, twice), twice);
  kva_kval small = minus_from_pi(b, 1, mb_select(b, below, mb_neg(b, p), p));
  return mb_select(b, is_large, large, small);
}

/* (atan(t) - t) / t^3 over t^2, t <= 1; error of atan(t)/t 2.3e-9. */
static const double ATAN_TAIL[] = {-0.333333015, 0.199986383,  -0.142652452, 0.109575763,   -0.0841946006,
                                   0.0582345687, -0.031455718, 0.0110644493, -0.00182721484};

kva_kval kva_math_atan(kva_mb *b, kva_kval x) {
  kva_kval a = mb_abs(b, x), one = kva_mb_f32(b, 1), is_large = mb_lt(b, one, a);
  kva_kval t = mb_select(b, is_large, mb_div(b, one, a), a), z = mb_mul(b, t, t);
  kva_kval p = mb_fma(b, mb_mul(b, t, z), kva_mb_poly(b, z, 9, ATAN_TAIL), t);
  return kva_mb_copy_sign(b, mb_select(b, is_large, minus_from_pi(b, 1, p), p), x);
}
