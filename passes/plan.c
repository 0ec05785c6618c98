/* Planning: from a fused function to steps over buffers.
 *
 * What: every top-level compute node becomes a step in graph order; every tensor gets a buffer: inputs, outputs, states
 * and constants keep theirs, the rest are temporaries with a lifetime. Reshapes cost nothing: their result shares the
 * operand's buffer. A state_write makes its value's producer write into the state itself when that is safe, else it
 * becomes a copy step at the end; a state that such a copy overwrites and another one reads is saved first, so that
 * states may be exchanged. Safe: no step after the producer reads the state's old value and no copy does, and the value
 * has no other home (output, another state). If the producer also reads the old value, writing in place is tentative;
 * kva_codegen_settle decides once the kernel is scheduled, which must load every element before it stores it.
 * An output that updates an input (kva_function.updates) is written into the caller's input in the same way: its buffer
 * is the input's. A kernel that stores only part of its result (KVA_UPDATES_PART) has operand 0 copied there first,
 * unless the two share a buffer.
 * if and loop become steps that run plans of their sub-graphs, bind one that gives a symbol its value.
 * Sums over processes take the place of what only they read. Exchanges end as late as their results are read:
 * passes/plan_waits.c.
 * Requires: kva_prepare after kva_optimize: a state is read before it is written, and written once. The runtime places
 * temporaries when shapes are known; sizes stay symbolic here. Some share memory: passes/plan_in_place.c.
 * Why lifetimes and not offsets: one plan serves every binding of the symbols. */
#include "passes/passes_internal.h"

typedef struct planner {
  kva_module *m;
  kva_function *f;
  const kva_graph *graph; /* of f, or in it */
  kva_arena *arena;
  kva_memory_plan *plan;
  int32_t *buffer_of;    /* by value id, -1: none yet */
  int32_t *state_buffer; /* by state id, -1: none yet */
  kva_value **old_value; /* by state id: the read of it, or NULL */
} planner;

static int32_t new_buffer(planner *p, kva_plan_buffer b) {
  KVA_PUSH(p->arena, &p->plan->buffers, b);
  return (int32_t)p->plan->buffers.len - 1;
}

static int32_t state_buffer(planner *p, kva_state *s) {
  KVA_ASSERT(s->id < p->m->states.len && p->m->states.data[s->id] == s);
  if (p->state_buffer[s->id] < 0)
    p->state_buffer[s->id] =
        new_buffer(p, (kva_plan_buffer){.place = KVA_PLACE_STATE, .type = s->type, .name = s->name, .state = s});
  return p->state_buffer[s->id];
}

static bool is_step(const kva_node *n) {
  if (n->op->traits & (KVA_CONTROL | KVA_BINDS)) return true;
  return n->op->lower_kind != KVA_LOWER_NONE ? !(n->op->traits & KVA_ALIAS) : kva_is(n, KVA_OP_kernel);
}

/* ---- which step a node runs in ----------------------------------------------------------------------------------- */

static int32_t *number_steps(planner *p) {
  int32_t *step_of = KVA_NEW_ARRAY(p->arena, int32_t, p->m->next_node_id);
  int32_t next = 0;
  for (const kva_node *n = p->graph->first; n; n = n->next) step_of[n->id] = is_step(n) ? next++ : next;
  return step_of;
}

/* ---- state written in place -------------------------------------------------------------------------------------- */

kva_value *kva_storage_root(kva_value *v) {
  while (v->def && v->def->op->traits & KVA_ALIAS) v = kva_operand(v->def, 0);
  return v;
}

static kva_state *state_of_read(const kva_value *v) {
  return v->def ? kva_state_read_by(v->def) : NULL;
}

/* Last step that reads v or an alias of it; INT32_MAX when the copies at the end do. */
static int32_t last_use(const kva_value *v, const int32_t *step_of) {
  int32_t last = -1;
  for (const kva_use *u = v->uses; u; u = u->next) {
    const kva_node *n = u->user;
    if (n->op->traits & (KVA_RETURN | KVA_WRITES_STATE)) return INT32_MAX;
    int32_t step = n->op->traits & KVA_ALIAS ? last_use(&n->results[0], step_of) : step_of[n->id];
    last = step > last ? step : last;
  }
  return last;
}

/* n does not store its whole result in the memory of `old`: what it leaves must be there, and nothing else it reads. */
static bool finds_rest(const kva_node *n, const kva_value *old) {
  if (!(n->op->traits & KVA_UPDATES_PART)) return true;
  for (uint32_t i = 1; i < n->n_operands; i++)
    if (n->operands[i].value && kva_storage_root(n->operands[i].value) == old) return false;
  return kva_storage_root(kva_operand(n, 0)) == old;
}

static bool can_write_in_place(planner *p, const kva_node *write, const int32_t *step_of) {
  const kva_state *s = ((const kva_state_write_attrs *)write->attrs)->state;
  const kva_value *v = kva_operand(write, 0);
  if (!v->def || !is_step(v->def)) return false;
  for (const kva_use *u = v->uses; u; u = u->next)
    if (u->user != write && u->user->op->traits & (KVA_RETURN | KVA_WRITES_STATE)) return false;
  const kva_value *old = p->old_value[s->id];
  return finds_rest(v->def, old) && (!old || last_use(old, step_of) <= step_of[v->def->id]);
}

/* The input that output i updates, or NULL. */
static kva_value *updated_input(const planner *p, uint32_t i) {
  const int32_t *updates = p->plan->is_internal ? NULL : p->f->updates;
  return updates && updates[i] >= 0 ? p->graph->inputs.data[updates[i]] : NULL;
}

static bool updates_in_place(const planner *p, const kva_value *root, const kva_value *input, const int32_t *step_of) {
  if (!root->def || !is_step(root->def) || p->buffer_of[root->id] >= 0) return false;
  return finds_rest(root->def, input) && last_use(input, step_of) <= step_of[root->def->id];
}

static void assign_updates(planner *p, const int32_t *step_of) {
  for (uint32_t i = 0; i < kva_graph_output_count(p->graph); i++) {
    kva_value *input = updated_input(p, i), *root = kva_storage_root(kva_graph_output(p->graph, i));
    if (input && updates_in_place(p, root, input, step_of)) p->buffer_of[root->id] = p->buffer_of[input->id];
  }
}

static void find_reads(planner *p) {
  for (kva_node *n = p->graph->first; n; n = n->next) {
    kva_state *s = n->n_results ? state_of_read(&n->results[0]) : NULL;
    if (!s) continue;
    KVA_ASSERT(!p->old_value[s->id]);
    p->old_value[s->id] = &n->results[0];
  }
}

static void assign_states(planner *p, const int32_t *step_of) {
  for (kva_node *n = p->graph->first; n; n = n->next) {
    if (!kva_is(n, KVA_OP_state_write) || !can_write_in_place(p, n, step_of)) continue;
    p->buffer_of[kva_operand(n, 0)->id] = state_buffer(p, ((const kva_state_write_attrs *)n->attrs)->state);
  }
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static void assign_inputs(planner *p) {
  const kva_graph *g = p->graph;
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    kva_value *v = g->inputs.data[i];
    const char *name = v->name ? v->name : kva_arena_printf(p->arena, "in%u", i);
    p->buffer_of[v->id] = new_buffer(p, (kva_plan_buffer){.place = KVA_PLACE_INPUT, .type = v->type, .name = name});
    KVA_PUSH(p->arena, &p->plan->inputs, p->buffer_of[v->id]);
  }
}

/* Outputs that a step computes are written in place; the others (inputs, states, constants, duplicates) are copied at
 * the end. */
static void assign_outputs(planner *p) {
  const kva_graph *g = p->graph;
  for (uint32_t i = 0; i < kva_graph_output_count(g); i++) {
    kva_value *v = kva_graph_output(g, i), *root = kva_storage_root(v), *input = updated_input(p, i);
    if (input) {
      KVA_PUSH(p->arena, &p->plan->outputs, p->buffer_of[input->id]);
      continue;
    }
    bool named = !p->plan->is_internal && p->f->output_names, has_role = !p->plan->is_internal && p->f->output_roles;
    const char *name = named ? p->f->output_names[i] : v->name;
    kva_result_role role = has_role ? p->f->output_roles[i] : KVA_RESULT_VALUE;
    int32_t b =
        new_buffer(p, (kva_plan_buffer){.place = KVA_PLACE_OUTPUT, .type = v->type, .name = name, .role = role});
    KVA_PUSH(p->arena, &p->plan->outputs, b);
    if (root->def && is_step(root->def) && p->buffer_of[root->id] < 0) p->buffer_of[root->id] = b;
  }
}

static int32_t new_temporary(planner *p, const kva_type *type, const char *name) {
  kva_plan_buffer b = {.place = KVA_PLACE_TEMP, .type = type, .name = name, .first_step = INT32_MAX, .last_step = -1};
  return new_buffer(p, b);
}

static int32_t buffer_for(planner *p, kva_value *v) {
  v = kva_storage_root(v);
  int32_t *slot = &p->buffer_of[v->id];
  if (*slot >= 0) return *slot;
  if (state_of_read(v)) return *slot = state_buffer(p, state_of_read(v));
  if (kva_constant_of(v))
    return *slot = new_buffer(
               p, (kva_plan_buffer){
                      .place = KVA_PLACE_CONST, .type = v->type, .name = v->name, .data = kva_constant_of(v)});
  return *slot = new_temporary(p, v->type, v->name);
}

static void touch(planner *p, int32_t buffer, int32_t step) {
  KVA_ASSERT(buffer >= 0 && (uint32_t)buffer < p->plan->buffers.len && step >= 0);
  kva_plan_buffer *b = &p->plan->buffers.data[buffer];
  if (b->place != KVA_PLACE_TEMP) return;
  if (step < b->first_step) b->first_step = step;
  if (step > b->last_step) b->last_step = step;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static kva_plan_step *push_step(planner *p, kva_plan_kind kind, kva_node *node, uint32_t n_args, const int32_t *args) {
  int32_t step = (int32_t)p->plan->steps.len;
  for (uint32_t i = 0; i < n_args; i++) touch(p, args[i], step);
  kva_plan_step s = {
      .kind = kind, .node = node, .n_args = n_args, .args = kva_arena_memdup(p->arena, args, n_args * sizeof *args)};
  KVA_PUSH(p->arena, &p->plan->steps, s);
  return &p->plan->steps.data[step];
}

/* A sum over processes takes the place of what only it reads. */
static void sum_in_place(planner *p, const kva_node *n) {
  for (uint32_t i = 0; i < n->n_operands && kva_is(n, KVA_OP_all_reduce); i++) {
    kva_value *v = kva_operand(n, i);
    int32_t home = p->buffer_of[v->id], *result = &p->buffer_of[n->results[i].id];
    bool alone = kva_storage_root(v) == v && kva_value_use_count(v) == 1 && home >= 0;
    if (alone && *result < 0 && p->plan->buffers.data[home].place == KVA_PLACE_TEMP) *result = home;
  }
}

/* Operands of kernels are passed once each. */
static kva_plan_step *add_node(planner *p, kva_plan_kind kind, kva_node *n) {
  KVA_ASSERT(n->graph);
  KVA_VEC(int32_t) args = {0};
  bool once = kind == KVA_PLAN_KERNEL && n->op->lower_kind != KVA_LOWER_CALL;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    kva_value *v = n->operands[i].value;
    bool seen = !v;
    for (uint32_t j = 0; j < i && !seen && once; j++) seen = n->operands[j].value == v;
    if (!seen) KVA_PUSH(p->arena, &args, buffer_for(p, v));
  }
  sum_in_place(p, n);
  for (uint32_t r = 0; r < n->n_results; r++) KVA_PUSH(p->arena, &args, buffer_for(p, &n->results[r]));
  return push_step(p, kind, n, args.len, args.data);
}

static kva_memory_plan *plan_graph(kva_module *m, kva_function *f, const kva_graph *g, const char *name,
                                   kva_arena *arena);

static kva_memory_plan *plan_subgraph(planner *p, const kva_node *n, uint32_t i, const char *name) {
  return plan_graph(p->m, p->f, n->graphs[i],
                    kva_arena_printf(p->arena, "%s.%u.%s", p->plan->name, (unsigned)p->plan->steps.len, name),
                    p->arena);
}

static void add_copy(planner *p, int32_t to, int32_t from) {
  KVA_ASSERT(p->plan->buffers.data[to].type->dtype == p->plan->buffers.data[from].type->dtype);
  if (to != from) push_step(p, KVA_PLAN_COPY, NULL, 2, (int32_t[]){to, from});
}

static void add_step(planner *p, kva_node *n) {
  if (kva_is(n, KVA_OP_if)) {
    kva_memory_plan *then = plan_subgraph(p, n, 0, "then"), *orelse = plan_subgraph(p, n, 1, "else");
    kva_plan_step *s = add_node(p, KVA_PLAN_BRANCH, n);
    s->programs[0] = then, s->programs[1] = orelse;
  } else if (kva_is(n, KVA_OP_loop)) {
    kva_memory_plan *body = plan_subgraph(p, n, 0, "body");
    add_node(p, KVA_PLAN_LOOP, n)->programs[0] = body;
  } else {
    if (n->op->traits & KVA_UPDATES_PART) add_copy(p, buffer_for(p, &n->results[0]), buffer_for(p, kva_operand(n, 0)));
    add_node(p, n->op->traits & KVA_BINDS ? KVA_PLAN_BIND : KVA_PLAN_KERNEL, n);
  }
}

static void add_output_copies(planner *p) {
  const kva_graph *g = p->graph;
  for (uint32_t i = 0; i < kva_graph_output_count(g); i++)
    if (!updated_input(p, i)) add_copy(p, p->plan->outputs.data[i], buffer_for(p, kva_graph_output(g, i)));
}

typedef struct update_copy {
  int32_t to, from;
} update_copy;
typedef KVA_VEC(update_copy) update_copies;

static update_copies find_update_copies(planner *p) {
  update_copies copies = {0};
  for (const kva_node *n = p->graph->first; n; n = n->next) {
    if (!kva_is(n, KVA_OP_state_write)) continue;
    kva_state *s = ((const kva_state_write_attrs *)n->attrs)->state;
    update_copy c = {state_buffer(p, s), buffer_for(p, kva_operand(n, 0))};
    if (c.to != c.from) KVA_PUSH(p->arena, &copies, c);
  }
  for (uint32_t i = 0; i < kva_graph_output_count(p->graph); i++) {
    if (!updated_input(p, i)) continue;
    update_copy c = {p->plan->outputs.data[i], buffer_for(p, kva_graph_output(p->graph, i))};
    if (c.to != c.from) KVA_PUSH(p->arena, &copies, c);
  }
  return copies;
}

static bool is_overwritten(const update_copies *copies, int32_t buffer) {
  for (uint32_t i = 0; i < copies->len; i++)
    if (copies->data[i].to == buffer) return true;
  return false;
}

/* Copies to states and inputs happen at once: a source that one of them overwrites is saved before all of them. */
static void add_update_copies(planner *p) {
  update_copies copies = find_update_copies(p);
  for (uint32_t i = 0; i < copies.len; i++) {
    if (!is_overwritten(&copies, copies.data[i].from)) continue;
    kva_plan_buffer from = p->plan->buffers.data[copies.data[i].from];
    int32_t saved = new_temporary(p, from.type, from.name);
    add_copy(p, saved, copies.data[i].from);
    copies.data[i].from = saved;
  }
  for (uint32_t i = 0; i < copies.len; i++) add_copy(p, copies.data[i].to, copies.data[i].from);
}

static kva_memory_plan *plan_graph(kva_module *m, kva_function *f, const kva_graph *g, const char *name,
                                   kva_arena *arena) {
  planner p = {.m = m, .f = f, .graph = g, .arena = arena, .plan = KVA_NEW(arena, kva_memory_plan)};
  *p.plan = (kva_memory_plan){.function = f, .graph = g, .name = name, .is_internal = g != f->graph};
  p.buffer_of = KVA_NEW_ARRAY(arena, int32_t, m->next_value_id + 1);
  p.state_buffer = KVA_NEW_ARRAY(arena, int32_t, m->states.len + 1);
  p.old_value = KVA_NEW_ARRAY(arena, kva_value *, m->states.len + 1);
  memset(p.buffer_of, -1, sizeof(int32_t) * m->next_value_id);
  memset(p.state_buffer, -1, sizeof(int32_t) * m->states.len);
  const int32_t *step_of = number_steps(&p);
  assign_inputs(&p);
  find_reads(&p);
  assign_states(&p, step_of);
  assign_updates(&p, step_of);
  assign_outputs(&p);
  for (kva_node *n = g->first; n; n = n->next) {
    if (is_step(n)) add_step(&p, n);
  }
  /* Copies last: other outputs before updates, since an output may show the old value. */
  add_output_copies(&p);
  add_update_copies(&p);
  if (!p.plan->is_internal) kva_plan_waits(p.plan, arena);
  return p.plan;
}

kva_status kva_plan(kva_module *m, kva_function *f, kva_arena *arena, kva_memory_plan **out_plan) {
  *out_plan = plan_graph(m, f, f->graph, f->name, arena);
  return KVA_OK;
}

kva_status kva_plan_module(kva_module *m, const kva_pass_options *o, bool *changed) {
  (void)changed; /* the graph stays as it is */
  for (uint32_t i = 0; i < m->functions.len; i++) {
    kva_function *f = m->functions.data[i];
    KVA_TRY(kva_plan(m, f, m->arena, &f->plan));
    if (!o->memory) kva_plan_in_place(m, f->plan, m->arena); /* else recompute.c has counted it as it is */
  }
  return KVA_OK;
}
