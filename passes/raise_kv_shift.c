/* KVShift from sums: a x + b S(x) + c S^2(x) + ..., where S moves rows one place later along the time axis (arXiv
 * 2411.19574, eq. 4-6), for any spelling of S and any arrangement of the sum:
 *
 *   x + mu (S(x) - x)                       weights are collected by distributing products over sums
 *   concat(x[:1], x[1:] + g x[:-1])         row 0 is kept: the same sum over rows 1.. only
 *
 * Algorithm: (1) find in the sum a copy of some x that is moved by a positive number of rows. It determines x, the time
 * axis and what precedes row 0. (2) Check that the whole sum is linear in copies of x, with weights of one of
 * kv_shift's granularities. (3) Collect the weights by tap and build the node. raise_shift_window.c handles windows as
 * stacks and as convolutions.
 *
 * Parts of the sum may have other uses: recomputing views and sums costs nothing, and in RWKV's token shift several
 * mixes share S(x) - x. */
#include "passes/raise_kv_shift.h"

enum { MAX_DEPTH = 8 }; /* longest chain of additions and products in a sum */

static bool same_but_rows(const kva_type *a, const kva_type *b, uint32_t axis) {
  if (a->rank != b->rank) return false;
  for (uint32_t k = 0; k < a->rank; k++)
    if (k != axis && a->dims[k] != b->dims[k]) return false;
  return true;
}

/* ---- finding x --------------------------------------------------------------------------------------------------- */

/* If v is a copy of some x moved by one row or more, sets x and axis. */
static bool is_moved(kva_mix *s, kva_value *v) {
  int axis = kva_rows_axis(v);
  if (axis < 0 || axis + 1 >= (int)v->type->rank) return false;
  kva_rows_view view = kva_rows_view_of(s->b->m->exprs, v, (uint32_t)axis);
  const kva_run *last = &view.runs[view.n - 1];
  int64_t tap;
  kva_mix trial = *s;
  trial.axis = (uint32_t)axis;
  trial.x = last->of;
  if (last->kind != KVA_RUN_ROWS || !same_but_rows(trial.x->type, v->type, trial.axis)) return false;
  if (!kva_mix_tap(&trial, &view, &tap) || tap == 0) return false;
  s->axis = trial.axis;
  s->x = trial.x;
  return true;
}

static bool is_sum(const kva_node *n) {
  return n && (kva_is(n, KVA_OP_add) || kva_is(n, KVA_OP_sub) || kva_is(n, KVA_OP_neg) || kva_is(n, KVA_OP_mul) ||
               kva_is(n, KVA_OP_div));
}

static bool find_moved(kva_mix *s, kva_value *v, int depth) {
  if (v->type != s->type) return false;
  if (is_moved(s, v)) return true;
  if (!depth || !is_sum(v->def)) return false;
  for (uint32_t i = 0; i < v->def->n_operands; i++)
    if (find_moved(s, kva_operand(v->def, i), depth - 1)) return true;
  return false;
}

/* ---- linearity --------------------------------------------------------------------------------------------------- */

static bool tap_of(kva_mix *s, kva_value *v, int64_t *out_tap) {
  kva_rows_view view = kva_rows_view_of(s->b->m->exprs, v, s->axis);
  return kva_mix_tap(s, &view, out_tap);
}

static bool is_linear(kva_mix *s, kva_value *v, int depth);

/* Index of the factor that contains x; -1: there is none, or the other factor is not a weight. */
static int linear_factor(kva_mix *s, const kva_node *n, int depth) {
  double number;
  if (kva_is(n, KVA_OP_div))
    return kva_number_of(kva_operand(n, 1), &number) && number != 0 && is_linear(s, kva_operand(n, 0), depth) ? 0 : -1;
  for (int i = 0; i < 2; i++)
    if (kva_mix_is_weight(s, kva_operand(n, 1 - i)) && is_linear(s, kva_operand(n, i), depth)) return i;
  return -1;
}

static bool is_linear(kva_mix *s, kva_value *v, int depth) {
  int64_t tap;
  if (v->type != s->type) return false;
  if (tap_of(s, v, &tap)) return true;
  if (!depth || !is_sum(v->def)) return false;
  if (kva_is(v->def, KVA_OP_mul) || kva_is(v->def, KVA_OP_div)) return linear_factor(s, v->def, depth - 1) >= 0;
  for (uint32_t i = 0; i < v->def->n_operands; i++)
    if (!is_linear(s, kva_operand(v->def, i), depth - 1)) return false;
  return true;
}

/* Adds w * v, where v is linear in x, to the weights. */
static void collect(kva_mix *s, kva_value *v, kva_tap_weight w, int depth) {
  int64_t tap;
  double number;
  if (tap_of(s, v, &tap)) {
    s->w[tap] = kva_tap_add(s, s->w[tap], w);
    return;
  }
  const kva_node *n = v->def;
  if (kva_is(n, KVA_OP_div)) {
    KVA_ASSERT(kva_number_of(kva_operand(n, 1), &number));
    w.number /= number;
    collect(s, kva_operand(n, 0), w, depth - 1);
  } else if (kva_is(n, KVA_OP_mul)) {
    int i = linear_factor(s, n, depth - 1);
    collect(s, kva_operand(n, (uint32_t)i), kva_tap_scale(s, w, kva_operand(n, (uint32_t)(1 - i))), depth - 1);
  } else {
    for (uint32_t i = 0; i < n->n_operands; i++) {
      kva_tap_weight part = w;
      if (kva_is(n, KVA_OP_neg) || (kva_is(n, KVA_OP_sub) && i == 1)) part.number = -part.number;
      collect(s, kva_operand(n, i), part, depth - 1);
    }
  }
}

static kva_value *raise_sum(kva_mix *s, kva_value *sum) {
  if (!is_linear(s, sum, MAX_DEPTH)) return NULL;
  kva_attempt attempt = kva_attempt_begin(s->b);
  collect(s, sum, (kva_tap_weight){true, 1, NULL}, MAX_DEPTH);
  return kva_attempt_end(s->b, attempt, kva_mix_build(s));
}

/* ---- roots ------------------------------------------------------------------------------------------------------- */

static kva_value *raise_mix(kva_builder *b) {
  kva_value *sum = kva_result(b->before, 0);
  kva_mix s = {.b = b, .type = sum->type};
  if (kva_is(b->before, KVA_OP_neg) || !find_moved(&s, sum, MAX_DEPTH)) return NULL;
  return raise_sum(&s, sum);
}

/* concat(x[:1], sum over rows 1..): row 0 is kept. */
static kva_value *raise_kept(kva_builder *b) {
  kva_expr_ctx *c = b->m->exprs;
  kva_value *y = kva_result(b->before, 0);
  int axis = kva_rows_axis(y);
  if (axis < 0 || axis + 1 >= (int)y->type->rank) return NULL;
  kva_rows_view view = kva_rows_view_of(c, y, (uint32_t)axis);
  const kva_run *row = &view.runs[0], *rest = &view.runs[1];
  bool fits = view.n == 2 && row->kind == KVA_RUN_ROWS && kva_expr_is(row->start, 0) && kva_expr_is(row->len, 1) &&
              rest->kind == KVA_RUN_ROWS && kva_expr_is(rest->start, 0) && is_sum(rest->of->def) &&
              row->of->type->dims[axis] == y->type->dims[axis] && rest->of->type->dtype == y->type->dtype &&
              rest->of->type->dims[axis] == rest->len && same_but_rows(row->of->type, y->type, (uint32_t)axis);
  if (!fits) return NULL;
  kva_mix s = {.b = b, .type = rest->of->type, .x = row->of, .axis = (uint32_t)axis, .first = 1};
  return raise_sum(&s, rest->of);
}

/* cast(kv_shift(cast x, w)): kv_shift sums in float and rounds once anyway. */
static kva_value *raise_narrowed(kva_builder *b) {
  kva_node *shift = kva_operand(b->before, 0)->def;
  if (!shift || !kva_is(shift, KVA_OP_kv_shift) || shift->results[1].uses || kva_operand(b->before, 0)->index != 0)
    return NULL;
  if (kva_is_cast_again(&b->before->results[0])) return NULL;
  kva_node *widen = kva_operand(shift, 0)->def;
  kva_dtype narrow = b->before->results[0].type->dtype;
  if (!widen || !kva_is(widen, KVA_OP_cast) || kva_operand_type(widen, 0)->dtype != narrow) return NULL;
  if (kva_dtype_bits(narrow) >= kva_dtype_bits(kva_operand_type(shift, 0)->dtype) ||
      kva_value_use_count(&shift->results[0]) != 1)
    return NULL;
  kva_value *past = kva_operand(shift, 2);
  if (past) {
    if (!past->def || !kva_is(past->def, KVA_OP_cast) || kva_operand_type(past->def, 0)->dtype != narrow) return NULL;
    past = kva_operand(past->def, 0);
  }
  kva_attempt attempt = kva_attempt_begin(b);
  kva_value *operands[5] = {kva_operand(widen, 0), kva_operand(shift, 1), past, kva_operand(shift, 3),
                            kva_operand(shift, 4)};
  kva_node *n = kva_build_node(b, KVA_OP_kv_shift, shift->n_operands, operands, 2, shift->attrs);
  return kva_attempt_end(b, attempt, kva_result(n, 0));
}

kva_value *kva_raise_kv_shift(kva_builder *b) {
  if (!kva_dtype_is_float(b->before->results[0].type->dtype)) return NULL;
  switch ((kva_op_id)b->before->op->id) {
  case KVA_OP_add:
  case KVA_OP_sub:
  case KVA_OP_mul:
  case KVA_OP_div: return raise_mix(b);
  case KVA_OP_concat: return raise_kept(b);
  case KVA_OP_cast: return raise_narrowed(b);
  case KVA_OP_reduce_sum: return kva_raise_shift_window(b);
  case KVA_OP_slice:
  case KVA_OP_conv: return kva_raise_shift_conv(b);
  default: return NULL;
  }
}

/* Moved rows that are no part of a mix, in whatever spelling, become a pad: it copies, and runs in chunks by its own
 * rule. As a kv_shift the current row would have the weight 0, and 0 times an infinity is NaN. Only along a sequence,
 * whose extent is symbolic. */
kva_value *kva_raise_hard_shift(kva_builder *b) {
  kva_expr_ctx *c = b->m->exprs;
  const kva_node *n = b->before;
  kva_value *y = kva_result(b->before, 0);
  int64_t tap;
  kva_mix s = {.b = b, .type = y->type};
  bool moves = kva_is(n, KVA_OP_slice) || kva_is(n, KVA_OP_pad) || kva_is(n, KVA_OP_concat) || kva_is(n, KVA_OP_mul) ||
               kva_is(n, KVA_OP_where);
  if (!moves || !kva_dtype_is_float(y->type->dtype) || !is_moved(&s, y) || !tap_of(&s, y, &tap)) return NULL;
  if (s.boundary != KVA_MIX_ZERO || s.x->type != y->type || kva_expr_is_const(y->type->dims[s.axis], NULL)) return NULL;
  if (kva_is(n, KVA_OP_pad) && n->n_operands == 1 && kva_operand(n, 0) == s.x) return NULL;
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  for (uint32_t k = 0; k < y->type->rank; k++) {
    before[k] = kva_expr_const(c, k == s.axis ? tap : 0);
    after[k] = kva_expr_const(c, k == s.axis ? -tap : 0);
  }
  kva_pad_attrs attrs = {.before = {y->type->rank, before}, .after = {y->type->rank, after}};
  return kva_build(b, KVA_OP_pad, 1, &s.x, &attrs);
}
