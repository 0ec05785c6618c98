/* The protobuf side of the ONNX frontend, shared by importer, check, tensor files and exporter. Only these files see
 * protobuf-c; operator rules see kva_onnx_node. */
#ifndef KVA_FRONTEND_ONNX_PROTO_H
#define KVA_FRONTEND_ONNX_PROTO_H

#include "frontend/onnx_rules.h"

#include "onnx.pb-c.h"

typedef Onnx__ModelProto kva_pb_model;
typedef Onnx__GraphProto kva_pb_graph;
typedef Onnx__NodeProto kva_pb_node;
typedef Onnx__AttributeProto kva_pb_attr;
typedef Onnx__TensorProto kva_pb_tensor;
typedef Onnx__FunctionProto kva_pb_function;
typedef Onnx__OperatorSetIdProto kva_pb_opset;
typedef Onnx__ValueInfoProto kva_pb_value_info;
typedef Onnx__TypeProto kva_pb_type;

/* protobuf-c represents absent strings by NULL. */
static inline const char *kva_pb_str(const char *s) {
  return s ? s : "";
}
/* "ai.onnx" and "" name the same domain. */
const char *kva_pb_domain(const char *domain);

/* ---- wire format (onnx_wire.c) ----------------------------------------------------------------------------------- */

/* Unpacks one message after checking lengths and nesting, which protobuf-c does not bound. `what` names the message
 * ("model"). Free it with protobuf_c_message_free_unpacked(m, NULL). */
KVA_MUST_USE kva_status kva_pb_unpack(const ProtobufCMessageDescriptor *type, const void *data, size_t size,
                                      const char *what, const kva_loc *loc, kva_diag *diag, ProtobufCMessage **out);

/* Raw data of a tensor outside of its message; data NULL: they are in it. */
typedef struct kva_pb_raw {
  const void *data;
  size_t size;
  bool mapped; /* in a file whose mapping outlives what is made of them */
} kva_pb_raw;

/* Unpacks a model without the raw data of the main graph's large initialisers, which protobuf-c would copy:
 * (*out_raw)[i] in `arena`, not mapped, has those of initialiser i in `data`. *out_raw NULL: nothing is left out. Free
 * *out, which is NULL after a failure, with protobuf_c_message_free_unpacked. */
KVA_MUST_USE kva_status kva_pb_unpack_model(const void *data, size_t size, const kva_loc *loc, kva_arena *arena,
                                            kva_diag *diag, kva_pb_model **out, kva_pb_raw **out_raw);

/* ---- tensors (onnx_tensor.c) ------------------------------------------------------------------------------------- */

typedef struct kva_pb_tensor_reader {
  kva_arena *arena; /* owns converted tensors */
  kva_diag *diag;
  const char *folder; /* the model's folder, for external data; NULL: external data is rejected */
  kva_map *files;     /* mapped external files by relative name; created on first use */
  kva_map *missing;   /* those that could not be mapped, which is reported once */
} kva_pb_tensor_reader;

/* `raw`: what kva_pb_unpack_model left out of t, or NULL. Mapped data are used in place if they are aligned, else
 * copied, and their pages given back. */
KVA_MUST_USE kva_status kva_pb_read_tensor(kva_pb_tensor_reader *r, const kva_pb_tensor *t, const kva_pb_raw *raw,
                                           const kva_loc *loc, const kva_tensor_data **out);

/* ---- models ------------------------------------------------------------------------------------------------------ */

/* Checks versions and presence of a graph. */
KVA_MUST_USE kva_status kva_pb_check_header(const kva_pb_model *m, const kva_loc *loc, kva_diag *diag);
/* Version of `domain` in a list of opset imports; 0: not imported. */
int64_t kva_pb_opset_version(size_t n, kva_pb_opset *const *imports, const char *domain);
/* Model-local functions by name; find returns the one that a node calls, or NULL. */
kva_map *kva_pb_index_functions(const kva_pb_model *m, kva_arena *arena);
const kva_pb_function *kva_pb_find_function(const kva_map *functions, const kva_pb_node *n);
/* Counts every operator in graph, sub-graphs and called functions into `out`. */
void kva_pb_count_ops(const kva_pb_model *m, const kva_map *functions, kva_arena *arena, kva_check_report *out);

#endif
