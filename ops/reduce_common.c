/* Shared by the reductions. */
#include "ops/reduce_common.h"

#include "ops/check.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/row.h"

#include <math.h>

/* ---- infer ------------------------------------------------------------------------------------------------------- */

static const kva_reduce_attrs *attrs_of(const kva_node *n) {
  return n->attrs;
}

uint32_t kva_reduction_axes(const kva_node *n, bool *out_reduced) {
  kva_ints axes = attrs_of(n)->axes;
  uint32_t rank = kva_operand_type(n, 0)->rank;
  for (uint32_t k = 0; k < rank; k++) out_reduced[k] = axes.n == 0;
  for (uint32_t i = 0; i < axes.n; i++) out_reduced[kva_axis(axes.v[i], rank)] = true;
  return axes.n ? axes.n : rank;
}

static kva_status check_axes(kva_module *m, const kva_node *n) {
  kva_ints axes = attrs_of(n)->axes;
  bool seen[KVA_MAX_RANK] = {false};
  for (uint32_t i = 0; i < axes.n; i++) {
    uint32_t axis;
    KVA_TRY(kva_normalize_axis(m, n, axes.v[i], kva_operand_type(n, 0)->rank, &axis));
    if (seen[axis]) return kva_error(m->diag, &n->loc, "kv.%s: axis %u is listed twice", n->op->name, axis);
    seen[axis] = true;
  }
  return KVA_OK;
}

/* Type of x without the reduced axes, or with extent 1 there. */
static const kva_type *reduced_type(kva_module *m, const kva_type *x, const bool *reduced, bool keepdims,
                                    kva_dtype dtype) {
  kva_dim dims[KVA_MAX_RANK];
  uint32_t rank = 0;
  for (uint32_t k = 0; k < x->rank; k++) {
    if (!reduced[k])
      dims[rank++] = x->dims[k];
    else if (keepdims)
      dims[rank++] = kva_expr_const(m->exprs, 1);
  }
  return kva_type_tensor(m, dtype, rank, dims);
}

kva_status kva_reduce_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_check_class(m, n, 0));
  KVA_TRY(check_axes(m, n));
  const kva_type *x = kva_operand_type(n, 0);
  bool reduced[KVA_MAX_RANK];
  kva_reduction_axes(n, reduced);
  out_types[0] = reduced_type(m, x, reduced, attrs_of(n)->keepdims, x->dtype);
  return KVA_OK;
}

bool kva_reduces_few(const kva_node *n) {
  enum { FEW = 8192 };
  int64_t elements = 1, extent = 0;
  if (!(n->op->traits & KVA_REDUCES) || n->n_results != 1) return false;
  const kva_type *x = kva_operand_type(n, 0), *y = n->results[0].type;
  for (uint32_t d = 0; d < y->rank; d++)
    if (!kva_expr_is(y->dims[d], 1)) return false;
  for (uint32_t d = 0; d < x->rank && elements <= FEW; d++) {
    if (!kva_expr_is_const(x->dims[d], &extent)) return false;
    elements *= extent;
  }
  return elements <= FEW;
}

const kva_expr *kva_reduce_count(kva_module *m, const kva_node *n) {
  const kva_type *x = kva_operand_type(n, 0);
  bool reduced[KVA_MAX_RANK];
  kva_reduction_axes(n, reduced);
  const kva_expr *count = kva_expr_const(m->exprs, 1);
  for (uint32_t k = 0; k < x->rank; k++)
    if (reduced[k]) count = kva_expr_mul(m->exprs, count, x->dims[k]);
  return count;
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

int64_t kva_int_limit(kva_dtype t, bool greatest) {
  if (t == KVA_BOOL) return greatest;
  int bits = kva_dtype_bits(t);
  if (kva_dtype_is_unsigned(t)) return greatest ? (int64_t)(UINT64_MAX >> (64 - bits)) : 0;
  int64_t hi = INT64_MAX >> (64 - bits);
  return greatest ? hi : -hi - 1;
}

void kva_reduce_ref(const kva_node *n, const kva_ref_tensor *x, kva_ref_tensor *y, kva_reduce_step step, double start_f,
                    int64_t start_i) {
  bool reduced[KVA_MAX_RANK];
  kva_reduction_axes(n, reduced);
  for (int64_t i = 0; i < y->n; i++) {
    if (y->f)
      y->f[i] = start_f;
    else
      y->i[i] = start_i;
  }
  int64_t (*integer)(int64_t, int64_t) = x->dtype == KVA_U64 ? step.u : step.i;
  int64_t idx[KVA_MAX_RANK] = {0};
  for (int64_t i = 0; i < x->n; i++, kva_next_index(x->rank, x->dims, idx)) {
    int64_t at = 0;
    for (uint32_t k = 0; k < x->rank; k++)
      if (!reduced[k]) at = at * x->dims[k] + idx[k];
    if (y->f)
      y->f[at] = step.f(y->f[at], x->f[i]);
    else
      y->i[at] = integer(y->i[at], x->i[i]);
  }
}

/* ---- vjp --------------------------------------------------------------------------------------------------------- */

kva_value *kva_reduce_keep(kva_builder *b, const kva_node *n, kva_value *v) {
  const kva_type *x = kva_operand_type(n, 0);
  bool reduced[KVA_MAX_RANK];
  kva_reduction_axes(n, reduced);
  return kva_reshape_like(b, v, reduced_type(b->m, x, reduced, true, v->type->dtype));
}

kva_value *kva_reduce_extremum_vjp(kva_builder *b, kva_node *n, kva_value *g) {
  kva_value *x = kva_operand(n, 0);
  kva_value *hit = kva_build2(b, KVA_OP_equal, x, kva_reduce_keep(b, n, kva_result(n, 0)));
  kva_value *mask = kva_cast(b, hit, x->type->dtype);
  kva_ints axes = attrs_of(n)->axes;
  kva_value *count = kva_reduce(b, KVA_OP_reduce_sum, mask, axes.n, axes.v, true);
  return kva_mul(b, mask, kva_div(b, kva_reduce_keep(b, n, g), count));
}

/* ---- lower ------------------------------------------------------------------------------------------------------- */

typedef struct reduction {
  kva_lower *l;
  const kva_node *n;
  const kva_expr *const *idx;
  bool reduced[KVA_MAX_RANK];
} reduction;

/* Operand index: result index on kept axes, loop variable on reduced ones. */
static kva_kval reduced_element(kva_kb *b, void *user, const kva_expr *const *vars) {
  (void)b;
  const reduction *r = user;
  const kva_type *x = kva_operand_type(r->n, 0);
  const kva_expr *at[KVA_MAX_RANK];
  uint32_t var = 0, kept = 0;
  for (uint32_t k = 0; k < x->rank; k++) {
    if (r->reduced[k]) {
      at[k] = vars[var++];
      kept += attrs_of(r->n)->keepdims;
    } else {
      at[k] = r->idx[kept++];
    }
  }
  return r->l->operand(r->l, r->n, 0, at);
}

kva_kval kva_reduce_lower(kva_lower *l, const kva_node *n, kva_combine combine, const kva_expr *const *idx) {
  reduction r = {.l = l, .n = n, .idx = idx};
  kva_reduction_axes(n, r.reduced);
  const kva_type *x = kva_operand_type(n, 0);
  const kva_expr *extents[KVA_MAX_RANK];
  uint32_t count = 0;
  for (uint32_t k = 0; k < x->rank; k++)
    if (r.reduced[k]) extents[count++] = x->dims[k];
  if (!count) return reduced_element(l->kb, &r, NULL);
  return kva_k_reduce_over(l->kb, combine, kva_k_compute_type(x->dtype), count, extents, reduced_element, &r);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

int kva_reduce_row_dims(const kva_node *n) {
  bool reduced[KVA_MAX_RANK];
  uint32_t rank = kva_operand_type(n, 0)->rank, kept = rank - kva_reduction_axes(n, reduced);
  if (!attrs_of(n)->axes.n) return -1;
  for (uint32_t k = kept; k < rank; k++)
    if (!reduced[k]) return -1;
  return kept > 0 ? (int)kept : -1;
}

/* ---- argmax, argmin ---------------------------------------------------------------------------------------------- */

static const kva_arg_attrs *arg_attrs(const kva_node *n) {
  return n->attrs;
}

kva_status kva_arg_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_check_class(m, n, 0));
  const kva_type *x = kva_operand_type(n, 0);
  uint32_t axis;
  KVA_TRY(kva_normalize_axis(m, n, arg_attrs(n)->axis, x->rank, &axis));
  if (kva_expr_is(x->dims[axis], 0)) return kva_operand_error(m, n, 0, "axis %u is empty, so it has no extremum", axis);
  bool reduced[KVA_MAX_RANK] = {false};
  reduced[axis] = true;
  out_types[0] = reduced_type(m, x, reduced, arg_attrs(n)->keepdims, KVA_I64);
  return KVA_OK;
}

/* NaN beats everything except NaN. */
static bool beats(const kva_ref_tensor *x, int64_t candidate, int64_t best, bool greatest, bool last) {
  if (x->f) {
    double c = x->f[candidate], v = x->f[best];
    if (isnan(c)) return last || !isnan(v);
    return greatest ? c > v || (last && c == v) : c < v || (last && c == v);
  }
  int64_t c = x->i[candidate], v = x->i[best];
  if (c == v) return last;
  bool less = x->dtype == KVA_U64 ? (uint64_t)c < (uint64_t)v : c < v;
  return less != greatest;
}

kva_status kva_arg_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *x, kva_ref_tensor *y, bool greatest) {
  uint32_t axis = kva_axis(arg_attrs(n)->axis, x->rank);
  int64_t extent = x->dims[axis], inner = 1;
  for (uint32_t k = axis + 1; k < x->rank; k++) inner *= x->dims[k];
  if (!extent && y->n)
    return kva_error(r->diag, &n->loc, "kv.%s: axis %u is empty, so it has no extremum", n->op->name, axis);
  for (int64_t i = 0; i < y->n; i++) {
    int64_t base = i / inner * extent * inner + i % inner, best = 0;
    for (int64_t k = 1; k < extent; k++)
      if (beats(x, base + k * inner, base + best * inner, greatest, arg_attrs(n)->select_last)) best = k;
    y->i[i] = best;
  }
  return KVA_OK;
}

typedef struct arg_search {
  kva_lower *l;
  const kva_node *n;
  const kva_expr *const *idx;
  uint32_t axis;
  kva_dtype index_type;
  kva_kval extremum; /* for the second pass */
  kva_kval nowhere;
} arg_search;

static kva_kval searched_element(kva_kb *b, void *user, const kva_expr *const *vars) {
  (void)b;
  const arg_search *s = user;
  const kva_expr *at[KVA_MAX_RANK];
  for (uint32_t k = 0, kept = 0; k < kva_operand_type(s->n, 0)->rank; k++) {
    at[k] = k == s->axis ? vars[0] : s->idx[kept];
    kept += k != s->axis || arg_attrs(s->n)->keepdims;
  }
  return s->l->operand(s->l, s->n, 0, at);
}

int kva_arg_row_dims(const kva_node *n) {
  return kva_row_dims_of_last(n, arg_attrs(n)->axis);
}

/* The index if the element is the extremum (NaN, if that is NaN), else one that never wins. */
static kva_kval index_if_extremum(kva_kb *b, void *user, const kva_expr *const *vars) {
  const arg_search *s = user;
  kva_kval x = searched_element(b, user, vars), hit = kva_k2(b, KVA_K_eq, x, s->extremum);
  if (kva_dtype_is_float(x->dtype)) hit = kva_k2(b, KVA_K_or, hit, kva_k1(b, KVA_K_isnan, x));
  return kva_k_select(b, hit, kva_k_convert(b, kva_k_index(b, vars[0]), s->index_type), s->nowhere);
}

/* Two reductions instead of one scan that carries both: each vectorises. A NaN is the extremum if there is one, so "is
 * NaN" is correct in both passes. */
kva_kval kva_arg_lower(kva_lower *l, const kva_node *n, const kva_expr *const *idx, bool greatest) {
  kva_kb *b = l->kb;
  const kva_type *type = kva_operand_type(n, 0);
  bool last = arg_attrs(n)->select_last;
  int64_t extent;
  arg_search s = {.l = l, .n = n, .idx = idx, .axis = kva_axis(arg_attrs(n)->axis, type->rank)};
  const kva_expr *axis_extent = type->dims[s.axis];
  bool narrow = kva_expr_is_const(axis_extent, &extent) && extent <= INT32_MAX;
  s.index_type = narrow ? KVA_I32 : KVA_I64;
  s.nowhere = kva_k_const_i(b, s.index_type, kva_int_limit(s.index_type, !last));
  s.extremum = kva_k_reduce_over(b, greatest ? KVA_COMBINE_MAX : KVA_COMBINE_MIN, kva_k_compute_type(type->dtype), 1,
                                 &axis_extent, searched_element, &s);
  kva_kval at = kva_k_reduce_over(b, last ? KVA_COMBINE_MAX : KVA_COMBINE_MIN, s.index_type, 1, &axis_extent,
                                  index_if_extremum, &s);
  return kva_k_convert(b, at, KVA_I64);
}

static int source_of_kept(const kva_type *x, const bool *reduced, bool keepdims, uint32_t axis) {
  if (keepdims) return reduced[axis] ? KVA_SAME_FOR_ALL : (int)axis;
  for (uint32_t k = 0; k < x->rank; k++)
    if (!reduced[k] && !axis--) return (int)k;
  return KVA_MIXED;
}

int kva_reduce_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  bool reduced[KVA_MAX_RANK];
  kva_reduction_axes(n, reduced);
  return source_of_kept(kva_operand_type(n, operand), reduced, attrs_of(n)->keepdims, axis);
}

int kva_arg_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  const kva_type *x = kva_operand_type(n, operand);
  bool reduced[KVA_MAX_RANK] = {false};
  reduced[kva_axis(arg_attrs(n)->axis, x->rank)] = true;
  return source_of_kept(x, reduced, arg_attrs(n)->keepdims, axis);
}

/* Without keepdims the result has fewer axes than the operand. */
kva_value *kva_reduce_permute(kva_builder *b, const kva_node *n, kva_value *const *operands, const uint32_t *moved) {
  kva_reduce_attrs attrs = *attrs_of(n);
  int64_t axes[KVA_MAX_RANK];
  KVA_ASSERT(attrs.keepdims);
  for (uint32_t i = 0; i < attrs.axes.n; i++) axes[i] = moved[kva_axis(attrs.axes.v[i], kva_operand_type(n, 0)->rank)];
  attrs.axes.v = axes;
  return kva_build(b, n->op->id, n->n_operands, operands, &attrs);
}
