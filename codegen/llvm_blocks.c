/* Communication between blocks that share a row (kva_kloop.blocks): they exchange floats through global memory.
 *
 * Blocks that differ in bit s of their number exchange and combine their values, s = 0, 1, ...: the butterfly of a
 * warp's lanes, so all end with the same bits. Each side of an exchange has a slot, a word of 64 bits:
 *
 *   the sender      puts (its number + 1, the float) there once the slot is empty
 *   the receiver    waits until the other's slot holds a message of that block, then empties it
 *
 * A message is one access, so nothing else needs ordering. Slots are empty between launches. Blocks whose numbers
 * differ by SLOTS share a slot and wait for each other there: a message names its sender, and is put by
 * compare-and-swap.
 *
 * A block waits only for blocks less than KVA_K_MAX_BLOCKS ahead of it. Progress requires that the GPU starts blocks in
 * the order of their numbers and has room for that many at once: then whatever a block waits for runs already or starts
 * next. Launches that share a module must not overlap. */
#include "codegen/llvm_internal.h"

enum { SLOTS = 1024, BITS = 3, GLOBAL_MEMORY = 1, MESSAGE = 32 /* bits of the float */ };
_Static_assert(1 << BITS == KVA_K_MAX_BLOCKS, "a slot for each bit");

static LLVMTypeRef i64_type(const kva_emit *e) {
  return LLVMInt64TypeInContext(e->ctx);
}

/* One array per module: its kernels do not overlap. */
static LLVMValueRef message_slots(kva_emit *e) {
  static const char name[] = "kva_message_slots";
  LLVMValueRef v = LLVMGetNamedGlobal(e->module, name);
  if (v) return v;
  LLVMTypeRef type = LLVMArrayType2(i64_type(e), BITS * SLOTS);
  v = LLVMAddGlobalInAddressSpace(e->module, type, name, GLOBAL_MEMORY);
  LLVMSetInitializer(v, LLVMConstNull(type));
  LLVMSetLinkage(v, LLVMInternalLinkage);
  LLVMSetAlignment(v, sizeof(uint64_t));
  return v;
}

static LLVMValueRef slot_of(kva_emit *e, LLVMValueRef block, unsigned bit) {
  LLVMValueRef at = LLVMBuildAnd(e->b, block, kva_ll_i64(e, SLOTS - 1), "");
  at = LLVMBuildAdd(e->b, at, kva_ll_i64(e, (int64_t)bit * SLOTS), "");
  return LLVMBuildInBoundsGEP2(e->b, i64_type(e), message_slots(e), &at, 1, "");
}

static LLVMValueRef sender_of(kva_emit *e, LLVMValueRef message) {
  return LLVMBuildLShr(e->b, message, kva_ll_i64(e, MESSAGE), "");
}

/* Spins until the slot is empty, then stores the message. */
static void put(kva_emit *e, LLVMValueRef slot, LLVMValueRef message) {
  LLVMBasicBlockRef attempt = kva_ll_block(e, "put"), done = kva_ll_block(e, "sent");
  LLVMBuildBr(e->b, attempt);
  LLVMPositionBuilderAtEnd(e->b, attempt);
  LLVMValueRef swapped = LLVMBuildAtomicCmpXchg(e->b, slot, kva_ll_i64(e, 0), message, LLVMAtomicOrderingMonotonic,
                                                LLVMAtomicOrderingMonotonic, false);
  LLVMBuildCondBr(e->b, LLVMBuildExtractValue(e->b, swapped, 1, ""), done, attempt);
  LLVMPositionBuilderAtEnd(e->b, done);
}

/* Spins until the slot holds a message from `sender`; returns it. */
static LLVMValueRef wait_for(kva_emit *e, LLVMValueRef slot, LLVMValueRef sender) {
  LLVMBasicBlockRef look = kva_ll_block(e, "look"), there = kva_ll_block(e, "there");
  LLVMBuildBr(e->b, look);
  LLVMPositionBuilderAtEnd(e->b, look);
  LLVMValueRef message = LLVMBuildLoad2(e->b, i64_type(e), slot, "");
  LLVMSetVolatile(message, true);
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntEQ, sender_of(e, message), sender, ""), there, look);
  LLVMPositionBuilderAtEnd(e->b, there);
  return message;
}

static LLVMValueRef stamp_of(kva_emit *e, LLVMValueRef block) {
  return LLVMBuildAdd(e->b, block, kva_ll_i64(e, 1), "");
}

/* Runs in one thread of each block. */
static LLVMValueRef swap(kva_emit *e, LLVMValueRef bits, unsigned bit) {
  LLVMValueRef block = kva_ll_block_number(e), other = LLVMBuildXor(e->b, block, kva_ll_i64(e, 1 << bit), "");
  LLVMValueRef own = slot_of(e, block, bit), theirs = slot_of(e, other, bit);
  LLVMValueRef message = LLVMBuildShl(e->b, stamp_of(e, block), kva_ll_i64(e, MESSAGE), "");
  message = LLVMBuildOr(e->b, message, LLVMBuildZExt(e->b, bits, i64_type(e), ""), "");
  put(e, own, message);
  message = wait_for(e, theirs, stamp_of(e, other));
  LLVMSetVolatile(LLVMBuildStore(e->b, kva_ll_i64(e, 0), theirs), true);
  return LLVMBuildTrunc(e->b, message, LLVMTypeOf(bits), "");
}

/* The float of the block whose number differs in bit `bit`: the first thread exchanges, `shared_slot` broadcasts to the
 * others. If the loop runs again, combining threads synchronise before shared_slot is overwritten. */
static LLVMValueRef other_value(kva_emit *e, LLVMValueRef v, LLVMValueRef shared_slot, unsigned bit) {
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  LLVMBasicBlockRef first = kva_ll_block(e, "first_thread"), done = kva_ll_block(e, "swapped");
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntEQ, e->thread, kva_ll_i64(e, 0), ""), first, done);
  LLVMPositionBuilderAtEnd(e->b, first);
  LLVMBuildStore(e->b, swap(e, LLVMBuildBitCast(e->b, v, i32, ""), bit), shared_slot);
  LLVMBuildBr(e->b, done);
  LLVMPositionBuilderAtEnd(e->b, done);
  kva_ll_barrier(e);
  return LLVMBuildBitCast(e->b, LLVMBuildLoad2(e->b, i32, shared_slot, ""), LLVMTypeOf(v), "");
}

void kva_ll_combine_blocks(kva_emit *e, const kva_kloop *l, LLVMValueRef *values) {
  KVA_ASSERT(l->blocks > 1 && l->blocks <= KVA_K_MAX_BLOCKS && l->carries.len);
  uint32_t n = l->carries.len;
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  LLVMValueRef shared = kva_ll_shared_array(e, "messages", i32, (uint64_t)n * BITS);
  for (uint32_t c = 0; c < n; c++) {
    const kva_kcarry *carry = &l->carries.data[c];
    for (unsigned bit = 0; 1u << bit < l->blocks; bit++) {
      LLVMValueRef at = kva_ll_i64(e, (int64_t)c * BITS + bit);
      LLVMValueRef shared_slot = LLVMBuildInBoundsGEP2(e->b, i32, shared, &at, 1, "");
      values[c] =
          kva_ll_combine(e, carry->combine, carry->dtype, values[c], other_value(e, values[c], shared_slot, bit));
    }
  }
}
