/* Merges command line and train block into the options of a run. */
#include "runtime/exe/train.h"

#include <stdlib.h>

static const char *const schedules[] = {"constant", "warmup", "cosine", "linear"};
enum { N_SCHEDULES = sizeof schedules / sizeof *schedules, DEFAULT_BATCH = 32 };

static int64_t batch_of(const kva_train_settings *o, const kva_train_defaults *d) {
  return o->batch > 0 ? o->batch : d->batch > 0 ? d->batch : DEFAULT_BATCH;
}

int64_t kva_train_rows(const kva_train_settings *o, const kva_train_defaults *d) {
  return batch_of(o, d) * o->accumulate;
}

int64_t kva_train_pass_rows(const kva_train_settings *o, const kva_train_defaults *d) {
  if (o->micro_batch > 0) return o->micro_batch;
  return o->accumulate > 1 ? batch_of(o, d) : 0;
}

const char *kva_train_data(const kva_train_settings *o, const kva_train_defaults *d) {
  return o->data ? o->data : d->data;
}

kva_status kva_train_seconds(const char *text, kva_diag *diag, double *out_seconds) {
  *out_seconds = 0;
  if (!text) return KVA_OK;
  char *end;
  double v = strtod(text, &end), unit = *end == 'h' ? 3600 : *end == 'm' ? 60 : 1;
  if (end != text && *end && strchr("smh", *end)) end++;
  if (end == text || *end || !(v > 0 && v < 1e9))
    return kva_error(diag, NULL, "--time-limit: expected a time like 90s, 30m or 8h, found '%s'", text);
  *out_seconds = v * unit;
  return KVA_OK;
}

kva_status kva_train_shard(const char *text, kva_diag *diag, int *out_rank, int *out_world) {
  int end = 0;
  *out_rank = 0;
  *out_world = 1;
  if (!text) return KVA_OK;
  bool numbers = sscanf(text, "%9d/%9d%n", out_rank, out_world, &end) == 2 && !text[end];
  if (numbers && *out_rank >= 0 && *out_rank < *out_world) return KVA_OK;
  return kva_error(diag, NULL, "--shard: expected R/W with R below W, as 0/4, found '%s'", text);
}

static kva_status make_schedule(const kva_train_settings *o, const kva_train_defaults *d, int64_t steps, kva_diag *diag,
                                kva_schedule *out) {
  const char *name = o->schedule ? o->schedule : d->schedule ? d->schedule : "constant";
  int kind = 0;
  while (kind < N_SCHEDULES && strcmp(schedules[kind], name) != 0) kind++;
  if (kind == N_SCHEDULES)
    return kva_error(diag, NULL, "--schedule: expected constant, warmup, cosine or linear, found '%s'", name);
  bool ends = kind == KVA_SCHEDULE_COSINE || kind == KVA_SCHEDULE_LINEAR; /* unused fields stay 0 */
  *out = (kva_schedule){.kind = (kva_schedule_kind)kind, .lr = o->lr > 0 ? o->lr : d->lr};
  if (kind != KVA_SCHEDULE_CONSTANT) out->warmup = o->warmup >= 0 ? o->warmup : d->warmup;
  if (ends) out->final_ratio = o->final_lr >= 0 ? o->final_lr : d->final_ratio;
  if (ends) out->total = d->total > 0 && !o->schedule ? d->total : steps;
  return KVA_OK;
}

kva_status kva_train_make_options(const kva_train_settings *o, const kva_train_defaults *d, kva_diag *diag,
                                  kva_train_options *out) {
  int64_t steps = o->steps >= 0 ? o->steps : d->steps;
  if (o->steps < 0 && steps <= 0)
    return kva_error(diag, NULL, "the train block gives no number of steps; give --steps N");
  *out = (kva_train_options){.steps = steps,
                             .batch = kva_train_rows(o, d),
                             .micro_batch = kva_train_pass_rows(o, d),
                             .eval_every = o->eval_every,
                             .eval_batches = o->eval_batches,
                             .seed = o->seed >= 0 ? (uint64_t)o->seed : 0};
  if (o->weight_decay >= 0) out->weight_decay = &o->weight_decay;
  if (o->clip >= 0) out->clip = &o->clip;
  return make_schedule(o, d, steps, diag, &out->schedule);
}
