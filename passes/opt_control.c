/* Simplifies control flow that is known before the run, and removes unused parts of the rest.
 *
 * What: a symbol bound to a constant or to an expression of other symbols is replaced by it. An `if` with a constant
 * condition becomes the taken branch; one with small branches of equal types becomes a selection. A `loop` without
 * iterations becomes its initial values. A trip count that is an expression becomes an attribute, and a condition that
 * is always true is dropped, so that stacked results get extents known before the run. Constants sink into the
 * sub-graphs that use them. Unused results, captured values and conditions are removed. The result of a carried value
 * that never changes is its initial value.
 *
 * Algorithm: one sweep over every graph, inner ones first. Requires: SSA order. Breaks: nothing; leaves dead nodes to
 * dce.
 *
 * Why loops with few iterations stay: the importer has already unrolled those that it knows; folding rarely finds
 * more. */
#include "passes/passes_internal.h"

enum { SELECTED_NODES = 16 };

typedef struct control {
  kva_module *m;
  kva_arena *scratch;
  bool changed;
} control;

/* The scalar as an expression, if it is constant or made from one; NULL: it depends on data. */
static kva_dim known_scalar(kva_module *m, const kva_value *v) {
  const kva_tensor_data *t = kva_constant_of(v);
  if (t && t->rank == 0) return kva_expr_const(m->exprs, kva_load_i64(t->dtype, t->data, 0));
  if (!v || !v->def || !kva_is(v->def, KVA_OP_dims)) return NULL;
  const kva_dims_attrs *a = v->def->attrs;
  return a->scalar ? a->values.v[0] : NULL;
}

static bool is_known(kva_module *m, const kva_value *v, int64_t wanted) {
  kva_dim e = known_scalar(m, v);
  return e && kva_expr_is(e, wanted);
}

/* ---- bind -------------------------------------------------------------------------------------------------------- */

/* The bound only limits an unknown size, so a known size needs none. */
static bool settle_bind(control *c, kva_node *n) {
  const kva_bind_attrs *a = n->attrs;
  kva_dim value = known_scalar(c->m, kva_operand(n, 0));
  int64_t low;
  if (!value || !kva_expr_lower_bound(value, &low) || low < 0) return false; /* negative values are run-time errors */
  kva_replace_symbol(n->graph, a->symbol.v[0], value);
  kva_node_remove(n);
  return true;
}

/* ---- inlining ---------------------------------------------------------------------------------------------------- */

/* Renames the symbols that g binds, so that they are unique outside. */
static void rename_symbols(kva_graph *g) {
  for (const kva_node *n = g->first; n; n = n->next) {
    kva_dims binds = kva_node_binds(n);
    for (uint32_t i = 0; i < binds.n; i++)
      kva_replace_symbol(g, binds.v[i], kva_expr_new_symbol(g->module->exprs, binds.v[i]->name));
  }
}

/* Moves the nodes of a branch before n and replaces the branch's inputs by n's operands. */
static void inline_branch(kva_node *n, kva_graph *g) {
  KVA_ASSERT(g->owner == n && g->inputs.len + 1 == n->n_operands);
  rename_symbols(g);
  for (uint32_t i = 0; i < g->inputs.len; i++) kva_value_replace_all_uses(g->inputs.data[i], kva_operand(n, i + 1));
  for (kva_node *inner = g->first, *next; inner != g->last; inner = next) {
    next = inner->next;
    kva_node_move_before(inner, n);
  }
}

/* Replaces extents that n binds by those of the branch's outputs. */
static void settle_extents(kva_node *n, const kva_graph *g) {
  kva_dims binds = kva_node_binds(n);
  for (uint32_t s = 0; s < binds.n; s++)
    for (uint32_t r = 0; r < n->n_results; r++)
      for (uint32_t k = 0; k < n->results[r].type->rank; k++)
        if (n->results[r].type->dims[k] == binds.v[s])
          kva_replace_symbol(n->graph, binds.v[s], kva_graph_output(g, r)->type->dims[k]);
}

static bool take_branch(control *c, kva_node *n) {
  kva_dim cond = known_scalar(c->m, kva_operand(n, 0));
  if (!cond) return false;
  kva_graph *g = n->graphs[kva_expr_is(cond, 0) ? 1 : 0];
  inline_branch(n, g);
  settle_extents(n, g);
  for (uint32_t r = 0; r < n->n_results; r++) {
    KVA_ASSERT(kva_graph_output(g, r)->type == n->results[r].type);
    kva_value_replace_all_uses(&n->results[r], kva_graph_output(g, r));
  }
  kva_node_remove(n);
  return true;
}

static bool is_static(const kva_node *n) {
  bool all = true;
  for (uint32_t r = 0; r < n->n_results; r++) all &= kva_type_is_static(n->results[r].type);
  for (uint32_t i = 0; i < n->n_operands; i++) all &= !kva_operand(n, i) || kva_type_is_static(kva_operand_type(n, i));
  return all;
}

/* Whether the node is cheap and harmless if its branch is not taken; a slice of an extent that only the branch
 * guarantees is not. */
static bool may_be_selected(const kva_node *n) {
  if (kva_is(n, KVA_OP_constant) || kva_is(n, KVA_OP_dims) || kva_is(n, KVA_OP_iota)) return true;
  if ((n->op->traits & KVA_VIEW) && !is_static(n)) return false;
  return n->op->traits & (KVA_ELEMENTWISE | KVA_VIEW) && !(n->op->traits & KVA_UPDATES);
}

static bool is_small_branch(const kva_graph *g) {
  uint32_t nodes = 0;
  for (const kva_node *n = g->first; n != g->last; n = n->next)
    if (!may_be_selected(n) || ++nodes > SELECTED_NODES) return false;
  return true;
}

static bool select_results(control *c, kva_node *n) {
  if (kva_node_binds(n).n || !is_small_branch(n->graphs[0]) || !is_small_branch(n->graphs[1])) return false;
  for (uint32_t i = 0; i < 2; i++) inline_branch(n, n->graphs[i]);
  kva_builder b = kva_builder_before(c->m, n);
  for (uint32_t r = 0; r < n->n_results; r++) {
    kva_value *yes = kva_graph_output(n->graphs[0], r), *no = kva_graph_output(n->graphs[1], r);
    kva_value *v = yes == no ? yes : kva_build3(&b, KVA_OP_where, kva_operand(n, 0), yes, no);
    KVA_ASSERT(!b.failed && v->type == n->results[r].type);
    if (!v->name) v->name = n->results[r].name;
    kva_value_replace_all_uses(&n->results[r], v);
  }
  kva_node_remove(n);
  return true;
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

/* A private copy: copies of a node share attributes. */
static kva_loop_attrs *own_attrs(kva_node *n) {
  n->attrs = kva_arena_memdup(n->graph->module->arena, n->attrs, sizeof(kva_loop_attrs));
  return n->attrs;
}

static bool note_trips(control *c, kva_node *n) {
  kva_dim count = known_scalar(c->m, kva_operand(n, 0));
  if (!count || ((const kva_loop_attrs *)n->attrs)->trips) return false;
  own_attrs(n)->trips = kva_expr_max(c->m->exprs, count, kva_expr_const(c->m->exprs, 0));
  return true;
}

static bool drop_condition(control *c, kva_node *n) {
  if (!kva_operand(n, 1) || !is_known(c->m, kva_operand(n, 1), 1)) return false;
  if (!is_known(c->m, kva_graph_output(n->graphs[0], 0), 1)) return false;
  kva_node_set_operand(n, 1, NULL);
  return true;
}

/* Without a condition the body's go_on output is ignored. */
static bool forget_condition(control *c, kva_node *n) {
  kva_graph *body = n->graphs[0];
  if (kva_operand(n, 1) || is_known(c->m, kva_graph_output(body, 0), 1)) return false;
  kva_builder b = kva_builder_before(c->m, body->last);
  kva_node_set_operand(body->last, 0, kva_const_scalar(&b, KVA_BOOL, 1));
  return true;
}

static void settle_stacks(kva_node *n) {
  const kva_loop_attrs *a = n->attrs;
  if (!a->trips || kva_operand(n, 1) || !a->binds.n) return;
  kva_replace_symbol(n->graph, a->binds.v[0], a->trips);
  own_attrs(n)->binds = (kva_dims){0};
}

static bool skip_loop(control *c, kva_node *n) {
  const kva_loop_attrs *a = n->attrs;
  bool never = is_known(c->m, kva_operand(n, 1), 0), none = a->trips && kva_expr_is(a->trips, 0);
  if (!never && !none) return false;
  if (a->binds.n) kva_replace_symbol(n->graph, a->binds.v[0], kva_expr_const(c->m->exprs, 0));
  kva_builder b = kva_builder_before(c->m, n);
  for (uint32_t r = 0; r < n->n_results; r++) {
    kva_value *v = r < a->carried ? kva_operand(n, r + 2) : kva_zeros(&b, n->results[r].type);
    kva_value_replace_all_uses(&n->results[r], v);
  }
  kva_node_remove(n);
  return true;
}

/* ---- operands and results of sub-graphs -------------------------------------------------------------------------- */

/* Operand i of either operator is input i - 1 of the sub-graphs. Returns the first captured operand. */
static uint32_t first_captured(const kva_node *n) {
  return kva_is(n, KVA_OP_if) ? 1 : 2 + (uint32_t)((const kva_loop_attrs *)n->attrs)->carried;
}

static kva_value *input_of(const kva_node *n, uint32_t graph, uint32_t operand) {
  KVA_ASSERT(operand > 0 && operand <= n->graphs[graph]->inputs.len);
  return n->graphs[graph]->inputs.data[operand - 1];
}

static bool is_input_used(const kva_node *n, uint32_t operand) {
  for (uint32_t i = 0; i < n->n_graphs; i++)
    if (input_of(n, i, operand)->uses) return true;
  return false;
}

/* Recomputes constants and functions of symbols where they are used, and merges duplicate captures. */
static bool sink_operands(kva_node *n) {
  bool changed = false;
  for (uint32_t k = first_captured(n); k < n->n_operands; k++) {
    const kva_value *v = kva_operand(n, k);
    uint32_t same = first_captured(n);
    while (kva_operand(n, same) != v) same++;
    bool made = v->def && !v->def->n_operands && kva_node_is_pure(v->def);
    if ((!made && same == k) || !is_input_used(n, k)) continue;
    for (uint32_t i = 0; i < n->n_graphs; i++) {
      kva_graph *g = n->graphs[i];
      kva_value *in = input_of(n, i, k), *to = input_of(n, i, same);
      if (!in->uses) continue;
      if (made) {
        kva_node *copy = kva_node_create(g, g->first, v->def->op, 0, NULL, 1, v->def->attrs, v->def->loc);
        copy->results[0].type = v->type;
        to = &copy->results[0];
      }
      kva_value_replace_all_uses(in, to);
    }
    changed = true;
  }
  return changed;
}

/* A carried value that the body passes through equals its initial value. */
static bool capture_unchanged(kva_node *n) {
  const kva_loop_attrs *a = n->attrs;
  bool changed = false;
  for (uint32_t i = 0; i < a->carried; i++) {
    kva_value *in = input_of(n, 0, i + 2);
    if (kva_graph_output(n->graphs[0], i + 1) != in) continue;
    changed |= n->results[i].uses != NULL;
    kva_value_replace_all_uses(&n->results[i], kva_operand(n, i + 2));
  }
  return changed;
}

static bool is_result_needed(const kva_node *n, uint32_t r) {
  if (n->results[r].uses) return true;
  kva_dims binds = kva_node_binds(n);
  for (uint32_t s = 0; s < binds.n; s++)
    for (uint32_t k = 0; k < n->results[r].type->rank; k++)
      if (n->results[r].type->dims[k] == binds.v[s]) return true;
  return kva_is(n, KVA_OP_loop) && r < ((const kva_loop_attrs *)n->attrs)->carried;
}

static bool drop_unused(control *c, kva_node *n) {
  bool *no_operand = KVA_NEW_ARRAY(c->scratch, bool, n->n_operands + 1), any = false;
  bool *no_result = KVA_NEW_ARRAY(c->scratch, bool, n->n_results + 1);
  for (uint32_t i = first_captured(n); i < n->n_operands; i++) any |= no_operand[i] = !is_input_used(n, i);
  for (uint32_t r = 0; r < n->n_results; r++) any |= no_result[r] = !is_result_needed(n, r);
  if (any) kva_node_narrow(n, no_operand, no_result);
  return any;
}

/* ---- pass -------------------------------------------------------------------------------------------------------- */

static bool visit_if(control *c, kva_node *n) {
  if (take_branch(c, n) || select_results(c, n)) return true;
  bool sunk = sink_operands(n);
  return drop_unused(c, n) || sunk;
}

static bool visit_loop(control *c, kva_node *n) {
  bool changed = note_trips(c, n);
  changed |= drop_condition(c, n);
  changed |= forget_condition(c, n);
  settle_stacks(n);
  if (skip_loop(c, n)) return true;
  changed |= sink_operands(n);
  changed |= capture_unchanged(n);
  return drop_unused(c, n) || changed;
}

static void visit_graph(control *c, kva_graph *g) {
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    if (kva_is(n, KVA_OP_bind)) c->changed |= settle_bind(c, n);
    if (!(n->op->traits & KVA_CONTROL)) continue;
    c->changed |= kva_is(n, KVA_OP_if) ? visit_if(c, n) : visit_loop(c, n);
  }
}

kva_status kva_opt_control(kva_module *m, const kva_pass_options *o, bool *changed) {
  (void)o;
  control c = {.m = m, .scratch = kva_arena_create()};
  kva_graphs graphs = kva_program_graphs(m, c.scratch);
  for (uint32_t i = 0; i < graphs.len; i++) visit_graph(&c, graphs.data[i]);
  *changed |= c.changed;
  kva_arena_destroy(c.scratch);
  return KVA_OK;
}
