/* Products of tiles in registers (ir/dialect_amx.h), where this machine has them, against the reference: every layout
 * of factors, edges of rows and columns, several slices of the depth, batches, unknown rows, epilogues. */
#include "tests/support/evaluate.h"
#include "tests/support/target.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static const char *const products[] = {
    "main (bfloat16[64, 64] x, bfloat16[64, 64] w) => (bfloat16[64, 64] y) {\n  y = kv.matmul(x, w)\n}",
    /* rows and columns past the edges; an epilogue */
    "main (bfloat16[70, 96] x, bfloat16[96, 50] w, float[50] bias) => (float[70, 50] y) {\n"
    "  y = kv.gelu(kv.cast <to = float> (kv.matmul(x, w)) + bias)\n}",
    "main (bfloat16[70, 96] x, bfloat16[50, 96] w) => (bfloat16[70, 50] y) {\n"
    "  y = kv.matmul <transpose_b = true> (x, w)\n}",
    "main (bfloat16[96, 70] x, bfloat16[96, 50] w) => (bfloat16[70, 50] y) {\n"
    "  y = kv.matmul <transpose_a = true> (x, w)\n}",
    "main (bfloat16[96, 70] x, bfloat16[50, 96] w) => (bfloat16[70, 50] y) {\n"
    "  y = kv.matmul <transpose_a = true, transpose_b = true> (x, w)\n}",
    /* several slices, whose last is shorter */
    "main (bfloat16[300, 4128] x, bfloat16[4128, 290] w) => (bfloat16[300, 290] y) {\n  y = kv.matmul(x, w)\n}",
    "main (bfloat16[4128, 40] x, bfloat16[33, 4128] w) => (bfloat16[40, 33] y) {\n"
    "  y = kv.matmul <transpose_a = true, transpose_b = true> (x, w)\n}",
    "main (bfloat16[3, 5, 40, 64] x, bfloat16[3, 1, 64, 48] w) => (bfloat16[3, 5, 40, 48] y) {\n"
    "  y = kv.matmul(x, w)\n}",
    /* factors that are made in the kernel; bytes of large values */
    "main (float[40, 64] x, float[64, 48] w) => (bfloat16[40, 48] y) {\n"
    "  y = kv.matmul(kv.cast <to = bfloat16> (kv.silu(x)), kv.cast <to = bfloat16> (w))\n}",
    "main (bfloat16[M, 64] x, bfloat16[64, 48] w) => (bfloat16[M, 48] y) {\n  y = kv.matmul(x, w)\n}",
    "main (bfloat16[M, 64] x, bfloat16[48, 64] w) => (bfloat16[M, 48] y) {\n"
    "  y = kv.matmul <transpose_b = true> (x, w)\n}",
    "main (uint8[70, 128] x, int8[128, 50] w) => (int32[70, 50] y) {\n"
    "  y = kv.matmul <to = int32> (x * 120, w * -60)\n}",
    "main (int8[70, 128] x, uint8[50, 128] w) => (int32[70, 50] y) {\n"
    "  y = kv.matmul <transpose_b = true, to = int32> (x * -60, w * 120)\n}",
    /* the last word has bytes past the end */
    "main (uint8[70, 62] x, int8[62, 50] w) => (int32[70, 50] y) {\n  y = kv.matmul <to = int32> (x * 120, w)\n}",
    "main (uint8[40, 127] x, int8[50, 127] w) => (int32[40, 50] y) {\n"
    "  y = kv.matmul <transpose_b = true, to = int32> (x * 120, w)\n}",
    /* constants in panels of words */
    "main (uint8[70, 128] x) => (int32[70, 64] y) {\n"
    "  w = kv.cast <to = int8> (kv.reshape <shape = [128, 64]> (kv.iota <shape = [8192]> ()))\n"
    "  y = kv.matmul <to = int32> (x * 120, w)\n}",
    "main (int8[M, 64] x) => (int32[M, 192] y) {\n"
    "  w = kv.cast <to = uint8> (kv.reshape <shape = [192, 64]> (kv.iota <shape = [12288]> ()))\n"
    "  y = kv.matmul <transpose_b = true, to = int32> (x * -60, w)\n}",
    "main (uint8[4160, 70] x, int8[4160, 50] w) => (int32[70, 50] y) {\n"
    "  y = kv.matmul <transpose_a = true, to = int32> (x, w)\n}",
};

/* Floats, by three bf16 each: errors are those of floats. */
static const char *const floats[] = {
    "main (float[64, 64] x, float[64, 64] w) => (float[64, 64] y) {\n  y = kv.matmul(x, w)\n}",
    "main (float[70, 96] x, float[96, 50] w, float[50] bias) => (float[70, 50] y) {\n"
    "  y = kv.gelu(kv.matmul(kv.silu(x), w) + bias)\n}",
    "main (float[70, 96] x, float[50, 96] w) => (float[70, 50] y) {\n"
    "  y = kv.matmul <transpose_b = true> (x, w)\n}",
    "main (float[96, 70] x, float[96, 50] w) => (float[70, 50] y) {\n"
    "  y = kv.matmul <transpose_a = true> (x, w)\n}",
    "main (float[96, 70] x, float[50, 96] w) => (float[70, 50] y) {\n"
    "  y = kv.matmul <transpose_a = true, transpose_b = true> (x, w)\n}",
    "main (float[600, 4128] x, float[4128, 290] w) => (float[600, 290] y) {\n  y = kv.matmul(x, w)\n}",
    "main (float[4128, 40] x, float[33, 4128] w) => (float[40, 33] y) {\n"
    "  y = kv.matmul <transpose_a = true, transpose_b = true> (x, w)\n}",
    "main (float[3, 5, 40, 64] x, float[3, 1, 64, 48] w) => (float[3, 5, 40, 48] y) {\n"
    "  y = kv.matmul(x, w)\n}",
    "main (float[M, 64] x, float[64, 48] w) => (float[M, 48] y) {\n  y = kv.matmul(x, w)\n}",
    "main (float[M, 64] x, float[48, 64] w) => (float[M, 48] y) {\n"
    "  y = kv.matmul <transpose_b = true> (x, w)\n}",
    /* infinities, which 1 / relu(x) has for x < 0, and NaN, in some rows of a and columns of b; their neighbours are
       finite */
    "main (float[64, 64] x, float[4, 64] z, float[64, 96] w) => (float[68, 96] y) {\n"
    "  y = kv.matmul(kv.concat <axis = 0> (x, 1.0 / kv.relu(z)), w)\n}",
    "main (float[96, 96] x, float[70, 96] w, float[2, 96] z) => (float[96, 72] y) {\n"
    "  y = kv.matmul <transpose_b = true> (x, kv.concat <axis = 0> (w, kv.sqrt(z)))\n}",
    /* parts of such elements would be subnormal, or their sums infinite */
    "main (float[70, 96] x, float[96, 50] w) => (float[70, 50] y) {\n  y = kv.matmul(x * 1e-36, w) * 1e36\n}",
    "main (float[70, 96] x, float[96, 50] w) => (float[70, 50] y) {\n  y = kv.matmul(x * 1e-25, w * 1e-12) * 1e37\n}",
    "main (float[96, 70] x, float[50, 96] w) => (float[70, 50] y) {\n"
    "  y = kv.matmul <transpose_a = true, transpose_b = true> (x * 1e-25, w * 1e37) * 1e-12\n}",
};

static bool machine_has_amx(void) {
  kva_target t;
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_codegen_describe(&(kva_target_options){0}, diag, &t), KVA_OK);
  kva_diag_destroy(diag);
  return kva_target_has(&t, KVA_TARGET_AMX);
}

static kva_module *load(const char *text, kva_diag *diag) {
  kva_module *m = NULL;
  kva_status status = kva_load_text(text, "product.kv", NULL, diag, &m);
  kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  return m;
}

static kva_compiled *compiled(const char *text, bool bf16x3, kva_diag *diag) {
  kva_compile_options options = {.target = test_target(0, NULL)};
  kva_compiled *c;
  options.target.bf16x3_gemm = bf16x3;
  assert_int_equal(kva_compile(load(text, diag), &options, diag, &c), KVA_OK);
  return c;
}

static void check(const char *text, bool bf16x3, double tolerance) {
  static const eval_size sizes[][2] = {{{"M", 70}, {NULL, 0}}, {{"M", 3}, {NULL, 0}}, {{"M", 0}, {NULL, 0}}};
  kva_diag *diag = kva_diag_create();
  kva_module *m = load(text, diag);
  kva_compiled *c = compiled(text, bf16x3, diag);
  for (size_t i = 0; i < (strchr(text, 'M') ? sizeof sizes / sizeof *sizes : 1); i++) {
    evaluated expected = evaluate_reference(m, m->functions.data[0], sizes[i]);
    evaluated found = evaluate_compiled(c, c->module->functions.data[0], sizes[i]);
    assert_true(evaluated_equal(text, m, &expected, &found, tolerance));
    evaluated_free(&expected);
    evaluated_free(&found);
  }
  kva_compiled_destroy(c);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void test_products(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof products / sizeof *products; i++) check(products[i], false, 1e-2); /* results of bf16 */
}

static void test_floats(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) check(floats[i], true, 1e-5);
}

/* Errors of a short and of a long sum, relative to the sum of magnitudes. FMAs have up to 6 and 62 times 2^-24 here. */
static void test_accuracy(void **state) {
  (void)state;
  static const struct {
    const char *depth;
    double bound;
  } rows[] = {{"32", 8 * 0x1p-24}, {"4128", 24 * 0x1p-24}};
  for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
    char text[300];
    snprintf(text, sizeof text,
             "main (float[96, %s] x, float[%s, 96] w) => (float[96, 96] y, float[96, 96] z) {\n"
             "  y = kv.matmul(x, w)\n  z = kv.matmul(kv.abs(x), kv.abs(w))\n}",
             rows[k].depth, rows[k].depth);
    kva_diag *diag = kva_diag_create();
    kva_module *m = load(text, diag);
    kva_compiled *c = compiled(text, true, diag);
    evaluated expected = evaluate_reference(m, m->functions.data[0], NULL);
    evaluated found = evaluate_compiled(c, c->module->functions.data[0], NULL);
    for (uint32_t i = 0; i < 2; i++)
      for (int64_t j = 0; j < expected.outputs[i]->n; j++)
        assert_true(fabs(expected.outputs[i]->f[j] - found.outputs[i]->f[j]) <=
                    rows[k].bound * expected.outputs[1]->f[j]);
    evaluated_free(&expected);
    evaluated_free(&found);
    kva_compiled_destroy(c);
    kva_module_destroy(m);
    kva_diag_destroy(diag);
  }
}

static char *assembly_of(kva_module *m, bool bf16x3, kva_diag *diag) {
  const kva_compile_options options = {.target = {.cpu = "sapphirerapids", .opt_level = 2, .bf16x3_gemm = bf16x3}};
  uint32_t n;
  kva_memory_plan **plans;
  kva_codegen *cg;
  kva_artifact *artifact;
  char *text;
  size_t size;
  kva_arena *arena = kva_arena_create();
  assert_int_equal(kva_compile_graph(m, &options), KVA_OK);
  assert_int_equal(kva_plan_functions(m, &options, arena, &n, &plans), KVA_OK);
  assert_int_equal(kva_codegen_create(&options.target, diag, &cg), KVA_OK);
  assert_int_equal(kva_codegen_tables(cg, arena, m, n, plans, &artifact), KVA_OK);
  assert_int_equal(kva_codegen_emit(cg, "asm", &text, &size), KVA_OK);
  kva_codegen_destroy(cg);
  kva_arena_destroy(arena);
  return text;
}

/* Code that any machine can make: which products have it. */
static void test_choice(void **state) {
  (void)state;
  static const struct {
    const char *text, *instruction;
    bool bf16x3;
  } rows[] = {
      {"main (bfloat16[64, 64] x, bfloat16[64, 64] w) => (bfloat16[64, 64] y) {\n  y = kv.matmul(x, w)\n}", "tdpbf16ps",
       false},
      {"main (uint8[64, 64] x, int8[64, 64] w) => (int32[64, 64] y) {\n  y = kv.matmul <to = int32> (x, w)\n}",
       "tdpbusd", false},
      {"main (int8[64, 64] x, uint8[64, 64] w) => (int32[64, 64] y) {\n  y = kv.matmul <to = int32> (x, w)\n}",
       "tdpbsud", false},
      {"main (bfloat16[64, 48] x, bfloat16[48, 64] w) => (bfloat16[64, 64] y) {\n  y = kv.matmul(x, w)\n}", NULL,
       false},
      {"main (bfloat16[20, 64] x, bfloat16[64, 64] w) => (bfloat16[20, 64] y) {\n  y = kv.matmul(x, w)\n}", NULL,
       false},
      {"main (float[64, 64] x, float[64, 64] w) => (float[64, 64] y) {\n  y = kv.matmul(x, w)\n}", "tdpbf16ps", true},
      {"main (float[64, 64] x, float[64, 64] w) => (float[64, 64] y) {\n  y = kv.matmul(x, w)\n}", NULL, false},
      {"main (float[64, 48] x, float[48, 64] w) => (float[64, 64] y) {\n  y = kv.matmul(x, w)\n}", NULL, true},
      {"main (double[64, 64] x, double[64, 64] w) => (double[64, 64] y) {\n  y = kv.matmul(x, w)\n}", NULL, true},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    kva_diag *diag = kva_diag_create();
    kva_module *m = load(rows[i].text, diag);
    char *text = assembly_of(m, rows[i].bf16x3, diag);
    const char *found = strstr(text, "tdpb");
    if (rows[i].instruction)
      assert_true(found && !strncmp(found, rows[i].instruction, strlen(rows[i].instruction)));
    else
      assert_null(found);
    free(text);
    kva_module_destroy(m);
    kva_diag_destroy(diag);
  }
}

static void test_refused(void **state) {
  (void)state;
  kva_target t;
  kva_diag *diag = kva_diag_create();
  const kva_target_options options = {.cpu = "znver5", .bf16x3_gemm = true};
  assert_int_equal(kva_codegen_describe(&options, diag, &t), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "needs a CPU with AMX, which znver5 has not"));
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest choice[] = {cmocka_unit_test(test_choice), cmocka_unit_test(test_refused)};
  const struct CMUnitTest run[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_floats),
                                   cmocka_unit_test(test_accuracy)};
  int failed = cmocka_run_group_tests_name("choice", choice, NULL, NULL);
  if (machine_has_amx()) return failed + cmocka_run_group_tests_name("products", run, NULL, NULL);
  printf("SKIP: this machine has no AMX; its code was made, not run\n");
  return failed ? failed : 77;
}
