/* Gradients through if and loop against central differences of the reference, in double. */
#include "tests/support/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <setjmp.h>
#include <cmocka.h>

static const eval_size sizes[] = {{"N", 5}, {NULL, 0}};

static kva_module *load(const char *text, kva_diag *diag) {
  kva_module *m = NULL;
  if (kva_load_text(text, "test", NULL, diag, &m) == KVA_OK) return m;
  kva_diag_print(diag, stderr);
  fail_msg("does not load:\n%s", text);
  return NULL;
}

/* Gradients of output 0 by state become the outputs behind it. */
static void differentiate(kva_module *m) {
  kva_function *f = m->functions.data[0];
  kva_value **grads = KVA_NEW_ARRAY(m->arena, kva_value *, m->states.len + 1);
  kva_value **outputs = KVA_NEW_ARRAY(m->arena, kva_value *, m->states.len + 1);
  kva_gradients wanted = {f, kva_graph_output(f->graph, 0), grads};
  bool changed = false;
  kva_status status = kva_autodiff(m, &(kva_pass_options){.gradients = &wanted}, &changed);
  if (status) kva_diag_print(m->diag, stderr);
  assert_int_equal(status, KVA_OK);
  kva_node *ret = f->graph->last;
  outputs[0] = kva_operand(ret, 0);
  for (uint32_t i = 0; i < m->states.len; i++) {
    assert_non_null(grads[i]);
    outputs[i + 1] = grads[i];
  }
  kva_node_create(f->graph, ret, ret->op, m->states.len + 1, outputs, 0, NULL, ret->loc);
  kva_node_remove(ret);
  f->output_names = NULL;
  status = kva_module_verify(m);
  if (status) kva_diag_print(m->diag, stderr);
  assert_int_equal(status, KVA_OK);
}

static double loss_of(kva_module *m, kva_ref_tensor *const *states) {
  evaluated e = evaluate_reference_from(m, m->functions.data[0], sizes, (const kva_ref_tensor *const *)states);
  double loss = e.outputs[0]->f[0];
  evaluated_free(&e);
  return loss;
}

static void compare(const char *text, kva_module *m, const kva_ref_tensor *gradient, kva_ref_tensor **states,
                    uint32_t s) {
  const double h = 1e-5;
  for (int64_t i = 0; i < states[s]->n; i++) {
    double at = states[s]->f[i];
    states[s]->f[i] = at + h;
    double above = loss_of(m, states);
    states[s]->f[i] = at - h;
    double below = loss_of(m, states), expected = (above - below) / (2 * h);
    states[s]->f[i] = at;
    if (fabs(gradient->f[i] - expected) <= 1e-6 * (1 + fabs(expected))) continue;
    fail_msg("gradient of %s, element %lld: %.9g, differences give %.9g, of:\n%s", m->states.data[s]->name,
             (long long)i, gradient->f[i], expected, text);
  }
}

static void compare_all(const char *text, kva_module *plain, kva_module *m) {
  evaluated found = evaluate_reference(m, m->functions.data[0], sizes);
  kva_ref_tensor **states = KVA_NEW_ARRAY(m->arena, kva_ref_tensor *, m->states.len);
  for (uint32_t s = 0; s < plain->states.len; s++) states[s] = eval_state(plain->states.data[s]);
  for (uint32_t s = 0; s < plain->states.len; s++) compare(text, plain, found.outputs[s + 1], states, s);
  for (uint32_t s = 0; s < plain->states.len; s++) kva_ref_tensor_free(states[s]);
  evaluated_free(&found);
}

static void print(kva_module *m) {
  kva_text text = {0};
  kva_module_print(m, &text);
  printf("%s\n", text.data);
  kva_text_free(&text);
}

/* As differentiated, and after clean-up. */
static void check(const char *text) {
  kva_diag *diag = kva_diag_create();
  kva_module *plain = load(text, diag), *m = load(text, diag);
  differentiate(m);
  compare_all(text, plain, m);
  assert_int_equal(kva_optimize(m, &(kva_pass_options){.control = &(kva_pass_control){.verify_each = true}}), KVA_OK);
  if (getenv("KVA_TEST_PRINT")) print(m);
  compare_all(text, plain, m);
  kva_module_destroy(plain);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static const char states[] = "state double[5] \"w\" : param ~ normal(1.0)\nstate double \"s\" : param ~ constant(0.7)\n"
                             "main () => (double loss)\n{\n  w = kv.state_read <state = \"w\"> ()\n"
                             "  s = kv.state_read <state = \"s\"> ()\n";

static void check_body(const char *body) {
  char text[8192];
  snprintf(text, sizeof text, "%s%s  return (loss)\n}\n", states, body);
  check(text);
}

/* Branches of different extents; the branch that is not taken must not count. */
static void test_if(void **state) {
  (void)state;
  for (int taken = 0; taken < 2; taken++) {
    char body[4096];
    snprintf(body, sizeof body,
             "  zero = kv.constant <value = double {0.0}> ()\n"
             "  w2 = kv.mul (w, w)\n"
             "  sum = kv.reduce_sum <axes = [0], keepdims = false> (w2)\n"
             "  c = kv.less (%s)\n"
             "  r, other = kv.if <binds = M> (c, w2, s) { (double[5] a, double b) => (double[5] y, double b)\n"
             "    y = kv.mul (a, b)\n"
             "    return (y, b)\n"
             "  } { (double[5] a, double b) => (double[3] y, double z)\n"
             "    t = kv.slice <starts = [1], shape = [3]> (a)\n"
             "    y = kv.sin (t)\n"
             "    z = kv.mul (b, b)\n"
             "    return (y, z)\n"
             "  }\n"
             "  e = kv.exp (r)\n"
             "  part = kv.reduce_sum <axes = [0], keepdims = false> (e)\n"
             "  loss = kv.mul (part, other)\n",
             taken ? "zero, sum" : "sum, zero");
    check_body(body);
  }
}

/* Cheap branches of different extents: what reads an adjoint of the one's extent must not run in the other. */
static void test_if_small(void **state) {
  (void)state;
  for (int taken = 0; taken < 2; taken++) {
    char body[4096];
    snprintf(body, sizeof body,
             "  zero = kv.constant <value = double {0.0}> ()\n"
             "  s2 = kv.mul (s, s)\n"
             "  c = kv.less (%s)\n"
             "  r = kv.if <binds = M> (c, w) { (double[5] a) => (double[5] y)\n"
             "    y = kv.exp (a)\n"
             "    return (y)\n"
             "  } { (double[5] a) => (double[3] t)\n"
             "    t = kv.slice <starts = [1], shape = [3]> (a)\n"
             "    return (t)\n"
             "  }\n"
             "  part = kv.reduce_sum <axes = [0], keepdims = false> (r)\n"
             "  loss = kv.mul (part, s)\n",
             taken ? "zero, s2" : "s2, zero");
    check_body(body);
  }
}

/* Known trip count; a carried value, a captured one, and rows. */
static void test_loop(void **state) {
  (void)state;
  check_body("  n = kv.constant <value = int64 {4}> ()\n"
             "  last, rows = kv.loop <carried = 1, trips = 4> (n, , w, s) {\n"
             "   (int64 i, double[5] v, double k) => (bool go, double[5] next, double[5] row)\n"
             "    go = kv.constant <value = bool {true}> ()\n"
             "    t = kv.sin (v)\n"
             "    u = kv.mul (t, k)\n"
             "    next = kv.add (u, v)\n"
             "    f = kv.cast <to = double> (i)\n"
             "    row = kv.mul (t, f)\n"
             "    return (go, next, row)\n"
             "  }\n"
             "  r2 = kv.mul (rows, rows)\n"
             "  a = kv.reduce_sum <axes = [0, 1], keepdims = false> (r2)\n"
             "  b = kv.reduce_sum <axes = [0], keepdims = false> (last)\n"
             "  loss = kv.add (a, b)\n");
}

/* The end depends on data; an integer is carried along. */
static void test_loop_until(void **state) {
  (void)state;
  check_body("  yes = kv.constant <value = bool {true}> ()\n"
             "  zero = kv.constant <value = int64 {0}> ()\n"
             "  last, count = kv.loop <carried = 2> (, yes, w, zero, s) {\n"
             "   (int64 i, double[5] v, int64 c, double k) => (bool go, double[5] next, int64 more)\n"
             "    eighty = kv.constant <value = double {80.0}> ()\n"
             "    one = kv.constant <value = int64 {1}> ()\n"
             "    more = kv.add (c, one)\n"
             "    f = kv.cast <to = double> (more)\n"
             "    v2 = kv.mul (v, v)\n"
             "    k2 = kv.mul (k, k)\n"
             "    t = kv.mul (v2, k2)\n"
             "    next = kv.add (t, f)\n"
             "    sum = kv.reduce_sum <axes = [0], keepdims = false> (next)\n"
             "    go = kv.less (sum, eighty)\n"
             "    return (go, next, more)\n"
             "  }\n"
             "  r = kv.sin (last)\n"
             "  loss = kv.reduce_sum <axes = [0], keepdims = false> (r)\n");
}

/* A branch in a loop, and a symbol that the body binds. */
static void test_nested(void **state) {
  (void)state;
  check_body("  n = kv.constant <value = int64 {5}> ()\n"
             "  zero = kv.constant <value = double {0.0}> ()\n"
             "  loss = kv.loop <carried = 1> (n, , zero, w, s) {\n"
             "   (int64 i, double acc, double[5] v, double k) => (bool go, double next)\n"
             "    go = kv.constant <value = bool {true}> ()\n"
             "    kv.bind <symbol = L, bound = 5> (i)\n"
             "    two = kv.constant <value = int64 {2}> ()\n"
             "    some = kv.slice <starts = [0], shape = [L]> (v)\n"
             "    e = kv.exp (some)\n"
             "    sum = kv.reduce_sum <axes = [0], keepdims = false> (e)\n"
             "    c = kv.less (i, two)\n"
             "    term = kv.if (c, sum, k) { (double a, double b) => (double y)\n"
             "      y = kv.mul (a, b)\n"
             "      return (y)\n"
             "    } { (double a, double b) => (double y)\n"
             "      y = kv.sub (b, a)\n"
             "      return (y)\n"
             "    }\n"
             "    t2 = kv.mul (term, term)\n"
             "    next = kv.add (acc, t2)\n"
             "    return (go, next)\n"
             "  }\n");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_if), cmocka_unit_test(test_if_small),
                                     cmocka_unit_test(test_loop), cmocka_unit_test(test_loop_until),
                                     cmocka_unit_test(test_nested)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
