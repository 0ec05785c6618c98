/* transpose: axis k of y is axis perm[k] of x; without perm the axes are reversed. Gradient: the inverse permutation of
 * g.
 * Exact: a view. */
#include "ops/facts.h"
#include "ops/incremental.h"
#include "ops/shape.h"
#include "ops/shape_values.h"

KVA_OP_FUNCTIONS(transpose)

static uint32_t source_axis(const kva_node *n, uint32_t k) {
  kva_ints perm = ((const kva_transpose_attrs *)n->attrs)->perm;
  return perm.n ? (uint32_t)perm.v[k] : kva_operand_type(n, 0)->rank - 1 - k;
}

static kva_status check_perm(kva_module *m, const kva_node *n) {
  kva_ints perm = ((const kva_transpose_attrs *)n->attrs)->perm;
  uint32_t rank = kva_operand_type(n, 0)->rank;
  if (perm.n && perm.n != rank)
    return kva_error(m->diag, &n->loc, "kv.transpose: perm has %u entries for an operand of rank %u", perm.n, rank);
  bool seen[KVA_MAX_RANK] = {false};
  for (uint32_t k = 0; k < perm.n; k++) {
    if (perm.v[k] < 0 || perm.v[k] >= (int64_t)rank || seen[perm.v[k]])
      return kva_error(m->diag, &n->loc, "kv.transpose: perm[%u] = %lld: expected every axis of 0..%u once", k,
                       (long long)perm.v[k], rank - 1);
    seen[perm.v[k]] = true;
  }
  return KVA_OK;
}

kva_status kva_transpose_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(check_perm(m, n));
  const kva_type *x = kva_operand_type(n, 0);
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t k = 0; k < x->rank; k++) dims[k] = x->dims[source_axis(n, k)];
  out_types[0] = kva_type_tensor(m, x->dtype, x->rank, dims);
  return KVA_OK;
}

kva_status kva_transpose_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                             kva_ref_tensor *const *out) {
  (void)r;
  const kva_ref_tensor *x = in[0];
  kva_ref_tensor *y = out[0];
  int64_t idx[KVA_MAX_RANK] = {0}, at[KVA_MAX_RANK] = {0};
  for (int64_t i = 0; i < y->n; i++, kva_next_index(y->rank, y->dims, idx)) {
    for (uint32_t k = 0; k < y->rank; k++) at[source_axis(n, k)] = idx[k];
    kva_ref_copy(x, kva_ref_offset(x, at), y, i);
  }
  return KVA_OK;
}

kva_status kva_transpose_vjp(kva_vjp *c, kva_node *n) {
  int64_t inverse[KVA_MAX_RANK] = {0};
  for (uint32_t k = 0; k < kva_operand_type(n, 0)->rank; k++) inverse[source_axis(n, k)] = k;
  c->grad_in[0] = kva_transpose(c->b, c->grad_out[0], inverse);
  return KVA_OK;
}

kva_kval kva_transpose_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  const kva_expr *at[KVA_MAX_RANK];
  for (uint32_t k = 0; k < n->results[result].type->rank; k++) at[source_axis(n, k)] = idx[k];
  return l->operand(l, n, 0, at);
}

static bool moved_from(const kva_node *n, const int64_t *at, int64_t *out_from) {
  for (uint32_t k = 0; k < n->results[0].type->rank; k++) out_from[source_axis(n, k)] = at[k];
  return true;
}

bool kva_transpose_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_move(v, n, moved_from);
}

int kva_transpose_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  (void)operand;
  return (int)source_axis(n, axis);
}

kva_value *kva_transpose_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs) {
  (void)attrs;
  int64_t perm[KVA_MAX_RANK + 1] = {0};
  for (uint32_t i = 0; i < n->results[0].type->rank; i++) perm[i + 1] = 1 + (int64_t)source_axis(n, i);
  return kva_transpose(c->b, operands[0], perm);
}
