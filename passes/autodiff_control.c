/* Gradients of if and loop.
 *
 * if: an `if` with the same condition. Each branch computes what the forward branch computed again, from the same
 * operands, and differentiates it.
 *
 * loop: the forward loop also stacks the carried values that every iteration began with. A loop backwards over these
 * rows computes the intermediate values of one iteration again and differentiates it:
 *
 *   for t = T - 1 .. 0:  d carried, d captured += adjoints of body(t, carried[t], captured) for (d carried, d row[t])
 *
 * T is known after the forward loop whatever ended it. Intermediate values are not kept: memory grows by the carried
 * values alone, and clean-up drops rows that nothing reads. */
#include "passes/autodiff_internal.h"

/* A sub-graph that computes another one again and is differentiated. */
typedef struct gradient_graph {
  kva_builder b; /* at the end of the new graph */
  kva_arena *scratch;
  kva_value **values; /* by value id of the other graph */
  kva_value **adjoint;
  bool *active;
  const kva_node *last; /* that is differentiated */
} gradient_graph;

static gradient_graph open_graph(kva_vjp *c, kva_node *owner, kva_arena *scratch) {
  kva_module *m = c->b->m;
  gradient_graph g = {.b = {.m = m, .graph = kva_graph_create(m, owner), .loc = owner->loc}, .scratch = scratch};
  g.values = KVA_NEW_ARRAY(scratch, kva_value *, m->next_value_id);
  return g;
}

static kva_value *add_input(gradient_graph *g, const kva_value *like) {
  return kva_graph_add_input(g->b.graph, like->type, NULL);
}

/* Copies the nodes of `from`. Afterwards adjoints can be set: values that are made from here on have none. */
static void compute_again(gradient_graph *g, const kva_graph *from) {
  kva_graph_copy_nodes(from, g->b.graph, g->values);
  g->adjoint = KVA_NEW_ARRAY(g->scratch, kva_value *, g->b.m->next_value_id);
  g->active = KVA_NEW_ARRAY(g->scratch, bool, g->b.m->next_value_id);
  g->last = g->b.graph->last;
}

/* The extents of an adjoint that comes from outside are symbols; here they are those of the value. */
static kva_value *as_type(gradient_graph *g, kva_value *v, const kva_type *type) {
  if (v->type == type) return v;
  kva_dim starts[KVA_MAX_RANK];
  for (uint32_t i = 0; i < type->rank; i++) starts[i] = kva_expr_const(g->b.m->exprs, 0);
  return kva_build(&g->b, KVA_OP_slice, 1, &v,
                   &(kva_slice_attrs){.starts = {type->rank, starts}, .shape = {type->rank, type->dims}});
}

static void add_seed(gradient_graph *g, const kva_value *output, kva_value *seed) {
  const kva_value *v = g->values[output->id];
  KVA_ASSERT(v && v->graph == g->b.graph);
  seed = as_type(g, seed, v->type);
  kva_value **slot = &g->adjoint[v->id];
  *slot = *slot ? kva_add(&g->b, *slot, seed) : seed;
}

static kva_value *adjoint_or_zeros(gradient_graph *g, const kva_value *v) {
  kva_value *adjoint = g->adjoint[g->values[v->id]->id];
  return adjoint ? adjoint : kva_zeros(&g->b, v->type);
}

static void close_graph(gradient_graph *g, uint32_t n, kva_value *const *outputs) {
  kva_build_node(&g->b, KVA_OP_return, n, outputs, 0, NULL);
}

static kva_status set_types(kva_module *m, kva_node *n, kva_arena *scratch) {
  const kva_type **types = KVA_NEW_ARRAY(scratch, const kva_type *, n->n_results + 1);
  KVA_TRY(n->op->infer(m, n, types));
  for (uint32_t r = 0; r < n->n_results; r++) n->results[r].type = types[r];
  return KVA_OK;
}

typedef KVA_VEC(kva_value *) value_list;

/* ---- if ---------------------------------------------------------------------------------------------------------- */

/* Inputs: those of the branch, then the adjoints of n's results that have one. Outputs: adjoints of wanted operands. */
static kva_status differentiate_branch(kva_vjp *c, const kva_node *n, kva_node *owner, const kva_graph *branch,
                                       kva_arena *scratch) {
  gradient_graph g = open_graph(c, owner, scratch);
  value_list seeds = {0}, outputs = {0};
  for (uint32_t i = 0; i < branch->inputs.len; i++)
    g.values[branch->inputs.data[i]->id] = add_input(&g, branch->inputs.data[i]);
  for (uint32_t r = 0; r < n->n_results; r++)
    if (c->grad_out[r]) KVA_PUSH(scratch, &seeds, add_input(&g, c->grad_out[r]));
  compute_again(&g, branch);
  for (uint32_t i = 0; i < branch->inputs.len; i++)
    g.active[g.values[branch->inputs.data[i]->id]->id] = c->wants[i + 1];
  for (uint32_t r = 0, k = 0; r < n->n_results; r++)
    if (c->grad_out[r]) add_seed(&g, kva_graph_output(branch, r), seeds.data[k++]);
  KVA_TRY(kva_build_adjoints(&g.b, g.last, g.active, g.adjoint, kva_control_gradient, scratch));
  for (uint32_t i = 0; i < branch->inputs.len; i++)
    if (c->wants[i + 1]) KVA_PUSH(scratch, &outputs, adjoint_or_zeros(&g, branch->inputs.data[i]));
  close_graph(&g, outputs.len, outputs.data);
  return g.b.failed ? KVA_INVALID : KVA_OK;
}

static kva_status if_gradient(kva_vjp *c, kva_node *n, kva_arena *scratch) {
  value_list operands = {0};
  uint32_t wanted = 0;
  for (uint32_t i = 0; i < n->n_operands; i++) KVA_PUSH(scratch, &operands, kva_operand(n, i));
  for (uint32_t r = 0; r < n->n_results; r++)
    if (c->grad_out[r]) KVA_PUSH(scratch, &operands, c->grad_out[r]);
  for (uint32_t i = 1; i < n->n_operands; i++) wanted += c->wants[i];
  void *attrs = kva_attrs_default(c->b->m->arena, n->op->attrs);
  kva_node *gradient =
      kva_node_create(c->b->graph, c->b->before, n->op, operands.len, operands.data, wanted, attrs, n->loc);
  for (uint32_t i = 0; i < 2; i++) KVA_TRY(differentiate_branch(c, n, gradient, n->graphs[i], scratch));
  KVA_TRY(set_types(c->b->m, gradient, scratch));
  for (uint32_t i = 1, r = 0; i < n->n_operands; i++)
    if (c->wants[i]) c->grad_in[i] = &gradient->results[r++];
  return KVA_OK;
}

/* ---- loop: the forward loop stacks what it carries --------------------------------------------------------------- */

static uint32_t carried_of(const kva_node *n) {
  return (uint32_t)((const kva_loop_attrs *)n->attrs)->carried;
}

static kva_status check_ranks(kva_vjp *c, const kva_node *n) {
  for (uint32_t i = 0; i < carried_of(n); i++)
    if (kva_operand_type(n, i + 2)->rank == KVA_MAX_RANK)
      return kva_fail(c->b->m->diag, KVA_UNSUPPORTED, &n->loc,
                      "kv.loop has no gradient: rows of carried value %u, of rank %d, cannot be stacked", i,
                      KVA_MAX_RANK);
  return KVA_OK;
}

/* Takes n's place: the same loop with a stacked result for each carried value, in order, after n's own. */
static kva_status stack_carried(kva_vjp *c, kva_node *n, kva_arena *scratch, kva_node **out) {
  KVA_ASSERT(n->n_graphs == 1);
  kva_module *m = c->b->m;
  kva_graph *body = n->graphs[0];
  uint32_t carried = carried_of(n);
  value_list operands = {0}, outputs = {0};
  for (uint32_t i = 0; i < n->n_operands; i++) KVA_PUSH(scratch, &operands, kva_operand(n, i));
  for (uint32_t i = 0; i < kva_graph_output_count(body); i++) KVA_PUSH(scratch, &outputs, kva_graph_output(body, i));
  for (uint32_t i = 0; i < carried; i++) KVA_PUSH(scratch, &outputs, body->inputs.data[i + 1]);
  kva_node *old_return = body->last;
  kva_node_create(body, old_return, old_return->op, outputs.len, outputs.data, 0, NULL, old_return->loc);
  kva_node_remove(old_return);

  kva_loop_attrs *attrs = kva_arena_memdup(m->arena, n->attrs, sizeof *attrs);
  if (!attrs->binds.n && (!attrs->trips || kva_operand(n, 1))) {
    kva_dim *symbol = KVA_NEW(m->arena, kva_dim);
    *symbol = kva_expr_new_symbol(m->exprs, "iterations");
    attrs->binds = (kva_dims){1, symbol};
  }
  kva_node *f = kva_node_create(n->graph, n, n->op, operands.len, operands.data, n->n_results + carried, attrs, n->loc);
  kva_node_take_graphs(f, n);
  KVA_TRY(set_types(m, f, scratch));
  for (uint32_t r = 0; r < n->n_results; r++) {
    f->results[r].name = n->results[r].name;
    kva_value_replace_all_uses(&n->results[r], &f->results[r]);
  }
  kva_node_remove(n);
  *out = f;
  return KVA_OK;
}

/* ---- loop: backwards --------------------------------------------------------------------------------------------- */

typedef struct backward {
  kva_vjp *c;
  kva_node *forward;
  uint32_t carried, stacked; /* of the loop that is differentiated */
  kva_dim trips;
  value_list operands; /* of the loop backwards */
} backward;

static bool flows(const kva_value *v) {
  return kva_dtype_is_float(v->type->dtype);
}

/* Number of the operand of the forward loop whose adjoint is carried value k of the loop backwards: float carried ones,
 * then wanted captured ones. */
static value_list adjoint_operands(const backward *w, kva_arena *scratch) {
  value_list list = {0};
  for (uint32_t i = 2; i < w->forward->n_operands; i++) {
    bool carried = i < 2 + w->carried;
    kva_value *in = w->forward->graphs[0]->inputs.data[i - 1];
    if (carried ? flows(in) : w->c->wants[i]) KVA_PUSH(scratch, &list, in);
  }
  return list;
}

static void push_operands(backward *w, const value_list *adjoints, kva_arena *scratch) {
  kva_builder *b = w->c->b;
  const kva_node *f = w->forward;
  KVA_PUSH(scratch, &w->operands, kva_dim_scalar(b, KVA_I64, w->trips));
  KVA_PUSH(scratch, &w->operands, NULL);
  for (uint32_t k = 0; k < adjoints->len; k++) {
    const kva_value *in = adjoints->data[k];
    kva_value *seed = in->index <= w->carried ? w->c->grad_out[in->index - 1] : NULL;
    KVA_PUSH(scratch, &w->operands, seed ? seed : kva_zeros(b, in->type));
  }
  for (uint32_t i = 0; i < w->carried; i++)
    KVA_PUSH(scratch, &w->operands, (kva_value *)&f->results[w->carried + w->stacked + i]);
  for (uint32_t i = 2 + w->carried; i < f->n_operands; i++) KVA_PUSH(scratch, &w->operands, kva_operand(f, i));
  for (uint32_t r = w->carried; r < w->carried + w->stacked; r++)
    if (w->c->grad_out[r]) KVA_PUSH(scratch, &w->operands, w->c->grad_out[r]);
}

static kva_value *row(gradient_graph *g, kva_value *stack, kva_value *t) {
  return kva_build(&g->b, KVA_OP_gather, 2, (kva_value *[]){stack, t}, &(kva_gather_attrs){.axis = 0});
}

/* Inputs in the order of push_operands. */
static kva_status differentiate_body(backward *w, kva_node *owner, const value_list *adjoints, kva_arena *scratch) {
  const kva_graph *body = w->forward->graphs[0];
  gradient_graph g = open_graph(w->c, owner, scratch);
  value_list outputs = {0}, rows = {0};
  kva_value *i = kva_graph_add_input(g.b.graph, kva_type_scalar(g.b.m, KVA_I64), NULL);
  for (uint32_t k = 2; k < w->operands.len; k++) add_input(&g, w->operands.data[k]);
  kva_value **in = g.b.graph->inputs.data + 1, **stacks = in + adjoints->len;
  kva_value **captured = stacks + w->carried, **row_adjoints = captured + w->forward->n_operands - 2 - w->carried;
  kva_value *t = kva_sub(&g.b, kva_dim_scalar(&g.b, KVA_I64, kva_expr_addi(g.b.m->exprs, w->trips, -1)), i);
  g.values[body->inputs.data[0]->id] = t;
  for (uint32_t k = 0; k < w->carried; k++) g.values[body->inputs.data[k + 1]->id] = row(&g, stacks[k], t);
  for (uint32_t k = 1 + w->carried; k < body->inputs.len; k++)
    g.values[body->inputs.data[k]->id] = captured[k - 1 - w->carried];
  for (uint32_t r = w->carried; r < w->carried + w->stacked; r++)
    if (w->c->grad_out[r]) {
      kva_value *adjoint = row(&g, row_adjoints[rows.len], t);
      KVA_PUSH(scratch, &rows, adjoint);
    }
  compute_again(&g, body);
  for (uint32_t k = 0; k < adjoints->len; k++) g.active[g.values[adjoints->data[k]->id]->id] = true;
  for (uint32_t k = 0; k < adjoints->len && adjoints->data[k]->index <= w->carried; k++)
    add_seed(&g, kva_graph_output(body, adjoints->data[k]->index), in[k]);
  for (uint32_t r = w->carried, k = 0; r < w->carried + w->stacked; r++)
    if (w->c->grad_out[r]) add_seed(&g, kva_graph_output(body, r + 1), rows.data[k++]);
  KVA_TRY(kva_build_adjoints(&g.b, g.last, g.active, g.adjoint, kva_control_gradient, scratch));
  KVA_PUSH(scratch, &outputs, kva_const_scalar(&g.b, KVA_BOOL, 1));
  for (uint32_t k = 0; k < adjoints->len; k++) {
    bool sums = adjoints->data[k]->index > w->carried;
    kva_value *v = adjoint_or_zeros(&g, adjoints->data[k]);
    KVA_PUSH(scratch, &outputs, sums ? kva_add(&g.b, in[k], v) : v);
  }
  close_graph(&g, outputs.len, outputs.data);
  return g.b.failed ? KVA_INVALID : KVA_OK;
}

static kva_status loop_gradient(kva_vjp *c, kva_node *n, kva_arena *scratch) {
  backward w = {.c = c, .carried = carried_of(n), .stacked = n->n_results - carried_of(n)};
  kva_module *m = c->b->m;
  KVA_TRY(check_ranks(c, n));
  KVA_TRY(stack_carried(c, n, scratch, &w.forward));
  const kva_loop_attrs *attrs = w.forward->attrs;
  w.trips = attrs->binds.n ? attrs->binds.v[0] : attrs->trips;
  KVA_ASSERT(w.trips);
  value_list adjoints = adjoint_operands(&w, scratch);
  push_operands(&w, &adjoints, scratch);
  kva_loop_attrs *own = kva_attrs_default(m->arena, n->op->attrs);
  own->carried = adjoints.len;
  own->trips = w.trips;
  kva_node *gradient =
      kva_node_create(c->b->graph, c->b->before, n->op, w.operands.len, w.operands.data, adjoints.len, own, n->loc);
  KVA_TRY(differentiate_body(&w, gradient, &adjoints, scratch));
  KVA_TRY(set_types(m, gradient, scratch));
  for (uint32_t k = 0; k < adjoints.len; k++)
    if (c->wants[adjoints.data[k]->index + 1]) c->grad_in[adjoints.data[k]->index + 1] = &gradient->results[k];
  return KVA_OK;
}

kva_status kva_control_gradient(kva_vjp *c, kva_node *n, kva_arena *scratch) {
  return kva_is(n, KVA_OP_if) ? if_gradient(c, n, scratch) : loop_gradient(c, n, scratch);
}
