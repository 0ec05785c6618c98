/* Shared by if and loop: their sub-graphs see operands only, and results may have extents that the node defines. */
#ifndef KVA_OPS_CONTROL_H
#define KVA_OPS_CONTROL_H

#include "ops/check.h"

/* Checks that sub-graph i of n is closed: its inputs from `first_input` on have the types of n's operands from
 * `first_operand` on, and its nodes use only values of the graph and touch no state. */
KVA_MUST_USE kva_status kva_check_subgraph(kva_module *m, const kva_node *n, uint32_t i, uint32_t first_input,
                                           uint32_t first_operand);
/* Checks that operand i is a scalar of this type; an omitted one passes. */
KVA_MUST_USE kva_status kva_check_scalar(kva_module *m, const kva_node *n, uint32_t i, kva_dtype dtype);
/* Checks attribute binds: symbols without duplicates. */
KVA_MUST_USE kva_status kva_check_binds(kva_module *m, const kva_node *n);
/* Whether e uses a symbol that a node of g binds, which makes e meaningless outside of g. */
bool kva_is_local_dim(const kva_graph *g, kva_dim e);

#endif
