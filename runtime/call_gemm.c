/* Matrix products that the device's library computes, and their implementation on the host for devices without one.
 * Tiles of TILE_M x TILE_N results are independent work items. Operands are converted to float, a slab of b at a time.
 * Every result is one float sum in order of k, so results depend on the operands only. */
#include "runtime/calls.h"
#include "runtime/session.h"

enum { TILE_M = 16, TILE_N = 64, SLAB = 128 };

typedef struct gemm_job {
  const kva_gemm_desc *g;
  const kva_gemm_sizes *s;
  const char *a, *b;
  char *d;
  int64_t tiles_m, tiles_n;
} gemm_job;

static float load(int32_t dtype, const char *data, int64_t i) {
  switch (dtype) {
  case KVA_F32: return ((const float *)data)[i];
  case KVA_BF16: return kva_bf16_to_f32(((const uint16_t *)data)[i]);
  default: return (float)kva_load_f64((kva_dtype)dtype, data, i);
  }
}

/* Packs rows [k, k + depth) and columns [n, n + width) of b as floats; the remaining columns are 0. */
static void pack_b(const gemm_job *j, int64_t first, int64_t k, int64_t depth, int64_t n, int64_t width,
                   float (*slab)[TILE_N]) {
  int64_t row = j->g->transpose_b ? 1 : j->s->n, column = j->g->transpose_b ? j->s->k : 1;
  memset(slab, 0, sizeof(float) * SLAB * TILE_N);
  for (int64_t y = 0; y < depth; y++)
    for (int64_t x = 0; x < width; x++) slab[y][x] = load(j->g->dtype, j->b, first + (k + y) * row + (n + x) * column);
}

static void add_products(const float *a, float (*slab)[TILE_N], int64_t depth, float *sums) {
  for (int64_t k = 0; k < depth; k++)
    for (int x = 0; x < TILE_N; x++) sums[x] += a[k] * slab[k][x];
}

static void run_tile(const gemm_job *j, int64_t batch, int64_t m, int64_t n) {
  const kva_gemm_sizes *s = j->s;
  int64_t height = s->m - m < TILE_M ? s->m - m : TILE_M, width = s->n - n < TILE_N ? s->n - n : TILE_N;
  int64_t row = j->g->transpose_a ? 1 : s->k, column = j->g->transpose_a ? s->m : 1;
  float sums[TILE_M][TILE_N] = {0}, slab[SLAB][TILE_N], a[SLAB];
  for (int64_t k = 0; k < s->k; k += SLAB) {
    int64_t depth = s->k - k < SLAB ? s->k - k : SLAB;
    pack_b(j, batch * s->step_b, k, depth, n, width, slab);
    for (int64_t y = 0; y < height; y++) {
      for (int64_t x = 0; x < depth; x++)
        a[x] = load(j->g->dtype, j->a, batch * s->step_a + (m + y) * row + (k + x) * column);
      add_products(a, slab, depth, sums[y]);
    }
  }
  for (int64_t y = 0; y < height; y++)
    for (int64_t x = 0; x < width; x++)
      kva_store_f64((kva_dtype)j->g->dtype_d, j->d, batch * s->step_d + (m + y) * s->n + n + x, sums[y][x]);
}

static void run_tiles(void *ctx, int64_t begin, int64_t end) {
  const gemm_job *j = ctx;
  for (int64_t i = begin; i < end; i++)
    run_tile(j, i / j->tiles_n / j->tiles_m, i / j->tiles_n % j->tiles_m * TILE_M, i % j->tiles_n * TILE_N);
}

kva_gemm_sizes kva_gemm_sizes_of(const int64_t *sizes) {
  return (kva_gemm_sizes){sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6]};
}

static kva_status run(kva_session *s, const kva_device_call *call) {
  const kva_gemm_sizes sizes = kva_gemm_sizes_of(call->sizes);
  gemm_job j = {.g = call->step->desc,
                .s = &sizes,
                .a = call->args[0],
                .b = call->args[1],
                .d = call->args[2],
                .tiles_m = (sizes.m + TILE_M - 1) / TILE_M,
                .tiles_n = (sizes.n + TILE_N - 1) / TILE_N};
  kva_pool_run(s->pool, sizes.batch * j.tiles_m * j.tiles_n, run_tiles, &j);
  return KVA_OK;
}

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static bool is_gemm_dtype(int32_t t) {
  return t == KVA_F32 || t == KVA_F16 || t == KVA_BF16;
}

static bool check(const kva_program *p, const kva_step_desc *s, kva_text *why) {
  const kva_gemm_desc *g = s->desc;
  if (!is_gemm_dtype(g->dtype) || (g->dtype_d != g->dtype && g->dtype_d != KVA_F32)) {
    kva_text_add(why, "it multiplies type %d to type %d", g->dtype, g->dtype_d);
    return false;
  }
  for (int32_t i = 0; i < 3; i++) {
    if (p->buffers[s->args[i]].dtype == (i < 2 ? g->dtype : g->dtype_d)) continue;
    kva_text_add(why, "its argument %d has type %d", i, p->buffers[s->args[i]].dtype);
    return false;
  }
  bool in_place = s->args[2] == s->args[0] || s->args[2] == s->args[1];
  if (in_place) kva_text_add(why, "it multiplies a buffer in place");
  return !in_place;
}

/* Elements from the start of the first matrix to the end of the last; -1 on overflow. */
static int64_t span(int64_t batch, int64_t step, int64_t rows, int64_t columns) {
  int64_t matrix, before = 0;
  if (!kva_mul_size(rows, columns, &matrix)) return -1;
  if (!batch || !matrix) return 0;
  if (!kva_mul_size(batch - 1, step, &before) || !kva_add_size(before, matrix, &matrix)) return -1;
  return matrix;
}

/* Checks that every matrix lies inside its buffer, and that matrices of the result do not overlap. */
static bool fits(const kva_program *p, const kva_step_desc *s, const int64_t *values, const int64_t *bytes) {
  const kva_gemm_desc *desc = s->desc;
  const kva_gemm_sizes g = kva_gemm_sizes_of(values);
  const int64_t spans[] = {span(g.batch, g.step_a, g.m, g.k), span(g.batch, g.step_b, g.k, g.n),
                           span(g.batch, g.step_d, g.m, g.n)};
  (void)p;
  for (int i = 0; i < 3; i++) {
    int64_t size;
    kva_dtype t = (kva_dtype)(i < 2 ? desc->dtype : desc->dtype_d);
    if (spans[i] < 0 || !kva_dtype_bytes(t, spans[i], &size) || size > bytes[s->args[i]]) return false;
  }
  return g.batch <= 1 || g.step_d / (g.n ? g.n : 1) >= g.m;
}

const kva_call_class kva_call_gemm = {.n_args = 3, .n_results = 1, .check = check, .fits = fits, .run = run};
