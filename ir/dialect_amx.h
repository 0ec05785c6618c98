/* Advanced Matrix Extensions of Intel CPUs: registers of 16 rows of 64 bytes, and their products. Words are 32 bits:
 * two bf16, or four bytes. The registers of a thread hold a block of sums of 32 rows and 32 columns. A step of the
 * depth is 16 words of the factors: 32 rows of 16 words of a, 16 rows of 32 words of b. All are in row-major order.
 * Buffers have words in the type of the sums, or their bytes.
 *
 *   amx_begin           gives the registers their shapes: before the others, once in a work item
 *   amx_clear           sums = 0
 *   amx_load d          sums = d
 *   amx_step a, b, kind sums += a * b, whose elements are of a kva_amx_kind
 *   amx_store d         d = sums
 *   amx_end             gives the registers back: behind the others
 *
 * A step of KVA_AMX_FLOAT adds the products of parts whose numbers make at most 2: a0 b2, a0 b1, a0 b0, a1 b0, a1 b1,
 * a2 b0, in this order.
 *
 * Products of bf16: all low elements of a step and all high ones are summed by FMAs, and the sum of both is added;
 * subnormal numbers are 0 (Intel SDM, TDPBF16PS). Sums of bytes wrap. */
#ifndef KVA_IR_DIALECT_AMX_H
#define KVA_IR_DIALECT_AMX_H

#include "ir/kernel.h"

#define KVA_AMX_ROWS(X)                              \
  X(amx_begin, KVA_DTYPE_NONE, KVA_TARGET_AMX, "")   \
  X(amx_clear, KVA_DTYPE_NONE, KVA_TARGET_AMX, "")   \
  X(amx_load, KVA_DTYPE_NONE, KVA_TARGET_AMX, "l")   \
  X(amx_step, KVA_DTYPE_NONE, KVA_TARGET_AMX, "lli") \
  X(amx_store, KVA_DTYPE_NONE, KVA_TARGET_AMX, "L")  \
  X(amx_end, KVA_DTYPE_NONE, KVA_TARGET_AMX, "")

enum {
  KVA_AMX_BEFORE = KVA_DIALECT_FIRST(KVA_DIALECT_AMX) - 1,
#define KVA_AMX_ENUM(name, type, features, operands) KVA_AMX_##name,
  KVA_AMX_ROWS(KVA_AMX_ENUM)
#undef KVA_AMX_ENUM
};

typedef enum kva_amx_kind {
  KVA_AMX_BF16,            /* sums are float */
  KVA_AMX_UNSIGNED_SIGNED, /* bytes of a are unsigned, those of b signed; sums are int32 */
  KVA_AMX_SIGNED_UNSIGNED,
  KVA_AMX_FLOAT, /* elements are sums of KVA_AMX_PARTS bf16: the words of all first ones, then of the others */
  KVA_AMX_KINDS
} kva_amx_kind;

enum {
  KVA_AMX_BLOCK = 32, /* rows and columns */
  KVA_AMX_WORDS = 16, /* of a step, in a row of a or a column of b */
  KVA_AMX_PARTS = 3,
  KVA_AMX_PART = KVA_AMX_BLOCK * KVA_AMX_WORDS, /* words of a factor in a step */
};

#endif
