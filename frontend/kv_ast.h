/* Syntax tree of the text language: kva_parse_text builds it, the formatter prints it, elaboration reads it. One tree
 * serves ONNX text, IR dumps and hand-written models; elaboration decides what a construct means. All nodes live in the
 * arena passed to the parser. They know their first and last token, for messages and comments. */
#ifndef KVA_FRONTEND_KV_AST_H
#define KVA_FRONTEND_KV_AST_H

#include "frontend/kv_lex.h"

/* Maximum nesting of blocks, expressions and types, and of calls in elaboration. */
enum { KVA_MAX_NESTING = 200 };

typedef struct kva_ast_expr kva_ast_expr;
typedef struct kva_ast_graph kva_ast_graph;
typedef struct kva_ast_stmt kva_ast_stmt;

/* A name as written: an identifier, or any text in quotes. */
typedef struct kva_ast_name {
  const char *text; /* NULL: omitted */
  uint32_t token;
} kva_ast_name;
typedef KVA_VEC(kva_ast_name) kva_ast_names;
typedef KVA_VEC(kva_ast_expr *) kva_ast_exprs;
typedef KVA_VEC(kva_ast_stmt *) kva_ast_block;

typedef enum kva_ast_type_kind {
  KVA_AST_TENSOR,
  KVA_AST_SEQUENCE,
  KVA_AST_OPTIONAL,
  KVA_AST_MAP,
  KVA_AST_SPARSE,
  KVA_AST_OPAQUE,
} kva_ast_type_kind;

typedef struct kva_ast_type {
  kva_ast_type_kind kind;
  uint32_t first, last;
  kva_dtype dtype;    /* TENSOR: element type; MAP: key type */
  bool any_rank;      /* TENSOR: float[], unknown rank */
  kva_ast_exprs dims; /* TENSOR */
  struct kva_ast_type *element;
  const char *opaque; /* OPAQUE: the text in parentheses */
} kva_ast_type;

typedef struct kva_ast_attr {
  kva_ast_name name;
  const char *type;    /* after ':', or NULL */
  kva_ast_expr *value; /* NULL: only a name (attribute parameters of functions) */
} kva_ast_attr;

typedef struct kva_ast_attrs {
  KVA_VEC(kva_ast_attr) list;
  uint32_t first, last; /* tokens of the angle brackets; 0, 0: none */
} kva_ast_attrs;

typedef enum kva_ast_op {
  KVA_AST_OR,
  KVA_AST_AND,
  KVA_AST_NOT,
  KVA_AST_EQ,
  KVA_AST_NE,
  KVA_AST_LT,
  KVA_AST_LE,
  KVA_AST_GT,
  KVA_AST_GE,
  KVA_AST_ADD,
  KVA_AST_SUB,
  KVA_AST_MUL,
  KVA_AST_DIV,
  KVA_AST_MATMUL,
  KVA_AST_NEG,
} kva_ast_op;

typedef enum kva_ast_expr_kind {
  KVA_AST_NOTHING, /* an omitted operand: f(a, , b) */
  KVA_AST_UNKNOWN, /* ? as a dimension */
  KVA_AST_NAME,    /* name */
  KVA_AST_STRING,  /* text; as an operand it may be a quoted name */
  KVA_AST_INT,
  KVA_AST_FLOAT,
  KVA_AST_LIST,    /* items */
  KVA_AST_TYPE,    /* type as attribute value; text: the word, if the type is a single word (which may name a value) */
  KVA_AST_LITERAL, /* type text = { items }, or [key : value, ...] if external: alternating keys and values */
  KVA_AST_GRAPH,   /* graph: a named graph as attribute value */
  KVA_AST_REF,     /* @text */
  KVA_AST_UNARY,   /* op, items[0] */
  KVA_AST_BINARY,  /* op, items[0], items[1] */
  KVA_AST_CALL,
} kva_ast_expr_kind;

typedef struct kva_ast_call {
  const char *domain, *name; /* `com.example.foo`: "com.example", "foo"; domain "" */
  const char *overload;      /* NULL: none */
  kva_ast_attrs attrs;
  bool has_operands; /* false: no parentheses (`optimizer = AdamW <lr = 0.1>`) */
  KVA_VEC(kva_ast_graph *) graphs;
} kva_ast_call;

struct kva_ast_expr {
  kva_ast_expr_kind kind;
  kva_ast_op op;
  uint32_t first, last;
  uint32_t height; /* 1 + maximum height of the items; bounds recursion */
  bool external;
  const char *text;
  uint64_t integer;
  double number;
  kva_ast_exprs items;
  kva_ast_type *type;
  kva_ast_graph *graph;
  kva_ast_call *call;
};

/* `float[N] x`, `x`, `float[2] w = {1, 2}` */
typedef struct kva_ast_value {
  kva_ast_type *type; /* NULL: not given */
  kva_ast_name name;
  kva_ast_expr *init; /* LITERAL of the same type, or NULL */
} kva_ast_value;
typedef struct kva_ast_values {
  KVA_VEC(kva_ast_value) list;
  uint32_t first, last; /* tokens of the brackets; 0, 0: none */
} kva_ast_values;

typedef enum kva_ast_stmt_kind {
  KVA_AST_ASSIGN, /* [label] a, b = value */
  KVA_AST_METRIC, /* metric a = value */
  KVA_AST_PARAM,  /* param type name ~ init flags */
  KVA_AST_FOR,    /* for name in from : to { body } */
  KVA_AST_IF,     /* if cond { } else if cond { } else { } */
  KVA_AST_RETURN,
} kva_ast_stmt_kind;

typedef struct kva_ast_arm {
  kva_ast_expr *cond; /* NULL: else */
  kva_ast_block body;
  uint32_t first, last; /* tokens of the braces */
} kva_ast_arm;

struct kva_ast_stmt {
  kva_ast_stmt_kind kind;
  uint32_t first, last;
  bool bare;                 /* ASSIGN: a call alone, without '=' */
  kva_ast_name label;        /* ASSIGN */
  kva_ast_names targets;     /* ASSIGN, METRIC; FOR: the variable; PARAM: the name */
  kva_ast_expr *value;       /* ASSIGN, METRIC; FOR: from; PARAM: initialiser or NULL */
  kva_ast_expr *to;          /* FOR */
  kva_ast_exprs values;      /* RETURN */
  bool parenthesised;        /* RETURN */
  kva_ast_type *type;        /* PARAM */
  kva_ast_names flags;       /* PARAM */
  KVA_VEC(kva_ast_arm) arms; /* IF; FOR: one */
};

/* `<ir_version: 10, opset_import: ["" : 17]>` */
typedef struct kva_ast_header_entry {
  kva_ast_name key;
  kva_ast_expr *value;           /* INT, STRING, or NULL: pairs */
  KVA_VEC(kva_ast_expr *) pairs; /* key, value, key, value, ... */
} kva_ast_header_entry;
typedef struct kva_ast_header {
  KVA_VEC(kva_ast_header_entry) entries;
  uint32_t first, last; /* 0, 0: none */
} kva_ast_header;

typedef enum kva_ast_graph_kind {
  KVA_AST_PLAIN,    /* ONNX graph or function, function of an IR dump */
  KVA_AST_MODEL,    /* model name <...> (...) => (...) { } */
  KVA_AST_DEF,      /* def name <...> (...) { } */
  KVA_AST_TRAIN,    /* train name <...> (...) { }, or train { } */
  KVA_AST_NAMES,    /* checkpoint name <...> { } */
  KVA_AST_SUBGRAPH, /* { (...) => (...)  statements } */
} kva_ast_graph_kind;

struct kva_ast_graph {
  kva_ast_graph_kind kind;
  uint32_t first, last;
  kva_ast_header header; /* PLAIN */
  kva_ast_name name;
  kva_ast_attrs attrs; /* hyper-parameters; attribute parameters of an ONNX function */
  kva_ast_values inputs, outputs;
  bool has_inputs, has_outputs;
  kva_ast_values infos; /* initialisers and value infos after the outputs */
  kva_ast_block body;
  uint32_t open; /* token of the body's '{' */
};

/* `state float[256, 64] "embed" : param ~ normal(0.02) frozen`, `state ... : moment of "embed" ~ zeros` */
typedef struct kva_ast_state {
  kva_ast_type *type;
  kva_ast_name name;
  kva_ast_name kind, of;
  kva_ast_expr *init;
  kva_ast_names flags;
} kva_ast_state;

typedef struct kva_ast_preset {
  kva_ast_name name;
  kva_ast_attrs attrs;
} kva_ast_preset;

/* Something at file level: exactly one of the pointers is set. */
typedef struct kva_ast_item {
  uint32_t first, last;
  kva_ast_graph *graph;
  kva_ast_state *state;
  kva_ast_preset *preset;
  const kva_ast_name *module; /* `module "name"`: first line of a dump */
} kva_ast_item;

typedef struct kva_ast {
  kva_tokens tokens;
  KVA_VEC(kva_ast_item) items;
} kva_ast;

/* Parses `source` (kept: locations point into it). Reports every error that it can tell apart; false if any. */
bool kva_parse_text(kva_arena *arena, kva_diag *diag, const char *file, const char *source, kva_ast *out);

#endif
