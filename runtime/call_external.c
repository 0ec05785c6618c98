/* Steps that call functions of libraries by name (runtime/base/external.h). Deployed runtimes have no such libraries,
 * and `kvasir build` refuses programs with such steps. */
#include "runtime/base/external.h"
#include "runtime/calls.h"
#include "runtime/session.h"

enum { MAX_ARGS = 4 };

static bool check(const kva_program *p, const kva_step_desc *s, kva_text *why) {
  (void)p;
  bool fine = s->n_args >= 1 && s->n_args <= MAX_ARGS && s->n_results == 1;
  if (!fine) kva_text_add(why, "an external function has 1 result and at most %d arguments", MAX_ARGS);
  return fine;
}

#ifdef KVA_DEPLOYED

static kva_status run(kva_session *s, const kva_device_call *call) {
  const kva_external_desc *d = call->step->desc;
  return kva_session_fail(s, KVA_UNSUPPORTED, "%s: function '%s' is not in this runtime, only in libkvasir",
                          call->program->name, d->name);
}

#else

static kva_string_table *strings_of(kva_session *s) {
  if (s->strings) return s->strings;
  s->string_memory = kva_arena_create();
  return s->strings = kva_string_table_create(s->string_memory);
}

static kva_status run(kva_session *s, const kva_device_call *call) {
  const kva_step_desc *step = call->step;
  const kva_external_desc *d = step->desc;
  kva_external_tensor args[MAX_ARGS];
  for (int32_t i = 0; i < step->n_args; i++) {
    kva_dtype dtype = (kva_dtype)call->program->buffers[step->args[i]].dtype;
    int64_t bytes = call->bytes[step->args[i]];
    args[i] = (kva_external_tensor){.dtype = dtype, .n = bytes * 8 / kva_dtype_bits(dtype), .data = call->args[i]};
  }
  kva_external_call c = {.name = d->name,
                         .text = d->text,
                         .number = d->number,
                         .strings = strings_of(s),
                         .n_args = (uint32_t)step->n_args,
                         .args = args};
  kva_status status = kva_external_run(&c);
  if (!status) return KVA_OK;
  return kva_session_fail(s, status, "%s: %s: %s", call->program->name, d->name,
                          *c.error ? c.error : kva_status_name(status));
}

#endif

const kva_call_class kva_call_external = {.n_args = -1, .n_results = 1, .check = check, .run = run};
