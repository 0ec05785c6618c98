/* Operands, constants and index expressions of kernel text. */
#include "ir/kernel_parse.h"

#include <errno.h>
#include <stdlib.h>

bool kva_kparse_enter(kva_kparser *p) {
  if (p->nesting++ < KVA_KPARSE_MAX_NESTING) return true;
  kva_klex_error(&p->lex, "nested more than %d deep", KVA_KPARSE_MAX_NESTING);
  return false;
}

kva_dtype kva_kparse_dtype(kva_kparser *p) {
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

uint32_t kva_kparse_uint(kva_kparser *p, const char *what) {
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

static kva_kval parse_known_value(kva_kparser *p) {
  kva_ktoken at = p->lex.token;
  kva_klex_expect(&p->lex, "%");
  uint32_t number = kva_kparse_uint(p, "the number of a value");
  kva_kval v = kva_map_get(p->values, &number, sizeof number);
  if (!v && !p->lex.failed) kva_klex_error_at(&p->lex, at, "value %%%u is not defined above", number);
  return v;
}

static kva_kval make_constant(kva_kparser *p, kva_dtype t, int64_t bits) {
  int64_t key[2] = {(int64_t)t, bits};
  kva_kinstr *c = kva_map_get(p->constants, key, sizeof key);
  if (c) return c;
  c = kva_k_instr_create(p->k, KVA_K_CONST, t);
  c->imm.i = bits;
  kva_k_insert(p->k->body, p->k->body->first, c);
  kva_map_set(p->constants, key, sizeof key, c);
  return c;
}

static bool int_from_text(kva_dtype t, const kva_koperand *o, int64_t *out) {
  char *end;
  errno = 0;
  uint64_t magnitude = strtoull(o->constant.text, &end, 10);
  if (errno || *end || o->constant.kind != KVA_KT_NUMBER) return false;
  uint64_t limit = t == KVA_U64 && !o->negative ? UINT64_MAX : (uint64_t)INT64_MAX + o->negative;
  if (magnitude > limit) return false;
  *out = (int64_t)(o->negative ? 0 - magnitude : magnitude);
  return kva_wrap_i64(t, *out) == *out;
}

static bool float_from_text(kva_dtype t, const kva_koperand *o, int64_t *out) {
  char *end;
  double v = strtod(o->constant.text, &end);
  const char *s = o->constant.text;
  bool is_word = o->constant.kind == KVA_KT_NAME;
  if (*end || (is_word && strcmp(s, "inf") && strcmp(s, "nan"))) return false;
  v = kva_round_f64(t, o->negative ? -v : v);
  memcpy(out, &v, sizeof v);
  return true;
}

static bool constant_from_text(kva_dtype t, const kva_koperand *o, int64_t *out) {
  if (kva_dtype_is_float(t)) return float_from_text(t, o, out);
  if (t != KVA_BOOL) return int_from_text(t, o, out);
  *out = !strcmp(o->constant.text, "true");
  return !o->negative && (*out || !strcmp(o->constant.text, "false"));
}

kva_koperand kva_kparse_operand(kva_kparser *p) {
  kva_koperand o = {0};
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

kva_kval kva_kparse_typed(kva_kparser *p, const kva_koperand *o, kva_dtype t) {
  if (o->value || p->lex.failed) return o->value;
  int64_t bits = 0;
  if (constant_from_text(t, o, &bits)) return make_constant(p, t, bits);
  kva_klex_error_at(&p->lex, o->constant, "'%s%s' is not a constant of type %s", o->negative ? "-" : "",
                    o->constant.text, kva_dtype_name(t));
  return NULL;
}

kva_kval kva_kparse_value(kva_kparser *p, kva_dtype t) {
  kva_koperand o = kva_kparse_operand(p);
  return kva_kparse_typed(p, &o, t);
}

/* ---- index expressions ------------------------------------------------------------------------------------------- */

static const kva_expr *zero(kva_kparser *p) {
  return kva_expr_const(p->k->exprs, 0);
}

static const kva_expr *value_symbol(kva_kparser *p) {
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

static const kva_expr *parse_number(kva_kparser *p, bool negative) {
  kva_koperand o = {.negative = negative, .constant = p->lex.token};
  int64_t v = 0;
  if (!int_from_text(KVA_I64, &o, &v)) kva_klex_error(&p->lex, "'%s' is not a 64-bit integer", o.constant.text);
  kva_klex_next(&p->lex);
  return kva_expr_const(p->k->exprs, v);
}

static const kva_expr *apply(kva_kparser *p, const char *name, kva_ktoken at, const kva_expr *a, const kva_expr *b) {
  kva_expr_ctx *c = p->k->exprs;
  if (!strcmp(name, "min")) return kva_expr_min(c, a, b);
  if (!strcmp(name, "max")) return kva_expr_max(c, a, b);
  if (kva_expr_is(b, 0)) {
    kva_klex_error_at(&p->lex, at, "division by zero");
    return zero(p);
  }
  return !strcmp(name, "mod") ? kva_expr_mod(c, a, b) : kva_expr_div(c, a, b);
}

static const kva_expr *parse_call(kva_kparser *p, const char *name, kva_ktoken at) {
  kva_klex_expect(&p->lex, "(");
  const kva_expr *a = kva_kparse_expr(p);
  kva_klex_expect(&p->lex, ",");
  const kva_expr *b = kva_kparse_expr(p);
  kva_klex_expect(&p->lex, ")");
  return p->lex.failed ? zero(p) : apply(p, name, at, a, b);
}

bool kva_kparse_is_function(const char *s) {
  return !strcmp(s, "floordiv") || !strcmp(s, "mod") || !strcmp(s, "min") || !strcmp(s, "max");
}

static const kva_expr *parse_symbol(kva_kparser *p) {
  kva_ktoken t = p->lex.token;
  kva_klex_next(&p->lex);
  if (t.kind == KVA_KT_NAME && kva_kparse_is_function(t.text)) return parse_call(p, t.text, t);
  const kva_kloop *l = kva_map_get_str(p->loops, t.text);
  if (l && t.kind == KVA_KT_NAME) return l->var;
  kva_map_set_str(p->shape_symbols, t.text, p);
  return kva_expr_symbol(p->k->exprs, t.text);
}

static const kva_expr *parse_factor(kva_kparser *p) {
  if (kva_klex_is(&p->lex, "%")) return value_symbol(p);
  if (p->lex.token.kind == KVA_KT_NUMBER) return parse_number(p, false);
  if (p->lex.token.kind == KVA_KT_NAME || p->lex.token.kind == KVA_KT_STRING) return parse_symbol(p);
  kva_klex_expect(&p->lex, "(");
  const kva_expr *e = kva_kparse_expr(p);
  kva_klex_expect(&p->lex, ")");
  return e;
}

/* The sign belongs to the first factor, so that the smallest integer is readable. */
static const kva_expr *parse_term(kva_kparser *p, bool negative) {
  bool is_number = p->lex.token.kind == KVA_KT_NUMBER;
  const kva_expr *e = is_number ? parse_number(p, negative) : parse_factor(p);
  if (negative && !is_number) e = kva_expr_muli(p->k->exprs, e, -1);
  while (kva_klex_accept(&p->lex, "*")) e = kva_expr_mul(p->k->exprs, e, parse_factor(p));
  return e;
}

const kva_expr *kva_kparse_expr(kva_kparser *p) {
  if (!kva_kparse_enter(p)) return zero(p);
  const kva_expr *e = parse_term(p, kva_klex_accept(&p->lex, "-"));
  while (kva_klex_is(&p->lex, "+") || kva_klex_is(&p->lex, "-")) {
    bool negative = kva_klex_accept(&p->lex, "-") || (kva_klex_next(&p->lex), false);
    e = kva_expr_add(p->k->exprs, e, parse_term(p, negative));
  }
  p->nesting--;
  return e;
}

const kva_expr *kva_kparse_bracketed(kva_kparser *p) {
  kva_klex_expect(&p->lex, "[");
  const kva_expr *e = kva_kparse_expr(p);
  kva_klex_expect(&p->lex, "]");
  return e;
}
