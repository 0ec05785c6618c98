/* JSON (RFC 8259) as a tree. Strict: no comments, no trailing commas, UTF-8 only, no lone surrogates. */
#ifndef KVA_TOOLS_TOKENIZER_JSON_H
#define KVA_TOOLS_TOKENIZER_JSON_H

#include "runtime/base/base.h"

typedef enum kva_json_kind {
  KVA_JSON_NULL,
  KVA_JSON_BOOL,
  KVA_JSON_NUMBER,
  KVA_JSON_STRING,
  KVA_JSON_ARRAY,
  KVA_JSON_OBJECT,
} kva_json_kind;

typedef struct kva_json {
  kva_json_kind kind;
  uint32_t line;      /* where it begins */
  double number;      /* BOOL: 0 or 1 */
  const char *string; /* UTF-8; may contain NUL, and is followed by one */
  uint32_t size;      /* STRING: bytes; ARRAY, OBJECT: items */
  uint32_t key_size;  /* of a member of an object */
  const char *key;
  const struct kva_json *items;
} kva_json;

/* All nodes lie in `arena`. `path` is for messages, which include the line. */
KVA_MUST_USE kva_status kva_json_parse(const char *path, const char *text, size_t size, kva_arena *arena,
                                       kva_diag *diag, const kva_json **out_root);
/* The first member of that name; NULL: none, or v is not an object. */
const kva_json *kva_json_get(const kva_json *v, const char *key);
static inline bool kva_json_is(const kva_json *v, const char *string) {
  return v && v->kind == KVA_JSON_STRING && v->size == strlen(string) && !memcmp(v->string, string, v->size);
}

#endif
