/* LLVM types and constants for Kvasir's dtypes, and helpers that all emitter files share. */
#include "codegen/llvm_internal.h"

LLVMTypeRef kva_ll_type(const kva_emit *e, kva_dtype compute) {
  switch (compute) {
  case KVA_F32: return LLVMFloatTypeInContext(e->ctx);
  case KVA_F64: return LLVMDoubleTypeInContext(e->ctx);
  case KVA_BOOL: return LLVMInt1TypeInContext(e->ctx);
  default: return LLVMIntTypeInContext(e->ctx, (unsigned)kva_dtype_bits(compute));
  }
}

LLVMTypeRef kva_ll_storage(const kva_emit *e, kva_dtype storage) {
  switch (storage) {
  case KVA_F32: return LLVMFloatTypeInContext(e->ctx);
  case KVA_F64: return LLVMDoubleTypeInContext(e->ctx);
  case KVA_F16: return LLVMHalfTypeInContext(e->ctx);
  default: {
    int bits = kva_dtype_bits(storage);
    return LLVMIntTypeInContext(e->ctx, bits < 8 ? 8 : (unsigned)bits);
  }
  }
}

LLVMTypeRef kva_ll_widen(LLVMTypeRef scalar, unsigned lanes) {
  return lanes == 1 ? scalar : LLVMVectorType(scalar, lanes);
}

bool kva_ll_is_vector(LLVMValueRef v) {
  return LLVMGetTypeKind(LLVMTypeOf(v)) == LLVMVectorTypeKind;
}

LLVMTypeRef kva_ll_like(LLVMTypeRef scalar, LLVMValueRef shape) {
  return kva_ll_is_vector(shape) ? LLVMVectorType(scalar, LLVMGetVectorSize(LLVMTypeOf(shape))) : scalar;
}

enum { MAX_LANES = 64 };

static LLVMValueRef splat_constant(LLVMValueRef scalar, unsigned lanes) {
  LLVMValueRef all[MAX_LANES];
  KVA_ASSERT(lanes <= MAX_LANES);
  for (unsigned i = 0; i < lanes; i++) all[i] = scalar;
  return LLVMConstVector(all, lanes);
}

LLVMValueRef kva_ll_int(LLVMTypeRef type, int64_t v) {
  if (LLVMGetTypeKind(type) != LLVMVectorTypeKind) return LLVMConstInt(type, (uint64_t)v, true);
  return splat_constant(LLVMConstInt(LLVMGetElementType(type), (uint64_t)v, true), LLVMGetVectorSize(type));
}

LLVMValueRef kva_ll_i64(const kva_emit *e, int64_t v) {
  return LLVMConstInt(LLVMInt64TypeInContext(e->ctx), (uint64_t)v, true);
}

LLVMValueRef kva_ll_splat(kva_emit *e, LLVMValueRef v, unsigned lanes) {
  if (lanes == 1 || kva_ll_is_vector(v)) return v;
  if (LLVMIsConstant(v)) return splat_constant(v, lanes);
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx), type = LLVMVectorType(LLVMTypeOf(v), lanes);
  LLVMValueRef one = LLVMBuildInsertElement(e->b, LLVMGetPoison(type), v, LLVMConstInt(i32, 0, false), "");
  return LLVMBuildShuffleVector(e->b, one, LLVMGetPoison(type), LLVMConstNull(LLVMVectorType(i32, lanes)), "");
}

LLVMValueRef kva_ll_iota(const kva_emit *e, LLVMTypeRef scalar, unsigned lanes) {
  (void)e;
  LLVMValueRef all[MAX_LANES];
  KVA_ASSERT(lanes <= MAX_LANES);
  for (unsigned i = 0; i < lanes; i++) all[i] = LLVMConstInt(scalar, i, false);
  return LLVMConstVector(all, lanes);
}

LLVMValueRef kva_ll_intrinsic(kva_emit *e, const char *name, unsigned n_types, LLVMTypeRef *types, unsigned n_args,
                              LLVMValueRef *args) {
  unsigned id = LLVMLookupIntrinsicID(name, strlen(name));
  KVA_ASSERT(id);
  LLVMValueRef fn = LLVMGetIntrinsicDeclaration(e->module, id, types, n_types);
  return LLVMBuildCall2(e->b, LLVMGlobalGetValueType(fn), fn, args, n_args, "");
}

LLVMValueRef kva_ll_intrinsic1(kva_emit *e, const char *name, unsigned n_args, LLVMValueRef *args) {
  LLVMTypeRef type = LLVMTypeOf(args[0]);
  return kva_ll_intrinsic(e, name, 1, &type, n_args, args);
}

static LLVMValueRef extern_function(kva_emit *e, const char *name, LLVMTypeRef scalar, unsigned n_args) {
  LLVMValueRef fn = LLVMGetNamedFunction(e->module, name);
  if (fn) return fn;
  LLVMTypeRef params[] = {scalar, scalar, scalar};
  return LLVMAddFunction(e->module, name, LLVMFunctionType(scalar, params, n_args, false));
}

LLVMValueRef kva_ll_libcall(kva_emit *e, const char *name, unsigned n_args, LLVMValueRef *args) {
  KVA_ASSERT(!kva_ll_is_gpu(e)); /* legalize_*.c leave no calls on a GPU */
  LLVMTypeRef type = LLVMTypeOf(args[0]);
  bool vector = kva_ll_is_vector(args[0]);
  LLVMValueRef fn = extern_function(e, name, vector ? LLVMGetElementType(type) : type, n_args);
  if (!vector) return LLVMBuildCall2(e->b, LLVMGlobalGetValueType(fn), fn, args, n_args, "");
  LLVMValueRef result = LLVMGetPoison(type);
  for (unsigned i = 0; i < LLVMGetVectorSize(type); i++) {
    LLVMValueRef lane = kva_ll_i64(e, i), scalars[3];
    for (unsigned a = 0; a < n_args; a++) scalars[a] = LLVMBuildExtractElement(e->b, args[a], lane, "");
    LLVMValueRef v = LLVMBuildCall2(e->b, LLVMGlobalGetValueType(fn), fn, scalars, n_args, "");
    result = LLVMBuildInsertElement(e->b, result, v, lane, "");
  }
  return result;
}

LLVMBasicBlockRef kva_ll_block(kva_emit *e, const char *name) {
  return LLVMAppendBasicBlockInContext(e->ctx, e->fn, name);
}

LLVMValueRef kva_ll_any(kva_emit *e, LLVMValueRef mask) {
  if (!kva_ll_is_vector(mask)) return mask;
  return kva_ll_intrinsic1(e, "llvm.vector.reduce.or", 1, &mask);
}

LLVMValueRef kva_ll_and(kva_emit *e, LLVMValueRef a, LLVMValueRef b) {
  if (!a || !b) return a ? a : b;
  unsigned lanes = kva_ll_is_vector(a)   ? LLVMGetVectorSize(LLVMTypeOf(a))
                   : kva_ll_is_vector(b) ? LLVMGetVectorSize(LLVMTypeOf(b))
                                         : 1;
  return LLVMBuildAnd(e->b, kva_ll_splat(e, a, lanes), kva_ll_splat(e, b, lanes), "");
}
