/* Elaboration: syntax tree -> IR module. Compile-time values (hyper-parameters, loop variables, extents) are computed,
 * loops and functions are unrolled and inlined, and what is left becomes nodes.
 *
 * Errors are reported where they are found; the expression's value is then KVA_EL_ERROR, which every consumer passes on
 * in silence, so that one mistake is reported once and the rest of the file is still checked. */
#ifndef KVA_FRONTEND_KV_ELABORATE_H
#define KVA_FRONTEND_KV_ELABORATE_H

#include "frontend/frontend_internal.h"
#include "frontend/kv_ast.h"

typedef enum kva_el_kind {
  KVA_EL_ERROR,
  KVA_EL_NOTHING, /* operand left out */
  KVA_EL_INT,
  KVA_EL_FLOAT,
  KVA_EL_BOOL,
  KVA_EL_STRING,
  KVA_EL_DIM, /* an expression over shape symbols; constants are INT */
  KVA_EL_TENSOR,
  KVA_EL_LIST,
  KVA_EL_DTYPE,   /* a type without shape, as attribute value */
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

/* One activation: the file's graph, a call of a function, or a sub-graph (which sees its parent's names). */
typedef struct kva_el_frame {
  struct kva_el_frame *parent;
  kva_map *names;         /* name -> kva_el_value * */
  kva_map *attrs;         /* attribute parameters of an ONNX function: name -> kva_onnx_attr * */
  const char *path;       /* of its parameters: "attention.0", "" at the top */
  KVA_VEC(int64_t) loops; /* indices of the loops that are being unrolled */
  int64_t opset;
  bool is_function, returned;
  KVA_VEC(kva_el_value) results;
  uint32_t return_token;
} kva_el_frame;

typedef struct kva_elab {
  kva_onnx_ctx onnx;  /* first: kva_onnx_subgraph's build gets back to the elaboration through it; holds the builder */
  kva_arena *scratch; /* tree, frames, values: dies with the elaboration */
  kva_module *m;
  const kva_load_options *options;
  const kva_ast *ast;
  kva_map *hyper;     /* hyper-parameter -> kva_el_value * */
  kva_map *symbols;   /* shape symbol -> kva_el_value * (DIM, or INT when pinned) */
  kva_map *functions; /* "name" of a def, "domain:name[:overload]" of an ONNX function -> kva_ast_graph * */
  kva_map *states;    /* name -> kva_state * */
  kva_map *no_decay;  /* names of states declared nodecay */
  kva_map *paths;     /* of calls in this function, to tell a second one apart */
  kva_map *declared;  /* parameters of this function */
  kva_el_frame *frame;
  size_t errors_before, unsupported; /* diagnostics: before elaboration; that say KVA_UNSUPPORTED */
  uint32_t depth;                    /* of calls */
  uint32_t level;                    /* of expressions and blocks, through calls: bounds the stack */
  int64_t steps;                     /* of compile-time loops and calls, bounded by kva_el_spend */
  bool too_deep;
  uint32_t unnamed; /* dimensions written '?' */
} kva_elab;

/* ---- values (kv_elaborate_value.c) ------------------------------------------------------------------------------- */

kva_loc kva_el_loc(const kva_elab *e, uint32_t token);
/* Reports at a token; the value to return. */
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
/* Value of unary and binary operators on compile-time values and tensors. */
kva_el_value kva_el_unary(kva_elab *e, const kva_ast_expr *x, kva_el_value a);
kva_el_value kva_el_binary(kva_elab *e, const kva_ast_expr *x, kva_el_value a, kva_el_value b);
/* A compile-time function (min, sqrt, dim, ...); false: there is none of that name. */
bool kva_el_builtin(kva_elab *e, const kva_ast_expr *x, kva_el_value *out);
/* v as an operand; numbers become constants of dtype `like` (KVA_DTYPE_NONE: float, int64 or bool). NULL: reported. */
kva_value *kva_el_operand(kva_elab *e, uint32_t token, kva_el_value v, kva_dtype like);
/* After building nodes: true when that failed (and was reported); the builder is usable again. */
bool kva_el_failed(kva_elab *e);

/* ---- expressions (kv_elaborate_expr.c) --------------------------------------------------------------------------- */

kva_el_value kva_el_expr(kva_elab *e, const kva_ast_expr *x);
bool kva_el_as_int(kva_elab *e, const kva_ast_expr *x, kva_el_value v, const char *what, int64_t *out);
bool kva_el_as_float(kva_elab *e, const kva_ast_expr *x, kva_el_value v, const char *what, double *out);
bool kva_el_as_dim(kva_elab *e, const kva_ast_expr *x, kva_el_value v, const char *what, kva_dim *out);

/* ---- types and literals (kv_elaborate_type.c) -------------------------------------------------------------------- */

/* Unknown names in dimensions become shape symbols. NULL: reported. */
const kva_type *kva_el_type(kva_elab *e, const kva_ast_type *t);
/* Names in x that are unknown become shape symbols. */
void kva_el_declare_symbols(kva_elab *e, const kva_ast_expr *x);
const kva_tensor_data *kva_el_literal(kva_elab *e, const kva_ast_expr *x);

/* ---- calls (kv_elaborate_call.c, kv_elaborate_op.c) -------------------------------------------------------------- */

/* Calls x for n results; out[i] is ERROR where it failed. wanted[i] names result i ("" or NULL: not wanted). */
void kva_el_call(kva_elab *e, const kva_ast_expr *x, const kva_ast_name *label, uint32_t n, const char *const *wanted,
                 kva_el_value *out);
bool kva_el_operands(kva_elab *e, const kva_ast_expr *x, kva_value **out);
void kva_el_kv_op(kva_elab *e, const kva_ast_expr *x, uint32_t n, kva_el_value *out);
void kva_el_onnx_op(kva_elab *e, const kva_ast_expr *x, const kva_ast_name *label, uint32_t n,
                    const char *const *wanted, kva_el_value *out);
/* Version of the default domain that a header imports. */
int64_t kva_el_opset(const kva_ast_header *h, int64_t otherwise);
/* An attribute of an ONNX node or function call; false: reported, or (out->name NULL) a reference to one not given. */
bool kva_el_onnx_attr(kva_elab *e, const kva_ast_attr *a, kva_onnx_attr *out);
/* Sets the attributes of a kv operator from an attribute list. False: reported. */
bool kva_el_set_attrs(kva_elab *e, const kva_op_info *op, const kva_ast_attrs *attrs, void *out);

/* ---- statements and graphs (kv_elaborate_stmt.c, kv_elaborate_state.c) ------------------------------------------- */

/* A text may describe more graph than there is memory: false (reported once) when 10^6 steps are used up. */
bool kva_el_spend(kva_elab *e, uint32_t token, int64_t steps);
/* Enters an expression or block; false beyond a depth that the stack bears (reported once). e->level-- in both cases.
 */
bool kva_el_descend(kva_elab *e, uint32_t token);
kva_el_frame *kva_el_push_frame(kva_elab *e, bool is_function);
void kva_el_pop_frame(kva_elab *e);
void kva_el_block(kva_elab *e, const kva_ast_block *body);
void kva_el_statement(kva_elab *e, const kva_ast_stmt *s);
/* Initialisers of a graph as constants. */
void kva_el_initialisers(kva_elab *e, const kva_ast_values *values);
/* Outputs of the frame's graph: what it returned, else its output names. False: reported. */
bool kva_el_outputs(kva_elab *e, const kva_ast_graph *g, kva_value **out);
/* A sub-graph with its own kva_graph, for kv operators that hold one. */
bool kva_el_subgraph(kva_elab *e, const kva_ast_graph *g, kva_graph *into);
void kva_el_param(kva_elab *e, const kva_ast_stmt *s);
void kva_el_states(kva_elab *e);
bool kva_el_has_flag(const kva_ast_names *flags, const char *flag);

/* ---- the file (kv_elaborate.c, kv_elaborate_hyper.c, kv_elaborate_train.c) --------------------------------------- */

void kva_el_hyper_parameters(kva_elab *e, const kva_ast_graph *model, const kva_ast_graph *train);
/* Declares inputs in the builder's graph and binds them. */
void kva_el_inputs(kva_elab *e, const kva_ast_values *inputs);
kva_function *kva_el_function(kva_elab *e, const char *name, const kva_ast_graph *g);
void kva_el_train(kva_elab *e, const kva_ast_graph *train, const kva_ast_graph *model);
void kva_el_check_pins(kva_elab *e);

#endif
