/* Arithmetic of f16 and bf16, scalar and packed. Sums are computed in float and rounded again: 2p + 2 digits against p
 * make that correctly rounded (Figueroa, 1995). Products are exact in double. A fused multiply-add needs its sum
 * rounded to odd (Boldo, Melquiond: Emulation of FMA and correctly rounded sums, 2008). .ftz is accepted but keeps
 * subnormals. */
#include "runtime/ptxsim/exec.h"

#include <math.h>

static inline double sum_to_odd(double a, double b) {
  double s = a + b, part = s - a, error = (a - (s - part)) + (b - part);
  uint64_t bits = ptx_bits64(s);
  if (error == 0 || error != error || bits & 1 || isinf(s)) return s;
  return ptx_f64((error > 0) == (s > 0) ? bits + 1 : bits - 1);
}
static inline uint32_t round_f16(double v) {
  uint16_t out;
  kva_store_f64(KVA_F16, &out, 0, v);
  return out;
}
static inline uint32_t round_bf16(double v) {
  uint16_t out;
  kva_store_f64(KVA_BF16, &out, 0, v);
  return out;
}

static inline float lesser(float x, float y) {
  return x != x ? y : y != y ? x : x == y ? (signbit(x) ? x : y) : x < y ? x : y;
}
static inline float greater(float x, float y) {
  return x != x ? y : y != y ? x : x == y ? (signbit(x) ? y : x) : x > y ? x : y;
}
static inline float lesser_nan(float x, float y) {
  return x != x ? x : y != y ? y : lesser(x, y);
}
static inline float greater_nan(float x, float y) {
  return x != x ? x : y != y ? y : greater(x, y);
}

/* Operations on one element, bits to bits. */
#define ELEMENT(T)                                                                                \
  static inline uint32_t add_##T(uint32_t a, uint32_t b) {                                        \
    return store_##T(load_##T(a) + load_##T(b));                                                  \
  }                                                                                               \
  static inline uint32_t sub_##T(uint32_t a, uint32_t b) {                                        \
    return store_##T(load_##T(a) - load_##T(b));                                                  \
  }                                                                                               \
  static inline uint32_t mul_##T(uint32_t a, uint32_t b) {                                        \
    return round_##T((double)load_##T(a) * (double)load_##T(b));                                  \
  }                                                                                               \
  static inline uint32_t fma_##T(uint32_t a, uint32_t b, uint32_t c) {                            \
    return round_##T(sum_to_odd((double)load_##T(a) * (double)load_##T(b), (double)load_##T(c))); \
  }                                                                                               \
  static inline uint32_t relu_##T(uint32_t a, uint32_t b, uint32_t c) {                           \
    uint32_t r = fma_##T(a, b, c);                                                                \
    return r & 0x8000u && load_##T(r) == load_##T(r) ? 0 : r;                                     \
  }                                                                                               \
  static inline uint32_t min_##T(uint32_t a, uint32_t b) {                                        \
    return store_##T(lesser(load_##T(a), load_##T(b)));                                           \
  }                                                                                               \
  static inline uint32_t max_##T(uint32_t a, uint32_t b) {                                        \
    return store_##T(greater(load_##T(a), load_##T(b)));                                          \
  }                                                                                               \
  static inline uint32_t minn_##T(uint32_t a, uint32_t b) {                                       \
    return store_##T(lesser_nan(load_##T(a), load_##T(b)));                                       \
  }                                                                                               \
  static inline uint32_t maxn_##T(uint32_t a, uint32_t b) {                                       \
    return store_##T(greater_nan(load_##T(a), load_##T(b)));                                      \
  }
ELEMENT(f16)
ELEMENT(bf16)
static inline uint32_t neg_half(uint32_t a) {
  return a ^ 0x8000u;
}
static inline uint32_t abs_half(uint32_t a) {
  return a & 0x7fffu;
}

#define LOW(v)  ((v)&0xffffu)
#define HIGH(v) ((v) >> 16)
#define LANES1(fn, f)              \
  PTX_FN1(fn, u32, u32, f(LOW(x))) \
  PTX_FN1(fn##_x2, u32, u32, f(LOW(x)) | f(HIGH(x)) << 16)
#define LANES2(fn, f)                           \
  PTX_FN2(fn, u32, u32, u32, f(LOW(x), LOW(y))) \
  PTX_FN2(fn##_x2, u32, u32, u32, f(LOW(x), LOW(y)) | f(HIGH(x), HIGH(y)) << 16)
#define LANES3(fn, f)                                        \
  PTX_FN3(fn, u32, u32, u32, u32, f(LOW(x), LOW(y), LOW(z))) \
  PTX_FN3(fn##_x2, u32, u32, u32, u32, f(LOW(x), LOW(y), LOW(z)) | f(HIGH(x), HIGH(y), HIGH(z)) << 16)
LANES1(exec_neg, neg_half)
LANES1(exec_abs, abs_half)
#define LANES(T)                  \
  LANES2(exec_add_##T, add_##T)   \
  LANES2(exec_sub_##T, sub_##T)   \
  LANES2(exec_mul_##T, mul_##T)   \
  LANES3(exec_fma_##T, fma_##T)   \
  LANES3(exec_relu_##T, relu_##T) \
  LANES2(exec_min_##T, min_##T)   \
  LANES2(exec_max_##T, max_##T)   \
  LANES2(exec_minn_##T, minn_##T) \
  LANES2(exec_maxn_##T, maxn_##T)
LANES(f16)
LANES(bf16)

/* clang-format off */
#define ROW(name, T, operands, fn) {name, PTX_##T, KVA_PTX_CLASS_FLOAT, operands, fn},
#define ROWS_TYPE(T, t, x2)                     \
  ROW("add", T, "ttt", exec_add_##t##x2)        \
  ROW("sub", T, "ttt", exec_sub_##t##x2)        \
  ROW("mul", T, "ttt", exec_mul_##t##x2)        \
  ROW("fma", T, "tttt", exec_fma_##t##x2)       \
  ROW("fma.relu", T, "tttt", exec_relu_##t##x2) \
  ROW("min", T, "ttt", exec_min_##t##x2)        \
  ROW("max", T, "ttt", exec_max_##t##x2)        \
  ROW("min.NaN", T, "ttt", exec_minn_##t##x2)   \
  ROW("max.NaN", T, "ttt", exec_maxn_##t##x2)   \
  ROW("neg", T, "tt", exec_neg##x2)             \
  ROW("abs", T, "tt", exec_abs##x2)
static const ptx_form forms[] = {ROWS_TYPE(F16, f16, ) ROWS_TYPE(BF16, bf16, ) ROWS_TYPE(F16X2, f16, _x2)
                                     ROWS_TYPE(BF16X2, bf16, _x2)};
/* clang-format on */
const ptx_forms kva_ptx_forms_half = {forms, sizeof forms / sizeof *forms};
