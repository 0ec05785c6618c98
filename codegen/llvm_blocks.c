/* Blocks that share a row (kva_kloop.blocks) are consecutive, run at once, and tell each other floats.
 *
 * On GPUs with clusters they are one, which starts as a whole or not at all, and read each other's shared memory:
 *
 *   every block    stores what its threads have combined
 *   barrier of the cluster
 *   every thread   loads the values of all blocks, and combines them in the order of the blocks: the same bits in all
 *   barrier of the cluster: the values may be overwritten, and a block may end, whose memory others read
 *
 * Elsewhere the launch is cooperative: all blocks of a grid that is no larger than the GPU's room run at once, and take
 * the items in turn. Blocks that differ in bit s of their number swap their values through global memory and combine
 * them, s = 0, 1, ...: the butterfly of a warp's lanes, so all end with the same bits. Each block has a slot for each
 * bit, a word of 64 bits that is 0 while it is empty:
 *
 *   the sender      waits until its own slot is empty, then stores the float there, marked
 *   the receiver    waits until the other's slot is full, loads it, and empties it
 *
 * A message is one access, and each slot has one sender and one receiver, so nothing else needs ordering. Every message
 * is received: slots are empty between launches. */
#include "codegen/llvm_internal.h"

enum { BITS = 3, GLOBAL_MEMORY = 1, MARK = 32 /* bit behind those of the float */ };
_Static_assert(1 << BITS == KVA_K_MAX_BLOCKS, "a slot for each bit");

static LLVMTypeRef i32_type(const kva_emit *e) {
  return LLVMInt32TypeInContext(e->ctx);
}

static LLVMTypeRef i64_type(const kva_emit *e) {
  return LLVMInt64TypeInContext(e->ctx);
}

static uint32_t blocks_of_row(const kva_kernel *k) {
  uint32_t n = 0;
  for (uint32_t l = 0; l < k->loops.len; l++) n = k->loops.data[l]->blocks > n ? k->loops.data[l]->blocks : n;
  return n > 1 ? n : 0;
}

uint32_t kva_ll_cluster(const kva_emit *e) {
  return kva_target_has(&e->cg->target, KVA_TARGET_CLUSTERS) ? blocks_of_row(e->k) : 0;
}

uint32_t kva_ll_cooperating(const kva_emit *e) {
  return kva_target_has(&e->cg->target, KVA_TARGET_CLUSTERS) ? 0 : blocks_of_row(e->k);
}

/* ---- items ------------------------------------------------------------------------------------------------------- */

static void emit_item(kva_emit *e, const kva_kloop *grid, LLVMValueRef item) {
  kva_ll_bind(e, grid->var, item);
  kva_ll_region(e, grid->body);
}

/* Items `number`, `number` + `count`, ... No barrier stands between two: of an item's shared memory, threads read what
 * others wrote only in combinations, and meet twice in each, so before a slot is written again. */
static void emit_turns(kva_emit *e, const kva_kloop *grid) {
  LLVMValueRef number = kva_ll_block_number(e), count = kva_ll_block_count(e), end = kva_ll_expr(e, grid->extent);
  LLVMBasicBlockRef entry = LLVMGetInsertBlock(e->b), turn = kva_ll_block(e, "turn"), body = kva_ll_block(e, "item"),
                    done = kva_ll_block(e, "no_item");
  LLVMBuildBr(e->b, turn);
  LLVMPositionBuilderAtEnd(e->b, turn);
  LLVMValueRef item = LLVMBuildPhi(e->b, i64_type(e), "");
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntSLT, item, end, ""), body, done);
  LLVMPositionBuilderAtEnd(e->b, body);
  emit_item(e, grid, item);
  LLVMValueRef values[] = {number, LLVMBuildNSWAdd(e->b, item, count, "")};
  LLVMBasicBlockRef from[] = {entry, LLVMGetInsertBlock(e->b)};
  LLVMBuildBr(e->b, turn);
  LLVMAddIncoming(item, values, from, 2);
  LLVMPositionBuilderAtEnd(e->b, done);
}

void kva_ll_grid(kva_emit *e, const kva_kloop *grid) {
  if (kva_ll_cooperating(e))
    emit_turns(e, grid);
  else
    emit_item(e, grid, kva_ll_block_number(e));
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static LLVMValueRef shared_slot(kva_emit *e, LLVMValueRef slots, uint32_t i) {
  LLVMValueRef at = kva_ll_i64(e, i);
  return LLVMBuildInBoundsGEP2(e->b, i32_type(e), slots, &at, 1, "");
}

/* Begins code of the block's first thread; returns the block where all go on. */
static LLVMBasicBlockRef begin_first_thread(kva_emit *e) {
  LLVMBasicBlockRef first = kva_ll_block(e, "first_thread"), done = kva_ll_block(e, "all_threads");
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntEQ, e->thread, kva_ll_i64(e, 0), ""), first, done);
  LLVMPositionBuilderAtEnd(e->b, first);
  return done;
}

static void end_first_thread(kva_emit *e, LLVMBasicBlockRef done) {
  LLVMBuildBr(e->b, done);
  LLVMPositionBuilderAtEnd(e->b, done);
}

static LLVMValueRef bits_of(kva_emit *e, LLVMValueRef v) {
  return LLVMBuildBitCast(e->b, v, i32_type(e), "");
}

/* ---- clusters ---------------------------------------------------------------------------------------------------- */

static void cluster_barrier(kva_emit *e) {
  kva_ll_assembly(e, false, "barrier.cluster.arrive.release.aligned;", "~{memory}", NULL, 0, NULL);
  kva_ll_assembly(e, false, "barrier.cluster.wait.acquire.aligned;", "~{memory}", NULL, 0, NULL);
}

/* The value in the slot of the block with this rank in the cluster. */
static LLVMValueRef load_from(kva_emit *e, LLVMValueRef slot, uint32_t rank, LLVMTypeRef type) {
  static const char text[] = "{ .reg .b32 at; mapa.shared::cluster.u32 at, $1, $2; ld.shared::cluster.b32 $0, [at]; }";
  LLVMValueRef args[] = {LLVMBuildPtrToInt(e->b, slot, i32_type(e), ""), LLVMConstInt(i32_type(e), rank, false)};
  LLVMValueRef bits = kva_ll_assembly(e, false, text, "=r,r,r,~{memory}", i32_type(e), 2, args);
  return LLVMBuildBitCast(e->b, bits, type, "");
}

static void combine_cluster(kva_emit *e, const kva_kloop *l, LLVMValueRef *values) {
  uint32_t n = l->carries.len;
  LLVMValueRef slots = kva_ll_shared_array(e, "results", i32_type(e), n);
  LLVMBasicBlockRef stored = begin_first_thread(e);
  for (uint32_t c = 0; c < n; c++) LLVMBuildStore(e->b, bits_of(e, values[c]), shared_slot(e, slots, c));
  end_first_thread(e, stored);
  cluster_barrier(e);
  for (uint32_t c = 0; c < n; c++) {
    const kva_kcarry *carry = &l->carries.data[c];
    LLVMValueRef slot = shared_slot(e, slots, c), sum = load_from(e, slot, 0, LLVMTypeOf(values[c]));
    for (uint32_t rank = 1; rank < l->blocks; rank++)
      sum = kva_ll_combine(e, carry->combine, carry->dtype, sum, load_from(e, slot, rank, LLVMTypeOf(sum)));
    values[c] = sum;
  }
  cluster_barrier(e);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* One array for the module, whose launches do not overlap. */
static LLVMValueRef message_slots(kva_emit *e) {
  static const char name[] = "kva_message_slots";
  LLVMValueRef v = LLVMGetNamedGlobal(e->module, name);
  if (v) return v;
  LLVMTypeRef type = LLVMArrayType2(i64_type(e), BITS * KVA_ABI_COOPERATING);
  v = LLVMAddGlobalInAddressSpace(e->module, type, name, GLOBAL_MEMORY);
  LLVMSetInitializer(v, LLVMConstNull(type));
  LLVMSetLinkage(v, LLVMInternalLinkage);
  LLVMSetAlignment(v, sizeof(uint64_t));
  return v;
}

static LLVMValueRef message_slot(kva_emit *e, LLVMValueRef block, unsigned bit) {
  LLVMValueRef at = LLVMBuildNSWAdd(e->b, block, kva_ll_i64(e, (int64_t)bit * KVA_ABI_COOPERATING), "");
  return LLVMBuildInBoundsGEP2(e->b, i64_type(e), message_slots(e), &at, 1, "");
}

/* Spins until the slot is empty, or until it is full; returns what it holds. */
static LLVMValueRef await(kva_emit *e, LLVMValueRef slot, bool full) {
  LLVMBasicBlockRef look = kva_ll_block(e, "look"), seen = kva_ll_block(e, "seen");
  LLVMBuildBr(e->b, look);
  LLVMPositionBuilderAtEnd(e->b, look);
  LLVMValueRef message = LLVMBuildLoad2(e->b, i64_type(e), slot, "");
  LLVMSetVolatile(message, true);
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, full ? LLVMIntNE : LLVMIntEQ, message, kva_ll_i64(e, 0), ""), seen, look);
  LLVMPositionBuilderAtEnd(e->b, seen);
  return message;
}

static void put(kva_emit *e, LLVMValueRef slot, LLVMValueRef message) {
  LLVMSetVolatile(LLVMBuildStore(e->b, message, slot), true);
}

/* In one thread of each block: gives the float's bits to the block whose number differs in bit `bit`, returns its. */
static LLVMValueRef swap(kva_emit *e, LLVMValueRef bits, unsigned bit) {
  LLVMValueRef block = kva_ll_block_number(e), other = LLVMBuildXor(e->b, block, kva_ll_i64(e, 1 << bit), "");
  LLVMValueRef own = message_slot(e, block, bit), theirs = message_slot(e, other, bit);
  LLVMValueRef mark = kva_ll_i64(e, INT64_C(1) << MARK), message = LLVMBuildZExt(e->b, bits, i64_type(e), "");
  await(e, own, false);
  put(e, own, LLVMBuildOr(e->b, message, mark, ""));
  message = await(e, theirs, true);
  put(e, theirs, kva_ll_i64(e, 0));
  return LLVMBuildTrunc(e->b, message, LLVMTypeOf(bits), "");
}

/* Its first thread swaps for the block, which reads the answer in shared memory. */
static LLVMValueRef others_value(kva_emit *e, LLVMValueRef v, LLVMValueRef answer, unsigned bit) {
  LLVMBasicBlockRef swapped = begin_first_thread(e);
  LLVMBuildStore(e->b, swap(e, bits_of(e, v), bit), answer);
  end_first_thread(e, swapped);
  kva_ll_barrier(e);
  return LLVMBuildBitCast(e->b, LLVMBuildLoad2(e->b, i32_type(e), answer, ""), LLVMTypeOf(v), "");
}

static void combine_messages(kva_emit *e, const kva_kloop *l, LLVMValueRef *values) {
  uint32_t n = l->carries.len, answered = 0;
  LLVMValueRef answers = kva_ll_shared_array(e, "answers", i32_type(e), (uint64_t)n * BITS);
  for (uint32_t c = 0; c < n; c++) {
    const kva_kcarry *carry = &l->carries.data[c];
    for (unsigned bit = 0; 1u << bit < l->blocks; bit++) {
      LLVMValueRef other = others_value(e, values[c], shared_slot(e, answers, answered++), bit);
      values[c] = kva_ll_combine(e, carry->combine, carry->dtype, values[c], other);
    }
  }
}

void kva_ll_combine_blocks(kva_emit *e, const kva_kloop *l, LLVMValueRef *values) {
  KVA_ASSERT(l->blocks > 1 && l->blocks <= KVA_K_MAX_BLOCKS && l->carries.len);
  (kva_ll_cluster(e) ? combine_cluster : combine_messages)(e, l, values);
}
