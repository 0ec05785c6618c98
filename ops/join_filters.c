/* join_filters: x [panels, kernel..., channels, width] holds the filters of a convolution in panels of `width`, whose
 * elements of one tap and channel lie side by side: y[m, c, k...] = x[m / width, k..., c, m mod width]. What the last
 * panel has beyond the filters is not read by element code; kernels that take whole panels may read it.
 *
 * A convolution with output channels across lanes then reads the memory of each panel in order. Exact: moves elements.
 * Gradient: none is needed, since a pass makes it of constants (passes/layout.c). */
#include "ops/check.h"
#include "ops/facts.h"
#include "ops/incremental.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(join_filters)

enum { MIN_RANK = 4 }; /* of x, for one spatial axis */

/* x: rank of operand 0. */
static uint32_t channels_axis(uint32_t x) {
  return x - 2;
}

int64_t kva_join_filters_panel(const kva_node *n) {
  int64_t width = 0;
  const kva_type *x = kva_operand_type(n, 0);
  kva_expr_is_const(x->dims[x->rank - 1], &width);
  return width;
}

kva_status kva_join_filters_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  kva_dim filters = ((const kva_join_filters_attrs *)n->attrs)->filters;
  KVA_TRY(kva_check_class(m, n, 0));
  KVA_TRY(kva_check_min_rank(m, n, 0, MIN_RANK));
  const kva_type *x = kva_operand_type(n, 0);
  if (!filters) return kva_error(m->diag, &n->loc, "kv.join_filters: attribute filters is missing");
  if (kva_join_filters_panel(n) < 1 || x->dims[0] != kva_expr_ceildiv(m->exprs, filters, x->dims[x->rank - 1]))
    return kva_operand_error(m, n, 0, "expected as many panels, of a constant width, as the filters need");
  kva_dim dims[KVA_MAX_RANK] = {filters, x->dims[channels_axis(x->rank)]};
  memcpy(dims + 2, x->dims + 1, sizeof *dims * (x->rank - 3));
  out_types[0] = kva_type_tensor(m, x->dtype, x->rank - 1, dims);
  return KVA_OK;
}

kva_status kva_join_filters_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                kva_ref_tensor *const *out) {
  (void)r;
  const kva_ref_tensor *x = in[0];
  int64_t width = kva_join_filters_panel(n), idx[KVA_MAX_RANK] = {0}, at[KVA_MAX_RANK];
  for (int64_t i = 0; i < out[0]->n; i++, kva_next_index(out[0]->rank, out[0]->dims, idx)) {
    at[0] = idx[0] / width, at[channels_axis(x->rank)] = idx[1], at[x->rank - 1] = idx[0] % width;
    memcpy(at + 1, idx + 2, sizeof *at * (x->rank - 3));
    kva_ref_copy(x, kva_ref_offset(x, at), out[0], i);
  }
  return KVA_OK;
}

kva_kval kva_join_filters_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  kva_expr_ctx *e = l->kb->exprs;
  const kva_type *x = kva_operand_type(n, 0);
  const kva_expr *width = x->dims[x->rank - 1], *at[KVA_MAX_RANK];
  at[0] = kva_expr_div(e, idx[0], width), at[x->rank - 1] = kva_expr_mod(e, idx[0], width);
  at[channels_axis(x->rank)] = idx[1];
  memcpy(at + 1, idx + 2, sizeof *at * (x->rank - 3));
  return l->operand(l, n, 0, at);
}

int kva_join_filters_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  (void)operand;
  if (axis == 0) return KVA_MIXED;
  return axis == 1 ? (int)channels_axis(kva_operand_type(n, 0)->rank) : (int)axis - 1;
}
