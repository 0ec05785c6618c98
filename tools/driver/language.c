/* See language.h. */
#include "tools/driver/language.h"

static kva_status refuse(const char *who, const char *why, kva_diag *diag) {
  return kva_fail(diag, KVA_UNSUPPORTED, NULL,
                  "%s: expected a model of tokens, int32 or int64 [B, T], that gives logits, float [B, T, "
                  "vocabulary]: %s",
                  who, why);
}

kva_status kva_language_of(const kva_module *m, const char *who, kva_diag *diag, kva_language *out) {
  const kva_graph *main = m->functions.data[0]->graph;
  if (main->inputs.len != 1) return refuse(who, "it has not one input", diag);
  const kva_type *in = main->inputs.data[0]->type, *logits = kva_graph_output(main, 0)->type;
  out->token_type = in->dtype;
  if (in->rank != 2 || (in->dtype != KVA_I32 && in->dtype != KVA_I64)) return refuse(who, "its input is another", diag);
  if (logits->rank != 3 || logits->dtype != KVA_F32 || !kva_expr_is_const(logits->dims[2], &out->vocabulary))
    return refuse(who, "its first output is another", diag);
  return KVA_OK;
}
