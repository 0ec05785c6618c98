/* top_k(x) -> indices (int64): the positions of the first `count` elements along `axis` in descending order, or with
 * `smallest` in ascending order. Equal elements keep their order; NaN counts as the greatest. Gradient: zero, since
 * positions do not move with x; values are gathered by the positions. A count beyond the extent is an error in the
 * reference and gives any positions in compiled code. Exact: comparisons. */
#include "ops/check.h"
#include "ops/facts.h"
#include "ops/incremental.h"
#include "ops/row.h"

#include <math.h>

KVA_OP_FUNCTIONS(top_k)

static uint32_t axis_of(const kva_node *n) {
  return kva_axis(((const kva_top_k_attrs *)n->attrs)->axis, kva_operand_type(n, 0)->rank);
}

kva_status kva_top_k_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_top_k_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  kva_dim dims[KVA_MAX_RANK];
  int64_t count, extent;
  uint32_t axis;
  KVA_TRY(kva_check_class(m, n, 0));
  KVA_TRY(kva_normalize_axis(m, n, a->axis, x->rank, &axis));
  if (!a->count) return kva_error(m->diag, &n->loc, "kv.%s: attribute count is missing", n->op->name);
  if (kva_expr_is_const(a->count, &count) && kva_expr_is_const(x->dims[axis], &extent) && (count < 0 || count > extent))
    return kva_operand_error(m, n, 0, "axis %u has %lld elements; count is %lld", axis, (long long)extent,
                             (long long)count);
  for (uint32_t d = 0; d < x->rank; d++) dims[d] = d == axis ? a->count : x->dims[d];
  out_types[0] = kva_type_tensor(m, KVA_I64, x->rank, dims);
  return KVA_OK;
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

static bool is_greater(const kva_ref_tensor *x, int64_t a, int64_t b) {
  if (x->f) return x->f[a] > x->f[b] || (isnan(x->f[a]) && !isnan(x->f[b]));
  return x->dtype == KVA_U64 ? (uint64_t)x->i[a] > (uint64_t)x->i[b] : x->i[a] > x->i[b];
}

/* Inserts position `at` of a row of x into the `held` positions, in order. */
static void insert(const kva_ref_tensor *x, const kva_rows *in, int64_t offset, const kva_rows *out, int64_t *positions,
                   int64_t held, int64_t at, bool smallest) {
  int64_t place = held, here = offset + at * in->stride;
  for (; place > 0; place--) {
    int64_t other = offset + positions[(place - 1) * out->stride] * in->stride;
    if (smallest ? !is_greater(x, other, here) : !is_greater(x, here, other)) break;
    if (place < out->len) positions[place * out->stride] = positions[(place - 1) * out->stride];
  }
  if (place < out->len) positions[place * out->stride] = at;
}

kva_status kva_top_k_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  const kva_top_k_attrs *a = n->attrs;
  uint32_t axis = axis_of(n);
  kva_rows from = kva_rows_of(in[0], axis, 1), to = kva_rows_of(out[0], axis, 1);
  if (to.len > from.len)
    return kva_error(r->diag, &n->loc, "kv.%s: axis %u has %lld elements; count is %lld", n->op->name, axis,
                     (long long)from.len, (long long)to.len);
  for (int64_t i = 0; i < from.n && to.len; i++) {
    int64_t *positions = out[0]->i + kva_row_offset(&to, i), offset = kva_row_offset(&from, i);
    for (int64_t at = 0; at < from.len; at++)
      insert(in[0], &from, offset, &to, positions, at < to.len ? at : to.len, at, a->smallest);
  }
  return KVA_OK;
}

int kva_top_k_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  (void)operand;
  return axis == axis_of(n) ? KVA_MIXED : (int)axis;
}
