/* Steps that call functions of the embedding program, which the session's options name. */
#include "runtime/calls.h"
#include "runtime/formula.h"
#include "runtime/session.h"

enum { MAX_ARGS = 16 };

static bool check(const kva_program *p, const kva_step_desc *s, kva_text *why) {
  (void)p;
  if (s->n_args > MAX_ARGS) kva_text_add(why, "a function of the host has at most %d arguments", MAX_ARGS);
  return s->n_args <= MAX_ARGS;
}

static const kva_host_function *find(const kva_session *s, const char *name) {
  for (int i = 0; i < s->options.n_functions; i++)
    if (!strcmp(s->options.functions[i].name, name)) return &s->options.functions[i];
  return NULL;
}

static kva_status run(kva_session *s, const kva_device_call *call) {
  const kva_step_desc *step = call->step;
  const char *name = ((const kva_host_desc *)step->desc)->name;
  const kva_host_function *f = find(s, name);
  if (!f)
    return kva_session_fail(s, KVA_MISSING, "%s: the program calls '%s', which the session's options do not name",
                            call->program->name, name);
  kva_tensor args[MAX_ARGS];
  for (int32_t i = 0; i < step->n_args; i++) {
    const kva_buffer_desc *b = &call->program->buffers[step->args[i]];
    args[i] = (kva_tensor){.dtype = (kva_dtype)b->dtype, .rank = b->rank, .data = call->args[i]};
    for (int32_t d = 0; d < b->rank; d++)
      if (!kva_formula_eval(&b->dims[d], call->symbols, &args[i].dims[d])) return KVA_INVALID;
  }
  kva_status status = f->run(f->user, step->n_args, args);
  return status == KVA_OK
             ? KVA_OK
             : kva_session_fail(s, status, "%s: '%s' failed: %s", call->program->name, name, kva_status_name(status));
}

const kva_call_class kva_call_host = {.n_args = -1, .n_results = -1, .check = check, .run = run};
