/* The verifier. Checks structure first; then infers each sound node again and compares. Values are visible from their
 * definition to the end of the defining graph, sub-graphs included. */
#include "ir/expr_internal.h"
#include "ir/ir_internal.h"

typedef struct verifier {
  kva_module *m;
  kva_arena *scratch;
  bool *visible;      /* by value id */
  bool *node_seen;    /* by node id */
  bool *value_seen;   /* by value id */
  uint32_t *uses;     /* by value id: operand slots visited */
  bool size_reported; /* one oversized size implies many others */
  KVA_VEC(kva_value *) values;
} verifier;

#define FAULT(v, n, ...) ((void)kva_error((v)->m->diag, &(n)->loc, __VA_ARGS__))

static const char *value_text(verifier *v, const kva_value *value) {
  if (value->name) return kva_arena_printf(v->scratch, "'%s' (value %u)", value->name, value->id);
  return kva_arena_printf(v->scratch, "value %u", value->id);
}

static const char *type_text(verifier *v, const kva_type *t) {
  if (!t) return "none";
  kva_text text = {0};
  kva_type_print(t, &text);
  const char *copy = kva_arena_strdup(v->scratch, text.data);
  kva_text_free(&text);
  return copy;
}

static bool has_overflow(const kva_type *t) {
  if (!t) return false;
  for (uint32_t i = 0; i < t->rank; i++) {
    if (kva_expr_is_overflow(t->dims[i])) return true;
  }
  return has_overflow(t->element);
}

/* In bits, because elements may be smaller than a byte. */
static bool has_overflowing_size(kva_module *m, const kva_type *t) {
  return t->kind == KVA_TYPE_TENSOR &&
         kva_expr_is_overflow(kva_expr_muli(m->exprs, kva_type_elements(m, t), kva_dtype_bits(t->dtype)));
}

static bool check_type(verifier *v, const kva_loc *loc, const char *what, const kva_type *t) {
  if (!t) {
    kva_error(v->m->diag, loc, "%s has no type", what);
    return false;
  }
  if (has_overflow(t)) {
    kva_error(v->m->diag, loc, "%s has a dimension that does not fit 64 bits: %s", what, type_text(v, t));
    return false;
  }
  if (v->size_reported || !has_overflowing_size(v->m, t)) return true;
  v->size_reported = true;
  kva_error(v->m->diag, loc, "%s has a size that does not fit 64 bits: %s", what, type_text(v, t));
  return false;
}

/* Records a definition. */
static bool define(verifier *v, kva_value *value, const kva_loc *loc, kva_graph *g) {
  const char *what = value_text(v, value);
  if (value->id >= v->m->next_value_id || v->value_seen[value->id]) {
    kva_error(v->m->diag, loc, "%s: its id is not unique in the module", what);
    return false;
  }
  v->value_seen[value->id] = true;
  v->visible[value->id] = true;
  KVA_PUSH(v->scratch, &v->values, value);
  if (value->graph != g) {
    kva_error(v->m->diag, loc, "%s does not know its graph", what);
    return false;
  }
  return check_type(v, loc, what, value->type);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

static bool check_operand(verifier *v, const kva_node *n, uint32_t i) {
  const kva_use *u = &n->operands[i];
  if (u->user != n || u->index != i) {
    FAULT(v, n, "kv.%s: operand %u does not know its place", n->op->name, i);
    return false;
  }
  if (!u->value) {
    if ((int)i >= n->op->min_operands && !(n->op->traits & KVA_RETURN)) return true;
    FAULT(v, n, "kv.%s: operand %u is required but left out", n->op->name, i);
    return false;
  }
  if (u->value->id >= v->m->next_value_id || !v->visible[u->value->id]) {
    FAULT(v, n, "kv.%s: operand %u is %s, which is not defined before this node", n->op->name, i,
          value_text(v, u->value));
    return false;
  }
  v->uses[u->value->id]++;
  if (u->prev_link && *u->prev_link == u) return true;
  FAULT(v, n, "kv.%s: operand %u is not in the use list of %s", n->op->name, i, value_text(v, u->value));
  return false;
}

static bool check_arity(verifier *v, const kva_node *n) {
  const kva_op_info *op = n->op;
  int n_in = (int)n->n_operands;
  if (n_in < op->min_operands || (op->max_operands >= 0 && n_in > op->max_operands)) {
    char most[32] = "";
    if (op->max_operands < 0)
      snprintf(most, sizeof most, " or more");
    else if (op->max_operands != op->min_operands)
      snprintf(most, sizeof most, " to %d", op->max_operands);
    FAULT(v, n, "kv.%s: expected %d%s operands, found %d", op->name, op->min_operands, most, n_in);
    return false;
  }
  if (op->n_results >= 0 && (int)n->n_results != op->n_results) {
    FAULT(v, n, "kv.%s: expected %d results, found %u", op->name, op->n_results, n->n_results);
    return false;
  }
  if ((n->attrs != NULL) == (op->attrs != NULL)) return true;
  FAULT(v, n, op->attrs ? "kv.%s: its attributes are missing" : "kv.%s takes no attributes", op->name);
  return false;
}

static bool check_dims(verifier *v, const kva_node *n, const char *name, uint32_t count, const kva_dim *dims) {
  for (uint32_t i = 0; i < count; i++) {
    if (!dims[i] || !kva_expr_is_overflow(dims[i])) continue;
    FAULT(v, n, "kv.%s: attribute '%s' holds a size that does not fit 64 bits", n->op->name, name);
    return false;
  }
  return true;
}

static bool check_attrs(verifier *v, const kva_node *n) {
  for (uint32_t i = 0; n->attrs && i < n->op->attrs->n_fields; i++) {
    const kva_attr_field *f = &n->op->attrs->fields[i];
    const void *p = kva_attr_at(n->attrs, f);
    if (f->kind == KVA_ATTR_DIM && !check_dims(v, n, f->name, 1, p)) return false;
    const kva_dims *dims = p;
    if (f->kind == KVA_ATTR_DIMS && !check_dims(v, n, f->name, dims->n, dims->v)) return false;
    if (f->kind != KVA_ATTR_STATE) continue;
    const kva_state *s = *(kva_state *const *)p;
    if (s && s->id < v->m->states.len && v->m->states.data[s->id] == s) continue;
    FAULT(v, n, "kv.%s: attribute '%s' names no state of this module", n->op->name, f->name);
    return false;
  }
  return true;
}

static void check_inference(verifier *v, const kva_node *n) {
  const kva_type **types = KVA_NEW_ARRAY(v->scratch, const kva_type *, n->n_results);
  size_t errors = kva_diag_errors(v->m->diag);
  if (n->op->infer(v->m, n, types) != KVA_OK) {
    if (kva_diag_errors(v->m->diag) == errors) FAULT(v, n, "kv.%s: its operands do not fit together", n->op->name);
    return;
  }
  for (uint32_t i = 0; i < n->n_results; i++) {
    if (types[i] == n->results[i].type) continue;
    FAULT(v, n, "kv.%s: result %u (%s) has type %s, but its operands make it %s", n->op->name, i,
          value_text(v, &n->results[i]), type_text(v, n->results[i].type), type_text(v, types[i]));
  }
}

static void check_graph(verifier *v, kva_graph *g);

static bool check_links(verifier *v, const kva_graph *g, const kva_node *n) {
  const kva_node *back = n->prev ? n->prev->next : g->first, *forth = n->next ? n->next->prev : g->last;
  if (n->graph != g || back != n || forth != n) {
    FAULT(v, n, "kv.%s: the node list around it is broken", n->op->name);
    return false;
  }
  if (n->id < v->m->next_node_id && !v->node_seen[n->id]) return v->node_seen[n->id] = true;
  FAULT(v, n, "kv.%s: its id %u is not unique in the module", n->op->name, n->id);
  return false;
}

static void check_node(verifier *v, kva_graph *g, kva_node *n) {
  bool sound = check_arity(v, n) && check_attrs(v, n);
  for (uint32_t i = 0; i < n->n_operands; i++) sound = check_operand(v, n, i) && sound;
  bool returns = n->op->traits & KVA_RETURN;
  if (returns != (n == g->last)) {
    FAULT(v, n, returns ? "kv.%s stands before the end of its graph" : "kv.%s ends its graph, which needs a return",
          n->op->name);
  }
  size_t errors = kva_diag_errors(v->m->diag);
  for (uint32_t i = 0; i < n->n_graphs; i++) {
    kva_graph *inner = n->graphs[i];
    if (inner->owner != n || inner->module != v->m) FAULT(v, n, "kv.%s: sub-graph %u is not its own", n->op->name, i);
    check_graph(v, inner);
  }
  for (uint32_t i = 0; i < n->n_results; i++) {
    kva_value *r = &n->results[i];
    if (r->def != n || r->index != i) FAULT(v, n, "kv.%s: result %u does not know its place", n->op->name, i);
    sound = define(v, r, &n->loc, g) && sound;
  }
  if (sound && kva_diag_errors(v->m->diag) == errors) check_inference(v, n);
}

static kva_loc function_loc(const kva_module *m, const kva_graph *g) {
  for (uint32_t i = 0; i < m->functions.len; i++)
    if (m->functions.data[i]->graph == g) return m->functions.data[i]->loc;
  return (kva_loc){0};
}

static void check_graph(verifier *v, kva_graph *g) {
  kva_loc loc = g->owner ? g->owner->loc : function_loc(v->m, g);
  uint32_t first_value = v->values.len;
  for (uint32_t i = 0; i < g->inputs.len; i++) {
    kva_value *in = g->inputs.data[i];
    if (in->def || in->index != i) kva_error(v->m->diag, &loc, "%s is not input %u", value_text(v, in), i);
    define(v, in, &loc, g);
  }
  if (!g->first) kva_error(v->m->diag, &loc, "a graph is empty: it needs a return");
  for (kva_node *n = g->first; n; n = n->next) {
    if (!check_links(v, g, n)) break; /* the list may not end */
    check_node(v, g, n);
  }
  for (uint32_t i = first_value; g->owner && i < v->values.len; i++) v->visible[v->values.data[i]->id] = false;
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

/* Every use in a list belongs to a visited operand slot: the counts agree. */
static void check_use_counts(verifier *v) {
  for (uint32_t i = 0; i < v->values.len; i++) {
    const kva_value *value = v->values.data[i];
    uint32_t n = kva_value_use_count(value), met = v->uses[value->id];
    if (n == met) continue;
    kva_loc loc = value->def ? value->def->loc : (kva_loc){0};
    kva_error(v->m->diag, &loc, "%s: its use list has %u uses, but %u operands of reachable nodes are it",
              value_text(v, value), n, met);
  }
}

static void check_states(verifier *v) {
  kva_map *names = kva_map_create(v->scratch);
  for (uint32_t i = 0; i < v->m->states.len; i++) {
    const kva_state *s = v->m->states.data[i];
    if (s->id != i) kva_error(v->m->diag, &s->loc, "state '%s': its id is not its place", s->name);
    if (kva_map_get_str(names, s->name)) kva_error(v->m->diag, &s->loc, "there are two states called '%s'", s->name);
    kva_map_set_str(names, s->name, v);
    check_type(v, &s->loc, kva_arena_printf(v->scratch, "state '%s'", s->name), s->type);
    if (s->init == KVA_INIT_DATA && !s->data) kva_error(v->m->diag, &s->loc, "state '%s' has no data", s->name);
    if ((s->init == KVA_INIT_ONE_MINUS || s->init == KVA_INIT_COPY) && !s->of)
      kva_error(v->m->diag, &s->loc, "state '%s' is made of another, which is not set", s->name);
  }
}

static void check_functions(verifier *v) {
  kva_map *names = kva_map_create(v->scratch);
  for (uint32_t i = 0; i < v->m->functions.len; i++) {
    kva_function *f = v->m->functions.data[i];
    if (kva_map_get_str(names, f->name)) kva_error(v->m->diag, &f->loc, "there are two functions '%s'", f->name);
    kva_map_set_str(names, f->name, v);
    if (f->graph->owner) kva_error(v->m->diag, &f->loc, "the body of '%s' belongs to a node", f->name);
    uint32_t first_value = v->values.len;
    check_graph(v, f->graph);
    for (uint32_t k = first_value; k < v->values.len; k++) v->visible[v->values.data[k]->id] = false;
  }
}

kva_status kva_module_verify(kva_module *m) {
  size_t errors = kva_diag_errors(m->diag);
  verifier v = {.m = m, .scratch = kva_arena_create()};
  v.visible = KVA_NEW_ARRAY(v.scratch, bool, m->next_value_id);
  v.value_seen = KVA_NEW_ARRAY(v.scratch, bool, m->next_value_id);
  v.node_seen = KVA_NEW_ARRAY(v.scratch, bool, m->next_node_id);
  v.uses = KVA_NEW_ARRAY(v.scratch, uint32_t, m->next_value_id);
  check_states(&v);
  check_functions(&v);
  check_use_counts(&v);
  if (kva_diag_errors(m->diag) == errors) kva_verify_symbols(m);
  kva_arena_destroy(v.scratch);
  return kva_diag_errors(m->diag) == errors ? KVA_OK : KVA_INVALID;
}
