/* kv_shift(x, w, past?, segments?, left_pad?) -> y, state: mixes every row with the W-1 rows before it.
 *
 *   y[b,h,t,:] = sum_{j<W} w[h,j] * x[b,h,t-j,:]                    (KV shifting attention, arXiv 2411.19574, eq. 4-6)
 *
 * x is [B,T,H,D] (time_axis 1) or [B,H,T,D] (time_axis 2). Tap 0 is the current row, tap 1 the previous one, ... The
 * rank of w gives its granularity: [H,W] a scalar per head, [H,W,D] per channel, [B,H,T,W] per token and head (gates).
 *
 * Rows before the start: the sequence of batch entry b starts at row left_pad[b] (0 without left_pad).
 *
 *   with past      row -i is past row W-1-i: past holds the W-1 raw rows before x, oldest first. `boundary` is unused
 *   "zero"         they are zero, with no renormalisation: the paper's rule
 *   "keep"         they are zero and the first row passes unmixed: its weights are (1, 0, ...)
 *   "edge"         they equal the first row
 *
 * Padding rows t < left_pad[b] count as zero, and their results are zero. segments[b,t] numbers the documents of a
 * packed batch: a row of another document counts as zero; past belongs to the document of row 0.
 *
 * state: the W-1 raw (unmixed) rows that rows after x take as their past, the taps of row T-1: the last rows of
 * concat(past, x), where padding and other documents are zero. Running in chunks, each with the previous state as past,
 * gives the bits of one run over all rows for any division: terms are added in order of j, independently of t. (The
 * paper's own listing keeps the last *mixed* row in prefill, which makes the first decoded row wrong.)
 *
 * Gradients are the mirrored shift and sums over rows: kv_shift_input_grad.c, kv_shift_weight_grad.c. Tolerance 4: W
 * products accumulated in float (double for double) and one rounding to the result's dtype. */
#include "ops/kv_shift.h"
#include "ops/check.h"
#include "ops/element.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/partition.h"

KVA_OP_FUNCTIONS(kv_shift)

enum { MAX_UNROLLED_TAPS = 16 };

/* ---- inference --------------------------------------------------------------------------------------------------- */

static bool boundary_of(const char *name, kva_shift_boundary *out) {
  static const char *const names[] = {"zero", "keep", "edge"};
  for (int i = 0; i < 3; i++) {
    if (strcmp(name ? name : "zero", names[i]) == 0) return *out = (kva_shift_boundary)i, true;
  }
  return false;
}

kva_shift kva_shift_get(const kva_node *n, const kva_type *x, int64_t time_axis, const char *boundary,
                        uint32_t weight_rank, const kva_dim *weight_dims) {
  kva_shift s = {.n = n, .time = (uint32_t)time_axis, .head = (uint32_t)(3 - time_axis), .weight_rank = weight_rank};
  KVA_ASSERT(boundary_of(boundary, &s.boundary));
  s.B = x->dims[0], s.T = x->dims[s.time], s.H = x->dims[s.head], s.D = x->dims[3];
  KVA_ASSERT(kva_expr_is_const(weight_dims[kva_shift_tap_axis(weight_rank)], &s.window));
  return s;
}

static kva_status check_weight(kva_module *m, const kva_node *n, const kva_shift *s, const kva_dim *dims,
                               uint32_t w_operand) {
  kva_dim taps = dims[kva_shift_tap_axis(s->weight_rank)];
  const kva_dim expected[3][4] = {{s->H, taps}, {s->H, taps, s->D}, {s->B, s->H, s->T, taps}};
  for (uint32_t i = 0; i < s->weight_rank; i++) {
    if (dims[i] == expected[s->weight_rank - 2][i]) continue;
    return kva_operand_error(m, n, w_operand,
                             "dimension %u of the weights does not fit x: expected [heads, taps], [heads, taps, "
                             "channels] or [batch, heads, rows, taps]",
                             i);
  }
  return KVA_OK;
}

static kva_status check_options(kva_module *m, const kva_node *n, const kva_shift *s, const kva_type *x) {
  KVA_TRY(kva_check_same_dtype(m, n, KVA_SHIFT_PAST, 0));
  if (kva_operand(n, KVA_SHIFT_PAST)) {
    const kva_type *state = kva_shift_state_type(m, s);
    KVA_TRY(kva_check_shape(m, n, KVA_SHIFT_PAST, 4, state->dims));
  }
  KVA_TRY(kva_check_int(m, n, KVA_SHIFT_SEGMENTS));
  KVA_TRY(kva_check_shape(m, n, KVA_SHIFT_SEGMENTS, 2, (kva_dim[]){x->dims[0], s->T}));
  KVA_TRY(kva_check_int(m, n, KVA_SHIFT_LEFT_PAD));
  return kva_check_shape(m, n, KVA_SHIFT_LEFT_PAD, 1, x->dims);
}

kva_status kva_shift_check(kva_module *m, const kva_node *n, int64_t time_axis, const char *boundary,
                           uint32_t weight_rank, const kva_dim *weight_dims, uint32_t w_operand) {
  KVA_TRY(kva_check_float(m, n, 0));
  KVA_TRY(kva_check_float(m, n, 1));
  KVA_TRY(kva_check_rank(m, n, 0, 4));
  kva_shift_boundary ignored;
  if (time_axis != 1 && time_axis != 2) {
    return kva_error(m->diag, &n->loc, "%s: time_axis must be 1 ([B,T,H,D]) or 2 ([B,H,T,D]), found %lld", n->op->name,
                     (long long)time_axis);
  }
  if (!boundary_of(boundary, &ignored)) {
    return kva_error(m->diag, &n->loc, "%s: boundary must be \"zero\", \"keep\" or \"edge\", found \"%s\"", n->op->name,
                     boundary);
  }
  if (weight_rank < 2 || weight_rank > 4) {
    return kva_operand_error(m, n, w_operand, "expected weights of rank 2, 3 or 4, found rank %u", weight_rank);
  }
  int64_t window;
  if (!kva_expr_is_const(weight_dims[kva_shift_tap_axis(weight_rank)], &window) || window < 1) {
    return kva_operand_error(m, n, w_operand, "the number of taps must be a constant of at least 1");
  }
  const kva_type *x = kva_operand_type(n, 0);
  kva_shift s = kva_shift_get(n, x, time_axis, boundary, weight_rank, weight_dims);
  KVA_TRY(check_weight(m, n, &s, weight_dims, w_operand));
  return check_options(m, n, &s, x);
}

const kva_type *kva_shift_state_type(kva_module *m, const kva_shift *s) {
  const kva_type *x = kva_operand_type(s->n, 0);
  kva_dim dims[4] = {x->dims[0], x->dims[1], x->dims[2], x->dims[3]};
  dims[s->time] = kva_expr_const(m->exprs, s->window - 1);
  return kva_type_tensor(m, x->dtype, 4, dims);
}

/* Batch, heads, rows, channels; the number of taps and that of past rows are numbers. */
int kva_kv_shift_agrees(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis) {
  enum { B, H, T, D, ANY = -1 };
  static const int weights[3][4] = {{H, ANY}, {H, ANY, D}, {B, H, T, ANY}}, segments[2] = {B, T};
  uint32_t time = (uint32_t)((const kva_kv_shift_attrs *)attrs)->time_axis;
  if (operand == 1) return t->rank >= 2 && t->rank <= 4 ? weights[t->rank - 2][axis] : ANY;
  if (operand == KVA_SHIFT_SEGMENTS) return axis < 2 ? segments[axis] : ANY;
  if (operand == KVA_SHIFT_LEFT_PAD || axis == 0) return B;
  if (axis == 3) return D;
  if (axis != time) return H;
  return operand == KVA_SHIFT_PAST ? ANY : T;
}

static kva_shift shift_of(const kva_node *n) {
  const kva_kv_shift_attrs *a = n->attrs;
  const kva_type *w = kva_operand_type(n, 1);
  return kva_shift_get(n, kva_operand_type(n, 0), a->time_axis, a->boundary, w->rank, w->dims);
}

kva_status kva_kv_shift_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_kv_shift_attrs *a = n->attrs;
  const kva_type *w = kva_operand_type(n, 1);
  KVA_TRY(kva_shift_check(m, n, a->time_axis, a->boundary, w->rank, w->dims, 1));
  kva_shift s = shift_of(n);
  out_types[0] = kva_operand_type(n, 0);
  out_types[1] = kva_shift_state_type(m, &s);
  return KVA_OK;
}

/* ---- reference --------------------------------------------------------------------------------------------------- */

kva_shift_ref kva_shift_ref_get(const kva_shift *s, const kva_ref_tensor *x, const kva_ref_tensor *const *in) {
  uint32_t n = s->n->n_operands;
  return (kva_shift_ref){
      .B = x->dims[0],
      .T = x->dims[s->time],
      .H = x->dims[s->head],
      .D = x->dims[3],
      .W = s->window,
      .time = s->time,
      .weight_rank = s->weight_rank,
      .boundary = s->boundary,
      .past = n > KVA_SHIFT_PAST ? in[KVA_SHIFT_PAST] : NULL,
      .segments = n > KVA_SHIFT_SEGMENTS ? in[KVA_SHIFT_SEGMENTS] : NULL,
      .left_pad = n > KVA_SHIFT_LEFT_PAD ? in[KVA_SHIFT_LEFT_PAD] : NULL,
  };
}

static int64_t ref_start(const kva_shift_ref *s, int64_t b) {
  int64_t pad = s->left_pad ? s->left_pad->i[b] : 0;
  return pad > 0 ? pad : 0;
}

static bool ref_same_segment(const kva_shift_ref *s, int64_t b, int64_t t, int64_t u) {
  return !s->segments || s->segments->i[b * s->T + t] == s->segments->i[b * s->T + u];
}

kva_shift_source kva_shift_read(const kva_shift_ref *s, int64_t b, int64_t t, int64_t j) {
  const kva_shift_source nothing = {0};
  int64_t start = ref_start(s, b), row = t - j;
  /* t is -1 if the state of an empty chunk is requested; the state then is past itself */
  bool only_past = s->past && !s->segments && !s->left_pad;
  if (t < start && !only_past) return nothing;
  if (s->boundary == KVA_SHIFT_KEEP && !s->past && t == start) {
    return j == 0 ? (kva_shift_source){KVA_FROM_X, t, true} : (kva_shift_source){.unit_weight = true};
  }
  if (s->past && row < 0) {
    return ref_same_segment(s, b, 0, t) ? (kva_shift_source){KVA_FROM_PAST, s->W - 1 + row, false} : nothing;
  }
  if (row < start) {
    if (s->past || s->boundary != KVA_SHIFT_EDGE) return nothing;
    row = start;
  }
  return ref_same_segment(s, b, row, t) ? (kva_shift_source){KVA_FROM_X, row, false} : nothing;
}

int64_t kva_shift_offset(const kva_shift_ref *s, int64_t rows, int64_t b, int64_t t, int64_t h, int64_t d) {
  int64_t row = s->time == 1 ? (b * rows + t) * s->H + h : (b * s->H + h) * rows + t;
  return row * s->D + d;
}

int64_t kva_shift_weight_offset(const kva_shift_ref *s, int64_t b, int64_t t, int64_t h, int64_t j, int64_t d) {
  switch (s->weight_rank) {
  case 2: return h * s->W + j;
  case 3: return (h * s->W + j) * s->D + d;
  default: return ((b * s->H + h) * s->T + t) * s->W + j;
  }
}

static double ref_value(const kva_shift_ref *s, const kva_ref_tensor *x, kva_shift_source from, int64_t b, int64_t h,
                        int64_t d) {
  if (from.from == KVA_FROM_NOTHING) return 0;
  if (from.from == KVA_FROM_X) return x->f[kva_shift_offset(s, s->T, b, from.row, h, d)];
  return s->past->f[kva_shift_offset(s, s->W - 1, b, from.row, h, d)];
}

kva_status kva_kv_shift_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                            kva_ref_tensor *const *out) {
  (void)r;
  kva_shift form = shift_of(n);
  kva_shift_ref s = kva_shift_ref_get(&form, in[0], in);
  int64_t dims[4] = {s.B, s.H, s.T + s.W - 1, s.D}, i[4] = {0};
  if (s.B * s.H * dims[2] * s.D == 0) return KVA_OK;
  do {
    int64_t b = i[0], h = i[1], t = i[2], d = i[3], k = t - s.T;
    if (t >= s.T) {
      kva_shift_source from = kva_shift_read(&s, b, s.T - 1, s.W - 2 - k);
      out[1]->f[kva_shift_offset(&s, s.W - 1, b, k, h, d)] = ref_value(&s, in[0], from, b, h, d);
      continue;
    }
    double sum = 0;
    for (int64_t j = 0; j < s.W; j++) {
      kva_shift_source from = kva_shift_read(&s, b, t, j);
      double w = from.unit_weight ? 1 : in[1]->f[kva_shift_weight_offset(&s, b, t, h, j, d)];
      sum += w * ref_value(&s, in[0], from, b, h, d);
    }
    out[0]->f[kva_shift_offset(&s, s.T, b, t, h, d)] = sum;
  } while (kva_next_index(4, dims, i));
  return KVA_OK;
}

/* ---- gradient ---------------------------------------------------------------------------------------------------- */

/* Weights [H, W] that select tap j: 1 there, else 0. */
static kva_value *pick_tap(kva_builder *b, const kva_shift *s, kva_dtype dtype, int64_t j) {
  kva_dim taps = kva_expr_const(b->m->exprs, s->window);
  const kva_type *row_type = kva_type_tensor(b->m, KVA_I64, 1, &taps);
  kva_iota_attrs iota = {.shape = {1, row_type->dims}, .axis = 0, .dtype = KVA_I64};
  kva_value *taps_row = kva_build(b, KVA_OP_iota, 0, NULL, &iota);
  kva_value *picked = kva_build2(b, KVA_OP_equal, taps_row, kva_const_scalar(b, KVA_I64, (double)j));
  return kva_expand(b, kva_cast(b, picked, dtype), 2, (kva_dim[]){s->H, taps});
}

typedef struct input_grads {
  kva_value *dx, *dpast;
} input_grads;

static input_grads input_grad(kva_vjp *c, kva_node *n, kva_value *dy, kva_value *w, const char *boundary) {
  const kva_kv_shift_attrs *a = n->attrs;
  kva_kv_shift_input_grad_attrs attrs = {.time_axis = a->time_axis, .boundary = boundary};
  kva_value *operands[5] = {dy, w, kva_operand(n, 2), kva_operand(n, 3), kva_operand(n, 4)};
  kva_node *grad = kva_build_node(c->b, KVA_OP_kv_shift_input_grad, 5, operands, 2, &attrs);
  return (input_grads){kva_result(grad, 0), kva_result(grad, 1)};
}

/* Row k of the state is tap W-2-k of row T-1. Its gradient is therefore that of a shift whose weights select this tap,
 * used in row T-1 only. This holds for every boundary except "keep", whose unmixed row is not a tap: with it, rows
 * before the start are zero in the state. */
static input_grads state_grad(kva_vjp *c, kva_node *n, const kva_shift *s, int64_t k) {
  const kva_kv_shift_attrs *a = n->attrs;
  kva_value *dstate = c->grad_out[1];
  kva_dim zero = kva_expr_const(c->b->m->exprs, 0), one = kva_expr_const(c->b->m->exprs, 1);
  kva_dim starts[4] = {zero, zero, zero, zero}, shape[4], before[4] = {zero, zero, zero, zero};
  memcpy(shape, dstate->type->dims, sizeof(shape));
  starts[s->time] = kva_expr_const(c->b->m->exprs, k);
  shape[s->time] = one;
  kva_slice_attrs slice = {.starts = {4, starts}, .shape = {4, shape}, .steps = {4, (int64_t[]){1, 1, 1, 1}}};
  kva_value *row = kva_build(c->b, KVA_OP_slice, 1, &dstate, &slice);
  before[s->time] = kva_expr_addi(c->b->m->exprs, s->T, -1);
  kva_pad_attrs pad = {.before = {4, before}, .after = {4, (kva_dim[]){zero, zero, zero, zero}}, .mode = "constant"};
  kva_value *dy = kva_build(c->b, KVA_OP_pad, 1, &row, &pad);
  kva_value *w = pick_tap(c->b, s, kva_operand_type(n, 1)->dtype, s->window - 2 - k);
  return input_grad(c, n, dy, w, s->boundary == KVA_SHIFT_KEEP ? "zero" : a->boundary);
}

static kva_value *sum_of(kva_builder *b, kva_value *x, kva_value *y) {
  return x ? kva_add(b, x, y) : y;
}

static kva_value *weight_grad(kva_vjp *c, kva_node *n) {
  const kva_kv_shift_attrs *a = n->attrs;
  const kva_type *w = kva_operand_type(n, 1);
  kva_kv_shift_weight_grad_attrs attrs = {
      .time_axis = a->time_axis, .boundary = a->boundary, .weight_shape = {w->rank, w->dims}};
  kva_value *operands[5] = {kva_operand(n, 0), c->grad_out[0], kva_operand(n, 2), kva_operand(n, 3), kva_operand(n, 4)};
  kva_value *dw = kva_build(c->b, KVA_OP_kv_shift_weight_grad, 5, operands, &attrs);
  return kva_cast(c->b, dw, w->dtype);
}

kva_status kva_kv_shift_vjp(kva_vjp *c, kva_node *n) {
  kva_shift s = shift_of(n);
  const kva_kv_shift_attrs *a = n->attrs;
  bool wants_past = kva_operand(n, KVA_SHIFT_PAST) && c->wants[KVA_SHIFT_PAST];
  input_grads total = {0};
  if (c->grad_out[0] && (c->wants[0] || wants_past)) {
    total = input_grad(c, n, c->grad_out[0], kva_operand(n, 1), a->boundary);
  }
  for (int64_t k = 0; c->grad_out[1] && (c->wants[0] || wants_past) && k < s.window - 1; k++) {
    input_grads g = state_grad(c, n, &s, k);
    total.dx = sum_of(c->b, total.dx, g.dx);
    total.dpast = sum_of(c->b, total.dpast, g.dpast);
  }
  if (c->wants[0]) c->grad_in[0] = total.dx;
  if (wants_past) c->grad_in[KVA_SHIFT_PAST] = total.dpast;
  if (c->wants[1] && c->grad_out[0]) c->grad_in[1] = weight_grad(c, n);
  return KVA_OK;
}

/* ---- lowering ---------------------------------------------------------------------------------------------------- */

kva_shift_at kva_shift_index(const kva_shift *s, const kva_expr *const *idx) {
  return (kva_shift_at){idx[0], idx[s->time], idx[s->head], idx[3]};
}

kva_kval kva_shift_operand(kva_lower *l, const kva_shift *s, uint32_t operand, kva_shift_at at, kva_kval cond) {
  const kva_expr *idx[4] = {at.b, NULL, NULL, at.d};
  idx[s->time] = at.t;
  idx[s->head] = at.h;
  return kva_masked_operand(l, s->n, operand, idx, cond);
}

const kva_expr *kva_shift_start(kva_lower *l, const kva_shift *s, const kva_expr *b) {
  const kva_expr *zero = kva_expr_const(l->kb->exprs, 0);
  if (!kva_operand(s->n, KVA_SHIFT_LEFT_PAD)) return zero;
  kva_kval pad = kva_k_convert(l->kb, l->operand(l, s->n, KVA_SHIFT_LEFT_PAD, &b), KVA_I64);
  return kva_expr_max(l->kb->exprs, kva_k_symbol(l->kb, pad), zero);
}

kva_kval kva_shift_same_segment(kva_lower *l, const kva_shift *s, const kva_expr *b, const kva_expr *t,
                                const kva_expr *u, kva_kval guard) {
  if (!kva_operand(s->n, KVA_SHIFT_SEGMENTS) || t == u) return NULL;
  kva_kval x = kva_masked_operand(l, s->n, KVA_SHIFT_SEGMENTS, (const kva_expr *[]){b, t}, guard);
  kva_kval y = kva_masked_operand(l, s->n, KVA_SHIFT_SEGMENTS, (const kva_expr *[]){b, u}, guard);
  return kva_k2(l->kb, KVA_K_eq, x, y);
}

/* past at row W-1 + row if row < 0 and `cond`; at.t is the reading row. */
static kva_kval tap_past(kva_lower *l, const kva_shift *s, kva_shift_at at, const kva_expr *row, kva_kval cond,
                         kva_kval x, kva_kval *out_exists) {
  const kva_expr *zero = kva_expr_const(l->kb->exprs, 0);
  kva_kval before = kva_k_and(l->kb, cond, kva_k_index_lt(l->kb, row, zero));
  before = kva_k_and(l->kb, before, kva_shift_same_segment(l, s, at.b, zero, at.t, before));
  at.t = kva_expr_addi(l->kb->exprs, row, s->window - 1);
  if (out_exists && *out_exists) *out_exists = kva_k2(l->kb, KVA_K_or, *out_exists, before);
  return kva_k_select(l->kb, before, kva_shift_operand(l, s, KVA_SHIFT_PAST, at, before), x);
}

kva_kval kva_shift_tap(kva_lower *l, const kva_shift *s, kva_shift_at at, const kva_expr *j, kva_kval *out_exists) {
  const kva_node *n = s->n;
  bool past = kva_operand(n, KVA_SHIFT_PAST), edge = s->boundary == KVA_SHIFT_EDGE && !past;
  bool only_past = past && !kva_operand(n, KVA_SHIFT_SEGMENTS) && !kva_operand(n, KVA_SHIFT_LEFT_PAD);
  const kva_expr *start = kva_shift_start(l, s, at.b);
  const kva_expr *row = kva_expr_sub(l->kb->exprs, at.t, j);
  kva_kval live = only_past ? NULL : kva_k_index_le(l->kb, start, at.t);
  kva_kval cond = edge ? live : kva_k_and(l->kb, live, kva_k_index_le(l->kb, start, row));
  kva_shift_at source = at;
  source.t = edge ? kva_expr_max(l->kb->exprs, row, start) : row;
  cond = kva_k_and(l->kb, cond, kva_shift_same_segment(l, s, at.b, source.t, at.t, cond));
  kva_kval x = kva_shift_operand(l, s, 0, source, cond);
  if (out_exists) *out_exists = only_past ? NULL : cond;
  return past ? tap_past(l, s, at, row, live, x, out_exists) : x;
}

kva_kval kva_shift_weight(kva_lower *l, const kva_shift *s, kva_shift_at at, const kva_expr *j, kva_kval cond) {
  const kva_expr *const by_rank[3][4] = {{at.h, j}, {at.h, j, at.d}, {at.b, at.h, at.t, j}};
  kva_kval w = kva_masked_operand(l, s->n, 1, by_rank[s->weight_rank - 2], cond);
  return kva_k_convert(l->kb, w, kva_k_compute_type(kva_operand_type(s->n, 0)->dtype));
}

kva_kval kva_shift_kept_row(kva_lower *l, const kva_shift *s, kva_shift_at at) {
  if (s->boundary != KVA_SHIFT_KEEP || kva_operand(s->n, KVA_SHIFT_PAST)) return NULL;
  return kva_k_index_eq(l->kb, at.t, kva_shift_start(l, s, at.b));
}

static kva_kval looped_sum(kva_lower *l, const kva_shift *s, kva_shift_at at, kva_shift_term term, void *user) {
  kva_kloop *loop = kva_k_loop_begin(l->kb, KVA_K_SERIAL, kva_expr_const(l->kb->exprs, s->window), "j");
  loop->strict_order = true;
  kva_shift_product p = term(l, s, at, loop->var, user);
  kva_kval product = kva_k2(l->kb, KVA_K_mul, p.weight, p.value);
  kva_kval sum = kva_k_reduce(l->kb, loop, KVA_COMBINE_ADD, kva_k_const(l->kb, product->dtype, 0), product);
  kva_k_loop_end(l->kb, loop);
  return sum;
}

kva_kval kva_shift_sum(kva_lower *l, const kva_shift *s, kva_shift_at at, kva_shift_term term, void *user) {
  if (s->window > MAX_UNROLLED_TAPS) return looped_sum(l, s, at, term, user);
  kva_shift_product p = term(l, s, at, kva_expr_const(l->kb->exprs, 0), user);
  kva_kval sum = kva_k2(l->kb, KVA_K_mul, p.weight, p.value);
  for (int64_t j = 1; j < s->window; j++) {
    p = term(l, s, at, kva_expr_const(l->kb->exprs, j), user);
    sum = kva_k_op(l->kb, KVA_K_fma, p.weight, p.value, sum);
  }
  return sum;
}

static kva_shift_product tap_product(kva_lower *l, const kva_shift *s, kva_shift_at at, const kva_expr *j, void *user) {
  (void)user;
  kva_shift_product p = {kva_shift_weight(l, s, at, j, NULL), kva_shift_tap(l, s, at, j, NULL)};
  kva_kval kept = kva_shift_kept_row(l, s, at);
  if (!kept) return p;
  kva_kval current = kva_k_index_eq(l->kb, j, kva_expr_const(l->kb->exprs, 0));
  kva_kval one = kva_k_const(l->kb, p.weight->dtype, 1), zero = kva_k_const(l->kb, p.weight->dtype, 0);
  p.weight = kva_k_select(l->kb, kept, kva_k_select(l->kb, current, one, zero), p.weight);
  return p;
}

kva_kval kva_kv_shift_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  kva_shift s = shift_of(n);
  kva_shift_at at = kva_shift_index(&s, idx);
  if (result == 0) return kva_shift_sum(l, &s, at, tap_product, NULL);
  const kva_expr *tap = kva_expr_sub(l->kb->exprs, kva_expr_const(l->kb->exprs, s.window - 2), at.t);
  at.t = kva_expr_addi(l->kb->exprs, s.T, -1);
  s.boundary = s.boundary == KVA_SHIFT_KEEP ? KVA_SHIFT_ZERO : s.boundary;
  return kva_shift_tap(l, &s, at, tap, NULL);
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

int kva_kv_shift_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  kva_shift s = shift_of(n);
  if (operand == 0 || operand == KVA_SHIFT_PAST) return axis == s.time ? KVA_MIXED : (int)axis;
  if (operand == 1 && s.weight_rank == 4)
    return axis == 0 ? 0 : axis == s.time ? 2 : axis == s.head ? 1 : KVA_SAME_FOR_ALL;
  if (axis == s.time) return KVA_MIXED;
  if (operand == 1) return axis == s.head ? 0 : axis == 3 && s.weight_rank == 3 ? 2 : KVA_SAME_FOR_ALL;
  return axis == 0 ? 0 : KVA_SAME_FOR_ALL;
}

/* Weights of a token each, for rows before the chunk, too, whose results are dropped. */
static kva_value *with_unused_weights(kva_incremental *c, const kva_shift *s, kva_value *w, int64_t rows) {
  if (s->weight_rank != 4) return w;
  kva_dim zero = kva_expr_const(c->b->m->exprs, 0);
  kva_dim before[4] = {zero, zero, kva_expr_const(c->b->m->exprs, rows), zero};
  kva_pad_attrs pad = {.before = {4, before}, .after = {4, (kva_dim[]){zero, zero, zero, zero}}};
  return kva_build(c->b, KVA_OP_pad, 1, &w, &pad);
}

/* How many of the rows before the chunk no sequence has. */
static kva_value *missing_rows(kva_incremental *c, int64_t rows) {
  kva_value *missing = kva_sub(c->b, kva_const_scalar(c->b, KVA_I64, (double)rows), c->position);
  return kva_build2(c->b, KVA_OP_max, missing, kva_const_scalar(c->b, KVA_I64, 0));
}

/* The rule "zero" without documents: the state of the chunk before is the past of this one. */
static void shift_with_state(kva_incremental *c, const kva_node *n, const kva_shift *s) {
  kva_value *past = kva_carried_state(c, "rows", kva_shift_state_type(c->b->m, s));
  kva_value *in[3] = {c->operands[0], c->operands[1], past};
  kva_node *shift = kva_build_node(c->b, KVA_OP_kv_shift, 3, in, 2, n->attrs);
  kva_carry(c, past, kva_result(shift, 1));
  c->results[0] = kva_result(shift, 0);
}

/* Other rules depend on the start of a sequence and on the documents of the rows before the chunk: the shift runs over
 * these rows again. "keep" takes the first of them as the start, so that a chunk behind another needs one in any case.
 */
static void shift_with_rows(kva_incremental *c, const kva_node *n, const kva_shift *s) {
  int64_t rows = s->window > 1 ? s->window - 1 : 1;
  kva_value *x = kva_behind_past(c, "rows", c->operands[0], s->time, rows), *segments = NULL;
  if (kva_operand(n, KVA_SHIFT_SEGMENTS))
    segments = kva_behind_past(c, "segments", c->operands[KVA_SHIFT_SEGMENTS], 1, rows);
  kva_value *in[5] = {x, with_unused_weights(c, s, c->operands[1], rows), NULL, segments, missing_rows(c, rows)};
  kva_value *y = kva_build(c->b, KVA_OP_kv_shift, 5, in, n->attrs);
  c->results[0] = kva_slice_rows(c->b, y, s->time, kva_expr_const(c->b->m->exprs, rows), c->time);
}

kva_status kva_kv_shift_incremental(kva_incremental *c, const kva_node *n) {
  kva_shift s = shift_of(n);
  if (kva_operand(n, KVA_SHIFT_PAST)) return kva_refuse_chunks(c, n, "it has past rows already");
  if (kva_operand(n, KVA_SHIFT_LEFT_PAD))
    return kva_refuse_chunks(c, n, "sequences are padded on the left; chunks have a position for each instead");
  if (n->results[1].uses) return kva_refuse_chunks(c, n, "its last rows are used");
  if (s.T != c->time) return kva_refuse_chunks(c, n, "it mixes the rows of another axis");
  bool documents = kva_operand(n, KVA_SHIFT_SEGMENTS) != NULL;
  if (s.boundary == KVA_SHIFT_KEEP || (s.window > 1 && (documents || s.boundary == KVA_SHIFT_EDGE)))
    shift_with_rows(c, n, &s);
  else
    shift_with_state(c, n, &s);
  return KVA_OK;
}

/* ---- rows of sequences in slices --------------------------------------------------------------------------------- */

/* Rows [0, n) of x's slice are what the process before has last: the W-1 raw rows that the shift reaches back to. The
 * first process has zeros, as the rule "zero" says. */
static kva_value *halo(kva_partition *p, kva_value *x, uint32_t axis, int64_t rows) {
  kva_dim n = kva_expr_const(p->b->m->exprs, rows), first = kva_expr_addi(p->b->m->exprs, x->type->dims[axis], -rows);
  return kva_previous_process(p, kva_slice_rows(p->b, x, axis, first, n));
}

static kva_value *with_halo(kva_partition *p, kva_value *x, uint32_t axis, int64_t rows) {
  return kva_build(p->b, KVA_OP_concat, 2, (kva_value *[]){halo(p, x, axis, rows), x},
                   &(kva_concat_attrs){.axis = axis});
}

/* Documents: past rows may be of another one, so the shift runs over them again, and zeros of the first process count
 * in none. */
static kva_value *shift_documents(kva_partition *p, const kva_node *n, const kva_shift *s, kva_value *x, kva_value *w) {
  int64_t rows = s->window - 1;
  kva_value *segments = kva_slice_operand(p, n, KVA_SHIFT_SEGMENTS, 1);
  kva_value *in[4] = {with_halo(p, x, s->time, rows), w, NULL, with_halo(p, segments, 1, rows)};
  kva_value *y = kva_build(p->b, KVA_OP_kv_shift, 4, in, n->attrs);
  return kva_slice_rows(p->b, y, s->time, kva_expr_const(p->b->m->exprs, rows), x->type->dims[s->time]);
}

/* If rows are split, each process gets a halo of W - 1 raw rows from the one before it, and gives back its gradient. */
bool kva_kv_shift_partition(kva_partition *p, const kva_node *n) {
  kva_shift s = shift_of(n);
  kva_dim each;
  int64_t own;
  bool plain = s.boundary == KVA_SHIFT_ZERO && !kva_operand(n, KVA_SHIFT_PAST) && !kva_operand(n, KVA_SHIFT_LEFT_PAD);
  if (kva_split_axis(p, n, 0) != (int)s.time || !plain || s.weight_rank == 4 || n->results[1].uses) return false;
  if (!kva_divides(p, s.T, &each) || !kva_expr_is_const(each, &own) || own < s.window - 1) return false;
  kva_value *x = kva_slice_operand(p, n, 0, s.time), *w = kva_shared_operand(p, n, 1);
  if (s.window == 1)
    p->results[0] = kva_build(p->b, KVA_OP_kv_shift, 2, (kva_value *[]){x, w}, n->attrs);
  else if (kva_operand(n, KVA_SHIFT_SEGMENTS))
    p->results[0] = shift_documents(p, n, &s, x, w);
  else
    p->results[0] =
        kva_build(p->b, KVA_OP_kv_shift, 3, (kva_value *[]){x, w, halo(p, x, s.time, s.window - 1)}, n->attrs);
  p->axes[0] = (int)s.time;
  p->axes[1] = KVA_WHOLE;
  return true;
}
