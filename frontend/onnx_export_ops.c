/* Exports internal operators as ONNX nodes, according to onnx_export.def. */
#include "frontend/onnx_export.h"
#include "ops/cache_append.h"
#include "ops/ids.h"

#define NEEDS_26 "ONNX has it from opset 26 on: --opset 26"

static kva_status same(kva_export *e, const kva_node *n, const char *op_type) {
  (void)kva_export_like(e, n, op_type);
  return KVA_OK;
}

static kva_status cannot(kva_export *e, const kva_node *n, const char *reason) {
  return kva_export_unsupported(e, n, reason);
}

/* ---- structure --------------------------------------------------------------------------------------------------- */

static bool same_bytes(const void *a, const void *b, size_t n) {
  return !n || !memcmp(a, b, n);
}

static bool is_tensor(const kva_pb_tensor *p, kva_dtype t, uint32_t rank, const int64_t *dims, const void *data,
                      int64_t bytes) {
  return p->data_type == (int32_t)t && p->n_dims == rank && p->raw_data.len == (size_t)bytes &&
         same_bytes(p->dims, dims, rank * sizeof *dims) && same_bytes(p->raw_data.data, data, (size_t)bytes);
}

/* A tensor under a name of its own, as an initialiser: what a file calls its weights, --train and checkpoints do.
 * Branches have constants of their own for a weight that they share; it is one initialiser. */
static const char *export_named(kva_export *e, const char *wanted, kva_dtype t, uint32_t rank, const int64_t *dims,
                                const void *data, int64_t bytes) {
  const kva_pb_tensor *before = e->body_of || !wanted ? NULL : kva_map_get_str(e->named, wanted);
  if (before && is_tensor(before, t, rank, dims, data, bytes)) return before->name;
  const char *name = kva_export_tensor(e, t, rank, dims, data, bytes);
  if (e->body_of || !wanted || kva_map_get_str(e->used_names, wanted)) return name;
  name = kva_export_fresh(e, wanted);
  kva_pb_tensor *p = e->initializers.data[e->initializers.len - 1];
  p->name = (char *)(uintptr_t)name;
  kva_map_set_str(e->named, name, p);
  return name;
}

static kva_status export_constant(kva_export *e, const kva_node *n, const char *op_type) {
  (void)op_type;
  const kva_tensor_data *t = ((const kva_constant_attrs *)n->attrs)->value;
  const char *name = n->results[0].name;
  if (name && kva_module_find_state(e->m, name)) name = NULL; /* which needs it */
  return kva_export_done(e, n, export_named(e, name, t->dtype, t->rank, t->dims, t->data, t->bytes));
}

static const void *state_bytes(kva_export *e, const kva_state *s) {
  if (e->state_data) return e->state_data(e->state_user, s);
  return s->init == KVA_INIT_DATA && s->data ? s->data->data : NULL;
}

static kva_status export_state_read(kva_export *e, const kva_node *n, const char *op_type) {
  (void)op_type;
  const kva_state *s = ((const kva_state_read_attrs *)n->attrs)->state;
  int64_t dims[KVA_MAX_RANK], elements = 1, bytes = 0;
  for (uint32_t i = 0; i < s->type->rank; i++)
    if (!kva_expr_is_const(s->type->dims[i], &dims[i]) || !kva_mul_size(elements, dims[i], &elements))
      return cannot(e, n, "its state has a symbolic shape");
  const void *data = state_bytes(e, s);
  if (!data && s->kind == KVA_STATE_BUFFER) return cannot(e, n, "ONNX has no state that calls change");
  if (!data || !kva_dtype_bytes(s->type->dtype, elements, &bytes))
    return kva_error(e->diag, &n->loc, "ONNX export: state %s has no values; train or load a checkpoint first",
                     s->name);
  return kva_export_done(e, n, export_named(e, s->name, s->type->dtype, s->type->rank, dims, data, bytes));
}

static kva_status export_dims(kva_export *e, const kva_node *n, const char *op_type) {
  (void)op_type;
  const kva_dims_attrs *a = n->attrs;
  const char *v = kva_export_dims(e, a->values.n, a->values.v);
  return kva_export_done(e, n, v && a->scalar ? kva_export_reshape(e, v, 0, NULL) : v);
}

/* Shapes from here on read the symbol from the operand. */
static kva_status export_bind(kva_export *e, const kva_node *n, const char *op_type) {
  (void)op_type;
  const kva_expr *symbol = ((const kva_bind_attrs *)n->attrs)->symbol.v[0], *one = kva_expr_const(e->m->exprs, 1);
  const char *value = kva_export_reshape(e, kva_export_in(e, n, 0), 1, &one);
  kva_map_set(e->dims, &symbol, sizeof symbol, (void *)(uintptr_t)value);
  return KVA_OK;
}

static kva_status export_iota(kva_export *e, const kva_node *n, const char *op_type) {
  (void)op_type;
  const kva_iota_attrs *a = n->attrs;
  kva_dim dims[KVA_MAX_RANK];
  uint32_t axis = (uint32_t)(a->axis < 0 ? a->axis + a->shape.n : a->axis);
  const char *extent = kva_export_dims(e, 1, &a->shape.v[axis]), *shape = kva_export_dims(e, a->shape.n, a->shape.v);
  if (!extent || !shape) return KVA_UNSUPPORTED;
  const char *zero = kva_export_scalar(e, KVA_I64, 0), *one = kva_export_scalar(e, KVA_I64, 1);
  const char *ramp = kva_export_3(e, "Range", zero, kva_export_reshape(e, extent, 0, NULL), one);
  for (uint32_t i = 0; i < a->shape.n; i++) dims[i] = i == axis ? a->shape.v[i] : kva_expr_const(e->m->exprs, 1);
  ramp = kva_export_reshape(e, kva_export_cast(e, ramp, a->dtype), a->shape.n, dims);
  return kva_export_done(e, n, kva_export_2(e, "Expand", ramp, shape));
}

/* ---- elementwise ------------------------------------------------------------------------------------------------- */

static kva_status export_gelu(kva_export *e, const kva_node *n, const char *op_type) {
  kva_export_string(e, kva_export_like(e, n, op_type), "approximate",
                    ((const kva_gelu_attrs *)n->attrs)->tanh ? "tanh" : "none");
  return KVA_OK;
}

static kva_status export_silu(kva_export *e, const kva_node *n, const char *op_type) {
  (void)op_type;
  return kva_export_done(
      e, n, kva_export_2(e, "Mul", kva_export_in(e, n, 0), kva_export_1(e, "Sigmoid", kva_export_in(e, n, 0))));
}

static kva_status export_is_inf(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_is_inf_attrs *a = n->attrs;
  kva_pb_node *p = kva_export_like(e, n, op_type);
  kva_export_int(e, p, "detect_negative", a->detect_negative);
  kva_export_int(e, p, "detect_positive", a->detect_positive);
  return KVA_OK;
}

static kva_status export_cast(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_cast_attrs *a = n->attrs;
  kva_pb_node *p = kva_export_like(e, n, op_type);
  kva_export_int(e, p, "to", (int64_t)a->to);
  if (!a->saturate) kva_export_int(e, p, "saturate", 0);
  return KVA_OK;
}

/* Integers of one width keep their bits in a Cast, which all opsets have. */
static kva_status export_bitcast(kva_export *e, const kva_node *n, const char *op_type) {
  kva_dtype from = kva_operand_type(n, 0)->dtype, to = n->results[0].type->dtype;
  bool integers = kva_dtype_is_int(from) && kva_dtype_is_int(to) && kva_dtype_bits(from) == kva_dtype_bits(to);
  if (!integers && e->opset < KVA_EXPORT_OPSET_26) return cannot(e, n, NEEDS_26);
  kva_export_int(e, kva_export_like(e, n, integers ? "Cast" : op_type), "to", (int64_t)to);
  return KVA_OK;
}

/* ONNX has a zero point for each scale. NULL: there is none, or the number of scales has no form in ONNX. */
static const char *zero_for_scales(kva_export *e, const kva_node *n) {
  const kva_type *scale = kva_operand_type(n, 1);
  const char *zero = kva_operand(n, 2) ? kva_export_in(e, n, 2) : NULL;
  if (!zero || kva_operand_type(n, 2)->rank == scale->rank) return zero;
  const char *shape = kva_export_dims(e, scale->rank, scale->dims);
  return shape ? kva_export_2(e, "Expand", zero, shape) : NULL;
}

/* The operator's result has the type of its scale, which is no double. Where they differ it computes in float, which
 * holds products of 8 bits by a scale of 16 bits. */
static kva_status export_dequantize(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_dequantize_attrs *a = n->attrs;
  kva_dtype result = n->results[0].type->dtype, type = kva_operand_type(n, 1)->dtype;
  if (result == KVA_F64 && (kva_dtype_bits(type) > 16 || kva_dtype_bits(kva_operand_type(n, 0)->dtype) > 8))
    return cannot(e, n, "ONNX dequantises to no doubles; codes of 8 bits with scales of 16 bits would fit float");
  kva_dtype computed = type == result ? type : KVA_F32;
  const char *zero = zero_for_scales(e, n), *scale = kva_export_in(e, n, 1);
  if (kva_operand(n, 2) && !zero) return KVA_UNSUPPORTED;
  if (type != computed) scale = kva_export_cast(e, scale, computed);
  const char *in[] = {kva_export_in(e, n, 0), scale, zero};
  kva_pb_node *p = kva_export_node(e, op_type, zero ? 3 : 2, in, NULL);
  kva_export_int(e, p, "axis", a->axis);
  if (a->block) kva_export_int(e, p, "block_size", a->block);
  const char *y = kva_export_out(p);
  return kva_export_done(e, n, computed == result ? y : kva_export_cast(e, y, result));
}

/* ONNX's Mod of floats truncates: the remainder is exact, and has the sign of x in the place of that of y. */
static const char *floor_mod(kva_export *e, const char *x, const char *y, kva_dtype t) {
  const char *zero = kva_export_scalar(e, t, 0), *in[] = {x, y};
  kva_pb_node *p = kva_export_node(e, "Mod", 2, in, NULL);
  kva_export_int(e, p, "fmod", 1);
  const char *r = kva_export_out(p), *below = kva_export_2(e, "Less", y, zero);
  const char *differ = kva_export_2(e, "Xor", kva_export_2(e, "Less", r, zero), below);
  const char *signed_zero = kva_export_3(e, "Where", below, kva_export_scalar(e, t, -0.0), zero);
  const char *z = kva_export_3(e, "Where", differ, kva_export_2(e, "Add", r, y), r);
  return kva_export_3(e, "Where", kva_export_2(e, "Equal", r, zero), signed_zero, z);
}

static kva_status export_mod(kva_export *e, const kva_node *n, const char *op_type) {
  bool fmod = ((const kva_mod_attrs *)n->attrs)->fmod;
  kva_dtype t = n->results[0].type->dtype;
  if (!fmod && kva_dtype_is_float(t))
    return kva_export_done(e, n, floor_mod(e, kva_export_in(e, n, 0), kva_export_in(e, n, 1), t));
  kva_export_int(e, kva_export_like(e, n, op_type), "fmod", fmod);
  return KVA_OK;
}

/* ONNX Runtime chooses between all types but bools. */
static kva_status export_where(kva_export *e, const kva_node *n, const char *op_type) {
  if (n->results[0].type->dtype != KVA_BOOL) {
    (void)kva_export_like(e, n, op_type);
    return KVA_OK;
  }
  const char *c = kva_export_in(e, n, 0), *no = kva_export_1(e, "Not", c);
  const char *x = kva_export_2(e, "And", c, kva_export_in(e, n, 1));
  return kva_export_done(e, n, kva_export_2(e, "Or", x, kva_export_2(e, "And", no, kva_export_in(e, n, 2))));
}

/* ONNX shifts unsigned integers. A number below 0 is shifted to the right as its complement. */
static kva_status export_bit_shift(kva_export *e, const kva_node *n, const char *op_type) {
  bool left = ((const kva_bit_shift_attrs *)n->attrs)->left;
  const char *direction = left ? "LEFT" : "RIGHT", *x = kva_export_in(e, n, 0), *sign = NULL;
  kva_dtype t = n->results[0].type->dtype;
  if (kva_dtype_is_unsigned(t)) {
    kva_export_string(e, kva_export_like(e, n, op_type), "direction", direction);
    return KVA_OK;
  }
  if (!left) {
    sign = kva_export_1(e, "Neg", kva_export_cast(e, kva_export_2(e, "Less", x, kva_export_scalar(e, t, 0)), t));
    x = kva_export_2(e, "BitwiseXor", x, sign);
  }
  const char *in[] = {kva_export_cast(e, x, KVA_U64), kva_export_cast(e, kva_export_in(e, n, 1), KVA_U64)};
  kva_pb_node *p = kva_export_node(e, op_type, 2, in, NULL);
  kva_export_string(e, p, "direction", direction);
  x = kva_export_cast(e, kva_export_out(p), t);
  return kva_export_done(e, n, sign ? kva_export_2(e, "BitwiseXor", x, sign) : x);
}

/* ---- reductions -------------------------------------------------------------------------------------------------- */

static kva_status export_reduce(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_reduce_attrs *a = n->attrs;
  return kva_export_done(e, n,
                         kva_export_reduce(e, op_type, kva_export_in(e, n, 0), a->axes.n, a->axes.v, a->keepdims));
}

static kva_status export_arg(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_arg_attrs *a = n->attrs;
  kva_pb_node *p = kva_export_like(e, n, op_type);
  kva_export_int(e, p, "axis", a->axis);
  kva_export_int(e, p, "keepdims", a->keepdims);
  kva_export_int(e, p, "select_last_index", a->select_last);
  return KVA_OK;
}

static kva_status export_cumsum(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_cumsum_attrs *a = n->attrs;
  const char *inputs[] = {kva_export_in(e, n, 0), kva_export_scalar(e, KVA_I64, (double)a->axis)};
  kva_pb_node *p = kva_export_node(e, op_type, 2, inputs, NULL);
  kva_export_int(e, p, "exclusive", a->exclusive);
  kva_export_int(e, p, "reverse", a->reverse);
  return kva_export_done(e, n, kva_export_out(p));
}

static kva_status export_cumprod(kva_export *e, const kva_node *n, const char *op_type) {
  return e->opset < KVA_EXPORT_OPSET_26 ? cannot(e, n, NEEDS_26) : export_cumsum(e, n, op_type);
}

/* TopK gives the values first, which are not used: of bfloat16, which opset 21 does not sort, float has the order. */
static kva_status export_top_k(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_top_k_attrs *a = n->attrs;
  bool narrow = kva_operand_type(n, 0)->dtype == KVA_BF16;
  const char *x = kva_export_in(e, n, 0);
  const char *inputs[] = {narrow ? kva_export_cast(e, x, KVA_F32) : x, kva_export_dims(e, 1, &a->count)};
  if (!inputs[1]) return KVA_INVALID;
  kva_pb_node *p = kva_export_node(e, op_type, 2, inputs, NULL);
  kva_export_int(e, p, "axis", a->axis);
  kva_export_int(e, p, "largest", !a->smallest);
  const char *indices = kva_export_result_name(e, n, 0);
  kva_export_add_output(e, p, indices);
  kva_export_set(e, n, 0, indices);
  return KVA_OK;
}

/* ---- movement ---------------------------------------------------------------------------------------------------- */

/* Types of less than 8 bits, which ONNX slices not and ONNX Runtime hardly moves, are moved as wider ones. */
static bool is_narrow(const kva_node *n) {
  return kva_dtype_bits(n->results[0].type->dtype) < 8;
}

static const char *wide_operand(kva_export *e, const kva_node *n) {
  const char *x = kva_export_in(e, n, 0);
  if (!is_narrow(n)) return x;
  return kva_export_cast(e, x, kva_dtype_is_float(n->results[0].type->dtype) ? KVA_F32 : KVA_I8);
}

static kva_status wide_done(kva_export *e, const kva_node *n, const char *y) {
  return kva_export_done(e, n, y && is_narrow(n) ? kva_export_cast(e, y, n->results[0].type->dtype) : y);
}

static kva_status export_reshape(kva_export *e, const kva_node *n, const char *op_type) {
  (void)op_type;
  const kva_reshape_attrs *a = n->attrs;
  return wide_done(e, n, kva_export_reshape(e, wide_operand(e, n), a->shape.n, a->shape.v));
}

static kva_status export_expand(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_expand_attrs *a = n->attrs;
  const char *shape = kva_export_dims(e, a->shape.n, a->shape.v);
  return kva_export_done(e, n, shape ? kva_export_2(e, op_type, kva_export_in(e, n, 0), shape) : NULL);
}

static kva_status export_transpose(kva_export *e, const kva_node *n, const char *op_type) {
  kva_export_ints(e, kva_export_like(e, n, op_type), "perm", ((const kva_transpose_attrs *)n->attrs)->perm);
  return KVA_OK;
}

/* The end of a slice is one past its last element. Where that is the end of x, it is the largest number: of T - 1 to T
 * a reader does not know that this is one element, of -1 to the end it does. Before the first element, -1 would mean
 * the last one: it is the least number, or where the last element may be any, counted from the end. A reader that does
 * not know the extent cannot tell of the latter which element it means. */
static kva_dim slice_end(kva_expr_ctx *c, kva_dim last, int64_t step, kva_dim extent) {
  kva_dim before = kva_expr_addi(c, last, -1), end = kva_expr_addi(c, last, 1);
  if (step > 0) return end == extent ? kva_expr_const(c, INT64_MAX) : end;
  if (kva_expr_is(last, 0)) return kva_expr_const(c, INT64_MIN);
  return kva_expr_provably_le(c, kva_expr_const(c, 0), before) ? before : kva_expr_sub(c, before, extent);
}

static kva_status export_slice(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_slice_attrs *a = n->attrs;
  const kva_type *x = kva_operand(n, 0)->type;
  kva_expr_ctx *c = e->m->exprs;
  kva_dim starts[KVA_MAX_RANK], ends[KVA_MAX_RANK];
  int64_t axes[KVA_MAX_RANK], steps[KVA_MAX_RANK];
  for (uint32_t i = 0; i < x->rank; i++) {
    steps[i] = a->steps.n ? a->steps.v[i] : 1;
    axes[i] = i;
    kva_dim span = kva_expr_muli(c, kva_expr_addi(c, a->shape.v[i], -1), steps[i]);
    kva_dim last = kva_expr_add(c, a->starts.v[i], span);
    bool from_end = a->starts.v[i] == kva_expr_addi(c, x->dims[i], -1);
    starts[i] = from_end ? kva_expr_const(c, -1) : a->starts.v[i];
    ends[i] = kva_expr_is(a->shape.v[i], 0) ? starts[i] : slice_end(c, last, steps[i], x->dims[i]);
  }
  const char *from = kva_export_dims(e, x->rank, starts), *to = kva_export_dims(e, x->rank, ends);
  if (!from || !to) return KVA_UNSUPPORTED;
  const char *inputs[] = {wide_operand(e, n), from, to, kva_export_i64s(e, x->rank, axes),
                          kva_export_i64s(e, x->rank, steps)};
  return wide_done(e, n, kva_export_out(kva_export_node(e, op_type, 5, inputs, NULL)));
}

/* NULL: an amount has no form in ONNX. */
static const char *pad_to(kva_export *e, const char *op_type, const char *mode, const char *x, const kva_pad_attrs *a,
                          const char *value) {
  const char *before = kva_export_dims(e, a->before.n, a->before.v),
             *after = kva_export_dims(e, a->after.n, a->after.v);
  if (!before || !after) return NULL;
  const char *inputs[] = {x, kva_export_concat(e, 2, (const char *[]){before, after}, 0), value};
  kva_pb_node *p = kva_export_node(e, op_type, 3, inputs, NULL);
  kva_export_string(e, p, "mode", mode);
  return kva_export_out(p);
}

/* The amounts above 0, or those below; false: there are none. */
static bool amounts_of(kva_export *e, const kva_pad_attrs *a, bool above, kva_dim *before, kva_dim *after) {
  kva_expr_ctx *c = e->m->exprs;
  kva_dim zero = kva_expr_const(c, 0);
  bool any = false;
  for (uint32_t i = 0; i < a->before.n; i++) {
    before[i] = above ? kva_expr_max(c, a->before.v[i], zero) : kva_expr_min(c, a->before.v[i], zero);
    after[i] = above ? kva_expr_max(c, a->after.v[i], zero) : kva_expr_min(c, a->after.v[i], zero);
    any |= before[i] != zero || after[i] != zero;
  }
  return any;
}

/* Modes other than constant repeat x before it is cropped, as two nodes say: ONNX Runtime crops first in one. */
static kva_status export_pad(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_pad_attrs *a = n->attrs;
  const char *mode = a->mode ? a->mode : "constant", *y = kva_export_in(e, n, 0), *value = kva_export_in(e, n, 1);
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  const kva_pad_attrs part = {.before = {a->before.n, before}, .after = {a->after.n, after}};
  if (!strcmp(mode, "constant") || !amounts_of(e, a, false, before, after)) {
    y = pad_to(e, op_type, mode, y, a, value);
    return y ? kva_export_done(e, n, y) : KVA_UNSUPPORTED;
  }
  if (amounts_of(e, a, true, before, after)) y = pad_to(e, op_type, mode, y, &part, NULL);
  amounts_of(e, a, false, before, after);
  if (y) y = pad_to(e, op_type, "constant", y, &part, NULL);
  return y ? kva_export_done(e, n, y) : KVA_UNSUPPORTED;
}

/* Operators whose attribute `axis` is ONNX's. */
static kva_status export_axis(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_attr_field *axis = kva_attrs_find(n->op->attrs, "axis", 4);
  KVA_ASSERT(axis && axis->kind == KVA_ATTR_INT);
  kva_export_int(e, kva_export_like(e, n, op_type), "axis", *(const int64_t *)((const char *)n->attrs + axis->offset));
  return KVA_OK;
}

static kva_status export_gather_nd(kva_export *e, const kva_node *n, const char *op_type) {
  kva_export_int(e, kva_export_like(e, n, op_type), "batch_dims", ((const kva_gather_nd_attrs *)n->attrs)->batch_dims);
  return KVA_OK;
}

static kva_status export_scatter_elements(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_scatter_elements_attrs *a = n->attrs;
  kva_pb_node *p = kva_export_like(e, n, op_type);
  kva_export_int(e, p, "axis", a->axis);
  if (a->reduction) kva_export_string(e, p, "reduction", a->reduction);
  return KVA_OK;
}

static kva_status export_scatter_nd(kva_export *e, const kva_node *n, const char *op_type) {
  const kva_scatter_nd_attrs *a = n->attrs;
  kva_pb_node *p = kva_export_like(e, n, op_type);
  if (a->reduction) kva_export_string(e, p, "reduction", a->reduction);
  return KVA_OK;
}

/* The rows of a cache that is one tensor for each sequence. */
static kva_status export_cache_append(kva_export *e, const kva_node *n, const char *op_type) {
  if (n->n_operands > KVA_CACHE_PAGES) return cannot(e, n, "caches in pages have no ONNX form");
  if (e->opset < KVA_EXPORT_OPSET_CACHES) return cannot(e, n, "caches need opset 24");
  kva_export_int(e, kva_export_like(e, n, op_type), "axis", kva_cache_axis(n));
  return KVA_OK;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

typedef struct export_row {
  kva_export_fn write;
  const char *op_type;   /* the reason for `cannot` */
  const char *signature; /* set: a call of the function ai.kvasir::<op_type>, whose body `write` produces */
} export_row;

#define TRAINING       "training graphs have no ONNX form here; export the inference module"
#define RANDOM         "it draws numbers from a state, which ONNX has not"
#define MADE_BY_PASSES "passes make it for compiled code; export before passes"

#define NODE(op_type)                      same, op_type, NULL
#define WRITE(function, op_type)           function, op_type, NULL
#define CALL(function, op_type, signature) function, op_type, signature
#define NEVER(reason)                      cannot, reason, NULL

#define EXPORT(op, ...) static const export_row row_of_##op = {__VA_ARGS__};
#include "frontend/onnx_export.def"
#undef EXPORT

static const export_row *const rows[KVA_OP_COUNT] = {
#define OP(op, ...) [KVA_OP_##op] = &row_of_##op,
#include "ops/ops.def"
#undef OP
};

kva_status kva_export_op(kva_export *e, const kva_node *n) {
  const export_row *row = rows[n->op->id];
  return row->signature ? kva_export_call(e, n, row->op_type, row->signature, row->write)
                        : row->write(e, n, row->op_type);
}
