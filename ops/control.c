/* Checks of sub-graphs. */
#include "ops/control.h"

static kva_status check_closed(kva_module *m, const kva_node *n, uint32_t i) {
  const kva_graph *g = n->graphs[i];
  if (!g->last || !(g->last->op->traits & KVA_RETURN))
    return kva_error(m->diag, &n->loc, "kv.%s: sub-graph %u has no return", n->op->name, i);
  for (const kva_node *inner = g->first; inner; inner = inner->next) {
    if (inner->op->traits & (KVA_READS_STATE | KVA_WRITES_STATE))
      return kva_error(m->diag, &inner->loc, "kv.%s stands in a sub-graph of kv.%s: state passes through operands",
                       inner->op->name, n->op->name);
    for (uint32_t k = 0; k < inner->n_operands; k++)
      if (inner->operands[k].value && inner->operands[k].value->graph != g)
        return kva_error(m->diag, &inner->loc,
                         "kv.%s: operand %u is a value from outside sub-graph %u of kv.%s, which must be an operand of "
                         "that",
                         inner->op->name, k, i, n->op->name);
  }
  return KVA_OK;
}

kva_status kva_check_subgraph(kva_module *m, const kva_node *n, uint32_t i, uint32_t first_input,
                              uint32_t first_operand) {
  const kva_graph *g = n->graphs[i];
  uint32_t count = n->n_operands - first_operand;
  if (g->inputs.len != first_input + count)
    return kva_error(m->diag, &n->loc, "kv.%s: sub-graph %u has %u inputs, expected %u", n->op->name, i, g->inputs.len,
                     first_input + count);
  for (uint32_t k = 0; k < count; k++)
    if (!kva_operand(n, first_operand + k) ||
        g->inputs.data[first_input + k]->type != kva_operand_type(n, first_operand + k))
      return kva_operand_error(m, n, first_operand + k, "its type differs from input %u of sub-graph %u",
                               first_input + k, i);
  return check_closed(m, n, i);
}

kva_status kva_check_scalar(kva_module *m, const kva_node *n, uint32_t i, kva_dtype dtype) {
  if (!kva_operand(n, i) || kva_operand_type(n, i) == kva_type_scalar(m, dtype)) return KVA_OK;
  return kva_operand_error(m, n, i, "expected a scalar of %s", kva_dtype_name(dtype));
}

kva_status kva_check_binds(kva_module *m, const kva_node *n) {
  kva_dims binds = kva_node_binds(n);
  for (uint32_t i = 0; i < binds.n; i++) {
    if (binds.v[i]->kind != KVA_EXPR_SYMBOL)
      return kva_error(m->diag, &n->loc, "kv.%s binds symbols, and entry %u is none", n->op->name, i);
    for (uint32_t k = 0; k < i; k++)
      if (binds.v[k] == binds.v[i]) return kva_error(m->diag, &n->loc, "kv.%s binds a symbol twice", n->op->name);
  }
  return KVA_OK;
}

bool kva_is_local_dim(const kva_graph *g, kva_dim e) {
  for (const kva_node *n = g->first; n; n = n->next) {
    kva_dims binds = kva_node_binds(n);
    for (uint32_t i = 0; i < binds.n; i++)
      if (kva_expr_uses(e, binds.v[i])) return true;
  }
  return false;
}
