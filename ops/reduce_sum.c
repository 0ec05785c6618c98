/* reduce_sum: y = sum of x over `axes` (all where none are listed); integers wrap; 0 over nothing. Gradient: g,
 * broadcast.
 * Tolerance 8: the reference adds in double, kernels in the compute type with several accumulators. */
#include "ops/facts.h"
#include "ops/reduce_common.h"
#include "ops/shape_values.h"

KVA_REDUCE_INFER(reduce_sum)

static double sum_f(double acc, double x) {
  return acc + x;
}
static int64_t sum_i(int64_t acc, int64_t x) {
  return (int64_t)((uint64_t)acc + (uint64_t)x);
}
KVA_REDUCE_REF(reduce_sum, ((kva_reduce_step){sum_f, sum_i, sum_i}), 0, 0)

kva_status kva_reduce_sum_vjp(kva_vjp *c, kva_node *n) {
  c->grad_in[0] = kva_expand_like(c->b, kva_reduce_keep(c->b, n, c->grad_out[0]), kva_operand_type(n, 0));
  return KVA_OK;
}

KVA_REDUCE_LOWER(reduce_sum, KVA_COMBINE_ADD)

bool kva_reduce_sum_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_reduce(v, n, kva_expr_add);
}

bool kva_reduce_sum_sums(const kva_node *n, uint32_t operand, uint32_t axis) {
  bool reduced[KVA_MAX_RANK];
  (void)operand;
  kva_reduction_axes(n, reduced);
  return reduced[axis];
}
