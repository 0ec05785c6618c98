/* Launchers and reference results of the kernels in tests/data/ptx. */
#include "tests/support/ptx_kernels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

char *ptx_subject_text(const ptx_subject *subject) {
  if (subject->text) return strdup(subject->text);
  char path[200];
  snprintf(path, sizeof path, "tests/data/ptx/%s.ptx", subject->name);
  FILE *file = fopen(path, "r");
  if (!file) return NULL;
  enum { MOST = 1 << 20 };
  char *text = malloc(MOST);
  size_t n = text ? fread(text, 1, MOST - 1, file) : 0;
  fclose(file);
  if (text) text[n] = 0;
  return text;
}

typedef struct array {
  void *data;
  size_t size;
} array;

static kva_status launch(const kva_ptx_kernel *kernel, kva_ptx_dim3 grid, kva_ptx_dim3 block, uint32_t shared,
                         const array *arrays, uint32_t n_arrays, const void *const *params, uint32_t n_params,
                         const kva_ptx_options *options, kva_diag *diag, kva_ptx_report *out_report) {
  kva_ptx_memory *memory = kva_ptx_memory_create();
  kva_status status = memory ? KVA_OK : KVA_NO_MEMORY;
  for (uint32_t k = 0; status == KVA_OK && k < n_arrays; k++)
    status = kva_ptx_memory_add(memory, arrays[k].data, arrays[k].size, true, "array");
  if (status == KVA_OK)
    status = kva_ptx_launch(kernel, memory, grid, block, shared, params, n_params, options, diag, out_report);
  kva_ptx_memory_destroy(memory);
  return status;
}

static const kva_ptx_dim3 one = {1, 1, 1};

/* Quarters from -2 to 2: sums of products are exact in float. */
static void fill_bf16(uint16_t *x, int64_t n, uint64_t seed) {
  for (int64_t k = 0; k < n; k++)
    kva_store_f64(KVA_BF16, x, k, (double)(kva_philox4x32((uint64_t)k, 0, seed).v[0] % 17) / 4 - 2);
}

/* d = a b^T, all row-major. */
static bool is_product(const uint16_t *a, const uint16_t *b, const float *d, int64_t m, int64_t n, int64_t depth) {
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++) {
      double sum = 0;
      for (int64_t k = 0; k < depth; k++)
        sum += kva_load_f64(KVA_BF16, a, i * depth + k) * kva_load_f64(KVA_BF16, b, j * depth + k);
      if (!((double)d[i * n + j] == sum)) return false;
    }
  return true;
}

/* An array of NaN. */
static void poison(float *d, int64_t n) {
  for (int64_t k = 0; k < n; k++) d[k] = NAN;
}

static kva_status gemm_wgmma(void *user, const kva_ptx_kernel *kernel, const kva_ptx_options *options, kva_diag *diag,
                             kva_ptx_report *out_report, bool *out_right) {
  (void)user;
  enum { M = 64, N = 32, TILES = 5, DEPTH = 64 * TILES };
  static uint16_t a[M * DEPTH] __attribute__((aligned(128))), b[N * DEPTH] __attribute__((aligned(128)));
  static float d[M * N] __attribute__((aligned(128)));
  unsigned char map_a[KVA_PTXSIM_MAP_BYTES], map_b[KVA_PTXSIM_MAP_BYTES];
  fill_bf16(a, M * DEPTH, 1);
  fill_bf16(b, N * DEPTH, 2);
  poison(d, M * N);
  kva_ptxsim_map map = {.dtype = KVA_BF16,
                        .rank = 2,
                        .address = a,
                        .dims = {DEPTH, M},
                        .strides = {2, 2 * DEPTH},
                        .box = {64, M},
                        .swizzle = 128};
  KVA_TRY(kva_ptxsim_encode_map(&map, diag, map_a));
  map.address = b;
  map.dims[1] = map.box[1] = N;
  KVA_TRY(kva_ptxsim_encode_map(&map, diag, map_b));
  void *out = d;
  uint32_t n_tiles = TILES;
  const array arrays[] = {{a, sizeof a}, {b, sizeof b}, {d, sizeof d}};
  const void *params[] = {map_a, map_b, &out, &n_tiles};
  KVA_TRY(launch(kernel, one, (kva_ptx_dim3){256, 1, 1}, 33024, arrays, 3, params, 4, options, diag, out_report));
  *out_right = is_product(a, b, d, M, N, DEPTH);
  return KVA_OK;
}

static kva_status gemm_mma(void *user, const kva_ptx_kernel *kernel, const kva_ptx_options *options, kva_diag *diag,
                           kva_ptx_report *out_report, bool *out_right) {
  (void)user;
  enum { M = 32, N = 8, TILES = 5, DEPTH = 16 * TILES };
  static uint16_t a[M * DEPTH] __attribute__((aligned(128))), b[N * DEPTH] __attribute__((aligned(128)));
  static float d[M * N] __attribute__((aligned(128)));
  fill_bf16(a, M * DEPTH, 3);
  fill_bf16(b, N * DEPTH, 4);
  poison(d, M * N);
  void *pa = a, *pb = b, *pd = d;
  uint32_t n_tiles = TILES;
  const array arrays[] = {{a, sizeof a}, {b, sizeof b}, {d, sizeof d}};
  const void *params[] = {&pa, &pb, &pd, &n_tiles};
  KVA_TRY(launch(kernel, one, (kva_ptx_dim3){64, 1, 1}, 0, arrays, 3, params, 4, options, diag, out_report));
  *out_right = is_product(a, b, d, M, N, DEPTH);
  return KVA_OK;
}

static kva_status row_sums(void *user, const kva_ptx_kernel *kernel, const kva_ptx_options *options, kva_diag *diag,
                           kva_ptx_report *out_report, bool *out_right) {
  (void)user;
  enum { ROWS = 3, N = 128 };
  static float in[ROWS * N], sums[ROWS];
  for (int k = 0; k < ROWS * N; k++) in[k] = (float)(k % 31) - 7;
  poison(sums, ROWS);
  void *pi = in, *po = sums;
  uint32_t n_rows = ROWS;
  const array arrays[] = {{in, sizeof in}, {sums, sizeof sums}};
  const void *params[] = {&pi, &po, &n_rows};
  KVA_TRY(launch(kernel, one, (kva_ptx_dim3){N, 1, 1}, 0, arrays, 2, params, 3, options, diag, out_report));
  *out_right = true;
  for (int r = 0; r < ROWS; r++) {
    float sum = 0;
    for (int k = 0; k < N; k++) sum += in[r * N + k];
    *out_right &= sum == sums[r];
  }
  return KVA_OK;
}

static kva_status reverse(void *user, const kva_ptx_kernel *kernel, const kva_ptx_options *options, kva_diag *diag,
                          kva_ptx_report *out_report, bool *out_right) {
  (void)user;
  enum { N = 64 };
  static uint32_t in[4 * N] __attribute__((aligned(16))), out[4 * N] __attribute__((aligned(16)));
  for (uint32_t k = 0; k < 4 * N; k++) in[k] = k * 77 + 5;
  memset(out, 0, sizeof out);
  void *pi = in, *po = out;
  const array arrays[] = {{in, sizeof in}, {out, sizeof out}};
  const void *params[] = {&pi, &po};
  KVA_TRY(launch(kernel, one, (kva_ptx_dim3){N, 1, 1}, 0, arrays, 2, params, 2, options, diag, out_report));
  *out_right = true;
  for (size_t k = 0; k < N; k++) *out_right &= !memcmp(out + 4 * k, in + 4 * (N - 1 - k), 16);
  return KVA_OK;
}

static kva_status last_block(void *user, const kva_ptx_kernel *kernel, const kva_ptx_options *options, kva_diag *diag,
                             kva_ptx_report *out_report, bool *out_right) {
  (void)user;
  enum { N = 5 };
  static float in[N] = {1, 2, 3, 4, 5.5f}, part[N], out;
  static uint32_t counter;
  poison(part, N);
  poison(&out, 1);
  counter = 0;
  void *pi = in, *pp = part, *pc = &counter, *po = &out;
  const array arrays[] = {{in, sizeof in}, {part, sizeof part}, {&counter, sizeof counter}, {&out, sizeof out}};
  const void *params[] = {&pi, &pp, &pc, &po};
  const kva_ptx_dim3 grid = {N, 1, 1}, block = {32, 1, 1};
  KVA_TRY(launch(kernel, grid, block, 0, arrays, 4, params, 4, options, diag, out_report));
  *out_right = out == 31;
  return KVA_OK;
}

static kva_status multicast(void *user, const kva_ptx_kernel *kernel, const kva_ptx_options *options, kva_diag *diag,
                            kva_ptx_report *out_report, bool *out_right) {
  (void)user;
  enum { SLICE = 128, SLICES = 5, LANES = 32 };
  static float in[SLICE * SLICES] __attribute__((aligned(128))), out[2 * LANES];
  for (int k = 0; k < SLICE * SLICES; k++) in[k] = (float)(k % 37) - 9;
  poison(out, 2 * LANES);
  void *pi = in, *po = out;
  uint32_t slices = SLICES;
  const array arrays[] = {{in, sizeof in}, {out, sizeof out}};
  const void *params[] = {&pi, &po, &slices};
  const kva_ptx_dim3 grid = {2, 1, 1}, block = {64, 1, 1};
  KVA_TRY(launch(kernel, grid, block, 0, arrays, 2, params, 3, options, diag, out_report));
  *out_right = true;
  for (int lane = 0; lane < LANES; lane++) {
    float sum = 0;
    for (int k = lane; k < SLICE * SLICES; k += LANES) sum += in[k];
    *out_right &= out[lane] == sum && out[LANES + lane] == sum;
  }
  return KVA_OK;
}

static kva_status cluster_sums(void *user, const kva_ptx_kernel *kernel, const kva_ptx_options *options, kva_diag *diag,
                               kva_ptx_report *out_report, bool *out_right) {
  (void)user;
  enum { CLUSTER = 4, CTAS = 2 * CLUSTER, LANES = 32 };
  static uint32_t in[CTAS * LANES], out[CTAS * LANES];
  for (uint32_t k = 0; k < CTAS * LANES; k++) in[k] = k * k + 3, out[k] = 0;
  void *pi = in, *po = out;
  const array arrays[] = {{in, sizeof in}, {out, sizeof out}};
  const void *params[] = {&pi, &po};
  const kva_ptx_dim3 grid = {CTAS, 1, 1}, block = {LANES, 1, 1};
  KVA_TRY(launch(kernel, grid, block, 0, arrays, 2, params, 2, options, diag, out_report));
  *out_right = true;
  for (uint32_t k = 0; k < CTAS * LANES; k++) {
    uint32_t first = k / (CLUSTER * LANES) * (CLUSTER * LANES) + k % LANES, sum = 0;
    for (uint32_t c = 0; c < CLUSTER; c++) sum += in[first + c * LANES];
    *out_right &= out[k] == sum;
  }
  return KVA_OK;
}

const ptx_subject ptx_subjects[] = {
    {.name = "gemm_wgmma", .run = gemm_wgmma},    {.name = "gemm_mma", .run = gemm_mma},
    {.name = "row_sums", .run = row_sums},        {.name = "reverse", .run = reverse},
    {.name = "last_block", .run = last_block},    {.name = "multicast", .run = multicast},
    {.name = "cluster_sums", .run = cluster_sums}};
const uint32_t ptx_n_subjects = sizeof ptx_subjects / sizeof *ptx_subjects;
