/* See codes.h. */
#include "ops/codes.h"
#include "ops/ids.h"
#include "ops/shape.h"

bool kva_is_byte(const kva_value *x) {
  return x->type->dtype == KVA_I8 || x->type->dtype == KVA_U8;
}

/* ---- zero points, in int32; NULL: 0 ------------------------------------------------------------------------------ */

const kva_tensor_data *kva_reshaped_constant(const kva_value *v) {
  while (v->def && kva_is(v->def, KVA_OP_reshape)) v = kva_operand(v->def, 0);
  return kva_constant_of(v);
}

static kva_value *constant(kva_builder *b, kva_dtype dtype, uint32_t rank, const int64_t *dims, const void *data) {
  kva_tensor_data *t = KVA_NEW(b->m->arena, kva_tensor_data);
  *t = (kva_tensor_data){.dtype = dtype, .rank = rank, .data = data};
  t->dims = kva_arena_memdup(b->m->arena, dims, rank * sizeof *dims);
  t->bytes = kva_tensor_elements(t) * kva_dtype_bits(dtype) / 8;
  return kva_const_tensor(b, t);
}

/* The elements of t plus `by`, in v's shape, which is static. */
static kva_value *moved_constant(kva_builder *b, const kva_value *v, const kva_tensor_data *t, int64_t by) {
  int64_t n = kva_tensor_elements(t), dims[KVA_MAX_RANK] = {0};
  bool zero = true;
  int32_t *data = KVA_NEW_ARRAY(b->m->arena, int32_t, n + 1);
  for (int64_t i = 0; i < n; i++) {
    data[i] = (int32_t)(kva_load_i64(t->dtype, t->data, i) + by);
    zero &= !data[i];
  }
  for (uint32_t d = 0; d < v->type->rank; d++) KVA_ASSERT(kva_expr_is_const(v->type->dims[d], &dims[d]));
  return zero ? NULL : constant(b, KVA_I32, v->type->rank, dims, data);
}

/* zero + by */
static kva_value *moved(kva_builder *b, kva_value *zero, int64_t by) {
  const kva_tensor_data *t = zero ? kva_reshaped_constant(zero) : NULL;
  if (t && kva_type_is_static(zero->type)) return moved_constant(b, zero, t, by);
  kva_value *offset = by ? kva_const_scalar(b, KVA_I32, (double)by) : NULL;
  if (!zero || !offset) return zero ? kva_cast(b, zero, KVA_I32) : offset;
  return kva_add(b, kva_cast(b, zero, KVA_I32), offset);
}

static bool is_unsigned(const kva_codes *x) {
  return x->codes->type->dtype == KVA_U8;
}

/* Constant codes with the top bit turned. */
static kva_value *turned_constant(kva_builder *b, const kva_tensor_data *t, kva_dtype to) {
  int64_t n = kva_tensor_elements(t);
  const uint8_t *from = t->data;
  uint8_t *data = KVA_NEW_ARRAY(b->m->arena, uint8_t, n + 1);
  for (int64_t i = 0; i < n; i++) data[i] = from[i] ^ 0x80;
  return constant(b, to, t->rank, t->dims, data);
}

/* Codes of the other sign for the same numbers. The zero point is one in int32 already. */
static void turn_sign(kva_builder *b, kva_codes *x) {
  bool from_unsigned = is_unsigned(x), is_constant = x->codes->def && kva_is(x->codes->def, KVA_OP_constant);
  if (is_constant) {
    x->codes = turned_constant(b, kva_reshaped_constant(x->codes), from_unsigned ? KVA_I8 : KVA_U8);
    x->zero = moved(b, x->zero, from_unsigned ? -128 : 128);
    return;
  }
  kva_value *top = kva_scalar_like(b, x->codes, from_unsigned ? 128 : -128);
  kva_value *turned = kva_build2(b, KVA_OP_bit_xor, x->codes, top);
  kva_bitcast_attrs attrs = {.to = from_unsigned ? KVA_I8 : KVA_U8};
  x->codes = kva_build(b, KVA_OP_bitcast, 1, &turned, &attrs);
  x->zero = moved(b, x->zero, from_unsigned ? -128 : 128);
}

/* n sums over `depth` elements of a constant, whose first ones lie step_n apart, the others step_k. NULL: v is none. */
static kva_value *constant_sums(kva_builder *b, const kva_value *v, int64_t n, int64_t step_n, int64_t depth,
                                int64_t step_k) {
  const kva_tensor_data *t = kva_reshaped_constant(v);
  if (!t) return NULL;
  int32_t *data = KVA_NEW_ARRAY(b->m->arena, int32_t, n + 1);
  for (int64_t i = 0; i < n; i++) {
    uint32_t sum = 0;
    for (int64_t k = 0; k < depth; k++) sum += (uint32_t)kva_load_i64(t->dtype, t->data, i * step_n + k * step_k);
    data[i] = (int32_t)sum;
  }
  return constant(b, KVA_I32, 1, &n, data);
}

/* z - p * sum */
static kva_value *take_off(kva_builder *b, kva_value *z, kva_value *p, kva_value *sum) {
  return kva_sub(b, z, kva_mul(b, p, sum));
}

/* ---- matrices ---------------------------------------------------------------------------------------------------- */

static kva_value *sums_of_matrix(kva_builder *b, const kva_value *v, int64_t axis) {
  int64_t rows, columns;
  if (!kva_expr_is_const(v->type->dims[0], &rows) || !kva_expr_is_const(v->type->dims[1], &columns)) return NULL;
  return axis ? constant_sums(b, v, rows, columns, columns, 1) : constant_sums(b, v, columns, 1, rows, columns);
}

/* Sums along the depth, as a row [.., 1, n] or a column [.., n, 1]. */
static kva_value *sum_along(kva_builder *b, kva_value *x, int64_t depth_from_end, bool row) {
  uint32_t rank = x->type->rank;
  int64_t axis = (int64_t)rank - depth_from_end;
  kva_dim dims[KVA_MAX_RANK], one = kva_expr_const(b->m->exprs, 1);
  memcpy(dims, x->type->dims, rank * sizeof *dims);
  kva_dim n = dims[2 * rank - 3 - axis]; /* of the other one of the last two axes */
  dims[rank - 2] = row ? one : n, dims[rank - 1] = row ? n : one;
  kva_value *sum = row && rank == 2 ? sums_of_matrix(b, x, axis) : NULL;
  if (!sum) sum = kva_reduce(b, KVA_OP_reduce_sum, kva_cast(b, x, KVA_I32), 1, &axis, true);
  return kva_reshape(b, sum, rank, dims);
}

kva_value *kva_matmul_codes(kva_builder *b, kva_codes x, kva_codes y, const kva_matmul_attrs *attrs) {
  kva_matmul_attrs a = *attrs;
  a.to = KVA_I32;
  x.zero = moved(b, x.zero, 0), y.zero = moved(b, y.zero, 0);
  if (is_unsigned(&x) && is_unsigned(&y)) turn_sign(b, &y);
  if (is_unsigned(&x) == is_unsigned(&y)) turn_sign(b, &x);
  kva_value *z = kva_build(b, KVA_OP_matmul, 2, (kva_value *[]){x.codes, y.codes}, &a);
  if (x.zero) z = take_off(b, z, x.zero, sum_along(b, y.codes, a.transpose_b ? 1 : 2, true));
  if (!y.zero) return z;
  kva_value *rows = sum_along(b, x.codes, a.transpose_a ? 2 : 1, false);
  kva_dim depth = x.codes->type->dims[x.codes->type->rank - (a.transpose_a ? 2 : 1)];
  if (x.zero) rows = take_off(b, rows, x.zero, kva_dim_scalar(b, KVA_I32, depth));
  return take_off(b, z, y.zero, rows);
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

/* [M] as [M, 1, ..], which broadcasts along the channels of the result. */
static kva_value *per_channel(kva_builder *b, kva_value *v, uint32_t rank) {
  kva_dim dims[KVA_MAX_RANK];
  if (!v->type->rank) return v;
  dims[0] = v->type->dims[0];
  for (uint32_t d = 1; d + 1 < rank; d++) dims[d] = kva_expr_const(b->m->exprs, 1);
  return kva_reshape(b, v, rank - 1, dims);
}

static kva_value *pad_with(kva_builder *b, kva_value *x, kva_value *with, kva_ints pads) {
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  uint32_t rank = x->type->rank, spatial = rank - 2;
  for (uint32_t d = 0; d < rank; d++) {
    before[d] = kva_expr_const(b->m->exprs, d < 2 ? 0 : pads.v[d - 2]);
    after[d] = kva_expr_const(b->m->exprs, d < 2 ? 0 : pads.v[d - 2 + spatial]);
  }
  kva_pad_attrs attrs = {.before = {rank, before}, .after = {rank, after}};
  return kva_build(b, KVA_OP_pad, 2, (kva_value *[]){x, with}, &attrs);
}

static bool has_pads(kva_ints pads) {
  for (uint32_t i = 0; i < pads.n; i++)
    if (pads.v[i]) return true;
  return false;
}

/* Sums over the weights of each channel of the result. */
static kva_value *sum_of_weights(kva_builder *b, kva_value *w) {
  int64_t axes[KVA_MAX_RANK], n, channels;
  uint32_t rank = w->type->rank;
  for (uint32_t d = 1; d < rank; d++) axes[d - 1] = d;
  kva_value *sum = NULL;
  bool known =
      kva_expr_is_const(kva_type_elements(b->m, w->type), &n) && kva_expr_is_const(w->type->dims[0], &channels);
  if (known && channels > 0) sum = constant_sums(b, w, channels, n / channels, n / channels, 1);
  if (!sum) sum = kva_reduce(b, KVA_OP_reduce_sum, kva_cast(b, w, KVA_I32), rank - 1, axes, false);
  return per_channel(b, sum, rank);
}

/* Sums of x - zero over each window: a convolution with ones, of one channel where there is one group. */
static kva_value *sum_of_windows(kva_builder *b, kva_codes x, kva_value *w, const kva_conv_attrs *attrs) {
  kva_dim dims[KVA_MAX_RANK];
  memcpy(dims, w->type->dims, w->type->rank * sizeof *dims);
  if (attrs->group == 1) dims[0] = kva_expr_const(b->m->exprs, 1);
  kva_value *ones = kva_expand(b, kva_scalar_like(b, w, 1), w->type->rank, dims);
  kva_value *sum = kva_build(b, KVA_OP_conv, 2, (kva_value *[]){x.codes, ones}, attrs);
  if (!x.zero) return sum;
  kva_dim products = kva_shape_product(b->m->exprs, w->type->rank - 1, dims + 1);
  return take_off(b, sum, x.zero, kva_dim_scalar(b, KVA_I32, products));
}

kva_value *kva_conv_codes(kva_builder *b, kva_codes x, kva_codes w, const kva_conv_attrs *attrs) {
  kva_conv_attrs a = *attrs;
  kva_value *around = x.zero ? x.zero : kva_scalar_like(b, x.codes, 0);
  uint32_t rank = w.codes->type->rank;
  a.to = KVA_I32;
  x.zero = moved(b, x.zero, 0), w.zero = moved(b, w.zero, 0);
  if (is_unsigned(&x) && is_unsigned(&w)) turn_sign(b, &w);
  bool turns = is_unsigned(&x) == is_unsigned(&w);
  if ((x.zero || turns) && has_pads(a.pads)) {
    x.codes = pad_with(b, x.codes, around, a.pads);
    a.pads = (kva_ints){0};
  }
  if (turns) turn_sign(b, &x);
  kva_value *z = kva_build(b, KVA_OP_conv, 2, (kva_value *[]){x.codes, w.codes}, &a);
  if (x.zero) z = take_off(b, z, x.zero, sum_of_weights(b, w.codes));
  return w.zero ? take_off(b, z, per_channel(b, w.zero, rank), sum_of_windows(b, x, w.codes, &a)) : z;
}
