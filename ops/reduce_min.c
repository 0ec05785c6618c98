/* reduce_min: y = the least x over `axes` (all where none are listed); NaN wins. Over nothing: the end of the dtype's
 * range that changes no result. Gradient: g, split evenly among the elements equal to y. Exact: comparisons. */
#include "ops/facts.h"
#include "ops/reduce_common.h"
#include "ops/shape_values.h"

#include <math.h>

KVA_REDUCE_INFER(reduce_min)

static double min_f(double acc, double x) {
  return isnan(acc) || acc < x ? acc : x;
}
static int64_t min_i(int64_t acc, int64_t x) {
  return acc < x ? acc : x;
}
static int64_t min_u(int64_t acc, int64_t x) {
  return (uint64_t)acc < (uint64_t)x ? acc : x;
}

kva_status kva_reduce_min_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                              kva_ref_tensor *const *out) {
  (void)r;
  int64_t start = in[0]->i ? kva_int_limit(in[0]->dtype, true) : 0;
  kva_reduce_ref(n, in[0], out[0], (kva_reduce_step){min_f, min_i, min_u}, (double)INFINITY, start);
  return KVA_OK;
}

kva_status kva_reduce_min_vjp(kva_vjp *c, kva_node *n) {
  c->grad_in[0] = kva_reduce_extremum_vjp(c->b, n, c->grad_out[0]);
  return KVA_OK;
}

KVA_REDUCE_LOWER(reduce_min, kva_operand_type(n, 0)->dtype == KVA_BOOL ? KVA_COMBINE_AND : KVA_COMBINE_MIN)

bool kva_reduce_min_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_reduce(v, n, kva_expr_min);
}
