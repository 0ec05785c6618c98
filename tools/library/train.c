/* Training steps and evaluations on batches of the caller. */
#include "runtime/data.h"
#include "tools/library/session.h"

#include <math.h>

typedef struct step_job {
  kvasir_session *s;
  const kvasir_tensor *inputs;
  size_t n;
  double rate;
  double *values; /* NULL: not wanted */
} step_job;

/* Models without dropout have no such state. */
kva_status kva_library_seed(kvasir_session *s, kva_diag *diag) {
  kva_tensor seed;
  if (!kva_session_state(s->s, "train.seed", &seed)) return KVA_OK;
  if (kva_tensor_bytes(&seed) != sizeof s->seed)
    return kva_error(diag, NULL, "state 'train.seed' has another size than a seed");
  memcpy(seed.data, &s->seed, sizeof s->seed);
  return KVA_OK;
}

static kva_status find(const step_job *j, const char *name, kva_diag *diag, int *out_program) {
  if (!j->s) return kva_error(diag, NULL, "the session is a null pointer");
  *out_program = j->s->program->n_values ? kva_session_program(j->s->s, name) : -1;
  if (*out_program >= 0) return KVA_OK;
  return kva_error(diag, NULL, "the program was compiled for inference alone; kvasir_compile_training makes others");
}

static double value_of(const kva_tensor *t) {
  return kva_dtype_is_float(t->dtype) ? kva_load_f64(t->dtype, t->data, 0) : (double)kva_load_i64(t->dtype, t->data, 0);
}

static kva_status run(kvasir_session *s, int program, bool guarded, kva_diag *diag) {
  const kva_program *p = kva_session_program_desc(s->s, program);
  for (int32_t i = 0; i < p->n_outputs; i++) s->outputs[i] = (kva_tensor){0};
  s->s->guarded = guarded;
  kva_status status = kva_session_run(s->s, program, s->inputs, s->outputs);
  s->s->guarded = false;
  if (status == KVA_OK || status == KVA_NOT_FINITE) return status;
  return kva_fail(diag, status, NULL, "%s", kva_session_error(s->s));
}

static kva_status not_finite(kvasir_session *s, int program, double rate, kva_diag *diag) {
  kva_text why = {0};
  kva_explain_not_finite(s->s, program, false, &why);
  kva_status status = kva_fail(diag, KVA_NOT_FINITE, NULL,
                               "the loss or the norm of its gradient is not finite at step %lld (learning rate %g)%s%s",
                               (long long)s->steps + 1, rate, why.len ? ": " : "", why.len ? why.data : "");
  kva_text_free(&why);
  return status;
}

/* The rate is the last input, a scalar of a floating type. */
static void set_rate(kvasir_session *s, const kva_program *p, double rate, double *room) {
  int32_t last = p->n_inputs - 1;
  s->inputs[last] = (kva_tensor){.dtype = (kva_dtype)p->buffers[p->inputs[last]].dtype, .data = room};
  kva_store_f64(s->inputs[last].dtype, room, 0, rate);
}

/* Labels that are no class give NaN, and tokens that are not in the vocabulary another one's row. */
static kva_status check_ranges(const kvasir_session *s, const kva_program *p, kva_diag *diag) {
  for (size_t i = 0; i < s->program->n_inputs; i++) {
    const kva_buffer_desc *b = &p->buffers[p->inputs[i]];
    const kva_tensor *t = &s->inputs[i];
    int64_t rows = t->rank ? t->dims[0] : 1, bytes = kva_tensor_bytes(t);
    if (bytes == 0 || (int32_t)t->dtype != b->dtype) continue; /* the run refuses another type */
    for (int64_t r = 0; r < rows; r++)
      KVA_TRY(kva_data_check_values(&s->program->ranges[i], b->name, NULL, r, t->dtype,
                                    bytes / rows * 8 / kva_dtype_bits(t->dtype),
                                    (const char *)t->data + bytes / rows * r, diag));
  }
  return KVA_OK;
}

static kva_status train(void *job, kva_diag *diag) {
  step_job *j = job;
  int program;
  double room;
  KVA_TRY(find(j, "train_step", diag, &program));
  if (!isfinite(j->rate) || j->rate < 0)
    return kva_error(diag, NULL, "the learning rate must be finite and not negative, found %g", j->rate);
  kvasir_session *s = j->s;
  const kva_program *p = kva_session_program_desc(s->s, program);
  KVA_TRY(kva_library_inputs(s, p, s->program->n_inputs, j->inputs, j->n, true, diag));
  KVA_TRY(check_ranges(s, p, diag));
  set_rate(s, p, j->rate, &room);
  kva_status status = run(s, program, true, diag);
  if (status == KVA_NOT_FINITE) return not_finite(s, program, j->rate, diag);
  KVA_TRY(status);
  if (!isfinite(value_of(&s->outputs[0]))) return not_finite(s, program, j->rate, diag);
  s->steps++;
  for (int32_t i = 0; j->values && i < p->n_outputs; i++) j->values[i] = value_of(&s->outputs[i]);
  return KVA_OK;
}

/* The evaluation's number of that name; an evaluation has no gradients. */
static double evaluated(const kvasir_session *s, const kva_program *p, const char *name) {
  for (int32_t i = 0; i < p->n_outputs; i++) {
    const char *found = p->buffers[p->outputs[i]].name;
    if (found && !strcmp(found, name)) return value_of(&s->outputs[i]);
  }
  return NAN;
}

static kva_status evaluate(void *job, kva_diag *diag) {
  step_job *j = job;
  int program;
  KVA_TRY(find(j, "eval", diag, &program));
  kvasir_session *s = j->s;
  const kva_program *p = kva_session_program_desc(s->s, program);
  KVA_TRY(kva_library_inputs(s, p, s->program->n_inputs, j->inputs, j->n, true, diag));
  KVA_TRY(check_ranges(s, p, diag));
  KVA_TRY(run(s, program, false, diag));
  for (size_t i = 0; j->values && i < s->program->n_values; i++) j->values[i] = evaluated(s, p, s->program->values[i]);
  return KVA_OK;
}

kvasir_status kvasir_session_train(kvasir_session *s, const kvasir_tensor *inputs, size_t n_inputs, double rate,
                                   double *out_values, kvasir_messages **out_messages) {
  step_job j = {s, inputs, n_inputs, rate, out_values};
  return kva_library_call(train, &j, out_messages);
}

kvasir_status kvasir_session_evaluate(kvasir_session *s, const kvasir_tensor *inputs, size_t n_inputs,
                                      double *out_values, kvasir_messages **out_messages) {
  step_job j = {.s = s, .inputs = inputs, .n = n_inputs, .values = out_values};
  return kva_library_call(evaluate, &j, out_messages);
}
