/* Gradients of windows on a CPU, by code without conditions.
 *
 * What: a position s q + r of an axis with stride s gets its gradient from the taps k with (r + before - k) mod s = 0,
 * which are others for each phase r. conv_input_grad becomes a convolution without stride for each phase, with the
 * taps of the phase in reverse,
 *
 *   dx[s q + r] = sum over j of dy[q + e - j] w[k0 + s j],   k0 = (r + before) mod s, e = (r + before - k0) / s,
 *
 * and their results are put side by side; a phase without taps is zero. (One contraction for all phases has as many
 * taps for each as that with most, and stores every s-th element.) Those whose windows lie apart are left to pass
 * layout.
 * max_pool_grad, which asks for each element which windows it has won, becomes a scatter: each window adds its gradient
 * to the element that won.
 *
 * Algorithm: one sweep. Requires: spatial extents that are numbers. Breaks: nothing; it is before pass layout, which
 * takes convolutions with constant filters further. Sums have the order of taps of a phase, which may be the reverse.
 */
#include "ops/conv.h"
#include "ops/pool.h"
#include "passes/layout.h"
#include "passes/passes_internal.h"

enum { MAX_PHASES = 16 };

static kva_dim number(const kva_builder *b, int64_t v) {
  return kva_expr_const(b->m->exprs, v);
}

/* ---- convolutions ------------------------------------------------------------------------------------------------ */

typedef struct strided {
  kva_builder *b;
  const kva_node *n;
  kva_window w;
  int64_t group;
  int64_t positions[KVA_MAX_SPATIAL]; /* of a phase */
  int64_t phase[KVA_MAX_SPATIAL];
} strided;

/* What a phase of an axis reads. */
typedef struct taps {
  int64_t first, n;      /* of the filter: first, first + stride, ... */
  int64_t before, after; /* padding of dy */
} taps;

static taps taps_of(const strided *s, uint32_t d, int64_t phase) {
  int64_t stride = s->w.stride[d], at = phase + s->w.before[d], apart = stride > 1 ? 1 : s->w.dilation[d];
  taps t = {.first = at % stride};
  t.n = t.first < s->w.kernel[d] ? (s->w.kernel[d] - t.first + stride - 1) / stride : 0;
  int64_t reach = (t.n - 1) * apart;
  t.before = reach - (at - t.first) / stride;
  t.after = s->positions[d] - kva_type_extent(kva_operand_type(s->n, 0), 2 + d) - t.before + reach;
  return t;
}

/* Whether all phases read dy from its first position, or before, to its last one, or behind. */
static bool fits(const strided *s) {
  int64_t phases = 1;
  for (uint32_t d = 0; d < s->w.n; d++) {
    int64_t stride = s->w.stride[d];
    if (stride > 1 && s->w.dilation[d] > 1) return false;
    phases *= stride;
    for (int64_t r = 0; r < stride; r++) {
      taps t = taps_of(s, d, r);
      if (t.n && (t.before < 0 || t.after < 0)) return false;
    }
  }
  return phases > 1 && phases <= MAX_PHASES;
}

/* Filters of a phase: [C, M/group, taps] of w [M, C/group, kernel]. */
static kva_value *filters_of(const strided *s, const taps *t) {
  kva_builder *b = s->b;
  kva_value *w = kva_operand(s->n, 1);
  const kva_type *type = w->type;
  kva_dim starts[KVA_MAX_RANK] = {number(b, 0), number(b, 0)}, shape[KVA_MAX_RANK] = {type->dims[0], type->dims[1]};
  int64_t steps[KVA_MAX_RANK] = {1, 1}, perm[KVA_MAX_RANK] = {0, 2, 1};
  kva_dim groups[KVA_MAX_RANK] = {number(b, s->group), number(b, kva_type_extent(type, 0) / s->group), type->dims[1]};
  kva_dim turned[KVA_MAX_RANK] = {number(b, s->group * kva_type_extent(type, 1)), groups[1]};
  for (uint32_t d = 0; d < s->w.n; d++) {
    starts[2 + d] = number(b, t[d].first + (t[d].n - 1) * s->w.stride[d]);
    shape[2 + d] = groups[3 + d] = turned[2 + d] = number(b, t[d].n);
    steps[2 + d] = -s->w.stride[d];
    perm[3 + d] = 3 + d;
  }
  kva_slice_attrs attrs = {.starts = {type->rank, starts}, .shape = {type->rank, shape}, .steps = {type->rank, steps}};
  w = kva_build(b, KVA_OP_slice, 1, &w, &attrs);
  w = kva_transpose(b, kva_reshape(b, w, type->rank + 1, groups), perm);
  return kva_reshape(b, w, type->rank, turned);
}

/* [N, C, positions] of the current phase, with an axis of 1 behind each strided one. */
static kva_value *phase_of(const strided *s) {
  const kva_type *dx = s->n->results[0].type;
  kva_dim dims[KVA_MAX_RANK] = {dx->dims[0], dx->dims[1]};
  taps t[KVA_MAX_SPATIAL];
  int64_t pads[2 * KVA_MAX_SPATIAL], dilations[KVA_MAX_SPATIAL];
  bool any = true;
  uint32_t rank = 2;
  for (uint32_t d = 0; d < s->w.n; d++) {
    t[d] = taps_of(s, d, s->phase[d]);
    any &= t[d].n > 0;
    pads[d] = t[d].before, pads[s->w.n + d] = t[d].after;
    dilations[d] = s->w.stride[d] > 1 ? 1 : s->w.dilation[d];
    dims[rank++] = number(s->b, s->positions[d]);
    if (s->w.stride[d] > 1) dims[rank++] = number(s->b, 1);
  }
  if (!any) return kva_expand(s->b, kva_const_scalar(s->b, dx->dtype, 0), rank, dims);
  kva_conv_attrs attrs = {.pads = {2 * s->w.n, pads}, .dilations = {s->w.n, dilations}, .group = s->group};
  kva_value *operands[] = {kva_operand(s->n, 0), filters_of(s, t)};
  return kva_reshape(s->b, kva_build(s->b, KVA_OP_conv, 2, operands, &attrs), rank, dims);
}

/* Phases of the axes from d on side by side; `axis`: that of d's positions. */
static kva_value *side_by_side(strided *s, uint32_t d, uint32_t axis) {
  if (d == s->w.n) return phase_of(s);
  int64_t stride = s->w.stride[d];
  kva_value *parts[MAX_PHASES];
  for (int64_t r = 0; r < stride; r++) {
    s->phase[d] = r;
    parts[r] = side_by_side(s, d + 1, axis + (stride > 1 ? 2 : 1));
  }
  if (stride == 1) return parts[0];
  return kva_build(s->b, KVA_OP_concat, (uint32_t)stride, parts, &(kva_concat_attrs){.axis = axis + 1});
}

/* The first positions of x [N, C, ...], as many as there are in `to`. */
static kva_value *cut(kva_builder *b, kva_value *x, const kva_type *to) {
  if (x->type == to) return x;
  kva_dim starts[KVA_MAX_RANK];
  int64_t steps[KVA_MAX_RANK];
  for (uint32_t d = 0; d < to->rank; d++) starts[d] = number(b, 0), steps[d] = 1;
  kva_slice_attrs attrs = {.starts = {to->rank, starts}, .shape = {to->rank, to->dims}, .steps = {to->rank, steps}};
  return kva_build(b, KVA_OP_slice, 1, &x, &attrs);
}

static kva_value *by_phases(kva_builder *b, const kva_node *n) {
  const kva_conv_input_grad_attrs *a = n->attrs;
  const kva_type *dy = kva_operand_type(n, 0), *w = kva_operand_type(n, 1), *dx = n->results[0].type;
  if (!kva_type_is_static_from(dy, 1) || !kva_type_is_static_from(w, 0) || !kva_type_is_static_from(dx, 1)) return NULL;
  strided s = {.b = b, .n = n, .w = kva_conv_window(w, a->strides, a->pads, a->dilations), .group = a->group};
  kva_dim dims[KVA_MAX_RANK] = {dx->dims[0], dx->dims[1]};
  uint32_t rank = 2;
  for (uint32_t d = 0; d < s.w.n; d++) {
    s.positions[d] = (kva_type_extent(dx, 2 + d) + s.w.stride[d] - 1) / s.w.stride[d];
    dims[2 + d] = number(b, s.positions[d] * s.w.stride[d]);
    rank += s.w.stride[d] > 1 ? 2 : 1;
  }
  if (rank > KVA_MAX_RANK || w->rank + 1 > KVA_MAX_RANK || !fits(&s)) return NULL;
  return cut(b, kva_reshape(b, side_by_side(&s, 0, 2), dx->rank, dims), dx);
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */

/* The dimensions of t as [N, C, all positions]; the number of these. */
static int64_t planes_of(const kva_builder *b, const kva_type *t, kva_dim *out) {
  int64_t positions = 1;
  for (uint32_t d = 2; d < t->rank; d++) positions *= kva_type_extent(t, d);
  out[0] = t->dims[0], out[1] = t->dims[1], out[2] = number(b, positions);
  return positions;
}

/* A window that is all padding has no winner, and its index is negative. */
static kva_value *by_winners(kva_builder *b, const kva_node *n) {
  kva_value *winner = kva_operand(n, 0), *dy = kva_operand(n, 1);
  const kva_type *dx = n->results[0].type;
  bool narrow = kva_dtype_bits(dx->dtype) < 32; /* sums would round at each window */
  if (narrow || !kva_type_is_static_from(dy->type, 2) || !kva_type_is_static_from(dx, 2)) return NULL;
  kva_dim in[3], out[3];
  int64_t positions = planes_of(b, dx, out);
  if (!planes_of(b, dy->type, in) || !positions) return NULL;
  kva_value *zero = kva_scalar_like(b, winner, 0);
  kva_value *won = kva_build2(b, KVA_OP_less_equal, zero, winner);
  dy = kva_build3(b, KVA_OP_where, won, dy, kva_scalar_like(b, dy, 0));
  winner = kva_build3(b, KVA_OP_where, won,
                      kva_build2(b, KVA_OP_mod, winner, kva_scalar_like(b, winner, (double)positions)), zero);
  kva_value *operands[] = {kva_expand(b, kva_const_scalar(b, dx->dtype, 0), 3, out), kva_reshape(b, winner, 3, in),
                           kva_reshape(b, dy, 3, in)};
  kva_scatter_elements_attrs attrs = {.axis = 2, .reduction = "add"};
  return kva_reshape_like(b, kva_build(b, KVA_OP_scatter_elements, 3, operands, &attrs), dx);
}

/* ---- the sweep --------------------------------------------------------------------------------------------------- */

static kva_value *rewritten(kva_builder *b, const kva_node *n) {
  if (kva_is(n, KVA_OP_conv_input_grad)) return kva_layout_is_apart(n) ? NULL : by_phases(b, n);
  return kva_is(n, KVA_OP_max_pool_grad) ? by_winners(b, n) : NULL;
}

static kva_status visit(kva_module *m, kva_graph *g, const kva_pass_options *o, bool *changed) {
  for (kva_node *n = g->first, *next; n; n = next) {
    next = n->next;
    kva_builder b = kva_builder_before(m, n);
    kva_value *y = rewritten(&b, n);
    if (b.failed) return KVA_INVALID;
    if (!y) continue;
    y->name = n->results[0].name;
    kva_value_replace_all_uses(&n->results[0], y);
    kva_node_remove(n);
    *changed = true;
  }
  (void)o;
  return KVA_OK;
}

kva_status kva_opt_windows(kva_module *m, const kva_pass_options *options, bool *changed) {
  if (!options->target || kva_for_gpu(options)) return KVA_OK;
  return kva_visit_graphs(m, visit, options, changed);
}
