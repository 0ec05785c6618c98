/* The .approx functions. Of the hardware's bits only a bound of the error is documented (PTX ISA, section of each
 * instruction), so results on f32 are off by as much, up or down as the operand's bits fall:
 *
 *   relative   rcp, sqrt 2^-23    rsqrt 2^-22.9    ex2, lg2 2^-22    div.full, div.approx 2^-22    tanh 2^-11
 *   absolute   sin, cos 2^-20.9 in [-pi, pi]; lg2 2^-22 in [0.5, 2]
 *
 * What rounding adds is inside the bound. 0, infinity and NaN are exact, as operands and as results, and so is ex2 on
 * 16 bits. */
#include "runtime/ptxsim/exec.h"

#include <math.h>

/* 1 or -1: a hash of the operand's bits. */
static inline double side(float x) {
  return (double)(int32_t)(ptx_bits32(x) * 0x9E3779B1u >> 30 & 2) - 1;
}

/* Rounding to float adds at most 2^-24. */
static inline float off(float x, double y, double relative) {
  return (float)(y * (1 + side(x) * (relative - 0x1p-24)));
}

static inline float off_by(float x, double y, double absolute) {
  return (float)(y + side(x) * absolute);
}

static inline float near_lg2(float x) {
  double y = log2((double)x);
  return fabs(y) <= 1 ? off_by(x, y, 0x1p-22 - 0x1p-24) : off(x, y, 0x1p-22);
}

#define FUNCTIONS(T)                                                      \
  PTX_FN1(rcp_##T, T, T, off(x, 1 / (double)x, 0x1p-23))                  \
  PTX_FN1(sqrt_##T, T, T, off(x, sqrt((double)x), 0x1p-23))               \
  PTX_FN1(rsqrt_##T, T, T, off(x, 1 / sqrt((double)x), 0x1.1p-23))        \
  PTX_FN1(ex2_##T, T, T, x == 0 ? 1 : off(x, exp2((double)x), 0x1p-22))   \
  PTX_FN1(lg2_##T, T, T, near_lg2(x))                                     \
  PTX_FN1(sin_##T, T, T, x == 0 ? x : off_by(x, sin((double)x), 0x1p-21)) \
  PTX_FN1(cos_##T, T, T, x == 0 ? 1 : off_by(x, cos((double)x), 0x1p-21)) \
  PTX_FN1(tanh_##T, T, T, off(x, tanh((double)x), 0x1p-11))               \
  PTX_FN2(div_##T, T, T, T, off(x, (double)x / (double)y, 0x1p-22))
FUNCTIONS(f32)
FUNCTIONS(f32z)

PTX_FN1(rsqrt_f64, f64, f64, 1 / sqrt(x))
/* The hardware keeps 20 bits of the mantissa; here the lower word of the exact reciprocal is zeroed. */
PTX_FN1(rcp_f64, u64, f64, ptx_bits64(1 / x) & ~0xffffffffull)

PTX_FN1(ex2_f16, f16, f16, exp2f(x))
PTX_FN1(ex2_bf16, bf16, bf16, exp2f(x))
PTX_FN1(tanh_f16, f16, f16, tanhf(x))
PTX_FN1(tanh_bf16, bf16, bf16, tanhf(x))
#define PAIR(fn, T, f) \
  PTX_FN1(fn, u32, u32, store_##T(f(load_##T(x & 0xffffu))) | store_##T(f(load_##T(x >> 16))) << 16)
PAIR(ex2_f16x2, f16, exp2f)
PAIR(ex2_bf16x2, bf16, exp2f)
PAIR(tanh_f16x2, f16, tanhf)
PAIR(tanh_bf16x2, bf16, tanhf)

/* clang-format off */
#define ROW_OF(name, T, operands, fn) {name, PTX_##T, KVA_PTX_CLASS_SPECIAL, operands, fn},
#define ROW(name, T, fn)              ROW_OF(name, T, "tt", fn)
#define ROWS(T, t)                  \
  ROW("rcp.approx", T, rcp_##t)     \
  ROW("sqrt.approx", T, sqrt_##t)   \
  ROW("rsqrt.approx", T, rsqrt_##t) \
  ROW("ex2.approx", T, ex2_##t)     \
  ROW("lg2.approx", T, lg2_##t)     \
  ROW("sin.approx", T, sin_##t)     \
  ROW("cos.approx", T, cos_##t)     \
  ROW("tanh.approx", T, tanh_##t)   \
  ROW_OF("div.full", T, "ttt", div_##t) \
  ROW_OF("div.approx", T, "ttt", div_##t)
#define ROWS_HALF(T, t)         \
  ROW("ex2.approx", T, ex2_##t) \
  ROW("tanh.approx", T, tanh_##t)

static const ptx_form forms[] = {
    ROWS(F32, f32) ROWS(F32Z, f32z) ROWS_HALF(F16, f16) ROWS_HALF(BF16, bf16) ROWS_HALF(F16X2, f16x2)
        ROWS_HALF(BF16X2, bf16x2)
            ROW("rsqrt.approx", F64, rsqrt_f64){"rcp.approx.ftz", PTX_F64, KVA_PTX_CLASS_SPECIAL, "tt", rcp_f64},
};
/* clang-format on */
const ptx_forms kva_ptx_forms_special = {forms, sizeof forms / sizeof *forms};
