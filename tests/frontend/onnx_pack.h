/* ONNX files by hand: just enough of the protobuf wire format to write any model, valid or not. Messages are kva_text
 * buffers that the caller frees with pk_free; field numbers are those of frontend/onnx.proto. */
#ifndef KVA_TESTS_ONNX_PACK_H
#define KVA_TESTS_ONNX_PACK_H

#include "frontend/frontend.h"

#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static inline void pk_varint(kva_text *m, uint64_t v) {
  do {
    char byte = (char)((v & 127) | (v > 127 ? 128 : 0));
    kva_text_add_bytes(m, &byte, 1);
    v >>= 7;
  } while (v);
}

static inline void pk_int(kva_text *m, int field, int64_t v) {
  pk_varint(m, (uint64_t)field << 3);
  pk_varint(m, (uint64_t)v);
}

static inline void pk_bytes(kva_text *m, int field, const void *data, size_t n) {
  pk_varint(m, (uint64_t)field << 3 | 2);
  pk_varint(m, n);
  if (n) kva_text_add_bytes(m, data, n);
}

static inline void pk_str(kva_text *m, int field, const char *s) {
  pk_bytes(m, field, s, strlen(s));
}

static inline void pk_float(kva_text *m, int field, float v) {
  pk_varint(m, (uint64_t)field << 3 | 5);
  kva_text_add_bytes(m, (const char *)&v, 4);
}

/* Appends a message and frees it. */
static inline void pk_sub(kva_text *m, int field, kva_text sub) {
  pk_bytes(m, field, sub.data, sub.len);
  kva_text_free(&sub);
}

/* Attributes; in a function body also references to the caller's. */
static inline kva_text pk_attr_int(const char *name, int64_t v) {
  kva_text a = {0};
  pk_str(&a, 1, name);
  pk_int(&a, 20, 2);
  pk_int(&a, 3, v);
  return a;
}

static inline kva_text pk_attr_graph(const char *name, kva_text graph) {
  kva_text a = {0};
  pk_str(&a, 1, name);
  pk_int(&a, 20, 5);
  pk_sub(&a, 6, graph);
  return a;
}

static inline kva_text pk_attr_float(const char *name, float v) {
  kva_text a = {0};
  pk_str(&a, 1, name);
  pk_int(&a, 20, 1);
  pk_float(&a, 2, v);
  return a;
}

static inline kva_text pk_attr_ref(const char *name, int type, const char *caller) {
  kva_text a = {0};
  pk_str(&a, 1, name);
  pk_int(&a, 20, type);
  pk_str(&a, 21, caller);
  return a;
}

/* Names separated by blanks; "-" is the empty name (left out). */
static inline void pk_names(kva_text *m, int field, const char *names) {
  while (*names) {
    size_t n = strcspn(names, " ");
    pk_bytes(m, field, names, n == 1 && *names == '-' ? 0 : n);
    names += n + (names[n] == ' ');
  }
}

static inline kva_text pk_node(const char *op_type, const char *inputs, const char *outputs, const char *name) {
  kva_text n = {0};
  pk_names(&n, 1, inputs);
  pk_names(&n, 2, outputs);
  pk_str(&n, 3, name);
  pk_str(&n, 4, op_type);
  return n;
}

/* Extents separated by commas: numbers, names of symbols, ? for unnamed ones: pk_value("x", 1, "N,4,?"). */
static inline kva_text pk_value(const char *name, int dtype, const char *shape) {
  kva_text v = {0}, type = {0}, tensor = {0}, dims = {0};
  for (const char *p = shape; *p;) {
    kva_text d = {0};
    size_t n = strcspn(p, ",");
    if (*p == '?')
      (void)0;
    else if ((*p >= '0' && *p <= '9') || *p == '-')
      pk_int(&d, 1, strtoll(p, NULL, 10));
    else
      pk_bytes(&d, 2, p, n);
    pk_sub(&dims, 1, d);
    p += n + (p[n] == ',');
  }
  pk_int(&tensor, 1, dtype);
  pk_sub(&tensor, 2, dims);
  pk_sub(&type, 1, tensor);
  pk_str(&v, 1, name);
  pk_sub(&v, 2, type);
  return v;
}

static inline kva_text pk_tensor_header(const char *name, int dtype, uint32_t rank, const int64_t *dims) {
  kva_text t = {0};
  for (uint32_t i = 0; i < rank; i++) pk_int(&t, 1, dims[i]);
  pk_int(&t, 2, dtype);
  pk_str(&t, 8, name);
  return t;
}

static inline kva_text pk_tensor(const char *name, int dtype, uint32_t rank, const int64_t *dims, const void *raw,
                                 size_t bytes) {
  kva_text t = pk_tensor_header(name, dtype, rank, dims);
  pk_bytes(&t, 9, raw, bytes);
  return t;
}

static inline kva_text pk_i64s(const char *name, int64_t n, const int64_t *v) {
  return pk_tensor(name, 7, 1, &n, v, (size_t)n * 8);
}

static inline kva_text pk_opset(const char *domain, int64_t version) {
  kva_text o = {0};
  pk_str(&o, 1, domain);
  pk_int(&o, 2, version);
  return o;
}

/* An attribute of strings: those of `list`, separated by commas. */
static inline kva_text pk_attr_strings(const char *name, const char *list) {
  kva_text a = {0};
  pk_str(&a, 1, name);
  pk_int(&a, 20, 8);
  for (const char *p = list; *p;) {
    size_t n = strcspn(p, ",");
    pk_bytes(&a, 9, p, n);
    p += n + (p[n] == ',');
  }
  return a;
}

/* A model around a graph (which it frees). */
static inline kva_text pk_model(kva_text graph, int64_t opset) {
  kva_text m = {0};
  pk_int(&m, 1, 10);
  pk_sub(&m, 7, graph);
  pk_sub(&m, 8, pk_opset("", opset));
  return m;
}

/* ---- loading ----------------------------------------------------------------------------------------------------- */

/* Writes the bytes to `path` (unsynced: tests do this thousands of times) and loads them; diagnostics go to diag. */
static inline kva_status pk_load_at(const char *path, const kva_text *bytes, const kva_load_options *options,
                                    kva_diag *diag, kva_module **out) {
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes->data ? bytes->data : "", 1, bytes->len, f), bytes->len);
  assert_int_equal(fclose(f), 0);
  return kva_load_model(path, options, diag, out);
}

static inline kva_status pk_load(const kva_text *bytes, kva_diag *diag, kva_module **out) {
  char path[] = "/tmp/kvasir-onnx-XXXXXX";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  kva_status status = pk_load_at(path, bytes, NULL, diag, out);
  unlink(path);
  return status;
}

static inline bool pk_has_message(const kva_diag *diag, const char *part) {
  for (size_t i = 0; i < kva_diag_count(diag); i++)
    if (strstr(kva_diag_message(diag, i, NULL, NULL), part)) return true;
  return false;
}

/* Loads a model (and frees it) that must fail with this status and a message that contains `part`. */
static inline void pk_expect(kva_text model, kva_status status, const char *part) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_status found = pk_load(&model, diag, &m);
  if (found != status || !pk_has_message(diag, part)) kva_diag_print(diag, stdout);
  assert_int_equal(found, status);
  assert_true(pk_has_message(diag, part));
  assert_null(m);
  kva_diag_destroy(diag);
  kva_text_free(&model);
}

/* A model written as text is refused. */
static inline void pk_refuse_text(const char *text, kva_status status, const char *part) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  assert_int_equal(kva_load_text(text, "test", NULL, diag, &m), status);
  if (!pk_has_message(diag, part)) kva_diag_print(diag, stderr);
  assert_true(pk_has_message(diag, part));
  kva_diag_destroy(diag);
}

#endif
