/* Time per step. Collected by execute.c; here it is only handed out. */
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
