/* Random functions keep their meaning through the pipeline: reference before, after optimising and fusing, and compiled
 * code agree; gradients agree with finite differences. KVA_TEST_SEEDS=N tries N seeds of each kind, KVA_TEST_FIRST=N starts
 * at seed N, KVA_TEST_PRINT=1 prints the modules. */
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

/* ---- meaning ------------------------------------------------------------------------------------------------------- */

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
    require(stages[i].run(m, &(kva_pass_options){.verify = true}), stages[i].name, seed, diag);
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

static void check_compiled(const random_graph_options *o, uint64_t seed) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = random_graph(o, diag);
  if (getenv("KVA_TEST_PRINT")) print_module("built", m);
  evaluated before = evaluate_reference(m, m->functions.data[0], random_graph_sizes);
  kva_compiled *c;
  require(kva_compile(m, &(kva_compile_options){.target = {.opt_level = 1}}, diag, &c), "does not compile", seed, diag);
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

static random_graph_options options_for(uint64_t seed) {
  return (random_graph_options){
      .seed = seed, .dtype = seed % 4 == 3 ? KVA_F32 : KVA_F64, .nodes = 6 + (uint32_t)(seed % 7) * 8, .states = seed % 3 == 1};
}

static void each_seed(uint64_t n, void (*check)(const random_graph_options *o, uint64_t seed)) {
  uint64_t first = env("KVA_TEST_FIRST", 1), count = env("KVA_TEST_SEEDS", n);
  for (uint64_t seed = first; seed < first + count; seed++) {
    random_graph_options o = options_for(seed);
    check(&o, seed);
  }
}

static void test_stages(void **state) {
  (void)state;
  each_seed(400, check_stages);
}

static void test_compiled(void **state) {
  (void)state;
  each_seed(60, check_compiled);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_stages),
      cmocka_unit_test(test_compiled),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
