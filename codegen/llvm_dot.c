/* Sums of four products of bytes: dot4 of the kernel IR.
 *
 *   vpdpbusd    where the target has it (AVX-512 VNNI, AVX-VNNI)
 *   vpmaddwd    on other x86: bytes of even and of odd number become elements of 16 bits, whose products are added in
 *               pairs. Exact: 2 * 255 * 128 is far from what 32 bits hold. vpmaddubsw would do with one, but saturates
 *   otherwise   four multiplications */
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

/* Elements of 16 bits of the even bytes (of the odd ones, if v is shifted), without sign. */
static LLVMValueRef low_bytes(kva_emit *e, LLVMValueRef v, LLVMTypeRef halves) {
  LLVMValueRef x = LLVMBuildAnd(e->b, v, kva_ll_int(LLVMTypeOf(v), 0x00FF00FF), "");
  return LLVMBuildBitCast(e->b, x, halves, "");
}

static LLVMValueRef pairs(kva_emit *e, const char *name, LLVMValueRef x, LLVMValueRef y) {
  LLVMValueRef args[] = {x, y};
  return kva_ll_intrinsic(e, name, 0, NULL, 2, args);
}

static LLVMValueRef by_pairs(kva_emit *e, const char *name, LLVMValueRef *v, unsigned lanes) {
  LLVMTypeRef halves = LLVMVectorType(LLVMInt16TypeInContext(e->ctx), 2 * lanes);
  LLVMValueRef eight = kva_ll_int(halves, 8), y = LLVMBuildBitCast(e->b, v[1], halves, "");
  LLVMValueRef odd = LLVMBuildLShr(e->b, v[0], kva_ll_int(LLVMTypeOf(v[0]), 8), "");
  LLVMValueRef even_y = LLVMBuildAShr(e->b, LLVMBuildShl(e->b, y, eight, ""), eight, "");
  LLVMValueRef first = pairs(e, name, low_bytes(e, v[0], halves), even_y);
  LLVMValueRef second = pairs(e, name, low_bytes(e, odd, halves), LLVMBuildAShr(e->b, y, eight, ""));
  return LLVMBuildAdd(e->b, v[2], LLVMBuildAdd(e->b, first, second, ""), "");
}

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
  const char *one = kva_target_has(t, KVA_TARGET_DOT4) ? one_instruction(lanes) : NULL;
  const char *two = kva_target_has(t, KVA_TARGET_PAIRS) ? pairs_instruction(lanes) : NULL;
  LLVMValueRef args[] = {v[2], v[0], v[1]};
  if (one) return kva_ll_intrinsic(e, one, 0, NULL, 3, args);
  return two ? by_pairs(e, two, v, lanes) : by_products(e, v);
}
