/* Translates sub-graphs of ONNX nodes to sub-graphs of internal nodes (onnx_region.c). */
#ifndef KVA_FRONTEND_ONNX_REGION_H
#define KVA_FRONTEND_ONNX_REGION_H

#include "frontend/onnx_rules.h"

/* A graph without a node yet: the call's builder appends to it from kva_region_open to kva_region_close. */
typedef struct kva_region {
  kva_graph *graph, *outer;
} kva_region;
kva_region kva_region_open(kva_onnx_call *k);
/* Ends the graph with these outputs and restores the builder's position. */
void kva_region_close(kva_onnx_call *k, const kva_region *r, uint32_t n_outputs, kva_value *const *outputs);
/* Restores the builder's position and discards the graph, which then has no uses. */
void kva_region_discard(kva_onnx_call *k, const kva_region *r);

/* Builds a node with the closed regions as sub-graphs. Values that they use from outside become operands after the
 * given ones, and inputs of all regions; small constants are duplicated inside. */
kva_node *kva_region_node(kva_onnx_call *k, kva_op_id op, uint32_t n_regions, const kva_region *regions,
                          uint32_t n_operands, kva_value *const *operands, uint32_t n_results, void *attrs);
/* Sets the result types. */
KVA_MUST_USE kva_status kva_region_infer(kva_onnx_call *k, kva_node *n);

#endif
