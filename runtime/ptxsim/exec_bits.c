/* Logic, shifts, bit fields, permutations. */
#include "runtime/ptxsim/exec.h"

#define LOGIC(T)                                \
  PTX_FN2(and_##T, T, T, T, (value_##T)(x & y)) \
  PTX_FN2(or_##T, T, T, T, (value_##T)(x | y))  \
  PTX_FN2(xor_##T, T, T, T, (value_##T)(x ^ y)) \
  PTX_FN1(not_##T, T, T, (value_##T) ~x)        \
  PTX_FN1(cnot_##T, T, T, (value_##T)(x == 0))
LOGIC(u16)
LOGIC(u32)
LOGIC(u64)

/* Shift amounts beyond the width are clamped to it. */
#define SHIFTS(U, S, bits)                                                                        \
  PTX_FN2(shl_##U, U, U, u32, (value_##U)(y >= (bits) ? 0u : (value_##U)(x << (y & ((bits)-1))))) \
  PTX_FN2(shr_##U, U, U, u32, (value_##U)(y >= (bits) ? 0u : (value_##U)(x >> (y & ((bits)-1))))) \
  PTX_FN2(shr_##S, S, S, u32, (value_##S)(x >> (y >= (bits) ? (bits)-1 : y)))
SHIFTS(u16, s16, 16)
SHIFTS(u32, s32, 32)
SHIFTS(u64, s64, 64)

/* Concatenates y:x for funnel shifts. */
static inline uint64_t join(uint32_t lo, uint32_t hi) {
  return lo | (uint64_t)hi << 32;
}
static inline uint32_t at_most32(uint32_t n) {
  return n > 32 ? 32 : n;
}
PTX_FN3(shf_l_wrap, u32, u32, u32, u32, (uint32_t)(join(x, y) << (z & 31) >> 32))
PTX_FN3(shf_r_wrap, u32, u32, u32, u32, (uint32_t)(join(x, y) >> (z & 31)))
PTX_FN3(shf_l_clamp, u32, u32, u32, u32, z >= 32 ? x : (uint32_t)(join(x, y) << (z & 31) >> 32))
PTX_FN3(shf_r_clamp, u32, u32, u32, u32, (uint32_t)(join(x, y) >> at_most32(z)))

/* A field of c bits at bit b, both modulo 256. Signed fields are extended by their top bit, or by the value's sign if
 * the field reaches beyond the value. */
static inline uint64_t field(uint64_t v, uint32_t at, uint32_t n, uint32_t width, bool sign) {
  at &= 255;
  n &= 255;
  if (n == 0) return 0;
  uint32_t top = at + n - 1 < width ? at + n - 1 : width - 1;
  uint64_t fill = sign && v >> top & 1 ? ~0ull : 0;
  uint64_t shifted = at >= width ? fill : v >> at;
  uint32_t kept = at >= width ? 0 : at + n > width ? width - at : n;
  uint64_t mask = kept >= 64 ? ~0ull : (1ull << kept) - 1;
  return (shifted & mask) | (fill & ~mask);
}
PTX_FN3(bfe_u32, u32, u32, u32, u32, (uint32_t)field(x, y, z, 32, false))
PTX_FN3(bfe_s32, u32, u32, u32, u32, (uint32_t)field(x, y, z, 32, true))
PTX_FN3(bfe_u64, u64, u64, u32, u32, field(x, y, z, 64, false))
PTX_FN3(bfe_s64, u64, u64, u32, u32, field(x, y, z, 64, true))

static inline uint64_t insert(uint64_t from, uint64_t into, uint32_t at, uint32_t n, uint32_t width) {
  at &= 255;
  n &= 255;
  if (n == 0 || at >= width) return into;
  uint64_t ones = n >= 64 ? ~0ull : (1ull << n) - 1, mask = ones << at;
  return (into & ~mask) | (from << at & mask);
}
#define INSERT(T, bits)                                                                                         \
  PTX_LOOP(T, , bfi_##T, PTX_SOURCE(T, a, 0) PTX_SOURCE(T, b, 1) PTX_SOURCE(u32, c, 2) PTX_SOURCE(u32, e, 3), , \
           (value_##T)insert(a[l], b[l], c[l], e[l], bits))
INSERT(u32, 32)
INSERT(u64, 64)

static inline uint32_t reverse32(uint32_t v) {
  v = (v >> 1 & 0x55555555u) | (v & 0x55555555u) << 1;
  v = (v >> 2 & 0x33333333u) | (v & 0x33333333u) << 2;
  v = (v >> 4 & 0x0f0f0f0fu) | (v & 0x0f0f0f0fu) << 4;
  return __builtin_bswap32(v);
}
PTX_FN1(brev_32, u32, u32, reverse32(x))
PTX_FN1(brev_64, u64, u64, join(reverse32((uint32_t)(x >> 32)), reverse32((uint32_t)x)))
PTX_FN1(popc_32, u32, u32, (uint32_t)__builtin_popcount(x))
PTX_FN1(popc_64, u32, u64, (uint32_t)__builtin_popcountll(x))
PTX_FN1(clz_32, u32, u32, x ? (uint32_t)__builtin_clz(x) : 32u)
PTX_FN1(clz_64, u32, u64, x ? (uint32_t)__builtin_clzll(x) : 64u)

/* Position of the highest bit that differs from the sign; all ones if none does. */
static inline uint32_t highest(uint64_t v) {
  return v ? 63u - (uint32_t)__builtin_clzll(v) : PTX_NONE;
}
PTX_FN1(bfind_u32, u32, u32, highest(x))
PTX_FN1(bfind_s32, u32, s32, highest((uint32_t)(x < 0 ? ~x : x)))
PTX_FN1(bfind_u64, u32, u64, highest(x))
PTX_FN1(bfind_s64, u32, s64, highest((uint64_t)(x < 0 ? ~x : x)))

/* Byte permutation: nibble k of the selector picks byte k of the result from y:x; bit 3 replicates its sign. */
static inline uint32_t permute(uint32_t x, uint32_t y, uint32_t selector) {
  uint64_t bytes = join(x, y);
  uint32_t out = 0;
  for (int k = 0; k < 4; k++) {
    uint32_t s = selector >> 4 * k & 15, byte = (uint32_t)(bytes >> 8 * (s & 7)) & 255u;
    if (s & 8) byte = byte & 128u ? 255u : 0u;
    out |= byte << 8 * k;
  }
  return out;
}
PTX_FN3(prmt, u32, u32, u32, u32, permute(x, y, z))

/* An arbitrary function of three bits. The immediate is its truth table, with a as 0xF0, b as 0xCC, c as 0xAA. */
static inline uint32_t logic3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t out = 0;
  for (uint32_t k = 0; k < 8; k++)
    if (table >> k & 1) out |= (k & 4 ? a : ~a) & (k & 2 ? b : ~b) & (k & 1 ? c : ~c);
  return out;
}
PTX_LOOP(u32, , lop3, PTX_SOURCE(u32, a, 0) PTX_SOURCE(u32, b, 1) PTX_SOURCE(u32, c, 2) PTX_SOURCE(u32, e, 3), ,
         logic3(a[l], b[l], c[l], e[l]))

/* clang-format off */
#define ROW(name, T, operands, fn) {name, PTX_##T, KVA_PTX_CLASS_INTEGER, operands, fn},
#define ROWS_WIDTH(B, U, S, u, s) \
  ROW("and", B, "ttt", and_##u)   \
  ROW("or", B, "ttt", or_##u)     \
  ROW("xor", B, "ttt", xor_##u)   \
  ROW("not", B, "tt", not_##u)    \
  ROW("cnot", B, "tt", cnot_##u)  \
  ROW("shl", B, "ttu", shl_##u)   \
  ROW("shr", B, "ttu", shr_##u)   \
  ROW("shr", U, "ttu", shr_##u)   \
  ROW("shr", S, "ttu", shr_##s)

static const ptx_form forms[] = {
    ROWS_WIDTH(B16, U16, S16, u16, s16) ROWS_WIDTH(B32, U32, S32, u32, s32) ROWS_WIDTH(B64, U64, S64, u64, s64)
        ROW("shf.l.wrap", B32, "ttuu", shf_l_wrap) ROW("shf.r.wrap", B32, "ttuu", shf_r_wrap)
            ROW("shf.l.clamp", B32, "ttuu", shf_l_clamp) ROW("shf.r.clamp", B32, "ttuu", shf_r_clamp)
                ROW("bfe", U32, "ttuu", bfe_u32) ROW("bfe", S32, "ttuu", bfe_s32) ROW("bfe", U64, "ttuu", bfe_u64)
                    ROW("bfe", S64, "ttuu", bfe_s64) ROW("bfi", B32, "tttuu", bfi_u32) ROW("bfi", B64, "tttuu", bfi_u64)
                        ROW("brev", B32, "tt", brev_32) ROW("brev", B64, "tt", brev_64) ROW("popc", B32, "ut", popc_32)
                            ROW("popc", B64, "ut", popc_64) ROW("clz", B32, "ut", clz_32) ROW("clz", B64, "ut", clz_64)
                                ROW("bfind", U32, "ut", bfind_u32) ROW("bfind", S32, "ut", bfind_s32)
                                    ROW("bfind", U64, "ut", bfind_u64) ROW("bfind", S64, "ut", bfind_s64)
                                        ROW("prmt", B32, "tttu", prmt) ROW("lop3", B32, "ttttu", lop3)};
/* clang-format on */
const ptx_forms kva_ptx_forms_bits = {forms, sizeof forms / sizeof *forms};
