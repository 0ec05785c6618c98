/* Sampling: p_i proportional to exp(l_i / temperature) over the tokens that top_k, min_p and top_p leave, in this
 * order; the token is the first at which the sum of probabilities, from the likeliest on, exceeds a uniform number. */
#include "tools/generate/sampler.h"

#include "runtime/base/platform.h"

#include <math.h>

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
  float most = value_of(logits, 0);
  for (int64_t i = 1; i < n; i++)
    if (logits[i] > most) most = logits[i], best = i;
  return best;
}

/* A number that is the larger, the smaller logit i is; zeros of both signs are equal. */
static uint32_t key_of(const float *logits, int64_t i) {
  float x = value_of(logits, i) + 0.0F;
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits >> 31 ? bits : ~bits & INT32_MAX;
}

/* Sorts by 11 bits of the keys, the lowest first, in three passes that keep the order of equal ones. room: 4 n numbers.
 * Returns all tokens, the likeliest first. */
static const uint32_t *by_likelihood(const float *logits, int64_t n, uint32_t *room) {
  enum { PASSES = 3, BITS = 11, BUCKETS = 1 << BITS };
  uint32_t *keys = room, *tokens = room + n, *to_keys = room + 2 * n, *to_tokens = room + 3 * n;
  for (int64_t i = 0; i < n; i++) keys[i] = key_of(logits, i), tokens[i] = (uint32_t)i;
  for (int pass = 0; pass < PASSES; pass++) {
    uint32_t starts[BUCKETS + 1] = {0}, *swapped;
    for (int64_t i = 0; i < n; i++) starts[(keys[i] >> pass * BITS) % BUCKETS + 1]++;
    for (int b = 0; b < BUCKETS; b++) starts[b + 1] += starts[b];
    for (int64_t i = 0; i < n; i++) {
      uint32_t at = starts[(keys[i] >> pass * BITS) % BUCKETS]++;
      to_keys[at] = keys[i], to_tokens[at] = tokens[i];
    }
    swapped = keys, keys = to_keys, to_keys = swapped;
    swapped = tokens, tokens = to_tokens, to_tokens = swapped;
  }
  return tokens;
}

/* Weight of the r-th likeliest token, that of the likeliest is 1. */
static double weight(const kva_sampling *s, const float *logits, const uint32_t *order, int64_t r) {
  float first = value_of(logits, order[0]), x = value_of(logits, order[r]);
  return x == first ? 1 : exp(((double)x - (double)first) / s->temperature);
}

/* How many of the likeliest tokens stay, and the sum of their weights. Where a weight does not change the sum, no later
 * one does: none of them can be drawn. */
static int64_t leave(const kva_sampling *s, const float *logits, const uint32_t *order, int64_t n, double *out_sum) {
  int64_t most = s->top_k > 0 && s->top_k < n ? s->top_k : n, kept = 0;
  double sum = 0;
  for (; kept < most; kept++) {
    double w = weight(s, logits, order, kept);
    if (w < s->min_p || sum + w == sum) break;
    sum += w;
  }
  if (s->top_p < 1) {
    double all = sum;
    for (most = kept, kept = 0, sum = 0; kept < most && (kept == 0 || sum < s->top_p * all); kept++)
      sum += weight(s, logits, order, kept);
  }
  *out_sum = sum;
  return kept;
}

int64_t kva_sample(const kva_sampling *s, const float *logits, int64_t n, uint64_t sequence, uint64_t position,
                   uint32_t *room) {
  if (s->temperature <= 0) return likeliest(logits, n);
  const uint32_t *order = by_likelihood(logits, n, room);
  double sum, reached = 0;
  int64_t kept = leave(s, logits, order, n, &sum), r = 0;
  double u = kva_uniform01(kva_philox4x32(position, sequence, s->seed).v[0]) * sum;
  for (; r + 1 < kept; r++) {
    reached += weight(s, logits, order, r);
    if (reached > u) break;
  }
  return order[r];
}
