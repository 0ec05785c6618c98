/* gather_grad: the gradient of gather. Operands: g of shape [a.., i.., c..] and indices [i..]; the result has shape
 * [a.., extent, c..]: dx[a.., v, c..] = sum of g[a.., i.., c..] over all i with indices[i] = v. The sum runs in order
 * of i and rounds after every addition, on every target. Operands 2 and 3 are redundant: keys and bounds of
 * sort_indices for the same indices and extent, which GPU kernels use. Tolerance 8: kernels of narrow floats may keep
 * more bits between additions. */
#include "ops/gather_grad.h"
#include "ops/check.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/index.h"
#include "ops/scatter_common.h"
#include "ops/shape.h"
#include "ops/sort_indices.h"

KVA_OP_FUNCTIONS(gather_grad)

kva_gather_layout kva_gather_grad_layout(const kva_node *n) {
  kva_gather_layout y = {.n_indices = kva_operand_type(n, 1)->rank};
  y.rank = kva_operand_type(n, 0)->rank + 1 - y.n_indices;
  y.axis = kva_axis(((const kva_gather_grad_attrs *)n->attrs)->axis, y.rank);
  return y;
}

kva_sorted kva_gather_grad_sorted(kva_expr_ctx *c, const kva_node *n) {
  kva_dim owners = kva_expr_addi(c, kva_operand_type(n, KVA_GATHER_GRAD_BOUNDS)->dims[1], -1);
  return kva_sorted_of(c, kva_operand_type(n, 1), ((const kva_gather_grad_attrs *)n->attrs)->extent, owners);
}

static kva_status check_sorted(kva_module *m, const kva_node *n) {
  enum { KEYS = KVA_GATHER_GRAD_KEYS, BOUNDS = KVA_GATHER_GRAD_BOUNDS };
  if (!kva_operand(n, KEYS) && !kva_operand(n, BOUNDS)) return KVA_OK;
  for (uint32_t i = KEYS; i <= BOUNDS; i++)
    if (!kva_operand(n, i)) return kva_error(m->diag, &n->loc, "kv.gather_grad: keys and bounds go together");
  KVA_TRY(kva_check_rank(m, n, BOUNDS, 2));
  if (!kva_expr_provably_le(m->exprs, kva_expr_const(m->exprs, 2), kva_operand_type(n, BOUNDS)->dims[1]))
    return kva_operand_error(m, n, BOUNDS, "bounds of an owner are two or more, which its last extent does not prove");
  kva_sorted s = kva_gather_grad_sorted(m->exprs, n);
  KVA_TRY(kva_check_shape(m, n, KEYS, 2, (kva_dim[]){s.chunks, kva_expr_const(m->exprs, s.chunk)}));
  KVA_TRY(kva_check_shape(m, n, BOUNDS, 2, (kva_dim[]){s.chunks, kva_expr_addi(m->exprs, s.owners, 1)}));
  KVA_TRY(kva_check_int(m, n, KEYS));
  return kva_check_int(m, n, BOUNDS);
}

kva_status kva_gather_grad_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_gather_grad_attrs *a = n->attrs;
  const kva_type *g = kva_operand_type(n, 0), *indices = kva_operand_type(n, 1);
  uint32_t axis;
  KVA_TRY(kva_check_class(m, n, 0));
  KVA_TRY(kva_index_check(m, n, 1));
  KVA_TRY(kva_check_min_rank(m, n, 0, indices->rank));
  if (!a->extent) return kva_error(m->diag, &n->loc, "kv.gather_grad: attribute extent is missing");
  kva_gather_layout y = {.n_indices = indices->rank, .rank = g->rank + 1 - indices->rank};
  KVA_TRY(kva_normalize_axis(m, n, a->axis, y.rank, &axis));
  for (uint32_t k = 0; k < indices->rank; k++)
    if (g->dims[axis + k] != indices->dims[k])
      return kva_operand_error(m, n, 0, "axis %u differs from axis %u of the indices", axis + k, k);
  kva_dim dims[KVA_MAX_RANK];
  if (y.rank > KVA_MAX_RANK) return kva_error(m->diag, &n->loc, "kv.gather_grad: the result has rank %u", y.rank);
  for (uint32_t k = 0; k < y.rank; k++)
    dims[k] = k < axis ? g->dims[k] : k == axis ? a->extent : g->dims[k - 1 + y.n_indices];
  out_types[0] = kva_type_tensor(m, g->dtype, y.rank, dims);
  return check_sorted(m, n);
}

kva_status kva_gather_grad_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                               kva_ref_tensor *const *out) {
  const kva_ref_tensor *g = in[0], *indices = in[1];
  kva_gather_layout y = kva_gather_grad_layout(n);
  int64_t idx[KVA_MAX_RANK] = {0}, at[KVA_MAX_RANK];
  for (int64_t i = 0; i < g->n; i++, kva_next_index(g->rank, g->dims, idx)) {
    int64_t index = indices->i[kva_ref_offset(indices, idx + y.axis)];
    KVA_TRY(kva_index_ref(r, n, index, y.axis, out[0]->dims[y.axis], &at[y.axis]));
    for (uint32_t k = 0; k < y.axis; k++) at[k] = idx[k];
    for (uint32_t k = y.axis + 1; k < y.rank; k++) at[k] = idx[k - 1 + y.n_indices];
    kva_scatter_ref(KVA_SCATTER_ADD, g, i, out[0], kva_ref_offset(out[0], at));
  }
  return KVA_OK;
}

/* ---- sorted indices ---------------------------------------------------------------------------------------------- */

static kva_node *sort_before(kva_module *m, kva_node *n, int64_t owners) {
  kva_value *indices = kva_operand(n, 1);
  kva_sort_indices_attrs attrs = {.extent = ((const kva_gather_grad_attrs *)n->attrs)->extent, .owners = owners};
  for (kva_node *p = n->prev; p; p = p->prev)
    if (kva_is(p, KVA_OP_sort_indices) && kva_operand(p, 0) == indices &&
        ((const kva_sort_indices_attrs *)p->attrs)->extent == attrs.extent)
      return p;
  kva_builder b = {.m = m, .graph = n->graph, .before = n, .loc = n->loc};
  return kva_build_node(&b, KVA_OP_sort_indices, 1, &indices, 2, &attrs);
}

static bool takes_sorted(const kva_node *n) {
  bool whole_bytes = kva_is(n, KVA_OP_gather_grad) && kva_dtype_bits(n->results[0].type->dtype) >= 8;
  return whole_bytes && !kva_operand(n, KVA_GATHER_GRAD_KEYS);
}

static void give_sorted(kva_module *m, kva_node *n, int64_t owners) {
  kva_node *sorted = sort_before(m, n, owners);
  kva_value *operands[] = {kva_operand(n, 0), kva_operand(n, 1), &sorted->results[0], &sorted->results[1]};
  kva_builder b = {.m = m, .graph = n->graph, .before = n, .loc = n->loc};
  kva_value *dx = kva_build(&b, KVA_OP_gather_grad, 4, operands, n->attrs);
  dx->name = n->results[0].name;
  kva_value_replace_all_uses(&n->results[0], dx);
  kva_node_remove(n);
}

bool kva_gather_grads_sort(kva_module *m, kva_graph *g, int64_t owners) {
  bool changed = false;
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    if (!takes_sorted(n)) continue;
    give_sorted(m, n, owners);
    changed = true;
  }
  return changed;
}

void kva_gather_grad_indexing(const kva_node *n, kva_indexing *out) {
  kva_dim extent = ((const kva_gather_grad_attrs *)n->attrs)->extent;
  *out = (kva_indexing){
      .operand = 1, .n = 1, .extents = {extent}, .axis = kva_gather_grad_layout(n).axis, .from_end = true};
}
