/* if, loop and bind: text, values of the reference, and what inference and verifier refuse. */
#include "frontend/frontend.h"

#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

typedef struct fixture {
  kva_diag *diag;
  kva_module *m;
} fixture;

static fixture load(const char *text) {
  fixture t = {.diag = kva_diag_create()};
  if (kva_load_text(text, "test", NULL, t.diag, &t.m)) {
    kva_diag_print(t.diag, stderr);
    fail_msg("does not load:\n%s", text);
  }
  return t;
}

static void teardown(fixture *t) {
  kva_module_destroy(t->m);
  kva_diag_destroy(t->diag);
}

/* The dump reads back to itself, and so does that of a copy. */
static void check_text(kva_module *m) {
  kva_text first = {0}, second = {0}, copied = {0};
  kva_module_print(m, &first);
  fixture again = load(first.data);
  kva_module_print(again.m, &second);
  assert_string_equal(first.data, second.data);
  kva_module *copy = kva_module_clone(m);
  assert_int_equal(kva_module_verify(copy), KVA_OK);
  kva_module_print(copy, &copied);
  assert_string_equal(first.data, copied.data);
  assert_true(kva_graph_hash(m->functions.data[0]->graph) == kva_graph_hash(copy->functions.data[0]->graph));
  kva_module_destroy(copy);
  kva_text_free(&first);
  kva_text_free(&second);
  kva_text_free(&copied);
  teardown(&again);
}

static kva_ref_tensor *floats(int64_t n) {
  kva_ref_tensor *w = kva_ref_tensor_create(KVA_F32, 1, &n);
  for (int64_t i = 0; i < n; i++) w->f[i] = (double)(i + 1);
  return w;
}

static kva_ref_tensor *number(kva_dtype t, int64_t v) {
  kva_ref_tensor *w = kva_ref_tensor_create(t, 0, NULL);
  w->i[0] = v;
  return w;
}

/* Runs function 0 on (x = 1, 2, ... n; a scalar of the second input's type) and frees the inputs. */
static kva_status run(fixture *t, int64_t n, int64_t second, kva_ref_tensor **out) {
  kva_function *f = t->m->functions.data[0];
  kva_ref_tensor *in[] = {floats(n), number(f->graph->inputs.data[1]->type->dtype, second)};
  kva_status status = kva_ref_run(t->m, f, (const kva_ref_tensor *const *)in, out, NULL, NULL, NULL, NULL, t->diag);
  kva_ref_tensor_free(in[0]);
  kva_ref_tensor_free(in[1]);
  return status;
}

static void expect(const kva_ref_tensor *w, uint32_t n, const double *values) {
  assert_int_equal(w->n, n);
  for (uint32_t i = 0; i < n; i++) assert_true(kva_ref_tensor_get(w, i) == values[i]);
}
#define EXPECT(w, ...) expect(w, sizeof((double[]){__VA_ARGS__}) / sizeof(double), (double[]){__VA_ARGS__})

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* The branches have different extents; the symbol that the node binds sizes what follows. */
static const char branches[] = "main (float[N] x, bool c) => (float[M] y, int64 size)\n"
                               "{\n"
                               "  r = kv.if <binds = M> (c, x) { (float[N] a) => (float[N] b)\n"
                               "    b = kv.add (a, a)\n"
                               "    return (b)\n"
                               "  } { (float[N] a) => (float[2] b)\n"
                               "    b = kv.slice <starts = [0], shape = [2]> (a)\n"
                               "    return (b)\n"
                               "  }\n"
                               "  y = kv.neg (r)\n"
                               "  size = kv.dims <values = [M], scalar = true> ()\n"
                               "  return (y, size)\n"
                               "}\n";

static void test_if(void **state) {
  (void)state;
  fixture t = load(branches);
  check_text(t.m);
  kva_ref_tensor *out[2];
  assert_int_equal(run(&t, 3, 1, out), KVA_OK);
  EXPECT(out[0], -2, -4, -6);
  EXPECT(out[1], 3);
  kva_ref_tensor_free(out[0]);
  kva_ref_tensor_free(out[1]);
  assert_int_equal(run(&t, 3, 0, out), KVA_OK);
  EXPECT(out[0], -1, -2);
  EXPECT(out[1], 2);
  kva_ref_tensor_free(out[0]);
  kva_ref_tensor_free(out[1]);
  teardown(&t);
}

/* total = sum over i < n of (i + 1) * sum(x); rows are i * x. An unused captured value and an unused input do no harm.
 */
static const char counted[] =
    "main (float[N] x, int64 n) => (float total, float[S, N] rows)\n"
    "{\n"
    "  zero = kv.constant <value = float {0.0}> ()\n"
    "  total, rows = kv.loop <carried = 1, binds = S> (n, , zero, x, n) {\n"
    "   (int64 i, float acc, float[N] v, int64 unused) => (bool go, float next, float[N] row)\n"
    "    go = kv.constant <value = bool {false}> ()\n"
    "    one = kv.constant <value = float {1.0}> ()\n"
    "    k = kv.cast <to = float> (i)\n"
    "    k1 = kv.add (k, one)\n"
    "    row = kv.mul (v, k)\n"
    "    s = kv.reduce_sum <axes = [0], keepdims = false> (v)\n"
    "    term = kv.mul (s, k1)\n"
    "    next = kv.add (acc, term)\n"
    "    return (go, next, row)\n"
    "  }\n"
    "  return (total, rows)\n"
    "}\n";

static void test_counted_loop(void **state) {
  (void)state;
  fixture t = load(counted);
  check_text(t.m);
  kva_ref_tensor *out[2];
  assert_int_equal(run(&t, 2, 3, out), KVA_OK);
  EXPECT(out[0], 3 * (1 + 2 + 3));
  EXPECT(out[1], 0, 0, 1, 2, 2, 4);
  assert_int_equal(out[1]->dims[0], 3);
  kva_ref_tensor_free(out[0]);
  kva_ref_tensor_free(out[1]);
  assert_int_equal(run(&t, 2, -1, out), KVA_OK); /* no iteration */
  EXPECT(out[0], 0);
  assert_int_equal(out[1]->dims[0], 0);
  assert_int_equal(out[1]->dims[1], 2);
  kva_ref_tensor_free(out[0]);
  kva_ref_tensor_free(out[1]);
  teardown(&t);
}

/* Halves x until its sum is below 4; n only bounds the number of iterations. */
static const char until[] = "main (float[N] x, int64 n) => (float[N] y, int64[S] steps)\n"
                            "{\n"
                            "  yes = kv.constant <value = bool {true}> ()\n"
                            "  y, steps = kv.loop <carried = 1, binds = S> (n, yes, x) {\n"
                            "   (int64 i, float[N] v) => (bool go, float[N] half, int64 row)\n"
                            "    two = kv.constant <value = float {2.0}> ()\n"
                            "    four = kv.constant <value = float {4.0}> ()\n"
                            "    half = kv.div (v, two)\n"
                            "    s = kv.reduce_sum <axes = [0], keepdims = false> (half)\n"
                            "    go = kv.less_equal (four, s)\n"
                            "    row = kv.add (i, i)\n"
                            "    return (go, half, row)\n"
                            "  }\n"
                            "  return (y, steps)\n"
                            "}\n";

static void test_condition_ends_loop(void **state) {
  (void)state;
  fixture t = load(until);
  check_text(t.m);
  kva_ref_tensor *out[2];
  assert_int_equal(run(&t, 4, 100, out), KVA_OK); /* 10, 5, 2.5 */
  EXPECT(out[0], 0.25, 0.5, 0.75, 1);
  EXPECT(out[1], 0, 2);
  kva_ref_tensor_free(out[0]);
  kva_ref_tensor_free(out[1]);
  assert_int_equal(run(&t, 4, 1, out), KVA_OK); /* the count ends it first */
  EXPECT(out[0], 0.5, 1, 1.5, 2);
  EXPECT(out[1], 0);
  kva_ref_tensor_free(out[0]);
  kva_ref_tensor_free(out[1]);
  teardown(&t);
}

/* A body that binds a symbol of its own, another value in every iteration: sum over i < n of the length of x[0 .. i).
 */
static const char rebound[] = "main (float[N] x, int64 n) => (float total)\n"
                              "{\n"
                              "  zero = kv.constant <value = float {0.0}> ()\n"
                              "  total = kv.loop <carried = 1> (n, , zero, x) {\n"
                              "   (int64 i, float acc, float[N] v) => (bool go, float next)\n"
                              "    go = kv.constant <value = bool {true}> ()\n"
                              "    kv.bind <symbol = L, bound = N> (i)\n"
                              "    part = kv.slice <starts = [0], shape = [L]> (v)\n"
                              "    s = kv.reduce_sum <axes = [0], keepdims = false> (part)\n"
                              "    next = kv.add (acc, s)\n"
                              "    return (go, next)\n"
                              "  }\n"
                              "  return (total)\n"
                              "}\n";

static void test_bind(void **state) {
  (void)state;
  fixture t = load(rebound);
  check_text(t.m);
  kva_ref_tensor *out[1];
  assert_int_equal(run(&t, 3, 4, out), KVA_OK);
  EXPECT(out[0], 0 + 1 + 3 + 6);
  kva_ref_tensor_free(out[0]);
  assert_int_equal(run(&t, 3, 5, out), KVA_INVALID);
  assert_null(out[0]);
  assert_non_null(strstr(kva_diag_message(t.diag, 0, NULL, NULL), "symbol L gets the value 4, above its bound 3"));
  teardown(&t);
}

static void test_negative_size(void **state) {
  (void)state;
  fixture t = load("main (float[N] x, int64 n) => (int64[L] y)\n{\n  kv.bind <symbol = L> (n)\n"
                   "  y = kv.iota <shape = [L]> ()\n  return (y)\n}\n");
  kva_ref_tensor *out[1];
  assert_int_equal(run(&t, 1, 2, out), KVA_OK);
  EXPECT(out[0], 0, 1);
  kva_ref_tensor_free(out[0]);
  assert_int_equal(run(&t, 1, -2, out), KVA_INVALID);
  assert_non_null(strstr(kva_diag_message(t.diag, 0, NULL, NULL), "symbol L gets the value -2"));
  teardown(&t);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

typedef struct refusal {
  const char *text, *message;
} refusal;

#define MAIN(inputs, outputs, body) "main (" inputs ") => (" outputs ")\n{\n" body "}\n"
#define BRANCH(type)                "{ (float[N] a) => (" type " a)\n return (a)\n}\n"

static const refusal refusals[] = {
    {MAIN("int64 n, bool c", "int64[L] y",
          "r = kv.if (c, n) { (int64 n) => (int64 n)\n kv.bind <symbol = L> (n)\n return (n)\n} { (int64 n) => (int64 "
          "n)\n "
          "return (n)\n}\n y = kv.iota <shape = [L]> ()\n return (y)\n"),
     "kv.iota uses symbol 'L', which has no value here"},
    {MAIN("int64 n, float[L] x", "float[L] x", "kv.bind <symbol = L> (n)\n return (x)\n"),
     "an input uses symbol 'L', which has no value here"},
    {MAIN("int64 n", "int64 n", "kv.bind <symbol = L> (n)\n kv.bind <symbol = L> (n)\n return (n)\n"),
     "binds a symbol a second time"},
    {MAIN("float n", "float n", "kv.bind <symbol = L> (n)\n return (n)\n"), "expected a scalar of int64"},
    {MAIN("int64 n", "int64 n", "kv.bind <symbol = 4> (n)\n return (n)\n"), "kv.bind binds symbols"},
    {MAIN(
         "bool c, float[N] x", "float[N] y",
         "y = kv.if (c, x) " BRANCH("float[N]") "{ (float[N] a) => (float b)\n b = kv.reduce_sum <axes = [0], keepdims "
                                                "= false> (a)\n return (b)\n}\n return (y)\n"),
     "output 0 of the branches differs in element type or rank"},
    {MAIN("bool c, float[N] x", "float y",
          "y = kv.if (c, x) " BRANCH("float[N]") "{ (float[N] a) => (float[1] b)\n b = kv.reduce_sum <axes = [0]> (a)\n"
                                                 " return (b)\n}\n return (y)\n"),
     "axis 0 of output 0 differs between the branches: binds must name it"},
    {MAIN("bool c, float[N] x", "float[N] y",
          "y = kv.if <binds = M> (c, x) " BRANCH("float[N]") BRANCH("float[N]") "return (y)\n"),
     "binds names 1 symbols for 0 axes"},
    {MAIN("bool c, float[N] x", "float[N] y",
          "y = kv.if (c) { () => (float[N] b)\n b = kv.neg (x)\n return (b)\n} { () => (float[N] b)\n b = kv.abs (x)\n "
          "return (b)\n}\n return (y)\n"),
     "operand 0 is a value from outside sub-graph 0 of kv.if"},
    {MAIN("bool c, float[N] x", "float[N] y", "y = kv.if (x, x) " BRANCH("float[N]") BRANCH("float[N]") "return (y)\n"),
     "expected a scalar of bool"},
    {MAIN("int64 n, float[N] x", "float[S, N] y",
          "y = kv.loop (n, , x) { (int64 i, float[N] v) => (bool go, float[N] v)\n go = kv.constant <value = bool "
          "{true}> ()\n return (go, v)\n}\n return (y)\n"),
     "binds names 0 symbols, expected 1"},
    {MAIN("int64 n, float[N] x", "float[N] y",
          "y = kv.loop <carried = 1> (n, , x) { (int64 i, float[N] v) => (bool go, float[1] w)\n go = kv.constant "
          "<value "
          "= bool {true}> ()\n w = kv.reduce_sum <axes = [0]> (v)\n return (go, w)\n}\n return (y)\n"),
     "carried value 0 changes its type from iteration to iteration"},
    {MAIN("int64 n, float[N] x", "float[S, L] y",
          "y = kv.loop <binds = S> (n, , x) { (int64 i, float[N] v) => (bool go, float[L] w)\n go = kv.constant <value "
          "= bool {true}> ()\n kv.bind <symbol = L> (i)\n w = kv.slice <starts = [0], shape = [L]> (v)\n return (go, w)"
          "\n}\n return (y)\n"),
     "rows of output 1 differ from iteration to iteration in axis 0"},
};

static void test_refusals(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
    kva_diag *diag = kva_diag_create();
    kva_module *m = NULL;
    if (kva_load_text(refusals[i].text, "test", NULL, diag, &m) == KVA_OK)
      fail_msg("expected '%s', but this loads:\n%s", refusals[i].message, refusals[i].text);
    bool found = false;
    for (size_t k = 0; k < kva_diag_count(diag); k++)
      found |= strstr(kva_diag_message(diag, k, NULL, NULL), refusals[i].message) != NULL;
    if (!found) {
      kva_diag_print(diag, stderr);
      fail_msg("expected '%s' of:\n%s", refusals[i].message, refusals[i].text);
    }
    kva_diag_destroy(diag);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_if),   cmocka_unit_test(test_counted_loop),  cmocka_unit_test(test_condition_ends_loop),
      cmocka_unit_test(test_bind), cmocka_unit_test(test_negative_size), cmocka_unit_test(test_refusals),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
