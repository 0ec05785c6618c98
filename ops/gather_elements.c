/* gather_elements: y[i] = x[i with i_axis replaced by indices[i]]; y has the shape of indices, whose other extents are
 * at most those of x; indices may be negative, see ops/index.h. Gradient of x: scatter_elements with addition into
 * zeros. Exact: moves elements. */
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/index.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(gather_elements)

static uint32_t axis_of(const kva_node *n) {
  return kva_axis(((const kva_gather_elements_attrs *)n->attrs)->axis, kva_operand_type(n, 0)->rank);
}

kva_status kva_gather_elements_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *x = kva_operand_type(n, 0), *indices = kva_operand_type(n, 1);
  uint32_t axis;
  KVA_TRY(kva_check_class(m, n, 0));
  KVA_TRY(kva_index_check(m, n, 1));
  KVA_TRY(kva_normalize_axis(m, n, ((const kva_gather_elements_attrs *)n->attrs)->axis, x->rank, &axis));
  KVA_TRY(kva_check_rank(m, n, 1, x->rank));
  for (uint32_t k = 0; k < x->rank; k++)
    if (k != axis && !kva_expr_provably_le(m->exprs, indices->dims[k], x->dims[k]))
      return kva_operand_error(m, n, 1, "axis %u is not provably within that of operand 0", k);
  out_types[0] = kva_type_with_dtype(m, indices, x->dtype);
  return KVA_OK;
}

kva_status kva_gather_elements_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                   kva_ref_tensor *const *out) {
  const kva_ref_tensor *x = in[0];
  kva_ref_tensor *y = out[0];
  uint32_t axis = axis_of(n);
  int64_t idx[KVA_MAX_RANK] = {0}, at[KVA_MAX_RANK];
  for (int64_t i = 0; i < y->n; i++, kva_next_index(y->rank, y->dims, idx)) {
    memcpy(at, idx, sizeof at);
    KVA_TRY(kva_index_ref(r, n, in[1]->i[i], axis, x->dims[axis], &at[axis]));
    kva_ref_copy(x, kva_ref_offset(x, at), y, i);
  }
  return KVA_OK;
}

kva_status kva_gather_elements_vjp(kva_vjp *c, kva_node *n) {
  if (!c->wants[0]) return KVA_OK;
  kva_value *g = kva_widen(c->b, c->grad_out[0]);
  const kva_type *x = kva_operand_type(n, 0);
  kva_value *zeros = kva_zeros(c->b, kva_type_with_dtype(c->b->m, x, g->type->dtype));
  kva_value *operands[3] = {zeros, kva_operand(n, 1), g};
  kva_scatter_elements_attrs attrs = {.axis = axis_of(n), .reduction = "add"};
  c->grad_in[0] = kva_cast(c->b, kva_build(c->b, KVA_OP_scatter_elements, 3, operands, &attrs), x->dtype);
  return KVA_OK;
}

kva_kval kva_gather_elements_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_type *x = kva_operand_type(n, 0);
  uint32_t axis = axis_of(n);
  const kva_expr *at[KVA_MAX_RANK];
  for (uint32_t k = 0; k < x->rank; k++) at[k] = idx[k];
  at[axis] = kva_index_lower(l, n, 1, idx, x->dims[axis]);
  return kva_masked_operand(l, n, 0, at, kva_index_nonempty(l, NULL, x->dims[axis]));
}

void kva_gather_elements_indexing(const kva_node *n, kva_indexing *out) {
  uint32_t axis = axis_of(n);
  *out = (kva_indexing){
      .operand = 1, .n = 1, .extents = {kva_operand_type(n, 0)->dims[axis]}, .axis = axis, .from_end = true};
}
