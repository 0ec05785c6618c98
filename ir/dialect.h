/* Dialects: instructions that only some targets have. A dialect is a table of rows and a verifier; the printer, the
 * parser, the verifier and the code generator find an instruction by its row and know no instruction by name.
 *
 * A row has the instruction's name in the text (unique in all dialects), the type of its value, the features that a
 * target must have, and its operands in the order of the text, a letter each:
 *
 *   p    a place in a parameter, read        s, S  a place in shared memory, read, written
 *   l    a place in a LOCAL buffer, read     L, B  the same, written; read and written
 *   m    an mbarrier: a place in a shared uint64 buffer
 *   e    an index expression                 +     one or more of them
 *   v    a float value                       i     a small number, known at compile time
 *
 * A LOCAL place is the first of the elements that the instruction's registers hold; its index is constant once UNROLL
 * loops are expanded, so that the buffer lives in registers. Elements are packed: two of 16 bits to a register.
 *
 * A new dialect: an id in ir/kernel.h, a table and a verifier here, an emitter in codegen/llvm_emit.c. */
#ifndef KVA_IR_DIALECT_H
#define KVA_IR_DIALECT_H

#include "ir/kernel.h"
#include "ir/target.h"

typedef struct kva_intrinsic_info {
  const char *name, *operands;
  kva_dtype type;    /* of the value; KVA_DTYPE_NONE: an effect */
  uint32_t features; /* KVA_TARGET_..., of the targets that have it; they all are GPUs */
} kva_intrinsic_info;

typedef struct kva_dialect {
  const char *name;
  const kva_intrinsic_info *rows; /* of the instructions from KVA_DIALECT_FIRST(its id) on */
  uint32_t n_rows;
  /* What is wrong with i, an instruction of this dialect whose operands fit their letters; NULL: nothing. */
  const char *(*check)(const kva_kernel *k, const kva_kinstr *i);
} kva_dialect;

extern const kva_dialect kva_dialect_tile, kva_dialect_nv;

/* Of an instruction's number; NULL when no dialect has it. */
const kva_dialect *kva_intrinsic_dialect(kva_intrinsic_id id);
const kva_intrinsic_info *kva_intrinsic_get(kva_intrinsic_id id);
/* By name, among instructions with or without a value. False: there is none. */
bool kva_intrinsic_find(const char *name, bool value, kva_intrinsic_id *out_id);
/* Whether code for the target may contain the instruction. */
bool kva_intrinsic_suits(const kva_intrinsic_info *info, const kva_target *target);
/* Operands of these kinds; '+' counts as none. */
uint32_t kva_intrinsic_count(const kva_intrinsic_info *info, const char *letters);
static inline bool kva_is_place(char letter) {
  return strchr("psSlLBm", letter) != NULL;
}

/* ---- for the verifiers of dialects ------------------------------------------------------------------------------- */

/* The threads that run the code around i, each on its own: those of the block, or of a subgroup of them, over which a
 * THREAD loop goes with one iteration for each. 0: the code is not of that kind. */
uint32_t kva_dialect_threads(const kva_kernel *k, const kva_kinstr *i);
/* Whether the place's first byte is no multiple of n for any values of the symbols: false is no proof of the contrary.
 */
bool kva_place_is_misaligned(const kva_kplace *p, int64_t n);
/* Whether n elements from the place on exceed the buffer; false where the index or the extent is not constant. */
bool kva_place_is_outside(const kva_kplace *p, int64_t n);
/* float16 or bfloat16. */
bool kva_is_half(kva_dtype t);

#endif
