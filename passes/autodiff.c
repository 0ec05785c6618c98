/* Reverse-mode differentiation.
 *
 * What: builds dL/d(state) for every trained state that a scalar loss depends on, as ordinary nodes at the end of the
 * function. Algorithm: trained states are the roots of a walk backwards (ops/adjoints.h); nodes with sub-graphs are
 * differentiated by the same walk over copies of these (autodiff_control.c). Requires: SSA order, a scalar float loss.
 * Breaks: nothing (adds nodes; a loop on the path is replaced by one that stacks what it carries). */
#include "passes/autodiff_internal.h"

static const kva_state *trained_state(const kva_node *n) {
  const kva_state *s = kva_state_read_by(n);
  return s && s->kind == KVA_STATE_PARAM && !s->frozen && kva_dtype_is_float(s->type->dtype) ? s : NULL;
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
  KVA_TRY(kva_build_adjoints(&b, last, active, adjoint, kva_control_gradient, scratch));
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
