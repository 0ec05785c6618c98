/* dims: shape expressions as data. y[k] = values[k] (int64[n]); with `scalar` the single value as a rank-0 tensor.
 * Exact: integers. */
#include "ops/build.h"
#include "ops/facts.h"
#include "ops/shape_values.h"

KVA_OP_FUNCTIONS(dims)

kva_status kva_dims_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_dims_attrs *a = n->attrs;
  if (a->scalar && a->values.n != 1)
    return kva_error(m->diag, &n->loc, "kv.dims: a scalar needs exactly one value, found %u", a->values.n);
  kva_dim count = kva_expr_const(m->exprs, a->values.n);
  out_types[0] = kva_type_tensor(m, KVA_I64, a->scalar ? 0 : 1, &count);
  return KVA_OK;
}

kva_status kva_dims_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)in;
  const kva_dims_attrs *a = n->attrs;
  for (uint32_t k = 0; k < a->values.n; k++) KVA_TRY(kva_ref_dim(r, a->values.v[k], &out[0]->i[k]));
  return KVA_OK;
}

kva_kval kva_dims_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_dims_attrs *a = n->attrs;
  if (!a->values.n) return kva_k_const_i(l->kb, KVA_I64, 0);
  kva_kval v = kva_k_index(l->kb, a->values.v[0]);
  for (uint32_t k = 1; k < a->values.n; k++) {
    kva_kval here = kva_k_index_eq(l->kb, idx[0], kva_expr_const(l->kb->exprs, k));
    v = kva_k_select(l->kb, here, kva_k_index(l->kb, a->values.v[k]), v);
  }
  return v;
}

bool kva_dims_shape_values(kva_shape_values *v, const kva_node *n) {
  const kva_dims_attrs *a = n->attrs;
  if (a->values.n != v->len) return false;
  for (uint32_t i = 0; i < v->len; i++) v->out[i] = a->values.v[i];
  return true;
}
