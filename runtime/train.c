/* The training loop: batch, step, schedule, evaluation. All that is learned lives in the session's states; the loop
 * adds only the number of the step, so a run that is stopped and resumed with options.done gives the same bits. */
#include "runtime/base/platform.h"
#include "runtime/formula.h"
#include "runtime/runtime.h"

#include <math.h>
#include <stdlib.h>

/* A program with the tensors that it is called with. */
typedef struct call {
  int program;
  const kva_program *p;
  int n_data; /* inputs from the data source */
  void *lr;   /* where the learning rate input lies, or NULL */
  kva_tensor *inputs, *outputs;
  const char **names; /* of outputs */
  double *values;
} call;

typedef struct trainer {
  kva_session *s;
  kva_data_source *data;
  const kva_train_options *options;
  kva_diag *diag;
  call train, eval;
  double seconds;
} trainer;

/* ---- tensors -------------------------------------------------------------------------------------------------------
 */

static bool symbol_value(const kva_train_options *o, const char *name, int64_t *out) {
  for (int i = 0; i < o->n_symbols; i++) {
    if (strcmp(o->symbols[i].name, name)) continue;
    *out = o->symbols[i].value;
    return true;
  }
  if (strcmp(name, "B")) return false;
  *out = o->batch;
  return true;
}

static kva_status eval_dim(const trainer *t, const kva_program *p, const kva_formula *f, const char *input,
                           int64_t *out) {
  int64_t *symbols = calloc((size_t)p->n_symbols + 1, sizeof *symbols);
  if (!symbols) return KVA_NO_MEMORY;
  kva_status status = KVA_OK;
  for (int64_t i = 0; !status && i < f->n; i++) {
    const kva_formula_word *w = &f->words[i];
    if (w->op == KVA_FORMULA_SYMBOL && !symbol_value(t->options, p->symbols[w->arg], &symbols[w->arg]))
      status =
          kva_error(t->diag, NULL,
                    "%s: the shape of data input '%s' depends on symbol '%s', which has no value; give one (%s=64)",
                    p->name, input, p->symbols[w->arg], p->symbols[w->arg]);
  }
  if (!status && (!kva_formula_eval(f, symbols, out) || *out < 0))
    status = kva_error(t->diag, NULL, "%s: a dimension of data input '%s' is negative or overflows", p->name, input);
  free(symbols);
  return status;
}

static kva_status create_input(const trainer *t, const kva_program *p, int i, kva_tensor *out) {
  const kva_buffer_desc *b = &p->buffers[p->inputs[i]];
  *out = (kva_tensor){.dtype = (kva_dtype)b->dtype, .rank = b->rank};
  for (int32_t d = 0; d < b->rank; d++) KVA_TRY(eval_dim(t, p, &b->dims[d], b->name, &out->dims[d]));
  int64_t bytes = kva_tensor_bytes(out);
  out->data = bytes < 0 ? NULL : calloc((size_t)bytes + 1, 1);
  if (out->data) return KVA_OK;
  return kva_fail(t->diag, KVA_NO_MEMORY, NULL, "%s: no memory for input '%s'", p->name, b->name);
}

static kva_status check_lr_input(const trainer *t, const kva_program *p) {
  const kva_buffer_desc *b = p->n_inputs ? &p->buffers[p->inputs[p->n_inputs - 1]] : NULL;
  if (b && b->rank == 0 && kva_dtype_is_float((kva_dtype)b->dtype)) return KVA_OK;
  return kva_error(
      t->diag, NULL,
      "%s: the last input must be the learning rate, a floating-point scalar; found '%s' with %d dimensions", p->name,
      b ? b->name : "no input", b ? b->rank : 0);
}

static kva_status check_outputs(const trainer *t, const kva_program *p) {
  if (!p->n_outputs) return kva_error(t->diag, NULL, "%s: there is no output to take the loss from", p->name);
  for (int32_t i = 0; i < p->n_outputs; i++) {
    const kva_buffer_desc *b = &p->buffers[p->outputs[i]];
    if (b->rank)
      return kva_error(t->diag, NULL, "%s: outputs must be scalars; output %d ('%s') has %d dimensions", p->name, i,
                       b->name ? b->name : "unnamed", b->rank);
  }
  return KVA_OK;
}

static kva_status create_call(trainer *t, const char *name, bool has_lr, call *c) {
  c->program = kva_session_program(t->s, name);
  if (c->program < 0)
    return kva_error(t->diag, NULL, "the artefact has no program '%s'; compile the model for training", name);
  const kva_program *p = c->p = kva_session_program_desc(t->s, c->program);
  if (has_lr) KVA_TRY(check_lr_input(t, p));
  KVA_TRY(check_outputs(t, p));
  c->n_data = p->n_inputs - has_lr;
  c->inputs = calloc((size_t)p->n_inputs + 1, sizeof *c->inputs);
  c->outputs = calloc((size_t)p->n_outputs, sizeof *c->outputs);
  c->names = calloc((size_t)p->n_outputs, sizeof *c->names);
  c->values = calloc((size_t)p->n_outputs, sizeof *c->values);
  if (!c->inputs || !c->outputs || !c->names || !c->values) return KVA_NO_MEMORY;
  for (int32_t i = 0; i < p->n_inputs; i++) KVA_TRY(create_input(t, p, i, &c->inputs[i]));
  c->lr = has_lr ? c->inputs[c->n_data].data : NULL;
  for (int32_t i = 0; i < p->n_outputs; i++) {
    const char *output = p->buffers[p->outputs[i]].name;
    c->names[i] = output ? output : "";
  }
  return KVA_OK;
}

static void destroy_call(call *c) {
  for (int32_t i = 0; c->inputs && i < c->p->n_inputs; i++) free(c->inputs[i].data);
  free(c->inputs);
  free(c->outputs);
  free(c->names);
  free(c->values);
}

/* ---- the loop ------------------------------------------------------------------------------------------------------
 */

static double scalar(const kva_tensor *t) {
  return kva_dtype_is_float(t->dtype) ? kva_load_f64(t->dtype, t->data, 0) : (double)kva_load_i64(t->dtype, t->data, 0);
}

/* Runs c on batch `index` of the source; adds the outputs to its values. */
static kva_status run_call(trainer *t, call *c, int64_t index, bool evaluation) {
  KVA_TRY(t->data->fill(t->data->self, t->options->seed, index, evaluation, c->n_data, c->inputs, t->diag));
  for (int32_t i = 0; i < c->p->n_outputs; i++) c->outputs[i].data = NULL;
  kva_status status = kva_session_run(t->s, c->program, c->inputs, c->outputs);
  if (status) return kva_fail(t->diag, status, NULL, "%s", kva_session_error(t->s));
  for (int32_t i = 0; i < c->p->n_outputs; i++) c->values[i] += scalar(&c->outputs[i]);
  return KVA_OK;
}

static bool report(const trainer *t, const call *c, int64_t step, bool evaluation, double lr) {
  if (!t->options->progress) return true;
  kva_train_event event = {.step = step,
                           .steps = t->options->steps,
                           .evaluation = evaluation,
                           .seconds = t->seconds,
                           .lr = lr,
                           .n = c->p->n_outputs,
                           .names = c->names,
                           .values = c->values};
  return t->options->progress(t->options->user, &event);
}

static void clear_values(call *c) {
  memset(c->values, 0, (size_t)c->p->n_outputs * sizeof *c->values);
}

static kva_status train_step(trainer *t, int64_t step, bool *go_on) {
  double begin = kva_now(), lr = kva_schedule_at(&t->options->schedule, step);
  kva_store_f64(t->train.inputs[t->train.n_data].dtype, t->train.lr, 0, lr);
  clear_values(&t->train);
  KVA_TRY(run_call(t, &t->train, step, false));
  t->seconds += kva_now() - begin;
  double loss = t->train.values[0];
  if (!isfinite(loss))
    return kva_fail(t->diag, KVA_NOT_FINITE, NULL,
                    "the loss is %s at step %lld (learning rate %g); lower the learning rate, warm up longer or clip "
                    "gradients",
                    isnan(loss) ? "not a number" : "infinite", (long long)step, lr);
  *go_on = report(t, &t->train, step, false, lr);
  return KVA_OK;
}

/* Always the same batches, so that evaluations compare. */
static kva_status evaluate(trainer *t, int64_t step, bool *go_on) {
  clear_values(&t->eval);
  for (int64_t i = 0; i < t->options->eval_batches; i++) KVA_TRY(run_call(t, &t->eval, i, true));
  for (int32_t i = 0; i < t->eval.p->n_outputs; i++) t->eval.values[i] /= (double)t->options->eval_batches;
  *go_on = report(t, &t->eval, step, true, kva_schedule_at(&t->options->schedule, step)) && *go_on;
  return KVA_OK;
}

static kva_status train(trainer *t) {
  const kva_train_options *o = t->options;
  bool evaluates = o->eval_every > 0 && o->eval_batches > 0;
  KVA_TRY(create_call(t, "train_step", true, &t->train));
  if (evaluates) KVA_TRY(create_call(t, "eval", false, &t->eval));
  bool go_on = true;
  for (int64_t step = o->done + 1; go_on && step <= o->steps; step++) {
    KVA_TRY(train_step(t, step, &go_on));
    if (evaluates && (step % o->eval_every == 0 || step == o->steps)) KVA_TRY(evaluate(t, step, &go_on));
  }
  return KVA_OK;
}

kva_status kva_train(kva_session *s, kva_data_source *data, const kva_train_options *options, kva_diag *diag) {
  if (options->batch < 1)
    return kva_error(diag, NULL, "the batch must have at least one row, found %lld", (long long)options->batch);
  trainer t = {.s = s, .data = data, .options = options, .diag = diag};
  kva_status status = train(&t);
  destroy_call(&t.train);
  destroy_call(&t.eval);
  return status;
}
