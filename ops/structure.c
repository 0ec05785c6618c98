/* Structural operators, which no kernel computes; ops/ref.c and the planner handle them.
 *
 *   return       ends a graph; its operands are the outputs
 *   constant     the tensor `value`
 *   state_read   the current value of `state`
 *   state_write  sets `state` to operand 0
 *   kernel       a fused group: one sub-graph whose inputs are the operands and whose outputs are the results */
#include "ops/build.h"

KVA_OP_FUNCTIONS(return )
KVA_OP_FUNCTIONS(constant)
KVA_OP_FUNCTIONS(state_read)
KVA_OP_FUNCTIONS(state_write)
KVA_OP_FUNCTIONS(kernel)

kva_status kva_return_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  (void)m, (void)n, (void)out_types;
  return KVA_OK;
}

kva_status kva_constant_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_tensor_data *data = ((const kva_constant_attrs *)n->attrs)->value;
  if (!data) return kva_error(m->diag, &n->loc, "kv.constant: attribute value is missing");
  if (data->rank > KVA_MAX_RANK)
    return kva_fail(m->diag, KVA_UNSUPPORTED, &n->loc, "kv.constant: rank %u is more than the %d that Kvasir supports",
                    data->rank, KVA_MAX_RANK);
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t i = 0; i < data->rank; i++) dims[i] = kva_expr_const(m->exprs, data->dims[i]);
  out_types[0] = kva_type_tensor(m, data->dtype, data->rank, dims);
  return KVA_OK;
}

kva_status kva_state_read_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_state *state = ((const kva_state_read_attrs *)n->attrs)->state;
  if (!state) return kva_error(m->diag, &n->loc, "kv.state_read: attribute state is missing");
  out_types[0] = state->type;
  return KVA_OK;
}

kva_status kva_state_write_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  (void)out_types;
  const kva_state *state = ((const kva_state_write_attrs *)n->attrs)->state;
  if (!state) return kva_error(m->diag, &n->loc, "kv.state_write: attribute state is missing");
  if (kva_operand_type(n, 0) == state->type) return KVA_OK;
  kva_text expected = {0}, found = {0};
  kva_type_print(state->type, &expected);
  kva_type_print(kva_operand_type(n, 0), &found);
  kva_status status =
      kva_operand_error(m, n, 0, "expected %s, the type of state %s, found %s", expected.data, state->name, found.data);
  kva_text_free(&expected);
  kva_text_free(&found);
  return status;
}

kva_status kva_kernel_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  if (n->n_graphs != 1) return kva_error(m->diag, &n->loc, "kv.kernel: expected one sub-graph, found %u", n->n_graphs);
  const kva_graph *g = n->graphs[0];
  if (g->inputs.len != n->n_operands || kva_graph_output_count(g) != n->n_results)
    return kva_error(m->diag, &n->loc,
                     "kv.kernel: its graph has %u inputs and %u outputs for %u operands and %u results", g->inputs.len,
                     kva_graph_output_count(g), n->n_operands, n->n_results);
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (!kva_operand(n, i) || g->inputs.data[i]->type != kva_operand_type(n, i))
      return kva_operand_error(m, n, i, "its type differs from input %u of the sub-graph", i);
  for (uint32_t i = 0; i < n->n_results; i++) out_types[i] = kva_graph_output(g, i)->type;
  return KVA_OK;
}
