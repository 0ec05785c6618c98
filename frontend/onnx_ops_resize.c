/* Rules: Resize and Upsample. Resizing an axis is a linear map that depends on extents only. It is computed here like
 * the specification's reference, and applied as a gather (nearest), as a weighted sum of gathers (linear, cubic), or as
 * a product with a constant matrix (short lines; antialiasing takes more neighbours). */
#include "frontend/onnx_resize.h"
#include "ops/ids.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_MATRIX = 1 << 24, MAX_GATHERS = 4, SHORT_LINE = 128 };

typedef kva_onnx_resizing resize;

/* One axis. */
typedef struct axis_map {
  int64_t in, out;
  double scale, roi_start, roi_end;
} axis_map;

/* ---- attributes -------------------------------------------------------------------------------------------------- */

static kva_status choose(kva_onnx_call *k, const char *attr, const char *absent, const char *const *names, int *out) {
  const char *given = kva_onnx_string(k, attr, absent);
  for (int i = 0; names[i]; i++)
    if (!strcmp(names[i], given)) return *out = i, KVA_OK;
  return kva_onnx_fail(k, KVA_UNSUPPORTED, "attribute '%s': '%s'", attr, given);
}

static kva_status read_attrs(kva_onnx_call *k, resize *r) {
  static const char *const modes[] = {"nearest", "linear", "cubic", NULL};
  static const char *const places[] = {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel",   "align_corners",
                                       "asymmetric", "tf_crop_and_resize",   "tf_half_pixel_for_nn", NULL};
  static const char *const roundings[] = {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil", NULL};
  bool old = k->version < 11;
  int m = 0, c = 0, n = 0;
  KVA_TRY(choose(k, "mode", "nearest", modes, &m));
  KVA_TRY(choose(k, "coordinate_transformation_mode", old ? "asymmetric" : "half_pixel", places, &c));
  KVA_TRY(choose(k, "nearest_mode", "round_prefer_floor", roundings, &n));
  *r = (resize){.mode = (kva_onnx_resize_mode)m,
                .coordinates = (kva_onnx_coordinates)c,
                .rounding = old ? ROUND_BY_SCALE : (kva_onnx_rounding)n,
                .antialias = kva_onnx_int(k, "antialias", 0) != 0,
                .exclude_outside = kva_onnx_int(k, "exclude_outside", 0) != 0,
                .cubic_a = kva_onnx_float(k, "cubic_coeff_a", -0.75),
                .extrapolation = kva_onnx_float(k, "extrapolation_value", 0)};
  return KVA_OK;
}

/* Inputs by version: 7 scales as attribute; 9, 10 scales; 11 on roi, scales, sizes. NULL: omitted or not known. */
static kva_status constant_list(kva_onnx_call *k, uint32_t input, uint32_t n, const kva_ref_tensor **out) {
  kva_value *v = kva_onnx_in(k, input);
  *out = v ? kva_onnx_constant(k->c, v) : NULL;
  if (*out && (*out)->n && (*out)->n != n)
    return kva_onnx_fail(k, KVA_INVALID, "input %u: %lld entries for %u axes", input, (long long)(*out)->n, n);
  if (*out && !(*out)->n) *out = NULL;
  return KVA_OK;
}

/* Uses one scale for all axes; sizes are rounded half up. */
static void keep_aspect(axis_map *maps, uint32_t n, bool smallest) {
  double scale = maps[0].scale;
  for (uint32_t i = 1; i < n; i++)
    if (smallest ? maps[i].scale < scale : maps[i].scale > scale) scale = maps[i].scale;
  for (uint32_t i = 0; i < n; i++) {
    maps[i].scale = scale;
    maps[i].out = (int64_t)floor(scale * (double)maps[i].in + 0.5);
  }
}

static const char *const policies[] = {"stretch", "not_larger", "not_smaller", NULL};

/* The new extent is v, or v times the old one. A factor as 1.3 is the nearest float to the one that is meant, so the
 * product is rounded to float, as ONNX's inference of shapes does: 1.3 times 20 is 26. */
static kva_status set_extent(kva_onnx_call *k, bool sized, double v, axis_map *map) {
  double in = (double)map->in, s = sized ? v / in : v;
  if (!(s > 0) || s * in > 1e9) return kva_onnx_fail(k, KVA_INVALID, "scale %g of an axis of %g", s, in);
  map->scale = s;
  map->out = sized ? (int64_t)v : (int64_t)floor((float)(in * s));
  return KVA_OK;
}

static kva_status set_extents(kva_onnx_call *k, const kva_ref_tensor *scales, const kva_ref_tensor *sizes, uint32_t n,
                              axis_map *maps) {
  int policy = 0;
  KVA_TRY(choose(k, "keep_aspect_ratio_policy", "stretch", policies, &policy));
  if (!scales == !sizes) return kva_onnx_fail(k, KVA_INVALID, "expected either scales or sizes");
  for (uint32_t i = 0; i < n; i++)
    KVA_TRY(set_extent(k, sizes, kva_ref_tensor_get(sizes ? sizes : scales, i), &maps[i]));
  if (sizes && policy) keep_aspect(maps, n, policy == 1);
  return KVA_OK;
}

/* ---- the map of one axis ----------------------------------------------------------------------------------------- */

/* x / scale. What is 10 with the factor that is meant, 17 / 1.7, must not be 9.99... where nearest rounds it down. */
static double quotient(const resize *r, const axis_map *a, double x) {
  return r->mode == NEAREST ? (float)(x / a->scale) : x / a->scale;
}

static double source_position(const resize *r, const axis_map *a, int64_t i) {
  double x = (double)i, in = (double)a->in, out = a->scale * in;
  switch (r->coordinates) {
  case HALF_PIXEL: return quotient(r, a, x + 0.5) - 0.5;
  case HALF_PIXEL_SYMMETRIC: return in / 2 * (1 - (double)a->out / out) + quotient(r, a, x + 0.5) - 0.5;
  case PYTORCH_HALF_PIXEL: return a->out == 1 ? 0 : quotient(r, a, x + 0.5) - 0.5;
  case ALIGN_CORNERS: return a->out == 1 ? 0 : x * (in - 1) / (out - 1);
  case ASYMMETRIC: return quotient(r, a, x);
  case HALF_PIXEL_FOR_NEAREST: return quotient(r, a, x + 0.5);
  case CROP_AND_RESIZE: break;
  }
  double width = a->roi_end - a->roi_start;
  double at = a->out == 1 ? width * (in - 1) / 2 : x * width * (in - 1) / (out - 1);
  return at + a->roi_start * (in - 1);
}

static double cubic(double a, double x) {
  x = fabs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

/* Number of neighbours of a position; the first lies n / 2 - 1 before the one that precedes the position. */
static int64_t count_neighbours(const resize *r, const axis_map *a) {
  double reach = r->mode == CUBIC ? 2 : 1;
  return 2 * (int64_t)ceil(reach / (r->antialias && a->scale < 1 ? a->scale : 1));
}

/* Weights of the n neighbours, where the position is `ratio` after neighbour n / 2 - 1. */
static void weigh_neighbours(const resize *r, const axis_map *a, double ratio, int64_t n, double *weights) {
  bool widened = r->antialias && a->scale < 1;
  double sum = 0;
  for (int64_t j = 0; j < n; j++) {
    double d = ((double)(j - n / 2 + 1) - ratio) * (widened ? a->scale : 1);
    weights[j] = r->mode == CUBIC ? cubic(r->cubic_a, d) : fmax(0, 1 - fabs(d));
    sum += weights[j];
  }
  for (int64_t j = 0; j < n && widened; j++) weights[j] /= sum;
}

static int64_t clamp(int64_t v, int64_t high) {
  return v < 0 ? 0 : v > high ? high : v;
}

/* Places and weights of element i's n neighbours. Those outside take the nearest inside, or are excluded. */
static void find_neighbours(const resize *r, const axis_map *a, int64_t i, int64_t n, int64_t *places,
                            double *weights) {
  double at = source_position(r, a, i), base = ceil(at) - 1, sum = 0; /* a whole position is 1 after its neighbour */
  int64_t first = (int64_t)base - n / 2 + 1;
  weigh_neighbours(r, a, at - base, n, weights);
  for (int64_t j = 0; j < n; j++) {
    places[j] = clamp(first + j, a->in - 1);
    if (r->exclude_outside && places[j] != first + j) weights[j] = 0;
    sum += weights[j];
  }
  for (int64_t j = 0; j < n && r->exclude_outside; j++) weights[j] /= sum;
}

static int64_t nearest_index(const resize *r, const axis_map *a, double at) {
  double low = floor(at), ratio = at - low;
  bool up = ratio > 0.5;
  if (r->rounding == ROUND_PREFER_CEIL) up = ratio >= 0.5;
  if (r->rounding == ROUND_FLOOR) up = false;
  if (r->rounding == ROUND_CEIL) up = ratio > 0;
  if (r->rounding == ROUND_BY_SCALE) up = ratio > 0 && a->scale < 1;
  return clamp((int64_t)low + up, a->in - 1);
}

/* ---- applying it ------------------------------------------------------------------------------------------------- */

static kva_value *constant(kva_onnx_call *k, kva_dtype t, uint32_t rank, const int64_t *dims, const void *data) {
  kva_arena *arena = k->b->m->arena;
  kva_tensor_data *d = KVA_NEW(arena, kva_tensor_data);
  int64_t n = 1;
  for (uint32_t i = 0; i < rank; i++) n *= dims[i];
  *d = (kva_tensor_data){.dtype = t, .rank = rank, .data = data};
  d->dims = kva_arena_memdup(arena, dims, rank * sizeof *dims);
  KVA_ASSERT(kva_dtype_bytes(t, n, &d->bytes));
  return kva_const_tensor(k->b, d);
}

static kva_value *apply_nearest(kva_onnx_call *k, const resize *r, const axis_map *a, kva_value *x, uint32_t axis) {
  int64_t *index = KVA_NEW_ARRAY(k->b->m->arena, int64_t, a->out + 1);
  for (int64_t i = 0; i < a->out; i++) index[i] = nearest_index(r, a, source_position(r, a, i));
  return kva_onnx_gather(k->b, x, constant(k, KVA_I64, 1, &a->out, index), axis);
}

/* [outer, in, inner] -> matrix[out, in] @ each [in, inner]. */
static kva_value *apply_matrix(kva_onnx_call *k, const resize *r, const axis_map *a, kva_value *x, uint32_t axis) {
  kva_builder *b = k->b;
  const kva_type *t = x->type;
  int64_t n = count_neighbours(r, a), *places = KVA_NEW_ARRAY(k->c->arena, int64_t, n);
  double *weights = KVA_NEW_ARRAY(k->c->arena, double, n);
  bool wide = t->dtype == KVA_F64;
  int64_t elements = a->out * a->in;
  double *matrix = KVA_NEW_ARRAY(wide ? b->m->arena : k->c->arena, double, elements + 1);
  float *narrow = wide ? NULL : KVA_NEW_ARRAY(b->m->arena, float, elements + 1);
  for (int64_t i = 0; i < a->out; i++) {
    find_neighbours(r, a, i, n, places, weights);
    for (int64_t j = 0; j < n; j++) matrix[i * a->in + places[j]] += weights[j];
  }
  for (int64_t i = 0; narrow && i < elements; i++) narrow[i] = (float)matrix[i];
  const void *data = wide ? (const void *)matrix : narrow;
  kva_value *m = constant(k, wide ? KVA_F64 : KVA_F32, 2, (int64_t[]){a->out, a->in}, data);
  m = kva_cast(b, m, t->dtype);
  kva_dim dims[3] = {kva_onnx_product(b, t->dims, 0, axis), t->dims[axis],
                     kva_onnx_product(b, t->dims, axis + 1, t->rank)};
  kva_dim shape[KVA_MAX_RANK];
  for (uint32_t i = 0; i < t->rank; i++) shape[i] = i == axis ? kva_expr_const(b->m->exprs, a->out) : t->dims[i];
  kva_value *y = axis + 1 == t->rank ? kva_matmul(b, kva_reshape(b, x, 2, dims), m, false, true)
                                     : kva_matmul(b, m, kva_reshape(b, x, 3, dims), false, false);
  return kva_reshape(b, y, t->rank, shape);
}

/* The sum over the neighbours of weight * x at their places. */
static kva_value *apply_gathers(kva_onnx_call *k, const resize *r, const axis_map *a, kva_value *x, uint32_t axis) {
  kva_builder *b = k->b;
  int64_t n = count_neighbours(r, a), *at[MAX_GATHERS], places[MAX_GATHERS], dims[KVA_MAX_RANK];
  double *weight[MAX_GATHERS], weights[MAX_GATHERS];
  kva_value *y = NULL;
  KVA_ASSERT(n <= MAX_GATHERS);
  for (int64_t j = 0; j < n; j++) {
    at[j] = KVA_NEW_ARRAY(b->m->arena, int64_t, a->out);
    weight[j] = KVA_NEW_ARRAY(b->m->arena, double, a->out);
  }
  for (int64_t i = 0; i < a->out; i++) {
    find_neighbours(r, a, i, n, places, weights);
    for (int64_t j = 0; j < n; j++) at[j][i] = places[j], weight[j][i] = weights[j];
  }
  for (uint32_t i = 0; i < x->type->rank; i++) dims[i] = i == axis ? a->out : 1;
  for (int64_t j = 0; j < n; j++) {
    kva_value *w = kva_cast(b, constant(k, KVA_F64, x->type->rank, dims, weight[j]), x->type->dtype);
    kva_value *v = kva_mul(b, kva_onnx_gather(b, x, constant(k, KVA_I64, 1, &a->out, at[j]), axis), w);
    y = y ? kva_add(b, y, v) : v;
  }
  return y;
}

/* Along memory, elements that are gathered one by one cost more than products with all of a short line. */
static kva_value *apply(kva_onnx_call *k, const resize *r, const axis_map *a, kva_value *x, uint32_t axis) {
  if (r->mode == NEAREST) return apply_nearest(k, r, a, x, axis);
  bool short_line = axis + 1 == x->type->rank && a->in <= SHORT_LINE;
  bool gathers = count_neighbours(r, a) <= MAX_GATHERS && !short_line;
  return gathers ? apply_gathers(k, r, a, x, axis) : apply_matrix(k, r, a, x, axis);
}

/* tf_crop_and_resize: positions outside the image take the extrapolation value. */
static kva_value *extrapolate(kva_onnx_call *k, const resize *r, const axis_map *a, kva_value *y, uint32_t axis) {
  int64_t dims[KVA_MAX_RANK];
  uint8_t *inside = KVA_NEW_ARRAY(k->b->m->arena, uint8_t, a->out + 1);
  uint32_t rank = y->type->rank;
  bool all = true;
  for (int64_t i = 0; i < a->out; i++) {
    double at = source_position(r, a, i);
    inside[i] = at >= 0 && at <= (double)(a->in - 1);
    all &= inside[i];
  }
  if (all || r->coordinates != CROP_AND_RESIZE) return y;
  for (uint32_t i = 0; i < rank; i++) dims[i] = i == axis ? a->out : 1;
  kva_value *mask = constant(k, KVA_BOOL, rank, dims, inside);
  return kva_onnx_where(k->b, mask, y, kva_scalar_like(k->b, y, r->extrapolation));
}

static bool fits(const axis_map *a) {
  return a->in >= 1 && a->out >= 1 && a->out <= MAX_MATRIX && a->in * a->out <= MAX_MATRIX;
}

static kva_value *resize_axis(kva_onnx_call *k, const resize *r, const axis_map *a, kva_value *y, uint32_t axis) {
  if (a->in == a->out && a->scale == 1 && r->coordinates != CROP_AND_RESIZE) return y;
  return extrapolate(k, r, a, apply(k, r, a, y, axis), axis);
}

static kva_status resize_axes(kva_onnx_call *k, const resize *r, const axis_map *maps, uint32_t n,
                              const uint32_t *axes) {
  kva_value *x = kva_onnx_in(k, 0), *y = r->mode == NEAREST ? x : kva_onnx_widen(k->b, x);
  for (uint32_t i = n; i-- > 0;) {
    const axis_map *a = &maps[i];
    if (!fits(a))
      return kva_onnx_fail(k, KVA_UNSUPPORTED, "from %lld to %lld elements", (long long)a->in, (long long)a->out);
    y = resize_axis(k, r, a, y, axes[i]);
    if (k->b->failed) return KVA_INVALID;
  }
  return kva_onnx_done(k, kva_cast(k->b, y, x->type->dtype));
}

/* Positions are in units of the axis; beyond this bound they are no places of an image, nor 64-bit integers. */
static kva_status read_roi(kva_onnx_call *k, const kva_ref_tensor *roi, uint32_t i, uint32_t n, axis_map *out) {
  const double most = 1e6;
  out->roi_start = kva_ref_tensor_get(roi, i);
  out->roi_end = kva_ref_tensor_get(roi, n + i);
  if (fabs(out->roi_start) <= most && fabs(out->roi_end) <= most) return KVA_OK;
  return kva_onnx_fail(k, KVA_INVALID, "input 1 (roi): from %g to %g on axis %u; expected fractions of the extent",
                       out->roi_start, out->roi_end, i);
}

/* ---- extents that are known at run time -------------------------------------------------------------------------- */

enum { MAX_DENOMINATOR = 4096 };

/* floor(in * scale) for a scale that is a fraction of small numbers. */
static kva_status scaled_extent(kva_onnx_call *k, kva_dim in, double scale, kva_dim *out) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  for (int64_t q = 1; q <= MAX_DENOMINATOR && scale > 0 && scale < MAX_MATRIX; q++) {
    double p = nearbyint(scale * (double)q);
    if ((float)(p / (double)q) != (float)scale) continue;
    *out = kva_expr_div(e, kva_expr_muli(e, in, (int64_t)p), kva_expr_const(e, q));
    return KVA_OK;
  }
  return kva_onnx_fail(k, KVA_UNSUPPORTED,
                       "scale %g of a symbolic extent is no fraction of small numbers; pin it (--pin)", scale);
}

/* Entry i of a vector, as a double scalar. */
static kva_value *entry_of(kva_onnx_call *k, kva_value *list, uint32_t i) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_value *v = kva_onnx_slice(k->b, list, 0, kva_expr_const(e, i), kva_expr_const(e, 1));
  return kva_cast(k->b, kva_reshape(k->b, v, 0, NULL), KVA_F64);
}

/* The factor of all axes that keeps the aspect of x within (not_larger) or around the sizes; NULL: each has its own. */
static kva_status common_scale(kva_onnx_call *k, const kva_dims *sizes, const uint32_t *axes, kva_value **out) {
  kva_builder *b = k->b;
  int policy = 0;
  KVA_TRY(choose(k, "keep_aspect_ratio_policy", "stretch", policies, &policy));
  *out = NULL;
  for (uint32_t i = 0; policy && sizes && i < sizes->n; i++) {
    kva_value *length = kva_dim_scalar(b, KVA_F64, kva_onnx_dim(kva_onnx_in(k, 0), axes[i]));
    kva_value *scale = kva_div(b, kva_dim_scalar(b, KVA_F64, sizes->v[i]), length);
    *out = *out ? kva_build2(b, policy == 1 ? KVA_OP_min : KVA_OP_max, *out, scale) : scale;
  }
  return KVA_OK;
}

/* floor(made), as a symbol that is bound at run time. */
static kva_status bound_extent(kva_onnx_call *k, kva_value *made, kva_dim *out) {
  made = kva_cast(k->b, kva_build1(k->b, KVA_OP_floor, made), KVA_I64);
  const kva_dims *bound = kva_onnx_bind_elements(k->c, made, "resized");
  if (bound) *out = bound->v[0];
  return bound ? KVA_OK : KVA_INVALID;
}

/* The new extent of entry i of the lists, and the factor. made: scales that are not known. */
static kva_status extent_by_data(kva_onnx_call *k, uint32_t i, kva_dim in, const kva_ref_tensor *scales,
                                 kva_value *made, const kva_dims *sizes, kva_dim *out, kva_value **scale) {
  kva_builder *b = k->b;
  kva_value *length = kva_dim_scalar(b, KVA_F64, in);
  if (sizes) {
    *out = sizes->v[i];
    *scale = kva_div(b, kva_dim_scalar(b, KVA_F64, *out), length);
    return KVA_OK;
  }
  if (scales) {
    *scale = kva_const_scalar(b, KVA_F64, kva_ref_tensor_get(scales, i));
    return scaled_extent(k, in, kva_ref_tensor_get(scales, i), out);
  }
  *scale = entry_of(k, made, i);
  return bound_extent(k, kva_onnx_rounded_to_float(b, kva_mul(b, length, *scale)), out);
}

/* The extent made by a factor that several axes have, rounded half up. */
static kva_status extent_by_common(kva_onnx_call *k, kva_dim in, kva_value *scale, kva_dim *out) {
  kva_value *made = kva_mul(k->b, kva_dim_scalar(k->b, KVA_F64, in), scale);
  return bound_extent(k, kva_add(k->b, made, kva_const_scalar(k->b, KVA_F64, 0.5)), out);
}

/* Whether entry i of the lists makes one number of another: *a then has both, as if all axes were known. */
static kva_status read_numbers(kva_onnx_call *k, uint32_t i, kva_dim in, const kva_ref_tensor *scales,
                               const kva_dims *sizes, axis_map *a, bool *out_known) {
  int64_t size = 0;
  *out_known = (sizes || scales) && kva_expr_is_const(in, &a->in) && a->in >= 1 &&
               (!sizes || (kva_expr_is_const(sizes->v[i], &size) && size >= 1));
  if (!*out_known) return KVA_OK;
  KVA_TRY(set_extent(k, sizes, sizes ? (double)size : kva_ref_tensor_get(scales, i), a));
  *out_known = fits(a);
  return KVA_OK;
}

/* Input `at`, scales that are not known: one for each of n axes. */
static kva_status read_made_scales(kva_onnx_call *k, uint32_t at, uint32_t n, kva_value **out) {
  kva_value *made = kva_onnx_in(k, at);
  if (made && made->type->rank == 1)
    made = kva_onnx_with_extent(k, made, 0, kva_expr_const(kva_onnx_exprs(k), n), "the scales of Resize");
  if (!made || made->type->rank != 1 || !kva_expr_is(kva_onnx_dim(made, 0), n))
    return kva_onnx_fail(k, KVA_INVALID, "expected scales or sizes for %u axes", n);
  return *out = made, KVA_OK;
}

/* Some extent or factor is not a number here. at: the input of the scales. */
static kva_status resize_by_data(kva_onnx_call *k, const resize *of_all, const kva_ref_tensor *roi,
                                 const kva_ref_tensor *scales, uint32_t at, uint32_t n, const uint32_t *axes) {
  kva_value *x = kva_onnx_in(k, 0), *y = of_all->mode == NEAREST ? x : kva_onnx_widen(k->b, x), *scale = NULL, *common;
  kva_value *made = NULL;
  kva_dims list, *sizes = NULL;
  bool crops = of_all->coordinates == CROP_AND_RESIZE;
  if (crops && !roi) return kva_onnx_fail(k, KVA_UNSUPPORTED, "tf_crop_and_resize needs a roi that is known");
  if (k->version >= 11 && kva_onnx_in(k, 3)) {
    KVA_TRY(kva_onnx_need_dims(k, 3, "sizes", &list));
    if (list.n != n) return kva_onnx_fail(k, KVA_INVALID, "input 3 (sizes): %u entries for %u axes", list.n, n);
    sizes = &list;
  } else if (!scales) {
    KVA_TRY(read_made_scales(k, at, n, &made));
  }
  KVA_TRY(common_scale(k, sizes, axes, &common));
  for (uint32_t i = n; i-- > 0;) {
    axis_map part = {.roi_end = 1};
    bool known = false;
    kva_dim in = kva_onnx_dim(y, axes[i]), out = NULL;
    if (crops) KVA_TRY(read_roi(k, roi, i, n, &part));
    bool whole = part.roi_start == 0 && part.roi_end == 1 && !common;
    if (whole && scales && !sizes && kva_ref_tensor_get(scales, i) == 1) continue;
    if (whole && sizes && sizes->v[i] == in) continue;
    if (!common) KVA_TRY(read_numbers(k, i, in, scales, sizes, &part, &known));
    if (known) {
      y = resize_axis(k, of_all, &part, y, axes[i]);
      continue;
    }
    scale = common;
    KVA_TRY(common ? extent_by_common(k, in, common, &out)
                   : extent_by_data(k, i, in, scales, made, sizes, &out, &scale));
    resize r = *of_all;
    r.roi_start = part.roi_start, r.roi_end = part.roi_end;
    KVA_TRY(kva_onnx_resize_by_data(k, &r, axes[i], out, scale, &y));
  }
  return kva_onnx_done(k, kva_cast(k->b, y, x->type->dtype));
}

static bool is_known(const kva_onnx_call *k, uint32_t n, const uint32_t *axes) {
  for (uint32_t i = 0; i < n; i++)
    if (!kva_expr_is_const(kva_onnx_dim(kva_onnx_in(k, 0), axes[i]), NULL)) return false;
  return true;
}

static kva_status resize_with(kva_onnx_call *k, const kva_ref_tensor *roi, const kva_ref_tensor *scales,
                              const kva_ref_tensor *sizes, uint32_t n, const uint32_t *axes) {
  resize r;
  axis_map maps[KVA_MAX_RANK] = {{0}};
  KVA_TRY(read_attrs(k, &r));
  if (!is_known(k, n, axes) || (!scales && !sizes))
    return resize_by_data(k, &r, roi, scales, k->version < 11 ? 1 : 2, n, axes);
  if (r.coordinates == CROP_AND_RESIZE && !roi) return kva_onnx_fail(k, KVA_INVALID, "tf_crop_and_resize needs roi");
  for (uint32_t i = 0; i < n; i++) {
    (void)kva_expr_is_const(kva_onnx_dim(kva_onnx_in(k, 0), axes[i]), &maps[i].in);
    if (roi) KVA_TRY(read_roi(k, roi, i, n, &maps[i]));
  }
  KVA_TRY(set_extents(k, scales, sizes, n, maps));
  return resize_axes(k, &r, maps, n, axes);
}

kva_status kva_onnx_resize(kva_onnx_call *k) {
  kva_ints list = kva_onnx_ints(k, "axes");
  uint32_t rank = kva_onnx_in(k, 0)->type->rank, n = list.n ? list.n : rank, axes[KVA_MAX_RANK];
  const kva_ref_tensor *roi = NULL, *scales = NULL, *sizes = NULL;
  if (n > rank) return kva_onnx_fail(k, KVA_INVALID, "%u axes for rank %u", n, rank);
  for (uint32_t i = 0; i < n; i++) KVA_TRY(kva_onnx_axis(k, list.n ? list.v[i] : i, rank, &axes[i]));
  if (k->version < 11) {
    KVA_TRY(constant_list(k, 1, n, &scales));
    return resize_with(k, NULL, scales, NULL, n, axes);
  }
  KVA_TRY(constant_list(k, 1, 2 * n, &roi));
  KVA_TRY(constant_list(k, 2, n, &scales));
  KVA_TRY(constant_list(k, 3, n, &sizes));
  return resize_with(k, roi, scales, sizes, n, axes);
}

/* Upsample-7 has scales as an attribute, 9 as an input. */
kva_status kva_onnx_upsample(kva_onnx_call *k) {
  const kva_onnx_attr *given = kva_onnx_find_attr(k, "scales");
  uint32_t rank = kva_onnx_in(k, 0)->type->rank, axes[KVA_MAX_RANK];
  kva_ref_tensor list = {.dtype = KVA_F32, .rank = 1};
  const kva_ref_tensor *scales = NULL;
  for (uint32_t i = 0; i < rank; i++) axes[i] = i;
  if (!given) {
    KVA_TRY(constant_list(k, 1, rank, &scales));
  } else if (given->kind == KVA_ONNX_FLOATS && given->n == rank) {
    list.n = list.dims[0] = rank;
    list.f = kva_arena_memdup(k->c->arena, given->floats, rank * sizeof *given->floats);
    scales = &list;
  }
  return resize_with(k, NULL, scales, NULL, rank, axes);
}
