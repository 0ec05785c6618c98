/* Exports if and loop as If and Loop. ONNX sub-graphs see the surrounding names, so captured operands keep their names
 * and are not inputs. Initialisers remain in the main graph. */
#include "frontend/onnx_export.h"

/* State of the enclosing graph, set aside while a sub-graph is written. */
typedef struct subgraph {
  kva_pb_graph *graph, *outer;
  KVA_VEC(kva_pb_node *) outer_nodes;
  kva_map *outer_dims;
} subgraph;

/* Names of the enclosing graph are visible inside, but not the reverse. */
static kva_map *inner_dims(kva_export *e) {
  kva_map *dims = kva_map_create(e->arena);
  for (uint32_t i = 0; i < kva_map_len(e->dims); i++) {
    size_t size;
    const void *key = kva_map_key_at(e->dims, i, &size);
    kva_map_set(dims, key, size, kva_map_value_at(e->dims, i));
  }
  return dims;
}

static subgraph open_subgraph(kva_export *e, const char *hint) {
  subgraph s = {.graph = KVA_NEW(e->arena, kva_pb_graph), .outer = e->graph, .outer_dims = e->dims};
  memcpy(&s.outer_nodes, &e->nodes, sizeof e->nodes);
  memset(&e->nodes, 0, sizeof e->nodes);
  onnx__graph_proto__init(s.graph);
  s.graph->name = kva_arena_strdup(e->arena, kva_export_fresh(e, hint));
  e->graph = s.graph;
  e->dims = inner_dims(e);
  return s;
}

static void close_subgraph(kva_export *e, subgraph *s) {
  s->graph->n_node = e->nodes.len;
  s->graph->node = e->nodes.data;
  memcpy(&e->nodes, &s->outer_nodes, sizeof e->nodes);
  e->graph = s->outer;
  e->dims = s->outer_dims;
}

/* Input `i` of g gets the name of the operand that n captures. */
static void capture(kva_export *e, const kva_graph *g, uint32_t i, const kva_node *n, uint32_t operand) {
  e->names[g->inputs.data[i]->id] = kva_export_in(e, n, operand);
}

static void add_input(kva_export *e, const char *name, const kva_type *type) {
  kva_pb_graph *g = e->graph;
  kva_pb_value_info **list = KVA_NEW_ARRAY(e->arena, kva_pb_value_info *, g->n_input + 1);
  for (size_t i = 0; i < g->n_input; i++) list[i] = g->input[i];
  list[g->n_input++] = kva_export_value_info(e, name, type);
  g->input = list;
}

/* Outputs must be distinct values of the sub-graph itself: Identity nodes ensure that. */
static void write_outputs(kva_export *e, uint32_t n, const char *const *from, const kva_graph *g) {
  e->graph->n_output = n;
  e->graph->output = KVA_NEW_ARRAY(e->arena, kva_pb_value_info *, n + 1);
  for (uint32_t i = 0; i < n; i++) {
    const char *name = kva_export_fresh(e, "out");
    (void)kva_export_node(e, "Identity", 1, &from[i], name);
    e->graph->output[i] = kva_export_value_info(e, name, kva_graph_output(g, i)->type);
  }
}

static const char **output_names(kva_export *e, const kva_graph *g) {
  uint32_t n = kva_graph_output_count(g);
  const char **names = KVA_NEW_ARRAY(e->arena, const char *, n + 1);
  for (uint32_t i = 0; i < n; i++) names[i] = kva_export_name(e, kva_graph_output(g, i));
  return names;
}

/* Extents that n binds are read from its results. */
static void name_extents(kva_export *e, const kva_node *n) {
  kva_dims binds = kva_node_binds(n);
  for (uint32_t r = 0; r < n->n_results; r++)
    for (uint32_t k = 0; k < n->results[r].type->rank; k++)
      for (uint32_t s = 0; s < binds.n; s++) {
        const kva_expr *symbol = binds.v[s];
        if (n->results[r].type->dims[k] != symbol || kva_map_get(e->dims, &symbol, sizeof symbol)) continue;
        const char *result = kva_export_name(e, &n->results[r]);
        kva_pb_node *shape = kva_export_node(e, "Shape", 1, &result, NULL);
        kva_export_int(e, shape, "start", k);
        kva_export_int(e, shape, "end", k + 1);
        kva_map_set(e->dims, &symbol, sizeof symbol, (void *)(uintptr_t)kva_export_out(shape));
      }
}

static void name_results(kva_export *e, const kva_node *n, kva_pb_node *p) {
  kva_export_set(e, n, 0, p->output[0]);
  for (uint32_t r = 1; r < n->n_results; r++) {
    const char *name = kva_export_result_name(e, n, r);
    kva_export_add_output(e, p, name);
    kva_export_set(e, n, r, name);
  }
  kva_export_name_node(e, p, n);
  name_extents(e, n);
}

/* ---- if ---------------------------------------------------------------------------------------------------------- */

static kva_status write_branch(kva_export *e, const kva_node *n, uint32_t which, kva_pb_graph **out) {
  const kva_graph *g = n->graphs[which];
  subgraph s = open_subgraph(e, which ? "else" : "then");
  for (uint32_t i = 0; i < g->inputs.len; i++) capture(e, g, i, n, i + 1);
  kva_status status = kva_export_nodes(e, g);
  if (!status) write_outputs(e, n->n_results, output_names(e, g), g);
  close_subgraph(e, &s);
  *out = s.graph;
  return status;
}

kva_status kva_export_if(kva_export *e, const kva_node *n, const char *op_type) {
  kva_pb_graph *then, *orelse;
  if (!n->n_results) return KVA_OK;
  KVA_TRY(write_branch(e, n, 0, &then));
  KVA_TRY(write_branch(e, n, 1, &orelse));
  const char *cond = kva_export_in(e, n, 0);
  kva_pb_node *p = kva_export_node(e, op_type, 1, &cond, kva_export_result_name(e, n, 0));
  kva_export_graph(e, p, "then_branch", then);
  kva_export_graph(e, p, "else_branch", orelse);
  name_results(e, n, p);
  return KVA_OK;
}

/* ---- loop -------------------------------------------------------------------------------------------------------- */

static kva_status write_body(kva_export *e, const kva_node *n, kva_pb_graph **out) {
  const kva_graph *g = n->graphs[0];
  uint32_t carried = (uint32_t)((const kva_loop_attrs *)n->attrs)->carried;
  subgraph s = open_subgraph(e, "body");
  for (uint32_t i = 0; i <= carried; i++) {
    const char *name = e->names[g->inputs.data[i]->id] = kva_export_fresh(e, i ? "carried" : "iteration");
    add_input(e, name, g->inputs.data[i]->type);
    if (!i) add_input(e, kva_export_fresh(e, "cond"), kva_type_scalar(e->m, KVA_BOOL));
  }
  for (uint32_t i = carried + 1; i < g->inputs.len; i++) capture(e, g, i, n, i + 1);
  kva_status status = kva_export_nodes(e, g);
  if (!status) {
    const char **from = output_names(e, g);
    if (!kva_operand(n, 1)) from[0] = kva_export_scalar(e, KVA_BOOL, 1); /* the body's own value is ignored */
    write_outputs(e, kva_graph_output_count(g), from, g);
  }
  close_subgraph(e, &s);
  *out = s.graph;
  return status;
}

kva_status kva_export_loop(kva_export *e, const kva_node *n, const char *op_type) {
  kva_pb_graph *body;
  uint32_t n_in = 2 + (uint32_t)((const kva_loop_attrs *)n->attrs)->carried;
  if (!n->n_results) return KVA_OK;
  KVA_TRY(write_body(e, n, &body));
  const char **in = KVA_NEW_ARRAY(e->arena, const char *, n_in);
  for (uint32_t i = 0; i < n_in; i++) in[i] = kva_export_in(e, n, i);
  if (!in[1]) in[1] = ""; /* the checker of ONNX wants two inputs, named or not */
  kva_pb_node *p = kva_export_node(e, op_type, n_in, in, kva_export_result_name(e, n, 0));
  kva_export_graph(e, p, "body", body);
  name_results(e, n, p);
  return KVA_OK;
}
