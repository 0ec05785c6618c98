/* What the tests of the text language share. */
#ifndef KVA_TESTS_FRONTEND_KV_TEST_H
#define KVA_TESTS_FRONTEND_KV_TEST_H

#include "frontend/frontend.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct loaded {
  kva_diag *diag;
  kva_module *m; /* NULL: failed */
  kva_status status;
} loaded;

static inline loaded load_with(const char *text, const kva_load_options *options) {
  loaded l = {.diag = kva_diag_create()};
  l.status = kva_load_text(text, "test.kv", options, l.diag, &l.m);
  assert_int_equal(l.status == KVA_OK, l.m != NULL);
  assert_int_equal(l.status == KVA_OK, kva_diag_errors(l.diag) == 0);
  return l;
}

/* Loads a text that must be right. */
static inline loaded load_ok(const char *text, const kva_load_options *options) {
  loaded l = load_with(text, options);
  if (l.status != KVA_OK) kva_diag_print(l.diag, stderr);
  assert_int_equal(l.status, KVA_OK);
  return l;
}

static inline void unload(loaded *l) {
  kva_module_destroy(l->m);
  kva_diag_destroy(l->diag);
}

/* One error among the diagnostics: its place and a part of its text. */
static inline void assert_error(const loaded *l, uint32_t line, uint32_t column, const char *part) {
  for (size_t i = 0; i < kva_diag_count(l->diag); i++) {
    kva_severity severity;
    kva_loc loc;
    const char *message = kva_diag_message(l->diag, i, &severity, &loc);
    if (severity == KVA_ERROR && loc.line == line && loc.column == column && strstr(message, part)) return;
  }
  kva_diag_print(l->diag, stderr);
  fail_msg("no error '%s' at %u:%u", part, line, column);
}

static inline char *read_text(const char *path) {
  kva_diag *diag = kva_diag_create();
  kva_file file;
  assert_int_equal(kva_file_map(path, diag, &file), KVA_OK);
  char *text = malloc(file.size + 1);
  assert_non_null(text);
  memcpy(text, file.data, file.size);
  text[file.size] = 0;
  kva_file_unmap(&file);
  kva_diag_destroy(diag);
  return text;
}

static inline char *printed(kva_module *m) {
  kva_text text = {0};
  kva_module_print(m, &text);
  return text.data;
}

static inline uint32_t count_ops(const kva_function *f, kva_op_id op) {
  uint32_t n = 0;
  for (const kva_node *node = f->graph->first; node; node = node->next) n += kva_is(node, op);
  return n;
}

/* The text of a type; freed by the caller. */
static inline char *type_text(const kva_type *t) {
  kva_text text = {0};
  kva_type_print(t, &text);
  return text.data;
}

static inline void assert_type(const kva_value *v, const char *expected) {
  char *text = type_text(v->type);
  assert_string_equal(text, expected);
  free(text);
}

#endif
