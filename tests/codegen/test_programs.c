/* Whole programs, compiled for the CPU and a simulated GPU and run against the reference: those that were once compiled
 * wrongly. */
#include "tests/support/evaluate.h"
#include "tests/support/target.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct program {
  const char *name, *text;
} program;

static const program programs[] = {
    /* LLVM 19's InstCombine drops the absolute value in a comparison with zero (codegen/llvm_arith.c,
     * codegen/llvm_arith.c). */
    {"softplus of an absolute value", "main (double[15] x) => (double[15] y) { y = kv.softplus(kv.abs(x)) }"},
    {"maximum of an absolute value and zero",
     "main (double[15] x) => (double[15] y, double[15] z) {\n"
     "  a = kv.abs(x)\n  e = kv.exp(-a)\n  y = kv.max(a, 0.0) + e\n  z = kv.max(0.0, a) * e\n}"},
    {"minimum of a negated absolute value and zero",
     "main (float[15] x) => (float[15] y, float[15] z) {\n"
     "  a = kv.abs(x)\n  e = kv.exp(-a)\n  y = kv.min(-a, 0.0) + e\n  z = kv.min(0.0, -a) * e\n}"},
    {"maxima of NaN, either side", "main (float[3] x) => (float[3] y, float[3] z, float[3] u, float[3] v) {\n"
                                   "  n = kv.log(kv.abs(x) - 7.0)\n  y = kv.max(n, x)\n  z = kv.max(x, n)\n  u = "
                                   "kv.max(n, 0.0)\n  v = kv.min(0.0, n)\n}"},
    /* LLVM loads a vector once more where its elements go to a function one by one (codegen/llvm_emit.c). */
    {"results in the memory of what they are made of",
     "main (double[80] x) => (double[80] a, double[80] b, double[80] c) {\n"
     "  s = kv.cumsum <axis = 0> (x)\n  p = kv.neg(s)\n  q = kv.tanh(s)\n  r = kv.sin(s)\n"
     "  a = kv.cumsum <axis = 0> (p)\n  b = kv.cumsum <axis = 0> (q)\n  c = kv.cumsum <axis = 0> (r)\n}"},
    /* One of several work items stores where all of them have loaded, or not yet (ir/kernel_alias.c). */
    {"results of single items in the memory of what they are made of",
     "main (double[1, 1] x, double[1, 1] y) => (double[1, 1] a, double[1, 1] b, double[1, 1] c) {\n"
     "  p = kv.cumsum(x)\n  q = kv.cumsum(y)\n  u = kv.tanh(p)\n"
     "  v = kv.rms_norm <eps = 0.01> (p + q, u)\n  w = kv.min(v, p + q)\n"
     "  a = kv.cumsum(u)\n  b = kv.cumsum(v)\n  c = kv.cumsum(w)\n}"},
    /* Kernels that differ only in which index has which stride: once of one hash, and so compiled once. */
    {"a square matrix as it is and transposed",
     "main (double[16, 16] a, double[16, 4] b) => (double[16, 4] y, double[16, 4] z) {\n"
     "  y = kv.matmul(a, b)\n  z = kv.matmul <transpose_a = true> (a, b)\n}"},
    {"sums of a square matrix over rows and columns", "main (double[4, 4] a) => (double[4] y, double[4] z) {\n"
                                                      "  y = kv.reduce_sum <axes = [0], keepdims = false> (a)\n  z = "
                                                      "kv.reduce_sum <axes = [1], keepdims = false> (a)\n}"},
    /* NVPTX selects 1 for a signed conversion of a bit (codegen/llvm_ptx.c). */
    {"a bit and -1, converted", "main (double[4] x) => (double[8] y, double[8] z) {\n"
                                "  b = kv.less(x, 0.0)\n"
                                "  k = kv.mod(kv.cast <to = int64> (kv.concat(b, b)), 3) + (-1)\n"
                                "  z = kv.cast <to = double> (k)\n  y = kv.tan(z)\n}"},
    /* NVPTX's passes take addresses of even elements for those of odd ones (codegen/llvm_ptx.c). */
    {"a rotation of neighbours",
     "main (float[7] x, float[3] c, float[3] s) => (float[6] y) {\n"
     "  a = kv.slice <starts = [0], shape = [3], steps = [2]> (x)\n"
     "  b = kv.slice <starts = [1], shape = [3], steps = [2]> (x)\n"
     "  p = kv.reshape <shape = [3, 1]> (a * c - b * s)\n  q = kv.reshape <shape = [3, 1]> (b * c + a * s)\n"
     "  y = kv.reshape <shape = [6]> (kv.concat <axis = 1> (p, q))\n}"},
    /* Rows that no weight reaches are not multiplied with it, and rows before the first are zeros. */
    {"infinite weights of a shift",
     "main (double[1, 2, 4, 2] x) => (double[1, 2, 4, 2] y, double[1, 2, 4, 2] z, double[1, 2, 4, 2] u) {\n"
     "  w = kv.expand <shape = [1, 2, 4, 3]> (1.0 / kv.constant <value = double {0.0}> ())\n"
     "  y, p = kv.kv_shift_input_grad <boundary = \"edge\"> (kv.abs(x), w)\n"
     "  z, q = kv.kv_shift(kv.abs(x), w)\n  u, r = kv.kv_shift <boundary = \"keep\"> (kv.abs(x), w)\n}"},
    /* Gradients leave out rows that do not exist. */
    {"infinite rows and gradients of a shift",
     "main (double[1, 2, 4, 2] x) => (double[2, 3] y, double[1, 2, 4, 2] z, double[1, 1, 2, 3] u, double[1, 1, 2, 3] "
     "v) {\n"
     "  a = kv.abs(x)\n  infinity = kv.expand <shape = [1, 2, 4, 2]> (1.0 / kv.constant <value = double {0.0}> ())\n"
     "  w = kv.expand <shape = [2, 3]> (1.0 / kv.constant <value = double {0.0}> ())\n"
     "  y = kv.kv_shift_weight_grad <weight_shape = [2, 3]> (a, infinity)\n"
     "  z, u = kv.kv_shift_grads(a, w, infinity)\n  t, v = kv.kv_shift_grads(infinity, w, a)\n}"},
    {"infinite weights over padding",
     "main (double[1, 2, 5] x) => (double[1, 2, 5] y, double[2, 2, 3] z) {\n"
     "  infinity = 1.0 / kv.constant <value = double {0.0}> ()\n"
     "  y = kv.conv <pads = [1, 1]> (kv.abs(x), kv.expand <shape = [2, 2, 3]> (infinity))\n"
     "  z = kv.conv_weight_grad <pads = [1, 1], kernel = [3]> (kv.abs(x), kv.expand <shape = [1, 2, 5]> "
     "(infinity))\n}"},
    {"an infinite parameter without weight decay",
     "main (float[3] g, float[3] h) => (float[3] y, float[3] z) {\n"
     "  p = kv.expand <shape = [3]> (1.0 / kv.constant <value = float {0.0}> ())\n"
     "  lr = kv.constant <value = float {0.1}> ()\n"
     "  y, k = kv.adagrad(p, g, kv.abs(h), lr)\n  z = kv.sgd(p, g, lr)\n}"},
    /* Rows of no more elements than a vector has are permuted (codegen/llvm_permute.c). */
    {"gathers from rows of ten, eight and sixteen elements",
     "main (float[5, 10] x, float[5, 8] y, float[16] z) => (float[5, 37] a, float[5, 37] b, float[5, 37] c, int32[5, "
     "37] d) {\n"
     "  i = kv.mod(kv.iota <shape = [5, 37], axis = 1, dtype = int32> () * 7 + 3, 10) - 3\n"
     "  a = kv.gather_elements <axis = 1> (x, i)\n  b = kv.gather_elements <axis = 1> (y, i)\n  c = kv.gather(z, i)\n"
     "  d = kv.gather(kv.cast <to = int32> (z * 100.0), i + i)\n}"},
    /* Loops that are cut where the operand changes (codegen/schedule_pieces.c). */
    {"concatenations of a vector and more",
     "main (float[5, 40] x, float[5, 16] y, float[5, 24] z) => (float[5, 80] a, float[5, 136] b, float[5, 80] c) {\n"
     "  a = kv.concat <axis = 1> (x, y, z) * 2.0\n"
     "  b = kv.tanh(kv.concat <axis = 1> (y, kv.concat <axis = 1> (z, x + 1.0), kv.concat <axis = 1> (x, y)))\n"
     "  c = kv.slice <starts = [4, 79], shape = [5, 80], steps = [-1, -1]> (kv.concat <axis = 1> (z, y, x)) + a\n}"},
    {"concatenations of many rows, along the first axis and another one",
     "main (float[1, 3, 20] x, float[2, 3, 20] y, float[5, 1, 17] z) => (float[12, 3, 20] a, float[3, 12, 20] b,\n"
     "  float[5, 10, 17] c, float[5, 10] d) {\n"
     "  a = kv.concat(x, y, x, y, y, x, y, x) * 2.0\n"
     "  b = kv.transpose <perm = [1, 0, 2]> (kv.tanh(kv.concat(y, x, y, x, x, y, x, y)))\n"
     "  c = kv.concat <axis = 1> (z, z, z + 1.0, z, z, z * 3.0, z, z, z, z) - 1.0\n"
     "  d = kv.reduce_sum <axes = [2], keepdims = false> (kv.concat <axis = 1> (z, z, z + 1.0, z, z, z, z, z, z, "
     "z))\n}"},
    {"concatenations of nothing", "main (double[3, 0, 4] x) => (double[3, 0, 4] y, double[0, 4] z) {\n"
                                  "  y = kv.concat <axis = 1> (x, kv.concat <axis = 1> (x, x))\n"
                                  "  z = kv.reshape <shape = [0, 4]> (y)\n}"},
};

/* Networks whose channels lie last (passes/layout.c): what stands between two convolutions. */
#define NETWORK(channels, between, image)                                                                       \
  "main (float[2, 8, 6, 7] x, float[" channels "] s, float[" channels "] t) => (float[2, 16, " image "] y) {\n" \
  "  w = kv.sin(kv.reshape <shape = [32, 8, 3, 3]> (kv.iota <shape = [2304], dtype = float> ()))\n"             \
  "  v = kv.cos(kv.reshape <shape = [16, 32, 3, 3]> (kv.iota <shape = [4608], dtype = float> ()))\n"            \
  "  a = kv.relu(kv.conv <pads = [1, 1, 1, 1]> (x, w))\n" between "  y = kv.conv <pads = [1, 1, 1, 1]> (b, v)\n}"

static const program networks[] = {
    {"norms of channels", NETWORK("32, 1, 1", "  b = kv.layer_norm <axis = 2, eps = 0.001> (a, s, t)\n", "6, 7")},
    {"norms of channels, whose scale has a place",
     NETWORK("32, 1, 7", "  b = kv.layer_norm <axis = 2, eps = 0.001> (a, s, t)\n", "6, 7")},
    {"norms of groups, with a scale of groups",
     NETWORK("4, 1",
             "  c = kv.layer_norm <axis = 2> (kv.reshape <shape = [2, 4, 336]> (a), s, t)\n"
             "  b = kv.silu(kv.reshape <shape = [2, 32, 6, 7]> (c))\n",
             "6, 7")},
    {"norms of groups, with a scale of channels",
     NETWORK("4, 8, 1",
             "  c = kv.layer_norm <axis = 2> (kv.reshape <shape = [2, 4, 8, 42]> (a), s, t)\n"
             "  b = kv.reshape <shape = [2, 32, 6, 7]> (c)\n",
             "6, 7")},
    {"images of nearest neighbours", NETWORK("32, 1, 1",
                                             "  i = kv.constant <value = int64[9] {0, 0, 1, 2, 2, 3, 4, 5, 5}> ()\n"
                                             "  b = kv.gather <axis = 3> (kv.gather <axis = 2> (a * s + t, i), i)\n",
                                             "9, 9")},
    {"images between neighbours",
     NETWORK("32, 1, 1",
             "  lines = kv.constant <value = float[4, 7] {0.5, 0.5, 0, 0, 0, 0, 0,  0, 0, 0.25, 0.75, 0, 0, 0,\n"
             "    0, 0, 0, 0, 1, 0, 0,  -0.1, 0, 0, 0.4, 0, 0.6, 0.1}> ()\n"
             "  i = kv.constant <value = int64[5] {0, 1, 2, 3, 5}> ()\n"
             "  f = kv.constant <value = float[1, 1, 5, 1] {0.5, 0.75, 1, 0.25, 0.125}> ()\n"
             "  c = kv.matmul <transpose_b = true> (kv.reshape <shape = [384, 7]> (a * s + t), lines)\n"
             "  b = kv.gather <axis = 2> (kv.reshape <shape = [2, 32, 6, 4]> (c), i) * f\n",
             "5, 4")},
    {"transposed convolutions side by side",
     "main (float[2, 8, 5, 3] x, float[2, 8, 9] l) => (float[2, 12, 10, 9] y, float[2, 20, 36] z) {\n"
     "  v = kv.sin(kv.reshape <shape = [8, 12, 2, 3]> (kv.iota <shape = [576], dtype = float> ()))\n"
     "  w = kv.cos(kv.reshape <shape = [8, 20, 4]> (kv.iota <shape = [640], dtype = float> ()))\n"
     "  y = kv.relu(kv.conv_input_grad <strides = [2, 3], spatial = [10, 9]> (x, v))\n"
     "  z = kv.conv_input_grad <strides = [4], spatial = [36]> (l, w)\n}"},
    {"lists of positions",
     "main (float[2, 12, 40] x) => (float[2, 32, 3, 4] y, float[2, 32, 3, 8] z) {\n"
     "  w = kv.sin(kv.reshape <shape = [32, 40, 3, 3]> (kv.iota <shape = [11520], dtype = float> ()))\n"
     "  lines = kv.constant <value = float[8, 4] {1, 0, 0, 0, 0.5, 0.5, 0, 0, 0, 1, 0, 0, 0, 0.5, 0.5, 0, 0, 0, 1, 0,\n"
     "    0, 0, 0.5, 0.5, 0, 0, 0, 1, 0, 0.25, 0.5, 0.25}> ()\n"
     "  l = kv.transpose <perm = [0, 2, 1]> (x)\n"
     "  y = kv.conv <pads = [1, 1, 1, 1]> (kv.reshape <shape = [2, 40, 3, 4]> (l), w)\n"
     "  c = kv.matmul <transpose_b = true> (kv.reshape <shape = [240, 4]> (l), lines)\n"
     "  z = kv.conv <pads = [1, 1, 1, 1]> (kv.reshape <shape = [2, 40, 3, 8]> (c), w)\n}"},
};

static kva_module *load(const program *p, kva_diag *diag) {
  kva_module *m = NULL;
  kva_status status = kva_load_text(p->text, p->name, NULL, diag, &m);
  kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  return m;
}

static void check_program(const program *p, const char *arch, double tolerance) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = load(p, diag);
  evaluated expected = evaluate_reference(m, m->functions.data[0], NULL);
  kva_compiled *c;
  const kva_compile_options options = {.target = test_target(2, arch)};
  assert_int_equal(kva_compile(load(p, diag), &options, diag, &c), KVA_OK);
  evaluated found = evaluate_compiled(c, c->module->functions.data[0], NULL);
  assert_true(evaluated_equal(p->name, m, &expected, &found, tolerance));
  evaluated_free(&expected);
  evaluated_free(&found);
  kva_compiled_destroy(c);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void test_program(void **state) {
  static const char *const targets[] = {NULL, "sm_80"};
  const program *p = *state;
  for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) check_program(p, targets[i], 1e-9);
}

/* Sums in float, in another order than the reference's. */
static void test_network(void **state) {
  check_program(*state, NULL, 1e-5);
}

int main(void) {
  enum { N = sizeof programs / sizeof *programs, M = sizeof networks / sizeof *networks };
  struct CMUnitTest tests[N + M];
  for (size_t i = 0; i < N; i++)
    tests[i] = (struct CMUnitTest){programs[i].name, test_program, NULL, NULL, (void *)(uintptr_t)&programs[i]};
  for (size_t i = 0; i < M; i++)
    tests[N + i] = (struct CMUnitTest){networks[i].name, test_network, NULL, NULL, (void *)(uintptr_t)&networks[i]};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
