/* expand: y = x broadcast to `shape` (NumPy's rule; never smaller than x). Gradient: g summed over the broadcast axes.
 * Exact: a view. */
#include "ops/check.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/shape_values.h"

KVA_OP_FUNCTIONS(expand)

kva_status kva_expand_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  kva_dims shape = ((const kva_expand_attrs *)n->attrs)->shape;
  if (shape.n > KVA_MAX_RANK)
    return kva_error(m->diag, &n->loc, "kv.expand: rank %u is more than the %d that Kvasir supports", shape.n,
                     KVA_MAX_RANK);
  KVA_TRY(kva_check_broadcasts_to(m, n, 0, shape.n, shape.v));
  out_types[0] = kva_type_tensor(m, kva_operand_type(n, 0)->dtype, shape.n, shape.v);
  return KVA_OK;
}

kva_status kva_expand_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r, (void)n;
  kva_ref_tensor *y = out[0];
  int64_t idx[KVA_MAX_RANK] = {0};
  for (int64_t i = 0; i < y->n; i++, kva_next_index(y->rank, y->dims, idx)) {
    int64_t at = kva_ref_broadcast_offset(in[0], y->rank, idx);
    if (y->f)
      y->f[i] = in[0]->f[at];
    else
      y->i[i] = in[0]->i[at];
  }
  return KVA_OK;
}

kva_status kva_expand_vjp(kva_vjp *c, kva_node *n) {
  c->grad_in[0] = kva_reduce_to(c->b, c->grad_out[0], kva_operand_type(n, 0));
  return KVA_OK;
}

kva_kval kva_expand_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  return kva_lower_broadcast(l, n, 0, idx);
}

/* Known if x has one element. */
bool kva_expand_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_same(v, n);
}

kva_status kva_expand_incremental(kva_incremental *c, const kva_node *n) {
  c->results[0] = kva_build(c->b, n->op->id, 1, c->operands, n->attrs);
  return KVA_OK;
}

kva_value *kva_expand_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs) {
  kva_dims shape = ((const kva_expand_attrs *)attrs)->shape;
  if (shape.n && shape.v[0] == c->batch) return kva_broadcast_lifted(c, n, operands, attrs, shape.n);
  kva_expand_attrs a = {kva_dims_behind(c, c->batch, shape)};
  return kva_broadcast_lifted(c, n, operands, &a, a.shape.n);
}
