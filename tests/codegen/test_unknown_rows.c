/* Products whose number of rows is known at run time alone: few rows and many take different loops, and a row has the
 * same bits in both. */
#include "tests/support/evaluate.h"
#include "tests/support/target.h"

#include <setjmp.h>
#include <cmocka.h>

enum { MANY = 20 };

static const char *const programs[] = {
    "main (float[M, 37] x, float[37, 100] w, float[100] bias) => (float[M, 100] y) {\n"
    "  y = kv.gelu(kv.matmul(x, w) + bias)\n}",
    "main (float[1, M, 600] x, float[600, 70] w, float[600, 70] v) => (float[1, M, 70] y, float[1, M, 70] z) {\n"
    "  y = kv.matmul(x, w)\n  z = kv.matmul(kv.silu(x), v) * y\n}",
    "main (float[M, 37] x, int8[37, 64] w, float[64] scale) => (float[M, 64] y) {\n"
    "  y = kv.matmul(x, kv.dequantize(w, scale))\n}",
    "main (bfloat16[M, 37] x, bfloat16[37, 64] w) => (bfloat16[M, 64] y) {\n  y = kv.matmul(x, w)\n}",
    "main (float[M, 37] x, float[64, 37] w) => (float[M, 64] y) {\n"
    "  y = kv.matmul <transpose_b = true> (x, w)\n}",
    /* fields of words, which few rows and many turn to floats in different ways */
    "main (float[M, 70] x, uint32[9, 64] w, float[3, 64] scale, uint8[3, 64] zero) => (float[M, 64] y) {\n"
    "  q = kv.unpack <extent = 70, to = uint4> (w)\n"
    "  y = kv.matmul(x, kv.dequantize <axis = 0, block = 32> (q, scale, zero))\n}",
    "main (float[M, 70] x, uint32[2, 9, 64] w, bfloat16[2, 3, 64] scale) => (float[M, 100] y) {\n"
    "  q = kv.unpack <extent = 70, to = int4> (kv.join_panels <columns = 100> (w))\n"
    "  s = kv.join_panels <columns = 100> (scale)\n"
    "  y = kv.matmul(x, kv.dequantize <axis = 0, block = 32, to = float> (q, s))\n}",
    "main (float[M, 70] x, uint32[1, 5, 64] w, float[1, 3, 64] scale, int8[1, 3, 64] zero) => (float[M, 64] y) {\n"
    "  q = kv.unpack <extent = 70, to = int2> (kv.join_panels <columns = 64> (w))\n"
    "  s = kv.join_panels <columns = 64> (scale)\n  z = kv.join_panels <columns = 64> (zero)\n"
    "  y = kv.matmul(x, kv.dequantize <axis = 0, block = 32> (q, s, z))\n}",
    "main (float[M, 70] x, uint32[1, 5, 64] w, float scale) => (float[M, 64] y) {\n"
    "  q = kv.unpack <extent = 70, to = uint2> (kv.join_panels <columns = 64> (w))\n"
    "  y = kv.matmul(x, kv.dequantize(q, scale))\n}",
    "main (float[M, 70] x, float[2, 70, 64] w) => (float[M, 100] y) {\n"
    "  y = kv.matmul(x, kv.join_panels <columns = 100> (w))\n}",
    "main (float[M, 70] x, float16[2, 70, 64] w) => (float[M, 128] y) {\n"
    "  y = kv.matmul(x, kv.cast <to = float> (kv.join_panels <columns = 128> (w)))\n}",
    /* slices of several blocks, blocks of several groups */
    "main (float[M, 900] x, uint8[900, 100] q, float[8, 100] scale, uint8[8, 100] zero) => (float[M, 100] y) {\n"
    "  y = kv.matmul(x, kv.dequantize <axis = 0, block = 128> (q, scale, zero))\n}",
    "main (float[M, 900] x, uint32[1, 113, 64] w, float[1, 29, 64] scale) => (float[M, 64] y) {\n"
    "  q = kv.unpack <extent = 900, to = int4> (kv.join_panels <columns = 64> (w))\n"
    "  s = kv.join_panels <columns = 64> (scale)\n"
    "  y = kv.matmul(x, kv.dequantize <axis = 0, block = 32> (q, s))\n}",
    /* whole blocks, whose sums begin with their zero points */
    "main (float[M, 96] x, uint32[12, 100] w, float[3, 100] scale, uint8[3, 100] zero) => (float[M, 100] y) {\n"
    "  q = kv.unpack <extent = 96, to = uint4> (w)\n"
    "  y = kv.matmul(kv.silu(x), kv.dequantize <axis = 0, block = 32> (q, scale, zero))\n}",
    "main (float[M, 2080] x, uint32[2, 260, 64] w, float[2, 65, 64] scale, uint8[2, 65, 64] zero)\n"
    "    => (float[M, 100] y) {\n  q = kv.unpack <extent = 2080, to = uint4> (kv.join_panels <columns = 100> (w))\n"
    "  s = kv.join_panels <columns = 100> (scale)\n  z = kv.join_panels <columns = 100> (zero)\n"
    "  y = kv.matmul(x, kv.dequantize <axis = 0, block = 32> (q, s, z))\n}",
    "main (float[M, 1152] x, uint32[1, 144, 64] w, float[1, 9, 64] scale, int8[1, 9, 64] zero) => (float[M, 64] y) {\n"
    "  q = kv.unpack <extent = 1152, to = int4> (kv.join_panels <columns = 64> (w))\n"
    "  s = kv.join_panels <columns = 64> (scale)\n  z = kv.join_panels <columns = 64> (zero)\n"
    "  y = kv.matmul(x, kv.dequantize <axis = 0, block = 128> (q, s, z))\n}",
};

static kva_module *load(const char *text, kva_diag *diag) {
  kva_module *m = NULL;
  kva_status status = kva_load_text(text, "rows.kv", NULL, diag, &m);
  kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  return m;
}

static evaluated run(const kva_compiled *c, int64_t rows) {
  return evaluate_compiled(c, c->module->functions.data[0], (const eval_size[]){{"M", rows}, {NULL, 0}});
}

static void check_prefix(const evaluated *few, const evaluated *many) {
  assert_int_equal(few->n_outputs, many->n_outputs);
  for (uint32_t i = 0; i < few->n_outputs; i++) {
    const kva_ref_tensor *x = few->outputs[i], *y = many->outputs[i];
    assert_true(x->n <= y->n);
    assert_memory_equal(x->f, y->f, (size_t)x->n * sizeof *x->f);
  }
}

/* The program with `rows` rows, known to the compiler, against the same rows of many. */
static void check_known_rows(const char *text, char rows, const evaluated *many) {
  char known[512];
  assert_true(strlen(text) < sizeof known);
  strcpy(known, text);
  for (char *at = known; (at = strchr(at, 'M')) != NULL;) *at = rows;
  kva_diag *diag = kva_diag_create();
  kva_compiled *c;
  assert_int_equal(kva_compile(load(known, diag), &(kva_compile_options){.target = test_target(0, NULL)}, diag, &c),
                   KVA_OK);
  evaluated few = evaluate_compiled(c, c->module->functions.data[0], (const eval_size[]){{NULL, 0}});
  check_prefix(&few, many);
  evaluated_free(&few);
  kva_compiled_destroy(c);
  kva_diag_destroy(diag);
}

static void check_program(const char *text) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = load(text, diag);
  kva_compiled *c;
  assert_int_equal(kva_compile(load(text, diag), &(kva_compile_options){.target = test_target(0, NULL)}, diag, &c),
                   KVA_OK);
  evaluated many = run(c, MANY);
  for (int64_t rows = 0; rows < 11; rows++) {
    evaluated few = run(c, rows);
    check_prefix(&few, &many);
    evaluated_free(&few);
  }
  bool along_depth = strstr(text, "transpose_b") != NULL; /* few known rows are sums of lanes then */
  for (char rows = '1'; !along_depth && rows <= '8'; rows++) check_known_rows(text, rows, &many);
  evaluated expected = evaluate_reference(m, m->functions.data[0], (const eval_size[]){{"M", MANY}, {NULL, 0}});
  assert_true(evaluated_equal(text, m, &expected, &many, 1e-2));
  evaluated_free(&expected);
  evaluated_free(&many);
  kva_compiled_destroy(c);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void test_rows(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) check_program(programs[i]);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
