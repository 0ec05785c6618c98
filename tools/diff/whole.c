/* The whole model: compiled as it is, and all values by the reference. */
#include "tools/diff/diff.h"

#include <stdlib.h>

static kva_status run_whole(kva_session *s, const kva_tensor *in, kva_arena *arena, kva_diag *diag,
                            kva_ref_tensor **outputs) {
  const kva_program *p = kva_session_program_desc(s, 0);
  kva_tensor *out = KVA_NEW_ARRAY(arena, kva_tensor, p->n_outputs + 1);
  kva_status status = kva_session_run(s, 0, in, out);
  if (status) return kva_fail(diag, status, NULL, "%s", kva_session_error(s));
  for (int32_t i = 0; i < p->n_outputs; i++)
    outputs[i] = kva_ref_tensor_from_data(out[i].dtype, (uint32_t)out[i].rank, out[i].dims, out[i].data);
  return KVA_OK;
}

static kva_status begin(kva_diff_values *v, kva_session *s, const kva_run_request *request, kva_diag *diag,
                        kva_ref_tensor **outputs) {
  const kva_program *p = kva_session_program_desc(s, 0);
  kva_tensor *in = KVA_NEW_ARRAY(v->arena, kva_tensor, p->n_inputs + 1);
  kva_status status = kva_run_inputs(p, request, diag, in);
  if (status == KVA_OK) status = kva_diff_start(v, s, in); /* before the run, which may change states */
  if (status == KVA_OK && outputs) status = run_whole(s, in, v->arena, diag, outputs);
  if (status == KVA_OK && outputs) kva_diff_learn_symbols(v, s);
  for (int32_t i = 0; i < p->n_inputs; i++) free(in[i].data);
  return status;
}

kva_status kva_diff_begin(kva_diff_values *v, kva_module *whole, const kva_diff_target *target,
                          const kva_run_request *request, kva_diag *diag, kva_ref_tensor **outputs) {
  kvasir_program *p = NULL;
  kvasir_session *s = NULL;
  const kva_session_options options = {.threads = target->threads, .seed = request->seed};
  kva_status status =
      kva_program_compile(whole, &(kva_compile_options){.target = target->options}, target->device, diag, &p);
  if (status == KVA_OK) status = kva_program_session(p, &options, diag, &s);
  if (status == KVA_OK) status = begin(v, s->s, request, diag, outputs);
  kvasir_session_destroy(s);
  kvasir_program_destroy(p);
  return status;
}

static kva_diff_part everything(const kva_diff_values *v) {
  kva_diff_part part = {.keep = KVA_NEW_ARRAY(v->arena, bool, v->m->next_node_id)};
  part.outputs = KVA_NEW_ARRAY(v->arena, const kva_value *, v->m->next_value_id);
  for (kva_node *n = v->m->functions.data[0]->graph->first; n; n = n->next) {
    part.keep[n->id] = kva_diff_is_step(n);
    for (uint32_t i = 0; part.keep[n->id] && i < n->n_results; i++) part.outputs[part.n_outputs++] = &n->results[i];
  }
  return part;
}

kva_status kva_diff_evaluate(kva_diff_values *v, kva_diag *diag) {
  kva_diff_part part = everything(v);
  kva_ref_tensor **w = KVA_NEW_ARRAY(v->arena, kva_ref_tensor *, part.n_outputs + 1);
  KVA_TRY(kva_diff_reference(v, &part, w, diag));
  for (uint32_t i = 0; i < part.n_outputs; i++) KVA_TRY(kva_diff_learn(v, part.outputs[i], w[i]));
  for (const kva_node *n = v->m->functions.data[0]->graph->first; n; n = n->next) kva_diff_learn_bind(v, n);
  return KVA_OK;
}
