/* Runs a program and takes the median of each of its steps. */
#include "tools/profile/profile.h"
#include "runtime/base/platform.h"

#include <stdlib.h>

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Element at a fraction of n sorted values. */
static double quantile(double *values, int64_t n, double at) {
  qsort(values, (size_t)n, sizeof *values, compare);
  return values[(int64_t)((double)(n - 1) * at + 0.5)];
}

/* One run; samples[i * runs + r] becomes the seconds of step i. Sessions add up, so the sums before are taken off. */
static kva_status sample(kva_session *s, int program, const kva_tensor *in, kva_tensor *out, int64_t r, int64_t runs,
                         double *sums, double *samples, kva_diag *diag) {
  const double *seconds;
  const int64_t *calls;
  kva_status status = kva_session_run(s, program, in, out);
  if (status != KVA_OK) return kva_fail(diag, status, NULL, "%s", kva_session_error(s));
  int n = kva_session_profile(s, program, &seconds, &calls);
  for (int i = 0; i < n; i++) {
    if (r >= 0) samples[i * runs + r] = seconds[i] - sums[i];
    sums[i] = seconds[i];
  }
  return KVA_OK;
}

static void describe(const kva_session *s, int program, kva_arena *arena, kva_profile *p) {
  const kva_program *desc = kva_session_program_desc(s, program);
  int64_t *live = KVA_NEW_ARRAY(arena, int64_t, desc->n_steps + 1);
  p->program = desc->name, p->n = desc->n_steps;
  p->steps = KVA_NEW_ARRAY(arena, kva_profile_step, p->n + 1);
  kva_session_timeline(s, program, p->n, live);
  kva_session_memory(s, program, &p->memory);
  for (int i = 0; i < p->n; i++)
    p->steps[i] = (kva_profile_step){.name = desc->steps[i].origin ? desc->steps[i].origin : "copy",
                                     .bytes = (double)kva_session_step_bytes(s, program, i),
                                     .live = live[i]};
}

kva_status kva_profile_run(kva_session *s, int program, int64_t runs, const kva_tensor *in, kva_tensor *out,
                           kva_arena *arena, kva_diag *diag, kva_profile *p) {
  int n = kva_session_program_desc(s, program)->n_steps;
  double *samples = KVA_NEW_ARRAY(arena, double, (size_t)n *(size_t)runs + 1),
         *sums = KVA_NEW_ARRAY(arena, double, n + 1);
  double *wholes = KVA_NEW_ARRAY(arena, double, runs);
  p->runs = runs;
  KVA_TRY(sample(s, program, in, out, -1, runs, sums, samples, diag));
  for (int64_t r = 0; r < runs; r++) {
    KVA_TRY(sample(s, program, in, out, r, runs, sums, samples, diag));
    for (int i = 0; i < n; i++) wholes[r] += samples[i * runs + r];
  }
  describe(s, program, arena, p);
  for (int i = 0; i < n; i++) p->steps[i].seconds = quantile(samples + i * runs, runs, 0.5);
  p->median = quantile(wholes, runs, 0.5), p->low = quantile(wholes, runs, 0.25),
  p->high = quantile(wholes, runs, 0.75);
  return KVA_OK;
}
