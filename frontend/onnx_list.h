/* Sequences and optionals. Neither exists beyond the import: a list is a value of the importer that names tensors, so
 * operators on lists choose among them, and nothing is computed at run time. How long a list is must therefore be known
 * at import. */
#ifndef KVA_FRONTEND_ONNX_LIST_H
#define KVA_FRONTEND_ONNX_LIST_H

#include "frontend/onnx_rules.h"

enum { KVA_ONNX_MAX_LIST = 4096 };

typedef struct kva_list {
  kva_value v;             /* first; in no graph, with a type of kind SEQUENCE or OPTIONAL */
  uint32_t n;              /* of an optional: 0 or 1 */
  kva_value *const *items; /* tensors; of an optional also a sequence */
} kva_list;

typedef KVA_VEC(kva_value *) kva_values;

static inline bool kva_is_list(const kva_value *v) {
  return v->type->kind != KVA_TYPE_TENSOR;
}
static inline const kva_list *kva_list_of(const kva_value *v) {
  return kva_is_list(v) ? (const kva_list *)v : NULL;
}
/* A list of n items, which are copied; `element` is its element type. */
kva_value *kva_list_create(kva_onnx_ctx *c, kva_type_kind kind, kva_dtype element, uint32_t n, kva_value *const *items);
/* Appends the tensors in v, which may be one, in order. */
void kva_list_flatten(kva_onnx_ctx *c, kva_value *v, kva_values *out);
/* Whether a and b have equally many tensors in the same places. */
bool kva_list_same(const kva_value *a, const kva_value *b);
/* A value of v's structure from the tensors at *next, which moves on. */
kva_value *kva_list_rebuild(kva_onnx_ctx *c, const kva_value *v, kva_value *const **next);

#endif
