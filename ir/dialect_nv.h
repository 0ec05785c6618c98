/* Numbers of NVIDIA's instructions; ir/dialect_nv.def describes them. */
#ifndef KVA_IR_DIALECT_NV_H
#define KVA_IR_DIALECT_NV_H

#include "ir/kernel.h"

enum {
  KVA_NV_BEFORE = KVA_DIALECT_FIRST(KVA_DIALECT_NV) - 1,
#define NV(name, type, features, operands) KVA_NV_##name,
#include "ir/dialect_nv.def"
#undef NV
};

#endif
