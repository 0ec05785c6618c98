/* Canonical text of a syntax tree: two spaces per level, one statement per line, lines broken before column 120 at
 * commas and operators; single blank lines and comments are kept. A comment inside a statement moves above it. One
 * inside a list of hyper-parameters stays; that list, like a long one, is printed with one item per line. */
#include "frontend/frontend.h"
#include "frontend/kv_ast.h"

enum { WIDTH = 120, INDENT = 2 };

typedef struct printer {
  kva_arena *arena;
  const kva_ast *ast;
  kva_text *out;
  kva_text line;          /* current line, without indentation */
  KVA_VEC(size_t) breaks; /* offsets of blanks in `line` where it may break */
  uint32_t next_comment;
  uint32_t source_line; /* line of the last token or comment printed: a gap to the next becomes a blank line */
  int level;
  bool fresh; /* first line of a block or file: no blank line before it */
  bool after_graph;
} printer;

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static void put(printer *p, const char *s) {
  kva_text_add_bytes(&p->line, s, strlen(s));
}

static void put_break(printer *p) {
  KVA_PUSH(p->arena, &p->breaks, p->line.len);
  put(p, " ");
}

static void put_comma(printer *p) {
  put(p, ",");
  put_break(p);
}

static const kva_token *token_at(const printer *p, uint32_t token) {
  return &p->ast->tokens.token.data[token];
}

static void put_token(printer *p, uint32_t token) {
  const kva_token *t = token_at(p, token);
  kva_text_add_bytes(&p->line, p->ast->tokens.source + t->offset, t->length);
}

static void put_piece(printer *p, size_t from, size_t to, int indent) {
  kva_text_add(p->out, "%*s", indent, "");
  kva_text_add_bytes(p->out, p->line.data + from, to - from);
}

/* Writes the line without its newline, broken if it is too long. */
static void write_line(printer *p) {
  size_t from = 0;
  int indent = p->level * INDENT;
  for (uint32_t i = 0; i < p->breaks.len; i++) {
    size_t next = i + 1 < p->breaks.len ? p->breaks.data[i + 1] : p->line.len;
    if (next - from + (size_t)indent <= WIDTH || p->breaks.data[i] <= from) continue;
    put_piece(p, from, p->breaks.data[i], indent);
    kva_text_add(p->out, "\n");
    from = p->breaks.data[i] + 1;
    indent = p->level * INDENT + 2 * INDENT;
  }
  put_piece(p, from, p->line.len, indent);
  p->line.len = p->breaks.len = 0;
  p->fresh = false;
}

static const kva_comment *comment_before(const printer *p, uint32_t offset) {
  if (p->next_comment >= p->ast->tokens.comment.len) return NULL;
  const kva_comment *c = &p->ast->tokens.comment.data[p->next_comment];
  return c->offset < offset ? c : NULL;
}

static void put_comment(printer *p, const kva_comment *c) {
  kva_text_add_bytes(p->out, p->ast->tokens.source + c->offset, c->length);
  p->source_line = c->line;
  p->next_comment++;
}

/* The line on which a token ends; strings may span several. */
static uint32_t last_line(const printer *p, uint32_t token) {
  const kva_token *t = token_at(p, token);
  uint32_t line = t->line;
  for (uint32_t i = 0; i < t->length; i++) line += p->ast->tokens.source[t->offset + i] == '\n';
  return line;
}

/* Ends the line after `token`, with a comment that follows on the same source line. */
static void end_line(printer *p, uint32_t token) {
  write_line(p);
  uint32_t line = last_line(p, token);
  p->source_line = line;
  const kva_comment *c = comment_before(p, UINT32_MAX);
  if (c && c->line == line) {
    kva_text_add(p->out, "  ");
    put_comment(p, c);
  }
  kva_text_add(p->out, "\n");
}

static void blank_line(printer *p, uint32_t source_line) {
  if (!p->fresh && source_line > p->source_line + 1) kva_text_add(p->out, "\n");
}

/* Prints comments up to `offset` on their own lines. */
static void put_comments(printer *p, uint32_t offset) {
  for (const kva_comment *c; (c = comment_before(p, offset));) {
    blank_line(p, c->line);
    kva_text_add(p->out, "%*s", p->level * INDENT, "");
    put_comment(p, c);
    kva_text_add(p->out, "\n");
    p->fresh = false;
  }
}

/* Begins a line at token `first`: prints the comments before `comments_until`, then a blank line if the source has
 * one. */
static void begin_line(printer *p, uint32_t first, uint32_t comments_until) {
  put_comments(p, token_at(p, comments_until)->offset);
  blank_line(p, token_at(p, first)->line);
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

static void put_expr(printer *p, const kva_ast_expr *e, int level);
static void put_attrs(printer *p, const kva_ast_attrs *a);
static void put_graph(printer *p, const kva_ast_graph *g);

static void put_exprs(printer *p, const kva_ast_exprs *list) {
  for (uint32_t i = 0; i < list->len; i++) {
    if (i) put_comma(p);
    put_expr(p, list->data[i], 0);
  }
}

static void put_type(printer *p, const kva_ast_type *t) {
  static const char *const words[] = {[KVA_AST_SEQUENCE] = "seq(",
                                      [KVA_AST_OPTIONAL] = "optional(",
                                      [KVA_AST_MAP] = "map(",
                                      [KVA_AST_SPARSE] = "sparse_tensor(",
                                      [KVA_AST_OPAQUE] = "opaque("};
  if (t->kind != KVA_AST_TENSOR) {
    put(p, words[t->kind]);
    if (t->kind == KVA_AST_OPAQUE) put(p, t->opaque);
    if (t->kind == KVA_AST_MAP) {
      put(p, kva_dtype_name(t->dtype));
      put_comma(p);
    }
    if (t->element) put_type(p, t->element);
    put(p, ")");
    return;
  }
  put(p, kva_dtype_name(t->dtype));
  if (t->any_rank) put(p, "[]");
  if (!t->dims.len) return;
  put(p, "[");
  put_exprs(p, &t->dims);
  put(p, "]");
}

static const struct {
  const char *text;
  int level; /* binds tighter than lower levels */
} operators[] = {
    [KVA_AST_OR] = {"or", 1}, [KVA_AST_AND] = {"and", 2},  [KVA_AST_NOT] = {"not ", 3}, [KVA_AST_EQ] = {"==", 4},
    [KVA_AST_NE] = {"!=", 4}, [KVA_AST_LT] = {"<", 4},     [KVA_AST_LE] = {"<=", 4},    [KVA_AST_GT] = {">", 4},
    [KVA_AST_GE] = {">=", 4}, [KVA_AST_ADD] = {"+", 5},    [KVA_AST_SUB] = {"-", 5},    [KVA_AST_MUL] = {"*", 6},
    [KVA_AST_DIV] = {"/", 6}, [KVA_AST_MATMUL] = {"@", 6}, [KVA_AST_NEG] = {"-", 7},
};
/* '>' would close an attribute list: comparisons inside need parentheses. */
enum { LEVEL_IN_ANGLE = 5 };

/* `@` beside `*` or `/` keeps its parentheses, since few readers know their precedence. */
static bool mixes_matmul(const kva_ast_expr *outer, const kva_ast_expr *inner) {
  bool same_level = inner->kind == KVA_AST_BINARY && operators[outer->op].level == operators[inner->op].level;
  return same_level && (outer->op == KVA_AST_MATMUL) != (inner->op == KVA_AST_MATMUL);
}

static void put_operation(printer *p, const kva_ast_expr *e, int level) {
  int own = operators[e->op].level;
  bool parentheses = own < level;
  if (parentheses) put(p, "(");
  if (e->kind == KVA_AST_UNARY) {
    put(p, operators[e->op].text);
    put_expr(p, e->items.data[0], e->op == KVA_AST_NOT ? own + 1 : own);
  } else {
    put_expr(p, e->items.data[0], mixes_matmul(e, e->items.data[0]) ? own + 1 : own);
    put_break(p);
    put(p, operators[e->op].text);
    put(p, " ");
    put_expr(p, e->items.data[1], own + 1);
  }
  if (parentheses) put(p, ")");
}

static void put_call(printer *p, const kva_ast_expr *e) {
  const kva_ast_call *c = e->call;
  if (*c->domain) {
    put(p, c->domain);
    put(p, ".");
  }
  put(p, c->name);
  if (c->overload) {
    put(p, ":");
    put(p, c->overload);
  }
  if (c->attrs.last) {
    put(p, " ");
    put_attrs(p, &c->attrs);
    if (c->has_operands) put(p, " ");
  }
  if (c->has_operands) {
    put(p, "(");
    put_exprs(p, &e->items);
    if (e->items.len && e->items.data[e->items.len - 1]->kind == KVA_AST_NOTHING) put(p, ",");
    put(p, ")");
  }
  for (uint32_t i = 0; i < c->graphs.len; i++) {
    put(p, " ");
    put_graph(p, c->graphs.data[i]);
  }
}

static void put_pairs(printer *p, kva_ast_expr *const *items, uint32_t n) {
  put(p, "[");
  for (uint32_t i = 0; i + 1 < n; i += 2) {
    if (i) put_comma(p);
    put_expr(p, items[i], 0);
    put(p, " : ");
    put_expr(p, items[i + 1], 0);
  }
  put(p, "]");
}

static void put_data(printer *p, const kva_ast_expr *e) {
  if (e->external) {
    put_pairs(p, e->items.data, e->items.len);
    return;
  }
  put(p, "{");
  put_exprs(p, &e->items);
  put(p, "}");
}

static void put_literal(printer *p, const kva_ast_expr *e) {
  put_type(p, e->type);
  put(p, " ");
  if (e->text) {
    put_token(p, e->type->last + 1);
    put(p, " ");
  }
  if (e->external && strcmp(e->items.data[0]->text, "hash")) put(p, "= "); /* required by ONNX's parser */
  put_data(p, e);
}

static void put_expr(printer *p, const kva_ast_expr *e, int level) {
  switch (e->kind) {
  case KVA_AST_NOTHING: break;
  case KVA_AST_UNKNOWN: put(p, "?"); break;
  case KVA_AST_NAME: put(p, e->text); break;
  case KVA_AST_STRING:
  case KVA_AST_INT:
  case KVA_AST_FLOAT: put_token(p, e->first); break;
  case KVA_AST_LIST:
    put(p, "[");
    put_exprs(p, &e->items);
    put(p, "]");
    break;
  case KVA_AST_TYPE: put_type(p, e->type); break;
  case KVA_AST_LITERAL: put_literal(p, e); break;
  case KVA_AST_GRAPH: put_graph(p, e->graph); break;
  case KVA_AST_REF:
    put(p, "@");
    put_token(p, e->last);
    break;
  case KVA_AST_UNARY:
  case KVA_AST_BINARY: put_operation(p, e, level); break;
  case KVA_AST_CALL: put_call(p, e); break;
  }
}

static void put_attr(printer *p, const kva_ast_attr *a) {
  put_token(p, a->name.token);
  if (a->type) {
    put(p, ": ");
    put(p, a->type);
  }
  if (!a->value) return;
  put(p, " = ");
  put_expr(p, a->value, LEVEL_IN_ANGLE);
}

static void put_attrs(printer *p, const kva_ast_attrs *a) {
  put(p, "<");
  for (uint32_t i = 0; i < a->list.len; i++) {
    if (i) put_comma(p);
    put_attr(p, &a->list.data[i]);
  }
  put(p, ">");
}

/* One item per line, each with its comments. */
static void put_attrs_vertical(printer *p, const kva_ast_attrs *a) {
  put(p, "<");
  end_line(p, a->first);
  p->level += 2;
  p->fresh = true;
  for (uint32_t i = 0; i < a->list.len; i++) {
    const kva_ast_attr *attr = &a->list.data[i];
    uint32_t last = attr->value ? attr->value->last : attr->name.token;
    begin_line(p, attr->name.token, last);
    put_attr(p, attr);
    if (i + 1 < a->list.len) put(p, ",");
    end_line(p, last);
  }
  put_comments(p, token_at(p, a->last)->offset);
  p->level -= 2;
  p->source_line = token_at(p, a->last)->line;
  put(p, ">");
}

/* ---- statements -------------------------------------------------------------------------------------------------- */

static void put_statement(printer *p, const kva_ast_stmt *s);

/* Follows a printed `{`; leaves the line of the closing brace open. */
static void put_body(printer *p, const kva_ast_block *body, uint32_t open, uint32_t close) {
  if (!body->len && !comment_before(p, token_at(p, close)->offset)) {
    put(p, "}");
    return;
  }
  end_line(p, open);
  p->level++;
  p->fresh = true;
  for (uint32_t i = 0; i < body->len; i++) put_statement(p, body->data[i]);
  put_comments(p, token_at(p, close)->offset);
  p->level--;
  p->source_line = token_at(p, close)->line;
  put(p, "}");
}

static void put_names(printer *p, const kva_ast_names *names) {
  for (uint32_t i = 0; i < names->len; i++) {
    const kva_ast_name *name = &names->data[i];
    bool left_out = !*name->text && token_at(p, name->token)->kind != KVA_TOKEN_STRING;
    if (i) put_comma(p);
    if (!left_out)
      put_token(p, name->token);
    else if (i + 1 == names->len)
      put(p, "\"\""); /* an omitted last operand would be invisible */
  }
}

static void put_assign(printer *p, const kva_ast_stmt *s) {
  if (s->label.text) {
    put(p, "[");
    if (*s->label.text) put_token(p, s->label.token);
    put(p, "] ");
  }
  if (s->kind == KVA_AST_METRIC) put(p, "metric ");
  put_names(p, &s->targets);
  if (s->targets.len) put(p, " ");
  if (!s->bare) put(p, "= ");
  put_expr(p, s->value, 0);
}

static void put_flags(printer *p, const kva_ast_names *flags) {
  for (uint32_t i = 0; i < flags->len; i++) {
    put(p, " ");
    put(p, flags->data[i].text);
  }
}

static void put_param(printer *p, const kva_ast_stmt *s) {
  put(p, "param ");
  put_type(p, s->type);
  put(p, " ");
  put_names(p, &s->targets);
  if (s->value) {
    put(p, " ~ ");
    put_expr(p, s->value, 0);
  }
  put_flags(p, &s->flags);
}

static void put_arm(printer *p, const kva_ast_arm *arm) {
  put(p, " {");
  put_body(p, &arm->body, arm->first, arm->last);
}

static void put_for(printer *p, const kva_ast_stmt *s) {
  put(p, "for ");
  put_names(p, &s->targets);
  put(p, " in ");
  put_expr(p, s->value, 0);
  put(p, " : ");
  put_expr(p, s->to, 0);
  put_arm(p, &s->arms.data[0]);
}

static void put_if(printer *p, const kva_ast_stmt *s) {
  for (uint32_t i = 0; i < s->arms.len; i++) {
    const kva_ast_arm *arm = &s->arms.data[i];
    if (i) put(p, " else");
    if (arm->cond) {
      put(p, i ? " if " : "if ");
      put_expr(p, arm->cond, 0);
    }
    put_arm(p, arm);
  }
}

static void put_return(printer *p, const kva_ast_stmt *s) {
  put(p, s->parenthesised ? "return (" : "return ");
  put_exprs(p, &s->values);
  if (s->parenthesised) put(p, ")");
}

static bool holds_graph(const kva_ast_expr *e) {
  if (!e || e->kind != KVA_AST_CALL) return false;
  bool found = e->call->graphs.len > 0;
  for (uint32_t i = 0; i < e->call->attrs.list.len && !found; i++) {
    const kva_ast_expr *v = e->call->attrs.list.data[i].value;
    found = v && v->kind == KVA_AST_GRAPH;
  }
  return found;
}

static void put_statement(printer *p, const kva_ast_stmt *s) {
  bool has_blocks = s->arms.len || holds_graph(s->value);
  begin_line(p, s->first, has_blocks ? s->first : s->last);
  switch (s->kind) {
  case KVA_AST_ASSIGN:
  case KVA_AST_METRIC: put_assign(p, s); break;
  case KVA_AST_PARAM: put_param(p, s); break;
  case KVA_AST_FOR: put_for(p, s); break;
  case KVA_AST_IF: put_if(p, s); break;
  case KVA_AST_RETURN: put_return(p, s); break;
  }
  end_line(p, s->last);
}

/* ---- graphs and items -------------------------------------------------------------------------------------------- */

static void put_value(printer *p, const kva_ast_value *v) {
  if (v->type) {
    put_type(p, v->type);
    put(p, " ");
  }
  put_token(p, v->name.token);
  if (!v->init) return;
  put(p, " = ");
  put_data(p, v->init);
}

static void put_values(printer *p, const kva_ast_values *values, const char *open, const char *close) {
  put(p, open);
  for (uint32_t i = 0; i < values->list.len; i++) {
    if (i) put_comma(p);
    put_value(p, &values->list.data[i]);
  }
  put(p, close);
}

static void put_signature(printer *p, const kva_ast_graph *g) {
  if (g->has_inputs) put_values(p, &g->inputs, "(", ")");
  if (!g->has_outputs) return;
  if (g->has_inputs) put_break(p);
  put(p, "=> ");
  put_values(p, &g->outputs, "(", ")");
  if (!g->infos.last) return;
  put_break(p);
  put_values(p, &g->infos, "<", ">");
}

static void put_graph_name(printer *p, const kva_ast_graph *g) {
  static const char *const words[] = {
      [KVA_AST_PLAIN] = "",       [KVA_AST_MODEL] = "model ",      [KVA_AST_DEF] = "def ",
      [KVA_AST_TRAIN] = "train ", [KVA_AST_NAMES] = "checkpoint ", [KVA_AST_SUBGRAPH] = ""};
  put(p, words[g->kind]);
  if (!g->name.text) return;
  put_token(p, g->name.token);
  put(p, " ");
}

/* Prints the whole header on one line if it fits and its attribute list has no comments; else that list with one item
 * per line. */
static void put_head(printer *p, const kva_ast_graph *g) {
  put_graph_name(p, g);
  if (g->attrs.last) {
    size_t start = p->line.len;
    put_attrs(p, &g->attrs);
    put(p, " ");
    put_signature(p, g);
    if (p->line.len + 2 <= WIDTH && !comment_before(p, token_at(p, g->attrs.last)->offset)) return;
    p->line.len = start;
    p->breaks.len = 0;
    put_attrs_vertical(p, &g->attrs);
    put(p, " ");
  }
  put_signature(p, g);
}

static void put_graph(printer *p, const kva_ast_graph *g) {
  if (g->kind == KVA_AST_SUBGRAPH) {
    put(p, "{ ");
    put_signature(p, g);
    put_body(p, &g->body, g->outputs.last, g->last);
    return;
  }
  put_head(p, g);
  if (g->has_inputs || g->has_outputs) put(p, " ");
  put(p, "{");
  put_body(p, &g->body, g->open, g->last);
}

static void put_header(printer *p, const kva_ast_header *h) {
  put(p, "<");
  for (uint32_t i = 0; i < h->entries.len; i++) {
    const kva_ast_header_entry *e = &h->entries.data[i];
    if (i) put_comma(p);
    put_token(p, e->key.token);
    put(p, ": ");
    if (e->value)
      put_expr(p, e->value, LEVEL_IN_ANGLE);
    else
      put_pairs(p, e->pairs.data, e->pairs.len);
  }
  put(p, ">");
  end_line(p, h->last);
  p->source_line = UINT32_MAX - 1; /* no blank line between header and graph */
}

static void put_state(printer *p, const kva_ast_state *s) {
  put(p, "state ");
  put_type(p, s->type);
  put(p, " ");
  put_token(p, s->name.token);
  put(p, " : ");
  put_token(p, s->kind.token);
  if (s->of.text) {
    put(p, " of ");
    put_token(p, s->of.token);
  }
  if (s->init) {
    put(p, " ~ ");
    put_expr(p, s->init, 0);
  }
  put_flags(p, &s->flags);
}

static void put_preset(printer *p, const kva_ast_preset *preset) {
  put(p, "preset ");
  put_token(p, preset->name.token);
  put(p, " ");
  bool has_comment = comment_before(p, token_at(p, preset->attrs.last)->offset);
  if (has_comment)
    put_attrs_vertical(p, &preset->attrs);
  else
    put_attrs(p, &preset->attrs);
}

static void put_item(printer *p, const kva_ast_item *item) {
  if ((item->graph || p->after_graph) && !p->fresh) p->source_line = 0; /* blank line between graphs */
  p->after_graph = item->graph != NULL;
  begin_line(p, item->first, item->first);
  if (item->graph) {
    if (item->graph->header.last) {
      put_header(p, &item->graph->header);
      put_comments(p, token_at(p, item->graph->name.token)->offset);
    }
    put_graph(p, item->graph);
  }
  if (item->state) put_state(p, item->state);
  if (item->module) {
    put(p, "module ");
    put_token(p, item->module->token);
  }
  if (item->preset) put_preset(p, item->preset);
  end_line(p, item->last);
}

kva_status kva_format_text(const char *text, const char *file, kva_diag *diag, kva_text *out) {
  kva_arena *arena = kva_arena_create();
  kva_ast ast;
  kva_status status = KVA_INVALID;
  if (kva_parse_text(arena, diag, file, text, &ast)) {
    printer p = {.arena = arena, .ast = &ast, .out = out, .fresh = true};
    for (uint32_t i = 0; i < ast.items.len; i++) put_item(&p, &ast.items.data[i]);
    put_comments(&p, UINT32_MAX);
    kva_text_free(&p.line);
    status = KVA_OK;
  }
  kva_arena_destroy(arena);
  return status;
}
