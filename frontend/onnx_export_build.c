/* Builds ONNX messages: names, constants, shape tensors, nodes. */
#include "frontend/onnx_export.h"

#include <math.h>

/* ---- names ------------------------------------------------------------------------------------------------------- */

const char *kva_export_fresh(kva_export *e, const char *hint) {
  const char *name = hint;
  while (!*name || kva_map_get_str(e->used_names, name)) name = kva_arena_printf(e->arena, "%s_%u", hint, e->n_made++);
  kva_map_set_str(e->used_names, name, e);
  return kva_arena_strdup(e->arena, name);
}

const char *kva_export_name(kva_export *e, const kva_value *v) {
  KVA_ASSERT(e->names[v->id]);
  return e->names[v->id];
}

/* ---- constants --------------------------------------------------------------------------------------------------- */

static kva_pb_tensor *new_tensor(kva_export *e, kva_dtype t, uint32_t rank, const int64_t *dims, const void *data,
                                 int64_t bytes) {
  kva_pb_tensor *p = KVA_NEW(e->arena, kva_pb_tensor);
  onnx__tensor_proto__init(p);
  p->n_dims = rank;
  p->dims = kva_arena_memdup(e->arena, dims ? dims : &bytes, rank * sizeof *dims);
  p->has_data_type = true;
  p->data_type = (int32_t)t;
  p->has_raw_data = true;
  p->raw_data = (ProtobufCBinaryData){.len = (size_t)bytes, .data = (uint8_t *)(uintptr_t)data};
  return p;
}

static kva_pb_attr *new_attr(kva_export *e, kva_pb_node *n, const char *name,
                             Onnx__AttributeProto__AttributeType type) {
  kva_pb_attr *a = KVA_NEW(e->arena, kva_pb_attr);
  onnx__attribute_proto__init(a);
  a->name = kva_arena_strdup(e->arena, name);
  a->has_type = true;
  a->type = type;
  kva_pb_attr **list = KVA_NEW_ARRAY(e->arena, kva_pb_attr *, n->n_attribute + 1);
  if (n->n_attribute) memcpy(list, n->attribute, n->n_attribute * sizeof *list);
  list[n->n_attribute++] = a;
  n->attribute = list;
  return a;
}

const char *kva_export_tensor(kva_export *e, kva_dtype t, uint32_t rank, const int64_t *dims, const void *data,
                              int64_t bytes) {
  kva_pb_tensor *p = new_tensor(e, t, rank, dims, data, bytes);
  if (e->body_of) {
    kva_pb_node *n = kva_export_node(e, "Constant", 0, NULL, NULL);
    new_attr(e, n, "value", ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR)->t = p;
    return kva_export_out(n);
  }
  p->name = (char *)(uintptr_t)kva_export_fresh(e, "const");
  KVA_PUSH(e->arena, &e->initializers, p);
  return p->name;
}

const char *kva_export_scalar(kva_export *e, kva_dtype t, double v) {
  int64_t bytes = 0;
  KVA_ASSERT(kva_dtype_bytes(t, 1, &bytes));
  void *data = kva_arena_alloc(e->arena, 16);
  kva_store_f64(t, data, 0, v);
  return kva_export_tensor(e, t, 0, NULL, data, bytes);
}

const char *kva_export_i64s(kva_export *e, uint32_t n, const int64_t *v) {
  int64_t extent = n, bytes = (int64_t)n * 8;
  return kva_export_tensor(e, KVA_I64, 1, &extent, kva_arena_memdup(e->arena, n ? v : &extent, n * sizeof *v), bytes);
}

const char *kva_export_i64(kva_export *e, int64_t v) {
  return kva_export_i64s(e, 1, &v);
}

/* ---- shape arithmetic -------------------------------------------------------------------------------------------- */

static const char *write_expr(kva_export *e, const kva_expr *x);

/* Name of x if it is an extent of an input of the graph or function; else NULL. */
static const char *write_extent(kva_export *e, const kva_expr *x) {
  const kva_graph *g = e->f->graph;
  const kva_node *call = e->body_of;
  for (uint32_t i = 0; i < (call ? call->n_operands : g->inputs.len); i++) {
    const kva_value *v = call ? kva_operand(call, i) : g->inputs.data[i];
    for (uint32_t k = 0; v && k < v->type->rank; k++) {
      if (v->type->dims[k] != x) continue;
      kva_pb_node *n = kva_export_node(e, "Shape", 1, call ? &e->formals[i] : &e->names[v->id], NULL);
      kva_export_int(e, n, "start", k);
      kva_export_int(e, n, "end", k + 1);
      return kva_export_out(n);
    }
  }
  return NULL;
}

static const char *write_pair(kva_export *e, const char *op_type, const kva_expr *a, const kva_expr *b) {
  const char *x = write_expr(e, a), *y = write_expr(e, b);
  return x && y ? kva_export_2(e, op_type, x, y) : NULL;
}

static const char *write_sum(kva_export *e, const kva_expr *x) {
  const char *sum = x->constant || !x->n_terms ? kva_export_i64(e, x->constant) : NULL;
  for (uint32_t i = 0; i < x->n_terms; i++) {
    const kva_expr_term *t = &x->terms[i];
    const char *product = t->coefficient != 1 ? kva_export_i64(e, t->coefficient) : NULL;
    for (uint32_t j = 0; j < t->n_factors; j++) {
      const char *factor = write_expr(e, t->factors[j]);
      if (!factor) return NULL;
      product = product ? kva_export_2(e, "Mul", product, factor) : factor;
    }
    sum = sum ? kva_export_2(e, "Add", sum, product) : product;
  }
  return sum;
}

/* Floor division. ONNX's Div rounds to 0, which differs below 0; the remainder of its Mod has the sign of the divisor.
 */
static const char *write_quotient(kva_export *e, const kva_expr *x) {
  int64_t low;
  if (kva_expr_lower_bound(x->a, &low) && low >= 0) return write_pair(e, "Div", x->a, x->b);
  const char *a = write_expr(e, x->a), *b = write_expr(e, x->b);
  return a && b ? kva_export_2(e, "Div", kva_export_2(e, "Sub", a, kva_export_2(e, "Mod", a, b)), b) : NULL;
}

static const char *write_new_expr(kva_export *e, const kva_expr *x) {
  switch (x->kind) {
  case KVA_EXPR_SUM: return write_sum(e, x);
  case KVA_EXPR_SYMBOL:
    (void)kva_fail(e->diag, KVA_UNSUPPORTED, e->body_of ? &e->body_of->loc : NULL,
                   "ONNX export: symbol %s is not the extent of an input", x->name);
    return NULL;
  case KVA_EXPR_DIV: return write_quotient(e, x);
  case KVA_EXPR_MOD: return write_pair(e, "Mod", x->a, x->b);
  case KVA_EXPR_MIN: return write_pair(e, "Min", x->a, x->b);
  case KVA_EXPR_MAX: return write_pair(e, "Max", x->a, x->b);
  case KVA_EXPR_OVERFLOW: break;
  }
  (void)kva_error(e->diag, NULL, "ONNX export: a shape overflows 64 bits");
  return NULL;
}

static const char *write_expr(kva_export *e, const kva_expr *x) {
  const char *known = kva_map_get(e->dims, &x, sizeof x);
  if (known) return known;
  if (!kva_expr_is_const(x, NULL)) known = write_extent(e, x);
  if (!known) known = write_new_expr(e, x);
  if (known) kva_map_set(e->dims, &x, sizeof x, (void *)(uintptr_t)known);
  return known;
}

const char *kva_export_dims(kva_export *e, uint32_t n, const kva_dim *dims) {
  int64_t *v = KVA_NEW_ARRAY(e->arena, int64_t, n + 1);
  uint32_t known = 0;
  while (known < n && kva_expr_is_const(dims[known], &v[known])) known++;
  if (known == n) return kva_export_i64s(e, n, v);
  const char **parts = KVA_NEW_ARRAY(e->arena, const char *, n);
  for (uint32_t i = 0; i < n; i++)
    if (!(parts[i] = write_expr(e, dims[i]))) return NULL;
  return n == 1 ? parts[0] : kva_export_concat(e, n, parts, 0);
}

/* ---- nodes ------------------------------------------------------------------------------------------------------- */

kva_pb_node *kva_export_node(kva_export *e, const char *op_type, uint32_t n_in, const char *const *in,
                             const char *out) {
  kva_pb_node *n = KVA_NEW(e->arena, kva_pb_node);
  onnx__node_proto__init(n);
  n->op_type = kva_arena_strdup(e->arena, op_type);
  while (n_in && !in[n_in - 1]) n_in--;
  n->input = KVA_NEW_ARRAY(e->arena, char *, n_in + 1);
  n->n_input = n_in;
  for (uint32_t i = 0; i < n_in; i++) n->input[i] = kva_arena_strdup(e->arena, in[i] ? in[i] : "");
  kva_export_add_output(e, n, out ? out : kva_export_fresh(e, "t"));
  KVA_PUSH(e->arena, &e->nodes, n);
  return n;
}

const char *kva_export_1(kva_export *e, const char *op_type, const char *x) {
  return kva_export_out(kva_export_node(e, op_type, 1, &x, NULL));
}

const char *kva_export_2(kva_export *e, const char *op_type, const char *x, const char *y) {
  return kva_export_out(kva_export_node(e, op_type, 2, (const char *[]){x, y}, NULL));
}

const char *kva_export_3(kva_export *e, const char *op_type, const char *x, const char *y, const char *z) {
  return kva_export_out(kva_export_node(e, op_type, 3, (const char *[]){x, y, z}, NULL));
}

void kva_export_add_output(kva_export *e, kva_pb_node *n, const char *name) {
  char **list = KVA_NEW_ARRAY(e->arena, char *, n->n_output + 1);
  for (size_t i = 0; i < n->n_output; i++) list[i] = n->output[i];
  list[n->n_output++] = kva_arena_strdup(e->arena, name);
  n->output = list;
}

void kva_export_int(kva_export *e, kva_pb_node *n, const char *name, int64_t v) {
  kva_pb_attr *a = new_attr(e, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INT);
  a->has_i = true;
  a->i = v;
}

void kva_export_float(kva_export *e, kva_pb_node *n, const char *name, double v) {
  kva_pb_attr *a = new_attr(e, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__FLOAT);
  a->has_f = true;
  a->f = (float)v;
}

void kva_export_exact(kva_export *e, kva_pb_node *n, const char *name, double v) {
  if (kva_onnx_decimal((float)v) == v) {
    kva_export_float(e, n, name, v);
    return;
  }
  const void *data = kva_arena_memdup(e->arena, &v, sizeof v);
  new_attr(e, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__TENSOR)->t =
      new_tensor(e, KVA_F64, 0, NULL, data, sizeof v);
}

void kva_export_string(kva_export *e, kva_pb_node *n, const char *name, const char *v) {
  kva_pb_attr *a = new_attr(e, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__STRING);
  a->has_s = true;
  a->s = (ProtobufCBinaryData){.len = strlen(v), .data = (uint8_t *)kva_arena_strdup(e->arena, v)};
}

void kva_export_graph(kva_export *e, kva_pb_node *n, const char *name, kva_pb_graph *g) {
  new_attr(e, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__GRAPH)->g = g;
}

void kva_export_ints(kva_export *e, kva_pb_node *n, const char *name, kva_ints v) {
  kva_pb_attr *a = new_attr(e, n, name, ONNX__ATTRIBUTE_PROTO__ATTRIBUTE_TYPE__INTS);
  a->n_ints = v.n;
  a->ints = v.n ? kva_arena_memdup(e->arena, v.v, v.n * sizeof *v.v) : NULL;
}

/* ---- frequent operators ------------------------------------------------------------------------------------------ */

const char *kva_export_cast(kva_export *e, const char *x, kva_dtype to) {
  kva_pb_node *n = kva_export_node(e, "Cast", 1, &x, NULL);
  kva_export_int(e, n, "to", (int64_t)to);
  return kva_export_out(n);
}

const char *kva_export_slice(kva_export *e, const char *x, int64_t axis, int64_t start, int64_t end, int64_t step) {
  const char *in[] = {x, kva_export_i64(e, start), kva_export_i64(e, end), kva_export_i64(e, axis),
                      kva_export_i64(e, step)};
  return kva_export_out(kva_export_node(e, "Slice", 5, in, NULL));
}

const char *kva_export_concat(kva_export *e, uint32_t n, const char *const *x, int64_t axis) {
  kva_pb_node *node = kva_export_node(e, "Concat", n, x, NULL);
  kva_export_int(e, node, "axis", axis);
  return kva_export_out(node);
}

const char *kva_export_reshape(kva_export *e, const char *x, uint32_t rank, const kva_dim *dims) {
  const char *shape = kva_export_dims(e, rank, dims);
  if (!shape) return NULL;
  kva_pb_node *n = kva_export_node(e, "Reshape", 2, (const char *[]){x, shape}, NULL);
  kva_export_int(e, n, "allowzero", 1); /* dims are final: 0 means 0 */
  return kva_export_out(n);
}

const char *kva_export_unsqueeze(kva_export *e, const char *x, uint32_t n, const int64_t *axes) {
  return kva_export_2(e, "Unsqueeze", x, kva_export_i64s(e, n, axes));
}

const char *kva_export_reduce(kva_export *e, const char *op_type, const char *x, uint32_t n, const int64_t *axes,
                              bool keepdims) {
  const char *in[] = {x, n ? kva_export_i64s(e, n, axes) : NULL};
  kva_pb_node *node = kva_export_node(e, op_type, 2, in, NULL);
  kva_export_int(e, node, "keepdims", keepdims);
  return kva_export_out(node);
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

kva_status kva_export_unsupported(kva_export *e, const kva_node *n, const char *reason) {
  return kva_fail(e->diag, KVA_UNSUPPORTED, &n->loc, "ONNX export: kv.%s: %s", n->op->name, reason);
}

const char *kva_export_result_name(kva_export *e, const kva_node *n, uint32_t i) {
  const char *hint = e->body_of ? "" : n->results[i].name; /* bodies are shared: no names from callers */
  return kva_export_fresh(e, hint && *hint ? hint : n->op->name);
}

void kva_export_set(kva_export *e, const kva_node *n, uint32_t result, const char *name) {
  e->names[n->results[result].id] = name;
}

kva_status kva_export_done(kva_export *e, const kva_node *n, const char *name) {
  if (!name) return KVA_UNSUPPORTED; /* reported where it failed */
  kva_export_set(e, n, 0, name);
  return KVA_OK;
}

const char *kva_export_in(kva_export *e, const kva_node *n, uint32_t i) {
  const kva_value *v = kva_operand(n, i);
  if (!v) return NULL;
  return e->body_of ? e->formals[i] : kva_export_name(e, v);
}

/* Several internal nodes may come from one ONNX node: the first keeps its name, the others get a number. */
void kva_export_name_node(kva_export *e, kva_pb_node *p, const kva_node *n) {
  const char *name = n->loc.node;
  if (!name || !*name || e->body_of) return;
  for (int i = 2; kva_map_get_str(e->node_names, name); i++) name = kva_arena_printf(e->arena, "%s_%d", n->loc.node, i);
  kva_map_set_str(e->node_names, name, p);
  p->name = kva_arena_strdup(e->arena, name);
}

kva_pb_node *kva_export_like(kva_export *e, const kva_node *n, const char *op_type) {
  const char **inputs = KVA_NEW_ARRAY(e->arena, const char *, n->n_operands + 1);
  for (uint32_t i = 0; i < n->n_operands; i++) inputs[i] = kva_export_in(e, n, i);
  kva_pb_node *p = kva_export_node(e, op_type, n->n_operands, inputs, kva_export_result_name(e, n, 0));
  kva_export_set(e, n, 0, kva_export_out(p));
  kva_export_name_node(e, p, n);
  return p;
}
