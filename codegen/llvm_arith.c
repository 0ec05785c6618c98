/* Scalar opcodes of the kernel IR on scalars or vectors. No fast-math flags: the result is exactly what the kernel IR
 * says, NaN and signed zero included; only `fma` contracts. */
#include "codegen/llvm_internal.h"

#include <math.h>

LLVMValueRef kva_ll_use(kva_emit *e, kva_kval v) {
  KVA_ASSERT(e->values[v->id]);
  return e->values[v->id];
}

static LLVMIntPredicate int_predicate(kva_kop op, bool is_unsigned) {
  switch (op) {
  case KVA_K_eq: return LLVMIntEQ;
  case KVA_K_ne: return LLVMIntNE;
  case KVA_K_lt: return is_unsigned ? LLVMIntULT : LLVMIntSLT;
  default: return is_unsigned ? LLVMIntULE : LLVMIntSLE;
  }
}

static LLVMRealPredicate float_predicate(kva_kop op) {
  switch (op) {
  case KVA_K_eq: return LLVMRealOEQ;
  case KVA_K_ne: return LLVMRealUNE;
  case KVA_K_lt: return LLVMRealOLT;
  default: return LLVMRealOLE;
  }
}

static LLVMValueRef compare(kva_emit *e, kva_kop op, kva_dtype t, LLVMValueRef a, LLVMValueRef b) {
  if (kva_dtype_is_float(t)) return LLVMBuildFCmp(e->b, float_predicate(op), a, b, "");
  return LLVMBuildICmp(e->b, int_predicate(op, kva_dtype_is_unsigned(t) || t == KVA_BOOL), a, b, "");
}

static LLVMValueRef is_nan(kva_emit *e, LLVMValueRef x) {
  return LLVMBuildFCmp(e->b, LLVMRealUNO, x, x, "");
}

/* The instruction of x86 for vectors of f32: y if x is beyond it, else x, and so a NaN in x, not in y. From a
 * comparison and a selection LLVM 19 makes it only where it does not merge the latter with the one for NaN. NULL: there
 * is none. */
static LLVMValueRef machine_minmax(kva_emit *e, kva_dtype t, bool is_min, LLVMValueRef x, LLVMValueRef y) {
  enum { CURRENT_ROUNDING = 4 };
  unsigned lanes = kva_ll_is_vector(x) ? LLVMGetVectorSize(LLVMTypeOf(x)) : 1;
  LLVMValueRef args[] = {y, x, LLVMConstInt(LLVMInt32TypeInContext(e->ctx), CURRENT_ROUNDING, false)};
  bool fits = lanes * sizeof(float) <= (size_t)e->cg->target.vector_bytes;
  if (t != KVA_F32 || !fits || !kva_target_has(&e->cg->target, KVA_TARGET_PAIRS)) return NULL;
  switch (lanes) {
  case 4: return kva_ll_intrinsic(e, is_min ? "llvm.x86.sse.min.ps" : "llvm.x86.sse.max.ps", 0, NULL, 2, args);
  case 8: return kva_ll_intrinsic(e, is_min ? "llvm.x86.avx.min.ps.256" : "llvm.x86.avx.max.ps.256", 0, NULL, 2, args);
  case 16:
    return kva_ll_intrinsic(e, is_min ? "llvm.x86.avx512.min.ps.512" : "llvm.x86.avx512.max.ps.512", 0, NULL, 3, args);
  default: return NULL;
  }
}

/* b if `a p b`, else a. */
static LLVMValueRef select_beyond(kva_emit *e, LLVMRealPredicate p, LLVMValueRef a, LLVMValueRef b) {
  return LLVMBuildSelect(e->b, LLVMBuildFCmp(e->b, p, a, b, ""), b, a, "");
}

/* min(a, b) if is_min, else max(a, b); NaN if either is NaN. A constant comes second: the comparison yields a if a is
 * NaN, as the machine's max does, and the test of b folds. For two values an unordered comparison yields b, and a is
 * tested. Not the other way round: where a turns out to be 0 and b to be |x|, InstCombine of LLVM 19 merges the ordered
 * comparison with the test of b, and loses the |.| in both. */
static LLVMValueRef minmax(kva_emit *e, kva_dtype t, bool is_min, LLVMValueRef a, LLVMValueRef b) {
  KVA_ASSERT(LLVMTypeOf(a) == LLVMTypeOf(b));
  if (!kva_dtype_is_float(t)) {
    bool is_unsigned = kva_dtype_is_unsigned(t) || t == KVA_BOOL;
    LLVMIntPredicate p = is_min ? (is_unsigned ? LLVMIntULT : LLVMIntSLT) : (is_unsigned ? LLVMIntUGT : LLVMIntSGT);
    return LLVMBuildSelect(e->b, LLVMBuildICmp(e->b, p, a, b, ""), a, b, "");
  }
  if (kva_ll_is_gpu(e) && t == KVA_F32) { /* one instruction */
    LLVMValueRef v[] = {a, b};
    return kva_ll_intrinsic1(e, is_min ? "llvm.minimum" : "llvm.maximum", 2, v);
  }
  if (LLVMIsConstant(a)) {
    LLVMValueRef constant = a;
    a = b;
    b = constant;
  }
  LLVMValueRef best = LLVMIsConstant(b) ? select_beyond(e, is_min ? LLVMRealOGT : LLVMRealOLT, a, b)
                                        : machine_minmax(e, t, is_min, a, b);
  if (best) return LLVMBuildSelect(e->b, is_nan(e, b), b, best, "");
  best = select_beyond(e, is_min ? LLVMRealUGT : LLVMRealULT, a, b);
  return LLVMBuildSelect(e->b, is_nan(e, a), a, best, "");
}

/* x/0 is 0 and x/-1 is -x (which wraps for the least number): both would trap. */
static LLVMValueRef int_division(kva_emit *e, kva_kop op, kva_dtype t, LLVMValueRef a, LLVMValueRef b) {
  KVA_ASSERT(op == KVA_K_div || op == KVA_K_rem);
  LLVMTypeRef type = LLVMTypeOf(a);
  LLVMValueRef zero = LLVMConstNull(type), one = kva_ll_int(type, 1);
  bool is_rem = op == KVA_K_rem;
  LLVMValueRef by_zero = LLVMBuildICmp(e->b, LLVMIntEQ, b, zero, "");
  LLVMValueRef safe = LLVMBuildSelect(e->b, by_zero, one, b, ""), result;
  if (kva_dtype_is_unsigned(t)) {
    result = is_rem ? LLVMBuildURem(e->b, a, safe, "") : LLVMBuildUDiv(e->b, a, safe, "");
  } else {
    LLVMValueRef by_minus_one = LLVMBuildICmp(e->b, LLVMIntEQ, b, kva_ll_int(type, -1), "");
    safe = LLVMBuildSelect(e->b, by_minus_one, one, safe, "");
    result = is_rem ? LLVMBuildSRem(e->b, a, safe, "") : LLVMBuildSDiv(e->b, a, safe, "");
    LLVMValueRef negated = is_rem ? zero : LLVMBuildNeg(e->b, a, "");
    result = LLVMBuildSelect(e->b, by_minus_one, negated, result, "");
  }
  return LLVMBuildSelect(e->b, by_zero, zero, result, "");
}

/* Shifts by the width or more give 0 (or the sign). */
static LLVMValueRef shift(kva_emit *e, kva_kop op, kva_dtype t, LLVMValueRef a, LLVMValueRef b) {
  KVA_ASSERT(op == KVA_K_shl || op == KVA_K_shr);
  LLVMTypeRef type = LLVMTypeOf(a);
  int64_t width = kva_dtype_bits(t);
  LLVMValueRef in_range = LLVMBuildICmp(e->b, LLVMIntULT, b, kva_ll_int(type, width), "");
  bool arithmetic = op == KVA_K_shr && !kva_dtype_is_unsigned(t);
  LLVMValueRef amount = LLVMBuildSelect(e->b, in_range, b, kva_ll_int(type, arithmetic ? width - 1 : 0), "");
  if (arithmetic) return LLVMBuildAShr(e->b, a, amount, "");
  LLVMValueRef shifted = op == KVA_K_shl ? LLVMBuildShl(e->b, a, amount, "") : LLVMBuildLShr(e->b, a, amount, "");
  return LLVMBuildSelect(e->b, in_range, shifted, LLVMConstNull(type), "");
}

static LLVMValueRef high_half(kva_emit *e, kva_dtype t, LLVMValueRef a, LLVMValueRef b) {
  KVA_ASSERT(kva_dtype_bits(t) == 32);
  unsigned bits = (unsigned)kva_dtype_bits(t);
  LLVMTypeRef narrow = LLVMTypeOf(a), wide = kva_ll_like(LLVMIntTypeInContext(e->ctx, 2 * bits), a);
  LLVMValueRef product = LLVMBuildMul(e->b, LLVMBuildZExt(e->b, a, wide, ""), LLVMBuildZExt(e->b, b, wide, ""), "");
  return LLVMBuildTrunc(e->b, LLVMBuildLShr(e->b, product, kva_ll_int(wide, bits), ""), narrow, "");
}

static LLVMValueRef int_abs(kva_emit *e, kva_dtype t, LLVMValueRef a) {
  if (kva_dtype_is_unsigned(t)) return a;
  LLVMValueRef negative = LLVMBuildICmp(e->b, LLVMIntSLT, a, LLVMConstNull(LLVMTypeOf(a)), "");
  return LLVMBuildSelect(e->b, negative, LLVMBuildNeg(e->b, a, ""), a, "");
}

static LLVMValueRef int_arith(kva_emit *e, kva_kop op, kva_dtype t, LLVMValueRef *v) {
  switch (op) {
  case KVA_K_add: return LLVMBuildAdd(e->b, v[0], v[1], "");
  case KVA_K_sub: return LLVMBuildSub(e->b, v[0], v[1], "");
  case KVA_K_mul: return LLVMBuildMul(e->b, v[0], v[1], "");
  case KVA_K_fma: return LLVMBuildAdd(e->b, LLVMBuildMul(e->b, v[0], v[1], ""), v[2], "");
  case KVA_K_div:
  case KVA_K_rem: return int_division(e, op, t, v[0], v[1]);
  case KVA_K_neg: return LLVMBuildNeg(e->b, v[0], "");
  case KVA_K_abs: return int_abs(e, t, v[0]);
  case KVA_K_shl:
  case KVA_K_shr: return shift(e, op, t, v[0], v[1]);
  case KVA_K_mulhi: return high_half(e, t, v[0], v[1]);
  case KVA_K_dot4: return kva_ll_dot4(e, v);
  case KVA_K_floor:
  case KVA_K_ceil:
  case KVA_K_round:
  case KVA_K_trunc: return v[0];
  case KVA_K_isnan: return LLVMConstNull(kva_ll_like(LLVMInt1TypeInContext(e->ctx), v[0]));
  default: return NULL;
  }
}

static const char *float_intrinsic(kva_kop op) {
  switch (op) {
  case KVA_K_abs: return "llvm.fabs";
  case KVA_K_floor: return "llvm.floor";
  case KVA_K_ceil: return "llvm.ceil";
  case KVA_K_round: return "llvm.roundeven";
  case KVA_K_trunc: return "llvm.trunc";
  case KVA_K_sqrt: return "llvm.sqrt";
  default: return NULL;
  }
}

/* fma of floats in double: the product is exact, the sum is rounded to double and then to float. Double rounding
 * differs from fma only if the first result is a tie of the second, about once in 2^29; exact results stay exact. */
static LLVMValueRef wide_fma(kva_emit *e, LLVMValueRef *v) {
  LLVMTypeRef narrow = LLVMTypeOf(v[0]), wide = kva_ll_like(LLVMDoubleTypeInContext(e->ctx), v[0]);
  LLVMValueRef d[3];
  for (int i = 0; i < 3; i++) d[i] = LLVMBuildFPExt(e->b, v[i], wide, "");
  return LLVMBuildFPTrunc(e->b, LLVMBuildFAdd(e->b, LLVMBuildFMul(e->b, d[0], d[1], ""), d[2], ""), narrow, "");
}

static LLVMValueRef float_fma(kva_emit *e, kva_dtype t, LLVMValueRef *v) {
  if (t == KVA_F32 && !kva_target_has(&e->cg->target, KVA_TARGET_FMA)) return wide_fma(e, v);
  return kva_ll_intrinsic1(e, "llvm.fma", 3, v);
}

LLVMValueRef kva_ll_fma(kva_emit *e, LLVMValueRef a, LLVMValueRef b, LLVMValueRef c) {
  return float_fma(e, KVA_F32, (LLVMValueRef[]){a, b, c});
}

/* A GPU's instruction on floats, lane by lane. */
static LLVMValueRef near_lanes(kva_emit *e, const char *text, const char *constraints, uint32_t n, LLVMValueRef *v) {
  LLVMTypeRef type = LLVMTypeOf(v[0]);
  if (!kva_ll_is_vector(v[0])) return kva_ll_assembly(e, true, text, constraints, type, n, v);
  LLVMValueRef result = LLVMGetPoison(type), args[2];
  for (unsigned i = 0; i < LLVMGetVectorSize(type); i++) {
    LLVMValueRef lane = kva_ll_i64(e, i);
    for (uint32_t a = 0; a < n; a++) args[a] = LLVMBuildExtractElement(e->b, v[a], lane, "");
    LLVMValueRef x = kva_ll_assembly(e, true, text, constraints, LLVMGetElementType(type), n, args);
    result = LLVMBuildInsertElement(e->b, result, x, lane, "");
  }
  return result;
}

static LLVMValueRef near_div(kva_emit *e, LLVMValueRef *v) {
  if (!kva_ll_is_gpu(e)) return LLVMBuildFDiv(e->b, v[0], v[1], "");
  return near_lanes(e, "div.full.f32 $0, $1, $2;", "=f,f,f", 2, v);
}

static LLVMValueRef near_exp2(kva_emit *e, LLVMValueRef *v) {
  if (!kva_ll_is_gpu(e)) return kva_ll_libcall(e, "exp2f", 1, v);
  return near_lanes(e, "ex2.approx.f32 $0, $1;", "=f,f", 1, v);
}

/* Flushing what is below 2^-126 to 0 saves the machine some eight instructions. */
static LLVMValueRef near_logistic(kva_emit *e, LLVMValueRef *v) {
  static const char text[] = "{ .reg .f32 x; ex2.approx.ftz.f32 x, $1; add.ftz.f32 x, x, 0f3F800000; "
                             "rcp.approx.ftz.f32 $0, x; }";
  if (kva_ll_is_gpu(e)) return near_lanes(e, text, "=f,f", 1, v);
  LLVMValueRef one = LLVMConstReal(LLVMTypeOf(v[0]), 1);
  return LLVMBuildFDiv(e->b, one, LLVMBuildFAdd(e->b, near_exp2(e, v), one, ""), "");
}

static const char *scalef_instruction(unsigned lanes) {
  switch (lanes) {
  case 4: return "llvm.x86.avx512.mask.scalef.ps.128";
  case 8: return "llvm.x86.avx512.mask.scalef.ps.256";
  case 16: return "llvm.x86.avx512.mask.scalef.ps.512";
  default: return NULL;
  }
}

static LLVMValueRef scalef_by_instruction(kva_emit *e, const char *name, LLVMValueRef *v, unsigned lanes) {
  enum { CURRENT_DIRECTION = 4 }; /* of rounding */
  LLVMValueRef all = LLVMConstAllOnes(LLVMIntTypeInContext(e->ctx, lanes < 8 ? 8 : lanes));
  LLVMValueRef n = LLVMBuildFSub(e->b, v[1], LLVMConstReal(LLVMTypeOf(v[1]), KVA_K_ROUNDER), "");
  LLVMValueRef args[] = {v[0], n, v[0], all, kva_ll_int(LLVMInt32TypeInContext(e->ctx), CURRENT_DIRECTION)};
  return kva_ll_intrinsic(e, name, 0, NULL, lanes == 16 ? 5 : 4, args);
}

/* 2^half * 2^(n - half), so that neither factor over- or underflows unless the product does, and subnormal results
 * round once. Both exponents are made together, below the bits of KVA_K_ROUNDER, which shifting drops. */
static LLVMValueRef scalef_by_halves(kva_emit *e, LLVMValueRef *v) {
  LLVMTypeRef type = LLVMTypeOf(v[0]), bits = kva_ll_like(LLVMInt32TypeInContext(e->ctx), v[0]);
  LLVMValueRef both = LLVMBuildBitCast(e->b, v[1], bits, ""), result = v[0];
  both = LLVMBuildAdd(e->b, both, kva_ll_int(bits, 2 * 127), "");
  LLVMValueRef half = LLVMBuildAShr(e->b, both, kva_ll_int(bits, 1), "");
  LLVMValueRef parts[] = {half, LLVMBuildSub(e->b, both, half, "")};
  for (int i = 0; i < 2; i++) {
    LLVMValueRef power = LLVMBuildShl(e->b, parts[i], kva_ll_int(bits, 23), "");
    result = LLVMBuildFMul(e->b, result, LLVMBuildBitCast(e->b, power, type, ""), "");
  }
  return result;
}

static LLVMValueRef scalef(kva_emit *e, LLVMValueRef *v) {
  unsigned lanes = kva_ll_is_vector(v[0]) ? LLVMGetVectorSize(LLVMTypeOf(v[0])) : 1;
  const char *one = kva_target_has(&e->cg->target, KVA_TARGET_SCALEF) ? scalef_instruction(lanes) : NULL;
  return one ? scalef_by_instruction(e, one, v, lanes) : scalef_by_halves(e, v);
}

/* Division that rounds correctly is a subroutine on NVIDIA GPUs. Where products of warpgroups are on their way, which
 * kernels with tensor maps have, a relocatable compilation (nvJitLink's) waits for each of them because of the call
 * (note C7509): such kernels take near_div. */
static LLVMValueRef divide(kva_emit *e, kva_dtype t, LLVMValueRef *v) {
  bool near = kva_ll_is_gpu(e) && e->k->maps.len && t == KVA_F32;
  return near ? near_div(e, v) : LLVMBuildFDiv(e->b, v[0], v[1], "");
}

static LLVMValueRef float_arith(kva_emit *e, kva_kop op, kva_dtype t, LLVMValueRef *v) {
  switch (op) {
  case KVA_K_add: return LLVMBuildFAdd(e->b, v[0], v[1], "");
  case KVA_K_sub: return LLVMBuildFSub(e->b, v[0], v[1], "");
  case KVA_K_mul: return LLVMBuildFMul(e->b, v[0], v[1], "");
  case KVA_K_div: return divide(e, t, v);
  case KVA_K_near_div: return near_div(e, v);
  case KVA_K_near_exp2: return near_exp2(e, v);
  case KVA_K_near_logistic: return near_logistic(e, v);
  case KVA_K_scalef: return scalef(e, v);
  case KVA_K_neg: return LLVMBuildFNeg(e->b, v[0], "");
  case KVA_K_dot2: return kva_ll_dot2(e, v);
  case KVA_K_rem: return kva_ll_libcall(e, t == KVA_F32 ? "fmodf" : "fmod", 2, v);
  case KVA_K_isnan: return is_nan(e, v[0]);
  default: return NULL;
  }
}

/* Functions that legalize_math.c leaves: f64, one libm call for each lane. Integers (pow) go through f64. */
static LLVMValueRef math_call(kva_emit *e, kva_kop op, kva_dtype t, LLVMValueRef *v) {
  uint32_t n = kva_kop_arity(op);
  if (!kva_dtype_is_float(t)) {
    LLVMValueRef wide[3];
    for (uint32_t i = 0; i < n; i++) wide[i] = kva_ll_convert(e, v[i], t, KVA_F64);
    return kva_ll_convert(e, math_call(e, op, KVA_F64, wide), KVA_F64, t);
  }
  char name[16];
  snprintf(name, sizeof name, "%s%s", kva_kop_name(op), t == KVA_F32 ? "f" : "");
  return kva_ll_libcall(e, name, n, v);
}

static LLVMValueRef bitwise(kva_emit *e, kva_kop op, LLVMValueRef *v) {
  switch (op) {
  case KVA_K_and: return LLVMBuildAnd(e->b, v[0], v[1], "");
  case KVA_K_or: return LLVMBuildOr(e->b, v[0], v[1], "");
  case KVA_K_xor: return LLVMBuildXor(e->b, v[0], v[1], "");
  case KVA_K_not: return LLVMBuildNot(e->b, v[0], "");
  default: return NULL;
  }
}

static LLVMValueRef arith_values(kva_emit *e, kva_kop op, kva_dtype t, LLVMValueRef *v) {
  bool is_float = kva_dtype_is_float(t);
  switch (op) {
  case KVA_K_eq:
  case KVA_K_ne:
  case KVA_K_lt:
  case KVA_K_le: return compare(e, op, t, v[0], v[1]);
  case KVA_K_min:
  case KVA_K_max: return minmax(e, t, op == KVA_K_min, v[0], v[1]);
  case KVA_K_and:
  case KVA_K_or:
  case KVA_K_xor:
  case KVA_K_not: return bitwise(e, op, v);
  default: break;
  }
  if (is_float && op == KVA_K_fma) return float_fma(e, t, v);
  if (is_float && float_intrinsic(op)) return kva_ll_intrinsic1(e, float_intrinsic(op), kva_kop_arity(op), v);
  LLVMValueRef result = is_float ? float_arith(e, op, t, v) : int_arith(e, op, t, v);
  return result ? result : math_call(e, op, t, v);
}

/* Strips constants that v adds; *out_constant is their sum. */
static LLVMValueRef without_constant(LLVMValueRef v, int64_t *out_constant) {
  *out_constant = 0;
  while (LLVMIsAInstruction(v) && LLVMGetInstructionOpcode(v) == LLVMAdd) {
    LLVMValueRef by = LLVMGetOperand(v, 1);
    if (!LLVMIsAConstantInt(by)) break;
    *out_constant += LLVMConstIntGetSExtValue(by);
    v = LLVMGetOperand(v, 0);
  }
  return v;
}

/* Emits x + constant == y as y - x == constant, where x + constant is an index of straight-line code on a GPU: all
 * rounds and lanes share the difference, but each index would need its own register. NULL: the comparison has another
 * form. */
static LLVMValueRef compare_index(kva_emit *e, const kva_kinstr *i, unsigned lanes) {
  if (!kva_ll_is_gpu(e) || (i->op != KVA_K_eq && i->op != KVA_K_ne)) return NULL;
  bool first = i->args[0]->op == KVA_K_INDEX;
  kva_kval index = i->args[first ? 0 : 1], other = i->args[first ? 1 : 0];
  if (index->op != KVA_K_INDEX || other->dtype != KVA_I64 || e->varying[other->id]) return NULL;
  if (lanes > 1 && kva_ll_expr_stride(e, index->index) != 1) return NULL;
  int64_t constant;
  LLVMValueRef x = without_constant(kva_ll_expr(e, index->index), &constant);
  LLVMValueRef difference = LLVMBuildSub(e->b, kva_ll_use(e, other), x, ""), constants[64];
  for (unsigned l = 0; l < lanes; l++) constants[l] = kva_ll_i64(e, constant + l);
  LLVMValueRef to = lanes > 1 ? LLVMConstVector(constants, lanes) : constants[0];
  return LLVMBuildICmp(e->b, int_predicate(i->op, false), kva_ll_splat(e, difference, lanes), to, "");
}

LLVMValueRef kva_ll_arith(kva_emit *e, const kva_kinstr *i) {
  LLVMValueRef v[3] = {0};
  unsigned lanes = e->varying[i->id] ? e->lanes.n : 1;
  LLVMValueRef comparison = compare_index(e, i, lanes);
  if (comparison) return comparison;
  for (uint32_t a = 0; a < i->n_args; a++) v[a] = kva_ll_splat(e, kva_ll_use(e, i->args[a]), lanes);
  if (i->op == KVA_K_far_rest || i->op == KVA_K_far_quarter) return kva_ll_far_angle(e, i->op, v[0], v[1]);
  if (i->op != KVA_K_select) return arith_values(e, i->op, i->args[0]->dtype, v);
  return LLVMBuildSelect(e->b, v[0], v[1], v[2], "");
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

LLVMValueRef kva_ll_combine(kva_emit *e, kva_combine op, kva_dtype t, LLVMValueRef a, LLVMValueRef b) {
  LLVMValueRef v[] = {a, b};
  switch (op) {
  case KVA_COMBINE_ADD: return arith_values(e, KVA_K_add, t, v);
  case KVA_COMBINE_MUL: return arith_values(e, KVA_K_mul, t, v);
  case KVA_COMBINE_MAX: return minmax(e, t, false, a, b); /* new value second: only a is on the critical path */
  case KVA_COMBINE_MIN: return minmax(e, t, true, a, b);
  case KVA_COMBINE_AND: return LLVMBuildAnd(e->b, a, b, "");
  case KVA_COMBINE_OR: return LLVMBuildOr(e->b, a, b, "");
  case KVA_COMBINE_NONE: break;
  }
  KVA_ASSERT(!"a sequential carry does not combine");
  return NULL;
}

static int64_t int_extreme(kva_dtype t, bool least) {
  int bits = t == KVA_BOOL ? 1 : kva_dtype_bits(t);
  if (t == KVA_BOOL || kva_dtype_is_unsigned(t)) return least ? 0 : -1;
  int64_t lowest = (int64_t)((uint64_t)-1 << (bits - 1));
  return least ? lowest : ~lowest;
}

LLVMValueRef kva_ll_neutral(const kva_emit *e, kva_combine op, kva_dtype t) {
  LLVMTypeRef type = kva_ll_type(e, t);
  bool is_float = kva_dtype_is_float(t);
  switch (op) {
  case KVA_COMBINE_MUL: return is_float ? LLVMConstReal(type, 1) : LLVMConstInt(type, 1, false);
  case KVA_COMBINE_MAX:
    return is_float ? LLVMConstReal(type, -(double)INFINITY) : kva_ll_int(type, int_extreme(t, true));
  case KVA_COMBINE_MIN:
    return is_float ? LLVMConstReal(type, (double)INFINITY) : kva_ll_int(type, int_extreme(t, false));
  case KVA_COMBINE_AND: return LLVMConstAllOnes(type);
  default: return LLVMConstNull(type);
  }
}
