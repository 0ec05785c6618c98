/* Shared by the files of the ONNX importer: the model being imported, names in scope, and frames of inlined
 * functions. */
#ifndef KVA_FRONTEND_ONNX_IMPORT_H
#define KVA_FRONTEND_ONNX_IMPORT_H

#include "frontend/frontend_internal.h"
#include "frontend/onnx_proto.h"

/* A function body being inlined, or the main graph (function NULL). Determines its nodes' opsets and attribute
 * references. */
typedef struct kva_import_frame kva_import_frame;
struct kva_import_frame {
  const kva_import_frame *caller;
  const kva_pb_function *function;
  size_t n_imports;
  kva_pb_opset *const *imports;
  uint32_t n_attrs;
  const kva_onnx_attr *attrs; /* the call's attributes, then defaults */
  uint32_t depth;
};

/* Names of one graph; sub-graphs also see those of enclosing graphs. */
typedef struct kva_import_scope kva_import_scope;
struct kva_import_scope {
  const kva_import_scope *outer;
  const kva_import_frame *frame;
  kva_map *names; /* -> kva_import_name * */
};

typedef enum kva_name_state { KVA_NAME_OK, KVA_NAME_FAILED, KVA_NAME_ABSENT } kva_name_state;
typedef struct kva_import_name {
  kva_name_state state; /* FAILED: its node was reported, users are skipped; ABSENT: optional function input */
  kva_value *value;
} kva_import_name;

typedef struct kva_import {
  kva_onnx_ctx c;
  kva_module *m;
  const kva_pb_model *model;
  kva_pb_raw *raw; /* of the graph's initialisers, what lies outside of the model; or NULL */
  kva_pb_tensor_reader tensors;
  const kva_load_options *options;
  kva_loc loc;         /* the file */
  kva_map *functions;  /* model-local ones */
  kva_map *symbols;    /* dim_param -> kva_dim */
  kva_map *used_names; /* names in use by symbols */
  uint64_t pins_used;
  const kva_type *tokens; /* of a language model that is read as a function of whole texts; else NULL */
  int64_t n_nodes;        /* nodes built so far, including inlined functions */
  kva_status status;      /* the first failure */
  bool lacks_operators;   /* some have no rule; they are reported */
} kva_import;

kva_status kva_import_define(kva_import *im, kva_import_scope *s, const char *name, kva_import_name value,
                             const kva_loc *loc);
const kva_import_name *kva_import_find(const kva_import_scope *s, const char *name);
/* Imports nodes in order into the builder's graph. Continues after failures, which are recorded. */
void kva_import_nodes(kva_import *im, kva_import_scope *s, size_t n, kva_pb_node *const *nodes);
KVA_MUST_USE kva_status kva_import_initializers(kva_import *im, kva_import_scope *s, const kva_pb_graph *g,
                                                const kva_pb_raw *raw);
/* onnx_import_node.c */
KVA_MUST_USE kva_status kva_import_attrs(kva_import *im, kva_import_scope *s, const kva_pb_node *n, const kva_loc *loc,
                                         uint32_t *out_n, const kva_onnx_attr **out);
/* onnx_import_type.c */
KVA_MUST_USE kva_status kva_import_type(kva_import *im, const kva_pb_value_info *v, const kva_type **out);
/* The kind of values of *type, which becomes the type of a tensor in them. */
kva_value_kind kva_import_kind(const kva_pb_type **type);
/* Type of tensor `name` in a sequence or optional: that of `like` if it is given, else as declared, with symbols of its
 * own. */
KVA_MUST_USE kva_status kva_import_element_type(kva_import *im, const char *name, const kva_pb_type *declared,
                                                const kva_ref_tensor *like, const kva_type **out);
/* float if it is not declared. */
kva_dtype kva_import_element_dtype(const kva_pb_type *declared);
/* *out: the number that option --pin NAME=N gives; unchanged if there is none. */
KVA_MUST_USE kva_status kva_import_pin(kva_import *im, const char *name, kva_dim *out);
/* Warns if a declared type contradicts the inferred one. */
void kva_import_check_type(kva_import *im, const kva_pb_value_info *v, const kva_value *value);
/* The same of an initialiser, where it is an error. */
KVA_MUST_USE kva_status kva_import_check_initializer(kva_import *im, const kva_pb_value_info *v,
                                                     const kva_value *value);
KVA_MUST_USE kva_status kva_import_check_pins(kva_import *im);
/* onnx_language.c */
/* Type of the tokens, if the graph is read as a function of whole texts; else NULL. */
const kva_type *kva_import_language_tokens(kva_import *im, const kva_pb_graph *g);
/* What an input is then; *out NULL: an input. */
KVA_MUST_USE kva_status kva_import_language_input(kva_import *im, const kva_pb_value_info *v, kva_value **out);
/* Whether an output stays, and its value. */
bool kva_import_language_output(const kva_pb_value_info *declared);
kva_value *kva_import_language_logits(kva_import *im, kva_value *v);

#endif
