/* pad: y = x with before[k] and after[k] elements added at the ends of axis k; negative amounts crop. Modes:
 *
 *   constant (default)  operand 1, a scalar, or zero
 *   edge                the nearest element of x
 *   reflect             x mirrored at its first and last element without repeating them, as often as needed
 *   wrap                x repeated
 *
 * Gradient: constant: g cropped, and the sum of the rest for operand 1. Other modes: along each axis pad is a gather,
 * so its gradient is gather_grad. Exact: a view. */
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(pad)

typedef enum pad_mode { PAD_CONSTANT, PAD_EDGE, PAD_REFLECT, PAD_WRAP, PAD_UNKNOWN } pad_mode;

static pad_mode mode_of(const kva_node *n) {
  static const char *const names[] = {"constant", "edge", "reflect", "wrap"};
  const char *mode = ((const kva_pad_attrs *)n->attrs)->mode;
  if (!mode) return PAD_CONSTANT;
  int i = 0;
  while (i < PAD_UNKNOWN && strcmp(mode, names[i])) i++;
  return (pad_mode)i;
}

kva_status kva_pad_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_pad_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  if (a->before.n != x->rank || a->after.n != x->rank)
    return kva_error(m->diag, &n->loc, "kv.pad: %u and %u amounts for an operand of rank %u", a->before.n, a->after.n,
                     x->rank);
  if (mode_of(n) == PAD_UNKNOWN)
    return kva_error(m->diag, &n->loc, "kv.pad: mode \"%s\": expected constant, edge, reflect or wrap", a->mode);
  KVA_TRY(kva_check_same_dtype(m, n, n->n_operands - 1, 0));
  if (n->n_operands > 1) KVA_TRY(kva_check_rank(m, n, 1, 0));
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t k = 0; k < x->rank; k++) {
    int64_t extent;
    dims[k] = kva_expr_add(m->exprs, kva_expr_add(m->exprs, x->dims[k], a->before.v[k]), a->after.v[k]);
    if (kva_expr_is_const(dims[k], &extent) && extent < 0)
      return kva_error(m->diag, &n->loc, "kv.pad: axis %u: more is cropped than there is (extent %lld)", k,
                       (long long)extent);
  }
  out_types[0] = kva_type_tensor(m, x->dtype, x->rank, dims);
  return KVA_OK;
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

static int64_t floor_mod(int64_t a, int64_t b) {
  int64_t r = a % b;
  return r < 0 ? r + b : r;
}

/* The position in [0, extent) that position i of the padded axis copies; -1: the constant. */
static int64_t source(pad_mode mode, int64_t i, int64_t extent) {
  if (i >= 0 && i < extent) return i;
  if (mode == PAD_CONSTANT) return -1;
  if (mode == PAD_EDGE) return i < 0 ? 0 : extent - 1;
  if (mode == PAD_WRAP) return floor_mod(i, extent);
  int64_t period = extent > 1 ? 2 * extent - 2 : 1, m = floor_mod(i, period);
  return m < period - m ? m : period - m;
}

static void pad_element(const kva_node *n, const kva_ref_tensor *const *in, const int64_t *before, const int64_t *idx,
                        kva_ref_tensor *y, int64_t i) {
  int64_t at[KVA_MAX_RANK];
  bool inside = true;
  for (uint32_t k = 0; k < y->rank; k++) {
    at[k] = source(mode_of(n), idx[k] - before[k], in[0]->dims[k]);
    inside &= at[k] >= 0;
  }
  if (inside)
    kva_ref_copy(in[0], kva_ref_offset(in[0], at), y, i);
  else if (n->n_operands > 1 && in[1])
    kva_ref_copy(in[1], 0, y, i);
}

kva_status kva_pad_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  kva_ref_tensor *y = out[0];
  int64_t before[KVA_MAX_RANK], idx[KVA_MAX_RANK] = {0};
  for (uint32_t k = 0; k < y->rank; k++)
    KVA_TRY(kva_ref_dim(r, ((const kva_pad_attrs *)n->attrs)->before.v[k], &before[k]));
  if (y->n && !in[0]->n && mode_of(n) != PAD_CONSTANT)
    return kva_error(r->diag, &n->loc, "kv.pad: mode %s has nothing to take from: operand 0 is empty",
                     ((const kva_pad_attrs *)n->attrs)->mode);
  for (int64_t i = 0; i < y->n; i++, kva_next_index(y->rank, y->dims, idx)) pad_element(n, in, before, idx, y, i);
  return KVA_OK;
}

/* ---- vjp --------------------------------------------------------------------------------------------------------- */

static kva_value *crop(kva_builder *b, const kva_node *n, kva_value *g) {
  const kva_pad_attrs *a = n->attrs;
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  for (uint32_t k = 0; k < a->before.n; k++) {
    before[k] = kva_expr_muli(b->m->exprs, a->before.v[k], -1);
    after[k] = kva_expr_muli(b->m->exprs, a->after.v[k], -1);
  }
  kva_pad_attrs inverse = {.before = {a->before.n, before}, .after = {a->before.n, after}};
  return kva_build(b, KVA_OP_pad, 1, &g, &inverse);
}

/* `source` as nodes: int64[padded extent], for modes other than constant. */
static kva_value *source_indices(kva_builder *b, pad_mode mode, kva_dim padded, kva_dim before, kva_dim extent) {
  kva_expr_ctx *c = b->m->exprs;
  kva_value *i = kva_build(b, KVA_OP_iota, 0, NULL, &(kva_iota_attrs){.shape = {1, &padded}, .dtype = KVA_I64});
  kva_value *zero = kva_const_scalar(b, KVA_I64, 0);
  i = kva_sub(b, i, kva_dim_scalar(b, KVA_I64, before));
  if (mode == PAD_EDGE) {
    kva_value *last = kva_dim_scalar(b, KVA_I64, kva_expr_addi(c, extent, -1));
    return kva_build2(b, KVA_OP_max, kva_build2(b, KVA_OP_min, i, last), zero);
  }
  kva_dim reflected = kva_expr_max(c, kva_expr_addi(c, kva_expr_muli(c, extent, 2), -2), kva_expr_const(c, 1));
  kva_value *period = kva_dim_scalar(b, KVA_I64, mode == PAD_WRAP ? extent : reflected);
  kva_value *m = kva_build2(b, KVA_OP_mod, i, period);
  return mode == PAD_WRAP ? m : kva_build2(b, KVA_OP_min, m, kva_sub(b, period, m));
}

static kva_value *gather_back(kva_builder *b, const kva_node *n, kva_value *g) {
  const kva_type *x = kva_operand_type(n, 0);
  for (uint32_t k = 0; k < x->rank; k++) {
    kva_dim before = ((const kva_pad_attrs *)n->attrs)->before.v[k];
    if (g->type->dims[k] == x->dims[k] && kva_expr_is(before, 0)) continue;
    kva_value *operands[2] = {g, source_indices(b, mode_of(n), g->type->dims[k], before, x->dims[k])};
    g = kva_build(b, KVA_OP_gather_grad, 2, operands, &(kva_gather_grad_attrs){.axis = k, .extent = x->dims[k]});
  }
  return g;
}

kva_status kva_pad_vjp(kva_vjp *c, kva_node *n) {
  kva_builder *b = c->b;
  kva_value *g = c->grad_out[0];
  if (mode_of(n) != PAD_CONSTANT) {
    if (c->wants[0]) c->grad_in[0] = kva_cast(b, gather_back(b, n, kva_widen(b, g)), g->type->dtype);
    return KVA_OK;
  }
  kva_value *inner = crop(b, n, g);
  if (c->wants[0]) c->grad_in[0] = inner;
  if (n->n_operands > 1 && c->wants[1]) {
    kva_value *all = kva_reduce(b, KVA_OP_reduce_sum, g, 0, NULL, false);
    c->grad_in[1] = kva_sub(b, all, kva_reduce(b, KVA_OP_reduce_sum, inner, 0, NULL, false));
  }
  return KVA_OK;
}

/* ---- lower ------------------------------------------------------------------------------------------------------- */

static const kva_expr *source_expr(kva_expr_ctx *c, pad_mode mode, const kva_expr *i, kva_dim extent) {
  const kva_expr *zero = kva_expr_const(c, 0), *one = kva_expr_const(c, 1);
  if (mode == PAD_EDGE) return kva_expr_max(c, kva_expr_min(c, i, kva_expr_addi(c, extent, -1)), zero);
  if (mode == PAD_WRAP) return kva_expr_mod(c, i, kva_expr_max(c, extent, one));
  const kva_expr *period = kva_expr_max(c, kva_expr_addi(c, kva_expr_muli(c, extent, 2), -2), one);
  const kva_expr *m = kva_expr_mod(c, i, period);
  return kva_expr_min(c, m, kva_expr_sub(c, period, m));
}

kva_kval kva_pad_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  kva_kb *b = l->kb;
  const kva_type *x = kva_operand_type(n, 0);
  const kva_expr *at[KVA_MAX_RANK], *zero = kva_expr_const(b->exprs, 0);
  kva_kval inside = NULL;
  for (uint32_t k = 0; k < x->rank; k++) {
    const kva_expr *i = kva_expr_sub(b->exprs, idx[k], ((const kva_pad_attrs *)n->attrs)->before.v[k]);
    if (mode_of(n) == PAD_CONSTANT) {
      at[k] = i;
      inside = kva_k_and(b, inside, kva_k_index_le(b, zero, i));
      inside = kva_k_and(b, inside, kva_k_index_lt(b, i, x->dims[k]));
    } else { /* always inside, unless x is empty */
      at[k] = source_expr(b->exprs, mode_of(n), i, x->dims[k]);
      if (!kva_expr_provably_less(b->exprs, zero, x->dims[k]))
        inside = kva_k_and(b, inside, kva_k_index_lt(b, zero, x->dims[k]));
    }
  }
  if (!inside || !kva_operand(n, 1) || mode_of(n) != PAD_CONSTANT) return kva_masked_operand(l, n, 0, at, inside);
  kva_kval guard = kva_k_guard_begin(b, inside);
  kva_kval v = l->operand(l, n, 0, at);
  kva_k_guard_end(b, guard);
  return kva_k_select(b, inside, v, l->operand(l, n, 1, at));
}

int kva_pad_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  const kva_pad_attrs *a = n->attrs;
  if (operand) return KVA_SAME_FOR_ALL;
  return kva_expr_is(a->before.v[axis], 0) && kva_expr_is(a->after.v[axis], 0) ? (int)axis : KVA_MIXED;
}

/* Rows of zeros in front, and as many of the last rows cropped: what moves a sequence by whole rows. */
kva_status kva_pad_incremental(kva_incremental *c, const kva_node *n) {
  const kva_pad_attrs *a = n->attrs;
  kva_value *x = c->operands[0];
  uint32_t axis = 0;
  int64_t rows;
  for (uint32_t k = 0; k < a->before.n; k++) {
    if (kva_is_time(c, kva_operand(n, 0), k))
      axis = k;
    else if (!kva_expr_is(a->before.v[k], 0) || !kva_expr_is(a->after.v[k], 0))
      return kva_refuse_chunks(c, n, "it pads other axes, too; pad these before");
  }
  bool moves = n->n_operands == 1 && mode_of(n) == PAD_CONSTANT && kva_expr_is_const(a->before.v[axis], &rows) &&
               rows > 0 && kva_expr_is(a->after.v[axis], -rows);
  if (!moves) return kva_refuse_chunks(c, n, "it does more than to move rows behind rows of zeros");
  if (x->type->dims[0] != c->batch || !axis) return kva_refuse_chunks(c, n, "its operand has no axis for sequences");
  kva_value *all = kva_behind_past(c, "rows", x, axis, rows);
  c->results[0] = kva_slice_rows(c->b, all, axis, kva_expr_const(c->b->m->exprs, 0), c->time);
  return KVA_OK;
}

kva_value *kva_pad_permute(kva_builder *b, const kva_node *n, kva_value *const *operands, const uint32_t *moved) {
  const kva_pad_attrs *a = n->attrs;
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  for (uint32_t d = 0; d < a->before.n; d++) before[moved[d]] = a->before.v[d], after[moved[d]] = a->after.v[d];
  kva_pad_attrs attrs = {.before = {a->before.n, before}, .after = {a->after.n, after}, .mode = a->mode};
  return kva_build(b, KVA_OP_pad, n->n_operands, operands, &attrs);
}
