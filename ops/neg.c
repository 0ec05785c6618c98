/* neg: y = -x; integers wrap. Gradient: -g.
 * Exact. */
#include "ops/elementwise.h"
#include "ops/facts.h"
#include "ops/shape_values.h"

static double neg_f(double x) {
  return -x;
}
static int64_t neg_i(int64_t x) {
  return (int64_t)(0 - (uint64_t)x);
}
KVA_UNARY_OP(neg, neg, neg_f, neg_i)
KVA_UNARY_VJP(neg, kva_neg(b, g))

bool kva_neg_shape_values(kva_shape_values *v, const kva_node *n) {
  const kva_dims *a = v->operand(v, n, 0);
  if (!a) return false;
  for (uint32_t i = 0; i < v->len; i++) v->out[i] = kva_expr_muli(v->exprs, a->v[i], -1);
  return true;
}
