/* slice: y[i_k] = x[starts_k + steps_k i_k] for 0 <= i_k < shape_k; steps default to 1 and may be negative. Every index
 * is in bounds by construction. Gradient: g scattered to those positions, zero elsewhere: rows of g are spread apart by
 * |step| (reshape, pad, reshape), reversed if the step is negative, and padded to x's shape. Exact: a view. */
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/shape.h"
#include "ops/shape_values.h"

KVA_OP_FUNCTIONS(slice)

static int64_t step_of(const kva_node *n, uint32_t k) {
  kva_ints steps = ((const kva_slice_attrs *)n->attrs)->steps;
  return steps.n ? steps.v[k] : 1;
}

static kva_status check_axis(kva_module *m, const kva_node *n, uint32_t k) {
  const kva_slice_attrs *a = n->attrs;
  int64_t start, count, extent, last;
  if (!step_of(n, k)) return kva_error(m->diag, &n->loc, "kv.slice: axis %u: step 0", k);
  if (!kva_expr_is_const(a->starts.v[k], &start) || !kva_expr_is_const(a->shape.v[k], &count)) return KVA_OK;
  if (count < 0) return kva_error(m->diag, &n->loc, "kv.slice: axis %u: extent %lld", k, (long long)count);
  if (!count || !kva_expr_is_const(kva_operand_type(n, 0)->dims[k], &extent)) return KVA_OK;
  bool fits = !__builtin_mul_overflow(step_of(n, k), count - 1, &last) && !__builtin_add_overflow(start, last, &last);
  if (fits && start >= 0 && start < extent && last >= 0 && last < extent) return KVA_OK;
  return kva_error(m->diag, &n->loc, "kv.slice: axis %u: %lld elements from %lld by %lld leave [0, %lld)", k,
                   (long long)count, (long long)start, (long long)step_of(n, k), (long long)extent);
}

kva_status kva_slice_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_slice_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  if (a->starts.n != x->rank || a->shape.n != x->rank || (a->steps.n && a->steps.n != x->rank))
    return kva_error(m->diag, &n->loc, "kv.slice: %u starts, %u extents and %u steps for an operand of rank %u",
                     a->starts.n, a->shape.n, a->steps.n, x->rank);
  for (uint32_t k = 0; k < x->rank; k++) KVA_TRY(check_axis(m, n, k));
  out_types[0] = kva_type_tensor(m, x->dtype, x->rank, a->shape.v);
  return KVA_OK;
}

kva_status kva_slice_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  const kva_ref_tensor *x = in[0];
  kva_ref_tensor *y = out[0];
  int64_t start[KVA_MAX_RANK], idx[KVA_MAX_RANK] = {0}, at[KVA_MAX_RANK];
  for (uint32_t k = 0; k < x->rank; k++)
    KVA_TRY(kva_ref_dim(r, ((const kva_slice_attrs *)n->attrs)->starts.v[k], &start[k]));
  for (int64_t i = 0; i < y->n; i++, kva_next_index(y->rank, y->dims, idx)) {
    for (uint32_t k = 0; k < x->rank; k++) {
      at[k] = start[k] + step_of(n, k) * idx[k];
      if (at[k] < 0 || at[k] >= x->dims[k])
        return kva_error(r->diag, &n->loc, "kv.slice: axis %u: index %lld is outside [0, %lld)", k, (long long)at[k],
                         (long long)x->dims[k]);
    }
    kva_ref_copy(x, kva_ref_offset(x, at), y, i);
  }
  return KVA_OK;
}

/* g reversed along axis k. */
static kva_value *flip(kva_builder *b, kva_value *g, uint32_t k) {
  const kva_type *t = g->type;
  kva_dim starts[KVA_MAX_RANK];
  int64_t steps[KVA_MAX_RANK];
  for (uint32_t i = 0; i < t->rank; i++) {
    starts[i] = i == k ? kva_expr_addi(b->m->exprs, t->dims[i], -1) : kva_expr_const(b->m->exprs, 0);
    steps[i] = i == k ? -1 : 1;
  }
  kva_slice_attrs a = {.starts = {t->rank, starts}, .shape = {t->rank, t->dims}, .steps = {t->rank, steps}};
  return kva_build(b, KVA_OP_slice, 1, &g, &a);
}

/* g with step - 1 zeros after each element of axis k: [.., n, ..] -> [.., n, 1, ..] -> [.., n, step, ..] -> [.., n
 * step, ..]. */
static kva_value *spread(kva_builder *b, kva_value *g, uint32_t k, int64_t step) {
  const kva_type *t = g->type;
  kva_expr_ctx *c = b->m->exprs;
  uint32_t left = k + 1, right = t->rank - left;
  kva_dim dims[3] = {kva_shape_product(c, left, t->dims), kva_expr_const(c, 1),
                     kva_shape_product(c, right, t->dims + left)};
  kva_dim none = kva_expr_const(c, 0), before[3] = {none, none, none};
  kva_dim after[3] = {none, kva_expr_const(c, step - 1), none}, shape[KVA_MAX_RANK];
  for (uint32_t i = 0; i < t->rank; i++) shape[i] = i == k ? kva_expr_muli(c, t->dims[i], step) : t->dims[i];
  g = kva_reshape(b, g, 3, dims);
  g = kva_build(b, KVA_OP_pad, 1, &g, &(kva_pad_attrs){.before = {3, before}, .after = {3, after}});
  return kva_reshape(b, g, t->rank, shape);
}

kva_status kva_slice_vjp(kva_vjp *c, kva_node *n) {
  const kva_slice_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  kva_expr_ctx *e = c->b->m->exprs;
  kva_value *g = c->grad_out[0];
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  for (uint32_t k = 0; k < x->rank; k++) {
    int64_t step = step_of(n, k), stride = step < 0 ? -step : step;
    before[k] = a->starts.v[k];
    if (step < 0) {
      kva_dim reach = kva_expr_muli(e, kva_expr_addi(e, a->shape.v[k], -1), stride);
      before[k] = kva_expr_sub(e, before[k], reach);
      g = flip(c->b, g, k);
    }
    if (stride != 1) g = spread(c->b, g, k, stride);
    kva_dim used = kva_expr_add(e, before[k], kva_expr_muli(e, a->shape.v[k], stride));
    after[k] = kva_expr_sub(e, x->dims[k], used); /* negative if the last zeros protrude: cropped */
  }
  kva_pad_attrs pad = {.before = {x->rank, before}, .after = {x->rank, after}};
  c->grad_in[0] = kva_build(c->b, KVA_OP_pad, 1, &g, &pad);
  return KVA_OK;
}

kva_kval kva_slice_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  kva_expr_ctx *c = l->kb->exprs;
  const kva_expr *at[KVA_MAX_RANK];
  for (uint32_t k = 0; k < n->results[result].type->rank; k++) {
    kva_dim start = ((const kva_slice_attrs *)n->attrs)->starts.v[k];
    at[k] = kva_expr_add(c, start, kva_expr_muli(c, idx[k], step_of(n, k)));
  }
  return l->operand(l, n, 0, at);
}

static bool taken_from(const kva_node *n, const int64_t *at, int64_t *out_from) {
  const kva_slice_attrs *a = n->attrs;
  for (uint32_t k = 0; k < a->starts.n; k++) {
    if (!kva_expr_is_const(a->starts.v[k], &out_from[k])) return false;
    out_from[k] += step_of(n, k) * at[k];
  }
  return true;
}

bool kva_slice_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_move(v, n, taken_from);
}

/* An axis that is taken whole. */
int kva_slice_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  const kva_slice_attrs *a = n->attrs;
  bool whole = kva_expr_is(a->starts.v[axis], 0) && step_of(n, axis) == 1 &&
               a->shape.v[axis] == kva_operand_type(n, operand)->dims[axis];
  return whole ? (int)axis : KVA_MIXED;
}

/* Consecutive rows of a table: those at the rows' positions. */
kva_status kva_slice_incremental(kva_incremental *c, const kva_node *n) {
  const kva_slice_attrs *a = n->attrs;
  kva_value *x = c->operands[0];
  bool from_table = n->results[0].type->dims[0] == c->time && kva_operand_type(n, 0)->dims[0] != c->time;
  if (!from_table || step_of(n, 0) != 1 || kva_expr_uses(a->starts.v[0], c->time))
    return kva_refuse_chunks(c, n, "it takes a part of the rows");
  for (uint32_t k = 1; k < x->type->rank; k++)
    if (kva_slice_source_axis(n, 0, k) != (int)k)
      return kva_refuse_chunks(c, n, "it takes a part of other axes, too; slice these before");
  kva_value *at = kva_add(c->b, kva_row_positions(c, 2, 1), kva_dim_scalar(c->b, KVA_I64, a->starts.v[0]));
  c->results[0] = kva_build2(c->b, KVA_OP_gather, x, at);
  return KVA_OK;
}

kva_value *kva_slice_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs) {
  const kva_slice_attrs *a = attrs;
  int64_t steps[KVA_MAX_RANK + 1] = {1};
  for (uint32_t i = 0; i < a->shape.n; i++) steps[i + 1] = step_of(n, i);
  kva_slice_attrs b = {.starts = kva_dims_behind(c, kva_expr_const(c->b->m->exprs, 0), a->starts),
                       .shape = kva_dims_behind(c, c->batch, a->shape),
                       .steps = {a->shape.n + 1, steps}};
  return kva_build(c->b, KVA_OP_slice, 1, operands, &b);
}

kva_value *kva_slice_permute(kva_builder *b, const kva_node *n, kva_value *const *operands, const uint32_t *moved) {
  const kva_slice_attrs *a = n->attrs;
  kva_dim starts[KVA_MAX_RANK], shape[KVA_MAX_RANK];
  int64_t steps[KVA_MAX_RANK];
  for (uint32_t d = 0; d < a->shape.n; d++) {
    starts[moved[d]] = a->starts.v[d], shape[moved[d]] = a->shape.v[d], steps[moved[d]] = step_of(n, d);
  }
  kva_slice_attrs attrs = {.starts = {a->starts.n, starts}, .shape = {a->shape.n, shape}, .steps = {a->steps.n, steps}};
  return kva_build(b, KVA_OP_slice, n->n_operands, operands, &attrs);
}
