/* Rules: window functions and mel weights, which are constants since what decides them is known, and the discrete
 * Fourier transforms as products with matrices, which are constants where the length is. All are computed in double. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

#include <math.h>

enum { MAX_WINDOW = 1 << 24 };

static const double turn = 2 * 3.14159265358979323846;

/* a0 - a1 cos(2 pi n / N) + a2 cos(4 pi n / N); kind: the rows' number in onnx_ops.def, Hann, Hamming, Blackman. */
static double window_at(int64_t kind, double x) {
  static const double a[3][3] = {{0.5, 0.5, 0}, {25.0 / 46, 1 - 25.0 / 46, 0}, {0.42, 0.5, 0.08}};
  return a[kind][0] - a[kind][1] * cos(turn * x) + a[kind][2] * cos(2 * turn * x);
}

kva_status kva_onnx_signal_window(kva_onnx_call *k) {
  int64_t t = kva_onnx_int(k, "output_datatype", KVA_F32);
  bool periodic = kva_onnx_int(k, "periodic", 1) != 0;
  kva_ints size;
  KVA_TRY(kva_onnx_need_ints(k, 0, "size", &size));
  if (size.n != 1 || size.v[0] < 1 || size.v[0] > MAX_WINDOW || t <= 0 || t >= KVA_DTYPE_COUNT)
    return kva_onnx_fail(k, KVA_INVALID, "expected one size from 1 to %d and a data type", MAX_WINDOW);
  int64_t n = size.v[0];
  kva_tensor_data *data = KVA_NEW(k->b->m->arena, kva_tensor_data);
  double *v = KVA_NEW_ARRAY(k->b->m->arena, double, n);
  for (int64_t i = 0; i < n; i++) v[i] = window_at(k->arg, (double)i / (double)(periodic || n == 1 ? n : n - 1));
  *data = (kva_tensor_data){.dtype = KVA_F64, .rank = 1, .data = v, .bytes = n * 8};
  data->dims = kva_arena_memdup(k->b->m->arena, &n, sizeof n);
  return kva_onnx_done(k, kva_cast(k->b, kva_const_tensor(k->b, data), (kva_dtype)t));
}

/* ---- Fourier transform ------------------------------------------------------------------------------------------- */

enum { MAX_TRANSFORM = 2048 };

typedef struct transform {
  kva_dim length, outputs; /* extents of the transformed axis */
  kva_dim columns;         /* elements of the operand that are read */
  bool inverse, onesided, complex_in;
  uint32_t axis;
} transform;

/* Matrix [outputs, columns] of cos or sin (2 pi k n / length), with the inverse's sign and factor. A onesided inverse
 * reads half a spectrum; the other half is its mirror image, so inner entries count twice. */
static kva_value *known_matrix(kva_onnx_call *k, const transform *f, kva_dtype t, bool sine, int64_t length,
                               const int64_t dims[2]) {
  kva_tensor_data *data = KVA_NEW(k->b->m->arena, kva_tensor_data);
  double *v = KVA_NEW_ARRAY(k->b->m->arena, double, dims[0] * dims[1] + 1);
  for (int64_t i = 0; i < dims[0] * dims[1]; i++) {
    int64_t row = i / dims[1], col = i % dims[1];
    double angle = turn * (double)(row * col % length) / (double)length;
    v[i] = sine ? (f->inverse ? -sin(angle) : sin(angle)) : cos(angle);
    if (f->inverse) v[i] /= (double)length;
    if (f->inverse && f->onesided && col && 2 * col != length) v[i] *= 2;
  }
  *data = (kva_tensor_data){.dtype = KVA_F64, .rank = 2, .data = v, .bytes = dims[0] * dims[1] * 8};
  data->dims = kva_arena_memdup(k->b->m->arena, dims, 2 * sizeof *dims);
  return kva_cast(k->b, kva_const_tensor(k->b, data), t);
}

/* The same for a length that is known at run time only. */
static kva_value *computed_matrix(kva_onnx_call *k, const transform *f, kva_dtype t, bool sine) {
  kva_builder *b = k->b;
  kva_value *row = kva_onnx_ramp(b, KVA_I64, 2, 0, f->outputs), *col = kva_onnx_ramp(b, KVA_I64, 2, 1, f->columns);
  kva_value *length = kva_dim_scalar(b, KVA_I64, f->length), *whole = kva_cast(b, length, KVA_F64);
  kva_value *part = kva_cast(b, kva_build2(b, KVA_OP_mod, kva_mul(b, row, col), length), KVA_F64);
  kva_value *angle = kva_div(b, kva_mul(b, part, kva_const_scalar(b, KVA_F64, turn)), whole);
  kva_value *v = kva_build1(b, sine ? KVA_OP_sin : KVA_OP_cos, angle);
  if (!f->inverse) return kva_cast(b, v, t);
  v = kva_div(b, sine ? kva_neg(b, v) : v, whole);
  if (!f->onesided) return kva_cast(b, v, t);
  kva_value *twice = kva_mul(b, col, kva_const_scalar(b, KVA_I64, 2));
  kva_value *first = kva_build2(b, KVA_OP_equal, col, kva_const_scalar(b, KVA_I64, 0));
  kva_value *single = kva_build2(b, KVA_OP_logical_or, first, kva_build2(b, KVA_OP_equal, twice, length));
  v = kva_onnx_where(b, single, v, kva_mul(b, v, kva_const_scalar(b, KVA_F64, 2)));
  return kva_cast(b, v, t);
}

static kva_value *fourier_matrix(kva_onnx_call *k, const transform *f, kva_dtype t, bool sine) {
  int64_t length, dims[2];
  bool known = kva_expr_is_const(f->length, &length) && kva_expr_is_const(f->outputs, &dims[0]) &&
               kva_expr_is_const(f->columns, &dims[1]);
  return known ? known_matrix(k, f, t, sine, length, dims) : computed_matrix(k, f, t, sine);
}

/* The last axis of *x: 1 (real) or 2 (complex); where that is a symbol, *x gets imaginary parts that may be 0. */
static kva_status read_parts(kva_onnx_call *k, transform *f, kva_value **x) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  int64_t parts = 2;
  uint32_t rank = (*x)->type->rank;
  if (rank < 2) return kva_onnx_fail(k, KVA_INVALID, "expected rank 2 or more, found %u", rank);
  bool known = kva_expr_is_const(kva_onnx_dim(*x, rank - 1), &parts);
  if ((known && (parts < 1 || parts > 2)) || (!known && !k->b->assumes))
    return kva_onnx_fail(k, KVA_INVALID, "the last dimension must be 1 (real) or 2 (complex)");
  f->complex_in = parts == 2;
  if (known) return KVA_OK;
  kva_dim one = kva_expr_const(e, 1), two = kva_expr_const(e, 2), zero = kva_expr_const(e, 0);
  kva_dim before[KVA_MAX_RANK], after[KVA_MAX_RANK];
  for (uint32_t i = 0; i < rank; i++) before[i] = after[i] = zero;
  kva_dim found = kva_expr_max(e, kva_expr_min(e, kva_onnx_dim(*x, rank - 1), two), one);
  *x = kva_onnx_with_extent(k, *x, rank - 1, found, "the parts of a transform's operand");
  after[rank - 1] = kva_expr_sub(e, two, found);
  *x = kva_build(k->b, KVA_OP_pad, 1, x, &(kva_pad_attrs){.before = {rank, before}, .after = {rank, after}});
  return k->b->failed ? KVA_INVALID : KVA_OK;
}

static kva_status check_length(kva_onnx_call *k, transform *f) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  int64_t length;
  if (kva_expr_is_const(f->length, &length) && (length < 1 || length > MAX_TRANSFORM))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "a transform of length %lld; expected 1 to %d", (long long)length,
                         MAX_TRANSFORM);
  kva_dim half = kva_expr_addi(e, kva_expr_div(e, f->length, kva_expr_const(e, 2)), 1);
  f->outputs = f->onesided && !f->inverse ? half : f->length;
  f->columns = f->onesided && f->inverse ? half : f->length;
  return KVA_OK;
}

static kva_status read_transform(kva_onnx_call *k, transform *f, kva_value **x) {
  kva_expr_ctx *e = kva_onnx_exprs(k);
  uint32_t rank = (*x)->type->rank;
  kva_ints axis = {0, NULL};
  kva_dims length = {0, NULL};
  KVA_TRY(read_parts(k, f, x));
  if (kva_onnx_in(k, 1)) KVA_TRY(kva_onnx_need_dims(k, 1, "dft_length", &length));
  if (kva_onnx_in(k, 2)) KVA_TRY(kva_onnx_need_ints(k, 2, "axis", &axis));
  int64_t wanted = k->version < 20 ? kva_onnx_int(k, "axis", 1) : axis.n == 1 ? axis.v[0] : -2;
  KVA_TRY(kva_onnx_axis(k, wanted, rank, &f->axis));
  if (f->axis == rank - 1) return kva_onnx_fail(k, KVA_INVALID, "the last axis cannot be transformed");
  f->inverse = kva_onnx_int(k, "inverse", 0) != 0;
  f->onesided = kva_onnx_int(k, "onesided", 0) != 0;
  kva_dim extent = kva_onnx_dim(*x, f->axis);
  f->length = f->inverse && f->onesided ? kva_expr_muli(e, kva_expr_addi(e, extent, -1), 2) : extent;
  if (length.n == 1) f->length = length.v[0];
  return check_length(k, f);
}

/* Part `i` (real, imaginary) of x as [outer, columns, inner], cropped or zero-padded to the columns. */
static kva_value *component(kva_builder *b, kva_value *x, const transform *f, int64_t i) {
  kva_expr_ctx *e = b->m->exprs;
  uint32_t rank = x->type->rank;
  kva_dim dims[3] = {kva_onnx_product(b, x->type->dims, 0, f->axis), kva_onnx_dim(x, f->axis),
                     kva_onnx_product(b, x->type->dims, f->axis + 1, rank - 1)};
  kva_dim none = kva_expr_const(e, 0), before[3] = {none, none, none};
  kva_dim after[3] = {none, kva_expr_sub(e, f->columns, dims[1]), none};
  x = kva_reshape(b, kva_onnx_slice(b, x, rank - 1, kva_expr_const(e, i), kva_expr_const(e, 1)), 3, dims);
  if (f->columns == dims[1]) return x;
  return kva_build(b, KVA_OP_pad, 1, &x, &(kva_pad_attrs){.before = {3, before}, .after = {3, after}});
}

/* w[outputs, columns] times x[outer, columns, inner]. Along the last axis all of x are rows of one product; a product
 * of one column for each would do a sixteenth of a vector's work. */
static kva_value *transformed(kva_builder *b, kva_value *w, kva_value *x) {
  if (!kva_expr_is(kva_onnx_dim(x, 2), 1)) return kva_matmul(b, w, x, false, false);
  kva_value *rows = kva_reshape(b, x, 2, (const kva_dim[]){kva_onnx_dim(x, 0), kva_onnx_dim(x, 1)});
  return kva_onnx_unsqueeze(b, kva_matmul(b, rows, w, false, true), 2, 1);
}

static kva_value *fourier(kva_onnx_call *k, kva_value *x, const transform *f) {
  kva_builder *b = k->b;
  bool real_out = f->inverse && f->onesided;
  kva_dtype t = x->type->dtype;
  kva_value *c = fourier_matrix(k, f, t, false), *s = fourier_matrix(k, f, t, true);
  kva_value *re = component(b, x, f, 0), *im = f->complex_in ? component(b, x, f, 1) : NULL;
  kva_value *real = transformed(b, c, re), *imaginary = kva_neg(b, transformed(b, s, re));
  if (im) real = kva_add(b, real, transformed(b, s, im));
  if (im) imaginary = kva_add(b, imaginary, transformed(b, c, im));
  kva_value *y = kva_onnx_unsqueeze(b, real, 3, 1);
  if (!real_out) y = kva_onnx_concat(b, y, kva_onnx_unsqueeze(b, imaginary, 3, 1), 3);
  kva_dim out[KVA_MAX_RANK];
  uint32_t rank = x->type->rank;
  for (uint32_t i = 0; i < rank; i++) out[i] = kva_onnx_dim(x, i);
  out[f->axis] = f->outputs;
  out[rank - 1] = kva_expr_const(kva_onnx_exprs(k), real_out ? 1 : 2);
  return kva_reshape(b, y, rank, out);
}

kva_status kva_onnx_dft(kva_onnx_call *k) {
  transform f = {0};
  kva_value *x = kva_onnx_in(k, 0);
  KVA_TRY(read_transform(k, &f, &x));
  return kva_onnx_done(k, fourier(k, x, &f));
}

/* ---- short-time transform ---------------------------------------------------------------------------------------- */

/* A frame is as long as attribute frame_length says, else as the window. */
static kva_status read_frames(kva_onnx_call *k, transform *f, kva_value **x, kva_value **window, int64_t *step) {
  kva_ints steps = {0, NULL};
  kva_dims length = {0, NULL};
  KVA_TRY(read_parts(k, f, x));
  if ((*x)->type->rank != 3)
    return kva_onnx_fail(k, KVA_INVALID, "expected a signal of rank 3 [batch, length, 1 or 2]");
  KVA_TRY(kva_onnx_need_ints(k, 1, "frame_step", &steps));
  if (kva_onnx_in(k, 3)) KVA_TRY(kva_onnx_need_dims(k, 3, "frame_length", &length));
  if (length.n != 1 && !*window) return kva_onnx_fail(k, KVA_INVALID, "expected a window or a frame_length");
  if (*window && (*window)->type->rank != 1) return kva_onnx_fail(k, KVA_INVALID, "the window must be a vector");
  if (*window && length.n == 1) *window = kva_onnx_with_extent(k, *window, 0, length.v[0], "the window of STFT");
  f->length = length.n == 1 ? length.v[0] : kva_onnx_dim(*window, 0);
  if (*window && kva_onnx_dim(*window, 0) != f->length)
    return kva_onnx_fail(k, KVA_INVALID, "the window and frame_length differ");
  *step = steps.n == 1 ? steps.v[0] : 0;
  if (*step < 1) return kva_onnx_fail(k, KVA_INVALID, "frame_step must be positive");
  f->onesided = kva_onnx_int(k, "onesided", 1) != 0;
  f->axis = 2;
  return check_length(k, f);
}

/* Frame i begins at element i * step; each is weighted and transformed. */
kva_status kva_onnx_stft(kva_onnx_call *k) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  transform f = {0};
  int64_t step = 0;
  kva_value *x = kva_onnx_in(k, 0), *window = kva_onnx_in(k, 2);
  KVA_TRY(read_frames(k, &f, &x, &window, &step));
  kva_dim length = f.length, zero = kva_expr_const(e, 0);
  kva_dim starts = kva_expr_div(e, kva_expr_sub(e, kva_onnx_dim(x, 1), length), kva_expr_const(e, step));
  kva_dim frames = kva_expr_max(e, kva_expr_addi(e, starts, 1), zero);
  kva_value *first = kva_mul(b, kva_onnx_ramp(b, KVA_I64, 2, 0, frames), kva_const_scalar(b, KVA_I64, (double)step));
  kva_value *frame = kva_onnx_gather(b, x, kva_add(b, first, kva_onnx_ramp(b, KVA_I64, 2, 1, length)), 1);
  if (window) frame = kva_mul(b, frame, kva_onnx_unsqueeze(b, window, 1, 1));
  if (b->failed) return KVA_INVALID;
  return kva_onnx_done(k, fourier(k, frame, &f));
}

/* ---- mel weights ------------------------------------------------------------------------------------------------- */

static kva_status need_number(kva_onnx_call *k, uint32_t i, const char *what, double *out) {
  const kva_ref_tensor *w = kva_onnx_constant(k->c, kva_onnx_in(k, i));
  if (!w || w->n != 1) return kva_onnx_fail(k, KVA_UNSUPPORTED, "input %u (%s) must be a constant number", i, what);
  *out = kva_ref_tensor_get(w, 0);
  return KVA_OK;
}

/* Bands between points that are equally far from each other in mel: band i rises from point i to i + 1 and falls to
 * i + 2. */
static void fill_bands(double *out, int64_t rows, int64_t bands, const int64_t *point) {
  for (int64_t i = 0; i < bands; i++) {
    int64_t low = point[i], centre = point[i + 1], high = point[i + 2];
    if (low == centre) out[centre * bands + i] = 1;
    for (int64_t j = low; j <= centre && j < rows && low < centre; j++)
      out[j * bands + i] = (double)(j - low) / (double)(centre - low);
    for (int64_t j = centre; j < high && j < rows; j++)
      out[j * bands + i] = (double)(high - j) / (double)(high - centre);
  }
}

kva_status kva_onnx_mel_weights(kva_onnx_call *k) {
  static const char *const names[] = {"num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz",
                                      "upper_edge_hertz"};
  double v[5];
  int64_t t = kva_onnx_int(k, "output_datatype", KVA_F32);
  for (uint32_t i = 0; i < 5; i++) KVA_TRY(need_number(k, i, names[i], &v[i]));
  if (!(v[0] >= 1 && v[0] <= 4096 && v[1] >= 1 && v[1] <= 1 << 20 && v[2] > 0 && v[3] >= 0 && v[3] <= v[4]))
    return kva_onnx_fail(k, KVA_INVALID, "%g bands of a transform of %g points, from %g to %g Hz at %g Hz", v[0], v[1],
                         v[3], v[4], v[2]);
  if (t <= 0 || t >= KVA_DTYPE_COUNT) return kva_onnx_fail(k, KVA_INVALID, "output_datatype is no data type");
  int64_t bands = (int64_t)v[0], rows = (int64_t)v[1] / 2 + 1, dims[2] = {rows, bands};
  double low = 2595 * log10(1 + v[3] / 700), step = (2595 * log10(1 + v[4] / 700) - low) / (double)(bands + 2);
  int64_t *point = KVA_NEW_ARRAY(k->c->arena, int64_t, bands + 2);
  for (int64_t i = 0; i < bands + 2; i++) {
    double hertz = 700 * (pow(10, (low + (double)i * step) / 2595) - 1);
    point[i] = (int64_t)floor((v[1] + 1) * hertz / v[2]);
    if (point[i] >= rows) return kva_onnx_fail(k, KVA_INVALID, "%g Hz is above half of the sample rate", hertz);
  }
  kva_tensor_data *data = KVA_NEW(k->b->m->arena, kva_tensor_data);
  double *weights = KVA_NEW_ARRAY(k->b->m->arena, double, rows *bands);
  fill_bands(weights, rows, bands, point);
  *data = (kva_tensor_data){.dtype = KVA_F64, .rank = 2, .data = weights, .bytes = rows * bands * 8};
  data->dims = kva_arena_memdup(k->b->m->arena, dims, sizeof dims);
  return kva_onnx_done(k, kva_cast(k->b, kva_const_tensor(k->b, data), (kva_dtype)t));
}
