/* GPU kernels: the function, block and thread numbers, barriers, and reductions across threads.
 *
 * Parameters are pointers to global memory, and symbols by value. All threads of a subgroup reach barriers and shuffles
 * together: code between THREAD loops computes with the same values in all of them, so its control flow is uniform.
 *
 * A reduction over a subgroup is a butterfly: in step s every thread combines its value with that of the thread whose
 * number differs in bit s. Both sides combine the same two values, so all threads end with the same bits, and the order
 * of additions depends only on the subgroup's size. Over more than a warp, the warps' results are combined through
 * shared memory. */
#include "codegen/llvm_internal.h"

enum {
  WARP = 32,
  GLOBAL_MEMORY = 1,
  SHARED_MEMORY = 3,
  KERNEL_CALL = 71,
  MAP_BYTES = 128,
  MAP_ALIGNMENT = 64,
  TILE_ALIGNMENT = 1024,    /* of larger shared buffers: the period of the 128-byte swizzle */
  STATIC_SHARED = 48 << 10, /* more must be requested at launch */
};

static LLVMTypeRef i32_type(const kva_emit *e) {
  return LLVMInt32TypeInContext(e->ctx);
}

static LLVMValueRef i32(const kva_emit *e, int64_t v) {
  return LLVMConstInt(i32_type(e), (uint64_t)v, true);
}

static LLVMValueRef special_register(kva_emit *e, const char *name) {
  LLVMValueRef v = kva_ll_intrinsic(e, name, 0, NULL, 0, NULL);
  return LLVMBuildZExt(e->b, v, LLVMInt64TypeInContext(e->ctx), "");
}

/* ---- entry ------------------------------------------------------------------------------------------------------- */

/* {function, key, value} in !nvvm.annotations: the only form of launch bounds that LLVM 19 reads. */
static void annotate_kernel(kva_emit *e, const char *key, int64_t value) {
  LLVMMetadataRef parts[] = {LLVMValueAsMetadata(e->fn), LLVMMDStringInContext2(e->ctx, key, strlen(key)),
                             LLVMValueAsMetadata(i32(e, value))};
  LLVMMetadataRef node = LLVMMDNodeInContext2(e->ctx, parts, 3);
  LLVMAddNamedMetadataOperand(e->module, "nvvm.annotations", LLVMMetadataAsValue(e->ctx, node));
}

static uint32_t parameter_count(const kva_kernel *k) {
  uint32_t n = 0;
  while (n < k->bufs.len && k->bufs.data[n]->space == KVA_K_PARAM) n++;
  return n;
}

/* Without "grid_constant" LLVM copies by-value parameters to the stack. */
static void annotate_maps(kva_emit *e, uint32_t n) {
  LLVMTypeRef type = LLVMArrayType2(LLVMInt8TypeInContext(e->ctx), MAP_BYTES);
  unsigned byval = LLVMGetEnumAttributeKindForName("byval", 5);
  LLVMMetadataRef *numbers = KVA_NEW_ARRAY(e->scratch, LLVMMetadataRef, n);
  for (uint32_t i = 0; i < n; i++) {
    uint32_t parameter = e->first_map + i;
    LLVMAddAttributeAtIndex(e->fn, parameter + 1, LLVMCreateTypeAttribute(e->ctx, byval, type));
    kva_ll_parameter_attribute(e, parameter, "align", MAP_ALIGNMENT);
    numbers[i] = LLVMValueAsMetadata(i32(e, parameter + 1));
  }
  LLVMMetadataRef parts[] = {LLVMValueAsMetadata(e->fn), LLVMMDStringInContext2(e->ctx, "grid_constant", 13),
                             LLVMMDNodeInContext2(e->ctx, numbers, n)};
  LLVMMetadataRef node = LLVMMDNodeInContext2(e->ctx, parts, 3);
  LLVMAddNamedMetadataOperand(e->module, "nvvm.annotations", LLVMMetadataAsValue(e->ctx, node));
}

static void create_function(kva_emit *e, const char *name, uint32_t n_bufs, uint32_t n_symbols) {
  uint32_t n_maps = e->k->maps.len, n = n_bufs + n_symbols + n_maps;
  e->first_map = n_bufs + n_symbols;
  LLVMTypeRef *params = KVA_NEW_ARRAY(e->scratch, LLVMTypeRef, n + 1);
  for (uint32_t i = 0; i < n_bufs; i++) params[i] = LLVMPointerTypeInContext(e->ctx, GLOBAL_MEMORY);
  for (uint32_t i = 0; i < n_symbols; i++) params[n_bufs + i] = LLVMInt64TypeInContext(e->ctx);
  for (uint32_t i = 0; i < n_maps; i++) params[e->first_map + i] = LLVMPointerTypeInContext(e->ctx, 0);
  LLVMTypeRef type = LLVMFunctionType(LLVMVoidTypeInContext(e->ctx), params, n, false);
  e->fn = LLVMAddFunction(e->module, name, type);
  LLVMSetFunctionCallConv(e->fn, KERNEL_CALL);
  annotate_kernel(e, "reqntidx", e->k->threads);
  annotate_kernel(e, "reqntidy", 1);
  annotate_kernel(e, "reqntidz", 1);
  if (e->k->blocks) annotate_kernel(e, "minctasm", e->k->blocks);
  if (kva_ll_cluster(e)) annotate_kernel(e, "maxclusterrank", kva_ll_cluster(e)); /* see llvm_ptx.c */
  if (n_maps) annotate_maps(e, n_maps);
  for (uint32_t i = 0; i < n_bufs; i++) {
    if (!e->shares[i]) kva_ll_parameter_attribute(e, i, "noalias", 0);
    kva_ll_parameter_attribute(e, i, "align", KVA_GPU_ALIGNMENT);
    if (!e->k->bufs.data[i]->written) kva_ll_parameter_attribute(e, i, "readonly", 0);
  }
  LLVMPositionBuilderAtEnd(e->b, kva_ll_block(e, "entry"));
}

LLVMValueRef kva_ll_shared_array(kva_emit *e, const char *name, LLVMTypeRef element, uint64_t n) {
  LLVMTypeRef type = LLVMArrayType2(element, n);
  LLVMValueRef v = LLVMAddGlobalInAddressSpace(e->module, type, name, SHARED_MEMORY);
  LLVMSetInitializer(v, LLVMGetUndef(type));
  LLVMSetLinkage(v, LLVMInternalLinkage);
  LLVMSetAlignment(v, KVA_GPU_ALIGNMENT);
  e->shared_bytes += (uint32_t)LLVMABISizeOfType(e->cg->module->layout, type);
  return v;
}

static uint64_t elements_of(const kva_kbuf *buf) {
  int64_t n = 0;
  KVA_ASSERT(kva_expr_is_const(buf->extent, &n));
  return (uint64_t)(kva_dtype_bits(buf->dtype) < 8 ? (n + 1) / 2 : n);
}

static uint32_t bytes_of(kva_emit *e, const kva_kbuf *buf) {
  LLVMTypeRef type = LLVMArrayType2(kva_ll_storage(e, buf->dtype), elements_of(buf));
  return (uint32_t)LLVMABISizeOfType(e->cg->module->layout, type);
}

static uint32_t alignment_of(uint32_t bytes) {
  return bytes >= TILE_ALIGNMENT ? TILE_ALIGNMENT : KVA_GPU_ALIGNMENT;
}

static LLVMValueRef static_shared(kva_emit *e, const kva_kbuf *buf) {
  LLVMValueRef v = kva_ll_shared_array(e, buf->name, kva_ll_storage(e, buf->dtype), elements_of(buf));
  LLVMSetAlignment(v, alignment_of(bytes_of(e, buf)));
  return v;
}

/* The array of dynamic shared memory, one for all kernels of the module. */
static LLVMValueRef dynamic_array(kva_emit *e) {
  static const char name[] = "kva_dynamic_shared";
  LLVMValueRef v = LLVMGetNamedGlobal(e->module, name);
  if (v) return v;
  v = LLVMAddGlobalInAddressSpace(e->module, LLVMArrayType2(LLVMInt8TypeInContext(e->ctx), 0), name, SHARED_MEMORY);
  LLVMSetLinkage(v, LLVMExternalLinkage);
  LLVMSetAlignment(v, TILE_ALIGNMENT);
  return v;
}

static LLVMValueRef dynamic_shared(kva_emit *e, const kva_kbuf *buf) {
  uint32_t bytes = bytes_of(e, buf), alignment = alignment_of(bytes);
  e->dynamic_bytes = (e->dynamic_bytes + alignment - 1) / alignment * alignment;
  LLVMValueRef at = kva_ll_i64(e, e->dynamic_bytes);
  e->dynamic_bytes += bytes;
  return LLVMBuildInBoundsGEP2(e->b, LLVMInt8TypeInContext(e->ctx), dynamic_array(e), &at, 1, buf->name);
}

/* An upper bound of what combine_warps and kva_ll_combine_blocks allocate. */
static uint64_t bytes_of_results(const kva_kernel *k) {
  uint64_t n = 0;
  for (uint32_t l = 0; l < k->loops.len; l++) {
    const kva_kloop *loop = k->loops.data[l];
    if (loop->kind == KVA_K_THREAD) n += loop->carries.len * (k->threads / WARP + loop->blocks);
  }
  return n * sizeof(uint64_t);
}

static void bind_shared(kva_emit *e) {
  uint64_t bytes = bytes_of_results(e->k);
  for (uint32_t i = 0; i < e->k->bufs.len; i++) {
    const kva_kbuf *buf = e->k->bufs.data[i];
    if (buf->space == KVA_K_SHARED && !buf->over) bytes += bytes_of(e, buf);
  }
  for (uint32_t i = 0; i < e->k->bufs.len; i++) {
    const kva_kbuf *buf = e->k->bufs.data[i];
    if (buf->space != KVA_K_SHARED) continue;
    e->bufs[i] = buf->over               ? e->bufs[buf->over->id]
                 : bytes > STATIC_SHARED ? dynamic_shared(e, buf)
                                         : static_shared(e, buf);
  }
}

void kva_ll_gpu_entry(kva_emit *e, const char *name, uint32_t n_symbols, const kva_expr *const *symbols) {
  uint32_t n_bufs = parameter_count(e->k);
  KVA_ASSERT(e->k->threads && e->k->threads % WARP == 0);
  create_function(e, name, n_bufs, n_symbols);
  for (uint32_t i = 0; i < n_symbols; i++) kva_ll_bind(e, symbols[i], LLVMGetParam(e->fn, n_bufs + i));
  for (uint32_t i = 0; i < e->k->bufs.len; i++) {
    const kva_kbuf *buf = e->k->bufs.data[i];
    if (buf->space != KVA_K_SHARED)
      e->bufs[i] = buf->space == KVA_K_PARAM ? LLVMGetParam(e->fn, i) : kva_ll_local(e, buf);
  }
  bind_shared(e);
  e->thread = special_register(e, "llvm.nvvm.read.ptx.sreg.tid.x");
  e->subgroup = e->k->threads;
}

LLVMValueRef kva_ll_block_number(kva_emit *e) {
  return special_register(e, "llvm.nvvm.read.ptx.sreg.ctaid.x");
}

LLVMValueRef kva_ll_block_count(kva_emit *e) {
  return special_register(e, "llvm.nvvm.read.ptx.sreg.nctaid.x");
}

LLVMValueRef kva_ll_subgroup_number(kva_emit *e, unsigned around, unsigned subgroup) {
  KVA_ASSERT(around && subgroup && around <= e->k->threads && subgroup <= around);
  LLVMValueRef v = e->thread;
  if (around < e->k->threads) v = LLVMBuildAnd(e->b, v, kva_ll_i64(e, around - 1), "");
  return subgroup > 1 ? LLVMBuildUDiv(e->b, v, kva_ll_i64(e, subgroup), "") : v;
}

/* Hardware barrier 1 + t belongs to subgroup t; 0 is the block's. */
static void subgroup_barrier(kva_emit *e) {
  KVA_ASSERT(e->subgroup % WARP == 0 && e->k->threads / e->subgroup < 16); /* the hardware has 16 barriers */
  LLVMValueRef subgroup = LLVMBuildTrunc(e->b, kva_ll_subgroup_number(e, e->k->threads, e->subgroup), i32_type(e), "");
  LLVMValueRef args[] = {LLVMBuildAdd(e->b, subgroup, i32(e, 1), ""), i32(e, e->subgroup)};
  kva_ll_intrinsic(e, "llvm.nvvm.barrier", 0, NULL, 2, args);
}

/* Mask of the warp's threads in this thread's subgroup. Other subgroups of the warp may have exited. */
static LLVMValueRef members(kva_emit *e) {
  if (e->subgroup >= WARP) return i32(e, -1);
  LLVMValueRef thread = LLVMBuildTrunc(e->b, e->thread, i32_type(e), "");
  LLVMValueRef first = LLVMBuildAnd(e->b, thread, i32(e, WARP - e->subgroup), "");
  return LLVMBuildShl(e->b, i32(e, (1 << e->subgroup) - 1), first, "");
}

void kva_ll_barrier(kva_emit *e) {
  if (e->subgroup == e->k->threads)
    kva_ll_intrinsic(e, "llvm.nvvm.barrier0", 0, NULL, 0, NULL);
  else if (e->subgroup > WARP)
    subgroup_barrier(e);
  else if (e->subgroup > 1)
    kva_ll_intrinsic(e, "llvm.nvvm.bar.warp.sync", 0, NULL, 1, (LLVMValueRef[]){members(e)});
}

/* ---- reductions across threads ----------------------------------------------------------------------------------- */

/* v of the lane whose number differs in bit `bit`. */
static LLVMValueRef exchange32(kva_emit *e, LLVMValueRef v, unsigned bit) {
  KVA_ASSERT(bit && bit < WARP && bit < e->subgroup);
  LLVMValueRef args[] = {members(e), v, i32(e, bit), i32(e, WARP - 1)};
  return kva_ll_intrinsic(e, "llvm.nvvm.shfl.sync.bfly.i32", 0, NULL, 4, args);
}

static LLVMTypeRef bits_type(const kva_emit *e, LLVMValueRef v) {
  LLVMTypeRef t = LLVMTypeOf(v);
  if (t == LLVMFloatTypeInContext(e->ctx)) return i32_type(e);
  return t == LLVMDoubleTypeInContext(e->ctx) ? LLVMInt64TypeInContext(e->ctx) : t;
}

static LLVMValueRef exchange64(kva_emit *e, LLVMValueRef v, unsigned bit) {
  LLVMTypeRef i64 = LLVMTypeOf(v);
  LLVMValueRef half = LLVMConstInt(i64, 32, false);
  LLVMValueRef low = exchange32(e, LLVMBuildTrunc(e->b, v, i32_type(e), ""), bit);
  LLVMValueRef high = exchange32(e, LLVMBuildTrunc(e->b, LLVMBuildLShr(e->b, v, half, ""), i32_type(e), ""), bit);
  high = LLVMBuildShl(e->b, LLVMBuildZExt(e->b, high, i64, ""), half, "");
  return LLVMBuildOr(e->b, high, LLVMBuildZExt(e->b, low, i64, ""), "");
}

static LLVMValueRef exchange(kva_emit *e, LLVMValueRef v, unsigned bit) {
  LLVMTypeRef type = LLVMTypeOf(v), bits = bits_type(e, v);
  LLVMValueRef x = LLVMBuildBitCast(e->b, v, bits, "");
  unsigned width = LLVMGetIntTypeWidth(bits);
  if (width == 64)
    x = exchange64(e, x, bit);
  else if (width == 32)
    x = exchange32(e, x, bit);
  else
    x = LLVMBuildTrunc(e->b, exchange32(e, LLVMBuildZExt(e->b, x, i32_type(e), ""), bit), bits, "");
  return LLVMBuildBitCast(e->b, x, type, "");
}

static LLVMValueRef combine_lanes(kva_emit *e, const kva_kcarry *c, LLVMValueRef v, unsigned n) {
  for (unsigned bit = 1; bit < n; bit *= 2) v = kva_ll_combine(e, c->combine, c->dtype, v, exchange(e, v, bit));
  return v;
}

/* Booleans are bytes in memory. */
static LLVMTypeRef slot_type(kva_emit *e, kva_dtype t) {
  return t == KVA_BOOL ? LLVMInt8TypeInContext(e->ctx) : kva_ll_type(e, t);
}

/* Slot `at` among the warps' results for carry c: consecutive, with 8 bytes reserved for each, whatever its type. */
static LLVMValueRef slot(kva_emit *e, LLVMValueRef slots, uint32_t c, kva_dtype t, unsigned n_warps, LLVMValueRef at) {
  LLVMValueRef first = kva_ll_i64(e, (int64_t)c * n_warps);
  LLVMValueRef base = LLVMBuildInBoundsGEP2(e->b, LLVMInt64TypeInContext(e->ctx), slots, &first, 1, "");
  return LLVMBuildInBoundsGEP2(e->b, slot_type(e, t), base, &at, 1, "");
}

static void write_slots(kva_emit *e, uint32_t n, const kva_kcarry *carries, LLVMValueRef *values, LLVMValueRef slots,
                        unsigned n_warps) {
  KVA_ASSERT(n && n_warps > 1);
  LLVMBasicBlockRef first = kva_ll_block(e, "first_lane"), done = kva_ll_block(e, "written");
  LLVMValueRef lane = LLVMBuildAnd(e->b, e->thread, kva_ll_i64(e, WARP - 1), "");
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntEQ, lane, kva_ll_i64(e, 0), ""), first, done);
  LLVMPositionBuilderAtEnd(e->b, first);
  LLVMValueRef warp = kva_ll_subgroup_number(e, e->subgroup, WARP);
  for (uint32_t c = 0; c < n; c++) {
    LLVMValueRef v = values[c];
    if (carries[c].dtype == KVA_BOOL) v = LLVMBuildZExt(e->b, v, slot_type(e, KVA_BOOL), "");
    LLVMBuildStore(e->b, v, slot(e, slots, c, carries[c].dtype, n_warps, warp));
  }
  LLVMBuildBr(e->b, done);
  LLVMPositionBuilderAtEnd(e->b, done);
}

/* All threads of the block synchronise in r at an instruction other than `here`. */
static bool meets_elsewhere(const kva_kregion *r, const kva_kinstr *here) {
  for (const kva_kinstr *i = r->first; i; i = i->next) {
    bool combines =
        i->op == KVA_K_LOOP && i->loop->kind == KVA_K_THREAD && i->loop->subgroup <= 1 && i->loop->carries.len;
    if (i != here && (combines || i->op == KVA_K_BARRIER)) return true;
  }
  return false;
}

/* l may run again before all threads have synchronised after it. */
static bool is_repeated(const kva_kloop *l) {
  for (const kva_kinstr *i = l->instr; i->region->owner; i = i->region->owner) {
    const kva_kinstr *around = i->region->owner;
    if (around->op == KVA_K_LOOP && around->loop->kind != KVA_K_GRID) return !meets_elsewhere(around->loop->body, i);
  }
  return false;
}

static void combine_warps(kva_emit *e, const kva_kloop *l, LLVMValueRef *values) {
  const kva_kcarry *carries = l->carries.data;
  uint32_t n = l->carries.len;
  unsigned n_warps = e->subgroup / WARP, n_subgroups = e->k->threads / e->subgroup;
  LLVMTypeRef i64 = LLVMInt64TypeInContext(e->ctx);
  LLVMValueRef slots = kva_ll_shared_array(e, "warp_results", i64, (uint64_t)n * n_warps * n_subgroups);
  if (n_subgroups > 1) {
    LLVMValueRef first =
        LLVMBuildMul(e->b, kva_ll_subgroup_number(e, e->k->threads, e->subgroup), kva_ll_i64(e, n * n_warps), "");
    slots = LLVMBuildInBoundsGEP2(e->b, i64, slots, &first, 1, "");
  }
  if (is_repeated(l)) kva_ll_barrier(e); /* other warps may still read the previous round's results */
  write_slots(e, n, carries, values, slots, n_warps);
  kva_ll_barrier(e);
  LLVMValueRef mine = LLVMBuildAnd(e->b, e->thread, kva_ll_i64(e, n_warps - 1), "");
  for (uint32_t c = 0; c < n; c++) {
    LLVMValueRef v =
        LLVMBuildLoad2(e->b, slot_type(e, carries[c].dtype), slot(e, slots, c, carries[c].dtype, n_warps, mine), "");
    if (carries[c].dtype == KVA_BOOL) v = LLVMBuildTrunc(e->b, v, LLVMInt1TypeInContext(e->ctx), "");
    values[c] = combine_lanes(e, &carries[c], v, n_warps);
  }
}

void kva_ll_combine_threads(kva_emit *e, const kva_kloop *l, LLVMValueRef *values) {
  for (uint32_t c = 0; c < l->carries.len; c++)
    values[c] = combine_lanes(e, &l->carries.data[c], values[c], e->subgroup < WARP ? e->subgroup : WARP);
  if (e->subgroup > WARP) combine_warps(e, l, values);
}
