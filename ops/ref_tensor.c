/* Reference tensors, one allocation each. */
#include "ops/ops.h"

#include <stdlib.h>

kva_ref_tensor *kva_ref_tensor_create(kva_dtype dtype, uint32_t rank, const int64_t *dims) {
  if (rank > KVA_MAX_RANK) return NULL;
  int64_t n = 1, bytes;
  bool empty = false;
  for (uint32_t i = 0; i < rank; i++) empty |= dims[i] == 0;
  for (uint32_t i = 0; i < rank; i++)
    if (dims[i] < 0 || (!empty && !kva_mul_size(n, dims[i], &n))) return NULL;
  if (empty) n = 0;
  if (!kva_mul_size(n, 8, &bytes) || !kva_add_size(bytes, sizeof(kva_ref_tensor), &bytes)) return NULL;
  kva_ref_tensor *w = calloc(1, (size_t)bytes);
  if (!w) return NULL;
  w->dtype = dtype;
  w->rank = rank;
  for (uint32_t i = 0; i < rank; i++) w->dims[i] = dims[i];
  w->n = n;
  if (kva_dtype_is_float(dtype))
    w->f = (double *)(w + 1);
  else
    w->i = (int64_t *)(w + 1);
  return w;
}

void kva_ref_tensor_free(kva_ref_tensor *w) {
  free(w);
}

kva_ref_tensor *kva_ref_tensor_from_data(kva_dtype dtype, uint32_t rank, const int64_t *dims, const void *data) {
  kva_ref_tensor *w = kva_ref_tensor_create(dtype, rank, dims);
  if (!w) return NULL;
  for (int64_t i = 0; i < w->n; i++) {
    if (w->f)
      w->f[i] = kva_load_f64(dtype, data, i);
    else
      w->i[i] = kva_load_i64(dtype, data, i);
  }
  return w;
}

void kva_ref_tensor_to_data(const kva_ref_tensor *w, void *data) {
  for (int64_t i = 0; i < w->n; i++) {
    if (w->f)
      kva_store_f64(w->dtype, data, i, w->f[i]);
    else
      kva_store_i64(w->dtype, data, i, w->i[i]);
  }
}
