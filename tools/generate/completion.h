/* One text that a model continues: what was asked for, and what came of it so far. */
#ifndef KVA_TOOLS_GENERATE_COMPLETION_H
#define KVA_TOOLS_GENERATE_COMPLETION_H

#include "tools/generate/sampler.h"
#include "tools/tokenizer/tokenizer.h"

#include <stdatomic.h>

typedef enum kva_finish {
  KVA_FINISH_NONE,      /* it goes on */
  KVA_FINISH_STOP,      /* the model ended it, or a stop string came */
  KVA_FINISH_LENGTH,    /* as many tokens as were asked for, or no room for more */
  KVA_FINISH_CANCELLED, /* `cancelled` was set */
  KVA_FINISH_FAILED
} kva_finish;

typedef struct kva_completion {
  /* What is asked for; borrowed until the end. */
  const uint32_t *prompt; /* at least one token */
  int64_t prompt_tokens, max_tokens;
  kva_sampling sampling;
  uint64_t sequence;        /* numbers the draws, with sampling.seed */
  const char *const *stops; /* strings that end the text and are left out of it; none is empty */
  size_t n_stops;
  void (*on_text)(struct kva_completion *c, const char *text, size_t size); /* new text; may be NULL */
  void (*on_end)(struct kva_completion *c);                                 /* once, with `finish`; may be NULL */
  void *user;
  atomic_bool cancelled;
  /* What came. */
  kva_finish finish;
  kva_text text;  /* without the prompt; kva_completion_clear frees it */
  int64_t tokens; /* that were drawn, the one that ends the text included */
  int64_t reused; /* of the prompt, that were not computed again */
  /* The engine's. */
  size_t given; /* bytes of text that on_text has had */
  kva_token_ids drawn;
  struct kva_completion *next;
} kva_completion;

/* Takes the next token: the text grows, and ends at an end of texts, a stop string or the last token. false: it ended,
 * and may be gone. */
bool kva_completion_take(kva_completion *c, const kva_tokenizer *tokenizer, uint32_t token);
/* Ends it: text that was held back is given. Whoever waits for on_end may free it at once. */
void kva_completion_end(kva_completion *c, kva_finish finish);
/* Frees what came. */
void kva_completion_clear(kva_completion *c);

#endif
