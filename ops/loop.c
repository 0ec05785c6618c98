/* loop: repeats a sub-graph.
 *
 *   final..., stacked... = kv.loop <carried, trips, binds> (count, cond, initial..., x...) { body }
 *
 *   body (int64 i, carried..., x...) => (bool go_on, carried..., row...)
 *
 *   i = 0, carried = initial
 *   while ((no count or i < count) and (no cond or cond)):  cond, carried, row... = body(i, carried, x...),  i = i + 1
 *
 * count (int64 scalar) and cond (bool scalar) are optional; without cond, go_on is ignored. `carried` is the number of
 * carried values, whose types do not change. Each further output of the body is a row: the node stacks the rows of all
 * iterations along a new leading axis.
 *
 * The trip count is the leading extent of every stacked result. If `trips` is given and cond is absent, it is that
 * expression, which equals max(count, 0). Otherwise it is known only afterwards, and the node assigns it to the single
 * symbol of `binds`. Without stacked results nothing is bound.
 *
 * Gradient: a loop that runs backwards over values stacked by the forward loop (passes/autodiff_control.c). */
#include "ops/control.h"

KVA_OP_FUNCTIONS(loop)

static uint32_t carried_of(const kva_node *n) {
  return (uint32_t)((const kva_loop_attrs *)n->attrs)->carried;
}

static kva_status check_carried(kva_module *m, const kva_node *n) {
  const kva_graph *g = n->graphs[0];
  if (kva_graph_output_count(g) != n->n_results + 1)
    return kva_error(m->diag, &n->loc, "kv.loop: the body has %u outputs for %u results", kva_graph_output_count(g),
                     n->n_results);
  if (kva_graph_output(g, 0)->type != kva_type_scalar(m, KVA_BOOL))
    return kva_error(m->diag, &n->loc, "kv.loop: output 0 of the body must be a bool scalar");
  for (uint32_t i = 0; i < carried_of(n); i++)
    if (kva_graph_output(g, i + 1)->type != kva_operand_type(n, i + 2))
      return kva_error(m->diag, &n->loc, "kv.loop: carried value %u changes its type from iteration to iteration", i);
  return KVA_OK;
}

static kva_status stacked_type(kva_module *m, const kva_node *n, uint32_t r, kva_dim count, const kva_type **out) {
  const kva_type *row = kva_graph_output(n->graphs[0], r + 1)->type;
  kva_dim dims[KVA_MAX_RANK];
  if (row->kind != KVA_TYPE_TENSOR || row->rank >= KVA_MAX_RANK)
    return kva_error(m->diag, &n->loc, "kv.loop: rows of output %u have rank %u, expected less than %d", r + 1,
                     row->rank, KVA_MAX_RANK);
  dims[0] = count;
  for (uint32_t k = 0; k < row->rank; k++) {
    dims[k + 1] = row->dims[k];
    if (kva_is_local_dim(n->graphs[0], row->dims[k]))
      return kva_error(m->diag, &n->loc, "kv.loop: rows of output %u differ from iteration to iteration in axis %u",
                       r + 1, k);
  }
  *out = kva_type_tensor(m, row->dtype, row->rank + 1, dims);
  return KVA_OK;
}

static kva_status check_operands(kva_module *m, const kva_node *n) {
  const kva_loop_attrs *a = n->attrs;
  if (a->carried < 0 || n->n_operands < 2 || a->carried > n->n_operands - 2 || a->carried > n->n_results)
    return kva_error(m->diag, &n->loc, "kv.loop: %u operands and %u results do not fit %lld carried values",
                     n->n_operands, n->n_results, (long long)a->carried);
  KVA_TRY(kva_check_scalar(m, n, 0, KVA_I64));
  KVA_TRY(kva_check_scalar(m, n, 1, KVA_BOOL));
  if (a->trips && !kva_operand(n, 0))
    return kva_error(m->diag, &n->loc, "kv.loop: trips says what operand 0 is, which is left out");
  return kva_check_binds(m, n);
}

kva_status kva_loop_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_loop_attrs *a = n->attrs;
  if (n->n_graphs != 1) return kva_error(m->diag, &n->loc, "kv.loop: expected one sub-graph, found %u", n->n_graphs);
  KVA_TRY(check_operands(m, n));
  KVA_TRY(kva_check_subgraph(m, n, 0, 1, 2));
  if (n->graphs[0]->inputs.data[0]->type != kva_type_scalar(m, KVA_I64))
    return kva_error(m->diag, &n->loc, "kv.loop: input 0 of the body must be an int64 scalar");
  KVA_TRY(check_carried(m, n));
  bool known = a->trips && !kva_operand(n, 1), stacks = n->n_results > carried_of(n);
  if (a->binds.n != (stacks && !known))
    return kva_error(m->diag, &n->loc, "kv.loop: binds names %u symbols, expected %d for the number of iterations",
                     a->binds.n, stacks && !known);
  for (uint32_t i = 0; i < carried_of(n); i++) out_types[i] = kva_operand_type(n, i + 2);
  for (uint32_t i = carried_of(n); i < n->n_results; i++)
    KVA_TRY(stacked_type(m, n, i, known ? a->trips : a->binds.v[0], &out_types[i]));
  return KVA_OK;
}
