/* What the built-in generators share. A generator draws one row at a time; data.c turns rows into tensors. */
#ifndef KVA_RUNTIME_DATA_H
#define KVA_RUNTIME_DATA_H

#include "runtime/runtime.h"

/* Random words of one row: a Philox stream that depends on (seed, generator, step, evaluation, row) alone. */
typedef struct kva_stream {
  uint64_t key;
  uint64_t high;     /* step and evaluation */
  uint64_t row;      /* in the upper half of the counter; the lower half counts blocks */
  uint32_t block[4]; /* the words of the last block */
  uint64_t drawn;
} kva_stream;
/* Uniform in [0, n), n > 0, without bias. */
uint32_t kva_stream_below(kva_stream *s, uint32_t n);

enum { KVA_DATA_MAX_ARGS = 4 };

struct kva_generator;
typedef struct kva_generated_data {
  const struct kva_generator *generator;
  int64_t vocab;
  double args[KVA_DATA_MAX_ARGS]; /* in the generator's order */
  int32_t *scratch;               /* the generator's own */
  int32_t *row;                   /* capacity + 1 tokens */
  bool *counted;                  /* capacity flags */
  int64_t capacity;
} kva_generated_data;

typedef struct kva_generator {
  const char *name;
  int n_args;
  kva_data_arg args[KVA_DATA_MAX_ARGS]; /* names and defaults */
  /* Checks the arguments and allocates `scratch` (free()d by data.c). */
  kva_status (*prepare)(kva_generated_data *d, kva_diag *diag);
  /* Checks the length T of sequences. NULL: any will do. */
  kva_status (*check_length)(const kva_generated_data *d, int64_t length, kva_diag *diag);
  /* Draws tokens row[0 .. length], and counted[0 .. length - 1]: whether the token after that position is a target. */
  void (*draw)(const kva_generated_data *d, uint64_t seed, kva_stream *s, int64_t length, int32_t *row, bool *counted);
} kva_generator;

extern const kva_generator kva_generator_induction, kva_generator_ngram, kva_generator_random;

#endif
