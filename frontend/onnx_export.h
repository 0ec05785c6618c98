/* Shared by the files of the ONNX exporter: the graph or function body being written, and one function per kind of
 * mapping. Strings and messages live in the exporter's arena; tensor bytes are borrowed until the file is written. */
#ifndef KVA_FRONTEND_ONNX_EXPORT_H
#define KVA_FRONTEND_ONNX_EXPORT_H

#include "frontend/onnx_proto.h"

/* Opset 21 and IR 10: supported by ONNX Runtime since 1.18, with every operator that a model needs. */
enum {
  KVA_EXPORT_OPSET = 21,
  KVA_EXPORT_OPSET_CACHES = 24,
  KVA_EXPORT_OPSET_26 = 26,
  KVA_EXPORT_OPSET_SHIFT = 27,
  KVA_EXPORT_IR = 10
};

typedef struct kva_export {
  kva_arena *arena;
  kva_diag *diag;
  kva_module *m;
  const kva_function *f; /* that is written */
  int opset, ir;         /* ir: the least that the types written so far need */
  kva_state_bytes state_data;
  void *state_user;
  kva_pb_graph *graph;
  KVA_VEC(kva_pb_node *) nodes; /* nodes of the graph or function body being written */
  KVA_VEC(kva_pb_tensor *) initializers;
  KVA_VEC(kva_pb_function *) functions;
  kva_map *bodies;    /* packed function without its overload -> kva_pb_function * */
  const char **names; /* names of values, by id */
  kva_map *used_names;
  kva_map *named;      /* name of a weight -> its kva_pb_tensor * among the initializers */
  kva_map *node_names; /* runtimes reject duplicate node names */
  kva_map *dims;       /* expression -> name of an int64[1] tensor */
  uint32_t n_made;     /* number of generated names */
  /* Set in a function body, which the graph's writers also write: the calling node and the names of its operands in the
   * body. Constants become nodes, since functions have no initialisers. */
  const kva_node *body_of;
  const char *const *formals;
} kva_export;

/* ---- names and constants ----------------------------------------------------------------------------------------- */

const char *kva_export_fresh(kva_export *e, const char *hint);
const char *kva_export_name(kva_export *e, const kva_value *v); /* name of an operand that is already written */
const char *kva_export_tensor(kva_export *e, kva_dtype t, uint32_t rank, const int64_t *dims, const void *data,
                              int64_t bytes);
const char *kva_export_scalar(kva_export *e, kva_dtype t, double v);
const char *kva_export_i64s(kva_export *e, uint32_t n, const int64_t *v);
const char *kva_export_i64(kva_export *e, int64_t v); /* int64[1] */
/* Shape expressions as an int64[n] tensor: a constant, or arithmetic on extents of inputs of the graph or function.
 * NULL with a diagnostic if a symbol is no extent of an input. */
const char *kva_export_dims(kva_export *e, uint32_t n, const kva_dim *dims);

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

/* Appends a node with n_out outputs, the first called `out` (NULL: a fresh name). NULL inputs are omitted. */
kva_pb_node *kva_export_node(kva_export *e, const char *op_type, uint32_t n_in, const char *const *in, const char *out);
static inline const char *kva_export_out(const kva_pb_node *n) {
  return n->output[0];
}
const char *kva_export_1(kva_export *e, const char *op_type, const char *x);
const char *kva_export_2(kva_export *e, const char *op_type, const char *x, const char *y);
const char *kva_export_3(kva_export *e, const char *op_type, const char *x, const char *y, const char *z);
void kva_export_add_output(kva_export *e, kva_pb_node *n, const char *name);
void kva_export_int(kva_export *e, kva_pb_node *n, const char *name, int64_t v);
void kva_export_float(kva_export *e, kva_pb_node *n, const char *name, double v);
/* Writes v as a float attribute if that reads back as v (kva_onnx_decimal), else as a tensor. */
void kva_export_exact(kva_export *e, kva_pb_node *n, const char *name, double v);
void kva_export_string(kva_export *e, kva_pb_node *n, const char *name, const char *v);
void kva_export_ints(kva_export *e, kva_pb_node *n, const char *name, kva_ints v);

const char *kva_export_cast(kva_export *e, const char *x, kva_dtype to);
const char *kva_export_slice(kva_export *e, const char *x, int64_t axis, int64_t start, int64_t end, int64_t step);
const char *kva_export_concat(kva_export *e, uint32_t n, const char *const *x, int64_t axis);
const char *kva_export_reshape(kva_export *e, const char *x, uint32_t rank, const kva_dim *dims);
const char *kva_export_unsqueeze(kva_export *e, const char *x, uint32_t n, const int64_t *axes);
const char *kva_export_reduce(kva_export *e, const char *op_type, const char *x, uint32_t n, const int64_t *axes,
                              bool keepdims);

/* All nodes of g but its return. Goes on after a failure, and returns the first. */
KVA_MUST_USE kva_status kva_export_nodes(kva_export *e, const kva_graph *g);
kva_pb_value_info *kva_export_value_info(kva_export *e, const char *name, const kva_type *t);
void kva_export_graph(kva_export *e, kva_pb_node *n, const char *name, kva_pb_graph *g);

/* ---- operators --------------------------------------------------------------------------------------------------- */

/* Writes n and names its results in e->names. */
KVA_MUST_USE kva_status kva_export_op(kva_export *e, const kva_node *n);
kva_status kva_export_unsupported(kva_export *e, const kva_node *n, const char *reason);
/* Name of operand i, NULL if omitted; an unused name for result i. */
const char *kva_export_in(kva_export *e, const kva_node *n, uint32_t i);
const char *kva_export_result_name(kva_export *e, const kva_node *n, uint32_t i);
void kva_export_set(kva_export *e, const kva_node *n, uint32_t result, const char *name);
/* Names result 0 `name`. NULL: an earlier step failed and was reported. */
kva_status kva_export_done(kva_export *e, const kva_node *n, const char *name);
/* Names p after the ONNX node that n was imported from. */
void kva_export_name_node(kva_export *e, kva_pb_node *p, const kva_node *n);
/* Appends an ONNX node with n's operands and its result 0. */
kva_pb_node *kva_export_like(kva_export *e, const kva_node *n, const char *op_type);

/* The writer of a row of onnx_export.def; op_type is the row's. */
typedef kva_status (*kva_export_fn)(kva_export *e, const kva_node *n, const char *op_type);
/* Writes n as a call of the function ai.kvasir::<op_type>, whose body `write` produces. The signature names operands
 * and results: "x w past -> y state" (onnx_export_function.c). */
KVA_MUST_USE kva_status kva_export_call(kva_export *e, const kva_node *n, const char *op_type, const char *signature,
                                        kva_export_fn write);
#define KVA_EXPORT_FN(name) kva_status kva_export_##name(kva_export *e, const kva_node *n, const char *op_type);
/* onnx_export_nn.c */
KVA_EXPORT_FN(matmul)
KVA_EXPORT_FN(conv)
KVA_EXPORT_FN(conv_transpose)
KVA_EXPORT_FN(max_pool)
KVA_EXPORT_FN(avg_pool)
KVA_EXPORT_FN(rms_norm)
KVA_EXPORT_FN(layer_norm)
KVA_EXPORT_FN(batch_norm)
KVA_EXPORT_FN(cross_entropy)
/* onnx_export_control.c */
KVA_EXPORT_FN(if)
KVA_EXPORT_FN(loop)
/* onnx_export_lm.c */
KVA_EXPORT_FN(kv_shift)
KVA_EXPORT_FN(rope)
KVA_EXPORT_FN(attention)
KVA_EXPORT_FN(attention_cached)

#endif
