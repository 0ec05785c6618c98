/* Random functions keep their meaning through the pipeline: reference before, after optimising and fusing, and compiled
 * code agree, a GPU's code on the simulator, too; gradients agree with finite differences. KVA_TEST_SEEDS=N tries N
 * seeds of each kind, KVA_TEST_FIRST=N starts at seed N, KVA_TEST_ONLY=test_x runs one kind, KVA_TEST_PRINT=1 prints
 * the modules. */
#include "tests/support/target.h"
#include "tests/support/random_graph.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static uint64_t env(const char *name, uint64_t value) {
  const char *s = getenv(name);
  return s ? strtoull(s, NULL, 10) : value;
}

static void print_module(const char *stage, kva_module *m) {
  kva_text text = {0};
  kva_module_print(m, &text);
  fprintf(stderr, "# %s\n%s\n", stage, text.data);
  kva_text_free(&text);
}

static void require(kva_status status, const char *what, uint64_t seed, kva_diag *diag) {
  if (status == KVA_OK && !kva_diag_count(diag)) return;
  kva_diag_print(diag, stderr);
  fail_msg("seed %llu: %s", (unsigned long long)seed, what);
}

/* ---- meaning ----------------------------------------------------------------------------------------------------- */

typedef struct stage {
  const char *name;
  kva_status (*run)(kva_module *m, const kva_pass_options *options);
} stage;

static void check_stages(const random_graph_options *o, uint64_t seed) {
  static const stage stages[] = {{"optimised", kva_optimize}, {"fused", kva_prepare}};
  kva_diag *diag = kva_diag_create();
  kva_module *m = random_graph(o, diag);
  if (getenv("KVA_TEST_PRINT")) print_module("built", m);
  evaluated before = evaluate_reference(m, m->functions.data[0], random_graph_sizes);
  for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
    require(stages[i].run(m, &(kva_pass_options){.control = &(kva_pass_control){.verify_each = true}}), stages[i].name,
            seed, diag);
    if (getenv("KVA_TEST_PRINT")) print_module(stages[i].name, m);
    evaluated after = evaluate_reference(m, m->functions.data[0], random_graph_sizes);
    if (!evaluated_equal(stages[i].name, m, &before, &after, o->dtype == KVA_F64 ? 1e-9 : 1e-4)) {
      print_module(stages[i].name, m);
      fail_msg("seed %llu: %s", (unsigned long long)seed, stages[i].name);
    }
    evaluated_free(&after);
  }
  evaluated_free(&before);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

/* For this machine, or for GPUs in turn. */
static kva_target_options target_for(uint64_t seed, bool gpu) {
  return test_target(2, !gpu ? NULL : seed % 2 ? "sm_80" : "sm_90a");
}

static void check_code(const random_graph_options *o, uint64_t seed, bool gpu) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = random_graph(o, diag);
  if (getenv("KVA_TEST_PRINT")) print_module("built", m);
  evaluated before = evaluate_reference(m, m->functions.data[0], random_graph_sizes);
  kva_compiled *c;
  require(kva_compile(m, &(kva_compile_options){.target = target_for(seed, gpu)}, diag, &c), "does not compile", seed,
          diag);
  if (getenv("KVA_TEST_PRINT")) print_module("fused", c->module);
  evaluated after = evaluate_compiled(c, c->module->functions.data[0], random_graph_sizes);
  if (!evaluated_equal("compiled", c->module, &before, &after, o->dtype == KVA_F64 ? 1e-9 : 1e-4)) {
    print_module("compiled", c->module);
    fail_msg("seed %llu: compiled code", (unsigned long long)seed);
  }
  evaluated_free(&before);
  evaluated_free(&after);
  kva_compiled_destroy(c);
  kva_diag_destroy(diag);
}

static void check_compiled(const random_graph_options *o, uint64_t seed) {
  check_code(o, seed, false);
}

static void check_gpu(const random_graph_options *o, uint64_t seed) {
  check_code(o, seed, true);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

static kva_function *function(kva_module *m, const char *name) {
  kva_function *f = kva_module_find_function(m, name);
  assert_non_null(f);
  return f;
}

static double loss_at(kva_module *m, const kva_ref_tensor *const *states) {
  evaluated e = evaluate_reference_from(m, function(m, "eval"), random_graph_sizes, states);
  double loss = e.outputs[0]->f[0];
  evaluated_free(&e);
  return loss;
}

/* Fourth-order central difference with respect to element i of state s. */
static double slope(kva_module *m, const kva_state *s, int64_t i, double h) {
  static const double at[4] = {-2, -1, 1, 2}, weight[4] = {1, -8, 8, -1};
  double sum = 0;
  kva_ref_tensor **states = calloc(m->states.len + 1, sizeof *states);
  states[s->id] = eval_state(s);
  double center = states[s->id]->f[i];
  for (int k = 0; k < 4; k++) {
    states[s->id]->f[i] = center + at[k] * h;
    sum += weight[k] * loss_at(m, (const kva_ref_tensor *const *)states);
  }
  kva_ref_tensor_free(states[s->id]);
  free(states);
  return sum / (12 * h);
}

/* A difference across a kink (abs, relu) is no slope: smaller steps get a chance to stay on one side. */
static bool slope_is(kva_module *m, const kva_state *s, int64_t i, double found, double *out_expected) {
  for (double h = 1e-4; h > 1e-7; h /= 10) {
    *out_expected = slope(m, s, i, h);
    if (fabs(*out_expected - found) <= 1e-6 * fmax(1, fabs(found))) return true;
  }
  return false;
}

/* Plain SGD moves a parameter by -lr times its gradient. */
static void check_gradient(kva_module *m, const evaluated *after, double lr, const kva_state *s, uint64_t seed) {
  kva_ref_tensor *before = eval_state(s);
  for (int64_t i = 0; i < before->n; i += 1 + before->n / 3) {
    double found = after->states[s->id] ? (before->f[i] - after->states[s->id]->f[i]) / lr : 0, expected;
    if (slope_is(m, s, i, found, &expected)) continue;
    print_module("differentiated", m);
    fail_msg("seed %llu: gradient of %s[%lld]: finite difference %.12g, found %.12g", (unsigned long long)seed, s->name,
             (long long)i, expected, found);
  }
  kva_ref_tensor_free(before);
}

static void check_gradients(const random_graph_options *o, uint64_t seed) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = random_graph(o, diag);
  if (getenv("KVA_TEST_PRINT")) print_module("built", m);
  require(kva_optimize(m, &(kva_pass_options){.control = &(kva_pass_control){.verify_each = true}}), "optimise", seed,
          diag);
  require(kva_make_training(m, &(kva_pass_options){.control = &(kva_pass_control){.verify_each = true}}),
          "differentiate", seed, diag);
  kva_function *step = function(m, "train_step");
  evaluated after = evaluate_reference(m, step, random_graph_sizes);
  kva_ref_tensor *lr = eval_input(step->graph->inputs.data[step->graph->inputs.len - 1], random_graph_sizes);
  for (uint32_t i = 0; i < m->states.len; i++)
    if (m->states.data[i]->kind == KVA_STATE_PARAM) check_gradient(m, &after, lr->f[0], m->states.data[i], seed);
  require(kva_prepare(m, &(kva_pass_options){.control = &(kva_pass_control){.verify_each = true}}), "fuse", seed, diag);
  evaluated fused = evaluate_reference(m, step, random_graph_sizes);
  if (!evaluated_equal("fused", m, &after, &fused, 1e-9)) {
    print_module("fused", m);
    fail_msg("seed %llu: fused training step", (unsigned long long)seed);
  }
  kva_ref_tensor_free(lr);
  evaluated_free(&after);
  evaluated_free(&fused);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void check_step(const random_graph_options *o, uint64_t seed, bool gpu) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = random_graph(o, diag);
  if (getenv("KVA_TEST_PRINT")) print_module("built", m);
  require(kva_optimize(m, &(kva_pass_options){0}), "optimise", seed, diag);
  require(kva_make_training(m, &(kva_pass_options){0}), "differentiate", seed, diag);
  if (getenv("KVA_TEST_PRINT")) print_module("differentiated", m);
  evaluated before = evaluate_reference(m, function(m, "train_step"), random_graph_sizes);
  kva_compiled *c;
  const kva_compile_options options = {.train = true, .target = target_for(seed, gpu)};
  require(kva_compile(random_graph(o, diag), &options, diag, &c), "does not compile", seed, diag);
  evaluated after = evaluate_compiled(c, function(c->module, "train_step"), random_graph_sizes);
  if (!evaluated_equal("compiled training step", m, &before, &after, 1e-5)) { /* clipping goes through float */
    print_module("compiled", c->module);
    fail_msg("seed %llu: compiled training step", (unsigned long long)seed);
  }
  evaluated_free(&before);
  evaluated_free(&after);
  kva_compiled_destroy(c);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void check_compiled_step(const random_graph_options *o, uint64_t seed) {
  check_step(o, seed, false);
}

static void check_gpu_step(const random_graph_options *o, uint64_t seed) {
  check_step(o, seed, true);
}

/* ---- seeds ------------------------------------------------------------------------------------------------------- */

static void each_seed(uint64_t n, random_graph_options (*options)(uint64_t seed),
                      void (*check)(const random_graph_options *o, uint64_t seed)) {
  uint64_t first = env("KVA_TEST_FIRST", 1), count = env("KVA_TEST_SEEDS", sanitized() ? n / 3 : n);
  for (uint64_t seed = first; seed < first + count; seed++) {
    random_graph_options o = options(seed);
    check(&o, seed);
  }
}

static random_graph_options forward(uint64_t seed) {
  return (random_graph_options){.seed = seed,
                                .dtype = seed % 4 == 3 ? KVA_F32 : KVA_F64,
                                .nodes = 6 + (uint32_t)(seed % 7) * 8,
                                .states = seed % 3 == 1};
}

static random_graph_options sgd(uint64_t seed) {
  return (random_graph_options){
      .seed = seed, .dtype = KVA_F64, .nodes = 4 + (uint32_t)(seed % 5) * 5, .parameters = true, .optimizer = "sgd"};
}

static random_graph_options any_optimizer(uint64_t seed) {
  static const char *const names[] = {"sgd", "momentum", "adagrad", "adamw"};
  random_graph_options o = sgd(seed);
  o.optimizer = names[seed % 4];
  o.clip = seed % 3 ? 0.25 : 0;
  return o;
}

/* With control flow and sizes that depend on data. */
static random_graph_options controlled(uint64_t seed) {
  random_graph_options o = forward(seed);
  o.nodes = 4 + (uint32_t)(seed % 5) * 4;
  o.control = true;
  return o;
}

static random_graph_options controlled_sgd(uint64_t seed) {
  random_graph_options o = sgd(seed);
  o.control = true;
  return o;
}

static random_graph_options controlled_step(uint64_t seed) {
  random_graph_options o = any_optimizer(seed);
  o.control = true;
  return o;
}

static void test_stages(void **state) {
  (void)state;
  each_seed(300, forward, check_stages);
}

static void test_compiled(void **state) {
  (void)state;
  each_seed(60, forward, check_compiled);
}

static void test_gradients(void **state) {
  (void)state;
  each_seed(100, sgd, check_gradients);
}

static void test_compiled_steps(void **state) {
  (void)state;
  each_seed(30, any_optimizer, check_compiled_step);
}

static void test_gpu(void **state) {
  (void)state;
  each_seed(40, forward, check_gpu);
}

static void test_gpu_steps(void **state) {
  (void)state;
  each_seed(20, any_optimizer, check_gpu_step);
}

static void test_control(void **state) {
  (void)state;
  each_seed(200, controlled, check_stages);
}

static void test_control_gradients(void **state) {
  (void)state;
  each_seed(60, controlled_sgd, check_gradients);
}

static void test_control_compiled(void **state) {
  (void)state;
  each_seed(60, controlled, check_compiled);
}

static void test_control_steps(void **state) {
  (void)state;
  each_seed(30, controlled_step, check_compiled_step);
}

static void test_control_gpu(void **state) {
  (void)state;
  each_seed(30, controlled, check_gpu);
}

static void test_control_gpu_steps(void **state) {
  (void)state;
  each_seed(15, controlled_step, check_gpu_step);
}

/* What once went wrong: an addition that is `or` in one branch alone (codegen/llvm_ptx.c); a load for all lanes of a
 * vector if some want it. */
static void test_gpu_known(void **state) {
  (void)state;
  random_graph_options o = forward(2005);
  check_gpu(&o, o.seed);
  o = any_optimizer(1348);
  check_gpu_step(&o, o.seed);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_stages),
      cmocka_unit_test(test_compiled),
      cmocka_unit_test(test_gradients),
      cmocka_unit_test(test_compiled_steps),
      cmocka_unit_test(test_gpu),
      cmocka_unit_test(test_gpu_steps),
      cmocka_unit_test(test_gpu_known),
      cmocka_unit_test(test_control),
      cmocka_unit_test(test_control_gradients),
      cmocka_unit_test(test_control_compiled),
      cmocka_unit_test(test_control_steps),
      cmocka_unit_test(test_control_gpu),
      cmocka_unit_test(test_control_gpu_steps),
  };
  const char *only = getenv("KVA_TEST_ONLY"); /* the name of one of them */
  if (only) cmocka_set_test_filter(only);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
