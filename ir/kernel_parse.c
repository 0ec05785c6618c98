/* Reads the text that kernel_print.c writes (the format is described there). Recursive descent over tokens; after the
 * first error every token reads as the end, so that all loops stop. Nothing is folded or moved: what stands in the text
 * is what the kernel holds, except that constants become instructions at its start. */
#include "ir/kernel.h"
#include "ir/kernel_lex.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum { MAX_NESTING = 64 }; /* of blocks and parentheses: bounds the recursion on hostile input */

typedef struct parser {
  kva_klexer lex;
  kva_arena *scratch;
  kva_kernel *k;
  kva_map *values;        /* number -> instruction */
  kva_map *loops;         /* name -> loop */
  kva_map *shape_symbols; /* names used so far: no loop may take them later */
  kva_map *value_symbols; /* instruction -> symbol */
  kva_map *constants;     /* type and bits -> instruction */
  kva_map *bufs;          /* name -> buffer */
  int nesting;
} parser;

/* An operand whose type may still be unknown. */
typedef struct operand {
  kva_kval value; /* NULL: the constant */
  bool negative;
  kva_ktoken constant;
} operand;

static bool enter(parser *p) {
  if (p->nesting++ < MAX_NESTING) return true;
  kva_klex_error(&p->lex, "nested more than %d deep", MAX_NESTING);
  return false;
}

static kva_dtype parse_dtype(parser *p) {
  kva_ktoken t = p->lex.token;
  kva_klex_expect_name(&p->lex, "an element type such as float");
  if (p->lex.failed) return KVA_DTYPE_NONE;
  kva_dtype dtype = kva_dtype_from_name(t.text, strlen(t.text));
  if (kva_k_compute_type(dtype) == KVA_DTYPE_NONE) {
    kva_klex_error_at(&p->lex, t, "'%s' is not an element type that kernels compute with", t.text);
  }
  return dtype;
}

/* ---- values and constants ---------------------------------------------------------------------------------------- */

static uint32_t parse_uint(parser *p, const char *what) {
  kva_ktoken t = p->lex.token;
  char *end = NULL;
  errno = 0;
  unsigned long long v = t.kind == KVA_KT_NUMBER ? strtoull(t.text, &end, 10) : 0;
  if (!end || *end || errno || v > INT32_MAX) {
    kva_klex_error(&p->lex, "expected %s, found '%s'", what, t.text);
    return 0;
  }
  kva_klex_next(&p->lex);
  return (uint32_t)v;
}

static kva_kval parse_known_value(parser *p) {
  kva_ktoken at = p->lex.token;
  kva_klex_expect(&p->lex, "%");
  uint32_t number = parse_uint(p, "the number of a value");
  kva_kval v = kva_map_get(p->values, &number, sizeof number);
  if (!v && !p->lex.failed) kva_klex_error_at(&p->lex, at, "value %%%u is not defined above", number);
  return v;
}

static void define_value(parser *p, uint32_t number, kva_kinstr *i) {
  kva_map_set(p->values, &number, sizeof number, i);
}

static kva_kval make_constant(parser *p, kva_dtype t, int64_t bits) {
  int64_t key[2] = {(int64_t)t, bits};
  kva_kinstr *c = kva_map_get(p->constants, key, sizeof key);
  if (c) return c;
  c = kva_k_instr_create(p->k, KVA_K_CONST, t);
  c->imm.i = bits;
  kva_k_insert(p->k->body, p->k->body->first, c);
  kva_map_set(p->constants, key, sizeof key, c);
  return c;
}

static bool int_from_text(kva_dtype t, const operand *o, int64_t *out) {
  char *end;
  errno = 0;
  uint64_t magnitude = strtoull(o->constant.text, &end, 10);
  if (errno || *end || o->constant.kind != KVA_KT_NUMBER) return false;
  uint64_t limit = t == KVA_U64 && !o->negative ? UINT64_MAX : (uint64_t)INT64_MAX + o->negative;
  if (magnitude > limit) return false;
  *out = (int64_t)(o->negative ? 0 - magnitude : magnitude);
  return kva_wrap_i64(t, *out) == *out;
}

static bool float_from_text(kva_dtype t, const operand *o, int64_t *out) {
  char *end;
  double v = strtod(o->constant.text, &end);
  const char *s = o->constant.text;
  bool is_word = o->constant.kind == KVA_KT_NAME;
  if (*end || (is_word && strcmp(s, "inf") && strcmp(s, "nan"))) return false;
  v = kva_round_f64(t, o->negative ? -v : v);
  memcpy(out, &v, sizeof v);
  return true;
}

static bool constant_from_text(kva_dtype t, const operand *o, int64_t *out) {
  if (kva_dtype_is_float(t)) return float_from_text(t, o, out);
  if (t != KVA_BOOL) return int_from_text(t, o, out);
  *out = !strcmp(o->constant.text, "true");
  return !o->negative && (*out || !strcmp(o->constant.text, "false"));
}

static operand parse_operand(parser *p) {
  operand o = {0};
  if (kva_klex_is(&p->lex, "%")) {
    o.value = parse_known_value(p);
    return o;
  }
  o.negative = kva_klex_accept(&p->lex, "-");
  o.constant = p->lex.token;
  bool ok = o.constant.kind == KVA_KT_NUMBER || o.constant.kind == KVA_KT_NAME;
  if (!ok) kva_klex_error(&p->lex, "expected a value or a constant, found '%s'", o.constant.text);
  kva_klex_next(&p->lex);
  return o;
}

static kva_kval typed(parser *p, const operand *o, kva_dtype t) {
  if (o->value || p->lex.failed) return o->value;
  int64_t bits = 0;
  if (constant_from_text(t, o, &bits)) return make_constant(p, t, bits);
  kva_klex_error_at(&p->lex, o->constant, "'%s%s' is not a constant of type %s", o->negative ? "-" : "",
                    o->constant.text, kva_dtype_name(t));
  return NULL;
}

static kva_kval parse_typed(parser *p, kva_dtype t) {
  operand o = parse_operand(p);
  return typed(p, &o, t);
}

/* ---- index expressions ------------------------------------------------------------------------------------------- */

static const kva_expr *parse_expr(parser *p);

static const kva_expr *zero(parser *p) {
  return kva_expr_const(p->k->exprs, 0);
}

static const kva_expr *value_symbol(parser *p) {
  kva_ktoken at = p->lex.token;
  kva_kval v = parse_known_value(p);
  if (!v) return zero(p);
  if (v->dtype != KVA_I64) {
    kva_klex_error_at(&p->lex, at, "an index needs int64, the value is %s", kva_dtype_name(v->dtype));
    return zero(p);
  }
  const kva_expr *symbol = kva_map_get(p->value_symbols, &v, sizeof v);
  if (symbol) return symbol;
  symbol = kva_expr_fresh(p->k->exprs, "v", INT64_MIN, NULL);
  kva_map_set(p->value_symbols, &v, sizeof v, (void *)(uintptr_t)symbol);
  KVA_PUSH(p->k->arena, &p->k->value_symbols, symbol);
  KVA_PUSH(p->k->arena, &p->k->values, v);
  return symbol;
}

static const kva_expr *parse_number(parser *p, bool negative) {
  operand o = {.negative = negative, .constant = p->lex.token};
  int64_t v = 0;
  if (!int_from_text(KVA_I64, &o, &v)) kva_klex_error(&p->lex, "'%s' is not a 64-bit integer", o.constant.text);
  kva_klex_next(&p->lex);
  return kva_expr_const(p->k->exprs, v);
}

static const kva_expr *apply(parser *p, const char *name, kva_ktoken at, const kva_expr *a, const kva_expr *b) {
  kva_expr_ctx *c = p->k->exprs;
  if (!strcmp(name, "min")) return kva_expr_min(c, a, b);
  if (!strcmp(name, "max")) return kva_expr_max(c, a, b);
  if (kva_expr_is(b, 0)) {
    kva_klex_error_at(&p->lex, at, "division by zero");
    return zero(p);
  }
  return !strcmp(name, "mod") ? kva_expr_mod(c, a, b) : kva_expr_div(c, a, b);
}

static const kva_expr *parse_call(parser *p, const char *name, kva_ktoken at) {
  kva_klex_expect(&p->lex, "(");
  const kva_expr *a = parse_expr(p);
  kva_klex_expect(&p->lex, ",");
  const kva_expr *b = parse_expr(p);
  kva_klex_expect(&p->lex, ")");
  return p->lex.failed ? zero(p) : apply(p, name, at, a, b);
}

static bool is_function(const char *s) {
  return !strcmp(s, "floordiv") || !strcmp(s, "mod") || !strcmp(s, "min") || !strcmp(s, "max");
}

static const kva_expr *parse_symbol(parser *p) {
  kva_ktoken t = p->lex.token;
  kva_klex_next(&p->lex);
  if (t.kind == KVA_KT_NAME && is_function(t.text)) return parse_call(p, t.text, t);
  const kva_kloop *l = kva_map_get_str(p->loops, t.text);
  if (l && t.kind == KVA_KT_NAME) return l->var;
  kva_map_set_str(p->shape_symbols, t.text, p);
  return kva_expr_symbol(p->k->exprs, t.text);
}

static const kva_expr *parse_factor(parser *p) {
  if (kva_klex_is(&p->lex, "%")) return value_symbol(p);
  if (p->lex.token.kind == KVA_KT_NUMBER) return parse_number(p, false);
  if (p->lex.token.kind == KVA_KT_NAME || p->lex.token.kind == KVA_KT_STRING) return parse_symbol(p);
  kva_klex_expect(&p->lex, "(");
  const kva_expr *e = parse_expr(p);
  kva_klex_expect(&p->lex, ")");
  return e;
}

/* The sign belongs to the first factor, so that the smallest integer can be read. */
static const kva_expr *parse_term(parser *p, bool negative) {
  bool is_number = p->lex.token.kind == KVA_KT_NUMBER;
  const kva_expr *e = is_number ? parse_number(p, negative) : parse_factor(p);
  if (negative && !is_number) e = kva_expr_muli(p->k->exprs, e, -1);
  while (kva_klex_accept(&p->lex, "*")) e = kva_expr_mul(p->k->exprs, e, parse_factor(p));
  return e;
}

static const kva_expr *parse_expr(parser *p) {
  if (!enter(p)) return zero(p);
  const kva_expr *e = parse_term(p, kva_klex_accept(&p->lex, "-"));
  while (kva_klex_is(&p->lex, "+") || kva_klex_is(&p->lex, "-")) {
    bool negative = kva_klex_accept(&p->lex, "-") || (kva_klex_next(&p->lex), false);
    e = kva_expr_add(p->k->exprs, e, parse_term(p, negative));
  }
  p->nesting--;
  return e;
}

static const kva_expr *parse_bracketed(parser *p) {
  kva_klex_expect(&p->lex, "[");
  const kva_expr *e = parse_expr(p);
  kva_klex_expect(&p->lex, "]");
  return e;
}

/* ---- instructions ------------------------------------------------------------------------------------------------ */

static void parse_place(parser *p, kva_kinstr *i) {
  kva_ktoken t = p->lex.token;
  kva_klex_expect_name(&p->lex, "the name of a buffer");
  i->buf = kva_map_get_str(p->bufs, t.text);
  if (!i->buf && !p->lex.failed) kva_klex_error_at(&p->lex, t, "no buffer is called '%s'", t.text);
  i->index = parse_bracketed(p);
}

static void add_arg(kva_kinstr *i, kva_kval v) {
  i->args[i->n_args++] = v;
}

static void parse_predicate(parser *p, kva_kinstr *i) {
  if (kva_klex_accept_name(&p->lex, "where")) add_arg(i, parse_typed(p, KVA_BOOL));
}

static void parse_arith(parser *p, kva_kinstr *i) {
  operand operands[3] = {{0}};
  uint32_t n = kva_kop_arity(i->op), first = i->op == KVA_K_select;
  for (uint32_t a = 0; a < n; a++) {
    if (a) kva_klex_expect(&p->lex, ",");
    operands[a] = parse_operand(p);
  }
  kva_klex_expect(&p->lex, ":");
  kva_dtype t = parse_dtype(p);
  for (uint32_t a = 0; a < n; a++) add_arg(i, typed(p, &operands[a], a < first ? KVA_BOOL : t));
  i->dtype = kva_kop_result_type(i->op, t);
}

static void parse_conversion(parser *p, kva_kinstr *i) {
  operand o = parse_operand(p);
  kva_klex_expect(&p->lex, ":");
  add_arg(i, typed(p, &o, parse_dtype(p)));
  kva_klex_expect(&p->lex, "->");
  i->dtype = parse_dtype(p);
}

static kva_kloop *parse_loop_name(parser *p) {
  kva_ktoken t = p->lex.token;
  kva_klex_expect_name(&p->lex, "the name of a loop");
  kva_kloop *l = kva_map_get_str(p->loops, t.text);
  if (!l && !p->lex.failed) kva_klex_error_at(&p->lex, t, "no loop above is called '%s'", t.text);
  return l;
}

static void parse_loop_value(parser *p, kva_kinstr *i) {
  i->loop = parse_loop_name(p);
  kva_klex_expect(&p->lex, "[");
  kva_ktoken at = p->lex.token;
  i->carry = parse_uint(p, "the number of a carry");
  kva_klex_expect(&p->lex, "]");
  if (p->lex.failed) return;
  if (i->carry >= i->loop->carries.len) {
    kva_klex_error_at(&p->lex, at, "the loop has %u carries, found number %u", i->loop->carries.len, i->carry);
    return;
  }
  i->dtype = i->loop->carries.data[i->carry].dtype;
}

static void parse_operands(parser *p, kva_kinstr *i) {
  switch (i->op) {
  case KVA_K_INDEX:
    i->index = parse_expr(p);
    i->dtype = KVA_I64;
    return;
  case KVA_K_CONVERT:
  case KVA_K_BITCAST: parse_conversion(p, i); return;
  case KVA_K_LOAD:
    parse_place(p, i);
    if (!p->lex.failed) i->dtype = kva_k_compute_type(i->buf->dtype);
    parse_predicate(p, i);
    return;
  case KVA_K_REDUCE:
  case KVA_K_CARRY: parse_loop_value(p, i); return;
  default: parse_arith(p, i);
  }
}

/* An opcode that may stand after "%n = ". */
static bool find_value_op(const char *name, kva_kop *out_op) {
  for (int op = 0; op <= KVA_K_BARRIER; op++) {
    bool makes_value = op != KVA_K_CONST && op != KVA_K_STORE && op != KVA_K_LOOP && op < KVA_K_IF;
    if (!makes_value || strcmp(kva_kop_name((kva_kop)op), name) != 0) continue;
    *out_op = (kva_kop)op;
    return true;
  }
  return false;
}

static void parse_value_line(parser *p, kva_kregion *r) {
  kva_ktoken at = p->lex.token;
  kva_klex_expect(&p->lex, "%");
  uint32_t number = parse_uint(p, "the number of a value");
  if (kva_map_get(p->values, &number, sizeof number))
    kva_klex_error_at(&p->lex, at, "value %%%u is defined twice", number);
  kva_klex_expect(&p->lex, "=");
  kva_ktoken t = p->lex.token;
  kva_klex_expect_name(&p->lex, "an instruction");
  kva_kop op = KVA_K_CONST;
  if (!p->lex.failed && !find_value_op(t.text, &op)) {
    kva_klex_error_at(&p->lex, t, "no instruction '%s' makes a value", t.text);
  }
  if (p->lex.failed) return;
  kva_kinstr *i = kva_k_instr_create(p->k, op, KVA_DTYPE_NONE);
  parse_operands(p, i);
  kva_k_insert(r, NULL, i);
  define_value(p, number, i);
}

static void parse_store(parser *p, kva_kregion *r) {
  kva_kinstr *i = kva_k_instr_create(p->k, KVA_K_STORE, KVA_DTYPE_NONE);
  parse_place(p, i);
  kva_klex_expect(&p->lex, ",");
  if (p->lex.failed) return;
  add_arg(i, parse_typed(p, kva_k_compute_type(i->buf->dtype)));
  parse_predicate(p, i);
  kva_k_insert(r, NULL, i);
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

static void parse_block(parser *p, kva_kregion *r, kva_kloop *l);

static void parse_if(parser *p, kva_kregion *r) {
  kva_kinstr *i = kva_k_instr_create(p->k, KVA_K_IF, KVA_DTYPE_NONE);
  add_arg(i, parse_typed(p, KVA_BOOL));
  i->then = kva_k_region_create(p->k, i);
  i->orelse = kva_k_region_create(p->k, i);
  kva_k_insert(r, NULL, i);
  parse_block(p, i->then, NULL);
  if (kva_klex_accept_name(&p->lex, "else")) parse_block(p, i->orelse, NULL);
}

static kva_combine parse_combine(parser *p) {
  for (int c = KVA_COMBINE_NONE; c <= KVA_COMBINE_OR; c++) {
    if (kva_klex_accept_name(&p->lex, kva_combine_name((kva_combine)c))) return (kva_combine)c;
  }
  kva_klex_error(&p->lex, "expected a combination such as add, found '%s'", p->lex.token.text);
  return KVA_COMBINE_NONE;
}

static void parse_carries(parser *p, kva_kloop *l) {
  if (!kva_klex_accept_name(&p->lex, "carry")) return;
  kva_klex_expect(&p->lex, "(");
  do {
    kva_kcarry c = {.combine = parse_combine(p)};
    c.dtype = parse_dtype(p);
    c.init = parse_typed(p, c.dtype);
    KVA_PUSH(p->k->arena, &l->carries, c);
  } while (kva_klex_accept(&p->lex, ","));
  kva_klex_expect(&p->lex, ")");
}

static void parse_loop(parser *p, kva_kregion *r, kva_kloop_kind kind) {
  bool strict = kva_klex_accept_name(&p->lex, "strict");
  kva_ktoken t = p->lex.token;
  kva_klex_expect_name(&p->lex, "the name of the loop variable");
  kva_klex_expect(&p->lex, "<");
  const kva_expr *extent = parse_expr(p);
  if (p->lex.failed) return;
  if (kva_map_get_str(p->loops, t.text) || kva_map_get_str(p->shape_symbols, t.text) || is_function(t.text)) {
    kva_klex_error_at(&p->lex, t, "'%s' already means something else", t.text);
    return;
  }
  kva_kloop *l = kva_k_loop_create(p->k, kind, extent, t.text);
  l->strict_order = strict;
  parse_carries(p, l);
  kva_map_set_str(p->loops, t.text, l);
  kva_k_insert(r, NULL, l->instr);
  parse_block(p, l->body, l);
}

static void parse_yields(parser *p, kva_kloop *l) {
  if (!l || !l->carries.len) return;
  if (!kva_klex_accept_name(&p->lex, "yield")) {
    kva_klex_error(&p->lex, "expected 'yield' with the %u carried values, found '%s'", l->carries.len,
                   p->lex.token.text);
    return;
  }
  for (uint32_t c = 0; c < l->carries.len; c++) {
    if (c) kva_klex_expect(&p->lex, ",");
    l->carries.data[c].yield = parse_typed(p, l->carries.data[c].dtype);
  }
}

static void parse_effect(parser *p, kva_kregion *r) {
  for (int kind = KVA_K_MAP; kind <= KVA_K_THREAD; kind++) {
    if (!kva_klex_accept_name(&p->lex, kva_kloop_kind_name((kva_kloop_kind)kind))) continue;
    parse_loop(p, r, (kva_kloop_kind)kind);
    return;
  }
  if (kva_klex_accept_name(&p->lex, "store")) {
    parse_store(p, r);
  } else if (kva_klex_accept_name(&p->lex, "if")) {
    parse_if(p, r);
  } else if (kva_klex_accept_name(&p->lex, "barrier")) {
    kva_k_insert(r, NULL, kva_k_instr_create(p->k, KVA_K_BARRIER, KVA_DTYPE_NONE));
  } else {
    kva_klex_error(&p->lex, "expected an instruction, found '%s'", p->lex.token.text);
  }
}

static void parse_lines(parser *p, kva_kregion *r) {
  while (!p->lex.failed && !kva_klex_is(&p->lex, "}") && !kva_klex_is_name(&p->lex, "yield")) {
    if (kva_klex_is(&p->lex, "%"))
      parse_value_line(p, r);
    else
      parse_effect(p, r);
  }
}

static void parse_block(parser *p, kva_kregion *r, kva_kloop *l) {
  kva_klex_expect(&p->lex, "{");
  if (!enter(p)) return;
  parse_lines(p, r);
  parse_yields(p, l);
  p->nesting--;
  kva_klex_expect(&p->lex, "}");
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

static void parse_access(parser *p, kva_kbuf *buf) {
  bool both = kva_klex_accept_name(&p->lex, "readwrite");
  buf->read = both || kva_klex_accept_name(&p->lex, "read");
  buf->written = both || kva_klex_accept_name(&p->lex, "write");
  if (buf->read || buf->written || kva_klex_accept_name(&p->lex, "unused")) return;
  kva_klex_error(&p->lex, "expected read, write, readwrite or unused, found '%s'", p->lex.token.text);
}

static void parse_buffer(parser *p, kva_kspace space) {
  kva_kbuf *buf = KVA_NEW(p->k->arena, kva_kbuf);
  buf->space = space;
  buf->id = p->k->bufs.len;
  parse_access(p, buf);
  buf->dtype = parse_dtype(p);
  kva_ktoken t = p->lex.token;
  kva_klex_expect_name(&p->lex, "the name of a buffer");
  buf->name = kva_arena_strdup(p->k->arena, t.text);
  buf->extent = parse_bracketed(p);
  if (kva_map_get_str(p->bufs, buf->name)) kva_klex_error_at(&p->lex, t, "two buffers are called '%s'", buf->name);
  kva_map_set_str(p->bufs, buf->name, buf);
  KVA_PUSH(p->k->arena, &p->k->bufs, buf);
}

static void parse_locals(parser *p) {
  while (!p->lex.failed) {
    bool shared = kva_klex_accept_name(&p->lex, "shared");
    if (!shared && !kva_klex_accept_name(&p->lex, "local")) return;
    parse_buffer(p, shared ? KVA_K_SHARED : KVA_K_LOCAL);
  }
}

static void parse_kernel(parser *p, kva_arena *arena, kva_expr_ctx *exprs) {
  if (!kva_klex_accept_name(&p->lex, "kernel"))
    kva_klex_error(&p->lex, "expected 'kernel', found '%s'", p->lex.token.text);
  p->k = kva_kernel_create(arena, exprs, p->lex.token.text);
  kva_klex_expect_name(&p->lex, "the kernel's name");
  kva_klex_expect(&p->lex, "(");
  if (!kva_klex_is(&p->lex, ")")) {
    do parse_buffer(p, KVA_K_PARAM);
    while (kva_klex_accept(&p->lex, ","));
  }
  kva_klex_expect(&p->lex, ")");
  kva_klex_expect(&p->lex, "{");
  parse_locals(p);
  parse_lines(p, p->k->body);
  kva_klex_expect(&p->lex, "}");
  if (!p->lex.failed && p->lex.token.kind != KVA_KT_END) kva_klex_error(&p->lex, "text after the kernel's end");
}

kva_kernel *kva_kernel_parse(kva_arena *arena, kva_expr_ctx *exprs, const char *text, const char *file,
                             kva_diag *diag) {
  parser p = {.scratch = kva_arena_create()};
  p.values = kva_map_create(p.scratch);
  p.loops = kva_map_create(p.scratch);
  p.shape_symbols = kva_map_create(p.scratch);
  p.value_symbols = kva_map_create(p.scratch);
  p.constants = kva_map_create(p.scratch);
  p.bufs = kva_map_create(p.scratch);
  kva_klex_start(&p.lex, p.scratch, text, file, diag);
  parse_kernel(&p, arena, exprs);
  bool ok = !p.lex.failed && kva_kernel_verify(p.k, diag) == KVA_OK;
  kva_arena_destroy(p.scratch);
  return ok ? p.k : NULL;
}
