/* Builds a kv_shift node from taps and weights: layouts and granularities of weights. */
#include "passes/raise_kv_shift.h"

/* ---- taps -------------------------------------------------------------------------------------------------------- */

/* Determines what precedes row 0 of x from the first run, of `rows` rows, of a moved copy of x. */
static bool settle_boundary(kva_mix *s, const kva_run *head, int64_t rows) {
  kva_mix_boundary found = KVA_MIX_OPEN;
  kva_value *past = NULL;
  int64_t start, extent;
  bool known = head->kind == KVA_RUN_ZERO || kva_expr_is_const(head->start, &start);
  if (!known) return false;
  if (head->kind == KVA_RUN_ZERO)
    found = KVA_MIX_ZERO;
  else if (head->of == s->x && start == 0 && (head->kind == KVA_RUN_REPEAT || rows == 1))
    found = KVA_MIX_EDGE;
  else if (head->of != s->x && head->kind == KVA_RUN_ROWS &&
           kva_expr_is_const(head->of->type->dims[s->axis], &extent) && start + rows == extent) {
    found = KVA_MIX_STATE;
    past = head->of;
  }
  if (found == KVA_MIX_OPEN || (s->first && found != KVA_MIX_ZERO)) return false;
  if (s->boundary == KVA_MIX_OPEN) {
    s->boundary = found;
    s->past = past;
  }
  return s->boundary == found && s->past == past;
}

bool kva_mix_tap(kva_mix *s, const kva_rows_view *view, int64_t *out_tap) {
  kva_expr_ctx *c = s->b->m->exprs;
  const kva_run *last = &view->runs[view->n - 1];
  int64_t head = 0, start;
  if (view->n > 2 || last->kind != KVA_RUN_ROWS || last->of != s->x || !kva_expr_is_const(last->start, &start))
    return false;
  if (view->n == 2 && (!kva_expr_is_const(view->runs[0].len, &head) || start != 0)) return false;
  int64_t tap = s->first - start + head;
  if (tap < 0 || tap >= KVA_MAX_TAPS) return false;
  if (last->len != kva_expr_addi(c, s->x->type->dims[s->axis], -s->first - head)) return false;
  if (head > 0 && !settle_boundary(s, &view->runs[0], head)) return false;
  *out_tap = tap;
  return true;
}

/* ---- weights ----------------------------------------------------------------------------------------------------- */

static kva_value *value_of(kva_mix *s, kva_tap_weight w) {
  kva_value *number = kva_const_scalar(s->b, s->type->dtype, w.present ? w.number : 0);
  if (!w.present || !w.factor) return number;
  return w.number == 1 ? w.factor : kva_mul(s->b, w.factor, number);
}

kva_tap_weight kva_tap_add(kva_mix *s, kva_tap_weight w, kva_tap_weight more) {
  if (!w.present) return more;
  if (w.factor == more.factor) return (kva_tap_weight){true, w.number + more.number, w.factor};
  bool subtract = more.number < 0;
  if (subtract) more.number = -more.number;
  kva_value *a = value_of(s, w), *b = value_of(s, more);
  return (kva_tap_weight){true, 1, subtract ? kva_sub(s->b, a, b) : kva_add(s->b, a, b)};
}

kva_tap_weight kva_tap_scale(kva_mix *s, kva_tap_weight w, kva_value *factor) {
  double number;
  if (kva_number_of(factor, &number))
    w.number *= number;
  else
    w.factor = w.factor ? kva_mul(s->b, w.factor, factor) : factor;
  return w;
}

/* Roles of y's axes in [batch, time, head, channel]. Rank 4 with time axis 2 is [B,H,T,D]. Otherwise all axes before
 * time are batch, and those between time and channels are heads. */
typedef enum role { BATCH = 1, TIME = 2, HEAD = 4, CHANNEL = 8 } role;

static bool heads_first(const kva_mix *s) {
  return s->type->rank == 4 && s->axis == 2;
}

static role role_of(const kva_mix *s, uint32_t axis) {
  if (axis == s->axis) return TIME;
  if (axis + 1 == s->type->rank) return CHANNEL;
  if (heads_first(s)) return axis == 0 ? BATCH : HEAD;
  return axis < s->axis ? BATCH : HEAD;
}

/* The roles along which v varies. */
static uint32_t roles_of(const kva_mix *s, const kva_value *v) {
  uint32_t roles = 0, skipped = s->type->rank - v->type->rank;
  for (uint32_t k = 0; k < v->type->rank; k++)
    if (!kva_expr_is(v->type->dims[k], 1)) roles |= role_of(s, k + skipped);
  return roles;
}

static bool fits(uint32_t roles) {
  return !(roles & ~(HEAD | CHANNEL)) || !(roles & CHANNEL);
}

bool kva_mix_is_weight(const kva_mix *s, const kva_value *v) {
  return v->type->rank <= s->type->rank && v->type->dtype == s->type->dtype && fits(roles_of(s, v));
}

/* Product of y's extents with one role. */
static kva_dim extent_of(const kva_mix *s, role r) {
  kva_expr_ctx *c = s->b->m->exprs;
  kva_dim product = kva_expr_const(c, 1);
  for (uint32_t k = 0; k < s->type->rank; k++)
    if (role_of(s, k) == r) product = kva_expr_mul(c, product, s->type->dims[k]);
  return product;
}

/* Expands v along `roles`; its other axes have extent 1, in y's axis order. */
static kva_value *write_out(kva_mix *s, kva_value *v, uint32_t roles) {
  kva_dim shape[KVA_MAX_RANK], one = kva_expr_const(s->b->m->exprs, 1);
  uint32_t rank = s->type->rank, skipped = rank - v->type->rank;
  for (uint32_t k = 0; k < rank; k++) shape[k] = k < skipped ? one : v->type->dims[k - skipped];
  v = kva_reshape(s->b, v, rank, shape);
  for (uint32_t k = 0; k < rank; k++) shape[k] = role_of(s, k) & roles ? s->type->dims[k] : one;
  return kva_expand(s->b, v, rank, shape);
}

static kva_value *pad_front(kva_mix *s, kva_value *v, uint32_t axis, int64_t rows) {
  kva_expr_ctx *c = s->b->m->exprs;
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  for (uint32_t k = 0; k < v->type->rank; k++) before[k] = after[k] = kva_expr_const(c, 0);
  if (!rows) return v;
  before[axis] = kva_expr_const(c, rows);
  kva_pad_attrs attrs = {.before = {v->type->rank, before}, .after = {v->type->rank, after}};
  return kva_build(s->b, KVA_OP_pad, 1, &v, &attrs);
}

/* One tap's weights as [H,1], [H,1,D] or [B,H,T,1]. */
static kva_value *tap_weights(kva_mix *s, kva_tap_weight w, uint32_t roles) {
  kva_builder *b = s->b;
  kva_value *v = write_out(s, value_of(s, w), roles);
  kva_dim one = kva_expr_const(b->m->exprs, 1), heads = extent_of(s, HEAD);
  if (!(roles & (BATCH | TIME)))
    return roles & CHANNEL ? kva_reshape(b, v, 3, (kva_dim[]){heads, one, extent_of(s, CHANNEL)})
                           : kva_reshape(b, v, 2, (kva_dim[]){heads, one});
  v = pad_front(s, v, s->axis, s->first); /* row 0 is unmixed: its weights are unused */
  kva_dim batch = extent_of(s, BATCH), rows = v->type->dims[s->axis];
  if (heads_first(s)) return v;
  v = kva_reshape(b, v, 3, (kva_dim[]){batch, rows, heads});
  v = kva_transpose(b, v, (const int64_t[]){0, 2, 1});
  return kva_reshape(b, v, 4, (kva_dim[]){batch, heads, rows, one});
}

static kva_value *all_weights(kva_mix *s, int64_t window, uint32_t roles) {
  kva_value *taps[KVA_MAX_TAPS];
  for (int64_t j = 0; j < window; j++) taps[j] = tap_weights(s, s->w[j], roles);
  kva_concat_attrs attrs = {.axis = roles & (BATCH | TIME) ? 3 : 1};
  return kva_build(s->b, KVA_OP_concat, (uint32_t)window, taps, &attrs);
}

/* ---- building the node ------------------------------------------------------------------------------------------- */

static kva_value *last_rows(kva_builder *b, kva_value *v, uint32_t axis, int64_t rows) {
  kva_expr_ctx *c = b->m->exprs;
  kva_dim starts[KVA_MAX_RANK], shape[KVA_MAX_RANK];
  int64_t steps[KVA_MAX_RANK];
  for (uint32_t k = 0; k < v->type->rank; k++) {
    starts[k] = kva_expr_const(c, 0);
    shape[k] = v->type->dims[k];
    steps[k] = 1;
  }
  if (kva_expr_is(shape[axis], rows)) return v;
  starts[axis] = kva_expr_addi(c, shape[axis], -rows);
  shape[axis] = kva_expr_const(c, rows);
  uint32_t rank = v->type->rank;
  kva_slice_attrs attrs = {.starts = {rank, starts}, .shape = {rank, shape}, .steps = {rank, steps}};
  return kva_build(b, KVA_OP_slice, 1, &v, &attrs);
}

kva_value *kva_mix_build_node(kva_mix *s, kva_value *x, kva_value *past, kva_value *w, int64_t time_axis) {
  const char *boundary = s->first ? "keep" : s->boundary == KVA_MIX_EDGE ? "edge" : NULL;
  kva_kv_shift_attrs attrs = {.time_axis = time_axis, .boundary = boundary};
  kva_value *operands[3] = {x, w, past};
  return kva_result(kva_build_node(s->b, KVA_OP_kv_shift, past ? 3 : 2, operands, 2, &attrs), 0);
}

/* v, shaped like y except for the number of rows, as [B,T,H,D]; unchanged if it is [B,H,T,D]. */
static kva_value *as_shift_operand(kva_mix *s, kva_value *v) {
  v = kva_cast(s->b, v, s->type->dtype);
  if (heads_first(s)) return v;
  kva_dim rows = v->type->dims[s->axis];
  return kva_reshape(s->b, v, 4, (kva_dim[]){extent_of(s, BATCH), rows, extent_of(s, HEAD), extent_of(s, CHANNEL)});
}

kva_value *kva_mix_build(kva_mix *s) {
  int64_t window = 0, present = 0;
  uint32_t roles = HEAD;
  for (int64_t j = 0; j < KVA_MAX_TAPS; j++) {
    if (!s->w[j].present) continue;
    window = j + 1;
    present++;
    if (s->w[j].factor) roles |= roles_of(s, s->w[j].factor);
  }
  /* Every tap needs a weight of the model's: one of 0 would multiply rows that the model does not read, and 0 times an
   * infinity is NaN. */
  if (window < 2 || window > present || !fits(roles)) return NULL;
  if (roles & (BATCH | TIME)) roles = BATCH | TIME | HEAD;
  kva_value *w = all_weights(s, window, roles);
  kva_value *past = s->past ? as_shift_operand(s, last_rows(s->b, s->past, s->axis, window - 1)) : NULL;
  kva_value *x = as_shift_operand(s, s->x);
  kva_value *y = kva_mix_build_node(s, x, past, w, heads_first(s) ? 2 : 1);
  return kva_reshape(s->b, y, s->x->type->rank, s->x->type->dims);
}
