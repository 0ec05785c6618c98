/* Nodes that read sums over processes run late.
 *
 * What: with `--mesh data=N` the nodes that depend on a sum of gradients, loss or metrics follow all that depend on
 * none, and those that depend on the first sums alone before those that need later ones. So a sum has the rest of the
 * backward pass to travel in (passes/plan_waits.c), and norms of gradients and updates begin with those that are there.
 * Algorithm: the level of a node is the number, in order of nodes, of the last sum that it depends on; nodes are
 * ordered by level, and keep their order within one. Requires: pass fuse, whose kernels are the steps. Breaks: nothing.
 * Exact. Why nothing else moves: sums within a loss (axes tensor and sequence) are what the next nodes wait for, and
 * gathers of parameters stand where memory allows them. */
#include "ops/exchange.h"
#include "passes/passes_internal.h"

static bool is_sum(const kva_node *n, const kva_mesh *mesh) {
  bool sums = kva_is(n, KVA_OP_all_reduce) || kva_is(n, KVA_OP_reduce_scatter);
  return sums && kva_exchange_parts(n) == mesh->data && kva_exchange_stride(n) == kva_mesh_group(mesh);
}

typedef struct levels {
  uint32_t *of;  /* by node id */
  uint32_t *sum; /* by node id: its number, if it is a sum, from 1 up; else 0 */
  uint32_t n;    /* sums */
} levels;

static uint32_t level_of(const levels *l, const kva_node *n) {
  uint32_t level = 0;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_node *def = n->operands[i].value ? n->operands[i].value->def : NULL;
    uint32_t from = !def ? 0 : l->sum[def->id] ? l->sum[def->id] : l->of[def->id];
    if (from > level) level = from;
  }
  return level;
}

static levels find_levels(kva_module *m, const kva_graph *g, const kva_mesh *mesh) {
  levels l = {KVA_NEW_ARRAY(m->arena, uint32_t, m->next_node_id + 1),
              KVA_NEW_ARRAY(m->arena, uint32_t, m->next_node_id + 1), 0};
  for (const kva_node *n = g->first; n != g->last; n = n->next) {
    l.of[n->id] = level_of(&l, n);
    if (is_sum(n, mesh)) l.sum[n->id] = ++l.n;
  }
  return l;
}

/* Symbols that a node binds are used without an edge. */
static bool may_move(const kva_graph *g) {
  for (const kva_node *n = g->first; n; n = n->next)
    if (n->op->traits & (KVA_CONTROL | KVA_BINDS)) return false;
  return true;
}

static void order(kva_module *m, kva_graph *g, const kva_mesh *mesh, bool *changed) {
  levels l = find_levels(m, g, mesh);
  KVA_VEC(kva_node *) nodes = {0};
  uint32_t last = 0;
  for (kva_node *n = g->first; n != g->last; n = n->next) {
    KVA_PUSH(m->arena, &nodes, n);
    *changed |= l.of[n->id] < last;
    last = l.of[n->id];
  }
  for (uint32_t level = 1; level <= l.n; level++)
    for (uint32_t i = 0; i < nodes.len; i++)
      if (l.of[nodes.data[i]->id] == level) kva_node_move_before(nodes.data[i], g->last);
}

kva_status kva_sums_late(kva_module *m, const kva_pass_options *options, bool *changed) {
  for (uint32_t i = 0; i < m->functions.len; i++) {
    kva_graph *g = m->functions.data[i]->graph;
    if (may_move(g)) order(m, g, &options->mesh, changed);
  }
  return KVA_OK;
}
