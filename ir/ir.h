/* The graph IR: SSA over tensors.
 *
 *   module   functions, state, symbols; owns one arena; nothing in it is freed individually
 *   graph    inputs, a list of nodes in execution order, closed by a `return` node (function bodies and sub-graphs)
 *   node     operator + typed attributes + operands -> results, with sub-graphs and a source location
 *   value    a graph input or one result of a node; knows its type and all its uses
 *   use      one operand slot of a node, which is also the link in the value's use list
 *   state    named memory that outlives a call: parameters, optimiser moments, counters, caches. Only the nodes
 *            state_read and state_write access it; everything else is pure
 *
 * Every value has a dense id within its module: passes keep side data in arrays indexed by id, never here. */
#ifndef KVA_IR_IR_H
#define KVA_IR_IR_H

#include "ir/attr.h"

typedef struct kva_module kva_module;
typedef struct kva_function kva_function;
typedef struct kva_graph kva_graph;
typedef struct kva_node kva_node;
typedef struct kva_value kva_value;
typedef struct kva_use kva_use;
typedef struct kva_names kva_names;     /* what another format calls its parameters: ir/names.h */
typedef struct kva_op_info kva_op_info; /* one row of the operator table: ir/op_info.h */

/* ---- types ------------------------------------------------------------------------------------------------------- */

enum { KVA_MAX_RANK = 8 }; /* rank of tensors that kernels access; the importer rejects higher ranks */

typedef enum kva_type_kind { KVA_TYPE_TENSOR, KVA_TYPE_SEQUENCE, KVA_TYPE_OPTIONAL } kva_type_kind;

/* Interned per module: equal types are equal pointers. */
typedef struct kva_type {
  kva_type_kind kind;
  kva_dtype dtype;
  uint32_t rank;
  const kva_dim *dims;
  const struct kva_type *element; /* SEQUENCE, OPTIONAL */
} kva_type;

const kva_type *kva_type_tensor(kva_module *m, kva_dtype dtype, uint32_t rank, const kva_dim *dims);
const kva_type *kva_type_scalar(kva_module *m, kva_dtype dtype);
const kva_type *kva_type_with_dtype(kva_module *m, const kva_type *t, kva_dtype dtype);
/* A sequence or optional of `element`. Only the importer has values of such types. */
const kva_type *kva_type_of(kva_module *m, kva_type_kind kind, const kva_type *element);
/* Number of elements as an expression (product of dims). */
kva_dim kva_type_elements(kva_module *m, const kva_type *t);
bool kva_type_is_static(const kva_type *t);                     /* every dim a constant */
bool kva_type_is_static_from(const kva_type *t, uint32_t axis); /* every dim from this axis on */
int64_t kva_type_extent(const kva_type *t, uint32_t axis);      /* of a constant dim; else 0 */
bool kva_type_same_shape(const kva_type *a, const kva_type *b); /* the same dims, of any dtypes */
/* `float[B, T, 64]` */
void kva_type_print(const kva_type *t, kva_text *out);

/* ---- values, nodes, graphs --------------------------------------------------------------------------------------- */

struct kva_use {
  kva_value *value; /* NULL: optional operand left out */
  kva_node *user;
  uint32_t index; /* operand number in user */
  kva_use *next, **prev_link;
};

struct kva_value {
  const kva_type *type;
  kva_node *def;    /* NULL: input of `graph` */
  kva_graph *graph; /* the graph that defines it */
  uint32_t index;   /* result number in def, or input number */
  uint32_t id;      /* dense in the module */
  kva_use *uses;    /* head; unordered */
  const char *name; /* hint for printing, which makes names unique; NULL: printed as v and the id */
};

struct kva_node {
  const kva_op_info *op;
  void *attrs; /* the operator's struct, NULL if it has none */
  uint32_t n_operands, n_results, n_graphs;
  kva_use *operands;  /* [n_operands], fixed once created */
  kva_value *results; /* [n_results] */
  kva_graph **graphs; /* sub-graphs */
  kva_loc loc;
  uint32_t id; /* dense in the module */
  kva_graph *graph;
  kva_node *prev, *next;
};

struct kva_graph {
  kva_module *module;
  kva_node *owner; /* the node whose sub-graph this is, or NULL */
  KVA_VEC(kva_value *) inputs;
  kva_node *first, *last; /* last is the `return` node of a finished graph; its operands are the outputs */
};

typedef enum kva_state_kind {
  KVA_STATE_PARAM,  /* trained, saved, exported */
  KVA_STATE_MOMENT, /* created by the optimiser pass for a parameter */
  KVA_STATE_BUFFER, /* running statistics, step counters, generator state */
  KVA_STATE_CACHE,  /* per sequence */
} kva_state_kind;

typedef enum kva_init_kind {
  KVA_INIT_ZEROS,
  KVA_INIT_CONSTANT,  /* a */
  KVA_INIT_NORMAL,    /* mean 0, standard deviation a */
  KVA_INIT_UNIFORM,   /* [a, b) */
  KVA_INIT_DATA,      /* `data` */
  KVA_INIT_ONE_MINUS, /* 1 - state `of`, elementwise (KV shift: a2 = 1 - a1) */
  KVA_INIT_COPY,      /* state `of` in this state's type, and again whenever a caller may have written that */
} kva_init_kind;

/* How the processes of a mesh that share the work on one loss divide a parameter. */
typedef enum kva_split_rule {
  KVA_SPLIT_NONE,
  KVA_SPLIT_ROWS,    /* along the first axis */
  KVA_SPLIT_COLUMNS, /* along the last axis */
} kva_split_rule;

struct kva_state {
  const char *name; /* unique in the module: "attention.0.wq" */
  const kva_type *type;
  kva_state_kind kind;
  kva_init_kind init;
  double init_a, init_b;
  const kva_tensor_data *data; /* KVA_INIT_DATA */
  kva_state *of;               /* KVA_INIT_ONE_MINUS, KVA_INIT_COPY; for a MOMENT: its parameter */
  const kva_type *whole; /* of each of `parts` processes this is a part: the type of all (passes/shard.c); NULL: it
                            is whole. Not part of the text */
  int64_t parts;
  kva_split_rule split; /* what the model says; used with a mesh alone */
  const kva_type *full; /* of each of `slices` processes this is a slice along split_axis: the type of all
                           (passes/partition.c); NULL: it is none. `whole`, if any, is of the slice. Not part of the
                           text */
  int64_t slices;
  uint32_t split_axis;
  uint32_t stages; /* bit s: stage s of the axis pipeline has it (passes/stages.c); 0: every process. Not part of the
                      text */
  bool frozen;     /* no gradient, no update */
  bool decay;      /* weight decay applies (default: rank >= 2 and not a shift weight) */
  uint32_t id;     /* dense */
  kva_loc loc;
};

/* Role of an output of a training program; see kva_output_role in runtime/abi.h. */
typedef enum kva_result_role {
  KVA_RESULT_VALUE,
  KVA_RESULT_LOSS,
  KVA_RESULT_GRAD_NORM,
  KVA_RESULT_METRIC,
} kva_result_role;

/* What pass recompute did to a function: values that lie idle at the peak of its memory, and those of them that are
 * computed again instead. */
typedef struct kva_recomputed {
  int64_t kept_bytes, again_bytes;
  uint32_t steps; /* that run a second time */
} kva_recomputed;

struct kva_function {
  const char *name;
  kva_graph *graph;
  const char *const *output_names;
  const kva_result_role *output_roles; /* NULL: all are values. Set by passes/train.c; not part of the text */
  /* By output: the input whose memory receives it, so that the caller passes the new value to the next call; -1: none.
   * NULL: no output does. Set by passes/incremental.c; not part of the text. */
  const int32_t *updates;
  uint32_t stage; /* 1 + the stage of the axis pipeline that runs it (passes/stages.c); 0: any process */
  kva_recomputed recomputed;
  struct kva_memory_plan *plan; /* ir/plan.h; what pass plan made last, in the module's arena; NULL: nothing */
  kva_loc loc;
};

/* The contents of a `train` block; elaboration fills it, passes/train.c consumes it. */
typedef struct kva_train_spec {
  const char *optimizer;                                      /* an operator with KVA_UPDATES */
  double lr, beta1, beta2, eps, weight_decay, momentum, clip; /* clip 0: off */
  const char *schedule;                                       /* "constant", "warmup", "cosine", "linear" */
  int64_t warmup_steps, total_steps, steps, batch;            /* steps, batch: defaults of a run */
  double final_lr_ratio;
  const char *data;     /* "induction", "ngram", "tokens", "random", ... */
  kva_map *data_args;   /* name -> double * */
  uint32_t first_state; /* the first of the states that training created */
  kva_loc loc;
} kva_train_spec;
/* Describes its numeric fields by name. */
extern const kva_attr_desc kva_train_numbers;
/* A spec with default settings: AdamW at a constant rate. */
kva_train_spec *kva_train_spec_create(kva_arena *arena);

/* The processes of a run: `data` groups, each with an equal part of a batch. A group has `pipeline` stages, which
 * compute one after the other (passes/stages.c), of `sequence` times `tensor` processes: those of the first axis divide
 * the rows of each sequence, those of the second the parameters that say how (kva_split_rule). Ranks count along tensor
 * first, then along sequence, pipeline and data. 0 and 1: no such axis. */
typedef struct kva_mesh {
  int64_t data;
  int64_t zero; /* what of training each process of the axis data has a part of: 1: moments of parameters; 2:
                   gradients, too, where several micro-batches add to them; 3: parameters, too; 0: nothing */
  int64_t tensor, sequence, pipeline;
} kva_mesh;
enum { KVA_MOST_STAGES = 31 }; /* of the axis pipeline */

/* Processes of an axis. */
static inline int64_t kva_mesh_extent(int64_t axis) {
  return axis > 1 ? axis : 1;
}
/* Processes that share the work of a stage. */
static inline int64_t kva_mesh_stage(const kva_mesh *m) {
  return kva_mesh_extent(m->tensor) * kva_mesh_extent(m->sequence);
}
/* Processes of a group. */
static inline int64_t kva_mesh_group(const kva_mesh *m) {
  return kva_mesh_stage(m) * kva_mesh_extent(m->pipeline);
}
static inline int64_t kva_mesh_processes(const kva_mesh *m) {
  return kva_mesh_extent(m->data) * kva_mesh_group(m);
}

/* What a file says of a model beside its graph, such as the names of its classes. */
typedef struct kva_property {
  const char *key, *value;
} kva_property;

struct kva_module {
  kva_arena *arena;
  kva_expr_ctx *exprs;
  kva_diag *diag; /* builders, inference and passes report here; borrowed */
  const char *name;
  KVA_VEC(kva_function *) functions; /* [0] is the model's main function */
  KVA_VEC(kva_state *) states;
  kva_map *states_by_name;
  kva_train_spec *train; /* NULL: inference only */
  kva_mesh mesh;         /* that training programs were made for (passes/train.c); not part of the text */
  KVA_VEC(kva_names *) names;
  KVA_VEC(kva_property) properties; /* of the file that was read, for one that is exported; not part of the text */
  KVA_VEC(kva_file) files;          /* mapped files that constants refer to; owned */
  struct kva_string_table *strings; /* that the reference has met (runtime/base/external.h); NULL: none */
  uint32_t next_value_id, next_node_id;
  struct kva_type_table *types; /* interning; private to type.c */
};

/* ---- building ---------------------------------------------------------------------------------------------------- */

kva_module *kva_module_create(kva_diag *diag);
void kva_module_destroy(kva_module *m);
void kva_module_add_property(kva_module *m, const char *key, const char *value);
kva_function *kva_function_create(kva_module *m, const char *name);
kva_function *kva_module_find_function(const kva_module *m, const char *name);
kva_graph *kva_graph_create(kva_module *m, kva_node *owner);
/* Appends g, which has no owner yet, to the node's sub-graphs. */
void kva_node_add_graph(kva_node *owner, kva_graph *g);
kva_value *kva_graph_add_input(kva_graph *g, const kva_type *type, const char *name);
/* Does not check for a duplicate name: the caller keeps names unique (kva_module_find_state). */
kva_state *kva_state_create(kva_module *m, const char *name, const kva_type *type, kva_state_kind kind);
kva_state *kva_module_find_state(const kva_module *m, const char *name);
/* Before training programs are made; no node reads or writes s. Later states move up. */
void kva_module_remove_state(kva_module *m, kva_state *s);

/* Creates a node without inference; the caller sets the result types. Inserts before `before`, or at the end if it is
 * NULL. operands[i] may be NULL (left out). attrs is kept, not copied: it must live in the module's arena. Prefer
 * kva_build (ops/build.h), which infers types. */
kva_node *kva_node_create(kva_graph *g, kva_node *before, const kva_op_info *op, uint32_t n_operands,
                          kva_value *const *operands, uint32_t n_results, void *attrs, kva_loc loc);
void kva_node_set_operand(kva_node *n, uint32_t i, kva_value *v);
/* Unlinks a node and drops its own uses. Its results must have no uses (asserted). */
void kva_node_remove(kva_node *n);
void kva_node_move_before(kva_node *n, kva_node *before);
void kva_value_replace_all_uses(kva_value *from, kva_value *to);
/* Counts the uses of v. */
uint32_t kva_value_use_count(const kva_value *v);
/* Edits of sub-graphs: moves all sub-graphs of `from` to `to`; removes an unused input; removes the outputs r + shift
 * with drop[r]. The caller keeps the owner's operands and results consistent. */
void kva_node_take_graphs(kva_node *to, kva_node *from);
void kva_graph_remove_input(kva_graph *g, uint32_t i);
void kva_graph_drop_outputs(kva_graph *g, const bool *drop, uint32_t shift);
static inline kva_value *kva_operand(const kva_node *n, uint32_t i) {
  return i < n->n_operands ? n->operands[i].value : NULL;
}
static inline kva_value *kva_result(kva_node *n, uint32_t i) {
  return &n->results[i];
}
/* Whether a result of n has a use. */
static inline bool kva_node_is_used(const kva_node *n) {
  for (uint32_t r = 0; r < n->n_results; r++)
    if (n->results[r].uses) return true;
  return false;
}

/* The symbols that n defines: its attributes of kind SYMBOLS. n == 0: none. */
kva_dims kva_node_binds(const kva_node *n);

/* Outputs of a finished graph: operands of its return node. */
uint32_t kva_graph_output_count(const kva_graph *g);
kva_value *kva_graph_output(const kva_graph *g, uint32_t i);

/* Deep copy of a module (text tests, train = forward + backward from one source). The copy has its own arena. */
kva_module *kva_module_clone(const kva_module *m);
/* A part of function 0 as a module: the nodes with keep[id], which read and write no state, and `outputs`, results of
 * theirs. What they read of other nodes are inputs, with the ids and names of those values. Data of tensors are
 * borrowed from m. Symbols that no input determines are the caller's to care for. */
kva_module *kva_module_part(const kva_module *m, const bool *keep, uint32_t n_outputs, const kva_value *const *outputs);

/* ---- checking and printing --------------------------------------------------------------------------------------- */

/* Verifies structure (SSA order, use lists, arity, returns, unique state names), then each operator's inference against
 * the stored types, then symbols: a symbol that a node binds is bound once and used only after that node. Problems go
 * to m->diag; KVA_INVALID if there are any. */
KVA_MUST_USE kva_status kva_module_verify(kva_module *m);

/* Text that parses back to an equal module (see ir/README.md for the grammar). Gives every value a unique name. */
void kva_module_print(kva_module *m, kva_text *out);
/* Printed tensors above 64 elements are only named, by a hash of their content: `float[1000] ["hash": "9f..."]`. Finds
 * such a tensor among the module's constants and initial data; NULL: none. */
const kva_tensor_data *kva_module_find_data(const kva_module *m, uint64_t hash);
uint64_t kva_tensor_hash(const kva_tensor_data *t, uint64_t seed);
/* The same type and bits; either may be NULL. */
bool kva_tensor_equal(const kva_tensor_data *a, const kva_tensor_data *b);
/* Graphviz. */
void kva_module_print_dot(kva_module *m, kva_text *out);

/* Structural hash of a graph: equal for graphs that differ only in names, ids and locations. */
uint64_t kva_graph_hash(const kva_graph *g);
/* The same for one node: operator, attributes, operand and result types, sub-graphs. */
uint64_t kva_node_hash(const kva_node *n);
/* Two nodes of a module that differ only in names, ids and locations, and in which values they read. Stricter than
 * equal hashes: symbols and states are the same ones. */
bool kva_node_equal(const kva_node *left, const kva_node *right);

#endif
