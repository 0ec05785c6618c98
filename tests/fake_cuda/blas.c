/* cuBLASLt's matrix products as plain loops over columns, as its documentation defines them. */
#include "tests/fake_cuda/fake.h"

#include <stdlib.h>

struct blas_handle_object {
  int unused;
};
struct blas_desc_object {
  int compute, scale;
  int32_t transpose_a, transpose_b;
};
struct blas_layout_object {
  fake_matrix m;
};
struct blas_preference_object {
  uint64_t workspace;
  uint32_t alignment[4];
};

enum { INVALID = 7, NOT_SUPPORTED = 15, ALGORITHM = 4711, PROPOSALS = 3, WORKSPACE = 1024 };

static blas_status set(void *to, size_t size, const void *value, size_t given) {
  if (given != size) return INVALID;
  memcpy(to, value, size);
  return BLAS_SUCCESS;
}

size_t fake_cublasLtGetVersion(void) {
  return 120401;
}

blas_status fake_cublasLtCreate(blas_handle *out_handle) {
  if (fake_state() != CU_SUCCESS) return 1; /* NOT_INITIALIZED */
  *out_handle = calloc(1, sizeof **out_handle);
  return *out_handle ? BLAS_SUCCESS : 3;
}

blas_status fake_cublasLtDestroy(blas_handle handle) {
  free(handle);
  return BLAS_SUCCESS;
}

blas_status fake_cublasLtMatmulDescCreate(blas_desc *out_desc, int compute, int scale_type) {
  if (compute != BLAS_COMPUTE_F32 || scale_type != BLAS_TYPE_F32) return NOT_SUPPORTED;
  *out_desc = calloc(1, sizeof **out_desc);
  return *out_desc ? BLAS_SUCCESS : 3;
}

blas_status fake_cublasLtMatmulDescDestroy(blas_desc desc) {
  free(desc);
  return BLAS_SUCCESS;
}

blas_status fake_cublasLtMatmulDescSetAttribute(blas_desc desc, int attribute, const void *value, size_t size) {
  switch (attribute) {
  case BLAS_DESC_TRANSPOSE_A: return set(&desc->transpose_a, sizeof desc->transpose_a, value, size);
  case BLAS_DESC_TRANSPOSE_B: return set(&desc->transpose_b, sizeof desc->transpose_b, value, size);
  default: return INVALID;
  }
}

blas_status fake_cublasLtMatrixLayoutCreate(blas_layout *out_layout, int type, uint64_t rows, uint64_t columns,
                                            int64_t leading) {
  if (!rows || !columns || leading < (int64_t)rows) return INVALID;
  *out_layout = calloc(1, sizeof **out_layout);
  if (!*out_layout) return 3;
  (*out_layout)->m = (fake_matrix){.type = type, .rows = rows, .columns = columns, .leading = leading, .batch = 1};
  return BLAS_SUCCESS;
}

blas_status fake_cublasLtMatrixLayoutDestroy(blas_layout layout) {
  free(layout);
  return BLAS_SUCCESS;
}

blas_status fake_cublasLtMatrixLayoutSetAttribute(blas_layout layout, int attribute, const void *value, size_t size) {
  switch (attribute) {
  case BLAS_LAYOUT_BATCH: return set(&layout->m.batch, sizeof layout->m.batch, value, size);
  case BLAS_LAYOUT_BATCH_STEP: return set(&layout->m.step, sizeof layout->m.step, value, size);
  default: return INVALID;
  }
}

blas_status fake_cublasLtMatmulPreferenceCreate(blas_preference *out_preference) {
  *out_preference = calloc(1, sizeof **out_preference);
  return *out_preference ? BLAS_SUCCESS : 3;
}

blas_status fake_cublasLtMatmulPreferenceDestroy(blas_preference preference) {
  free(preference);
  return BLAS_SUCCESS;
}

blas_status fake_cublasLtMatmulPreferenceSetAttribute(blas_preference p, int attribute, const void *value,
                                                      size_t size) {
  int i = attribute - BLAS_PREFERENCE_ALIGNMENT_A;
  if (attribute == BLAS_PREFERENCE_WORKSPACE) return set(&p->workspace, sizeof p->workspace, value, size);
  return i >= 0 && i < 4 ? set(&p->alignment[i], sizeof p->alignment[i], value, size) : INVALID;
}

/* rows x columns of a matrix after its transposition. */
static bool has_shape(const fake_matrix *m, bool transposed, uint64_t rows, uint64_t columns) {
  return (transposed ? m->columns : m->rows) == rows && (transposed ? m->rows : m->columns) == columns;
}

static blas_status check(const struct blas_desc_object *desc, const fake_matrix *a, const fake_matrix *b,
                         const fake_matrix *c, const fake_matrix *d) {
  uint64_t k = desc->transpose_a ? a->rows : a->columns;
  if (!has_shape(a, desc->transpose_a, d->rows, k) || !has_shape(b, desc->transpose_b, k, d->columns) ||
      !has_shape(c, false, d->rows, d->columns))
    return INVALID;
  if (a->type != b->type || c->type != d->type || (d->type != a->type && d->type != BLAS_TYPE_F32))
    return NOT_SUPPORTED;
  return a->batch == d->batch && b->batch == d->batch && c->batch == d->batch ? BLAS_SUCCESS : INVALID;
}

blas_status fake_cublasLtMatmulAlgoGetHeuristic(blas_handle handle, blas_desc desc, blas_layout a, blas_layout b,
                                                blas_layout c, blas_layout d, blas_preference preference, int n_asked,
                                                blas_heuristic *results, int *out_n) {
  (void)handle;
  blas_status s = check(desc, &a->m, &b->m, &c->m, &d->m);
  if (s != BLAS_SUCCESS) return s;
  int n = 0;
  for (; n < PROPOSALS && n < n_asked && preference->workspace >= WORKSPACE; n++)
    results[n] = (blas_heuristic){.algorithm = {{ALGORITHM, (uint64_t)n}}, .workspace = n ? WORKSPACE : 0, .waves = 1};
  *out_n = n;
  return BLAS_SUCCESS;
}

/* Bytes from the first element to the last of all. */
static size_t span(const fake_matrix *m) {
  size_t size = m->type == BLAS_TYPE_F32 ? 4 : 2;
  return size * ((size_t)(m->batch - 1) * (size_t)m->step + (m->columns - 1) * (size_t)m->leading + m->rows);
}

blas_status fake_cublasLtMatmul(blas_handle handle, blas_desc desc, const void *alpha, const void *a,
                                blas_layout layout_a, const void *b, blas_layout layout_b, const void *beta,
                                const void *c, blas_layout layout_c, void *d, blas_layout layout_d,
                                const blas_algorithm *algorithm, void *workspace, size_t workspace_bytes,
                                cu_stream stream) {
  (void)handle;
  blas_status s = check(desc, &layout_a->m, &layout_b->m, &layout_c->m, &layout_d->m);
  if (s != BLAS_SUCCESS) return s;
  if (*(const float *)alpha != 1 || *(const float *)beta != 0 || c != d || algorithm->data[0] != ALGORITHM)
    return NOT_SUPPORTED;
  if (algorithm->data[1] && (workspace_bytes < WORKSPACE || !fake_is_device(workspace, workspace_bytes)))
    return INVALID;
  if (!fake_is_device(a, span(&layout_a->m)) || !fake_is_device(b, span(&layout_b->m)) ||
      !fake_is_device(d, span(&layout_d->m)))
    return 14; /* INTERNAL_ERROR */
  const fake_op op = {.kind = FAKE_GEMM,
                      .gemm = {layout_a->m, layout_b->m, layout_d->m, a, b, d, desc->transpose_a, desc->transpose_b}};
  return fake_enqueue(stream, &op) == CU_SUCCESS ? BLAS_SUCCESS : 13; /* EXECUTION_FAILED */
}

static float load(const fake_matrix *m, const void *data, uint64_t row, uint64_t column, int32_t batch) {
  size_t i = (size_t)batch * (size_t)m->step + column * (size_t)m->leading + row;
  if (m->type == BLAS_TYPE_F32) return ((const float *)data)[i];
  uint16_t h = ((const uint16_t *)data)[i];
  return m->type == BLAS_TYPE_BF16 ? kva_bf16_to_f32(h) : kva_f16_to_f32(h);
}

static void store(const fake_matrix *m, void *data, uint64_t row, uint64_t column, int32_t batch, float v) {
  size_t i = (size_t)batch * (size_t)m->step + column * (size_t)m->leading + row;
  if (m->type == BLAS_TYPE_F32)
    ((float *)data)[i] = v;
  else
    ((uint16_t *)data)[i] = m->type == BLAS_TYPE_BF16 ? kva_f32_to_bf16(v) : kva_f32_to_f16(v);
}

void fake_multiply(const fake_gemm *g) {
  uint64_t depth = g->transpose_a ? g->a.rows : g->a.columns;
  for (int32_t batch = 0; batch < g->d.batch; batch++)
    for (uint64_t j = 0; j < g->d.columns; j++)
      for (uint64_t i = 0; i < g->d.rows; i++) {
        float sum = 0;
        for (uint64_t k = 0; k < depth; k++)
          sum += load(&g->a, g->pa, g->transpose_a ? k : i, g->transpose_a ? i : k, batch) *
                 load(&g->b, g->pb, g->transpose_b ? j : k, g->transpose_b ? k : j, batch);
        store(&g->d, g->pd, i, j, batch, sum);
      }
}
