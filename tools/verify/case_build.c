/* Builds cases as functions with inputs: parses their text, generates values, builds nodes. */
#include "tools/verify/cases.h"
#include "ops/ids.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

/* ---- text of attributes and shapes ------------------------------------------------------------------------------- */

static bool is_word(char c) {
  return isalnum((unsigned char)c) || c == '_';
}

static const kva_expr *parse_factor(kva_expr_ctx *c, const char **s) {
  char *end;
  long long v = strtoll(*s, &end, 10);
  if (end != *s) {
    *s = end;
    return kva_expr_const(c, v);
  }
  char name[32];
  size_t n = 0;
  while (is_word(**s) && n + 1 < sizeof name) name[n++] = *(*s)++;
  name[n] = 0;
  return n ? kva_expr_symbol(c, name) : NULL;
}

/* Sums and differences of products. */
static const kva_expr *parse_dim(kva_expr_ctx *c, const char **s) {
  const kva_expr *sum = kva_expr_const(c, 0);
  char sign = '+';
  for (;;) {
    const kva_expr *product = parse_factor(c, s);
    while (product && **s == '*') {
      ++*s;
      const kva_expr *factor = parse_factor(c, s);
      product = factor ? kva_expr_mul(c, product, factor) : NULL;
    }
    if (!product) return NULL;
    sum = sign == '+' ? kva_expr_add(c, sum, product) : kva_expr_sub(c, sum, product);
    if (**s != '+' && **s != '-') return sum;
    sign = *(*s)++;
  }
}

static bool parse_list(kva_module *m, const char **s, bool ints, void *out) {
  KVA_VEC(int64_t) numbers = {0};
  KVA_VEC(kva_dim) dims = {0};
  while (**s && **s != ';') {
    const kva_expr *e = parse_dim(m->exprs, s);
    int64_t v = 0;
    if (!e || (ints && !kva_expr_is_const(e, &v))) return false;
    KVA_PUSH(m->arena, &numbers, v);
    KVA_PUSH(m->arena, &dims, e);
    if (**s == ',') ++*s;
  }
  if (ints)
    *(kva_ints *)out = (kva_ints){numbers.len, numbers.data};
  else
    *(kva_dims *)out = (kva_dims){dims.len, dims.data};
  return true;
}

static bool parse_value(kva_module *m, kva_attr_kind kind, const char **s, void *out) {
  char *end = NULL;
  size_t n = 0;
  while (is_word((*s)[n])) n++;
  switch (kind) {
  case KVA_ATTR_INT: *(int64_t *)out = strtoll(*s, &end, 10); break;
  case KVA_ATTR_FLOAT: *(double *)out = strtod(*s, &end); break;
  case KVA_ATTR_BOOL: *(bool *)out = strtol(*s, &end, 10) != 0; break;
  case KVA_ATTR_INTS: return parse_list(m, s, true, out);
  case KVA_ATTR_DIMS:
  case KVA_ATTR_SYMBOLS: return parse_list(m, s, false, out);
  case KVA_ATTR_DIM: return (*(kva_dim *)out = parse_dim(m->exprs, s)) != NULL;
  case KVA_ATTR_STR: *(const char **)out = kva_arena_strndup(m->arena, *s, n); break;
  case KVA_ATTR_DTYPE: *(kva_dtype *)out = kva_dtype_from_name(*s, n); break;
  default: return false;
  }
  *s = end ? end : *s + n;
  return true;
}

void *kva_case_attrs(kva_module *m, kva_op_id op, const char *text) {
  const kva_attr_desc *desc = kva_ops.ops[op]->attrs;
  if (!desc) return NULL;
  char *attrs = kva_attrs_default(m->arena, desc);
  for (const char *s = text ? text : ""; *s;) {
    while (*s == ' ' || *s == ';') s++;
    const char *equals = strchr(s, '=');
    const kva_attr_field *field = equals ? kva_attrs_find(desc, s, (size_t)(equals - s)) : NULL;
    s = equals + 1;
    if (!field || !parse_value(m, field->kind, &s, attrs + field->offset) || (*s && *s != ';')) {
      fprintf(stderr, "case of kv.%s: cannot read attributes \"%s\"\n", kva_ops.ops[op]->name, text);
      return NULL;
    }
  }
  return attrs;
}

/* `B=2` gives symbol and extent, `4` the extent twice; `B` alone takes the extent from an earlier operand. */
typedef struct shape_text {
  uint32_t rank;
  kva_dim dims[KVA_MAX_RANK];
  int64_t extents[KVA_MAX_RANK];
} shape_text;

typedef struct symbols {
  uint32_t n;
  const kva_expr *symbol[16];
  int64_t value[16];
} symbols;

static bool find_symbol(void *user, const kva_expr *symbol, int64_t *out_v) {
  const symbols *known = user;
  for (uint32_t i = 0; i < known->n; i++) {
    if (known->symbol[i] != symbol) continue;
    *out_v = known->value[i];
    return true;
  }
  return false;
}

static bool parse_shape(kva_module *m, const char *s, symbols *known, shape_text *out) {
  *out = (shape_text){0};
  while (*s && out->rank < KVA_MAX_RANK) {
    kva_dim dim = parse_dim(m->exprs, &s);
    if (!dim) return false;
    if (*s == '=') {
      char *end;
      known->symbol[known->n] = dim;
      known->value[known->n++] = strtoll(s + 1, &end, 10);
      s = end;
    }
    out->dims[out->rank] = dim;
    if (!kva_expr_eval(dim, find_symbol, known, &out->extents[out->rank++])) return false;
    if (*s == ',') s++;
  }
  return !*s;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

double kva_case_uniform(uint64_t element, uint64_t stream) {
  return kva_uniform01(kva_philox4x32(element, stream, 2026).v[0]);
}

static void fill(const kva_case_operand *o, kva_ref_tensor *w, uint64_t stream) {
  bool any = o->lo == 0 && o->hi == 0;
  double lo = any ? (w->f ? -2 : kva_dtype_is_unsigned(w->dtype) ? 0 : -9) : o->lo, hi = any ? (w->f ? 2 : 9) : o->hi;
  const char *s = o->values;
  for (int64_t i = 0; i < w->n; i++) {
    double v;
    if (s) {
      char *end;
      v = strtod(*s ? s : (s = o->values), &end);
      s = *end == ',' ? end + 1 : end;
    } else {
      v = lo + (hi - lo) * kva_case_uniform((uint64_t)i, stream);
    }
    if (w->f)
      w->f[i] = kva_round_f64(w->dtype, v);
    else if (w->dtype == KVA_BOOL)
      w->i[i] = s ? v != 0 : kva_case_uniform((uint64_t)i, stream) < 0.5;
    else
      w->i[i] =
          kva_wrap_i64(w->dtype, (int64_t)(s ? v : floor(lo + (hi - lo + 1) * kva_case_uniform((uint64_t)i, stream))));
  }
}

/* ---- building ---------------------------------------------------------------------------------------------------- */

static kva_dtype operand_dtype(const kva_case *c, const kva_case_operand *o, kva_dtype dtype) {
  kva_dtype own = c->dtype ? c->dtype : KVA_F32;
  return o->dtype ? o->dtype : dtype ? dtype : own;
}

static void add_values(const kva_case_operand *o, kva_dtype t, const shape_text *shape, uint32_t number,
                       kva_case_built *built) {
  kva_ref_tensor *w = kva_ref_tensor_create(t, shape->rank, shape->extents);
  KVA_ASSERT(w);
  fill(o, w, number);
  built->inputs[built->n_inputs++] = w;
}

static kva_status add_operands(const kva_case *c, kva_dtype dtype, bool with_values, kva_case_built *built,
                               kva_value **values, uint32_t *out_n) {
  symbols known = {0};
  uint32_t n = 0;
  for (; n < KVA_CASE_OPERANDS && c->in[n].shape; n++) {
    const kva_case_operand *o = &c->in[n];
    if (!strcmp(o->shape, "-")) continue;
    shape_text shape;
    if (!parse_shape(built->m, o->shape, &known, &shape))
      return kva_error(built->diag, NULL, "cannot read shape \"%s\"", o->shape);
    kva_dtype t = operand_dtype(c, o, dtype);
    const kva_type *type = kva_type_tensor(built->m, t, shape.rank, shape.dims);
    values[n] = kva_graph_add_input(built->f->graph, type, kva_arena_printf(built->m->arena, "x%u", n));
    if (with_values) add_values(o, t, &shape, n, built);
  }
  *out_n = n;
  return KVA_OK;
}

static kva_status build(const kva_case *c, kva_dtype dtype, bool with_values, kva_case_built *built) {
  *built = (kva_case_built){.diag = kva_diag_create()};
  built->m = kva_module_create(built->diag);
  built->f = kva_function_create(built->m, "case");
  kva_builder b = {.m = built->m, .graph = built->f->graph};
  kva_value *values[KVA_CASE_OPERANDS] = {0};
  uint32_t n = 0;
  KVA_TRY(add_operands(c, dtype, with_values, built, values, &n));
  void *attrs = kva_case_attrs(built->m, c->op, c->attrs);
  if (c->attrs && !attrs) return KVA_INVALID;
  built->node = kva_build_node(&b, c->op, n, values, 1, attrs);
  kva_value **outputs = KVA_NEW_ARRAY(built->m->arena, kva_value *, built->node->n_results + 1);
  built->n_outputs = built->node->n_results;
  for (uint32_t i = 0; i < built->n_outputs; i++) outputs[i] = kva_result(built->node, i);
  kva_build_node(&b, KVA_OP_return, built->n_outputs, outputs, 0, NULL);
  if (b.failed) return KVA_INVALID;
  return kva_module_verify(built->m);
}

kva_status kva_case_build(const kva_case *c, kva_dtype dtype, kva_case_built *built) {
  return build(c, dtype, true, built);
}

kva_status kva_case_build_graph(const kva_case *c, kva_dtype dtype, kva_case_built *built) {
  return build(c, dtype, false, built);
}

void kva_case_free(kva_case_built *built) {
  for (uint32_t i = 0; i < built->n_inputs; i++) kva_ref_tensor_free(built->inputs[i]);
  kva_module_destroy(built->m);
  kva_diag_destroy(built->diag);
}

kva_status kva_run_reference(void *user, kva_module *m, kva_function *f, const kva_ref_tensor *const *inputs,
                             kva_ref_tensor **outputs, kva_diag *diag) {
  (void)user;
  return kva_ref_run(m, f, inputs, outputs, NULL, NULL, NULL, NULL, diag);
}

/* ---- dtypes ------------------------------------------------------------------------------------------------------ */

#define BIT(t) ((kva_dtype_set)1 << (t))
static const kva_dtype_set floats = BIT(KVA_F32) | BIT(KVA_F64) | BIT(KVA_F16) | BIT(KVA_BF16);
static const kva_dtype_set ints =
    BIT(KVA_I8) | BIT(KVA_I16) | BIT(KVA_I32) | BIT(KVA_I64) | BIT(KVA_U8) | BIT(KVA_U16) | BIT(KVA_U32) | BIT(KVA_U64);

kva_dtype_set kva_case_op_dtypes(kva_op_id op) {
  uint32_t traits = kva_ops.ops[op]->traits;
  return (traits & KVA_FLOAT ? floats : 0) | (traits & KVA_INT ? ints : 0) | (traits & KVA_BOOLEAN ? BIT(KVA_BOOL) : 0);
}

kva_dtype_set kva_case_dtypes(const kva_case *c) {
  kva_dtype_set of_op = kva_case_op_dtypes(c->op);
  bool values = false, range = false, typed = c->in[0].shape != NULL;
  for (uint32_t i = 0; i < KVA_CASE_OPERANDS && c->in[i].shape; i++) {
    const kva_case_operand *o = &c->in[i];
    typed &= o->dtype != KVA_DTYPE_NONE;
    values |= !o->dtype && o->values;
    range |= !o->dtype && (o->lo != 0 || o->hi != 0);
  }
  if (!of_op || typed) return BIT(KVA_DTYPE_NONE);
  if (c->dtype && (values || !kva_dtype_is_int(c->dtype))) return BIT(c->dtype);
  if (c->dtype) return of_op & ints;
  if (values || range) return of_op & floats;
  bool computes = c->attrs && strstr(c->attrs, "reduction="); /* of a scatter: not defined for bool */
  return computes ? of_op & ~BIT(KVA_BOOL) : of_op;
}
