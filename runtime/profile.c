/* Accessors for time and memory per step, which execute.c collects, and for kernels. */
#include "runtime/session.h"

int kva_session_profile(const kva_session *s, int program, const double **out_seconds, const int64_t **out_calls) {
  *out_seconds = NULL;
  *out_calls = NULL;
  if (!s->options.profile || program < 0 || program >= s->artifact->n_programs) return 0;
  const kva_program_state *sp = &s->programs[program];
  *out_seconds = sp->seconds;
  *out_calls = sp->calls;
  return sp->desc->n_steps;
}

static const kva_program_state *bound_program(const kva_session *s, int program) {
  if (program < 0 || program >= s->artifact->n_programs || !s->programs[program].segments[0].planned) return NULL;
  return &s->programs[program];
}

int kva_session_timeline(const kva_session *s, int program, int n, int64_t *out_bytes) {
  const kva_program_state *sp = bound_program(s, program);
  if (!sp) return 0;
  for (int i = 0; i < n; i++) out_bytes[i] = 0;
  for (int32_t b = 0; b < sp->desc->n_buffers; b++) {
    const kva_buffer_desc *buffer = &sp->desc->buffers[b];
    if (buffer->kind != KVA_BUFFER_TEMP) continue;
    for (int32_t i = buffer->first_step; i <= buffer->last_step && i < n; i++) out_bytes[i] += sp->bytes[b];
  }
  return sp->desc->n_steps;
}

int64_t kva_session_step_bytes(const kva_session *s, int program, int step) {
  const kva_program_state *sp = bound_program(s, program);
  int64_t bytes = 0;
  if (!sp || step < 0 || step >= sp->desc->n_steps) return 0;
  for (int32_t i = 0; i < sp->desc->steps[step].n_args; i++) bytes += sp->bytes[sp->desc->steps[step].args[i]];
  return bytes;
}

int kva_session_kernels(const kva_session *s) {
  return s->artifact->n_kernels;
}

bool kva_session_kernel(const kva_session *s, int index, kva_kernel_facts *out) {
  const kva_device_class *class = s->device->class;
  if (!class->facts || index < 0 || index >= s->artifact->n_kernels) return false;
  class->facts(s->device, index, out);
  return true;
}
