/* GEMM steps by cuBLASLt. The library is column-major: a row-major matrix is a transposed one there, and D = A B
 * becomes D' = B' A'. So its first operand is our b, its second our a, and it computes an n x m result.
 *
 * For every new problem the library proposes algorithms; the first use times them and keeps the fastest. The fastest
 * may differ between processes, and with it the last bits of sums; KVASIR_CUDA_TUNE=0 takes the library's first
 * proposal instead. */
#include "runtime/calls.h"
#include "runtime/cuda/cuda.h"

#include <stdlib.h>

enum { MAX_PROPOSALS = 8, TIMED_RUNS = 3, WORKSPACE_BYTES = 32 << 20 };

typedef struct problem {
  kva_gemm_sizes sizes;
  int32_t transpose_a, transpose_b, dtype, dtype_d;
} problem;

typedef struct plan {
  problem problem;
  blas_desc desc;
  blas_layout a, b, d; /* ours; the library's first operand is b */
  blas_algorithm algorithm;
  size_t workspace;
} plan;

struct cuda_blas {
  kva_blas_api api;
  blas_handle handle;
  cu_pointer workspace;
  cu_event start, stop;
  bool tunes;
  plan *plans;
  int32_t n_plans;
};

typedef struct operands {
  const void *a, *b;
  void *d;
} operands;

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static kva_status create_parts(cuda_device *d, cuda_blas *blas) {
  blas_status status = blas->api.cublasLtCreate(&blas->handle);
  if (status != BLAS_SUCCESS) return kva_cuda_fail(d, KVA_MISSING, "cublasLtCreate: status %d", status);
  KVA_TRY(kva_cuda_check(d, d->api.cuMemAlloc(&blas->workspace, WORKSPACE_BYTES), "the library's workspace"));
  KVA_TRY(kva_cuda_check(d, d->api.cuEventCreate(&blas->start, 0), "cuEventCreate"));
  return kva_cuda_check(d, d->api.cuEventCreate(&blas->stop, 0), "cuEventCreate");
}

kva_status kva_cuda_blas_create(cuda_device *d, kva_diag *diag) {
  const char *path, *tune = getenv("KVASIR_CUDA_TUNE");
  d->blas = calloc(1, sizeof *d->blas);
  if (!d->blas) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for cuBLASLt");
  KVA_TRY(kva_blas_api_load(diag, &d->blas->api, &path));
  d->blas->tunes = !tune || strcmp(tune, "0") != 0;
  kva_status status = create_parts(d, d->blas);
  return status == KVA_OK ? KVA_OK : kva_fail(diag, status, NULL, "device cuda: %s: %s", path, d->error.data);
}

static void destroy_plan(const cuda_blas *blas, const plan *p) {
  if (p->desc) blas->api.cublasLtMatmulDescDestroy(p->desc);
  const blas_layout layouts[] = {p->a, p->b, p->d};
  for (int i = 0; i < 3; i++)
    if (layouts[i]) blas->api.cublasLtMatrixLayoutDestroy(layouts[i]);
}

void kva_cuda_blas_destroy(cuda_device *d) {
  cuda_blas *blas = d->blas;
  if (!blas) return;
  for (int32_t i = 0; i < blas->n_plans; i++) destroy_plan(blas, &blas->plans[i]);
  if (blas->start) d->api.cuEventDestroy(blas->start);
  if (blas->stop) d->api.cuEventDestroy(blas->stop);
  if (blas->workspace) d->api.cuMemFree(blas->workspace);
  if (blas->handle) blas->api.cublasLtDestroy(blas->handle);
  free(blas->plans);
  free(blas);
  d->blas = NULL;
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

static int type_of(int32_t dtype) {
  return dtype == KVA_F32 ? BLAS_TYPE_F32 : dtype == KVA_F16 ? BLAS_TYPE_F16 : BLAS_TYPE_BF16;
}

/* The layout of `batch` row-major matrices, rows x columns, at a constant distance. */
static blas_status make_layout(const cuda_blas *blas, int32_t dtype, int64_t rows, int64_t columns, int64_t batch,
                               int64_t step, blas_layout *out) {
  int32_t n = (int32_t)batch;
  blas_status s = blas->api.cublasLtMatrixLayoutCreate(out, type_of(dtype), (uint64_t)columns, (uint64_t)rows, columns);
  if (s == BLAS_SUCCESS) s = blas->api.cublasLtMatrixLayoutSetAttribute(*out, BLAS_LAYOUT_BATCH, &n, sizeof n);
  if (s == BLAS_SUCCESS)
    s = blas->api.cublasLtMatrixLayoutSetAttribute(*out, BLAS_LAYOUT_BATCH_STEP, &step, sizeof step);
  return s;
}

static blas_status make_desc(const cuda_blas *blas, const problem *p, blas_desc *out) {
  int32_t first = p->transpose_b != 0, second = p->transpose_a != 0;
  blas_status s = blas->api.cublasLtMatmulDescCreate(out, BLAS_COMPUTE_F32, BLAS_TYPE_F32);
  if (s == BLAS_SUCCESS)
    s = blas->api.cublasLtMatmulDescSetAttribute(*out, BLAS_DESC_TRANSPOSE_A, &first, sizeof first);
  if (s == BLAS_SUCCESS)
    s = blas->api.cublasLtMatmulDescSetAttribute(*out, BLAS_DESC_TRANSPOSE_B, &second, sizeof second);
  return s;
}

static blas_status describe(const cuda_blas *blas, plan *p) {
  const problem *q = &p->problem;
  const kva_gemm_sizes *g = &q->sizes;
  int64_t a_rows = q->transpose_a ? g->k : g->m, a_columns = q->transpose_a ? g->m : g->k;
  int64_t b_rows = q->transpose_b ? g->n : g->k, b_columns = q->transpose_b ? g->k : g->n;
  blas_status s = make_desc(blas, q, &p->desc);
  if (s == BLAS_SUCCESS) s = make_layout(blas, q->dtype, a_rows, a_columns, g->batch, g->step_a, &p->a);
  if (s == BLAS_SUCCESS) s = make_layout(blas, q->dtype, b_rows, b_columns, g->batch, g->step_b, &p->b);
  if (s == BLAS_SUCCESS) s = make_layout(blas, q->dtype_d, g->m, g->n, g->batch, g->step_d, &p->d);
  return s;
}

/* Tells the library that arguments of steps are aligned to KVA_ALIGNMENT. */
static blas_status set_preference(const cuda_blas *blas, blas_preference preference) {
  uint64_t bytes = WORKSPACE_BYTES;
  uint32_t alignment = KVA_ALIGNMENT;
  blas_status s =
      blas->api.cublasLtMatmulPreferenceSetAttribute(preference, BLAS_PREFERENCE_WORKSPACE, &bytes, sizeof bytes);
  for (int i = 0; s == BLAS_SUCCESS && i < 4; i++)
    s = blas->api.cublasLtMatmulPreferenceSetAttribute(preference, BLAS_PREFERENCE_ALIGNMENT_A + i, &alignment,
                                                       sizeof alignment);
  return s;
}

static blas_status propose(const cuda_blas *blas, const plan *p, blas_heuristic *out, int *out_n) {
  blas_preference preference;
  *out_n = 0;
  blas_status s = blas->api.cublasLtMatmulPreferenceCreate(&preference);
  if (s != BLAS_SUCCESS) return s;
  s = set_preference(blas, preference);
  if (s == BLAS_SUCCESS)
    s = blas->api.cublasLtMatmulAlgoGetHeuristic(blas->handle, p->desc, p->b, p->a, p->d, p->d, preference,
                                                 MAX_PROPOSALS, out, out_n);
  blas->api.cublasLtMatmulPreferenceDestroy(preference);
  return s;
}

static blas_status multiply(const cuda_device *d, const plan *p, const operands *o) {
  static const float one = 1, zero = 0;
  const cuda_blas *blas = d->blas;
  return blas->api.cublasLtMatmul(blas->handle, p->desc, &one, o->b, p->b, o->a, p->a, &zero, o->d, p->d, o->d, p->d,
                                  &p->algorithm, (void *)(uintptr_t)blas->workspace, p->workspace, d->stream);
}

/* Seconds of one product; negative if the algorithm fails. */
static double time_plan(cuda_device *d, const plan *p, const operands *o) {
  float milliseconds = 0;
  if (multiply(d, p, o) != BLAS_SUCCESS || d->api.cuEventRecord(d->blas->start, d->stream)) return -1;
  for (int i = 0; i < TIMED_RUNS; i++)
    if (multiply(d, p, o) != BLAS_SUCCESS) return -1;
  if (d->api.cuEventRecord(d->blas->stop, d->stream) || d->api.cuEventSynchronize(d->blas->stop) ||
      d->api.cuEventElapsedTime(&milliseconds, d->blas->start, d->blas->stop))
    return -1;
  return milliseconds * 1e-3 / TIMED_RUNS;
}

static void choose(cuda_device *d, plan *p, const blas_heuristic *proposals, int n, const operands *o) {
  double best = -1;
  plan trial = *p;
  for (int i = 0; i < n; i++) {
    if (proposals[i].state != BLAS_SUCCESS) continue;
    trial.algorithm = proposals[i].algorithm;
    trial.workspace = proposals[i].workspace;
    double seconds = time_plan(d, &trial, o);
    if (seconds < 0 || (best >= 0 && seconds >= best)) continue;
    best = seconds;
    *p = trial;
  }
}

static kva_status make_plan(cuda_device *d, plan *p, const operands *o) {
  blas_heuristic proposals[MAX_PROPOSALS];
  int n = 0;
  blas_status s = describe(d->blas, p);
  if (s == BLAS_SUCCESS) s = propose(d->blas, p, proposals, &n);
  if (s != BLAS_SUCCESS || !n)
    return kva_cuda_fail(d, KVA_UNSUPPORTED, "cuBLASLt has no algorithm (status %d) for %lld x %lld x %lld, batch %lld",
                         s, (long long)p->problem.sizes.m, (long long)p->problem.sizes.n, (long long)p->problem.sizes.k,
                         (long long)p->problem.sizes.batch);
  p->algorithm = proposals[0].algorithm;
  p->workspace = proposals[0].workspace;
  if (n > 1 && d->blas->tunes && !kva_cuda_is_capturing(d)) choose(d, p, proposals, n, o);
  return KVA_OK;
}

static bool same_problem(const problem *a, const problem *b) {
  const kva_gemm_sizes *x = &a->sizes, *y = &b->sizes;
  return x->batch == y->batch && x->m == y->m && x->n == y->n && x->k == y->k && x->step_a == y->step_a &&
         x->step_b == y->step_b && x->step_d == y->step_d && a->transpose_a == b->transpose_a &&
         a->transpose_b == b->transpose_b && a->dtype == b->dtype && a->dtype_d == b->dtype_d;
}

static const plan *find_plan(const cuda_blas *blas, const problem *q) {
  for (int32_t i = 0; i < blas->n_plans; i++)
    if (same_problem(&blas->plans[i].problem, q)) return &blas->plans[i];
  return NULL;
}

static kva_status add_plan(cuda_device *d, const problem *q, const operands *o) {
  cuda_blas *blas = d->blas;
  plan *more = realloc(blas->plans, sizeof *more * ((size_t)blas->n_plans + 1));
  if (!more) return kva_cuda_fail(d, KVA_NO_MEMORY, "no memory for a plan of a matrix product");
  blas->plans = more;
  plan *p = &more[blas->n_plans];
  *p = (plan){.problem = *q};
  kva_status status = make_plan(d, p, o);
  if (status == KVA_OK)
    blas->n_plans++;
  else
    destroy_plan(blas, p);
  return status;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

bool kva_cuda_supports(const kva_device *d, int32_t call) {
  (void)d;
  return call == KVA_CALL_GEMM;
}

kva_status kva_cuda_call(kva_device *device, const kva_device_call *l) {
  cuda_device *d = (cuda_device *)device;
  const kva_gemm_desc *desc = l->step->desc;
  const kva_gemm_sizes sizes = kva_gemm_sizes_of(l->sizes), *g = &sizes;
  KVA_TRY(kva_cuda_enter(d));
  if (!g->batch || !g->m || !g->n) return KVA_OK;
  if (g->batch > INT32_MAX) return kva_cuda_fail(d, KVA_UNSUPPORTED, "%lld products at once", (long long)g->batch);
  if (!g->k) /* empty sums */
    return kva_cuda_check(
        d, d->api.cuMemsetD8Async(kva_cuda_address(l->args[2]), 0, (size_t)l->bytes[l->step->args[2]], d->stream),
        "cuMemsetD8Async");
  const problem q = {*g, desc->transpose_a, desc->transpose_b, desc->dtype, desc->dtype_d};
  const operands o = {l->args[0], l->args[1], l->args[2]};
  if (!find_plan(d->blas, &q)) KVA_TRY(add_plan(d, &q, &o));
  blas_status s = multiply(d, find_plan(d->blas, &q), &o);
  return s == BLAS_SUCCESS ? KVA_OK : kva_cuda_fail(d, KVA_INVALID, "cublasLtMatmul: status %d", s);
}
