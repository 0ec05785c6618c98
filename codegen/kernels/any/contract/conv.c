/* conv and its gradients as contractions (contraction.h).
 *
 *              rows            columns                 depth
 *   conv       M/group         lines of y: (n, o...)   C/group, kernel
 *   input      C/group         lines of x: (n, i...)   M/group, kernel
 *   weight     M/group         (c, kernel)             (n, o)
 *
 * A line is the last spatial axis; the taps along it share one packed copy, the leading axes' taps are the
 * contraction's leads. Positions of a line behind its last result are computed in vain; where dilation makes them many,
 * or the time of their products is longer than that of copying, every tap has a copy of its own, a phase, and lines end
 * with their results. If windows have one tap, no stride and no padding, an image is one line.
 *
 * The gradient of the input is a convolution of dilated dy (stride - 1 zeros between its elements) with the reversed
 * kernel. The zeros are skipped: the columns of one contraction are every stride-th position, which read every
 * stride-th tap, and the batch runs over the offsets where they begin. (A strided axis that is also dilated keeps its
 * zeros.) */
#include "ops/conv.h"
#include "ops/element.h"
#include "codegen/kernels/any/contract/contraction.h"

enum { MIN_ROWS = 8, MIN_GPU_ROWS = 16, SHORT_LINE = 8, MAX_LEADS = 256, MAX_TURN = 8 };
/* Taps have copies of their own if they read further behind a result, in positions or compared with results. */
enum { MAX_BEHIND = 128, MIN_USED = 4 };
/* Products in the time that a CPU takes to copy a line, and for each of its elements. */
enum { PRODUCTS_OF_LINE = 320, PRODUCTS_OF_ELEMENT = 9, MIN_COLUMNS = 256, MIN_LANES = 16 };

typedef struct site {
  kva_window w; /* as columns read operand 0; for the input's gradient of reversed taps, with stride 1 */
  int64_t
      between[KVA_MAX_SPATIAL]; /* elements of operand 0 are at multiples of this; 1 except for the input's gradient */
  int64_t step[KVA_MAX_SPATIAL],
      first[KVA_MAX_SPATIAL];       /* column p is the result's position p * step + begin + first */
  int64_t begins;                   /* all begins: the product of steps */
  kva_dim extents[KVA_MAX_SPATIAL]; /* of the columns */
  bool reversed, pointwise;
  uint32_t lead_axes;
  int64_t phase_step; /* positions of operand 0 from one phase to the next */
  int64_t group;
  kva_dim depth_per_group;
} site;

static kva_expr_ctx *exprs(const kva_contraction *c) {
  return c->l->kb->exprs;
}

/* An element as the tiles take it: in the type of the sums, or a byte as it is. */
static kva_kval factor(const kva_contraction *c, kva_kval v) {
  return kva_dtype_is_float(c->type) ? kva_k_convert(c->l->kb, v, c->type) : v;
}

static const kva_expr *channel(const kva_contraction *c, kva_dim per_group, const kva_expr *batch, const kva_expr *i) {
  return kva_expr_add(exprs(c), kva_expr_mul(exprs(c), batch, per_group), i);
}

/* Image and spatial position of a column. */
static void column_index(const kva_contraction *c, const kva_contract_at *at, const kva_expr **out_n,
                         const kva_expr **out_at) {
  const site *s = c->user;
  if (s->pointwise) {
    *out_n = at->line;
    kva_contract_split(exprs(c), at->position, s->w.n, s->extents, out_at);
    return;
  }
  const kva_expr *split[KVA_MAX_RANK];
  kva_dim outer[KVA_MAX_RANK] = {c->n->results[0].type->dims[0]};
  memcpy(outer + 1, s->extents, sizeof *outer * s->lead_axes);
  kva_contract_split(exprs(c), at->line, 1 + s->lead_axes, outer, split);
  *out_n = split[0];
  memcpy(out_at, split + 1, sizeof *split * s->lead_axes);
  out_at[s->lead_axes] = at->position;
}

static const kva_expr *group_of(const kva_contraction *c, const kva_contract_at *at) {
  return kva_expr_div(exprs(c), at->batch, kva_expr_const(exprs(c), ((const site *)c->user)->begins));
}

/* Where the columns of this part of the batch begin on every axis. */
static void begin_of(const kva_contraction *c, const kva_contract_at *at, const kva_expr **out) {
  const site *s = c->user;
  kva_dim steps[KVA_MAX_SPATIAL];
  for (uint32_t d = 0; d < s->w.n; d++) steps[d] = kva_expr_const(exprs(c), s->step[d]);
  kva_contract_split(exprs(c), kva_expr_mod(exprs(c), at->batch, kva_expr_const(exprs(c), s->begins)), s->w.n, steps,
                     out);
}

static kva_kval result_at(const kva_contraction *c, const kva_contract_at *at, const kva_expr **idx) {
  const site *s = c->user;
  kva_expr_ctx *e = exprs(c);
  kva_kb *kb = c->l->kb;
  const kva_expr *begin[KVA_MAX_RANK];
  kva_kval there = NULL;
  column_index(c, at, &idx[0], idx + 2);
  begin_of(c, at, begin);
  idx[1] = channel(c, c->rows, group_of(c, at), at->row);
  for (uint32_t d = 0; d < s->w.n; d++) {
    if (s->step[d] == 1) continue;
    idx[2 + d] = kva_expr_addi(e, kva_expr_add(e, kva_expr_muli(e, idx[2 + d], s->step[d]), begin[d]), s->first[d]);
    there = kva_k_and(kb, there, kva_k_index_le(kb, kva_expr_const(e, 0), idx[2 + d]));
    there = kva_k_and(kb, there, kva_k_index_lt(kb, idx[2 + d], c->n->results[0].type->dims[2 + d]));
  }
  return there;
}

/* w at (row, k, taps) */
static kva_kval weight(const kva_contraction *c, const kva_contract_at *at) {
  const site *s = c->user;
  kva_expr_ctx *e = exprs(c);
  kva_dim kernel[KVA_MAX_SPATIAL];
  const kva_expr *idx[KVA_MAX_RANK], *begin[KVA_MAX_RANK], *group = group_of(c, at);
  kva_kval there = NULL;
  kva_window_kernel(e, &s->w, kernel);
  kva_contract_split(e, at->lead, s->lead_axes, kernel, idx + 2);
  idx[2 + s->lead_axes] = at->tap;
  begin_of(c, at, begin);
  for (uint32_t d = 0; s->reversed && d < s->w.n; d++) {
    const kva_expr *tap = kva_expr_sub(e, kva_expr_const(e, s->w.kernel[d] - 1), idx[2 + d]);
    idx[2 + d] = kva_expr_add(e, kva_expr_muli(e, tap, s->step[d]), begin[d]);
    kva_dim taps = kva_operand_type(c->n, 1)->dims[2 + d];
    if (s->step[d] > 1 && s->w.kernel[d] > 1)
      there = kva_k_and(c->l->kb, there, kva_k_index_lt(c->l->kb, idx[2 + d], taps));
  }
  idx[0] = s->reversed ? channel(c, s->depth_per_group, group, at->k) : channel(c, c->rows, group, at->row);
  idx[1] = s->reversed ? at->row : at->k;
  return factor(c, kva_masked_operand(c->l, c->n, 1, idx, there));
}

/* Some tap reads the columns that begin here. */
static kva_kval any_tap(const kva_contraction *c, const kva_contract_at *at) {
  const site *s = c->user;
  const kva_expr *begin[KVA_MAX_RANK];
  kva_kval any = NULL;
  begin_of(c, at, begin);
  for (uint32_t d = 0; d < s->w.n; d++) {
    kva_dim taps = kva_operand_type(c->n, 1)->dims[2 + d];
    any = kva_k_and(c->l->kb, any, kva_k_index_lt(c->l->kb, begin[d], taps));
  }
  return any;
}

/* Maps position `raw` of the padded, dilated axis to an index below `extent`, and tells whether an element exists. */
static kva_kval place(kva_kb *kb, const kva_expr *raw, int64_t before, int64_t between, kva_dim extent,
                      const kva_expr **out_at) {
  kva_expr_ctx *e = kb->exprs;
  const kva_expr *x = kva_expr_addi(e, raw, -before), *step = kva_expr_const(e, between);
  *out_at = kva_expr_div(e, x, step);
  kva_kval inside = kva_k_and(kb, kva_k_index_le(kb, kva_expr_const(e, 0), x), kva_k_index_lt(kb, *out_at, extent));
  if (between == 1) return inside;
  return kva_k_and(kb, inside, kva_k_index_eq(kb, kva_expr_mod(e, x, step), kva_expr_const(e, 0)));
}

/* Operand 0 at image n, channel k, at the position that the taps read for the column. */
static kva_kval image(const kva_contraction *c, const kva_contract_at *at) {
  const site *s = c->user;
  kva_kb *kb = c->l->kb;
  kva_expr_ctx *e = kb->exprs;
  const kva_type *t = kva_operand_type(c->n, 0);
  const kva_expr *idx[KVA_MAX_RANK], *column[KVA_MAX_RANK], *taps[KVA_MAX_RANK];
  kva_dim kernel[KVA_MAX_SPATIAL];
  column_index(c, at, &idx[0], column);
  idx[1] = channel(c, s->depth_per_group, group_of(c, at), at->k);
  kva_window_kernel(e, &s->w, kernel);
  kva_contract_split(e, at->lead, s->lead_axes, kernel, taps);
  kva_kval inside = NULL;
  for (uint32_t d = 0; d < s->w.n; d++) {
    const kva_expr *raw = kva_expr_muli(e, column[d], s->w.stride[d]);
    raw = kva_expr_add(e, raw,
                       d < s->lead_axes ? kva_expr_muli(e, taps[d], s->w.dilation[d])
                                        : kva_expr_muli(e, at->phase, s->phase_step));
    if (s->pointwise)
      idx[2 + d] = column[d];
    else
      inside = kva_k_and(kb, inside, place(kb, raw, s->w.before[d], s->between[d], t->dims[2 + d], &idx[2 + d]));
  }
  return factor(c, kva_masked_operand(c->l, c->n, 0, idx, inside));
}

/* ---- the gradient for the weights -------------------------------------------------------------------------------- */

/* Image and position of a step: its lines are the leads if their length is known, else it is one position. */
static void step_index(const kva_contraction *c, const kva_contract_at *at, const kva_expr **out) {
  const site *s = c->user;
  const kva_type *dy = kva_operand_type(c->n, 1);
  kva_dim extents[KVA_MAX_RANK] = {dy->dims[0]};
  memcpy(extents + 1, dy->dims + 2, sizeof *extents * s->w.n);
  bool lines = c->leads > 1;
  kva_contract_split(exprs(c), at->k, 1 + s->w.n - lines, extents, out);
  if (lines) out[s->w.n] = at->lead;
}

static kva_kval weight_result_at(const kva_contraction *c, const kva_contract_at *at, const kva_expr **idx) {
  const kva_type *dw = c->n->results[0].type;
  idx[0] = channel(c, c->rows, at->batch, at->row);
  kva_contract_split(exprs(c), at->position, dw->rank - 1, dw->dims + 1, idx + 1);
  return NULL;
}

static kva_kval output_grad(const kva_contraction *c, const kva_contract_at *at) {
  const site *s = c->user;
  const kva_expr *step[KVA_MAX_RANK], *idx[KVA_MAX_RANK];
  step_index(c, at, step);
  idx[0] = step[0];
  idx[1] = channel(c, c->rows, at->batch, at->row);
  memcpy(idx + 2, step + 1, sizeof *idx * s->w.n);
  return kva_k_convert(c->l->kb, c->l->operand(c->l, c->n, 1, idx), c->type);
}

static kva_kval image_under_tap(const kva_contraction *c, const kva_contract_at *at) {
  const site *s = c->user;
  const kva_type *dw = c->n->results[0].type, *x = kva_operand_type(c->n, 0);
  const kva_expr *step[KVA_MAX_RANK], *column[KVA_MAX_RANK], *idx[KVA_MAX_RANK];
  step_index(c, at, step);
  kva_contract_split(exprs(c), at->position, dw->rank - 1, dw->dims + 1, column);
  idx[0] = step[0];
  idx[1] = channel(c, dw->dims[1], at->batch, column[0]);
  kva_kval inside = kva_window_read(c->l->kb, &s->w, x->dims + 2, step + 1, column + 1, idx + 2);
  return kva_k_convert(c->l->kb, kva_masked_operand(c->l, c->n, 0, idx, inside), c->type);
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static kva_dim product_of(kva_expr_ctx *e, uint32_t n, const kva_dim *dims) {
  const kva_expr *p = kva_expr_const(e, 1);
  for (uint32_t d = 0; d < n; d++) p = kva_expr_mul(e, p, dims[d]);
  return p;
}

static bool is_pointwise(const kva_window *w) {
  for (uint32_t d = 0; d < w->n; d++) {
    if (w->kernel[d] != 1 || w->stride[d] != 1 || w->before[d] || w->after[d]) return false;
  }
  return true;
}

static kva_contraction contraction_of(kva_lower *l, const kva_node *n, const site *s) {
  kva_contraction c = {.l = l, .n = n, .user = s, .type = kva_k_compute_type(n->results[0].type->dtype)};
  c.gpu_rows = MIN_GPU_ROWS;
  c.batch = kva_expr_const(l->kb->exprs, s->group);
  c.lines = kva_expr_const(l->kb->exprs, 1);
  c.leads = c.taps = c.spread = c.stride = 1;
  return c;
}

/* Lines, or panels, would be much longer for what dilated taps read behind them. */
static bool are_lines_long(const kva_contraction *c, int64_t used, int64_t behind) {
  return c->spread > 1 && (behind > MAX_BEHIND || used < MIN_USED * behind);
}

/* Products in vain take longer than copies for the taps that share one. With vectors shorter than those of AVX-512, for
 * which these numbers were measured, copies took longer. Few columns are filled up to a panel anyway. */
static bool are_copies_cheap(const kva_contraction *c, int64_t used, int64_t behind) {
  if (kva_target_lanes(c->l->target, KVA_F32) < MIN_LANES) return false;
  int64_t rows, lines, copies = c->taps - (c->stride < c->taps ? c->stride : c->taps);
  if (!kva_expr_is_const(c->rows, &rows) || ((const site *)c->user)->begins > 1) return false;
  if (kva_expr_is_const(c->lines, &lines) && lines * used < MIN_COLUMNS) return false;
  return rows * c->taps * behind > copies * (PRODUCTS_OF_LINE + PRODUCTS_OF_ELEMENT * used);
}

static bool has_taps_apart(const kva_contraction *c) {
  int64_t used, behind = (c->taps - 1) * c->spread / c->stride;
  if (c->l->target->kind != KVA_TARGET_CPU || !kva_expr_is_const(c->used, &used)) return false;
  return are_lines_long(c, used, behind) || are_copies_cheap(c, used, behind);
}

/* Columns of an image: one line of all positions, or lines along the last axis. */
static void lay_out_lines(kva_contraction *c, site *s) {
  kva_expr_ctx *e = exprs(c);
  const kva_dim images = c->n->results[0].type->dims[0];
  const kva_window *w = &s->w;
  c->batch = kva_expr_const(e, s->group * s->begins);
  if (s->pointwise) {
    c->lines = images;
    c->line = c->used = product_of(e, w->n, s->extents);
    return;
  }
  for (uint32_t d = 0; d < s->lead_axes; d++) c->leads *= w->kernel[d];
  c->taps = w->kernel[s->lead_axes], c->spread = w->dilation[s->lead_axes], c->stride = w->stride[s->lead_axes];
  c->lines = kva_expr_mul(e, images, product_of(e, s->lead_axes, s->extents));
  c->used = s->extents[s->lead_axes];
  if (has_taps_apart(c)) {
    s->phase_step = c->spread;
    c->spread = 1, c->stride = c->taps;
  }
  c->line = kva_expr_addi(e, c->used, (c->taps - 1) * c->spread / c->stride);
}

/* Depthwise convolution is faster without packing, unless lines are shorter than a vector. */
static bool is_plain_depthwise(const kva_contraction *c, const site *s) {
  int64_t used;
  for (uint32_t d = 0; d < s->w.n; d++)
    if (s->between[d] > 1 || s->step[d] > 1) return false;
  return kva_expr_is(c->rows, 1) && kva_expr_is(c->depth, 1) &&
         (!kva_expr_is_const(c->used, &used) || used >= SHORT_LINE);
}

/* One column for each position of the result. */
static void place_columns(site *s, const kva_type *result) {
  s->lead_axes = s->w.n - 1;
  s->pointwise = is_pointwise(&s->w);
  s->begins = s->phase_step = 1;
  for (uint32_t d = 0; d < s->w.n; d++) {
    s->between[d] = s->step[d] = 1;
    s->extents[d] = result->dims[2 + d];
  }
}

kva_contraction kva_contract_of_conv(kva_lower *l, const kva_node *n) {
  const kva_conv_attrs *a = n->attrs;
  const kva_type *w = kva_operand_type(n, 1);
  site *s = KVA_NEW(l->kb->arena, site);
  *s = (site){
      .w = kva_conv_window(w, a->strides, a->pads, a->dilations), .group = a->group, .depth_per_group = w->dims[1]};
  place_columns(s, n->results[0].type);
  kva_contraction c = contraction_of(l, n, s);
  c.rows = kva_conv_per_group(l->kb->exprs, w->dims[0], a->group);
  c.depth = w->dims[1];
  c.a = weight, c.b = image, c.result = result_at;
  lay_out_lines(&c, s);
  c.by_elements = is_plain_depthwise(&c, s);
  return kva_contract_bytes(&c, kva_operand_type(n, 1)->dtype, kva_operand_type(n, 0)->dtype);
}

/* Taps of one begin: begin, begin + stride, ... Position i of dx is column (i + before) / stride, less those before x.
 */
static void split_strided_axis(kva_expr_ctx *e, site *s, uint32_t d) {
  kva_window *w = &s->w;
  int64_t stride = w->stride[d], before = w->before[d], skipped = before / stride;
  s->step[d] = stride;
  s->begins *= stride;
  s->first[d] = skipped * stride - before;
  const kva_expr *last = kva_expr_ceildiv(e, kva_expr_addi(e, s->extents[d], before), kva_expr_const(e, stride));
  s->extents[d] = kva_expr_addi(e, last, -skipped);
  w->kernel[d] = (w->kernel[d] + stride - 1) / stride;
  w->before[d] = w->kernel[d] - 1 - skipped;
}

/* The window that makes dx, with stride 1 on dilated dy. */
static void reverse_window(kva_expr_ctx *e, site *s) {
  kva_window *w = &s->w;
  s->reversed = true;
  for (uint32_t d = 0; d < w->n; d++) {
    if (w->stride[d] > 1 && w->dilation[d] == 1) {
      split_strided_axis(e, s, d);
    } else {
      s->between[d] = w->stride[d];
      w->before[d] = (w->kernel[d] - 1) * w->dilation[d] - w->before[d];
    }
    w->stride[d] = 1;
  }
}

kva_contraction kva_contract_of_conv_input_grad(kva_lower *l, const kva_node *n) {
  const kva_conv_input_grad_attrs *a = n->attrs;
  const kva_type *w = kva_operand_type(n, 1);
  site *s = KVA_NEW(l->kb->arena, site);
  *s = (site){.w = kva_conv_window(w, a->strides, a->pads, a->dilations), .group = a->group};
  s->depth_per_group = kva_conv_per_group(l->kb->exprs, w->dims[0], a->group);
  place_columns(s, n->results[0].type);
  reverse_window(l->kb->exprs, s);
  kva_contraction c = contraction_of(l, n, s);
  c.rows = w->dims[1];
  c.depth = s->depth_per_group;
  c.a = weight, c.b = image, c.result = result_at;
  lay_out_lines(&c, s);
  if (s->begins > 1) c.any = any_tap;
  c.by_elements = is_plain_depthwise(&c, s);
  return c;
}

kva_contraction kva_contract_of_conv_weight_grad(kva_lower *l, const kva_node *n) {
  const kva_conv_weight_grad_attrs *a = n->attrs;
  const kva_type *dy = kva_operand_type(n, 1), *dw = n->results[0].type;
  kva_expr_ctx *e = l->kb->exprs;
  site *s = KVA_NEW(l->kb->arena, site);
  *s = (site){.w = kva_window_get(a->kernel.n, a->kernel.v, a->strides, a->pads, a->dilations, false),
              .group = a->group};
  kva_contraction c = contraction_of(l, n, s);
  c.rows = kva_conv_per_group(e, dw->dims[0], a->group);
  if (kva_expr_is_const(dy->dims[dy->rank - 1], &c.leads) && (c.leads > MAX_LEADS || c.leads < 1)) c.leads = 1;
  c.depth = kva_expr_mul(e, dy->dims[0], product_of(e, s->w.n - (c.leads > 1), dy->dims + 2));
  c.line = c.used = product_of(e, dw->rank - 1, dw->dims + 1);
  c.along_depth = true;
  c.turn = s->w.kernel[s->w.n - 1] <= MAX_TURN ? s->w.kernel[s->w.n - 1] : 0;
  c.a = output_grad, c.b = image_under_tap, c.result = weight_result_at;
  c.by_elements = !kva_contract_has_rows(&c, MIN_ROWS);
  return c;
}
