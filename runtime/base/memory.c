/* The arena and the growable array. */
#include "runtime/base/memory.h"
#include "runtime/base/trap.h"

#include <stdlib.h>

enum { ALIGNMENT = 16, LINE = 64, LARGE = 1 << 10, FIRST_BLOCK = 16 << 10, LARGEST_BLOCK = 4 << 20 };

typedef struct block {
  struct block *previous;
  size_t size, used;
  _Alignas(ALIGNMENT) unsigned char data[];
} block;

struct kva_arena {
  block *last;
  size_t next_size;
};

static _Noreturn void out_of_memory(size_t size) {
  kva_fatal_memory("out of memory: the compiler asked for %zu bytes", size);
}

kva_arena *kva_arena_create(void) {
  kva_arena *arena = calloc(1, sizeof *arena);
  if (!arena) out_of_memory(sizeof *arena);
  arena->next_size = FIRST_BLOCK;
  return arena;
}

void kva_arena_destroy(kva_arena *arena) {
  if (!arena) return;
  for (block *b = arena->last; b;) {
    block *previous = b->previous;
    free(b);
    b = previous;
  }
  free(arena);
}

static block *add_block(kva_arena *arena, size_t size) {
  size_t capacity = size > arena->next_size ? size : arena->next_size;
  block *b = calloc(1, sizeof *b + capacity);
  if (!b) out_of_memory(size);
  b->size = capacity;
  b->previous = arena->last;
  arena->last = b;
  if (arena->next_size < LARGEST_BLOCK) arena->next_size *= 2;
  return b;
}

/* Bytes of b that are left out before a piece of so many. */
static size_t gap(const block *b, size_t size) {
  return size >= LARGE ? -(uintptr_t)(b->data + b->used) % LINE : 0;
}

void *kva_arena_alloc(kva_arena *arena, size_t size) {
  if (size > SIZE_MAX / 4) out_of_memory(size);
  size = (size + ALIGNMENT - 1) & ~(size_t)(ALIGNMENT - 1);
  block *b = arena->last;
  if (!b || b->size - b->used < size + gap(b, size)) b = add_block(arena, size + LINE);
  b->used += gap(b, size);
  void *p = b->data + b->used;
  b->used += size;
  return p;
}

char *kva_arena_strdup(kva_arena *arena, const char *s) {
  return kva_arena_strndup(arena, s, strlen(s));
}

char *kva_arena_strndup(kva_arena *arena, const char *s, size_t n) {
  char *copy = kva_arena_alloc(arena, n + 1);
  if (n) memcpy(copy, s, n);
  return copy;
}

char *kva_arena_printf(kva_arena *arena, const char *fmt, ...) {
  va_list args, again;
  va_start(args, fmt);
  va_copy(again, args);
  int n = vsnprintf(NULL, 0, fmt, args);
  va_end(args);
  KVA_ASSERT(n >= 0);
  char *s = kva_arena_alloc(arena, (size_t)n + 1);
  vsnprintf(s, (size_t)n + 1, fmt, again);
  va_end(again);
  return s;
}

void *kva_arena_memdup(kva_arena *arena, const void *data, size_t size) {
  void *copy = kva_arena_alloc(arena, size);
  if (size) memcpy(copy, data, size);
  return copy;
}

void *kva_vec_grow(kva_arena *arena, void *data, uint32_t len, uint32_t *cap, size_t item_size) {
  KVA_ASSERT(*cap <= UINT32_MAX / 2);
  *cap = *cap ? 2 * *cap : 4;
  void *grown = kva_arena_alloc(arena, *cap * item_size);
  if (len) memcpy(grown, data, len * item_size);
  return grown;
}
