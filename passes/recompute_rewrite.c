/* Pass recompute: copies of dropped steps. */
#include "passes/recompute.h"

typedef struct rewriter {
  kva_module *m;
  const kva_drops *drops;
  kva_arena *scratch;
  kva_value **copies; /* by value id: what a copied node computes */
  kva_value **inner;  /* by value id: for kva_node_copy_graphs */
  int32_t *buffer_of; /* by value id of what a step computes; -1: none */
  uint32_t n_values;  /* of the module, before anything was copied */
} rewriter;

/* ---- copies ------------------------------------------------------------------------------------------------------ */

static kva_value *as_read(rewriter *r, kva_value *v, int32_t step, kva_node *before);

static kva_node *copy_node(rewriter *r, kva_node *n, int32_t step, kva_node *before) {
  kva_value **in = KVA_NEW_ARRAY(r->scratch, kva_value *, n->n_operands + 1);
  for (uint32_t i = 0; i < n->n_operands; i++) in[i] = as_read(r, n->operands[i].value, step, before);
  kva_node *copy = kva_node_create(n->graph, before, n->op, n->n_operands, in, n->n_results, n->attrs, n->loc);
  for (uint32_t i = 0; i < n->n_results; i++) {
    copy->results[i].type = n->results[i].type;
    copy->results[i].name = n->results[i].name;
    r->copies[n->results[i].id] = &copy->results[i];
  }
  kva_node_copy_graphs(n, copy, r->inner);
  return copy;
}

/* What `step`, which is at `before`, reads in place of v. */
static kva_value *as_read(rewriter *r, kva_value *v, int32_t step, kva_node *before) {
  if (!v) return NULL;
  KVA_ASSERT(v->id < r->n_values);
  int32_t buffer = r->buffer_of[kva_storage_root(v)->id];
  if (buffer < 0 || !kva_reads_copy(r->drops, buffer, step)) return v;
  if (!r->copies[v->id]) copy_node(r, v->def, step, before);
  return r->copies[v->id];
}

static void find_buffers(rewriter *r) {
  memset(r->buffer_of, -1, r->n_values * sizeof *r->buffer_of);
  for (uint32_t s = 0; s < r->drops->plan->steps.len; s++) {
    const kva_plan_step *step = &r->drops->plan->steps.data[s];
    const kva_node *n = step->node;
    for (uint32_t i = 0; n && i < n->n_results; i++)
      r->buffer_of[n->results[i].id] = step->args[step->n_args - n->n_results + i];
  }
}

/* ---- results that nothing reads any more ------------------------------------------------------------------------- */

static void narrow(kva_node *kernel, kva_arena *scratch) {
  bool *no_result = KVA_NEW_ARRAY(scratch, bool, kernel->n_results + 1), any = false, changed = false;
  bool *no_operand = KVA_NEW_ARRAY(scratch, bool, kernel->n_operands + 1);
  for (uint32_t i = 0; i < kernel->n_results; i++) any |= no_result[i] = !kernel->results[i].uses;
  if (!any) return;
  kernel = kva_node_narrow(kernel, no_operand, no_result);
  kva_graph *body = kernel->graphs[0];
  kva_remove_dead(body, &changed);
  for (uint32_t i = 0; i < kernel->n_operands; i++) no_operand[i] = !body->inputs.data[i]->uses;
  memset(no_result, 0, kernel->n_results * sizeof *no_result);
  kva_node_narrow(kernel, no_operand, no_result);
}

void kva_insert_copies(kva_module *m, const kva_drops *d) {
  kva_arena *scratch = kva_arena_create();
  rewriter r = {.m = m, .drops = d, .scratch = scratch, .n_values = m->next_value_id};
  r.copies = KVA_NEW_ARRAY(scratch, kva_value *, r.n_values);
  r.inner = KVA_NEW_ARRAY(scratch, kva_value *, r.n_values);
  r.buffer_of = KVA_NEW_ARRAY(scratch, int32_t, r.n_values);
  find_buffers(&r);
  for (uint32_t s = 0; s < d->plan->steps.len; s++) {
    kva_node *n = d->plan->steps.data[s].node;
    for (uint32_t i = 0; n && i < n->n_operands; i++) {
      kva_value *v = n->operands[i].value;
      if (v) kva_node_set_operand(n, i, as_read(&r, v, (int32_t)s, n));
    }
  }
  bool changed = false;
  kva_graph *g = d->plan->function->graph;
  kva_remove_dead(g, &changed);
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    if (kva_is(n, KVA_OP_kernel)) narrow(n, scratch);
  }
  kva_arena_destroy(scratch);
}
