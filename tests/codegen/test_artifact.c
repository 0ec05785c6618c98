/* Graph to plan to artefact to session: tables, formulas and kernels fit together, for more than one binding of the
 * shape symbols. */
#include "codegen/codegen.h"
#include "ops/build.h"
#include "ops/ids.h"
#include "passes/passes.h"
#include "runtime/runtime.h"
#include "tests/support/evaluate.h"
#include "tests/support/target.h"

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

enum { K = 6, N = 20 };

static void require(kva_status status, kva_diag *diag) {
  if (status != KVA_OK) kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
}

/* y = relu(x @ w + bias) over x[B, T, K]; w is a state, bias a constant; means = mean of y over its last axis. */
static void build(kva_module *m) {
  kva_function *f = kva_function_create(m, "main");
  kva_builder b = {.m = m, .graph = f->graph};
  kva_dim k = kva_expr_const(m->exprs, K), n = kva_expr_const(m->exprs, N);
  kva_dim x_shape[] = {kva_expr_symbol(m->exprs, "B"), kva_expr_symbol(m->exprs, "T"), k}, w_shape[] = {k, n};
  kva_state *w = kva_state_create(m, "w", kva_type_tensor(m, KVA_F32, 2, w_shape), KVA_STATE_PARAM);
  w->init = KVA_INIT_CONSTANT;
  w->init_a = 0.5;
  kva_state_read_attrs read = {w};
  kva_value *x = kva_graph_add_input(f->graph, kva_type_tensor(m, KVA_F32, 3, x_shape), "x");
  kva_value *product = kva_matmul(&b, x, kva_build(&b, KVA_OP_state_read, 0, NULL, &read), false, false);
  static const int64_t dims[] = {N};
  float *bias = KVA_NEW_ARRAY(m->arena, float, N);
  for (int i = 0; i < N; i++) bias[i] = (float)i - 10;
  kva_tensor_data *data = KVA_NEW(m->arena, kva_tensor_data);
  *data = (kva_tensor_data){KVA_F32, 1, dims, bias, sizeof *bias * N, false, false};
  kva_value *y = kva_build1(&b, KVA_OP_relu, kva_add(&b, product, kva_const_tensor(&b, data)));
  kva_value *means = kva_reduce(&b, KVA_OP_reduce_mean, y, 1, (int64_t[]){2}, false);
  kva_build_node(&b, KVA_OP_return, 2, (kva_value *[]){y, means}, 0, NULL);
  assert_false(b.failed);
}

static void run(kva_session *s, int64_t batch, int64_t time) {
  static float x[64 * K];
  for (int i = 0; i < 64 * K; i++) x[i] = (float)(i % 11) - 5;
  kva_tensor in = {.dtype = KVA_F32, .rank = 3, .dims = {batch, time, K}, .data = x}, out[2] = {{0}};
  kva_status status = kva_session_run(s, kva_session_program(s, "main"), &in, out);
  if (status != KVA_OK) fail_msg("%s", kva_session_error(s));
  assert_int_equal(out[0].rank, 3);
  assert_int_equal(out[1].rank, 2);
  assert_int_equal(out[0].dims[0] * out[0].dims[1], batch * time);
  for (int64_t r = 0; r < batch * time; r++) {
    float sum = 0, total = 0;
    for (int k = 0; k < K; k++) sum += x[r * K + k] * 0.5f;
    for (int n = 0; n < N; n++) {
      float want = fmaxf(sum + (float)n - 10, 0);
      total += want;
      assert_float_equal(((float *)out[0].data)[r * N + n], want, 1e-5);
    }
    assert_float_equal(((float *)out[1].data)[r], total / N, 1e-5);
  }
}

static void test_artifact(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = kva_module_create(diag);
  kva_arena *arena = kva_arena_create();
  build(m);
  kva_pass_options options = {.control = &(kva_pass_control){.verify_each = true}};
  require(kva_prepare(m, &options), diag);
  kva_memory_plan *plan;
  require(kva_plan(m, m->functions.data[0], arena, &plan), diag);
  kva_codegen *cg;
  require(kva_codegen_create(NULL, diag, &cg), diag);
  const kva_artifact *artifact;
  kva_memory_plan *plans[] = {plan};
  require(kva_codegen_artifact(cg, arena, m, 1, plans, &artifact), diag);
  assert_int_equal(artifact->n_programs, 1);
  assert_int_equal(artifact->programs[0].n_symbols, 2);
  assert_string_equal(artifact->programs[0].symbols[0], "B");
  kva_session *s;
  kva_session_options session = {.threads = 2};
  require(kva_session_create(artifact, &session, diag, &s), diag);
  run(s, 1, 1);
  run(s, 3, 7);
  run(s, 4, 16);
  kva_session_destroy(s);
  kva_codegen_destroy(cg);
  kva_arena_destroy(arena);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

/* Kernels that differ in what their symbols are called, with two symbols each, in one order and in the other one. */
static void test_shared_kernel(void **state) {
  (void)state;
  static const char text[] = "main (float[A, 3, B] x, float[B, 3, A] y) => (float[A, 3] u, float[B, 3] v) {\n"
                             "  u = kv.reduce_sum <axes = [2], keepdims = false> (x)\n"
                             "  v = kv.reduce_sum <axes = [2], keepdims = false> (y)\n}";
  kva_diag *diag = kva_diag_create();
  kva_module *m, *again;
  require(kva_load_text(text, "m.kv", NULL, diag, &m), diag);
  require(kva_load_text(text, "m.kv", NULL, diag, &again), diag);
  kva_compiled *c;
  require(kva_compile(again, &(kva_compile_options){.target = test_target(0, NULL)}, diag, &c), diag);
  assert_int_equal(c->artifact->n_kernels, 1);
  const kva_step_desc *steps = c->artifact->programs[0].steps;
  assert_int_equal(c->artifact->programs[0].n_steps, 2);
  assert_int_equal(steps[0].kernel, steps[1].kernel);
  assert_int_equal(steps[0].n_symbols, 2);
  assert_int_equal(steps[0].symbols[0], steps[1].symbols[1]);
  assert_int_equal(steps[0].symbols[1], steps[1].symbols[0]);
  const eval_size sizes[] = {{"A", 5}, {"B", 70}, {0}};
  evaluated expected = evaluate_reference(m, m->functions.data[0], sizes);
  evaluated found = evaluate_compiled(c, c->module->functions.data[0], sizes);
  assert_true(evaluated_equal("shared kernel", m, &expected, &found, 1e-5));
  evaluated_free(&expected);
  evaluated_free(&found);
  kva_compiled_destroy(c);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_artifact), cmocka_unit_test(test_shared_kernel)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
