/* Dead code elimination.
 *
 * What: removes pure nodes (and reads of state) without used results, control nodes included, and nodes that bind
 * unused symbols.
 *
 * Algorithm: one backward sweep over each graph. A node follows the definitions of its operands, so the sweep visits
 * all users before the node itself: one sweep suffices.
 *
 * Requires: SSA order. Breaks: nothing.
 *
 * Why not a forward sweep over use counts: a chain of dead nodes would take one sweep per link. */
#include "passes/passes_internal.h"

/* Whether a type or an attribute of a node after the binding one mentions the symbol. */
static bool is_symbol_used(const kva_node *n) {
  kva_dims binds = kva_node_binds(n);
  for (uint32_t i = 0; i < binds.n; i++)
    if (kva_uses_symbol(n->next, binds.v[i])) return true;
  return false;
}

static bool is_dead(const kva_node *n) {
  return !(n->op->traits & (KVA_RETURN | KVA_WRITES_STATE)) && !kva_node_is_used(n) && !is_symbol_used(n);
}

void kva_remove_dead(kva_graph *g, bool *changed) {
  for (kva_node *n = g->last, *prev; n; n = prev) {
    prev = n->prev;
    if (is_dead(n)) {
      kva_node_remove(n);
      *changed = true;
      continue;
    }
    for (uint32_t i = 0; i < n->n_graphs; i++) kva_remove_dead(n->graphs[i], changed);
  }
}

kva_status kva_opt_dce(kva_module *m, const kva_pass_options *o, bool *changed) {
  (void)o;
  for (uint32_t f = 0; f < m->functions.len; f++) kva_remove_dead(m->functions.data[f]->graph, changed);
  return KVA_OK;
}
