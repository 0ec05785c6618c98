/* Types, attribute lists and expressions.
 *
 * `<` after a name opens an attribute list exactly if `name =`, `name :` or `>` follows; else it is a comparison.
 * Inside an attribute list '>' closes the list, so comparisons need parentheses there. Quoted names and strings look
 * alike; elaboration distinguishes them. */
#include "frontend/kv_parse.h"

kva_ast_expr *kva_new_expr(kva_parser *p, kva_ast_expr_kind kind) {
  kva_ast_expr *e = KVA_NEW(p->arena, kva_ast_expr);
  e->kind = kind;
  e->first = e->last = p->pos;
  e->height = 1;
  return e;
}

/* Left-deep chains (a + b + c + ...) do not nest in the parser, but they do in walks of the tree. */
static void add_item(kva_parser *p, kva_ast_expr *e, kva_ast_expr *item) {
  KVA_PUSH(p->arena, &e->items, item);
  if (item->height + 1 > e->height) e->height = item->height + 1;
  if (e->height <= KVA_MAX_NESTING || p->panic) return;
  kva_parse_error(p, e->first, "this expression is more than %d levels deep; split it", KVA_MAX_NESTING);
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

static bool is_word(const kva_token *t, const char *word) {
  return t->kind == KVA_TOKEN_NAME && !strcmp(t->text, word);
}

static bool dtype_at(const kva_token *t, kva_dtype *out) {
  if (t->kind != KVA_TOKEN_NAME) return false;
  *out = kva_dtype_from_name(t->text, strlen(t->text));
  return *out != KVA_DTYPE_NONE;
}

static const char *const wrappers[] = {
    [KVA_AST_SEQUENCE] = "seq",         [KVA_AST_OPTIONAL] = "optional", [KVA_AST_MAP] = "map",
    [KVA_AST_SPARSE] = "sparse_tensor", [KVA_AST_OPAQUE] = "opaque",
};

static bool wrapper_at(const kva_token *t, kva_ast_type_kind *out) {
  for (kva_ast_type_kind k = KVA_AST_SEQUENCE; k <= KVA_AST_OPAQUE; k++) {
    if (!is_word(t, wrappers[k])) continue;
    *out = k;
    return true;
  }
  return false;
}

bool kva_at_type(const kva_parser *p) {
  kva_dtype dtype;
  kva_ast_type_kind kind;
  const kva_token *t = kva_peek(p, 0);
  if (dtype_at(t, &dtype)) return kva_peek(p, 1)->kind != '(';
  return wrapper_at(t, &kind) && kva_peek(p, 1)->kind == '(';
}

static kva_ast_expr *parse_dim(kva_parser *p) {
  if (!kva_at(p, '?')) return kva_parse_expr(p);
  kva_ast_expr *e = kva_new_expr(p, KVA_AST_UNKNOWN);
  p->pos++;
  return e;
}

static bool at_pairs(const kva_parser *p) {
  return kva_at(p, '[') && kva_peek(p, 1)->kind == KVA_TOKEN_STRING && kva_peek(p, 2)->kind == ':';
}

static void parse_dims(kva_parser *p, kva_ast_type *t) {
  if (at_pairs(p) || !kva_accept(p, '[')) return;
  if (kva_accept(p, ']')) {
    t->any_rank = true;
    return;
  }
  bool in_angle = p->in_angle;
  p->in_angle = false;
  do {
    kva_ast_expr *e = parse_dim(p);
    KVA_PUSH(p->arena, &t->dims, e);
  } while (kva_accept(p, ',') && !p->panic);
  p->in_angle = in_angle;
  kva_expect(p, ']');
}

static void parse_dtype(kva_parser *p, kva_ast_type *t) {
  if (p->panic) return;
  if (dtype_at(kva_peek(p, 0), &t->dtype))
    p->pos++;
  else
    kva_parse_error(p, p->pos, "expected an element type (float, int64, ...), found %s",
                    kva_token_name(p->arena, &p->ast->tokens, p->pos));
}

static void parse_opaque(kva_parser *p, kva_ast_type *t) {
  uint32_t from = p->pos;
  while (kva_accept(p, KVA_TOKEN_NAME) || kva_accept(p, '.') || kva_accept(p, ',')) {
  }
  const kva_token *tokens = p->ast->tokens.token.data;
  size_t n = tokens[p->pos].offset - tokens[from].offset;
  t->opaque = kva_arena_strndup(p->arena, p->ast->tokens.source + tokens[from].offset, n);
}

static void parse_wrapped(kva_parser *p, kva_ast_type *t) {
  p->pos++;
  kva_expect(p, '(');
  if (t->kind == KVA_AST_OPAQUE) {
    parse_opaque(p, t);
  } else {
    if (t->kind == KVA_AST_MAP) {
      parse_dtype(p, t);
      kva_expect(p, ',');
    }
    t->element = kva_parse_type(p);
  }
  kva_expect(p, ')');
}

kva_ast_type *kva_parse_type(kva_parser *p) {
  kva_ast_type *t = KVA_NEW(p->arena, kva_ast_type);
  t->first = p->pos;
  if (kva_enter(p) && !p->panic) {
    if (wrapper_at(kva_peek(p, 0), &t->kind)) {
      parse_wrapped(p, t);
    } else {
      parse_dtype(p, t);
      if (!p->panic) parse_dims(p, t);
    }
  }
  kva_leave(p);
  t->last = kva_last_token(p);
  return t;
}

/* ---- literals and attributes ------------------------------------------------------------------------------------- */

static void parse_elements(kva_parser *p, kva_ast_expr *e) {
  if (kva_accept(p, '}')) return;
  do {
    add_item(p, e, kva_parse_expr(p));
  } while (kva_accept(p, ',') && !p->panic);
  kva_expect(p, '}');
}

static void parse_external(kva_parser *p, kva_ast_expr *e) {
  kva_ast_header_entry entry = {0};
  kva_parse_pairs(p, &entry);
  for (uint32_t i = 0; i < entry.pairs.len; i++) add_item(p, e, entry.pairs.data[i]);
  e->external = true;
}

kva_ast_expr *kva_parse_literal(kva_parser *p, kva_ast_type *type) {
  kva_ast_expr *e = kva_new_expr(p, KVA_AST_LITERAL);
  e->type = type;
  bool in_angle = p->in_angle;
  p->in_angle = false;
  if (kva_accept(p, '{'))
    parse_elements(p, e);
  else if (kva_at(p, '['))
    parse_external(p, e);
  else
    kva_expect(p, '{');
  p->in_angle = in_angle;
  e->last = kva_last_token(p);
  return e;
}

/* A type, or a tensor of that type if data follow. `text`: the tensor's name, or the type's single word, which may be a
 * value's name. */
static kva_ast_expr *parse_typed(kva_parser *p) {
  kva_ast_expr *e = kva_new_expr(p, KVA_AST_TYPE);
  uint32_t first = p->pos;
  e->type = kva_parse_type(p);
  const char *name = NULL;
  int next = kva_peek(p, 0)->kind;
  if (!p->panic && (next == KVA_TOKEN_NAME || next == KVA_TOKEN_STRING)) name = kva_parse_name(p).text;
  bool equals = kva_accept(p, '=');
  if (name || equals || kva_at(p, '{') || at_pairs(p)) {
    e = kva_parse_literal(p, e->type);
    e->text = name;
  } else if (e->type->first == e->type->last) {
    e->text = p->ast->tokens.token.data[first].text;
  }
  e->first = first;
  e->last = kva_last_token(p);
  return e;
}

/* Whether `name (` begins the inputs of a graph, closed by `) =>`. Names nest parentheses only in types. */
static bool at_graph(const kva_parser *p) {
  int first = kva_peek(p, 0)->kind;
  if (first != KVA_TOKEN_NAME && first != KVA_TOKEN_STRING) return false;
  if (kva_peek(p, 1)->kind != '(') return kva_peek(p, 1)->kind == KVA_TOKEN_ARROW;
  int depth = 0;
  for (uint32_t i = 1;; i++) {
    int kind = kva_peek(p, i)->kind;
    if (kind == KVA_TOKEN_END) return false;
    depth += kind == '(';
    depth -= kind == ')';
    if (depth == 0) return kva_peek(p, i + 1)->kind == KVA_TOKEN_ARROW;
  }
}

static kva_ast_expr *parse_graph_value(kva_parser *p) {
  kva_ast_expr *e = kva_new_expr(p, KVA_AST_GRAPH);
  bool in_angle = p->in_angle;
  p->in_angle = false;
  e->graph = KVA_NEW(p->arena, kva_ast_graph);
  e->graph->first = p->pos;
  e->graph->name = kva_parse_name(p);
  if (kva_enter(p)) kva_parse_graph(p, e->graph);
  kva_leave(p);
  p->in_angle = in_angle;
  e->last = kva_last_token(p);
  return e;
}

static kva_ast_expr *parse_value(kva_parser *p);

static kva_ast_expr *parse_list(kva_parser *p) {
  kva_ast_expr *e = kva_new_expr(p, KVA_AST_LIST);
  bool in_angle = p->in_angle;
  p->in_angle = false;
  p->pos++;
  if (kva_enter(p) && !kva_accept(p, ']')) {
    do {
      add_item(p, e, parse_value(p));
    } while (kva_accept(p, ',') && !p->panic);
    kva_expect(p, ']');
  }
  kva_leave(p);
  p->in_angle = in_angle;
  e->last = kva_last_token(p);
  return e;
}

static kva_ast_expr *parse_value(kva_parser *p) {
  if (at_graph(p)) return parse_graph_value(p);
  return kva_parse_expr(p);
}

static kva_ast_attr parse_attr(kva_parser *p) {
  kva_ast_attr a = {.name = kva_parse_name(p)};
  if (kva_accept(p, ':')) {
    uint32_t t = kva_expect(p, KVA_TOKEN_NAME);
    a.type = p->ast->tokens.token.data[t].text;
  }
  if (kva_accept(p, '='))
    a.value = parse_value(p);
  else if (a.type)
    kva_expect(p, '=');
  return a;
}

kva_ast_attrs kva_parse_attrs(kva_parser *p) {
  kva_ast_attrs attrs = {.first = p->pos};
  kva_expect(p, '<');
  bool in_angle = p->in_angle;
  p->in_angle = true;
  kva_map *names = kva_map_create(p->arena);
  if (!kva_at(p, '>')) {
    do {
      kva_ast_attr a = parse_attr(p);
      if (!p->panic && kva_map_get_str(names, a.name.text))
        kva_parse_error(p, a.name.token, "'%s' is given twice", a.name.text);
      if (!p->panic) kva_map_set_str(names, a.name.text, p);
      KVA_PUSH(p->arena, &attrs.list, a);
    } while (kva_accept(p, ',') && !p->panic);
  }
  p->in_angle = in_angle;
  attrs.last = kva_expect(p, '>');
  return attrs;
}

/* ---- expressions ------------------------------------------------------------------------------------------------- */

static bool at_attrs(const kva_parser *p) {
  if (!kva_at(p, '<')) return false;
  int name = kva_peek(p, 1)->kind, next = kva_peek(p, 2)->kind;
  if (name == '>') return true;
  return (name == KVA_TOKEN_NAME || name == KVA_TOKEN_STRING) && (next == '=' || next == ':');
}

static kva_ast_expr *parse_operand(kva_parser *p) {
  if (kva_at(p, ',') || kva_at(p, ')')) return kva_new_expr(p, KVA_AST_NOTHING);
  return kva_parse_expr(p);
}

static void parse_operands(kva_parser *p, kva_ast_expr *e) {
  bool in_angle = p->in_angle, in_range = p->in_range;
  p->in_angle = p->in_range = false;
  e->call->has_operands = true;
  p->pos++;
  while (!p->panic && !kva_at(p, ')')) {
    add_item(p, e, parse_operand(p));
    if (!kva_accept(p, ',')) break;
  }
  kva_expect(p, ')');
  p->in_angle = in_angle;
  p->in_range = in_range;
}

static void parse_subgraphs(kva_parser *p, kva_ast_call *call) {
  while (!p->panic && kva_at(p, '{') && kva_peek(p, 1)->kind == '(') {
    kva_ast_graph *g = KVA_NEW(p->arena, kva_ast_graph);
    g->kind = KVA_AST_SUBGRAPH;
    g->first = p->pos;
    if (kva_enter(p)) kva_parse_graph(p, g);
    kva_leave(p);
    KVA_PUSH(p->arena, &call->graphs, g);
  }
}

static void parse_call(kva_parser *p, kva_ast_expr *e) {
  e->kind = KVA_AST_CALL;
  if (at_attrs(p)) e->call->attrs = kva_parse_attrs(p);
  if (!p->panic && kva_at(p, '(')) parse_operands(p, e);
  if (!p->panic && e->call->has_operands && !e->call->attrs.last && at_attrs(p)) e->call->attrs = kva_parse_attrs(p);
  parse_subgraphs(p, e->call);
}

/* name, name.name or name.name:overload, possibly called. */
static kva_ast_expr *parse_reference(kva_parser *p) {
  kva_ast_expr *e = kva_new_expr(p, KVA_AST_NAME);
  kva_ast_call *call = e->call = KVA_NEW(p->arena, kva_ast_call);
  call->domain = "";
  call->name = e->text = kva_peek(p, 0)->text;
  p->pos++;
  while (kva_accept(p, '.')) {
    call->domain = *call->domain ? kva_arena_printf(p->arena, "%s.%s", call->domain, call->name) : call->name;
    call->name = p->ast->tokens.token.data[kva_expect(p, KVA_TOKEN_NAME)].text;
  }
  if (!p->in_range && kva_at(p, ':') && kva_peek(p, 1)->kind == KVA_TOKEN_NAME) {
    p->pos++;
    call->overload = kva_peek(p, 0)->text;
    p->pos++;
  }
  if (p->panic) return e;
  if (kva_at(p, '(') || at_attrs(p))
    parse_call(p, e);
  else if (*call->domain || call->overload)
    kva_expect(p, '(');
  e->last = kva_last_token(p);
  return e;
}

static kva_ast_expr *parse_parenthesised(kva_parser *p) {
  bool in_angle = p->in_angle, in_range = p->in_range;
  p->in_angle = p->in_range = false;
  p->pos++;
  kva_ast_expr *e = kva_parse_expr(p);
  kva_expect(p, ')');
  p->in_angle = in_angle;
  p->in_range = in_range;
  return e;
}

static kva_ast_expr *parse_token(kva_parser *p, kva_ast_expr_kind kind) {
  kva_ast_expr *e = kva_new_expr(p, kind);
  const kva_token *t = kva_peek(p, 0);
  e->text = t->text;
  e->integer = t->integer;
  e->number = t->number;
  p->pos++;
  return e;
}

static kva_ast_expr *parse_attr_ref(kva_parser *p) {
  kva_ast_expr *e = kva_new_expr(p, KVA_AST_REF);
  p->pos++;
  e->text = kva_parse_name(p).text;
  e->last = kva_last_token(p);
  return e;
}

static kva_ast_expr *parse_atom(kva_parser *p) {
  switch (kva_peek(p, 0)->kind) {
  case KVA_TOKEN_NAME: return kva_at_type(p) ? parse_typed(p) : parse_reference(p);
  case KVA_TOKEN_STRING: return parse_token(p, KVA_AST_STRING);
  case KVA_TOKEN_INT: return parse_token(p, KVA_AST_INT);
  case KVA_TOKEN_FLOAT: return parse_token(p, KVA_AST_FLOAT);
  case '(': return parse_parenthesised(p);
  case '[': return parse_list(p);
  case '@': return parse_attr_ref(p);
  default:
    kva_parse_error(p, p->pos, "expected a value, found %s", kva_token_name(p->arena, &p->ast->tokens, p->pos));
    return kva_new_expr(p, KVA_AST_NOTHING);
  }
}

enum { LEVEL_OR = 1, LEVEL_AND, LEVEL_NOT, LEVEL_COMPARE, LEVEL_ADD, LEVEL_MUL, LEVEL_UNARY };

static kva_ast_expr *parse_level(kva_parser *p, int level);

static kva_ast_expr *parse_unary(kva_parser *p, kva_ast_op op, int level) {
  kva_ast_expr *e = kva_new_expr(p, KVA_AST_UNARY);
  e->op = op;
  p->pos++;
  add_item(p, e, parse_level(p, level));
  e->last = kva_last_token(p);
  return e;
}

/* The binary operator at the next token; 0: none. */
static int binary_at(const kva_parser *p, kva_ast_op *op) {
  static const struct {
    int kind, level;
    kva_ast_op op;
  } table[] = {
      {KVA_TOKEN_EQ, LEVEL_COMPARE, KVA_AST_EQ},
      {KVA_TOKEN_NE, LEVEL_COMPARE, KVA_AST_NE},
      {'<', LEVEL_COMPARE, KVA_AST_LT},
      {KVA_TOKEN_LE, LEVEL_COMPARE, KVA_AST_LE},
      {'>', LEVEL_COMPARE, KVA_AST_GT},
      {KVA_TOKEN_GE, LEVEL_COMPARE, KVA_AST_GE},
      {'+', LEVEL_ADD, KVA_AST_ADD},
      {'-', LEVEL_ADD, KVA_AST_SUB},
      {'*', LEVEL_MUL, KVA_AST_MUL},
      {'/', LEVEL_MUL, KVA_AST_DIV},
      {'@', LEVEL_MUL, KVA_AST_MATMUL},
  };
  int next = kva_peek(p, 1)->kind;
  bool assigned = next == '=' || next == ','; /* and, or: a name that the next statement assigns */
  *op = kva_at_name(p, 0, "or") ? KVA_AST_OR : KVA_AST_AND;
  if (!assigned && *op == KVA_AST_OR) return LEVEL_OR;
  if (!assigned && kva_at_name(p, 0, "and")) return LEVEL_AND;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
    if (!kva_at(p, table[i].kind)) continue;
    *op = table[i].op;
    return p->in_angle && (*op == KVA_AST_GT || *op == KVA_AST_GE) ? 0 : table[i].level;
  }
  return 0;
}

static bool at_not(const kva_parser *p) {
  int next = kva_peek(p, 1)->kind;
  return kva_at_name(p, 0, "not") && next != ',' && next != ')' && next != '='; /* otherwise a value's name */
}

/* Precedence climbing. */
static kva_ast_expr *parse_level(kva_parser *p, int level) {
  kva_ast_expr *e;
  if (!kva_enter(p) || p->panic) {
    kva_leave(p);
    return kva_new_expr(p, KVA_AST_NOTHING);
  }
  if (kva_at(p, '-'))
    e = parse_unary(p, KVA_AST_NEG, LEVEL_UNARY);
  else if (at_not(p))
    e = parse_unary(p, KVA_AST_NOT, LEVEL_COMPARE);
  else
    e = parse_atom(p);
  kva_ast_op op;
  for (int at; !p->panic && (at = binary_at(p, &op)) >= level && at > 0;) {
    kva_ast_expr *binary = kva_new_expr(p, KVA_AST_BINARY);
    binary->op = op;
    binary->first = e->first;
    p->pos++;
    add_item(p, binary, e);
    add_item(p, binary, parse_level(p, at + 1));
    binary->last = kva_last_token(p);
    e = binary;
  }
  kva_leave(p);
  return e;
}

kva_ast_expr *kva_parse_expr(kva_parser *p) {
  return parse_level(p, LEVEL_OR);
}
