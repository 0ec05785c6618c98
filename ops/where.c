/* where: r = x where the condition (operand 0, bool) holds, else y (operands 1 and 2); all three broadcast.
 * Gradients: g where the operand was taken, else 0.
 * Exact: a selection. */
#include "ops/elementwise.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/shape_values.h"

KVA_OP_FUNCTIONS(where)

kva_status kva_where_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_check_bool(m, n, 0));
  KVA_TRY(kva_check_same_dtype(m, n, 2, 1));
  const kva_type *types[3];
  for (uint32_t i = 0; i < 3; i++) types[i] = kva_operand_type(n, i);
  uint32_t rank;
  kva_dim dims[KVA_MAX_RANK];
  KVA_TRY(kva_broadcast_types(m, n, 3, types, &rank, dims));
  out_types[0] = kva_type_tensor(m, types[1]->dtype, rank, dims);
  return KVA_OK;
}

kva_status kva_where_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r, (void)n;
  kva_ref_tensor *z = out[0];
  int64_t idx[KVA_MAX_RANK] = {0};
  for (int64_t i = 0; i < z->n; i++, kva_next_index(z->rank, z->dims, idx)) {
    const kva_ref_tensor *taken = in[0]->i[kva_ref_broadcast_offset(in[0], z->rank, idx)] ? in[1] : in[2];
    int64_t at = kva_ref_broadcast_offset(taken, z->rank, idx);
    if (z->f)
      z->f[i] = taken->f[at];
    else
      z->i[i] = taken->i[at];
  }
  return KVA_OK;
}

kva_status kva_where_vjp(kva_vjp *c, kva_node *n) {
  kva_value *condition = kva_operand(n, 0), *g = c->grad_out[0], *zero = kva_scalar_like(c->b, g, 0);
  kva_value *to_x = kva_build3(c->b, KVA_OP_where, condition, g, zero);
  kva_value *to_y = kva_build3(c->b, KVA_OP_where, condition, zero, g);
  if (c->wants[1]) c->grad_in[1] = kva_reduce_to(c->b, to_x, kva_operand_type(n, 1));
  if (c->wants[2]) c->grad_in[2] = kva_reduce_to(c->b, to_y, kva_operand_type(n, 2));
  return KVA_OK;
}

kva_kval kva_where_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  kva_kval condition = kva_lower_broadcast(l, n, 0, idx);
  return kva_k_select(l->kb, condition, kva_lower_broadcast(l, n, 1, idx), kva_lower_broadcast(l, n, 2, idx));
}

bool kva_where_shape_values(kva_shape_values *v, const kva_node *n) {
  const kva_dims *condition = v->operand(v, n, 0), *a, *b;
  if (!condition || (condition->n != 1 && condition->n != v->len) || !kva_shape_values_pair(v, n, 1, &a, &b))
    return false;
  for (uint32_t i = 0; i < v->len; i++) {
    int64_t yes;
    if (!kva_expr_is_const(kva_shape_value(condition, i), &yes)) return false;
    v->out[i] = kva_shape_value(yes ? a : b, i);
  }
  return true;
}
