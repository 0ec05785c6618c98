/* Implements pool.h. */
#include "ops/facts.h"
#include "ops/incremental.h"
#include "ops/pool.h"
#include "ops/check.h"

kva_status kva_pool_infer(kva_module *m, const kva_node *n, const kva_window *w, const kva_type **out_type) {
  const kva_type *x = kva_operand_type(n, 0);
  kva_dim dims[KVA_MAX_RANK] = {x->dims[0], x->dims[1]};
  KVA_TRY(kva_window_extents(m, n, w, x->dims + 2, dims + 2));
  *out_type = kva_type_tensor(m, x->dtype, x->rank, dims);
  return KVA_OK;
}

kva_status kva_pool_grad_infer(kva_module *m, const kva_node *n, uint32_t i, const kva_window *w, kva_dims spatial,
                               const kva_type **out_type) {
  const kva_type *dy = kva_operand_type(n, i);
  if (spatial.n != dy->rank - 2) {
    return kva_error(m->diag, &n->loc, "%s: expected %u spatial extents, found %u", n->op->name, dy->rank - 2,
                     spatial.n);
  }
  kva_dim y[KVA_MAX_RANK] = {dy->dims[0], dy->dims[1]}, x[KVA_MAX_RANK] = {dy->dims[0], dy->dims[1]};
  KVA_TRY(kva_window_extents(m, n, w, spatial.v, y + 2));
  KVA_TRY(kva_check_shape(m, n, i, dy->rank, y));
  memcpy(x + 2, spatial.v, sizeof(*x) * spatial.n);
  *out_type = kva_type_tensor(m, dy->dtype, dy->rank, x);
  return KVA_OK;
}

int64_t kva_avg_pool_count(const kva_window *w, const int64_t *in, const int64_t *o, bool include_pad) {
  int64_t count = 1;
  for (uint32_t i = 0; i < w->n; i++) {
    int64_t lo = include_pad ? -w->before[i] : 0, hi = include_pad ? in[i] + w->after[i] : in[i], taps = 0;
    for (int64_t k = 0; k < w->kernel[i]; k++) {
      int64_t at = kva_window_position(w, i, o[i], k);
      taps += at >= lo && at < hi;
    }
    count *= taps;
  }
  return count;
}

/* Number of taps k with lo <= begin + k * dilation < hi: a difference of two ceilings. */
static const kva_expr *axis_count(kva_expr_ctx *c, const kva_window *w, uint32_t i, kva_dim in, const kva_expr *o,
                                  bool include_pad) {
  const kva_expr *zero = kva_expr_const(c, 0), *dilation = kva_expr_const(c, w->dilation[i]);
  const kva_expr *begin = kva_expr_addi(c, kva_expr_muli(c, o, w->stride[i]), -w->before[i]);
  const kva_expr *lo = kva_expr_const(c, include_pad ? -w->before[i] : 0);
  const kva_expr *hi = kva_expr_addi(c, in, include_pad ? w->after[i] : 0);
  const kva_expr *first = kva_expr_max(c, zero, kva_expr_ceildiv(c, kva_expr_sub(c, lo, begin), dilation));
  const kva_expr *end =
      kva_expr_min(c, kva_expr_const(c, w->kernel[i]), kva_expr_ceildiv(c, kva_expr_sub(c, hi, begin), dilation));
  return kva_expr_max(c, zero, kva_expr_sub(c, end, first));
}

kva_kval kva_avg_pool_divisor(kva_kb *kb, const kva_window *w, const kva_dim *in, const kva_expr *const *o,
                              bool include_pad, kva_dtype t) {
  const kva_expr *count = kva_expr_const(kb->exprs, 1);
  for (uint32_t i = 0; i < w->n; i++) {
    count = kva_expr_mul(kb->exprs, count, axis_count(kb->exprs, w, i, in[i], o[i], include_pad));
  }
  count = kva_expr_max(kb->exprs, count, kva_expr_const(kb->exprs, 1)); /* an empty window gives 0 / 1 */
  return kva_k_convert(kb, kva_k_index(kb, count), t);
}

/* Images and channels. Positions of maxima, a second result, count from the start of the whole tensor. */
int kva_pool_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  (void)operand;
  bool positions = n->n_results > 1 && n->results[1].uses;
  return !positions && axis < 2 ? (int)axis : KVA_MIXED;
}
