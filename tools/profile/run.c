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

/* ---- which steps ------------------------------------------------------------------------------------------------- */

typedef KVA_VEC(kva_profile_step) profile_steps;

/* The steps of a program, and behind a loop or a branch those of the programs that it runs. */
static void add_steps(const kva_session *s, int program, int outer, kva_arena *arena, profile_steps *out) {
  const kva_program *desc = kva_session_program_desc(s, program);
  for (int i = 0; i < desc->n_steps; i++) {
    int32_t inner[2];
    int n = kva_step_programs(&desc->steps[i], inner), at = (int)out->len;
    kva_profile_step step = {
        .name = desc->steps[i].origin ? desc->steps[i].origin : "copy", .program = program, .step = i, .outer = outer};
    KVA_PUSH(arena, out, step);
    for (int k = 0; k < n; k++) add_steps(s, inner[k], at, arena, out);
  }
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* Sums of a session since it began, by step. */
typedef struct sums {
  double *seconds;
  int64_t *calls;
} sums;

/* One run; samples[i * runs + r] becomes the seconds of step i without those of the steps that it runs. */
static kva_status sample(kva_session *s, const kva_tensor *in, kva_tensor *out, int64_t r, kva_profile *p, sums *before,
                         double *samples, kva_diag *diag) {
  kva_status status = kva_session_run(s, p->steps[0].program, in, out);
  if (status != KVA_OK) return kva_fail(diag, status, NULL, "%s", kva_session_error(s));
  for (int i = 0; i < p->n; i++) {
    kva_profile_step *step = &p->steps[i];
    const double *seconds;
    const int64_t *calls;
    kva_session_profile(s, step->program, &seconds, &calls);
    double taken = seconds[step->step] - before->seconds[i];
    step->calls = calls[step->step] - before->calls[i];
    before->seconds[i] = seconds[step->step], before->calls[i] = calls[step->step];
    if (r < 0) continue;
    samples[i * p->runs + r] = taken;
    if (step->outer >= 0) samples[step->outer * p->runs + r] -= taken;
  }
  return KVA_OK;
}

static void describe(const kva_session *s, kva_arena *arena, kva_profile *p) {
  for (int i = 0; i < p->n; i++) {
    kva_profile_step *step = &p->steps[i];
    int n = kva_session_program_desc(s, step->program)->n_steps;
    int64_t *live = KVA_NEW_ARRAY(arena, int64_t, n);
    kva_session_timeline(s, step->program, n, live);
    step->live = live[step->step] + (step->outer >= 0 ? p->steps[step->outer].live : 0);
    step->bytes = (double)step->calls * (double)kva_session_step_bytes(s, step->program, step->step);
  }
}

/* Programs of loops and branches have, beside what is their caller's, temporaries with results, and constants. */
static void add_memory(const kva_session *s, int program, kva_memory_report *out) {
  const kva_program *desc = kva_session_program_desc(s, program);
  for (int i = 0; i < desc->n_steps; i++) {
    int32_t inner[2];
    int n = kva_step_programs(&desc->steps[i], inner);
    for (int k = 0; k < n; k++) {
      kva_memory_report own;
      kva_session_memory(s, inner[k], &own);
      out->temps += own.temps + own.outputs, out->constants += own.constants;
      add_memory(s, inner[k], out);
    }
  }
}

static kva_status sample_all(kva_session *s, const kva_tensor *in, kva_tensor *out, kva_arena *arena, kva_diag *diag,
                             kva_profile *p) {
  double *samples = KVA_NEW_ARRAY(arena, double, (size_t)p->n *(size_t)p->runs),
         *wholes = KVA_NEW_ARRAY(arena, double, p->runs);
  sums before = {KVA_NEW_ARRAY(arena, double, p->n), KVA_NEW_ARRAY(arena, int64_t, p->n)};
  for (int64_t r = -1; r < p->runs; r++) KVA_TRY(sample(s, in, out, r, p, &before, samples, diag));
  for (int64_t r = 0; r < p->runs; r++)
    for (int i = 0; i < p->n; i++) wholes[r] += samples[i * p->runs + r];
  describe(s, arena, p);
  for (int i = 0; i < p->n; i++) p->steps[i].seconds = quantile(samples + i * p->runs, p->runs, 0.5);
  p->median = quantile(wholes, p->runs, 0.5), p->low = quantile(wholes, p->runs, 0.25),
  p->high = quantile(wholes, p->runs, 0.75);
  return KVA_OK;
}

kva_status kva_profile_run(kva_session *s, int program, int64_t runs, const kva_tensor *in, kva_tensor *out,
                           kva_arena *arena, kva_diag *diag, kva_profile *p) {
  profile_steps steps = {0};
  add_steps(s, program, -1, arena, &steps);
  p->program = kva_session_program_desc(s, program)->name;
  p->runs = runs, p->n = (int)steps.len, p->steps = steps.data;
  if (p->n) KVA_TRY(sample_all(s, in, out, arena, diag, p));
  kva_session_memory(s, program, &p->memory);
  add_memory(s, program, &p->memory);
  return KVA_OK;
}
