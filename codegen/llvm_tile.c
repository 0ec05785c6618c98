/* The tile dialect (KVA_K_TILES) for NVIDIA GPUs: NVVM intrinsics where LLVM has them, else inline assembly; and
 * helpers that the emitters of dialects share. LLVM's memory model expresses ordering: assembly with effects clobbers
 * all memory. */
#include "codegen/llvm_internal.h"

enum { SHARED_MEMORY = 3, MAX_REGISTERS = 8 };

static LLVMTypeRef i32_type(const kva_emit *e) {
  return LLVMInt32TypeInContext(e->ctx);
}

static LLVMValueRef i32(const kva_emit *e, int64_t v) {
  return LLVMConstInt(i32_type(e), (uint64_t)v, true);
}

/* ---- places ------------------------------------------------------------------------------------------------------ */

LLVMValueRef kva_ll_place(kva_emit *e, const kva_kplace *p) {
  LLVMValueRef at = kva_ll_expr(e, p->index);
  return LLVMBuildGEP2(e->b, kva_ll_storage(e, p->buf->dtype), e->bufs[p->buf->id], &at, 1, "");
}

LLVMValueRef kva_ll_shared_address(kva_emit *e, const kva_kplace *p) {
  KVA_ASSERT(p->buf->space == KVA_K_SHARED);
  return LLVMBuildPtrToInt(e->b, kva_ll_place(e, p), i32_type(e), "");
}

static LLVMValueRef register_at(kva_emit *e, LLVMValueRef base, LLVMTypeRef type, uint32_t i) {
  LLVMValueRef at = kva_ll_i64(e, i);
  return LLVMBuildGEP2(e->b, type, base, &at, 1, "");
}

void kva_ll_load_registers(kva_emit *e, const kva_kplace *p, LLVMTypeRef type, uint32_t n, LLVMValueRef *out) {
  KVA_ASSERT(p->buf->space == KVA_K_LOCAL);
  LLVMValueRef base = kva_ll_place(e, p);
  for (uint32_t i = 0; i < n; i++) {
    out[i] = LLVMBuildLoad2(e->b, type, register_at(e, base, type, i), "");
    LLVMSetAlignment(out[i], 4);
  }
}

void kva_ll_store_registers(kva_emit *e, const kva_kplace *p, uint32_t n, const LLVMValueRef *values) {
  LLVMValueRef base = kva_ll_place(e, p);
  for (uint32_t i = 0; i < n; i++)
    LLVMSetAlignment(LLVMBuildStore(e->b, values[i], register_at(e, base, LLVMTypeOf(values[i]), i)), 4);
}

/* Stores the results of an instruction that returns several. */
static void store_results(kva_emit *e, const kva_kplace *p, uint32_t n, LLVMValueRef results) {
  KVA_ASSERT(n > 0 && n <= MAX_REGISTERS);
  LLVMValueRef values[MAX_REGISTERS];
  for (uint32_t i = 0; i < n; i++) values[i] = n > 1 ? LLVMBuildExtractValue(e->b, results, i, "") : results;
  kva_ll_store_registers(e, p, n, values);
}

/* ---- assembly ---------------------------------------------------------------------------------------------------- */

LLVMValueRef kva_ll_assembly(kva_emit *e, bool pure, const char *text, const char *constraints, LLVMTypeRef result,
                             uint32_t n_args, LLVMValueRef *args) {
  LLVMTypeRef *types = KVA_NEW_ARRAY(e->scratch, LLVMTypeRef, n_args + 1);
  for (uint32_t i = 0; i < n_args; i++) types[i] = LLVMTypeOf(args[i]);
  LLVMTypeRef type = LLVMFunctionType(result ? result : LLVMVoidTypeInContext(e->ctx), types, n_args, false);
  LLVMValueRef code = LLVMGetInlineAsm(type, text, strlen(text), constraints, strlen(constraints), !pure, false,
                                       LLVMInlineAsmDialectATT, false);
  LLVMValueRef call = LLVMBuildCall2(e->b, type, code, args, n_args, "");
  unsigned convergent = LLVMGetEnumAttributeKindForName("convergent", 10);
  LLVMAddCallSiteAttribute(call, LLVMAttributeFunctionIndex, LLVMCreateEnumAttribute(e->ctx, convergent, 0));
  if (!pure) return call;
  unsigned memory = LLVMGetEnumAttributeKindForName("memory", 6);
  LLVMAddCallSiteAttribute(call, LLVMAttributeFunctionIndex, LLVMCreateEnumAttribute(e->ctx, memory, 0));
  return call;
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

static void load_matrix(kva_emit *e, const kva_kintrinsic *m) {
  char name[64];
  snprintf(name, sizeof name, "llvm.nvvm.ldmatrix.sync.aligned.m8n8.x%d%s.b16", m->numbers[0],
           m->numbers[1] ? ".trans" : "");
  LLVMTypeRef pointer = LLVMPointerTypeInContext(e->ctx, SHARED_MEMORY);
  LLVMValueRef from = kva_ll_place(e, &m->places[1]);
  store_results(e, &m->places[0], (uint32_t)m->numbers[0], kva_ll_intrinsic(e, name, 1, &pointer, 1, &from));
}

static void store_matrix(kva_emit *e, const kva_kintrinsic *m) {
  static const char *const registers[] = {"", "{$1}", "{$1,$2}", "", "{$1,$2,$3,$4}"};
  static const char *const constraints[] = {"", "r,r,~{memory}", "r,r,r,~{memory}", "", "r,r,r,r,r,~{memory}"};
  int32_t n = m->numbers[0];
  LLVMValueRef args[5] = {kva_ll_shared_address(e, &m->places[0])};
  kva_ll_load_registers(e, &m->places[1], i32_type(e), (uint32_t)n, args + 1);
  const char *text = kva_arena_printf(e->scratch, "stmatrix.sync.aligned.m8n8.x%d%s.shared.b16 [$0], %s;", n,
                                      m->numbers[1] ? ".trans" : "", registers[n]);
  kva_ll_assembly(e, false, text, constraints[n], NULL, (uint32_t)n + 1, args);
}

/* The intrinsics for f16 take pairs, those for bf16 whole registers. */
static void mma(kva_emit *e, const kva_kintrinsic *m) {
  bool half = m->places[1].buf->dtype == KVA_F16;
  LLVMTypeRef pair = half ? LLVMVectorType(LLVMHalfTypeInContext(e->ctx), 2) : i32_type(e);
  LLVMValueRef args[10];
  kva_ll_load_registers(e, &m->places[1], pair, 4, args);
  kva_ll_load_registers(e, &m->places[2], pair, 2, args + 4);
  kva_ll_load_registers(e, &m->places[0], LLVMFloatTypeInContext(e->ctx), 4, args + 6);
  const char *name = half ? "llvm.nvvm.mma.m16n8k16.row.col.f32.f32" : "llvm.nvvm.mma.m16n8k16.row.col.bf16";
  store_results(e, &m->places[0], 4, kva_ll_intrinsic(e, name, 0, NULL, 10, args));
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static LLVMValueRef shuffle_xor(kva_emit *e, const kva_kinstr *i) {
  LLVMValueRef args[] = {i32(e, -1), kva_ll_use(e, i->args[0]), i32(e, i->intrinsic->numbers[0]), i32(e, 31)};
  return kva_ll_intrinsic(e, "llvm.nvvm.shfl.sync.bfly.f32", 0, NULL, 4, args);
}

static LLVMValueRef exp2_approximate(kva_emit *e, const kva_kinstr *i) {
  LLVMValueRef v = kva_ll_use(e, i->args[0]);
  return kva_ll_intrinsic(e, "llvm.nvvm.ex2.approx.ftz.f", 0, NULL, 1, &v);
}

/* One conversion of both: two would each need a move to place their half. */
static void round_pair(kva_emit *e, const kva_kintrinsic *m) {
  LLVMValueRef v[2];
  kva_ll_load_registers(e, &m->places[1], LLVMFloatTypeInContext(e->ctx), 2, v);
  bool half = m->places[0].buf->dtype == KVA_F16;
  LLVMValueRef args[] = {v[1], v[0]};
  const char *name = half ? "llvm.nvvm.ff2f16x2.rn" : "llvm.nvvm.ff2bf16x2.rn";
  LLVMValueRef pair = kva_ll_intrinsic(e, name, 0, NULL, 2, args);
  store_results(e, &m->places[0], 1, LLVMBuildBitCast(e->b, pair, i32_type(e), ""));
}

void kva_ll_tile(kva_emit *e, const kva_kinstr *i) {
  const kva_kintrinsic *m = i->intrinsic;
  LLVMValueRef all = i32(e, -1);
  switch (m->op) {
  case KVA_TILE_load_matrix: load_matrix(e, m); return;
  case KVA_TILE_store_matrix: store_matrix(e, m); return;
  case KVA_TILE_mma: mma(e, m); return;
  case KVA_TILE_block_barrier: kva_ll_intrinsic(e, "llvm.nvvm.barrier0", 0, NULL, 0, NULL); return;
  case KVA_TILE_subgroup_barrier: kva_ll_intrinsic(e, "llvm.nvvm.bar.warp.sync", 0, NULL, 1, &all); return;
  case KVA_TILE_shuffle_xor: e->values[i->id] = shuffle_xor(e, i); return;
  case KVA_TILE_round_pair: round_pair(e, m); return;
  case KVA_TILE_exp2: e->values[i->id] = exp2_approximate(e, i); return;
  default: KVA_ASSERT(!"an instruction of the dialect");
  }
}
