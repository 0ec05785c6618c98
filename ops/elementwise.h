/* Macros that reduce the file of an elementwise operator to its mathematics. In their expressions the operands are x,
 * y, z; `b` is the builder (vjp: graph nodes; lower: kernel code), `g` the incoming gradient and `r` the operator's
 * result (vjp). */
#ifndef KVA_OPS_ELEMENTWISE_H
#define KVA_OPS_ELEMENTWISE_H

#include "ops/build.h"
#include "ops/check.h"

#define KVA_UNARY_VJP(op, gradient)                                               \
  kva_status kva_##op##_vjp(kva_vjp *c, kva_node *n) {                            \
    kva_builder *b = c->b;                                                        \
    kva_value *x = kva_operand(n, 0), *r = kva_result(n, 0), *g = c->grad_out[0]; \
    (void)b, (void)x, (void)r;                                                    \
    c->grad_in[0] = (gradient);                                                   \
    return KVA_OK;                                                                \
  }
/* Both gradients are summed over broadcast axes. */
#define KVA_BINARY_VJP(op, gradient_x, gradient_y)                            \
  kva_status kva_##op##_vjp(kva_vjp *c, kva_node *n) {                        \
    kva_builder *b = c->b;                                                    \
    kva_value *x = kva_operand(n, 0), *y = kva_operand(n, 1);                 \
    kva_value *r = kva_result(n, 0), *g = c->grad_out[0];                     \
    (void)r;                                                                  \
    if (c->wants[0]) c->grad_in[0] = kva_reduce_to(b, (gradient_x), x->type); \
    if (c->wants[1]) c->grad_in[1] = kva_reduce_to(b, (gradient_y), y->type); \
    return KVA_OK;                                                            \
  }

#define KVA_UNARY_LOWER(op, value)                                                                          \
  kva_kval kva_##op##_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) { \
    (void)result;                                                                                           \
    kva_kb *b = l->kb;                                                                                      \
    kva_kval x = kva_lower_broadcast(l, n, 0, idx);                                                         \
    (void)b;                                                                                                \
    return (value);                                                                                         \
  }
#define KVA_BINARY_LOWER(op, value)                                                                         \
  kva_kval kva_##op##_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) { \
    (void)result;                                                                                           \
    kva_kb *b = l->kb;                                                                                      \
    kva_kval x = kva_lower_broadcast(l, n, 0, idx), y = kva_lower_broadcast(l, n, 1, idx);                  \
    return (value);                                                                                         \
  }

/* Operators that are one kernel instruction: everything but the gradient. */
#define KVA_UNARY_OP(op, opcode, f, g) \
  KVA_ELEMENTWISE_INFER(op)            \
  KVA_UNARY_REF(op, f, g)              \
  KVA_UNARY_LOWER(op, kva_k1(b, KVA_K_##opcode, x))
#define KVA_BINARY_OP(op, opcode, f, g) \
  KVA_ELEMENTWISE_INFER(op)             \
  KVA_BINARY_REF(op, f, g)              \
  KVA_BINARY_LOWER(op, kva_k2(b, KVA_K_##opcode, x, y))

/* Reference loops of operators on which uint64 differs from signed types (order, division): gu handles uint64. */
#define KVA_UNARY_REF_U64(op, f, g, gu)                                                     \
  kva_status kva_##op##_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, \
                            kva_ref_tensor *const *out) {                                   \
    (void)r, (void)n;                                                                       \
    kva_ref_map1(in[0], out[0], f, in[0]->dtype == KVA_U64 ? gu : g);                       \
    return KVA_OK;                                                                          \
  }
#define KVA_BINARY_REF_U64(op, f, g, gu)                                                    \
  kva_status kva_##op##_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, \
                            kva_ref_tensor *const *out) {                                   \
    (void)r, (void)n;                                                                       \
    kva_ref_map2(in[0], in[1], out[0], f, in[0]->dtype == KVA_U64 ? gu : g);                \
    return KVA_OK;                                                                          \
  }

/* In KVA_UNARY_VJP and KVA_BINARY_VJP: a scalar of the operands' dtype. */
#define KVA_NUM(v) kva_scalar_like(b, x, (v))
/* In the lower macros: a constant of x's compute type. */
#define KVA_KNUM(v) kva_k_const(b, x->dtype, (v))

#endif
