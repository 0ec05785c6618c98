/* Dialects: instructions that only some targets have. A dialect is a table of rows and a verifier. The printer, the
 * parser, the verifier and the code generator find an instruction by its row; none refers to one by name.
 *
 * A row has the instruction's name in the text (unique in all dialects), the type of its value, the features that a
 * target must have, and its operands in the order of the text, a letter each:
 *
 *   p    a place in a parameter, read        s, S  a place in shared memory, read, written
 *   l    a place in a LOCAL buffer, read     L, B  the same, written; read and written
 *   m    an mbarrier: a place in a shared uint64 buffer
 *   e    an index expression                 +     one or more of them
 *   v    a float value                       i     a small compile-time number
 *
 * On a GPU a LOCAL place is the first of the elements in the instruction's registers. Its index is constant after
 * UNROLL loops are expanded, so the buffer lives in registers. Elements are packed: two of 16 bits per register.
 *
 * A new dialect: an id in ir/kernel.h, a table and a verifier here, an emitter in codegen/llvm_emit.c. */
#ifndef KVA_IR_DIALECT_H
#define KVA_IR_DIALECT_H

#include "ir/kernel.h"
#include "ir/target.h"

typedef struct kva_intrinsic_info {
  const char *name, *operands;
  kva_dtype type;    /* of the value; KVA_DTYPE_NONE: an effect */
  uint32_t features; /* KVA_TARGET_..., of the targets that have it */
} kva_intrinsic_info;

typedef struct kva_dialect {
  const char *name;
  kva_target_kind kind;           /* of the targets that have it */
  const kva_intrinsic_info *rows; /* rows of the instructions from KVA_DIALECT_FIRST(its id) on */
  uint32_t n_rows;
  /* Describes what is wrong with i, an instruction of this dialect whose operands fit their letters; NULL: nothing. */
  const char *(*check)(const kva_kernel *k, const kva_kinstr *i);
} kva_dialect;

extern const kva_dialect kva_dialect_tile, kva_dialect_nv, kva_dialect_amx, kva_dialect_cpu;

/* By an instruction's number; NULL: no dialect has it. */
const kva_dialect *kva_intrinsic_dialect(kva_intrinsic_id id);
const kva_intrinsic_info *kva_intrinsic_get(kva_intrinsic_id id);
/* By name, among instructions with or without a value. False: not found. */
bool kva_intrinsic_find(const char *name, bool value, kva_intrinsic_id *out_id);
/* Whether code for the target may contain the instruction. */
bool kva_intrinsic_suits(kva_intrinsic_id id, const kva_target *target);
/* Number of operands with these letters; '+' counts as none. */
uint32_t kva_intrinsic_count(const kva_intrinsic_info *info, const char *letters);
static inline bool kva_is_place(char letter) {
  return strchr("psSlLBm", letter) != NULL;
}

/* ---- for the verifiers of dialects ------------------------------------------------------------------------------- */

/* The number of threads that run the code around i individually: those of the block, or of a subgroup, if i is in a
 * THREAD loop with one iteration for each. 0: i is not in such code. */
uint32_t kva_dialect_threads(const kva_kernel *k, const kva_kinstr *i);
/* The place's byte offset is provably no multiple of n, whatever the symbols' values; false: not proven. */
bool kva_place_is_misaligned(const kva_kplace *p, int64_t n);
/* n elements from the place on exceed the buffer; false if the index or the extent is not constant. */
bool kva_place_is_outside(const kva_kplace *p, int64_t n);
/* float16 or bfloat16. */
bool kva_is_half(kva_dtype t);

#endif
