/* What if and loop share: their sub-graphs see operands alone, and results may have extents that only the node knows.
 */
#ifndef KVA_OPS_CONTROL_H
#define KVA_OPS_CONTROL_H

#include "ops/check.h"

/* Sub-graph i of n is closed: its inputs from `first_input` on have the types of n's operands from `first_operand` on,
 * its nodes use values of the graph alone and touch no state. */
KVA_MUST_USE kva_status kva_check_subgraph(kva_module *m, const kva_node *n, uint32_t i, uint32_t first_input,
                                           uint32_t first_operand);
/* Operand i is a scalar of this type; one that was left out passes. */
KVA_MUST_USE kva_status kva_check_scalar(kva_module *m, const kva_node *n, uint32_t i, kva_dtype dtype);
/* Attribute binds: symbols, none of them twice. */
KVA_MUST_USE kva_status kva_check_binds(kva_module *m, const kva_node *n);
/* e uses a symbol that a node of g binds, so that it means nothing outside of g. */
bool kva_is_local_dim(const kva_graph *g, kva_dim e);

#endif
