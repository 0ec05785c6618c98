/* Resizing an axis whose extents or factor are known at run time only: positions and weights are computed by the graph,
 * in double, as onnx_ops_resize.c computes them here. */
#include "frontend/onnx_resize.h"
#include "ops/ids.h"

typedef struct axis {
  kva_builder *b;
  const kva_onnx_resizing *r;
  kva_value *scale, *in, *out; /* double scalars */
} axis;

static kva_value *num(const axis *a, double v) {
  return kva_const_scalar(a->b, KVA_F64, v);
}
static kva_value *plus(const axis *a, kva_value *x, double v) {
  return kva_add(a->b, x, num(a, v));
}

kva_value *kva_onnx_rounded_to_float(kva_builder *b, kva_value *x) {
  return kva_cast(b, kva_cast(b, x, KVA_F32), KVA_F64);
}

static kva_value *quotient(const axis *a, kva_value *x) {
  kva_value *y = kva_div(a->b, x, a->scale);
  return a->r->mode == NEAREST ? kva_onnx_rounded_to_float(a->b, y) : y;
}

/* Positions in the operand of the elements x = 0, 1, ... of the result. */
static kva_value *positions(const axis *a, kva_value *x) {
  kva_builder *b = a->b;
  kva_value *half = plus(a, quotient(a, plus(a, x, 0.5)), -0.5);
  kva_value *length = kva_mul(b, a->scale, a->in), *single = kva_build2(b, KVA_OP_equal, a->out, num(a, 1));
  switch (a->r->coordinates) {
  case HALF_PIXEL_SYMMETRIC: {
    kva_value *missing = kva_sub(b, num(a, 1), kva_div(b, a->out, length));
    return kva_add(b, kva_mul(b, kva_mul(b, a->in, num(a, 0.5)), missing), half);
  }
  case PYTORCH_HALF_PIXEL: return kva_onnx_where(b, single, num(a, 0), half);
  case ALIGN_CORNERS: {
    kva_value *step = kva_div(b, plus(a, a->in, -1), plus(a, length, -1));
    return kva_onnx_where(b, single, num(a, 0), kva_mul(b, x, step));
  }
  case ASYMMETRIC: return quotient(a, x);
  case HALF_PIXEL_FOR_NEAREST: return quotient(a, plus(a, x, 0.5));
  case CROP_AND_RESIZE: {
    kva_value *last = plus(a, a->in, -1), *width = kva_mul(b, last, num(a, a->r->roi_end - a->r->roi_start));
    kva_value *many = kva_div(b, kva_mul(b, x, width), plus(a, length, -1));
    kva_value *at = kva_onnx_where(b, single, kva_mul(b, width, num(a, 0.5)), many);
    return kva_add(b, at, kva_mul(b, last, num(a, a->r->roi_start)));
  }
  default: return half;
  }
}

/* Whole numbers as places in the operand; those outside take the nearest inside. */
static kva_value *places(const axis *a, kva_value *x) {
  x = kva_build2(a->b, KVA_OP_min, x, plus(a, a->in, -1));
  return kva_cast(a->b, kva_build2(a->b, KVA_OP_max, x, num(a, 0)), KVA_I64);
}

static kva_value *nearest(const axis *a, kva_value *at) {
  kva_builder *b = a->b;
  kva_value *low = kva_build1(b, KVA_OP_floor, at), *ratio = kva_sub(b, at, low), *half = num(a, 0.5);
  switch (a->r->rounding) {
  case ROUND_FLOOR: return places(a, low);
  case ROUND_CEIL: return places(a, kva_build1(b, KVA_OP_ceil, at));
  case ROUND_BY_SCALE: {
    kva_value *shrinks = kva_build2(b, KVA_OP_less, a->scale, num(a, 1));
    return places(a, kva_onnx_where(b, shrinks, kva_build1(b, KVA_OP_ceil, at), low));
  }
  case ROUND_PREFER_CEIL: ratio = kva_build2(b, KVA_OP_less_equal, half, ratio); break;
  case ROUND_PREFER_FLOOR: ratio = kva_build2(b, KVA_OP_less, half, ratio); break;
  }
  return places(a, kva_add(b, low, kva_cast(b, ratio, KVA_F64)));
}

/* Keys' kernel, for distances up to 1 and up to 2. */
static kva_value *cubic(const axis *a, kva_value *d) {
  kva_builder *b = a->b;
  double c = a->r->cubic_a;
  kva_value *near = plus(a, kva_mul(b, d, num(a, c + 2)), -(c + 3));
  near = plus(a, kva_mul(b, kva_mul(b, near, d), d), 1);
  kva_value *far = plus(a, kva_mul(b, d, num(a, c)), -5 * c);
  far = plus(a, kva_mul(b, plus(a, kva_mul(b, far, d), 8 * c), d), -4 * c);
  return kva_onnx_where(b, kva_build2(b, KVA_OP_less_equal, d, num(a, 1)), near, far);
}

enum { MAX_TAPS = 4 };
typedef struct taps {
  int n;
  kva_value *at[MAX_TAPS], *weight[MAX_TAPS];
} taps;

static taps taps_of(const axis *a, kva_value *at) {
  kva_builder *b = a->b;
  taps t = {.n = a->r->mode == CUBIC ? 4 : 2};
  kva_value *base = plus(a, kva_build1(b, KVA_OP_ceil, at), -1), *ratio = kva_sub(b, at, base), *sum = NULL;
  for (int j = 0; j < t.n; j++) {
    int offset = j - t.n / 2 + 1;
    kva_value *place = plus(a, base, offset), *d = kva_build1(b, KVA_OP_abs, plus(a, ratio, -offset));
    t.weight[j] = a->r->mode == CUBIC ? cubic(a, d) : kva_sub(b, num(a, 1), d);
    t.at[j] = places(a, place);
    kva_value *inside = kva_build2(b, KVA_OP_equal, kva_cast(b, t.at[j], KVA_F64), place);
    if (a->r->exclude_outside) t.weight[j] = kva_onnx_where(b, inside, t.weight[j], num(a, 0));
    sum = sum ? kva_add(b, sum, t.weight[j]) : t.weight[j];
  }
  for (int j = 0; j < t.n && a->r->exclude_outside; j++) t.weight[j] = kva_div(b, t.weight[j], sum);
  return t;
}

/* tf_crop_and_resize: positions outside the image take the extrapolation value. */
static kva_value *extrapolate(const axis *a, kva_value *y, kva_value *position, uint32_t at) {
  kva_builder *b = a->b;
  if (a->r->coordinates != CROP_AND_RESIZE || b->failed) return y;
  kva_value *inside = kva_build2(b, KVA_OP_less_equal, num(a, 0), position);
  inside = kva_build2(b, KVA_OP_logical_and, inside, kva_build2(b, KVA_OP_less_equal, position, plus(a, a->in, -1)));
  inside = kva_onnx_unsqueeze(b, inside, 1, y->type->rank - 1 - at);
  return kva_onnx_where(b, inside, y, kva_scalar_like(b, y, a->r->extrapolation));
}

kva_status kva_onnx_resize_by_data(kva_onnx_call *k, const kva_onnx_resizing *r, uint32_t at, kva_dim out,
                                   kva_value *scale, kva_value **x) {
  kva_builder *b = k->b;
  kva_value *y = NULL;
  uint32_t rank = (*x)->type->rank;
  if (r->antialias)
    return kva_onnx_fail(k, KVA_UNSUPPORTED,
                         "axis %u has a symbolic extent, which antialias cannot have; pin it (--pin)", at);
  axis a = {b, r, scale, kva_dim_scalar(b, KVA_F64, kva_onnx_dim(*x, at)), kva_dim_scalar(b, KVA_F64, out)};
  kva_value *position = positions(&a, kva_onnx_iota(b, KVA_F64, 1, &out, 0));
  if (r->mode == NEAREST) {
    *x = extrapolate(&a, kva_onnx_gather(b, *x, nearest(&a, position), at), position, at);
    return b->failed ? KVA_INVALID : KVA_OK;
  }
  taps t = taps_of(&a, position);
  for (int j = 0; j < t.n; j++) {
    kva_value *weight = kva_onnx_unsqueeze(b, kva_cast(b, t.weight[j], (*x)->type->dtype), 1, rank - 1 - at);
    kva_value *v = kva_mul(b, kva_onnx_gather(b, *x, t.at[j], at), weight);
    y = y ? kva_add(b, y, v) : v;
  }
  *x = extrapolate(&a, y, position, at);
  return b->failed ? KVA_INVALID : KVA_OK;
}
