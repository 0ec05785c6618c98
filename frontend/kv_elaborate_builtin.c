/* Compile-time functions. A function of the same name in the file takes precedence. */
#include "frontend/kv_elaborate.h"

#include <math.h>

typedef kva_el_value (*builtin)(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n);

/* Argument i as integer or extent; NULL: an error was reported. */
static kva_dim extent(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t i) {
  if (v[i].kind == KVA_EL_INT || v[i].kind == KVA_EL_DIM) return v[i].dim;
  kva_el_error(e, x->items.data[i]->first, "%s expects integers or extents, found %s", x->call->name,
               kva_el_kind_name(&v[i]));
  return NULL;
}

static bool number(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, double *out) {
  if (v->kind == KVA_EL_INT || v->kind == KVA_EL_FLOAT) return *out = v->f, true;
  kva_el_error(e, x->items.data[0]->first, "%s expects a number that is known at compile time, found %s", x->call->name,
               kva_el_kind_name(v));
  return false;
}

static const kva_el_value error = {.kind = KVA_EL_ERROR};

static kva_el_value extremum(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n, bool least) {
  bool floats = false;
  for (uint32_t i = 0; i < n; i++) floats |= v[i].kind == KVA_EL_FLOAT;
  kva_el_value best = v[0];
  for (uint32_t i = 0; i < n; i++) {
    if (floats) {
      if (v[i].kind != KVA_EL_FLOAT && v[i].kind != KVA_EL_INT) return extent(e, x, v, i), error;
      if (i && (least ? v[i].f < best.f : v[i].f > best.f)) best.f = v[i].f;
      continue;
    }
    kva_dim d = extent(e, x, v, i);
    if (!d) return error;
    if (i)
      best = kva_el_dim(e, least ? kva_expr_min(e->m->exprs, best.dim, d) : kva_expr_max(e->m->exprs, best.dim, d));
  }
  return floats ? kva_el_float(best.f) : best;
}

static kva_el_value do_min(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  return extremum(e, x, v, n, true);
}

static kva_el_value do_max(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  return extremum(e, x, v, n, false);
}

static kva_el_value do_sqrt(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  (void)n;
  double d;
  if (!number(e, x, v, &d)) return error;
  if (!(d >= 0)) return kva_el_error(e, x->first, "sqrt of the negative number %g", d);
  return kva_el_float(sqrt(d));
}

static kva_el_value logarithm(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, double (*f)(double)) {
  double d;
  if (!number(e, x, v, &d)) return error;
  if (!(d > 0)) return kva_el_error(e, x->first, "%s of %g, which is not positive", x->call->name, d);
  return kva_el_float(f(d));
}

static kva_el_value do_log(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  (void)n;
  return logarithm(e, x, v, log);
}

static kva_el_value do_log2(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  (void)n;
  return logarithm(e, x, v, log2);
}

static kva_el_value to_int(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, double (*round_to)(double)) {
  double d;
  if (v->kind == KVA_EL_INT) return *v;
  if (!number(e, x, v, &d)) return error;
  d = round_to(d);
  if (!(fabs(d) < 9.2e18)) return kva_el_error(e, x->first, "%g is not an integer of 64 bits", d);
  return kva_el_int(e, (int64_t)d);
}

static kva_el_value do_floor(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  (void)n;
  return to_int(e, x, v, floor);
}

static kva_el_value do_ceil(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  (void)n;
  return to_int(e, x, v, ceil);
}

static kva_el_value do_int(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  (void)n;
  if (v->kind == KVA_EL_BOOL) return kva_el_int(e, v->i);
  return to_int(e, x, v, trunc);
}

static kva_el_value do_float(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  (void)n;
  double d;
  if (v->kind == KVA_EL_BOOL) return kva_el_float((double)v->i);
  return number(e, x, v, &d) ? kva_el_float(d) : error;
}

static kva_el_value divide(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v,
                           const kva_expr *(*f)(kva_expr_ctx *, const kva_expr *, const kva_expr *)) {
  kva_dim a = extent(e, x, v, 0), b = a ? extent(e, x, v, 1) : NULL;
  if (!a || !b) return error;
  if (kva_expr_is(b, 0)) return kva_el_error(e, x->items.data[1]->first, "division by zero");
  return kva_el_dim(e, f(e->m->exprs, a, b));
}

static kva_el_value do_floordiv(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  (void)n;
  return divide(e, x, v, kva_expr_div);
}

static kva_el_value do_ceildiv(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  (void)n;
  return divide(e, x, v, kva_expr_ceildiv);
}

static kva_el_value do_mod(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  (void)n;
  return divide(e, x, v, kva_expr_mod);
}

static kva_el_value do_dim(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  (void)n;
  int64_t axis;
  if (v[0].kind != KVA_EL_TENSOR) {
    return kva_el_error(e, x->items.data[0]->first, "dim expects a tensor, found %s", kva_el_kind_name(&v[0]));
  }
  if (!kva_el_as_int(e, x->items.data[1], v[1], "the axis", &axis)) return error;
  int64_t rank = v[0].value->type->rank;
  if (axis < -rank || axis >= rank) {
    return kva_el_error(e, x->items.data[1]->first, "axis %lld of a tensor of rank %lld", (long long)axis,
                        (long long)rank);
  }
  return kva_el_dim(e, v[0].value->type->dims[axis < 0 ? axis + rank : axis]);
}

static kva_el_value do_contains(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  (void)n;
  int64_t wanted;
  if (v[0].kind != KVA_EL_LIST) {
    return kva_el_error(e, x->items.data[0]->first, "contains expects a list of integers, found %s",
                        kva_el_kind_name(&v[0]));
  }
  if (!kva_el_as_int(e, x->items.data[1], v[1], "the number to look for", &wanted)) return error;
  for (uint32_t i = 0; i < v[0].n; i++)
    if (v[0].items[i].kind == KVA_EL_INT && v[0].items[i].i == wanted) return kva_el_bool(true);
  return kva_el_bool(false);
}

/* "a", "b" or "c": what one_of allows. NULL: some argument is no string. */
static const char *words_text(kva_elab *e, const kva_el_value *v, uint32_t n) {
  const char *text = "";
  for (uint32_t i = 0; i < n; i++) {
    if (v[i].kind != KVA_EL_STRING) return NULL;
    const char *between = !i ? "" : i + 1 < n ? ", " : " or ";
    text = kva_arena_printf(e->m->arena, "%s%s\"%s\"", text, between, v[i].s);
  }
  return text;
}

/* Without it a word that nothing is compared with means what is in the last `else`. */
static kva_el_value do_one_of(kva_elab *e, const kva_ast_expr *x, const kva_el_value *v, uint32_t n) {
  const char *allowed = words_text(e, v + 1, n - 1);
  if (v[0].kind != KVA_EL_STRING || !allowed) return kva_el_error(e, x->first, "one_of expects strings");
  for (uint32_t i = 1; i < n; i++)
    if (!strcmp(v[0].s, v[i].s)) return v[0];
  return kva_el_error(e, x->items.data[0]->first, "expected %s, found \"%s\"", allowed, v[0].s);
}

static const struct {
  const char *name;
  uint32_t min_args, max_args;
  builtin f;
} builtins[] = {
    {"min", 1, 64, do_min},        {"max", 1, 64, do_max},          {"sqrt", 1, 1, do_sqrt},
    {"floor", 1, 1, do_floor},     {"ceil", 1, 1, do_ceil},         {"log", 1, 1, do_log},
    {"log2", 1, 1, do_log2},       {"int", 1, 1, do_int},           {"float", 1, 1, do_float},
    {"dim", 2, 2, do_dim},         {"mod", 2, 2, do_mod},           {"floordiv", 2, 2, do_floordiv},
    {"ceildiv", 2, 2, do_ceildiv}, {"contains", 2, 2, do_contains}, {"one_of", 2, 64, do_one_of},
};

static kva_el_value call_builtin(kva_elab *e, const kva_ast_expr *x, size_t which) {
  uint32_t n = x->items.len, least = builtins[which].min_args, most = builtins[which].max_args;
  if (n < least || n > most || x->call->attrs.list.len) {
    return kva_el_error(e, x->first, "%s takes %u%s value%s and no attributes", x->call->name, least,
                        most > least ? " or more" : "", most > 1 ? "s" : "");
  }
  kva_el_value v[64];
  bool ok = true;
  for (uint32_t i = 0; i < n; i++) {
    v[i] = kva_el_expr(e, x->items.data[i]);
    ok &= v[i].kind != KVA_EL_ERROR;
  }
  return ok ? builtins[which].f(e, x, v, n) : error;
}

bool kva_el_is_arithmetic(const kva_ast_call *c) {
  for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++)
    if (!*c->domain && !strcmp(c->name, builtins[i].name)) return builtins[i].f != do_dim;
  return false;
}

bool kva_el_builtin(kva_elab *e, const kva_ast_expr *x, kva_el_value *out) {
  for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++) {
    if (*x->call->domain || strcmp(x->call->name, builtins[i].name)) continue;
    *out = call_builtin(e, x, i);
    return true;
  }
  return false;
}
