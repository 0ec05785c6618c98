/* scatter_nd: y = x (operand 0), then with K = the last extent of indices, for every i.. in row-major order
 *
 *   y[indices[i.., 0], ..., indices[i.., K - 1], s..] = reduction(that element, updates[i.., s..]) for all s..
 *
 * Without a reduction the update replaces the element, so the last duplicate wins. Indices may be negative, see
 * ops/index.h. Gradients without a reduction: g with the overwritten elements zeroed, and g gathered at the indices
 * (correct if no index occurs twice, which ONNX requires); with add: g, and g gathered; none for mul, max and min.
 * Tolerance 8: kernels of narrow floats may keep more bits between two additions to one element. */
#include "ops/check.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/index.h"
#include "ops/scatter_common.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(scatter_nd)

static kva_scatter_mode mode_of(const kva_node *n) {
  return kva_scatter_mode_of(((const kva_scatter_nd_attrs *)n->attrs)->reduction);
}

kva_status kva_scatter_nd_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *x = kva_operand_type(n, 0), *indices = kva_operand_type(n, 1);
  int64_t length;
  KVA_TRY(kva_check_class(m, n, 0));
  KVA_TRY(kva_index_check(m, n, 1));
  KVA_TRY(kva_check_same_dtype(m, n, 2, 0));
  KVA_TRY(kva_check_min_rank(m, n, 1, 1));
  if (!kva_expr_is_const(indices->dims[indices->rank - 1], &length))
    return kva_operand_error(m, n, 1, "its last extent, the length of an index, must be a constant");
  if (length < 1 || length > x->rank)
    return kva_operand_error(m, n, 1, "indices of length %lld into %u axes", (long long)length, x->rank);
  kva_dim dims[2 * KVA_MAX_RANK];
  uint32_t rank = 0;
  for (uint32_t k = 0; k + 1 < indices->rank; k++) dims[rank++] = indices->dims[k];
  for (uint32_t k = (uint32_t)length; k < x->rank; k++) dims[rank++] = x->dims[k];
  KVA_TRY(kva_check_shape(m, n, 2, rank, dims));
  KVA_TRY(kva_scatter_check(m, n, ((const kva_scatter_nd_attrs *)n->attrs)->reduction));
  out_types[0] = x;
  return KVA_OK;
}

kva_status kva_scatter_nd_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                              kva_ref_tensor *const *out) {
  const kva_ref_tensor *indices = in[1];
  kva_ref_tensor *y = out[0];
  uint32_t length = kva_index_length(kva_operand_type(n, 1));
  int64_t row_size = 1;
  for (uint32_t k = length; k < y->rank; k++) row_size *= y->dims[k];
  for (int64_t i = 0; i < y->n; i++) kva_ref_copy(in[0], i, y, i);
  for (int64_t i = 0; i < indices->n / length; i++) {
    int64_t row = 0, index;
    for (uint32_t k = 0; k < length; k++) {
      KVA_TRY(kva_index_ref(r, n, indices->i[i * length + k], k, y->dims[k], &index));
      row = row * y->dims[k] + index;
    }
    for (int64_t s = 0; s < row_size; s++) kva_scatter_ref(mode_of(n), in[2], i * row_size + s, y, row * row_size + s);
  }
  return KVA_OK;
}

kva_status kva_scatter_nd_vjp(kva_vjp *c, kva_node *n) {
  kva_builder *b = c->b;
  kva_value *g = c->grad_out[0], *indices = kva_operand(n, 1);
  if (mode_of(n) > KVA_SCATTER_ADD)
    return kva_fail(b->m->diag, KVA_UNSUPPORTED, &n->loc, "kv.scatter_nd: no gradient for reduction %s",
                    ((const kva_scatter_nd_attrs *)n->attrs)->reduction);
  if (c->wants[0]) {
    kva_value *operands[3] = {g, indices, kva_zeros(b, kva_operand_type(n, 2))};
    c->grad_in[0] = mode_of(n) == KVA_SCATTER_SET ? kva_build(b, KVA_OP_scatter_nd, 3, operands, NULL) : g;
  }
  if (c->wants[2]) c->grad_in[2] = kva_build2(b, KVA_OP_gather_nd, g, indices);
  return KVA_OK;
}

void kva_scatter_nd_indexing(const kva_node *n, kva_indexing *out) {
  kva_index_tuples(n, 0, out);
}
