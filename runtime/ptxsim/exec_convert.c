/* Conversions. Common pairs have lane loops; the others convert lane by lane through the widest type.
 *
 * To an integer: saturating; NaN gives 0, or 2^63 for 64 bits. To a float: to nearest even, except for f64 to f32,
 * which supports all four roundings. */
#include "runtime/ptxsim/exec.h"

#include <math.h>

/* i->sub holds the rounding and these flags. */
enum { NEAREST, ZERO, DOWN, UP, ROUNDING = 3, SATURATE = 4, FLUSH = 8, INTEGRAL = 16 };

static double round_to(double v, int rounding) {
  switch (rounding & ROUNDING) {
  case NEAREST: return nearbyint(v); /* the default rounding mode: ties to even */
  case ZERO: return trunc(v);
  case DOWN: return floor(v);
  default: return ceil(v);
  }
}

static uint64_t float_to_integer(double v, ptx_type to, int rounding) {
  int bits = kva_ptx_type_bits(to);
  bool sign = kva_ptx_type_kind(to) == 's';
  if (v != v) return bits == 64 ? 1ull << 63 : 0;
  double r = round_to(v, rounding), limit = ldexp(1, sign ? bits - 1 : bits);
  if (r >= limit) return sign ? (1ull << (bits - 1)) - 1 : bits == 64 ? ~0ull : (1ull << bits) - 1;
  if (sign) return r <= -limit ? 0 - (1ull << (bits - 1)) : (uint64_t)(int64_t)r;
  return r <= 0 ? 0 : (uint64_t)r;
}

/* The integer as a double with a sticky last bit, so that one more rounding, to at most 24 bits, is correct. */
static double integer_to_odd(uint64_t bits, bool sign) {
  bool negative = sign && (int64_t)bits < 0;
  uint64_t v = negative ? 0 - bits : bits;
  if (v >> 53) v = (v >> 11 | ((v & 0x7ff) != 0)) << 11;
  return negative ? -(double)v : (double)v;
}

static float narrow(double v, int rounding) {
  float f = (float)v;
  if ((rounding & ROUNDING) == NEAREST || v != v || (double)f == v) return f;
  bool down = (rounding & ROUNDING) == DOWN || ((rounding & ROUNDING) == ZERO && v > 0);
  if (down) return (double)f > v ? nextafterf(f, -INFINITY) : f;
  return (double)f < v ? nextafterf(f, INFINITY) : f;
}

static double load_float(uint64_t bits, ptx_type t, int mode) {
  switch (t) {
  case PTX_F16: return (double)load_f16((uint32_t)bits);
  case PTX_BF16: return (double)ptx_bf16((uint32_t)bits & 0xffffu);
  case PTX_F32: return (double)ptx_f32(mode & FLUSH ? ptx_flush((uint32_t)bits) : (uint32_t)bits);
  default: return ptx_f64(bits);
  }
}

static uint64_t store_float(double v, ptx_type t, int mode) {
  uint16_t half;
  if (mode & SATURATE) v = v >= 1 ? 1 : v > 0 ? v : 0;
  switch (t) {
  case PTX_F16: kva_store_f64(KVA_F16, &half, 0, v); return half;
  case PTX_BF16: kva_store_f64(KVA_BF16, &half, 0, v); return half;
  case PTX_F32: {
    uint32_t bits = ptx_bits32(narrow(v, mode));
    return mode & FLUSH ? ptx_flush(bits) : bits;
  }
  default: return ptx_bits64(v);
  }
}

static uint64_t clamp_integer(uint64_t v, bool from_signed, ptx_type to) {
  int bits = kva_ptx_type_bits(to);
  bool to_signed = kva_ptx_type_kind(to) == 's', negative = from_signed && (int64_t)v < 0;
  uint64_t most = to_signed ? (1ull << (bits - 1)) - 1 : bits == 64 ? ~0ull : (1ull << bits) - 1;
  if (!negative) return v > most ? most : v;
  if (!to_signed) return 0;
  int64_t least = -(int64_t)most - 1;
  return (int64_t)v < least ? (uint64_t)least : v;
}

static uint64_t extend(uint64_t v, ptx_type t) {
  int shift = 64 - kva_ptx_type_bits(t);
  return kva_ptx_type_kind(t) == 's' ? (uint64_t)((int64_t)(v << shift) >> shift) : v << shift >> shift;
}

static uint64_t convert(uint64_t v, ptx_type to, ptx_type from, int mode) {
  bool to_float = kva_ptx_type_kind(to) == 'f', from_signed = kva_ptx_type_kind(from) == 's';
  if (kva_ptx_type_kind(from) == 'f') {
    double x = load_float(v, from, mode);
    if (!to_float) return float_to_integer(x, to, mode);
    return store_float(mode & INTEGRAL ? round_to(x, mode) : x, to, mode & INTEGRAL ? mode & ~ROUNDING : mode);
  }
  v = extend(v, from);
  if (!to_float) return mode & SATURATE ? clamp_integer(v, from_signed, to) : v;
  if (to == PTX_F64) return ptx_bits64(from_signed ? (double)(int64_t)v : (double)v);
  return store_float(integer_to_odd(v, from_signed), to, mode);
}

/* A destination wider than the type is sign- or zero-extended according to the type. i->n: the source register is wide.
 * i->flag: the destination register is wide; otherwise it has i->bytes. */
void kva_ptx_exec_convert(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  ptx_type to = (ptx_type)i->type, from = (ptx_type)i->space;
  uint32_t keep = i->bytes == 4 ? PTX_ALL : 0xffffu;
  for (int l = 0; l < PTX_LANES; l++) {
    if (!(mask >> l & 1)) continue;
    uint64_t v = i->n ? ptx_reg64(w, i->src[0])[l] : ptx_reg32(w, i->src[0])[l];
    uint64_t r = extend(convert(v, to, from, i->sub), to);
    if (i->flag)
      ptx_reg64(w, i->dst)[l] = r;
    else
      ptx_reg32(w, i->dst)[l] = (uint32_t)r & keep;
  }
}

/* ---- lane loops -------------------------------------------------------------------------------------------------- */

PTX_FN1(u64_from_u32, u64, u32, x)
PTX_FN1(s64_from_s32, s64, s32, x)
PTX_FN1(u32_from_u64, u32, u64, (uint32_t)x)
PTX_FN1(u32_from_u16, u32, u16, x)
PTX_FN1(s32_from_s16, s32, s16, x)
PTX_FN1(u16_from_u32, u16, u32, (uint16_t)x)
PTX_FN1(f32_from_s32, f32, s32, (float)x)
PTX_FN1(f32_from_u32, f32, u32, (float)x)
PTX_FN1(f32_from_bf16, f32, bf16, x)
PTX_FN1(bf16_from_f32, bf16, f32, x)
PTX_FN1(f32_from_f16, f32, f16, x)
PTX_FN1(f16_from_f32, f16, f32, x)
PTX_FN1(f64_from_f32, f64, f32, (double)x)
PTX_FN1(f32_from_f64, f32, f64, (float)x)

static const struct {
  ptx_type to, from;
  ptx_exec exec;
} fast[] = {
    {PTX_U64, PTX_U32, u64_from_u32}, {PTX_S64, PTX_U32, u64_from_u32},   {PTX_S64, PTX_S32, s64_from_s32},
    {PTX_U64, PTX_S32, s64_from_s32}, {PTX_U32, PTX_U64, u32_from_u64},   {PTX_S32, PTX_U64, u32_from_u64},
    {PTX_U32, PTX_S64, u32_from_u64}, {PTX_S32, PTX_S64, u32_from_u64},   {PTX_U32, PTX_U16, u32_from_u16},
    {PTX_S32, PTX_U16, u32_from_u16}, {PTX_S32, PTX_S16, s32_from_s16},   {PTX_U32, PTX_S16, s32_from_s16},
    {PTX_U16, PTX_U32, u16_from_u32}, {PTX_S16, PTX_S32, u16_from_u32},   {PTX_F32, PTX_S32, f32_from_s32},
    {PTX_F32, PTX_U32, f32_from_u32}, {PTX_F32, PTX_BF16, f32_from_bf16}, {PTX_BF16, PTX_F32, bf16_from_f32},
    {PTX_F32, PTX_F16, f32_from_f16}, {PTX_F16, PTX_F32, f16_from_f32},   {PTX_F64, PTX_F32, f64_from_f32},
    {PTX_F32, PTX_F64, f32_from_f64},
};

static bool supported(ptx_type t) {
  char kind = kva_ptx_type_kind(t);
  return kind == 'u' || kind == 's' || kind == 'f';
}

bool kva_ptx_find_convert(ptx_type to, ptx_type from, const char *rounding, bool saturate, bool ftz, ptx_ins *i) {
  bool to_float = kva_ptx_type_kind(to) == 'f', from_float = kva_ptx_type_kind(from) == 'f';
  bool integral = strlen(rounding) == 3;
  static const char letters[] = "nzmp";
  int mode = rounding[0] ? (int)(strchr(letters, rounding[1]) - letters) : NEAREST;
  if (!supported(to) || !supported(from)) return false;
  if (from_float && !to_float && !integral) return false;
  if (mode != NEAREST && !integral && !(to == PTX_F32 && from == PTX_F64)) return false;
  i->exec = kva_ptx_exec_convert;
  i->type = (uint8_t)to;
  i->space = (uint8_t)from;
  i->sub = (uint8_t)(mode | (saturate ? SATURATE : 0) | (ftz ? FLUSH : 0) | (integral && to_float ? INTEGRAL : 0));
  for (size_t k = 0; i->sub == 0 && k < sizeof fast / sizeof *fast; k++)
    if (fast[k].to == to && fast[k].from == from) i->exec = fast[k].exec;
  return true;
}

/* Packs two floats into a register; the first operand becomes the upper half. */
PTX_FN2(bf16x2_from_f32, u32, f32, f32, ptx_bits_bf16(y) | ptx_bits_bf16(x) << 16)
PTX_FN2(f16x2_from_f32, u32, f32, f32, store_f16(y) | store_f16(x) << 16)
static inline float relu(float v) {
  return v < 0 ? 0 : v;
}
PTX_FN2(bf16x2_relu, u32, f32, f32, ptx_bits_bf16(relu(y)) | ptx_bits_bf16(relu(x)) << 16)
PTX_FN2(f16x2_relu, u32, f32, f32, store_f16(relu(y)) | store_f16(relu(x)) << 16)

ptx_exec kva_ptx_find_convert_pair(ptx_type to, bool with_relu) {
  if (to == PTX_BF16X2) return with_relu ? bf16x2_relu : bf16x2_from_f32;
  return with_relu ? f16x2_relu : f16x2_from_f32;
}
