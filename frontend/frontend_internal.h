/* Shared by the files of the frontend. */
#ifndef KVA_FRONTEND_FRONTEND_INTERNAL_H
#define KVA_FRONTEND_FRONTEND_INTERNAL_H

#include "frontend/onnx_node.h"

/* The opset of ONNX operators in .kv models, and in ONNX text without an opset_import. */
enum { KVA_ONNX_NEWEST_OPSET = 27 };

/* Whether a file is a text (.kv, ONNX text), not a protobuf. */
bool kva_file_is_text(const kva_file *file);

/* Imports an ONNX protobuf file mapped at `file`; `path` names it in messages and locates external data. The module
 * takes the mapping, and leaves *file empty, if its constants refer to it; never with options->in_memory. */
KVA_MUST_USE kva_status kva_import_onnx(kva_file *file, const char *path, const kva_load_options *options,
                                        kva_diag *diag, kva_module **out);

/* The target of kva_onnx_attr.graph: the body of an If, Loop, Scan, ..., from either source format. build inlines its
 * nodes at the builder's position with its inputs bound to these values; it sees names of the surrounding graph. It may
 * be built any number of times. */
typedef struct kva_onnx_subgraph kva_onnx_subgraph;
struct kva_onnx_subgraph {
  uint32_t n_inputs, n_outputs;
  kva_status (*build)(kva_onnx_ctx *c, const kva_onnx_subgraph *g, kva_value *const *inputs, kva_value **outputs);
};

#endif
