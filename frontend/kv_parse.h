/* Shared by the parser's files. A function that meets an unexpected token reports it, sets `panic` and returns a node
 * that is never read. While `panic` is set, nothing is consumed or reported. Blocks recover at the next statement. */
#ifndef KVA_FRONTEND_KV_PARSE_H
#define KVA_FRONTEND_KV_PARSE_H

#include "frontend/kv_ast.h"

typedef struct kva_parser {
  kva_arena *arena;
  kva_diag *diag;
  kva_ast *ast;
  uint32_t pos; /* next token */
  uint32_t depth;
  uint32_t errors;
  bool panic;
  bool in_angle; /* inside <...>: '>' closes */
  bool in_range; /* in `for i in a : b`: ':' separates */
} kva_parser;

const kva_token *kva_peek(const kva_parser *p, uint32_t ahead);
bool kva_at(const kva_parser *p, int kind);
bool kva_at_name(const kva_parser *p, uint32_t ahead, const char *text);
bool kva_accept(kva_parser *p, int kind);
/* Consumes a token of this kind, or reports "expected ..., found ...". Returns its index. */
uint32_t kva_expect(kva_parser *p, int kind);
void kva_parse_error(kva_parser *p, uint32_t token, const char *fmt, ...) KVA_PRINTF(3, 4);
/* Enters a nesting level; false with an error beyond KVA_MAX_NESTING. Leave in both cases. */
bool kva_enter(kva_parser *p);
void kva_leave(kva_parser *p);
uint32_t kva_last_token(const kva_parser *p); /* the last consumed token */

kva_ast_name kva_parse_name(kva_parser *p); /* identifier or quoted */
bool kva_at_type(const kva_parser *p);
kva_ast_type *kva_parse_type(kva_parser *p);
kva_ast_expr *kva_parse_expr(kva_parser *p);
kva_ast_expr *kva_new_expr(kva_parser *p, kva_ast_expr_kind kind);
kva_ast_attrs kva_parse_attrs(kva_parser *p); /* at '<' */
/* Parses `{1, 2}` or `["location": "w.bin"]` of this type. */
kva_ast_expr *kva_parse_literal(kva_parser *p, kva_ast_type *type);
void kva_parse_pairs(kva_parser *p, kva_ast_header_entry *e); /* at '[' */

/* Parses `(inputs) => (outputs) <infos> { statements }` into g, whose kind determines what may be omitted. */
void kva_parse_graph(kva_parser *p, kva_ast_graph *g);
kva_ast_block kva_parse_block(kva_parser *p); /* after '{', through '}' */

#endif
