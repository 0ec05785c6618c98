/* Sampling: p_i proportional to exp(l_i / temperature) over the tokens that top_k, min_p and top_p leave, in this
 * order; the token is the first at which the sum of probabilities, from the likeliest on, exceeds a uniform number. */
#include "tools/generate/sampler.h"

#include "runtime/base/platform.h"

#include <math.h>
#include <stdlib.h>

static float value_of(const float *logits, int64_t i) {
  return isnan(logits[i]) ? -INFINITY : logits[i];
}

/* ---- penalties --------------------------------------------------------------------------------------------------- */

static void penalize(const kva_sampling *s, float *logit, int32_t times) {
  if (s->repetition > 0) *logit = (float)(*logit > 0 ? *logit / s->repetition : *logit * s->repetition);
  if (times) *logit -= (float)(s->presence + s->frequency * times);
}

void kva_penalize(const kva_sampling *s, float *logits, int64_t n, const uint32_t *prompt, int64_t n_prompt,
                  const uint32_t *text, int64_t n_text, int32_t *times) {
  enum { DONE = -1 };
  if ((s->repetition <= 0 || s->repetition == 1) && s->presence == 0 && s->frequency == 0) return;
  memset(times, 0, (size_t)n * sizeof *times);
  for (int64_t i = 0; i < n_text; i++)
    if (text[i] < n) times[text[i]]++;
  for (int64_t i = 0; i < n_prompt + n_text; i++) {
    uint32_t token = i < n_prompt ? prompt[i] : text[i - n_prompt];
    if (token >= n || times[token] == DONE) continue;
    penalize(s, &logits[token], times[token]);
    times[token] = DONE;
  }
}

/* ---- the choice -------------------------------------------------------------------------------------------------- */

static int64_t likeliest(const float *logits, int64_t n) {
  int64_t best = 0;
  for (int64_t i = 1; i < n; i++)
    if (value_of(logits, i) > value_of(logits, best)) best = i;
  return best;
}

static int compare(const void *a, const void *b, void *logits) {
  int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
  float x = value_of(logits, i), y = value_of(logits, k);
  return x != y ? (x < y ? 1 : -1) : (i > k) - (i < k);
}

/* Weight of the r-th likeliest token, that of the likeliest is 1. */
static double weight(const kva_sampling *s, const float *logits, const int32_t *order, int64_t r) {
  float first = value_of(logits, order[0]), x = value_of(logits, order[r]);
  return x == first ? 1 : exp(((double)x - (double)first) / s->temperature);
}

/* How many of the likeliest tokens stay, and the sum of their weights. */
static int64_t leave(const kva_sampling *s, const float *logits, const int32_t *order, int64_t n, double *out_sum) {
  int64_t most = s->top_k > 0 && s->top_k < n ? s->top_k : n, kept = 0;
  double sum = 0, all = 0;
  while (kept < most && weight(s, logits, order, kept) >= s->min_p) all += weight(s, logits, order, kept++);
  for (most = kept, kept = 0; kept < most && (kept == 0 || sum < s->top_p * all); kept++)
    sum += weight(s, logits, order, kept);
  *out_sum = sum;
  return kept;
}

int64_t kva_sample(const kva_sampling *s, const float *logits, int64_t n, uint64_t sequence, uint64_t position,
                   int32_t *order) {
  if (s->temperature <= 0) return likeliest(logits, n);
  for (int64_t i = 0; i < n; i++) order[i] = (int32_t)i;
  qsort_r(order, (size_t)n, sizeof *order, compare, (void *)(uintptr_t)logits);
  double sum, reached = 0;
  int64_t kept = leave(s, logits, order, n, &sum), r = 0;
  double u = kva_uniform01(kva_philox4x32(position, sequence, s->seed).v[0]) * sum;
  for (; r + 1 < kept; r++) {
    reached += weight(s, logits, order, r);
    if (reached > u) break;
  }
  return order[r];
}
