/* Compile-time values: names, arithmetic, conversion to operands.
 *
 * Integers stay integers: a / b of two integers is an integer if b divides a, else a float, which a dimension rejects
 * (a head size that does not divide evenly). Arithmetic with shape symbols yields expressions over them, in which / is
 * floor division. Arithmetic with tensors builds nodes. */
#include "frontend/kv_elaborate.h"
#include "ops/ids.h"

#include <math.h>

kva_loc kva_el_loc(const kva_elab *e, uint32_t token) {
  return kva_token_loc(&e->ast->tokens, token);
}

kva_el_value kva_el_error(kva_elab *e, uint32_t token, const char *fmt, ...) {
  char message[1024];
  va_list args;
  va_start(args, fmt);
  vsnprintf(message, sizeof message, fmt, args);
  va_end(args);
  kva_loc loc = kva_el_loc(e, token);
  kva_error(e->m->diag, &loc, "%s", message);
  return (kva_el_value){.kind = KVA_EL_ERROR};
}

kva_el_value kva_el_int(kva_elab *e, int64_t v) {
  return (kva_el_value){.kind = KVA_EL_INT, .i = v, .f = (double)v, .dim = kva_expr_const(e->m->exprs, v)};
}

kva_el_value kva_el_float(double v) {
  return (kva_el_value){.kind = KVA_EL_FLOAT, .f = v};
}

kva_el_value kva_el_bool(bool v) {
  return (kva_el_value){.kind = KVA_EL_BOOL, .i = v};
}

kva_el_value kva_el_dim(kva_elab *e, kva_dim d) {
  int64_t v;
  if (kva_expr_is_const(d, &v)) return kva_el_int(e, v);
  return (kva_el_value){.kind = KVA_EL_DIM, .dim = d};
}

kva_el_value kva_el_tensor(kva_value *v) {
  return (kva_el_value){.kind = KVA_EL_TENSOR, .value = v};
}

const char *kva_el_kind_name(const kva_el_value *v) {
  static const char *const names[] = {
      [KVA_EL_ERROR] = "an error",
      [KVA_EL_NOTHING] = "nothing",
      [KVA_EL_INT] = "an integer",
      [KVA_EL_FLOAT] = "a float",
      [KVA_EL_BOOL] = "a bool",
      [KVA_EL_STRING] = "a string",
      [KVA_EL_DIM] = "an extent",
      [KVA_EL_TENSOR] = "a tensor",
      [KVA_EL_LIST] = "a list",
      [KVA_EL_DTYPE] = "a type",
      [KVA_EL_LITERAL] = "a tensor literal",
  };
  return names[v->kind];
}

static const kva_el_value *find_word(kva_elab *e, const char *name) {
  static const struct {
    const char *name;
    kva_el_kind kind;
    int sign;
  } words[] = {{"true", KVA_EL_BOOL, 1},
               {"false", KVA_EL_BOOL, 0},
               {"inf", KVA_EL_FLOAT, 1},
               {"infinity", KVA_EL_FLOAT, 1},
               {"nan", KVA_EL_FLOAT, 0}};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    if (strcasecmp(name, words[i].name)) continue;
    kva_el_value *v = KVA_NEW(e->scratch, kva_el_value);
    if (words[i].kind == KVA_EL_BOOL)
      *v = kva_el_bool(words[i].sign);
    else
      *v = kva_el_float(words[i].sign ? INFINITY : NAN);
    return v;
  }
  return NULL;
}

const kva_el_value *kva_el_find(kva_elab *e, const char *name) {
  for (kva_el_frame *f = e->frame; f; f = f->parent) {
    const kva_el_value *v = kva_map_get_str(f->names, name);
    if (v) return v;
  }
  const kva_el_value *v = kva_map_get_str(e->hyper, name);
  if (!v) v = kva_map_get_str(e->symbols, name);
  return v ? v : find_word(e, name);
}

void kva_el_bind(kva_elab *e, const char *name, kva_el_value v) {
  kva_map_set_str(e->frame->names, name, kva_arena_memdup(e->scratch, &v, sizeof v));
}

bool kva_el_failed(kva_elab *e) {
  bool failed = e->onnx.b.failed;
  e->onnx.b.failed = false;
  return failed;
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static bool is_number(const kva_el_value *v) {
  return v->kind == KVA_EL_INT || v->kind == KVA_EL_FLOAT || v->kind == KVA_EL_BOOL || v->kind == KVA_EL_DIM;
}

static kva_dtype own_dtype(const kva_el_value *v) {
  return v->kind == KVA_EL_FLOAT ? KVA_F32 : v->kind == KVA_EL_BOOL ? KVA_BOOL : KVA_I64;
}

/* Stored as integers: not every int64 is a double. */
static kva_value *int_constant(kva_elab *e, kva_dtype t, int64_t v) {
  kva_tensor_data *data = KVA_NEW(e->m->arena, kva_tensor_data);
  *data = (kva_tensor_data){.dtype = t, .data = kva_arena_alloc(e->m->arena, 8)};
  KVA_ASSERT(kva_dtype_bytes(t, 1, &data->bytes));
  kva_store_i64(t, (void *)data->data, 0, v);
  return kva_const_tensor(&e->onnx.b, data);
}

static bool fits(kva_dtype t, const kva_el_value *v) {
  if (kva_dtype_is_float(t)) return true;
  if (v->kind == KVA_EL_FLOAT) return false;
  if (v->kind == KVA_EL_DIM) return kva_dtype_is_int(t);
  if (t == KVA_BOOL) return v->i == 0 || v->i == 1;
  return kva_dtype_is_int(t) && kva_wrap_i64(t, v->i) == v->i && (t != KVA_U64 || v->i >= 0);
}

static kva_value *number_constant(kva_elab *e, uint32_t token, kva_el_value v, kva_dtype like) {
  kva_dtype t = like == KVA_DTYPE_NONE ? own_dtype(&v) : like;
  if (!fits(t, &v)) {
    const char *number = v.kind == KVA_EL_DIM     ? "an extent"
                         : v.kind == KVA_EL_FLOAT ? kva_arena_printf(e->scratch, "%g", v.f)
                                                  : kva_arena_printf(e->scratch, "%lld", (long long)v.i);
    kva_el_error(e, token, "%s cannot become %s, the element type of the other operand", number, kva_dtype_name(t));
    return NULL;
  }
  if (v.kind == KVA_EL_DIM) return kva_dim_scalar(&e->onnx.b, t, v.dim);
  if (kva_dtype_is_float(t)) return kva_const_scalar(&e->onnx.b, t, v.kind == KVA_EL_BOOL ? (double)v.i : v.f);
  return int_constant(e, t, v.i);
}

static kva_value *float_list(kva_elab *e, const kva_el_value *v) {
  kva_tensor_data *data = KVA_NEW(e->m->arena, kva_tensor_data);
  int64_t *dims = KVA_NEW_ARRAY(e->m->arena, int64_t, 1);
  dims[0] = v->n;
  *data = (kva_tensor_data){.dtype = KVA_F32, .rank = 1, .dims = dims, .bytes = 4 * (int64_t)v->n};
  data->data = kva_arena_alloc(e->m->arena, 4 * (size_t)v->n);
  for (uint32_t i = 0; i < v->n; i++) kva_store_f64(KVA_F32, (void *)data->data, i, v->items[i].f);
  return kva_const_tensor(&e->onnx.b, data);
}

/* A list of integers and extents as an int64 tensor with contents that the ONNX rules know (target shapes). */
static kva_value *dims_list(kva_elab *e, const kva_el_value *v) {
  kva_dim *dims = KVA_NEW_ARRAY(e->m->arena, kva_dim, v->n);
  int64_t *ints = KVA_NEW_ARRAY(e->scratch, int64_t, v->n);
  bool constant = true;
  for (uint32_t i = 0; i < v->n; i++) {
    dims[i] = v->items[i].dim;
    ints[i] = v->items[i].i;
    constant &= v->items[i].kind == KVA_EL_INT;
  }
  if (constant) return kva_const_i64s(&e->onnx.b, v->n, ints);
  kva_dims_attrs attrs = {.values = {v->n, dims}};
  kva_value *result = kva_build(&e->onnx.b, KVA_OP_dims, 0, NULL, &attrs);
  kva_dims *known = KVA_NEW(e->m->arena, kva_dims);
  *known = attrs.values;
  kva_map_set(e->onnx.contents, &result, sizeof result, known);
  return result;
}

static kva_value *list_operand(kva_elab *e, uint32_t token, kva_el_value v) {
  bool floats = false;
  for (uint32_t i = 0; i < v.n; i++) {
    kva_el_kind k = v.items[i].kind;
    if (k == KVA_EL_ERROR) return NULL;
    if (k != KVA_EL_INT && k != KVA_EL_DIM && k != KVA_EL_FLOAT) {
      kva_el_error(e, token, "a list that is an operand holds numbers; element %u is %s", i,
                   kva_el_kind_name(&v.items[i]));
      return NULL;
    }
    floats |= k == KVA_EL_FLOAT;
  }
  for (uint32_t i = 0; floats && i < v.n; i++) {
    if (v.items[i].kind != KVA_EL_DIM) continue;
    kva_el_error(e, token, "a list that is an operand holds floats or extents, not both");
    return NULL;
  }
  return floats ? float_list(e, &v) : dims_list(e, &v);
}

kva_value *kva_el_operand(kva_elab *e, uint32_t token, kva_el_value v, kva_dtype like) {
  kva_value *result = NULL;
  e->onnx.b.loc = kva_el_loc(e, token);
  if (v.kind == KVA_EL_ERROR) return NULL;
  if (v.kind == KVA_EL_TENSOR) return v.value;
  if (!e->onnx.b.graph) { /* for instance in the default of a hyper-parameter */
    kva_el_error(e, token, "only compile-time values can stand here");
    return NULL;
  }
  if (is_number(&v))
    result = number_constant(e, token, v, like);
  else if (v.kind == KVA_EL_LIST)
    result = list_operand(e, token, v);
  else if (v.kind == KVA_EL_LITERAL)
    result = kva_const_tensor(&e->onnx.b, v.data);
  else
    kva_el_error(e, token, "expected a tensor or a number, found %s", kva_el_kind_name(&v));
  return kva_el_failed(e) ? NULL : result;
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

static bool is_tensor_like(const kva_el_value *v) {
  return v->kind == KVA_EL_TENSOR || v->kind == KVA_EL_LITERAL;
}

static kva_el_value built(kva_elab *e, kva_value *v) {
  return kva_el_failed(e) ? (kva_el_value){.kind = KVA_EL_ERROR} : kva_el_tensor(v);
}

static const char *op_text(kva_ast_op op) {
  static const char *const text[] = {
      [KVA_AST_OR] = "or", [KVA_AST_AND] = "and", [KVA_AST_NOT] = "not", [KVA_AST_EQ] = "==",    [KVA_AST_NE] = "!=",
      [KVA_AST_LT] = "<",  [KVA_AST_LE] = "<=",   [KVA_AST_GT] = ">",    [KVA_AST_GE] = ">=",    [KVA_AST_ADD] = "+",
      [KVA_AST_SUB] = "-", [KVA_AST_MUL] = "*",   [KVA_AST_DIV] = "/",   [KVA_AST_MATMUL] = "@", [KVA_AST_NEG] = "-"};
  return text[op];
}

kva_el_value kva_el_unary(kva_elab *e, const kva_ast_expr *x, kva_el_value a) {
  e->onnx.b.loc = kva_el_loc(e, x->first);
  bool negates = x->op == KVA_AST_NEG;
  if (a.kind == KVA_EL_ERROR) return a;
  if (a.kind == KVA_EL_TENSOR) {
    return built(e, kva_build1(&e->onnx.b, negates ? KVA_OP_neg : KVA_OP_logical_not, a.value));
  }
  if (!negates && a.kind == KVA_EL_BOOL) return kva_el_bool(!a.i);
  if (negates && a.kind == KVA_EL_FLOAT) return kva_el_float(-a.f);
  if (negates && a.kind == KVA_EL_DIM) return kva_el_dim(e, kva_expr_muli(e->m->exprs, a.dim, -1));
  if (negates && a.kind == KVA_EL_INT && a.i != INT64_MIN) return kva_el_int(e, -a.i);
  return kva_el_error(e, x->first, "'%s' does not apply to %s", op_text(x->op), kva_el_kind_name(&a));
}

/* The node for an operator on tensors; *swap: exchange operands; *negate: negate the result. */
static kva_op_id tensor_op(kva_ast_op op, bool *swap, bool *negate) {
  *swap = op == KVA_AST_GT || op == KVA_AST_GE;
  *negate = op == KVA_AST_NE;
  switch (op) {
  case KVA_AST_OR: return KVA_OP_logical_or;
  case KVA_AST_AND: return KVA_OP_logical_and;
  case KVA_AST_EQ:
  case KVA_AST_NE: return KVA_OP_equal;
  case KVA_AST_LT:
  case KVA_AST_GT: return KVA_OP_less;
  case KVA_AST_LE:
  case KVA_AST_GE: return KVA_OP_less_equal;
  case KVA_AST_ADD: return KVA_OP_add;
  case KVA_AST_SUB: return KVA_OP_sub;
  case KVA_AST_MUL: return KVA_OP_mul;
  case KVA_AST_DIV: return KVA_OP_div;
  default: return KVA_OP_matmul;
  }
}

static kva_el_value tensor_binary(kva_elab *e, const kva_ast_expr *x, kva_el_value a, kva_el_value b) {
  const kva_el_value *known = a.kind == KVA_EL_TENSOR || b.kind != KVA_EL_TENSOR ? &a : &b;
  if (!is_tensor_like(known)) known = &b;
  kva_dtype like = known->kind == KVA_EL_TENSOR ? known->value->type->dtype : known->data->dtype;
  kva_value *left = kva_el_operand(e, x->items.data[0]->first, a, like);
  kva_value *right = kva_el_operand(e, x->items.data[1]->first, b, like);
  if (!left || !right) return (kva_el_value){.kind = KVA_EL_ERROR};
  bool swap, negate;
  kva_op_id op = tensor_op(x->op, &swap, &negate);
  e->onnx.b.loc = kva_el_loc(e, x->items.data[0]->last + 1);
  kva_value *v = kva_build2(&e->onnx.b, op, swap ? right : left, swap ? left : right);
  if (negate) v = kva_build1(&e->onnx.b, KVA_OP_logical_not, v);
  return built(e, v);
}

static kva_el_value int_binary(kva_elab *e, const kva_ast_expr *x, int64_t a, int64_t b) {
  int64_t v = 0;
  bool overflow = false;
  switch (x->op) {
  case KVA_AST_EQ: return kva_el_bool(a == b);
  case KVA_AST_NE: return kva_el_bool(a != b);
  case KVA_AST_LT: return kva_el_bool(a < b);
  case KVA_AST_LE: return kva_el_bool(a <= b);
  case KVA_AST_GT: return kva_el_bool(a > b);
  case KVA_AST_GE: return kva_el_bool(a >= b);
  case KVA_AST_ADD: overflow = __builtin_add_overflow(a, b, &v); break;
  case KVA_AST_SUB: overflow = __builtin_sub_overflow(a, b, &v); break;
  case KVA_AST_MUL: overflow = __builtin_mul_overflow(a, b, &v); break;
  default:
    if (b == 0) return kva_el_error(e, x->items.data[1]->first, "division by zero");
    if (b == -1)
      overflow = __builtin_sub_overflow((int64_t)0, a, &v);
    else if (a % b)
      return kva_el_float((double)a / (double)b);
    else
      v = a / b;
  }
  if (overflow) return kva_el_error(e, x->first, "the result of '%s' does not fit 64 bits", op_text(x->op));
  return kva_el_int(e, v);
}

static kva_el_value float_binary(kva_ast_op op, double a, double b) {
  switch (op) {
  case KVA_AST_EQ: return kva_el_bool(a == b);
  case KVA_AST_NE: return kva_el_bool(a != b);
  case KVA_AST_LT: return kva_el_bool(a < b);
  case KVA_AST_LE: return kva_el_bool(a <= b);
  case KVA_AST_GT: return kva_el_bool(a > b);
  case KVA_AST_GE: return kva_el_bool(a >= b);
  case KVA_AST_ADD: return kva_el_float(a + b);
  case KVA_AST_SUB: return kva_el_float(a - b);
  case KVA_AST_MUL: return kva_el_float(a * b);
  default: return kva_el_float(a / b);
  }
}

static kva_el_value dim_binary(kva_elab *e, const kva_ast_expr *x, kva_dim a, kva_dim b) {
  kva_expr_ctx *c = e->m->exprs;
  switch (x->op) {
  case KVA_AST_ADD: return kva_el_dim(e, kva_expr_add(c, a, b));
  case KVA_AST_SUB: return kva_el_dim(e, kva_expr_sub(c, a, b));
  case KVA_AST_MUL: return kva_el_dim(e, kva_expr_mul(c, a, b));
  case KVA_AST_DIV:
    if (kva_expr_is(b, 0)) return kva_el_error(e, x->items.data[1]->first, "division by zero");
    return kva_el_dim(e, kva_expr_div(c, a, b));
  default:
    return kva_el_error(e, x->first, "'%s' cannot compare shape symbols at compile time; --pin gives a symbol a value",
                        op_text(x->op));
  }
}

static bool is_plain_number(const kva_el_value *v) {
  return v->kind == KVA_EL_INT || v->kind == KVA_EL_FLOAT;
}

static bool is_extent(const kva_el_value *v) {
  return v->kind == KVA_EL_INT || v->kind == KVA_EL_DIM;
}

kva_el_value kva_el_binary(kva_elab *e, const kva_ast_expr *x, kva_el_value a, kva_el_value b) {
  bool logical = x->op == KVA_AST_AND || x->op == KVA_AST_OR;
  bool equality = x->op == KVA_AST_EQ || x->op == KVA_AST_NE;
  if (a.kind == KVA_EL_ERROR || b.kind == KVA_EL_ERROR) return (kva_el_value){.kind = KVA_EL_ERROR};
  if (is_tensor_like(&a) || is_tensor_like(&b)) return tensor_binary(e, x, a, b);
  if (a.kind == KVA_EL_BOOL && b.kind == KVA_EL_BOOL) {
    if (logical) return kva_el_bool(x->op == KVA_AST_AND ? a.i && b.i : a.i || b.i);
    if (equality) return kva_el_bool((a.i == b.i) == (x->op == KVA_AST_EQ));
  }
  if (a.kind == KVA_EL_STRING && b.kind == KVA_EL_STRING && equality) {
    return kva_el_bool((strcmp(a.s, b.s) == 0) == (x->op == KVA_AST_EQ));
  }
  bool arithmetic = !logical && x->op != KVA_AST_MATMUL;
  if (arithmetic && a.kind == KVA_EL_INT && b.kind == KVA_EL_INT) return int_binary(e, x, a.i, b.i);
  if (arithmetic && is_plain_number(&a) && is_plain_number(&b)) return float_binary(x->op, a.f, b.f);
  if (arithmetic && is_extent(&a) && is_extent(&b)) return dim_binary(e, x, a.dim, b.dim);
  return kva_el_error(e, x->first, "'%s' does not apply to %s and %s", op_text(x->op), kva_el_kind_name(&a),
                      kva_el_kind_name(&b));
}
