/* dequantize(q, scale, zero): y = (q - zero) * scale, ONNX DequantizeLinear. q holds integers of at most 32 bits or
 * 8-bit floats, which have no zero. scale and zero have one shape:
 *
 *   block > 0            one for each `block` elements along `axis`; the last block may be shorter
 *   vector, block = 0    one for each index of `axis`
 *   scalar               one for all; beside scales of blocks zero alone may be so
 *
 * to: type of the result; absent: scale's. No gradient: scales do not train. Tolerance 2: integers above 2^24 round to
 * float, then the product rounds; the difference is exact. */
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(dequantize)

typedef struct layout {
  uint32_t axis;
  int64_t block;
} layout;

static layout layout_of(const kva_node *n) {
  const kva_dequantize_attrs *a = n->attrs;
  const kva_type *q = kva_operand_type(n, 0);
  return (layout){q->rank ? kva_axis(a->axis, q->rank) : 0, a->block};
}

static kva_status check_types(kva_module *m, const kva_node *n) {
  kva_dtype q = kva_operand_type(n, 0)->dtype;
  int bits = kva_dtype_bits(q);
  if (kva_dtype_is_float(q) ? bits > 8 : !kva_dtype_is_int(q) || bits > 32)
    return kva_operand_error(m, n, 0, "expected integers of at most 32 bits or 8-bit floats, found %s",
                             kva_dtype_name(q));
  KVA_TRY(kva_check_float(m, n, 1));
  if (!kva_operand(n, 2)) return KVA_OK;
  if (kva_dtype_is_float(q)) return kva_operand_error(m, n, 2, "%s has no zero point", kva_dtype_name(q));
  KVA_TRY(kva_check_int(m, n, 2));
  const kva_type *scale = kva_operand_type(n, 1);
  if (((const kva_dequantize_attrs *)n->attrs)->block && !kva_operand_type(n, 2)->rank) return KVA_OK;
  return kva_check_shape(m, n, 2, scale->rank, scale->dims);
}

static kva_status check_scale(kva_module *m, const kva_node *n) {
  const kva_type *q = kva_operand_type(n, 0), *scale = kva_operand_type(n, 1);
  const kva_dequantize_attrs *a = n->attrs;
  uint32_t axis;
  kva_dim dims[KVA_MAX_RANK];
  if (a->block < 0) return kva_error(m->diag, &n->loc, "kv.dequantize: blocks of %lld elements", (long long)a->block);
  if (!scale->rank && !a->block) return KVA_OK;
  KVA_TRY(kva_normalize_axis(m, n, a->axis, q->rank, &axis));
  if (!a->block) return kva_check_shape(m, n, 1, 1, &q->dims[axis]);
  memcpy(dims, q->dims, sizeof *dims * q->rank);
  dims[axis] = kva_expr_ceildiv(m->exprs, q->dims[axis], kva_expr_const(m->exprs, a->block));
  return kva_check_shape(m, n, 1, q->rank, dims);
}

kva_status kva_dequantize_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(check_types(m, n));
  KVA_TRY(check_scale(m, n));
  kva_dtype to = ((const kva_dequantize_attrs *)n->attrs)->to;
  if (to && !kva_dtype_is_float(to))
    return kva_error(m->diag, &n->loc, "kv.dequantize: expected a float type as result, found %s", kva_dtype_name(to));
  out_types[0] = kva_type_with_dtype(m, kva_operand_type(n, 0), to ? to : kva_operand_type(n, 1)->dtype);
  return KVA_OK;
}

kva_value *kva_dequantize_permute(kva_builder *b, const kva_node *n, kva_value *const *operands,
                                  const uint32_t *moved) {
  kva_dequantize_attrs attrs = *(const kva_dequantize_attrs *)n->attrs;
  attrs.axis = moved[layout_of(n).axis];
  return kva_build(b, KVA_OP_dequantize, n->n_operands, operands, &attrs);
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

/* Where the scale of an element is, or its zero point. */
static int64_t scale_offset(const kva_node *n, const kva_ref_tensor *scale, const int64_t *idx) {
  layout l = layout_of(n);
  int64_t at[KVA_MAX_RANK];
  if (!scale->rank) return 0;
  if (!l.block) return idx[l.axis];
  memcpy(at, idx, sizeof *at * scale->rank);
  at[l.axis] /= l.block;
  return kva_ref_offset(scale, at);
}

kva_status kva_dequantize_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                              kva_ref_tensor *const *out) {
  (void)r;
  const kva_ref_tensor *q = in[0], *scale = in[1], *zero = n->n_operands > 2 ? in[2] : NULL;
  int64_t idx[KVA_MAX_RANK] = {0};
  for (int64_t i = 0; i < q->n; i++, kva_next_index(q->rank, q->dims, idx)) {
    double from = zero ? (double)zero->i[scale_offset(n, zero, idx)] : 0;
    out[0]->f[i] = (kva_ref_tensor_get(q, i) - from) * scale->f[scale_offset(n, scale, idx)];
  }
  return KVA_OK;
}

/* ---- code -------------------------------------------------------------------------------------------------------- */

/* The scale (1) or zero point (2) of element idx. */
static kva_kval of_scale(kva_lower *l, const kva_node *n, uint32_t operand, const kva_expr *const *idx) {
  layout where = layout_of(n);
  const kva_expr *at[KVA_MAX_RANK];
  uint32_t rank = kva_operand_type(n, operand)->rank;
  memcpy(at, idx, sizeof *at * rank);
  if (rank && !where.block) at[0] = idx[where.axis];
  if (rank && where.block)
    at[where.axis] = kva_expr_div(l->kb->exprs, idx[where.axis], kva_expr_const(l->kb->exprs, where.block));
  return l->operand(l, n, operand, at);
}

/* A value of at most 8 bits as a field of a word of 32 bits. */
typedef struct field {
  kva_kval word;
  int64_t bit, bits; /* the lowest one, their number */
  bool is_signed;
} field;

static bool shifts(kva_kval v, kva_kop op, int64_t *out_by) {
  if (v->op != op || kva_dtype_bits(v->dtype) != 32 || v->args[1]->op != KVA_K_CONST) return false;
  *out_by = v->args[1]->imm.i;
  return true;
}

/* q is a field at a known place of a word, as kv.unpack extracts it. */
static bool field_of(kva_kval q, field *out) {
  int64_t right, left = 0;
  if (q->op != KVA_K_CONVERT || !shifts(q->args[0], KVA_K_shr, &right) || right < 24 || right > 31) return false;
  kva_kval v = q->args[0]->args[0];
  if (shifts(v, KVA_K_shl, &left)) v = v->args[0];
  *out = (field){v, right - left, 32 - right, !kva_dtype_is_unsigned(q->args[0]->dtype)};
  return left >= 0 && left <= right;
}

enum { MANTISSA = 23, BIAS = 127 };

/* By how much to shift the word to the right, so that the field lies in the mantissa of a float. Few different ones, so
 * that fields share them. */
static int64_t shift_into_mantissa(const field *f) {
  static const int64_t shifts_right[] = {0, 12, 16};
  size_t i = 0;
  while (f->bit < shifts_right[i] || f->bit - shifts_right[i] + f->bits > MANTISSA) i++;
  return shifts_right[i];
}

/* The field + *out_offset, exactly: as the lower bits of the mantissa of a power of two. Costs a bitwise operation, and
 * one shift for several fields, where extraction and conversion cost two and one for each. */
static kva_kval float_of_field(kva_kb *b, const field *f, double *out_offset) {
  int64_t by = shift_into_mantissa(f), at = f->bit - by, mask = (INT64_C(1) << f->bits) - 1;
  int64_t sign = f->is_signed ? INT64_C(1) << (f->bits - 1) : 0; /* flipped, a signed code is larger by it */
  *out_offset = (double)((INT64_C(1) << (MANTISSA - at)) + sign);
  kva_kval v = kva_k_convert(b, f->word, KVA_U32);
  if (by) v = kva_k2(b, KVA_K_shr, v, kva_k_const_i(b, KVA_U32, by));
  v = kva_k2(b, KVA_K_and, v, kva_k_const_i(b, KVA_U32, mask << at));
  v = kva_k2(b, KVA_K_xor, v, kva_k_const_i(b, KVA_U32, (BIAS + MANTISSA - at) << MANTISSA | sign << at));
  return kva_k_bitcast(b, v, KVA_F32);
}

/* q - zero of a field. Both are integers of few bits, so differences are exact in any order. */
static kva_kval difference_of_field(kva_kb *b, const field *f, kva_kval zero) {
  double offset;
  kva_kval q = float_of_field(b, f, &offset), by = kva_k_const(b, KVA_F32, offset);
  if (zero) by = kva_k2(b, KVA_K_add, kva_k_convert(b, zero, KVA_F32), by);
  return kva_k2(b, KVA_K_sub, q, by);
}

/* Fields of few bits convert by a table where the target has one (codegen/llvm_permute.c): an instruction less. */
static kva_kval difference(kva_lower *l, kva_kval q, kva_kval zero, kva_dtype type) {
  kva_kb *b = l->kb;
  field f;
  bool small_zero = !zero || kva_dtype_bits(zero->dtype) <= 8;
  if (type == KVA_F32 && small_zero && field_of(q, &f)) {
    if (!kva_target_looks_up(l->target, f.bits)) return difference_of_field(b, &f, zero);
    kva_kval x = kva_k_convert(b, q, type);
    return zero ? kva_k2(b, KVA_K_sub, x, kva_k_convert(b, zero, type)) : x;
  }
  if (zero) q = kva_k2(b, KVA_K_sub, kva_k_convert(b, q, KVA_I32), kva_k_convert(b, zero, KVA_I32));
  return kva_k_convert(b, q, type);
}

int64_t kva_dequantize_factor_block(const kva_node *n, uint32_t axis) {
  layout l = layout_of(n);
  return axis == l.axis ? l.block : 0;
}

kva_kval kva_dequantize_lower_factor(kva_lower *l, const kva_node *n, const kva_expr *const *idx) {
  return kva_k_convert(l->kb, of_scale(l, n, 1, idx), kva_k_compute_type(n->results[0].type->dtype));
}

kva_kval kva_dequantize_lower_rest(kva_lower *l, const kva_node *n, const kva_expr *const *idx) {
  kva_kval q = l->operand(l, n, 0, idx), zero = kva_operand(n, 2) ? of_scale(l, n, 2, idx) : NULL;
  return difference(l, q, zero, kva_k_compute_type(n->results[0].type->dtype));
}

/* Codes of few bits are close to their zero point, so what cancels is little, and subtracting is a quarter of their
 * instructions. */
bool kva_dequantize_has_zero(const kva_node *n) {
  return kva_operand(n, 2) && kva_dtype_bits(kva_operand_type(n, 0)->dtype) < 8;
}

kva_kval kva_dequantize_lower_code(kva_lower *l, const kva_node *n, const kva_expr *const *idx) {
  return difference(l, l->operand(l, n, 0, idx), NULL, kva_k_compute_type(n->results[0].type->dtype));
}

kva_kval kva_dequantize_lower_zero(kva_lower *l, const kva_node *n, const kva_expr *const *idx) {
  return kva_k_convert(l->kb, of_scale(l, n, 2, idx), kva_k_compute_type(n->results[0].type->dtype));
}

kva_kval kva_dequantize_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  kva_kval rest = kva_dequantize_lower_rest(l, n, idx);
  return kva_k2(l->kb, KVA_K_mul, rest, kva_dequantize_lower_factor(l, n, idx));
}

int kva_dequantize_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  layout l = layout_of(n);
  if (!operand) return (int)axis;
  if (!kva_operand_type(n, operand)->rank) return KVA_SAME_FOR_ALL;
  if (l.block) return axis == l.axis ? KVA_MIXED : (int)axis;
  return axis == l.axis ? 0 : KVA_SAME_FOR_ALL;
}
