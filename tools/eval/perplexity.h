/* How well a language model predicts a stream of tokens: every token once, from windows of a limited length, in memory
 * that does not grow with the stream.
 *
 * A window reads at most `context` tokens and predicts the token after each. The next window begins `stride` tokens
 * later and predicts what the one before did not: with a stride of `context` windows do not overlap; with a smaller one
 * every token (but the first ones) has at least context - stride + 1 tokens before it. */
#ifndef KVA_TOOLS_EVAL_PERPLEXITY_H
#define KVA_TOOLS_EVAL_PERPLEXITY_H

#include "tools/eval/scorer.h"

typedef struct kva_perplexity_options {
  int64_t context; /* at least 1 */
  int64_t stride;  /* 1 to context */
  int64_t windows; /* that are computed together */
  int64_t begin;   /* a token that every stream is read after; -1: none, and its first token is not predicted */
} kva_perplexity_options;

typedef struct kva_perplexity_sum {
  int64_t tokens; /* predicted */
  double nats;    /* -ln of their probability */
} kva_perplexity_sum;

typedef struct kva_perplexity kva_perplexity;
/* Borrows the scorer. */
KVA_MUST_USE kva_status kva_perplexity_create(kva_scorer *scorer, const kva_perplexity_options *options, kva_diag *diag,
                                              kva_perplexity **out_perplexity);
void kva_perplexity_destroy(kva_perplexity *p);
/* What follows is another stream. */
KVA_MUST_USE kva_status kva_perplexity_begin(kva_perplexity *p, kva_diag *diag);
/* The next token of the stream, less than the model's vocabulary. */
KVA_MUST_USE kva_status kva_perplexity_add(kva_perplexity *p, uint32_t token, kva_diag *diag);
/* Ends the stream and computes what waits. */
KVA_MUST_USE kva_status kva_perplexity_finish(kva_perplexity *p, kva_diag *diag);
/* Sums over the windows that are computed, in order of the stream. */
kva_perplexity_sum kva_perplexity_so_far(const kva_perplexity *p);

#endif
