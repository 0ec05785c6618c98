/* Text and Graphviz forms of a module; ir/README.md shows the text. */
#include "ir/ir_internal.h"

#include <inttypes.h>

typedef struct printer {
  kva_module *m;
  kva_text *out;
  kva_arena *scratch;
  kva_map *taken; /* name -> number that its next copy tries */
} printer;

/* ---- names ------------------------------------------------------------------------------------------------------- */

typedef struct name_count {
  uint32_t next;
} name_count;

static bool take(printer *p, const char *name) {
  if (kva_map_get_str(p->taken, name)) return false;
  name_count *count = KVA_NEW(p->scratch, name_count);
  count->next = 2;
  kva_map_set_str(p->taken, name, count);
  return true;
}

static void name_value(printer *p, kva_value *v) {
  if (v->name && *v->name && take(p, v->name)) return;
  const char *base = v->name && *v->name ? v->name : kva_arena_printf(p->scratch, "v%" PRIu32, v->id);
  const char *name = base;
  while (!take(p, name)) {
    name_count *count = kva_map_get_str(p->taken, base);
    name = kva_arena_printf(p->scratch, "%s_%" PRIu32, base, count->next++);
  }
  v->name = kva_arena_strdup(p->m->arena, name);
}

static void name_graph(printer *p, kva_graph *g) {
  for (uint32_t i = 0; i < g->inputs.len; i++) name_value(p, g->inputs.data[i]);
  for (kva_node *n = g->first; n; n = n->next) {
    for (uint32_t i = 0; i < n->n_results; i++) name_value(p, &n->results[i]);
    for (uint32_t i = 0; i < n->n_graphs; i++) name_graph(p, n->graphs[i]);
  }
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static void indent(printer *p, int depth) {
  kva_text_add(p->out, "%*s", 2 * depth, "");
}

static void print_typed(printer *p, const kva_type *type, const char *name) {
  kva_type_print(type, p->out);
  kva_text_add(p->out, " ");
  kva_print_name(p->out, name);
}

/* `(float[B] x) => (float[B] y)`; names NULL: the values' names. */
static void print_signature(printer *p, const kva_graph *g, const char *const *names) {
  kva_text_add(p->out, "(");
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    if (i) kva_text_add(p->out, ", ");
    print_typed(p, g->inputs.data[i]->type, g->inputs.data[i]->name);
  }
  kva_text_add(p->out, ") => (");
  for (uint32_t i = 0; i < kva_graph_output_count(g); i++) {
    const kva_value *v = kva_graph_output(g, i);
    if (i) kva_text_add(p->out, ", ");
    print_typed(p, v->type, names && names[i] ? names[i] : v->name);
  }
  kva_text_add(p->out, ")");
}

static void print_operands(printer *p, const kva_node *n) {
  kva_text_add(p->out, "(");
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = n->operands[i].value;
    if (i) kva_text_add(p->out, ", ");
    if (v) kva_print_name(p->out, v->name);
  }
  /* `f(a, )` has two operands, `f(a)` one. */
  if (n->n_operands && !n->operands[n->n_operands - 1].value) kva_text_add(p->out, ",");
  kva_text_add(p->out, ")");
}

static void print_nodes(printer *p, const kva_graph *g, int depth);

static void print_subgraph(printer *p, const kva_graph *g, int depth) {
  kva_text_add(p->out, " { ");
  print_signature(p, g, NULL);
  kva_text_add(p->out, "\n");
  print_nodes(p, g, depth + 1);
  indent(p, depth);
  kva_text_add(p->out, "}");
}

static void print_node(printer *p, const kva_node *n, int depth) {
  indent(p, depth);
  for (uint32_t i = 0; i < n->n_results; i++) {
    if (i) kva_text_add(p->out, ", ");
    kva_print_name(p->out, n->results[i].name);
  }
  if (n->n_results) kva_text_add(p->out, " = ");
  bool returns = n->op->traits & KVA_RETURN;
  kva_text_add(p->out, returns ? "%s " : "kv.%s ", n->op->name);
  kva_print_attrs(p->out, n->op->attrs, n->attrs);
  print_operands(p, n);
  for (uint32_t i = 0; i < n->n_graphs; i++) print_subgraph(p, n->graphs[i], depth);
  kva_text_add(p->out, "\n");
}

static void print_nodes(printer *p, const kva_graph *g, int depth) {
  for (const kva_node *n = g->first; n; n = n->next) print_node(p, n, depth);
}

static void print_function(printer *p, const kva_function *f) {
  p->taken = kva_map_create(p->scratch);
  name_graph(p, f->graph);
  kva_print_name(p->out, f->name);
  kva_text_add(p->out, " ");
  print_signature(p, f->graph, f->output_names);
  kva_text_add(p->out, "\n{\n");
  print_nodes(p, f->graph, 1);
  kva_text_add(p->out, "}\n");
}

/* ---- states, training -------------------------------------------------------------------------------------------- */

static void print_call(printer *p, const char *name, uint32_t n, double a, double b) {
  kva_text_add(p->out, "%s(", name);
  kva_text_add_double(p->out, a);
  if (n == 2) {
    kva_text_add(p->out, ", ");
    kva_text_add_double(p->out, b);
  }
  kva_text_add(p->out, ")");
}

static void print_init(printer *p, const kva_state *s) {
  switch (s->init) {
  case KVA_INIT_ZEROS: kva_text_add(p->out, "zeros"); break;
  case KVA_INIT_CONSTANT: print_call(p, "constant", 1, s->init_a, 0); break;
  case KVA_INIT_NORMAL: print_call(p, "normal", 1, s->init_a, 0); break;
  case KVA_INIT_UNIFORM: print_call(p, "uniform", 2, s->init_a, s->init_b); break;
  case KVA_INIT_DATA:
    kva_text_add(p->out, "data(");
    if (s->data) kva_print_tensor(p->out, s->data);
    kva_text_add(p->out, ")");
    break;
  case KVA_INIT_ONE_MINUS:
  case KVA_INIT_COPY:
    kva_text_add(p->out, s->init == KVA_INIT_COPY ? "copy(" : "one_minus(");
    if (s->of) kva_text_add_quoted(p->out, s->of->name);
    kva_text_add(p->out, ")");
    break;
  }
}

static void print_state(printer *p, const kva_state *s) {
  static const char *const kinds[] = {[KVA_STATE_PARAM] = "param",
                                      [KVA_STATE_MOMENT] = "moment",
                                      [KVA_STATE_BUFFER] = "buffer",
                                      [KVA_STATE_CACHE] = "cache"};
  kva_text_add(p->out, "state ");
  kva_type_print(s->type, p->out);
  kva_text_add(p->out, " ");
  kva_text_add_quoted(p->out, s->name);
  kva_text_add(p->out, " : %s", kinds[s->kind]);
  if (s->kind == KVA_STATE_MOMENT && s->of) {
    kva_text_add(p->out, " of ");
    kva_text_add_quoted(p->out, s->of->name);
  }
  kva_text_add(p->out, " ~ ");
  print_init(p, s);
  if (s->frozen) kva_text_add(p->out, " frozen");
  if (s->split) kva_text_add(p->out, s->split == KVA_SPLIT_ROWS ? " split_rows" : " split_columns");
  bool usual = s->type->rank >= 2; /* as in kva_state_create */
  if (s->decay != usual) kva_text_add(p->out, s->decay ? " decay" : " nodecay");
  kva_text_add(p->out, "\n");
}

static void print_str_entry(printer *p, const char *key, const char *value) {
  if (!value) return;
  kva_text_add(p->out, "  %s = ", key);
  kva_text_add_quoted(p->out, value);
  kva_text_add(p->out, "\n");
}

static void print_float_entry(printer *p, const char *key, double value) {
  kva_text_add(p->out, "  %s = ", key);
  kva_text_add_double(p->out, value);
  kva_text_add(p->out, "\n");
}

static void print_data_entry(printer *p, const kva_train_spec *t) {
  uint32_t n = t->data_args ? kva_map_len(t->data_args) : 0;
  if (!t->data || !n) {
    print_str_entry(p, "data", t->data);
    return;
  }
  kva_text_add(p->out, "  data = ");
  kva_print_name(p->out, t->data);
  for (uint32_t i = 0; i < n; i++) {
    size_t size;
    const char *key = kva_map_key_at(t->data_args, i, &size);
    kva_text_add(p->out, i ? ", " : " <");
    kva_print_name(p->out, kva_arena_strndup(p->scratch, key, size));
    kva_text_add(p->out, " = ");
    kva_text_add_double(p->out, *(const double *)kva_map_value_at(t->data_args, i));
  }
  kva_text_add(p->out, ">\n");
}

static void print_train(printer *p, const kva_train_spec *t) {
  kva_text_add(p->out, "train {\n");
  print_str_entry(p, "optimizer", t->optimizer);
  print_float_entry(p, "lr", t->lr);
  print_float_entry(p, "beta1", t->beta1);
  print_float_entry(p, "beta2", t->beta2);
  print_float_entry(p, "eps", t->eps);
  print_float_entry(p, "weight_decay", t->weight_decay);
  print_float_entry(p, "momentum", t->momentum);
  print_float_entry(p, "clip", t->clip);
  print_str_entry(p, "schedule", t->schedule);
  kva_text_add(p->out, "  warmup_steps = %" PRId64 "\n", t->warmup_steps);
  kva_text_add(p->out, "  total_steps = %" PRId64 "\n", t->total_steps);
  kva_text_add(p->out, "  batch = %" PRId64 "\n", t->batch);
  kva_text_add(p->out, "  steps = %" PRId64 "\n", t->steps);
  print_float_entry(p, "final_lr_ratio", t->final_lr_ratio);
  print_data_entry(p, t);
  kva_text_add(p->out, "}\n");
}

/* ---- Graphviz ---------------------------------------------------------------------------------------------------- */

/* Label text inside a quoted string: escapes quotes and backslashes. */
static void print_label(printer *p, const char *s) {
  for (; *s; s++) {
    if (*s == '"' || *s == '\\') kva_text_add(p->out, "\\");
    kva_text_add_bytes(p->out, s, 1);
  }
}

static void print_typed_label(printer *p, const char *name, const kva_type *type) {
  kva_text text = {0};
  kva_type_print(type, &text);
  print_label(p, name);
  kva_text_add(p->out, " : ");
  print_label(p, text.data);
  kva_text_free(&text);
}

static void dot_graph(printer *p, const kva_graph *g);

static void dot_node(printer *p, const kva_node *n) {
  kva_text attrs = {0};
  kva_print_attrs(&attrs, n->op->attrs, n->attrs);
  kva_text_add(p->out, "  n%" PRIu32 " [label=\"%s", n->id, n->op->name);
  if (attrs.data) {
    kva_text_add(p->out, "\\n");
    print_label(p, attrs.data);
  }
  kva_text_free(&attrs);
  for (uint32_t i = 0; i < n->n_results; i++) {
    kva_text_add(p->out, "\\n");
    print_typed_label(p, n->results[i].name, n->results[i].type);
  }
  kva_text_add(p->out, "\"];\n");
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = n->operands[i].value;
    if (v && v->def) kva_text_add(p->out, "  n%" PRIu32 " -> n%" PRIu32 ";\n", v->def->id, n->id);
    if (v && !v->def) kva_text_add(p->out, "  v%" PRIu32 " -> n%" PRIu32 ";\n", v->id, n->id);
  }
  for (uint32_t i = 0; i < n->n_graphs; i++) {
    kva_text_add(p->out, "  subgraph cluster_n%" PRIu32 "_%" PRIu32 " {\n", n->id, i);
    dot_graph(p, n->graphs[i]);
    kva_text_add(p->out, "  }\n");
  }
}

static void dot_graph(printer *p, const kva_graph *g) {
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    const kva_value *v = g->inputs.data[i];
    kva_text_add(p->out, "  v%" PRIu32 " [shape=ellipse, label=\"", v->id);
    print_typed_label(p, v->name, v->type);
    kva_text_add(p->out, "\"];\n");
  }
  for (const kva_node *n = g->first; n; n = n->next) dot_node(p, n);
}

/* ---- public ------------------------------------------------------------------------------------------------------ */

void kva_module_print(kva_module *m, kva_text *out) {
  printer p = {.m = m, .out = out, .scratch = kva_arena_create()};
  if (m->name) {
    kva_text_add(out, "module ");
    kva_text_add_quoted(out, m->name);
    kva_text_add(out, "\n");
  }
  for (uint32_t i = 0; i < m->states.len; i++) print_state(&p, m->states.data[i]);
  for (uint32_t i = 0; i < m->functions.len; i++) print_function(&p, m->functions.data[i]);
  if (m->train) print_train(&p, m->train);
  for (uint32_t i = 0; i < m->names.len; i++) kva_print_names(out, m->names.data[i]);
  kva_arena_destroy(p.scratch);
}

void kva_module_print_dot(kva_module *m, kva_text *out) {
  printer p = {.m = m, .out = out, .scratch = kva_arena_create()};
  kva_text_add(out, "digraph module {\n  node [shape=box];\n");
  for (uint32_t i = 0; i < m->functions.len; i++) {
    const kva_function *f = m->functions.data[i];
    p.taken = kva_map_create(p.scratch);
    name_graph(&p, f->graph);
    kva_text_add(out, "  subgraph cluster_f%" PRIu32 " {\n  label=\"", i);
    print_label(&p, f->name);
    kva_text_add(out, "\";\n");
    dot_graph(&p, f->graph);
    kva_text_add(out, "  }\n");
  }
  kva_text_add(out, "}\n");
  kva_arena_destroy(p.scratch);
}

/* ---- data by hash ------------------------------------------------------------------------------------------------ */

static const kva_tensor_data *find_in_graph(const kva_graph *g, uint64_t hash);

static const kva_tensor_data *find_in_node(const kva_node *n, uint64_t hash) {
  for (uint32_t i = 0; n->attrs && i < n->op->attrs->n_fields; i++) {
    const kva_attr_field *f = &n->op->attrs->fields[i];
    if (f->kind != KVA_ATTR_TENSOR) continue;
    const kva_tensor_data *t = *(const kva_tensor_data *const *)kva_attr_at(n->attrs, f);
    if (t && kva_tensor_hash(t, 0) == hash) return t;
  }
  for (uint32_t i = 0; i < n->n_graphs; i++) {
    const kva_tensor_data *t = find_in_graph(n->graphs[i], hash);
    if (t) return t;
  }
  return NULL;
}

static const kva_tensor_data *find_in_graph(const kva_graph *g, uint64_t hash) {
  const kva_tensor_data *found = NULL;
  for (const kva_node *n = g->first; n && !found; n = n->next) found = find_in_node(n, hash);
  return found;
}

const kva_tensor_data *kva_module_find_data(const kva_module *m, uint64_t hash) {
  for (uint32_t i = 0; i < m->states.len; i++) {
    const kva_tensor_data *t = m->states.data[i]->data;
    if (t && kva_tensor_hash(t, 0) == hash) return t;
  }
  const kva_tensor_data *found = NULL;
  for (uint32_t i = 0; i < m->functions.len && !found; i++) found = find_in_graph(m->functions.data[i]->graph, hash);
  return found;
}
