/* Chooses the next token from a model's logits. */
#ifndef KVA_TOOLS_GENERATE_SAMPLER_H
#define KVA_TOOLS_GENERATE_SAMPLER_H

#include "runtime/base/base.h"

typedef struct kva_sampling {
  double temperature; /* 0: the likeliest token, whatever the rest says */
  int64_t top_k;      /* of the likeliest tokens only; 0: all */
  double top_p;       /* the likeliest tokens whose probabilities add up to this; 1: all */
  double min_p;       /* tokens at least this times as likely as the likeliest; 0: all */
  uint64_t seed;
  /* Of tokens that came before, see kva_penalize: */
  double repetition;          /* above 0; 1 or 0: none */
  double presence, frequency; /* 0: none */
} kva_sampling;

/* Lowers the logits of tokens that came before. repetition: of those in the prompt and the text, positive logits are
 * divided by it, others multiplied. presence, frequency: of those in the text, subtracted once, and for each time.
 * times: room for n numbers. */
void kva_penalize(const kva_sampling *s, float *logits, int64_t n, const uint32_t *prompt, int64_t n_prompt,
                  const uint32_t *text, int64_t n_text, int32_t *times);

/* The token after `logits`[n] (n > 0), a function of all arguments alone: `sequence` and `position` number the draw.
 * Ties go to the lower token, NaN counts as -inf. room: for 4 n numbers. */
int64_t kva_sample(const kva_sampling *s, const float *logits, int64_t n, uint64_t sequence, uint64_t position,
                   uint32_t *room);

#endif
