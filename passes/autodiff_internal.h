/* Between autodiff.c and autodiff_control.c. */
#ifndef KVA_PASSES_AUTODIFF_INTERNAL_H
#define KVA_PASSES_AUTODIFF_INTERNAL_H

#include "passes/passes_internal.h"

/* Walks b's graph backwards from node `last` to its first (NULL: an empty graph), and builds with b the adjoints of
 * what the roots reach. By value id, for the values that existed before the walk: active: marked for roots, then for
 * what depends on them; adjoint: set for outputs, then for everything. */
KVA_MUST_USE kva_status kva_build_adjoints(kva_builder *b, const kva_node *last, bool *active, kva_value **adjoint,
                                           kva_arena *scratch);

/* The vjp of a node with sub-graphs (autodiff_control.c). A loop is replaced by one with further results. */
KVA_MUST_USE kva_status kva_control_gradient(kva_vjp *c, kva_node *n, kva_arena *scratch);

#endif
