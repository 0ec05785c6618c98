/* Texts of a language model while it trains: `kvasir train --sample-every`. The model is compiled a second time, as for
 * `kvasir generate`, and takes the trained values for each text; training gets the bits that it gets without. */
#ifndef KVA_TOOLS_SAMPLES_H
#define KVA_TOOLS_SAMPLES_H

#include "ir/ir.h"
#include "runtime/runtime.h"

typedef struct kva_samples kva_samples;

typedef struct kva_samples_options {
  const char *file;      /* where JSON lines go; NULL: standard output */
  const char *prompt;    /* at least one token */
  const char *tokenizer; /* tokenizer.json; NULL: tokens are bytes */
  int64_t threads;       /* 0: all */
  uint64_t seed;         /* of the draws */
} kva_samples_options;

/* Compiles m, which the samples own, also on failure. m must be a language model whose parameters are all those of
 * `trained`. The file can be written then, but keeps what it has. Options and diag are borrowed. */
KVA_MUST_USE kva_status kva_samples_create(kva_module *m, kva_session *trained, const kva_samples_options *options,
                                           kva_diag *diag, kva_samples **out_samples);
void kva_samples_destroy(kva_samples *s);
/* Before the first line, from the second call on without effect: leaves of the file what a run that goes on after step
 * `resumed` (0: begins) does not write again. */
KVA_MUST_USE kva_status kva_samples_begin(kva_samples *s, int64_t resumed);
/* Continues the prompt with the values that `trained` has, and writes a line. */
KVA_MUST_USE kva_status kva_samples_write(kva_samples *s, int64_t step);

#endif
