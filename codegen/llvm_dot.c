/* Sums of products: dot4 and dot2 of the kernel IR. Of four products of bytes:
 *
 *   vpdpbusd    x86 that has it (AVX-512 VNNI, AVX-VNNI)
 *   usdot       aarch64 that has it (FEAT_I8MM)
 *   sdot        aarch64 with FEAT_DotProd alone: x - 128 has a sign, and 128 y is taken from y alone
 *   vpmaddubsw  on other x86 with AVX2 whose unsigned bytes a mask keeps below 128: its sums of two products saturate,
 *               but 2 * 127 * 128 fits 16 bits
 *   vpmaddwd    on other x86: bytes of even and of odd number become elements of 16 bits, whose products are added in
 *               pairs. Exact: 2 * 255 * 128 is far from what 32 bits hold
 *   sadalp      on other aarch64: elements of 16 bits as above, which hold a product (255 * -128 >= -2^15), and are
 *               added in pairs
 *   otherwise   four multiplications
 *
 * Of two products of bf16:
 *
 *   vdpbf16ps   x86 where it pays. Without regard to modes it rounds to nearest, and subnormal numbers are 0
 *   otherwise   two FMAs, in its order */
#include "codegen/llvm_internal.h"

static const char *one_instruction(unsigned lanes) {
  switch (lanes) {
  case 4: return "llvm.x86.avx512.vpdpbusd.128";
  case 8: return "llvm.x86.avx512.vpdpbusd.256";
  case 16: return "llvm.x86.avx512.vpdpbusd.512";
  default: return NULL;
  }
}

static const char *pairs_instruction(unsigned lanes) {
  switch (lanes) {
  case 4: return "llvm.x86.sse2.pmadd.wd";
  case 8: return "llvm.x86.avx2.pmadd.wd";
  case 16: return "llvm.x86.avx512.pmaddw.d.512";
  default: return NULL;
  }
}

/* ---- elements of 16 bits ----------------------------------------------------------------------------------------- */

/* Elements of 16 bits of the even bytes (of the odd ones, if v is shifted), without sign. */
static LLVMValueRef low_bytes(kva_emit *e, LLVMValueRef v, LLVMTypeRef halves) {
  LLVMValueRef x = LLVMBuildAnd(e->b, v, kva_ll_int(LLVMTypeOf(v), 0x00FF00FF), "");
  return LLVMBuildBitCast(e->b, x, halves, "");
}

/* Pairs of factors of 16 bits: of the even bytes, and of the odd ones. */
static void split(kva_emit *e, LLVMValueRef *v, unsigned lanes, LLVMValueRef even[2], LLVMValueRef odd[2]) {
  LLVMTypeRef halves = LLVMVectorType(LLVMInt16TypeInContext(e->ctx), 2 * lanes);
  LLVMValueRef eight = kva_ll_int(halves, 8), y = LLVMBuildBitCast(e->b, v[1], halves, "");
  LLVMValueRef shifted = LLVMBuildLShr(e->b, v[0], kva_ll_int(LLVMTypeOf(v[0]), 8), "");
  even[0] = low_bytes(e, v[0], halves), odd[0] = low_bytes(e, shifted, halves);
  even[1] = LLVMBuildAShr(e->b, LLVMBuildShl(e->b, y, eight, ""), eight, "");
  odd[1] = LLVMBuildAShr(e->b, y, eight, "");
}

static LLVMValueRef by_pairs(kva_emit *e, const char *name, LLVMValueRef *v, unsigned lanes) {
  LLVMValueRef even[2], odd[2];
  split(e, v, lanes, even, odd);
  LLVMValueRef first = kva_ll_intrinsic(e, name, 0, NULL, 2, even);
  LLVMValueRef second = kva_ll_intrinsic(e, name, 0, NULL, 2, odd);
  return LLVMBuildAdd(e->b, LLVMBuildAdd(e->b, v[2], first, ""), second, "");
}

/* ---- small bytes ------------------------------------------------------------------------------------------------- */

static const char *bytes_instruction(unsigned lanes) {
  switch (lanes) {
  case 8: return "llvm.x86.avx2.pmadd.ub.sw";
  case 16: return "llvm.x86.avx512.pmaddubs.w.512";
  default: return NULL;
  }
}

/* A mask leaves no byte of v above 127, so that two products of such bytes by those with a sign fit 16 bits. */
static bool are_small(LLVMValueRef v) {
  if (!LLVMIsAInstruction(v) || LLVMGetInstructionOpcode(v) != LLVMAnd) return false;
  LLVMValueRef mask = LLVMGetOperand(v, 1);
  if (kva_ll_is_vector(v)) mask = LLVMIsConstant(mask) ? LLVMGetAggregateElement(mask, 0) : NULL;
  return mask && LLVMIsAConstantInt(mask) && !(LLVMConstIntGetZExtValue(mask) & 0x80808080);
}

static LLVMValueRef by_bytes(kva_emit *e, const char *bytes, const char *pairs, LLVMValueRef *v, unsigned lanes) {
  LLVMTypeRef type = LLVMVectorType(LLVMInt8TypeInContext(e->ctx), 4 * lanes);
  LLVMTypeRef halves = LLVMVectorType(LLVMInt16TypeInContext(e->ctx), 2 * lanes);
  LLVMValueRef in[] = {LLVMBuildBitCast(e->b, v[0], type, ""), LLVMBuildBitCast(e->b, v[1], type, "")};
  LLVMValueRef sums[] = {kva_ll_intrinsic(e, bytes, 0, NULL, 2, in), kva_ll_int(halves, 1)};
  return LLVMBuildAdd(e->b, v[2], kva_ll_intrinsic(e, pairs, 0, NULL, 2, sums), "");
}

/* ---- aarch64 ----------------------------------------------------------------------------------------------------- */

static LLVMValueRef dot_of(kva_emit *e, const char *name, LLVMValueRef sum, LLVMValueRef x, LLVMValueRef y) {
  LLVMTypeRef words = LLVMTypeOf(sum), byte = LLVMInt8TypeInContext(e->ctx);
  LLVMTypeRef bytes = LLVMVectorType(byte, 4 * LLVMGetVectorSize(words));
  LLVMTypeRef types[] = {words, bytes};
  LLVMValueRef args[] = {sum, LLVMBuildBitCast(e->b, x, bytes, ""), LLVMBuildBitCast(e->b, y, bytes, "")};
  return kva_ll_intrinsic(e, name, 2, types, 3, args);
}

/* Turning the top bit of x subtracts 128 from it: x y = (x - 128) y - (-128) y, where the second product is of y alone,
 * and leaves a loop in which y does not change. */
static LLVMValueRef by_signed(kva_emit *e, LLVMValueRef *v) {
  static const char sdot[] = "llvm.aarch64.neon.sdot";
  LLVMValueRef top = kva_ll_int(LLVMTypeOf(v[0]), 0x80808080);
  LLVMValueRef less = dot_of(e, sdot, kva_ll_int(LLVMTypeOf(v[0]), 0), top, v[1]);
  LLVMValueRef sum = dot_of(e, sdot, v[2], LLVMBuildXor(e->b, v[0], top, ""), v[1]);
  return LLVMBuildSub(e->b, sum, less, "");
}

/* sum + pairs of elements of x y */
static LLVMValueRef add_products(kva_emit *e, LLVMValueRef sum, LLVMValueRef *factors) {
  LLVMTypeRef types[] = {LLVMTypeOf(sum), LLVMTypeOf(factors[0])};
  LLVMValueRef products = LLVMBuildMul(e->b, factors[0], factors[1], "");
  return LLVMBuildAdd(e->b, sum, kva_ll_intrinsic(e, "llvm.aarch64.neon.saddlp", 2, types, 1, &products), "");
}

static LLVMValueRef by_halves(kva_emit *e, LLVMValueRef *v, unsigned lanes) {
  LLVMValueRef even[2], odd[2];
  split(e, v, lanes, even, odd);
  return add_products(e, add_products(e, v[2], even), odd);
}

static LLVMValueRef on_aarch64(kva_emit *e, LLVMValueRef *v, unsigned lanes) {
  const kva_target *t = &e->cg->target;
  if (kva_target_has(t, KVA_TARGET_DOT4)) return dot_of(e, "llvm.aarch64.neon.usdot", v[2], v[0], v[1]);
  return kva_target_has(t, KVA_TARGET_DOT4_SIGNED) ? by_signed(e, v) : by_halves(e, v, lanes);
}

/* ---- elsewhere --------------------------------------------------------------------------------------------------- */

static LLVMValueRef by_products(kva_emit *e, LLVMValueRef *v) {
  LLVMTypeRef type = LLVMTypeOf(v[0]);
  LLVMValueRef sum = v[2], top = kva_ll_int(type, 24), mask = kva_ll_int(type, 0xFF);
  for (int byte = 0; byte < 4; byte++) {
    LLVMValueRef x = LLVMBuildAnd(e->b, LLVMBuildLShr(e->b, v[0], kva_ll_int(type, 8L * byte), ""), mask, "");
    LLVMValueRef y = LLVMBuildAShr(e->b, LLVMBuildShl(e->b, v[1], kva_ll_int(type, 24 - 8L * byte), ""), top, "");
    sum = LLVMBuildAdd(e->b, sum, LLVMBuildMul(e->b, x, y, ""), "");
  }
  return sum;
}

LLVMValueRef kva_ll_dot4(kva_emit *e, LLVMValueRef *v) {
  unsigned lanes = kva_ll_is_vector(v[0]) ? LLVMGetVectorSize(LLVMTypeOf(v[0])) : 1;
  const kva_target *t = &e->cg->target;
  if (kva_target_has(t, KVA_TARGET_ADD_PAIRS)) {
    return lanes == 2 || lanes == 4 ? on_aarch64(e, v, lanes) : by_products(e, v);
  }
  const char *one = kva_target_has(t, KVA_TARGET_DOT4) ? one_instruction(lanes) : NULL;
  const char *two = kva_target_has(t, KVA_TARGET_PAIRS) ? pairs_instruction(lanes) : NULL;
  const char *bytes = two && are_small(v[0]) ? bytes_instruction(lanes) : NULL;
  LLVMValueRef args[] = {v[2], v[0], v[1]};
  if (one) return kva_ll_intrinsic(e, one, 0, NULL, 3, args);
  if (bytes) return by_bytes(e, bytes, two, v, lanes);
  return two ? by_pairs(e, two, v, lanes) : by_products(e, v);
}

/* ---- bf16 -------------------------------------------------------------------------------------------------------- */

static LLVMValueRef dpbf16(kva_emit *e, LLVMValueRef *v, unsigned lanes) {
  const char *name = lanes == 16  ? "llvm.x86.avx512bf16.dpbf16ps.512"
                     : lanes == 8 ? "llvm.x86.avx512bf16.dpbf16ps.256"
                                  : "llvm.x86.avx512bf16.dpbf16ps.128";
  LLVMTypeRef pairs = LLVMVectorType(LLVMBFloatTypeInContext(e->ctx), 2 * lanes);
  LLVMValueRef args[] = {v[2], LLVMBuildBitCast(e->b, v[0], pairs, ""), LLVMBuildBitCast(e->b, v[1], pairs, "")};
  return kva_ll_intrinsic(e, name, 0, NULL, 3, args);
}

/* v with `to` lanes, a scalar's or the first ones; what was not there before has no value. */
static LLVMValueRef with_lanes(kva_emit *e, LLVMValueRef v, unsigned to) {
  enum { MOST = 4 };
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  LLVMValueRef from[MOST];
  if (!kva_ll_is_vector(v)) return kva_ll_splat(e, v, to);
  unsigned lanes = LLVMGetVectorSize(LLVMTypeOf(v));
  for (unsigned i = 0; i < to; i++) from[i] = i < lanes ? LLVMConstInt(i32, i, false) : LLVMGetPoison(i32);
  return LLVMBuildShuffleVector(e->b, v, LLVMGetPoison(LLVMTypeOf(v)), LLVMConstVector(from, to), "");
}

/* Fewer lanes than the shortest instruction has: by that one, so that results do not depend on lanes. */
static LLVMValueRef dpbf16_of_few(kva_emit *e, LLVMValueRef *v, unsigned lanes) {
  enum { LEAST = 4 };
  LLVMValueRef wide[3];
  for (int i = 0; i < 3; i++) wide[i] = with_lanes(e, v[i], LEAST);
  LLVMValueRef sum = dpbf16(e, wide, LEAST);
  return kva_ll_is_vector(v[0]) ? with_lanes(e, sum, lanes) : LLVMBuildExtractElement(e->b, sum, kva_ll_i64(e, 0), "");
}

/* The high or the low bf16 as f32. */
static LLVMValueRef half_of(kva_emit *e, LLVMValueRef v, bool high) {
  LLVMTypeRef type = LLVMTypeOf(v), words = kva_ll_like(LLVMInt32TypeInContext(e->ctx), v);
  LLVMValueRef bits = LLVMBuildBitCast(e->b, v, words, "");
  bits = high ? LLVMBuildAnd(e->b, bits, kva_ll_int(words, 0xFFFF0000), "")
              : LLVMBuildShl(e->b, bits, kva_ll_int(words, 16), "");
  return LLVMBuildBitCast(e->b, bits, type, "");
}

LLVMValueRef kva_ll_dot2(kva_emit *e, LLVMValueRef *v) {
  unsigned lanes = kva_ll_is_vector(v[0]) ? LLVMGetVectorSize(LLVMTypeOf(v[0])) : 1;
  if (kva_target_has(&e->cg->target, KVA_TARGET_DOT2) && lanes < 4) return dpbf16_of_few(e, v, lanes);
  if (kva_target_has(&e->cg->target, KVA_TARGET_DOT2) && lanes <= 16) return dpbf16(e, v, lanes);
  LLVMValueRef sum = kva_ll_fma(e, half_of(e, v[0], true), half_of(e, v[1], true), v[2]);
  return kva_ll_fma(e, half_of(e, v[0], false), half_of(e, v[1], false), sum);
}
