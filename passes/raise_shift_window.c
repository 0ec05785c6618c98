/* KVShift from windows: sum_i w[i] X[t + i], where X is W - 1 rows of padding or state followed by the rows of x, as
 *
 *   sum(stack(X[0:T], X[1:T+1], ..) * w)    copies stacked along a new axis (pad, unfold, multiply, sum): by
 * concatenation, by a gather of rows t + i, or as T windows, one per row conv(X, w), group == channels           a
 * depthwise convolution of [B, C, T], padded on the left, or on both sides and cropped */
#include "ops/check.h"
#include "passes/raise_index.h"
#include "passes/raise_kv_shift.h"

/* ---- stacks ------------------------------------------------------------------------------------------------------ */

/* Copies of a tensor, moved along `axis` and stacked along another axis. */
typedef struct stack {
  kva_expr_ctx *c;
  const kva_type *type; /* of one copy */
  uint32_t axis, n;
  kva_rows_view copies[KVA_MAX_TAPS];
} stack;

/* The type of v without axis u. */
static const kva_type *without_axis(kva_module *m, const kva_type *t, uint32_t u) {
  kva_dim dims[KVA_MAX_RANK];
  for (uint32_t k = 0, n = 0; k < t->rank; k++)
    if (k != u) dims[n++] = t->dims[k];
  return kva_type_tensor(m, t->dtype, t->rank - 1, dims);
}

/* Matches concat(reshape(copy), ..) along u. */
static bool stack_of_concat(stack *s, const kva_node *n, uint32_t u) {
  if (!kva_is(n, KVA_OP_concat) || kva_axis(((const kva_concat_attrs *)n->attrs)->axis, n->results[0].type->rank) != u)
    return false;
  int axis = -1;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_node *reshape = kva_operand(n, i)->def;
    if (!kva_expr_is(kva_operand_type(n, i)->dims[u], 1) || !reshape || !kva_is(reshape, KVA_OP_reshape)) return false;
    if (kva_operand_type(reshape, 0) != s->type) return false;
    if (axis < 0) axis = kva_rows_axis(kva_operand(reshape, 0));
  }
  if (axis < 0 || n->n_operands > KVA_MAX_TAPS) return false;
  s->axis = (uint32_t)axis;
  s->n = n->n_operands;
  for (uint32_t i = 0; i < s->n; i++)
    s->copies[i] = kva_rows_view_of(s->c, kva_operand(kva_operand(n, i)->def, 0), s->axis);
  return true;
}

/* Sets copy i to the rows of x from start + step * i on. */
static bool copies_of(stack *s, kva_value *x, int64_t start, int64_t step) {
  kva_rows_view rows = kva_rows_view_of(s->c, x, s->axis);
  for (uint32_t i = 0; i < s->n; i++) {
    kva_dim first = kva_expr_const(s->c, start + step * (int64_t)i);
    if (!kva_rows_crop(s->c, &rows, first, s->type->dims[s->axis], &s->copies[i])) return false;
  }
  return true;
}

/* Whether the transpose is the identity apart from moving axis `from` of the operand to axis `to`. */
static bool moves_one_axis(const kva_node *n, uint32_t *out_from, uint32_t to) {
  kva_ints perm = ((const kva_transpose_attrs *)n->attrs)->perm;
  int64_t last = -1;
  for (uint32_t k = 0; k < perm.n; k++) {
    if (k == to) continue;
    if (perm.v[k] < last) return false;
    last = perm.v[k];
  }
  *out_from = (uint32_t)perm.v[to];
  return true;
}

/* Matches gather(x, [[0, 1, ..], [1, 2, ..], ..]) along the rows, possibly with the window axis moved to u. */
static bool stack_of_gather(stack *s, const kva_node *n, uint32_t u) {
  if (kva_is(n, KVA_OP_transpose)) {
    if (!moves_one_axis(n, &u, u)) return false;
    n = kva_operand(n, 0)->def;
  }
  if (!n || !kva_is(n, KVA_OP_gather) || kva_operand_type(n, 1)->rank != 2) return false;
  s->axis = kva_axis(((const kva_gather_attrs *)n->attrs)->axis, kva_operand_type(n, 0)->rank);
  kva_line line;
  int64_t start, count;
  if (u != s->axis + 1 || !kva_line_of(s->c, kva_operand(n, 1), &line) || line.c[1] != 1) return false;
  if (!kva_expr_is_const(line.base, &start) || !kva_expr_is_const(kva_operand_type(n, 1)->dims[1], &count))
    return false;
  if (count > KVA_MAX_TAPS) return false;
  s->n = (uint32_t)count;
  return copies_of(s, kva_operand(n, 0), start, line.c[0]);
}

/* Matches operand i of a concat of windows: reshape(transpose(x[i:i+W])) with the window axis last. */
static bool is_window(const kva_node *concat, uint32_t i, uint32_t axis, kva_value **x, int64_t *start) {
  const kva_node *n = kva_operand(concat, i)->def;
  if (!n || !kva_is(n, KVA_OP_reshape)) return false;
  n = kva_operand(n, 0)->def;
  uint32_t rank = concat->results[0].type->rank - 1, from = axis;
  if (n && kva_is(n, KVA_OP_transpose)) {
    if (!moves_one_axis(n, &from, rank - 1)) return false;
    n = kva_operand(n, 0)->def;
  }
  if (!n || from != axis || kva_rows_axis(&n->results[0]) != (int)axis || !kva_is(n, KVA_OP_slice)) return false;
  *x = kva_operand(n, 0);
  return kva_expr_is_const(((const kva_slice_attrs *)n->attrs)->starts.v[axis], start);
}

/* Matches a concat of one window per row. */
static bool stack_of_windows(stack *s, const kva_node *n, uint32_t u) {
  int64_t start, first = 0, count;
  kva_value *x = NULL, *same;
  if (!kva_is(n, KVA_OP_concat) || u + 1 != n->results[0].type->rank) return false;
  s->axis = kva_axis(((const kva_concat_attrs *)n->attrs)->axis, n->results[0].type->rank);
  if (s->axis == u || !kva_expr_is_const(n->results[0].type->dims[u], &count) || count > KVA_MAX_TAPS) return false;
  if (!kva_expr_is(s->type->dims[s->axis], n->n_operands)) return false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    if (!is_window(n, i, s->axis, &same, &start) || (i && (same != x || start != first + (int64_t)i))) return false;
    if (i == 0) first = start;
    x = same;
  }
  s->n = (uint32_t)count;
  return copies_of(s, x, first, 1);
}

static bool stack_of(stack *s, kva_module *m, kva_value *v, uint32_t u) {
  if (!v->def || v->type->rank < 3) return false;
  *s = (stack){.c = m->exprs, .type = without_axis(m, v->type, u)};
  return stack_of_concat(s, v->def, u) || stack_of_gather(s, v->def, u) || stack_of_windows(s, v->def, u);
}

/* ---- sums over a stack ------------------------------------------------------------------------------------------- */

/* Determines x and the taps of all copies. */
static bool taps_of(kva_mix *mix, const stack *s, int64_t *taps) {
  const kva_rows_view *any = &s->copies[0];
  const kva_run *last = &any->runs[any->n - 1];
  if (last->kind != KVA_RUN_ROWS || s->axis + 1 >= s->type->rank) return false;
  mix->type = s->type;
  mix->axis = s->axis;
  mix->x = last->of;
  for (uint32_t i = 0; i < s->n; i++)
    if (!kva_mix_tap(mix, &s->copies[i], &taps[i])) return false;
  return true;
}

/* w at index i of axis u, which is counted from the right; w itself if it lacks the axis. */
static kva_value *weight_at(kva_builder *b, kva_value *w, uint32_t u_from_right, uint32_t i) {
  kva_dim starts[KVA_MAX_RANK], shape[KVA_MAX_RANK];
  int64_t steps[KVA_MAX_RANK];
  uint32_t rank = w->type->rank;
  if (u_from_right >= rank) return w;
  uint32_t u = rank - 1 - u_from_right;
  for (uint32_t k = 0; k < rank; k++) {
    starts[k] = kva_expr_const(b->m->exprs, k == u && !kva_expr_is(w->type->dims[u], 1) ? i : 0);
    shape[k] = k == u ? kva_expr_const(b->m->exprs, 1) : w->type->dims[k];
    steps[k] = 1;
  }
  kva_slice_attrs attrs = {.starts = {rank, starts}, .shape = {rank, shape}, .steps = {rank, steps}};
  if (!kva_expr_is(w->type->dims[u], 1)) w = kva_build(b, KVA_OP_slice, 1, &w, &attrs);
  return kva_reshape_like(b, w, without_axis(b->m, w->type, u));
}

static kva_value *build_sum(kva_mix *mix, const stack *s, const int64_t *taps, kva_value *w, uint32_t u_from_right) {
  for (uint32_t i = 0; i < s->n; i++) {
    kva_tap_weight one = {true, 1, NULL};
    if (w) one = kva_tap_scale(mix, one, weight_at(mix->b, w, u_from_right, i));
    if (one.factor && !kva_mix_is_weight(mix, one.factor)) return NULL;
    mix->w[taps[i]] = kva_tap_add(mix, mix->w[taps[i]], one);
  }
  return kva_mix_build(mix);
}

static kva_value *raise_stack(kva_builder *b, kva_value *stacked, kva_value *w, uint32_t u) {
  stack s;
  kva_mix mix = {.b = b};
  int64_t taps[KVA_MAX_TAPS];
  if (!stack_of(&s, b->m, stacked, u) || !taps_of(&mix, &s, taps)) return NULL;
  kva_attempt attempt = kva_attempt_begin(b);
  kva_value *y = build_sum(&mix, &s, taps, w, stacked->type->rank - 1 - u);
  if (y) y = kva_reshape_like(b, y, b->before->results[0].type);
  return kva_attempt_end(b, attempt, y);
}

kva_value *kva_raise_shift_window(kva_builder *b) {
  kva_ints axes = ((const kva_reduce_sum_attrs *)b->before->attrs)->axes;
  kva_value *sum = kva_operand(b->before, 0);
  if (axes.n != 1 || !sum->def) return NULL;
  uint32_t u = kva_axis(axes.v[0], sum->type->rank);
  if (!kva_is(sum->def, KVA_OP_mul)) return raise_stack(b, sum, NULL, u);
  kva_value *y = NULL;
  for (uint32_t i = 0; i < 2 && !y; i++)
    if (kva_operand(sum->def, i)->type == sum->type)
      y = raise_stack(b, kva_operand(sum->def, i), kva_operand(sum->def, 1 - i), u);
  return y;
}

/* ---- convolution ------------------------------------------------------------------------------------------------- */

/* Whether the convolution is depthwise over one axis with stride and dilation 1. */
static bool is_depthwise(const kva_node *n, int64_t *out_window) {
  const kva_conv_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0), *w = kva_operand_type(n, 1);
  bool plain = kva_dtype_is_float(x->dtype) && (!a->strides.n || a->strides.v[0] == 1) &&
               (!a->dilations.n || a->dilations.v[0] == 1);
  return plain && x->rank == 3 && kva_expr_is(w->dims[0], a->group) && kva_expr_is(x->dims[1], a->group) &&
         kva_expr_is_const(w->dims[2], out_window) && *out_window >= 2 && *out_window <= KVA_MAX_TAPS;
}

/* The rows that the convolution reads: x with its zero padding. */
static bool padded_rows(kva_expr_ctx *c, const kva_node *conv, kva_rows_view *out) {
  kva_ints pads = ((const kva_conv_attrs *)conv->attrs)->pads;
  kva_rows_view rows = kva_rows_view_of(c, kva_operand(conv, 0), 2);
  *out = (kva_rows_view){0};
  if (!kva_rows_push(c, out, (kva_run){.kind = KVA_RUN_ZERO, .len = kva_expr_const(c, pads.n ? pads.v[0] : 0)}))
    return false;
  for (uint32_t i = 0; i < rows.n; i++)
    if (!kva_rows_push(c, out, rows.runs[i])) return false;
  return kva_rows_push(c, out, (kva_run){.kind = KVA_RUN_ZERO, .len = kva_expr_const(c, pads.n ? pads.v[1] : 0)});
}

/* Row t of y is sum_k w[k] X[t + start + k]; it is causal if k is tap W - 1 - k of some x. */
static bool is_causal(kva_mix *s, const kva_node *conv, kva_dim start, int64_t window) {
  kva_expr_ctx *c = s->b->m->exprs;
  kva_rows_view rows, copy;
  if (!padded_rows(c, conv, &rows)) return false;
  for (int64_t k = window - 1; k >= 0; k--) {
    int64_t tap;
    if (!kva_rows_crop(c, &rows, kva_expr_addi(c, start, k), s->type->dims[2], &copy)) return false;
    const kva_run *last = &copy.runs[copy.n - 1];
    if (!s->x && last->kind == KVA_RUN_ROWS) s->x = last->of;
    if (!s->x || !kva_mix_tap(s, &copy, &tap) || tap != window - 1 - k) return false;
  }
  return true;
}

/* [B,C,rows] as [B,rows,1,C]. */
static kva_value *rows_first(kva_mix *s, kva_value *v) {
  v = kva_transpose(s->b, kva_cast(s->b, v, s->type->dtype), (const int64_t[]){0, 2, 1});
  const kva_dim *d = v->type->dims;
  return kva_reshape(s->b, v, 4, (kva_dim[]){d[0], d[1], kva_expr_const(s->b->m->exprs, 1), d[2]});
}

/* Converts the convolution's weights [C,1,W], oldest row first, to kv_shift's [1,W,C], newest row first. */
static kva_value *tap_order(kva_builder *b, kva_value *w, int64_t window) {
  kva_expr_ctx *c = b->m->exprs;
  kva_dim zero = kva_expr_const(c, 0);
  w = kva_transpose(b, w, (const int64_t[]){1, 2, 0});
  kva_slice_attrs flip = {.starts = {3, (kva_dim[]){zero, kva_expr_const(c, window - 1), zero}},
                          .shape = {3, w->type->dims},
                          .steps = {3, (int64_t[]){1, -1, 1}}};
  return kva_build(b, KVA_OP_slice, 1, &w, &flip);
}

static kva_value *build_conv(kva_mix *s, const kva_node *conv, int64_t window) {
  kva_builder *b = s->b;
  kva_value *past = NULL;
  if (s->past) {
    kva_dim extent = s->past->type->dims[2];
    if (!kva_expr_is(extent, window - 1)) return NULL;
    past = rows_first(s, s->past);
  }
  kva_value *y = kva_mix_build_node(s, rows_first(s, s->x), past, tap_order(b, kva_operand(conv, 1), window), 1);
  const kva_dim *d = y->type->dims;
  y = kva_reshape(b, y, 3, (kva_dim[]){d[0], d[1], d[3]});
  return kva_transpose(b, y, (const int64_t[]){0, 2, 1});
}

/* The root is the convolution or the slice that crops it. */
kva_value *kva_raise_shift_conv(kva_builder *b) {
  kva_value *y = kva_result(b->before, 0);
  kva_node *conv = b->before;
  kva_dim start = kva_expr_const(b->m->exprs, 0);
  if (kva_is(conv, KVA_OP_slice)) {
    if (y->type->rank != 3 || kva_rows_axis(y) != 2) return NULL;
    start = ((const kva_slice_attrs *)conv->attrs)->starts.v[2];
    conv = kva_operand(conv, 0)->def;
    if (!conv || !kva_is(conv, KVA_OP_conv) || kva_value_use_count(&conv->results[0]) != 1) return NULL;
  }
  int64_t window;
  kva_mix s = {.b = b, .type = y->type, .axis = 2};
  if (!is_depthwise(conv, &window) || !is_causal(&s, conv, start, window)) return NULL;
  kva_attempt attempt = kva_attempt_begin(b);
  return kva_attempt_end(b, attempt, build_conv(&s, conv, window));
}
