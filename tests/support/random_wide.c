/* The wide half of the generator: every operator that has code, in every type that its row names. Attributes and shapes
 * come from the operators' random cases (tools/verify), operands from the values at hand, which are cast, folded into a
 * range and brought into shape. So a new operator is drawn without a line here. */
#include "tests/support/random_internal.h"
#include "tools/verify/cases.h"

#include <math.h>
#include <stdlib.h>

/* ---- exact values ------------------------------------------------------------------------------------------------ */

static bool computes_exactly(const kva_node *n, const kva_type *result) {
  if (n->op->traits & (KVA_CONTROL | KVA_READS_STATE)) return false;
  return n->op->tolerance == 0 || kva_is(n, KVA_OP_cast) || !kva_dtype_is_float(result->dtype);
}

bool random_is_exact(random_exact *e, const kva_value *v) {
  while (e->known.len <= v->id) KVA_PUSH(e->arena, &e->known, 0);
  if (e->known.data[v->id]) return e->known.data[v->id] == 1;
  bool exact = v->def ? computes_exactly(v->def, v->type) : !v->graph->owner;
  for (uint32_t i = 0; exact && v->def && i < v->def->n_operands; i++)
    if (kva_operand(v->def, i)) exact = random_is_exact(e, kva_operand(v->def, i));
  e->known.data[v->id] = exact ? 1 : 2;
  return exact;
}

/* Where a little difference of an operand makes a large one of the result: steps, poles, edges of the domain. */
static bool needs_exact(kva_op_id op) {
  static const kva_op_id ops[] = {KVA_OP_sign,       KVA_OP_floor,      KVA_OP_ceil,     KVA_OP_round, KVA_OP_is_nan,
                                  KVA_OP_is_inf,     KVA_OP_bitcast,    KVA_OP_mod,      KVA_OP_equal, KVA_OP_less,
                                  KVA_OP_less_equal, KVA_OP_argmax,     KVA_OP_argmin,   KVA_OP_sqrt,  KVA_OP_log,
                                  KVA_OP_asin,       KVA_OP_acos,       KVA_OP_acosh,    KVA_OP_atanh, KVA_OP_pow,
                                  KVA_OP_div,        KVA_OP_reciprocal, KVA_OP_max_pool, KVA_OP_tan};
  for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
    if (ops[i] == op) return true;
  return false;
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

static kva_value *any_value(gen *g) {
  uint32_t n = g->items.len + g->others.len + g->bools.len, k = random_draw(g, n);
  if (random_draw(g, 2)) return random_pick(g).v;
  if (k < g->items.len) return g->items.data[k].v;
  k -= g->items.len;
  return k < g->others.len ? g->others.data[k] : g->bools.data[k - g->others.len];
}

/* A value that may be cast to the type: integers and tests of values need exact ones. NULL: found none. */
static kva_value *source(gen *g, kva_dtype t, bool exact) {
  bool whole = !kva_dtype_is_float(t);
  for (int i = 0; i < 8; i++) {
    kva_value *v = any_value(g);
    if (whole && kva_dtype_is_float(v->type->dtype) && i < 4) continue; /* most floats are below 1 */
    if ((!exact && !whole) || random_is_exact(&g->exact, v)) return v;
  }
  return NULL;
}

static kva_value *fold_ints(gen *g, kva_value *v, double lo, double hi, kva_dtype t) {
  kva_builder *b = &g->b;
  v = kva_build2(b, KVA_OP_mod, kva_cast(b, v, KVA_I64), kva_const_scalar(b, KVA_I64, hi - lo + 1));
  return kva_cast(b, kva_add(b, v, kva_const_scalar(b, KVA_I64, lo)), t);
}

/* v in the operand's range and type; NULL: there is no exact way. */
static kva_value *into_range(gen *g, kva_value *v, const kva_case_operand *o, kva_dtype t, bool exact) {
  double lo = o->lo, hi = o->hi;
  if (lo == 0 && hi == 0) return kva_cast(&g->b, v, t);
  if (kva_dtype_is_int(t)) return fold_ints(g, v, lo, hi, t);
  if (exact) return floor(hi) < ceil(lo) ? NULL : fold_ints(g, v, ceil(lo), fmin(floor(hi), ceil(lo) + 63), t);
  v = kva_build1(&g->b, KVA_OP_sigmoid, kva_cast(&g->b, v, t));
  v = kva_mul(&g->b, v, kva_const_scalar(&g->b, t, hi - lo));
  return kva_add(&g->b, v, kva_const_scalar(&g->b, t, lo));
}

static kva_dtype draw_dtype(gen *g, kva_dtype_set set) {
  uint32_t n = 0, k;
  if (kva_dtype_in(set, g->o->dtype) && random_draw(g, 2)) return g->o->dtype;
  for (uint32_t t = 0; t < KVA_DTYPE_COUNT; t++) n += kva_dtype_in(set, t);
  k = random_draw(g, n);
  for (uint32_t t = 0; t < KVA_DTYPE_COUNT; t++)
    if (kva_dtype_in(set, t) && k-- == 0) return t;
  return KVA_DTYPE_NONE;
}

static void add_result(gen *g, kva_value *v) {
  kva_dtype t = v->type->dtype;
  if (g->b.failed || random_elements(g, v->type) > MAX_ELEMENTS) return;
  if (t == KVA_BOOL) KVA_PUSH(g->scratch, &g->bools, v);
  if (t == g->o->dtype) random_add_item(g, v, 31);
  if (t != g->o->dtype || random_draw(g, 4) == 0) KVA_PUSH(g->scratch, &g->others, v);
}

static void add_results(gen *g, kva_op_id op, uint32_t n, kva_value *const *operands, const void *attrs) {
  kva_node *node = kva_build_node(&g->b, op, n, operands, 1, attrs);
  for (uint32_t r = 0; r < node->n_results; r++) add_result(g, kva_result(node, r));
}

static bool is_model_op(const kva_op_info *op) {
  return kva_op_has_code(op) && op->id != KVA_OP_dropout;
}

/* ---- elementwise ------------------------------------------------------------------------------------------------- */

static bool broadcasts_with_all(const kva_value *v, uint32_t n, kva_value *const *others) {
  bool ok = true;
  for (uint32_t i = 0; i < n; i++) ok = ok && random_broadcasts(v->type, others[i]->type);
  return ok;
}

static kva_value *element_operand(gen *g, const kva_case_operand *o, kva_dtype t, bool exact, uint32_t n,
                                  kva_value *const *others) {
  for (int i = 0; i < 6 && !o->values; i++) {
    kva_value *v = source(g, t, exact);
    if (v && broadcasts_with_all(v, n, others)) return into_range(g, v, o, t, exact);
  }
  return kva_const_scalar(&g->b, t, o->values ? strtod(o->values, NULL) : o->lo == 0 && o->hi == 0 ? 1 : ceil(o->lo));
}

static void add_element(gen *g) {
  kva_op_id op = random_draw(g, KVA_OP_COUNT);
  for (uint32_t k = 0; k < KVA_OP_COUNT && !(kva_ops.ops[op]->traits & KVA_ELEMENTWISE); k++)
    op = (op + 1) % KVA_OP_COUNT;
  const kva_op_info *info = kva_ops.ops[op];
  kva_dtype t = draw_dtype(g, kva_case_op_dtypes(op));
  kva_value *operands[KVA_CASE_OPERANDS];
  kva_case c;
  uint32_t n = 0;
  if (!is_model_op(info) || info->traits & KVA_UPDATES) return;
  if (!kva_case_random(g->scratch, op, t, random_draw(g, 4096), &c)) return;
  for (; n < KVA_CASE_OPERANDS && c.in[n].shape; n++) {
    kva_dtype own = c.in[n].dtype ? c.in[n].dtype : t;
    operands[n] = element_operand(g, &c.in[n], own, needs_exact(op), n, operands);
    if (!operands[n]) return;
  }
  void *attrs = kva_case_attrs(g->m, op, c.attrs);
  bool to_ints = op == KVA_OP_cast && !kva_dtype_is_float(((const kva_cast_attrs *)attrs)->to);
  if (to_ints && !random_is_exact(&g->exact, operands[0])) return;
  add_results(g, op, n, operands, attrs);
}

/* There and back: rounds, if the other type is the narrower one. */
static void add_casts(gen *g) {
  static const kva_dtype types[] = {KVA_F64,  KVA_F32, KVA_F16, KVA_BF16, KVA_F8E4M3FN, KVA_F8E5M2,
                                    KVA_BOOL, KVA_I8,  KVA_I32, KVA_I64,  KVA_U8,       KVA_U32};
  kva_dtype t = types[random_draw(g, sizeof types / sizeof *types)];
  kva_value *v = source(g, t, false);
  if (v) add_result(g, kva_cast(&g->b, kva_cast(&g->b, v, t), v->type->dtype));
}

/* ---- along axes -------------------------------------------------------------------------------------------------- */

static bool has_attr(const kva_op_info *op, const char *name) {
  return op->attrs && kva_attrs_find(op->attrs, name, strlen(name));
}

/* In types that the operand does not say (kv.unpack), and with a count, only the operator's own cases make one. */
static bool is_along_axes(kva_op_id id) {
  const kva_op_info *op = kva_ops.ops[id];
  bool axes = has_attr(op, "axes") || (has_attr(op, "axis") && !has_attr(op, "count"));
  return is_model_op(op) && op->min_operands == 1 && op->max_operands == 1 && axes && kva_case_op_dtypes(id);
}

static const char *axes_attrs(gen *g, const kva_op_info *op, uint32_t rank) {
  int axis = (int)random_draw(g, 2 * rank) - (int)rank, a = (int)random_draw(g, 2), b = (int)random_draw(g, 2);
  if (has_attr(op, "select_last"))
    return kva_arena_printf(g->scratch, "axis=%d; keepdims=%d; select_last=%d", axis, a, b);
  if (has_attr(op, "exclusive")) return kva_arena_printf(g->scratch, "axis=%d; exclusive=%d; reverse=%d", axis, a, b);
  if (has_attr(op, "axis")) return kva_arena_printf(g->scratch, "axis=%d", axis);
  const char *axes = "";
  for (uint32_t d = 0; d < rank; d++)
    if (random_draw(g, 2)) axes = kva_arena_printf(g->scratch, "%s%s%u", axes, *axes ? "," : "", d);
  return kva_arena_printf(g->scratch, "axes=%s; keepdims=%d", axes, a);
}

static void add_along_axes(gen *g) {
  kva_op_id op = random_draw(g, KVA_OP_COUNT);
  for (uint32_t k = 0; k < KVA_OP_COUNT && !is_along_axes(op); k++) op = (op + 1) % KVA_OP_COUNT;
  kva_dtype t = draw_dtype(g, kva_case_op_dtypes(op));
  kva_value *v = source(g, t, needs_exact(op));
  if (!v || !v->type->rank || random_elements(g, v->type) == 0) return;
  v = kva_cast(&g->b, v, t);
  add_results(g, op, 1, &v, kva_case_attrs(g->m, op, axes_attrs(g, kva_ops.ops[op], v->type->rank)));
}

/* ---- any operator, by its cases ---------------------------------------------------------------------------------- */

/* "3,A=5,1": the extents alone. */
static uint32_t read_extents(gen *g, const char *text, kva_dim *dims) {
  uint32_t rank = 0;
  while (*text && rank < KVA_MAX_RANK) {
    const char *equals = strpbrk(text, "=,");
    char *end;
    if (equals && *equals == '=') text = equals + 1;
    dims[rank++] = kva_expr_const(g->m->exprs, strtoll(text, &end, 10));
    text = *end == ',' ? end + 1 : end;
  }
  return rank;
}

static kva_value *iota(gen *g, kva_dim n) {
  return kva_build(&g->b, KVA_OP_iota, 0, NULL, &(kva_iota_attrs){.shape = {1, &n}, .dtype = KVA_I64});
}

/* The elements of v, again and again or some of them, as a tensor of n elements. */
static kva_value *flatten_to(gen *g, kva_value *v, kva_dim n) {
  int64_t have = random_elements(g, v->type), want = random_extent(g, n);
  kva_dim all = kva_type_elements(g->m, v->type);
  if (have == 0 || want == 0) return kva_zeros(&g->b, kva_type_tensor(g->m, v->type->dtype, 1, &n));
  v = kva_reshape(&g->b, v, 1, &all);
  if (have >= want && random_draw(g, 2)) {
    kva_dim start = kva_expr_const(g->m->exprs, random_draw(g, (uint32_t)(have - want + 1)));
    return kva_build(&g->b, KVA_OP_slice, 1, &v, &(kva_slice_attrs){.starts = {1, &start}, .shape = {1, &n}});
  }
  kva_value *at = kva_build2(&g->b, KVA_OP_mod, iota(g, n), kva_dim_scalar(&g->b, KVA_I64, all));
  return kva_build(&g->b, KVA_OP_gather, 2, (kva_value *[]){v, at}, &(kva_gather_attrs){.axis = 0});
}

static kva_value *case_operand(gen *g, const kva_case_operand *o, kva_dtype t, bool exact) {
  kva_dim dims[KVA_MAX_RANK];
  uint32_t rank = read_extents(g, o->shape, dims);
  const kva_type *type = kva_type_tensor(g->m, t, rank, dims);
  if (o->values) return kva_expand(&g->b, kva_const_scalar(&g->b, t, strtod(o->values, NULL)), rank, dims);
  kva_value *v = source(g, t, exact);
  if (!v) return NULL;
  if (v->type->rank != rank || memcmp(v->type->dims, dims, rank * sizeof *dims))
    v = kva_reshape(&g->b, flatten_to(g, v, kva_type_elements(g->m, type)), rank, dims);
  return into_range(g, v, o, t, exact);
}

static bool has_cases_of_its_own(kva_op_id id) {
  const kva_op_info *op = kva_ops.ops[id];
  bool elementwise = op->traits & KVA_ELEMENTWISE && !(op->traits & KVA_UPDATES);
  return is_model_op(op) && !elementwise && !is_along_axes(id);
}

static void add_case(gen *g) {
  kva_op_id op = random_draw(g, KVA_OP_COUNT);
  for (uint32_t k = 0; k < KVA_OP_COUNT && !has_cases_of_its_own(op); k++) op = (op + 1) % KVA_OP_COUNT;
  kva_dtype_set set = kva_case_op_dtypes(op);
  kva_value *operands[KVA_CASE_OPERANDS];
  kva_case c;
  uint32_t n = 0;
  kva_dtype t = set ? draw_dtype(g, set) : KVA_DTYPE_NONE;
  if (!kva_case_random(g->scratch, op, t, random_draw(g, 4096), &c)) return;
  for (; n < KVA_CASE_OPERANDS && c.in[n].shape; n++) {
    kva_dtype own = c.in[n].dtype ? c.in[n].dtype : t ? t : KVA_F32;
    operands[n] = !strcmp(c.in[n].shape, "-") ? NULL : case_operand(g, &c.in[n], own, needs_exact(op));
    if (!operands[n] && strcmp(c.in[n].shape, "-")) return;
  }
  add_results(g, op, n, operands, kva_case_attrs(g->m, op, c.attrs));
}

/* ---- movement ---------------------------------------------------------------------------------------------------- */

/* Prime factors of constant extents, other extents as they are. */
static uint32_t factors_of(gen *g, const kva_type *t, kva_dim *factors) {
  enum { MOST = 16 };
  uint32_t n = 0;
  for (uint32_t d = 0; d < t->rank; d++) {
    int64_t rest = 0;
    kva_expr_is_const(t->dims[d], &rest);
    for (int64_t p = 2; p * p <= rest && n < MOST; p++)
      for (; rest % p == 0 && rest > p && n < MOST; rest /= p) factors[n++] = kva_expr_const(g->m->exprs, p);
    factors[n++] = rest ? kva_expr_const(g->m->exprs, rest) : t->dims[d];
  }
  return n;
}

/* The same elements in order, under other extents. */
static kva_value *regroup(gen *g, kva_value *v) {
  kva_dim factors[32], dims[5];
  uint32_t n = factors_of(g, v->type, factors), rank = 0;
  for (uint32_t i = 0; i < n; i++) {
    bool joins = rank && (rank == 5 || random_draw(g, 2));
    dims[rank - joins] = joins ? kva_expr_mul(g->m->exprs, dims[rank - 1], factors[i]) : factors[i];
    rank += !joins;
  }
  return kva_reshape(&g->b, v, rank, dims);
}

static kva_value *shuffle(gen *g, kva_value *v) {
  int64_t perm[KVA_MAX_RANK];
  for (uint32_t d = 0; d < v->type->rank; d++) perm[d] = d;
  for (uint32_t d = v->type->rank; d-- > 1;) {
    uint32_t k = random_draw(g, d + 1);
    int64_t kept = perm[d];
    perm[d] = perm[k];
    perm[k] = kept;
  }
  return kva_transpose(&g->b, v, perm);
}

static void add_view_chain(gen *g) {
  kva_value *v = any_value(g);
  for (uint32_t i = 1 + random_draw(g, 6); i > 0; i--) v = shuffle(g, regroup(g, v));
  add_result(g, random_draw(g, 2) ? regroup(g, v) : v);
}

/* Any axis reversed, or without its first or last rows. */
static kva_value *cut(gen *g, kva_value *v, uint32_t axis) {
  const kva_type *t = v->type;
  kva_dim starts[KVA_MAX_RANK], shape[KVA_MAX_RANK], one = kva_expr_const(g->m->exprs, 1);
  int64_t steps[KVA_MAX_RANK];
  for (uint32_t d = 0; d < t->rank; d++) {
    starts[d] = kva_expr_const(g->m->exprs, 0);
    shape[d] = t->dims[d];
    steps[d] = 1;
  }
  if (random_extent(g, t->dims[axis]) < 1) return v;
  uint32_t how = random_draw(g, 3);
  if (how == 0) starts[axis] = kva_expr_sub(g->m->exprs, t->dims[axis], one), steps[axis] = -1;
  if (how == 1) starts[axis] = one;
  if (how) shape[axis] = kva_expr_sub(g->m->exprs, t->dims[axis], one);
  kva_slice_attrs a = {.starts = {t->rank, starts}, .shape = {t->rank, shape}, .steps = {t->rank, steps}};
  return kva_build(&g->b, KVA_OP_slice, 1, &v, &a);
}

static void add_cuts(gen *g) {
  kva_value *v = any_value(g);
  for (uint32_t i = 1 + random_draw(g, 4); i > 0 && v->type->rank; i--) v = cut(g, v, random_draw(g, v->type->rank));
  add_result(g, v);
}

/* x = concat(x, x') again and again, each time with another view of x. */
static void add_doubling(gen *g) {
  kva_value *v = any_value(g);
  for (uint32_t i = 1 + random_draw(g, 6); i > 0 && v->type->rank; i--) {
    uint32_t axis = random_draw(g, v->type->rank);
    if (2 * random_elements(g, v->type) > MAX_ELEMENTS) break;
    kva_value *parts[] = {v, random_draw(g, 2) ? cut(g, v, axis) : v};
    v = kva_build(&g->b, KVA_OP_concat, 2, parts, &(kva_concat_attrs){.axis = axis});
  }
  add_result(g, v);
}

/* Up to twelve values of one type, along an axis. */
static void add_wide_concat(gen *g) {
  kva_value *parts[12] = {any_value(g)};
  const kva_type *t = parts[0]->type;
  uint32_t n = 1, most = 2 + random_draw(g, 11);
  if (!t->rank) return;
  for (int i = 0; i < 24 && n < most; i++) {
    kva_value *v = any_value(g);
    bool may = t->dtype == v->type->dtype || kva_dtype_is_float(t->dtype) || random_is_exact(&g->exact, v);
    if (may && v->type->rank == t->rank && !memcmp(t->dims, v->type->dims, t->rank * sizeof *t->dims))
      parts[n++] = kva_cast(&g->b, v, t->dtype);
  }
  add_results(g, KVA_OP_concat, n, parts, &(kva_concat_attrs){.axis = random_draw(g, t->rank)});
}

/* Rows at places that are computed: forwards, backwards, counted from the end. */
static void add_computed_gather(gen *g) {
  kva_value *v = any_value(g);
  uint32_t axis = random_draw(g, v->type->rank);
  if (!v->type->rank || v->type->rank > 6 || random_extent(g, v->type->dims[axis]) < 1) return;
  kva_builder *b = &g->b;
  kva_dim n = random_draw(g, 2) ? v->type->dims[axis] : kva_expr_const(g->m->exprs, 1 + random_draw(g, 6));
  kva_value *size = kva_dim_scalar(b, KVA_I64, v->type->dims[axis]), *at = iota(g, n);
  at = kva_add(b, kva_mul(b, at, kva_const_scalar(b, KVA_I64, random_draw(g, 5))),
               kva_const_scalar(b, KVA_I64, (double)random_draw(g, 9) - 4));
  at = kva_build2(b, KVA_OP_mod, at, size);
  if (random_draw(g, 2)) at = kva_sub(b, at, size);
  if (random_draw(g, 2)) at = kva_cast(b, at, KVA_I32);
  add_results(g, KVA_OP_gather, 2, (kva_value *[]){v, at}, &(kva_gather_attrs){.axis = axis});
}

static void add_wide_pad(gen *g) {
  static const char *const modes[] = {"constant", "edge", "reflect", "wrap"};
  kva_value *v = any_value(g);
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  const char *mode = modes[random_draw(g, 4)];
  for (uint32_t d = 0; d < v->type->rank; d++) {
    uint32_t room = random_extent(g, v->type->dims[d]) > 2 && random_draw(g, 2) ? 3 : 1;
    before[d] = kva_expr_const(g->m->exprs, random_draw(g, room));
    after[d] = kva_expr_const(g->m->exprs, random_draw(g, room));
  }
  kva_pad_attrs a = {.before = {v->type->rank, before}, .after = {v->type->rank, after}, .mode = mode};
  kva_value *operands[] = {v, kva_scalar_like(&g->b, v, random_draw(g, 3))};
  if (v->type->rank) add_results(g, KVA_OP_pad, mode == modes[0] && random_draw(g, 2) ? 2 : 1, operands, &a);
}

/* ---- leaves ------------------------------------------------------------------------------------------------------ */

/* Something to fold: numbers, or positions along the first axis. */
static void add_constant(gen *g) {
  int64_t n = 1 + random_draw(g, 9), *dims = KVA_NEW(g->m->arena, int64_t);
  kva_dtype t = random_draw(g, 2) ? g->o->dtype : KVA_I64;
  char *bytes = kva_arena_alloc(g->m->arena, (size_t)n * 8);
  kva_tensor_data *data = KVA_NEW(g->m->arena, kva_tensor_data);
  *dims = n;
  for (int64_t i = 0; i < n; i++) {
    int64_t v = random_draw(g, 17);
    if (t == KVA_I64)
      kva_store_i64(t, bytes, i, v - 8);
    else
      kva_store_f64(t, bytes, i, (double)(v - 8) / 8);
  }
  *data = (kva_tensor_data){.dtype = t, .rank = 1, .dims = dims, .data = bytes, .bytes = n * kva_dtype_bits(t) / 8};
  add_result(g, kva_const_tensor(&g->b, data));
}

void random_add_wide_inputs(gen *g) {
  static const kva_dtype types[] = {KVA_F64, KVA_F32, KVA_F16, KVA_BF16, KVA_I8,  KVA_I16,  KVA_I32,
                                    KVA_I64, KVA_U8,  KVA_U16, KVA_U32,  KVA_U64, KVA_BOOL, KVA_F8E4M3FN};
  for (uint32_t i = random_draw(g, 10); i > 0; i--) {
    uint32_t skip = random_draw(g, g->base_rank + 1);
    kva_dtype t = types[random_draw(g, sizeof types / sizeof *types)];
    const kva_type *type = kva_type_tensor(g->m, t, g->base_rank - skip, g->base + skip);
    add_result(g, kva_graph_add_input(g->f->graph, type, kva_arena_printf(g->m->arena, "w%u", i)));
  }
}

void random_add_wide(gen *g) {
  static void (*const adders[])(gen * g) = {
      add_element,    add_element,    add_element,  add_case,       add_case,           add_case,     add_case,
      add_along_axes, add_view_chain, add_cuts,     add_doubling,   add_wide_concat,    add_wide_pad, add_constant,
      add_casts,      add_view_chain, add_doubling, add_along_axes, add_computed_gather};
  adders[random_draw(g, sizeof adders / sizeof *adders)](g);
}
