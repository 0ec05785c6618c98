/* Rules: window functions. Their size is known, so they are constants, computed in double. */
#include "frontend/onnx_rules.h"

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
