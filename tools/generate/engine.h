/* A language model that continues many texts at once: continuous batching over slots, prompts in chunks, and a cache of
 * prompts that were read. Texts join and leave between two tokens. The tokens of a text depend on its request alone,
 * not on what runs beside it. One thread at a time uses an engine. */
#ifndef KVA_TOOLS_GENERATE_ENGINE_H
#define KVA_TOOLS_GENERATE_ENGINE_H

#include "runtime/runtime.h"
#include "tools/generate/completion.h"

typedef struct kva_engine kva_engine;

typedef struct kva_engine_options {
  int64_t slots;    /* texts at once, at least 1 */
  int64_t capacity; /* tokens of a text with its prompt, at least 2 */
  int64_t prefixes; /* prompts that are kept, at least 1; texts, too, if there are more */
} kva_engine_options;

/* Texts that draw in one call, at most: a model is best compiled with a program for so many sequences, which reads
 * weights once for all of them. */
enum { KVA_ENGINE_TOGETHER = 8 };

/* Whether a model of so many tokens can go with a tokenizer: it may have a few tokens more, to round sizes, which are
 * not drawn. Tokens that are bytes are 256, or 257 with the end of texts. */
KVA_MUST_USE kva_status kva_engine_check_tokens(const kva_tokenizer *t, int64_t vocabulary, kva_diag *diag);

/* s: of a language model (tokens, int32 or int64 [B, T], to logits, float [B, T, vocabulary]) that was compiled to
 * decode. The engine borrows s and the tokenizer. */
KVA_MUST_USE kva_status kva_engine_create(kva_session *s, kva_tokenizer *tokenizer, const kva_engine_options *options,
                                          kva_diag *diag, kva_engine **out_engine);
void kva_engine_destroy(kva_engine *e);

/* Takes a text that is to be continued; it ends with kva_completion_end, and must live until then. There must be a free
 * slot. prompt_tokens < capacity; max_tokens beyond the capacity ends with KVA_FINISH_LENGTH earlier. */
void kva_engine_add(kva_engine *e, kva_completion *c);
int64_t kva_engine_free_slots(const kva_engine *e);
/* Tokens that the model and the tokenizer have: the numbers below. */
int64_t kva_engine_tokens(const kva_engine *e);
/* Reads a chunk of a prompt, and makes a token of every text that is read. Texts with `cancelled` end. On failure all
 * texts end with KVA_FINISH_FAILED; diag has the reason. A text whose logits are all NaN ends with it alone, which is
 * no failure of the step. */
KVA_MUST_USE kva_status kva_engine_step(kva_engine *e, kva_diag *diag);

typedef struct kva_engine_stats {
  int64_t read, reused, drawn; /* tokens of prompts that were computed, that were not; tokens that were drawn */
  int64_t running;             /* texts in slots */
  double read_seconds, draw_seconds;
} kva_engine_stats;
kva_engine_stats kva_engine_get_stats(const kva_engine *e);

#endif
