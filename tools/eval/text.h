/* Perplexity of files: token files and texts, streamed through the windows of perplexity.h. */
#ifndef KVA_TOOLS_EVAL_TEXT_H
#define KVA_TOOLS_EVAL_TEXT_H

#include "tools/eval/scorer.h"
#include "tools/tokenizer/tokenizer.h"

typedef struct kva_text_eval {
  kva_scorer *scorer;
  kva_tokenizer *tokenizer;
  bool own_tokens; /* the tokenizer is the user's; else tokens are bytes */
  int64_t vocabulary;
  int64_t context, stride, windows; /* as in perplexity.h */
  bool apart;                       /* documents are streams of their own */
  int64_t limit;                    /* tokens that are read at most; 0: all */
  bool progress;                    /* on standard error */
} kva_text_eval;

typedef struct kva_text_score {
  int64_t tokens, documents;
  double nats;   /* sum over the tokens */
  int64_t bytes; /* of text that these tokens are; -1: unknown */
} kva_text_score;

/* Evaluates files and folders in their order. A file that begins with KVATOKEN is a token file, any other is text, of
 * one document; folders are read as by `kvasir data`. */
KVA_MUST_USE kva_status kva_eval_text(const kva_text_eval *e, uint32_t n, const char *const *paths, kva_diag *diag,
                                      kva_text_score *out);

/* Fails, at file `path`, where the model cannot read all tokens of the tokenizer. own: it is the user's; else tokens
 * are bytes, and the model knows these and no others. */
KVA_MUST_USE kva_status kva_eval_check_tokenizer(int64_t vocabulary, const kva_tokenizer *t, bool own, const char *path,
                                                 kva_diag *diag);

#endif
