/* Texts that a model continues, from a command line to standard output: for `kvasir generate` and for the executables
 * of `kvasir build --generate --exe`. */
#ifndef KVA_TOOLS_GENERATE_TEXTS_H
#define KVA_TOOLS_GENERATE_TEXTS_H

#include "runtime/exe/options.h"
#include "tools/generate/chat.h"
#include "tools/generate/engine.h"

typedef struct kva_texts_options {
  kva_strings stops;
  const char *prompt, *prompts; /* one of them: a text, a file */
  const char *chat, *system;    /* chat: a word of KVA_CHAT_WORDS; NULL: prompts are continued as they are */
  int64_t tokens, texts, batch, seed, threads;
  bool stats, json;
  kva_sampling sampling;
} kva_texts_options;

#define KVA_TEXTS_DEFAULTS                                                             \
  {                                                                                    \
    .tokens = 256, .texts = 1, .batch = 16, .sampling = {.top_p = 1, .repetition = 1 } \
  }
#define KVA_TEXTS_OPTIONS(o)                                                                                    \
  {"--prompt", NULL, "TEXT", KVA_OPTION_STRING, &(o)->prompt, "the text to continue"},                          \
      {"--prompts", NULL, "FILE", KVA_OPTION_STRING, &(o)->prompts, "texts to continue, one a line"},           \
      {"--tokens", NULL, "N", KVA_OPTION_COUNT, &(o)->tokens, "at most so many more tokens (256)"},             \
      {"--chat",        NULL,       KVA_CHAT_WORDS,                                                             \
       KVA_OPTION_WORD, &(o)->chat, "the prompt is said by a user; auto: in the tokenizer's format"},           \
      {"--system", NULL, "TEXT", KVA_OPTION_STRING, &(o)->system, "with --chat: what the model is told first"}, \
      {"--stop", NULL, "TEXT", KVA_OPTION_LIST, &(o)->stops, "ends a text before it"},                          \
      {"--n", NULL, "N", KVA_OPTION_COUNT, &(o)->texts, "so many texts for each prompt (1)"},                   \
      {"--batch", NULL, "N", KVA_OPTION_COUNT, &(o)->batch, "so many texts at once (16)"},                      \
      {"--temperature",                                                                                         \
       NULL,                                                                                                    \
       "X",                                                                                                     \
       KVA_OPTION_NOT_NEGATIVE,                                                                                 \
       &(o)->sampling.temperature,                                                                              \
       "0 (default): always the likeliest token; 1: as the model says"},                                        \
      {"--top-k", NULL, "N", KVA_OPTION_INT, &(o)->sampling.top_k, "only the N likeliest tokens (0: all)"},     \
      {"--top-p",                                                                                               \
       NULL,                                                                                                    \
       "X",                                                                                                     \
       KVA_OPTION_NOT_NEGATIVE,                                                                                 \
       &(o)->sampling.top_p,                                                                                    \
       "only the likeliest tokens that together have this probability (1); 0: one"},                            \
      {"--min-p",                                                                                               \
       NULL,                                                                                                    \
       "X",                                                                                                     \
       KVA_OPTION_NOT_NEGATIVE,                                                                                 \
       &(o)->sampling.min_p,                                                                                    \
       "only tokens at least X times as likely as the likeliest (0)"},                                          \
      {"--repetition-penalty",                                                                                  \
       NULL,                                                                                                    \
       "X",                                                                                                     \
       KVA_OPTION_POSITIVE,                                                                                     \
       &(o)->sampling.repetition,                                                                               \
       "divides the logits of tokens that came before (1)"},                                                    \
      {"--seed", NULL, "N", KVA_OPTION_INT, &(o)->seed, "of the draws, and of parameters without values (0)"},  \
      {"--threads", NULL, "N", KVA_OPTION_INT32, &(o)->threads, "worker threads (all)"},                        \
      {"--json", NULL, NULL, KVA_OPTION_FLAG, &(o)->json, "print one JSON object a text"}, {                    \
    "--stats", NULL, NULL, KVA_OPTION_FLAG, &(o)->stats, "print tokens per second to standard error"            \
  }

/* What is wrong with options beside each other; NULL: nothing. Having no prompt at all is the caller's to judge. */
const char *kva_texts_misused(const kva_texts_options *o);

typedef struct kva_texts kva_texts;

/* Reads the prompts. auto_chat: the format that "auto" stands for, NULL: none is known. Borrows o, the tokenizer and
 * diag. */
KVA_MUST_USE kva_status kva_texts_create(const kva_texts_options *o, kva_tokenizer *tokenizer,
                                         const kva_chat *auto_chat, kva_diag *diag, kva_texts **out_texts);
void kva_texts_destroy(kva_texts *t);
/* Texts at once: --batch, or fewer where there are fewer. */
int64_t kva_texts_slots(const kva_texts *t);

/* Continues them by a session as kva_engine_create takes it, and prints. context: tokens that a text of the model may
 * have; where a text reaches them it ends, and a prompt without room for one more is an error. A signal ends the texts
 * where they are: KVA_INTERRUPTED. Errors go to the diag of kva_texts_create. s must outlive the texts. */
KVA_MUST_USE kva_status kva_texts_run(kva_texts *t, kva_session *s, int64_t context);

#endif
