/* Training runs: batches, micro-batches, steps, schedule, evaluation. All learned values are states of the session. A
 * run adds only the number of the step, so a run that is stopped and continued gives the same bits.
 *
 * A step of several micro-batches: the source fills the whole batch once, so its rows do not depend on the division.
 * Micro-batch p takes rows [p * micro_batch, (p + 1) * micro_batch). grad_step adds a micro-batch's gradients to
 * states, which begin at zero, in order of micro-batches. apply_step multiplies the sums by 1 / micro-batches, clips,
 * updates and sets the sums to zero. Outputs are means over the micro-batches. */
#include "runtime/train.h"

#include "runtime/base/platform.h"
#include "runtime/comm.h"
#include "runtime/session.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static kva_status choose_micro_batches(kva_trainer *t, kva_diag *diag) {
  kva_train_options *o = &t->options;
  const kva_program *program = kva_train_data_program(kva_session_artifact(t->s));
  int64_t pinned = program ? kva_train_pinned_rows(program) : 0;
  int64_t rows;
  KVA_TRY(kva_train_part(o->batch, kva_comm_size(kva_train_data_comm(t)), diag, &rows));
  if (!o->micro_batch) o->micro_batch = pinned ? pinned : rows;
  if (pinned && o->micro_batch != pinned)
    return kva_error(diag, NULL, "the model was compiled for micro-batches of %lld rows, found a micro-batch of %lld",
                     (long long)pinned, (long long)o->micro_batch);
  if (o->micro_batch < 1 || rows % o->micro_batch)
    return kva_error(diag, NULL, "a batch of %lld rows cannot be cut into micro-batches of %lld%s", (long long)rows,
                     (long long)o->micro_batch, pinned ? ", which the model was compiled for" : "");
  t->micro_batches = rows / o->micro_batch;
  t->accumulates = t->micro_batches > 1 || kva_session_program(t->s, "train_step") < 0;
  if (kva_session_program(t->s, "grad_step") < 0) t->accumulates = t->micro_batches > 1;
  return KVA_OK;
}

static kva_status create_stages(kva_trainer *t, kva_diag *diag) {
  kva_status status = kva_train_stages_create(t, diag);
  if (status == KVA_NO_MEMORY) return kva_fail(diag, status, NULL, "no memory for what stages keep and exchange");
  KVA_TRY(status);
  if (!t->stages) return KVA_OK;
  const kva_program *p = kva_train_data_program(kva_session_artifact(t->s));
  return kva_train_batch_create(t, p, t->options.micro_batch, t->micro_batches, diag, &t->step);
}

static kva_status create_calls(kva_trainer *t, kva_diag *diag) {
  KVA_TRY(create_stages(t, diag));
  if (t->stages) return KVA_OK;
  const char *name = t->accumulates ? "grad_step" : "train_step";
  KVA_TRY(kva_train_call_create(t, name, 1, t->options.micro_batch, t->micro_batches, diag, &t->step));
  if (t->accumulates) KVA_TRY(kva_train_call_create(t, "apply_step", 2, 0, 1, diag, &t->apply));
  int32_t n = t->step.p->n_outputs, n_apply = t->accumulates ? t->apply.p->n_outputs : 0;
  t->names = calloc((size_t)(n + n_apply), sizeof *t->names);
  t->values = calloc((size_t)(n + n_apply), sizeof *t->values);
  if (!t->names || !t->values) return KVA_NO_MEMORY;
  for (int32_t i = 0; i < n; i++) t->names[i] = t->step.names[i];
  for (int32_t i = 0; i < n_apply; i++) t->names[n + i] = t->apply.names[i];
  return KVA_OK;
}

/* Dropout reads its seed from this state; models without dropout have no such state. */
static void set_seed(kva_trainer *t) {
  kva_tensor seed;
  if (kva_session_state(t->s, "train.seed", &seed)) memcpy(seed.data, &t->options.seed, sizeof t->options.seed);
}

static bool has_state(const kva_artifact *a, const char *name) {
  int32_t i = 0;
  while (i < a->n_states && strcmp(a->states[i].name, name) != 0) i++;
  return i < a->n_states;
}

/* The state of an optimiser setting; NULL if the setting is not a state. */
static float *setting(const kva_trainer *t, const char *name) {
  kva_tensor value;
  return kva_session_state(t->s, name, &value) && value.dtype == KVA_F32 ? value.data : NULL;
}

static kva_status set(kva_trainer *t, const char *state, const char *what, const double *value, kva_diag *diag) {
  float *at = setting(t, state);
  if (!value || (!at && *value == 0)) return KVA_OK;
  if (!at)
    return kva_error(diag, NULL, "the model was compiled without %s, so it cannot be set; give its train block some",
                     what);
  if (!(*value >= 0)) return kva_error(diag, NULL, "%s must not be negative, found %g", what, *value);
  *at = (float)*value;
  return KVA_OK;
}

static kva_status set_optimizer(kva_trainer *t, kva_diag *diag) {
  const double none = FLT_MAX, *clip = t->options.clip;
  KVA_TRY(set(t, "train.weight_decay", "weight decay", t->options.weight_decay, diag));
  KVA_TRY(set(t, "train.clip", "clipping", clip && *clip == 0 ? &none : clip, diag));
  t->options.weight_decay = t->options.clip = NULL;
  return KVA_OK;
}

kva_status kva_trainer_create(kva_session *s, const kva_train_options *options, kva_diag *diag,
                              kva_trainer **out_trainer) {
  *out_trainer = NULL;
  if (options->batch < 1)
    return kva_error(diag, NULL, "the batch must have at least one row, found %lld", (long long)options->batch);
  kva_trainer *t = calloc(1, sizeof *t);
  if (!t) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a trainer");
  t->s = s;
  t->options = *options;
  t->done = options->done;
  t->draws = has_state(kva_session_artifact(s), "train.pass");
  kva_status status = choose_micro_batches(t, diag);
  if (status == KVA_OK) status = create_calls(t, diag);
  if (status == KVA_OK) status = set_optimizer(t, diag);
  if (status != KVA_OK) {
    kva_trainer_destroy(t);
    return status;
  }
  set_seed(t);
  *out_trainer = t;
  return KVA_OK;
}

void kva_trainer_destroy(kva_trainer *t) {
  if (!t) return;
  kva_train_call_destroy(&t->step);
  kva_train_call_destroy(&t->apply);
  kva_train_call_destroy(&t->eval);
  kva_train_stages_destroy(t->stages);
  free(t->names);
  free(t->values);
  free(t);
}

void kva_trainer_bind(kva_trainer *t, kva_data_source *data) {
  t->data = data;
}

int64_t kva_trainer_done(const kva_trainer *t) {
  return t->done;
}

uint64_t kva_trainer_seed(const kva_trainer *t) {
  return t->options.seed;
}

static int64_t sent_by(const kva_trainer *t) {
  return kva_train_comm(t) ? kva_comm_bytes(kva_train_comm(t)) : 0;
}

int64_t kva_trainer_sent(const kva_trainer *t) {
  return t->sent;
}

/* ---- one step ---------------------------------------------------------------------------------------------------- */

static kva_status fill(kva_trainer *t, kva_train_call *c, int64_t index, bool evaluation, kva_diag *diag) {
  if (!t->data) return kva_error(diag, NULL, "no data source is bound to the trainer");
  return t->data->fill(t->data->self, t->options.seed, index, evaluation, c->n_data, c->batch, diag);
}

static void make_event(const kva_trainer *t, int n, const char *const *names, const double *values, bool evaluation,
                       kva_train_event *out) {
  if (!out) return;
  *out = (kva_train_event){.step = t->done,
                           .steps = t->options.steps,
                           .evaluation = evaluation,
                           .seconds = t->seconds,
                           .lr = kva_schedule_at(&t->options.schedule, t->done),
                           .n = n,
                           .names = names,
                           .values = values};
}

/* apply_step saw the sum of the gradients: find the micro-batch that contributed the value. */
static void explain_micro_batches(kva_trainer *t, kva_text *why) {
  for (int64_t k = 0; k < t->micro_batches && !why->len; k++) {
    kva_train_call_set(&t->step, 0, 1);
    if (kva_train_call_run(t, &t->step, k, false, NULL) == KVA_OK)
      kva_explain_not_finite(t->s, t->step.program, true, why);
  }
}

kva_status kva_train_not_finite(const kva_trainer *t, const char *why, double loss, double lr, kva_diag *diag) {
  const char *what = isnan(loss)   ? "the loss is not a number"
                     : isinf(loss) ? "the loss is infinite"
                                   : "the loss is "
                                     "finite, the norm of its gradient is not";
  return kva_fail(diag, KVA_NOT_FINITE, NULL,
                  "%s at step %lld (learning rate %g)%s%s; lower the learning rate, warm up longer or clip "
                  "gradients",
                  what, (long long)t->done + 1, lr, why ? ": " : "", why ? why : "");
}

static kva_status not_finite(kva_trainer *t, const kva_train_call *c, double loss, double lr, kva_diag *diag) {
  kva_text why = {0};
  if (c == &t->apply)
    explain_micro_batches(t, &why);
  else
    kva_explain_not_finite(t->s, c->program, t->accumulates, &why);
  kva_status status = kva_train_not_finite(t, why.len ? why.data : NULL, loss, lr, diag);
  kva_text_free(&why);
  return status;
}

/* The loss of a call that stopped before its updates. */
static double stopped_loss(const kva_trainer *t, const kva_train_call *c) {
  const kva_program_state *sp = &t->s->programs[c->program];
  int32_t b = c->p->outputs[c->loss];
  return kva_load_f64((kva_dtype)c->p->buffers[b].dtype, sp->pointers[b], 0);
}

static kva_status run_guarded(kva_trainer *t, kva_train_call *c, int64_t k, double lr, kva_diag *diag) {
  kva_status status = kva_train_call_run(t, c, k, true, diag);
  if (status == KVA_NOT_FINITE) return not_finite(t, c, c == &t->apply ? 0 : stopped_loss(t, c), lr, diag);
  KVA_TRY(status);
  return c == &t->apply || isfinite(c->values[c->loss]) ? KVA_OK : not_finite(t, c, c->values[c->loss], lr, diag);
}

static kva_status add_gradients(kva_trainer *t, double lr, kva_diag *diag) {
  int64_t first = kva_train_begin_passes(t);
  kva_status status = KVA_OK;
  for (int64_t k = 0; status == KVA_OK && k < t->micro_batches; k++) {
    kva_train_call_set(&t->step, 0, k == 0);
    status = run_guarded(t, &t->step, k, lr, diag);
  }
  kva_train_end_passes(t, first, status == KVA_OK);
  return status;
}

static kva_status accumulate(kva_trainer *t, double lr, kva_diag *diag) {
  KVA_TRY(add_gradients(t, lr, diag));
  for (int32_t i = 0; i < t->step.p->n_outputs; i++) t->step.values[i] /= (double)t->micro_batches;
  kva_train_call_clear(&t->apply);
  kva_train_call_set(&t->apply, 0, 1 / (double)(t->micro_batches * kva_comm_size(kva_train_data_comm(t))));
  kva_train_call_set(&t->apply, 1, lr);
  return run_guarded(t, &t->apply, 0, lr, diag);
}

static kva_status run_step(kva_trainer *t, double lr, kva_diag *diag) {
  if (t->stages) return kva_train_stages_step(t, lr, diag);
  if (t->accumulates) return accumulate(t, lr, diag);
  kva_train_call_set(&t->step, 0, lr);
  return run_guarded(t, &t->step, 0, lr, diag);
}

static void report_step(kva_trainer *t, kva_train_event *out_event) {
  if (t->stages) {
    const char *const *names;
    const double *values;
    int32_t n = kva_train_stages_values(t->stages, &names, &values);
    make_event(t, n, names, values, false, out_event);
    return;
  }
  int32_t n = t->step.p->n_outputs, n_apply = t->accumulates ? t->apply.p->n_outputs : 0;
  for (int32_t i = 0; i < n; i++) t->values[i] = t->step.values[i];
  for (int32_t i = 0; i < n_apply; i++) t->values[n + i] = t->apply.values[i];
  make_event(t, n + n_apply, t->names, t->values, false, out_event);
}

kva_status kva_trainer_step(kva_trainer *t, kva_diag *diag, kva_train_event *out_event) {
  int64_t sent = sent_by(t);
  double begin = kva_now(), lr = kva_schedule_at(&t->options.schedule, t->done + 1);
  kva_train_call_clear(&t->step);
  KVA_TRY(fill(t, &t->step, t->done + 1, false, diag));
  KVA_TRY(run_step(t, lr, diag));
  t->done++;
  t->sent += sent_by(t) - sent;
  t->seconds += kva_now() - begin;
  report_step(t, out_event);
  return KVA_OK;
}

static kva_status need_evaluation(kva_trainer *t, kva_diag *diag) {
  if (t->eval.inputs) return KVA_OK;
  if (t->stages) return kva_train_batch_create(t, t->step.p, t->options.micro_batch, 1, diag, &t->eval);
  return kva_train_call_create(t, "eval", 0, t->options.micro_batch, 1, diag, &t->eval);
}

static kva_status evaluate_batch(kva_trainer *t, int64_t i, kva_diag *diag) {
  bool alone = kva_comm_size(kva_train_data_comm(t)) == 1 && !t->stages;
  if (alone && t->options.goes_on && !t->options.goes_on(t->options.user)) return KVA_INTERRUPTED;
  KVA_TRY(fill(t, &t->eval, i, true, diag));
  return t->stages ? kva_train_stages_evaluate(t, diag) : kva_train_call_run(t, &t->eval, 0, false, diag);
}

/* Sums of what evaluations report, by output; returns their number. */
static int32_t evaluated(kva_trainer *t, const char *const **out_names, double **out_values) {
  if (t->stages) return kva_train_stages_evaluated(t->stages, out_names, out_values);
  *out_names = t->eval.names;
  *out_values = t->eval.values;
  return t->eval.p->n_outputs;
}

static bool evaluates_together(const kva_trainer *t) {
  return t->stages ? kva_train_stages_collective(t) : kva_program_is_collective(t->eval.p);
}

/* Evaluations always use the same batches, so that they compare. Each process takes every n-th of them. Where
 * evaluations gather parameters, all must run equally many: who has one less runs one that does not count. */
kva_status kva_trainer_evaluate(kva_trainer *t, kva_diag *diag, kva_train_event *out_event) {
  int64_t n = t->options.eval_batches;
  if (n < 1) return kva_error(diag, NULL, "an evaluation needs at least one batch, found %lld", (long long)n);
  KVA_TRY(need_evaluation(t, diag));
  int64_t rank = kva_comm_rank(kva_train_data_comm(t)), size = kva_comm_size(kva_train_data_comm(t));
  const char *const *names;
  double *values;
  int32_t n_values = evaluated(t, &names, &values);
  if (n % size && rank >= n % size && evaluates_together(t)) KVA_TRY(evaluate_batch(t, 0, diag));
  memset(values, 0, (size_t)n_values * sizeof *values);
  for (int64_t i = rank; i < n; i += size) KVA_TRY(evaluate_batch(t, i, diag));
  if (t->stages) KVA_TRY(kva_train_stages_share_evaluated(t, diag));
  KVA_TRY(kva_train_sum(t, n_values, values, diag));
  for (int32_t i = 0; i < n_values; i++) values[i] /= (double)n;
  make_event(t, n_values, names, values, true, out_event);
  return KVA_OK;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

static kva_checkpoint describe(const kva_trainer *t) {
  const kva_train_options *o = &t->options;
  const float *weight_decay = setting(t, "train.weight_decay"), *clip = setting(t, "train.clip");
  return (kva_checkpoint){.weight_decay = weight_decay ? *weight_decay : 0,
                          .clip = clip && *clip < FLT_MAX ? *clip : 0, /* as --clip says none */
                          .step = t->done,
                          .steps = o->steps,
                          .batch = o->batch,
                          .micro_batch = o->micro_batch,
                          .seed = o->seed,
                          .schedule = o->schedule,
                          .data_id = t->data ? t->data->id : 0};
}

kva_status kva_trainer_save(kva_trainer *t, const char *path, kva_diag *diag) {
  kva_checkpoint c = describe(t);
  return kva_checkpoint_write(path, t->s, &c, diag);
}

kva_status kva_trainer_load(kva_trainer *t, const char *path, kva_diag *diag) {
  kva_checkpoint found, own = describe(t);
  KVA_TRY(kva_checkpoint_read(path, t->s, diag, &found));
  kva_checkpoint_compare(path, &found, &own, diag);
  t->done = found.step;
  t->options.seed = found.seed;
  set_seed(t);
  return KVA_OK;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

static bool report(const kva_train_options *o, const kva_train_event *e) {
  return !o->progress || o->progress(o->user, e);
}

static bool has_evaluations(const kva_train_options *o) {
  return o->eval_every > 0 && o->eval_batches > 0;
}

bool kva_trainer_is_due(const kva_trainer *t) {
  const kva_train_options *o = &t->options;
  if (!has_evaluations(o) || t->done < 1 || t->done > o->steps) return false;
  return t->done % o->eval_every == 0 || t->done == o->steps;
}

/* What an evaluation needs is there, rows too, before anything is learned that a failure would lose. */
static kva_status prepare_evaluations(kva_trainer *t, kva_diag *diag) {
  KVA_TRY(need_evaluation(t, diag));
  return fill(t, &t->eval, 0, true, diag);
}

static kva_status evaluate_now(kva_trainer *t, kva_diag *diag, bool *go_on) {
  kva_train_event event;
  kva_status status = kva_trainer_evaluate(t, diag, &event);
  *go_on &= status == KVA_OK && report(&t->options, &event);
  return status == KVA_INTERRUPTED ? KVA_OK : status;
}

kva_status kva_trainer_run(kva_trainer *t, kva_diag *diag) {
  const kva_train_options *o = &t->options;
  bool go_on = true;
  if (has_evaluations(o)) KVA_TRY(prepare_evaluations(t, diag));
  while (go_on && t->done < o->steps) {
    kva_train_event event;
    KVA_TRY(kva_trainer_step(t, diag, &event));
    go_on = report(o, &event);
    if (kva_trainer_is_due(t)) KVA_TRY(evaluate_now(t, diag, &go_on));
    if (o->after_step) KVA_TRY(o->after_step(o->user, t, !go_on || t->done == o->steps, diag));
  }
  return KVA_OK;
}

kva_status kva_train(kva_session *s, kva_data_source *data, const kva_train_options *options, kva_diag *diag) {
  kva_trainer *t;
  KVA_TRY(kva_trainer_create(s, options, diag, &t));
  kva_trainer_bind(t, data);
  kva_status status = kva_trainer_run(t, diag);
  kva_trainer_destroy(t);
  return status;
}
