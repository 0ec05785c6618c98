/* Memory: checked size arithmetic, the arena, growable arrays, hash map.
 *
 * The compiler allocates from arenas and frees them whole. An arena that cannot grow ends the process with a message:
 * compiler arenas hold graphs, not tensors, and sizes derived from a user's data are checked before. The runtime
 * allocates through functions that return NULL or KVA_NO_MEMORY. */
#ifndef KVA_BASE_MEMORY_H
#define KVA_BASE_MEMORY_H

#include "runtime/base/status.h"

#include <string.h>

/* Checked arithmetic on sizes: false on overflow or a negative input; *out is written only on success. */
static inline bool kva_mul_size(int64_t a, int64_t b, int64_t *out) {
  return a >= 0 && b >= 0 && !__builtin_mul_overflow(a, b, out);
}
static inline bool kva_add_size(int64_t a, int64_t b, int64_t *out) {
  return a >= 0 && b >= 0 && !__builtin_add_overflow(a, b, out);
}

/* Bump allocator. Everything from it lives until the arena is destroyed (or reset). Zeroed; 16-byte aligned, from 1 KiB
 * on 64-byte aligned. Constants are stored here as well, hence the alignment: a vector that crosses a cache line costs
 * two loads. */
typedef struct kva_arena kva_arena;
kva_arena *kva_arena_create(void);
void kva_arena_destroy(kva_arena *arena);
void *kva_arena_alloc(kva_arena *arena, size_t size);
char *kva_arena_strdup(kva_arena *arena, const char *s);
char *kva_arena_strndup(kva_arena *arena, const char *s, size_t n);
char *kva_arena_printf(kva_arena *arena, const char *fmt, ...) KVA_PRINTF(2, 3);
void *kva_arena_memdup(kva_arena *arena, const void *data, size_t size);
#define KVA_NEW(arena, T)          ((T *)kva_arena_alloc((arena), sizeof(T)))
#define KVA_NEW_ARRAY(arena, T, n) ((T *)kva_arena_alloc((arena), sizeof(T) * (size_t)(n)))

/* Growable array in an arena: declare `KVA_VEC(kva_node *) nodes;` (zero-initialised is empty), push, index `v.data`.
 * Old storage stays in the arena, which at most doubles its use. */
#define KVA_VEC(T)     \
  struct {             \
    T *data;           \
    uint32_t len, cap; \
  }
#define KVA_PUSH(arena, v, item)                                                                       \
  ((v)->len == (v)->cap                                                                                \
       ? (void)((v)->data = kva_vec_grow((arena), (v)->data, (v)->len, &(v)->cap, sizeof(*(v)->data))) \
       : (void)0,                                                                                      \
   (v)->data[(v)->len++] = (item))
void *kva_vec_grow(kva_arena *arena, void *data, uint32_t len, uint32_t *cap, size_t item_size);

/* Hash map from byte strings to pointers, in an arena. Iteration order is insertion order, so that output is
 * deterministic. Keys are copied. */
typedef struct kva_map kva_map;
kva_map *kva_map_create(kva_arena *arena);
void *kva_map_get(const kva_map *map, const void *key, size_t key_size); /* NULL: absent */
void kva_map_set(kva_map *map, const void *key, size_t key_size, void *value);
void *kva_map_get_str(const kva_map *map, const char *key);
void kva_map_set_str(kva_map *map, const char *key, void *value);
uint32_t kva_map_len(const kva_map *map);
const void *kva_map_key_at(const kva_map *map, uint32_t i, size_t *out_size);
void *kva_map_value_at(const kva_map *map, uint32_t i);

/* 64-bit FNV-1a style hash, chained by passing the previous result (start with 0). Stable across runs and machines. */
uint64_t kva_hash(uint64_t seed, const void *data, size_t size);

/* Growable text, malloc'd; for printers and messages. */
typedef struct kva_text {
  char *data; /* NUL-terminated once anything was added; NULL before */
  size_t len, cap;
  bool cut; /* something did not fit in memory (deployed runtimes only): a file must not be made of it */
} kva_text;
void kva_text_add(kva_text *text, const char *fmt, ...) KVA_PRINTF(2, 3);
void kva_text_add_bytes(kva_text *text, const char *data, size_t n);
/* `s` as a JSON / ONNX-text string literal with quotes and escapes. */
void kva_text_add_quoted(kva_text *text, const char *s);
/* Shortest decimal that reads back as the same double ("0.1", "1e-05", "inf", "nan"; always with '.', 'e', "inf" or
 * "nan", so that it reads back as a float). */
void kva_text_add_double(kva_text *text, double v);
void kva_text_add_float(kva_text *text, float v); /* the same for a float: 0.1f is "0.1" */
/* The number that a text is, all of it. false: it is none, too large, or too small for any number but 0. */
bool kva_parse_double(const char *text, double *out);
void kva_text_free(kva_text *text);
/* The characters, never NULL. */
static inline const char *kva_text_string(const kva_text *text) {
  return text->data ? text->data : text->cut ? "(no memory for the text)" : "";
}

#endif
