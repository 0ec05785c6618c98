/* if: runs one of two sub-graphs, selected by data.
 *
 *   r... = kv.if <binds> (c, x...) { then } { else }
 *
 * c is a bool scalar. Both sub-graphs take x... and have equally many outputs; the node's results are those of `then`
 * if c holds, else those of `else`. Outputs agree in element type and rank. An extent that is the same expression in
 * both is the result's extent. If it differs, or depends on a symbol that a branch binds, the result has the next
 * symbol of `binds`, which the node sets to the actual extent: one symbol per such axis, in order of results and axes.
 *
 * Gradient: an `if` with the same condition whose branches recompute the forward branch and differentiate it
 * (passes/autodiff_control.c). */
#include "ops/control.h"

KVA_OP_FUNCTIONS(if)

/* The merged type of result r; *next counts the used symbols of binds. */
static kva_status merge_types(kva_module *m, const kva_node *n, uint32_t r, uint32_t *next, const kva_type **out) {
  kva_dims binds = ((const kva_if_attrs *)n->attrs)->binds;
  const kva_type *yes = kva_graph_output(n->graphs[0], r)->type, *no = kva_graph_output(n->graphs[1], r)->type;
  if (yes->kind != KVA_TYPE_TENSOR || no->kind != KVA_TYPE_TENSOR || yes->dtype != no->dtype || yes->rank != no->rank)
    return kva_error(m->diag, &n->loc, "kv.if: output %u of the branches differs in element type or rank", r);
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t k = 0; k < yes->rank; k++) {
    dims[k] = yes->dims[k];
    if (yes->dims[k] == no->dims[k] && !kva_is_local_dim(n->graphs[0], yes->dims[k])) continue;
    if (*next == binds.n)
      return kva_error(m->diag, &n->loc, "kv.if: axis %u of output %u differs between the branches: binds must name it",
                       k, r);
    dims[k] = binds.v[(*next)++];
  }
  *out = kva_type_tensor(m, yes->dtype, yes->rank, dims);
  return KVA_OK;
}

kva_status kva_if_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  if (n->n_graphs != 2) return kva_error(m->diag, &n->loc, "kv.if: expected two sub-graphs, found %u", n->n_graphs);
  KVA_TRY(kva_check_scalar(m, n, 0, KVA_BOOL));
  KVA_TRY(kva_check_binds(m, n));
  for (uint32_t i = 0; i < 2; i++) {
    KVA_TRY(kva_check_subgraph(m, n, i, 0, 1));
    if (kva_graph_output_count(n->graphs[i]) != n->n_results)
      return kva_error(m->diag, &n->loc, "kv.if: sub-graph %u has %u outputs for %u results", i,
                       kva_graph_output_count(n->graphs[i]), n->n_results);
  }
  uint32_t used = 0;
  for (uint32_t r = 0; r < n->n_results; r++) KVA_TRY(merge_types(m, n, r, &used, &out_types[r]));
  if (used == kva_node_binds(n).n) return KVA_OK;
  return kva_error(m->diag, &n->loc, "kv.if: binds names %u symbols for %u axes", kva_node_binds(n).n, used);
}
