/* Elaboration: syntax tree -> IR module. Compile-time values (hyper-parameters, loop variables, extents) are evaluated,
 * loops and functions are unrolled and inlined, and the rest becomes nodes.
 *
 * Errors are reported where they occur. The expression's value is then KVA_EL_ERROR, which all consumers propagate
 * silently, so that each mistake is reported once and the rest of the file is still checked. */
#ifndef KVA_FRONTEND_KV_ELABORATE_H
#define KVA_FRONTEND_KV_ELABORATE_H

#include "frontend/frontend_internal.h"
#include "frontend/kv_ast.h"

typedef enum kva_el_kind {
  KVA_EL_ERROR,
  KVA_EL_NOTHING, /* omitted operand */
  KVA_EL_INT,
  KVA_EL_FLOAT,
  KVA_EL_BOOL,
  KVA_EL_STRING,
  KVA_EL_DIM, /* an expression over shape symbols; constants are INT */
  KVA_EL_TENSOR,
  KVA_EL_LIST,
  KVA_EL_DTYPE,   /* an element type without a shape, as attribute value */
  KVA_EL_LITERAL, /* a tensor's data, as attribute value */
} kva_el_kind;

typedef struct kva_el_value {
  kva_el_kind kind;
  int64_t i; /* INT, BOOL, DTYPE */
  double f;  /* FLOAT; INT: the same number */
  const char *s;
  kva_dim dim;      /* DIM, INT */
  kva_value *value; /* TENSOR */
  uint32_t n;       /* LIST */
  const struct kva_el_value *items;
  const kva_tensor_data *data; /* LITERAL */
} kva_el_value;

/* One activation: the file's graph, a call of a function, or a sub-graph, which sees its parent's names. */
typedef struct kva_el_frame {
  struct kva_el_frame *parent;
  kva_map *names;         /* name -> kva_el_value * */
  kva_map *attrs;         /* attribute parameters of an ONNX function: name -> kva_onnx_attr * */
  const char *path;       /* scope of its parameters: "attention.0", "" at the top */
  KVA_VEC(int64_t) loops; /* indices of the enclosing unrolled loops */
  int64_t opset;
  bool is_function, returned;
  KVA_VEC(kva_el_value) results;
  uint32_t return_token;
} kva_el_frame;

typedef struct kva_elab {
  kva_onnx_ctx onnx;  /* first: kva_onnx_subgraph's build casts it to the elaboration; contains the builder */
  kva_arena *scratch; /* tree, frames, values: freed after elaboration */
  kva_module *m;
  const kva_load_options *options;
  const kva_ast *ast;
  kva_map *hyper;     /* hyper-parameter -> kva_el_value * */
  kva_map *symbols;   /* shape symbol -> kva_el_value * (DIM, or INT when pinned) */
  kva_map *functions; /* "name" of a def, "domain:name[:overload]" of an ONNX function -> kva_ast_graph * */
  kva_map *states;    /* name -> kva_state * */
  kva_map *no_decay;  /* names of states declared nodecay */
  kva_map *paths;     /* paths of calls in this function, to number duplicates */
  kva_map *declared;  /* parameters of this function */
  kva_el_frame *frame;
  const kva_el_frame *train;         /* that of the train block, the only one with metrics; NULL: elsewhere */
  struct kva_el_trainer *trainer;    /* of the train block, where train is not NULL */
  kva_ast_names metrics;             /* of the train block */
  size_t errors_before, unsupported; /* numbers of diagnostics: before elaboration; of those, KVA_UNSUPPORTED */
  uint32_t depth;                    /* call depth */
  uint32_t level;                    /* depth of expressions and blocks, across calls: bounds the stack */
  int64_t steps;                     /* compile-time loop iterations and calls, bounded by kva_el_spend */
  bool too_deep;
  bool in_dims;     /* names are first those of shape symbols, then of tensors */
  uint32_t unnamed; /* number of dimensions written '?' */
} kva_elab;

/* ---- values (kv_elaborate_value.c) ------------------------------------------------------------------------------- */

kva_loc kva_el_loc(const kva_elab *e, uint32_t token);
/* Reports an error at a token; returns the value to propagate. */
kva_el_value kva_el_error(kva_elab *e, uint32_t token, const char *fmt, ...) KVA_PRINTF(3, 4);
kva_el_value kva_el_int(kva_elab *e, int64_t v);
kva_el_value kva_el_float(double v);
kva_el_value kva_el_bool(bool v);
kva_el_value kva_el_dim(kva_elab *e, kva_dim d);
kva_el_value kva_el_tensor(kva_value *v);
const char *kva_el_kind_name(const kva_el_value *v); /* "an integer", "a tensor" */
/* Looks a name up in frames, hyper-parameters and symbols; NULL: unknown. */
const kva_el_value *kva_el_find(kva_elab *e, const char *name);
void kva_el_bind(kva_elab *e, const char *name, kva_el_value v);
/* Applies unary and binary operators to compile-time values and tensors. */
kva_el_value kva_el_unary(kva_elab *e, const kva_ast_expr *x, kva_el_value a);
kva_el_value kva_el_binary(kva_elab *e, const kva_ast_expr *x, kva_el_value a, kva_el_value b);
/* Evaluates a compile-time function (min, sqrt, dim, ...); false: unknown name. */
bool kva_el_builtin(kva_elab *e, const kva_ast_expr *x, kva_el_value *out);
/* Whether it computes numbers of numbers: a compile-time function other than dim, which takes a tensor. */
bool kva_el_is_arithmetic(const kva_ast_call *c);
/* v as an operand; numbers become constants of dtype `like` (KVA_DTYPE_NONE: float, int64 or bool). NULL: an error was
 * reported. */
kva_value *kva_el_operand(kva_elab *e, uint32_t token, kva_el_value v, kva_dtype like);
/* After building nodes: whether that failed (with a report). Makes the builder usable again. */
bool kva_el_failed(kva_elab *e);

/* ---- expressions (kv_elaborate_expr.c) --------------------------------------------------------------------------- */

kva_el_value kva_el_expr(kva_elab *e, const kva_ast_expr *x);
/* The same where extents stand: names of shape symbols come before those of tensors. */
kva_el_value kva_el_expr_in_dims(kva_elab *e, const kva_ast_expr *x);
bool kva_el_as_int(kva_elab *e, const kva_ast_expr *x, kva_el_value v, const char *what, int64_t *out);
bool kva_el_as_float(kva_elab *e, const kva_ast_expr *x, kva_el_value v, const char *what, double *out);
bool kva_el_as_dim(kva_elab *e, const kva_ast_expr *x, kva_el_value v, const char *what, kva_dim *out);

/* ---- types and literals (kv_elaborate_type.c) -------------------------------------------------------------------- */

/* Unknown names in dimensions become shape symbols. NULL: an error was reported. */
const kva_type *kva_el_type(kva_elab *e, const kva_ast_type *t);
/* Declares unknown names in x as shape symbols. */
void kva_el_declare_symbols(kva_elab *e, const kva_ast_expr *x);
const kva_tensor_data *kva_el_literal(kva_elab *e, const kva_ast_expr *x);

/* ---- calls (kv_elaborate_call.c, kv_elaborate_op.c) -------------------------------------------------------------- */

/* Calls x for n results; out[i] is ERROR on failure. wanted[i] names result i ("" or NULL: unused). */
void kva_el_call(kva_elab *e, const kva_ast_expr *x, const kva_ast_name *label, uint32_t n, const char *const *wanted,
                 kva_el_value *out);
bool kva_el_operands(kva_elab *e, const kva_ast_expr *x, kva_value **out);
void kva_el_kv_op(kva_elab *e, const kva_ast_expr *x, uint32_t n, kva_el_value *out);
void kva_el_onnx_op(kva_elab *e, const kva_ast_expr *x, const kva_ast_name *label, uint32_t n,
                    const char *const *wanted, kva_el_value *out);
/* Version of the default domain that a header imports. */
int64_t kva_el_opset(const kva_ast_header *h, int64_t otherwise);
/* Evaluates an attribute of an ONNX node or function call. False: an error was reported, or (out->name NULL) it refers
 * to an attribute that the call omits. */
bool kva_el_onnx_attr(kva_elab *e, const kva_ast_attr *a, kva_onnx_attr *out);

/* ---- statements and graphs (kv_elaborate_stmt.c, kv_elaborate_state.c) ------------------------------------------- */

/* Counts steps against a limit of 10^6, since a short text may describe an arbitrarily large graph. False (reported
 * once) when the limit is exceeded. */
bool kva_el_spend(kva_elab *e, uint32_t token, int64_t steps);
/* Enters an expression or block; false (reported once) beyond the depth that the stack allows. The caller decrements
 * e->level in both cases. */
bool kva_el_descend(kva_elab *e, uint32_t token);
kva_el_frame *kva_el_push_frame(kva_elab *e, bool is_function);
void kva_el_pop_frame(kva_elab *e);
void kva_el_block(kva_elab *e, const kva_ast_block *body);
void kva_el_statement(kva_elab *e, const kva_ast_stmt *s);
/* Builds a graph's initialisers as constants. */
void kva_el_initialisers(kva_elab *e, const kva_ast_values *values);
/* Outputs of the frame's graph: the returned values, or else the named outputs. False: an error was reported. */
bool kva_el_outputs(kva_elab *e, const kva_ast_graph *g, kva_value **out);
/* Elaborates a sub-graph into a separate kva_graph, for kv operators that have one. */
bool kva_el_subgraph(kva_elab *e, const kva_ast_graph *g, kva_graph *into);
void kva_el_param(kva_elab *e, const kva_ast_stmt *s);
void kva_el_states(kva_elab *e);

/* ---- the file (kv_elaborate.c, _hyper.c, _train.c, _names.c) --------------------------------------- */

void kva_el_hyper_parameters(kva_elab *e, const kva_ast_graph *model, const kva_ast_graph *train);
/* Declares inputs in the builder's graph and binds their names. */
void kva_el_inputs(kva_elab *e, const kva_ast_values *inputs);
kva_function *kva_el_function(kva_elab *e, const char *name, const kva_ast_graph *g);
void kva_el_train(kva_elab *e, const kva_ast_graph *train, const kva_ast_graph *model);
/* Whether a statement of the train block is a setting; applies it. */
bool kva_el_setting(struct kva_el_trainer *t, const kva_ast_stmt *s);
void kva_el_check_pins(kva_elab *e);
/* Adds a `checkpoint` block to the module; of a model, fields must belong to hyper-parameters. */
void kva_el_names(kva_elab *e, const kva_ast_graph *block, bool of_model);

#endif
