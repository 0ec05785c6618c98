/* Reverse-mode differentiation.
 *
 * What: builds dL/d(state) for every trained state that a scalar loss depends on, as ordinary nodes at the end of the
 * function. Algorithm: mark the values that a trained state reaches; walk the nodes backwards from the loss; for each
 * node whose result has an adjoint, its operator's vjp rule turns adjoints of results into adjoints of operands;
 * adjoints of a value with several uses are added in walk order, so sums are deterministic. Nodes with sub-graphs are
 * differentiated by the same walk over copies of these (autodiff_control.c). Requires: SSA order, a scalar float loss.
 * Breaks: nothing (adds nodes; a loop on the path is replaced by one that stacks what it carries). This file holds
 * traversal and accumulation; the mathematics is in the operators' files. */
#include "passes/autodiff_internal.h"

typedef struct autodiff {
  kva_module *m;
  kva_builder b;
  kva_value **adjoint; /* by value id; NULL: nothing flows */
  bool *active;        /* by value id: a root reaches it */
} autodiff;

static const kva_state *trained_state(const kva_node *n) {
  if (!kva_is(n, KVA_OP_state_read)) return NULL;
  const kva_state *s = ((const kva_state_read_attrs *)n->attrs)->state;
  return s->kind == KVA_STATE_PARAM && !s->frozen && kva_dtype_is_float(s->type->dtype) ? s : NULL;
}

/* Roots are marked before. */
static void mark_active(autodiff *ad, const kva_node *n) {
  bool active = false;
  for (uint32_t i = 0; i < n->n_operands && n->op->vjp_kind != KVA_VJP_ZERO; i++) {
    const kva_value *v = n->operands[i].value;
    active |= v && ad->active[v->id];
  }
  for (uint32_t r = 0; r < n->n_results; r++)
    ad->active[n->results[r].id] |= active && kva_dtype_is_float(n->results[r].type->dtype);
}

static void accumulate(autodiff *ad, const kva_value *v, kva_value *g) {
  KVA_ASSERT(g->type == v->type);
  kva_value **slot = &ad->adjoint[v->id];
  *slot = *slot ? kva_add(&ad->b, *slot, g) : g;
}

static bool has_adjoint(const autodiff *ad, const kva_node *n) {
  for (uint32_t r = 0; r < n->n_results; r++)
    if (ad->adjoint[n->results[r].id]) return true;
  return false;
}

static kva_status check_gradient_type(autodiff *ad, const kva_node *n, uint32_t i, const kva_value *operand,
                                      const kva_value *g) {
  const kva_type *want = operand->type;
  if (g->type == want) return KVA_OK;
  kva_text a = {0}, b = {0};
  kva_type_print(want, &a);
  kva_type_print(g->type, &b);
  kva_status s = kva_error(ad->m->diag, &n->loc, "gradient of operand %u of kv.%s has type %s, expected %s", i,
                           n->op->name, b.data, a.data);
  kva_text_free(&a);
  kva_text_free(&b);
  return s;
}

static kva_status apply_rule(kva_vjp *call, kva_node *n, kva_arena *scratch) {
  kva_task task = {.what = "gradient of operator", .name = n->op->name, .loc = &n->loc};
  bool through_graphs = n->op->vjp_kind == KVA_VJP_GRAPH;
  kva_task_begin(&task);
  kva_status status = through_graphs ? kva_control_gradient(call, n, scratch) : n->op->vjp(call, n);
  kva_task_end(&task);
  return status;
}

static kva_status visit(autodiff *ad, kva_node *n, kva_arena *scratch) {
  if (n->op->vjp_kind == KVA_VJP_ZERO || !has_adjoint(ad, n)) return KVA_OK;
  bool *wants = KVA_NEW_ARRAY(scratch, bool, n->n_operands + 1);
  bool any = false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = n->operands[i].value;
    wants[i] = v && ad->active[v->id];
    any |= wants[i];
  }
  if (!any) return KVA_OK;
  if (!n->op->vjp && n->op->vjp_kind != KVA_VJP_GRAPH)
    return kva_fail(ad->m->diag, KVA_UNSUPPORTED, &n->loc, "kv.%s has no gradient rule: %s", n->op->name,
                    n->op->vjp_reason ? n->op->vjp_reason : "not differentiable here");
  kva_value **out = KVA_NEW_ARRAY(scratch, kva_value *, n->n_results + 1);
  kva_value **in = KVA_NEW_ARRAY(scratch, kva_value *, n->n_operands + 1);
  for (uint32_t r = 0; r < n->n_results; r++) out[r] = ad->adjoint[n->results[r].id];
  ad->b.loc = n->loc;
  kva_vjp call = {.b = &ad->b, .grad_out = out, .grad_in = in, .wants = wants};
  kva_value **operands = KVA_NEW_ARRAY(scratch, kva_value *, n->n_operands + 1);
  for (uint32_t i = 0; i < n->n_operands; i++) operands[i] = kva_operand(n, i); /* a loop gives its place to another */
  KVA_TRY(apply_rule(&call, n, scratch));
  if (ad->b.failed) return KVA_INVALID;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    if (!wants[i] || !in[i]) continue;
    KVA_TRY(check_gradient_type(ad, n, i, operands[i], in[i]));
    accumulate(ad, operands[i], in[i]);
  }
  return KVA_OK;
}

static kva_status check_loss(kva_module *m, const kva_function *f, const kva_value *loss) {
  if (loss->type->kind == KVA_TYPE_TENSOR && loss->type->rank == 0 && kva_dtype_is_float(loss->type->dtype))
    return KVA_OK;
  kva_text t = {0};
  kva_type_print(loss->type, &t);
  kva_status s =
      kva_error(m->diag, &f->loc, "the loss must be a scalar of a float type, found %s; reduce it first", t.data);
  kva_text_free(&t);
  return s;
}

kva_status kva_build_adjoints(kva_builder *b, const kva_node *last, bool *active, kva_value **adjoint,
                              kva_arena *scratch) {
  autodiff ad = {.m = b->m, .b = *b, .adjoint = adjoint, .active = active};
  KVA_VEC(kva_node *) nodes = {0};
  for (kva_node *n = last ? b->graph->first : NULL; n; n = n == last ? NULL : n->next) {
    mark_active(&ad, n);
    KVA_PUSH(scratch, &nodes, n);
  }
  kva_status status = KVA_OK;
  for (uint32_t i = nodes.len; i-- > 0 && status == KVA_OK;) status = visit(&ad, nodes.data[i], scratch);
  *b = ad.b;
  return status;
}

/* Trained states are the roots; what their adjoints add up to are the gradients. */
static kva_status differentiate(kva_module *m, kva_graph *g, kva_value *loss, kva_value **grads, kva_arena *scratch) {
  kva_builder b = {.m = m, .graph = g, .before = g->last};
  kva_value **adjoint = KVA_NEW_ARRAY(scratch, kva_value *, m->next_value_id + 1);
  bool *active = KVA_NEW_ARRAY(scratch, bool, m->next_value_id + 1);
  KVA_VEC(kva_node *) roots = {0};
  const kva_node *last = g->last->prev;
  for (kva_node *n = g->first; n != g->last; n = n->next) {
    if (!trained_state(n)) continue;
    KVA_PUSH(scratch, &roots, n);
    active[n->results[0].id] = true;
  }
  adjoint[loss->id] = kva_const_scalar(&b, loss->type->dtype, 1);
  KVA_TRY(kva_build_adjoints(&b, last, active, adjoint, scratch));
  for (uint32_t i = 0; i < roots.len; i++) {
    const kva_state *s = trained_state(roots.data[i]);
    kva_value *found = adjoint[roots.data[i]->results[0].id];
    if (found) grads[s->id] = grads[s->id] ? kva_add(&b, grads[s->id], found) : found;
  }
  return b.failed ? KVA_INVALID : KVA_OK;
}

static kva_status make_gradients(kva_module *m, kva_function *f, kva_value *loss, kva_value **grads) {
  KVA_ASSERT(loss->graph == f->graph && f->graph->last && f->graph->last->op->traits & KVA_RETURN);
  KVA_TRY(check_loss(m, f, loss));
  kva_arena *scratch = kva_arena_create();
  kva_status status = differentiate(m, f->graph, loss, grads, scratch);
  kva_arena_destroy(scratch);
  return status;
}

/* f returns its loss and all gradients: "loss", "d <state>". */
static void return_gradients(kva_module *m, kva_function *f, kva_value **grads) {
  kva_node *ret = f->graph->last;
  kva_value **outputs = KVA_NEW_ARRAY(m->arena, kva_value *, m->states.len + 1);
  const char **names = KVA_NEW_ARRAY(m->arena, const char *, m->states.len + 1);
  uint32_t n = 0;
  outputs[n] = kva_operand(ret, 0);
  names[n++] = "loss";
  for (uint32_t i = 0; i < m->states.len; i++) {
    if (!grads[i]) continue;
    outputs[n] = grads[i];
    names[n++] = kva_arena_printf(m->arena, "d %s", m->states.data[i]->name);
  }
  kva_node_create(f->graph, ret, ret->op, n, outputs, 0, NULL, ret->loc);
  kva_node_remove(ret);
  f->output_names = names;
}

kva_status kva_autodiff(kva_module *m, const kva_pass_options *o, bool *changed) {
  *changed = true;
  if (o->gradients) return make_gradients(m, o->gradients->function, o->gradients->loss, o->gradients->of);
  kva_function *f = m->functions.data[0];
  if (kva_graph_output_count(f->graph) == 0)
    return kva_error(m->diag, &f->loc, "pass 'autodiff': function '%s' has no output to differentiate", f->name);
  kva_value **grads = KVA_NEW_ARRAY(m->arena, kva_value *, m->states.len + 1);
  KVA_TRY(make_gradients(m, f, kva_graph_output(f->graph, 0), grads));
  return_gradients(m, f, grads);
  return KVA_OK;
}
