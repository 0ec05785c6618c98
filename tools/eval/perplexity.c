/* See perplexity.h. Windows are collected and computed several at a time; sums are added in order of windows, so that
 * they do not depend on how many. */
#include "tools/eval/perplexity.h"

#include <stdlib.h>

struct kva_perplexity {
  kva_scorer *scorer;
  kva_perplexity_options o;
  int64_t size;            /* of a window: context + 1 tokens */
  uint32_t *tokens;        /* [windows][size]; the window after the last waiting one is being filled */
  double *log_p;           /* [windows][context] */
  kva_scored_text *texts;  /* the windows that wait */
  int64_t waiting, filled; /* windows; tokens of the next one */
  int64_t first;           /* of the next one: tokens before it are predicted already */
  kva_perplexity_sum sum;
};

kva_status kva_perplexity_create(kva_scorer *scorer, const kva_perplexity_options *options, kva_diag *diag,
                                 kva_perplexity **out_perplexity) {
  *out_perplexity = NULL;
  kva_perplexity *p = calloc(1, sizeof *p);
  if (!p) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for windows");
  *p = (kva_perplexity){.scorer = scorer, .o = *options, .size = options->context + 1};
  p->tokens = calloc((size_t)(options->windows + 1), (size_t)p->size * sizeof *p->tokens);
  p->log_p = calloc((size_t)options->windows, (size_t)p->size * sizeof *p->log_p);
  p->texts = calloc((size_t)options->windows, sizeof *p->texts);
  if (!p->tokens || !p->log_p || !p->texts) {
    kva_perplexity_destroy(p);
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for %lld windows of %lld tokens", (long long)options->windows,
                    (long long)options->context);
  }
  *out_perplexity = p;
  return KVA_OK;
}

void kva_perplexity_destroy(kva_perplexity *p) {
  if (!p) return;
  free(p->tokens);
  free(p->log_p);
  free(p->texts);
  free(p);
}

static uint32_t *window(kva_perplexity *p, int64_t i) {
  return p->tokens + i * p->size;
}

/* Computes the windows that wait. What is known of the next one moves to the front. */
static kva_status flush(kva_perplexity *p, kva_diag *diag) {
  if (!p->waiting) return KVA_OK;
  KVA_TRY(kva_scorer_run(p->scorer, (int)p->waiting, p->texts, diag));
  for (int64_t w = 0; w < p->waiting; w++) {
    const kva_scored_text *text = &p->texts[w];
    for (int64_t i = 0; i < text->n - text->first; i++) p->sum.nats -= text->log_p[i];
    p->sum.tokens += text->n - text->first;
  }
  memcpy(window(p, 0), window(p, p->waiting), (size_t)p->filled * sizeof *p->tokens);
  p->waiting = 0;
  return KVA_OK;
}

/* The window that is filled waits from now on; the next one keeps its last `kept` tokens. */
static kva_status close_window(kva_perplexity *p, int64_t kept, kva_diag *diag) {
  int64_t w = p->waiting++;
  const uint32_t *tokens = window(p, w);
  p->texts[w] = (kva_scored_text){.tokens = tokens, .n = p->filled, .first = p->first, .log_p = p->log_p + w * p->size};
  memcpy(window(p, w + 1), tokens + p->filled - kept, (size_t)kept * sizeof *tokens);
  p->filled = kept;
  p->first = kept > 1 ? kept : 1;
  return p->waiting == p->o.windows ? flush(p, diag) : KVA_OK;
}

kva_status kva_perplexity_begin(kva_perplexity *p, kva_diag *diag) {
  if (p->filled > p->first) KVA_TRY(close_window(p, 0, diag));
  p->filled = 0;
  p->first = 1;
  return p->o.begin < 0 ? KVA_OK : kva_perplexity_add(p, (uint32_t)p->o.begin, diag);
}

kva_status kva_perplexity_add(kva_perplexity *p, uint32_t token, kva_diag *diag) {
  window(p, p->waiting)[p->filled++] = token;
  return p->filled == p->size ? close_window(p, p->size - p->o.stride, diag) : KVA_OK;
}

kva_status kva_perplexity_finish(kva_perplexity *p, kva_diag *diag) {
  if (p->filled > p->first) KVA_TRY(close_window(p, 0, diag));
  return flush(p, diag);
}

kva_perplexity_sum kva_perplexity_so_far(const kva_perplexity *p) {
  return p->sum;
}
