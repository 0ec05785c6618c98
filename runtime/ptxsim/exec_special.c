/* The .approx functions. Computed with the C library, so at least as accurate as the hardware's, and not its bits:
 *
 *   rcp, sqrt, div  rounded to nearest (hardware: 1 to 2 ulp)      ex2, lg2  about 1 ulp (hardware: 2^-22 relative)
 *   rsqrt           two roundings (hardware: 2^-22.9 relative)     sin, cos  about 1 ulp (hardware: 2^-20.9 absolute
 *   tanh            about 1 ulp (hardware: 2^-11 relative)                   in [-pi, pi], worse beyond)
 *
 * Code that passes here must still tolerate the hardware's error. */
#include "runtime/ptxsim/exec.h"

#include <math.h>

#define FUNCTIONS(T)                     \
  PTX_FN1(rcp_##T, T, T, 1 / x)          \
  PTX_FN1(sqrt_##T, T, T, sqrtf(x))      \
  PTX_FN1(rsqrt_##T, T, T, 1 / sqrtf(x)) \
  PTX_FN1(ex2_##T, T, T, exp2f(x))       \
  PTX_FN1(lg2_##T, T, T, log2f(x))       \
  PTX_FN1(sin_##T, T, T, sinf(x))        \
  PTX_FN1(cos_##T, T, T, cosf(x))        \
  PTX_FN1(tanh_##T, T, T, tanhf(x))
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
#define ROW(name, T, fn) {name, PTX_##T, KVA_PTX_CLASS_SPECIAL, "tt", fn},
#define ROWS(T, t)                  \
  ROW("rcp.approx", T, rcp_##t)     \
  ROW("sqrt.approx", T, sqrt_##t)   \
  ROW("rsqrt.approx", T, rsqrt_##t) \
  ROW("ex2.approx", T, ex2_##t)     \
  ROW("lg2.approx", T, lg2_##t)     \
  ROW("sin.approx", T, sin_##t)     \
  ROW("cos.approx", T, cos_##t)     \
  ROW("tanh.approx", T, tanh_##t)
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
