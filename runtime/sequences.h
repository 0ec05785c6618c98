/* Sequences of rows (tokens) that a model continues: their state, and running the model's programs "decode" and "step"
 * over the next rows of some of them. A model has these programs when it was compiled with them
 * (kva_compile_options.decode).
 *
 * A sequence is a number that kva_sequences_add or _fork gave. Every row gets the results that it has in one run over
 * its whole sequence (on a CPU bit for bit), whatever else runs beside it, and in whichever pieces rows are appended.
 * Caches lie in pages, which forks share until one of them writes there, and which a sequence takes as it grows: memory
 * and time of a call grow with the rows in use, not with the room. Appending allocates nothing once the largest call
 * has been seen. One thread at a time uses a session and its sequences. */
#ifndef KVA_RUNTIME_SEQUENCES_H
#define KVA_RUNTIME_SEQUENCES_H

#include "runtime/runtime.h"

typedef struct kva_sequences kva_sequences;

typedef struct kva_sequences_options {
  int64_t longest;   /* rows that a sequence may have */
  int64_t sequences; /* that there is memory for, each of that length; 0: 1. More may exist, if they are shorter */
} kva_sequences_options;

/* No sequences yet. They borrow s, which must outlive them. KVA_INVALID: no such programs, or compiled for a number of
 * sequences other than 1 or any. KVA_NO_MEMORY: not so much memory. */
KVA_MUST_USE kva_status kva_sequences_create(kva_session *s, const kva_sequences_options *options, kva_diag *diag,
                                             kva_sequences **out_sequences);
void kva_sequences_destroy(kva_sequences *q);

/* A new sequence without rows. */
KVA_MUST_USE kva_status kva_sequences_add(kva_sequences *q, int64_t *out_sequence);
/* A new sequence with the rows of another. It copies what does not grow with the rows, and numbers of pages. */
KVA_MUST_USE kva_status kva_sequences_fork(kva_sequences *q, int64_t sequence, int64_t *out_fork);
/* Ends a sequence. Its number may be given again. Ignores numbers of no sequence. */
void kva_sequences_remove(kva_sequences *q, int64_t sequence);
/* Rows of a sequence; -1: there is none of this number. */
int64_t kva_sequences_length(const kva_sequences *q, int64_t sequence);
/* Rows for which there are free pages: a sequence takes whole ones. */
int64_t kva_sequences_free_rows(const kva_sequences *q);

/* New rows of one sequence. */
typedef struct kva_sequence_rows {
  int64_t sequence, rows;
  const kva_tensor *inputs; /* the model's own, of this sequence alone: first dimension 1, then `rows` rows */
  int64_t wanted;           /* number of last rows whose results are wanted; 0: outputs is not used */
  /* The model's own. data: the caller's memory, or NULL: not wanted. Type and dimensions, 1 and `wanted` rows among
   * them, are filled in. */
  kva_tensor *outputs;
} kva_sequence_rows;

/* Appends rows to n different sequences, each as many as it has; 0 rows are none. Those that have equally many rows
 * left run together. KVA_INVALID and nothing done: a number of no sequence, inputs that do not fit, more rows than
 * `longest`. KVA_NO_MEMORY and nothing done: no pages are free. After other failures sequences have the rows that ran
 * (kva_sequences_length). Why it failed: kva_session_error. */
KVA_MUST_USE kva_status kva_sequences_append(kva_sequences *q, int64_t n, const kva_sequence_rows *parts);

/* Takes away the last `rows` rows. State is kept of the last calls and of every 128th row; where it is older than the
 * new end, the rows between are run again, from inputs that the sequence keeps. To where a window has dropped what it
 * needs, that is the whole sequence. So a prefix is shared by a fork that is rolled back. KVA_INVALID: it has fewer;
 * KVA_UNSUPPORTED: rows cannot run again, since an input has none, or rows of no fixed size; KVA_NO_MEMORY: no pages
 * are free; in all these cases nothing is done. Other failures leave fewer rows. */
KVA_MUST_USE kva_status kva_sequences_roll_back(kva_sequences *q, int64_t sequence, int64_t rows);

/* Writes a sequence to a file: safetensors, atomically, with a sum of its content and one of the model, its parameters
 * included. */
KVA_MUST_USE kva_status kva_sequences_save(kva_sequences *q, int64_t sequence, const char *path, kva_diag *diag);
/* A new sequence from such a file. KVA_DAMAGED: it is no whole one; KVA_INVALID: it is of another model, has caches of
 * another type, or is longer than sequences may be. */
KVA_MUST_USE kva_status kva_sequences_load(kva_sequences *q, const char *path, kva_diag *diag, int64_t *out_sequence);

/* The program that appends any number of rows; its first kva_sequences_inputs inputs and kva_sequences_outputs outputs
 * are the model's own. */
const kva_program *kva_sequences_program(const kva_sequences *q);
int32_t kva_sequences_inputs(const kva_sequences *q);
int32_t kva_sequences_outputs(const kva_sequences *q);

#endif
