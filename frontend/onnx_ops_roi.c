/* Rules: regions of images. rois are [R, 4] or [R, 5], in units of the original image. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

#include <math.h>

typedef struct regions {
  kva_builder *b;
  kva_value *x, *rois; /* in arithmetic type */
  kva_dtype t;
  double scale;
  int64_t out[2], samples; /* rows and columns of a result; samples along each axis of one of its cells, 0: by size */
  kva_dim points[2];       /* samples along each axis of one cell: of the largest, where they depend on the size */
  kva_value *own[2];       /* [R, 1]: how many of them a region has; NULL: all */
  bool half_pixel, largest;
} regions;

static kva_value *num(const regions *r, double v) {
  return kva_const_scalar(r->b, r->t, v);
}

/* Column `at` of the regions, [R, 1], in units of the image. */
static kva_value *edge(const regions *r, int64_t at) {
  kva_expr_ctx *e = r->b->m->exprs;
  return kva_mul(r->b, kva_onnx_slice(r->b, r->rois, 1, kva_expr_const(e, at), kva_expr_const(e, 1)), num(r, r->scale));
}

/* A region's start and size along an axis (0: rows): corners are x1, y1, x2, y2 from column `first` on. */
static kva_value *extent_of(const regions *r, int64_t first, uint32_t axis, kva_value **start) {
  *start = edge(r, first + 1 - axis);
  return kva_sub(r->b, edge(r, first + 3 - axis), *start);
}

/* ---- RoiAlign ---------------------------------------------------------------------------------------------------- */

/* Neighbours of the sample points along an axis, [R, out * points]: places and weights; 0 far outside. */
typedef struct neighbours {
  kva_value *at[2], *weight[2];
  kva_value *present; /* which points a region has; NULL: all */
} neighbours;

/* The extent of a region's cells along an axis, [R, 1]. */
static kva_value *cell_of(const regions *r, uint32_t axis, kva_value **start) {
  kva_builder *b = r->b;
  kva_value *size = extent_of(r, 0, axis, start);
  if (r->half_pixel)
    *start = kva_sub(b, *start, num(r, 0.5));
  else
    size = kva_build2(b, KVA_OP_max, size, num(r, 1));
  return kva_div(b, size, num(r, (double)r->out[axis]));
}

/* Without sampling_ratio a cell has a sample for each pixel that it extends over, or begins to. */
static void count_samples(kva_onnx_call *k, regions *r, uint32_t axis) {
  kva_builder *b = r->b;
  kva_value *start = NULL, *own = kva_build1(b, KVA_OP_ceil, cell_of(r, axis, &start));
  r->own[axis] = kva_build2(b, KVA_OP_max, own, num(r, 0));
  kva_value *most = kva_reduce(b, KVA_OP_reduce_max, kva_cast(b, r->own[axis], KVA_I64), 2, (int64_t[]){0, 1}, false);
  most = kva_build2(b, KVA_OP_max, most, kva_const_scalar(b, KVA_I64, 1));
  const kva_dims *bound = kva_onnx_bind_elements(k->c, most, "samples");
  r->points[axis] = bound ? bound->v[0] : kva_expr_const(b->m->exprs, 1);
}

/* Where the sample points lie, in cells from the start of the region. */
static kva_value *places_in_cells(const regions *r, uint32_t axis, kva_value **present) {
  kva_builder *b = r->b;
  kva_dim all = kva_expr_muli(b->m->exprs, r->points[axis], r->out[axis]);
  kva_value *i = kva_onnx_ramp(b, r->own[axis] ? KVA_I64 : r->t, 2, 1, all), *own = r->own[axis];
  if (!own) return kva_div(b, kva_add(b, i, num(r, 0.5)), num(r, (double)r->samples));
  kva_value *points = kva_dim_scalar(b, KVA_I64, r->points[axis]), *cell = kva_cast(b, kva_div(b, i, points), r->t);
  i = kva_cast(b, kva_build2(b, KVA_OP_mod, i, points), r->t);
  *present = kva_build2(b, KVA_OP_less, i, own);
  own = kva_build2(b, KVA_OP_max, own, num(r, 1));
  return kva_add(b, cell, kva_div(b, kva_add(b, i, num(r, 0.5)), own));
}

static neighbours neighbours_along(const regions *r, uint32_t axis) {
  kva_builder *b = r->b;
  kva_dim extent = r->x->type->dims[axis + 2];
  kva_value *start = NULL, *cell = cell_of(r, axis, &start), *one = num(r, 1), *zero = num(r, 0), *present = NULL;
  kva_value *place = kva_mul(b, places_in_cells(r, axis, &present), cell);
  kva_value *p = kva_add(b, start, place), *n = kva_dim_scalar(b, r->t, extent);
  kva_value *inside = kva_build2(b, KVA_OP_logical_and, kva_build2(b, KVA_OP_less_equal, num(r, -1), p),
                                 kva_build2(b, KVA_OP_less_equal, p, n));
  kva_value *last = kva_sub(b, n, one);
  p = kva_build2(b, KVA_OP_min, kva_build2(b, KVA_OP_max, p, zero), last);
  kva_value *low = kva_build1(b, KVA_OP_floor, p), *ratio = kva_sub(b, p, low);
  kva_value *high = kva_build2(b, KVA_OP_min, kva_add(b, low, one), last);
  return (neighbours){{kva_cast(b, low, KVA_I64), kva_cast(b, high, KVA_I64)},
                      {kva_onnx_where(b, inside, kva_sub(b, one, ratio), zero), kva_onnx_where(b, inside, ratio, zero)},
                      present};
}

/* [R, rows, columns, C]: the image at one neighbour of each axis, weighted. Channels are last, since all of them have
 * the same places and weights. */
static kva_value *weighted(const regions *r, kva_value *flat, kva_value *first, const neighbours *n, int row,
                           int column) {
  kva_builder *b = r->b;
  kva_value *width = kva_dim_scalar(b, KVA_I64, r->x->type->dims[3]);
  kva_value *y = kva_onnx_unsqueeze(b, kva_mul(b, n[0].at[row], width), 2, 1);
  kva_value *at = kva_add(b, kva_add(b, first, y), kva_onnx_unsqueeze(b, n[1].at[column], 1, 1));
  kva_value *weight =
      kva_mul(b, kva_onnx_unsqueeze(b, n[0].weight[row], 2, 1), kva_onnx_unsqueeze(b, n[1].weight[column], 1, 1));
  return kva_mul(b, kva_onnx_gather(b, flat, at, 0), kva_onnx_unsqueeze(b, weight, 3, 1));
}

/* y where a region has both the row and the column, else `absent`. */
static kva_value *only_present(const regions *r, kva_value *y, const neighbours *n, double absent) {
  kva_builder *b = r->b;
  if (!n[0].present) return y;
  kva_value *rows = kva_onnx_unsqueeze(b, n[0].present, 2, 2), *columns = kva_onnx_unsqueeze(b, n[1].present, 1, 1);
  kva_value *both = kva_build2(b, KVA_OP_logical_and, rows, kva_onnx_unsqueeze(b, columns, 3, 1));
  return kva_onnx_where(b, both, y, num(r, absent));
}

/* The four neighbours of each sample, added, or with mode max the largest of their weighted values. */
static kva_value *samples_of(const regions *r, kva_value *image_of) {
  kva_builder *b = r->b;
  const kva_dim *d = r->x->type->dims;
  kva_dim plane = kva_expr_mul(b->m->exprs, d[2], d[3]);
  kva_dim flat_dims[2] = {kva_expr_mul(b->m->exprs, d[0], plane), d[1]};
  kva_value *flat = kva_reshape(b, kva_transpose(b, r->x, (int64_t[]){0, 2, 3, 1}), 2, flat_dims), *y = NULL;
  kva_value *first = kva_mul(b, kva_cast(b, image_of, KVA_I64), kva_dim_scalar(b, KVA_I64, plane));
  first = kva_onnx_unsqueeze(b, first, 1, 2);
  neighbours n[2] = {neighbours_along(r, 0), neighbours_along(r, 1)};
  for (int i = 0; i < 4; i++) {
    kva_value *v = weighted(r, flat, first, n, i / 2, i % 2);
    y = !y ? v : r->largest ? kva_build2(b, KVA_OP_max, y, v) : kva_add(b, y, v);
  }
  return only_present(r, y, n, r->largest ? -HUGE_VAL : 0);
}

/* y[R, rows, points, columns, points, C]: the largest or the mean of a cell's samples; of none, 0. */
static kva_value *join_samples(const regions *r, kva_value *y) {
  kva_builder *b = r->b;
  const int64_t axes[] = {2, 4};
  if (!r->own[0]) return kva_reduce(b, r->largest ? KVA_OP_reduce_max : KVA_OP_reduce_mean, y, 2, axes, false);
  kva_value *count = kva_onnx_unsqueeze(b, kva_mul(b, r->own[0], r->own[1]), 2, 2), *zero = num(r, 0);
  y = kva_reduce(b, r->largest ? KVA_OP_reduce_max : KVA_OP_reduce_sum, y, 2, axes, false);
  if (!r->largest) y = kva_div(b, y, kva_build2(b, KVA_OP_max, count, num(r, 1)));
  return kva_onnx_where(b, kva_build2(b, KVA_OP_equal, count, zero), zero, y);
}

static kva_status read_regions(kva_onnx_call *k, regions *r) {
  const char *mode = kva_onnx_string(k, "mode", "avg");
  const char *grid =
      kva_onnx_string(k, "coordinate_transformation_mode", k->version < 16 ? "output_half_pixel" : "half_pixel");
  *r = (regions){.b = k->b,
                 .x = kva_onnx_widen(k->b, kva_onnx_in(k, 0)),
                 .scale = kva_onnx_float(k, "spatial_scale", 1),
                 .out = {kva_onnx_int(k, "output_height", 1), kva_onnx_int(k, "output_width", 1)},
                 .samples = kva_onnx_int(k, "sampling_ratio", 0),
                 .half_pixel = !strcmp(grid, "half_pixel"),
                 .largest = !strcmp(mode, "max")};
  r->t = r->x->type->dtype;
  r->rois = kva_cast(k->b, kva_onnx_in(k, 1), r->t);
  if (r->samples < 0 || r->out[0] < 1 || r->out[1] < 1 || (!r->largest && strcmp(mode, "avg") != 0))
    return kva_onnx_fail(k, KVA_INVALID, "mode '%s' for %lld x %lld cells of %lld samples", mode, (long long)r->out[0],
                         (long long)r->out[1], (long long)r->samples);
  if (r->x->type->rank == 4 && r->rois->type->rank == 2 && kva_onnx_in(k, 2)->type->rank == 1) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "expected images of rank 4, regions of rank 2 and a vector of image numbers");
}

kva_status kva_onnx_roi_align(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  regions r;
  KVA_TRY(read_regions(k, &r));
  r.points[0] = r.points[1] = kva_expr_const(e, r.samples);
  for (uint32_t axis = 0; axis < 2 && !r.samples; axis++) count_samples(k, &r, axis);
  kva_dim count = kva_onnx_dim(r.rois, 0);
  kva_value *image_of = b->assumes ? kva_assume(b, kva_onnx_in(k, 2), &count, "batch_indices") : kva_onnx_in(k, 2);
  kva_dim cells[6] = {
      kva_onnx_dim(r.rois, 0), kva_expr_const(e, r.out[0]), r.points[0], kva_expr_const(e, r.out[1]), r.points[1],
      kva_onnx_dim(r.x, 1)};
  kva_value *y = join_samples(&r, kva_reshape(b, samples_of(&r, image_of), 6, cells));
  return kva_onnx_done(k, kva_cast(b, kva_transpose(b, y, (int64_t[]){0, 3, 1, 2}), kva_onnx_in(k, 0)->type->dtype));
}

/* ---- MaxRoiPool -------------------------------------------------------------------------------------------------- */

/* [R, out, extent]: whether a cell of a region has a row (or column) of the image. Corners are rounded, cells overlap.
 */
static kva_value *members(const regions *r, uint32_t axis) {
  kva_builder *b = r->b;
  kva_value *half = num(r, 0.5), *one = num(r, 1);
  kva_value *start = kva_build1(b, KVA_OP_floor, kva_add(b, edge(r, 2 - axis), half));
  kva_value *end = kva_build1(b, KVA_OP_floor, kva_add(b, edge(r, 4 - axis), half));
  kva_value *size = kva_build2(b, KVA_OP_max, kva_add(b, kva_sub(b, end, start), one), one);
  kva_value *step = kva_div(b, size, num(r, (double)r->out[axis]));
  kva_value *cell = kva_onnx_ramp(b, r->t, 2, 1, kva_expr_const(b->m->exprs, r->out[axis]));
  kva_value *low = kva_add(b, start, kva_build1(b, KVA_OP_floor, kva_mul(b, cell, step)));
  kva_value *high = kva_add(b, start, kva_build1(b, KVA_OP_ceil, kva_mul(b, kva_add(b, cell, one), step)));
  kva_value *at = kva_onnx_ramp(b, r->t, 3, 2, r->x->type->dims[axis + 2]);
  return kva_build2(b, KVA_OP_logical_and, kva_build2(b, KVA_OP_less_equal, kva_onnx_unsqueeze(b, low, 2, 1), at),
                    kva_build2(b, KVA_OP_less, at, kva_onnx_unsqueeze(b, high, 2, 1)));
}

/* The largest value among members of the last axis: [R, C, rest, 1, n] and [R, 1, 1, out, n] give [R, C, rest, out]. */
static kva_value *largest_member(const regions *r, kva_value *x, kva_value *member) {
  kva_builder *b = r->b;
  int64_t last = 4;
  member = kva_onnx_unsqueeze(b, member, 1, 2);
  kva_value *y = kva_onnx_where(b, member, kva_onnx_unsqueeze(b, x, 3, 1), num(r, -HUGE_VAL));
  return kva_reduce(b, KVA_OP_reduce_max, y, 1, &last, false);
}

/* Columns first, then rows. A cell without elements is 0. */
kva_status kva_onnx_max_roi_pool(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_ints out = kva_onnx_ints(k, "pooled_shape");
  regions r = {.b = b, .x = kva_onnx_widen(b, kva_onnx_in(k, 0)), .scale = kva_onnx_float(k, "spatial_scale", 1)};
  r.t = r.x->type->dtype;
  r.rois = kva_cast(b, kva_onnx_in(k, 1), r.t);
  if (r.x->type->rank != 4 || r.rois->type->rank != 2 || out.n != 2 || out.v[0] < 1 || out.v[1] < 1)
    return kva_onnx_fail(k, KVA_INVALID,
                         "expected images of rank 4, regions of rank 2 and a pooled_shape of two extents");
  memcpy(r.out, out.v, sizeof r.out);
  kva_dim count = kva_onnx_dim(r.rois, 0);
  kva_value *image = kva_onnx_slice(b, r.rois, 1, kva_expr_const(e, 0), kva_expr_const(e, 1));
  image = kva_onnx_gather(b, r.x, kva_cast(b, kva_reshape(b, image, 1, &count), KVA_I64), 0);
  kva_value *y = kva_transpose(b, largest_member(&r, image, members(&r, 1)), (int64_t[]){0, 1, 3, 2});
  y = kva_transpose(b, largest_member(&r, y, members(&r, 0)), (int64_t[]){0, 1, 3, 2});
  kva_value *empty = kva_build2(b, KVA_OP_equal, y, num(&r, -HUGE_VAL));
  return kva_onnx_done(k, kva_cast(b, kva_onnx_where(b, empty, num(&r, 0), y), kva_onnx_in(k, 0)->type->dtype));
}
