/* Rules: AffineGrid, GridSample and DeformConv. The first two use coordinates in [-1, 1] per axis, last axis first; -1
 * and 1 are the centres of the border elements (align_corners) or their outer edges. */
#include "frontend/onnx_window.h"
#include "ops/ids.h"

/* ---- affine grid ------------------------------------------------------------------------------------------------- */

/* Coordinates of the n elements of an axis, shaped to broadcast at `axis` of rank `rank`. */
static kva_value *base_coordinates(kva_builder *b, kva_dtype t, kva_dim n, uint32_t axis, uint32_t rank, bool aligned) {
  kva_value *i = kva_onnx_ramp(b, t, rank, axis, n), *extent = kva_dim_scalar(b, t, n);
  kva_value *one = kva_const_scalar(b, t, 1), *two = kva_const_scalar(b, t, 2);
  kva_value *step = kva_div(b, two, aligned ? kva_sub(b, extent, one) : extent);
  kva_value *first = aligned ? kva_neg(b, one) : kva_sub(b, kva_div(b, one, extent), one);
  return kva_add(b, kva_mul(b, i, step), first);
}

/* theta[:, row, col] as [N, 1, ..., 1] of rank `rank`. */
static kva_value *theta_entry(kva_builder *b, kva_value *theta, int64_t row, int64_t col, uint32_t rank) {
  kva_expr_ctx *e = b->m->exprs;
  kva_dim one = kva_expr_const(e, 1), n = kva_onnx_dim(theta, 0);
  kva_value *v = kva_onnx_slice(b, theta, 1, kva_expr_const(e, row), one);
  v = kva_reshape(b, kva_onnx_slice(b, v, 2, kva_expr_const(e, col), one), 1, &n);
  return kva_onnx_unsqueeze(b, v, 1, rank - 1);
}

/* grid[n, .., r] = sum_c theta[n, r, c] * coordinate_c + theta[n, r, axes], where coordinate 0 belongs to the last
 * axis. */
kva_status kva_onnx_affine_grid(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_value *theta = kva_onnx_in(k, 0), *rows[3] = {NULL};
  bool aligned = kva_onnx_int(k, "align_corners", 0) != 0;
  kva_dims size;
  KVA_TRY(kva_onnx_need_dims(k, 1, "size", &size));
  if (size.n < 4 || size.n > 5 || theta->type->rank != 3) return kva_onnx_fail(k, KVA_INVALID, "expected 2-D or 3-D");
  kva_dim own[3] = {size.v[0], kva_onnx_dim(theta, 1), kva_onnx_dim(theta, 2)};
  if (b->assumes) theta = kva_assume(b, theta, own, "theta of AffineGrid");
  uint32_t n = size.n - 2, rank = n + 1;
  kva_dim dims[5] = {size.v[0]};
  for (uint32_t i = 0; i < n; i++) dims[i + 1] = size.v[i + 2];
  for (uint32_t r = 0; r < n; r++) {
    kva_value *sum = theta_entry(b, theta, r, n, rank);
    for (uint32_t c = 0; c < n; c++) {
      uint32_t axis = n - c;
      kva_value *x = base_coordinates(b, theta->type->dtype, dims[axis], axis, rank, aligned);
      sum = kva_add(b, sum, kva_mul(b, theta_entry(b, theta, r, c, rank), x));
    }
    rows[r] = kva_onnx_unsqueeze(b, kva_expand(b, sum, rank, dims), rank, 1);
  }
  return kva_onnx_done(k, kva_build(b, KVA_OP_concat, n, rows, &(kva_concat_attrs){.axis = rank}));
}

/* ---- grid sample ------------------------------------------------------------------------------------------------- */

enum { MAX_AXES = 3, MAX_TAPS = 4 };
typedef enum sample_mode { SAMPLE_NEAREST, SAMPLE_LINEAR, SAMPLE_CUBIC } sample_mode;
typedef enum border_rule { BORDER_ZEROS, BORDER_CLAMP, BORDER_REFLECT } border_rule;

typedef struct sampling {
  kva_builder *b;
  sample_mode mode;
  border_rule border;
  bool aligned;
  kva_dtype t;     /* arithmetic type */
  kva_value *grid; /* the sampled points of the model */
  kva_value *flat; /* x as [N, C, elements] */
  kva_dim dims[3]; /* N, C, sampled points */
  uint32_t n;      /* spatial axes */
  kva_dim extent[MAX_AXES];
} sampling;

/* One tap of one axis: position as a float, and its weight (NULL: 1). All values are [N, points]. */
typedef struct tap {
  kva_value *at, *weight;
} tap;

static kva_value *num(const sampling *s, double v) {
  return kva_const_scalar(s->b, s->t, v);
}

static kva_value *extent_minus(const sampling *s, uint32_t axis, double v) {
  return kva_sub(s->b, kva_dim_scalar(s->b, s->t, s->extent[axis]), num(s, v));
}

/* Maps a coordinate in [-1, 1] to an element position. */
static kva_value *position(const sampling *s, kva_value *g, uint32_t axis) {
  kva_builder *b = s->b;
  kva_value *half = kva_mul(b, kva_add(b, g, num(s, 1)), num(s, 0.5));
  if (s->aligned) return kva_mul(b, half, extent_minus(s, axis, 1));
  return kva_sub(b, kva_mul(b, half, extent_minus(s, axis, 0)), num(s, 0.5));
}

static kva_value *clamp_position(const sampling *s, kva_value *x, uint32_t axis) {
  x = kva_build2(s->b, KVA_OP_max, x, num(s, 0));
  return kva_build2(s->b, KVA_OP_min, x, extent_minus(s, axis, 1));
}

/* Mirrors, repeatedly if needed, at the centres of the border elements (aligned) or at their outer edges: a triangle
 * wave. The centre of a single element has no period: any will do, as clamping leaves position 0 alone. */
static kva_value *reflect(const sampling *s, kva_value *x, uint32_t axis) {
  kva_builder *b = s->b;
  kva_value *low = num(s, s->aligned ? 0 : -0.5), *range = extent_minus(s, axis, s->aligned ? 1 : 0);
  kva_value *distance = kva_build1(b, KVA_OP_abs, kva_sub(b, x, low));
  kva_value *period = kva_build2(b, KVA_OP_max, kva_mul(b, range, num(s, 2)), num(s, 1));
  kva_value *whole = kva_build1(b, KVA_OP_floor, kva_div(b, distance, period));
  kva_value *rest = kva_sub(b, distance, kva_mul(b, whole, period));
  kva_value *mirrored = kva_build2(b, KVA_OP_min, rest, kva_sub(b, period, rest));
  return clamp_position(s, kva_add(b, mirrored, low), axis);
}

static kva_value *at_border(const sampling *s, kva_value *x, uint32_t axis) {
  if (s->border == BORDER_ZEROS) return x;
  return s->border == BORDER_CLAMP ? clamp_position(s, x, axis) : reflect(s, x, axis);
}

/* Keys' kernel with a = -0.75 at distance d. */
static kva_value *cubic_weight(const sampling *s, kva_value *d, bool inner) {
  kva_builder *b = s->b;
  static const double near[] = {1.25, -2.25, 0, 1}, far[] = {-0.75, 3.75, -6, 3};
  const double *c = inner ? near : far;
  kva_value *y = num(s, c[0]);
  for (int i = 1; i < 4; i++) y = kva_add(b, kva_mul(b, y, d), num(s, c[i]));
  return y;
}

/* Taps of one axis. Linear and nearest first map the position into the image, cubic maps every tap. */
static uint32_t taps_of(const sampling *s, kva_value *x, uint32_t axis, tap *out) {
  kva_builder *b = s->b;
  if (s->mode != SAMPLE_CUBIC) x = at_border(s, x, axis);
  if (s->mode == SAMPLE_NEAREST) return out[0] = (tap){kva_build1(b, KVA_OP_round, x), NULL}, 1;
  kva_value *low = kva_build1(b, KVA_OP_floor, x), *ratio = kva_sub(b, x, low), *one = num(s, 1);
  if (s->mode == SAMPLE_LINEAR) {
    out[0] = (tap){low, kva_sub(b, one, ratio)};
    out[1] = (tap){kva_add(b, low, one), ratio};
    return 2;
  }
  for (int i = 0; i < 4; i++) {
    kva_value *offset = num(s, i - 1), *d = kva_build1(b, KVA_OP_abs, kva_sub(b, ratio, offset));
    out[i] = (tap){at_border(s, kva_add(b, low, offset), axis), cubic_weight(s, d, i == 1 || i == 2)};
  }
  return 4;
}

/* The element at a combination of taps, 0 outside the image, times its weights. */
static kva_value *sample(const sampling *s, const tap *const *chosen) {
  kva_builder *b = s->b;
  kva_value *index = NULL, *inside = NULL, *weight = NULL;
  for (uint32_t i = 0; i < s->n; i++) {
    kva_value *at = chosen[i]->at, *safe = clamp_position(s, at, i);
    kva_value *ok = kva_build2(b, KVA_OP_equal, at, safe), *step = kva_cast(b, safe, KVA_I64);
    kva_value *extent = kva_dim_scalar(b, KVA_I64, s->extent[i]);
    index = index ? kva_add(b, kva_mul(b, index, extent), step) : step;
    inside = inside ? kva_build2(b, KVA_OP_logical_and, inside, ok) : ok;
    if (chosen[i]->weight) weight = weight ? kva_mul(b, weight, chosen[i]->weight) : chosen[i]->weight;
  }
  index = kva_expand(b, kva_onnx_unsqueeze(b, index, 1, 1), 3, s->dims);
  kva_gather_elements_attrs attrs = {.axis = 2};
  kva_value *v = kva_build(b, KVA_OP_gather_elements, 2, (kva_value *[]){s->flat, index}, &attrs);
  v = kva_onnx_where(b, kva_onnx_unsqueeze(b, inside, 1, 1), v, num(s, 0));
  return weight ? kva_mul(b, v, kva_onnx_unsqueeze(b, weight, 1, 1)) : v;
}

/* x as [N, C, elements] in arithmetic type, with the first spatial axes of an image of rank n + 2. */
static void set_image(sampling *s, kva_value *x, kva_dim batch, kva_dim channels, kva_dim points) {
  kva_builder *b = s->b;
  for (uint32_t i = 0; i < s->n; i++) s->extent[i] = x->type->dims[i + 2];
  s->dims[0] = batch, s->dims[1] = channels, s->dims[2] = points;
  kva_dim flat[3] = {batch, channels, kva_onnx_product(b, x->type->dims, 2, x->type->rank)};
  s->flat = kva_reshape(b, kva_onnx_widen(b, x), 3, flat);
  s->t = s->flat->type->dtype;
}

/* The image at these positions, [N, points] an axis, as [N, C, points]. */
static kva_value *sample_at(const sampling *s, kva_value *const *positions) {
  tap taps[MAX_AXES][MAX_TAPS];
  uint32_t n_taps[MAX_AXES] = {1, 1, 1};
  kva_value *sum = NULL;
  for (uint32_t i = 0; i < s->n; i++) n_taps[i] = taps_of(s, positions[i], i, taps[i]);
  if (s->b->failed) return s->flat;
  for (uint32_t i = 0; i < n_taps[0] * n_taps[1] * n_taps[2]; i++) {
    const tap *chosen[MAX_AXES] = {&taps[0][i % n_taps[0]], &taps[1][i / n_taps[0] % n_taps[1]],
                                   &taps[2][i / n_taps[0] / n_taps[1]]};
    kva_value *v = sample(s, chosen);
    sum = sum ? kva_add(s->b, sum, v) : v;
  }
  return sum;
}

static kva_status read_sampling(kva_onnx_call *k, sampling *s) {
  const char *mode = kva_onnx_string(k, "mode", "linear"), *border = kva_onnx_string(k, "padding_mode", "zeros");
  kva_value *x = kva_onnx_in(k, 0), *grid = kva_onnx_in(k, 1);
  uint32_t rank = x->type->rank;
  if (rank >= 4 && grid->type->rank == rank) {
    grid = kva_onnx_with_extent(k, grid, rank - 1, kva_expr_const(kva_onnx_exprs(k), rank - 2), "points of GridSample");
    grid = kva_onnx_with_extent(k, grid, 0, kva_onnx_dim(x, 0), "points of GridSample");
  }
  if (rank < 4 || rank > 5 || grid->type->rank != rank || !kva_expr_is(kva_onnx_dim(grid, rank - 1), rank - 2))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "expected 2-D or 3-D images and a grid of their points");
  *s = (sampling){.b = k->b, .grid = grid, .n = rank - 2, .aligned = kva_onnx_int(k, "align_corners", 0) != 0};
  s->mode = strstr(mode, "linear") ? SAMPLE_LINEAR : strstr(mode, "cubic") ? SAMPLE_CUBIC : SAMPLE_NEAREST;
  s->border = !strcmp(border, "border") ? BORDER_CLAMP : !strcmp(border, "reflection") ? BORDER_REFLECT : BORDER_ZEROS;
  set_image(s, x, kva_onnx_dim(x, 0), kva_onnx_dim(x, 1), kva_onnx_product(k->b, grid->type->dims, 1, rank - 1));
  return KVA_OK;
}

kva_status kva_onnx_grid_sample(kva_onnx_call *k) {
  kva_builder *b = k->b;
  sampling s;
  KVA_TRY(read_sampling(k, &s));
  kva_dim flat[3] = {s.dims[0], s.dims[2], kva_expr_const(kva_onnx_exprs(k), s.n)}, points[2] = {s.dims[0], s.dims[2]};
  kva_value *grid = kva_reshape(b, kva_cast(b, s.grid, s.t), 3, flat), *positions[MAX_AXES] = {NULL};
  for (uint32_t i = 0; i < s.n; i++) {
    kva_dim at = kva_expr_const(kva_onnx_exprs(k), s.n - 1 - i), one = kva_expr_const(kva_onnx_exprs(k), 1);
    kva_value *g = kva_reshape(b, kva_onnx_slice(b, grid, 2, at, one), 2, points);
    positions[i] = position(&s, g, i);
  }
  kva_value *y = sample_at(&s, positions);
  if (b->failed) return KVA_INVALID;
  kva_dim out[5] = {s.dims[0], s.dims[1]};
  for (uint32_t i = 0; i < s.n; i++) out[i + 2] = kva_onnx_dim(s.grid, i + 1);
  return kva_onnx_done(k, kva_cast(b, kva_reshape(b, y, s.n + 2, out), kva_onnx_in(k, 0)->type->dtype));
}

/* ---- deformable convolution -------------------------------------------------------------------------------------- */

/* y[o, p] = sum over taps t and channels c of w[o, c, t] m_t[p] x[c, start(p) + t + offset_t[p]], x being sampled
 * linearly and 0 outside. Each of the offset groups has offsets and masks of its own for its share of the channels. */
typedef struct deformed {
  kva_value *x, *weight, *offset, *mask; /* mask: NULL if there is none */
  kva_onnx_window w;
  int64_t group, offset_group;
  kva_dim out[2], taps[2], groups; /* groups: those of all images */
  kva_dim points;                  /* of all taps */
} deformed;

static kva_status check_deformed(kva_onnx_call *k, deformed *d) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_dim taps = kva_expr_muli(e, kva_expr_mul(e, d->taps[0], d->taps[1]), d->offset_group);
  kva_dim offsets[4] = {kva_onnx_dim(d->x, 0), kva_expr_muli(e, taps, 2), NULL, NULL};
  kva_dim masks[4] = {kva_onnx_dim(d->x, 0), taps, d->out[0], d->out[1]};
  kva_dim channels = kva_expr_div(e, kva_onnx_dim(d->x, 1), kva_expr_const(e, d->offset_group));
  d->offset = kva_onnx_with_dims(k, d->offset, offsets, "offsets of DeformConv");
  if (d->mask) d->mask = kva_onnx_with_dims(k, d->mask, masks, "the mask of DeformConv");
  d->x = kva_onnx_with_extent(k, d->x, 1, kva_expr_muli(e, channels, d->offset_group), "the operand of DeformConv");
  if (kva_onnx_dim(d->x, 1) != kva_expr_muli(e, channels, d->offset_group))
    return kva_onnx_fail(k, KVA_INVALID, "offset_group %lld does not divide the channels", (long long)d->offset_group);
  if (kva_onnx_dim(d->offset, 1) != kva_expr_muli(e, taps, 2) || (d->mask && kva_onnx_dim(d->mask, 1) != taps))
    return kva_onnx_fail(k, KVA_INVALID, "offsets or masks do not fit the taps of %lld offset groups",
                         (long long)d->offset_group);
  return KVA_OK;
}

static kva_status read_deformed(kva_onnx_call *k, deformed *d) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  d->x = kva_onnx_in(k, 0), d->offset = kva_onnx_in(k, 2), d->mask = kva_onnx_in(k, 4);
  d->weight = kva_onnx_shaped_weight(k, kva_onnx_in(k, 1));
  KVA_TRY(kva_onnx_read_window(k, d->weight, &d->w));
  if (d->x->type->rank != 4 || d->offset->type->rank != 4 || (d->mask && d->mask->type->rank != 4))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "expected 2-D images, offsets and masks");
  d->group = kva_onnx_int(k, "group", 1), d->offset_group = kva_onnx_int(k, "offset_group", 1);
  if (d->group < 1 || d->offset_group < 1) return kva_onnx_fail(k, KVA_INVALID, "groups must be positive");
  for (uint32_t i = 0; i < 2; i++) {
    d->taps[i] = kva_onnx_dim(d->weight, i + 2);
    d->out[i] = kva_onnx_dim(d->offset, i + 2);
  }
  KVA_TRY(check_deformed(k, d));
  d->groups = kva_expr_muli(e, kva_onnx_dim(d->offset, 0), d->offset_group);
  d->points = kva_expr_mul(e, kva_expr_mul(e, d->taps[0], d->taps[1]), kva_expr_mul(e, d->out[0], d->out[1]));
  return KVA_OK;
}

/* Positions along an axis, [groups, points]. */
static kva_value *deformed_positions(kva_onnx_call *k, const deformed *d, kva_dtype t, uint32_t axis) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_dim taps = kva_expr_mul(e, d->taps[0], d->taps[1]), plane = kva_expr_mul(e, d->out[0], d->out[1]);
  kva_dim pairs[4] = {d->groups, taps, kva_expr_const(e, 2), plane};
  kva_dim points[5] = {d->groups, d->taps[0], d->taps[1], d->out[0], d->out[1]}, flat[2] = {d->groups, d->points};
  kva_value *offset = kva_reshape(b, kva_cast(b, d->offset, t), 4, pairs);
  offset = kva_onnx_slice(b, offset, 2, kva_expr_const(e, axis), kva_expr_const(e, 1));
  kva_value *tap_at = kva_onnx_ramp(b, t, 5, 1 + axis, d->taps[axis]);
  kva_value *start = kva_onnx_ramp(b, t, 5, 3 + axis, d->out[axis]);
  tap_at = kva_mul(b, tap_at, kva_const_scalar(b, t, (double)d->w.dilations[axis]));
  start = kva_mul(b, start, kva_const_scalar(b, t, (double)d->w.strides[axis]));
  start = kva_sub(b, start, kva_const_scalar(b, t, (double)d->w.pads[axis]));
  return kva_reshape(b, kva_add(b, kva_reshape(b, offset, 5, points), kva_add(b, tap_at, start)), 2, flat);
}

/* The sampled values as columns, times the weights of each group. */
static kva_value *contract_deformed(kva_onnx_call *k, const deformed *d, kva_value *columns) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_value *x = d->x, *w = d->weight, *bias = kva_onnx_in(k, 3);
  kva_dim group = kva_expr_const(e, d->group), depth = kva_onnx_product(b, w->type->dims, 1, 4);
  kva_dim rows = kva_expr_div(e, kva_onnx_dim(w, 0), group), plane = kva_expr_mul(e, d->out[0], d->out[1]);
  w = kva_reshape(b, w, 3, (kva_dim[]){group, rows, depth});
  columns = kva_reshape(b, columns, 4, (kva_dim[]){kva_onnx_dim(x, 0), group, depth, plane});
  kva_value *y = kva_matmul(b, w, columns, false, false);
  kva_dim out[4] = {kva_onnx_dim(x, 0), kva_onnx_dim(d->weight, 0), d->out[0], d->out[1]};
  y = kva_reshape(b, y, 4, out);
  return bias ? kva_add(b, y, kva_onnx_channels(b, bias, 4)) : y;
}

kva_status kva_onnx_deform_conv(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  deformed d = {0};
  KVA_TRY(read_deformed(k, &d));
  kva_value *x = d.x, *positions[MAX_AXES] = {NULL};
  kva_dim channels = kva_expr_div(e, kva_onnx_dim(x, 1), kva_expr_const(e, d.offset_group));
  sampling s = {.b = b, .n = 2, .mode = SAMPLE_LINEAR};
  set_image(&s, x, d.groups, channels, d.points);
  for (uint32_t i = 0; i < 2; i++) positions[i] = deformed_positions(k, &d, s.t, i);
  kva_value *columns = sample_at(&s, positions);
  kva_dim per_group[3] = {d.groups, kva_expr_const(e, 1), d.points};
  if (d.mask) columns = kva_mul(b, columns, kva_reshape(b, kva_cast(b, d.mask, s.t), 3, per_group));
  return kva_onnx_done(k, contract_deformed(k, &d, kva_cast(b, columns, x->type->dtype)));
}
