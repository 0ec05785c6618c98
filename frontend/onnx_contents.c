/* Known contents of small tensors at import time. Models compute shapes with tensors (Shape, Gather, Concat, ...). This
 * file derives the elements of such integer tensors as expressions over the shape symbols, from the internal nodes that
 * the rules built, by the operators' own rules (kva_op_info.shape_values), so ONNX versions do not matter. Values that
 * depend on constants only are evaluated by the operators' references. Both are lazy and memoised, failures included,
 * so that every value is visited once. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"
#include "ops/shape_values.h"

enum { MAX_ELEMENTS = 4096, MAX_DEPTH = 256 };

static const char unknown; /* its address marks "visited, unknown" in the maps */

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

/* Runs the node's reference. A diagnostic (about a symbol in an attribute) only means "not constant". */
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
  if (!n->op->ref || n->op->lower_kind == KVA_LOWER_CALL || n->n_results > 4 || n->n_operands > MAX_ELEMENTS ||
      depth > MAX_DEPTH)
    return NULL;
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
  if (!v->def || v->type->dtype == KVA_STRING || !small_elements(v->type, &n)) return NULL;
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
  kva_shape_values values;
  kva_onnx_ctx *c;
  int depth;
} elements;

static const kva_dims *contents(kva_onnx_ctx *c, const kva_value *v, int depth);

static const kva_dims *operand_contents(kva_shape_values *values, const kva_node *n, uint32_t i) {
  const elements *e = values->user;
  const kva_value *v = kva_operand(n, i);
  return v ? contents(e->c, v, e->depth + 1) : NULL;
}

static bool derive(elements *e, const kva_node *n) {
  return e->depth <= MAX_DEPTH && n->op->shape_values && n->op->shape_values(&e->values, n);
}

static bool from_constant(elements *e, const kva_value *v) {
  const kva_ref_tensor *w = constant(e->c, v, e->depth);
  if (!w || !w->i) return false;
  for (uint32_t i = 0; i < e->values.len; i++) e->values.out[i] = kva_expr_const(e->values.exprs, w->i[i]);
  return true;
}

static const kva_dims *compute_contents(kva_onnx_ctx *c, const kva_value *v, uint32_t len, int depth) {
  elements e = {.c = c, .depth = depth};
  e.values = (kva_shape_values){.exprs = c->b.m->exprs,
                                .len = len,
                                .out = KVA_NEW_ARRAY(c->arena, kva_dim, len + 1),
                                .operand = operand_contents,
                                .user = &e};
  if (!from_constant(&e, v) && !derive(&e, v->def)) return NULL;
  kva_dims *dims = KVA_NEW(c->arena, kva_dims);
  *dims = (kva_dims){len, e.values.out};
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

static void set_contents(kva_onnx_ctx *c, const kva_value *v, const kva_dims *dims) {
  if (!c->contents) c->contents = kva_map_create(c->arena);
  kva_map_set(c->contents, &v, sizeof v, (void *)dims);
}

/* ---- elements that data decides ---------------------------------------------------------------------------------- */

/* A symbol of a sub-graph says nothing about a value around it. */
const kva_dims *kva_onnx_bind_elements(kva_onnx_ctx *c, kva_value *v, const char *what) {
  kva_builder *b = &c->b;
  int64_t n = 1;
  if (b->failed || v->type->rank > 1 || kva_dtype_is_float(v->type->dtype)) return NULL;
  if ((v->type->rank && !kva_expr_is_const(v->type->dims[0], &n)) || n > KVA_ONNX_MAX_BOUND) return NULL;
  kva_dim *symbols = KVA_NEW_ARRAY(b->m->arena, kva_dim, n + 1), one = kva_expr_const(b->m->exprs, 1);
  for (int64_t i = 0; i < n; i++) {
    kva_value *element = v->type->rank ? kva_onnx_slice(b, v, 0, kva_expr_const(b->m->exprs, i), one) : v;
    element = kva_cast(b, kva_reshape(b, element, 0, NULL), KVA_I64);
    symbols[i] = kva_expr_new_symbol(b->m->exprs, what);
    (void)kva_build_node(b, KVA_OP_bind, 1, &element, 0, &(kva_bind_attrs){.symbol = {1, &symbols[i]}});
  }
  kva_dims *dims = KVA_NEW(c->arena, kva_dims);
  *dims = (kva_dims){(uint32_t)n, symbols};
  if (v->graph == b->graph) set_contents(c, v, dims);
  return dims;
}

static const kva_dims *bound(kva_onnx_ctx *c, kva_value *v, const char *what, int depth);

/* Elements of v from those of its operands, which are bound where they are unknown. */
static const kva_dims *from_bound_operands(kva_onnx_ctx *c, kva_value *v, const char *what, int depth) {
  const kva_node *n = v->def;
  if (!n || !n->op->shape_values || depth > MAX_DEPTH || v->graph != c->b.graph) return NULL;
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (kva_operand(n, i) && !bound(c, kva_operand(n, i), what, depth + 1)) return NULL;
  kva_map_set(c->contents, &v, sizeof v, NULL); /* it was found to be unknown */
  return contents(c, v, depth);
}

static const kva_dims *bound(kva_onnx_ctx *c, kva_value *v, const char *what, int depth) {
  const kva_dims *dims = contents(c, v, depth);
  if (!dims) dims = from_bound_operands(c, v, what, depth);
  return dims ? dims : kva_onnx_bind_elements(c, v, what);
}

const kva_dims *kva_onnx_bound_contents(kva_onnx_ctx *c, kva_value *v, const char *what) {
  return bound(c, v, what, 0);
}
