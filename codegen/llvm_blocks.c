/* Communication between blocks that share a row (kva_kloop.blocks): they are a cluster, which a GPU starts as a whole
 * or not at all, and read each other's shared memory.
 *
 *   every block    stores what its threads have combined
 *   barrier of the cluster
 *   every thread   loads the values of all blocks, and combines them in the order of the blocks: the same bits in all
 *   barrier of the cluster: the values may be overwritten, and a block may end, whose memory others read */
#include "codegen/llvm_internal.h"

static LLVMTypeRef i32_type(const kva_emit *e) {
  return LLVMInt32TypeInContext(e->ctx);
}

static void cluster_barrier(kva_emit *e) {
  kva_ll_assembly(e, false, "barrier.cluster.arrive.release.aligned;", "~{memory}", NULL, 0, NULL);
  kva_ll_assembly(e, false, "barrier.cluster.wait.acquire.aligned;", "~{memory}", NULL, 0, NULL);
}

static LLVMValueRef slot_of(kva_emit *e, LLVMValueRef slots, uint32_t c) {
  LLVMValueRef at = kva_ll_i64(e, c);
  return LLVMBuildInBoundsGEP2(e->b, i32_type(e), slots, &at, 1, "");
}

static void store_first(kva_emit *e, uint32_t n, LLVMValueRef *values, LLVMValueRef slots) {
  LLVMBasicBlockRef first = kva_ll_block(e, "first_thread"), done = kva_ll_block(e, "stored");
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntEQ, e->thread, kva_ll_i64(e, 0), ""), first, done);
  LLVMPositionBuilderAtEnd(e->b, first);
  for (uint32_t c = 0; c < n; c++)
    LLVMBuildStore(e->b, LLVMBuildBitCast(e->b, values[c], i32_type(e), ""), slot_of(e, slots, c));
  LLVMBuildBr(e->b, done);
  LLVMPositionBuilderAtEnd(e->b, done);
}

/* The value in the slot of the block with this rank in the cluster. */
static LLVMValueRef load_from(kva_emit *e, LLVMValueRef slot, uint32_t rank, LLVMTypeRef type) {
  static const char text[] = "{ .reg .b32 at; mapa.shared::cluster.u32 at, $1, $2; ld.shared::cluster.b32 $0, [at]; }";
  LLVMValueRef args[] = {LLVMBuildPtrToInt(e->b, slot, i32_type(e), ""), LLVMConstInt(i32_type(e), rank, false)};
  LLVMValueRef bits = kva_ll_assembly(e, false, text, "=r,r,r,~{memory}", i32_type(e), 2, args);
  return LLVMBuildBitCast(e->b, bits, type, "");
}

void kva_ll_combine_blocks(kva_emit *e, const kva_kloop *l, LLVMValueRef *values) {
  KVA_ASSERT(l->blocks > 1 && l->blocks <= KVA_K_MAX_BLOCKS && l->carries.len);
  uint32_t n = l->carries.len;
  LLVMValueRef slots = kva_ll_shared_array(e, "results", i32_type(e), n);
  store_first(e, n, values, slots);
  cluster_barrier(e);
  for (uint32_t c = 0; c < n; c++) {
    const kva_kcarry *carry = &l->carries.data[c];
    LLVMValueRef slot = slot_of(e, slots, c), sum = load_from(e, slot, 0, LLVMTypeOf(values[c]));
    for (uint32_t rank = 1; rank < l->blocks; rank++)
      sum = kva_ll_combine(e, carry->combine, carry->dtype, sum, load_from(e, slot, rank, LLVMTypeOf(sum)));
    values[c] = sum;
  }
  cluster_barrier(e);
}
