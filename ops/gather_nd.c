/* gather_nd: with B = batch_dims and K = the last extent of indices,
 *   y[b.., i.., s..] = x[b.., indices[b.., i.., 0], ..., indices[b.., i.., K - 1], s..].
 * Indices may be negative, see ops/index.h. Gradient of x: scatter_nd with addition into zeros.
 * Exact: moves elements. */
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/index.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(gather_nd)

static uint32_t batch_of(const kva_node *n) {
  return (uint32_t)((const kva_gather_nd_attrs *)n->attrs)->batch_dims;
}

static kva_status check_lengths(kva_module *m, const kva_node *n) {
  const kva_type *x = kva_operand_type(n, 0), *indices = kva_operand_type(n, 1);
  int64_t batch = ((const kva_gather_nd_attrs *)n->attrs)->batch_dims, length;
  if (batch < 0 || batch >= indices->rank || batch >= x->rank)
    return kva_error(m->diag, &n->loc, "kv.gather_nd: batch_dims %lld for operands of rank %u and %u", (long long)batch,
                     x->rank, indices->rank);
  for (uint32_t k = 0; k < batch; k++)
    if (x->dims[k] != indices->dims[k])
      return kva_operand_error(m, n, 1, "batch axis %u differs from that of operand 0", k);
  if (!kva_expr_is_const(indices->dims[indices->rank - 1], &length))
    return kva_operand_error(m, n, 1, "its last extent, the length of an index, must be a constant");
  if (length < 1 || length > x->rank - batch)
    return kva_operand_error(m, n, 1, "indices of length %lld into %lld axes", (long long)length,
                             (long long)(x->rank - batch));
  return KVA_OK;
}

kva_status kva_gather_nd_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *x = kva_operand_type(n, 0), *indices = kva_operand_type(n, 1);
  KVA_TRY(kva_check_class(m, n, 0));
  KVA_TRY(kva_index_check(m, n, 1));
  KVA_TRY(kva_check_min_rank(m, n, 1, 1));
  KVA_TRY(check_lengths(m, n));
  kva_dim dims[2 * KVA_MAX_RANK];
  uint32_t rank = 0;
  for (uint32_t k = 0; k + 1 < indices->rank; k++) dims[rank++] = indices->dims[k];
  for (uint32_t k = batch_of(n) + kva_index_length(indices); k < x->rank; k++) dims[rank++] = x->dims[k];
  if (rank > KVA_MAX_RANK)
    return kva_error(m->diag, &n->loc, "kv.gather_nd: the result has rank %u, more than %d", rank, KVA_MAX_RANK);
  out_types[0] = kva_type_tensor(m, x->dtype, rank, dims);
  return KVA_OK;
}

kva_status kva_gather_nd_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                             kva_ref_tensor *const *out) {
  const kva_ref_tensor *x = in[0], *indices = in[1];
  kva_ref_tensor *y = out[0];
  uint32_t lead = indices->rank - 1, batch = batch_of(n), length = kva_index_length(kva_operand_type(n, 1));
  int64_t idx[KVA_MAX_RANK] = {0}, at[KVA_MAX_RANK], row[KVA_MAX_RANK];
  for (int64_t i = 0; i < y->n; i++, kva_next_index(y->rank, y->dims, idx)) {
    for (uint32_t k = 0; k < lead; k++) row[k] = idx[k];
    row[lead] = 0;
    int64_t from = kva_ref_offset(indices, row);
    for (uint32_t k = 0; k < batch; k++) at[k] = idx[k];
    for (uint32_t k = 0; k < length; k++)
      KVA_TRY(kva_index_ref(r, n, indices->i[from + k], batch + k, x->dims[batch + k], &at[batch + k]));
    for (uint32_t k = batch + length; k < x->rank; k++) at[k] = idx[lead + k - batch - length];
    kva_ref_copy(x, kva_ref_offset(x, at), y, i);
  }
  return KVA_OK;
}

/* The indices with batch coordinates prepended: scatter_nd has no batch axes. */
static kva_value *full_indices(kva_builder *b, const kva_node *n) {
  kva_value *indices = kva_operand(n, 1), *parts[KVA_MAX_RANK + 1];
  const kva_type *t = indices->type;
  uint32_t batch = batch_of(n);
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t k = 0; k + 1 < t->rank; k++) dims[k] = t->dims[k];
  dims[t->rank - 1] = kva_expr_const(b->m->exprs, 1);
  for (uint32_t k = 0; k < batch; k++) {
    kva_iota_attrs attrs = {.shape = {t->rank, dims}, .axis = k, .dtype = t->dtype};
    parts[k] = kva_build(b, KVA_OP_iota, 0, NULL, &attrs);
  }
  parts[batch] = indices;
  if (!batch) return indices;
  return kva_build(b, KVA_OP_concat, batch + 1, parts, &(kva_concat_attrs){.axis = -1});
}

kva_status kva_gather_nd_vjp(kva_vjp *c, kva_node *n) {
  if (!c->wants[0]) return KVA_OK;
  kva_value *g = kva_widen(c->b, c->grad_out[0]);
  const kva_type *x = kva_operand_type(n, 0);
  kva_value *zeros = kva_zeros(c->b, kva_type_with_dtype(c->b->m, x, g->type->dtype));
  kva_value *operands[3] = {zeros, full_indices(c->b, n), g};
  kva_value *sum = kva_build(c->b, KVA_OP_scatter_nd, 3, operands, &(kva_scatter_nd_attrs){.reduction = "add"});
  c->grad_in[0] = kva_cast(c->b, sum, x->dtype);
  return KVA_OK;
}

kva_kval kva_gather_nd_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_type *x = kva_operand_type(n, 0), *indices = kva_operand_type(n, 1);
  uint32_t lead = indices->rank - 1, batch = batch_of(n), length = kva_index_length(indices);
  const kva_expr *at[KVA_MAX_RANK], *row[KVA_MAX_RANK];
  kva_kval some = NULL;
  for (uint32_t k = 0; k < lead; k++) row[k] = idx[k];
  for (uint32_t k = 0; k < batch; k++) at[k] = idx[k];
  for (uint32_t k = 0; k < length; k++) {
    row[lead] = kva_expr_const(l->kb->exprs, k);
    at[batch + k] = kva_index_lower(l, n, 1, row, x->dims[batch + k]);
    some = kva_index_nonempty(l, some, x->dims[batch + k]);
  }
  for (uint32_t k = batch + length; k < x->rank; k++) at[k] = idx[lead + k - batch - length];
  return kva_masked_operand(l, n, 0, at, some);
}

void kva_gather_nd_indexing(const kva_node *n, kva_indexing *out) {
  kva_index_tuples(n, batch_of(n), out);
}
