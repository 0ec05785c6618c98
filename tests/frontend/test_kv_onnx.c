/* ONNX text: operators, functions, attribute references, initialisers, sub-graphs; results on the reference evaluator.
 */
#include "tests/frontend/onnx_text.h"
#include "ops/ids.h"

#include <math.h>

static void graph_with_initialisers(void **state) {
  (void)state;
  ASSERT_RESULT(
      "<ir_version: 7, opset_import: [\"\" : 13]>\n"
      "agraph (float[1, 2] X, float[2] B = {10, 20}) => (float[1, N] C) <float[2, 2] W = {1, 2, 3, 4}, float[1, 2] T>\n"
      "{ T = MatMul (X, W) S = Add (T, B) C = Relu (S) }",
      1 - 6 + 10, 2 - 8 + 20);
}

static void names_and_labels(void **state) {
  (void)state;
  loaded l =
      load_ok("<opset_import: [\"\" : 17]> \"a graph\" (float[\"a b\", ?] \"x y\") => (float[\"a b\", M] \"out put\")\n"
              "{ [\"the label\"] \"out put\" = Sigmoid (\"x y\") }",
              NULL);
  const kva_function *f = l.m->functions.data[0];
  assert_string_equal(l.m->name, "a graph");
  assert_string_equal(f->name, "main");
  assert_string_equal(f->graph->inputs.data[0]->name, "x y");
  assert_string_equal(f->output_names[0], "out put");
  assert_string_equal(kva_graph_output(f->graph, 0)->def->loc.node, "the label");
  unload(&l);
}

static void functions_with_attributes(void **state) {
  (void)state;
  ASSERT_RESULT("<ir_version: 9, opset_import: [\"\" : 15, \"custom\" : 1]>\n"
                "agraph (float[2] x) => (float[2] out) { y = custom.foo <alpha = 2.0, gamma = 3.0> (x) out = "
                "custom.foo (y) <gamma = 1.0> }\n"
                "<domain: \"custom\", opset_import: [\"\" : 15]> foo <alpha: float = 4.0, gamma> (X) => (C) {\n"
                "  a = Constant <value_float: float = @alpha> ()\n  g = Constant <value_float: float = @gamma> ()\n"
                "  ax = Mul (a, X)  C = Add (ax, g) }",
                4 * 5 + 1, 4 * -1 + 1);
}

static void functions_call_functions(void **state) {
  (void)state;
  ASSERT_RESULT("<opset_import: [\"\" : 17, \"l\" : 1]> g (float[2] x) => (float[2] y) { y = l.outer <k = 3.0> (x) }\n"
                "<domain: \"l\", opset_import: [\"\" : 17, \"l\" : 1]> outer <k> (a) => (b) { t = l.inner <f: float = "
                "@k> (a) b = l.inner:two <f: float = @k> (t) }\n"
                "<domain: \"l\", opset_import: [\"\" : 17]> inner <f> (a) => (b) { c = Constant <value_float: float = "
                "@f> () b = Mul (a, c) }\n"
                "<domain: \"l\", overload: \"two\", opset_import: [\"\" : 17]> inner <f> (a) => (b) { c = Constant "
                "<value_float: float = @f> () b = Sub (a, c) }",
                0, -9);
}

static void attribute_left_out_is_left_out_below(void **state) {
  (void)state;
  ASSERT_RESULT(
      "<opset_import: [\"\" : 17, \"l\" : 1]> g (float[2, 1] x) => (float[2, 1] y) { y = l.s (x) }\n"
      "<domain: \"l\", opset_import: [\"\" : 17]> s <axis> (a) => (b) { b = Softmax <axis: int = @axis> (a) }",
      1, 1);
}

/* What a mode repeats is what negative amounts leave, as in ONNX Runtime. */
static void pads_crop_first(void **state) {
  (void)state;
  ASSERT_RESULT("<opset_import: [\"\" : 19]> g (float[4] x) => (float[4] y) <int64[2] p = {1, -1}> { y = Pad <mode = "
                "\"wrap\"> (x, p) }",
                3, 1, -2, 3);
  ASSERT_RESULT("<opset_import: [\"\" : 19]> g (float[N] x) => (float[M] y) <int64[2] p = {-1, 2}> { y = Pad <mode = "
                "\"reflect\"> (x, p) }",
                -2, 3, -2, 3);
}

/* Not one of a column for every row, which would leave most of a vector unused. */
static void transforms_of_the_last_axis_are_one_product(void **state) {
  (void)state;
  loaded l =
      load_ok("<opset_import: [\"\" : 17]> g (float[N, 8, 16, 1] x) => (float[N, 8, 16, 2] y) { y = DFT <axis = 2> "
              "(x) }",
              NULL);
  uint32_t products = 0;
  for (const kva_node *n = l.m->functions.data[0]->graph->first; n; n = n->next) {
    if (!kva_is(n, KVA_OP_matmul)) continue;
    assert_int_equal(n->results[0].type->rank, 2);
    products++;
  }
  assert_int_equal(products, 2);
  unload(&l);
}

static uint32_t count_of(const loaded *l, kva_op_id op) {
  uint32_t count = 0;
  for (const kva_node *n = l->m->functions.data[0]->graph->first; n; n = n->next) count += kva_is(n, op);
  return count;
}

/* A kernel as large as the image is a product, for which there are kernels of few rows. */
static void convolution_of_the_whole_image(void **state) {
  (void)state;
  static const struct {
    const char *attributes, *x, *w;
    kva_op_id op;
  } rows[] = {
      {"group = 1", "N, 8, 1, 1", "16, 8, 1, 1", KVA_OP_matmul},
      {"strides = [2, 2]", "N, 8, 3, 2", "16, 8, 3, 2", KVA_OP_matmul},
      {"dilations = [2, 2]", "N, 8, 1, 1", "16, 8, 1, 1", KVA_OP_matmul},
      {"pads = [1, 0, 0, 0]", "N, 8, 1, 1", "16, 8, 2, 1", KVA_OP_conv},
      {"pads = [1, 0, 1, 0]", "N, 8, 1, 1", "16, 8, 1, 1", KVA_OP_conv},
      {"group = 2", "N, 8, 1, 1", "16, 4, 1, 1", KVA_OP_conv},
      {"group = 1", "N, 8, 2, 2", "16, 8, 1, 1", KVA_OP_conv},
      {"group = 1", "N, 8, H, 1", "16, 8, 1, 1", KVA_OP_conv},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    char text[512];
    snprintf(
        text, sizeof text,
        "<opset_import: [\"\" : 17]> g (float[%s] x, float[%s] w) => (float[N, 16, P, Q] y) { y = Conv <%s> (x, w) }",
        rows[i].x, rows[i].w, rows[i].attributes);
    loaded l = load_ok(text, NULL);
    assert_int_equal(count_of(&l, KVA_OP_matmul), rows[i].op == KVA_OP_matmul);
    assert_int_equal(count_of(&l, KVA_OP_conv), rows[i].op == KVA_OP_conv);
    unload(&l);
  }
  /* x = 1, -2, 3, -4: 1 + 2 * -2 + 3 * 3 + 4 * -4, and the bias */
  ASSERT_RESULT(
      "<opset_import: [\"\" : 17]> g (float[1, 2, 2, 1] x) => (float[1, 1, 1, 1] y) <float[1, 2, 2, 1] w = {1, 2, "
      "3, 4}, float[1] b = {100}> { y = Conv (x, w, b) }",
      90);
}

/* As exporters write it for a symbolic batch: sizes are no constant, but those of the resized axes are numbers. */
static void known_axes_of_a_resize(void **state) {
  (void)state;
  loaded l =
      load_ok("<opset_import: [\"\" : 17]> g (float[N, 3, 8, 8] x) => (float[N, 3, 16, 16] y) <int64[2] hw = {16, "
              "16}> { batch = Shape <end = 2> (x) sizes = Concat <axis = 0> (batch, hw) y = Resize <mode = "
              "\"linear\"> (x, \"\", \"\", sizes) }",
              NULL);
  assert_int_equal(count_of(&l, KVA_OP_matmul), 1); /* the last axis, of short lines */
  assert_int_equal(count_of(&l, KVA_OP_floor), 0);  /* positions are constants */
  unload(&l);
}

static void operators_in_models(void **state) {
  (void)state;
  ASSERT_RESULT("model m <n = 2> (float[2, 3] x) => (float[3, 2] y) { y = Reshape(Abs(x), [n + 1, -1]) * 1 }", 1, 2, 3,
                4, 5, 6);
  ASSERT_RESULT(
      "model m (float[4] x) => (float[2] y) { y = ReduceSum <keepdims = false> (ai.onnx.Reshape(x, [2, 2]), [1]) }", -1,
      -1);
  ASSERT_RESULT("model m (float[2] x) => (float[2] y) { a, b = Split <axis = 0> (x) y = Concat <axis = 0> (b, a) }", -2,
                1);
}

static void symbolic_shapes(void **state) {
  (void)state;
  loaded l = load_ok("model m <d = 4> (float[B, T, d] x) => (float[B, 2, T, d / 2] y) {\n"
                     "  y = Transpose <perm = [0, 2, 1, 3]> (Reshape(x, [B, T, 2, d / 2]))\n}",
                     NULL);
  assert_type(kva_graph_output(l.m->functions.data[0]->graph, 0), "float[B, 2, T, 2]");
  unload(&l);
}

static void if_with_a_known_condition(void **state) {
  (void)state;
  loaded l = load_with("<opset_import: [\"\" : 17]> g (float[2] x) => (float[2] z) <bool c = {0}> {\n"
                       "  z = If (c) < then_branch = g1 () => (float[2] a) { a = Neg (x) },\n"
                       "               else_branch = g2 () => (float[2] b) <float k = {5}> { b = Mul (x, k) } > }",
                       NULL);
  if (l.status == KVA_UNSUPPORTED) { /* named, with its place */
    assert_error(&l, 2, 7, "If");
    unload(&l);
    return;
  }
  unload(&l);
  ASSERT_RESULT("<opset_import: [\"\" : 17]> g (float[2] x) => (float[2] z) <bool c = {0}> {\n"
                "  z = If (c) < then_branch = g1 () => (float[2] a) { a = Neg (x) },\n"
                "               else_branch = g2 () => (float[2] b) <float k = {5}> { b = Mul (x, k) } > }",
                5, -10);
}

static void unsupported_operators_are_named(void **state) {
  (void)state;
  loaded l = load_with("<opset_import: [\"\" : 17]> g (float[2] x) => (float[2] z) {\n  y = NoSuchOperator (x)\n"
                       "  z = com.example.Other (x)\n}",
                       NULL);
  assert_int_equal(l.status, KVA_UNSUPPORTED);
  assert_error(&l, 2, 7, "NoSuchOperator");
  assert_error(&l, 3, 7, "Other");
  unload(&l);
}

static void wrong_onnx(void **state) {
  (void)state;
  static const struct {
    const char *text;
    uint32_t line, column;
    const char *message;
  } cases[] = {
      {"g (float[2] x) => (float[3] y) { y = Neg (x) }", 1, 20, "declared float[3], but its value is float[2]"},
      {"g (float[2] x) => (int32[2] y) { y = Neg (x) }", 1, 20, "declared int32[2], but its value is float[2]"},
      {"g (float[2] x) => (float[2] y) <float[2] w = {1}> { y = Neg (x) }", 1, 46, "has 2 elements, but 1 are given"},
      {"g (float[2] x) => (float[2] y) { y = Op <a = [1, \"b\"]> (x) }", 1, 46, "attribute 'a' is a list of strings"},
      {"g (float[2] x) => (float[2] y) { y = Op <a = x> (x) }", 1, 46, "known at compile time"},
      {"<opset_import: [\"\" : 17]> g (float[2] x) => (float[2] y) { y = LeakyRelu <alpha = 0.5, slope = 2.0> (x) }", 1,
       64, "LeakyRelu-17: attribute 'slope' is not known to this build"},
      {"g (float[2] x) => (float[2] y) { y, z = l.f (x) }\n<domain: \"l\"> f (a) => (b) { b = Neg (a) }", 1, 41,
       "has 1 inputs and 1 outputs"},
      {"g (float[2] x) => (float[2] y) { y = l.f <k = 1> (x) }\n<domain: \"l\"> f (a) => (b) { b = Neg (a) }", 1, 43,
       "no hyper-parameter 'k'"},
      {"g (float[2] x) => (float[2] y) { y = l.f (x) }\n<domain: \"l\"> f (a) => (b) { b = l.f (a) }", 2, 34,
       "call itself"},
      {"g (float[2] x) => (float[2] y) { y = l.f (x) }\n<domain: \"l\"> f (a) => (b) { c = Neg (a) }", 2, 25,
       "'b' is never assigned"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    loaded l = load_with(cases[i].text, NULL);
    assert_error(&l, cases[i].line, cases[i].column, cases[i].message);
    unload(&l);
  }
}

/* x is [1, -2, 3, -4], [5, -6, ...]; regions have an image number and corners in doubled units. The second cell of the
 * first region is empty below the image. */
static void regions_are_pooled(void **state) {
  (void)state;
  ASSERT_RESULT("<opset_import: [\"\" : 22]> g (float[1, 1, 3, 4] x) => (float[2, 1, 2, 1] y)\n"
                "<float[2, 5] rois = {0, 2, 2, 6, 9, 0, 0, 0, 0, 0}>\n"
                "{ y = MaxRoiPool <pooled_shape = [2, 1], spatial_scale = 0.5> (x, rois) }",
                11, 0, 1, 1);
}

static void resized_by_symbols(void **state) {
  (void)state;
  ASSERT_RESULT("<opset_import: [\"\" : 19]> g (float[1, N] x) => (float[1, M] y)\n"
                "<float[2] scales = {1, 1.5}> { y = Resize <mode = \"linear\"> (x, , scales) }",
                1, -0.5, -7.0 / 6, 13.0 / 6);
  ASSERT_RESULT("<opset_import: [\"\" : 19]> g (float[N] x) => (float[M] y)\n"
                "<float[1] scales = {2}> { y = Resize (x, , scales) }",
                1, 1, -2, -2, 3, 3);
}

/* h = relu(x + h): over a symbolic length, backwards, and with sequences that end early. */
static void recurrence_over_symbols(void **state) {
  (void)state;
  const char *const head =
      "<opset_import: [\"\" : 14]> g (float[T, 1, 1] x) => (float[T, 1, 1, 1] y)\n"
      "<float[1, 1, 1] w = {1}, float[1, 1, 1] r = {1}, int32[1] n = {2}> { y = RNN <hidden_size = 1, "
      "activations = [\"Relu\"], direction = \"%s\"> (x, w, r%s) }";
  char text[512];
  snprintf(text, sizeof text, head, "forward", "");
  ASSERT_RESULT(text, 1, 0, 3);
  snprintf(text, sizeof text, head, "reverse", "");
  ASSERT_RESULT(text, 2, 1, 3);
  snprintf(text, sizeof text, head, "reverse", ", , n");
  ASSERT_RESULT(text, 1, 0, 0);
}

static void fused_nodes(void **state) {
  (void)state;
  const char *const head =
      "<opset_import: [\"\" : 17, \"com.microsoft\" : 1]> g (float[1, 2] x) => (float[1, %s] y)\n"
      "<float[2, 1] w = {3, 1}, float[2] s = {2, 6}, float[2] g = {1, 2}> { y = com.microsoft.%s }";
  char text[512];
  snprintf(text, sizeof text, head, "1", "FusedMatMul <alpha = 2.0> (x, w)");
  ASSERT_RESULT(text, 2);
  snprintf(text, sizeof text, head, "2", "SkipSimplifiedLayerNormalization (x, s, g)");
  ASSERT_RESULT(text, 3 / sqrt(12.5), 8 / sqrt(12.5));
  snprintf(text, sizeof text, head, "2", "QuickGelu <alpha = 1.0> (x)");
  ASSERT_RESULT(text, 1 / (1 + exp(-1)), -2 / (1 + exp(2)));
}

/* Codes 12 and 6 for 1 and -2, and results in steps of 0.25 from -2.5 on. */
static void nodes_of_codes(void **state) {
  (void)state;
  const char *const head = "<opset_import: [\"\" : 21, \"com.microsoft\" : 1]> g (float[%s] x) => (float[%s] y)\n"
                           "<float s = {0.5}, uint8 z = {10}, float t = {0.25}, uint8[2, 1] w = {12, 8}, int32[1] c = "
                           "{4}, bool[2] b = {1, 0}>"
                           "{ q = QuantizeLinear (x, s, z) r = com.microsoft.%s y = DequantizeLinear (r, t, z) }";
  char text[512];
  snprintf(text, sizeof text, head, "1, 2", "1, 2", "QLinearAdd (q, s, z, q, s, z, t, z)");
  ASSERT_RESULT(text, 2, -2.5);
  snprintf(text, sizeof text, head, "1, 2", "1, 2", "QLinearMul (q, s, z, q, s, z, t, z)");
  ASSERT_RESULT(text, 1, 4);
  snprintf(text, sizeof text, head, "1, 2", "1, 2", "QLinearWhere (b, q, s, z, q, t, z, t, z)");
  ASSERT_RESULT(text, 1, -1);
  snprintf(text, sizeof text, head, "1, 2", "1, 2", "QLinearSigmoid (q, s, z, t, z)");
  ASSERT_RESULT(text, 0.75, 0);
  snprintf(text, sizeof text, head, "1, 2", "1, 2", "QLinearLeakyRelu <alpha = 0.5> (q, s, z, t, z)");
  ASSERT_RESULT(text, 1, -1);
  snprintf(text, sizeof text, head, "1, 2", "1, 2", "QLinearSoftmax <axis = -1, opset = 13> (q, s, z, t, z)");
  ASSERT_RESULT(text, 1, 0);
  snprintf(text, sizeof text, head, "1, 1, 2", "1, 1, 1", "QLinearGlobalAveragePool (q, s, z, t, z)");
  ASSERT_RESULT(text, -0.5);
  snprintf(text, sizeof text, head, "1, 1, 2", "1, 1, 1", "QLinearAveragePool <kernel_shape = [2]> (q, s, z, t, z)");
  ASSERT_RESULT(text, -0.5);
  ASSERT_RESULT("<opset_import: [\"\" : 17, \"com.microsoft\" : 1]> g (float[2] x) => (float[2] y)\n"
                "<float s = {0.5}, uint16 z = {10}>"
                "{ q = com.microsoft.QuantizeLinear (x, s, z) y = com.microsoft.DequantizeLinear (q, s, z) }",
                1, -2);
  snprintf(text, sizeof text, head, "1, 2", "1, 4", "QLinearConcat <axis = 1> (t, z, q, s, z, q, s, z)");
  ASSERT_RESULT(text, 1, -2, 1, -2);
  ASSERT_RESULT(
      "<opset_import: [\"\" : 17, \"com.microsoft\" : 1]> g (float[1, 2] x) => (float[1, 2] y)\n"
      "<float s = {0.5}, uint8 z = {10}, uint8[2, 2] w = {1, 2, 3, 4}, float[2] t = {0.5, 2}, uint8[2] p = {1, 2}>"
      "{ q = QuantizeLinear (x, s, z) y = com.microsoft.QGemm <transB = 1> (q, s, z, w, t, p) }",
      -1, -6);
  snprintf(text, sizeof text, head, "1, 2", "1, 1", "QGemm (q, s, z, w, s, z, c, t, z)");
  ASSERT_RESULT(text, 4);
}

static void refused_draws(void **state) {
  (void)state;
  loaded l = load_with("<opset_import: [\"\" : 22]> g (float[2] x, bool c) => (float[2] y) {\n"
                       "y = If (c) <then_branch = a () => (t) { t = RandomNormalLike (x) },\n"
                       "else_branch = b () => (e) { e = Identity (x) }> }",
                       NULL);
  assert_int_equal(l.status, KVA_UNSUPPORTED);
  assert_non_null(strstr(kva_diag_message(l.diag, 0, NULL, NULL), "branch or loop that is decided at run time"));
  unload(&l);
}

/* Codes 9 10 7 and 0 15 8 of weights [2, 3]; without zero points they are centred at 8. */
#define NBITS(scalars, inputs)                                                                              \
  "<opset_import: [\"\" : 21, \"com.microsoft\" : 1]> g (float[1, 3] x) => (float[1, 2] y)\n"               \
  "<uint8[2, 1, 8] b = {169, 135, 136, 136, 136, 136, 136, 136, 240, 136, 136, 136, 136, 136, 136, 136},\n" \
  " float[2] s = {0.5, 2}, uint8[2] z = {3, 15}, float[2] bias = {1, 2}>\n"                                 \
  "{ y = com.microsoft.MatMulNBits <K = 3, N = 2, block_size = 16" scalars "> (x, b, s" inputs ") }"

/* Codes 3 0 1 of 2 bits, with a zero point or centred at 2. */
#define TWO_BITS(zero)                                                                        \
  "<opset_import: [\"\" : 21, \"com.microsoft\" : 1]> g (float[1, 3] x) => (float[1, 1] y)\n" \
  "<uint8[1, 1, 4] b = {147, 170, 170, 170}, float[1] s = {0.5}, uint8[1] z = {1}>\n"         \
  "{ y = com.microsoft.MatMulNBits <K = 3, N = 1, bits = 2, block_size = 16> (x, b, s" zero ") }"

static void weights_in_blocks(void **state) {
  (void)state;
  ASSERT_RESULT(NBITS(", bits = 4", ""), -3, -44);
  ASSERT_RESULT(NBITS(", accuracy_level = 4", ""), -3, -44);
  ASSERT_RESULT(NBITS(", bits = 4", ", z"), 2, -72);
  ASSERT_RESULT(NBITS("", ", , , bias"), -2, -42);
  ASSERT_RESULT(TWO_BITS(""), 1);
  ASSERT_RESULT(TWO_BITS(", z"), 2);
  ASSERT_RESULT("<opset_import: [\"\" : 21]> g (float[1, 3] x) => (float[1, 1] y)\n"
                "<int8[3, 1] q = {1, 2, -3}, float[2, 1] s = {0.5, 2}>\n"
                "{ w = DequantizeLinear <axis = 0, block_size = 2> (q, s) y = MatMul (x, w) }",
                0.5 - 2 - 18);
  static const char *const refused[][2] = {
      {NBITS(", bits = 3", ""), "weights of 3 bits; expected 2, 4 or 8"},
      {NBITS("", ", , z"), "g_idx: rows of weights in another order"},
      {NBITS("", ", s"), "zero_points: expected a constant of packed uint8"},
      {NBITS(", bits = 8", ""), "B: expected a constant of N * blocks"},
  };
  for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
    loaded l = load_with(refused[i][0], NULL);
    assert_int_not_equal(l.status, KVA_OK);
    assert_non_null(strstr(kva_diag_message(l.diag, 0, NULL, NULL), refused[i][1]));
    unload(&l);
  }
}

/* Bytes of all signs, with zero points of all forms. */
#define INTEGER(x_type, x, w_type, w, zeros)                                                                          \
  "<opset_import: [\"\" : 21]> g (float[1] unused) => (int32[2, 1] y)\n<" x_type "[2, 3] x = {" x "}, " w_type        \
  "[3, 1] w = {" w "}, uint8 p = {200}, uint8[2] rows = {200, 3}, int8 n = {-128}, int8[1] q = {-128}, uint8[1] r = " \
  "{255}>\n{ y = MatMulInteger (x, w" zeros ") }"

static void products_of_bytes(void **state) {
  (void)state;
  ASSERT_RESULT(INTEGER("uint8", "1, 2, 3, 250, 251, 255", "int8", "-128, 127, 5", ""), 141, 1152);
  ASSERT_RESULT(INTEGER("uint8", "1, 2, 3, 250, 251, 255", "int8", "-128, 127, 5", ", p"), -659, 352);
  ASSERT_RESULT(INTEGER("uint8", "1, 2, 3, 250, 251, 255", "int8", "-128, 127, 5", ", rows, q"), -76691, 96756);
  ASSERT_RESULT(INTEGER("uint8", "1, 2, 3, 250, 251, 255", "uint8", "0, 255, 5", ", p, r"), 99995, -26500);
  ASSERT_RESULT(INTEGER("int8", "1, 2, 3, -128, -128, 127", "int8", "-128, 127, 5", ", n, q"), 50573, 33915);
  ASSERT_RESULT(INTEGER("int8", "1, 2, 3, -128, -128, 127", "int8", "-128, 127, 5", ""), 141, 763);
  ASSERT_RESULT(INTEGER("int8", "1, 2, 3, -128, -128, 127", "uint8", "0, 255, 5", ", n, r"), -65645, -63750);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(graph_with_initialisers),
      cmocka_unit_test(names_and_labels),
      cmocka_unit_test(functions_with_attributes),
      cmocka_unit_test(functions_call_functions),
      cmocka_unit_test(attribute_left_out_is_left_out_below),
      cmocka_unit_test(pads_crop_first),
      cmocka_unit_test(transforms_of_the_last_axis_are_one_product),
      cmocka_unit_test(convolution_of_the_whole_image),
      cmocka_unit_test(known_axes_of_a_resize),
      cmocka_unit_test(operators_in_models),
      cmocka_unit_test(symbolic_shapes),
      cmocka_unit_test(products_of_bytes),
      cmocka_unit_test(if_with_a_known_condition),
      cmocka_unit_test(unsupported_operators_are_named),
      cmocka_unit_test(wrong_onnx),
      cmocka_unit_test(regions_are_pooled),
      cmocka_unit_test(resized_by_symbols),
      cmocka_unit_test(recurrence_over_symbols),
      cmocka_unit_test(fused_nodes),
      cmocka_unit_test(nodes_of_codes),
      cmocka_unit_test(refused_draws),
      cmocka_unit_test(weights_in_blocks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
