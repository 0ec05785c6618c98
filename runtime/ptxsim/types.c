/* Names and sizes of PTX types, names of findings and classes, errors with a location. */
#include "runtime/ptxsim/program.h"

#include <string.h>

static const struct {
  const char *name;
  int bits;
  char kind;
} types[PTX_N_TYPES] = {
#define PTX_TYPE_ROW(name, NAME, bits, kind) [PTX_##NAME] = {#name, bits, #kind[0]},
    PTX_TYPES(PTX_TYPE_ROW)
#undef PTX_TYPE_ROW
};

const char *kva_ptx_type_name(ptx_type t) {
  return t == PTX_F32Z ? "f32" : types[t].name ? types[t].name : "none";
}
int kva_ptx_type_bits(ptx_type t) {
  return types[t].bits;
}
char kva_ptx_type_kind(ptx_type t) {
  return types[t].kind;
}

ptx_type kva_ptx_type_from_name(const char *s, size_t n) {
  for (int t = PTX_NOTYPE + 1; t < PTX_N_TYPES; t++)
    if (t != PTX_F32Z && strlen(types[t].name) == n && !memcmp(types[t].name, s, n)) return (ptx_type)t;
  return PTX_NOTYPE;
}

const char *kva_ptx_finding_name(kva_ptx_finding_kind kind) {
  static const char *const names[] = {
#define KVA_PTX_FINDING_TEXT(name, text) text,
      KVA_PTX_FINDINGS(KVA_PTX_FINDING_TEXT)
#undef KVA_PTX_FINDING_TEXT
  };
  return kind < KVA_PTX_N_FINDINGS ? names[kind] : "?";
}

const char *kva_ptx_class_name(kva_ptx_class c) {
  static const char *const names[] = {
#define KVA_PTX_CLASS_TEXT(name, text) text,
      KVA_PTX_CLASSES(KVA_PTX_CLASS_TEXT)
#undef KVA_PTX_CLASS_TEXT
  };
  return c < KVA_PTX_N_CLASSES ? names[c] : "?";
}

kva_status kva_ptx_error_at(const kva_ptx_module *module, kva_diag *diag, kva_status status, uint32_t line,
                            uint32_t column, const char *fmt, ...) {
  char text[400];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  kva_loc loc = {.file = module->name, .source = module->text, .line = line, .column = column};
  return kva_fail(diag, status, &loc, "%s", text);
}
