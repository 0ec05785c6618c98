/* Elements of small integer tensors as expressions over shape symbols: shared by the rules kva_<op>_shape_values. */
#ifndef KVA_OPS_SHAPE_VALUES_H
#define KVA_OPS_SHAPE_VALUES_H

#include "ops/ops.h"

struct kva_shape_values {
  kva_expr_ctx *exprs;
  uint32_t len; /* number of elements of result 0 */
  kva_dim *out; /* [len], row-major; the rule fills it in */
  /* Elements of operand i of n; NULL: omitted or unknown. */
  const kva_dims *(*operand)(kva_shape_values *v, const kva_node *n, uint32_t i);
  void *user; /* passed to operand */
};

/* Element i of an operand that broadcasts: a single element serves every i. */
static inline kva_dim kva_shape_value(const kva_dims *d, uint32_t i) {
  return d->v[d->n == 1 ? 0 : i];
}
/* Operands i and i + 1, which have the result's length or one element; false: unknown, or they broadcast
 * differently. */
bool kva_shape_values_pair(kva_shape_values *v, const kva_node *n, uint32_t i, const kva_dims **a, const kva_dims **b);

/* Computes one element of the result from one of each operand; NULL: unknown. */
typedef kva_dim (*kva_shape_value_fn)(kva_expr_ctx *c, kva_dim a, kva_dim b);
/* Elementwise operators of two operands. */
bool kva_shape_values_map2(kva_shape_values *v, const kva_node *n, kva_shape_value_fn f);
/* Reductions of all elements to one, such as ReduceProd(Shape(x)). */
bool kva_shape_values_reduce(kva_shape_values *v, const kva_node *n, kva_shape_value_fn f);
/* The elements of operand 0 in order, or its single element repeated. */
bool kva_shape_values_same(kva_shape_values *v, const kva_node *n);
/* The index in operand 0 of the element at `at` of the result; false: a symbol decides it. */
typedef bool (*kva_shape_value_source)(const kva_node *n, const int64_t *at, int64_t *out_from);
/* Operators that move elements of operand 0. */
bool kva_shape_values_move(kva_shape_values *v, const kva_node *n, kva_shape_value_source source);
/* 0 or 1; NULL if neither is known. */
static inline kva_dim kva_shape_value_bool(kva_expr_ctx *c, bool yes, bool no) {
  return yes || no ? kva_expr_const(c, yes) : NULL;
}
/* Whether the algebra defines remainder and quotient for this divisor. */
bool kva_shape_value_divides(kva_dim b);

#endif
