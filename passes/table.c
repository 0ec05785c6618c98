/* passes.def as data: rows, properties and pipelines of the graph level. */
#include "passes/passes_internal.h"

/* ---- properties -------------------------------------------------------------------------------------------------- */

static bool is_unfused(const void *ir) {
  kva_arena *scratch = kva_arena_create();
  kva_graphs graphs = kva_program_graphs(ir, scratch);
  bool unfused = true;
  for (uint32_t i = 0; i < graphs.len && unfused; i++)
    for (const kva_node *n = graphs.data[i]->first; n; n = n->next) unfused &= !kva_is(n, KVA_OP_kernel);
  kva_arena_destroy(scratch);
  return unfused;
}

typedef struct state_uses {
  bool read, written;
} state_uses;

/* seen: by state id, of the nodes before n. */
static bool keeps_single(const kva_node *n, state_uses *seen) {
  if (kva_is(n, KVA_OP_state_read)) {
    state_uses *s = &seen[((const kva_state_read_attrs *)n->attrs)->state->id];
    bool first = !s->read && !s->written;
    s->read = true;
    return first;
  }
  if (kva_is(n, KVA_OP_state_write)) {
    state_uses *s = &seen[((const kva_state_write_attrs *)n->attrs)->state->id];
    bool first = !s->written;
    s->written = true;
    return first;
  }
  return true;
}

static bool has_single_state(const void *ir) {
  const kva_module *m = ir;
  kva_arena *scratch = kva_arena_create();
  bool single = true;
  for (uint32_t f = 0; f < m->functions.len; f++) {
    state_uses *seen = KVA_NEW_ARRAY(scratch, state_uses, m->states.len + 1);
    for (const kva_node *n = m->functions.data[f]->graph->first; n && single; n = n->next)
      single = keeps_single(n, seen);
  }
  kva_arena_destroy(scratch);
  return single;
}

static const kva_pass_property properties[] = {
#define PROPERTY(name, function, help) {#name, help, function},
#include "passes/passes.def"
};

/* ---- passes ------------------------------------------------------------------------------------------------------ */

#define PASS(name, function, ...)                                              \
  static kva_status run_##name(void *ir, const void *options, bool *changed) { \
    return function(ir, options, changed);                                     \
  }
#include "passes/passes.def"

static const kva_pass passes[] = {
#define PASS(name, function, flags, needs, options, help) {#name, flags, needs, options, help, run_##name},
#include "passes/passes.def"
};

static kva_status verify(void *ir, kva_diag *diag) {
  (void)diag; /* the module has it, too */
  return kva_module_verify(ir);
}

/* What pass plan makes is no part of the module's own text. */
static void print(void *ir, const kva_pass *after, kva_text *out) {
  kva_module *m = ir;
  if (after != &passes[KVA_PASS_plan]) {
    kva_module_print(m, out);
    return;
  }
  for (uint32_t f = 0; f < m->functions.len; f++) {
    if (m->functions.len > 1) kva_text_add(out, "plan \"%s\"\n", m->functions.data[f]->name);
    kva_plan_print(m->functions.data[f]->plan, out);
  }
}

const kva_pass_level kva_graph_level = {.name = "module",
                                        .n_passes = sizeof passes / sizeof *passes,
                                        .n_properties = sizeof properties / sizeof *properties,
                                        .passes = passes,
                                        .properties = properties,
                                        .verify = verify,
                                        .print = print};

kva_status kva_run_pass(kva_module *m, kva_graph_pass pass, const kva_pass_options *options, bool *changed) {
  const kva_pass_unit unit = {&kva_graph_level, m, m->name, m->diag};
  return kva_pass_run(&passes[pass], &unit, options, options->control, changed);
}

/* ---- pipelines --------------------------------------------------------------------------------------------------- */

const kva_graph_pipeline *kva_graph_pipeline_at(uint32_t i) {
  static const kva_graph_pipeline pipelines[] = {
#define PIPELINE(name, function, help) {#name, help, function},
#include "passes/passes.def"
  };
  return i < sizeof pipelines / sizeof *pipelines ? &pipelines[i] : NULL;
}
