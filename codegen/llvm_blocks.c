/* What blocks that share a row tell each other (kva_kloop.blocks): a float each, by way of global memory.
 *
 * Blocks that differ in bit s of their number swap what they have and combine it, s = 0, 1, ...: a butterfly as that of
 * a warp's lanes, so all end with the same bits. Both sides of a swap have a mailbox, a word of 64 bits:
 *
 *   the sender      puts (its number + 1, the float) there once it is empty
 *   the receiver    waits until the other's box holds a letter of that block, then empties it
 *
 * A letter is one access, so nothing else has to be ordered. Boxes are empty between launches. Blocks whose numbers
 * differ by BOXES have the same box, and wait for each other there: letters name their sender, and are put by a
 * compare-and-swap.
 *
 * Blocks wait for blocks that follow them by less than KVA_K_MOST_BLOCKS. What is asked of a GPU is that it starts
 * blocks in the order of their numbers, and has room for that many at once: whatever a block waits for then either runs
 * or is the next to start. Launches that share a module must not overlap. */
#include "codegen/llvm_internal.h"

enum { BOXES = 1024, BITS = 3, GLOBAL_MEMORY = 1, LETTER = 32 /* bits of the float */ };
_Static_assert(1 << BITS == KVA_K_MOST_BLOCKS, "a box for each bit");

static LLVMTypeRef i64_type(const kva_emit *e) {
  return LLVMInt64TypeInContext(e->ctx);
}

/* Of the module: kernels run one after the other. */
static LLVMValueRef mailboxes(kva_emit *e) {
  static const char name[] = "kva_mailboxes";
  LLVMValueRef v = LLVMGetNamedGlobal(e->module, name);
  if (v) return v;
  LLVMTypeRef type = LLVMArrayType2(i64_type(e), BITS * BOXES);
  v = LLVMAddGlobalInAddressSpace(e->module, type, name, GLOBAL_MEMORY);
  LLVMSetInitializer(v, LLVMConstNull(type));
  LLVMSetLinkage(v, LLVMInternalLinkage);
  LLVMSetAlignment(v, sizeof(uint64_t));
  return v;
}

static LLVMValueRef box_of(kva_emit *e, LLVMValueRef block, unsigned bit) {
  LLVMValueRef at = LLVMBuildAnd(e->b, block, kva_ll_i64(e, BOXES - 1), "");
  at = LLVMBuildAdd(e->b, at, kva_ll_i64(e, (int64_t)bit * BOXES), "");
  return LLVMBuildInBoundsGEP2(e->b, i64_type(e), mailboxes(e), &at, 1, "");
}

static LLVMValueRef sender_of(kva_emit *e, LLVMValueRef letter) {
  return LLVMBuildLShr(e->b, letter, kva_ll_i64(e, LETTER), "");
}

/* Tries until the box is empty. */
static void put(kva_emit *e, LLVMValueRef box, LLVMValueRef letter) {
  LLVMBasicBlockRef attempt = kva_ll_block(e, "put"), done = kva_ll_block(e, "sent");
  LLVMBuildBr(e->b, attempt);
  LLVMPositionBuilderAtEnd(e->b, attempt);
  LLVMValueRef swapped = LLVMBuildAtomicCmpXchg(e->b, box, kva_ll_i64(e, 0), letter, LLVMAtomicOrderingMonotonic,
                                                LLVMAtomicOrderingMonotonic, false);
  LLVMBuildCondBr(e->b, LLVMBuildExtractValue(e->b, swapped, 1, ""), done, attempt);
  LLVMPositionBuilderAtEnd(e->b, done);
}

/* Looks until the letter in the box is of `sender`, and returns it. */
static LLVMValueRef wait_for(kva_emit *e, LLVMValueRef box, LLVMValueRef sender) {
  LLVMBasicBlockRef look = kva_ll_block(e, "look"), there = kva_ll_block(e, "there");
  LLVMBuildBr(e->b, look);
  LLVMPositionBuilderAtEnd(e->b, look);
  LLVMValueRef letter = LLVMBuildLoad2(e->b, i64_type(e), box, "");
  LLVMSetVolatile(letter, true);
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntEQ, sender_of(e, letter), sender, ""), there, look);
  LLVMPositionBuilderAtEnd(e->b, there);
  return letter;
}

static LLVMValueRef stamp_of(kva_emit *e, LLVMValueRef block) {
  return LLVMBuildAdd(e->b, block, kva_ll_i64(e, 1), "");
}

/* One thread of each block. */
static LLVMValueRef swap(kva_emit *e, LLVMValueRef bits, unsigned bit) {
  LLVMValueRef block = kva_ll_block_number(e), other = LLVMBuildXor(e->b, block, kva_ll_i64(e, 1 << bit), "");
  LLVMValueRef own = box_of(e, block, bit), theirs = box_of(e, other, bit);
  LLVMValueRef letter = LLVMBuildShl(e->b, stamp_of(e, block), kva_ll_i64(e, LETTER), "");
  letter = LLVMBuildOr(e->b, letter, LLVMBuildZExt(e->b, bits, i64_type(e), ""), "");
  put(e, own, letter);
  letter = wait_for(e, theirs, stamp_of(e, other));
  LLVMSetVolatile(LLVMBuildStore(e->b, kva_ll_i64(e, 0), theirs), true);
  return LLVMBuildTrunc(e->b, letter, LLVMTypeOf(bits), "");
}

/* The float of the block whose number differs in bit `bit`: the first thread swaps, `slot` tells the others. Should the
 * loop run again, its threads meet before the slot is written anew, to combine what they have. */
static LLVMValueRef other_value(kva_emit *e, LLVMValueRef v, LLVMValueRef slot, unsigned bit) {
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  LLVMBasicBlockRef first = kva_ll_block(e, "first_thread"), done = kva_ll_block(e, "swapped");
  LLVMBuildCondBr(e->b, LLVMBuildICmp(e->b, LLVMIntEQ, e->thread, kva_ll_i64(e, 0), ""), first, done);
  LLVMPositionBuilderAtEnd(e->b, first);
  LLVMBuildStore(e->b, swap(e, LLVMBuildBitCast(e->b, v, i32, ""), bit), slot);
  LLVMBuildBr(e->b, done);
  LLVMPositionBuilderAtEnd(e->b, done);
  kva_ll_barrier(e);
  return LLVMBuildBitCast(e->b, LLVMBuildLoad2(e->b, i32, slot, ""), LLVMTypeOf(v), "");
}

void kva_ll_combine_blocks(kva_emit *e, const kva_kloop *l, LLVMValueRef *values) {
  uint32_t n = l->carries.len;
  LLVMTypeRef i32 = LLVMInt32TypeInContext(e->ctx);
  LLVMValueRef slots = kva_ll_shared_array(e, "letters", i32, (uint64_t)n * BITS);
  for (uint32_t c = 0; c < n; c++) {
    const kva_kcarry *carry = &l->carries.data[c];
    for (unsigned bit = 0; 1u << bit < l->blocks; bit++) {
      LLVMValueRef at = kva_ll_i64(e, (int64_t)c * BITS + bit);
      LLVMValueRef slot = LLVMBuildInBoundsGEP2(e->b, i32, slots, &at, 1, "");
      values[c] = kva_ll_combine(e, carry->combine, carry->dtype, values[c], other_value(e, values[c], slot, bit));
    }
  }
}
