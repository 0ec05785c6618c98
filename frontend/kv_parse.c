/* Parses statements and the items of a file. Words such as `model`, `for` or `param` are not reserved, since ONNX text
 * may use any of them as a name; the next token decides. */
#include "frontend/kv_parse.h"

enum { MAX_ERRORS = 20 };

const kva_token *kva_peek(const kva_parser *p, uint32_t ahead) {
  uint32_t i = p->pos + ahead, last = p->ast->tokens.token.len - 1;
  return &p->ast->tokens.token.data[i < last ? i : last];
}

bool kva_at(const kva_parser *p, int kind) {
  return kva_peek(p, 0)->kind == kind;
}

bool kva_at_name(const kva_parser *p, uint32_t ahead, const char *text) {
  const kva_token *t = kva_peek(p, ahead);
  return t->kind == KVA_TOKEN_NAME && !strcmp(t->text, text);
}

bool kva_accept(kva_parser *p, int kind) {
  if (p->panic || !kva_at(p, kind)) return false;
  p->pos++;
  return true;
}

uint32_t kva_last_token(const kva_parser *p) {
  return p->pos ? p->pos - 1 : 0;
}

void kva_parse_error(kva_parser *p, uint32_t token, const char *fmt, ...) {
  if (p->panic) return;
  p->panic = true;
  p->errors++;
  kva_loc loc = kva_token_loc(&p->ast->tokens, token);
  va_list args;
  va_start(args, fmt);
  char message[512];
  vsnprintf(message, sizeof message, fmt, args);
  va_end(args);
  kva_error(p->diag, &loc, "%s", message);
}

uint32_t kva_expect(kva_parser *p, int kind) {
  if (kva_accept(p, kind)) return p->pos - 1;
  kva_parse_error(p, p->pos, "expected %s, found %s", kva_token_kind_name(p->arena, kind),
                  kva_token_name(p->arena, &p->ast->tokens, p->pos));
  return p->pos;
}

bool kva_enter(kva_parser *p) {
  if (++p->depth <= KVA_MAX_NESTING) return true;
  kva_parse_error(p, p->pos, "this nests more than %d levels deep", KVA_MAX_NESTING);
  return false;
}

void kva_leave(kva_parser *p) {
  p->depth--;
}

static bool at_name_like(const kva_parser *p, uint32_t ahead) {
  int kind = kva_peek(p, ahead)->kind;
  return kind == KVA_TOKEN_NAME || kind == KVA_TOKEN_STRING;
}

kva_ast_name kva_parse_name(kva_parser *p) {
  kva_ast_name name = {.text = "", .token = p->pos};
  if (p->panic) return name;
  if (!at_name_like(p, 0)) {
    kva_expect(p, KVA_TOKEN_NAME);
    return name;
  }
  name.text = kva_peek(p, 0)->text;
  p->pos++;
  return name;
}

/* ---- statements -------------------------------------------------------------------------------------------------- */

static void parse_targets(kva_parser *p, kva_ast_stmt *s) {
  while (!p->panic && !kva_at(p, '=')) {
    kva_ast_name name = {.text = "", .token = p->pos};
    if (!kva_at(p, ',')) name = kva_parse_name(p);
    KVA_PUSH(p->arena, &s->targets, name);
    if (!kva_accept(p, ',')) return;
  }
}

static void parse_assign(kva_parser *p, kva_ast_stmt *s) {
  if (kva_accept(p, '[')) {
    s->label = (kva_ast_name){.text = "", .token = p->pos};
    if (!kva_at(p, ']')) s->label = kva_parse_name(p);
    kva_expect(p, ']');
  }
  s->bare = kva_at(p, KVA_TOKEN_NAME) && kva_peek(p, 1)->kind == '.';
  if (s->bare) {
    s->value = kva_parse_expr(p);
    return;
  }
  parse_targets(p, s);
  if (!p->panic && !kva_at(p, '=')) {
    kva_parse_error(p, p->pos, "expected '=' after the name%s that the statement assigns, found %s",
                    s->targets.len == 1 ? "" : "s", kva_token_name(p->arena, &p->ast->tokens, p->pos));
  }
  kva_expect(p, '=');
  if (!p->panic) s->value = kva_parse_expr(p);
}

static bool at_flag(kva_parser *p) {
  static const char *const names[] = {"nodecay", "frozen", "decay", "split_rows", "split_columns"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (kva_at_name(p, 0, names[i])) return true;
  return false;
}

static void parse_flags(kva_parser *p, kva_ast_names *flags) {
  while (!p->panic && at_flag(p)) {
    int next = kva_peek(p, 1)->kind;
    if (next == '=' || next == ',') return; /* the next statement assigns a value of that name */
    kva_ast_name flag = kva_parse_name(p);
    KVA_PUSH(p->arena, flags, flag);
  }
}

static void parse_param(kva_parser *p, kva_ast_stmt *s) {
  s->kind = KVA_AST_PARAM;
  p->pos++;
  s->type = kva_parse_type(p);
  kva_ast_name name = kva_parse_name(p);
  KVA_PUSH(p->arena, &s->targets, name);
  if (kva_accept(p, '~')) s->value = kva_parse_expr(p);
  parse_flags(p, &s->flags);
}

static void parse_arm(kva_parser *p, kva_ast_stmt *s, kva_ast_expr *cond) {
  kva_ast_arm arm = {.cond = cond, .first = p->pos};
  kva_expect(p, '{');
  arm.body = kva_parse_block(p);
  arm.last = kva_last_token(p);
  KVA_PUSH(p->arena, &s->arms, arm);
}

static void parse_for(kva_parser *p, kva_ast_stmt *s) {
  s->kind = KVA_AST_FOR;
  p->pos++;
  kva_ast_name name = kva_parse_name(p);
  KVA_PUSH(p->arena, &s->targets, name);
  if (!kva_at_name(p, 0, "in")) {
    kva_parse_error(p, p->pos, "expected 'in' (for l in 0 : layers { ... }), found %s",
                    kva_token_name(p->arena, &p->ast->tokens, p->pos));
    return;
  }
  p->pos++;
  p->in_range = true;
  s->value = kva_parse_expr(p);
  kva_expect(p, ':');
  s->to = kva_parse_expr(p);
  p->in_range = false;
  if (!p->panic) parse_arm(p, s, NULL);
}

static void parse_if(kva_parser *p, kva_ast_stmt *s) {
  s->kind = KVA_AST_IF;
  do {
    p->pos++; /* if */
    parse_arm(p, s, kva_parse_expr(p));
    if (p->panic || !kva_at_name(p, 0, "else")) return;
    p->pos++;
  } while (kva_at_name(p, 0, "if"));
  parse_arm(p, s, NULL);
}

/* `return (a + b) * c` is one value, not a list in parentheses: the token after the closing parenthesis decides. */
static bool at_list_of_values(const kva_parser *p) {
  if (!kva_at(p, '(')) return false;
  int depth = 0;
  for (uint32_t i = 0;; i++) {
    int kind = kva_peek(p, i)->kind;
    if (kind == KVA_TOKEN_END) return true;
    depth += kind == '(';
    depth -= kind == ')';
    if (depth > 0) continue;
    int next = kva_peek(p, i + 1)->kind;
    return !(next == '+' || next == '-' || next == '*' || next == '/' || next == '@' || next == ',');
  }
}

static void parse_return(kva_parser *p, kva_ast_stmt *s) {
  s->kind = KVA_AST_RETURN;
  p->pos++;
  s->parenthesised = at_list_of_values(p);
  if (s->parenthesised) p->pos++;
  if (s->parenthesised && kva_accept(p, ')')) return;
  do {
    kva_ast_expr *e = kva_parse_expr(p);
    KVA_PUSH(p->arena, &s->values, e);
  } while (kva_accept(p, ',') && !p->panic);
  if (s->parenthesised) kva_expect(p, ')');
}

static kva_ast_stmt *parse_statement(kva_parser *p) {
  kva_ast_stmt *s = KVA_NEW(p->arena, kva_ast_stmt);
  s->first = p->pos;
  int next = kva_peek(p, 1)->kind;
  bool assigns = next == '=' || next == ',';
  if (!kva_enter(p)) {
  } else if (!assigns && kva_at_name(p, 0, "param")) {
    parse_param(p, s);
  } else if (!assigns && kva_at_name(p, 0, "for")) {
    parse_for(p, s);
  } else if (!assigns && kva_at_name(p, 0, "if")) {
    parse_if(p, s);
  } else if (!assigns && kva_at_name(p, 0, "return")) {
    parse_return(p, s);
  } else {
    if (!assigns && kva_at_name(p, 0, "metric") && at_name_like(p, 1)) {
      s->kind = KVA_AST_METRIC;
      p->pos++;
    }
    parse_assign(p, s);
  }
  kva_leave(p);
  s->last = kva_last_token(p);
  return s;
}

/* Error recovery: skips to a closing brace or to the first token of a line in the block that began at `depth` braces.
 * Always consumes a token, so the parser terminates. */
static void recover(kva_parser *p, uint32_t error_at_least) {
  int depth = 0;
  if (p->pos <= error_at_least && !kva_at(p, '}') && !kva_at(p, KVA_TOKEN_END)) {
    depth += kva_at(p, '{');
    p->pos++;
  }
  for (; !kva_at(p, KVA_TOKEN_END); p->pos++) {
    bool first = kva_peek(p, 0)->line != p->ast->tokens.token.data[kva_last_token(p)].line;
    bool starts = at_name_like(p, 0) || kva_at(p, '[');
    if (depth == 0 && (kva_at(p, '}') || (first && starts))) break;
    depth += kva_at(p, '{');
    depth -= kva_at(p, '}');
  }
  p->panic = p->errors >= MAX_ERRORS;
  p->in_angle = p->in_range = false;
}

kva_ast_block kva_parse_block(kva_parser *p) {
  kva_ast_block block = {0};
  while (!p->panic && !kva_at(p, '}') && !kva_at(p, KVA_TOKEN_END)) {
    uint32_t first = p->pos, depth = p->depth;
    kva_ast_stmt *s = parse_statement(p);
    if (!p->panic)
      KVA_PUSH(p->arena, &block, s);
    else
      recover(p, first);
    p->depth = depth;
  }
  kva_expect(p, '}');
  return block;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

static kva_ast_value parse_value_info(kva_parser *p) {
  kva_ast_value v = {0};
  int next = kva_peek(p, 1)->kind;
  bool is_name = next == ',' || next == ')' || next == '>' || next == '=';
  if (kva_at_type(p) && !is_name) v.type = kva_parse_type(p);
  v.name = kva_parse_name(p);
  if (!kva_accept(p, '=')) return v;
  if (!v.type)
    kva_parse_error(p, v.name.token, "the initialiser '%s' needs a type", v.name.text);
  else
    v.init = kva_parse_literal(p, v.type);
  return v;
}

static kva_ast_values parse_values(kva_parser *p, int open, int close) {
  kva_ast_values values = {.first = p->pos};
  kva_expect(p, open);
  while (!p->panic && !kva_at(p, close)) {
    kva_ast_value v = parse_value_info(p);
    KVA_PUSH(p->arena, &values.list, v);
    if (!kva_accept(p, ',')) break;
  }
  values.last = kva_expect(p, close);
  return values;
}

static void parse_signature(kva_parser *p, kva_ast_graph *g) {
  if (g->kind == KVA_AST_NAMES) return;
  bool optional = g->kind == KVA_AST_TRAIN || (g->kind == KVA_AST_PLAIN && kva_at(p, KVA_TOKEN_ARROW));
  if (!optional || kva_at(p, '(')) {
    g->has_inputs = true;
    g->inputs = parse_values(p, '(', ')');
  }
  if (g->kind == KVA_AST_DEF || g->kind == KVA_AST_TRAIN) return;
  g->has_outputs = true;
  kva_expect(p, KVA_TOKEN_ARROW);
  g->outputs = parse_values(p, '(', ')');
  if (g->kind == KVA_AST_PLAIN && kva_at(p, '<')) g->infos = parse_values(p, '<', '>');
}

void kva_parse_graph(kva_parser *p, kva_ast_graph *g) {
  if (g->kind == KVA_AST_SUBGRAPH) {
    g->open = kva_expect(p, '{');
    parse_signature(p, g);
  } else {
    parse_signature(p, g);
    g->open = kva_expect(p, '{');
  }
  if (!p->panic) g->body = kva_parse_block(p);
  g->last = kva_last_token(p);
}

/* ---- items of a file --------------------------------------------------------------------------------------------- */

void kva_parse_pairs(kva_parser *p, kva_ast_header_entry *e) {
  kva_expect(p, '[');
  while (!p->panic && !kva_at(p, ']')) {
    kva_ast_expr *key = kva_new_expr(p, KVA_AST_STRING);
    key->text = p->ast->tokens.token.data[kva_expect(p, KVA_TOKEN_STRING)].text;
    kva_expect(p, ':');
    bool is_int = kva_at(p, KVA_TOKEN_INT);
    kva_ast_expr *value = kva_new_expr(p, is_int ? KVA_AST_INT : KVA_AST_STRING);
    const kva_token *t = &p->ast->tokens.token.data[kva_expect(p, is_int ? KVA_TOKEN_INT : KVA_TOKEN_STRING)];
    value->text = t->text;
    value->integer = t->integer;
    KVA_PUSH(p->arena, &e->pairs, key);
    KVA_PUSH(p->arena, &e->pairs, value);
    if (!kva_accept(p, ',')) break;
  }
  kva_expect(p, ']');
}

static kva_ast_header_entry parse_header_entry(kva_parser *p) {
  static const char *const keys[] = {"ir_version",    "opset_import", "producer_name",  "producer_version", "domain",
                                     "model_version", "doc_string",   "metadata_props", "overload"};
  kva_ast_header_entry e = {.key = kva_parse_name(p)};
  bool known = false;
  for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) known |= !strcmp(e.key.text, keys[i]);
  if (!known) {
    kva_parse_error(p, e.key.token,
                    "'%s' is not a header field; they are ir_version, opset_import, producer_name, producer_version, "
                    "domain, model_version, doc_string, metadata_props, overload",
                    e.key.text);
  }
  kva_expect(p, ':');
  if (kva_at(p, '['))
    kva_parse_pairs(p, &e);
  else if (!p->panic)
    e.value = kva_parse_expr(p);
  return e;
}

static kva_ast_header parse_header(kva_parser *p) {
  kva_ast_header h = {.first = p->pos};
  kva_expect(p, '<');
  p->in_angle = true;
  while (!p->panic && !kva_at(p, '>')) {
    kva_ast_header_entry e = parse_header_entry(p);
    KVA_PUSH(p->arena, &h.entries, e);
    if (!kva_accept(p, ',')) break;
  }
  p->in_angle = false;
  h.last = kva_expect(p, '>');
  return h;
}

/* model, def, train and checkpoint are keywords only before a name; `train {` opens the block of a dump. */
static kva_ast_graph_kind graph_kind_at(const kva_parser *p) {
  if (at_name_like(p, 1) && kva_at_name(p, 0, "model")) return KVA_AST_MODEL;
  if (at_name_like(p, 1) && kva_at_name(p, 0, "def")) return KVA_AST_DEF;
  if (at_name_like(p, 1) && kva_at_name(p, 0, "checkpoint")) return KVA_AST_NAMES;
  if (kva_at_name(p, 0, "train") && (at_name_like(p, 1) || kva_peek(p, 1)->kind == '{')) return KVA_AST_TRAIN;
  return KVA_AST_PLAIN;
}

static kva_ast_graph *parse_graph_item(kva_parser *p) {
  kva_ast_graph *g = KVA_NEW(p->arena, kva_ast_graph);
  g->first = p->pos;
  if (kva_at(p, '<')) g->header = parse_header(p);
  g->kind = graph_kind_at(p);
  if (g->kind != KVA_AST_PLAIN) p->pos++;
  if (g->kind != KVA_AST_TRAIN || !kva_at(p, '{')) g->name = kva_parse_name(p);
  if (!p->panic && kva_at(p, '<')) g->attrs = kva_parse_attrs(p);
  if (!p->panic) kva_parse_graph(p, g);
  return g;
}

static kva_ast_state *parse_state(kva_parser *p) {
  kva_ast_state *s = KVA_NEW(p->arena, kva_ast_state);
  p->pos++;
  s->type = kva_parse_type(p);
  s->name = kva_parse_name(p);
  kva_expect(p, ':');
  s->kind = kva_parse_name(p);
  if (kva_at_name(p, 0, "of")) {
    p->pos++;
    s->of = kva_parse_name(p);
  }
  if (kva_accept(p, '~')) s->init = kva_parse_expr(p);
  parse_flags(p, &s->flags);
  return s;
}

static kva_ast_preset *parse_preset(kva_parser *p) {
  kva_ast_preset *preset = KVA_NEW(p->arena, kva_ast_preset);
  p->pos++;
  preset->name = kva_parse_name(p);
  preset->attrs = kva_parse_attrs(p);
  return preset;
}

static const kva_ast_name *parse_module(kva_parser *p) {
  p->pos++;
  kva_ast_name name = kva_parse_name(p);
  return kva_arena_memdup(p->arena, &name, sizeof name);
}

/* At file level, recovery skips to a token at the left margin that can begin an item. */
static void recover_item(kva_parser *p, uint32_t first) {
  if (p->pos <= first) p->pos = first + 1;
  while (!kva_at(p, KVA_TOKEN_END)) {
    const kva_token *t = kva_peek(p, 0);
    if (t->column == 1 && (t->kind == KVA_TOKEN_NAME || t->kind == '<')) break;
    p->pos++;
  }
  p->panic = p->errors >= MAX_ERRORS;
  p->in_angle = p->in_range = false;
  p->depth = 0;
}

static kva_ast_item parse_item(kva_parser *p) {
  kva_ast_item item = {.first = p->pos};
  int next = kva_peek(p, 1)->kind;
  bool named = next == KVA_TOKEN_NAME || next == KVA_TOKEN_STRING;
  if (next == KVA_TOKEN_STRING && kva_at_name(p, 0, "module"))
    item.module = parse_module(p);
  else if (named && kva_at_name(p, 0, "state"))
    item.state = parse_state(p);
  else if (named && kva_at_name(p, 0, "preset"))
    item.preset = parse_preset(p);
  else
    item.graph = parse_graph_item(p);
  item.last = kva_last_token(p);
  return item;
}

bool kva_parse_text(kva_arena *arena, kva_diag *diag, const char *file, const char *source, kva_ast *out) {
  *out = (kva_ast){0};
  bool lexed = kva_lex(arena, diag, file, source, &out->tokens);
  kva_parser p = {.arena = arena, .diag = diag, .ast = out};
  if (kva_at(&p, KVA_TOKEN_END)) {
    kva_parse_error(&p, p.pos, "there is nothing in this file: expected a graph or a model");
  }
  while (!p.panic && !kva_at(&p, KVA_TOKEN_END)) {
    uint32_t first = p.pos;
    kva_ast_item item = parse_item(&p);
    if (!p.panic)
      KVA_PUSH(arena, &out->items, item);
    else
      recover_item(&p, first);
  }
  return lexed && p.errors == 0;
}
