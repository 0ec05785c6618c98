/* Rewrites scheduled kernel IR into operations that targets have instructions for. Target-neutral. */
#ifndef KVA_CODEGEN_LEGALIZE_H
#define KVA_CODEGEN_LEGALIZE_H

#include "ir/kernel.h"

/* For GPUs: exp and div on f32 whose values reach only 16-bit results become near_exp2, near_div, near_logistic.
 * Idempotent. */
void kva_legalize_near(kva_kernel *k);
/* Expands exp, log, sin ... pow on f32 into arithmetic. Idempotent. */
void kva_legalize_math(kva_kernel *k);
/* The same on f64, and through f64 on integers, for targets without a C library. Idempotent. */
void kva_legalize_math_f64(kva_kernel *k);
/* Expands rem on f32 and f64, for targets without a C library. Idempotent. */
void kva_legalize_rem(kva_kernel *k);

/* ---- shared by the legalize_*.c files ---------------------------------------------------------------------------- */

/* Inserts new instructions before `at`. */
typedef struct kva_mb {
  kva_kernel *k;
  kva_kinstr *at;
} kva_mb;

kva_kval kva_mb_op(kva_mb *b, kva_kop op, uint32_t n, kva_kval x, kva_kval y, kva_kval z);
kva_kval kva_mb_f32(kva_mb *b, double v);
kva_kval kva_mb_f64(kva_mb *b, double v);
kva_kval kva_mb_i32(kva_mb *b, int64_t v);
kva_kval kva_mb_i64(kva_mb *b, int64_t v);
kva_kval kva_mb_cast(kva_mb *b, kva_kop convert_or_bitcast, kva_kval x, kva_dtype to);
/* c[0] + c[1] x + ..., by Horner's rule with fma. */
kva_kval kva_mb_poly(kva_mb *b, kva_kval x, uint32_t n, const double *c);

#define KVA_MB2_OPS(X) \
  X(add) X(sub) X(mul) X(div) X(min) X(max) X(lt) X(eq) X(and) X(or) X(xor) X(shl) X(shr) X(far_rest) X(far_quarter)
#define KVA_MB2(name)                                                   \
  static inline kva_kval mb_##name(kva_mb *b, kva_kval x, kva_kval y) { \
    return kva_mb_op(b, KVA_K_##name, 2, x, y, NULL);                   \
  }
KVA_MB2_OPS(KVA_MB2)
#undef KVA_MB2_OPS
#undef KVA_MB2
static inline kva_kval mb_fma(kva_mb *b, kva_kval x, kva_kval y, kva_kval z) {
  return kva_mb_op(b, KVA_K_fma, 3, x, y, z);
}
static inline kva_kval mb_select(kva_mb *b, kva_kval c, kva_kval x, kva_kval y) {
  return kva_mb_op(b, KVA_K_select, 3, c, x, y);
}
static inline kva_kval mb_abs(kva_mb *b, kva_kval x) {
  return kva_mb_op(b, KVA_K_abs, 1, x, NULL, NULL);
}
static inline kva_kval mb_scalef(kva_mb *b, kva_kval x, kva_kval n) {
  return kva_mb_op(b, KVA_K_scalef, 2, x, n, NULL);
}
static inline kva_kval mb_neg(kva_mb *b, kva_kval x) {
  return kva_mb_op(b, KVA_K_neg, 1, x, NULL, NULL);
}
static inline kva_kval mb_near_logistic(kva_mb *b, kva_kval x) {
  return kva_mb_op(b, KVA_K_near_logistic, 1, x, NULL, NULL);
}
static inline kva_kval mb_not(kva_mb *b, kva_kval x) {
  return kva_mb_op(b, KVA_K_not, 1, x, NULL, NULL);
}
static inline kva_kval mb_sqrt(kva_mb *b, kva_kval x) {
  return kva_mb_op(b, KVA_K_sqrt, 1, x, NULL, NULL);
}
static inline kva_kval mb_trunc(kva_mb *b, kva_kval x) {
  return kva_mb_op(b, KVA_K_trunc, 1, x, NULL, NULL);
}
/* For a constant limit; NaN stays NaN. */
static inline kva_kval mb_at_most(kva_mb *b, kva_kval x, kva_kval limit) {
  return mb_min(b, x, limit);
}
static inline kva_kval mb_at_least(kva_mb *b, kva_kval x, kva_kval limit) {
  return mb_max(b, x, limit);
}
static inline kva_kval mb_bits(kva_mb *b, kva_kval x) {
  return kva_mb_cast(b, KVA_K_BITCAST, x, x->dtype == KVA_F32 ? KVA_I32 : KVA_I64);
}
static inline kva_kval mb_float(kva_mb *b, kva_kval bits) {
  return kva_mb_cast(b, KVA_K_BITCAST, bits, bits->dtype == KVA_I32 ? KVA_F32 : KVA_F64);
}
/* Turns i into `last`, which is removed. */
void kva_mb_become(kva_kinstr *i, kva_kinstr *last);
/* |r| with the sign of x. */
kva_kval kva_mb_copy_sign(kva_mb *b, kva_kval r, kva_kval x);

/* In f32. */
kva_kval kva_math_exp(kva_mb *b, kva_kval x);
kva_kval kva_math_expm1(kva_mb *b, kva_kval x);
kva_kval kva_math_log(kva_mb *b, kva_kval x);
kva_kval kva_math_tanh(kva_mb *b, kva_kval x);
kva_kval kva_math_sinh(kva_mb *b, kva_kval x);
kva_kval kva_math_cosh(kva_mb *b, kva_kval x);
kva_kval kva_math_erf(kva_mb *b, kva_kval x);
/* (log((1+s)/(1-s)) - 2s) / s^3 over s^2, s <= 0.1716; relative error 3e-18. */
enum { KVA_LOG_TAIL_F64 = 7 };
extern const double kva_log_tail_f64[KVA_LOG_TAIL_F64];
/* legalize_log.c: through an f64 logarithm */
kva_kval kva_math_log1p(kva_mb *b, kva_kval x);
kva_kval kva_math_asinh(kva_mb *b, kva_kval x);
kva_kval kva_math_acosh(kva_mb *b, kva_kval x);
kva_kval kva_math_atanh(kva_mb *b, kva_kval x);
kva_kval kva_math_pow(kva_mb *b, kva_kval x, kva_kval y);
/* legalize_f64_trig.c, on f64 */
kva_kval kva_math_sin_f64(kva_mb *b, kva_kval x);
kva_kval kva_math_cos_f64(kva_mb *b, kva_kval x);
kva_kval kva_math_tan_f64(kva_mb *b, kva_kval x);
kva_kval kva_math_asin_f64(kva_mb *b, kva_kval x);
kva_kval kva_math_acos_f64(kva_mb *b, kva_kval x);
kva_kval kva_math_atan_f64(kva_mb *b, kva_kval x);
/* legalize_trig.c */
kva_kval kva_math_sin(kva_mb *b, kva_kval x);
kva_kval kva_math_cos(kva_mb *b, kva_kval x);
kva_kval kva_math_tan(kva_mb *b, kva_kval x);
kva_kval kva_math_asin(kva_mb *b, kva_kval x);
kva_kval kva_math_acos(kva_mb *b, kva_kval x);
kva_kval kva_math_atan(kva_mb *b, kva_kval x);

#endif
