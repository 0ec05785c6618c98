/* Sequences of rows (tokens) that a model continues: their state, and running the model's programs "decode" and "step"
 * over the next rows. A model has these programs when it was compiled with them (kva_compile_options.decode).
 *
 * State is memory for `capacity` rows of each sequence, allocated once; time and further memory of a call grow with the
 * rows in use, not with the capacity. One thread at a time uses a session and its sequences. */
#ifndef KVA_RUNTIME_SEQUENCES_H
#define KVA_RUNTIME_SEQUENCES_H

#include "runtime/runtime.h"

typedef struct kva_sequences kva_sequences;

/* n sequences without rows. They borrow s, which must outlive them. KVA_INVALID: no such programs, or compiled for
 * another number of sequences. */
KVA_MUST_USE kva_status kva_sequences_create(kva_session *s, int64_t n, int64_t capacity, kva_diag *diag,
                                             kva_sequences **out_sequences);
void kva_sequences_destroy(kva_sequences *q);

/* Appends rows to every sequence. inputs: the model's own, each with the n sequences first and, where its second
 * dimension counts rows, the same number of new rows. outputs: the model's own, as for kva_session_run. KVA_INVALID and
 * nothing done: more rows than the capacity. For other failures rows are not appended, and may be again. Why it failed:
 * kva_session_error. */
KVA_MUST_USE kva_status kva_sequences_append(kva_sequences *q, const kva_tensor *inputs, kva_tensor *outputs);
/* Rows of sequence i. */
int64_t kva_sequences_length(const kva_sequences *q, int64_t i);
/* Sequence i of `to` becomes a copy of sequence k of `from`, of the same session; its rows must fit. */
KVA_MUST_USE kva_status kva_sequences_copy(kva_sequences *to, int64_t i, const kva_sequences *from, int64_t k);
/* The program that appends many rows; its first kva_sequences_inputs inputs and kva_sequences_outputs outputs are the
 * model's own. */
const kva_program *kva_sequences_program(const kva_sequences *q);
int32_t kva_sequences_inputs(const kva_sequences *q);
int32_t kva_sequences_outputs(const kva_sequences *q);

#endif
