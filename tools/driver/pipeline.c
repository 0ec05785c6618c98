/* A training step in stages (passes/stages.c) on paper: what each has, keeps and sends. */
#include "tools/driver/summary.h"

/* Bytes of a stage. `up` and `down` are sent in each micro-batch to the stage behind and before, `moved` in each step:
 * parameters that other stages read, too. */
typedef struct stage_bytes {
  int64_t parameters; /* elements */
  int64_t states, up, down, moved;
  int64_t kept; /* of a micro-batch between its passes */
} stage_bytes;

static const kva_function *stage_of(const kva_module *m, const char *name, int64_t stage) {
  char text[32];
  snprintf(text, sizeof text, "%s.%lld", name, (long long)stage);
  return kva_module_find_function(m, text);
}

static kva_status add(kva_module *m, const kva_type *t, int64_t *bytes) {
  int64_t n, own;
  if (kva_expr_eval(kva_type_elements(m, t), kva_assumed_extent, m, &n) && kva_dtype_bytes(t->dtype, n, &own) &&
      kva_add_size(*bytes, own, bytes))
    return KVA_OK;
  return kva_error(m->diag, NULL, "a tensor between stages has a size that does not fit 64 bits");
}

static bool has(const kva_function *f, uint32_t own, const char *name) {
  for (uint32_t i = 0; i < kva_graph_output_count(f->graph); i++)
    if (!strcmp(f->output_names[i], name)) return true;
  for (uint32_t i = own; i < f->graph->inputs.len; i++)
    if (!strcmp(f->graph->inputs.data[i]->name, name)) return true;
  return false;
}

/* Inputs from `own` on, but for those that `keeps` (NULL: nothing) has. */
static kva_status add_inputs(kva_module *m, const kva_function *f, uint32_t own, const kva_function *keeps,
                             int64_t *bytes) {
  for (uint32_t i = own; f && i < f->graph->inputs.len; i++) {
    const kva_value *v = f->graph->inputs.data[i];
    if (!keeps || !has(keeps, own, v->name)) KVA_TRY(add(m, v->type, bytes));
  }
  return KVA_OK;
}

static bool uses(const kva_function *f, const kva_state *s) {
  for (uint32_t i = 0; i < f->plan->buffers.len; i++) {
    const kva_plan_buffer *b = &f->plan->buffers.data[i];
    if (b->place == KVA_PLACE_STATE && b->state == s) return true;
  }
  return false;
}

/* The first stage whose update has the state; -1: none. */
static int64_t updater_of(const kva_module *m, const kva_state *s) {
  for (int64_t p = 0; p < m->mesh.pipeline; p++)
    if (uses(stage_of(m, "apply", p), s)) return p;
  return -1;
}

static kva_status add_states(kva_module *m, int64_t stage, stage_bytes *out) {
  for (uint32_t i = 0; i < m->states.len; i++) {
    const kva_state *s = m->states.data[i];
    int64_t n;
    if (s->stages && !(s->stages >> stage & 1)) continue;
    KVA_TRY(add(m, s->type, &out->states));
    if (s->kind == KVA_STATE_PARAM && kva_expr_is_const(kva_type_elements(m, s->type), &n)) out->parameters += n;
    bool moves = s->kind == KVA_STATE_PARAM && s->stages && updater_of(m, s) == stage;
    for (uint32_t others = s->stages & ~(1u << stage); moves && others; others &= others - 1)
      KVA_TRY(add(m, s->type, &out->moved));
  }
  return KVA_OK;
}

static kva_status measure(kva_module *m, int64_t stage, stage_bytes *out) {
  uint32_t own = stage_of(m, "eval", 0)->graph->inputs.len + 1; /* data, and whether it is the first micro-batch */
  const kva_function *forward = stage_of(m, "forward", stage);
  *out = (stage_bytes){0};
  KVA_TRY(add_inputs(m, stage_of(m, "forward", stage + 1), own, NULL, &out->up));
  KVA_TRY(add_inputs(m, stage_of(m, "backward", stage - 1), own, stage_of(m, "forward", stage - 1), &out->down));
  KVA_TRY(add_inputs(m, forward, own, NULL, &out->kept));
  for (uint32_t i = 0; i < kva_graph_output_count(forward->graph); i++)
    KVA_TRY(add(m, kva_graph_output(forward->graph, i)->type, &out->kept));
  return add_states(m, stage, out);
}

static void print_bubble(int64_t stages, FILE *out) {
  static const int64_t examples[] = {1, 4, 16, 64};
  fprintf(out, "  idle: (P - 1) / (m + P - 1) of a step of m micro-batches:");
  for (size_t i = 0; i < sizeof examples / sizeof *examples; i++)
    fprintf(out, "%s %.1f %% with m = %lld", i ? "," : "",
            100.0 * (double)(stages - 1) / (double)(examples[i] + stages - 1), (long long)examples[i]);
  fprintf(out, "\n");
}

kva_status kva_print_stages(kva_module *m, FILE *out) {
  int64_t n = m->mesh.pipeline;
  if (n <= 1) return KVA_OK;
  fprintf(out, "pipeline of %lld stages, bytes in each process\n", (long long)n);
  for (int64_t p = 0; p < n; p++) {
    stage_bytes b;
    KVA_TRY(measure(m, p, &b));
    fprintf(
        out,
        "  stage %lld: %lld parameters, states %lld; of a micro-batch sends %lld forward, %lld back, keeps %lld for "
        "each of %lld at most",
        (long long)p, (long long)b.parameters, (long long)b.states, (long long)b.up, (long long)b.down,
        (long long)b.kept, (long long)(n - p));
    if (b.moved) fprintf(out, "; of a step sends %lld of parameters that others read", (long long)b.moved);
    fprintf(out, "\n");
  }
  print_bubble(n, out);
  return KVA_OK;
}

kva_status kva_print_stages_json(kva_module *m, FILE *out) {
  int64_t n = m->mesh.pipeline;
  for (int64_t p = 0; n > 1 && p < n; p++) {
    stage_bytes b;
    KVA_TRY(measure(m, p, &b));
    fprintf(out,
            "%s{\"parameters\": %lld, \"states\": %lld, \"forward\": %lld, \"backward\": %lld, \"step\": %lld, "
            "\"kept\": %lld, \"most_kept\": %lld}",
            p ? ", " : ",\n \"pipeline\": [", (long long)b.parameters, (long long)b.states, (long long)b.up,
            (long long)b.down, (long long)b.moved, (long long)b.kept, (long long)(n - p));
  }
  if (n > 1) fprintf(out, "]");
  return KVA_OK;
}
