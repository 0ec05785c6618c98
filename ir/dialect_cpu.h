/* Hints that every CPU takes.
 *
 *   prefetch p   the cache line at the place comes to the second cache: it is read soon. It need not exist */
#ifndef KVA_IR_DIALECT_CPU_H
#define KVA_IR_DIALECT_CPU_H

#include "ir/kernel.h"

#define KVA_CPU_ROWS(X) X(prefetch, KVA_DTYPE_NONE, 0, "p")

enum {
  KVA_CPU_BEFORE = KVA_DIALECT_FIRST(KVA_DIALECT_CPU) - 1,
#define KVA_CPU_ENUM(name, type, features, operands) KVA_CPU_##name,
  KVA_CPU_ROWS(KVA_CPU_ENUM)
#undef KVA_CPU_ENUM
};

/* Appends a prefetch of the line with element `index` of buf. */
void kva_cpu_prefetch(kva_kb *b, kva_kbuf *buf, const kva_expr *index);

#endif
