/* Text of names, attribute values and tensors. */
#include "ir/ir_internal.h"

#include <inttypes.h>

enum { MAX_PRINTED_ELEMENTS = 64 };

/* ---- names ------------------------------------------------------------------------------------------------------- */

static bool is_reserved(const char *s) {
  static const char *const words[] = {"true",   "false",  "inf", "nan",      "and",           "or",
                                      "not",    "return", "for", "if",       "else",          "param",
                                      "metric", "seq",    "map", "optional", "sparse_tensor", "opaque"};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (!strcmp(words[i], s)) return true;
  }
  return kva_dtype_from_name(s, strlen(s)) != KVA_DTYPE_NONE;
}

static bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/* `s` needs no quotes in the text language: it is a word without another meaning. */
static bool is_plain_name(const char *s) {
  if (!is_letter(*s)) return false;
  for (const char *p = s; *p; p++) {
    if (!is_letter(*p) && !(*p >= '0' && *p <= '9')) return false;
  }
  return !is_reserved(s);
}

void kva_print_name(kva_text *out, const char *s) {
  if (is_plain_name(s))
    kva_text_add(out, "%s", s);
  else
    kva_text_add_quoted(out, s);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static int64_t element_count(const kva_tensor_data *t) {
  int64_t n = 1;
  for (uint32_t i = 0; i < t->rank; i++) {
    if (!kva_mul_size(n, t->dims[i], &n)) return INT64_MAX;
  }
  return n;
}

static void print_element(kva_text *out, const kva_tensor_data *t, int64_t i) {
  if (t->dtype == KVA_BOOL) {
    kva_text_add(out, kva_load_i64(t->dtype, t->data, i) ? "true" : "false");
  } else if (t->dtype == KVA_F64) {
    kva_text_add_double(out, kva_load_f64(t->dtype, t->data, i));
  } else if (kva_dtype_is_float(t->dtype)) {
    kva_text_add_float(out, (float)kva_load_f64(t->dtype, t->data, i));
  } else if (kva_dtype_is_unsigned(t->dtype)) {
    kva_text_add(out, "%" PRIu64, (uint64_t)kva_load_i64(t->dtype, t->data, i));
  } else {
    kva_text_add(out, "%" PRId64, kva_load_i64(t->dtype, t->data, i));
  }
}

void kva_print_tensor(kva_text *out, const kva_tensor_data *t) {
  kva_text_add(out, "%s", kva_dtype_name(t->dtype));
  for (uint32_t i = 0; i < t->rank; i++) kva_text_add(out, "%s%" PRId64, i ? ", " : "[", t->dims[i]);
  if (t->rank) kva_text_add(out, "]");
  bool numeric = t->dtype == KVA_BOOL || kva_dtype_is_float(t->dtype) || kva_dtype_is_int(t->dtype);
  int64_t n = element_count(t);
  if (n > MAX_PRINTED_ELEMENTS || !numeric) {
    kva_text_add(out, " [\"hash\": \"%016" PRIx64 "\"]", kva_tensor_hash(t, 0));
    return;
  }
  kva_text_add(out, " {");
  for (int64_t i = 0; i < n; i++) {
    if (i) kva_text_add(out, ", ");
    print_element(out, t, i);
  }
  kva_text_add(out, "}");
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

static void print_ints(kva_text *out, const kva_ints *x) {
  kva_text_add(out, "[");
  for (uint32_t i = 0; i < x->n; i++) kva_text_add(out, "%s%" PRId64, i ? ", " : "", x->v[i]);
  kva_text_add(out, "]");
}

static void print_dims(kva_text *out, const kva_dims *x) {
  kva_text_add(out, "[");
  for (uint32_t i = 0; i < x->n; i++) {
    if (i) kva_text_add(out, ", ");
    kva_expr_print(x->v[i], out);
  }
  kva_text_add(out, "]");
}

static void print_symbols(kva_text *out, const kva_dims *x) {
  if (x->n == 1)
    kva_expr_print(x->v[0], out);
  else
    print_dims(out, x);
}

static void print_value(kva_text *out, const kva_attr_field *f, const void *p) {
  switch (f->kind) {
  case KVA_ATTR_INT: kva_text_add(out, "%" PRId64, *(const int64_t *)p); break;
  case KVA_ATTR_FLOAT: kva_text_add_double(out, *(const double *)p); break;
  case KVA_ATTR_BOOL: kva_text_add(out, *(const bool *)p ? "true" : "false"); break;
  case KVA_ATTR_STR: kva_text_add_quoted(out, *(const char *const *)p); break;
  case KVA_ATTR_INTS: print_ints(out, p); break;
  case KVA_ATTR_DIM: kva_expr_print(*(const kva_dim *)p, out); break;
  case KVA_ATTR_DIMS: print_dims(out, p); break;
  case KVA_ATTR_SYMBOLS: print_symbols(out, p); break;
  case KVA_ATTR_DTYPE: kva_text_add(out, "%s", kva_dtype_name(*(const kva_dtype *)p)); break;
  case KVA_ATTR_TENSOR: kva_print_tensor(out, *(const kva_tensor_data *const *)p); break;
  case KVA_ATTR_STATE: kva_text_add_quoted(out, (*(kva_state *const *)p)->name); break;
  }
}

void kva_print_attrs(kva_text *out, const kva_attr_desc *desc, const void *attrs) {
  bool any = false;
  for (uint32_t i = 0; desc && attrs && i < desc->n_fields; i++) {
    const kva_attr_field *f = &desc->fields[i];
    if (kva_attr_is_default(f, attrs)) continue;
    kva_text_add(out, "%s%s = ", any ? ", " : "<", f->name);
    print_value(out, f, kva_attr_at(attrs, f));
    any = true;
  }
  if (any) kva_text_add(out, "> ");
}
