/* Domain com.microsoft: attention with its masks and caches, products of codes, embeddings. Heads have one channel, so
 * that results can be worked out. */
#include "tests/frontend/onnx_text.h"

#include <math.h>

#define HEAD "<opset_import: [\"\" : 21, \"com.microsoft\" : 1]> "

/* A sum of v, weighted by the exponentials of scores. */
static double weighted(int n, const double *score, const double *v) {
  double sum = 0, total = 0;
  for (int i = 0; i < n; i++) {
    sum += exp(score[i]) * v[i];
    total += exp(score[i]);
  }
  return sum / total;
}
#define WEIGHTED(n, scores, ...) weighted(n, scores, (const double[]){__VA_ARGS__})
#define SCORES(...)              ((const double[]){__VA_ARGS__})

/* Rows of queries, keys and values: 1 -2 3, -4 5 -6, 7 -8 9. */
#define PROMPT(attributes)                                                                                         \
  HEAD "g (float[1, T, 3] x) => (float[1, T, 1] y) <int32[1] last = {2}> {\n s = Shape <start = 1, end = 2> (x)\n" \
       " n = Cast <to = 6> (s)\n y = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1, scale = " \
       "0.1" attributes "> (x, , , , , last, n) }"

static void prompts_of_grouped_queries(void **state) {
  (void)state;
  const double first = WEIGHTED(2, SCORES(0.8, -2), 3, -6);
  ASSERT_RESULT(PROMPT(""), 3, first, WEIGHTED(3, SCORES(-1.4, 3.5, -5.6), 3, -6, 9));
  ASSERT_RESULT(PROMPT(", local_window_size = 2"), 3, first, WEIGHTED(2, SCORES(3.5, -5.6), -6, 9));
  ASSERT_RESULT(PROMPT(", softcap = 2.0"), 3, WEIGHTED(2, SCORES(2 * tanh(0.4), 2 * tanh(-1)), 3, -6),
                WEIGHTED(3, SCORES(2 * tanh(-0.7), 2 * tanh(1.75), 2 * tanh(-2.8)), 3, -6, 9));
}

/* One new row, 1 -2 3, of a sequence with room for two. */
#define STEP(out, attributes, last)                                                                                \
  HEAD "g (float[1, 1, 3] x) => (" out ") <float[1, 1, 2, 1] pk = {10, 20}, float[1, 1, 2, 1] pv = {5, 7}, "       \
       "int32[1] last = {" last "}, int32 n = {2}> { y, k, v = com.microsoft.GroupQueryAttention <num_heads = 1, " \
       "kv_num_heads = 1, scale = 0.1" attributes "> (x, , , pk, pv, last, n) }"

static void steps_of_grouped_queries(void **state) {
  (void)state;
  ASSERT_RESULT(STEP("float[1, 1, 1] y", "", "1"), WEIGHTED(2, SCORES(1, -0.2), 5, 3));
  ASSERT_RESULT(STEP("float[1, 1, 2, 1] k", "", "1"), 10, -2);
  ASSERT_RESULT(STEP("float[1, 1, 2, 1] v", "", "0"), 3, 7);
  const char *const normed = HEAD "g (float[1, 1, 6] x) => (float[1, 1, 1, 2] k) <int32[1] last = {0}, int32 n = {1}, "
                                  "float[2] w = {1, 2}> { y, k, v "
                                  "= com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1, "
                                  "qk_norm_epsilon = 0.0> (x, , , , , last, n, "
                                  ", , , , , , , w, w) }";
  ASSERT_RESULT(normed, 3 / sqrt(12.5), -8 / sqrt(12.5));
  const char *const grows = HEAD
      "g (float[1, 1, 3] x) => (float[1, 1, 3, 1] k) <float[1, 1, 2, 1] p = {10, 20}, int32[1] last = {2}, "
      "int32 n = {3}> { y, k, v = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (x, , , p, p, "
      "last, n) }";
  ASSERT_RESULT(grows, 10, 20, -2);
}

/* The sixth row, in a cache of as many rows as the window has. */
static void caches_as_large_as_the_window(void **state) {
  (void)state;
#define SLIDING ", local_window_size = 2, sliding_window_cache = 1"
  ASSERT_RESULT(STEP("float[1, 1, 1] y", SLIDING, "5"), WEIGHTED(2, SCORES(2, -0.2), 7, 3));
  ASSERT_RESULT(STEP("float[1, 1, 2, 1] k", SLIDING, "5"), 20, -2);
  ASSERT_RESULT(STEP("float[1, 1, 2, 1] v", SLIDING, "1"), 5, 3);
#undef SLIDING
}

static void masks_of_attention(void **state) {
  (void)state;
  const char *const head = HEAD "g (float[1, 3, 1] x) => (float[1, 3, 1] y) <%s m = {%s}> { y = "
                                "com.microsoft.MultiHeadAttention <num_heads = 1, mask_filter_value = -1.0%s> "
                                "(x, x, x, , m) }";
  char text[512];
  snprintf(text, sizeof text, head, "int32[1, 3]", "1, 0, 1", "");
  ASSERT_RESULT(text, WEIGHTED(3, SCORES(1, -3, 3), 1, -2, 3), WEIGHTED(3, SCORES(-2, 3, -6), 1, -2, 3),
                WEIGHTED(3, SCORES(3, -7, 9), 1, -2, 3));
  snprintf(text, sizeof text, head, "int32[1]", "1", ", unidirectional = 1");
  ASSERT_RESULT(text, 1, WEIGHTED(2, SCORES(-2, 3), 1, -2), WEIGHTED(3, SCORES(3, -7, 8), 1, -2, 3));
  snprintf(text, sizeof text, head, "int32[1, 3, 3]", "1, 1, 1, 0, 1, 1, 1, 1, 0", "");
  ASSERT_RESULT(text, WEIGHTED(3, SCORES(1, -2, 3), 1, -2, 3), WEIGHTED(3, SCORES(-3, 4, -6), 1, -2, 3),
                WEIGHTED(3, SCORES(3, -6, 8), 1, -2, 3));
  ASSERT_RESULT(HEAD "g (float[1, 2, 1, 3, 1] x) => (float[1, 2, 1] y) { y = com.microsoft.MultiHeadAttention "
                     "<num_heads = 1> (x) }",
                WEIGHTED(2, SCORES(-2, 5), 3, -6), WEIGHTED(2, SCORES(8, -20), 3, -6));
}

/* Projected by 1, 2 and 3; the mask: lengths, or ends and starts. */
static void projected_attention(void **state) {
  (void)state;
  const char *const head = HEAD "g (float[1, T, 1] x) => (float[1, T, 1] y) <float[1, 3] w = {1, 2, 3}, int8[1, 3] q = "
                                "{2, 4, 6}, float s = {0.5}, uint8 z = {10}, float[3] none = {0, 0, 0}, int32[%s] m = "
                                "{%s}> { c = QuantizeLinear (x, s, z) y = com.microsoft.%s }";
  char text[512];
  snprintf(text, sizeof text, head, "1", "1", "Attention <num_heads = 1> (x, w, , m)");
  ASSERT_RESULT(text, 3, 3, 3);
  snprintf(text, sizeof text, head, "2", "3, 1", "Attention <num_heads = 1> (x, w, , m)");
  const double last[] = {WEIGHTED(2, SCORES(-4, 6), -6, 9), WEIGHTED(2, SCORES(8, -12), -6, 9),
                         WEIGHTED(2, SCORES(-12, 18), -6, 9)};
  ASSERT_RESULT(text, last[0], last[1], last[2]);
  snprintf(text, sizeof text, head, "1", "1", "Attention <num_heads = 1, unidirectional = 1, scale = 0.1> (x, w)");
  ASSERT_RESULT(text, 3, WEIGHTED(2, SCORES(-0.4, 0.8), 3, -6), WEIGHTED(3, SCORES(0.6, -1.2, 1.8), 3, -6, 9));
  snprintf(text, sizeof text, head, "1", "1", "QAttention <num_heads = 1> (c, q, none, s, s, m, z)");
  ASSERT_RESULT(text, 3, 3, 3);
}

static void rotated_pairs(void **state) {
  (void)state;
  const char *const head =
      HEAD "g (float[1, 2, 2] x) => (float[1, 2, 2] y) <float[3, 1] c = {1, 0.6, 0}, float[3, 1] s = "
           "{0, 0.8, 1}, int64[%s] p = {%s}> { y = com.microsoft.RotaryEmbedding (x, p, c, s) }";
  char text[512];
  snprintf(text, sizeof text, head, "1", "1");
  ASSERT_RESULT(text, 2.2, -0.4, 4, 3);
  snprintf(text, sizeof text, head, "1, 2", "2, 0");
  ASSERT_RESULT(text, 2, 1, 3, -4);
}

static void embeddings(void **state) {
  (void)state;
  const char *const head =
      HEAD "g (float[2] x) => (%s) <int32[1, 2] ids = {1, 0}, float[2, 2] words = {1, 3, 5, 7}, float[2, 2] rows = "
           "{0, 0, 2, 0}, float[2] beta = {10, 20}, int32[1, 2] mask = {1, 0}> { y, n, s = "
           "com.microsoft.EmbedLayerNormalization (ids, , words, rows, , x, beta, mask) }";
  char text[512];
  snprintf(text, sizeof text, head, "float[1, 2, 2] y");
  ASSERT_RESULT(text, 9, 18, 10, 20);
  snprintf(text, sizeof text, head, "int32[1] n");
  ASSERT_RESULT(text, 1);
  snprintf(text, sizeof text, head, "float[1, 2, 2] s");
  ASSERT_RESULT(text, 5, 7, 3, 3);
  ASSERT_RESULT("<opset_import: [\"\" : 21]> g (float[1, 2] x) => (float[1, 2] y) <float[2] s = {1, 2}> "
                "{ y = SimplifiedLayerNormalization <epsilon = 0.0> (x, s) }",
                1 / sqrt(2.5), -4 / sqrt(2.5));
}

static void products_with_activations(void **state) {
  (void)state;
  ASSERT_RESULT(HEAD "g (float[2, 2, 1] x) => (float[2, 2, 2] y) <float[1, 2] w = {1, 10}> { y = "
                     "com.microsoft.FusedMatMul <transBatchA = 1> (x, w) }",
                1, 10, 3, 30, -2, -20, -4, -40);
  const char *const head = HEAD "g (float[1, 2] x) => (float[1, 1] y) <float[2, 1] w = {%s}> { y = "
                                "com.microsoft.FusedGemm <activation = \"%s> (x, w) }";
  static const struct {
    const char *w, *activation;
    double expected;
  } rows[] = {{"3, 1", "Relu\"", 1},
              {"1, 1", "Relu\"", 0},
              {"1, 1", "Sigmoid\"", 0.2689414213699951},
              {"1, 1", "Softsign\"", -0.5},
              {"1, 1", "LeakyRelu\"", -0.01},
              {"3, 1", "HardSigmoid\", activation_alpha = 0.2, activation_beta = 0.1", 0.3},
              {"3, 1", "ThresholdedRelu\", activation_alpha = 1.5", 0},
              {"1, 1", "Elu\", activation_alpha = 2.0", -1.2642411176571153},
              {"3, 1", "Selu\", activation_gamma = 3.0", 3}};
  char text[512];
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    snprintf(text, sizeof text, head, rows[i].w, rows[i].activation);
    ASSERT_RESULT(text, rows[i].expected);
  }
}

/* x is exact in codes of 3 / 255. */
static void products_of_codes(void **state) {
  (void)state;
  const char *const head =
      HEAD "g (float[1, 2] x) => (float[1, 1] y) <int8[2, 1] w = {4, 2}, int8 one = {1}, float t = "
           "{0.5}, float[1] b = {10}, uint8 z = {10}> { q = QuantizeLinear (x, t, z) y = "
           "com.microsoft.%s }";
  char text[512];
  snprintf(text, sizeof text, head, "DynamicQuantizeMatMul (x, w, t, one, b)");
  ASSERT_RESULT(text, 10.5);
  snprintf(text, sizeof text, head, "MatMulIntegerToFloat (q, w, t, t, z, one, b)");
  ASSERT_RESULT(text, 10.5);
  snprintf(text, sizeof text, head, "MatMulIntegerToFloat (q, w, t, t)");
  ASSERT_RESULT(text, 15);
}

/* The first of two rows of 16 codes: 9 10 8 ..., packed, or -1 1 0 ... */
static void rows_of_quantised_tables(void **state) {
  (void)state;
  const char *const head = HEAD
      "g (float[1, 16] x) => (float[1, 1] y) <uint8[2, 8] packed = {169, 136, 136, 136, 136, 136, 136, 136, 0, 0, 0, "
      "0, 0, 0, 0, 0}, uint8[2, 1] zeros = {10, 0}, uint8[2, 16] bytes = {127, 129, 128, 128, 128, 128, 128, 128, "
      "128, 128, 128, 128, 128, 128, 128, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, float[2, 1] s = "
      "{0.5, 2}, int64[1] at = {-2}, int64[2] shape = {2, 8}> { r = Reshape (packed, shape) g = "
      "com.microsoft.GatherBlockQuantized <block_size = 16%s) t = Transpose (g) y = MatMul (x, t) }";
  char text[1024];
  snprintf(text, sizeof text, head, "> (r, at, s");
  ASSERT_RESULT(text, 0.5 * (1 - 4));
  snprintf(text, sizeof text, head, "> (r, at, s, zeros");
  ASSERT_RESULT(text, 0.5 * (-1 - 2 * (3 - 4 + 5 - 6 + 7 - 8 + 9 - 10 + 11 - 12 + 13 - 14 + 15 - 16)));
  snprintf(text, sizeof text, head, ", bits = 8> (bytes, at, s");
  ASSERT_RESULT(text, 0.5 * (-1 - 2));
  ASSERT_RESULT(HEAD
                "g (float[1, 16] x) => (float[1, 1] y) <int4[1, 16] q = {-1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, "
                "0, 0}, float[1, 1] s = {0.5}, int64[1] at = {0}> { g = com.microsoft.GatherBlockQuantized "
                "<block_size = 16> (q, at, s) t = Transpose (g) y = MatMul (x, t) }",
                0.5 * (-1 - 2));
}

/* Codes of 1, 2/3, -1 and 1/2, or of three quantiles and 1. */
static void weights_of_few_values(void **state) {
  (void)state;
  const char *const head = HEAD "g (float[1, 2] x) => (float[1, 2] y) <uint8[2] q = {%s}, float[1] s = {3}> { y = "
                                "com.microsoft.MatMulBnb4 <K = 2, N = 2, block_size = 16, quant_type = %s> (x, q, s) }";
  char text[512];
  snprintf(text, sizeof text, head, "50, 181", "0");
  ASSERT_RESULT(text, 3 - 4, -3 - 3);
  snprintf(text, sizeof text, head, "50, 181", "0, transB = 0");
  ASSERT_RESULT(text, 3 + 6, 2 - 3);
  snprintf(text, sizeof text, head, "15, 231", "1");
  ASSERT_RESULT(text, -3 - 6, 3 * 0.7229568362236023);
}

static void what_is_not_done_is_refused(void **state) {
  (void)state;
  const char *const head = HEAD
      "g (float[1, T, 3] x) => (float[1, T, N] y) <int32[1] n = {3}, int32 m = {3}, float[1, 1] "
      "t = {1}, float[1] f = {1}, float[1, 1, 2, 1] p = {1, 2}, float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}> { y = "
      "com.microsoft.%s }";
  static const char *const rows[][2] = {
      {"GroupQueryAttention <num_heads = 1, kv_num_heads = 1, smooth_softmax = 1> (x, , , , , n, m)",
       "attribute 'smooth_softmax'"},
      {"GroupQueryAttention <num_heads = 1, kv_num_heads = 1, causal = 0> (x, , , , , n, m)",
       "attribute 'causal' of 0"},
      {"GroupQueryAttention <num_heads = 1, kv_num_heads = 1, k_quant_type = \"PER_TENSOR\"> (x, , , , , n, m)",
       "'k_quant_type': quantised caches"},
      {"GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (x, , , , , n, m, , , , , f)", "input 11 (head_sink)"},
      {"GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (x)", "expected seqlens_k and total_sequence_length"},
      {"GroupQueryAttention <num_heads = 1, kv_num_heads = 1, sliding_window_cache = 1> (x, , , , , n, m)",
       "sliding_window_cache without a past and a window"},
      {"GroupQueryAttention <num_heads = 1, kv_num_heads = 1, do_rotary = 1> (x, , , , , n, m)",
       "do_rotary needs cos_cache and sin_cache"},
      {"GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (x, w, w, , , n, m)",
       "input 1: expected rank 3, found 2"},
      {"GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (x, , , w, w, n, m)",
       "input 3: expected rank 4, found 2"},
      {"GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (x, , , p, , n, m)",
       "past_key and past_value go together"},
      {"GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (x, , , , , n, m, , , , w)",
       "input 10: expected rank 4, found 2"},
      {"GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (x, , , , , n, m, t, t, x)",
       "input 9: expected rank 2, found 3"},
      {"GroupQueryAttention <num_heads = 1, kv_num_heads = 1, local_window_size = 3, sliding_window_cache = 1> (x, , , "
       "p, p, n, m)",
       "a cache of 2 rows for a window of 3"},
      {"MultiHeadAttention <num_heads = 1> (x, x, x, , , , w, w)", "input 6: expected rank 4, found 2"},
      {"MultiHeadAttention <num_heads = 1> (x, x, x, , , w)", "input 5: expected rank 4, found 2"},
      {"MultiHeadAttention <num_heads = 1> (x, x, x, m)", "expected an operand of rank 1 or more, found 0"},
      {"Attention <num_heads = 1> (x, w, , , p)", "input 4: expected rank 5, found 4"},
      {"EmbedLayerNormalization (n, , , w, , f, f)", "input 2 is required but was left out"},
      {"RotaryEmbedding <num_heads = 1> (x, p, t, t)", "input 1: expected rank 2, found 4"},
      {"RotaryEmbedding <is_packed_batching = 1> (x, n, t, t)", "attribute 'is_packed_batching'"},
      {"RotaryEmbedding (x, n, t, t)", "inputs of rank 3 need num_heads"},
      {"Attention <num_heads = 1, do_rotary = 1> (x, w)", "attribute 'do_rotary'"},
      {"MultiHeadAttention <num_heads = 1> (x, x)", "with keys and values of one rank, or packed"},
      {"FusedGemm <activation = \"Mish\"> (w, w)", "activation 'Mish'"},
      {"MatMulBnb4 <K = 3, N = 3, block_size = 16, quant_type = 2> (w, w, w)", "quant_type 2; expected 0 (FP4) or 1"},
      {"MatMulBnb4 <K = 2, N = 1, block_size = 16, quant_type = 1> (w, f, f)", "expected constants of N * K codes"},
      {"MatMulBnb4 <K = 8, N = 1, block_size = 16, quant_type = 1> (w, f, f)", "expected constants of N * K codes"},
      {"MatMulBnb4 <K = 3, N = 3, block_size = 16, quant_type = 1> (w, w, f)", "expected constants of N * K codes"},
      {"GatherBlockQuantized <block_size = 8> (w, n, w)", "block_size 8; expected a power of two from 16 on"},
  };
  char text[1024];
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    snprintf(text, sizeof text, head, rows[i][0]);
    loaded l = load_with(text, NULL);
    assert_int_not_equal(l.status, KVA_OK);
    assert_non_null(strstr(kva_diag_message(l.diag, 0, NULL, NULL), rows[i][1]));
    unload(&l);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(prompts_of_grouped_queries),
      cmocka_unit_test(steps_of_grouped_queries),
      cmocka_unit_test(caches_as_large_as_the_window),
      cmocka_unit_test(masks_of_attention),
      cmocka_unit_test(projected_attention),
      cmocka_unit_test(rotated_pairs),
      cmocka_unit_test(embeddings),
      cmocka_unit_test(products_with_activations),
      cmocka_unit_test(products_of_codes),
      cmocka_unit_test(rows_of_quantised_tables),
      cmocka_unit_test(weights_of_few_values),
      cmocka_unit_test(what_is_not_done_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
