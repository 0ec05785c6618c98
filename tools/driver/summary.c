/* Statistics of a plan: parameters, memory by category, floating-point operations, distinct kernels. */
#include "tools/driver/summary.h"
#include "runtime/memory_plan.h"

#include <stdlib.h>

static kva_status elements(kva_module *m, const kva_type *t, int64_t *out_n) {
  if (kva_expr_eval(kva_type_elements(m, t), kva_assumed_extent, m, out_n)) return KVA_OK;
  return kva_error(m->diag, NULL, "a tensor's size does not fit 64 bits");
}

static kva_status bytes_of(kva_module *m, const kva_type *t, int64_t *out_bytes) {
  int64_t n;
  KVA_TRY(elements(m, t, &n));
  if (kva_dtype_bytes(t->dtype, n, out_bytes)) return KVA_OK;
  return kva_error(m->diag, NULL, "a tensor's size does not fit 64 bits");
}

/* ---- floating-point operations ----------------------------------------------------------------------------------- */

static double node_flops(kva_module *m, const kva_node *n) {
  kva_sizes sizes = {m, kva_assumed_extent, m};
  return n->op->flops ? n->op->flops(n, &sizes) : 0;
}

static double graph_flops(kva_module *m, const kva_graph *g) {
  double total = 0;
  for (const kva_node *n = g->first; n; n = n->next) {
    total += node_flops(m, n);
    for (uint32_t i = 0; i < n->n_graphs; i++) total += graph_flops(m, n->graphs[i]);
  }
  return total;
}

double kva_plan_step_flops(kva_module *m, const kva_memory_plan *plan, uint32_t step) {
  const kva_node *n = plan->steps.data[step].node;
  if (!n) return 0;
  double total = node_flops(m, n);
  for (uint32_t i = 0; i < n->n_graphs; i++) total += graph_flops(m, n->graphs[i]);
  return total;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static kva_status count_states(kva_module *m, kva_summary *s) {
  for (uint32_t i = 0; i < m->states.len; i++) {
    const kva_state *state = m->states.data[i];
    int64_t n, bytes;
    KVA_TRY(elements(m, state->type, &n));
    KVA_TRY(bytes_of(m, state->type, &bytes));
    if (state->kind == KVA_STATE_PARAM)
      s->parameters += n, s->param_bytes += bytes;
    else if (state->kind == KVA_STATE_MOMENT)
      s->moment_bytes += bytes;
    else
      s->other_state_bytes += bytes;
  }
  return KVA_OK;
}

static kva_status count_buffers(kva_module *m, const kva_memory_plan *plan, kva_lifetime *temps, int32_t *n_temps,
                                kva_summary *s) {
  for (uint32_t i = 0; i < plan->buffers.len; i++) {
    const kva_plan_buffer *buffer = &plan->buffers.data[i];
    int64_t bytes;
    KVA_TRY(bytes_of(m, buffer->type, &bytes));
    switch (buffer->place) {
    case KVA_PLACE_INPUT: s->input_bytes += bytes; break;
    case KVA_PLACE_OUTPUT: s->output_bytes += bytes; break;
    case KVA_PLACE_CONST: s->constant_bytes += bytes; break;
    case KVA_PLACE_STATE: break;
    case KVA_PLACE_TEMP:
      s->temp_total_bytes += bytes;
      temps[(*n_temps)++] = (kva_lifetime){.bytes = bytes, .first = buffer->first_step, .last = buffer->last_step};
      break;
    }
  }
  return KVA_OK;
}

static int compare_hashes(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* Counts kernels that differ in structure or shapes; equal layers share theirs. */
static int64_t count_distinct(const kva_memory_plan *plan, uint64_t *hashes) {
  uint32_t n = 0;
  int64_t distinct = 0;
  for (uint32_t i = 0; i < plan->steps.len; i++)
    if (plan->steps.data[i].kind == KVA_PLAN_KERNEL) hashes[n++] = kva_node_hash(plan->steps.data[i].node);
  qsort(hashes, n, sizeof *hashes, compare_hashes);
  for (uint32_t i = 0; i < n; i++) distinct += i == 0 || hashes[i] != hashes[i - 1];
  return distinct;
}

kva_status kva_summarize(kva_module *m, const kva_memory_plan *plan, kva_summary *out_summary) {
  kva_summary *s = out_summary;
  *s = (kva_summary){.steps = plan->steps.len};
  kva_arena *scratch = kva_arena_create();
  kva_lifetime *temps = KVA_NEW_ARRAY(scratch, kva_lifetime, plan->buffers.len + 1);
  int32_t n_temps = 0;
  kva_status status = count_states(m, s);
  if (status == KVA_OK) status = count_buffers(m, plan, temps, &n_temps, s);
  kva_lifetime **order = KVA_NEW_ARRAY(scratch, kva_lifetime *, 2 * plan->buffers.len + 1);
  if (status == KVA_OK) status = kva_plan_memory(n_temps, temps, order, &s->temp_peak_bytes);
  s->distinct_kernels = count_distinct(plan, KVA_NEW_ARRAY(scratch, uint64_t, plan->steps.len + 1));
  s->contraction_flops = graph_flops(m, plan->graph);
  const kva_graph *g = plan->graph;
  if (status == KVA_OK && g->inputs.len && kva_dtype_is_int(g->inputs.data[0]->type->dtype))
    status = elements(m, g->inputs.data[0]->type, &s->tokens);
  kva_arena_destroy(scratch);
  return status;
}

static void print_bytes(FILE *out, const char *label, int64_t bytes) {
  fprintf(out, "  %-22s %14lld bytes  %10.3f GiB\n", label, (long long)bytes, (double)bytes / (1 << 30));
}

static bool is_dim_of(const kva_expr *symbol, const kva_type *t, uint32_t rank) {
  for (uint32_t d = 0; d < rank; d++)
    if (t->dims[d] == symbol) return true;
  return false;
}

/* Whether an input before dimension d of input i has it. */
static bool is_known(const kva_graph *g, uint32_t i, uint32_t d) {
  const kva_type *own = g->inputs.data[i]->type;
  for (uint32_t k = 0; k < i; k++)
    if (is_dim_of(own->dims[d], g->inputs.data[k]->type, g->inputs.data[k]->type->rank)) return true;
  return is_dim_of(own->dims[d], own, d);
}

/* The values that the symbols of the inputs have. */
static void print_extents(const kva_graph *g, FILE *out) {
  int n = 0;
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    const kva_type *t = g->inputs.data[i]->type;
    for (uint32_t d = 0; d < t->rank; d++) {
      int64_t value;
      if (t->dims[d]->kind != KVA_EXPR_SYMBOL || is_known(g, i, d)) continue;
      kva_assumed_extent(g->module, t->dims[d], &value);
      fprintf(out, "%s%s=%lld", n++ ? " " : "sizes for ", t->dims[d]->name ? t->dims[d]->name : "?", (long long)value);
    }
  }
  fprintf(out, "%s\n", n ? "" : "all sizes fixed");
}

void kva_summary_print(const kva_memory_plan *plan, const kva_summary *s, FILE *out) {
  fprintf(out, "program %s, ", plan->name);
  print_extents(plan->graph, out);
  fprintf(out, "  %-22s %14lld\n", "parameters", (long long)s->parameters);
  fprintf(out, "  %-22s %14.4g per call", "contraction FLOPs", s->contraction_flops);
  if (s->tokens)
    fprintf(out, ", %.4g per token (%lld tokens)", s->contraction_flops / (double)s->tokens, (long long)s->tokens);
  fprintf(out, "\n  %-22s %14lld, of which %lld distinct\n", "kernel steps", (long long)s->steps,
          (long long)s->distinct_kernels);
  print_bytes(out, "parameters", s->param_bytes);
  print_bytes(out, "optimiser moments", s->moment_bytes);
  print_bytes(out, "other state", s->other_state_bytes);
  print_bytes(out, "constants", s->constant_bytes);
  print_bytes(out, "inputs and outputs", s->input_bytes + s->output_bytes);
  print_bytes(out, "temporaries, peak", s->temp_peak_bytes);
  print_bytes(out, "temporaries, unshared", s->temp_total_bytes);
  const kva_recomputed *again = &plan->function->recomputed;
  if (again->steps && !plan->is_internal) {
    print_bytes(out, "kept for gradients", again->kept_bytes);
    print_bytes(out, "computed again", again->again_bytes);
    fprintf(out, "  %-22s %14u\n", "steps run again", again->steps);
  }
  print_bytes(out, "total",
              s->param_bytes + s->moment_bytes + s->other_state_bytes + s->constant_bytes + s->input_bytes +
                  s->output_bytes + s->temp_peak_bytes);
}
