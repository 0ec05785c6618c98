/* Names of checkpoint formats: look-up and text; clone.c copies them. */
#include "ir/names.h"
#include "ir/ir_internal.h"

#include <inttypes.h>

const char *kva_naming_word(kva_naming_kind kind) {
  static const char *const words[KVA_NAMING_COUNT] = {[KVA_NAMING_FIELD] = "field",
                                                      [KVA_NAMING_MISSING] = "missing",
                                                      [KVA_NAMING_TENSOR] = "tensor",
                                                      [KVA_NAMING_TRANSPOSED] = "transposed",
                                                      [KVA_NAMING_ROW_NORMS] = "row_norms"};
  return words[kind];
}

const kva_names *kva_names_find(const kva_module *m, const char *format) {
  for (uint32_t i = 0; i < m->names.len; i++)
    if (!strcmp(m->names.data[i]->format, format)) return m->names.data[i];
  return NULL;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void print_list(kva_text *out, uint32_t n, const char *const *v, bool quoted) {
  for (uint32_t i = 0; i < n; i++) {
    if (i) kva_text_add(out, ", ");
    if (quoted)
      kva_text_add_quoted(out, v[i]);
    else
      kva_text_add(out, "%s", v[i]);
  }
}

/* One of the block's attributes; the first opens their list. */
static void open_attr(kva_text *out, const char *name, bool *first) {
  kva_text_add(out, "%s%s = ", *first ? " <" : ", ", name);
  *first = false;
}

static void print_patterns(kva_text *out, const char *name, const kva_strs *patterns, bool *first) {
  if (!patterns->len) return;
  open_attr(out, name, first);
  kva_text_add(out, "[");
  print_list(out, patterns->len, patterns->data, true);
  kva_text_add(out, "]");
}

static void print_row(kva_text *out, const kva_naming *row) {
  kva_text_add(out, "  ");
  kva_print_name(out, row->own);
  kva_text_add(out, " = %s", kva_naming_word(row->kind));
  if (row->n_allowed) {
    kva_text_add(out, " <of = [");
    print_list(out, row->n_allowed, row->allowed, false);
    kva_text_add(out, "]> ");
  }
  if (row->pairs) kva_text_add(out, " <pairs = %" PRId64 "> ", row->pairs);
  kva_text_add(out, "(");
  print_list(out, row->n_names, row->names, true);
  kva_text_add(out, ")\n");
}

void kva_print_names(kva_text *out, const kva_names *names) {
  kva_text_add(out, "checkpoint ");
  kva_print_name(out, names->format);
  bool first = true;
  if (names->prefix) {
    open_attr(out, "prefix", &first);
    kva_text_add_quoted(out, names->prefix);
  }
  print_patterns(out, "ignored", &names->ignored, &first);
  print_patterns(out, "buffers", &names->buffers, &first);
  kva_text_add(out, first ? " {\n" : "> {\n");
  for (uint32_t i = 0; i < names->rows.len; i++) print_row(out, &names->rows.data[i]);
  kva_text_add(out, "}\n");
}
