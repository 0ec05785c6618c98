/* Evaluation of expressions. */
#include "frontend/kv_elaborate.h"

#include <math.h>

/* NULL: not defined here. */
static const kva_el_value *find(kva_elab *e, const char *name) {
  const kva_el_value *v = kva_el_find(e, name);
  bool hides_symbol = e->in_dims && v && v->kind == KVA_EL_TENSOR && kva_map_get_str(e->symbols, name);
  return hides_symbol ? kva_map_get_str(e->symbols, name) : v;
}

static kva_el_value eval_name(kva_elab *e, const kva_ast_expr *x, const char *name) {
  const kva_el_value *v = find(e, name);
  if (v) return *v;
  return kva_el_error(e, x->first, "'%s' is not defined here", name);
}

static bool is_word(const char *s) {
  size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
  return !s[n];
}

/* A quoted text is a string, unless it names a tensor, or a shape symbol that needs the quotes. */
static kva_el_value eval_string(kva_elab *e, const kva_ast_expr *x) {
  const kva_el_value *v = *x->text ? find(e, x->text) : NULL;
  if (v && (v->kind == KVA_EL_TENSOR || (!is_word(x->text) && kva_map_get_str(e->symbols, x->text)))) return *v;
  return (kva_el_value){.kind = KVA_EL_STRING, .s = x->text};
}

static kva_el_value eval_int(kva_elab *e, const kva_ast_expr *x) {
  if (x->integer > INT64_MAX) {
    return kva_el_error(e, x->first, "the integer %llu does not fit 64 bits with a sign",
                        (unsigned long long)x->integer);
  }
  return kva_el_int(e, (int64_t)x->integer);
}

static kva_el_value eval_list(kva_elab *e, const kva_ast_expr *x) {
  kva_el_value list = {.kind = KVA_EL_LIST, .n = x->items.len};
  kva_el_value *items = KVA_NEW_ARRAY(e->scratch, kva_el_value, x->items.len);
  for (uint32_t i = 0; i < x->items.len; i++) {
    items[i] = kva_el_expr(e, x->items.data[i]);
    if (items[i].kind == KVA_EL_ERROR) list.kind = KVA_EL_ERROR;
  }
  list.items = items;
  return list;
}

/* A word such as `float` may also be a value's name. */
static kva_el_value eval_type(kva_elab *e, const kva_ast_expr *x) {
  const kva_el_value *v = x->text ? kva_el_find(e, x->text) : NULL;
  if (v) return *v;
  if (x->type->kind == KVA_AST_TENSOR && !x->type->dims.len && !x->type->any_rank) {
    return (kva_el_value){.kind = KVA_EL_DTYPE, .i = x->type->dtype};
  }
  return kva_el_error(e, x->first, "a type with a shape is not a value");
}

static kva_el_value eval_literal(kva_elab *e, const kva_ast_expr *x) {
  const kva_tensor_data *data = kva_el_literal(e, x);
  return (kva_el_value){.kind = data ? KVA_EL_LITERAL : KVA_EL_ERROR, .data = data};
}

static kva_el_value eval_unary(kva_elab *e, const kva_ast_expr *x) {
  const kva_ast_expr *a = x->items.data[0];
  bool smallest = x->op == KVA_AST_NEG && a->kind == KVA_AST_INT && a->integer == (uint64_t)INT64_MAX + 1;
  return smallest ? kva_el_int(e, INT64_MIN) : kva_el_unary(e, x, kva_el_expr(e, a));
}

/* `and` and `or` of compile-time values skip the right side if the left one decides. */
static kva_el_value eval_binary(kva_elab *e, const kva_ast_expr *x) {
  kva_el_value a = kva_el_expr(e, x->items.data[0]);
  if (a.kind == KVA_EL_BOOL && x->op == KVA_AST_AND && !a.i) return a;
  if (a.kind == KVA_EL_BOOL && x->op == KVA_AST_OR && a.i) return a;
  return kva_el_binary(e, x, a, kva_el_expr(e, x->items.data[1]));
}

static kva_el_value eval_call(kva_elab *e, const kva_ast_expr *x) {
  static const char *const unnamed[] = {NULL};
  kva_el_value v = {.kind = KVA_EL_ERROR};
  bool in_dims = e->in_dims;
  e->in_dims = in_dims && kva_el_is_arithmetic(x->call);
  kva_el_call(e, x, NULL, 1, unnamed, &v);
  e->in_dims = in_dims;
  return v;
}

static kva_el_value eval(kva_elab *e, const kva_ast_expr *x) {
  switch (x->kind) {
  case KVA_AST_NOTHING: return (kva_el_value){.kind = KVA_EL_NOTHING};
  case KVA_AST_UNKNOWN: return kva_el_error(e, x->first, "'?' stands for an unknown dimension in a type only");
  case KVA_AST_NAME: return eval_name(e, x, x->text);
  case KVA_AST_STRING: return eval_string(e, x);
  case KVA_AST_INT: return eval_int(e, x);
  case KVA_AST_FLOAT: return kva_el_float(x->number);
  case KVA_AST_LIST: return eval_list(e, x);
  case KVA_AST_TYPE: return eval_type(e, x);
  case KVA_AST_LITERAL: return eval_literal(e, x);
  case KVA_AST_GRAPH: return kva_el_error(e, x->first, "a graph can only be an attribute of an ONNX operator");
  case KVA_AST_REF: return kva_el_error(e, x->first, "'@' refers to an attribute in attribute lists of ONNX operators");
  case KVA_AST_UNARY: return eval_unary(e, x);
  case KVA_AST_BINARY: return eval_binary(e, x);
  case KVA_AST_CALL: return eval_call(e, x);
  }
  return (kva_el_value){.kind = KVA_EL_ERROR};
}

kva_el_value kva_el_expr(kva_elab *e, const kva_ast_expr *x) {
  kva_el_value v = {.kind = KVA_EL_ERROR};
  if (kva_el_descend(e, x->first)) v = eval(e, x);
  e->level--;
  return v;
}

kva_el_value kva_el_expr_in_dims(kva_elab *e, const kva_ast_expr *x) {
  bool in_dims = e->in_dims;
  e->in_dims = true;
  kva_el_value v = kva_el_expr(e, x);
  e->in_dims = in_dims;
  return v;
}

static bool mismatch(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, const char *what,
                     const char *expected) {
  if (v->kind == KVA_EL_FLOAT) {
    kva_el_error(e, x->first, "%s: expected %s, found the float %.10g", what, expected, v->f);
  } else if (v->kind != KVA_EL_ERROR) {
    kva_el_error(e, x->first, "%s: expected %s, found %s", what, expected, kva_el_kind_name(v));
  }
  return false;
}

bool kva_el_as_int(kva_elab *e, const kva_ast_expr *x, kva_el_value v, const char *what, int64_t *out) {
  if (v.kind != KVA_EL_INT) return mismatch(e, x, &v, what, "an integer");
  *out = v.i;
  return true;
}

bool kva_el_as_float(kva_elab *e, const kva_ast_expr *x, kva_el_value v, const char *what, double *out) {
  if (v.kind != KVA_EL_INT && v.kind != KVA_EL_FLOAT) return mismatch(e, x, &v, what, "a number");
  *out = v.f;
  return true;
}

bool kva_el_as_dim(kva_elab *e, const kva_ast_expr *x, kva_el_value v, const char *what, kva_dim *out) {
  if (v.kind != KVA_EL_INT && v.kind != KVA_EL_DIM) return mismatch(e, x, &v, what, "an integer or an extent");
  *out = v.dim;
  return true;
}
