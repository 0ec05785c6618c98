/* wgmma in every layout of its operands against naive products, in the eager and the lazy model. */
#include "tests/ptxsim/ptx_test.h"

enum { M = 64, K = 16, MAX_N = 256, HALF = 16384, IMAGE = 2 * HALF };

typedef struct product_case {
  kva_dtype dtype;
  uint32_t n;
  uint32_t span_a, span_b; /* bytes of the swizzle, 0: none */
  bool transposed_a, transposed_b, registers, accumulate, negate_a, negate_b;
} product_case;

/* The byte of element (row, k) in shared memory, from the pictures of the PTX ISA: rows of `span` bytes in which pieces
 * of 16 bytes change places by the row; without swizzle, blocks of 8 rows of 16 bytes. */
static size_t place(uint32_t span, bool transposed, uint32_t row, uint32_t k) {
  if (!span && transposed) return row / 8 * 256 + k / 8 * 128 + k % 8 * 16 + row % 8 * 2;
  if (!span) return row / 8 * 256 + k / 8 * 128 + row % 8 * 16 + k % 8 * 2;
  uint32_t line = transposed ? k : row, column = transposed ? row : k, block = span / 2;
  size_t base = transposed ? (size_t)(row / block) * K * span : 0;
  size_t at = (size_t)line * span + column % block * 2, piece = at % span / 16;
  piece ^= at / 128 % (span / 16);
  return base + at / span * span + piece * 16 + at % 16;
}

static uint64_t descriptor(uint32_t base, uint32_t span, bool transposed) {
  uint64_t kind = span == 128 ? 1 : span == 64 ? 2 : span == 32 ? 3 : 0;
  uint64_t leading = !span ? 128 : transposed ? (uint64_t)K * span : 16, stride = !span ? 256 : 8ull * span;
  return base >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | kind << 62;
}

static void add_list(kva_text *text, const char *prefix, uint32_t n) {
  for (uint32_t k = 0; k < n; k++) kva_text_add(text, "%s%s%u", k ? ", " : "", prefix, k);
}

static char *make_text(const product_case *c) {
  kva_text text = {0};
  uint32_t n_sums = c->n / 2;
  const char *type = c->dtype == KVA_BF16 ? "bf16" : "f16";
  kva_text_add(&text,
               ".version 8.3\n.target sm_90a\n.address_size 64\n.entry k(.param .u64 image, .param .u64 frag, .param "
               ".u64 sums, .param .u64 da, .param .u64 db) {\n"
               ".reg .b32 %%r<20>; .reg .b64 %%d<20>; .reg .pred %%p<5>; .reg .f32 %%f<%u>; .reg .b32 %%a<4>;\n"
               ".shared .align 1024 .b8 x[%d];\n"
               "ld.param.u64 %%d1, [image]; ld.param.u64 %%d2, [frag]; ld.param.u64 %%d3, [sums];\n"
               "ld.param.u64 %%d4, [da]; ld.param.u64 %%d5, [db]; mov.u32 %%r1, %%tid.x; mov.u64 %%d6, x;\n"
               "mul.wide.u32 %%d7, %%r1, 16; add.s64 %%d1, %%d1, %%d7; add.s64 %%d6, %%d6, %%d7; mov.u32 %%r2, 0;\n"
               "C: ld.global.v4.b32 {%%r4, %%r5, %%r6, %%r7}, [%%d1]; st.shared.v4.b32 [%%d6], {%%r4, %%r5, %%r6, "
               "%%r7};\n"
               "add.s64 %%d1, %%d1, 2048; add.s64 %%d6, %%d6, 2048; add.u32 %%r2, %%r2, 2048;\n"
               "setp.lt.u32 %%p1, %%r2, %d; @%%p1 bra C;\n"
               "fence.proxy.async; bar.sync 0; mul.wide.u32 %%d7, %%r1, 16; add.s64 %%d2, %%d2, %%d7;\n"
               "ld.global.v4.b32 {%%a0, %%a1, %%a2, %%a3}, [%%d2]; mul.wide.u32 %%d7, %%r1, 4; add.s64 %%d3, %%d3, "
               "%%d7;\n",
               n_sums, IMAGE, IMAGE);
  for (uint32_t j = 0; j < n_sums; j++) kva_text_add(&text, "ld.global.f32 %%f%u, [%%d3+%u];\n", j, j * 512);
  kva_text_add(&text,
               "wgmma.fence.sync.aligned; setp.ne.u32 %%p2, %d, 0;\nwgmma.mma_async.sync.aligned.m64n%uk16.f32.%s.%s {",
               c->accumulate, c->n, type, type);
  add_list(&text, "%f", n_sums);
  kva_text_add(&text, "}, %s, %%d5, %%p2, %d, %d", c->registers ? "{%a0, %a1, %a2, %a3}" : "%d4", c->negate_a ? -1 : 1,
               c->negate_b ? -1 : 1);
  if (!c->registers) kva_text_add(&text, ", %d", c->transposed_a);
  kva_text_add(&text, ", %d;\nwgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;\n", c->transposed_b);
  for (uint32_t j = 0; j < n_sums; j++) kva_text_add(&text, "st.global.f32 [%%d3+%u], %%f%u;\n", j * 512, j);
  kva_text_add(&text, "ret; }\n");
  return text.data;
}

static void check_product(const product_case *c, bool lazy) {
  static unsigned char image[IMAGE] __attribute__((aligned(16)));
  static uint16_t fragments[128][8] __attribute__((aligned(16)));
  static float sums[MAX_N / 2][128];
  static double a[M][K], b[MAX_N][K];
  uint64_t random = 9;
  memset(image, 0, sizeof image);
  for (uint32_t r = 0; r < M; r++)
    for (uint32_t k = 0; k < K; k++) {
      a[r][k] = (double)(ptx_random(&random) % 33) / 4 - 4;
      kva_store_f64(c->dtype, image + place(c->span_a, c->transposed_a, r, k), 0, a[r][k]);
      /* Register e / 2 of thread t: row t / 4 % 8 + 8 (e / 2 % 2), columns 2 (t % 4) + 8 (e / 4), + 1. */
      uint32_t thread = r / 16 * 32 + r % 8 * 4 + k % 8 / 2, e = k / 8 * 4 + r % 16 / 8 * 2 + k % 2;
      kva_store_f64(c->dtype, fragments[thread], e, a[r][k]);
    }
  for (uint32_t r = 0; r < c->n; r++)
    for (uint32_t k = 0; k < K; k++) {
      b[r][k] = (double)(ptx_random(&random) % 33) / 4 - 4;
      kva_store_f64(c->dtype, image + HALF + place(c->span_b, c->transposed_b, r, k), 0, b[r][k]);
    }
  for (uint32_t j = 0; j < c->n / 2; j++)
    for (uint32_t t = 0; t < 128; t++) sums[j][t] = (float)(j + t);
  uint64_t da = descriptor(0, c->span_a, c->transposed_a), db = descriptor(HALF, c->span_b, c->transposed_b);
  char *text = make_text(c);
  kva_ptx_module *m = ptx_parse(text);
  ptx_case run = {.block = {128, 1, 1},
                  .arrays = {image, fragments, sums},
                  .sizes = {sizeof image, sizeof fragments, sizeof sums},
                  .n_arrays = 3,
                  .scalars = {&da, &db},
                  .n_scalars = 2,
                  .options = {.lazy = lazy}};
  ptx_run_clean(m, &run);
  for (uint32_t r = 0; r < M; r++)
    for (uint32_t n = 0; n < c->n; n++) {
      uint32_t t = r / 16 * 32 + r % 8 * 4 + n % 8 / 2, j = n / 8 * 4 + r % 16 / 8 * 2 + n % 2;
      double want = 0;
      for (uint32_t k = 0; k < K; k++) want += a[r][k] * b[n][k];
      if (c->negate_a != c->negate_b) want = -want;
      if (c->accumulate) want += j + t;
      assert_true((double)sums[j][t] == want);
    }
  kva_ptx_module_destroy(m);
  free(text);
}

static void products(void **state) {
  (void)state;
  static const product_case cases[] = {
      {KVA_BF16, 64, 128, 128, .accumulate = true},
      {KVA_F16, 8, 128, 64, .accumulate = false},
      {KVA_BF16, 24, 64, 32, .accumulate = false},
      {KVA_BF16, 256, 32, 32, .negate_a = true},
      {KVA_F16, 64, 0, 0, .accumulate = true, .negate_b = true},
      {KVA_BF16, 128, 128, 128, .transposed_b = true},
      {KVA_F16, 64, 128, 64, .transposed_a = true, .transposed_b = true},
      {KVA_BF16, 32, 64, 32, .transposed_a = true, .transposed_b = true},
      {KVA_BF16, 16, 0, 0, .transposed_a = true, .transposed_b = true},
      {KVA_BF16, 64, 128, 128, .registers = true, .accumulate = true},
      {KVA_F16, 64, 128, 128, .registers = true, .transposed_b = true, .negate_a = true, .negate_b = true},
  };
  for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
    for (int lazy = 0; lazy < 2; lazy++) check_product(&cases[k], lazy);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(products)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
