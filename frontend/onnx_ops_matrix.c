/* Rules: matrix products. The internal product needs operands of rank 2 or more. */
#include "frontend/onnx_rules.h"
#include "ops/codes.h"
#include "ops/ids.h"

/* NumPy's rule: a vector on the left is a row, one on the right a column; the added axis is removed from the result. */
static kva_value *product_of(kva_builder *b, kva_value *x, kva_value *y) {
  bool row = x->type->rank == 1, column = y->type->rank == 1;
  if (row) x = kva_onnx_unsqueeze(b, x, 0, 1);
  if (column) y = kva_onnx_unsqueeze(b, y, 1, 1);
  kva_value *z = kva_matmul(b, x, y, false, false);
  if (b->failed || (!row && !column)) return z;
  kva_dim dims[KVA_MAX_RANK];
  uint32_t rank = 0, n = z->type->rank;
  for (uint32_t i = 0; i < n; i++)
    if (!(row && i + 2 == n) && !(column && i + 1 == n)) dims[rank++] = z->type->dims[i];
  return kva_reshape(b, z, rank, dims);
}

static kva_status check_ranks(kva_onnx_call *k) {
  for (uint32_t i = 0; i < 2; i++)
    if (!kva_onnx_in(k, i)->type->rank) return kva_onnx_fail(k, KVA_INVALID, "input %u is a scalar", i);
  return KVA_OK;
}

kva_status kva_onnx_matmul(kva_onnx_call *k) {
  KVA_TRY(check_ranks(k));
  return kva_onnx_done(k, product_of(k->b, kva_onnx_in(k, 0), kva_onnx_in(k, 1)));
}

/* A vector of zero points applies to rows of the left or columns of the right operand. */
static kva_value *zero_point(kva_builder *b, kva_value *zero, bool rows) {
  if (zero->type->rank == 1 && kva_expr_is(zero->type->dims[0], 1)) return kva_reshape(b, zero, 0, NULL);
  return rows && zero->type->rank == 1 ? kva_onnx_unsqueeze(b, zero, 1, 1) : zero;
}

/* x - zero point in int32. */
static kva_value *centred(kva_builder *b, kva_value *x, kva_value *zero, bool rows) {
  x = kva_cast(b, x, KVA_I32);
  return zero ? kva_sub(b, x, kva_cast(b, zero_point(b, zero, rows), KVA_I32)) : x;
}

kva_value *kva_onnx_integer_product(kva_builder *b, kva_value *x, kva_value *x_zero, kva_value *y, kva_value *y_zero) {
  bool matrices = x->type->rank >= 2 && y->type->rank >= 2;
  if (matrices && kva_is_byte(x) && kva_is_byte(y)) {
    kva_codes left = {x, x_zero ? zero_point(b, x_zero, true) : NULL};
    kva_codes right = {y, y_zero ? zero_point(b, y_zero, false) : NULL};
    return kva_matmul_codes(b, left, right, &(kva_matmul_attrs){0});
  }
  return product_of(b, centred(b, x, x_zero, true), centred(b, y, y_zero, false));
}

/* The zero points in input i broadcast to operand x: several in a vector to its rows, or columns. */
static kva_status check_zero(kva_onnx_call *k, const kva_value *x, uint32_t i, bool rows) {
  const kva_value *zero = kva_onnx_in(k, i);
  uint32_t rank = zero ? zero->type->rank : 0, after = rows && rank == 1 ? 1 : 0;
  bool larger = rank + after > x->type->rank && !(rank == 1 && kva_expr_is(kva_onnx_dim(zero, 0), 1));
  for (uint32_t d = 0; d < rank && !larger; d++) {
    kva_dim extent = kva_onnx_dim(zero, d);
    if (kva_expr_is(extent, 1)) continue;
    larger = kva_onnx_never_equal(k, extent, kva_onnx_dim(x, x->type->rank - rank - after + d));
  }
  return larger ? kva_onnx_fail(k, KVA_INVALID, "input %u: zero points that do not broadcast to the operand", i)
                : KVA_OK;
}

kva_status kva_onnx_check_zeros(kva_onnx_call *k, uint32_t x, uint32_t x_zero, uint32_t y, uint32_t y_zero) {
  KVA_TRY(check_zero(k, kva_onnx_in(k, x), x_zero, true));
  return check_zero(k, kva_onnx_in(k, y), y_zero, false);
}

kva_status kva_onnx_matmul_integer(kva_onnx_call *k) {
  KVA_TRY(check_ranks(k));
  KVA_TRY(kva_onnx_check_zeros(k, 0, 2, 1, 3));
  kva_value *x_zero = kva_onnx_in(k, 2), *y_zero = kva_onnx_in(k, 3);
  return kva_onnx_done(k, kva_onnx_integer_product(k->b, kva_onnx_in(k, 0), x_zero, kva_onnx_in(k, 1), y_zero));
}

/* alpha * A' B' + beta * C, where C broadcasts. (Before opset 7 `broadcast` must allow that; valid models give the same
 * result.) */
kva_status kva_onnx_gemm(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0), *y = kva_onnx_in(k, 1), *c = kva_onnx_in(k, 2);
  double alpha = kva_onnx_float(k, "alpha", 1), beta = kva_onnx_float(k, "beta", 1);
  if (x->type->rank != 2 || y->type->rank != 2)
    return kva_onnx_fail(k, KVA_INVALID, "expected matrices, found ranks %u and %u", x->type->rank, y->type->rank);
  kva_value *z = kva_matmul(b, x, y, kva_onnx_int(k, "transA", 0) != 0, kva_onnx_int(k, "transB", 0) != 0);
  if (alpha != 1) z = kva_mul(b, z, kva_scalar_like(b, z, alpha));
  if (!c || beta == 0) return kva_onnx_done(k, z);
  if (beta != 1) c = kva_mul(b, c, kva_scalar_like(b, c, beta));
  return kva_onnx_done_like(k, kva_add(b, z, c), z, "C");
}

/* ---- determinant ------------------------------------------------------------------------------------------------- */

enum { MAX_DETERMINANT = 32 };

/* a[N, rows, cols] without its first row and column, or one of them: [from, rows) x [left, right). */
static kva_value *block(kva_builder *b, kva_value *a, int64_t from, int64_t rows, int64_t left, int64_t cols) {
  kva_expr_ctx *e = b->m->exprs;
  a = kva_onnx_slice(b, a, 1, kva_expr_const(e, from), kva_expr_const(e, rows));
  return kva_onnx_slice(b, a, 2, kva_expr_const(e, left), kva_expr_const(e, cols));
}

/* One step of elimination with the largest pivot of the first column: *det is multiplied by the pivot, and the result
 * is the remaining matrix. A pivot of 0 makes the determinant 0. */
static kva_value *eliminate(kva_builder *b, kva_value *a, int64_t m, kva_value **det) {
  kva_expr_ctx *e = b->m->exprs;
  kva_value *column = kva_build1(b, KVA_OP_abs, block(b, a, 0, m, 0, 1)), *first = block(b, a, 0, 1, 0, m);
  kva_value *at = kva_build(b, KVA_OP_argmax, 1, &column, &(kva_argmax_attrs){.axis = 1, .keepdims = true});
  kva_dim row[3] = {kva_onnx_dim(a, 0), kva_expr_const(e, 1), kva_expr_const(e, m)};
  kva_value *chosen = kva_build(b, KVA_OP_gather_elements, 2, (kva_value *[]){a, kva_expand(b, at, 3, row)},
                                &(kva_gather_elements_attrs){.axis = 1});
  kva_value *pivot = block(b, chosen, 0, 1, 0, 1), *zero = kva_scalar_like(b, a, 0);
  kva_value *stays = kva_build2(b, KVA_OP_equal, at, kva_const_scalar(b, KVA_I64, 0));
  *det = kva_mul(b, *det, kva_onnx_where(b, stays, pivot, kva_neg(b, pivot)));
  if (m == 1) return a;
  kva_value *number = kva_onnx_ramp(b, KVA_I64, 3, 1, kva_expr_const(e, m - 1));
  kva_value *swapped = kva_build2(b, KVA_OP_equal, kva_add(b, number, kva_const_scalar(b, KVA_I64, 1)), at);
  kva_value *rest = kva_onnx_where(b, swapped, first, block(b, a, 1, m - 1, 0, m));
  kva_value *factor = kva_div(b, block(b, rest, 0, m - 1, 0, 1), pivot);
  factor = kva_onnx_where(b, kva_build2(b, KVA_OP_equal, pivot, zero), zero, factor);
  return kva_sub(b, block(b, rest, 0, m - 1, 1, m - 1), kva_mul(b, factor, block(b, chosen, 0, 1, 1, m - 1)));
}

kva_status kva_onnx_det(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *x = kva_onnx_in(k, 0);
  uint32_t rank = x->type->rank;
  int64_t n;
  if (rank >= 2) x = kva_onnx_with_extent(k, x, rank - 2, kva_onnx_dim(x, rank - 1), "the matrices of Det");
  if (rank < 2 || kva_onnx_dim(x, rank - 1) != kva_onnx_dim(x, rank - 2))
    return kva_onnx_fail(k, KVA_INVALID, "expected square matrices");
  if (!kva_expr_is_const(kva_onnx_dim(x, rank - 1), &n) || n < 1 || n > MAX_DETERMINANT)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "expected a known number of 1 to %d rows", MAX_DETERMINANT);
  kva_dim dims[3] = {kva_onnx_product(b, x->type->dims, 0, rank - 2), kva_onnx_dim(x, rank - 1),
                     kva_onnx_dim(x, rank - 1)};
  kva_value *a = kva_reshape(b, kva_onnx_widen(b, x), 3, dims), *det = kva_scalar_like(b, a, 1);
  for (int64_t m = n; m > 0; m--) a = eliminate(b, a, m, &det);
  return kva_onnx_done(k, kva_cast(b, kva_reshape(b, det, rank - 2, x->type->dims), x->type->dtype));
}
