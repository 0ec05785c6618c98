/* The operators' ids, KVA_OP_<name>, expanded from ops.def, for code that creates or matches a specific operator. */
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

/* The payload of a constant; NULL: v is none. */
static inline const kva_tensor_data *kva_constant_of(const kva_value *v) {
  if (!v || !v->def || !kva_is(v->def, KVA_OP_constant)) return NULL;
  return ((const kva_constant_attrs *)v->def->attrs)->value;
}

#endif
