/* Lookup in an operator table. */
#include "ir/op_info.h"

const kva_op_info *kva_op_set_find(const kva_op_set *set, const char *name, size_t name_len) {
  for (uint32_t i = 0; i < set->n; i++) {
    const char *own = set->ops[i]->name;
    if (strlen(own) == name_len && !memcmp(own, name, name_len)) return set->ops[i];
  }
  return NULL;
}
