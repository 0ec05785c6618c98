/* Row views: see raise_rows.h. */
#include "passes/raise_rows.h"
#include "ops/check.h"
#include "passes/raise_mask.h"

/* Whether v, through reshapes, expansions and casts, is a constant 0. */
static bool is_zero(const kva_value *v) {
  while (v->def && (kva_is(v->def, KVA_OP_expand) || kva_is(v->def, KVA_OP_reshape) || kva_is(v->def, KVA_OP_cast)))
    v = kva_operand(v->def, 0);
  return kva_is_splat(v, 0);
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static bool continues(kva_expr_ctx *c, const kva_run *a, const kva_run *b) {
  if (a->kind != b->kind) return false;
  if (a->kind == KVA_RUN_ZERO) return true;
  if (a->of != b->of) return false;
  return a->kind == KVA_RUN_REPEAT ? a->start == b->start : kva_expr_add(c, a->start, a->len) == b->start;
}

bool kva_rows_push(kva_expr_ctx *c, kva_rows_view *view, kva_run run) {
  KVA_ASSERT(view->n <= KVA_MAX_RUNS && run.len && (run.kind == KVA_RUN_ZERO || run.of));
  if (kva_expr_is(run.len, 0)) return true;
  kva_run *last = view->n ? &view->runs[view->n - 1] : NULL;
  if (last && continues(c, last, &run)) {
    last->len = kva_expr_add(c, last->len, run.len);
    return true;
  }
  if (view->n == KVA_MAX_RUNS) return false;
  view->runs[view->n++] = run;
  return true;
}

static bool append(kva_expr_ctx *c, kva_rows_view *view, const kva_rows_view *more) {
  for (uint32_t i = 0; i < more->n; i++)
    if (!kva_rows_push(c, view, more->runs[i])) return false;
  return true;
}

static kva_rows_view itself(kva_expr_ctx *c, kva_value *v, uint32_t axis) {
  KVA_ASSERT(axis < v->type->rank);
  return (kva_rows_view){1, {{KVA_RUN_ROWS, v, kva_expr_const(c, 0), v->type->dims[axis]}}};
}

static kva_dim total(kva_expr_ctx *c, const kva_rows_view *view) {
  kva_dim sum = kva_expr_const(c, 0);
  for (uint32_t i = 0; i < view->n; i++) sum = kva_expr_add(c, sum, view->runs[i].len);
  return sum;
}

/* Drops leading rows. The lengths of the runs before it must prove which run a row lies in; only the last run may be
 * cut without a proof that it is long enough. */
static bool skip_rows(kva_expr_ctx *c, const kva_rows_view *view, kva_dim skip, kva_rows_view *out) {
  out->n = 0;
  for (uint32_t i = 0; i < view->n; i++) {
    kva_run run = view->runs[i];
    bool is_last = i + 1 == view->n;
    if (!is_last && kva_expr_provably_le(c, run.len, skip)) {
      skip = kva_expr_sub(c, skip, run.len);
      continue;
    }
    if (!is_last && !kva_expr_provably_le(c, skip, run.len)) return false;
    if (run.kind == KVA_RUN_ROWS) run.start = kva_expr_add(c, run.start, skip);
    run.len = kva_expr_sub(c, run.len, skip);
    skip = kva_expr_const(c, 0);
    if (!kva_rows_push(c, out, run)) return false;
  }
  return true;
}

bool kva_rows_crop(kva_expr_ctx *c, const kva_rows_view *view, kva_dim start, kva_dim len, kva_rows_view *out) {
  if (!skip_rows(c, view, start, out)) return false;
  kva_dim drop = kva_expr_sub(c, total(c, out), len);
  while (out->n > 1 && kva_expr_provably_le(c, out->runs[out->n - 1].len, drop))
    drop = kva_expr_sub(c, drop, out->runs[--out->n].len);
  if (!out->n) return false;
  out->runs[out->n - 1].len = kva_expr_sub(c, out->runs[out->n - 1].len, drop);
  return true;
}

/* ---- operators --------------------------------------------------------------------------------------------------- */

static bool view_of_slice(kva_expr_ctx *c, const kva_node *n, uint32_t axis, kva_rows_view *out) {
  const kva_slice_attrs *a = n->attrs;
  if (kva_rows_axis(&n->results[0]) != (int)axis || (a->steps.n && a->steps.v[axis] != 1)) return false;
  kva_rows_view inner = kva_rows_view_of(c, kva_operand(n, 0), axis);
  return kva_rows_crop(c, &inner, a->starts.v[axis], a->shape.v[axis], out);
}

static bool is_negative(kva_dim d) {
  int64_t v;
  return kva_expr_upper_bound(d, &v) && v < 0;
}

/* The run that a pad inserts at the front, or at the back, where only zeros are supported. */
static bool padding(kva_expr_ctx *c, const kva_node *n, const kva_rows_view *inner, kva_dim amount, bool front,
                    kva_run *out) {
  const char *mode = ((const kva_pad_attrs *)n->attrs)->mode;
  *out = (kva_run){.kind = KVA_RUN_ZERO, .len = amount};
  if (kva_expr_is(amount, 0)) return true;
  if (!mode || !strcmp(mode, "constant")) return !kva_operand(n, 1) || is_zero(kva_operand(n, 1));
  kva_rows_view first;
  kva_dim zero = kva_expr_const(c, 0), one = kva_expr_const(c, 1);
  if (strcmp(mode, "edge") || !front || !kva_rows_crop(c, inner, zero, one, &first)) return false;
  if (first.n != 1 || first.runs[0].kind != KVA_RUN_ROWS) return false;
  *out = (kva_run){KVA_RUN_REPEAT, first.runs[0].of, first.runs[0].start, amount};
  return true;
}

static bool view_of_pad(kva_expr_ctx *c, const kva_node *n, uint32_t axis, kva_rows_view *out) {
  const kva_pad_attrs *a = n->attrs;
  if (kva_rows_axis(&n->results[0]) != (int)axis) return false;
  kva_dim before = a->before.v[axis], after = a->after.v[axis], zero = kva_expr_const(c, 0);
  kva_rows_view inner = kva_rows_view_of(c, kva_operand(n, 0), axis), cut;
  kva_dim skip = is_negative(before) ? kva_expr_muli(c, before, -1) : zero;
  kva_dim len = kva_expr_sub(c, kva_operand_type(n, 0)->dims[axis], skip);
  if (is_negative(after)) len = kva_expr_add(c, len, after);
  if (!kva_rows_crop(c, &inner, skip, len, &cut)) return false;
  kva_run front, back;
  if (!padding(c, n, &inner, is_negative(before) ? zero : before, true, &front)) return false;
  if (!padding(c, n, &inner, is_negative(after) ? zero : after, false, &back)) return false;
  out->n = 0;
  return kva_rows_push(c, out, front) && append(c, out, &cut) && kva_rows_push(c, out, back);
}

static bool view_of_concat(kva_expr_ctx *c, const kva_node *n, uint32_t axis, kva_rows_view *out) {
  if (kva_rows_axis(&n->results[0]) != (int)axis) return false;
  out->n = 0;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    kva_rows_view part = kva_rows_view_of(c, kva_operand(n, i), axis);
    if (!append(c, out, &part)) return false;
  }
  return true;
}

static bool view_of_expand(kva_expr_ctx *c, const kva_node *n, uint32_t axis, kva_rows_view *out) {
  const kva_type *x = kva_operand_type(n, 0), *y = n->results[0].type;
  if (x->rank != y->rank || !kva_expr_is(x->dims[axis], 1)) return false;
  for (uint32_t k = 0; k < x->rank; k++)
    if (k != axis && x->dims[k] != y->dims[k]) return false;
  kva_rows_view row = kva_rows_view_of(c, kva_operand(n, 0), axis);
  if (row.n != 1 || row.runs[0].kind == KVA_RUN_ZERO) return false;
  *out = (kva_rows_view){1, {{KVA_RUN_REPEAT, row.runs[0].of, row.runs[0].start, y->dims[axis]}}};
  return true;
}

/* x where a mask is on and zero elsewhere, for a mask that is off in the first rows only. */
static bool view_of_masked(kva_expr_ctx *c, const kva_node *n, kva_value *x, const kva_value *mask, bool on,
                           uint32_t axis, kva_rows_view *out) {
  const kva_type *y = n->results[0].type;
  int64_t rows;
  bool first;
  if (x->type != y || !kva_head_mask(c, mask, y->rank - 1 - axis, &rows, &first) || first == on) return false;
  kva_rows_view inner = kva_rows_view_of(c, x, axis), rest;
  kva_dim head = kva_expr_const(c, rows);
  if (!kva_rows_crop(c, &inner, head, kva_expr_sub(c, y->dims[axis], head), &rest)) return false;
  out->n = 0;
  return kva_rows_push(c, out, (kva_run){.kind = KVA_RUN_ZERO, .len = head}) && append(c, out, &rest);
}

static bool view_of_mul(kva_expr_ctx *c, const kva_node *n, uint32_t axis, kva_rows_view *out) {
  for (uint32_t i = 0; i < 2; i++)
    if (view_of_masked(c, n, kva_operand(n, i), kva_operand(n, 1 - i), true, axis, out)) return true;
  return false;
}

static bool view_of_where(kva_expr_ctx *c, const kva_node *n, uint32_t axis, kva_rows_view *out) {
  kva_value *mask = kva_operand(n, 0), *taken = kva_operand(n, 1), *other = kva_operand(n, 2);
  if (is_zero(other)) return view_of_masked(c, n, taken, mask, true, axis, out);
  return is_zero(taken) && view_of_masked(c, n, other, mask, false, axis, out);
}

static bool view_of_node(kva_expr_ctx *c, const kva_node *n, uint32_t axis, kva_rows_view *out) {
  switch ((kva_op_id)n->op->id) {
  case KVA_OP_slice: return view_of_slice(c, n, axis, out);
  case KVA_OP_pad: return view_of_pad(c, n, axis, out);
  case KVA_OP_concat: return view_of_concat(c, n, axis, out);
  case KVA_OP_expand: return view_of_expand(c, n, axis, out);
  case KVA_OP_mul: return view_of_mul(c, n, axis, out);
  case KVA_OP_where: return view_of_where(c, n, axis, out);
  case KVA_OP_cast:
    if (!kva_is_widening(n)) return false; /* which is exact, so it commutes with any movement of rows */
    *out = kva_rows_view_of(c, kva_operand(n, 0), axis);
    return true;
  default: return false;
  }
}

kva_rows_view kva_rows_view_of(kva_expr_ctx *c, kva_value *v, uint32_t axis) {
  kva_rows_view view;
  if (is_zero(v)) return (kva_rows_view){1, {{.kind = KVA_RUN_ZERO, .len = v->type->dims[axis]}}};
  if (v->def && v->index == 0 && view_of_node(c, v->def, axis, &view) && view.n) return view;
  return itself(c, v, axis);
}

/* ---- the axis of the movement ------------------------------------------------------------------------------------ */

static int axis_of_slice(const kva_node *n) {
  const kva_slice_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  int found = -1, moved = 0;
  for (uint32_t k = 0; k < x->rank; k++) {
    if (kva_expr_is(a->starts.v[k], 0) && a->shape.v[k] == x->dims[k] && (!a->steps.n || a->steps.v[k] == 1)) continue;
    found = (int)k;
    moved++;
  }
  return moved == 1 ? found : -1;
}

static int axis_of_pad(const kva_node *n) {
  const kva_pad_attrs *a = n->attrs;
  int found = -1, moved = 0;
  for (uint32_t k = 0; k < a->before.n; k++) {
    if (kva_expr_is(a->before.v[k], 0) && kva_expr_is(a->after.v[k], 0)) continue;
    found = (int)k;
    moved++;
  }
  return moved == 1 ? found : -1;
}

static int axis_of_movement(const kva_value *v) {
  const kva_node *n = v->def;
  if (!n) return -1;
  switch ((kva_op_id)n->op->id) {
  case KVA_OP_slice: return axis_of_slice(n);
  case KVA_OP_pad: return axis_of_pad(n);
  case KVA_OP_concat: return (int)kva_axis(((const kva_concat_attrs *)n->attrs)->axis, n->results[0].type->rank);
  default: return -1;
  }
}

int kva_rows_axis(const kva_value *v) {
  const kva_node *n = v->def;
  int found = axis_of_movement(v);
  while (n && kva_is(n, KVA_OP_cast) && found < 0) {
    found = axis_of_movement(kva_operand(n, 0));
    n = kva_operand(n, 0)->def;
  }
  bool masked = n && (kva_is(n, KVA_OP_mul) || kva_is(n, KVA_OP_where));
  for (uint32_t i = 0; masked && i < n->n_operands && found < 0; i++)
    if (kva_operand_type(n, i)->rank == n->results[0].type->rank) found = axis_of_movement(kva_operand(n, i));
  return found;
}
