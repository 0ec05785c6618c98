/* Every arithmetic instruction and type against C, on random and on special values: one kernel for each row of the
 * table, each thread one triple of 64-bit inputs. */
#include "tests/ptxsim/ptx_test.h"

#include <math.h>

typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef float f32;
typedef double f64;
typedef __int128 s128;
typedef unsigned __int128 u128;

enum { TRIPLES = 1024 };

static f32 f32_of(u64 v) {
  u32 b = (u32)v;
  f32 f;
  memcpy(&f, &b, 4);
  return f;
}
static f64 f64_of(u64 v) {
  f64 f;
  memcpy(&f, &v, 8);
  return f;
}
static u64 of_f32(f32 f) {
  u32 b;
  memcpy(&b, &f, 4);
  return b;
}
static u64 of_f64(f64 f) {
  u64 b;
  memcpy(&b, &f, 8);
  return b;
}
static f32 flush(f32 v) {
  return fabsf(v) < 0x1p-126f ? copysignf(0, v) : v;
}
static f32 h_of(u64 v) {
  return kva_f16_to_f32((u16)v);
}
static f32 b_of(u64 v) {
  return kva_bf16_to_f32((u16)v);
}
static u64 of_h(f64 v) {
  u16 b;
  kva_store_f64(KVA_F16, &b, 0, v);
  return b;
}
static u64 of_b(f64 v) {
  u16 b;
  kva_store_f64(KVA_BF16, &b, 0, v);
  return b;
}

/* How results are compared: bits, or floats of a type where every NaN is equal. */
enum { BITS, F16, BF16, F32, F64, PAIR16, PAIRB };

typedef struct row {
  const char *op;
  const char *widths; /* of result and sources: h 16, r 32, d 64, p predicate, i the immediate of c's low byte */
  int result;
  u64 (*expect)(u64 a, u64 b, u64 c);
} row;

#define FN(name, E)                      \
  static u64 name(u64 a, u64 b, u64 c) { \
    (void)a, (void)b, (void)c;           \
    return (u64)(E);                     \
  }
#define INTEGER_FNS(T, S, U, bits, WS, WU)                                                \
  FN(add_##T, (U)((U)a + (U)b))                                                           \
  FN(sub_##T, (U)((U)a - (U)b))                                                           \
  FN(mul_##T, (U)((WU)(U)a * (U)b))                                                       \
  FN(mad_##T, (U)((WU)(U)a * (U)b + (U)c))                                                \
  FN(hiu_##T, (U)((WU)(U)a * (U)b >> bits))                                               \
  FN(his_##T, (U)((WS)(S)a * (S)b >> bits))                                               \
  FN(divu_##T, (U)((U)b ? (U)a / (U)b : (U)~0ull))                                        \
  FN(divs_##T, (U)((S)b == 0 ? (U)~0ull : (S)b == -1 ? (U)(0 - (U)a) : (U)((S)a / (S)b))) \
  FN(remu_##T, (U)((U)b ? (U)a % (U)b : (U)a))                                            \
  FN(rems_##T, (U)((S)b == 0 ? (U)a : (S)b == -1 ? 0 : (U)((S)a % (S)b)))                 \
  FN(minu_##T, (U)a < (U)b ? (U)a : (U)b)                                                 \
  FN(maxu_##T, (U)a > (U)b ? (U)a : (U)b)                                                 \
  FN(mins_##T, (U)((S)a < (S)b ? (S)a : (S)b))                                            \
  FN(maxs_##T, (U)((S)a > (S)b ? (S)a : (S)b))                                            \
  FN(neg_##T, (U)(0 - (U)a))                                                              \
  FN(abs_##T, (U)((S)a < 0 ? (U)(0 - (U)a) : (U)a))                                       \
  FN(and_##T, (U)(a & b))                                                                 \
  FN(or_##T, (U)(a | b))                                                                  \
  FN(xor_##T, (U)(a ^ b))                                                                 \
  FN(not_##T, (U)~a)                                                                      \
  FN(shl_##T, (U)((u32)b >= bits ? 0 : (U)((U)a << ((u32)b % bits))))                     \
  FN(shru_##T, (U)((u32)b >= bits ? 0 : (U)((U)a >> ((u32)b % bits))))                    \
  FN(shrs_##T, (U)((S)a >> ((u32)b >= bits ? bits - 1 : (u32)b)))                         \
  FN(lts_##T, (S)a < (S)b)                                                                \
  FN(leu_##T, (U)a <= (U)b)                                                               \
  FN(gts_##T, (S)a > (S)b)                                                                \
  FN(geu_##T, (U)a >= (U)b)                                                               \
  FN(eq_##T, (U)a == (U)b)                                                                \
  FN(ne_##T, (U)a != (U)b)                                                                \
  FN(sadu_##T, (U)((U)c + ((U)a < (U)b ? (U)b - (U)a : (U)a - (U)b)))
INTEGER_FNS(16, s16, u16, 16, s32, u32)
INTEGER_FNS(32, s32, u32, 32, s64, u64)
INTEGER_FNS(64, s64, u64, 64, s128, u128)
#define INTEGER_ROWS(T, w, cw)                                                                                       \
  {"add.s" #T, w w w, BITS, add_##T}, {"add.u" #T, w w w, BITS, add_##T}, {"sub.s" #T, w w w, BITS, sub_##T},        \
      {"mul.lo.s" #T, w w w, BITS, mul_##T}, {"mul.lo.u" #T, w w w, BITS, mul_##T},                                  \
      {"mad.lo.s" #T, w w w w, BITS, mad_##T}, {"mad.lo.u" #T, w w w w, BITS, mad_##T},                              \
      {"mul.hi.u" #T, w w w, BITS, hiu_##T}, {"mul.hi.s" #T, w w w, BITS, his_##T},                                  \
      {"div.u" #T, w w w, BITS, divu_##T}, {"div.s" #T, w w w, BITS, divs_##T}, {"rem.u" #T, w w w, BITS, remu_##T}, \
      {"rem.s" #T, w w w, BITS, rems_##T}, {"min.u" #T, w w w, BITS, minu_##T}, {"max.u" #T, w w w, BITS, maxu_##T}, \
      {"min.s" #T, w w w, BITS, mins_##T}, {"max.s" #T, w w w, BITS, maxs_##T}, {"neg.s" #T, w w, BITS, neg_##T},    \
      {"abs.s" #T, w w, BITS, abs_##T}, {"and.b" #T, w w w, BITS, and_##T}, {"or.b" #T, w w w, BITS, or_##T},        \
      {"xor.b" #T, w w w, BITS, xor_##T}, {"not.b" #T, w w, BITS, not_##T}, {"shl.b" #T, w w "r", BITS, shl_##T},    \
      {"shr.u" #T, w w "r", BITS, shru_##T}, {"shr.b" #T, w w "r", BITS, shru_##T},                                  \
      {"shr.s" #T, w w "r", BITS, shrs_##T}, {"setp.lt.s" #T, "p" w w, BITS, lts_##T},                               \
      {"setp.le.u" #T, "p" w w, BITS, leu_##T}, {"setp.gt.s" #T, "p" w w, BITS, gts_##T},                            \
      {"setp.ge.u" #T, "p" w w, BITS, geu_##T}, {"setp.eq.b" #T, "p" w w, BITS, eq_##T},                             \
      {"setp.ne.s" #T, "p" w w, BITS, ne_##T}, {                                                                     \
    "sad.u" #T, w w w w, BITS, sadu_##T                                                                              \
  }

FN(wide_s16, (u32)((s32)(s16)a *(s16)b))
FN(wide_u16, (u32)(u16)a *(u16)b)
FN(wide_s32, (s64)(s32)a *(s32)b)
FN(wide_u32, (u64)(u32)a *(u32)b)
FN(madwide_s32, (u64)((s64)(s32)a *(s32)b) + c)
FN(madwide_u32, (u64)(u32)a *(u32)b + c)
FN(mul24_s32, (u32)((s64)((s32)((u32)a << 8) >> 8) * ((s32)((u32)b << 8) >> 8)))
FN(popc32, __builtin_popcount((u32)a))
FN(popc64, __builtin_popcountll(a))
FN(clz32, (u32)a ? __builtin_clz((u32)a) : 32)
FN(clz64, a ? __builtin_clzll(a) : 64)
static u64 brev(u64 v, int bits) {
  u64 r = 0;
  for (int i = 0; i < bits; i++) r |= (v >> i & 1) << (bits - 1 - i);
  return r;
}
FN(brev32, brev((u32)a, 32))
FN(brev64, brev(a, 64))
static u64 bfe(u64 v, int width, u32 pos, u32 len, bool sign) {
  pos &= 255, len &= 255;
  u32 msb = (u32)width - 1, last = pos + len - 1 < msb ? pos + len - 1 : msb; /* PTX ISA, bfe: pseudo-code */
  u64 top = !sign || len == 0 ? 0 : v >> last & 1, d = 0;
  for (u32 i = 0; i <= msb; i++) d |= (i < len && pos + i <= msb ? v >> (pos + i) & 1 : top) << i;
  return d;
}
FN(bfe_u32, bfe((u32)a, 32, (u32)b, (u32)c, false))
FN(bfe_s32, bfe((u32)a, 32, (u32)b, (u32)c, true))
FN(bfe_u64, bfe(a, 64, (u32)b, (u32)c, false))
FN(bfe_s64, bfe(a, 64, (u32)b, (u32)c, true))
FN(bfind_u32, (u32)a ? 31u - (u32)__builtin_clz((u32)a) : 0xffffffffu)
FN(shf_l_wrap, (u32)(((u64)(u32)b << 32 | (u32)a) << (c & 31) >> 32))
FN(shf_r_wrap, (u32)(((u64)(u32)b << 32 | (u32)a) >> (c & 31)))
FN(shf_r_clamp, (u32)(((u64)(u32)b << 32 | (u32)a) >> ((u32)c > 32 ? 32 : (u32)c)))
FN(shf_l_clamp, (u32)c >= 32 ? (u32)a : (u32)(((u64)(u32)b << 32 | (u32)a) << (c & 31) >> 32))
static u32 prmt(u32 a, u32 b, u32 s) {
  u8 bytes[8], out[4];
  memcpy(bytes, &a, 4), memcpy(bytes + 4, &b, 4);
  for (int k = 0; k < 4; k++) {
    u8 v = bytes[s >> 4 * k & 7];
    out[k] = s >> 4 * k & 8 ? (u8)((s8)v >> 7) : v;
  }
  memcpy(&a, out, 4);
  return a;
}
FN(prmt32, prmt((u32)a, (u32)b, (u32)c))
FN(addsat, (u32)((s64)(s32)a + (s32)b > INT32_MAX   ? INT32_MAX
                 : (s64)(s32)a + (s32)b < INT32_MIN ? INT32_MIN
                                                    : (s32)a + (s64)(s32)b))

#define FLOAT_FNS(T, of, to, FUSED, ROOT, fl)                                                         \
  FN(add_##T, to(fl(fl(of(a)) + fl(of(b)))))                                                          \
  FN(sub_##T, to(fl(fl(of(a)) - fl(of(b)))))                                                          \
  FN(mul_##T, to(fl(fl(of(a)) * fl(of(b)))))                                                          \
  FN(div_##T, to(fl(fl(of(a)) / fl(of(b)))))                                                          \
  FN(fma_##T, to(fl(FUSED(fl(of(a)), fl(of(b)), fl(of(c))))))                                         \
  FN(sqrt_##T, to(fl(ROOT(fl(of(a))))))                                                               \
  FN(rcp_##T, to(fl(1 / fl(of(a)))))                                                                  \
  FN(min_##T, isnan(of(a))                                                          ? to(fl(of(b)))   \
              : isnan(of(b)) || of(a) < of(b) || (of(a) == of(b) && signbit(of(a))) ? to(fl(of(a)))   \
                                                                                    : to(fl(of(b))))  \
  FN(max_##T, isnan(of(a))                                                           ? to(fl(of(b)))  \
              : isnan(of(b)) || of(a) > of(b) || (of(a) == of(b) && !signbit(of(a))) ? to(fl(of(a)))  \
                                                                                     : to(fl(of(b)))) \
  FN(lt_##T, fl(of(a)) < fl(of(b)))                                                                   \
  FN(eq_##T, fl(of(a)) == fl(of(b)))                                                                  \
  FN(neu_##T, fl(of(a)) != fl(of(b)))                                                                 \
  FN(ne_##T, fl(of(a)) < fl(of(b)) || fl(of(a)) > fl(of(b)))                                          \
  FN(geu_##T, !(fl(of(a)) < fl(of(b))))                                                               \
  FN(gtu_##T, !(fl(of(a)) <= fl(of(b))))                                                              \
  FN(nan_##T, isnan(of(a)) || isnan(of(b)))
#define SAME(v) (v)
FLOAT_FNS(f32, f32_of, of_f32, fmaf, sqrtf, SAME)
FLOAT_FNS(f32z, f32_of, of_f32, fmaf, sqrtf, flush)
FLOAT_FNS(f64, f64_of, of_f64, fma, sqrt, SAME)
#define FLOAT_ROWS(T, ptx, w, r, rn)                                                                                   \
  {"add" rn "." ptx, w w w, r, add_##T}, {"sub" rn "." ptx, w w w, r, sub_##T}, {"mul" rn "." ptx, w w w, r, mul_##T}, \
      {"div.rn" rn "." ptx, w w w, r, div_##T}, {"fma.rn" rn "." ptx, w w w w, r, fma_##T},                            \
      {"sqrt.rn" rn "." ptx, w w, r, sqrt_##T}, {"rcp.rn" rn "." ptx, w w, r, rcp_##T},                                \
      {"min" rn "." ptx, w w w, r, min_##T}, {"max" rn "." ptx, w w w, r, max_##T},                                    \
      {"setp.lt" rn "." ptx, "p" w w, BITS, lt_##T}, {"setp.eq" rn "." ptx, "p" w w, BITS, eq_##T},                    \
      {"setp.neu" rn "." ptx, "p" w w, BITS, neu_##T}, {"setp.ne" rn "." ptx, "p" w w, BITS, ne_##T},                  \
      {"setp.geu" rn "." ptx, "p" w w, BITS, geu_##T}, {"setp.gtu" rn "." ptx, "p" w w, BITS, gtu_##T}, {              \
    "setp.nan" rn "." ptx, "p" w w, BITS, nan_##T                                                                      \
  }
FN(neg_f32, of_f32(f32_of(a)) ^ 0x80000000u)
FN(abs_f32, of_f32(f32_of(a)) & 0x7fffffffu)
FN(neg_f64, a ^ 1ull << 63)
FN(abs_f64, a & ~(1ull << 63))
FN(copysign_f32, (u32)((a & 0x80000000u) | (b & 0x7fffffffu)))
FN(sat_f32, of_f32(f32_of(a) >= 1 ? 1 : f32_of(a) > 0 ? f32_of(a) : 0))

/* Sums and products of halves are exact in double; fma in long double is for all but sums that span 64 bits. */
#define HALF_FNS(T, of, to)                                                                               \
  FN(add_##T, to((f64)of(a) + (f64)of(b)))                                                                \
  FN(sub_##T, to((f64)of(a) - (f64)of(b)))                                                                \
  FN(mul_##T, to((f64)of(a) * (f64)of(b)))                                                                \
  FN(lt_##T, of(a) < of(b))                                                                               \
  FN(neu_##T, of(a) != of(b))                                                                             \
  FN(min_##T, isnan(of(a))                                                          ? to((f64)of(b))      \
              : isnan(of(b)) || of(a) < of(b) || (of(a) == of(b) && signbit(of(a))) ? to((f64)of(a))      \
                                                                                    : to((f64)of(b)))     \
  FN(add2_##T, add_##T(a & 0xffff, b & 0xffff, 0) | add_##T(a >> 16 & 0xffff, b >> 16 & 0xffff, 0) << 16) \
  FN(mul2_##T, mul_##T(a & 0xffff, b & 0xffff, 0) | mul_##T(a >> 16 & 0xffff, b >> 16 & 0xffff, 0) << 16)
HALF_FNS(f16, h_of, of_h)
HALF_FNS(bf16, b_of, of_b)
#define HALF_ROWS(T, r, pair)                                                                                       \
  {"add.rn." #T, "hhh", r, add_##T}, {"sub.rn." #T, "hhh", r, sub_##T}, {"mul.rn." #T, "hhh", r, mul_##T},          \
      {"setp.lt." #T, "phh", BITS, lt_##T}, {"setp.neu." #T, "phh", BITS, neu_##T}, {"min." #T, "hhh", r, min_##T}, \
      {"add.rn." #T "x2", "rrr", pair, add2_##T}, {                                                                 \
    "mul.rn." #T "x2", "rrr", pair, mul2_##T                                                                        \
  }

/* Conversions: saturating to integers. */
static u64 to_int(f64 v, f64 (*rounded)(f64), int bits, bool sign) {
  if (isnan(v)) return bits == 64 ? 1ull << 63 : 0;
  long double r = (long double)rounded(v), hi = ldexpl(1, sign ? bits - 1 : bits) - 1,
              lo = sign ? -ldexpl(1, bits - 1) : 0;
  if (r > hi) r = hi;
  if (r < lo) r = lo;
  u64 out = r < 0 ? (u64)(s64)r : (u64)r;
  return bits == 64 ? out : out & ((1ull << bits) - 1);
}
FN(s32_f32, to_int((f64)f32_of(a), trunc, 32, true))
FN(u32_f32, to_int((f64)f32_of(a), trunc, 32, false))
FN(s64_f32, to_int((f64)f32_of(a), trunc, 64, true))
FN(u64_f64, to_int(f64_of(a), trunc, 64, false))
FN(s32n_f64, to_int(f64_of(a), nearbyint, 32, true))
FN(s16_f32, to_int((f64)f32_of(a), trunc, 16, true))
FN(u16m_f32, to_int((f64)f32_of(a), floor, 16, false))
FN(s32_f16, to_int((f64)h_of(a), trunc, 32, true))
FN(f32_s32, of_f32((f32)(s32)a))
FN(f32_u32, of_f32((f32)(u32)a))
FN(f32_s64, of_f32((f32)(s64)a))
FN(f32_u64, of_f32((f32)a))
FN(f64_s64, of_f64((f64)(s64)a))
FN(f64_u32, of_f64((f64)(u32)a))
FN(f16_s32, of_h((f64)(s32)a))
FN(f16_f32, of_h((f64)f32_of(a)))
FN(f16_f64, of_h(f64_of(a)))
FN(bf16_f32, of_b((f64)f32_of(a)))
FN(f32_f16, of_f32(h_of(a)))
FN(f32_bf16, of_f32(b_of(a)))
FN(f64_f16, of_f64((f64)h_of(a)))
FN(f32_f64, of_f32((f32)f64_of(a)))
FN(f64_f32, of_f64((f64)f32_of(a)))
FN(rni_f32, of_f32(rintf(f32_of(a))))
FN(rzi_f32, of_f32(truncf(f32_of(a))))
FN(rmi_f64, of_f64(floor(f64_of(a))))
FN(rpi_f32, of_f32(ceilf(f32_of(a))))
FN(rzi_f16, of_h((f64)truncf(h_of(a))))
FN(s64_s32, (s64)(s32)a)
FN(u64_u32, (u32)a)
FN(s64_s16, (s64)(s16)a)
FN(s32_s8, (u32)(s32)(s8)a)
FN(s16_s8, (u16)(s16)(s8)a)
FN(u8_u32, (u8)a)
FN(sat_u8_s32, (s32)a<0 ? 0 : (s32)a> 255 ? 255 : (s32)a)
FN(sat_s16_s32, (u16)((s32)a<INT16_MIN ? INT16_MIN : (s32)a> INT16_MAX ? INT16_MAX : (s32)a))
FN(pack_bf16, of_b((f64)f32_of(a)) << 16 | of_b((f64)f32_of(b)))
FN(pack_f16, of_h((f64)f32_of(a)) << 16 | of_h((f64)f32_of(b)))

static const row rows[] = {
    INTEGER_ROWS(16, "h", "h"),
    INTEGER_ROWS(32, "r", "r"),
    INTEGER_ROWS(64, "d", "d"),
    {"mul.wide.s16", "rhh", BITS, wide_s16},
    {"mul.wide.u16", "rhh", BITS, wide_u16},
    {"mul.wide.s32", "drr", BITS, wide_s32},
    {"mul.wide.u32", "drr", BITS, wide_u32},
    {"mad.wide.s32", "drrd", BITS, madwide_s32},
    {"mad.wide.u32", "drrd", BITS, madwide_u32},
    {"mul24.lo.s32", "rrr", BITS, mul24_s32},
    {"popc.b32", "rr", BITS, popc32},
    {"popc.b64", "rd", BITS, popc64},
    {"clz.b32", "rr", BITS, clz32},
    {"clz.b64", "rd", BITS, clz64},
    {"brev.b32", "rr", BITS, brev32},
    {"brev.b64", "dd", BITS, brev64},
    {"bfe.u32", "rrrr", BITS, bfe_u32},
    {"bfe.s32", "rrrr", BITS, bfe_s32},
    {"bfe.u64", "ddrr", BITS, bfe_u64},
    {"bfe.s64", "ddrr", BITS, bfe_s64},
    {"bfind.u32", "rr", BITS, bfind_u32},
    {"shf.l.wrap.b32", "rrrr", BITS, shf_l_wrap},
    {"shf.r.wrap.b32", "rrrr", BITS, shf_r_wrap},
    {"shf.r.clamp.b32", "rrrr", BITS, shf_r_clamp},
    {"shf.l.clamp.b32", "rrrr", BITS, shf_l_clamp},
    {"prmt.b32", "rrrr", BITS, prmt32},
    {"add.sat.s32", "rrr", BITS, addsat},
    FLOAT_ROWS(f32, "f32", "r", F32, ""),
    FLOAT_ROWS(f32z, "f32", "r", F32, ".ftz"),
    FLOAT_ROWS(f64, "f64", "d", F64, ""),
    {"neg.f32", "rr", F32, neg_f32},
    {"abs.f32", "rr", F32, abs_f32},
    {"neg.f64", "dd", F64, neg_f64},
    {"abs.f64", "dd", F64, abs_f64},
    {"copysign.f32", "rrr", F32, copysign_f32},
    {"cvt.sat.f32.f32", "rr", F32, sat_f32},
    HALF_ROWS(f16, F16, PAIR16),
    HALF_ROWS(bf16, BF16, PAIRB),
    {"cvt.rzi.s32.f32", "rr", BITS, s32_f32},
    {"cvt.rzi.u32.f32", "rr", BITS, u32_f32},
    {"cvt.rzi.s64.f32", "dr", BITS, s64_f32},
    {"cvt.rzi.u64.f64", "dd", BITS, u64_f64},
    {"cvt.rni.s32.f64", "rd", BITS, s32n_f64},
    {"cvt.rzi.s16.f32", "hr", BITS, s16_f32},
    {"cvt.rmi.u16.f32", "hr", BITS, u16m_f32},
    {"cvt.rzi.s32.f16", "rh", BITS, s32_f16},
    {"cvt.rn.f32.s32", "rr", F32, f32_s32},
    {"cvt.rn.f32.u32", "rr", F32, f32_u32},
    {"cvt.rn.f32.s64", "rd", F32, f32_s64},
    {"cvt.rn.f32.u64", "rd", F32, f32_u64},
    {"cvt.rn.f64.s64", "dd", F64, f64_s64},
    {"cvt.rn.f64.u32", "dr", F64, f64_u32},
    {"cvt.rn.f16.s32", "hr", F16, f16_s32},
    {"cvt.rn.f16.f32", "hr", F16, f16_f32},
    {"cvt.rn.f16.f64", "hd", F16, f16_f64},
    {"cvt.rn.bf16.f32", "hr", BF16, bf16_f32},
    {"cvt.f32.f16", "rh", F32, f32_f16},
    {"cvt.f32.bf16", "rh", F32, f32_bf16},
    {"cvt.f64.f16", "dh", F64, f64_f16},
    {"cvt.rn.f32.f64", "rd", F32, f32_f64},
    {"cvt.f64.f32", "dr", F64, f64_f32},
    {"cvt.rni.f32.f32", "rr", F32, rni_f32},
    {"cvt.rzi.f32.f32", "rr", F32, rzi_f32},
    {"cvt.rmi.f64.f64", "dd", F64, rmi_f64},
    {"cvt.rpi.f32.f32", "rr", F32, rpi_f32},
    {"cvt.rzi.f16.f16", "hh", F16, rzi_f16},
    {"cvt.s64.s32", "dr", BITS, s64_s32},
    {"cvt.u64.u32", "dr", BITS, u64_u32},
    {"cvt.s64.s16", "dh", BITS, s64_s16},
    {"cvt.s32.s8", "rr", BITS, s32_s8},
    {"cvt.s16.s8", "hr", BITS, s16_s8},
    {"cvt.u8.u32", "hr", BITS, u8_u32},
    {"cvt.sat.u8.s32", "hr", BITS, sat_u8_s32},
    {"cvt.sat.s16.s32", "hr", BITS, sat_s16_s32},
    {"cvt.rn.bf16x2.f32", "rrr", PAIRB, pack_bf16},
    {"cvt.rn.f16x2.f32", "rrr", PAIR16, pack_f16},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static void add_kernel(kva_text *t, const row *r, int index) {
  kva_text_add(t,
               ".entry k%d(.param .u64 in, .param .u64 out) {\n .reg .b16 %%h<4>; .reg .b32 %%r<9>; .reg .b64 %%d<9>; "
               ".reg .pred %%p<2>;\n mov.u32 %%r8, %%tid.x; ld.param.u64 %%d4, [in]; ld.param.u64 %%d5, [out];\n"
               " mad.wide.u32 %%d4, %%r8, 24, %%d4; mad.wide.u32 %%d5, %%r8, 8, %%d5;\n",
               index);
  size_t n = strlen(r->widths) - 1;
  for (size_t k = 1; k <= n; k++) {
    kva_text_add(t, " ld.global.b64 %%d%zu, [%%d4+%zu];\n", k, 8 * (k - 1));
    if (r->widths[k] != 'd')
      kva_text_add(t, " cvt.u%d.u64 %%%c%zu, %%d%zu;\n", r->widths[k] == 'h' ? 16 : 32, r->widths[k], k, k);
  }
  kva_text_add(t, " %s %%%c0", r->op, r->widths[0]);
  for (size_t k = 1; k <= n; k++) kva_text_add(t, ", %%%c%zu", r->widths[k], k);
  kva_text_add(t, ";\n");
  if (r->widths[0] == 'p')
    kva_text_add(t, " selp.b64 %%d0, 1, 0, %%p0;\n");
  else if (r->widths[0] != 'd')
    kva_text_add(t, " cvt.u64.u%d %%d0, %%%c0;\n", r->widths[0] == 'h' ? 16 : 32, r->widths[0]);
  kva_text_add(t, " st.global.b64 [%%d5], %%d0;\n ret;\n}\n");
}

/* Random bits, small integers, and values at the edges of the types, as floats of each width too. */
static u64 input(uint64_t *state) {
  static const u64 special[] = {0,
                                1,
                                2,
                                31,
                                32,
                                33,
                                63,
                                64,
                                0x7f,
                                0x80,
                                0xff,
                                0x7fff,
                                0x8000,
                                0xffff,
                                0x7fffffff,
                                0x80000000,
                                0xffffffff,
                                0x7fffffffffffffff,
                                0x8000000000000000,
                                0xffffffffffffffff,
                                0x3f800000,
                                0xbf800000,
                                0x7f800000,
                                0xff800000,
                                0x7fc00000,
                                0x00000001,
                                0x80000001,
                                0x00800000,
                                0x3f000000,
                                0x40200000,
                                0x4f000000,
                                0x3ff0000000000000,
                                0x7ff0000000000000,
                                0x7ff8000000000000,
                                0x0000000000000001,
                                0x3fe0000000000000,
                                0x4004000000000000,
                                0x3c00,
                                0xbc00,
                                0x7c00,
                                0x7e00,
                                0x3f80,
                                0x7f80,
                                0x7bff,
                                0x38003c00,
                                0x1000001000000001 /* rounds twice through double */};
  u64 r = ptx_random(state);
  switch (r & 7) {
  case 0: return special[(r >> 8) % (sizeof special / sizeof *special)];
  case 1: return (r >> 8) % 100;
  case 2: return 0 - (r >> 8) % 100;
  case 3: return of_f32((f32)((s64)(r >> 20 & 0xffff) - 0x8000) / 16);
  case 4: return of_f64((f64)((s64)(r >> 20 & 0xffffff) - 0x800000) / 8);
  case 5: return of_h((f64)((s64)(r >> 20 & 0xfff) - 0x800) / 64);
  default: return ptx_random(state);
  }
}

static bool both_nan(int type, u64 x, u64 y) {
  switch (type) {
  case F16: return isnan(h_of(x)) && isnan(h_of(y));
  case BF16: return isnan(b_of(x)) && isnan(b_of(y));
  case F32: return isnan(f32_of(x)) && isnan(f32_of(y));
  case F64: return isnan(f64_of(x)) && isnan(f64_of(y));
  default: return false;
  }
}
static bool equal(int type, u64 x, u64 y) {
  if (type == PAIR16 || type == PAIRB) {
    int half = type == PAIR16 ? F16 : BF16;
    return x >> 32 == y >> 32 && equal(half, x & 0xffff, y & 0xffff) && equal(half, x >> 16 & 0xffff, y >> 16 & 0xffff);
  }
  return x == y || both_nan(type, x, y);
}

static void rows_equal_c(void **state) {
  (void)state;
  kva_text text = {0};
  kva_text_add(&text, PTX_HEAD);
  for (int k = 0; k < N_ROWS; k++) add_kernel(&text, &rows[k], k);
  kva_ptx_module *m = ptx_parse(text.data);
  static u64 in[TRIPLES][3], out[TRIPLES];
  uint64_t random = 1;
  int wrong = 0;
  for (int k = 0; k < N_ROWS; k++) {
    char name[16];
    snprintf(name, sizeof name, "k%d", k);
    for (int t = 0; t < TRIPLES; t++)
      for (int j = 0; j < 3; j++) in[t][j] = input(&random);
    ptx_case c = {
        .kernel = name, .block = {TRIPLES, 1, 1}, .arrays = {in, out}, .sizes = {sizeof in, sizeof out}, .n_arrays = 2};
    ptx_run_clean(m, &c);
    for (int t = 0; t < TRIPLES; t++) {
      u64 expected = rows[k].expect(in[t][0], in[t][1], in[t][2]);
      if (equal(rows[k].result, out[t], expected)) continue;
      if (wrong++ < 40)
        fprintf(stderr, "%s of %llx %llx %llx: %llx, expected %llx\n", rows[k].op, (unsigned long long)in[t][0],
                (unsigned long long)in[t][1], (unsigned long long)in[t][2], (unsigned long long)out[t],
                (unsigned long long)expected);
      break;
    }
  }
  assert_int_equal(wrong, 0);
  kva_ptx_module_destroy(m);
  kva_text_free(&text);
}

static f64 reciprocal(f64 x) {
  return 1 / x;
}

/* The approximations are off by the documented bound, and by no more: code that needs better bits must not pass. */
static void approximations_use_their_bound(void **state) {
  (void)state;
  static const struct {
    const char *op;
    f64 (*f)(f64);
    f64 lo, hi, bound;
    bool absolute;
  } functions[] = {
      {"ex2.approx.ftz.f32", exp2, -100, 100, 0x1p-22, false}, {"rcp.approx.f32", reciprocal, -9, 10, 0x1p-23, false},
      {"lg2.approx.f32", log2, 3, 1000, 0x1p-22, false},       {"lg2.approx.f32", log2, 0.5, 2, 0x1p-22, true},
      {"sin.approx.f32", sin, -3, 3, 0x1p-20, true},           {"cos.approx.ftz.f32", cos, -3, 3, 0x1p-20, true},
      {"tanh.approx.f32", tanh, -5, 5, 0x1p-11, false},        {"sqrt.approx.f32", sqrt, 0, 1e6, 0x1p-23, false}};
  for (size_t k = 0; k < sizeof functions / sizeof *functions; k++) {
    row r = {functions[k].op, "rr", F32, NULL};
    kva_text text = {0};
    kva_text_add(&text, PTX_HEAD);
    add_kernel(&text, &r, 0);
    kva_ptx_module *m = ptx_parse(text.data);
    u64 in[64][3] = {0}, out[64];
    for (int t = 0; t < 64; t++)
      in[t][0] = of_f32((f32)(functions[k].lo + (functions[k].hi - functions[k].lo) * t / 63));
    ptx_case c = {.block = {64, 1, 1}, .arrays = {in, out}, .sizes = {sizeof in, sizeof out}, .n_arrays = 2};
    ptx_run_clean(m, &c);
    f64 worst = 0;
    for (int t = 0; t < 64; t++) {
      f64 expected = functions[k].f((f64)f32_of(in[t][0])), error = fabs((f64)f32_of(out[t]) - expected);
      if (expected != 0) worst = fmax(worst, functions[k].absolute ? error : error / fabs(expected));
    }
    assert_true(worst <= functions[k].bound && worst >= functions[k].bound / 4);
    kva_ptx_module_destroy(m);
    kva_text_free(&text);
  }
}

/* A fused multiply-add of halves rounds once: cases where two roundings differ. */
static void half_fma_rounds_once(void **state) {
  (void)state;
  row r = {"fma.rn.bf16", "hhhh", BF16, NULL};
  kva_text text = {0};
  kva_text_add(&text, PTX_HEAD);
  add_kernel(&text, &r, 0);
  kva_ptx_module *m = ptx_parse(text.data);
  /* 1.0625 squared is 1 + 33/256, midway between the bf16 numbers 1.125 and 1.1328125; 2^-100 more is lost when the
   * sum is rounded to double first. */
  u64 in[32][3] = {{of_b(1.0625), of_b(1.0625), 0},
                   {of_b(1.0625), of_b(1.0625), of_b(0x1p-100)},
                   {of_b(1.0625), of_b(1.0625), of_b(-0x1p-100)}};
  u64 out[32];
  ptx_case c = {.block = {32, 1, 1}, .arrays = {in, out}, .sizes = {sizeof in, sizeof out}, .n_arrays = 2};
  ptx_run_clean(m, &c);
  assert_int_equal(out[0], of_b(1.125)); /* a tie: to even */
  assert_int_equal(out[1], of_b(1.1328125));
  assert_int_equal(out[2], of_b(1.125));
  kva_ptx_module_destroy(m);
  kva_text_free(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(rows_equal_c),
      cmocka_unit_test(approximations_use_their_bound),
      cmocka_unit_test(half_fma_rounds_once),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
