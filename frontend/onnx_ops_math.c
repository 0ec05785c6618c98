/* Rules: elementwise mathematics, logic, comparison and casts. Before opset 7 binary operators broadcast only on
 * request, their second operand along `axis`; since then they use NumPy's rule, like the internal operators. */
#include "frontend/onnx_strings.h"
#include "ops/ids.h"

kva_status kva_onnx_unary(kva_onnx_call *k) {
  return kva_onnx_done(k, kva_build1(k->b, (kva_op_id)k->arg, kva_onnx_in(k, 0)));
}

kva_status kva_onnx_identity(kva_onnx_call *k) {
  return kva_onnx_done(k, kva_onnx_in(k, 0));
}

kva_status kva_onnx_is_inf(kva_onnx_call *k) {
  kva_is_inf_attrs attrs = {.detect_negative = kva_onnx_int(k, "detect_negative", 1) != 0,
                            .detect_positive = kva_onnx_int(k, "detect_positive", 1) != 0};
  return kva_onnx_done(k, kva_build(k->b, KVA_OP_is_inf, 1, (kva_value *[]){kva_onnx_in(k, 0)}, &attrs));
}

/* ---- casts ------------------------------------------------------------------------------------------------------- */

/* Cast-1 names the type ("FLOAT"); later versions use its code. */
static kva_dtype dtype_from_old_name(const char *name) {
  char lower[32];
  size_t n = strlen(name);
  if (n >= sizeof lower) return KVA_DTYPE_NONE;
  for (size_t i = 0; i <= n; i++) lower[i] = (char)(name[i] >= 'A' && name[i] <= 'Z' ? name[i] + 32 : name[i]);
  return kva_dtype_from_name(lower, n);
}

static kva_status cast_target(kva_onnx_call *k, kva_dtype *out) {
  int64_t to = k->version < 6 && !*k->n->domain ? (int64_t)dtype_from_old_name(kva_onnx_string(k, "to", ""))
                                                : kva_onnx_int(k, "to", 0);
  if (to <= 0 || to >= KVA_DTYPE_COUNT)
    return kva_onnx_fail(k, KVA_INVALID, "attribute 'to': %lld is not a data type", (long long)to);
  *out = (kva_dtype)to;
  return KVA_OK;
}

static kva_status cast_to(kva_onnx_call *k, kva_dtype to) {
  kva_value *x = kva_onnx_in(k, 0);
  const char *rounding = kva_onnx_string(k, "round_mode", "up");
  if (to == KVA_C64 || to == KVA_C128)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "%s tensors are not supported", kva_dtype_name(to));
  if (to == KVA_F8E8M0 && strcmp(rounding, "up")) return kva_onnx_fail(k, KVA_UNSUPPORTED, "round_mode '%s'", rounding);
  if (x->type->dtype == to) return kva_onnx_done(k, x);
  if (to == KVA_STRING) return kva_onnx_done(k, kva_strings_call(k->b, "string_format", NULL, 0, to, 1, &x));
  if (x->type->dtype == KVA_STRING) {
    kva_dtype number = kva_dtype_is_float(to) ? KVA_F64 : KVA_I64;
    x = kva_strings_call(k->b, "string_parse", NULL, 0, number, 1, &x);
  }
  /* integers narrower than a byte wrap, from floats as from wider integers; casts to whole bytes saturate */
  if (kva_dtype_is_float(x->type->dtype) && kva_dtype_is_int(to) && kva_dtype_bits(to) < 8)
    x = kva_cast(k->b, x, KVA_I32);
  kva_cast_attrs attrs = {.to = to, .saturate = kva_onnx_int(k, "saturate", 1) != 0};
  return kva_onnx_done(k, kva_build(k->b, KVA_OP_cast, 1, &x, &attrs));
}

kva_status kva_onnx_cast(kva_onnx_call *k) {
  kva_dtype to = KVA_DTYPE_NONE;
  KVA_TRY(cast_target(k, &to));
  return cast_to(k, to);
}

kva_status kva_onnx_cast_like(kva_onnx_call *k) {
  return cast_to(k, kva_onnx_in(k, 1)->type->dtype);
}

kva_status kva_onnx_bitcast(kva_onnx_call *k) {
  kva_dtype to = KVA_DTYPE_NONE;
  kva_value *x = kva_onnx_in(k, 0);
  KVA_TRY(cast_target(k, &to));
  if (x->type->dtype == to) return kva_onnx_done(k, x);
  if (to == KVA_STRING || x->type->dtype == KVA_STRING)
    return kva_onnx_fail(k, KVA_INVALID, "the bits of a string are no number");
  return kva_onnx_done(k, kva_build(k->b, KVA_OP_bitcast, 1, &x, &(kva_bitcast_attrs){.to = to}));
}

/* ---- two operands ------------------------------------------------------------------------------------------------ */

/* Opsets 1 to 6: operand 1 covers a contiguous run of operand 0's axes from `axis` (default: the last ones). */
static kva_status align_old_broadcast(kva_onnx_call *k, const kva_value *x, kva_value **y) {
  uint32_t rank = x->type->rank, small = (*y)->type->rank;
  if (k->version >= 7 || !kva_onnx_int(k, "broadcast", 0) || !kva_onnx_find_attr(k, "axis")) return KVA_OK;
  int64_t axis = kva_onnx_int(k, "axis", 0);
  if (axis < 0) axis += rank;
  if (small > rank || axis < 0 || axis > rank - small)
    return kva_onnx_fail(k, KVA_INVALID, "operand 1 of rank %u does not fit into rank %u at axis %lld", small, rank,
                         (long long)axis);
  *y = kva_onnx_unsqueeze(k->b, *y, small, rank - small - (uint32_t)axis);
  return KVA_OK;
}

static kva_status build_binary(kva_onnx_call *k, bool swapped) {
  kva_value *x = kva_onnx_in(k, 0), *y = kva_onnx_in(k, 1);
  KVA_TRY(align_old_broadcast(k, x, &y));
  return kva_onnx_done(k, kva_build2(k->b, (kva_op_id)k->arg, swapped ? y : x, swapped ? x : y));
}

kva_status kva_onnx_binary(kva_onnx_call *k) {
  return build_binary(k, false);
}
kva_status kva_onnx_binary_swapped(kva_onnx_call *k) {
  return build_binary(k, true);
}

/* The result has the base's type. An integer base with a float exponent is computed in double and truncated. */
kva_status kva_onnx_pow(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0), *y = kva_onnx_in(k, 1);
  KVA_TRY(align_old_broadcast(k, x, &y));
  kva_dtype result = x->type->dtype;
  bool through_double = !kva_dtype_is_float(result) && kva_dtype_is_float(y->type->dtype);
  if (through_double) x = kva_cast(k->b, x, KVA_F64);
  y = kva_cast(k->b, y, x->type->dtype);
  return kva_onnx_done(k, kva_cast(k->b, kva_build2(k->b, KVA_OP_pow, x, y), result));
}

kva_status kva_onnx_mod(kva_onnx_call *k) {
  kva_mod_attrs attrs = {.fmod = kva_onnx_int(k, "fmod", 0) != 0};
  return kva_onnx_done(k, kva_build(k->b, KVA_OP_mod, 2, k->n->inputs, &attrs));
}

kva_status kva_onnx_bit_shift(kva_onnx_call *k) {
  const char *direction = kva_onnx_string(k, "direction", "");
  bool left = !strcmp(direction, "LEFT");
  if (!left && strcmp(direction, "RIGHT"))
    return kva_onnx_fail(k, KVA_INVALID, "attribute 'direction': expected LEFT or RIGHT, found '%s'", direction);
  return kva_onnx_done(k, kva_build(k->b, KVA_OP_bit_shift, 2, k->n->inputs, &(kva_bit_shift_attrs){.left = left}));
}

/* ---- more operands ----------------------------------------------------------------------------------------------- */

kva_status kva_onnx_where_op(kva_onnx_call *k) {
  return kva_onnx_done(k, kva_onnx_where(k->b, kva_onnx_in(k, 0), kva_onnx_in(k, 1), kva_onnx_in(k, 2)));
}

static kva_status fold_inputs(kva_onnx_call *k, kva_op_id op, kva_value **out) {
  *out = kva_onnx_in(k, 0);
  for (uint32_t i = 1; i < k->n->n_inputs; i++) {
    if (!kva_onnx_in(k, i)) return kva_onnx_fail(k, KVA_INVALID, "input %u is required but was left out", i);
    *out = kva_build2(k->b, op, *out, kva_onnx_in(k, i));
  }
  return KVA_OK;
}

kva_status kva_onnx_variadic(kva_onnx_call *k) {
  kva_value *y;
  KVA_TRY(fold_inputs(k, (kva_op_id)k->arg, &y));
  return kva_onnx_done(k, y);
}

kva_status kva_onnx_mean(kva_onnx_call *k) {
  kva_value *sum;
  KVA_TRY(fold_inputs(k, KVA_OP_add, &sum));
  return kva_onnx_done(k, kva_div(k->b, sum, kva_scalar_like(k->b, sum, k->n->n_inputs)));
}

/* Bounds: attributes before opset 11, optional scalar inputs since. */
static kva_value *clip_bound(kva_onnx_call *k, const char *attr, uint32_t input) {
  if (k->version >= 11) return kva_onnx_in(k, input);
  if (!kva_onnx_find_attr(k, attr)) return NULL;
  return kva_scalar_like(k->b, kva_onnx_in(k, 0), kva_onnx_float(k, attr, 0));
}

kva_status kva_onnx_clip(kva_onnx_call *k) {
  kva_value *x = kva_onnx_in(k, 0), *low = clip_bound(k, "min", 1), *high = clip_bound(k, "max", 2);
  if (low) x = kva_build2(k->b, KVA_OP_max, x, kva_reshape(k->b, low, 0, NULL));
  if (high) x = kva_build2(k->b, KVA_OP_min, x, kva_reshape(k->b, high, 0, NULL));
  return kva_onnx_done(k, x);
}
