/* One kernel as one LLVM function: void(ptr buffers, ptr symbols, i64 begin, i64 end). Pointers and symbols are loaded
 * at entry; LOCAL buffers are allocas, which LLVM promotes to registers if their indices are constant. */
#include "codegen/llvm_internal.h"

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static LLVMValueRef emit_const(kva_emit *e, const kva_kinstr *i) {
  LLVMTypeRef type = kva_ll_type(e, i->dtype);
  return kva_dtype_is_float(i->dtype) ? LLVMConstReal(type, i->imm.f) : kva_ll_int(type, i->imm.i);
}

static LLVMValueRef emit_index(kva_emit *e, const kva_kinstr *i) {
  return e->varying[i->id] ? kva_ll_expr_lanes(e, i->index) : kva_ll_expr(e, i->index);
}

static LLVMValueRef emit_bitcast(kva_emit *e, const kva_kinstr *i) {
  LLVMValueRef v = kva_ll_use(e, i->args[0]);
  return LLVMBuildBitCast(e->b, v, kva_ll_like(kva_ll_type(e, i->dtype), v), "");
}

static LLVMValueRef emit_narrow(kva_emit *e, const kva_kinstr *i) {
  kva_dtype storage = (kva_dtype)i->imm.i;
  return kva_ll_from_storage(e, storage, kva_ll_to_storage(e, storage, kva_ll_use(e, i->args[0])));
}

/* Emits an arm of an if, entered if cond holds in any lane. */
static void emit_arm(kva_emit *e, const kva_kregion *arm, LLVMValueRef cond) {
  if (!arm || !arm->first) return;
  LLVMValueRef outer = e->lanes.mask;
  if (kva_ll_is_vector(cond)) e->lanes.mask = kva_ll_and(e, outer, cond);
  LLVMBasicBlockRef then = kva_ll_block(e, "then"), done = kva_ll_block(e, "done");
  LLVMBuildCondBr(e->b, kva_ll_any(e, kva_ll_is_vector(cond) ? e->lanes.mask : cond), then, done);
  LLVMPositionBuilderAtEnd(e->b, then);
  kva_ll_region(e, arm);
  LLVMBuildBr(e->b, done);
  LLVMPositionBuilderAtEnd(e->b, done);
  e->lanes.mask = outer;
}

static void emit_if(kva_emit *e, const kva_kinstr *i) {
  LLVMValueRef cond = kva_ll_use(e, i->args[0]);
  LLVMValueRef not_cond = i->orelse && i->orelse->first ? LLVMBuildNot(e->b, cond, "") : NULL;
  emit_arm(e, i->then, cond);
  if (not_cond) emit_arm(e, i->orelse, not_cond);
}

typedef void (*emitter)(kva_emit *e, const kva_kinstr *i);

static const emitter emitters[KVA_DIALECT_COUNT] = {[KVA_DIALECT_TILE] = kva_ll_tile,
                                                    [KVA_DIALECT_NV] = kva_ll_nv,
                                                    [KVA_DIALECT_AMX] = kva_ll_amx,
                                                    [KVA_DIALECT_CPU] = kva_ll_cpu};

static void emit_instr(kva_emit *e, const kva_kinstr *i) {
  LLVMValueRef *out = &e->values[i->id];
  switch (i->op) {
  case KVA_K_CONST: *out = emit_const(e, i); return;
  case KVA_K_INDEX: *out = emit_index(e, i); return;
  case KVA_K_CONVERT:
    *out = kva_ll_float_of_field(e, i);
    if (!*out) *out = kva_ll_convert(e, kva_ll_use(e, i->args[0]), i->args[0]->dtype, i->dtype);
    return;
  case KVA_K_BITCAST: *out = emit_bitcast(e, i); return;
  case KVA_K_NARROW: *out = emit_narrow(e, i); return;
  case KVA_K_LOAD: *out = kva_ll_load(e, i); return;
  case KVA_K_STORE: kva_ll_store(e, i); return;
  case KVA_K_LOOP: kva_ll_loop(e, i->loop); return;
  case KVA_K_REDUCE: /* set by its loop */
  case KVA_K_CARRY: return;
  case KVA_K_BARRIER:
    if (kva_ll_is_gpu(e)) kva_ll_barrier(e);
    return;
  case KVA_K_INTRINSIC: emitters[i->intrinsic->op / KVA_DIALECT_SIZE](e, i); return;
  case KVA_K_IF: emit_if(e, i); return;
  default: *out = kva_ll_arith(e, i); return;
  }
}

void kva_ll_region(kva_emit *e, const kva_kregion *r) {
  KVA_ASSERT(r);
  uint32_t kept = e->kept.len;
  for (const kva_kinstr *i = r->first; i; i = i->next) emit_instr(e, i);
  e->kept.len = kept;
}

/* ---- the function ------------------------------------------------------------------------------------------------ */

static void set_attribute(kva_emit *e, const char *key, const char *value) {
  LLVMAttributeRef a = LLVMCreateStringAttribute(e->ctx, key, (unsigned)strlen(key), value, (unsigned)strlen(value));
  LLVMAddAttributeAtIndex(e->fn, LLVMAttributeFunctionIndex, a);
}

void kva_ll_parameter_attribute(kva_emit *e, unsigned parameter, const char *name, uint64_t value) {
  unsigned kind = LLVMGetEnumAttributeKindForName(name, strlen(name));
  LLVMAddAttributeAtIndex(e->fn, parameter + 1, LLVMCreateEnumAttribute(e->ctx, kind, value));
}

/* Kernels throw nothing. Without this attribute each has a table for unwinding, which the JIT registers with libgcc,
 * and that does not check its allocations. */
static void set_nounwind(kva_emit *e) {
  static const char name[] = "nounwind";
  unsigned kind = LLVMGetEnumAttributeKindForName(name, sizeof name - 1);
  LLVMAddAttributeAtIndex(e->fn, LLVMAttributeFunctionIndex, LLVMCreateEnumAttribute(e->ctx, kind, 0));
}

static void create_function(kva_emit *e, const char *name) {
  LLVMTypeRef ptr = LLVMPointerTypeInContext(e->ctx, 0), i64 = LLVMInt64TypeInContext(e->ctx);
  LLVMTypeRef params[] = {ptr, ptr, i64, i64};
  LLVMTypeRef type = LLVMFunctionType(LLVMVoidTypeInContext(e->ctx), params, 4, false);
  e->fn = LLVMAddFunction(e->module, name, type);
  char bits[16];
  snprintf(bits, sizeof bits, "%d", e->cg->target.vector_bytes * 8);
  set_attribute(e, "target-cpu", e->cg->cpu);
  set_attribute(e, "target-features", e->cg->features);
  set_attribute(e, "prefer-vector-width", bits);
  set_attribute(e, "min-legal-vector-width", bits);
  set_nounwind(e);
  for (unsigned p = 0; p < 2; p++) {
    kva_ll_parameter_attribute(e, p, "noalias", 0);
    kva_ll_parameter_attribute(e, p, "readonly", 0);
  }
  e->begin = LLVMGetParam(e->fn, 2);
  e->end = LLVMGetParam(e->fn, 3);
  LLVMPositionBuilderAtEnd(e->b, kva_ll_block(e, "entry"));
}

static LLVMValueRef load_entry(kva_emit *e, LLVMTypeRef type, unsigned parameter, uint32_t i) {
  KVA_ASSERT(parameter < 2); /* of pointers, of symbols */
  LLVMValueRef index = kva_ll_i64(e, i);
  LLVMValueRef at = LLVMBuildInBoundsGEP2(e->b, type, LLVMGetParam(e->fn, parameter), &index, 1, "");
  LLVMValueRef v = LLVMBuildLoad2(e->b, type, at, "");
  unsigned kind = LLVMGetMDKindIDInContext(e->ctx, "invariant.load", 14);
  LLVMSetMetadata(v, kind, LLVMMetadataAsValue(e->ctx, LLVMMDNodeInContext2(e->ctx, NULL, 0)));
  return v;
}

LLVMValueRef kva_ll_local(kva_emit *e, const kva_kbuf *buf) {
  int64_t n = 0;
  KVA_ASSERT(kva_expr_is_const(buf->extent, &n));
  if (kva_dtype_bits(buf->dtype) < 8) n = (n + 1) / 2;
  LLVMValueRef v = LLVMBuildAlloca(e->b, LLVMArrayType2(kva_ll_storage(e, buf->dtype), (uint64_t)n), buf->name);
  LLVMSetAlignment(v, kva_ll_is_gpu(e) ? 16 : 64);
  return v;
}

static LLVMMetadataRef scope_create(kva_emit *e, LLVMMetadataRef domain, const char *kernel, uint32_t buffer) {
  char name[128];
  int n = snprintf(name, sizeof name, "%.100s.%u", kernel, buffer);
  LLVMMetadataRef parts[] = {LLVMMDStringInContext2(e->ctx, name, (size_t)n), domain};
  return LLVMMDNodeInContext2(e->ctx, parts, 2);
}

/* Whether a plan may give both the same memory. */
static bool may_share(const kva_emit *e, uint32_t a, uint32_t b) {
  const kva_kbuf *result = e->k->bufs.data[a], *operand = e->k->bufs.data[b];
  if (result->space != KVA_K_PARAM || operand->space != KVA_K_PARAM || result->dtype != operand->dtype) return false;
  return result->written && !operand->written && kva_kernel_in_place(e->k, result, operand);
}

/* Each buffer has its own alias scope, disjoint from all others but those whose memory it may share: LLVM may load
 * elements of disjoint ones a second time, after a store. */
static void create_scopes(kva_emit *e, const char *name) {
  uint32_t n = e->k->bufs.len;
  LLVMMetadataRef domain_name = LLVMMDStringInContext2(e->ctx, name, strlen(name));
  LLVMMetadataRef domain = LLVMMDNodeInContext2(e->ctx, &domain_name, 1);
  LLVMMetadataRef *scopes = KVA_NEW_ARRAY(e->scratch, LLVMMetadataRef, n + 1);
  LLVMMetadataRef *others = KVA_NEW_ARRAY(e->scratch, LLVMMetadataRef, n + 1);
  for (uint32_t i = 0; i < n; i++) scopes[i] = scope_create(e, domain, name, i);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t len = 0;
    for (uint32_t j = 0; j < n; j++) {
      bool shares = may_share(e, i, j) || may_share(e, j, i);
      e->shares[i] |= shares;
      if (i != j && !shares) others[len++] = scopes[j];
    }
    e->scopes[i] = LLVMMetadataAsValue(e->ctx, LLVMMDNodeInContext2(e->ctx, &scopes[i], 1));
    e->others[i] = LLVMMetadataAsValue(e->ctx, LLVMMDNodeInContext2(e->ctx, others, len));
  }
}

static void bind_buffers(kva_emit *e) {
  LLVMTypeRef ptr = LLVMPointerTypeInContext(e->ctx, 0);
  uint32_t parameter = 0;
  if (!kva_ll_is_gpu(e)) e->spare = LLVMBuildAlloca(e->b, LLVMInt64TypeInContext(e->ctx), "spare");
  for (uint32_t i = 0; i < e->k->bufs.len; i++) {
    const kva_kbuf *buf = e->k->bufs.data[i];
    e->bufs[buf->id] = buf->space == KVA_K_PARAM ? load_entry(e, ptr, 0, parameter++) : kva_ll_local(e, buf);
  }
}

static kva_emit emit_create(kva_codegen *cg, const kva_kernel *k) {
  kva_arena *scratch = kva_arena_create();
  uint32_t n_bufs = k->bufs.len + 1;
  return (kva_emit){.cg = cg,
                    .ctx = cg->module->ctx,
                    .module = cg->module->ir,
                    .b = cg->module->builder,
                    .scratch = scratch,
                    .k = k,
                    .bufs = KVA_NEW_ARRAY(scratch, LLVMValueRef, n_bufs),
                    .shares = KVA_NEW_ARRAY(scratch, bool, n_bufs),
                    .scopes = KVA_NEW_ARRAY(scratch, LLVMValueRef, n_bufs),
                    .others = KVA_NEW_ARRAY(scratch, LLVMValueRef, n_bufs),
                    .values = KVA_NEW_ARRAY(scratch, LLVMValueRef, k->next_id + 1),
                    .varying = KVA_NEW_ARRAY(scratch, bool, k->next_id + 1),
                    .lanes = {1, NULL, NULL}};
}

/* A kernel without a GRID loop is one work item: it runs if the range is not empty. */
static void emit_kernel_body(kva_emit *e) {
  LLVMBasicBlockRef run = kva_ll_block(e, "run"), out = kva_ll_block(e, "out");
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, e->begin, e->end, ""), run, out);
  LLVMPositionBuilderAtEnd(e->b, run);
  kva_ll_region(e, e->k->body);
  LLVMBuildBr(e->b, out);
  LLVMPositionBuilderAtEnd(e->b, out);
  LLVMBuildRetVoid(e->b);
}

static void emit_cpu(kva_emit *e, const char *name, uint32_t n_symbols, const kva_expr *const *symbols) {
  create_function(e, name);
  for (uint32_t i = 0; i < n_symbols; i++) {
    kva_ll_bind(e, symbols[i], load_entry(e, LLVMInt64TypeInContext(e->ctx), 1, i));
  }
  bind_buffers(e);
  emit_kernel_body(e);
}

static void emit_gpu(kva_emit *e, const char *name, uint32_t n_symbols, const kva_expr *const *symbols) {
  kva_ll_gpu_entry(e, name, n_symbols, symbols);
  kva_ll_region(e, e->k->body);
  LLVMBuildRetVoid(e->b);
}

kva_launch kva_ll_kernel(kva_codegen *cg, const kva_kernel *k, const char *name, uint32_t n_symbols,
                         const kva_expr *const *symbols) {
  KVA_ASSERT(!k->threads || cg->target.kind == KVA_TARGET_GPU);
  kva_emit e = emit_create(cg, k);
  create_scopes(&e, name);
  if (kva_ll_is_gpu(&e))
    emit_gpu(&e, name, n_symbols, symbols);
  else
    emit_cpu(&e, name, n_symbols, symbols);
  kva_arena_destroy(e.scratch);
  return (kva_launch){k->threads, e.shared_bytes, e.dynamic_bytes, kva_ll_cooperating(&e)};
}
