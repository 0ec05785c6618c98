/* Modules, graphs, nodes and use lists. */
#include "ir/ir_internal.h"

/* ---- modules ----------------------------------------------------------------------------------------------------- */

kva_module *kva_module_create(kva_diag *diag) {
  kva_arena *arena = kva_arena_create();
  kva_module *m = KVA_NEW(arena, kva_module);
  m->arena = arena;
  m->exprs = kva_expr_ctx_create(arena);
  m->diag = diag;
  m->types = kva_type_table_create(arena);
  m->states_by_name = kva_map_create(arena);
  return m;
}

void kva_module_add_property(kva_module *m, const char *key, const char *value) {
  kva_property property = {kva_arena_strdup(m->arena, key), kva_arena_strdup(m->arena, value)};
  KVA_PUSH(m->arena, &m->properties, property);
}

void kva_module_destroy(kva_module *m) {
  if (!m) return;
  for (uint32_t i = 0; i < m->files.len; i++) kva_file_unmap(&m->files.data[i]);
  kva_arena_destroy(m->arena);
}

kva_function *kva_function_create(kva_module *m, const char *name) {
  kva_function *f = KVA_NEW(m->arena, kva_function);
  f->name = kva_arena_strdup(m->arena, name);
  f->graph = kva_graph_create(m, NULL);
  KVA_PUSH(m->arena, &m->functions, f);
  return f;
}

kva_function *kva_module_find_function(const kva_module *m, const char *name) {
  for (uint32_t i = 0; i < m->functions.len; i++) {
    if (!strcmp(m->functions.data[i]->name, name)) return m->functions.data[i];
  }
  return NULL;
}

kva_state *kva_state_create(kva_module *m, const char *name, const kva_type *type, kva_state_kind kind) {
  kva_state *s = KVA_NEW(m->arena, kva_state);
  s->name = kva_arena_strdup(m->arena, name);
  s->type = type;
  s->kind = kind;
  s->decay = type->rank >= 2;
  s->id = m->states.len;
  KVA_PUSH(m->arena, &m->states, s);
  if (!kva_map_get_str(m->states_by_name, name)) kva_map_set_str(m->states_by_name, name, s);
  return s;
}

kva_state *kva_module_find_state(const kva_module *m, const char *name) {
  return kva_map_get_str(m->states_by_name, name);
}

void kva_module_remove_state(kva_module *m, kva_state *s) {
  KVA_ASSERT(m->states.data[s->id] == s);
  for (uint32_t i = s->id; i + 1 < m->states.len; i++) {
    m->states.data[i] = m->states.data[i + 1];
    m->states.data[i]->id = i;
  }
  m->states.len--;
  kva_map_set_str(m->states_by_name, s->name, NULL);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

kva_graph *kva_graph_create(kva_module *m, kva_node *owner) {
  kva_graph *g = KVA_NEW(m->arena, kva_graph);
  g->module = m;
  if (owner) kva_node_add_graph(owner, g);
  return g;
}

void kva_node_add_graph(kva_node *owner, kva_graph *g) {
  kva_graph **grown = KVA_NEW_ARRAY(g->module->arena, kva_graph *, owner->n_graphs + 1);
  if (owner->n_graphs) memcpy(grown, owner->graphs, owner->n_graphs * sizeof *grown);
  grown[owner->n_graphs++] = g;
  owner->graphs = grown;
  g->owner = owner;
}

kva_value *kva_graph_add_input(kva_graph *g, const kva_type *type, const char *name) {
  KVA_ASSERT(type);
  kva_module *m = g->module;
  kva_value *v = KVA_NEW(m->arena, kva_value);
  v->type = type;
  v->graph = g;
  v->index = g->inputs.len;
  v->id = m->next_value_id++;
  v->name = name ? kva_arena_strdup(m->arena, name) : NULL;
  KVA_PUSH(m->arena, &g->inputs, v);
  return v;
}

static const kva_node *return_node(const kva_graph *g) {
  return g->last && (g->last->op->traits & KVA_RETURN) ? g->last : NULL;
}

uint32_t kva_graph_output_count(const kva_graph *g) {
  const kva_node *r = return_node(g);
  return r ? r->n_operands : 0;
}

kva_value *kva_graph_output(const kva_graph *g, uint32_t i) {
  const kva_node *r = return_node(g);
  KVA_ASSERT(r && i < r->n_operands);
  return r->operands[i].value;
}

/* ---- uses -------------------------------------------------------------------------------------------------------- */

static void link_use(kva_use *u, kva_value *v) {
  u->value = v;
  u->next = NULL;
  u->prev_link = NULL;
  if (!v) return;
  u->next = v->uses;
  u->prev_link = &v->uses;
  if (v->uses) v->uses->prev_link = &u->next;
  v->uses = u;
}

static void unlink_use(kva_use *u) {
  if (!u->value) return;
  KVA_ASSERT(*u->prev_link == u);
  *u->prev_link = u->next;
  if (u->next) u->next->prev_link = u->prev_link;
  u->value = NULL;
  u->next = NULL;
  u->prev_link = NULL;
}

void kva_node_set_operand(kva_node *n, uint32_t i, kva_value *v) {
  KVA_ASSERT(i < n->n_operands);
  KVA_ASSERT(n->operands[i].user == n && n->operands[i].index == i);
  unlink_use(&n->operands[i]);
  link_use(&n->operands[i], v);
}

void kva_value_replace_all_uses(kva_value *from, kva_value *to) {
  if (from == to) return;
  KVA_ASSERT(to && to->graph->module == from->graph->module);
  while (from->uses) kva_node_set_operand(from->uses->user, from->uses->index, to);
}

uint32_t kva_value_use_count(const kva_value *v) {
  uint32_t n = 0;
  for (const kva_use *u = v->uses; u; u = u->next) n++;
  return n;
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static void link_node(kva_graph *g, kva_node *n, kva_node *before) {
  KVA_ASSERT(!before || before->graph == g);
  n->graph = g;
  n->next = before;
  n->prev = before ? before->prev : g->last;
  *(n->prev ? &n->prev->next : &g->first) = n;
  *(before ? &before->prev : &g->last) = n;
}

static void unlink_node(kva_node *n) {
  KVA_ASSERT(n->graph && (n->prev ? n->prev->next : n->graph->first) == n);
  KVA_ASSERT((n->next ? n->next->prev : n->graph->last) == n);
  *(n->prev ? &n->prev->next : &n->graph->first) = n->next;
  *(n->next ? &n->next->prev : &n->graph->last) = n->prev;
  n->prev = n->next = NULL;
}

static void set_results_graph(kva_node *n, kva_graph *g) {
  for (uint32_t i = 0; i < n->n_results; i++) n->results[i].graph = g;
}

kva_node *kva_node_create(kva_graph *g, kva_node *before, const kva_op_info *op, uint32_t n_operands,
                          kva_value *const *operands, uint32_t n_results, void *attrs, kva_loc loc) {
  kva_module *m = g->module;
  kva_node *n = KVA_NEW(m->arena, kva_node);
  n->op = op;
  n->attrs = attrs;
  n->loc = loc;
  n->id = m->next_node_id++;
  n->n_operands = n_operands;
  n->operands = KVA_NEW_ARRAY(m->arena, kva_use, n_operands);
  for (uint32_t i = 0; i < n_operands; i++) {
    n->operands[i].user = n;
    n->operands[i].index = i;
    link_use(&n->operands[i], operands[i]);
  }
  n->n_results = n_results;
  n->results = KVA_NEW_ARRAY(m->arena, kva_value, n_results);
  for (uint32_t i = 0; i < n_results; i++) {
    n->results[i].def = n;
    n->results[i].index = i;
    n->results[i].id = m->next_value_id++;
  }
  set_results_graph(n, g);
  link_node(g, n, before);
  return n;
}

/* Drops the operands of n and of the nodes in its sub-graphs. Values of sub-graphs have no users outside, and disappear
 * with them. */
static void drop_operands(kva_node *n) {
  for (uint32_t i = 0; i < n->n_operands; i++) unlink_use(&n->operands[i]);
  for (uint32_t i = 0; i < n->n_graphs; i++) {
    for (kva_node *inner = n->graphs[i]->first; inner; inner = inner->next) drop_operands(inner);
  }
}

void kva_node_remove(kva_node *n) {
  for (uint32_t i = 0; i < n->n_results; i++) KVA_ASSERT(!n->results[i].uses);
  drop_operands(n);
  unlink_node(n);
  n->graph = NULL;
}

void kva_node_take_graphs(kva_node *to, kva_node *from) {
  KVA_ASSERT(!to->n_graphs);
  to->graphs = from->graphs;
  to->n_graphs = from->n_graphs;
  for (uint32_t i = 0; i < to->n_graphs; i++) to->graphs[i]->owner = to;
  from->graphs = NULL;
  from->n_graphs = 0;
}

void kva_graph_remove_input(kva_graph *g, uint32_t i) {
  KVA_ASSERT(i < g->inputs.len && !g->inputs.data[i]->uses);
  g->inputs.len--;
  for (; i < g->inputs.len; i++) {
    g->inputs.data[i] = g->inputs.data[i + 1];
    g->inputs.data[i]->index = i;
  }
}

void kva_graph_drop_outputs(kva_graph *g, const bool *drop, uint32_t shift) {
  kva_node *old = g->last;
  uint32_t n = 0;
  kva_value **kept = KVA_NEW_ARRAY(g->module->arena, kva_value *, old->n_operands + 1);
  for (uint32_t i = 0; i < old->n_operands; i++)
    if (i < shift || !drop[i - shift]) kept[n++] = old->operands[i].value;
  kva_node_create(g, old, old->op, n, kept, 0, NULL, old->loc);
  kva_node_remove(old);
}

kva_dims kva_node_binds(const kva_node *n) {
  for (uint32_t i = 0; n->op->attrs && i < n->op->attrs->n_fields; i++) {
    const kva_attr_field *f = &n->op->attrs->fields[i];
    if (f->kind == KVA_ATTR_SYMBOLS) return *(const kva_dims *)kva_attr_at(n->attrs, f);
  }
  return (kva_dims){0};
}

void kva_node_move_before(kva_node *n, kva_node *before) {
  if (n == before) return;
  KVA_ASSERT(n->graph && before->graph && n->graph->module == before->graph->module);
  kva_graph *g = before->graph;
  unlink_node(n);
  link_node(g, n, before);
  set_results_graph(n, g);
}
