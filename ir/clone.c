/* Deep copy of a module. Expressions, values and nodes keep their ids, so the copy prints and compiles the same. */
#include "ir/expr_internal.h"
#include "ir/ir_internal.h"
#include "ir/names.h"

typedef struct cloner {
  const kva_module *from;
  kva_module *to;
  kva_arena *scratch;
  kva_map *copies;    /* original pointer -> copy: types, strings of locations, tensors, bytes */
  kva_value **values; /* by id */
  bool borrows;       /* tensors keep their data where they are */
} cloner;

static void *known_copy(cloner *c, const void *p) {
  return kva_map_get(c->copies, &p, sizeof p);
}

static void remember(cloner *c, const void *p, const void *copy) {
  kva_map_set(c->copies, &p, sizeof p, (void *)(uintptr_t)copy);
}

static kva_dim clone_dim(cloner *c, kva_dim e) {
  KVA_ASSERT(!e || e->id < c->to->exprs->all.len);
  return e ? c->to->exprs->all.data[e->id] : NULL;
}

static const char *clone_str(cloner *c, const char *s) {
  return s ? kva_arena_strdup(c->to->arena, s) : NULL;
}

/* Locations share their strings. */
static const char *clone_shared_str(cloner *c, const char *s) {
  if (!s) return NULL;
  const char *copy = known_copy(c, s);
  if (copy) return copy;
  copy = clone_str(c, s);
  remember(c, s, copy);
  return copy;
}

static kva_loc clone_loc(cloner *c, kva_loc loc) {
  loc.file = clone_shared_str(c, loc.file);
  loc.source = clone_shared_str(c, loc.source);
  loc.node = clone_shared_str(c, loc.node);
  return loc;
}

static const kva_dim *clone_dims(cloner *c, uint32_t n, const kva_dim *dims) {
  kva_dim *copy = KVA_NEW_ARRAY(c->to->arena, kva_dim, n);
  for (uint32_t i = 0; i < n; i++) copy[i] = clone_dim(c, dims[i]);
  return copy;
}

static const kva_type *clone_type(cloner *c, const kva_type *t) {
  if (!t) return NULL;
  const kva_type *copy = known_copy(c, t);
  if (copy) return copy;
  copy = t->kind == KVA_TYPE_TENSOR ? kva_type_tensor(c->to, t->dtype, t->rank, clone_dims(c, t->rank, t->dims))
                                    : kva_type_of(c->to, t->kind, clone_type(c, t->element));
  remember(c, t, copy);
  return copy;
}

static const kva_tensor_data *clone_tensor(cloner *c, const kva_tensor_data *t) {
  if (!t) return NULL;
  kva_tensor_data *copy = known_copy(c, t);
  if (copy) return copy;
  copy = kva_arena_memdup(c->to->arena, t, sizeof *t);
  copy->dims = kva_arena_memdup(c->to->arena, t->dims, t->rank * sizeof *t->dims);
  if (t->bytes && !c->borrows) copy->data = kva_arena_memdup(c->to->arena, t->data, (size_t)t->bytes);
  copy->spare = t->spare && !c->borrows;
  remember(c, t, copy);
  return copy;
}

static void clone_field(cloner *c, const kva_attr_field *f, void *p) {
  switch (f->kind) {
  case KVA_ATTR_INT:
  case KVA_ATTR_FLOAT:
  case KVA_ATTR_BOOL:
  case KVA_ATTR_DTYPE: break;
  case KVA_ATTR_STR: *(const char **)p = clone_str(c, *(const char **)p); break;
  case KVA_ATTR_INTS: {
    kva_ints *x = p;
    x->v = kva_arena_memdup(c->to->arena, x->v, x->n * sizeof *x->v);
    break;
  }
  case KVA_ATTR_DIM: *(kva_dim *)p = clone_dim(c, *(kva_dim *)p); break;
  case KVA_ATTR_DIMS:
  case KVA_ATTR_SYMBOLS: {
    kva_dims *x = p;
    x->v = clone_dims(c, x->n, x->v);
    break;
  }
  case KVA_ATTR_TENSOR: *(const kva_tensor_data **)p = clone_tensor(c, *(const kva_tensor_data **)p); break;
  case KVA_ATTR_STATE: {
    kva_state **s = p;
    if (*s) *s = c->to->states.data[(*s)->id];
    break;
  }
  }
}

static void *clone_attrs(cloner *c, const kva_node *n) {
  if (!n->attrs) return NULL;
  const kva_attr_desc *desc = n->op->attrs;
  void *copy = kva_arena_memdup(c->to->arena, n->attrs, desc->size);
  for (uint32_t i = 0; i < desc->n_fields; i++) {
    clone_field(c, &desc->fields[i], (unsigned char *)copy + desc->fields[i].offset);
  }
  return copy;
}

static void clone_value(cloner *c, const kva_value *v, kva_value *copy) {
  copy->type = clone_type(c, v->type);
  copy->name = clone_str(c, v->name);
  copy->id = v->id;
  c->values[v->id] = copy;
}

static void clone_graph(cloner *c, const kva_graph *g, kva_graph *copy);

static void clone_node(cloner *c, const kva_node *n, kva_graph *g) {
  kva_value **operands = KVA_NEW_ARRAY(c->scratch, kva_value *, n->n_operands);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    if (n->operands[i].value) operands[i] = c->values[n->operands[i].value->id];
    KVA_ASSERT(!n->operands[i].value || operands[i]); /* definitions come before uses */
  }
  kva_node *copy =
      kva_node_create(g, NULL, n->op, n->n_operands, operands, n->n_results, clone_attrs(c, n), clone_loc(c, n->loc));
  copy->id = n->id;
  for (uint32_t i = 0; i < n->n_results; i++) clone_value(c, &n->results[i], &copy->results[i]);
  for (uint32_t i = 0; i < n->n_graphs; i++) clone_graph(c, n->graphs[i], kva_graph_create(c->to, copy));
}

static void clone_graph(cloner *c, const kva_graph *g, kva_graph *copy) {
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    const kva_value *v = g->inputs.data[i];
    clone_value(c, v, kva_graph_add_input(copy, clone_type(c, v->type), NULL));
  }
  for (const kva_node *n = g->first; n; n = n->next) clone_node(c, n, copy);
}

static void clone_states(cloner *c) {
  for (uint32_t i = 0; i < c->from->states.len; i++) {
    const kva_state *s = c->from->states.data[i];
    kva_state *copy = kva_state_create(c->to, s->name, clone_type(c, s->type), s->kind);
    const char *name = copy->name;
    const kva_type *type = copy->type;
    *copy = *s;
    copy->name = name;
    copy->type = type;
    copy->data = clone_tensor(c, s->data);
    copy->loc = clone_loc(c, s->loc);
    if (s->whole) copy->whole = clone_type(c, s->whole);
    if (s->full) copy->full = clone_type(c, s->full);
  }
  for (uint32_t i = 0; i < c->to->states.len; i++) {
    kva_state *s = c->to->states.data[i];
    if (s->of) s->of = c->to->states.data[s->of->id];
  }
}

static void clone_function(cloner *c, const kva_function *f) {
  kva_function *copy = kva_function_create(c->to, f->name);
  copy->loc = clone_loc(c, f->loc);
  copy->stage = f->stage;
  clone_graph(c, f->graph, copy->graph);
  uint32_t n = kva_graph_output_count(f->graph);
  if (f->updates) copy->updates = kva_arena_memdup(c->to->arena, f->updates, n * sizeof *f->updates);
  if (f->output_roles)
    copy->output_roles = kva_arena_memdup(c->to->arena, f->output_roles, n * sizeof *f->output_roles);
  if (!f->output_names) return;
  const char **names = KVA_NEW_ARRAY(c->to->arena, const char *, n);
  for (uint32_t i = 0; i < n; i++) names[i] = clone_str(c, f->output_names[i]);
  copy->output_names = names;
}

static kva_train_spec *clone_train(cloner *c, const kva_train_spec *t) {
  kva_train_spec *copy = kva_arena_memdup(c->to->arena, t, sizeof *t);
  copy->optimizer = clone_str(c, t->optimizer);
  copy->schedule = clone_str(c, t->schedule);
  copy->data = clone_str(c, t->data);
  copy->loc = clone_loc(c, t->loc);
  if (!t->data_args) return copy;
  copy->data_args = kva_map_create(c->to->arena);
  for (uint32_t i = 0; i < kva_map_len(t->data_args); i++) {
    size_t size;
    const void *key = kva_map_key_at(t->data_args, i, &size);
    kva_map_set(copy->data_args, key, size,
                kva_arena_memdup(c->to->arena, kva_map_value_at(t->data_args, i), sizeof(double)));
  }
  return copy;
}

static const char **clone_strs(cloner *c, uint32_t n, const char *const *v) {
  const char **copy = KVA_NEW_ARRAY(c->to->arena, const char *, n + 1);
  for (uint32_t i = 0; i < n; i++) copy[i] = clone_str(c, v[i]);
  return copy;
}

static void clone_row(cloner *c, const kva_naming *from, kva_names *to) {
  kva_naming row = *from;
  row.own = clone_str(c, from->own);
  row.value = clone_str(c, from->value);
  row.names = clone_strs(c, from->n_names, from->names);
  row.allowed = clone_strs(c, from->n_allowed, from->allowed);
  row.loc = clone_loc(c, from->loc);
  KVA_PUSH(c->to->arena, &to->rows, row);
}

static void clone_names(cloner *c, const kva_names *from) {
  kva_names *copy = KVA_NEW(c->to->arena, kva_names);
  *copy = (kva_names){
      .format = clone_str(c, from->format), .prefix = clone_str(c, from->prefix), .loc = clone_loc(c, from->loc)};
  for (uint32_t i = 0; i < from->rows.len; i++) clone_row(c, &from->rows.data[i], copy);
  copy->ignored =
      (kva_strs){clone_strs(c, from->ignored.len, from->ignored.data), from->ignored.len, from->ignored.len};
  copy->buffers =
      (kva_strs){clone_strs(c, from->buffers.len, from->buffers.data), from->buffers.len, from->buffers.len};
  KVA_PUSH(c->to->arena, &c->to->names, copy);
}

static cloner cloner_of(const kva_module *m) {
  cloner c = {.from = m, .to = kva_module_create(m->diag), .scratch = kva_arena_create()};
  c.copies = kva_map_create(c.scratch);
  c.values = KVA_NEW_ARRAY(c.scratch, kva_value *, m->next_value_id);
  c.to->exprs = kva_expr_ctx_clone(m->exprs, c.to->arena);
  c.to->name = clone_str(&c, m->name);
  return c;
}

kva_module *kva_module_clone(const kva_module *m) {
  cloner c = cloner_of(m);
  clone_states(&c);
  for (uint32_t i = 0; i < m->functions.len; i++) clone_function(&c, m->functions.data[i]);
  if (m->train) c.to->train = clone_train(&c, m->train);
  for (uint32_t i = 0; i < m->names.len; i++) clone_names(&c, m->names.data[i]);
  for (uint32_t i = 0; i < m->properties.len; i++)
    kva_module_add_property(c.to, m->properties.data[i].key, m->properties.data[i].value);
  c.to->mesh = m->mesh;
  c.to->next_value_id = m->next_value_id;
  c.to->next_node_id = m->next_node_id;
  kva_arena_destroy(c.scratch);
  return c.to;
}

/* What nodes of a part read of others becomes an input. */
static void add_part_inputs(cloner *c, const kva_node *n, kva_graph *g) {
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = n->operands[i].value;
    if (!v || c->values[v->id]) continue;
    clone_value(c, v, kva_graph_add_input(g, clone_type(c, v->type), NULL));
  }
}

static void name_outputs(cloner *c, kva_function *f, uint32_t n, kva_value *const *outputs) {
  const char **names = KVA_NEW_ARRAY(c->to->arena, const char *, n + 1);
  for (uint32_t i = 0; i < n; i++)
    names[i] = outputs[i]->name ? outputs[i]->name : kva_arena_printf(c->to->arena, "v%u", outputs[i]->id);
  f->output_names = names;
}

kva_module *kva_module_part(const kva_module *m, const bool *keep, uint32_t n_outputs,
                            const kva_value *const *outputs) {
  cloner c = cloner_of(m);
  c.borrows = true;
  const kva_function *from = m->functions.data[0];
  kva_function *f = kva_function_create(c.to, from->name);
  f->loc = clone_loc(&c, from->loc);
  for (const kva_node *n = from->graph->first; n; n = n->next) {
    if (!keep[n->id]) continue;
    add_part_inputs(&c, n, f->graph);
    clone_node(&c, n, f->graph);
  }
  c.to->next_value_id = m->next_value_id;
  c.to->next_node_id = m->next_node_id;
  kva_value **results = KVA_NEW_ARRAY(c.scratch, kva_value *, n_outputs + 1);
  for (uint32_t i = 0; i < n_outputs; i++) results[i] = c.values[outputs[i]->id];
  kva_node_create(f->graph, NULL, from->graph->last->op, n_outputs, results, 0, NULL, f->loc);
  name_outputs(&c, f, n_outputs, results);
  kva_arena_destroy(c.scratch);
  return c.to;
}
