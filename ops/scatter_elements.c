/* scatter_elements: y = x (operand 0), then for every i in row-major order
 *
 *   y[i with i_axis replaced by indices[i]] = reduction(that element, updates[i]).
 *
 * Without a reduction the update replaces the element, so the last duplicate wins. indices and updates have one shape,
 * whose other extents are at most those of x; indices may be negative, see ops/index.h. Gradients without a reduction:
 * g with the overwritten elements zeroed, and g gathered at the indices (correct if no index occurs twice, which ONNX
 * requires); with add: g, and g gathered; none for mul, max and min. Tolerance 8: kernels of narrow floats may keep
 * more bits between two additions to one element. */
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/index.h"
#include "ops/scatter_common.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(scatter_elements)

static uint32_t axis_of(const kva_node *n) {
  return kva_axis(((const kva_scatter_elements_attrs *)n->attrs)->axis, kva_operand_type(n, 0)->rank);
}

static kva_scatter_mode mode_of(const kva_node *n) {
  return kva_scatter_mode_of(((const kva_scatter_elements_attrs *)n->attrs)->reduction);
}

kva_status kva_scatter_elements_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_scatter_elements_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0), *indices = kva_operand_type(n, 1);
  uint32_t axis;
  KVA_TRY(kva_check_class(m, n, 0));
  KVA_TRY(kva_index_check(m, n, 1));
  KVA_TRY(kva_check_same_dtype(m, n, 2, 0));
  KVA_TRY(kva_normalize_axis(m, n, a->axis, x->rank, &axis));
  KVA_TRY(kva_check_rank(m, n, 1, x->rank));
  KVA_TRY(kva_check_shape(m, n, 2, indices->rank, indices->dims));
  for (uint32_t k = 0; k < x->rank; k++)
    if (k != axis && !kva_expr_provably_le(m->exprs, indices->dims[k], x->dims[k]))
      return kva_operand_error(m, n, 1, "axis %u is not provably within that of operand 0", k);
  KVA_TRY(kva_scatter_check(m, n, a->reduction));
  out_types[0] = x;
  return KVA_OK;
}

kva_status kva_scatter_elements_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                    kva_ref_tensor *const *out) {
  const kva_ref_tensor *indices = in[1];
  kva_ref_tensor *y = out[0];
  uint32_t axis = axis_of(n);
  int64_t idx[KVA_MAX_RANK] = {0}, at[KVA_MAX_RANK];
  for (int64_t i = 0; i < y->n; i++) kva_ref_copy(in[0], i, y, i);
  for (int64_t i = 0; i < indices->n; i++, kva_next_index(indices->rank, indices->dims, idx)) {
    memcpy(at, idx, sizeof at);
    KVA_TRY(kva_index_ref(r, n, indices->i[i], axis, y->dims[axis], &at[axis]));
    kva_scatter_ref(mode_of(n), in[2], i, y, kva_ref_offset(y, at));
  }
  return KVA_OK;
}

kva_status kva_scatter_elements_vjp(kva_vjp *c, kva_node *n) {
  kva_builder *b = c->b;
  kva_value *g = c->grad_out[0], *indices = kva_operand(n, 1);
  const kva_scatter_elements_attrs *a = n->attrs;
  if (mode_of(n) > KVA_SCATTER_ADD)
    return kva_fail(b->m->diag, KVA_UNSUPPORTED, &n->loc, "kv.scatter_elements: no gradient for reduction %s",
                    a->reduction);
  if (c->wants[0]) {
    kva_value *operands[3] = {g, indices, kva_zeros(b, kva_operand_type(n, 2))};
    bool set = mode_of(n) == KVA_SCATTER_SET;
    kva_scatter_elements_attrs erase = {.axis = a->axis};
    c->grad_in[0] = set ? kva_build(b, KVA_OP_scatter_elements, 3, operands, &erase) : g;
  }
  if (c->wants[2]) {
    kva_gather_elements_attrs attrs = {.axis = a->axis};
    c->grad_in[2] = kva_build(b, KVA_OP_gather_elements, 2, (kva_value *[]){g, indices}, &attrs);
  }
  return KVA_OK;
}

void kva_scatter_elements_indexing(const kva_node *n, kva_indexing *out) {
  uint32_t axis = axis_of(n);
  *out = (kva_indexing){
      .operand = 1, .n = 1, .extents = {kva_operand_type(n, 0)->dims[axis]}, .axis = axis, .from_end = true};
}
