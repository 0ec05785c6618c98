/* Models whose views, concatenations and gathers compose: equal to the reference, in kernels of bounded size. */
#include "tests/support/target.h"
#include "frontend/frontend.h"
#include "passes/passes.h"
#include "tools/verify/compiled.h"

#include <math.h>
#include <stdlib.h>
#include <setjmp.h>
#include <unistd.h>
#include <cmocka.h>

enum {
  MAX_IO = 4,
  SYMBOL = 3,
  MAX_INSTRUCTIONS = 600, /* of a kernel: passes/fuse_budget.c, and what storing several outputs adds */
  SECONDS = 600,          /* for a test that takes seconds; without a budget some would take years */
};

static bool by_symbol(void *user, const kva_expr *symbol, int64_t *out_v) {
  (void)user, (void)symbol;
  *out_v = SYMBOL;
  return true;
}

static kva_ref_tensor *random_input(const kva_type *type, uint64_t seed) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t d = 0; d < type->rank; d++) assert_true(kva_expr_eval(type->dims[d], by_symbol, NULL, &dims[d]));
  kva_ref_tensor *w = kva_ref_tensor_create(type->dtype, type->rank, dims);
  for (int64_t i = 0; i < w->n; i++)
    w->f[i] = (double)(float)(kva_uniform01(kva_philox4x32((uint64_t)i, seed, 1).v[0]) * 2 - 1);
  return w;
}

static void compare(const kva_ref_tensor *want, const kva_ref_tensor *got, const char *what) {
  assert_int_equal(want->n, got->n);
  for (int64_t i = 0; i < want->n; i++) {
    double scale = fabs(want->f[i]) > 1 ? fabs(want->f[i]) : 1;
    if (!(fabs(want->f[i] - got->f[i]) <= 2e-4 * scale))
      fail_msg("%s: element %lld: expected %.9g, found %.9g", what, (long long)i, want->f[i], got->f[i]);
  }
}

/* Instructions of the largest kernel of element code. */
static uint32_t largest_kernel(const kva_function *f) {
  kva_target target;
  uint32_t largest = 0;
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_codegen_describe(&(kva_target_options){0}, diag, &target), KVA_OK);
  for (const kva_node *n = f->graph->first; n; n = n->next) {
    const kva_node *by_hand = NULL;
    if (!kva_op_has_code(n->op) && n->n_graphs == 0) continue;
    kva_codegen_choose(n, &target, &by_hand);
    if (by_hand) continue;
    kva_arena *arena = kva_arena_create();
    const kva_kernel *k = kva_codegen_lower(arena, n, &target);
    assert_non_null(k);
    if (k->next_id > largest) largest = k->next_id;
    kva_arena_destroy(arena);
  }
  kva_diag_destroy(diag);
  return largest;
}

static void check(kva_module *m, const char *what) {
  kva_function *f = m->functions.data[0];
  uint32_t n_in = f->graph->inputs.len, n_out = kva_graph_output_count(f->graph);
  kva_ref_tensor **in = KVA_NEW_ARRAY(m->arena, kva_ref_tensor *, n_in), *want[MAX_IO], *got[MAX_IO];
  assert_in_range(n_out, 1, MAX_IO);
  for (uint32_t i = 0; i < n_in; i++) in[i] = random_input(f->graph->inputs.data[i]->type, i);
  const kva_ref_tensor *const *inputs = (const kva_ref_tensor *const *)in;
  assert_int_equal(kva_ref_run(m, f, inputs, want, NULL, NULL, NULL, NULL, m->diag), KVA_OK);
  alarm(SECONDS);
  assert_int_equal(kva_optimize(m, &(kva_pass_options){0}), KVA_OK);
  assert_int_equal(kva_prepare(m, &(kva_pass_options){0}), KVA_OK);
  uint32_t largest = largest_kernel(f);
  if (largest > MAX_INSTRUCTIONS) fail_msg("%s: a kernel of %u instructions", what, largest);
  kva_target_options target = test_target(2, NULL);
  kva_status status = kva_run_compiled(&target, m, f, inputs, got, m->diag);
  alarm(0);
  kva_diag_print(m->diag, stderr);
  assert_int_equal(status, KVA_OK);
  for (uint32_t i = 0; i < n_out; i++) compare(want[i], got[i], what);
  for (uint32_t i = 0; i < n_in; i++) kva_ref_tensor_free(in[i]);
  for (uint32_t i = 0; i < n_out; i++) kva_ref_tensor_free(want[i]), kva_ref_tensor_free(got[i]);
}

static void check_text(const char *text) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_status status = kva_load_text(text, "chain.kv", NULL, diag, &m);
  kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  check(m, text);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

/* Ten lengths; $KVASIR_CHAINS=all: every one, a minute of one core. */
static bool is_checked(int length) {
  static const char ten[65] = {
      [1] = 1, [2] = 1, [3] = 1, [4] = 1, [6] = 1, [9] = 1, [14] = 1, [22] = 1, [35] = 1, [64] = 1};
  const char *chosen = getenv("KVASIR_CHAINS");
  return ten[length] || (chosen && !strcmp(chosen, "all"));
}

/* step: an expression of y, x and the round i, with y's type; 1 to 64 rounds. */
static void check_chains(const char *inputs, const char *type, const char *step) {
  for (int length = 1; length <= 64; length++) {
    if (!is_checked(length)) continue;
    kva_text text = {0};
    kva_text_add(&text, "model m (%s) => (%s y) {\n  y = x\n  for i in 0 : %d { y = %s }\n}\n", inputs, type, length,
                 step);
    check_text(text.data);
    kva_text_free(&text);
  }
}

#define ROUND "kv.reshape <shape = [6, 35]> (kv.transpose <perm = [2, 0, 1]> (kv.reshape <shape = [5, 6, 7]> (y)))"

static void views(void **state) {
  (void)state;
  check_chains("float[6, 35] x", "float[6, 35]", ROUND);
}

static void views_and_sums(void **state) {
  (void)state;
  check_chains("float[6, 35] x", "float[6, 35]", "x - 0.5 * " ROUND);
}

/* Rows of twice as many: each round reads both halves. */
static void concatenations(void **state) {
  (void)state;
  check_chains("float[6, 4] x", "float[6, 4]",
               "kv.slice <starts = [2, 0], shape = [6, 4]> (kv.concat <axis = 0> (y, 0.5 * y))");
}

static void slices(void **state) {
  (void)state;
  check_chains("float[130] x", "float[130]",
               "kv.pad <before = [1], after = [0]> (kv.slice <starts = [128], shape = [129], steps = [-1]> (y)) + x");
}

static void samples(void **state) {
  (void)state;
  check_chains("float[1, 1, 4, 4] x, float[1, 4, 4, 2] g", "float[1, 1, 4, 4]", "GridSample(y, g)");
}

/* A recurrent cell in every round, whose state is four slices of one product. */
static void cells(void **state) {
  (void)state;
  static const char text[] =
      "model m (float[2, 64, 8] x, float[8, 32] w, float[8, 32] r) => (float[2, 8] y) {\n"
      "  h = kv.slice <starts = [0, 0, 0], shape = [2, 1, 8]> (x)\n"
      "  h = kv.reshape <shape = [2, 8]> (h)\n"
      "  c = h\n"
      "  for i in 0 : 64 {\n"
      "    g = kv.reshape <shape = [2, 8]> (kv.slice <starts = [0, i, 0], shape = [2, 1, 8]> (x)) @ w + h @ r\n"
      "    a = Sigmoid(kv.slice <starts = [0, 0], shape = [2, 8]> (g))\n"
      "    b = Sigmoid(kv.slice <starts = [0, 8], shape = [2, 8]> (g))\n"
      "    o = Sigmoid(kv.slice <starts = [0, 16], shape = [2, 8]> (g))\n"
      "    c = a * c + b * Tanh(kv.slice <starts = [0, 24], shape = [2, 8]> (g))\n"
      "    h = o * Tanh(c)\n"
      "  }\n"
      "  y = h\n"
      "}\n";
  check_text(text);
}

/* Along an axis that is not the last, beside elementwise code. */
static void softmaxes(void **state) {
  (void)state;
  check_text("model m (float[2, 5, 40, 3] x) => (float[2, 5, 40, 3] y, float[2, 5, 40, 3] z) {\n"
             "  y = x * kv.softmax <axis = 2> (x + 1)\n"
             "  z = kv.log_softmax <axis = 0> (x) - y\n"
             "}\n");
}

/* The loop of two is unrolled, since c is loaded outside, and LLVM alone sees that padding is 0: max(0, |x|) is |x|. */
static void padding(void **state) {
  (void)state;
  check_text("model m (double[5, 2] x, double[5, 1] c) => (double[5, 2] y) {\n"
             "  a = kv.pad <before = [0, 1], after = [0, -1], mode = \"wrap\"> (kv.abs(x))\n"
             "  y = kv.max(kv.pad <before = [0, 1], after = [0, -1]> (a), a) - c\n"
             "}\n");
}

/* Valid models that once took exponential time, or indices that did not fit. */
static void files(void **state) {
  (void)state;
  static const char *const names[] = {"index_overflow", "shuffle11",    "cat10",          "cat14",
                                      "concat_1e4",     "gridsample12", "sym_concat_1000"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    kva_text path = {0};
    kva_diag *diag = kva_diag_create();
    kva_module *m = NULL;
    kva_text_add(&path, "tests/data/compile/%s.onnx", names[i]);
    kva_status status = kva_load_model(path.data, NULL, diag, &m);
    kva_diag_print(diag, stderr);
    assert_int_equal(status, KVA_OK);
    check(m, names[i]);
    kva_module_destroy(m);
    kva_diag_destroy(diag);
    kva_text_free(&path);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(views),     cmocka_unit_test(views_and_sums), cmocka_unit_test(concatenations),
      cmocka_unit_test(slices),    cmocka_unit_test(samples),        cmocka_unit_test(cells),
      cmocka_unit_test(softmaxes), cmocka_unit_test(padding),        cmocka_unit_test(files),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
