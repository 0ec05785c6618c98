/* A language model as an object file: predicts the token after each token of a text. */
#include "lm.h"

#include <stdio.h>

enum { LENGTH = 12 };

static int best_of(const float *logits, int n) {
  int best = 0;
  for (int i = 1; i < n; i++)
    if (logits[i] > logits[best]) best = i;
  return best;
}

int main(void) {
  char message[256];
  lm_context *model;
  if (lm_create(NULL, &model, message, sizeof message)) {
    fprintf(stderr, "object: %s\n", message);
    return 1;
  }
  int32_t tokens[LENGTH];
  for (int i = 0; i < LENGTH; i++) tokens[i] = 100 * i;
  const lm_dims dims = {.B = 1, .T = LENGTH};
  const lm_forward_in in = {.tokens = tokens};
  lm_forward_out out = {.logits = NULL}; /* use memory of the context */
  if (lm_forward(model, &in, &out, &dims)) {
    fprintf(stderr, "object: %s\n", lm_error(model));
    return 1;
  }
  int vocabulary = (int)(lm_forward_logits_bytes(&dims) / (LENGTH * (int64_t)sizeof(float)));
  for (int i = 0; i < LENGTH; i++) printf("%d -> %d\n", tokens[i], best_of(out.logits + i * vocabulary, vocabulary));
  lm_destroy(model);
  return 0;
}
