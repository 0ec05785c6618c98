/* Conversions between compute types (C rules, see kernel.h), and between storage and compute types. */
#include "codegen/llvm_internal.h"

#include <math.h>

/* The saturating conversion of vectors, which LLVM would do lane by lane: what a lane converts to does not matter where
 * another value takes its place. Both limits are powers of two or 0, exact in every float. */
static LLVMValueRef lanes_to_int(kva_emit *e, LLVMValueRef v, kva_dtype to) {
  LLVMTypeRef from = LLVMTypeOf(v), type = kva_ll_like(kva_ll_type(e, to), v);
  bool is_unsigned = kva_dtype_is_unsigned(to);
  int bits = kva_dtype_bits(to), digits = is_unsigned ? bits : bits - 1;
  LLVMValueRef above = LLVMBuildFCmp(e->b, LLVMRealOGE, v, LLVMConstReal(from, ldexp(1, digits)), "");
  LLVMValueRef below =
      LLVMBuildFCmp(e->b, LLVMRealOLT, v, LLVMConstReal(from, is_unsigned ? 0 : -ldexp(1, digits)), "");
  LLVMValueRef y = is_unsigned ? LLVMBuildFPToUI(e->b, v, type, "") : LLVMBuildFPToSI(e->b, v, type, "");
  y = LLVMBuildSelect(e->b, above, kva_ll_int(type, (int64_t)(UINT64_MAX >> (64 - digits))), y, "");
  y = LLVMBuildSelect(e->b, below, kva_ll_int(type, is_unsigned ? 0 : (int64_t)(UINT64_MAX << digits)), y, "");
  return LLVMBuildSelect(e->b, LLVMBuildFCmp(e->b, LLVMRealUNO, v, v, ""), LLVMConstNull(type), y, "");
}

static LLVMValueRef float_to_int(kva_emit *e, LLVMValueRef v, kva_dtype to) {
  if (kva_ll_is_vector(v)) return lanes_to_int(e, v, to);
  const char *name = kva_dtype_is_unsigned(to) ? "llvm.fptoui.sat" : "llvm.fptosi.sat";
  LLVMTypeRef types[] = {kva_ll_like(kva_ll_type(e, to), v), LLVMTypeOf(v)};
  return kva_ll_intrinsic(e, name, 2, types, 1, &v);
}

static LLVMValueRef int_to_int(kva_emit *e, LLVMValueRef v, kva_dtype from, kva_dtype to) {
  LLVMTypeRef type = kva_ll_like(kva_ll_type(e, to), v);
  int have = from == KVA_BOOL ? 1 : kva_dtype_bits(from), want = kva_dtype_bits(to);
  if (have == want) return v;
  if (have > want) return LLVMBuildTrunc(e->b, v, type, "");
  bool zero = from == KVA_BOOL || kva_dtype_is_unsigned(from);
  return zero ? LLVMBuildZExt(e->b, v, type, "") : LLVMBuildSExt(e->b, v, type, "");
}

static LLVMValueRef is_not_zero(kva_emit *e, LLVMValueRef v, kva_dtype from) {
  LLVMValueRef zero = LLVMConstNull(LLVMTypeOf(v));
  if (kva_dtype_is_float(from)) return LLVMBuildFCmp(e->b, LLVMRealUNE, v, zero, "");
  return LLVMBuildICmp(e->b, LLVMIntNE, v, zero, "");
}

LLVMValueRef kva_ll_convert(kva_emit *e, LLVMValueRef v, kva_dtype from, kva_dtype to) {
  if (from == to) return v;
  if (to == KVA_BOOL) return is_not_zero(e, v, from);
  bool from_float = kva_dtype_is_float(from), to_float = kva_dtype_is_float(to);
  LLVMTypeRef type = kva_ll_like(kva_ll_type(e, to), v);
  if (from_float && to_float) return LLVMBuildFPCast(e->b, v, type, "");
  if (from_float) return float_to_int(e, v, to);
  if (!to_float) return int_to_int(e, v, from, to);
  bool is_unsigned = from == KVA_BOOL || kva_dtype_is_unsigned(from);
  return is_unsigned ? LLVMBuildUIToFP(e->b, v, type, "") : LLVMBuildSIToFP(e->b, v, type, "");
}

/* ---- narrow floats ----------------------------------------------------------------------------------------------- */

/* Codes without the sign bit; runtime/base/dtype.c is the reference. */
typedef struct format {
  int mantissa_bits, bias, sign_shift;
  int max, inf, nan; /* max: largest finite code; inf: 0 if there is none; nan: with unsigned_zero the code of -0 */
  bool unsigned_zero;
} format;

static const format *format_of(kva_dtype t) {
  static const format e4m3fn = {3, 7, 7, 0x7E, 0, 0x7F, false}, e4m3fnuz = {3, 8, 7, 0x7F, 0, 0x80, true},
                      e5m2 = {2, 15, 7, 0x7B, 0x7C, 0x7E, false}, e5m2fnuz = {2, 16, 7, 0x7F, 0, 0x80, true},
                      e2m1 = {1, 1, 3, 0x7, 0, 0x8, false};
  switch (t) {
  case KVA_F8E4M3FN: return &e4m3fn;
  case KVA_F8E4M3FNUZ: return &e4m3fnuz;
  case KVA_F8E5M2: return &e5m2;
  case KVA_F8E5M2FNUZ: return &e5m2fnuz;
  case KVA_F4E2M1: return &e2m1;
  default: return NULL;
  }
}

typedef struct bits_ctx {
  kva_emit *e;
  LLVMTypeRef i32, f32; /* scalar or vector */
} bits_ctx;

static bits_ctx bits_of(kva_emit *e, LLVMValueRef v) {
  return (bits_ctx){e, kva_ll_like(LLVMInt32TypeInContext(e->ctx), v), kva_ll_like(LLVMFloatTypeInContext(e->ctx), v)};
}

static LLVMValueRef c32(const bits_ctx *c, int64_t v) {
  return kva_ll_int(c->i32, v);
}

static LLVMValueRef as_float(const bits_ctx *c, LLVMValueRef bits) {
  return LLVMBuildBitCast(c->e->b, bits, c->f32, "");
}

static LLVMValueRef float_constant(const bits_ctx *c, uint32_t bits) {
  return LLVMBuildBitCast(c->e->b, c32(c, (int32_t)bits), c->f32, "");
}

static LLVMValueRef pick(const bits_ctx *c, LLVMIntPredicate p, LLVMValueRef a, int64_t b, LLVMValueRef yes,
                         LLVMValueRef no) {
  return LLVMBuildSelect(c->e->b, LLVMBuildICmp(c->e->b, p, a, c32(c, b), ""), yes, no, "");
}

enum { F32_INF = 0x7F800000, F32_NAN = 0x7FC00000 };

/* Shifting the code's bits into place of f32's gives a value too small by 2^(bias-127), subnormals included. One exact
 * multiplication corrects that. */
static LLVMValueRef decode(kva_emit *e, const format *f, LLVMValueRef code8) {
  KVA_ASSERT(f);
  bits_ctx c = bits_of(e, code8);
  LLVMValueRef code = LLVMBuildZExt(e->b, code8, c.i32, "");
  LLVMValueRef sign_bit = c32(&c, 1 << f->sign_shift);
  LLVMValueRef sign = LLVMBuildShl(e->b, LLVMBuildAnd(e->b, code, sign_bit, ""), c32(&c, 31 - f->sign_shift), "");
  LLVMValueRef magnitude = LLVMBuildAnd(e->b, code, c32(&c, (1 << f->sign_shift) - 1), "");
  LLVMValueRef small = as_float(&c, LLVMBuildShl(e->b, magnitude, c32(&c, 23 - f->mantissa_bits), ""));
  LLVMValueRef scale = float_constant(&c, (uint32_t)(254 - f->bias) << 23);
  LLVMValueRef bits = LLVMBuildBitCast(e->b, LLVMBuildFMul(e->b, small, scale, ""), c.i32, "");
  bits = LLVMBuildOr(e->b, bits, sign, "");
  LLVMValueRef special = LLVMBuildOr(e->b, c32(&c, F32_NAN), sign, "");
  if (f->unsigned_zero) return as_float(&c, pick(&c, LLVMIntEQ, code, f->nan, special, bits));
  bits = pick(&c, LLVMIntUGT, magnitude, f->max, special, bits);
  LLVMValueRef infinity = LLVMBuildOr(e->b, c32(&c, F32_INF), sign, "");
  return as_float(&c, f->inf ? pick(&c, LLVMIntEQ, magnitude, f->inf, infinity, bits) : bits);
}

/* Magnitude code of a subnormal result: adding a power of two whose unit in the last place is the format's makes the
 * float adder round. */
static LLVMValueRef encode_small(const bits_ctx *c, const format *f, LLVMValueRef magnitude) {
  LLVMValueRef magic = c32(c, (int64_t)(127 + 24 - f->mantissa_bits - f->bias) << 23);
  LLVMBuilderRef b = c->e->b;
  LLVMValueRef sum = LLVMBuildFAdd(b, as_float(c, magnitude), as_float(c, magic), "");
  return LLVMBuildSub(b, LLVMBuildBitCast(b, sum, c->i32, ""), magic, "");
}

static LLVMValueRef round_bits(const bits_ctx *c, LLVMValueRef bits, int dropped) {
  LLVMBuilderRef b = c->e->b;
  LLVMValueRef odd = LLVMBuildAnd(b, LLVMBuildLShr(b, bits, c32(c, dropped), ""), c32(c, 1), "");
  LLVMValueRef half = LLVMBuildAdd(b, odd, c32(c, (1 << (dropped - 1)) - 1), "");
  return LLVMBuildLShr(b, LLVMBuildAdd(b, bits, half, ""), c32(c, dropped), "");
}

/* Rounds to nearest even and saturates to the largest finite number; infinity stays infinity if the format has it. */
static LLVMValueRef encode(kva_emit *e, const format *f, LLVMValueRef v) {
  KVA_ASSERT(f);
  bits_ctx c = bits_of(e, v);
  LLVMValueRef bits = LLVMBuildBitCast(e->b, v, c.i32, "");
  LLVMValueRef magnitude = LLVMBuildAnd(e->b, bits, c32(&c, INT32_MAX), "");
  LLVMValueRef sign = LLVMBuildLShr(e->b, LLVMBuildXor(e->b, bits, magnitude, ""), c32(&c, 31 - f->sign_shift), "");
  LLVMValueRef rebased = LLVMBuildSub(e->b, magnitude, c32(&c, (int64_t)(127 - f->bias) << 23), "");
  LLVMValueRef code = round_bits(&c, rebased, 23 - f->mantissa_bits);
  code = pick(&c, LLVMIntULT, magnitude, (int64_t)(128 - f->bias) << 23, encode_small(&c, f, magnitude), code);
  code = pick(&c, LLVMIntUGT, code, f->max, c32(&c, f->max), code);
  if (f->inf) code = pick(&c, LLVMIntEQ, magnitude, F32_INF, c32(&c, f->inf), code);
  LLVMValueRef with_sign = LLVMBuildOr(e->b, code, sign, "");
  if (f->unsigned_zero) with_sign = pick(&c, LLVMIntEQ, code, 0, code, with_sign);
  LLVMValueRef nan = f->unsigned_zero ? c32(&c, f->nan) : LLVMBuildOr(e->b, c32(&c, f->nan), sign, "");
  with_sign = pick(&c, LLVMIntUGT, magnitude, F32_INF, nan, with_sign);
  return LLVMBuildTrunc(e->b, with_sign, kva_ll_like(LLVMInt8TypeInContext(e->ctx), v), "");
}

/* e8m0: 2^(code - 127), no sign, no zero, 255 is NaN. Stores round up, as ONNX's Cast does. */
static LLVMValueRef decode_e8m0(kva_emit *e, LLVMValueRef code8) {
  bits_ctx c = bits_of(e, code8);
  LLVMValueRef code = LLVMBuildZExt(e->b, code8, c.i32, "");
  LLVMValueRef bits = LLVMBuildShl(e->b, code, c32(&c, 23), "");
  bits = pick(&c, LLVMIntEQ, code, 0, c32(&c, 1 << 22), bits);
  return as_float(&c, pick(&c, LLVMIntEQ, code, 255, c32(&c, F32_NAN), bits));
}

static LLVMValueRef encode_e8m0(kva_emit *e, LLVMValueRef v) {
  bits_ctx c = bits_of(e, v);
  LLVMValueRef bits = LLVMBuildBitCast(e->b, v, c.i32, "");
  LLVMValueRef up = LLVMBuildLShr(e->b, LLVMBuildAdd(e->b, bits, c32(&c, (1 << 23) - 1), ""), c32(&c, 23), "");
  LLVMValueRef code = pick(&c, LLVMIntUGT, up, 254, c32(&c, 254), up);
  code = pick(&c, LLVMIntULE, bits, 1 << 22, c32(&c, 0), code); /* 2^-127 and below */
  /* Negative numbers (except -0) and NaN have no code. */
  LLVMValueRef not_negative = LLVMBuildFCmp(e->b, LLVMRealUGE, v, LLVMConstNull(c.f32), "");
  LLVMValueRef nan = LLVMBuildFCmp(e->b, LLVMRealUNO, v, v, "");
  LLVMValueRef good = LLVMBuildAnd(e->b, not_negative, LLVMBuildNot(e->b, nan, ""), "");
  code = pick(&c, LLVMIntEQ, bits, INT32_MIN, c32(&c, 0), code);
  code = LLVMBuildSelect(e->b, good, code, c32(&c, 255), "");
  return LLVMBuildTrunc(e->b, code, kva_ll_like(LLVMInt8TypeInContext(e->ctx), v), "");
}

static LLVMValueRef decode_bf16(kva_emit *e, LLVMValueRef v) {
  bits_ctx c = bits_of(e, v);
  return as_float(&c, LLVMBuildShl(e->b, LLVMBuildZExt(e->b, v, c.i32, ""), c32(&c, 16), ""));
}

static LLVMValueRef encode_bf16(kva_emit *e, LLVMValueRef v) {
  bits_ctx c = bits_of(e, v);
  LLVMValueRef bits = LLVMBuildBitCast(e->b, v, c.i32, "");
  LLVMValueRef quiet = LLVMBuildOr(e->b, LLVMBuildLShr(e->b, bits, c32(&c, 16), ""), c32(&c, 0x40), "");
  LLVMValueRef is_nan = LLVMBuildFCmp(e->b, LLVMRealUNO, v, v, "");
  LLVMValueRef code = LLVMBuildSelect(e->b, is_nan, quiet, round_bits(&c, bits, 16), "");
  return LLVMBuildTrunc(e->b, code, kva_ll_like(LLVMInt16TypeInContext(e->ctx), v), "");
}

/* ---- pairs ---------------------------------------------------------------------------------------------------------
 * GPUs have 16-bit elements in pairs, in registers of 32 bits: one instruction widens one of them, or rounds both. */

static bool in_pairs(kva_emit *e, LLVMValueRef v) {
  return kva_ll_is_gpu(e) && kva_ll_is_vector(v) && LLVMGetVectorSize(LLVMTypeOf(v)) % 2 == 0;
}

static LLVMTypeRef words_of(kva_emit *e, LLVMValueRef v) {
  return LLVMVectorType(LLVMInt32TypeInContext(e->ctx), LLVMGetVectorSize(LLVMTypeOf(v)) / 2);
}

/* Assembly, because LLVM would add a move of the bits to a register of floats. */
static LLVMValueRef decode_bf16_pairs(kva_emit *e, LLVMValueRef v) {
  LLVMTypeRef f32 = LLVMFloatTypeInContext(e->ctx);
  LLVMValueRef words = LLVMBuildBitCast(e->b, v, words_of(e, v), "");
  unsigned n = LLVMGetVectorSize(LLVMTypeOf(v));
  LLVMValueRef result = LLVMGetPoison(LLVMVectorType(f32, n));
  for (unsigned i = 0; i < n; i++) {
    LLVMValueRef word = LLVMBuildExtractElement(e->b, words, kva_ll_i64(e, i / 2), "");
    const char *text = i % 2 ? "and.b32 $0, $1, 0xffff0000;" : "shl.b32 $0, $1, 16;";
    LLVMValueRef x = kva_ll_assembly(e, true, text, "=f,r", f32, 1, &word);
    result = LLVMBuildInsertElement(e->b, result, x, kva_ll_i64(e, i), "");
  }
  return result;
}

static LLVMValueRef round_pairs(kva_emit *e, LLVMValueRef v, bool half, LLVMTypeRef type) {
  const char *name = half ? "llvm.nvvm.ff2f16x2.rn" : "llvm.nvvm.ff2bf16x2.rn";
  LLVMTypeRef words = words_of(e, v);
  LLVMValueRef result = LLVMGetPoison(words);
  for (unsigned w = 0; w < LLVMGetVectorSize(words); w++) {
    LLVMValueRef pair[] = {LLVMBuildExtractElement(e->b, v, kva_ll_i64(e, 2 * w + 1), ""),
                           LLVMBuildExtractElement(e->b, v, kva_ll_i64(e, 2 * w), "")};
    LLVMValueRef word = kva_ll_intrinsic(e, name, 0, NULL, 2, pair);
    word = LLVMBuildBitCast(e->b, word, LLVMGetElementType(words), "");
    result = LLVMBuildInsertElement(e->b, result, word, kva_ll_i64(e, w), "");
  }
  return LLVMBuildBitCast(e->b, result, kva_ll_like(type, v), "");
}

static LLVMValueRef encode_f16(kva_emit *e, LLVMValueRef v) {
  LLVMTypeRef half = LLVMHalfTypeInContext(e->ctx);
  return in_pairs(e, v) ? round_pairs(e, v, true, half) : LLVMBuildFPTrunc(e->b, v, kva_ll_like(half, v), "");
}

/* GPUs have an instruction for it. */
static LLVMValueRef round_to_bf16(kva_emit *e, LLVMValueRef v) {
  LLVMTypeRef code = LLVMInt16TypeInContext(e->ctx);
  if (in_pairs(e, v)) return round_pairs(e, v, false, code);
  LLVMValueRef narrow = LLVMBuildFPTrunc(e->b, v, kva_ll_like(LLVMBFloatTypeInContext(e->ctx), v), "");
  return LLVMBuildBitCast(e->b, narrow, kva_ll_like(code, v), "");
}

/* ---- storage ----------------------------------------------------------------------------------------------------- */

LLVMValueRef kva_ll_from_storage(kva_emit *e, kva_dtype storage, LLVMValueRef v) {
  if (format_of(storage)) return decode(e, format_of(storage), v);
  switch (storage) {
  case KVA_BOOL: return is_not_zero(e, v, KVA_U8);
  case KVA_F16: return LLVMBuildFPExt(e->b, v, kva_ll_like(kva_ll_type(e, KVA_F32), v), "");
  case KVA_BF16: return in_pairs(e, v) ? decode_bf16_pairs(e, v) : decode_bf16(e, v);
  case KVA_F8E8M0: return decode_e8m0(e, v);
  case KVA_U4:
  case KVA_U2: return LLVMBuildAnd(e->b, v, kva_ll_int(LLVMTypeOf(v), (1 << kva_dtype_bits(storage)) - 1), "");
  case KVA_I4:
  case KVA_I2: { /* sign extension from the low bits */
    LLVMValueRef unused = kva_ll_int(LLVMTypeOf(v), 8 - kva_dtype_bits(storage));
    return LLVMBuildAShr(e->b, LLVMBuildShl(e->b, v, unused, ""), unused, "");
  }
  default: return v;
  }
}

LLVMValueRef kva_ll_to_storage(kva_emit *e, kva_dtype storage, LLVMValueRef v) {
  if (format_of(storage)) return encode(e, format_of(storage), v);
  switch (storage) {
  case KVA_BOOL: return LLVMBuildZExt(e->b, v, kva_ll_like(LLVMInt8TypeInContext(e->ctx), v), "");
  case KVA_F16: return encode_f16(e, v);
  case KVA_BF16: return kva_ll_is_gpu(e) ? round_to_bf16(e, v) : encode_bf16(e, v);
  case KVA_F8E8M0: return encode_e8m0(e, v);
  default: return v;
  }
}
