/* Symbols that nodes bind. A symbol has its value from the node that binds it to the end of that node's graph,
 * sub-graphs included: types and attributes use it only there, and nothing binds it again there. Sibling sub-graphs may
 * bind the same symbol. */
#include "ir/ir_internal.h"

typedef struct symbols {
  kva_module *m;
  kva_arena *scratch;
  kva_map *known;                  /* symbol that some node of the function binds -> bool *: has a value here */
  KVA_VEC(const kva_expr *) bound; /* symbols with a value, in order of binding */
  const kva_loc *loc;
  const char *user;
} symbols;

static bool *state_of(const symbols *s, const kva_expr *symbol) {
  return kva_map_get(s->known, &symbol, sizeof symbol);
}

static void collect(symbols *s, const kva_graph *g) {
  for (const kva_node *n = g->first; n; n = n->next) {
    kva_dims binds = kva_node_binds(n);
    for (uint32_t i = 0; i < binds.n; i++)
      if (!state_of(s, binds.v[i])) kva_map_set(s->known, &binds.v[i], sizeof binds.v[i], KVA_NEW(s->scratch, bool));
    for (uint32_t i = 0; i < n->n_graphs; i++) collect(s, n->graphs[i]);
  }
}

static void check_symbol(void *user, const kva_expr *symbol) {
  symbols *s = user;
  const bool *has_value = state_of(s, symbol);
  if (!has_value || *has_value) return;
  kva_error(s->m->diag, s->loc, "%s uses symbol '%s', which has no value here: the node that binds it stands elsewhere",
            s->user, symbol->name);
}

static void check_dims(symbols *s, uint32_t n, const kva_dim *dims) {
  for (uint32_t i = 0; i < n; i++)
    if (dims[i]) kva_expr_each_symbol(dims[i], check_symbol, s);
}

static void check_type(symbols *s, const kva_type *t) {
  if (t->kind == KVA_TYPE_TENSOR) check_dims(s, t->rank, t->dims);
}

static void check_attrs(symbols *s, const kva_node *n) {
  for (uint32_t i = 0; n->op->attrs && i < n->op->attrs->n_fields; i++) {
    const kva_attr_field *f = &n->op->attrs->fields[i];
    const kva_dims *dims = kva_attr_at(n->attrs, f);
    if (f->kind == KVA_ATTR_DIM) check_dims(s, 1, kva_attr_at(n->attrs, f));
    if (f->kind == KVA_ATTR_DIMS) check_dims(s, dims->n, dims->v);
  }
}

static void bind(symbols *s, const kva_node *n) {
  kva_dims binds = kva_node_binds(n);
  for (uint32_t i = 0; i < binds.n; i++) {
    bool *has_value = state_of(s, binds.v[i]);
    if (*has_value) kva_error(s->m->diag, &n->loc, "kv.%s binds a symbol a second time", n->op->name);
    *has_value = true;
    KVA_PUSH(s->scratch, &s->bound, binds.v[i]);
  }
}

static void check_graph(symbols *s, const kva_graph *g) {
  uint32_t outer = s->bound.len;
  s->user = "an input";
  for (uint32_t i = 0; i < g->inputs.len; i++) check_type(s, g->inputs.data[i]->type);
  for (const kva_node *n = g->first; n; n = n->next) {
    s->loc = &n->loc;
    for (uint32_t i = 0; i < n->n_graphs; i++) check_graph(s, n->graphs[i]);
    s->loc = &n->loc;
    s->user = kva_arena_printf(s->scratch, "kv.%s", n->op->name);
    check_attrs(s, n);
    bind(s, n);
    for (uint32_t i = 0; i < n->n_results; i++) check_type(s, n->results[i].type);
  }
  while (s->bound.len > outer) *state_of(s, s->bound.data[--s->bound.len]) = false;
}

void kva_verify_symbols(kva_module *m) {
  symbols s = {.m = m, .scratch = kva_arena_create()};
  for (uint32_t i = 0; i < m->functions.len; i++) {
    s.known = kva_map_create(s.scratch);
    s.loc = &m->functions.data[i]->loc;
    collect(&s, m->functions.data[i]->graph);
    if (kva_map_len(s.known)) check_graph(&s, m->functions.data[i]->graph);
  }
  kva_arena_destroy(s.scratch);
}
