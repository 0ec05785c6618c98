/* The table of calls, and checks of their descriptors member by member. */
#include "runtime/calls.h"

#define KVA_CALL(id, name, desc, fields) extern const kva_call_class kva_call_##name;
#include "runtime/calls.def"

static const kva_call_class *const classes[] = {
#define KVA_CALL(id, name, desc, fields) &kva_call_##name,
#include "runtime/calls.def"
};

const kva_call_class *kva_call_class_of(const kva_step_desc *s) {
  return classes[s->call];
}

int32_t kva_step_size_count(const kva_step_desc *s) {
  int32_t n = 0;
  for (const char *f = kva_step_fields(s); *f; f++) n += *f == 'f';
  return n;
}

const kva_formula *kva_step_size(const kva_step_desc *s, int32_t i) {
  int64_t at = 0;
  for (const char *f = kva_step_fields(s); *f; at += kva_field_bytes(*f++)) {
    at = kva_field_offset(*f, at);
    if (*f == 'f' && i-- == 0) return (const kva_formula *)(const void *)((const char *)s->desc + at);
  }
  return NULL;
}
