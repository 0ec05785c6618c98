/* gather_grad: the gradient of gather. Operands: g of shape [a.., i.., c..] and indices [i..]; the result has shape
 * [a.., extent, c..]:  dx[a.., v, c..] = sum of g[a.., i.., c..] over all i with indices[i] = v.
 * The sum runs in the order of i and is rounded at every step, on every target.
 * Operands 2 and 3, which say nothing new: keys and bounds of sort_indices for the same indices and extent, that a GPU
 * goes by.
 * Tolerance 8: kernels of narrow floats may keep more bits between two steps. */
#include "ops/gather_grad.h"
#include "ops/check.h"
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

const kva_expr *kva_gather_grad_offset(kva_expr_ctx *e, const kva_expr *outer, const kva_expr *row, kva_dim extent,
                                       const kva_expr *c, const kva_expr *inner) {
  row = kva_expr_add(e, kva_expr_mul(e, outer, extent), row);
  return kva_expr_add(e, kva_expr_mul(e, row, inner), c);
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

/* ---- work items: outer position x slice of the inner axes -------------------------------------------------------- */

static void by_slices(kva_lower *l, const kva_node *n) {
  kva_kb *b = l->kb;
  kva_expr_ctx *e = b->exprs;
  kva_gather_layout y = kva_gather_grad_layout(n);
  const kva_type *g = kva_operand_type(n, 0), *type = n->results[0].type;
  kva_kbuf *buf = kva_scatter_result(l, n, 0);
  uint32_t n_inner = y.rank - 1 - y.axis;
  const kva_dim *inner_dims = type->dims + y.axis + 1;
  const kva_expr *inner = kva_shape_product(e, n_inner, inner_dims), *at[KVA_MAX_RANK];
  kva_kloop *outer_loops[KVA_MAX_RANK], *index_loops[KVA_MAX_RANK];
  kva_nest_begin(l, KVA_K_PARALLEL, y.axis, type->dims, outer_loops, at);
  const kva_expr *outer = kva_shape_linear(e, y.axis, type->dims, at);
  kva_slice_loop slice = kva_slices_begin(l, inner);

  kva_kloop *rows = kva_k_loop_begin(b, KVA_K_PARALLEL, type->dims[y.axis], "row");
  kva_kloop *fill = kva_k_loop_begin(b, KVA_K_PARALLEL, slice.width, "c");
  const kva_expr *c = kva_expr_add(e, slice.start, fill->var);
  kva_k_store(b, buf, kva_gather_grad_offset(e, outer, rows->var, type->dims[y.axis], c, inner),
              kva_k_const(b, kva_k_compute_type(type->dtype), 0));
  kva_k_loop_end(b, fill);
  kva_k_loop_end(b, rows);

  kva_nest_begin(l, KVA_K_SERIAL, y.n_indices, g->dims + y.axis, index_loops, at + y.axis);
  const kva_expr *row = kva_index_lower(l, n, 1, at + y.axis, type->dims[y.axis]);
  kva_kloop *add = kva_k_loop_begin(b, KVA_K_PARALLEL, slice.width, "c");
  c = kva_expr_add(e, slice.start, add->var);
  kva_shape_split(e, n_inner, inner_dims, c, at + y.axis + y.n_indices);
  kva_kval guard = kva_k_guard_begin(b, kva_index_nonempty(l, NULL, type->dims[y.axis]));
  kva_kval v = l->operand(l, n, 0, at);
  kva_scatter_store(l, KVA_SCATTER_ADD, buf, kva_gather_grad_offset(e, outer, row, type->dims[y.axis], c, inner), v);
  kva_k_guard_end(b, guard);
  kva_k_loop_end(b, add);
  kva_nest_end(l, y.n_indices, index_loops);

  kva_slices_end(l, &slice);
  kva_nest_end(l, y.axis, outer_loops);
}

void kva_gather_grad_kernel(kva_lower *l, const kva_node *n) {
  (kva_lower_for_gpu(l) && kva_operand(n, KVA_GATHER_GRAD_KEYS) ? kva_gather_grad_by_blocks : by_slices)(l, n);
}
