/* Instructions of dialects: text round trip of every one, what the verifier refuses, hash. */
#include "tests/support/kernel_fixture.h"
#include "ir/dialect.h"
#include "ir/dialect_nv.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static const char head[] = "kernel \"all\" (read bfloat16 x[64*N], write float y[N]) threads 384 {\n"
                           "  tensor_map x dims(64, N) steps(128) box(64, 8) swizzle 128\n"
                           "  shared readwrite bfloat16 tile[8192]\n"
                           "  shared readwrite float over_tile[4096] over tile\n"
                           "  shared readwrite uint64 bars[2]\n"
                           "  local readwrite bfloat16 a[8]\n"
                           "  local readwrite bfloat16 b[4]\n"
                           "  local readwrite float d[8]\n"
                           "  local readwrite float sums[1024]\n"
                           "  local readwrite float words[1024]\n"
                           "  grid g < N {\n"
                           "    thread t < 384 {\n";
static const char tail[] = "    }\n  }\n}\n";

static const char all[] = "      copy_async tile[8*t], x[64*g + 8*t], min(16, N)\n"
                          "      copy_commit\n"
                          "      copy_wait 2\n"
                          "      load_matrix a[0], tile[8*t], 4, 1\n"
                          "      store_matrix tile[8*t], b[0], 2, 0\n"
                          "      mma d[4], a[0], b[0]\n"
                          "      block_barrier\n"
                          "      named_barrier 1, 64\n"
                          "      named_arrive 2, 128\n"
                          "      subgroup_barrier\n"
                          "      %0 = load d[0]\n"
                          "      %1 = shuffle_xor %0, 2\n"
                          "      %2 = exp2 %1\n"
                          "      store over_tile[t], %2\n"
                          "      round_pair a[2], d[4]\n"
                          "      mbarrier_init bars[1], 3\n"
                          "      mbarrier_fence\n"
                          "      mbarrier_expect bars[0], 1024\n"
                          "      mbarrier_arrive bars[1]\n"
                          "      mbarrier_arrive_if bars[1], mod(t, 2)\n"
                          "      mbarrier_wait bars[0], mod(g, 2)\n"
                          "      tensor_load tile[512], bars[0], 0, 0, 8*g\n"
                          "      proxy_fence\n"
                          "      wgmma d[0], tile[0], tile[4096], mod(t, 2), 16, 0, 1, 0, 2048\n"
                          "      wgmma_registers d[0], a[0], tile[0], 1, 16, 1, 2048\n"
                          "      wgmma_fence d[0], 8\n"
                          "      wgmma_fence2 d[0], 4, a[0], 4\n"
                          "      wgmma_commit\n"
                          "      wgmma_wait 1, d[0], 8\n"
                          "      wgmma_wait2 0, d[0], 4, d[4], 4\n"
                          "      amx_begin\n"
                          "      amx_clear\n"
                          "      amx_load sums[0]\n"
                          "      amx_step words[0], words[512], 0\n"
                          "      amx_store sums[0]\n"
                          "      amx_end\n"
                          "      prefetch x[64*g + 8*t]\n";

static kva_kernel *parse(kernel_fixture *f, const char *lines) {
  kva_text text = {0};
  kva_text_add(&text, "%s%s%s", head, lines, tail);
  kva_kernel *k = kva_kernel_parse(f->arena, f->exprs, text.data, "text", f->diag);
  kva_text_free(&text);
  return k;
}

static void test_round_trip(void **state) {
  kernel_fixture *f = *state;
  for (uint32_t d = 0; d < KVA_DIALECT_COUNT; d++) {
    const kva_dialect *dialect = kva_intrinsic_dialect(KVA_DIALECT_FIRST(d));
    for (uint32_t i = 0; i < dialect->n_rows; i++) assert_non_null(strstr(all, dialect->rows[i].name));
  }
  kva_kernel *k = parse(f, all);
  if (!k) kva_diag_print(f->diag, stderr);
  assert_non_null(k);
  kva_kernel_sweep(k);
  kva_text text = {0}, expected = {0};
  kva_kernel_print(k, &text);
  kva_text_add(&expected, "%s%s%s", head, all, tail);
  assert_string_equal(text.data, expected.data);
  kva_text_free(&text);
  kva_text_free(&expected);
}

static const struct refusal {
  const char *line, *says;
} refusals[] = {
    {"copy_async a[0], x[0], 16", "another memory"},
    {"copy_async tile[0], tile[0], 16", "another memory"},
    {"copy_async over_tile[0], x[0], 16", "not of one size"},
    {"copy_async tile[4], x[0], 16", "multiple of 16 bytes"},
    {"copy_async tile[8*t], x[64*g + 1], 16", "multiple of 16 bytes"},
    {"load_matrix a[0], tile[0], 3, 0", "1, 2 or 4 matrices"},
    {"load_matrix a[0], tile[0], 4, 2", "neither 0 nor 1"},
    {"load_matrix a[0], tile[8*t + 2], 4, 0", "multiple of 16 bytes"},
    {"load_matrix a[2], tile[0], 4, 0", "exceed their buffer"},
    {"load_matrix d[0], tile[0], 4, 0", "one type of 16 bits"},
    {"store_matrix tile[0], b[0], 4, 0", "exceed their buffer"},
    {"mma a[0], a[0], b[0]", "sums are not float"},
    {"mma d[0], d[0], b[0]", "factors are neither"},
    {"mma d[6], a[0], b[0]", "exceed their buffer"},
    {"mma d[0], a[1], b[0]", "exceed their buffer"},
    {"mma d[0], a[0], b[1]", "exceed their buffer"},
    {"round_pair d[0], d[0]", "does not round float"},
    {"round_pair a[7], d[0]", "exceed their buffer"},
    {"%0 = shuffle_xor 1.0, 32", "not of the subgroup"},
    {"named_barrier 0, 64", "number is not 1 to 15"},
    {"named_barrier 16, 64", "number is not 1 to 15"},
    {"named_barrier 1, 33", "whole warps of the block"},
    {"named_arrive 1, 512", "whole warps of the block"},
    {"mbarrier_arrive tile[0]", "which is not uint64"},
    {"mbarrier_init bars[0], 0", "2^20 - 1"},
    {"mbarrier_expect bars[0], 1048576", "2^20 - 1"},
    {"tensor_load tile[0], bars[0], 1, 0, 0", "no such tensor map"},
    {"tensor_load tile[0], bars[0], 0, 0", "another number of dimensions"},
    {"tensor_load over_tile[0], bars[0], 0, 0, 0", "of another type"},
    {"tensor_load tile[8], bars[0], 0, 0, 0", "multiple of 128 bytes"},
    {"tensor_load tile[7744], bars[0], 0, 0, 0", "box exceeds"},
    {"wgmma d[0], tile[0], tile[0], 1, 12, 0, 0, 0, 0", "multiple of 8 up to 256"},
    {"wgmma d[0], tile[0], tile[0], 1, 264, 0, 0, 0, 0", "multiple of 8 up to 256"},
    {"wgmma d[0], tile[0], tile[0], 1, 24, 0, 0, 0, 0", "exceed their buffer"},
    {"wgmma a[0], tile[0], tile[0], 1, 16, 0, 0, 0, 0", "sums are not float"},
    {"wgmma d[0], tile[0], over_tile[0], 1, 16, 0, 0, 0, 0", "factors are neither"},
    {"wgmma d[0], tile[0], tile[0], 1, 16, 2, 0, 0, 0", "neither 0 nor 1"},
    {"wgmma d[0], tile[0], tile[0], 1, 16, 0, 0, 8, 0", "multiple of 16 below"},
    {"wgmma d[0], tile[0], tile[0], 1, 16, 0, 0, 0, 262144", "multiple of 16 below"},
    {"wgmma d[0], tile[0], tile[4], 1, 16, 0, 0, 0, 0", "multiple of 16 bytes"},
    {"wgmma_registers d[0], b[0], tile[0], 1, 16, 1, 2048", "exceed their buffer"},
    {"wgmma_fence d[0], 9", "exceed their buffer"},
    {"wgmma_fence2 d[0], 8, a[0], 5", "exceed their buffer"},
    {"wgmma_wait 8, d[0], 8", "more groups"},
    {"wgmma_wait2 0, d[0], 4, d[4], 5", "exceed their buffer"},
    {"amx_load d[0]", "sums exceed their buffer"},
    {"amx_store a[0]", "sums have another type"},
    {"amx_step words[0], words[513], 0", "words exceed their buffer"},
    {"amx_step words[0], words[512], 1", "another type than the sums"},
    {"amx_step words[0], words[512], 3", "words exceed their buffer"},
    {"amx_step words[0], words[512], 4", "no factors are of this kind"},
    {"prefetch tile[0]", "in another memory"},
    {"%0 = copy_commit", "no instruction 'copy_commit' makes a value"},
    {"exp2 1.0", "expected an instruction"},
    {"mma d[0], a[0]", "expected ','"},
};

static void test_refusals(void **state) {
  kernel_fixture *f = *state;
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
    kva_text line = {0};
    kva_text_add(&line, "      %s\n", refusals[i].line);
    size_t before = kva_diag_count(f->diag);
    assert_null(parse(f, line.data));
    assert_true(kva_diag_count(f->diag) > before);
    const char *message = kva_diag_message(f->diag, before, NULL, NULL);
    if (!strstr(message, refusals[i].says)) fail_msg("%s: %s", refusals[i].line, message);
    kva_text_free(&line);
  }
}

/* Where they stand: in code of single threads of the block, which has whole warpgroups where it matters. */
static void test_places(void **state) {
  kernel_fixture *f = *state;
  static const struct refusal kernels[] = {
      {"threads 128 { grid g < 2 { block_barrier } }", "threads of whole subgroups"},
      {"threads 128 { thread t < 64 { block_barrier } }", "threads of whole subgroups"},
      {"threads 128 { thread r < 4 subgroup 32 { thread t < 32 { block_barrier } } }", "over the block's threads"},
      {"threads 128 { thread r < 4 subgroup 32 { thread t < 32 { copy_commit } } }", "over the block's threads"},
      {"threads 128 { thread r < 4 subgroup 16 { thread t < 16 { subgroup_barrier } } }", "threads of whole subgroups"},
      {"threads 128 { thread r < 4 subgroup 32 { thread t < 31 { subgroup_barrier } } }", "threads of whole subgroups"},
      {"threads 128 { thread r < 4 subgroup 32 { thread t < 32 { subgroup_barrier } } }", NULL},
      {"threads 128 { thread t < 128 width 4 { copy_commit } }", "over the block's threads"},
      {"threads 128 { thread t < 128 subgroup 32 { copy_commit } }", "over the block's threads"},
      {"threads 96 { thread t < 96 { wgmma_commit } }", "no whole warpgroup"},
      {"threads 96 { thread t < 96 { proxy_fence } }", NULL},
      {"threads 128 { grid g < 2 { thread t < 128 { serial i < 4 { wgmma_commit } } } }", NULL},
  };
  for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
    kva_text text = {0};
    kva_text_add(&text, "kernel \"k\" () %s", kernels[i].line);
    kva_diag_clear(f->diag);
    assert_int_equal(kva_kernel_parse(f->arena, f->exprs, text.data, "k.txt", f->diag) != NULL, !kernels[i].says);
    if (kernels[i].says) assert_non_null(strstr(kva_diag_message(f->diag, 0, NULL, NULL), kernels[i].says));
    kva_text_free(&text);
  }
}

/* Every operand counts. */
static void test_hash(void **state) {
  kernel_fixture *f = *state;
  static const char *const different[] = {"copy_async tile[8*t], x[8*t], 16\n",  "copy_async tile[8*t], x[8*t], 8\n",
                                          "copy_async tile[t], x[8*t], 16\n",    "load_matrix a[0], tile[8*t], 4, 0\n",
                                          "load_matrix a[0], tile[8*t], 4, 1\n", "load_matrix b[0], tile[8*t], 2, 0\n"};
  enum { N = sizeof different / sizeof *different };
  uint64_t hashes[N];
  for (size_t i = 0; i < N; i++) {
    kva_kernel *k = parse(f, different[i]);
    assert_non_null(k);
    hashes[i] = kernel_code_hash(k);
    assert_true(hashes[i] == kernel_code_hash(parse(f, different[i])));
    for (size_t j = 0; j < i; j++) assert_true(hashes[i] != hashes[j]);
  }
}

/* What the builder makes is what the text says, and marks what is read and written. */
static void test_builder(void **state) {
  kernel_fixture *f = *state;
  kva_kb *b = kva_kb_create(kva_kernel_create(f->arena, f->exprs, "built"));
  b->kernel->threads = 32;
  kva_kbuf *x = kva_k_param(b, "x", KVA_BF16, kva_expr_const(f->exprs, 256));
  kva_kbuf *tile = kva_k_shared(b, "tile", KVA_BF16, 256);
  kva_kloop *t = kva_k_loop_begin(b, KVA_K_THREAD, kva_expr_const(f->exprs, 32), "t");
  const kva_expr *at = kva_expr_muli(f->exprs, t->var, 8);
  kva_kintrinsic copy = {.op = KVA_NV_copy_async, .places = {{tile, at}, {x, at}}};
  copy.indices[0] = kva_expr_const(f->exprs, 16);
  assert_null(kva_k_intrinsic(b, &copy, NULL));
  kva_kintrinsic exp2 = {.op = KVA_TILE_exp2};
  assert_non_null(kva_k_intrinsic(b, &exp2, kva_k_const_f(b, KVA_F32, 1))); /* unused: swept */
  kva_k_loop_end(b, t);
  kva_kernel_sweep(b->kernel);
  assert_int_equal(kva_kernel_verify(b->kernel, f->diag), KVA_OK);
  kva_text text = {0};
  kva_kernel_print(b->kernel, &text);
  assert_string_equal(text.data, "kernel \"built\" (read bfloat16 x[256]) threads 32 {\n"
                                 "  shared write bfloat16 tile[256]\n"
                                 "  thread t < 32 {\n"
                                 "    copy_async tile[8*t], x[8*t], 16\n"
                                 "  }\n"
                                 "}\n");
  kva_text_free(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_round_trip, kernel_fixture_create, kernel_fixture_destroy),
      cmocka_unit_test_setup_teardown(test_refusals, kernel_fixture_create, kernel_fixture_destroy),
      cmocka_unit_test_setup_teardown(test_places, kernel_fixture_create, kernel_fixture_destroy),
      cmocka_unit_test_setup_teardown(test_hash, kernel_fixture_create, kernel_fixture_destroy),
      cmocka_unit_test_setup_teardown(test_builder, kernel_fixture_create, kernel_fixture_destroy),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
