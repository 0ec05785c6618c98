/* Nodes that are lowered equally: which are, which are not, and that the kernels of those which are have the same code.
 */
#include "ops/ids.h"
#include "tests/support/kernel_fixture.h"
#include "tools/driver/driver.h"

#include <setjmp.h>
#include <cmocka.h>

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

/* Whether the first two nodes that are no constants are lowered equally. */
static bool equal(const char *inputs, const char *nodes) {
  kva_diag *diag = kva_diag_create();
  kva_text text = {0};
  kva_module *m;
  kva_text_add(&text, "main (%s) => (float[N, 4] p, float[N, 4] q)\n{\n%s  return (p, q)\n}\n", inputs, nodes);
  kva_status status = kva_load_text(text.data, "pair.kv", NULL, diag, &m);
  kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  const kva_node *found[2], *n = m->functions.data[0]->graph->first;
  for (int i = 0; i < 2; n = n->next)
    if (!kva_is(n, KVA_OP_constant)) found[i++] = n;
  bool result = kva_codegen_lower_equally(found[0], found[1]);
  assert_int_equal(result, kva_codegen_lower_equally(found[1], found[0]));
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  kva_text_free(&text);
  return result;
}

#define INPUTS "float[N, 4] x, float[N, 4] y, float[M, 4] z, float[4] w"
/* A group over one and over two operands. */
#define GROUP1(result, operand, first, second)                                                                         \
  "  " result " = kv.kernel <name = \"k\"> (" operand ") { (float[N, 4] " result "_a) => (float[N, 4] " result "_d)\n" \
  "    " result "_b = kv." first " (" result "_a)\n    " result "_c = kv." second " (" result "_b, " result "_a)\n"    \
  "    " result "_d = kv.neg (" result "_c)\n    return (" result "_d)\n  }\n"
#define GROUP2(result, operands, left, right)                                                                         \
  "  " result " = kv.kernel <name = \"k\"> (" operands ") { (float[N, 4] " result "_a, float[N, 4] " result "_b) => " \
  "(float[N, 4] " result "_c)\n    " result "_c = kv.sub (" result left ", " result right ")\n    return (" result    \
  "_c)\n  }\n"

static void equal_nodes(void **unused) {
  (void)unused;
  assert_true(equal(INPUTS, "  p = kv.add (x, y)\n  q = kv.add (y, x)\n"));
  assert_true(equal(INPUTS, "  p = kv.add (x, x)\n  q = kv.add (y, y)\n"));
  assert_true(equal(INPUTS, "  p = kv.add (x, w)\n  q = kv.add (y, w)\n"));
  assert_true(equal(INPUTS, GROUP1("p", "x", "exp", "add") GROUP1("q", "y", "exp", "add")));
  assert_true(equal(INPUTS, GROUP2("p", "x, y", "_a", "_b") GROUP2("q", "y, x", "_a", "_b")));
  /* the same numbers; of longer constants, which stay in memory, no element is part of the code */
  assert_true(equal(INPUTS, "  c = kv.constant <value = float {2.0}> ()\n  d = kv.constant <value = float {2.0}> ()\n"
                            "  p = kv.add (x, c)\n  q = kv.add (x, d)\n"));
  assert_true(equal(INPUTS, "  c = kv.constant <value = float[4] {2.0, 1.0, 2.0, 1.0}> ()\n"
                            "  p = kv.add (x, c)\n  q = kv.add (x, w)\n"));
}

static void other_nodes(void **unused) {
  (void)unused;
  assert_false(equal(INPUTS, "  p = kv.add (x, y)\n  q = kv.sub (x, y)\n"));
  assert_false(equal(INPUTS, "  p = kv.add (x, y)\n  q = kv.add (x, x)\n"));
  assert_false(equal(INPUTS, "  p = kv.add (x, y)\n  q = kv.add (x, w)\n"));
  assert_false(equal(INPUTS, "  p = kv.softmax <axis = 1> (x)\n  q = kv.softmax <axis = 0> (x)\n"));
  assert_false(equal(INPUTS, GROUP1("p", "x", "exp", "add") GROUP1("q", "x", "exp", "mul")));
  assert_false(equal(INPUTS, GROUP1("p", "x", "exp", "add") GROUP1("q", "x", "tanh", "add")));
  assert_false(equal(INPUTS, GROUP2("p", "x, y", "_a", "_b") GROUP2("q", "x, y", "_b", "_a")));
  assert_false(equal(INPUTS, GROUP2("p", "x, y", "_a", "_b") GROUP2("q", "x, x", "_a", "_b")));
  /* extents that other symbols have */
  assert_false(equal(INPUTS, "  r = kv.exp (z)\n  p = kv.exp (x)\n  q = kv.exp (y)\n"));
  /* numbers, which become immediates */
  assert_false(equal(INPUTS, "  c = kv.constant <value = float {2.0}> ()\n  d = kv.constant <value = float {3.0}> ()\n"
                             "  p = kv.add (x, c)\n  q = kv.add (x, d)\n"));
  assert_false(equal("float[N, 4] x, float s", "  c = kv.constant <value = float {2.0}> ()\n"
                                               "  p = kv.add (x, c)\n  q = kv.add (x, s)\n"));
}

/* ---- models ------------------------------------------------------------------------------------------------------ */

typedef struct counts {
  uint32_t steps, shared;
} counts;

/* A kernel that an earlier node made has the code that lowering this one makes. */
static void check_step(kva_kernel_set *set, kva_map *seen, const kva_node *n, const kva_target *target, counts *c) {
  const kva_kernel *k;
  assert_int_equal(kva_kernel_set_get(set, n, &k), KVA_OK);
  c->steps++;
  if (!kva_map_get(seen, &k, sizeof k)) {
    kva_map_set(seen, &k, sizeof k, (void *)n);
    return;
  }
  kva_arena *arena = kva_arena_create();
  kva_kernel *own;
  assert_int_equal(kva_codegen_kernel(arena, n, target, NULL, &own), KVA_OK);
  assert_int_equal(kernel_code_hash(own), kernel_code_hash(k));
  c->shared++;
  kva_arena_destroy(arena);
}

static void check_plan(kva_memory_plan *plan, const kva_target *target, kva_kernel_set *set, kva_map *seen, counts *c) {
  for (uint32_t i = 0; i < plan->steps.len; i++) {
    const kva_plan_step *s = &plan->steps.data[i];
    if (s->kind == KVA_PLAN_KERNEL && !kva_codegen_is_call(target, s->node)) check_step(set, seen, s->node, target, c);
  }
}

static counts check_model(const char *path, const char *arch, bool train) {
  kva_diag *diag = kva_diag_create();
  kva_arena *arena = kva_arena_create();
  kva_module *m;
  kva_codegen *cg;
  counts c = {0};
  const kva_compile_options options = {.train = train, .target = {.arch = arch}};
  assert_int_equal(kva_load_model(path, &(kva_load_options){0}, diag, &m), KVA_OK);
  assert_int_equal(kva_compile_graph(m, &options), KVA_OK);
  assert_int_equal(kva_codegen_create(&options.target, diag, &cg), KVA_OK);
  kva_kernel_set *set = kva_kernel_set_create(kva_codegen_target(cg), NULL);
  kva_map *seen = kva_map_create(arena);
  for (uint32_t f = 0; f < m->functions.len; f++) {
    kva_memory_plan *plan;
    assert_int_equal(kva_plan(m, m->functions.data[f], arena, &plan), KVA_OK);
    check_plan(plan, kva_codegen_target(cg), set, seen, &c);
  }
  kva_kernel_set_destroy(set);
  kva_codegen_destroy(cg);
  kva_module_destroy(m);
  kva_arena_destroy(arena);
  kva_diag_destroy(diag);
  return c;
}

static void models(void **unused) {
  (void)unused;
  static const char *const paths[] = {"models/lm.kv", "models/gpt2.kv", "models/llama.kv", "models/baichuan_m1.kv"};
  static const char *const archs[] = {NULL, "sm_80", "sm_90a"};
  for (int i = 0; i < 4; i++) {
    for (int a = 0; a < 3; a++) {
      counts c = check_model(paths[i], archs[a], i == 0);
      assert_in_range(c.shared, c.steps / 3, c.steps); /* two layers or more */
    }
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(equal_nodes),
      cmocka_unit_test(other_nodes),
      cmocka_unit_test(models),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
