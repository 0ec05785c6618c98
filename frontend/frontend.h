/* Translates model files to graph IR and back: ONNX (protobuf or text) and `.kv` model descriptions. protobuf-c stays
 * inside this folder. ONNX operator versions end here: no later stage knows an opset. */
#ifndef KVA_FRONTEND_FRONTEND_H
#define KVA_FRONTEND_FRONTEND_H

#include "ops/build.h"

typedef struct kva_define {
  const char *name, *value; /* from -D name=value */
} kva_define;

/* Kinds of inputs and outputs of an ONNX graph. A program has tensors only: those of input `x` that is a sequence are
 * inputs `x[0]`, `x[1]`, ..., the tensor of an optional one is `x[0]`, and the same with outputs. */
typedef enum kva_value_kind {
  KVA_VALUE_TENSOR,
  KVA_VALUE_SEQUENCE,
  KVA_VALUE_OPTIONAL,
  KVA_VALUE_OPTIONAL_SEQUENCE,
} kva_value_kind;
/* The tensors of one value, owned by it; absent: of an optional that holds nothing. */
typedef struct kva_list_value {
  bool absent;
  uint32_t n;
  kva_ref_tensor **items; /* integers that are addresses, for strings */
  kva_arena *strings;
} kva_list_value;
void kva_list_value_free(kva_list_value *v);

typedef struct kva_load_options {
  uint32_t n_defines;
  const kva_define *defines; /* hyper-parameters of a .kv file; an unknown name is an error that lists the known ones */
  uint32_t n_pins;
  const kva_define *pins; /* shape symbols fixed to numbers: --pin T=128; lengths of inputs that are sequences */
  /* Inputs of an ONNX graph whose first extent is 1 accept any batch: that extent becomes symbol B, which may be
   * pinned. Declared first extents of other types are then not compared. A graph that relies on the 1 fails to load. */
  bool free_batch;
  /* Every extent above 1 of an input of an ONNX graph is a symbol of its own; what types declare is not compared. To
   * see what a model asks of its shapes. */
  bool free_extents;
  /* Dropout and BatchNormalization of an ONNX graph in training mode do in training steps alone what that mode means
   * (ops/dropout.c, ops/batch_norm.c); else they are inference. */
  bool inference;
  /* An ONNX graph that keeps a cache of a language model as inputs and outputs is read as a function of whole texts,
   * tokens [B, T] to logits: frontend/onnx_language.c. */
  bool language;
  bool in_memory;              /* the model has no folder: external data is an error */
  const kva_module *data_from; /* a dump borrows large constants, printed as hashes, from here; or NULL */
  /* Called for every input of an ONNX graph (NULL: never). Returns a value that replaces the input by a constant, else
   * NULL. For operands that determine shapes (axes, target shapes), which ONNX allows to be inputs. */
  const kva_ref_tensor *(*fixed_input)(void *user, uint32_t index, const char *name);
  /* Called for every input of an ONNX graph that is no tensor (NULL: never). Returns a value whose number of tensors,
   * types and shapes the model is compiled for; NULL: a pin of the input's name says how many there are, of the
   * declared shape. */
  const kva_list_value *(*list_input)(void *user, uint32_t index, const char *name, kva_value_kind kind);
  /* Called for every output of an ONNX graph (NULL: never) with the number of tensors in it. */
  void (*output)(void *user, uint32_t index, kva_value_kind kind, bool absent, uint32_t n);
  void *input_user; /* passed to these three */
} kva_load_options;

/* Reads a model by content: ONNX protobuf, ONNX text or .kv. `*out_module` is verified. External data is mapped, not
 * copied; the mapping lives as long as the module. Reports all problems of the file, not just the first. */
KVA_MUST_USE kva_status kva_load_model(const char *path, const kva_load_options *options, kva_diag *diag,
                                       kva_module **out_module);
/* The same from memory, with options->in_memory; `name` is for messages. */
KVA_MUST_USE kva_status kva_load_bytes(const void *data, size_t size, const char *name, const kva_load_options *options,
                                       kva_diag *diag, kva_module **out_module);
/* Like kva_load_model, from text in memory; `file` is for messages. */
KVA_MUST_USE kva_status kva_load_text(const char *text, const char *file, const kva_load_options *options,
                                      kva_diag *diag, kva_module **out_module);

/* Parses .kv or ONNX text and prints it in canonical form with its comments. Canonical text is unchanged. */
KVA_MUST_USE kva_status kva_format_text(const char *text, const char *file, kva_diag *diag, kva_text *out);

/* Writes a function of a module as ONNX (IR 10). Internal operators become ONNX operators, or calls of
 * model-local functions, which the importer maps back to the operators. Parameters become initialisers with values from
 * `state_data` (NULL: only initial DATA; others are an error). */
typedef const void *(*kva_state_bytes)(void *user, const kva_state *s);
typedef struct kva_export_form {
  const char *function; /* NULL: function 0 */
  int opset; /* 0: 21, the lowest with all that a model needs. Caches need 24 (Attention, TensorScatter); from
                27 on KV shifts are CausalConvWithState where that is the same */
} kva_export_form;
KVA_MUST_USE kva_status kva_export_onnx_as(kva_module *m, const kva_export_form *form, const char *path,
                                           kva_state_bytes state_data, void *user, kva_diag *diag);
/* Function 0, in the lowest opset. */
KVA_MUST_USE kva_status kva_export_onnx(kva_module *m, const char *path, kva_state_bytes state_data, void *user,
                                        kva_diag *diag);

/* `kvasir check`: lists every (domain, operator, version) of an ONNX model and what is unsupported, without stopping. A
 * text has no rows: loading it reports everything. */
typedef struct kva_check_row {
  const char *domain, *op_type;
  int64_t version; /* opset version that the model imports */
  int64_t count;
  bool supported;
  const char *reason;     /* if unsupported */
  const char *first_node; /* name of the first such node */
} kva_check_row;
typedef struct kva_check_report {
  KVA_VEC(kva_check_row) rows;
  int64_t unsupported; /* nodes */
} kva_check_report;
KVA_MUST_USE kva_status kva_check_model(const char *path, kva_arena *arena, kva_diag *diag, kva_check_report *out);

/* Reads a tensor file (TensorProto, as in the ONNX test suite's input_0.pb) into a reference tensor. */
/* Numbers only. */
KVA_MUST_USE kva_status kva_read_tensor_proto(const char *path, kva_diag *diag, kva_ref_tensor **out_tensor);
/* The same of a file with a value of this kind (TensorProto, SequenceProto, OptionalProto). */
KVA_MUST_USE kva_status kva_read_value_proto(const char *path, kva_value_kind kind, kva_diag *diag,
                                             kva_list_value *out);
/* Writes a tensor file. t->data of strings: const char *[]. */
KVA_MUST_USE kva_status kva_write_tensor_proto(const char *path, const char *name, const kva_tensor_data *t,
                                               kva_diag *diag);

#endif
