/* Planning: from a fused function to steps over buffers.
 *
 * What: every top-level compute node becomes a step in graph order; every tensor gets a buffer: inputs, outputs, states and
 * constants keep theirs, the rest are temporaries with a lifetime. Reshapes cost nothing: their result shares the operand's
 * buffer. A state_write makes its value's producer write into the state itself when that is safe, else it becomes a copy step.
 * Safe: no step after the producer reads the state's old value, the producer reads it only element by element, and the
 * value has no other home (output, another state).
 * Requires: kva_prepare. The runtime places temporaries when shapes are known; sizes stay symbolic here.
 * Why lifetimes and not offsets: one plan serves every binding of the symbols. */
#include "passes/passes_internal.h"

typedef struct planner {
  kva_module *m;
  kva_function *f;
  kva_arena *arena;
  kva_memory_plan *plan;
  int32_t *buffer_of;      /* by value id, -1: none yet */
  int32_t *state_buffer;   /* by state id, -1: none yet */
} planner;

static int32_t new_buffer(planner *p, kva_plan_buffer b) {
  KVA_PUSH(p->arena, &p->plan->buffers, b);
  return (int32_t)p->plan->buffers.len - 1;
}

static int32_t state_buffer(planner *p, kva_state *s) {
  if (p->state_buffer[s->id] < 0)
    p->state_buffer[s->id] = new_buffer(p, (kva_plan_buffer){.place = KVA_PLACE_STATE, .type = s->type, .name = s->name, .state = s});
  return p->state_buffer[s->id];
}

static bool is_step(const kva_node *n) {
  return n->op->lower_kind != KVA_LOWER_NONE ? !kva_is(n, KVA_OP_reshape) : kva_is(n, KVA_OP_kernel);
}

/* ---- which step a node runs in --------------------------------------------------------------------------------------------- */

static int32_t *number_steps(planner *p) {
  int32_t *step_of = KVA_NEW_ARRAY(p->arena, int32_t, p->m->next_node_id);
  int32_t next = 0;
  for (const kva_node *n = p->f->graph->first; n; n = n->next) step_of[n->id] = is_step(n) ? next++ : next;
  return step_of;
}

/* ---- state written in place ------------------------------------------------------------------------------------------------- */

/* The value behind reshapes. */
static kva_value *storage_root(kva_value *v) {
  while (v->def && kva_is(v->def, KVA_OP_reshape)) v = kva_operand(v->def, 0);
  return v;
}

static bool is_read_of(const kva_value *v, const kva_state *s) {
  return v->def && kva_is(v->def, KVA_OP_state_read) && ((const kva_state_read_attrs *)v->def->attrs)->state == s;
}

/* Every node of the kernel works element by element on tensors of one shape: reading and writing one buffer is safe. */
static bool is_elementwise_kernel(const kva_node *kernel, const kva_type *type) {
  if (!kva_is(kernel, KVA_OP_kernel)) return false;
  for (const kva_node *n = kernel->graphs[0]->first; n; n = n->next) {
    if (n->op->traits & KVA_RETURN || kva_is(n, KVA_OP_constant)) continue;
    if (!(n->op->traits & KVA_ELEMENTWISE)) return false;
    for (uint32_t r = 0; r < n->n_results; r++) {
      const kva_type *t = n->results[r].type;
      if (t->rank == 0) continue;
      if (t->rank != type->rank || memcmp(t->dims, type->dims, t->rank * sizeof *t->dims) != 0) return false;
    }
  }
  return true;
}

/* Last step that uses v or a reshape of it; INT32_MAX when it is returned. */
static int32_t last_use(const kva_value *v, const int32_t *step_of) {
  int32_t last = -1;
  for (const kva_use *u = v->uses; u; u = u->next) {
    const kva_node *n = u->user;
    int32_t step = step_of[n->id];
    if (n->op->traits & KVA_RETURN) return INT32_MAX;
    if (kva_is(n, KVA_OP_reshape)) step = last_use(&n->results[0], step_of);
    if (kva_is(n, KVA_OP_state_write)) continue;
    last = step > last ? step : last;
  }
  return last;
}

static bool can_write_in_place(const planner *p, const kva_node *write, const int32_t *step_of) {
  const kva_state *s = ((const kva_state_write_attrs *)write->attrs)->state;
  const kva_value *v = kva_operand(write, 0);
  if (!v->def || !is_step(v->def)) return false;
  int32_t producer = step_of[v->def->id];
  for (const kva_use *u = v->uses; u; u = u->next)
    if (u->user != write && (kva_is(u->user, KVA_OP_state_write) || (u->user->op->traits & KVA_RETURN))) return false;
  for (const kva_node *n = p->f->graph->first; n; n = n->next) {
    if (!kva_is(n, KVA_OP_state_read) || !is_read_of(&n->results[0], s)) continue;
    int32_t last = last_use(&n->results[0], step_of);
    if (last > producer) return false;
    if (last == producer && !is_elementwise_kernel(v->def, s->type)) return false;
  }
  return true;
}

static void assign_states(planner *p, const int32_t *step_of) {
  for (kva_node *n = p->f->graph->first; n; n = n->next) {
    if (!kva_is(n, KVA_OP_state_write) || !can_write_in_place(p, n, step_of)) continue;
    p->buffer_of[kva_operand(n, 0)->id] = state_buffer(p, ((const kva_state_write_attrs *)n->attrs)->state);
  }
}

/* ---- buffers ------------------------------------------------------------------------------------------------------------------- */

static void assign_inputs(planner *p) {
  kva_graph *g = p->f->graph;
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    kva_value *v = g->inputs.data[i];
    p->buffer_of[v->id] = new_buffer(p, (kva_plan_buffer){.place = KVA_PLACE_INPUT, .type = v->type, .name = v->name});
    KVA_PUSH(p->arena, &p->plan->inputs, p->buffer_of[v->id]);
  }
}

/* Outputs that a step computes are written in place; the others (inputs, states, constants, duplicates) are copied at the
 * end. */
static void assign_outputs(planner *p) {
  const kva_graph *g = p->f->graph;
  for (uint32_t i = 0; i < kva_graph_output_count(g); i++) {
    kva_value *v = kva_graph_output(g, i), *root = storage_root(v);
    const char *name = p->f->output_names ? p->f->output_names[i] : v->name;
    int32_t b = new_buffer(p, (kva_plan_buffer){.place = KVA_PLACE_OUTPUT, .type = v->type, .name = name});
    KVA_PUSH(p->arena, &p->plan->outputs, b);
    if (root->def && is_step(root->def) && p->buffer_of[root->id] < 0) p->buffer_of[root->id] = b;
  }
}

static int32_t buffer_for(planner *p, kva_value *v) {
  v = storage_root(v);
  int32_t *slot = &p->buffer_of[v->id];
  if (*slot >= 0) return *slot;
  if (v->def && kva_is(v->def, KVA_OP_state_read))
    return *slot = state_buffer(p, ((const kva_state_read_attrs *)v->def->attrs)->state);
  if (kva_constant_of(v))
    return *slot = new_buffer(p, (kva_plan_buffer){.place = KVA_PLACE_CONST, .type = v->type, .name = v->name, .data = kva_constant_of(v)});
  return *slot = new_buffer(p, (kva_plan_buffer){.place = KVA_PLACE_TEMP, .type = v->type, .name = v->name,
                                                 .first_step = INT32_MAX, .last_step = -1});
}

static void touch(planner *p, int32_t buffer, int32_t step) {
  kva_plan_buffer *b = &p->plan->buffers.data[buffer];
  if (b->place != KVA_PLACE_TEMP) return;
  if (step < b->first_step) b->first_step = step;
  if (step > b->last_step) b->last_step = step;
}

/* ---- steps ---------------------------------------------------------------------------------------------------------------------- */

static void push_step(planner *p, kva_node *node, uint32_t n_args, const int32_t *args) {
  int32_t step = (int32_t)p->plan->steps.len;
  for (uint32_t i = 0; i < n_args; i++) touch(p, args[i], step);
  kva_plan_step s = {node, n_args, kva_arena_memdup(p->arena, args, n_args * sizeof *args)};
  KVA_PUSH(p->arena, &p->plan->steps, s);
}

static void add_step(planner *p, kva_node *n) {
  KVA_VEC(int32_t) args = {0};
  for (uint32_t i = 0; i < n->n_operands; i++) {
    kva_value *v = n->operands[i].value;
    bool seen = !v;
    for (uint32_t j = 0; j < i && !seen; j++) seen = n->operands[j].value == v;
    if (!seen) KVA_PUSH(p->arena, &args, buffer_for(p, v));
  }
  for (uint32_t r = 0; r < n->n_results; r++) KVA_PUSH(p->arena, &args, buffer_for(p, &n->results[r]));
  push_step(p, n, args.len, args.data);
}

static void add_copy(planner *p, int32_t to, int32_t from) {
  if (to != from) push_step(p, NULL, 2, (int32_t[]){to, from});
}

static void add_output_copies(planner *p) {
  const kva_graph *g = p->f->graph;
  for (uint32_t i = 0; i < kva_graph_output_count(g); i++)
    add_copy(p, p->plan->outputs.data[i], buffer_for(p, kva_graph_output(g, i)));
}

kva_status kva_plan(kva_module *m, kva_function *f, kva_arena *arena, kva_memory_plan **out_plan) {
  planner p = {.m = m, .f = f, .arena = arena, .plan = KVA_NEW(arena, kva_memory_plan)};
  p.plan->function = f;
  p.buffer_of = KVA_NEW_ARRAY(arena, int32_t, m->next_value_id + 1);
  p.state_buffer = KVA_NEW_ARRAY(arena, int32_t, m->states.len + 1);
  memset(p.buffer_of, -1, sizeof(int32_t) * m->next_value_id);
  memset(p.state_buffer, -1, sizeof(int32_t) * m->states.len);
  const int32_t *step_of = number_steps(&p);
  assign_inputs(&p);
  assign_states(&p, step_of);
  assign_outputs(&p);
  for (kva_node *n = f->graph->first; n; n = n->next) {
    if (is_step(n)) add_step(&p, n);
  }
  /* Copies last: outputs before states, since an output may show a state's old value. */
  add_output_copies(&p);
  for (kva_node *n = f->graph->first; n; n = n->next)
    if (kva_is(n, KVA_OP_state_write))
      add_copy(&p, state_buffer(&p, ((const kva_state_write_attrs *)n->attrs)->state), buffer_for(&p, kva_operand(n, 0)));
  *out_plan = p.plan;
  return KVA_OK;
}
