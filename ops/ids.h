/* The names of the operators, KVA_OP_<name>: expanded from ops.def, for who makes or looks for a certain operator. */
#ifndef KVA_OPS_IDS_H
#define KVA_OPS_IDS_H

#include "ops/ops.h"

enum {
#define OP(name, ...) KVA_OP_##name,
#include "ops/ops.def"
#undef OP
  KVA_OP_COUNT
};
/* The row of an operator: KVA_OP(softmax). */
#define KVA_OP(op) (kva_ops.ops[KVA_OP_##op])

#endif
