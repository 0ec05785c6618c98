/* far_rest and far_quarter: the reduction of angles from 2^50 on (Payne and Hanek). x = m 2^e with an integer m, so
 *
 *   x 2/pi mod 4 = m (2^e 2/pi mod 4) mod 4
 *
 * and of 2/pi only the bits from weight 2^(1 - e) on matter. 192 of them, times m, leave 126 bits behind the point; the
 * multiple of pi/2 that is nearest to a double differs from it by more than 2^-62, so the rest is right to more bits
 * than a double has.
 *
 * Smaller angles, which are nearly all there are, take a branch around that. */
#include "codegen/llvm_internal.h"

#include <math.h>

enum { N_WORDS = 20, FIRST_EXPONENT = 1013 /* of a double whose product begins with bit 0 of the table */ };

/* 64 zeros, then the bits of 2/pi behind the point. */
static const uint64_t two_over_pi[N_WORDS] = {
    0x0000000000000000, 0xa2f9836e4e441529, 0xfc2757d1f534ddc0, 0xdb6295993c439041, 0xfe5163abdebbc561,
    0xb7246e3a424dd2e0, 0x06492eea09d1921c, 0xfe1deb1cb129a73e, 0xe88235f52ebb4484, 0xe99c7026b45f7e41,
    0x3991d639835339f4, 0x9c845f8bbdf9283b, 0x1ff897ffde05980f, 0xef2f118b5a0a6d1f, 0x6d367ecf27cb09b7,
    0x4f463f669e5fea2d, 0x7527bac7ebe5f17b, 0x3d0739f78a5292ea, 0x6bfb5fb11f8d5d08, 0x56033046fc7b6bab,
};

typedef struct angle {
  LLVMValueRef rest, quarter; /* double, i64 */
} angle;

static LLVMValueRef table(kva_emit *e) {
  static const char name[] = "kva_two_over_pi";
  LLVMValueRef found = LLVMGetNamedGlobal(e->module, name), words[N_WORDS];
  if (found) return found;
  LLVMTypeRef i64 = LLVMInt64TypeInContext(e->ctx);
  for (unsigned i = 0; i < N_WORDS; i++) words[i] = LLVMConstInt(i64, two_over_pi[i], false);
  LLVMTypeRef type = LLVMArrayType2(i64, N_WORDS);
  LLVMValueRef global = LLVMAddGlobalInAddressSpace(e->module, type, name, kva_ll_is_gpu(e) ? 1 : 0);
  LLVMSetInitializer(global, LLVMConstArray2(i64, words, N_WORDS));
  LLVMSetGlobalConstant(global, true);
  LLVMSetLinkage(global, LLVMInternalLinkage);
  LLVMSetAlignment(global, 8);
  return global;
}

/* Bits [64 i, 64 i + 64) behind bit `at` of the table. */
static LLVMValueRef table_bits(kva_emit *e, LLVMValueRef at, int64_t i) {
  LLVMTypeRef i64 = LLVMInt64TypeInContext(e->ctx);
  LLVMValueRef first = LLVMBuildLShr(e->b, at, kva_ll_i64(e, 6), ""), words[3];
  for (int64_t k = 0; k < 2; k++) {
    LLVMValueRef index = LLVMBuildAdd(e->b, first, kva_ll_i64(e, i + k), "");
    words[k] = LLVMBuildLoad2(e->b, i64, LLVMBuildInBoundsGEP2(e->b, i64, table(e), &index, 1, ""), "");
  }
  words[2] = LLVMBuildAnd(e->b, at, kva_ll_i64(e, 63), "");
  return kva_ll_intrinsic1(e, "llvm.fshl", 3, words);
}

/* *out_high is the upper half of the product, the result its lower one. */
static LLVMValueRef product(kva_emit *e, LLVMValueRef x, LLVMValueRef y, LLVMValueRef *out_high) {
  LLVMTypeRef i64 = LLVMInt64TypeInContext(e->ctx), i128 = LLVMIntTypeInContext(e->ctx, 128);
  LLVMValueRef p = LLVMBuildMul(e->b, LLVMBuildZExt(e->b, x, i128, ""), LLVMBuildZExt(e->b, y, i128, ""), "");
  *out_high = LLVMBuildTrunc(e->b, LLVMBuildLShr(e->b, p, LLVMConstInt(i128, 64, false), ""), i64, "");
  return LLVMBuildTrunc(e->b, p, i64, "");
}

/* x 2/pi mod 4 in units of 2^-126: the upper 128 of 192 bits. */
static void turns(kva_emit *e, LLVMValueRef x, LLVMValueRef *out_high, LLVMValueRef *out_low) {
  LLVMTypeRef i64 = LLVMInt64TypeInContext(e->ctx);
  LLVMValueRef bits = LLVMBuildBitCast(e->b, x, i64, ""), one = kva_ll_i64(e, INT64_C(1) << 52);
  LLVMValueRef m = LLVMBuildAnd(e->b, bits, kva_ll_i64(e, (INT64_C(1) << 52) - 1), "");
  LLVMValueRef exponent = LLVMBuildLShr(e->b, bits, kva_ll_i64(e, 52), "");
  LLVMValueRef at = LLVMBuildSub(e->b, exponent, kva_ll_i64(e, FIRST_EXPONENT), ""), lowest, middle, unused;
  m = LLVMBuildOr(e->b, m, one, "");
  LLVMValueRef high = product(e, m, table_bits(e, at, 0), &unused);
  LLVMValueRef low = product(e, m, table_bits(e, at, 1), &middle);
  product(e, m, table_bits(e, at, 2), &lowest);
  *out_low = LLVMBuildAdd(e->b, low, lowest, "");
  LLVMValueRef carry = LLVMBuildZExt(e->b, LLVMBuildICmp(e->b, LLVMIntULT, *out_low, low, ""), i64, "");
  *out_high = LLVMBuildAdd(e->b, LLVMBuildAdd(e->b, high, middle, ""), carry, "");
}

/* v 2^scale for an unsigned v below 2^63. */
static LLVMValueRef scaled(kva_emit *e, LLVMValueRef v, double scale) {
  LLVMTypeRef f64 = LLVMDoubleTypeInContext(e->ctx);
  return LLVMBuildFMul(e->b, LLVMBuildSIToFP(e->b, v, f64, ""), LLVMConstReal(f64, scale), "");
}

/* The nearest quarter turn, and the rest, which has its sign in the bit behind the point. */
static angle reduce(kva_emit *e, LLVMValueRef x) {
  LLVMTypeRef f64 = LLVMDoubleTypeInContext(e->ctx);
  LLVMValueRef high, low, half, fraction[3], two = kva_ll_i64(e, 2), one = kva_ll_i64(e, 1);
  turns(e, x, &high, &low);
  half = LLVMBuildAnd(e->b, LLVMBuildLShr(e->b, high, kva_ll_i64(e, 61), ""), one, "");
  angle r = {.quarter = LLVMBuildAdd(e->b, LLVMBuildLShr(e->b, high, kva_ll_i64(e, 62), ""), half, "")};
  fraction[0] = high, fraction[1] = low, fraction[2] = two;
  high = kva_ll_intrinsic1(e, "llvm.fshl", 3, fraction);
  low = LLVMBuildShl(e->b, low, two, "");
  LLVMValueRef sign = LLVMBuildAShr(e->b, high, kva_ll_i64(e, 63), "");
  high = LLVMBuildXor(e->b, high, sign, "");
  low = LLVMBuildLShr(e->b, LLVMBuildXor(e->b, low, sign, ""), one, "");
  LLVMValueRef size = LLVMBuildFAdd(e->b, scaled(e, high, 0x1p-64), scaled(e, low, 0x1p-127), "");
  size = LLVMBuildFMul(e->b, size, LLVMConstReal(f64, 1.5707963267948966), "");
  LLVMValueRef negative = LLVMBuildICmp(e->b, LLVMIntNE, sign, kva_ll_i64(e, 0), "");
  r.rest = LLVMBuildSelect(e->b, negative, LLVMBuildFNeg(e->b, size, ""), size, "");
  return r;
}

/* ---- the CPU calls a function for each lane ---------------------------------------------------------------------- */

static LLVMValueRef result_of(kva_emit *e, bool quarter, LLVMValueRef x) {
  angle r = reduce(e, x);
  return quarter ? r.quarter : r.rest;
}

static LLVMValueRef define(kva_emit *e, const char *name, bool quarter) {
  LLVMTypeRef f64 = LLVMDoubleTypeInContext(e->ctx);
  LLVMTypeRef type = LLVMFunctionType(quarter ? LLVMInt64TypeInContext(e->ctx) : f64, &f64, 1, false);
  LLVMValueRef fn = LLVMAddFunction(e->module, name, type);
  LLVMBasicBlockRef caller = LLVMGetInsertBlock(e->b);
  unsigned noinline_kind = LLVMGetEnumAttributeKindForName("noinline", 8);
  LLVMAddAttributeAtIndex(fn, LLVMAttributeFunctionIndex, LLVMCreateEnumAttribute(e->ctx, noinline_kind, 0));
  LLVMSetLinkage(fn, LLVMInternalLinkage);
  LLVMPositionBuilderAtEnd(e->b, LLVMAppendBasicBlockInContext(e->ctx, fn, "entry"));
  LLVMBuildRet(e->b, result_of(e, quarter, LLVMGetParam(fn, 0)));
  LLVMPositionBuilderAtEnd(e->b, caller);
  return fn;
}

static LLVMValueRef call(kva_emit *e, bool quarter, LLVMValueRef x) {
  const char *name = quarter ? "kva_far_quarter" : "kva_far_rest";
  if (kva_ll_is_gpu(e)) return result_of(e, quarter, x);
  LLVMValueRef fn = LLVMGetNamedFunction(e->module, name);
  if (!fn) fn = define(e, name, quarter);
  return LLVMBuildCall2(e->b, LLVMGlobalGetValueType(fn), fn, &x, 1, "");
}

/* ---- the instructions -------------------------------------------------------------------------------------------- */

/* One lane; the quarter as the bits of x's type. */
static LLVMValueRef far_lane(kva_emit *e, bool quarter, LLVMValueRef x) {
  LLVMTypeRef type = LLVMTypeOf(x), f64 = LLVMDoubleTypeInContext(e->ctx);
  bool wide = type == f64;
  LLVMValueRef r = call(e, quarter, wide ? x : LLVMBuildFPExt(e->b, x, f64, ""));
  if (!quarter) return wide ? r : LLVMBuildFPTrunc(e->b, r, type, "");
  if (!wide) r = LLVMBuildTrunc(e->b, r, LLVMInt32TypeInContext(e->ctx), "");
  return LLVMBuildBitCast(e->b, r, type, "");
}

static LLVMValueRef far_lanes(kva_emit *e, bool quarter, LLVMValueRef x) {
  if (!kva_ll_is_vector(x)) return far_lane(e, quarter, x);
  LLVMValueRef all = LLVMGetPoison(LLVMTypeOf(x));
  for (unsigned i = 0; i < LLVMGetVectorSize(LLVMTypeOf(x)); i++) {
    LLVMValueRef lane = kva_ll_i64(e, i);
    LLVMValueRef v = far_lane(e, quarter, LLVMBuildExtractElement(e->b, x, lane, ""));
    all = LLVMBuildInsertElement(e->b, all, v, lane, "");
  }
  return all;
}

static LLVMValueRef constant_like(LLVMValueRef shape, double v) {
  LLVMTypeRef type = LLVMTypeOf(shape);
  if (!kva_ll_is_vector(shape)) return LLVMConstReal(type, v);
  LLVMValueRef lanes[64];
  unsigned n = LLVMGetVectorSize(type);
  KVA_ASSERT(n <= sizeof lanes / sizeof *lanes);
  for (unsigned i = 0; i < n; i++) lanes[i] = LLVMConstReal(LLVMGetElementType(type), v);
  return LLVMConstVector(lanes, n);
}

/* The branch is nearly never taken, which keeps what it needs out of the way of the code around it. */
static void mark_unlikely(kva_emit *e, LLVMValueRef branch) {
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  LLVMMetadataRef parts[] = {LLVMMDStringInContext2(e->ctx, "branch_weights", 14),
                             LLVMValueAsMetadata(LLVMConstInt(i32, 1, false)),
                             LLVMValueAsMetadata(LLVMConstInt(i32, 1 << 20, false))};
  LLVMValueRef weights = LLVMMetadataAsValue(e->ctx, LLVMMDNodeInContext2(e->ctx, parts, 3));
  LLVMSetMetadata(branch, LLVMGetMDKindIDInContext(e->ctx, "prof", 4), weights);
}

LLVMValueRef kva_ll_far_angle(kva_emit *e, kva_kop op, LLVMValueRef near, LLVMValueRef x) {
  LLVMValueRef least = constant_like(x, KVA_FAR_ANGLE), none = constant_like(x, (double)INFINITY);
  LLVMValueRef is_far = LLVMBuildFCmp(e->b, LLVMRealOGE, x, least, "");
  LLVMBasicBlockRef before = LLVMGetInsertBlock(e->b), slow = kva_ll_block(e, "far"), after = kva_ll_block(e, "near");
  mark_unlikely(e, LLVMBuildCondBr(e->b, kva_ll_any(e, is_far), slow, after));
  LLVMPositionBuilderAtEnd(e->b, slow);
  LLVMValueRef v = far_lanes(e, op == KVA_K_far_quarter, LLVMBuildSelect(e->b, is_far, x, least, ""));
  LLVMValueRef finite = LLVMBuildAnd(e->b, is_far, LLVMBuildFCmp(e->b, LLVMRealOLT, x, none, ""), "");
  v = LLVMBuildSelect(e->b, finite, v, near, "");
  slow = LLVMGetInsertBlock(e->b);
  LLVMBuildBr(e->b, after);
  LLVMPositionBuilderAtEnd(e->b, after);
  LLVMValueRef result = LLVMBuildPhi(e->b, LLVMTypeOf(near), "");
  LLVMAddIncoming(result, &v, &slow, 1);
  LLVMAddIncoming(result, &near, &before, 1);
  return result;
}
