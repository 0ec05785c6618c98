/* Shared by the passes; not seen outside the folder. */
#ifndef KVA_PASSES_PASSES_INTERNAL_H
#define KVA_PASSES_PASSES_INTERNAL_H

#include "passes/passes.h"

/* True for nodes without effects whose result depends on operands and attributes alone: what may be removed when
 * unused, merged when equal, folded when constant. */
static inline bool kva_node_is_pure(const kva_node *n) {
  return !(n->op->traits & (KVA_RETURN | KVA_READS_STATE | KVA_WRITES_STATE)) && n->n_graphs == 0;
}

/* The payload of a constant, or NULL. */
const kva_tensor_data *kva_constant_of(const kva_value *v);
/* True when v is a constant all of whose elements equal `x`. */
bool kva_is_splat(const kva_value *v, double x);
/* True when v is a constant with all elements equal, and which. */
bool kva_splat_value(const kva_value *v, double *out_x);

/* Copies the nodes of `from` (without its return node) to the end of `to`. values[id] must hold the copies of from's
 * inputs and of every outer value it uses; it receives the copies of all results. */
void kva_graph_copy_nodes(const kva_graph *from, kva_graph *to, kva_value **values);

/* A further function of m with the nodes of f. */
kva_function *kva_function_clone(kva_module *m, const kva_function *f, const char *name);

/* opt_split_shift.c: the gradients of a KV shift by input and weights become one node; false: there are none. */
bool kva_split_shift_grads(kva_module *m, kva_graph *g);

/* A builder that inserts before `n` and gives new nodes its place in the source. */
static inline kva_builder kva_builder_before(kva_module *m, kva_node *n) {
  return (kva_builder){.m = m, .graph = n->graph, .before = n, .loc = n->loc};
}

#endif
