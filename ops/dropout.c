/* dropout: at inference y = x. In a training step passes/train.c replaces it by the random form,
 *
 *   y = x / (1 - ratio) where u >= ratio, else 0;   u = random_uniform(seed, step), with a separate stream per dropout
 *
 * whose gradient follows from its nodes. 0 <= ratio < 1. Gradient of the inference form: g. Exact. */
#include "ops/elementwise.h"
#include "ops/facts.h"
#include "ops/incremental.h"

KVA_OP_FUNCTIONS(dropout)

kva_status kva_dropout_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  double ratio = ((const kva_dropout_attrs *)n->attrs)->ratio;
  if (!(ratio >= 0 && ratio < 1)) {
    return kva_error(m->diag, &n->loc, "kv.dropout: expected 0 <= ratio < 1, found %g", ratio);
  }
  return kva_elementwise_infer(m, n, out_types);
}

static double same(double x) {
  return x;
}
KVA_UNARY_REF(dropout, same, NULL)
KVA_UNARY_VJP(dropout, g)
KVA_UNARY_LOWER(dropout, x)

/* Of the training form: numbers are drawn by an element's place in the whole tensor. */
int kva_dropout_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  (void)n, (void)operand, (void)axis;
  return KVA_MIXED;
}

/* Chunks of rows are inference. */
kva_status kva_dropout_incremental(kva_incremental *c, const kva_node *n) {
  (void)n;
  c->results[0] = c->operands[0];
  return KVA_OK;
}
