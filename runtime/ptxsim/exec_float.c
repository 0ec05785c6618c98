/* Floating point in f32, f32 with flushed subnormals, and f64: arithmetic is IEEE 754, rounded to nearest even. The
 * payload of a NaN is the host's. */
#include "runtime/ptxsim/exec.h"

#include <math.h>

#define ARITHMETIC(T, root)        \
  PTX_FN2(add_##T, T, T, T, x + y) \
  PTX_FN2(sub_##T, T, T, T, x - y) \
  PTX_FN2(mul_##T, T, T, T, x *y)  \
  PTX_FN2(div_##T, T, T, T, x / y) \
  PTX_FN1(rcp_##T, T, T, 1 / x)    \
  PTX_FN1(sqrt_##T, T, T, root(x))
ARITHMETIC(f32, sqrtf)
ARITHMETIC(f32z, sqrtf)
ARITHMETIC(f64, sqrt)

/* Without hardware FMA the C library emulates it, several times slower. */
#if defined(__x86_64__)
#define FMA(T, fma)                                                                                   \
  PTX_FN3_AS(__attribute__((target("avx2,fma"))), fma_fast_##T, T, T, T, T, __builtin_##fma(x, y, z)) \
  PTX_FN3(fma_slow_##T, T, T, T, T, fma(x, y, z))                                                     \
  static void fma_##T(ptx_warp *w, const ptx_ins *i, uint32_t mask) {                                 \
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2"))                              \
      fma_fast_##T(w, i, mask);                                                                       \
    else                                                                                              \
      fma_slow_##T(w, i, mask);                                                                       \
  }
#else
#define FMA(T, fma) PTX_FN3(fma_##T, T, T, T, T, fma(x, y, z))
#endif
FMA(f32, fmaf)
FMA(f32z, fmaf)
FMA(f64, fma)

/* min and max return the number if one operand is NaN, unless .NaN is given; -0 is less than +0. */
#define EXTREMA(T, value, sign)                                                  \
  static inline value lesser_##T(value x, value y) {                             \
    return x != x ? y : y != y ? x : x == y ? (sign(x) ? x : y) : x < y ? x : y; \
  }                                                                              \
  static inline value greater_##T(value x, value y) {                            \
    return x != x ? y : y != y ? x : x == y ? (sign(x) ? y : x) : x > y ? x : y; \
  }                                                                              \
  PTX_FN2(min_##T, T, T, T, lesser_##T(x, y))                                    \
  PTX_FN2(max_##T, T, T, T, greater_##T(x, y))
EXTREMA(f32, float, signbit)
EXTREMA(f32z, float, signbit)
EXTREMA(f64, double, signbit)
#define EXTREMA_NAN(T)                                                      \
  PTX_FN2(min_nan_##T, T, T, T, x != x ? x : y != y ? y : lesser_##T(x, y)) \
  PTX_FN2(max_nan_##T, T, T, T, x != x ? x : y != y ? y : greater_##T(x, y))
EXTREMA_NAN(f32)
EXTREMA_NAN(f32z)

PTX_FN1(neg_f32, u32, u32, x ^ 0x80000000u)
PTX_FN1(neg_f32z, u32, u32, ptx_flush(x) ^ 0x80000000u)
PTX_FN1(neg_f64, u64, u64, x ^ 1ull << 63)
PTX_FN1(abs_f32, u32, u32, x & 0x7fffffffu)
PTX_FN1(abs_f32z, u32, u32, ptx_flush(x) & 0x7fffffffu)
PTX_FN1(abs_f64, u64, u64, x & ~(1ull << 63))
/* PTX's operand order: the sign of a, the magnitude of b. */
PTX_FN2(copysign_f32, u32, u32, u32, (x & 0x80000000u) | (y & 0x7fffffffu))
PTX_FN2(copysign_f64, u64, u64, u64, (x & 1ull << 63) | (y & ~(1ull << 63)))

/* Saturation to [0, 1]; NaN gives 0. */
static inline float unit(float v) {
  return v >= 1 ? 1 : v > 0 ? v : 0;
}
#define SATURATED(T)                         \
  PTX_FN2(add_sat_##T, T, T, T, unit(x + y)) \
  PTX_FN2(sub_sat_##T, T, T, T, unit(x - y)) \
  PTX_FN2(mul_sat_##T, T, T, T, unit(x *y))  \
  PTX_FN3(fma_sat_##T, T, T, T, T, unit(fmaf(x, y, z)))
SATURATED(f32)
SATURATED(f32z)

/* clang-format off */
#define ROW(name, T, operands, fn) {name, PTX_##T, KVA_PTX_CLASS_FLOAT, operands, fn},
#define ROWS(T, t)               \
  ROW("add", T, "ttt", add_##t)  \
  ROW("sub", T, "ttt", sub_##t)  \
  ROW("mul", T, "ttt", mul_##t)  \
  ROW("fma", T, "tttt", fma_##t) \
  ROW("mad", T, "tttt", fma_##t) \
  ROW("div", T, "ttt", div_##t)  \
  ROW("rcp", T, "tt", rcp_##t)   \
  ROW("sqrt", T, "tt", sqrt_##t) \
  ROW("min", T, "ttt", min_##t)  \
  ROW("max", T, "ttt", max_##t)  \
  ROW("neg", T, "tt", neg_##t)   \
  ROW("abs", T, "tt", abs_##t)
#define ROWS_SINGLE(T, t)               \
  ROW("min.NaN", T, "ttt", min_nan_##t) \
  ROW("max.NaN", T, "ttt", max_nan_##t) \
  ROW("add.sat", T, "ttt", add_sat_##t) \
  ROW("sub.sat", T, "ttt", sub_sat_##t) \
  ROW("mul.sat", T, "ttt", mul_sat_##t) \
  ROW("fma.sat", T, "tttt", fma_sat_##t)

static const ptx_form forms[] = {ROWS(F32, f32) ROWS(F32Z, f32z) ROWS(F64, f64) ROWS_SINGLE(F32, f32) ROWS_SINGLE(
    F32Z, f32z) ROW("copysign", F32, "ttt", copysign_f32) ROW("copysign", F64, "ttt", copysign_f64)};
/* clang-format on */
const ptx_forms kva_ptx_forms_float = {forms, sizeof forms / sizeof *forms};
