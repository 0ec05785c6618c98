/* cross_entropy(logits[..., C], targets[...]) -> loss[...], lse[...]: per row
 *
 *   lse = log sum_k exp(logits_k),   loss = lse - logits_target,   loss = 0 where target == ignore_index
 *
 * Both results are float (double for double logits). A target outside [0, C) other than ignore_index is a data error:
 * the reference reports it; compiled code makes that loss NaN, which stops training. Gradient: p = exp(logits - lse);
 * dlogits = p * (dloss + dlse) - [k == target] * dloss, with dloss 0 in ignored rows. Tolerance 16: as log_softmax. The
 * loss cancels if the target's logit is far above the others, so the error is relative to the largest logit. */
#include "ops/build.h"
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/partition.h"
#include "ops/row.h"

KVA_OP_FUNCTIONS(cross_entropy)

/* Every row has a target. */
int kva_cross_entropy_agrees(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis) {
  (void)attrs;
  return !operand && axis + 1 == t->rank ? -1 : (int)axis | KVA_AGREES_FULL;
}

kva_status kva_cross_entropy_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *x = kva_operand_type(n, 0);
  KVA_TRY(kva_check_float(m, n, 0));
  KVA_TRY(kva_check_min_rank(m, n, 0, 1));
  KVA_TRY(kva_check_int(m, n, 1));
  KVA_TRY(kva_check_shape(m, n, 1, x->rank - 1, x->dims));
  out_types[0] = out_types[1] = kva_type_tensor(m, kva_ref_tensor_dtype(x->dtype), x->rank - 1, x->dims);
  return KVA_OK;
}

kva_status kva_cross_entropy_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                 kva_ref_tensor *const *out) {
  const kva_cross_entropy_attrs *a = n->attrs;
  kva_rows rows = kva_rows_of(in[0], in[0]->rank - 1, 1);
  for (int64_t i = 0; i < rows.n; i++) {
    const double *x = in[0]->f + i * rows.len;
    double max = kva_row_max(&rows, x);
    int64_t target = in[1]->i[i];
    out[1]->f[i] = max + log(kva_row_exp_sum(&rows, x, max));
    if (target == a->ignore_index) continue;
    if (target < 0 || target >= rows.len) {
      return kva_error(r->diag, &n->loc,
                       "cross_entropy: target %lld of row %lld is not in [0, %lld) and not the "
                       "ignored index %lld",
                       (long long)target, (long long)i, (long long)rows.len, (long long)a->ignore_index);
    }
    out[0]->f[i] = out[1]->f[i] - x[target];
  }
  return KVA_OK;
}

/* x[...] as x[..., 1]. */
static kva_value *as_column(kva_builder *b, kva_value *x) {
  kva_dim shape[KVA_MAX_RANK];
  memcpy(shape, x->type->dims, sizeof(*shape) * x->type->rank);
  shape[x->type->rank] = kva_expr_const(b->m->exprs, 1);
  return kva_reshape(b, x, x->type->rank + 1, shape);
}

/* [k == target] of shape [..., C] */
static kva_value *is_target(kva_builder *b, const kva_type *logits, kva_value *targets) {
  kva_iota_attrs iota = {.shape = {1, &logits->dims[logits->rank - 1]}, .axis = 0, .dtype = KVA_I64};
  kva_value *classes = kva_build(b, KVA_OP_iota, 0, NULL, &iota);
  return kva_build2(b, KVA_OP_equal, classes, as_column(b, targets));
}

kva_status kva_cross_entropy_vjp(kva_vjp *c, kva_node *n) {
  if (!c->wants[0]) return KVA_OK;
  const kva_cross_entropy_attrs *a = n->attrs;
  kva_builder *b = c->b;
  const kva_type *logits = kva_operand_type(n, 0);
  kva_value *targets = kva_cast(b, kva_operand(n, 1), KVA_I64), *lse = kva_result(n, 1);
  kva_value *zero = kva_scalar_like(b, lse, 0);
  kva_value *p = kva_build1(b, KVA_OP_exp, kva_sub(b, kva_widen(b, kva_operand(n, 0)), as_column(b, lse)));
  kva_value *dloss = NULL, *sum = c->grad_out[1];
  if (c->grad_out[0]) {
    kva_value *ignored = kva_build2(b, KVA_OP_equal, targets, kva_const_scalar(b, KVA_I64, (double)a->ignore_index));
    dloss = kva_build3(b, KVA_OP_where, ignored, zero, c->grad_out[0]);
    sum = sum ? kva_add(b, sum, dloss) : dloss;
  }
  kva_value *dx = kva_mul(b, p, as_column(b, sum));
  if (dloss) {
    dx = kva_sub(b, dx, kva_build3(b, KVA_OP_where, is_target(b, logits, targets), as_column(b, dloss), zero));
  }
  c->grad_in[0] = kva_cast(b, dx, logits->dtype);
  return KVA_OK;
}

static kva_kval log_sum_exp(kva_lower *l, const kva_node *n, const kva_expr *const *idx, uint32_t axis) {
  kva_kval max = kva_reduce_axes(l, n, KVA_COMBINE_MAX, idx, axis, 1, kva_term_element, NULL);
  kva_kval sum = kva_reduce_axes(l, n, KVA_COMBINE_ADD, idx, axis, 1, kva_term_exp, max);
  return kva_k2(l->kb, KVA_K_add, max, kva_k1(l->kb, KVA_K_log, sum));
}

kva_kval kva_cross_entropy_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  const kva_cross_entropy_attrs *a = n->attrs;
  kva_kb *kb = l->kb;
  const kva_type *logits = kva_operand_type(n, 0);
  uint32_t axis = logits->rank - 1;
  kva_kval lse = log_sum_exp(l, n, idx, axis);
  if (result == 1) return lse;
  kva_kval target = kva_k_convert(kb, l->operand(l, n, 1, idx), KVA_I64);
  const kva_expr *at[KVA_MAX_RANK];
  memcpy(at, idx, sizeof(*at) * axis);
  at[axis] = kva_k_symbol(kb, target);
  kva_kval valid = kva_k_and(kb, kva_k_index_le(kb, kva_expr_const(kb->exprs, 0), at[axis]),
                             kva_k_index_lt(kb, at[axis], logits->dims[axis]));
  kva_kval loss = kva_k2(kb, KVA_K_sub, lse, kva_masked_operand(l, n, 0, at, valid));
  loss = kva_k_select(kb, valid, loss, kva_k_const(kb, lse->dtype, NAN));
  kva_kval ignored = kva_k2(kb, KVA_K_eq, target, kva_k_const_i(kb, KVA_I64, a->ignore_index));
  return kva_k_select(kb, ignored, kva_k_const(kb, lse->dtype, 0), loss);
}

int kva_cross_entropy_row_dims(const kva_node *n) {
  return kva_row_dims_of_last(n, -1);
}

void kva_cross_entropy_indexing(const kva_node *n, kva_indexing *out) {
  const kva_type *logits = kva_operand_type(n, 0);
  uint32_t axis = logits->rank - 1;
  *out = (kva_indexing){.operand = 1,
                        .n = 1,
                        .extents = {logits->dims[axis]},
                        .axis = axis,
                        .has_ignored = true,
                        .ignored = ((const kva_cross_entropy_attrs *)n->attrs)->ignore_index};
}

int kva_cross_entropy_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  (void)n, (void)operand;
  return (int)axis;
}

/* log sum exp over axis 0 */
static kva_value *join_log_sums(kva_builder *b, kva_value *x) {
  int64_t first = 0;
  kva_value *max = kva_build1(b, KVA_OP_stop_gradient, kva_reduce(b, KVA_OP_reduce_max, x, 1, &first, false));
  kva_value *sum = kva_reduce(b, KVA_OP_reduce_sum, kva_build1(b, KVA_OP_exp, kva_sub(b, x, max)), 1, &first, false);
  return kva_add(b, max, kva_build1(b, KVA_OP_log, sum));
}

typedef struct target_masks {
  kva_value *at;      /* the target as a class of this process's slice; -1: no class of it */
  kva_value *ignored; /* rows that do not count */
  kva_value *silent;  /* rows whose logit of the target this process does not have; a wrong target is no such row */
} target_masks;

static target_masks find_targets(kva_partition *p, kva_value *target, int64_t classes, int64_t ignore) {
  kva_builder *b = p->b;
  int64_t each = classes / p->parts;
  kva_value *zero = kva_const_scalar(b, KVA_I64, 0), *end = kva_const_scalar(b, KVA_I64, (double)each);
  target = kva_cast(b, target, KVA_I64);
  kva_value *ignored = kva_build2(b, KVA_OP_equal, target, kva_const_scalar(b, KVA_I64, (double)ignore));
  kva_value *local = kva_sub(b, target, kva_mul(b, kva_own_index(p), end));
  kva_value *own = kva_build2(b, KVA_OP_logical_and, kva_build2(b, KVA_OP_less_equal, zero, local),
                              kva_build2(b, KVA_OP_less, local, end));
  own = kva_build2(b, KVA_OP_logical_and, own, kva_build1(b, KVA_OP_logical_not, ignored));
  kva_value *known = kva_build2(b, KVA_OP_logical_and, kva_build2(b, KVA_OP_less_equal, zero, target),
                                kva_build2(b, KVA_OP_less, target, kva_const_scalar(b, KVA_I64, (double)classes)));
  known = kva_build2(b, KVA_OP_logical_or, known, ignored);
  kva_value *other = kva_build3(b, KVA_OP_where, known, kva_const_scalar(b, KVA_I64, -1), end);
  return (target_masks){.at = kva_build3(b, KVA_OP_where, own, local, other),
                        .ignored = ignored,
                        .silent = kva_build2(b, KVA_OP_logical_and, known, kva_build1(b, KVA_OP_logical_not, own))};
}

/* Classes in slices: lse is that of the slices' lse, and the process that has the target's logit gives it to all. */
bool kva_cross_entropy_partition(kva_partition *p, const kva_node *n) {
  const kva_type *logits = kva_operand_type(n, 0);
  uint32_t axis = logits->rank - 1;
  int64_t classes;
  if (kva_split_axis(p, n, 0) != (int)axis || !kva_expr_is_const(logits->dims[axis], &classes)) return false;
  kva_builder *b = p->b;
  int64_t ignore = ((const kva_cross_entropy_attrs *)n->attrs)->ignore_index;
  target_masks t = find_targets(p, kva_whole_operand(p, n, 1), classes, ignore);
  kva_node *own = kva_build_node(b, KVA_OP_cross_entropy, 2, (kva_value *[]){kva_slice_operand(p, n, 0, axis), t.at}, 2,
                                 &(kva_cross_entropy_attrs){.ignore_index = -1});
  kva_value *lse = kva_result(own, 1), *zero = kva_scalar_like(b, lse, 0);
  kva_value *logit = kva_build3(b, KVA_OP_where, t.silent, zero, kva_sub(b, lse, kva_result(own, 0)));
  logit = kva_sum_over_processes(p, logit);
  p->results[1] = join_log_sums(b, kva_stack_processes(p, lse));
  p->results[0] = kva_build3(b, KVA_OP_where, t.ignored, zero, kva_sub(b, p->results[1], logit));
  p->axes[0] = p->axes[1] = KVA_WHOLE;
  return true;
}
