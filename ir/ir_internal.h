/* Shared by the files of the graph IR and private to them. */
#ifndef KVA_IR_IR_INTERNAL_H
#define KVA_IR_IR_INTERNAL_H

#include "ir/op_info.h"

struct kva_type_table {
  kva_map *types; /* contents -> kva_type */
};
struct kva_type_table *kva_type_table_create(kva_arena *arena);

static inline const void *kva_attr_at(const void *attrs, const kva_attr_field *f) {
  return (const unsigned char *)attrs + f->offset;
}
/* Field f of attrs has its default value. */
bool kva_attr_is_default(const kva_attr_field *f, const void *attrs);

void kva_print_name(kva_text *out, const char *s);
/* `<axis = 1, perm = [1, 0]>` and a space, or nothing if all fields have their defaults (print_attrs.c). */
void kva_print_attrs(kva_text *out, const kva_attr_desc *desc, const void *attrs);
void kva_print_names(kva_text *out, const kva_names *names);
void kva_print_tensor(kva_text *out, const kva_tensor_data *t);

/* Every symbol that a node binds is used only after it (verify_symbols.c). Problems go to m->diag. */
void kva_verify_symbols(kva_module *m);

/* How a hash represents symbols and states, by name or by number, and tensors, by all elements or by some. */
typedef struct kva_attr_hasher {
  uint64_t (*symbol)(void *user, const kva_expr *symbol);
  uint64_t (*state)(void *user, const kva_state *state);
  uint64_t (*tensor)(const kva_tensor_data *t, uint64_t seed);
  void *user;
} kva_attr_hasher;
uint64_t kva_attrs_hash_with(const kva_attr_desc *desc, const void *attrs, uint64_t seed,
                             const kva_attr_hasher *hasher);

#endif
