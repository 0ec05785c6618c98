/* What is known of small tensors at import time. Models compute shapes with tensors (Shape, Gather, Concat, ...); here
 * the elements of such integer tensors are derived as expressions over the shape symbols, from the internal nodes that
 * the rules built, so that no ONNX version matters. Whatever depends on constants alone is evaluated by the operators'
 * own reference. Both are lazy and remembered per value, absence too, so that every value is visited once. */
#include "frontend/onnx_rules.h"

enum { MAX_ELEMENTS = 4096, MAX_DEPTH = 256 };

static const char unknown; /* its address marks "visited, not known" in the maps */

static bool small_elements(const kva_type *t, int64_t *out_n) {
  *out_n = 1;
  if (t->kind != KVA_TYPE_TENSOR) return false;
  for (uint32_t i = 0; i < t->rank; i++) {
    int64_t d;
    if (!kva_expr_is_const(t->dims[i], &d) || !kva_mul_size(*out_n, d, out_n) || *out_n > MAX_ELEMENTS) return false;
  }
  return true;
}

/* ---- constants --------------------------------------------------------------------------------------------------- */

static kva_ref_tensor *new_tensor(kva_arena *arena, const kva_type *t, int64_t n) {
  kva_ref_tensor *w = KVA_NEW(arena, kva_ref_tensor);
  w->dtype = t->dtype;
  w->rank = t->rank;
  w->n = n;
  for (uint32_t i = 0; i < t->rank; i++) (void)kva_expr_is_const(t->dims[i], &w->dims[i]);
  if (kva_dtype_is_float(t->dtype))
    w->f = KVA_NEW_ARRAY(arena, double, n + 1);
  else
    w->i = KVA_NEW_ARRAY(arena, int64_t, n + 1);
  return w;
}

static kva_ref_tensor *load_constant(kva_onnx_ctx *c, const kva_value *v, int64_t n) {
  const kva_tensor_data *data = ((const kva_constant_attrs *)v->def->attrs)->value;
  kva_ref_tensor *w = new_tensor(c->arena, v->type, n);
  for (int64_t i = 0; i < n; i++) {
    if (w->f)
      w->f[i] = kva_load_f64(data->dtype, data->data, i);
    else
      w->i[i] = kva_load_i64(data->dtype, data->data, i);
  }
  return w;
}

static void round_elements(kva_ref_tensor *w) {
  for (int64_t i = 0; i < w->n; i++) {
    if (w->f)
      w->f[i] = kva_round_f64(w->dtype, w->f[i]);
    else
      w->i[i] = kva_wrap_i64(w->dtype, w->i[i]);
  }
}

static bool no_symbols(void *user, const kva_expr *symbol, int64_t *out_v) {
  (void)user, (void)symbol, (void)out_v;
  return false;
}

static const kva_ref_tensor *constant(kva_onnx_ctx *c, const kva_value *v, int depth);

/* Runs the node's reference; its diagnostics (a symbol in an attribute) only mean "not constant". */
static bool evaluate(kva_onnx_ctx *c, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor **out) {
  kva_diag *diag = kva_diag_create();
  kva_arena *scratch = kva_arena_create();
  kva_ref r = {.diag = diag, .scratch = scratch, .lookup = no_symbols};
  kva_status status = n->op->ref(&r, n, in, out);
  kva_arena_destroy(scratch);
  kva_diag_destroy(diag);
  (void)c;
  return !status;
}

static const kva_ref_tensor *compute_constant(kva_onnx_ctx *c, const kva_value *v, int depth) {
  const kva_node *n = v->def;
  if (!n->op->ref || n->n_results > 4 || n->n_operands > MAX_ELEMENTS || depth > MAX_DEPTH) return NULL;
  if (n->op->traits & (KVA_READS_STATE | KVA_WRITES_STATE)) return NULL;
  const kva_ref_tensor **in = KVA_NEW_ARRAY(c->arena, const kva_ref_tensor *, n->n_operands + 1);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    if (!kva_operand(n, i)) continue;
    in[i] = constant(c, kva_operand(n, i), depth + 1);
    if (!in[i]) return NULL;
  }
  kva_ref_tensor *out[4];
  for (uint32_t i = 0; i < n->n_results; i++) {
    int64_t elements;
    if (!small_elements(n->results[i].type, &elements)) return NULL;
    out[i] = new_tensor(c->arena, n->results[i].type, elements);
  }
  if (!evaluate(c, n, in, out)) return NULL;
  round_elements(out[v->index]);
  return out[v->index];
}

static const kva_ref_tensor *constant(kva_onnx_ctx *c, const kva_value *v, int depth) {
  int64_t n;
  if (!v->def || !small_elements(v->type, &n)) return NULL;
  if (!c->constants) c->constants = kva_map_create(c->arena);
  void *known = kva_map_get(c->constants, &v, sizeof v);
  if (known) return known == &unknown ? NULL : known;
  bool is_literal = kva_is(v->def, KVA_OP_constant);
  const kva_ref_tensor *w = is_literal ? load_constant(c, v, n) : compute_constant(c, v, depth);
  kva_map_set(c->constants, &v, sizeof v, w ? (void *)w : (void *)&unknown);
  return w;
}

const kva_ref_tensor *kva_onnx_constant(kva_onnx_ctx *c, const kva_value *v) {
  return constant(c, v, 0);
}

/* ---- symbolic elements ------------------------------------------------------------------------------------------- */

typedef struct elements {
  kva_onnx_ctx *c;
  kva_expr_ctx *x;
  const kva_node *n;
  int depth;
  uint32_t len; /* of the result */
  kva_dim *out; /* [len] */
} elements;

static const kva_dims *contents(kva_onnx_ctx *c, const kva_value *v, int depth);

static const kva_dims *operand_contents(elements *e, uint32_t i) {
  const kva_value *v = kva_operand(e->n, i);
  return v ? contents(e->c, v, e->depth + 1) : NULL;
}

static kva_dim pick(const kva_dims *d, uint32_t i) {
  return d->v[d->n == 1 ? 0 : i];
}

/* Two operands of the result's length or of one element. */
static bool both_operands(elements *e, uint32_t first, const kva_dims **a, const kva_dims **b) {
  *a = operand_contents(e, first);
  *b = operand_contents(e, first + 1);
  return *a && *b && ((*a)->n == 1 || (*a)->n == e->len) && ((*b)->n == 1 || (*b)->n == e->len);
}

/* ONNX division truncates toward zero, the algebra's toward minus infinity: the same for what is not negative. */
static kva_dim divide(kva_expr_ctx *x, kva_dim a, kva_dim b, bool mod) {
  int64_t lo, va, vb;
  if (kva_expr_is_const(a, &va) && kva_expr_is_const(b, &vb)) {
    if (!vb || (va == INT64_MIN && vb == -1)) return NULL;
    if (!mod) return kva_expr_const(x, va / vb);
  }
  if (!kva_expr_lower_bound(b, &lo) || lo < (kva_expr_is_const(b, NULL) ? 1 : 0)) return NULL;
  if (!mod && (!kva_expr_lower_bound(a, &lo) || lo < 0)) return NULL;
  return mod ? kva_expr_mod(x, a, b) : kva_expr_div(x, a, b);
}

/* 0 or 1 where it is the same for every value of the symbols. */
static kva_dim compare(kva_expr_ctx *x, uint32_t op, kva_dim a, kva_dim b) {
  bool less = kva_expr_provably_less(x, a, b), greater = kva_expr_provably_less(x, b, a);
  if (op == KVA_OP_equal) {
    if (a == b) return kva_expr_const(x, 1);
    return less || greater ? kva_expr_const(x, 0) : NULL;
  }
  if (op == KVA_OP_less) {
    if (less) return kva_expr_const(x, 1);
    return kva_expr_provably_le(x, b, a) ? kva_expr_const(x, 0) : NULL;
  }
  if (kva_expr_provably_le(x, a, b)) return kva_expr_const(x, 1);
  return greater ? kva_expr_const(x, 0) : NULL;
}

static kva_dim apply2(elements *e, uint32_t op, kva_dim a, kva_dim b) {
  switch (op) {
  case KVA_OP_add:
  case KVA_OP_reduce_sum: return kva_expr_add(e->x, a, b);
  case KVA_OP_sub: return kva_expr_sub(e->x, a, b);
  case KVA_OP_mul:
  case KVA_OP_reduce_prod: return kva_expr_mul(e->x, a, b);
  case KVA_OP_div: return divide(e->x, a, b, false);
  case KVA_OP_mod: return ((const kva_mod_attrs *)e->n->attrs)->fmod ? NULL : divide(e->x, a, b, true);
  case KVA_OP_min:
  case KVA_OP_reduce_min: return kva_expr_min(e->x, a, b);
  case KVA_OP_max:
  case KVA_OP_reduce_max: return kva_expr_max(e->x, a, b);
  default: return compare(e->x, op, a, b);
  }
}

static bool binary_elements(elements *e) {
  const kva_dims *a, *b;
  if (!both_operands(e, 0, &a, &b)) return false;
  for (uint32_t i = 0; i < e->len; i++)
    if (!(e->out[i] = apply2(e, e->n->op->id, pick(a, i), pick(b, i)))) return false;
  return true;
}

static bool where_elements(elements *e) {
  const kva_dims *cond = operand_contents(e, 0), *a, *b;
  if (!cond || (cond->n != 1 && cond->n != e->len) || !both_operands(e, 1, &a, &b)) return false;
  for (uint32_t i = 0; i < e->len; i++) {
    int64_t v;
    if (!kva_expr_is_const(pick(cond, i), &v)) return false;
    e->out[i] = pick(v ? a : b, i);
  }
  return true;
}

/* Reductions of everything, which is what ReduceProd(Shape(x)) and its like are. */
static bool reduce_elements(elements *e) {
  const kva_dims *a = operand_contents(e, 0);
  if (!a || e->len != 1 || !a->n) return false;
  e->out[0] = a->v[0];
  for (uint32_t i = 1; i < a->n; i++) e->out[0] = apply2(e, e->n->op->id, e->out[0], a->v[i]);
  return true;
}

/* Reshapes, and expansion of one element: the elements in their order. */
static bool same_elements(elements *e) {
  const kva_dims *a = operand_contents(e, 0);
  if (!a || (a->n != e->len && a->n != 1)) return false;
  for (uint32_t i = 0; i < e->len; i++) e->out[i] = pick(a, i);
  return true;
}

static bool cast_elements(elements *e) {
  kva_dtype from = kva_operand_type(e->n, 0)->dtype, to = e->n->results[0].type->dtype;
  bool wide = to == KVA_I64 || to == KVA_I32 || to == KVA_U64 || to == KVA_U32;
  return wide && (kva_dtype_is_int(from) || from == KVA_BOOL) && same_elements(e);
}

static bool neg_elements(elements *e) {
  const kva_dims *a = operand_contents(e, 0);
  if (!a) return false;
  for (uint32_t i = 0; i < e->len; i++) e->out[i] = kva_expr_muli(e->x, a->v[i], -1);
  return true;
}

static bool slice_elements(elements *e) {
  const kva_slice_attrs *s = e->n->attrs;
  const kva_dims *a = operand_contents(e, 0);
  int64_t start;
  if (!a || kva_operand_type(e->n, 0)->rank != 1 || !kva_expr_is_const(s->starts.v[0], &start)) return false;
  int64_t step = s->steps.n ? s->steps.v[0] : 1;
  for (uint32_t i = 0; i < e->len; i++) {
    int64_t at = start + step * (int64_t)i;
    if (at < 0 || at >= a->n) return false;
    e->out[i] = a->v[at];
  }
  return true;
}

static bool concat_elements(elements *e) {
  uint32_t at = 0;
  if (e->n->results[0].type->rank != 1) return false;
  for (uint32_t i = 0; i < e->n->n_operands; i++) {
    const kva_dims *a = operand_contents(e, i);
    if (!a || a->n > e->len - at) return false;
    for (uint32_t j = 0; j < a->n; j++) e->out[at++] = a->v[j];
  }
  return at == e->len;
}

static bool gather_elements(elements *e) {
  const kva_dims *a = operand_contents(e, 0), *index = operand_contents(e, 1);
  if (!a || !index || kva_operand_type(e->n, 0)->rank != 1 || index->n != e->len) return false;
  for (uint32_t i = 0; i < e->len; i++) {
    int64_t at;
    if (!kva_expr_is_const(index->v[i], &at)) return false;
    if (at < 0) at += a->n;
    if (at < 0 || at >= a->n) return false;
    e->out[i] = a->v[at];
  }
  return true;
}

static bool dims_elements(elements *e) {
  const kva_dims_attrs *a = e->n->attrs;
  if (a->values.n != e->len) return false;
  for (uint32_t i = 0; i < e->len; i++) e->out[i] = a->values.v[i];
  return true;
}

static bool derive(elements *e) {
  switch (e->n->op->id) {
  case KVA_OP_dims: return dims_elements(e);
  case KVA_OP_add:
  case KVA_OP_sub:
  case KVA_OP_mul:
  case KVA_OP_div:
  case KVA_OP_mod:
  case KVA_OP_min:
  case KVA_OP_max:
  case KVA_OP_equal:
  case KVA_OP_less:
  case KVA_OP_less_equal: return binary_elements(e);
  case KVA_OP_where: return where_elements(e);
  case KVA_OP_neg: return neg_elements(e);
  case KVA_OP_cast: return cast_elements(e);
  case KVA_OP_reshape:
  case KVA_OP_expand: return same_elements(e);
  case KVA_OP_slice: return slice_elements(e);
  case KVA_OP_concat: return concat_elements(e);
  case KVA_OP_gather: return gather_elements(e);
  case KVA_OP_reduce_sum:
  case KVA_OP_reduce_prod:
  case KVA_OP_reduce_min:
  case KVA_OP_reduce_max: return reduce_elements(e);
  default: return false;
  }
}

static bool from_constant(elements *e, const kva_value *v) {
  const kva_ref_tensor *w = constant(e->c, v, e->depth);
  if (!w || !w->i) return false;
  for (uint32_t i = 0; i < e->len; i++) e->out[i] = kva_expr_const(e->x, w->i[i]);
  return true;
}

static const kva_dims *compute_contents(kva_onnx_ctx *c, const kva_value *v, uint32_t len, int depth) {
  elements e = {.c = c, .x = c->b.m->exprs, .n = v->def, .depth = depth, .len = len};
  e.out = KVA_NEW_ARRAY(c->arena, kva_dim, len + 1);
  if (!from_constant(&e, v) && (depth > MAX_DEPTH || !derive(&e))) return NULL;
  kva_dims *dims = KVA_NEW(c->arena, kva_dims);
  *dims = (kva_dims){len, e.out};
  return dims;
}

static const kva_dims *contents(kva_onnx_ctx *c, const kva_value *v, int depth) {
  int64_t n;
  if (kva_dtype_is_float(v->type->dtype) || !small_elements(v->type, &n)) return NULL;
  if (!c->contents) c->contents = kva_map_create(c->arena);
  void *known = kva_map_get(c->contents, &v, sizeof v);
  if (known) return known == &unknown ? NULL : known;
  const kva_dims *dims = v->def ? compute_contents(c, v, (uint32_t)n, depth) : NULL;
  kva_map_set(c->contents, &v, sizeof v, dims ? (void *)dims : (void *)&unknown);
  return dims;
}

const kva_dims *kva_onnx_contents(kva_onnx_ctx *c, const kva_value *v) {
  return contents(c, v, 0);
}

void kva_onnx_set_contents(kva_onnx_ctx *c, const kva_value *v, const kva_dims *dims) {
  if (!c->contents) c->contents = kva_map_create(c->arena);
  kva_map_set(c->contents, &v, sizeof v, (void *)dims);
}
