/* Types, interned per module by their contents, whose dims are interned expressions. */
#include "ir/ir_internal.h"

typedef struct type_key {
  uint32_t kind, dtype, rank, zero; /* no padding: keys are compared as bytes */
  const kva_type *element;
  kva_dim dims[KVA_MAX_RANK];
} type_key;

struct kva_type_table *kva_type_table_create(kva_arena *arena) {
  struct kva_type_table *t = KVA_NEW(arena, struct kva_type_table);
  t->types = kva_map_create(arena);
  return t;
}

/* Ranks above KVA_MAX_RANK are legal types (the importer passes sequences of any type through), hence the sized key. */
static const kva_type *intern(kva_module *m, const kva_type *t) {
  size_t size = offsetof(type_key, dims) + t->rank * sizeof *t->dims;
  type_key *key = size <= sizeof *key ? &(type_key){0} : kva_arena_alloc(m->arena, size);
  key->kind = t->kind;
  key->dtype = t->dtype;
  key->rank = t->rank;
  key->element = t->element;
  if (t->rank) memcpy((unsigned char *)key + offsetof(type_key, dims), t->dims, t->rank * sizeof *t->dims);
  kva_type *found = kva_map_get(m->types->types, key, size);
  if (found) return found;
  found = kva_arena_memdup(m->arena, t, sizeof *t);
  /* Never NULL, so copying the dims of a scalar needs no special case. */
  kva_dim *dims = KVA_NEW_ARRAY(m->arena, kva_dim, t->rank + 1);
  for (uint32_t i = 0; i < t->rank; i++) dims[i] = t->dims[i];
  found->dims = dims;
  kva_map_set(m->types->types, key, size, found);
  return found;
}

const kva_type *kva_type_tensor(kva_module *m, kva_dtype dtype, uint32_t rank, const kva_dim *dims) {
  return intern(m, &(kva_type){.kind = KVA_TYPE_TENSOR, .dtype = dtype, .rank = rank, .dims = rank ? dims : NULL});
}

const kva_type *kva_type_scalar(kva_module *m, kva_dtype dtype) {
  return kva_type_tensor(m, dtype, 0, NULL);
}

const kva_type *kva_type_with_dtype(kva_module *m, const kva_type *t, kva_dtype dtype) {
  return t->dtype == dtype ? t : kva_type_tensor(m, dtype, t->rank, t->dims);
}

const kva_type *kva_type_of(kva_module *m, kva_type_kind kind, const kva_type *element) {
  return intern(m, &(kva_type){.kind = kind, .dtype = element->dtype, .element = element});
}

kva_dim kva_type_elements(kva_module *m, const kva_type *t) {
  kva_dim n = kva_expr_const(m->exprs, 1);
  for (uint32_t i = 0; i < t->rank; i++) n = kva_expr_mul(m->exprs, n, t->dims[i]);
  return n;
}

bool kva_type_is_static_from(const kva_type *t, uint32_t axis) {
  for (uint32_t i = axis; i < t->rank; i++) {
    if (!kva_expr_is_const(t->dims[i], NULL)) return false;
  }
  return t->kind == KVA_TYPE_TENSOR;
}

bool kva_type_is_static(const kva_type *t) {
  return kva_type_is_static_from(t, 0);
}

int64_t kva_type_extent(const kva_type *t, uint32_t axis) {
  int64_t v;
  return kva_expr_is_const(t->dims[axis], &v) ? v : 0;
}

bool kva_type_same_shape(const kva_type *a, const kva_type *b) {
  return a->rank == b->rank && (!a->rank || !memcmp(a->dims, b->dims, a->rank * sizeof *a->dims));
}

void kva_type_print(const kva_type *t, kva_text *out) {
  if (t->kind != KVA_TYPE_TENSOR) {
    kva_text_add(out, t->kind == KVA_TYPE_SEQUENCE ? "seq(" : "optional(");
    kva_type_print(t->element, out);
    kva_text_add(out, ")");
    return;
  }
  kva_text_add(out, "%s", kva_dtype_name(t->dtype));
  if (!t->rank) return;
  for (uint32_t i = 0; i < t->rank; i++) {
    kva_text_add(out, i ? ", " : "[");
    kva_expr_print(t->dims[i], out);
  }
  kva_text_add(out, "]");
}
