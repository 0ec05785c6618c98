/* Casts round inside fused kernels as the reference rounds, to the bit, on the CPU and on the simulated GPU; those that
 * mixed precision may keep wide do not. */
#include "tests/support/evaluate.h"
#include "tests/support/target.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

/* Long enough for vectors and a remainder. The factor keeps constant folding away. */
#define HEAD                                                                                                \
  "main (float[19] x) => (float[19] y) {\n"                                                                 \
  "  t = kv.constant <value = float[19] {1.2345678, -1.2345678, 70000.0, -70000.0, 65519.0, 65520.0, 1e-8," \
  " 6e-8, -3e-6, nan, inf, -inf, 0.0, -0.0, 463.0, 465.0, 61441.0, 1e-42, 3.4e38}> ()\n"                    \
  "  v = t + x * 0.0\n"
#define CHAIN(inner)    HEAD "  y = kv.mul(kv.cast <to = float> (" inner "), 3.0)\n}"
#define ROUND_TO(to, x) "kv.cast <to = " to "> (" x ")"

typedef struct program {
  const char *name, *arch, *text;
} program;

#define ON_BOTH(name, text)         \
  {name, NULL, text}, {             \
    name " on a GPU", "sm_80", text \
  }
#define TYPE(t)   ON_BOTH(t, CHAIN(ROUND_TO(t, "v")))
#define FLOAT8(t) TYPE(t), ON_BOTH(t " unsaturated", CHAIN(ROUND_TO(t ", saturate = false", "v")))

static const program programs[] = {
    TYPE("float16"),
    TYPE("bfloat16"),
    FLOAT8("float8e4m3fn"),
    FLOAT8("float8e4m3fnuz"),
    FLOAT8("float8e5m2"),
    FLOAT8("float8e5m2fnuz"),
    TYPE("float8e8m0"),
    TYPE("float4e2m1"),
    TYPE("int8"),
    TYPE("uint8"),
    TYPE("int16"),
    TYPE("uint16"),
    TYPE("int32"),
    TYPE("uint32"),
    TYPE("int64"),
    TYPE("uint64"),
    TYPE("int4"),
    TYPE("uint4"),
    ON_BOTH("a chain of types", CHAIN(ROUND_TO("float8e5m2", ROUND_TO("bfloat16", ROUND_TO("float16", "v"))))),
    ON_BOTH("the rounded and the unrounded value", HEAD "  r = kv.cast <to = float> (kv.cast <to = bfloat16> (v))\n"
                                                        "  y = kv.sub(v, r)\n}"),
    ON_BOTH("a rounded value that is stored, too",
            "main (float[19] x) => (float[19] y, float16[19] r) {\n"
            "  r = kv.cast <to = float16> (x * 123.456)\n  y = kv.cast <to = float> (r) * 3.0\n}"),
    ON_BOTH("a rounded value that is stored in another type",
            "main (float[19] x) => (bfloat16[19] y) {\n  r = kv.cast <to = float16> (x * 1e-7)\n"
            "  y = kv.cast <to = bfloat16, may_stay_wide = true> (r)\n}"),
    ON_BOTH("a row of rounded values", "main (float[5, 19] x) => (float[5, 1] y) {\n"
                                       "  r = kv.cast <to = float> (kv.cast <to = float8e4m3fn> (x))\n"
                                       "  y = kv.reduce_max <axes = [1]> (r)\n}"),
};

static kva_module *load(const char *text, kva_diag *diag) {
  kva_module *m = NULL;
  kva_status status = kva_load_text(text, "casts.kv", NULL, diag, &m);
  kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  return m;
}

static evaluated run(const char *text, const char *arch, kva_diag *diag) {
  kva_compiled *c;
  const kva_compile_options options = {.target = test_target(0, arch)};
  assert_int_equal(kva_compile(load(text, diag), &options, diag, &c), KVA_OK);
  assert_int_equal(c->plans[0]->steps.len, 1); /* one kernel, so that no store rounds in between */
  evaluated found = evaluate_compiled(c, c->module->functions.data[0], NULL);
  kva_compiled_destroy(c);
  return found;
}

static void test_rounds(void **state) {
  const program *p = *state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = load(p->text, diag);
  evaluated expected = evaluate_reference(m, m->functions.data[0], NULL), found = run(p->text, p->arch, diag);
  assert_true(evaluated_equal(p->name, m, &expected, &found, 0));
  evaluated_free(&expected);
  evaluated_free(&found);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void test_may_stay_wide(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  static const char text[] = "main (float[19] x) => (float[19] y) {\n"
                             "  y = kv.cast <to = float> (kv.cast <to = float16, may_stay_wide = true> (x))\n}";
  kva_module *m = load(text, diag);
  kva_ref_tensor *x = eval_input(m->functions.data[0]->graph->inputs.data[0], NULL);
  evaluated found = run(text, NULL, diag);
  for (int64_t i = 0; i < x->n; i++) assert_true(found.outputs[0]->f[i] == x->f[i]);
  evaluated_free(&found);
  kva_ref_tensor_free(x);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

int main(void) {
  enum { N = sizeof programs / sizeof *programs };
  struct CMUnitTest tests[N + 1];
  for (size_t i = 0; i < N; i++)
    tests[i] = (struct CMUnitTest){programs[i].name, test_rounds, NULL, NULL, (void *)(uintptr_t)&programs[i]};
  tests[N] = (struct CMUnitTest)cmocka_unit_test(test_may_stay_wide);
  return cmocka_run_group_tests(tests, NULL, NULL);
}
