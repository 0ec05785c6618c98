/* Shared by the files of the graph IR and private to them. */
#ifndef KVA_IR_IR_INTERNAL_H
#define KVA_IR_IR_INTERNAL_H

#include "ir/op_info.h"

struct kva_type_table {
  kva_map *types; /* contents -> kva_type */
};
struct kva_type_table *kva_type_table_create(kva_arena *arena);
/* Sequence or optional of an element type. */
const kva_type *kva_type_of(kva_module *m, kva_type_kind kind, const kva_type *element);

static inline const void *kva_attr_at(const void *attrs, const kva_attr_field *f) {
  return (const unsigned char *)attrs + f->offset;
}
/* Whether field f of attrs has its default. */
bool kva_attr_is_default(const kva_attr_field *f, const void *attrs);
bool kva_tensor_equal(const kva_tensor_data *a, const kva_tensor_data *b);
/* Hash of type, shape and content. */
uint64_t kva_tensor_hash(const kva_tensor_data *t, uint64_t seed);

/* What a hash makes of symbols and states: their names, or numbers. */
typedef struct kva_attr_hasher {
  uint64_t (*symbol)(void *user, const kva_expr *symbol);
  uint64_t (*state)(void *user, const kva_state *state);
  void *user;
} kva_attr_hasher;
uint64_t kva_attrs_hash_with(const kva_attr_desc *desc, const void *attrs, uint64_t seed,
                             const kva_attr_hasher *hasher);

#endif
