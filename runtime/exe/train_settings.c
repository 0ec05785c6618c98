/* Merges command line and train block into the options of a run. */
#include "runtime/exe/train.h"

#include "runtime/comm.h"
#include "runtime/data.h"
#include "runtime/exe/exe.h"
#include "runtime/train.h"

enum { DEFAULT_BATCH = 32 };

static int64_t batch_of(const kva_train_settings *o, const kva_train_defaults *d) {
  return o->batch > 0 ? o->batch : d->batch > 0 ? d->batch : DEFAULT_BATCH;
}

int64_t kva_train_rows(const kva_train_settings *o, const kva_train_defaults *d) {
  return batch_of(o, d) * o->accumulate;
}

kva_status kva_train_rows_each(const kva_train_settings *o, const kva_train_defaults *d, kva_diag *diag,
                               int64_t *out_rows) {
  return kva_train_part(kva_train_rows(o, d), kva_comm_size(kva_comm_data(o->comm)), diag, out_rows);
}

int64_t kva_train_pass_rows(const kva_train_settings *o, const kva_train_defaults *d) {
  int64_t each = kva_train_rows(o, d) / kva_comm_size(kva_comm_data(o->comm));
  if (o->micro_batch > 0) return o->micro_batch;
  if (o->accumulate <= 1) return 0;
  return batch_of(o, d) < each ? batch_of(o, d) : each;
}

const char *kva_train_misused(const kva_train_settings *o) {
  if (o->keep_best && !o->checkpoint) return "--keep-best needs a folder to save in: --checkpoint DIR";
  if (o->keep_best && (!o->eval_every || !o->eval_batches)) return "--keep-best needs evaluations: --eval-every N";
  if (o->resume && !*o->resume && !o->checkpoint)
    return "--resume needs a checkpoint: --resume=PATH, or --checkpoint DIR";
  if (o->comm && o->shard.count > 1) return "--shard and --mesh both divide the batches; give one of them";
  if (kva_exe_same_output(o->metrics, o->report)) return "--metrics and --report name one file; give each its own";
  return NULL;
}

void kva_train_take_sources(kva_train_settings *o, kva_arena *arena) {
  for (uint32_t i = 0; i < o->sources.n; i++)
    o->data = i ? kva_arena_printf(arena, "%s;%s", o->data, o->sources.v[i]) : o->sources.v[i];
}

const char *kva_train_data(const kva_train_settings *o, const kva_train_defaults *d) {
  return o->data ? o->data : d->data;
}

const char *kva_train_reads(const kva_train_settings *o, const char *data, const char *output, kva_arena *arena) {
  kva_data_spec *specs;
  int n = 0;
  if (!output) return NULL;
  if (o->resume && kva_exe_same_file(o->resume, output)) return o->resume;
  /* what cannot be parsed is refused where it is opened */
  if (!data || kva_data_parse(data, arena, NULL, &n, &specs) != KVA_OK) return NULL;
  for (int i = 0; i < n; i++)
    for (int k = 0; kva_data_reads_files(specs[i].kind) && k < specs[i].n_items; k++)
      if (kva_exe_same_file(specs[i].items[k].value, output)) return specs[i].items[k].value;
  return NULL;
}

static kva_status make_schedule(const kva_train_settings *o, const kva_train_defaults *d, int64_t steps, kva_diag *diag,
                                kva_schedule *out) {
  const char *name = o->schedule ? o->schedule : d->schedule ? d->schedule : "constant";
  int kind = kva_word_index(KVA_SCHEDULES, name);
  if (kind < 0) return kva_error(diag, NULL, "the train block's schedule '%s' is none of " KVA_SCHEDULES, name);
  bool ends = kind == KVA_SCHEDULE_COSINE || kind == KVA_SCHEDULE_LINEAR; /* unused fields stay 0 */
  if (o->warmup > 0 && kind == KVA_SCHEDULE_CONSTANT)
    return kva_error(diag, NULL, "--warmup: the schedule is constant; give --schedule warmup, cosine or linear");
  if (o->final_lr >= 0 && !ends)
    return kva_error(diag, NULL, "--final-lr: the schedule is %s; give --schedule cosine or linear", name);
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
