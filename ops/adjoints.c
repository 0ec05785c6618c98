/* Traversal and accumulation of reverse-mode differentiation: mark the values that a root reaches; walk the nodes
 * backwards; for each node whose result has an adjoint, its operator's vjp rule turns adjoints of results into adjoints
 * of operands; adjoints of a value with several uses are added in walk order, so sums are deterministic. */
#include "ops/adjoints.h"

typedef struct autodiff {
  kva_module *m;
  kva_builder b;
  kva_value **adjoint; /* by value id; NULL: nothing flows */
  bool *active;        /* by value id: a root reaches it */
  kva_graph_vjp through_graphs;
} autodiff;

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

static kva_status apply_rule(autodiff *ad, kva_vjp *call, kva_node *n, kva_arena *scratch) {
  kva_task task = {.what = "gradient of operator", .name = n->op->name, .loc = &n->loc};
  bool through_graphs = n->op->vjp_kind == KVA_VJP_GRAPH;
  kva_task_begin(&task);
  kva_status status = through_graphs ? ad->through_graphs(call, n, scratch) : n->op->vjp(call, n);
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
  if (!n->op->vjp && (n->op->vjp_kind != KVA_VJP_GRAPH || !ad->through_graphs))
    return kva_fail(ad->m->diag, KVA_UNSUPPORTED, &n->loc, "kv.%s has no gradient rule: %s", n->op->name,
                    n->op->vjp_reason ? n->op->vjp_reason : "not differentiable here");
  kva_value **out = KVA_NEW_ARRAY(scratch, kva_value *, n->n_results + 1);
  kva_value **in = KVA_NEW_ARRAY(scratch, kva_value *, n->n_operands + 1);
  for (uint32_t r = 0; r < n->n_results; r++) out[r] = ad->adjoint[n->results[r].id];
  ad->b.loc = n->loc;
  kva_vjp call = {.b = &ad->b, .grad_out = out, .grad_in = in, .wants = wants};
  kva_value **operands = KVA_NEW_ARRAY(scratch, kva_value *, n->n_operands + 1);
  for (uint32_t i = 0; i < n->n_operands; i++) operands[i] = kva_operand(n, i); /* a loop gives its place to another */
  KVA_TRY(apply_rule(ad, &call, n, scratch));
  if (ad->b.failed) return KVA_INVALID;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    if (!wants[i] || !in[i]) continue;
    KVA_TRY(check_gradient_type(ad, n, i, operands[i], in[i]));
    accumulate(ad, operands[i], in[i]);
  }
  return KVA_OK;
}

kva_status kva_build_adjoints(kva_builder *b, const kva_node *last, bool *active, kva_value **adjoint,
                              kva_graph_vjp through_graphs, kva_arena *scratch) {
  autodiff ad = {.m = b->m, .b = *b, .adjoint = adjoint, .active = active, .through_graphs = through_graphs};
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
