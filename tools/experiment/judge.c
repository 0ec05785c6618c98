/* Numbers of runs, and claims about them. A claim is judged for each seed by itself and holds if it holds for all. */
#include "tools/experiment/experiment.h"

#include <math.h>
#include <stdlib.h>

/* ---- values ------------------------------------------------------------------------------------------------------ */

static kva_status unknown(const kva_exp_job *job, const char *what, kva_diag *diag) {
  kva_text known = {0};
  for (uint32_t i = 0; i < job->values.len; i++) kva_text_add(&known, "%s%s", i ? ", " : "", job->values.data[i].name);
  for (int i = 0; job->history && i < kva_history_count(job->history); i++)
    kva_text_add(&known, "%s%s", known.len ? ", " : "", kva_history_at(job->history, i).name);
  kva_status status =
      kva_error(diag, &(kva_loc){.file = job->experiment->path},
                "run '%s' has no value '%s'; it has: %s (curves with last, best or least, or with reach and a level)",
                job->experiment->runs.data[job->run].name, what, known.data ? known.data : "none");
  kva_text_free(&known);
  return status;
}

static const kva_exp_value *find_value(const kva_exp_job *job, const char *name) {
  for (uint32_t i = 0; i < job->values.len; i++)
    if (!strcmp(job->values.data[i].name, name)) return &job->values.data[i];
  return NULL;
}

/* With a sign of -1 the least. NaN where no value is a number: no claim holds of it. */
static double greatest(kva_series s, double sign) {
  double best = NAN; /* which fmax leaves for any number */
  for (int64_t i = 0; i < s.n; i++) best = fmax(best, sign * s.values[i]);
  return sign * best;
}

static double reached(kva_series s, double level) {
  for (int64_t i = 0; i < s.n; i++)
    if (s.values[i] >= level) return s.steps[i];
  return INFINITY;
}

/* A run whose loss was not finite ended there, whatever the evaluations before said. */
static bool has_diverged(const kva_history *h) {
  kva_series s = kva_history_find(h, "loss", false);
  return s.n && isinf(s.values[s.n - 1]);
}

/* Of a run that diverged: its loss is infinite, and so is exp of it. What else it measures may be better the greater it
 * is, as an accuracy, and is no number, so that no claim holds of it. */
static double last_of_diverged(const char *metric) {
  return !strcmp(metric, "loss") || !strcmp(metric, "perplexity") ? INFINITY : NAN;
}

static bool curve_value(const kva_history *h, const char *how, const char *metric, double level, double *out) {
  kva_series s = kva_history_find(h, metric, true);
  if (!s.n) s = kva_history_find(h, metric, false);
  bool diverged = has_diverged(h);
  if (!s.n && !diverged) return false;
  if (!strcmp(how, "last"))
    *out = diverged ? last_of_diverged(metric) : s.values[s.n - 1];
  else if (!strcmp(how, "best"))
    *out = greatest(s, 1);
  else if (!strcmp(how, "least"))
    *out = greatest(s, -1);
  else if (!strcmp(how, "reach"))
    *out = reached(s, level);
  else
    return false;
  return true;
}

/* The mean of values with ", " between them. */
static kva_status mean_value(const kva_exp_job *job, const char *list, kva_diag *diag, double *out) {
  double sum = 0, n = 0;
  while (*list) {
    char name[128];
    size_t length = strcspn(list, ",");
    double value;
    snprintf(name, sizeof name, "%.*s", (int)length, list);
    KVA_TRY(kva_exp_value_of(job, name, diag, &value));
    sum += value;
    n++;
    list += length;
    list += strspn(list, ", ");
  }
  *out = sum / n;
  return KVA_OK;
}

kva_status kva_exp_value_of(const kva_exp_job *job, const char *what, kva_diag *diag, double *out) {
  char how[16], metric[128], more[2];
  double level = 0;
  if (!strncmp(what, "mean ", 5)) return mean_value(job, what + 5, diag, out);
  const kva_exp_value *found = find_value(job, what);
  if (found) return *out = found->value, KVA_OK;
  int n = sscanf(what, "%15s %127s %lf %1s", how, metric, &level, more);
  int words = n >= 2 && !strcmp(how, "reach") ? 3 : 2;
  if (job->history && n == words && curve_value(job->history, how, metric, level, out)) return KVA_OK;
  return unknown(job, what, diag);
}

/* ---- costs ------------------------------------------------------------------------------------------------------- */

static double plan_value(const kva_exp_job *job, const char *name) {
  const kva_exp_value *found = find_value(job, name);
  return found ? found->value : NAN;
}

const char *kva_exp_config_of(const kva_exp_job *job, const char *name) {
  for (uint32_t i = 0; i < job->config.len; i++)
    if (!strcmp(job->config.data[i].name, name)) return job->config.data[i].value;
  return NULL;
}

bool kva_exp_cost_of(const kva_exp_job *job, kva_exp_cost *out) {
  double rows, together;
  const char *batch = kva_exp_config_of(job, "batch"), *steps = kva_exp_config_of(job, "steps");
  int n = batch && steps ? sscanf(batch, "%lf sequences, %lf", &rows, &together) : 0;
  if (n < 1) return false;
  *out = (kva_exp_cost){.parameters = plan_value(job, "plan.parameters"),
                        .bytes = plan_value(job, "plan.bytes.total"),
                        .step_flops = plan_value(job, "plan.contraction_flops") * (n == 2 ? rows / together : 1),
                        .steps = strtod(steps, NULL)};
  return true;
}

/* ---- claims ------------------------------------------------------------------------------------------------------ */

const char *kva_exp_mean_text(kva_arena *arena, int64_t n, const double *values) {
  double sum = 0, low = INFINITY, high = -INFINITY;
  for (int64_t i = 0; i < n; i++) {
    sum += values[i];
    low = fmin(low, values[i]);
    high = fmax(high, values[i]);
  }
  if (isnan(sum)) return "nan"; /* of which low and high know nothing */
  bool whole = low == floor(low) && fabs(low) < 1e15;
  if (low == high) return kva_arena_printf(arena, whole ? "%.0f" : "%.9g", low);
  return kva_arena_printf(arena, "%.5g (%.5g to %.5g)", sum / (double)n, low, high);
}

static bool compare(const kva_exp_claim *c, double left, double right) {
  switch (*c->is) {
  case '<': return left < right;
  case '>': return left > right;
  default: return fabs(left - right) <= c->within;
  }
}

const char *kva_exp_failure(const kva_exp_job *jobs, int64_t seeds, uint32_t run) {
  for (int64_t s = 0; s < seeds; s++)
    if (jobs[run * seeds + s].failure) return jobs[run * seeds + s].failure;
  return NULL;
}

static kva_status judge(const kva_exp_claim *c, const kva_exp_job *jobs, int64_t seeds, kva_arena *arena,
                        kva_diag *diag, kva_exp_verdict *out) {
  double *left = KVA_NEW_ARRAY(arena, double, seeds), *right = KVA_NEW_ARRAY(arena, double, seeds);
  *out = (kva_exp_verdict){.seeds = seeds};
  const char *failure = kva_exp_failure(jobs, seeds, c->of);
  if (!failure && c->than_run >= 0) failure = kva_exp_failure(jobs, seeds, (uint32_t)c->than_run);
  if (failure) {
    out->ours = kva_arena_printf(arena, "a run %s", failure);
    return KVA_OK;
  }
  for (int64_t s = 0; s < seeds; s++) {
    right[s] = c->than;
    KVA_TRY(kva_exp_value_of(&jobs[c->of * seeds + s], c->value, diag, &left[s]));
    if (c->than_run >= 0) KVA_TRY(kva_exp_value_of(&jobs[c->than_run * seeds + s], c->value, diag, &right[s]));
    right[s] *= c->times;
    out->held += compare(c, left[s], right[s]);
  }
  out->holds = out->held == seeds;
  const char *factor = c->times == 1 ? "" : kva_arena_printf(arena, " (times %.6g)", c->times);
  const char *limit = *c->is == '=' ? kva_arena_printf(arena, " within %.3g", c->within) : "";
  const char *than = kva_exp_mean_text(arena, seeds, right);
  out->ours = kva_arena_printf(arena, "%s %s %s %s%s%s", c->value, kva_exp_mean_text(arena, seeds, left), c->is, than,
                               factor, limit);
  if (seeds > 1)
    out->ours = kva_arena_printf(arena, "%s; %lld of %lld seeds", out->ours, (long long)out->held, (long long)seeds);
  return KVA_OK;
}

kva_status kva_exp_judge(const kva_experiment *e, const kva_exp_job *jobs, int64_t seeds, kva_arena *arena,
                         kva_diag *diag, kva_exp_verdict **out_verdicts) {
  *out_verdicts = KVA_NEW_ARRAY(arena, kva_exp_verdict, e->claims.len + 1);
  for (uint32_t i = 0; i < e->claims.len; i++)
    KVA_TRY(judge(&e->claims.data[i], jobs, seeds, arena, diag, &(*out_verdicts)[i]));
  return KVA_OK;
}
