/* Inputs for fuzz targets, made from a corpus: bytes, words, numbers and lines are changed, moved and exchanged. The
 * same for the same key and corpus. */
#ifndef KVA_TESTS_FUZZ_MUTATE_H
#define KVA_TESTS_FUZZ_MUTATE_H

#include "runtime/base/base.h"

enum { MUTATE_MAX = 1 << 16, MUTATE_FILES = 512 };

typedef struct mutate_random {
  uint64_t key, drawn;
} mutate_random;
uint32_t mutate_draw(mutate_random *r, size_t n);

typedef struct mutate_corpus {
  uint32_t n;
  struct {
    uint8_t *data; /* of MUTATE_MAX bytes, owned */
    size_t n;
  } files[MUTATE_FILES];
} mutate_corpus;
bool mutate_add(mutate_corpus *c, uint8_t *data, size_t n); /* false: full */
void mutate_free(mutate_corpus *c);
/* Writes an input of at most MUTATE_MAX bytes; returns its size. */
size_t mutate_make(const mutate_corpus *c, mutate_random *r, uint8_t *out);

#endif
