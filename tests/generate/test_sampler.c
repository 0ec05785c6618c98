/* The choice of tokens: what each setting leaves, how often each token is drawn, and what a draw depends on. */
#include "runtime/base/platform.h"
#include "tools/generate/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { TOKENS = 5, DRAWS = 20000 };

/* Probabilities 0.4, 0.1, 0.3, 0.15, 0.05. */
static const double probabilities[TOKENS] = {0.4, 0.1, 0.3, 0.15, 0.05};

static void logits_of(float *logits) {
  for (int i = 0; i < TOKENS; i++) logits[i] = (float)log(probabilities[i]) + 3;
}

static void count(const kva_sampling *s, int *counts) {
  float logits[TOKENS];
  uint32_t room[4 * TOKENS];
  logits_of(logits);
  for (int i = 0; i < TOKENS; i++) counts[i] = 0;
  for (uint64_t i = 0; i < DRAWS; i++) counts[kva_sample(s, logits, TOKENS, i % 3, i, room)]++;
}

static void drawn_like(const kva_sampling *s, const double *weights) {
  int counts[TOKENS];
  double sum = 0;
  count(s, counts);
  for (int i = 0; i < TOKENS; i++) sum += weights[i];
  for (int i = 0; i < TOKENS; i++) {
    double expected = weights[i] / sum;
    if (!weights[i]) assert_int_equal(counts[i], 0);
    assert_true(fabs(counts[i] / (double)DRAWS - expected) < 0.015);
  }
}

static void settings_leave_tokens(void **state) {
  (void)state;
  drawn_like(&(kva_sampling){.temperature = 1, .top_p = 1}, probabilities);
  drawn_like(&(kva_sampling){.temperature = 0.5, .top_p = 1}, (double[]){0.16, 0.01, 0.09, 0.0225, 0.0025});
  drawn_like(&(kva_sampling){.temperature = 1, .top_p = 1, .top_k = 2}, (double[]){0.4, 0, 0.3, 0, 0});
  drawn_like(&(kva_sampling){.temperature = 1, .top_p = 1, .top_k = 99}, probabilities);
  drawn_like(&(kva_sampling){.temperature = 1, .top_p = 0.8}, (double[]){0.4, 0, 0.3, 0.15, 0});
  drawn_like(&(kva_sampling){.temperature = 1, .top_p = 0.01}, (double[]){1, 0, 0, 0, 0});
  drawn_like(&(kva_sampling){.temperature = 1, .top_p = 1, .min_p = 0.3}, (double[]){0.4, 0, 0.3, 0.15, 0});
  /* top_p counts what top_k left */
  drawn_like(&(kva_sampling){.temperature = 1, .top_p = 0.6, .top_k = 2}, (double[]){0.4, 0, 0.3, 0, 0});
  drawn_like(&(kva_sampling){.temperature = 1, .top_p = 0.5, .top_k = 2}, (double[]){1, 0, 0, 0, 0});
}

static void likeliest_token(void **state) {
  (void)state;
  uint32_t room[4 * 4];
  const kva_sampling greedy = {.top_p = 1};
  assert_int_equal(kva_sample(&greedy, (float[]){1, 3, 3, 2}, 4, 0, 0, room), 1);
  assert_int_equal(kva_sample(&greedy, (float[]){NAN, -1, INFINITY, 2}, 4, 0, 0, room), 2);
  assert_int_equal(kva_sample(&greedy, (float[]){NAN, -INFINITY, -5}, 3, 0, 0, room), 2);
}

static void odd_logits(void **state) {
  (void)state;
  uint32_t room[4 * 3];
  const kva_sampling s = {.temperature = 1, .top_p = 1};
  for (uint64_t i = 0; i < 100; i++) {
    assert_int_equal(kva_sample(&s, (float[]){NAN, 2, -INFINITY}, 3, 0, i, room), 1);
    assert_int_equal(kva_sample(&s, (float[]){1, INFINITY, 7}, 3, 0, i, room), 1);
    assert_in_range(kva_sample(&s, (float[]){-INFINITY, -INFINITY, NAN}, 3, 0, i, room), 0, 2);
    assert_int_equal(kva_sample(&s, (float[]){5}, 1, 0, i, room), 0);
  }
}

static void draws_are_numbered(void **state) {
  (void)state;
  float logits[TOKENS];
  uint32_t room[4 * TOKENS];
  logits_of(logits);
  int same[3] = {0};
  for (uint64_t i = 0; i < 300; i++) {
    const kva_sampling a = {.temperature = 1, .top_p = 1, .seed = 1}, b = {.temperature = 1, .top_p = 1, .seed = 2};
    int64_t first = kva_sample(&a, logits, TOKENS, 0, i, room);
    assert_int_equal(kva_sample(&a, logits, TOKENS, 0, i, room), first);
    same[0] += kva_sample(&b, logits, TOKENS, 0, i, room) == first;
    same[1] += kva_sample(&a, logits, TOKENS, 1, i, room) == first;
    same[2] += kva_sample(&a, logits, TOKENS, 0, i + 1, room) == first;
  }
  for (int i = 0; i < 3; i++) assert_in_range(same[i], 50, 140); /* 0.285 of them by chance */
}

static void tokens_that_came_before(void **state) {
  (void)state;
  const uint32_t prompt[] = {0, 0, 9}, text[] = {1, 2, 1, 0};
  int32_t times[TOKENS];
  float a[TOKENS] = {2, -2, 4, 8, -8}, b[TOKENS] = {2, -2, 4, 8, -8}, c[TOKENS] = {2, -2, 4, 8, -8};
  kva_penalize(&(kva_sampling){.repetition = 2}, a, TOKENS, prompt, 3, text, 4, times);
  assert_memory_equal(a, ((float[]){1, -4, 2, 8, -8}), sizeof a);
  kva_penalize(&(kva_sampling){.presence = 1, .frequency = 0.5}, b, TOKENS, prompt, 3, text, 4, times);
  assert_memory_equal(b, ((float[]){0.5F, -4, 2.5F, 8, -8}), sizeof b);
  kva_penalize(&(kva_sampling){.repetition = 1}, c, TOKENS, prompt, 3, text, 4, times);
  assert_memory_equal(c, ((float[]){2, -2, 4, 8, -8}), sizeof c);
}

/* ---- many tokens, against sums over all of them ------------------------------------------------------------------ */

enum { MANY = 3000 };

static int by_logit(const void *a, const void *b, void *logits) {
  int32_t i = *(const int32_t *)a, k = *(const int32_t *)b;
  float x = ((const float *)logits)[i], y = ((const float *)logits)[k];
  return x != y ? (x < y ? 1 : -1) : (i > k) - (i < k);
}

static int64_t slow_sample(const kva_sampling *s, float *logits, uint64_t position) {
  int32_t order[MANY];
  double weights[MANY], all = 0, sum = 0, reached = 0;
  int64_t kept = 0, r = 0, most = s->top_k ? s->top_k : MANY;
  for (int32_t i = 0; i < MANY; i++) order[i] = i;
  qsort_r(order, MANY, sizeof *order, by_logit, logits);
  for (int i = 0; i < MANY; i++) {
    double difference = (double)logits[order[i]] - (double)logits[order[0]];
    weights[i] = difference == 0 ? 1 : exp(difference / s->temperature);
  }
  while (kept < most && weights[kept] >= s->min_p) all += weights[kept++];
  for (most = kept, kept = 0; kept < most && (kept == 0 || sum < s->top_p * all); kept++) sum += weights[kept];
  double u = kva_uniform01(kva_philox4x32(position, 0, s->seed).v[0]) * sum;
  for (; r + 1 < kept; r++) {
    reached += weights[r];
    if (reached > u) break;
  }
  return order[r];
}

static void many_tokens(void **state) {
  (void)state;
  static const kva_sampling settings[] = {{.temperature = 1, .top_p = 1},
                                          {.temperature = 0.3, .top_p = 1},
                                          {.temperature = 20, .top_p = 0.9},
                                          {.temperature = 2, .top_p = 0.5, .min_p = 1e-3},
                                          {.temperature = 5, .top_p = 1, .top_k = 40},
                                          {.temperature = 1e-3, .top_p = 1}};
  static uint32_t room[4 * MANY];
  static float logits[MANY];
  srand(3);
  for (int i = 0; i < MANY; i++) logits[i] = (float)(rand() % 4000 - 2000) / 32; /* some are equal, two are zeros */
  logits[7] = 0.0F, logits[8] = -0.0F;
  for (size_t s = 0; s < sizeof settings / sizeof *settings; s++)
    for (uint64_t i = 0; i < 200; i++)
      assert_int_equal(kva_sample(&settings[s], logits, MANY, 0, i, room), slow_sample(&settings[s], logits, i));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(settings_leave_tokens),
      cmocka_unit_test(likeliest_token),
      cmocka_unit_test(odd_logits),
      cmocka_unit_test(draws_are_numbered),
      cmocka_unit_test(many_tokens),
      cmocka_unit_test(tokens_that_came_before),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
