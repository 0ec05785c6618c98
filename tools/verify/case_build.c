/* Building, running and comparing operator cases. */
#include "tools/verify/cases.h"

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
  case KVA_ATTR_DIMS: return parse_list(m, s, false, out);
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

static double uniform(uint64_t element, uint64_t stream) {
  return kva_uniform01(kva_philox4x32(element, stream, 2026).v[0]);
}

static void fill(const kva_case_operand *o, kva_wide *w, uint64_t stream) {
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
      v = lo + (hi - lo) * uniform((uint64_t)i, stream);
    }
    if (w->f)
      w->f[i] = kva_round_f64(w->dtype, v);
    else if (w->dtype == KVA_BOOL)
      w->i[i] = s ? v != 0 : uniform((uint64_t)i, stream) < 0.5;
    else
      w->i[i] = kva_wrap_i64(w->dtype, (int64_t)(s ? v : floor(lo + (hi - lo + 1) * uniform((uint64_t)i, stream))));
  }
}

/* ---- building ---------------------------------------------------------------------------------------------------- */

static kva_dtype operand_dtype(const kva_case *c, const kva_case_operand *o, kva_dtype dtype) {
  kva_dtype own = c->dtype ? c->dtype : KVA_F32;
  return o->dtype ? o->dtype : dtype ? dtype : own;
}

static kva_status add_operands(const kva_case *c, kva_dtype dtype, kva_case_built *built, kva_value **values,
                               uint32_t *out_n) {
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
    kva_wide *w = kva_wide_create(t, shape.rank, shape.extents);
    KVA_ASSERT(w);
    fill(o, w, n);
    built->inputs[built->n_inputs++] = w;
  }
  *out_n = n;
  return KVA_OK;
}

kva_status kva_case_build(const kva_case *c, kva_dtype dtype, kva_case_built *built) {
  *built = (kva_case_built){.diag = kva_diag_create()};
  built->m = kva_module_create(built->diag);
  built->f = kva_function_create(built->m, "case");
  kva_builder b = {.m = built->m, .graph = built->f->graph};
  kva_value *values[KVA_CASE_OPERANDS] = {0};
  uint32_t n = 0;
  KVA_TRY(add_operands(c, dtype, built, values, &n));
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

void kva_case_free(kva_case_built *built) {
  for (uint32_t i = 0; i < built->n_inputs; i++) kva_wide_free(built->inputs[i]);
  kva_module_destroy(built->m);
  kva_diag_destroy(built->diag);
}

const char *kva_case_name(const kva_case *c, kva_dtype dtype) {
  static char text[256];
  int n = snprintf(text, sizeof text, "kv.%s <%s>", kva_ops.ops[c->op]->name, c->attrs ? c->attrs : "");
  for (uint32_t i = 0; i < KVA_CASE_OPERANDS && c->in[i].shape && n < (int)sizeof text; i++)
    n += snprintf(text + n, sizeof text - (size_t)n, " %s[%s]", kva_dtype_name(operand_dtype(c, &c->in[i], dtype)),
                  c->in[i].shape);
  return text;
}

static bool report(const kva_case *c, kva_dtype dtype, const char *what, const kva_diag *diag) {
  fprintf(stderr, "%s: %s\n", kva_case_name(c, dtype), what);
  if (diag) kva_diag_print(diag, stderr);
  return false;
}

kva_status kva_run_reference(void *user, kva_module *m, kva_function *f, const kva_wide *const *inputs,
                            kva_wide **outputs, kva_diag *diag) {
  (void)user;
  return kva_ref_run(m, f, inputs, outputs, NULL, NULL, NULL, NULL, diag);
}

/* ---- executor against reference ---------------------------------------------------------------------------------- */

double kva_case_epsilon(kva_dtype t) {
  switch (t) {
  case KVA_F64: return 0x1p-52;
  case KVA_F32: return 0x1p-23;
  case KVA_F16: return 0x1p-10;
  case KVA_BF16: return 0x1p-7;
  case KVA_F8E4M3FN:
  case KVA_F8E4M3FNUZ: return 0x1p-3;
  case KVA_F8E5M2:
  case KVA_F8E5M2FNUZ: return 0x1p-2;
  default: return 1;
  }
}

static double largest(const kva_wide *w) {
  double m = 0;
  for (int64_t i = 0; w->f && i < w->n; i++)
    if (isfinite(w->f[i]) && fabs(w->f[i]) > m) m = fabs(w->f[i]);
  return m;
}

static bool same_value(double a, double b, double tolerance) {
  if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
  return a == b || fabs(a - b) <= tolerance;
}

static bool compare(const kva_case *c, kva_dtype dtype, const kva_wide *expected, const kva_wide *found, double scale) {
  if (expected->dtype != found->dtype || expected->n != found->n) return report(c, dtype, "wrong result type", NULL);
  double tolerance = kva_ops.ops[c->op]->tolerance * kva_case_epsilon(expected->dtype) * fmax(scale, largest(expected));
  for (int64_t i = 0; i < expected->n; i++) {
    bool ok = expected->f ? same_value(expected->f[i], found->f[i], tolerance) : expected->i[i] == found->i[i];
    if (ok) continue;
    char text[160];
    snprintf(text, sizeof text, "element %lld: expected %.17g, found %.17g, tolerance %.3g", (long long)i,
             kva_wide_get(expected, i), kva_wide_get(found, i), expected->f ? tolerance : 0);
    return report(c, dtype, text, NULL);
  }
  return true;
}

bool kva_case_check(const kva_case *c, kva_dtype dtype, kva_executor run, void *user) {
  kva_case_built built;
  kva_wide *expected[8] = {0}, *found[8] = {0};
  bool ok = kva_case_build(c, dtype, &built) == KVA_OK || report(c, dtype, "does not build", built.diag);
  const kva_wide *const *in = (const kva_wide *const *)built.inputs;
  ok = ok && (kva_run_reference(NULL, built.m, built.f, in, expected, built.diag) == KVA_OK ||
              report(c, dtype, "reference fails", built.diag));
  ok = ok &&
       (run(user, built.m, built.f, in, found, built.diag) == KVA_OK || report(c, dtype, "executor fails", built.diag));
  double scale = 0;
  for (uint32_t i = 0; i < built.n_inputs; i++) scale = fmax(scale, largest(built.inputs[i]));
  for (uint32_t i = 0; ok && i < built.n_outputs; i++) ok = compare(c, dtype, expected[i], found[i], scale);
  for (uint32_t i = 0; i < built.n_outputs; i++) {
    kva_wide_free(expected[i]);
    kva_wide_free(found[i]);
  }
  kva_case_free(&built);
  return ok;
}

/* ---- gradients --------------------------------------------------------------------------------------------------- */

/* The case's function with seeds as further inputs and gradients as outputs; operand k's gradient is output slot[k],
 * -1 where it is zero. */
typedef struct backward {
  kva_case_built forward;
  kva_wide *seeds[8];
  kva_function *f;
  uint32_t n_seeds, n_outputs;
  int slot[KVA_CASE_OPERANDS];
} backward;

static kva_value *seed_input(backward *g, kva_value *result) {
  kva_module *m = g->forward.m;
  if (!kva_dtype_is_float(result->type->dtype)) return NULL;
  return kva_graph_add_input(g->f->graph, result->type, kva_arena_printf(m->arena, "seed%u", g->n_seeds++));
}

static kva_status build_backward(const kva_case *c, backward *g) {
  KVA_TRY(kva_case_build(c, KVA_F64, &g->forward));
  kva_module *m = g->forward.m;
  const kva_node *model = g->forward.node;
  g->f = kva_function_create(m, "gradient");
  kva_builder b = {.m = m, .graph = g->f->graph};
  kva_value *operands[KVA_CASE_OPERANDS] = {0}, *grad_in[KVA_CASE_OPERANDS] = {0}, *grad_out[8] = {0};
  bool wants[KVA_CASE_OPERANDS] = {0};
  for (uint32_t i = 0; i < model->n_operands; i++) {
    if (!kva_operand(model, i)) continue;
    operands[i] = kva_graph_add_input(g->f->graph, kva_operand_type(model, i), kva_operand(model, i)->name);
    wants[i] = kva_dtype_is_float(operands[i]->type->dtype) && !c->in[i].constant;
  }
  kva_node *n = kva_build_node(&b, c->op, model->n_operands, operands, model->n_results, model->attrs);
  uint32_t n_seeded = c->first_result ? 1 : n->n_results;
  for (uint32_t i = 0; i < n_seeded; i++) grad_out[i] = seed_input(g, kva_result(n, i));
  kva_vjp vjp = {.b = &b, .grad_out = grad_out, .grad_in = grad_in, .wants = wants};
  KVA_TRY(n->op->vjp(&vjp, n));
  kva_value *outputs[KVA_CASE_OPERANDS];
  for (uint32_t i = 0; i < n->n_operands; i++) {
    g->slot[i] = wants[i] && grad_in[i] ? (int)g->n_outputs : -1;
    if (g->slot[i] < 0) continue;
    if (grad_in[i]->type != operands[i]->type)
      return kva_error(g->forward.diag, NULL, "gradient of operand %u has not the operand's type", i);
    outputs[g->n_outputs++] = grad_in[i];
  }
  kva_build_node(&b, KVA_OP_return, g->n_outputs, outputs, 0, NULL);
  return b.failed ? KVA_INVALID : kva_module_verify(m);
}

/* Sum over results of seed * result. */
static kva_status loss(const backward *g, const kva_wide *const *in, double *out_loss) {
  kva_wide *y[8] = {0};
  const kva_case_built *f = &g->forward;
  KVA_TRY(kva_run_reference(NULL, f->m, f->f, in, y, f->diag));
  uint32_t seed = 0;
  *out_loss = 0;
  for (uint32_t k = 0; k < f->n_outputs; k++) {
    bool seeded = y[k]->f && seed < g->n_seeds;
    for (int64_t i = 0; seeded && i < y[k]->n; i++) *out_loss += g->seeds[seed]->f[i] * y[k]->f[i];
    seed += y[k]->f != NULL;
    kva_wide_free(y[k]);
  }
  return KVA_OK;
}

static kva_status make_seeds(backward *g) {
  kva_wide *y[8] = {0};
  const kva_case_built *f = &g->forward;
  KVA_TRY(kva_run_reference(NULL, f->m, f->f, (const kva_wide *const *)f->inputs, y, f->diag));
  uint32_t n = 0;
  for (uint32_t k = 0; k < f->n_outputs; k++) {
    if (!y[k]->f) {
      kva_wide_free(y[k]);
      continue;
    }
    g->seeds[n++] = y[k];
    for (int64_t i = 0; i < y[k]->n; i++) y[k]->f[i] = uniform((uint64_t)i, 100 + k) * 2 - 1;
  }
  return KVA_OK;
}

/* Fourth-order central difference: the error is about h^4 f^(5) / 30 + epsilon / h, far below 1e-6 for h = 1e-3. */
static kva_status difference(const backward *g, kva_wide *x, int64_t i, double *out_slope) {
  static const double at[4] = {-2, -1, 1, 2}, weight[4] = {1, -8, 8, -1};
  double h = 1e-3, center = x->f[i], sum = 0, l;
  kva_status status = KVA_OK;
  for (int k = 0; k < 4 && !status; k++) {
    x->f[i] = center + at[k] * h;
    status = loss(g, (const kva_wide *const *)g->forward.inputs, &l);
    sum += weight[k] * l;
  }
  x->f[i] = center;
  *out_slope = sum / (12 * h);
  return status;
}

static bool check_operand(const kva_case *c, const backward *g, uint32_t operand, kva_wide *x,
                          const kva_wide *gradient) {
  double scale = gradient ? fmax(1, largest(gradient)) : 1;
  for (int64_t i = 0; i < x->n; i++) {
    double expected, found = gradient ? gradient->f[i] : 0;
    if (difference(g, x, i, &expected)) return report(c, KVA_F64, "reference fails", g->forward.diag);
    if (fabs(expected - found) <= 1e-6 * scale) continue;
    char text[160];
    snprintf(text, sizeof text, "gradient of operand %u, element %lld: finite difference %.12g, vjp %.12g", operand,
             (long long)i, expected, found);
    return report(c, KVA_F64, text, NULL);
  }
  return true;
}

static bool check_backward(const kva_case *c, backward *g, kva_wide **gradients) {
  const kva_case_built *f = &g->forward;
  const kva_wide *in[KVA_CASE_OPERANDS + 8];
  if (build_backward(c, g)) return report(c, KVA_F64, "its gradient does not build", f->diag);
  if (make_seeds(g)) return report(c, KVA_F64, "reference fails", f->diag);
  for (uint32_t i = 0; i < f->n_inputs; i++) in[i] = f->inputs[i];
  for (uint32_t i = 0; i < g->n_seeds; i++) in[f->n_inputs + i] = g->seeds[i];
  if (kva_run_reference(NULL, f->m, g->f, in, gradients, f->diag))
    return report(c, KVA_F64, "its gradient fails", f->diag);
  uint32_t input = 0;
  for (uint32_t i = 0; i < f->node->n_operands; i++) {
    if (!kva_operand(f->node, i)) continue;
    kva_wide *x = f->inputs[input++];
    if (x->f && !c->in[i].constant && !check_operand(c, g, i, x, g->slot[i] < 0 ? NULL : gradients[g->slot[i]]))
      return false;
  }
  return true;
}

bool kva_case_check_gradient(const kva_case *c) {
  bool is_float = !c->dtype || kva_dtype_is_float(c->dtype);
  if (c->no_gradient || !is_float || kva_ops.ops[c->op]->vjp_kind != KVA_VJP_RULE) return true;
  backward g = {0};
  kva_wide *gradients[KVA_CASE_OPERANDS] = {0};
  bool ok = check_backward(c, &g, gradients);
  for (uint32_t i = 0; i < KVA_CASE_OPERANDS; i++) {
    kva_wide_free(gradients[i]);
    kva_wide_free(g.seeds[i]);
  }
  kva_case_free(&g.forward);
  return ok;
}
