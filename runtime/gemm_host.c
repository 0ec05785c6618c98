/* A library's matrix product, done by the host: the simulator's stand-in. Tiles of TILE_M x TILE_N results are
 * independent work items; operands become float, a slab of b at a time, and every result is one sum in order of k. */
#include "runtime/device.h"

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

/* Rows [k, k + depth) and columns [n, n + width) of b, as floats; the other columns are 0. */
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

void kva_gemm_on_host(kva_pool *pool, const kva_gemm_desc *g, const kva_gemm_sizes *sizes, void *const *args) {
  gemm_job j = {.g = g,
                .s = sizes,
                .d = args[0],
                .a = args[1],
                .b = args[2],
                .tiles_m = (sizes->m + TILE_M - 1) / TILE_M,
                .tiles_n = (sizes->n + TILE_N - 1) / TILE_N};
  kva_pool_run(pool, sizes->batch * j.tiles_m * j.tiles_n, run_tiles, &j);
}
