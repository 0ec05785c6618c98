/* Statistics of a plan: parameters, memory by category, floating-point operations, distinct kernels. */
#include "tools/driver/summary.h"
#include "ops/exchange.h"
#include "ops/ids.h"
#include "runtime/memory_plan.h"

#include <stdlib.h>

/* ---- floating-point operations ----------------------------------------------------------------------------------- */

static double graph_flops(kva_module *m, const kva_graph *g) {
  const kva_sizes sizes = {m, kva_assumed_extent, m};
  double total = 0;
  for (const kva_node *n = g->first; n; n = n->next) total += kva_node_flops(n, &sizes);
  return total;
}

const kva_memory_plan *kva_plan_of_program(const kva_compiled *c, const kva_program *p) {
  for (uint32_t i = 0; i < c->n_plans; i++)
    if (!strcmp(c->plans[i]->function->name, p->name) && (int32_t)c->plans[i]->steps.len == p->n_steps)
      return c->plans[i];
  return NULL;
}

double kva_plan_step_flops(kva_module *m, const kva_memory_plan *plan, uint32_t step) {
  const kva_sizes sizes = {m, kva_assumed_extent, m};
  const kva_node *n = plan->steps.data[step].node;
  return n ? kva_node_flops(n, &sizes) : 0;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

kva_status kva_plan_peak(const kva_memory_plan *plan, const kva_plan_bytes *bytes, kva_arena *scratch,
                         int64_t *out_bytes) {
  kva_lifetime *temps = KVA_NEW_ARRAY(scratch, kva_lifetime, plan->buffers.len + 1);
  kva_lifetime **order = KVA_NEW_ARRAY(scratch, kva_lifetime *, 2 * plan->buffers.len + 1);
  int32_t n = 0;
  for (uint32_t i = 0; i < plan->buffers.len; i++) {
    const kva_plan_buffer *b = &plan->buffers.data[i];
    if (b->place == KVA_PLACE_TEMP)
      temps[n++] = (kva_lifetime){.bytes = bytes->of[i], .first = b->first_step, .last = b->last_step};
  }
  return kva_plan_memory(n, temps, order, out_bytes);
}

/* ---- exchange ---------------------------------------------------------------------------------------------------- */

static kva_status bytes_of(kva_module *m, const kva_node *n, const kva_type *t, int64_t *out) {
  int64_t elements;
  if (kva_expr_eval(kva_type_elements(m, t), kva_assumed_extent, m, &elements) &&
      kva_dtype_bytes(t->dtype, elements, out))
    return KVA_OK;
  return kva_error(m->diag, &n->loc, "kv.%s: a tensor has a size that does not fit 64 bits", n->op->name);
}

kva_status kva_exchanged_bytes(kva_module *m, const kva_node *n, kva_exchanged *out) {
  *out = (kva_exchanged){0};
  if (!n || !(n->op->traits & KVA_EXCHANGES)) return KVA_OK;
  int64_t own, made, taken = 0, parts = kva_exchange_parts(n);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    KVA_TRY(bytes_of(m, n, kva_operand_type(n, i), &own));
    taken += own;
  }
  KVA_TRY(bytes_of(m, n, n->results[0].type, &made));
  if (kva_is(n, KVA_OP_own_part) || kva_is(n, KVA_OP_process_index)) return KVA_OK;
  if (kva_is(n, KVA_OP_all_gather)) {
    *out = (kva_exchanged){.gathered = made, .each = (parts - 1) * taken, .sent = (parts - 1) * taken, .rounds = 1};
    return KVA_OK;
  }
  if (kva_is(n, KVA_OP_neighbour)) { /* process 0 has no process before it */
    bool next = ((const kva_neighbour_attrs *)n->attrs)->next;
    if (parts > 1) *out = (kva_exchanged){.gathered = made, .each = taken, .sent = next ? 0 : taken};
    return KVA_OK;
  }
  bool scatters = kva_is(n, KVA_OP_reduce_scatter);
  int64_t width = kva_dtype_bits(kva_operand_type(n, 0)->dtype) / 8, segment = taken / width / parts * width;
  out->summed = taken;
  out->rounds = scatters ? 1 : 2;
  out->sent = scatters ? taken - (made < taken ? made : taken) : taken - segment + (parts - 1) * segment;
  out->each = out->sent;
  return KVA_OK;
}

static kva_status count_exchanged(kva_module *m, const kva_memory_plan *plan, kva_summary *s) {
  for (uint32_t i = 0; i < plan->steps.len; i++) {
    kva_exchanged e;
    KVA_TRY(kva_exchanged_bytes(m, plan->steps.data[i].node, &e));
    s->exchanged.summed += e.summed;
    s->exchanged.gathered += e.gathered;
    s->exchanged.sent += e.sent;
  }
  return KVA_OK;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

static bool updates(const kva_graph *g);

static bool is_update(const kva_node *n) {
  if (n->op->traits & KVA_UPDATES) return true;
  for (uint32_t i = 0; i < n->n_graphs; i++)
    if (updates(n->graphs[i])) return true;
  return false;
}

static bool updates(const kva_graph *g) {
  for (const kva_node *n = g->first; n; n = n->next)
    if (is_update(n)) return true;
  return false;
}

/* Whether a step that updates parameters writes one of this type. */
static bool updates_type(const kva_memory_plan *plan, const kva_plan_step *s, const kva_type *t) {
  for (uint32_t k = 0; k < s->n_args; k++) {
    const kva_plan_buffer *b = &plan->buffers.data[s->args[k]];
    if (b->place == KVA_PLACE_STATE && b->state->kind == KVA_STATE_PARAM && b->type == t) return true;
  }
  return false;
}

/* A temporary that an update reads and that has its parameter's type is a gradient; one that is computed where it is
 * used takes no memory. */
static void count_gradients(const kva_memory_plan *plan, bool *seen, kva_summary *s) {
  for (uint32_t i = 0; i < plan->steps.len; i++) {
    const kva_plan_step *step = &plan->steps.data[i];
    if (!step->node || !is_update(step->node)) continue;
    for (uint32_t k = 0; k < step->n_args; k++) {
      const kva_plan_buffer *buffer = &plan->buffers.data[step->args[k]];
      if (seen[step->args[k]] || buffer->place != KVA_PLACE_TEMP || !updates_type(plan, step, buffer->type)) continue;
      seen[step->args[k]] = true;
      s->gradient_bytes += s->bytes.of[step->args[k]];
    }
  }
}

/* ---- summary ----------------------------------------------------------------------------------------------------- */

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

static int64_t count_tokens(const kva_memory_plan *plan, const kva_sizes *sizes) {
  int64_t n;
  if (!plan->graph->inputs.len) return 0;
  const kva_type *t = plan->graph->inputs.data[0]->type;
  bool known = kva_expr_eval(kva_type_elements(sizes->m, t), sizes->lookup, sizes->user, &n);
  return known && kva_dtype_is_int(t->dtype) ? n : 0;
}

/* The memory that programs of loops and branches have beside their caller's: temporaries, constants. */
static kva_status add_internal(kva_module *m, const kva_memory_plan *plan, kva_arena *scratch, kva_summary *s) {
  const kva_sizes sizes = {m, kva_assumed_extent, m};
  for (uint32_t i = 0; i < plan->steps.len; i++)
    for (int k = 0; k < 2 && plan->steps.data[i].programs[k]; k++) {
      const kva_memory_plan *inner = plan->steps.data[i].programs[k];
      kva_plan_bytes bytes;
      int64_t peak;
      KVA_TRY(kva_plan_measure(m, inner, &sizes, scratch, &bytes));
      KVA_TRY(kva_plan_peak(inner, &bytes, scratch, &peak));
      bool fits = kva_add_size(s->temp_peak_bytes, peak, &s->temp_peak_bytes) &&
                  kva_add_size(s->bytes.temporaries, bytes.temporaries, &s->bytes.temporaries) &&
                  kva_add_size(s->bytes.constants, bytes.constants, &s->bytes.constants) &&
                  kva_add_size(s->bytes.fixed, bytes.constants, &s->bytes.fixed);
      if (!fits) return kva_error(m->diag, NULL, "a plan's size does not fit 64 bits");
      KVA_TRY(add_internal(m, inner, scratch, s));
    }
  return KVA_OK;
}

static kva_status summarize(kva_module *m, const kva_memory_plan *plan, kva_arena *scratch, kva_summary *s) {
  const kva_sizes sizes = {m, kva_assumed_extent, m};
  *s = (kva_summary){.steps = plan->steps.len};
  KVA_TRY(kva_plan_measure(m, plan, &sizes, scratch, &s->bytes));
  KVA_TRY(kva_plan_peak(plan, &s->bytes, scratch, &s->temp_peak_bytes));
  KVA_TRY(add_internal(m, plan, scratch, s));
  count_gradients(plan, KVA_NEW_ARRAY(scratch, bool, plan->buffers.len + 1), s);
  KVA_TRY(count_exchanged(m, plan, s));
  s->distinct_kernels = count_distinct(plan, KVA_NEW_ARRAY(scratch, uint64_t, plan->steps.len + 1));
  s->contraction_flops = graph_flops(m, plan->graph);
  s->tokens = count_tokens(plan, &sizes);
  s->bytes.of = NULL; /* ends with scratch */
  return KVA_OK;
}

kva_status kva_summarize(kva_module *m, const kva_memory_plan *plan, kva_summary *out_summary) {
  kva_arena *scratch = kva_arena_create();
  kva_status status = summarize(m, plan, scratch, out_summary);
  kva_arena_destroy(scratch);
  return status;
}

/* Memory by category, as text and as JSON. */
enum { TOTAL = 8, N_CATEGORIES };

typedef struct category {
  const char *title, *key;
  int64_t bytes;
} category;

static void list_categories(const kva_summary *s, category out[N_CATEGORIES]) {
  const kva_plan_bytes *b = &s->bytes;
  const category all[N_CATEGORIES] = {
      {"parameters", "parameters", b->params},
      {"optimiser moments", "moments", b->moments},
      {"other state", "other_state", b->other_states},
      {"constants", "constants", b->constants},
      {"inputs and outputs", "inputs_outputs", b->inputs + b->outputs},
      {"temporaries, peak", "temporaries_peak", s->temp_peak_bytes},
      {"temporaries, unshared", "temporaries_unshared", b->temporaries},
      {"of these, gradients", "gradients", s->gradient_bytes},
      {"total", "total", b->fixed + s->temp_peak_bytes},
  };
  memcpy(out, all, sizeof all);
}

static void print_bytes(FILE *out, const char *title, int64_t bytes) {
  fprintf(out, "  %-22s %14lld bytes  %10.3f GiB\n", title, (long long)bytes, (double)bytes / (1 << 30));
}

static void print_recomputed(const kva_memory_plan *plan, FILE *out) {
  const kva_recomputed *again = &plan->function->recomputed;
  if (!again->steps || plan->is_internal) return;
  print_bytes(out, "kept for gradients", again->kept_bytes);
  print_bytes(out, "computed again", again->again_bytes);
  fprintf(out, "  %-22s %14u\n", "steps run again", again->steps);
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
  fprintf(out, "  %-22s %14lld\n", "parameters", (long long)s->bytes.parameters);
  fprintf(out, "  %-22s %14.4g per call", "contraction FLOPs", s->contraction_flops);
  if (s->tokens)
    fprintf(out, ", %.4g per token (%lld tokens)", s->contraction_flops / (double)s->tokens, (long long)s->tokens);
  fprintf(out, "\n  %-22s %14lld, of which %lld distinct\n", "kernel steps", (long long)s->steps,
          (long long)s->distinct_kernels);
  category all[N_CATEGORIES];
  list_categories(s, all);
  for (int i = 0; i < N_CATEGORIES; i++) {
    if (i == TOTAL) print_recomputed(plan, out);
    print_bytes(out, all[i].title, all[i].bytes);
  }
  if (!s->exchanged.sent) return;
  print_bytes(out, "summed over processes", s->exchanged.summed);
  if (s->exchanged.gathered) print_bytes(out, "gathered from parts", s->exchanged.gathered);
  print_bytes(out, "sent by each process", s->exchanged.sent);
}

void kva_summary_print_json(const kva_summary *s, FILE *out) {
  category all[N_CATEGORIES];
  list_categories(s, all);
  fprintf(out,
          "{\"parameters\": %lld, \"contraction_flops\": %.17g, \"tokens\": %lld, \"steps\": %lld, "
          "\"distinct_kernels\": %lld, \"bytes\": {",
          (long long)s->bytes.parameters, s->contraction_flops, (long long)s->tokens, (long long)s->steps,
          (long long)s->distinct_kernels);
  for (int i = 0; i < N_CATEGORIES; i++)
    fprintf(out, "%s\"%s\": %lld", i ? ", " : "", all[i].key, (long long)all[i].bytes);
  const kva_exchanged *e = &s->exchanged;
  if (e->sent)
    fprintf(out, ", \"summed\": %lld, \"gathered\": %lld, \"sent\": %lld", (long long)e->summed, (long long)e->gathered,
            (long long)e->sent);
  fprintf(out, "}}");
}
