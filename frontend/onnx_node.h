/* ONNX nodes, independent of the file format: the protobuf importer and the text elaborator both produce kva_onnx_node
 * and call kva_onnx_build, which normalises (operator, version) to internal operators. */
#ifndef KVA_FRONTEND_ONNX_NODE_H
#define KVA_FRONTEND_ONNX_NODE_H

#include "frontend/frontend.h"

typedef enum kva_onnx_attr_kind {
  KVA_ONNX_INT,
  KVA_ONNX_FLOAT,
  KVA_ONNX_STRING,
  KVA_ONNX_TENSOR,
  KVA_ONNX_GRAPH,
  KVA_ONNX_INTS,
  KVA_ONNX_FLOATS,
  KVA_ONNX_STRINGS,
  KVA_ONNX_TYPE, /* without its contents */
} kva_onnx_attr_kind;

typedef struct kva_onnx_attr {
  const char *name;
  kva_onnx_attr_kind kind;
  int64_t i;
  double f;
  const char *s; /* NUL-terminated copy */
  uint32_t n;    /* INTS, FLOATS, STRINGS */
  const int64_t *ints;
  const double *floats;
  const char *const *strings;
  const kva_tensor_data *tensor;
  const void *graph; /* a sub-graph in the importer's own representation */
} kva_onnx_attr;

typedef struct kva_onnx_node {
  const char *domain, *op_type, *name; /* domain "" is ai.onnx */
  uint32_t n_attrs, n_inputs, n_outputs;
  const kva_onnx_attr *attrs;
  kva_value *const *inputs;        /* NULL: omitted */
  const char *const *output_names; /* "" or NULL: unused */
  kva_loc loc;
} kva_onnx_node;

/* What nodes that draw random numbers share: the number of the call in `graph`, and how many have streams. */
typedef struct kva_onnx_random_calls {
  kva_value *call;
  const kva_graph *graph;
  int64_t streams;
} kva_onnx_random_calls;

/* One import: the builder, opset versions, and known contents of values (shape arithmetic). */
typedef struct kva_onnx_ctx {
  kva_builder b;
  kva_diag *diag;
  kva_arena *arena;
  int64_t opset;     /* version of the default domain in the current graph or function */
  kva_map *contents; /* value pointer -> kva_dims *: elements of small integer tensors as expressions */
  kva_onnx_random_calls random;
  /* The value of a name that the current node sees, for attributes that name values; NULL: there is none, or names are
   * not known (`value_named` is NULL). */
  kva_value *(*value_named)(const void *scope, const char *name);
  const void *scope;
  bool whole_texts;    /* caches are empty and no token is padding: kva_load_options.language */
  const kva_map *read; /* with kva_load_options.inference: the names that nodes and outputs read; else NULL */
  kva_map
      *constants; /* value pointer -> kva_ref_tensor *: values of small constant tensors; both maps made on first use */
} kva_onnx_ctx;

/* Builds internal nodes for n; out[i] receives output i (NULL if it does not exist). Without a rule: KVA_UNSUPPORTED
 * with a diagnostic that names domain, operator, version and reason. */
KVA_MUST_USE kva_status kva_onnx_build(kva_onnx_ctx *c, const kva_onnx_node *n, kva_value **out);
/* Whether (domain, op_type) has a rule that covers `version`; else *out_reason is set. */
bool kva_onnx_supported(const char *domain, const char *op_type, int64_t version, const char **out_reason);

/* Elements of an integer tensor of rank <= 1 as expressions, if known (constants, Shape and arithmetic on them). */
const kva_dims *kva_onnx_contents(kva_onnx_ctx *c, const kva_value *v);
/* The same of contents that data decides, as new symbols that are bound at run time, at most KVA_ONNX_MAX_BOUND: those
 * of what v is computed from, or v's own. They must not be negative then. `what` names them. NULL: v has no known
 * number of elements, or too many. */
enum { KVA_ONNX_MAX_BOUND = 8 };
const kva_dims *kva_onnx_bound_contents(kva_onnx_ctx *c, kva_value *v, const char *what);
/* v's own elements, whatever it is computed from. */
const kva_dims *kva_onnx_bind_elements(kva_onnx_ctx *c, kva_value *v, const char *what);

#endif
