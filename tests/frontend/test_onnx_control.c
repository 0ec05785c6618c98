/* If, Loop and Scan that stay control flow, and operators whose result sizes depend on data: ONNX text, imported,
 * and evaluated by the reference: as imported, cleaned up, and exported and imported again. */
#include "passes/passes.h"
#include "ops/ids.h"
#include "frontend/frontend.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define ONNX "<ir_version: 10, opset_import: [\"\": 21]>\n"

typedef struct fixture {
  kva_diag *diag;
  kva_module *m;
  kva_ref_tensor *in[4], *out[4];
  uint32_t n_in, n_out;
} fixture;

static fixture load(const char *text) {
  fixture t = {.diag = kva_diag_create()};
  if (kva_load_text(text, "test", NULL, t.diag, &t.m)) {
    kva_diag_print(t.diag, stderr);
    fail_msg("does not load:\n%s", text);
  }
  t.n_out = kva_graph_output_count(t.m->functions.data[0]->graph);
  return t;
}

static void add_floats(fixture *t, int64_t n, const double *values) {
  kva_ref_tensor *w = t->in[t->n_in++] = kva_ref_tensor_create(KVA_F32, 1, &n);
  for (int64_t i = 0; i < n; i++) w->f[i] = values[i];
}
#define FLOATS(t, ...) add_floats(t, sizeof((double[]){__VA_ARGS__}) / sizeof(double), (double[]){__VA_ARGS__})

static void add_scalar(fixture *t, kva_dtype dtype, int64_t v) {
  kva_ref_tensor *w = t->in[t->n_in++] = kva_ref_tensor_create(dtype, 0, NULL);
  w->i[0] = v;
}

static void run(fixture *t) {
  for (uint32_t i = 0; i < t->n_out; i++) kva_ref_tensor_free(t->out[i]);
  if (kva_ref_run(t->m, t->m->functions.data[0], (const kva_ref_tensor *const *)t->in, t->out, NULL, NULL, NULL, NULL,
                  t->diag)) {
    kva_diag_print(t->diag, stderr);
    fail();
  }
}

static void clean_up(fixture *t) {
  if (!kva_optimize(t->m, &(kva_pass_options){.control = &(kva_pass_control){.verify_each = true}})) return;
  kva_diag_print(t->diag, stderr);
  fail();
}

/* Exported and imported again in its own place. */
static void round_trip(fixture *t) {
  char path[] = "/tmp/kvasir-control-XXXXXX";
  int file = mkstemp(path);
  assert_true(file >= 0);
  close(file);
  kva_module *again = NULL;
  kva_status status = kva_export_onnx(t->m, path, NULL, NULL, t->diag);
  if (!status) status = kva_load_model(path, NULL, t->diag, &again);
  unlink(path);
  if (status) kva_diag_print(t->diag, stderr);
  assert_int_equal(status, KVA_OK);
  kva_module_destroy(t->m);
  t->m = again;
}

static void drop_inputs(fixture *t) {
  while (t->n_in) kva_ref_tensor_free(t->in[--t->n_in]);
}

static void teardown(fixture *t) {
  drop_inputs(t);
  for (uint32_t i = 0; i < t->n_out; i++) kva_ref_tensor_free(t->out[i]);
  kva_module_destroy(t->m);
  kva_diag_destroy(t->diag);
}

static void expect(const kva_ref_tensor *w, uint32_t n, const double *values) {
  assert_int_equal(w->n, n);
  for (uint32_t i = 0; i < n; i++) assert_true(kva_ref_tensor_get(w, i) == values[i]);
}
#define EXPECT(w, ...) expect(w, sizeof((double[]){__VA_ARGS__}) / sizeof(double), (double[]){__VA_ARGS__})

static uint32_t count(const kva_module *m, kva_op_id op) {
  uint32_t n = 0;
  for (const kva_node *node = m->functions.data[0]->graph->first; node; node = node->next) n += kva_is(node, op);
  return n;
}

/* ---- if ---------------------------------------------------------------------------------------------------------- */

static void test_branches_of_different_shapes(void **state) {
  (void)state;
  fixture t = load(ONNX "agraph (float[N] x, bool c) => (float[M] y, int64[1] size)\n{\n"
                        "  z = If (c) <then_branch = t () => (float[K] a) { a = Add (x, x) },\n"
                        "    else_branch = e () => (float[K] b) {\n"
                        "      zero = Constant <value = int64[1] {0}> ()\n"
                        "      two = Constant <value = int64[1] {2}> ()\n"
                        "      b = Slice (x, zero, two)\n"
                        "    }>\n"
                        "  y = Neg (z)\n  size = Shape (y)\n}\n");
  for (int stage = 0; stage < 3; stage++) {
    assert_int_equal(count(t.m, KVA_OP_if), 1);
    FLOATS(&t, 1, 2, 3);
    add_scalar(&t, KVA_BOOL, 1);
    run(&t);
    EXPECT(t.out[0], -2, -4, -6);
    EXPECT(t.out[1], 3);
    t.in[1]->i[0] = 0;
    run(&t);
    EXPECT(t.out[0], -1, -2);
    EXPECT(t.out[1], 2);
    drop_inputs(&t);
    (stage ? round_trip : clean_up)(&t);
  }
  teardown(&t);
}

/* Cheap branches of one type fuse as a selection. */
static void test_small_branches_are_selected(void **state) {
  (void)state;
  fixture t = load(ONNX "agraph (float[N] x, bool c) => (float[N] y)\n{\n"
                        "  y = If (c) <then_branch = t () => (float[N] a) { a = Add (x, x) },\n"
                        "    else_branch = e () => (float[N] b) { b = Neg (x) }>\n}\n");
  clean_up(&t);
  assert_int_equal(count(t.m, KVA_OP_if), 0);
  FLOATS(&t, 1, 2);
  add_scalar(&t, KVA_BOOL, 0);
  run(&t);
  EXPECT(t.out[0], -1, -2);
  teardown(&t);
}

/* ---- loop -------------------------------------------------------------------------------------------------------- */

/* The condition depends on what is carried; `x` and `limit` come from outside. */
static void test_condition_depends_on_data(void **state) {
  (void)state;
  fixture t = load(ONNX "agraph (float[N] x, float[1] limit) => (float[N] last, float[S, N] rows)\n{\n"
                        "  none = Constant <value = int64 {1000000}> ()\n"
                        "  yes = Constant <value = bool {1}> ()\n"
                        "  last, rows = Loop (none, yes, x) <body = b (int64 i, bool c, float[N] v)\n"
                        "    => (bool[1] go, float[N] next, float[N] row) {\n"
                        "      next = Add (v, x)\n"
                        "      s = ReduceSum <keepdims = 0> (next)\n"
                        "      go = Less (s, limit)\n"
                        "      row = Identity (v)\n"
                        "    }>\n}\n");
  for (int stage = 0; stage < 3; stage++) {
    assert_int_equal(count(t.m, KVA_OP_loop), 1);
    FLOATS(&t, 1, 2);
    FLOATS(&t, 10);
    run(&t); /* sums 6, 9, 12 */
    EXPECT(t.out[0], 4, 8);
    EXPECT(t.out[1], 1, 2, 2, 4, 3, 6);
    drop_inputs(&t);
    (stage ? round_trip : clean_up)(&t);
  }
  teardown(&t);
}

/* The trip count is an extent, so that rows have it, too; the body has a branch that captures from both graphs. */
static void test_count_is_an_extent(void **state) {
  (void)state;
  fixture t = load(ONNX "agraph (float[N] x, bool c) => (float last, float[N] rows)\n{\n"
                        "  n = Size (x)\n"
                        "  zero = Constant <value = float {0}> ()\n"
                        "  last, rows = Loop (n, , zero) <body = b (int64 i, bool d, float a)\n"
                        "    => (bool go, float next, float row) {\n"
                        "      go = Constant <value = bool {1}> ()\n"
                        "      e = Gather (x, i)\n"
                        "      row = If (c) <then_branch = t () => (float p) { p = Add (a, e) },\n"
                        "        else_branch = f () => (float q) { k = Gather (x, i)  q = Mul (k, k) }>\n"
                        "      next = Add (a, row)\n"
                        "    }>\n}\n");
  for (int stage = 0; stage < 3; stage++) {
    const kva_type *rows = kva_graph_output(t.m->functions.data[0]->graph, 1)->type;
    assert_ptr_equal(rows->dims[0], kva_expr_symbol(t.m->exprs, "N"));
    FLOATS(&t, 1, 2, 3);
    add_scalar(&t, KVA_BOOL, 1);
    run(&t);
    EXPECT(t.out[0], 11);
    EXPECT(t.out[1], 1, 3, 7);
    t.in[1]->i[0] = 0;
    run(&t);
    EXPECT(t.out[0], 14);
    EXPECT(t.out[1], 1, 4, 9);
    drop_inputs(&t);
    (stage ? round_trip : clean_up)(&t);
  }
  teardown(&t);
}

/* Rows of no iteration have the type that the body gives them. */
static void test_no_iterations(void **state) {
  (void)state;
  static const char *const ends[] = {"n = Constant <value = int64 {0}> ()\n  last, rows = Loop (n, , x)",
                                     "no = Constant <value = bool {0}> ()\n  last, rows = Loop (, no, x)"};
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
    char text[512];
    snprintf(
        text, sizeof text,
        ONNX
        "agraph (float[N] x) => (float[N] last, float[M, N] rows)\n{\n  %s <body = b (int64 i, bool c, float[N] v)\n"
        "    => (bool go, float[N] w, float[N] row) {\n"
        "      go = Identity (c)  w = Add (v, v)  row = Neg (w)\n    }>\n}\n",
        ends[i]);
    fixture t = load(text);
    for (int stage = 0; stage < 3; stage++) {
      FLOATS(&t, 1, 2, 3);
      run(&t);
      EXPECT(t.out[0], 1, 2, 3);
      assert_int_equal(t.out[1]->rank, 2);
      assert_int_equal(t.out[1]->dims[0], 0);
      assert_int_equal(t.out[1]->dims[1], 3);
      drop_inputs(&t);
      (stage ? round_trip : clean_up)(&t);
    }
    teardown(&t);
  }
}

/* More than would be unrolled. */
static void test_many_iterations(void **state) {
  (void)state;
  fixture t = load(ONNX "agraph (float[N] x) => (float[N] y)\n{\n"
                        "  n = Constant <value = int64 {5000}> ()\n"
                        "  y = Loop (n, , x) <body = b (int64 i, bool c, float[N] v) => (bool go, float[N] w) {\n"
                        "    go = Identity (c)\n"
                        "    one = Constant <value = float {1}> ()\n"
                        "    w = Add (v, one)\n"
                        "  }>\n}\n");
  assert_int_equal(count(t.m, KVA_OP_loop), 1);
  FLOATS(&t, 1, 2);
  run(&t);
  EXPECT(t.out[0], 5001, 5002);
  teardown(&t);
}

static void test_carried_shape_changes(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  const char *text = ONNX "agraph (float[N] x, int64 n) => (float[M] y)\n{\n"
                          "  y = Loop (n, , x) <body = b (int64 i, bool c, float[K] v) => (bool go, float[L] w) {\n"
                          "    go = Identity (c)\n    w = Concat <axis = 0> (v, v)\n  }>\n}\n";
  assert_int_equal(kva_load_text(text, "test", NULL, diag, &m), KVA_UNSUPPORTED);
  assert_non_null(strstr(kva_diag_message(diag, 0, NULL, NULL), "carried value 0 changes from float[N] to float[2*N]"));
  kva_diag_destroy(diag);
}

/* ---- scan -------------------------------------------------------------------------------------------------------- */

/* A symbolic length, backwards over one input, rows along axis 1 and turned round. */
static void test_scan(void **state) {
  (void)state;
  fixture t = load(ONNX "agraph (float[N] x, float[N] y) => (float last, float[1, N] rows)\n{\n"
                        "  zero = Constant <value = float {0}> ()\n"
                        "  last, r = Scan <num_scan_inputs = 2, scan_input_directions = [0, 1],\n"
                        "    scan_output_axes = [1], scan_output_directions = [1],\n"
                        "    body = b (float a, float p, float q) => (float n, float[1] row) {\n"
                        "      m = Mul (p, q)\n      n = Add (a, m)\n"
                        "      shape = Constant <value = int64[1] {1}> ()\n      row = Reshape (n, shape)\n"
                        "    }> (zero, x, y)\n"
                        "  rows = Identity (r)\n}\n");
  for (int stage = 0; stage < 2; stage++) {
    assert_int_equal(count(t.m, KVA_OP_loop), 1);
    FLOATS(&t, 1, 2, 3);
    FLOATS(&t, 10, 20, 30);
    run(&t); /* 30, 40, 30 */
    EXPECT(t.out[0], 100);
    EXPECT(t.out[1], 100, 70, 30);
    drop_inputs(&t);
    clean_up(&t);
  }
  teardown(&t);
}

/* ---- sizes that depend on data ----------------------------------------------------------------------------------- */

/* x[i : i + 1] has one row, whatever i is. */
static void test_row_by_data(void **state) {
  (void)state;
  fixture t = load(ONNX "agraph (float[N] x, int64 i) => (float[1] y)\n{\n"
                        "  axes = Constant <value = int64[1] {0}> ()\n  one = Constant <value = int64 {1}> ()\n"
                        "  j = Add (one, i)\n  s = Unsqueeze (i, axes)\n  e = Unsqueeze (j, axes)\n"
                        "  y = Slice (x, s, e, axes)\n}\n");
  FLOATS(&t, 1, 2, 3);
  add_scalar(&t, KVA_I64, 2);
  run(&t);
  EXPECT(t.out[0], 3);
  teardown(&t);
}

static void test_nonzero(void **state) {
  (void)state;
  fixture t = load(ONNX "agraph (float[N] x) => (int64[1, K] places, float[K] values, float sum)\n{\n"
                        "  places = NonZero (x)\n"
                        "  axes = Constant <value = int64[1] {0}> ()\n"
                        "  flat = Squeeze (places, axes)\n"
                        "  values = Gather (x, flat)\n"
                        "  sum = ReduceSum <keepdims = 0> (values)\n}\n");
  for (int stage = 0; stage < 2; stage++) {
    FLOATS(&t, 0, 5, 0, -1, 2);
    run(&t);
    EXPECT(t.out[0], 1, 3, 4);
    EXPECT(t.out[1], 5, -1, 2);
    EXPECT(t.out[2], 6);
    drop_inputs(&t);
    FLOATS(&t, 0, 0);
    run(&t);
    assert_int_equal(t.out[1]->n, 0);
    EXPECT(t.out[2], 0);
    drop_inputs(&t);
    clean_up(&t);
  }
  teardown(&t);
}

static void test_unique(void **state) {
  (void)state;
  fixture t = load(ONNX "agraph (float[N] x) => (float[K] y, int64[K] first, int64[N] inverse, int64[K] counts)\n{\n"
                        "  y, first, inverse, counts = Unique (x)\n}\n");
  FLOATS(&t, 3, 1, 3, 2, 1, 3);
  run(&t);
  EXPECT(t.out[0], 1, 2, 3);
  EXPECT(t.out[1], 1, 3, 0);
  EXPECT(t.out[2], 2, 0, 2, 1, 0, 2);
  EXPECT(t.out[3], 2, 1, 3);
  teardown(&t);
}

/* Rows of `width` equal elements, by sorting and by comparing pairs: NaNs are one class, which comes last. */
static void test_unique_rows(void **state) {
  (void)state;
  static const int widths[] = {2, 20};
  for (int i = 0; i < 4; i++) {
    bool sorted = i % 2;
    char text[1024];
    snprintf(text, sizeof text,
             ONNX "agraph (float[N] x) => (int64[K] first, int64[N] inverse, int64[K] counts)\n{\n"
                  "  tall = Constant <value = int64[2] {-1, 1}> ()\n  wide = Constant <value = int64[2] {1, %d}> ()\n"
                  "  column = Reshape (x, tall)\n  rows = Expand (column, wide)\n"
                  "  y, first, inverse, counts = Unique <axis = 0, sorted = %d> (rows)\n}\n",
             widths[i / 2], sorted);
    fixture t = load(text);
    FLOATS(&t, 3, NAN, 1, 3, NAN, 2, 1, 3);
    run(&t);
    if (sorted) {
      EXPECT(t.out[0], 2, 5, 0, 1);
      EXPECT(t.out[1], 2, 3, 0, 2, 3, 1, 0, 2);
      EXPECT(t.out[2], 2, 1, 3, 2);
    } else {
      EXPECT(t.out[0], 0, 1, 2, 5);
      EXPECT(t.out[1], 0, 1, 2, 0, 1, 3, 2, 0);
      EXPECT(t.out[2], 3, 2, 2, 1);
    }
    teardown(&t);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_branches_of_different_shapes),
      cmocka_unit_test(test_small_branches_are_selected),
      cmocka_unit_test(test_condition_depends_on_data),
      cmocka_unit_test(test_count_is_an_extent),
      cmocka_unit_test(test_no_iterations),
      cmocka_unit_test(test_many_iterations),
      cmocka_unit_test(test_carried_shape_changes),
      cmocka_unit_test(test_scan),
      cmocka_unit_test(test_row_by_data),
      cmocka_unit_test(test_nonzero),
      cmocka_unit_test(test_unique),
      cmocka_unit_test(test_unique_rows),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
