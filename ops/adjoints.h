/* Reverse-mode differentiation of a graph by the operators' vjp rules, as ordinary nodes. Training (passes/autodiff.c)
 * and the importer build on it. */
#ifndef KVA_OPS_ADJOINTS_H
#define KVA_OPS_ADJOINTS_H

#include "ops/build.h"

/* The vjp of a node with sub-graphs, which may replace it by one with further results. */
typedef kva_status (*kva_graph_vjp)(kva_vjp *c, kva_node *n, kva_arena *scratch);

/* Walks b's graph backwards from node `last` to its first (NULL: an empty graph), and builds with b the adjoints of
 * what the roots reach. By value id, for the values that existed before the walk: active: marked for roots, then for
 * what depends on them; adjoint: set for outputs, then for everything. Without `through_graphs` a node with sub-graphs
 * on the way is KVA_UNSUPPORTED, as one without a rule is. */
KVA_MUST_USE kva_status kva_build_adjoints(kva_builder *b, const kva_node *last, bool *active, kva_value **adjoint,
                                           kva_graph_vjp through_graphs, kva_arena *scratch);

#endif
