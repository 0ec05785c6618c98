/* Integer arithmetic. Sums and products wrap and are computed unsigned; the signed types share that code. Where PTX is
 * undefined: x / 0 gives all ones, x % 0 gives x. */
#include "runtime/ptxsim/exec.h"

typedef __int128 int128;
typedef unsigned __int128 uint128;

#define WRAPPING(T)                                                 \
  PTX_FN2(add_##T, T, T, T, (value_##T)(x + y))                     \
  PTX_FN2(sub_##T, T, T, T, (value_##T)(x - y))                     \
  PTX_FN2(mul_lo_##T, T, T, T, (value_##T)(x * (uint64_t)y))        \
  PTX_FN3(mad_lo_##T, T, T, T, T, (value_##T)(x * (uint64_t)y + z)) \
  PTX_FN1(neg_##T, T, T, (value_##T)(0u - x))
WRAPPING(u16)
WRAPPING(u32)
WRAPPING(u64)

#define ABS(T, U) PTX_FN1(abs_##T, U, T, (value_##U)(x < 0 ? 0u - (value_##U)x : (value_##U)x))
ABS(s16, u16)
ABS(s32, u32)
ABS(s64, u64)

#define ORDERED(T)                           \
  PTX_FN2(min_##T, T, T, T, (x < y ? x : y)) \
  PTX_FN2(max_##T, T, T, T, (x > y ? x : y))
ORDERED(u16)
ORDERED(s16)
ORDERED(u32)
ORDERED(s32)
ORDERED(u64)
ORDERED(s64)

#define DIVIDE_UNSIGNED(T)                                          \
  PTX_FN2(div_##T, T, T, T, (value_##T)(y ? x / y : ~(value_##T)0)) \
  PTX_FN2(rem_##T, T, T, T, (value_##T)(y ? x % y : x))
DIVIDE_UNSIGNED(u16)
DIVIDE_UNSIGNED(u32)
DIVIDE_UNSIGNED(u64)

/* INT_MIN / -1 wraps to itself; C leaves it undefined. */
#define DIVIDE_SIGNED(T, U)                                                        \
  static inline value_##T quotient_##T(value_##T x, value_##T y) {                 \
    return y == -1 ? (value_##T)(0u - (value_##U)x) : (value_##T)(y ? x / y : -1); \
  }                                                                                \
  static inline value_##T remainder_##T(value_##T x, value_##T y) {                \
    return y == -1 ? 0 : (value_##T)(y ? x % y : x);                               \
  }                                                                                \
  PTX_FN2(div_##T, T, T, T, quotient_##T(x, y))                                    \
  PTX_FN2(rem_##T, T, T, T, remainder_##T(x, y))
DIVIDE_SIGNED(s16, u16)
DIVIDE_SIGNED(s32, u32)
DIVIDE_SIGNED(s64, u64)

#define WIDE(T, W, UW)                                                     \
  PTX_FN2(mul_wide_##T, W, T, T, (value_##W)((value_##W)x * (value_##W)y)) \
  PTX_FN3(mad_wide_##T, W, T, T, UW, (value_##W)((value_##UW)((value_##W)x * (value_##W)y) + z))
WIDE(u16, u32, u32)
WIDE(s16, s32, u32)
WIDE(u32, u64, u64)
WIDE(s32, s64, u64)

#define HIGH(T, W, bits, U)                                        \
  PTX_FN2(mul_hi_##T, T, T, T, (value_##T)((W)x * (W)y >> (bits))) \
  PTX_FN3(mad_hi_##T, U, T, T, U, (value_##U)((value_##U)((W)x * (W)y >> (bits)) + z))
HIGH(u16, uint32_t, 16, u16)
HIGH(s16, int32_t, 16, u16)
HIGH(u32, uint64_t, 32, u32)
HIGH(s32, int64_t, 32, u32)
HIGH(u64, uint128, 64, u64)
HIGH(s64, int128, 64, u64)

/* Products of the low 24 bits. */
static inline int64_t signed24(uint32_t x) {
  return (int32_t)(x << 8) >> 8;
}
PTX_FN2(mul24_u32, u32, u32, u32, (x & 0xffffffu) * (y & 0xffffffu))
PTX_FN2(mul24_s32, u32, u32, u32, (uint32_t)(signed24(x) * signed24(y)))
PTX_FN3(mad24_u32, u32, u32, u32, u32, (x & 0xffffffu) * (y & 0xffffffu) + z)
PTX_FN3(mad24_s32, u32, u32, u32, u32, (uint32_t)(signed24(x) * signed24(y)) + z)

#define DISTANCE(T, U) \
  PTX_FN3(sad_##T, U, T, T, U, (value_##U)(z + (x < y ? (value_##U)y - (value_##U)x : (value_##U)x - (value_##U)y)))
DISTANCE(u16, u16)
DISTANCE(s16, u16)
DISTANCE(u32, u32)
DISTANCE(s32, u32)
DISTANCE(u64, u64)
DISTANCE(s64, u64)

static inline int32_t clamp32(int64_t v) {
  return v > INT32_MAX ? INT32_MAX : v < INT32_MIN ? INT32_MIN : (int32_t)v;
}
PTX_FN2(add_sat_s32, s32, s32, s32, clamp32((int64_t)x + y))
PTX_FN2(sub_sat_s32, s32, s32, s32, clamp32((int64_t)x - y))

/* Extended precision: sums and differences that read and write a carry or borrow per lane. */
#define CARRY(fn, T, subtract, reads, writes)                                                             \
  static void fn(ptx_warp *w, const ptx_ins *i, uint32_t mask) {                                          \
    const lane_##T *a = PTX_REG(T, w, i->src[0]), *b = PTX_REG(T, w, i->src[1]);                          \
    lane_##T *d = PTX_REG(T, w, i->dst);                                                                  \
    uint32_t in = (reads) ? w->preds[PTX_CARRY] : 0, out = 0;                                             \
    for (int l = 0; l < PTX_LANES; l++) {                                                                 \
      const value_##T x = a[l], y = b[l], carry = in >> l & 1;                                            \
      const value_##T first = (subtract) ? x - y : x + y, r = (subtract) ? first - carry : first + carry; \
      bool over = (subtract) ? x < y || first < carry : first < x || r < first;                           \
      out |= (uint32_t)over << l;                                                                         \
      if (mask >> l & 1) d[l] = r;                                                                        \
    }                                                                                                     \
    if (writes) ptx_set_pred(w, PTX_CARRY, out, mask);                                                    \
  }
#define CARRIES(T)                         \
  CARRY(add_cc_##T, T, false, false, true) \
  CARRY(addc_##T, T, false, true, false)   \
  CARRY(addc_cc_##T, T, false, true, true) \
  CARRY(sub_cc_##T, T, true, false, true)  \
  CARRY(subc_##T, T, true, true, false)    \
  CARRY(subc_cc_##T, T, true, true, true)
CARRIES(u32)
CARRIES(u64)

/* Two 16-bit values in one register. */
static inline uint32_t pack(uint32_t lo, uint32_t hi) {
  return (lo & 0xffffu) | hi << 16;
}
static inline int32_t low(uint32_t v) {
  return (int16_t)v;
}
static inline int32_t high(uint32_t v) {
  return (int16_t)(v >> 16);
}
PTX_FN2(add_x2, u32, u32, u32, pack(x + y, (x >> 16) + (y >> 16)))
#define PICK(a, b, less) ((a)less(b) ? (a) : (b))
PTX_FN2(min_u16x2, u32, u32, u32, pack(PICK(x & 0xffffu, y & 0xffffu, <), PICK(x >> 16, y >> 16, <)))
PTX_FN2(max_u16x2, u32, u32, u32, pack(PICK(x & 0xffffu, y & 0xffffu, >), PICK(x >> 16, y >> 16, >)))
PTX_FN2(min_s16x2, u32, u32, u32, pack((uint32_t)PICK(low(x), low(y), <), (uint32_t)PICK(high(x), high(y), <)))
PTX_FN2(max_s16x2, u32, u32, u32, pack((uint32_t)PICK(low(x), low(y), >), (uint32_t)PICK(high(x), high(y), >)))

/* clang-format off */
#define ROW(name, T, operands, fn) {name, PTX_##T, KVA_PTX_CLASS_INTEGER, operands, fn},
#define ROWS_WRAPPING(U, S, B, u)      \
  ROW("add", U, "ttt", add_##u)        \
  ROW("add", S, "ttt", add_##u)        \
  ROW("sub", U, "ttt", sub_##u)        \
  ROW("sub", S, "ttt", sub_##u)        \
  ROW("mul.lo", U, "ttt", mul_lo_##u)  \
  ROW("mul.lo", S, "ttt", mul_lo_##u)  \
  ROW("mad.lo", U, "tttt", mad_lo_##u) \
  ROW("mad.lo", S, "tttt", mad_lo_##u) \
  ROW("neg", S, "tt", neg_##u)
#define ROWS_EACH(T, t)                \
  ROW("min", T, "ttt", min_##t)        \
  ROW("max", T, "ttt", max_##t)        \
  ROW("div", T, "ttt", div_##t)        \
  ROW("rem", T, "ttt", rem_##t)        \
  ROW("mul.hi", T, "ttt", mul_hi_##t)  \
  ROW("mad.hi", T, "tttt", mad_hi_##t) \
  ROW("sad", T, "tttt", sad_##t)
#define ROWS_WIDE(T, t)                   \
  ROW("mul.wide", T, "wtt", mul_wide_##t) \
  ROW("mad.wide", T, "wttw", mad_wide_##t)

#define ROWS_CARRY(T, t)                \
  ROW("add.cc", T, "ttt", add_cc_##t)   \
  ROW("addc", T, "ttt", addc_##t)       \
  ROW("addc.cc", T, "ttt", addc_cc_##t) \
  ROW("sub.cc", T, "ttt", sub_cc_##t)   \
  ROW("subc", T, "ttt", subc_##t)       \
  ROW("subc.cc", T, "ttt", subc_cc_##t)

static const ptx_form forms[] = {
    ROWS_CARRY(U32, u32) ROWS_CARRY(S32, u32) ROWS_CARRY(U64, u64) ROWS_CARRY(S64, u64)
        ROWS_WRAPPING(U16, S16, B16, u16) ROWS_WRAPPING(U32, S32, B32, u32) ROWS_WRAPPING(U64, S64, B64, u64)
            ROWS_EACH(U16, u16) ROWS_EACH(S16, s16) ROWS_EACH(U32, u32) ROWS_EACH(S32, s32) ROWS_EACH(U64, u64)
                ROWS_EACH(S64, s64) ROWS_WIDE(U16, u16) ROWS_WIDE(S16, s16) ROWS_WIDE(U32, u32) ROWS_WIDE(S32, s32)
                    ROW("abs", S16, "tt", abs_s16) ROW("abs", S32, "tt", abs_s32) ROW("abs", S64, "tt", abs_s64)
                        ROW("mul24.lo", U32, "ttt", mul24_u32) ROW("mul24.lo", S32, "ttt", mul24_s32)
                            ROW("mad24.lo", U32, "tttt", mad24_u32) ROW("mad24.lo", S32, "tttt", mad24_s32)
                                ROW("add.sat", S32, "ttt", add_sat_s32) ROW("sub.sat", S32, "ttt", sub_sat_s32)
                                    ROW("add", U16X2, "ttt", add_x2) ROW("add", S16X2, "ttt", add_x2)
                                        ROW("min", U16X2, "ttt", min_u16x2) ROW("max", U16X2, "ttt", max_u16x2)
                                            ROW("min", S16X2, "ttt", min_s16x2) ROW("max", S16X2, "ttt", max_s16x2)};
/* clang-format on */
const ptx_forms kva_ptx_forms_integer = {forms, sizeof forms / sizeof *forms};
