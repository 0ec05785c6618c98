/* Instructions of dialects as code: small kernels written as text run on the simulator against what the instruction
 * means; ptxas, where there is one, takes all of them. */
#include "codegen/codegen.h"
#include "runtime/ptxsim/ptxsim.h"
#include "tests/support/assembler.h"
#include "tests/support/target.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct program {
  kva_arena *arena;
  kva_diag *diag;
  kva_codegen *cg;
  int32_t number;
  char *text;
  size_t size;
} program;

static void check(const program *p, bool ok) {
  if (!ok) kva_diag_print(p->diag, stderr);
  assert_true(ok);
}

static program compile(const char *text, const char *arch) {
  program p = {.arena = kva_arena_create(), .diag = kva_diag_create()};
  kva_kernel *k = kva_kernel_parse(p.arena, kva_expr_ctx_create(p.arena), text, "kernel", p.diag);
  check(&p, k);
  const kva_target_options target = test_target(2, arch);
  check(&p, kva_codegen_create(&target, p.diag, &p.cg) == KVA_OK);
  kva_codegen_schedule(k, kva_codegen_target(p.cg));
  const kva_expr *const *symbols;
  uint32_t n = kva_codegen_symbols(k, p.arena, &symbols);
  check(&p, kva_codegen_add(p.cg, k, n, symbols, &p.number) == KVA_OK);
  check(&p, kva_codegen_emit(p.cg, "ptx", &p.text, &p.size) == KVA_OK);
  if (getenv("KVA_TEST_PRINT")) fputs(p.text, stderr);
  return p;
}

static void finish(program *p) {
  free(p->text);
  kva_codegen_destroy(p->cg);
  kva_diag_destroy(p->diag);
  kva_arena_destroy(p->arena);
}

/* A buffer, or an encoded tensor map. */
typedef struct range {
  void *data;
  size_t bytes;
  bool is_map;
} range;

/* One block; no findings, in both modes of asynchronous copies. */
static void run(const program *p, uint32_t n, const range *ranges) {
  kva_ptx_module *module;
  check(p, kva_ptx_module_create(p->text, p->size, "kernel", p->diag, &module) == KVA_OK);
  kva_ptx_memory *memory = kva_ptx_memory_create();
  const void *params[8];
  for (uint32_t i = 0; i < n; i++) {
    params[i] = ranges[i].is_map ? ranges[i].data : (const void *)&ranges[i].data;
    if (ranges[i].is_map) continue;
    assert_int_equal(kva_ptx_memory_add(memory, ranges[i].data, ranges[i].bytes, true, "buffer"), KVA_OK);
  }
  kva_launch launch = kva_codegen_launch(p->cg, p->number);
  for (int lazy = 0; lazy < 2; lazy++) {
    kva_ptx_options options = {.lazy = lazy, .schedule_seed = (uint64_t)lazy};
    kva_ptx_report report;
    check(p, kva_ptx_launch(kva_ptx_module_kernel_at(module, 0), memory, (kva_ptx_dim3){1, 1, 1},
                            (kva_ptx_dim3){launch.threads, 1, 1}, launch.dynamic_bytes, params, n, &options, p->diag,
                            &report) == KVA_OK);
    if (report.n_findings) kva_ptx_report_print_findings(&report, "kernel", stderr);
    assert_int_equal(report.n_findings, 0);
    kva_ptx_report_free(&report);
  }
  kva_ptx_memory_destroy(memory);
  kva_ptx_module_destroy(module);
}

/* ---- one product ------------------------------------------------------------------------------------------------- */

/* d[16][8] = a[16][16] * b[8][16]', all rows of 16 bytes copied asynchronously, the last row of a cut to 4 elements. */
static const char product[] = "kernel \"product\" (read %s a[256], read %s b[128], write float d[128]) threads 32 {\n"
                              "  shared readwrite %s sa[256]\n"
                              "  shared readwrite %s sb[128]\n"
                              "  local readwrite %s ra[8]\n"
                              "  local readwrite %s rb[4]\n"
                              "  local readwrite float rd[4]\n"
                              "  thread t < 32 {\n"
                              "    %%0 = index t\n"
                              "    %%1 = lt %%0, 16 : int64\n"
                              "    copy_async sa[8*t], a[8*t], 16 - 8*floordiv(t, 30)\n"
                              "    if %%1 {\n"
                              "      copy_async sb[8*t], b[8*t], 16\n"
                              "    }\n"
                              "    copy_commit\n"
                              "    copy_wait 0\n"
                              "    block_barrier\n"
                              "    unroll i < 4 {\n"
                              "      store rd[i], 0.0\n"
                              "    }\n"
                              "    load_matrix ra[0], sa[16*mod(t, 16) + 8*floordiv(t, 16)], 4, 0\n"
                              "    load_matrix rb[0], sb[16*mod(t, 8) + 8*mod(floordiv(t, 8), 2)], 2, 0\n"
                              "    mma rd[0], ra[0], rb[0]\n"
                              "    unroll j < 2 {\n"
                              "      unroll c < 2 {\n"
                              "        %%2 = load rd[2*j + c]\n"
                              "        store d[64*j + 8*floordiv(t, 4) + 2*mod(t, 4) + c], %%2\n"
                              "      }\n"
                              "    }\n"
                              "  }\n"
                              "}\n";

static void run_product(kva_dtype type) {
  const char *name = kva_dtype_name(type);
  kva_text text = {0};
  kva_text_add(&text, product, name, name, name, name, name, name);
  program p = compile(text.data, "sm_80");
  _Alignas(16) uint16_t a[256], b[128];
  _Alignas(16) float d[128];
  for (int i = 0; i < 256; i++) kva_store_f64(type, a, i, (i * 7 % 31 - 15) / 8.0);
  for (int i = 0; i < 128; i++) kva_store_f64(type, b, i, (i * 5 % 23 - 11) / 4.0);
  run(&p, 3, (range[]){{a, sizeof a, false}, {b, sizeof b, false}, {d, sizeof d, false}});
  for (int m = 0; m < 16; m++) {
    for (int n = 0; n < 8; n++) {
      double sum = 0;
      for (int k = 0; k < 16; k++) {
        bool cut = m == 15 && k % 8 >= 4;
        sum += cut ? 0 : kva_load_f64(type, a, 16 * m + k) * kva_load_f64(type, b, 16 * n + k);
      }
      assert_float_equal(d[8 * m + n], sum, 1e-4);
    }
  }
  assert_assembles(p.text, p.size, "sm_80");
  finish(&p);
  kva_text_free(&text);
}

static void test_product(void **state) {
  (void)state;
  run_product(KVA_BF16);
  run_product(KVA_F16);
}

/* ---- fragments, values, barriers --------------------------------------------------------------------------------- */

/* 16 x 16 elements, each 8 x 8 block transposed on the way in, stored as it is. */
static void test_transpose(void **state) {
  (void)state;
  program p = compile("kernel \"transpose\" (read float16 x[256], write float16 y[256]) threads 32 {\n"
                      "  shared readwrite float16 sx[256]\n"
                      "  shared readwrite float16 sy[256]\n"
                      "  local readwrite float16 r[8]\n"
                      "  thread t < 32 {\n"
                      "    copy_async sx[8*t], x[8*t], 16\n"
                      "    copy_commit\n"
                      "    copy_wait 0\n"
                      "    subgroup_barrier\n"
                      "    load_matrix r[0], sx[16*mod(t, 16) + 8*floordiv(t, 16)], 4, 1\n"
                      "    store_matrix sy[16*mod(t, 16) + 8*floordiv(t, 16)], r[0], 4, 0\n"
                      "    subgroup_barrier\n"
                      "    serial i < 8 {\n"
                      "      %0 = load sy[32*i + t]\n"
                      "      store y[32*i + t], %0\n"
                      "    }\n"
                      "  }\n"
                      "}\n",
                      "sm_90");
  _Alignas(16) uint16_t x[256], y[256];
  for (int i = 0; i < 256; i++) kva_store_f64(KVA_F16, x, i, i);
  run(&p, 2, (range[]){{x, sizeof x, false}, {y, sizeof y, false}});
  for (int i = 0; i < 256; i++) {
    int row = i / 16, column = i % 16, from = 16 * (row / 8 * 8 + column % 8) + column / 8 * 8 + row % 8;
    assert_int_equal(y[i], x[from]);
  }
  assert_assembles(p.text, p.size, "sm_90");
  finish(&p);
}

/* The sum of 2^x over each four lanes; the second warp hands its part to the first, which does not wait otherwise. */
static void test_values(void **state) {
  (void)state;
  program p = compile("kernel \"values\" (read float x[64], write float y[32]) threads 64 {\n"
                      "  shared readwrite float s[32]\n"
                      "  thread t < 64 {\n"
                      "    %0 = load x[t]\n"
                      "    %1 = exp2 %0\n"
                      "    %2 = shuffle_xor %1, 1\n"
                      "    %3 = add %1, %2 : float\n"
                      "    %4 = shuffle_xor %3, 2\n"
                      "    %5 = add %3, %4 : float\n"
                      "    %6 = index t\n"
                      "    %7 = lt %6, 32 : int64\n"
                      "    if %7 {\n"
                      "      named_barrier 1, 64\n"
                      "      %8 = load s[t]\n"
                      "      %9 = add %5, %8 : float\n"
                      "      store y[t], %9\n"
                      "    } else {\n"
                      "      store s[t - 32], %5\n"
                      "      named_arrive 1, 64\n"
                      "    }\n"
                      "  }\n"
                      "}\n",
                      "sm_80");
  _Alignas(16) float x[64], y[32];
  for (int i = 0; i < 64; i++) x[i] = (float)(i % 13) / 4 - 1;
  run(&p, 2, (range[]){{x, sizeof x, false}, {y, sizeof y, false}});
  for (int i = 0; i < 32; i++) {
    double sum = 0;
    for (int k = i / 4 * 4; k < i / 4 * 4 + 4; k++) sum += exp2(x[k]) + exp2(x[32 + k]);
    assert_float_equal(y[i], sum, 1e-5);
  }
  assert_assembles(p.text, p.size, "sm_80");
  finish(&p);
}

/* More than 48 KiB, and a buffer over another. */
static void test_dynamic(void **state) {
  (void)state;
  program p = compile("kernel \"large\" (read float x[128], write float y[128]) threads 128 {\n"
                      "  shared readwrite float first[12288]\n"
                      "  shared readwrite float second[512]\n"
                      "  shared readwrite float again[12288] over first\n"
                      "  thread t < 128 {\n"
                      "    %0 = load x[t]\n"
                      "    store first[96*t], %0\n"
                      "    store second[4*t], %0\n"
                      "    block_barrier\n"
                      "    %1 = load again[-96*t + 12192]\n"
                      "    %2 = load second[4*t]\n"
                      "    %3 = add %1, %2 : float\n"
                      "    store y[t], %3\n"
                      "  }\n"
                      "}\n",
                      "sm_80");
  kva_launch launch = kva_codegen_launch(p.cg, p.number);
  assert_int_equal(launch.shared_bytes, 0);
  assert_int_equal(launch.dynamic_bytes, (12288 + 512) * 4);
  _Alignas(16) float x[128], y[128];
  for (int i = 0; i < 128; i++) x[i] = (float)i;
  run(&p, 2, (range[]){{x, sizeof x, false}, {y, sizeof y, false}});
  for (int i = 0; i < 128; i++) assert_float_equal(y[i], 127, 0);
  assert_assembles(p.text, p.size, "sm_80");
  finish(&p);
}

/* ---- sm_90a ------------------------------------------------------------------------------------------------------ */

/* d[64][16] = a[64][64] * b[16][64]' by one warpgroup: tensor maps in, four steps of the depth; then the same with a in
 * registers, from the same shared memory, added to it. */
static const char warpgroup[] =
    "kernel \"warpgroup\" (read bfloat16 a[4096], read bfloat16 b[1024], write float d[1024]) threads 128 {\n"
    "  tensor_map a dims(64, 64) steps(128) box(64, 64) swizzle 128\n"
    "  tensor_map b dims(64, 16) steps(128) box(64, 16) swizzle 128\n"
    "  shared readwrite bfloat16 sa[4096]\n"
    "  shared readwrite bfloat16 sb[1024]\n"
    "  shared readwrite uint64 bars[1]\n"
    "  local readwrite bfloat16 ra[8]\n"
    "  local readwrite float rd[8]\n"
    "  thread t < 128 {\n"
    "    %0 = index t\n"
    "    %1 = eq %0, 0 : int64\n"
    "    if %1 {\n"
    "      mbarrier_init bars[0], 1\n"
    "      mbarrier_fence\n"
    "    }\n"
    "    block_barrier\n"
    "    if %1 {\n"
    "      mbarrier_expect bars[0], 10240\n"
    "      tensor_load sa[0], bars[0], 0, 0, 0\n"
    "      tensor_load sb[0], bars[0], 1, 0, 0\n"
    "    }\n"
    "    mbarrier_wait bars[0], 0\n"
    "    unroll i < 8 {\n"
    "      store rd[i], 0.0\n"
    "    }\n"
    "    wgmma_fence rd[0], 8\n"
    "    unroll k < 4 {\n"
    "      wgmma rd[0], sa[16*k], sb[16*k], k, 16, 0, 0, 0, 0\n"
    "    }\n"
    "    wgmma_commit\n"
    "    wgmma_wait 0, rd[0], 8\n"
    "    unroll s < 4 {\n"
    "      %3 = index 2*s + mod(floordiv(t, 16), 2)\n"
    "      %4 = index mod(t, 8)\n"
    "      %5 = xor %3, %4 : int64\n"
    "      load_matrix ra[0], sa[1024*floordiv(t, 32) + 64*mod(t, 16) + 8*%5], 4, 0\n"
    "      wgmma_fence rd[0], 8\n"
    "      wgmma_registers rd[0], ra[0], sb[16*s], 1, 16, 0, 0\n"
    "      wgmma_commit\n"
    "      wgmma_wait 0, rd[0], 8\n"
    "    }\n"
    "    unroll n < 2 {\n"
    "      unroll j < 2 {\n"
    "        unroll c < 2 {\n"
    "          %2 = load rd[4*n + 2*j + c]\n"
    "          store d[256*floordiv(t, 32) + 16*mod(floordiv(t, 4), 8) + 128*j + 8*n + 2*mod(t, 4) + c], %2\n"
    "        }\n"
    "      }\n"
    "    }\n"
    "  }\n"
    "}\n";

static void test_warpgroup(void **state) {
  (void)state;
  program p = compile(warpgroup, "sm_90a");
  assert_non_null(strstr(p.text, ".param .align 64 .b8"));
  assert_null(strstr(p.text, ".local")); /* the maps are not copied */
  static _Alignas(16) uint16_t a[4096], b[1024];
  static float d[1024];
  for (int i = 0; i < 4096; i++) kva_store_f64(KVA_BF16, a, i, (i * 7 % 31 - 15) / 8.0);
  for (int i = 0; i < 1024; i++) kva_store_f64(KVA_BF16, b, i, (i * 5 % 23 - 11) / 4.0);
  unsigned char maps[2][KVA_PTXSIM_MAP_BYTES];
  kva_ptxsim_map map = {.dtype = KVA_BF16, .rank = 2, .address = a, .dims = {64, 64}, .box = {64, 64}, .swizzle = 128};
  map.strides[1] = 128;
  check(&p, kva_ptxsim_encode_map(&map, p.diag, maps[0]) == KVA_OK);
  map.address = b, map.dims[1] = map.box[1] = 16;
  check(&p, kva_ptxsim_encode_map(&map, p.diag, maps[1]) == KVA_OK);
  run(&p, 5,
      (range[]){
          {a, sizeof a, false}, {b, sizeof b, false}, {d, sizeof d, false}, {maps[0], 0, true}, {maps[1], 0, true}});
  for (int m = 0; m < 64; m++) {
    for (int n = 0; n < 16; n++) {
      double sum = 0;
      for (int k = 0; k < 64; k++) sum += kva_load_f64(KVA_BF16, a, 64 * m + k) * kva_load_f64(KVA_BF16, b, 64 * n + k);
      assert_float_equal(d[16 * m + n], 2 * sum, 1e-3);
    }
  }
  assert_assembles(p.text, p.size, "sm_90a");
  finish(&p);
}

/* Each instruction is code for the targets that have its features, and refused by name for others. */
static void test_features(void **state) {
  (void)state;
  static const struct {
    const char *line, *name, *architectures; /* that have it */
  } rows[] = {{"block_barrier", "block_barrier", "sm_80 sm_90 sm_90a"},
              {"copy_commit", "copy_commit", "sm_80 sm_90 sm_90a"},
              {"store_matrix tile[8*t], a[0], 1, 0", "store_matrix", "sm_90 sm_90a"},
              {"proxy_fence", "proxy_fence", "sm_90 sm_90a"},
              {"mbarrier_fence", "mbarrier_fence", "sm_90 sm_90a"},
              {"wgmma_commit", "wgmma_commit", "sm_90a"}};
  static const char *const architectures[] = {"sm_80", "sm_90", "sm_90a", NULL};
  for (size_t r = 0; r < 4 * (sizeof rows / sizeof *rows); r++) {
    const char *arch = architectures[r % 4], *all = rows[r / 4].architectures, *found = arch ? strstr(all, arch) : NULL;
    while (found && found[strlen(arch)] == 'a') found = strstr(found + 1, arch); /* sm_90 within sm_90a */
    program p = {.arena = kva_arena_create(), .diag = kva_diag_create()};
    const char *text = kva_arena_printf(p.arena,
                                        "kernel \"k\" () threads 128 { shared readwrite float16 tile[1024] local "
                                        "readwrite float16 a[8] thread t < 128 { %s } }",
                                        rows[r / 4].line);
    kva_kernel *k = kva_kernel_parse(p.arena, kva_expr_ctx_create(p.arena), text, "kernel", p.diag);
    check(&p, k);
    check(&p, kva_codegen_create(&(kva_target_options){.arch = arch, .opt_level = 2}, p.diag, &p.cg) == KVA_OK);
    assert_int_equal(kva_codegen_add(p.cg, k, 0, NULL, &p.number), found ? KVA_OK : KVA_INVALID);
    if (!found) assert_non_null(strstr(kva_diag_message(p.diag, 0, NULL, NULL), rows[r / 4].name));
    finish(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_features), cmocka_unit_test(test_product), cmocka_unit_test(test_transpose),
      cmocka_unit_test(test_values),   cmocka_unit_test(test_dynamic), cmocka_unit_test(test_warpgroup),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
