/* Rows of a tensor: the elements along one axis or along consecutive axes, for softmax, norms and losses. */
#ifndef KVA_OPS_ROW_H
#define KVA_OPS_ROW_H

#include "ops/build.h"

#include <math.h>

/* Inference of operators that keep x's type and operate along `axis`. */
KVA_MUST_USE kva_status kva_row_infer(kva_module *m, const kva_node *n, int64_t axis, const kva_type **out_types);

/* n rows of len elements, `stride` apart. */
typedef struct kva_rows {
  int64_t n, len, stride;
} kva_rows;
/* Rows along the axes [axis, axis + n_axes). */
kva_rows kva_rows_of(const kva_ref_tensor *x, uint32_t axis, uint32_t n_axes);
static inline int64_t kva_row_offset(const kva_rows *rows, int64_t row) {
  return row / rows->stride * rows->len * rows->stride + row % rows->stride;
}
/* Largest element (NaN if there is one; -inf for no elements), and the sum of exp(x - max). */
double kva_row_max(const kva_rows *rows, const double *x);
double kva_row_exp_sum(const kva_rows *rows, const double *x, double max);

/* A kva_term: exp(x[idx] - max), where `user` points to the kva_kval max. */
kva_kval kva_term_exp(kva_lower *l, const kva_node *n, const kva_expr *const *idx, void *user);

/* Number of elements along the axes [axis, rank) of x, as a float of type t. */
kva_kval kva_row_length(kva_lower *l, const kva_type *x, uint32_t axis, kva_dtype t);
/* 1 / sqrt(x + eps) */
kva_kval kva_inverse_root(kva_lower *l, kva_kval x, double eps);

/* kva_op_info.row_dims of reductions of operand 0 over the axes [axis, rank), and of those over `axis` if it is the
 * last. */
int kva_row_dims_before(const kva_node *n, int64_t axis);
int kva_row_dims_of_last(const kva_node *n, int64_t axis);
/* The axes [axis, rank) as a list, for reductions. */
typedef struct kva_row_axes {
  uint32_t n;
  int64_t v[KVA_MAX_RANK];
} kva_row_axes;
kva_row_axes kva_row_axes_from(int64_t axis, uint32_t rank);
/* Converts a gradient in wide arithmetic to an operand's type: sums over broadcast axes, then rounds. */
kva_value *kva_grad_to(kva_builder *b, kva_value *x, const kva_type *type);

#endif
