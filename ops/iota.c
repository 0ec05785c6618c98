/* iota: y[i_0, ..., i_r] = i_axis in the given dtype. Exact where the dtype holds the integers. */
#include "ops/build.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"

KVA_OP_FUNCTIONS(iota)

kva_status kva_iota_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_iota_attrs *a = n->attrs;
  uint32_t axis;
  KVA_TRY(kva_normalize_axis(m, n, a->axis, a->shape.n, &axis));
  if (a->shape.n > KVA_MAX_RANK) return kva_error(m->diag, &n->loc, "kv.iota: rank %u is too large", a->shape.n);
  if (!kva_dtype_is_float(a->dtype) && !kva_dtype_is_int(a->dtype))
    return kva_error(m->diag, &n->loc, "kv.iota: dtype must be a number, found %s", kva_dtype_name(a->dtype));
  out_types[0] = kva_type_tensor(m, a->dtype, a->shape.n, a->shape.v);
  return KVA_OK;
}

static uint32_t axis_of(const kva_node *n) {
  const kva_iota_attrs *a = n->attrs;
  return (uint32_t)(a->axis < 0 ? a->axis + a->shape.n : a->axis);
}

kva_status kva_iota_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r, (void)in;
  kva_ref_tensor *y = out[0];
  int64_t idx[KVA_MAX_RANK] = {0};
  for (int64_t i = 0; i < y->n; i++, kva_next_index(y->rank, y->dims, idx)) {
    if (y->f)
      y->f[i] = (double)idx[axis_of(n)];
    else
      y->i[i] = idx[axis_of(n)];
  }
  return KVA_OK;
}

kva_kval kva_iota_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  kva_dtype t = kva_k_compute_type(n->results[result].type->dtype);
  return kva_k_convert(l->kb, kva_k_index(l->kb, idx[axis_of(n)]), t);
}

kva_status kva_iota_incremental(kva_incremental *c, const kva_node *n) {
  const kva_iota_attrs *a = n->attrs;
  kva_dim shape[KVA_MAX_RANK + 1];
  uint32_t axis = axis_of(n), added = a->shape.v[0] != c->batch;
  if (a->shape.v[axis] != c->time) {
    c->results[0] = kva_build(c->b, KVA_OP_iota, 0, NULL, a);
    return KVA_OK;
  }
  shape[0] = c->batch;
  memcpy(shape + added, a->shape.v, sizeof *shape * a->shape.n);
  kva_value *at = kva_row_positions(c, a->shape.n + added, axis + added);
  c->results[0] = kva_cast(c->b, kva_expand(c->b, at, a->shape.n + added, shape), a->dtype);
  return KVA_OK;
}
