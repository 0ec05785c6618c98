/* reduce_prod: y = product of x over `axes` (all where none are listed); integers wrap; 1 over nothing. Gradient: g
 * times the product of the other elements, right also where elements are zero.
 * Tolerance 16: one rounding a factor; errors of a product add up. */
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/reduce_common.h"
#include "ops/shape_values.h"

KVA_REDUCE_INFER(reduce_prod)

static double prod_f(double acc, double x) {
  return acc * x;
}
static int64_t prod_i(int64_t acc, int64_t x) {
  return (int64_t)((uint64_t)acc * (uint64_t)x);
}
KVA_REDUCE_REF(reduce_prod, ((kva_reduce_step){prod_f, prod_i, prod_i}), 1, 1)

/* With zeros replaced by 1, the product p of a group is that of its non-zero elements. The product of the elements
 * other than x is then p / x, provided that none of them is zero. */
kva_status kva_reduce_prod_vjp(kva_vjp *c, kva_node *n) {
  kva_builder *b = c->b;
  kva_value *x = kva_operand(n, 0);
  kva_ints axes = ((const kva_reduce_prod_attrs *)n->attrs)->axes;
  kva_value *zero = kva_scalar_like(b, x, 0), *one = kva_scalar_like(b, x, 1);
  kva_value *is_zero = kva_build2(b, KVA_OP_equal, x, zero);
  kva_value *mask = kva_cast(b, is_zero, x->type->dtype);
  kva_value *safe = kva_build3(b, KVA_OP_where, is_zero, one, x);
  kva_value *p = kva_reduce(b, KVA_OP_reduce_prod, safe, axes.n, axes.v, true);
  kva_value *zeros = kva_reduce(b, KVA_OP_reduce_sum, mask, axes.n, axes.v, true);
  kva_value *alone = kva_build2(b, KVA_OP_equal, zeros, mask);
  kva_value *others = kva_build3(b, KVA_OP_where, alone, kva_div(b, p, safe), zero);
  c->grad_in[0] = kva_mul(b, kva_reduce_keep(b, n, c->grad_out[0]), others);
  return KVA_OK;
}

KVA_REDUCE_LOWER(reduce_prod, KVA_COMBINE_MUL)

bool kva_reduce_prod_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_reduce(v, n, kva_expr_mul);
}
