/* Internals of the data sources: the text that names one, the order of rows, and what the built-in generators share. A
 * generator draws one row at a time; data.c turns rows into tensors. */
#ifndef KVA_RUNTIME_DATA_H
#define KVA_RUNTIME_DATA_H

#include "runtime/runtime.h"
#include "runtime/tokens.h"

/* ---- the parsed text --------------------------------------------------------------------------------------------- */

enum { KVA_DATA_MAX_ITEMS = 64 };

/* NAME=VALUE, or a bare value, whose name is NULL. Strings lie in the spec's arena. */
typedef struct kva_data_item {
  const char *name, *value;
} kva_data_item;

/* How rows of token files are divided between training and evaluation. */
typedef enum kva_data_split {
  KVA_SPLIT_CHOSEN,    /* by documents where there are enough of them, else at the end */
  KVA_SPLIT_DOCUMENTS, /* by a hash of each document */
  KVA_SPLIT_END,       /* the last rows are for evaluation */
} kva_data_split;

/* A parsed source of a text for kva_data_open. length, eval, split and weight are not among the items. */
typedef struct kva_data_spec {
  const char *kind;
  int n_items;
  kva_data_item items[KVA_DATA_MAX_ITEMS];
  int64_t length; /* 0: not given */
  double eval;    /* in [0, 1); negative: not given */
  double weight;  /* in a mixture; 0: not given */
  kva_data_split split;
} kva_data_spec;
/* The sources of a text, one or more, between which are semicolons. */
KVA_MUST_USE kva_status kva_data_parse(const char *text, kva_arena *arena, kva_diag *diag, int *out_n,
                                       kva_data_spec **out_specs);

/* Opens one source. */
KVA_MUST_USE kva_status kva_data_open_spec(const kva_data_spec *spec, const kva_data_options *options, kva_diag *diag,
                                           kva_data_source *out_source);
/* Opens several, as one that mixes their rows by weight. */
KVA_MUST_USE kva_status kva_data_open_mixture(int n, const kva_data_spec *specs, const kva_data_options *options,
                                              kva_diag *diag, kva_data_source *out_source);

/* Whether sources of this kind read files, which their items name. */
bool kva_data_reads_files(const char *kind);

/* Opens a source that reads files; see kva_data_open. Fills in *out_source except for its name. */
typedef kva_status (*kva_data_opener)(const kva_data_spec *spec, const kva_data_options *options, kva_diag *diag,
                                      kva_data_source *out_source);
kva_status kva_data_open_tokens(const kva_data_spec *spec, const kva_data_options *options, kva_diag *diag,
                                kva_data_source *out_source);
kva_status kva_data_open_tensors(const kva_data_spec *spec, const kva_data_options *options, kva_diag *diag,
                                 kva_data_source *out_source);

/* ---- order of rows ----------------------------------------------------------------------------------------------- */

/* How a process traverses rows, which are numbered from 0. */
typedef struct kva_data_order {
  double eval; /* fraction of the rows for evaluation */
  int rank, world;
} kva_data_order;
kva_data_order kva_data_order_of(const kva_data_spec *spec, const kva_data_options *options);
/* The image of i under a permutation of [0, n), i < n, selected by `key` and `epoch`. O(1) per call, without a
 * table. */
uint64_t kva_permute(uint64_t key, uint64_t epoch, uint64_t n, uint64_t i);
/* The number of the row, out of `rows`, that is row r of a batch of `batch` rows at `step` (training steps count from
 * 1); -1: no rows are available. */
int64_t kva_data_row(const kva_data_order *order, int64_t rows, uint64_t seed, int64_t step, bool evaluation,
                     int64_t batch, int64_t r);
/* The same where the two sides have numbers of their own: of `rows` rows, all of the side. */
int64_t kva_data_row_of(const kva_data_order *order, int64_t rows, uint64_t seed, int64_t step, bool evaluation,
                        int64_t batch, int64_t r);
/* Reports that no rows are available. */
kva_status kva_data_no_rows(const char *what, const kva_data_order *order, int64_t rows, bool evaluation,
                            kva_diag *diag);

/* Documents of a token file one after the other: runs of tokens that follow each other in the file, too. */
typedef struct kva_token_run {
  int64_t begin, at; /* in the file, in the stream */
} kva_token_run;
typedef struct kva_token_stream {
  int64_t n, documents, n_runs; /* n: tokens */
  kva_token_run *runs;          /* free(); NULL: the stream is the file */
} kva_token_stream;
/* Divides a file's documents into those for training, out[0], and for evaluation, out[1], both empty before. Reads the
 * whole file. The caller frees runs, also after a failure. */
KVA_MUST_USE kva_status kva_token_streams_make(const kva_token_file *f, double eval, kva_diag *diag,
                                               kva_token_stream out[2]);
/* The file's number of a stream's token. */
int64_t kva_token_stream_place(const kva_token_stream *s, int64_t place);

/* Checks the tensors of a source of token sequences: n matrices [B, T] of int32 or int64, where n is at most the number
 * of names. length 0: any T. */
kva_status kva_data_check_sequences(const char *source, int n_names, const char *const *names, int64_t length, int n,
                                    const kva_tensor *tensors, kva_diag *diag);
static inline void kva_data_put(const kva_tensor *t, int64_t i, int64_t v) {
  if (t->dtype == KVA_I32)
    ((int32_t *)t->data)[i] = (int32_t)v;
  else
    ((int64_t *)t->data)[i] = v;
}

/* ---- generators -------------------------------------------------------------------------------------------------- */

/* Random words of one row: a Philox stream that depends on (seed, generator, step, evaluation, row) only. */
typedef struct kva_stream {
  uint64_t key;
  uint64_t high;     /* step and evaluation */
  uint64_t row;      /* upper half of the counter; the lower half counts blocks */
  uint64_t rows;     /* of the whole batch; its words do not depend on them */
  uint32_t block[4]; /* the words of the last block */
  uint64_t drawn;
} kva_stream;
static inline uint64_t kva_stream_step(const kva_stream *s) {
  return s->high >> 1;
}
static inline bool kva_stream_evaluates(const kva_stream *s) {
  return s->high & 1;
}
/* Uniform in [0, n), n > 0, without bias. */
uint32_t kva_stream_below(kva_stream *s, uint32_t n);

enum { KVA_DATA_MAX_ARGS = 4 };

struct kva_generator;
typedef struct kva_generated_data {
  const struct kva_generator *generator;
  int64_t vocab;
  int64_t length; /* required length of sequences; 0: any */
  int rank, world;
  double args[KVA_DATA_MAX_ARGS]; /* in the order of the generator's args */
  int32_t *scratch;               /* owned by the generator */
  int32_t *row;                   /* capacity + 1 tokens */
  int32_t *targets;               /* capacity */
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
  /* Draws tokens row[0 .. length]. targets[i], i < length, is -1 before: what is to be said at position i, where that
   * counts. */
  void (*draw)(const kva_generated_data *d, uint64_t seed, kva_stream *s, int64_t length, int32_t *row,
               int32_t *targets);
} kva_generator;

extern const kva_generator kva_generator_hop, kva_generator_igsm, kva_generator_induction, kva_generator_ngram,
    kva_generator_random;

/* Whether the n values of row `row` of an input are in its range. loc: where they come from, or NULL. */
KVA_MUST_USE kva_status kva_data_check_values(const kva_data_range *r, const char *input, const kva_loc *loc,
                                              int64_t row, kva_dtype dtype, int64_t n, const void *values,
                                              kva_diag *diag);

#endif
