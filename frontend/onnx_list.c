/* Lists of the importer: making them, taking them apart, putting them together. */
#include "frontend/onnx_list.h"

kva_value *kva_list_create(kva_onnx_ctx *c, kva_type_kind kind, kva_dtype element, uint32_t n,
                           kva_value *const *items) {
  kva_list *list = KVA_NEW(c->arena, kva_list);
  kva_value **copy = KVA_NEW_ARRAY(c->arena, kva_value *, n + 1);
  for (uint32_t i = 0; i < n; i++) copy[i] = items[i];
  const kva_type *inner = n && kind == KVA_TYPE_OPTIONAL ? items[0]->type : kva_type_scalar(c->b.m, element);
  *list = (kva_list){.v.type = kva_type_of(c->b.m, kind, inner), .n = n, .items = copy};
  return &list->v;
}

void kva_list_flatten(kva_onnx_ctx *c, kva_value *v, kva_values *out) {
  const kva_list *list = kva_list_of(v);
  if (!list) KVA_PUSH(c->arena, out, v);
  for (uint32_t i = 0; list && i < list->n; i++) kva_list_flatten(c, list->items[i], out);
}

bool kva_list_same(const kva_value *a, const kva_value *b) {
  const kva_list *x = kva_list_of(a), *y = kva_list_of(b);
  if (!x || !y) return !x && !y;
  if (x->v.type->kind != y->v.type->kind || x->n != y->n) return false;
  for (uint32_t i = 0; i < x->n; i++)
    if (!kva_list_same(x->items[i], y->items[i])) return false;
  return true;
}

kva_value *kva_list_rebuild(kva_onnx_ctx *c, const kva_value *v, kva_value *const **next) {
  const kva_list *list = kva_list_of(v);
  if (!list) return *(*next)++;
  kva_value **items = KVA_NEW_ARRAY(c->arena, kva_value *, list->n + 1);
  for (uint32_t i = 0; i < list->n; i++) items[i] = kva_list_rebuild(c, list->items[i], next);
  return kva_list_create(c, list->v.type->kind, list->v.type->dtype, list->n, items);
}
