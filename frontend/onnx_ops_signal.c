/* Rules: window functions, which are constants since their size is known, and the discrete Fourier transform as a
 * product with constant matrices. Both are computed in double here. */
#include "frontend/onnx_rules.h"
#include "ops/ids.h"

#include <math.h>

enum { HANN, HAMMING, BLACKMAN, MAX_WINDOW = 1 << 24 };

/* a0 - a1 cos(2 pi n / N) + a2 cos(4 pi n / N) */
static double window_at(int64_t kind, double x) {
  static const double a[3][3] = {{0.5, 0.5, 0}, {25.0 / 46, 1 - 25.0 / 46, 0}, {0.42, 0.5, 0.08}};
  const double turn = 2 * 3.14159265358979323846;
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
  int64_t length, outputs; /* extents of the transformed axis */
  bool inverse, onesided, complex_in;
  uint32_t axis;
} transform;

/* Matrix [outputs, length] of cos or sin (2 pi k n / length), with the inverse's sign and factor. A onesided inverse
 * reads half a spectrum; the other half is its mirror image, so inner entries count twice. */
static kva_value *fourier_matrix(kva_onnx_call *k, const transform *f, kva_dtype t, bool sine, int64_t columns) {
  kva_tensor_data *data = KVA_NEW(k->b->m->arena, kva_tensor_data);
  int64_t dims[2] = {f->outputs, columns};
  double *v = KVA_NEW_ARRAY(k->b->m->arena, double, f->outputs *columns + 1);
  const double turn = 2 * 3.14159265358979323846;
  for (int64_t i = 0; i < f->outputs * columns; i++) {
    int64_t row = i / columns, col = i % columns;
    double angle = turn * (double)(row * col % f->length) / (double)f->length;
    v[i] = sine ? (f->inverse ? -sin(angle) : sin(angle)) : cos(angle);
    if (f->inverse) v[i] /= (double)f->length;
    if (f->inverse && f->onesided && col && 2 * col != f->length) v[i] *= 2;
  }
  *data = (kva_tensor_data){.dtype = KVA_F64, .rank = 2, .data = v, .bytes = f->outputs * columns * 8};
  data->dims = kva_arena_memdup(k->b->m->arena, dims, sizeof dims);
  return kva_cast(k->b, kva_const_tensor(k->b, data), t);
}

static kva_status read_transform(kva_onnx_call *k, transform *f, int64_t *extent) {
  kva_value *x = kva_onnx_in(k, 0);
  uint32_t rank = x->type->rank;
  kva_ints axis = {0, NULL}, length = {0, NULL};
  int64_t parts;
  if (rank < 2 || !kva_expr_is_const(kva_onnx_dim(x, rank - 1), &parts) || parts < 1 || parts > 2)
    return kva_onnx_fail(k, KVA_INVALID, "the last dimension must be 1 (real) or 2 (complex)");
  if (kva_onnx_in(k, 1)) KVA_TRY(kva_onnx_need_ints(k, 1, "dft_length", &length));
  if (kva_onnx_in(k, 2)) KVA_TRY(kva_onnx_need_ints(k, 2, "axis", &axis));
  int64_t wanted = k->version < 20 ? kva_onnx_int(k, "axis", 1) : axis.n == 1 ? axis.v[0] : -2;
  KVA_TRY(kva_onnx_axis(k, wanted, rank, &f->axis));
  if (f->axis == rank - 1 || !kva_expr_is_const(kva_onnx_dim(x, f->axis), extent))
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "the transformed axis must have a known extent");
  f->inverse = kva_onnx_int(k, "inverse", 0) != 0;
  f->onesided = kva_onnx_int(k, "onesided", 0) != 0;
  f->complex_in = parts == 2;
  f->length = length.n == 1 ? length.v[0] : f->inverse && f->onesided ? 2 * (*extent - 1) : *extent;
  if (f->length < 1 || f->length > MAX_TRANSFORM)
    return kva_onnx_fail(k, KVA_UNSUPPORTED, "length %lld", (long long)f->length);
  f->outputs = f->onesided && !f->inverse ? f->length / 2 + 1 : f->length;
  return KVA_OK;
}

/* Part `i` (real, imaginary) of x as [outer, columns, inner], cropped or zero-padded to `columns`. */
static kva_value *component(kva_onnx_call *k, const transform *f, int64_t i, int64_t extent, int64_t columns) {
  kva_builder *b = k->b;
  kva_expr_ctx *e = kva_onnx_exprs(k);
  kva_value *x = kva_onnx_in(k, 0);
  uint32_t rank = x->type->rank;
  kva_dim dims[3] = {kva_onnx_product(b, x->type->dims, 0, f->axis), kva_onnx_dim(x, f->axis),
                     kva_onnx_product(b, x->type->dims, f->axis + 1, rank - 1)};
  kva_dim none = kva_expr_const(e, 0), before[3] = {none, none, none};
  kva_dim after[3] = {none, kva_expr_const(e, columns - extent), none};
  x = kva_reshape(b, kva_onnx_slice(b, x, rank - 1, kva_expr_const(e, i), kva_expr_const(e, 1)), 3, dims);
  if (columns == extent) return x;
  return kva_build(b, KVA_OP_pad, 1, &x, &(kva_pad_attrs){.before = {3, before}, .after = {3, after}});
}

/* real = C re + S im, imaginary = C im - S re; each matrix multiplies [outer, n, inner] from the left. */
kva_status kva_onnx_dft(kva_onnx_call *k) {
  kva_builder *b = k->b;
  transform f;
  int64_t extent = 0;
  KVA_TRY(read_transform(k, &f, &extent));
  kva_value *x = kva_onnx_in(k, 0);
  bool real_out = f.inverse && f.onesided;
  int64_t columns = real_out ? f.length / 2 + 1 : f.length;
  kva_dtype t = x->type->dtype;
  kva_value *c = fourier_matrix(k, &f, t, false, columns), *s = fourier_matrix(k, &f, t, true, columns);
  kva_value *re = component(k, &f, 0, extent, columns),
            *im = f.complex_in ? component(k, &f, 1, extent, columns) : NULL;
  kva_value *real = kva_matmul(b, c, re, false, false), *imaginary = kva_neg(b, kva_matmul(b, s, re, false, false));
  if (im) real = kva_add(b, real, kva_matmul(b, s, im, false, false));
  if (im) imaginary = kva_add(b, imaginary, kva_matmul(b, c, im, false, false));
  kva_value *y = kva_onnx_unsqueeze(b, real, 3, 1);
  if (!real_out) y = kva_onnx_concat(b, y, kva_onnx_unsqueeze(b, imaginary, 3, 1), 3);
  kva_dim out[KVA_MAX_RANK];
  uint32_t rank = x->type->rank;
  for (uint32_t i = 0; i < rank; i++) out[i] = kva_onnx_dim(x, i);
  out[f.axis] = kva_expr_const(kva_onnx_exprs(k), f.outputs);
  out[rank - 1] = kva_expr_const(kva_onnx_exprs(k), real_out ? 1 : 2);
  return kva_onnx_done(k, kva_reshape(b, y, rank, out));
}
