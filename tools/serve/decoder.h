/* A language model compiled in process so that texts go on: what an engine runs. */
#ifndef KVA_TOOLS_SERVE_DECODER_H
#define KVA_TOOLS_SERVE_DECODER_H

#include "tools/generate/engine.h"
#include "tools/library/library.h"

typedef struct kva_decoder kva_decoder;

typedef struct kva_decoder_options {
  int64_t slots;      /* texts at once */
  int threads;        /* 0: all */
  uint64_t seed;      /* of parameters without values */
  const char *device; /* that target is for; NULL: the CPU */
  bool own_states;    /* values are written later: the session has them in memory of its own */
  kva_dtype caches;   /* of kva_pass_options */
  kva_target_options target;
  kva_pass_control *control; /* NULL: the default */
} kva_decoder_options;

/* Compiles m, which the decoder owns, also on failure. It must be a language model whose tokens fit the tokenizer. */
KVA_MUST_USE kva_status kva_decoder_create(kva_module *m, const kva_tokenizer *tokenizer,
                                           const kva_decoder_options *options, kva_diag *diag,
                                           kva_decoder **out_decoder);
void kva_decoder_destroy(kva_decoder *d);
kva_session *kva_decoder_session(const kva_decoder *d);
/* Tokens of a text at most: see kva_language. */
int64_t kva_decoder_context(const kva_decoder *d);

#endif
