/* Raising: recognises operators that a model spells out in smaller ones, and replaces the spelling by the operator.
 *
 * What: activations, means, softmax and norms by the rules in patterns_*.def. Cross-entropy, rotary embedding,
 * attention and KVShift by small matchers (raise_*.c), since their structure varies too much for patterns.
 *
 * Algorithm: sweeps to a fixed point. Rules sweep forward, so that a rule sees operands that earlier rules have raised.
 * Matchers sweep backward, so that the largest expression is tried first. Each step replaces several nodes by one and
 * removes dead nodes at once, since conditions count uses; so the sweeps terminate.
 *
 * Requires: SSA order; finds more after fold, simplify and cse. Breaks: nothing. Results change by rounding, become
 * finite where a spelling overflows (softmax without the maximum), and differ where a head comment or a rule says so:
 * attention's queries that several masks together hide all keys from, pow with exponents of one half.
 *
 * Why before autodiff: gradients of operators are better than those of their spellings. Gradient rules spell operators
 * out on purpose; this pass does not run after them. */
#include "passes/raise.h"

#include <math.h>

/* ---- conditions of the rules ------------------------------------------------------------------------------------- */

/* Whether v is the number of elements that the match's reduce_sum adds, or, for `mul`, its reciprocal. */
static bool is_mean(const kva_match *m) {
  kva_module *module = m->root->graph->module;
  const kva_value *n = kva_match_value(m, "n"), *x = kva_match_value(m, "x");
  const kva_node *sum = m->nodes[1];
  kva_ints axes = ((const kva_reduce_sum_attrs *)sum->attrs)->axes;
  kva_dim count = kva_expr_const(module->exprs, 1);
  for (uint32_t i = 0; i < axes.n; i++) {
    int64_t axis = axes.v[i] < 0 ? axes.v[i] + x->type->rank : axes.v[i];
    count = kva_expr_mul(module->exprs, count, x->type->dims[axis]);
  }
  bool inverse = kva_is(m->root, KVA_OP_mul);
  if (inverse && n->def && kva_is(n->def, KVA_OP_reciprocal)) {
    inverse = false;
    n = kva_operand(n->def, 0);
  }
  int64_t known;
  double found;
  if (kva_expr_is_const(count, &known) && known > 0) {
    double want = inverse ? 1 / (double)known : (double)known;
    return kva_splat_value(n, &found) && fabs(found - want) <= 1e-6 * want;
  }
  while (n->def && (kva_is(n->def, KVA_OP_cast) || kva_is(n->def, KVA_OP_reshape))) n = kva_operand(n->def, 0);
  if (inverse || !n->def || !kva_is(n->def, KVA_OP_dims)) return false;
  kva_dims values = ((const kva_dims_attrs *)n->def->attrs)->values;
  return values.n == 1 && values.v[0] == count;
}

/* Whether v is equal for all rows: its extents left of the normalised axes are 1. */
static bool is_row(const kva_match *m, const char *name) {
  KVA_ASSERT(m->root);
  const kva_type *v = kva_match_value(m, name)->type, *x = kva_match_value(m, "x")->type;
  uint32_t axis = (uint32_t)kva_match_number(m, "a");
  for (uint32_t k = 0; k < v->rank; k++)
    if (k + x->rank < axis + v->rank && !kva_expr_is(v->dims[k], 1)) return false;
  return v->rank <= x->rank;
}

static bool scales_rows(const kva_match *m) {
  return is_row(m, "w");
}
static bool shifts_rows(const kva_match *m) {
  return is_row(m, "b");
}
static bool scales_and_shifts_rows(const kva_match *m) {
  return is_row(m, "w") && is_row(m, "b");
}

static const kva_rule_text rule_texts[] = {
#define RULE(name, from, to)               {#name, from, to, NULL},
#define RULE_IF(name, condition, from, to) {#name, from, to, condition},
#include "passes/patterns_activation.def"
#include "passes/patterns_norm.def"
#undef RULE
#undef RULE_IF
};

/* ---- dependence on parameters ------------------------------------------------------------------------------------ */

/* seen is indexed by node id. Nodes with sub-graphs conservatively count as dependent. */
static bool reaches_parameter(const kva_value *v, bool *seen) {
  const kva_node *n = v->def;
  if (!n || seen[n->id] || kva_is(n, KVA_OP_stop_gradient)) return false;
  seen[n->id] = true;
  const kva_state *state = kva_state_read_by(n);
  if (state) return state->kind == KVA_STATE_PARAM && !state->frozen;
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (kva_operand(n, i) && reaches_parameter(kva_operand(n, i), seen)) return true;
  return n->n_graphs > 0;
}

bool kva_is_cast_again(const kva_value *v) {
  for (const kva_use *u = v->uses; u; u = u->next)
    if (kva_is(u->user, KVA_OP_cast)) return true;
  return false;
}

bool kva_depends_on_parameters(const kva_value *v) {
  kva_arena *scratch = kva_arena_create();
  bool found = reaches_parameter(v, KVA_NEW_ARRAY(scratch, bool, v->graph->module->next_node_id));
  kva_arena_destroy(scratch);
  return found;
}

/* ---- sweeps ------------------------------------------------------------------------------------------------------ */

static bool is_dead(const kva_node *n) {
  return n->graph && kva_node_is_pure(n) && !kva_node_is_used(n);
}

/* Removes n if it is dead, and then operands that became dead. */
static void remove_dead(kva_node *n) {
  if (!is_dead(n)) return;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    kva_value *v = kva_operand(n, i);
    kva_node *def = v ? v->def : NULL;
    kva_node_set_operand(n, i, NULL);
    if (def) remove_dead(def);
  }
  kva_node_remove(n);
}

typedef struct raising {
  const kva_pass_options *options;
  const kva_rules *rules;
  bool changed;
} raising;

static void replace(raising *r, kva_node *n, kva_value *v, const char *rule) {
  KVA_ASSERT(v->type == n->results[0].type);
  kva_value_replace_all_uses(&n->results[0], v);
  kva_count_change(r->options, n, rule, &r->changed);
  remove_dead(n);
}

static void apply_rules(raising *r, kva_graph *g) {
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    for (uint32_t i = 0; i < n->n_graphs; i++) apply_rules(r, n->graphs[i]);
    while (n && n->n_results && n->results[0].uses && kva_may_change(r->options)) {
      kva_builder b = kva_builder_before(g->module, n);
      const char *rule;
      kva_value *v = kva_rules_apply(r->rules, &b, &rule);
      if (!v) break;
      replace(r, n, v, rule);
      n = v->def;
    }
  }
}

typedef struct matcher {
  const char *name;
  kva_value *(*match)(kva_builder *b);
} matcher;

static void apply_matcher(raising *r, kva_graph *g, const matcher *m) {
  for (kva_node *n = g->last, *prev; n; n = prev) {
    prev = n->prev;
    for (uint32_t i = 0; i < n->n_graphs; i++) apply_matcher(r, n->graphs[i], m);
    if (is_dead(n)) {
      kva_node_remove(n);
      continue;
    }
    if (!n->n_results || !n->results[0].uses || !kva_may_change(r->options)) continue;
    kva_builder b = kva_builder_before(g->module, n);
    kva_value *v = m->match(&b);
    if (!v) continue;
    KVA_ASSERT(v->type == n->results[0].type);
    kva_value_replace_all_uses(&n->results[0], v);
    kva_count_change(r->options, n, m->name, &r->changed);
    if (is_dead(n)) kva_node_remove(n);
  }
}

static bool sweep(raising *r, kva_graph *g) {
  static const matcher matchers[] = {{"cross_entropy", kva_raise_cross_entropy},
                                     {"rope", kva_raise_rope},
                                     {"attention", kva_raise_attention},
                                     {"kv_shift", kva_raise_kv_shift},
                                     {"hard_shift", kva_raise_hard_shift}};
  r->changed = false;
  apply_rules(r, g);
  for (size_t i = 0; i < sizeof matchers / sizeof *matchers; i++) apply_matcher(r, g, &matchers[i]);
  return r->changed;
}

kva_status kva_raise(kva_module *m, const kva_pass_options *o, bool *changed) {
  kva_arena *scratch = kva_arena_create();
  raising r = {.options = o, .rules = kva_rules_compile(scratch, sizeof rule_texts / sizeof *rule_texts, rule_texts)};
  for (uint32_t f = 0; f < m->functions.len; f++)
    while (sweep(&r, m->functions.data[f]->graph)) *changed = true;
  kva_arena_destroy(scratch);
  return KVA_OK;
}
