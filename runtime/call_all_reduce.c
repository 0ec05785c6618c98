/* Sums of tensors over all processes of a run. */
#include "runtime/calls.h"
#include "runtime/comm.h"
#include "runtime/session.h"

static int32_t parts_of(const kva_step_desc *s) {
  return ((const kva_all_reduce_desc *)s->desc)->parts;
}

static kva_dtype type_of(const kva_program *p, const kva_step_desc *s, int32_t arg) {
  return (kva_dtype)p->buffers[s->args[arg]].dtype;
}

static bool check(const kva_program *p, const kva_step_desc *s, kva_text *why) {
  int32_t n = s->n_results;
  bool same = s->n_args == 2 * n && n > 0 && parts_of(s) > 0 && kva_dtype_bits(type_of(p, s, 0)) >= 8;
  for (int32_t i = 0; same && i < s->n_args; i++) same = type_of(p, s, i) == type_of(p, s, 0);
  if (!same) kva_text_add(why, "it adds up %d tensors to %d over %d parts", s->n_args - n, n, parts_of(s));
  return same;
}

static bool fits(const kva_program *p, const kva_step_desc *s, const int64_t *sizes, const int64_t *bytes) {
  (void)p, (void)sizes;
  for (int32_t i = 0; i < s->n_results; i++)
    if (bytes[s->args[i]] != bytes[s->args[s->n_results + i]]) return false;
  return true;
}

int32_t kva_artifact_processes(const kva_artifact *a) {
  int32_t most = 1;
  for (int32_t i = 0; i < a->n_programs; i++)
    for (int32_t k = 0; k < a->programs[i].n_steps; k++) {
      const kva_step_desc *s = &a->programs[i].steps[k];
      if (kva_step_is_collective(s) && parts_of(s) > most) most = parts_of(s);
    }
  return most;
}

bool kva_step_is_collective(const kva_step_desc *s) {
  return s->kind == KVA_STEP_CALL && s->call == KVA_CALL_ALL_REDUCE && parts_of(s) > 1;
}

/* kva_session_create has compared the number of processes with the mesh's. */
static kva_status run(kva_session *s, const kva_device_call *call) {
  const kva_step_desc *step = call->step;
  int32_t n = step->n_results, width = kva_dtype_bits(type_of(call->program, step, 0)) / 8;
  if (!kva_step_is_collective(step)) {
    for (int32_t i = 0; i < n; i++)
      if (call->bytes[step->args[i]]) memmove(call->args[n + i], call->args[i], (size_t)call->bytes[step->args[i]]);
    return KVA_OK;
  }
  kva_comm *c = s->options.comm;
  kva_comm_pack pack = {.dtype = type_of(call->program, step, 0)};
  kva_status status = KVA_OK;
  for (int32_t i = 0; status == KVA_OK && i < n; i++)
    status = kva_comm_pack_add(c, &pack, call->bytes[step->args[i]] / width, call->args[i], call->args[n + i]);
  if (status == KVA_OK) status = kva_comm_pack_flush(c, &pack);
  if (status == KVA_OK) return KVA_OK;
  return kva_session_fail(s, status, "%s: %s", call->program->name, kva_comm_error(c));
}

const kva_call_class kva_call_all_reduce = {.n_args = -1, .n_results = -1, .check = check, .fits = fits, .run = run};
