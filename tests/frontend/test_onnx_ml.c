/* ai.onnx.ml: models as text, run by the reference evaluator. */
#include "tests/frontend/onnx_pack.h"

#include <math.h>

#define ONNX "<ir_version: 10, opset_import: [\"\": 21, \"ai.onnx.ml\": 3]>\nagraph "

/* Output `which` of a model on float x[rows, n / rows]. */
static void check(const char *text, uint32_t which, int64_t rows, uint32_t n, const double *x, uint32_t n_expected,
                  const double *expected) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_ref_tensor *in = kva_ref_tensor_create(KVA_F32, 2, (int64_t[]){rows, n / rows}), *out[2] = {NULL};
  kva_status status = kva_load_text(text, "test", NULL, diag, &m);
  for (uint32_t i = 0; i < n; i++) in->f[i] = x[i];
  const kva_ref_tensor *list[] = {in};
  if (!status) status = kva_ref_run(m, m->functions.data[0], list, out, NULL, NULL, NULL, NULL, diag);
  if (status) kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  assert_int_equal(out[which]->n, n_expected);
  for (uint32_t i = 0; i < n_expected; i++) {
    double d = kva_ref_tensor_get(out[which], i) - expected[i];
    if (!(d < 1e-6 && d > -1e-6))
      fail_msg("%.480s: element %u is %g, expected %g", text, i, kva_ref_tensor_get(out[which], i), expected[i]);
  }
  kva_ref_tensor_free(in), kva_ref_tensor_free(out[0]), kva_ref_tensor_free(out[1]);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}
#define X(...)                                                   \
  sizeof((double[]){__VA_ARGS__}) / sizeof(double), (double[]) { \
    __VA_ARGS__                                                  \
  }

static void test_features(void **unused) {
  (void)unused;
  check(ONNX
        "(float[N, 2] x) => (float[N, 2] y) { y = ai.onnx.ml.Scaler <offset = [1.0, 2.0], scale = [2.0, 10.0]> (x) }",
        0, 1, X(3, 3), X(4, 10));
  check(ONNX "(float[N, 2] x) => (float[N, 2] y) { y = ai.onnx.ml.Normalizer <norm = \"L1\"> (x) }", 0, 2,
        X(-3, 1, 0, 0), X(-0.75, 0.25, 0, 0));
  check(ONNX "(float[N, 2] x) => (float[N, 2] y) { y = ai.onnx.ml.Normalizer <norm = \"L2\"> (x) }", 0, 1, X(-3, 4),
        X(-0.6, 0.8));
  check(ONNX "(float[N, 2] x) => (float[N, 2] y) {"
             " y = ai.onnx.ml.Imputer <imputed_value_floats = [7.0], replaced_value_float = -1.0> (x) }",
        0, 1, X(-1, 4), X(7, 4));
  check(ONNX "(float[N, 2] x) => (float[N, 2, 3] y) { y = ai.onnx.ml.OneHotEncoder <cats_int64s = [1, 2, 5]> (x) }", 0,
        1, X(5, 3), X(0, 0, 1, 0, 0, 0));
  check(
      ONNX
      "(float[N, 2] x) => (float[N, 4] y) { y = ai.onnx.ml.FeatureVectorizer <inputdimensions = [2, 2]> (x, Neg (x)) }",
      0, 1, X(1, 2), X(1, 2, -1, -2));
  check(ONNX "(float[N, 2] x) => (float[N, 2] y) {"
             " y = ai.onnx.ml.LabelEncoder <keys_floats = [1.5, 2.0], values_floats = [10.0, 20.0], default_float = "
             "5.0> (x) }",
        0, 1, X(2, 3), X(20, 5));
}

static void test_linear(void **unused) {
  (void)unused;
  check(ONNX "(float[N, 2] x) => (float[N, 2] y) { y = ai.onnx.ml.LinearRegressor <targets = 2,"
             " coefficients = [1.0, 2.0, 3.0, 4.0], intercepts = [0.5, 0.0]> (x) }",
        0, 1, X(1, 10), X(21.5, 43));
#define CLASSIFIER                                                                                  \
  ONNX "(float[N, 2] x) => (int64[N] label, float[N, 2] scores) { label, scores = "                 \
       "ai.onnx.ml.LinearClassifier <coefficients = [1.0, 0.0, 0.0, 1.0], intercepts = [0.0, 0.0]," \
       " classlabels_ints = [7, 8], post_transform = \"SOFTMAX\"> (x) }"
  check(CLASSIFIER, 0, 2, X(0, 1, 2, 1), X(8, 7));
  check(CLASSIFIER, 1, 1, X(3, 3), X(0.5, 0.5));
}

/* Two trees: x0 <= 1 ? (x1 < 5 ? 1 : 2) : 3, and x1 > 0 ? 10 : 20, where a NaN goes the same way as a true answer. */
#define NODES                                                                                                        \
  " nodes_treeids = [0, 0, 0, 0, 0, 4, 4, 4], nodes_nodeids = [0, 1, 2, 3, 4, 0, 1, 2],"                             \
  " nodes_featureids = [0, 1, 0, 0, 0, 1, 0, 0], nodes_values = [1.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],"           \
  " nodes_modes = [\"BRANCH_LEQ\", \"BRANCH_LT\", \"LEAF\", \"LEAF\", \"LEAF\", \"BRANCH_GT\", \"LEAF\", \"LEAF\"]," \
  " nodes_truenodeids = [1, 2, 0, 0, 0, 1, 0, 0], nodes_falsenodeids = [4, 3, 0, 0, 0, 2, 0, 0],"                    \
  " nodes_missing_value_tracks_true = [0, 0, 0, 0, 0, 1, 0, 0],"
#define WEIGHTS(kind, ids)                                                                                 \
  " " kind "_treeids = [0, 0, 0, 4, 4], " kind "_nodeids = [2, 3, 4, 1, 2], " kind "_ids = " ids ", " kind \
  "_weights = [1.0, 2.0, 3.0, 10.0, 20.0]"
#define REGRESSOR(how)                                                                             \
  ONNX "(float[N, 2] x) => (float[N, 1] y) { y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1," \
       " aggregate_function = \"" how "\"," NODES WEIGHTS("target", "[0, 0, 0, 0, 0]") "> (x) }"

static void test_trees(void **unused) {
  (void)unused;
  check(REGRESSOR("SUM"), 0, 4, X(1, 4, 1, 5, 2, -1, 0, __builtin_nan("")), X(11, 12, 23, 12));
  check(REGRESSOR("AVERAGE"), 0, 1, X(1, 4), X(5.5));
  check(REGRESSOR("MIN"), 0, 1, X(1, 4), X(1));
  check(REGRESSOR("MAX"), 0, 1, X(2, 0), X(20));
#define TREE_CLASSIFIER                                                                            \
  ONNX "(float[N, 2] x) => (int64[N] label, float[N, 3] scores) { label, scores = "                \
       "ai.onnx.ml.TreeEnsembleClassifier <classlabels_int64s = [5, 6, 7]," NODES WEIGHTS("class", \
                                                                                          "[0, 1, 2, 0, 2]") "> (x) }"
  check(TREE_CLASSIFIER, 0, 2, X(1, 4, 2, -1), X(5, 7));
  check(TREE_CLASSIFIER, 1, 1, X(1, 5), X(10, 2, 0));
}

/* x0 against 1: 10, else x1 against 5: 20, else 30. The leaf of 10 is reached a step before the others. Where `second`
 * is 1, both nodes lead to it, and the leaf of 20 is a tree of its own. A NaN answers no, but for NEQ. */
#define LOPSIDED(mode, second)                                                                                   \
  ONNX "(float[N, 2] x) => (float[N, 1] y) { y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1,"               \
       " nodes_treeids = [0, 0, 0, 0, 0], nodes_nodeids = [0, 1, 2, 3, 4], nodes_featureids = [0, 0, 1, 0, 0],"  \
       " nodes_values = [1.0, 0.0, 5.0, 0.0, 0.0], nodes_modes = [\"BRANCH_" mode "\", \"LEAF\", \"BRANCH_" mode \
       "\", \"LEAF\", \"LEAF\"], nodes_truenodeids = [1, 0, " second                                             \
       ", 0, 0], nodes_falsenodeids = [2, 0, 4, 0, 0], target_treeids = [0, 0, 0], target_nodeids = [1, 3, 4],"  \
       " target_ids = [0, 0, 0], target_weights = [10.0, 20.0, 30.0]> (x) }"

static void test_modes(void **unused) {
  (void)unused;
  const double inf = INFINITY;
#define POINTS X(1, 5, -inf, -inf, inf, inf, 2, 5, 2, 7, 0, NAN, NAN, 4)
  check(LOPSIDED("LEQ", "3"), 0, 7, POINTS, X(10, 10, 30, 20, 30, 10, 20));
  check(LOPSIDED("LT", "3"), 0, 7, POINTS, X(30, 10, 30, 30, 30, 10, 20));
  check(LOPSIDED("GTE", "3"), 0, 7, POINTS, X(10, 30, 10, 10, 10, 30, 30));
  check(LOPSIDED("GT", "3"), 0, 7, POINTS, X(30, 30, 10, 10, 10, 30, 30));
  check(LOPSIDED("EQ", "3"), 0, 7, POINTS, X(10, 30, 30, 20, 30, 30, 30));
  check(LOPSIDED("NEQ", "3"), 0, 7, POINTS, X(30, 10, 10, 10, 10, 10, 10));
  check(LOPSIDED("LEQ", "1"), 0, 7, POINTS, X(30, 30, 50, 30, 50, 30, 30));
}

/* Three numbers for each tree, `step` more in each. Features of leaves count for nothing. */
static void add_list(kva_text *text, const char *name, int trees, int step, int a, int b, int c) {
  kva_text_add(text, " %s = [", name);
  for (int t = 0; t < trees; t++)
    kva_text_add(text, "%s%d, %d, %d", t ? ", " : "", a + t * step, b + t * step, c + t * step);
  kva_text_add(text, "],");
}

/* More nodes and features than fit in one number together: as many trees of one branch, each of a feature of its own.
 */
static void test_large(void **unused) {
  (void)unused;
  enum { TREES = 10923, FEATURES = 1 << 16 };
  kva_text text = {0};
  kva_text_add(&text, ONNX "(float[N, %d] x) => (float[N, 1] y) { y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1,",
               FEATURES);
  add_list(&text, "nodes_treeids", TREES, 1, 0, 0, 0);
  add_list(&text, "nodes_nodeids", TREES, 0, 0, 1, 2);
  add_list(&text, "nodes_featureids", TREES, 6, 3, 3, 3);
  add_list(&text, "nodes_truenodeids", TREES, 0, 1, 0, 0);
  add_list(&text, "nodes_falsenodeids", TREES, 0, 2, 0, 0);
  add_list(&text, "target_treeids", TREES, 1, 0, 0, 0);
  add_list(&text, "target_nodeids", TREES, 0, 1, 2, 2);
  add_list(&text, "target_ids", TREES, 0, 0, 0, 0);
  kva_text_add(&text, " nodes_values = [");
  for (int t = 0; t < TREES; t++) kva_text_add(&text, "%s0.5, 0.0, 0.0", t ? ", " : "");
  kva_text_add(&text, "], nodes_modes = [");
  for (int t = 0; t < TREES; t++) kva_text_add(&text, "%s\"BRANCH_LEQ\", \"LEAF\", \"LEAF\"", t ? ", " : "");
  kva_text_add(&text, "], target_weights = [");
  for (int t = 0; t < TREES; t++) kva_text_add(&text, "%s1.0, 100.0, 0.0", t ? ", " : "");
  kva_text_add(&text, "]> (x) }");
  double *x = malloc(FEATURES * sizeof *x), expected = 0;
  for (int i = 0; i < FEATURES; i++) x[i] = i % 7 == 0;
  for (int t = 0; t < TREES; t++) expected += x[3 + 6 * t] <= 0.5 ? 1 : 100;
  check(text.data, 0, 1, FEATURES, x, 1, &expected);
  free(x);
  kva_text_free(&text);
}

/* Four support vectors; what follows closes the attributes. */
#define MACHINE(kernel, op, declared, outputs)                                                        \
  ONNX "(float[N, 2] x) => (" declared ") { " outputs " = ai.onnx.ml." op " <kernel_type = \"" kernel \
       "\", kernel_params = [0.5, 0.25, 3.0], support_vectors = [1.0, 0.0, 0.0, 1.0, -1.0, 0.5, 0.5, -1.0], "
#define REGRESSION(kernel, rest)                        \
  MACHINE(kernel, "SVMRegressor", "float[N, 1] y", "y") \
  "n_supports = 4, coefficients = [1.0, -2.0, 0.5, 1.5], rho = [0.125]" rest "> (x) }"
#define THREE                                                                                     \
  MACHINE("RBF", "SVMClassifier", "int64[N] label, float[N, C] y", "label, y")                    \
  "vectors_per_class = [2, 1, 1], coefficients = [1.0, 0.5, -1.5, -0.5, 0.25, 0.75, -1.0, 1.25]," \
  " rho = [0.1, -0.2, 0.3], classlabels_ints = [5, 6, 7]"
#define TWO(coefficients, transform)                                                                     \
  MACHINE("POLY", "SVMClassifier", "int64[N] label, float[N, C] y", "label, y")                          \
  "vectors_per_class = [2, 2], coefficients = " coefficients ", rho = [0.1], classlabels_ints = [3, 4]," \
  " post_transform = \"" transform "\""

/* Expected values are ONNX Runtime's (1.32), which for probabilities of several classes are not those of the standard's
 * reference implementation (1.22): that takes a row of the matrix for a number. */
static void test_machines(void **unused) {
  (void)unused;
  check(REGRESSION("LINEAR", ""), 0, 2, X(1, 2, -0.5, 0.25), X(-5.125, -1.3125));
  check(REGRESSION("POLY", ""), 0, 2, X(1, 2, -0.5, 0.25), X(-3.5390625, 0.1085205078125));
  check(REGRESSION("RBF", ""), 0, 2, X(1, 2, -0.5, 0.25), X(-0.43874967, -0.04841562));
  check(REGRESSION("SIGMOID", ""), 0, 2, X(1, 2, -0.5, 0.25), X(-1.50713468, -0.33679980));
  check(REGRESSION("RBF", ", one_class = 1"), 0, 2, X(1, 2, 1, -0.5), X(-1, 1));
  check(ONNX "(float[N, 2] x) => (float[N, 1] y) { y = ai.onnx.ml.SVMRegressor <coefficients = [1.0, -2.0], rho = "
             "[0.125]> (x) }",
        0, 2, X(1, 2, -0.5, 0.25), X(-2.875, -0.875));
  check(THREE "> (x) }", 1, 2, X(1, 2, -0.5, 0.25),
        X(0.35336959, 0.10484159, 0.26831764, -0.53528225, 0.23942868, -0.20823285));
  check(THREE ", prob_a = [-1.0, -2.0, -1.5], prob_b = [0.1, 0.0, -0.2]> (x) }", 1, 2, X(1, 2, -0.5, 0.25),
        X(0.39343777, 0.35477725, 0.25178492, 0.30420563, 0.39303720, 0.30275714));
  check(TWO("[1.0, 0.5, -1.5, -0.5]", "NONE") "> (x) }", 0, 2, X(1, 2, -0.5, 0.25), X(3, 4));
  check(TWO("[1.0, 0.5, -1.5, -0.5]", "NONE") "> (x) }", 1, 2, X(1, 2, -0.5, 0.25),
        X(-1.5375, 1.5375, 0.14060059, -0.14060059));
  check(TWO("[1.0, 0.5, -1.5, -0.5]", "LOGISTIC") "> (x) }", 1, 1, X(1, 2), X(0.17689896, 0.82310104));
  check(TWO("[1.0, 0.5, -1.5, -0.5]", "NONE") ", prob_a = [-1.0], prob_b = [0.1]> (x) }", 1, 2, X(1, 2, -0.5, 0.25),
        X(0.80806690, 0.19193310, 0.44002637, 0.55997360));
}

#define STUMP(weights, rest)                                                                                       \
  ONNX "(float[N, 1] x) => (int64[N] label, float[N, 2] y) { label, y = ai.onnx.ml.TreeEnsembleClassifier <"       \
       "nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [0, 0, 0], nodes_values = [0.5, " \
       "0.0, 0.0],"                                                                                                \
       " nodes_modes = [\"BRANCH_LEQ\", \"LEAF\", \"LEAF\"], nodes_truenodeids = [1, 0, 0],"                       \
       " nodes_falsenodeids = [2, 0, 0], class_treeids = [0, 0], class_nodeids = [1, 2], class_ids = [0, 0],"      \
       " class_weights = " weights ", classlabels_int64s = [5, 7]" rest "> (x) }"

/* One score for two classes; expected values are ONNX Runtime's (1.32). */
static void test_one_score_for_two_classes(void **unused) {
  (void)unused;
  const char *logistic = STUMP("[-0.4, 0.9]", ", post_transform = \"LOGISTIC\", base_values = [0.25]");
  check(logistic, 0, 2, X(0, 1), X(5, 7));
  check(logistic, 1, 2, X(0, 1), X(0.5374298, 0.4625702, 0.2404891, 0.7595109));
  check(STUMP("[-0.4, 0.9]", ""), 1, 2, X(0, 1), X(0.4, -0.4, -0.9, 0.9));
  check(STUMP("[0.3, 0.9]", ""), 0, 2, X(0, 1), X(5, 7));
  check(STUMP("[0.3, 0.9]", ""), 1, 2, X(0, 1), X(0.7, 0.3, 0.1, 0.9));
  pk_refuse_text(STUMP("[0.3, 0.9]", ", post_transform = \"SOFTMAX\""), KVA_UNSUPPORTED, "one score for two classes");
  check(ONNX
        "(float[N, 1] x) => (int64[N] label, float[N, 2] y) { label, y = ai.onnx.ml.LinearClassifier"
        " <coefficients = [2.0], intercepts = [0.1], classlabels_ints = [5, 7], post_transform = \"LOGISTIC\"> (x) }",
        1, 2, X(-1, 1), X(0.8698916, 0.1301085, 0.1090968, 0.8909032));
}

static void test_transforms(void **unused) {
  (void)unused;
  check(ONNX "(float[N, 1] x) => (float[N, 3] y) { y = ai.onnx.ml.LinearRegressor <coefficients = [0.0, 0.0, 1.0],"
             " intercepts = [0.1, 0.0, 0.0], targets = 3, post_transform = \"SOFTMAX_ZERO\"> (x) }",
        0, 1, X(0.8), X(0.3318122, 0, 0.6681878));
  check(ONNX "(float[N, 1] x) => (float[N, 2] y) { y = ai.onnx.ml.LinearRegressor <coefficients = [1.0, -1.0],"
             " intercepts = [0.0, 1.0], targets = 2, post_transform = \"PROBIT\"> (x) }",
        0, 1, X(0.1), X(-1.2817127, 1.2817127));
}

static void test_refusals(void **unused) {
  (void)unused;
  pk_refuse_text(ONNX "(float x) => (float[N, 1] y) { y = ai.onnx.ml.LinearRegressor <coefficients = [1.0]> (x) }",
                 KVA_INVALID, "expected x of rank 1 or 2");
  pk_refuse_text(
      ONNX "(float[N, 2] x) => (float[N, 2] y) { y = ai.onnx.ml.OneHotEncoder <cats_int64s = [1], zeros = 0> (x) }",
      KVA_UNSUPPORTED, "zeros = 0");
  pk_refuse_text(
      ONNX "(float[N, 1] x) => (float[N, 1] y) { y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1," NODES WEIGHTS(
          "target", "[0, 0, 0, 0, 0]") "> (x) }",
      KVA_INVALID, "feature 1 of 1");
  pk_refuse_text(
      ONNX "(float[N, 1] x) => (float[N, 1] y) { y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1,"
           " nodes_treeids = [0, 0], nodes_nodeids = [0, 1], nodes_featureids = [0, 0], nodes_values = [1.0, 1.0],"
           " nodes_modes = [\"BRANCH_LEQ\", \"BRANCH_LEQ\"], nodes_truenodeids = [1, 1],"
           " nodes_falsenodeids = [1, 1], target_treeids = [0], target_nodeids = [0], target_ids = [0],"
           " target_weights = [1.0]> (x) }",
      KVA_INVALID, "weight 0 is of no leaf");
  pk_refuse_text(
      ONNX "(float[N, F] x) => (float[N, 1] y) { y = ai.onnx.ml.TreeEnsembleRegressor <n_targets = 1,"
           " nodes_treeids = [0, 0, 0], nodes_nodeids = [0, 1, 2], nodes_featureids = [4294967296, 0, 0],"
           " nodes_values = [1.0, 1.0, 1.0], nodes_modes = [\"BRANCH_LEQ\", \"LEAF\", \"LEAF\"],"
           " nodes_truenodeids = [1, 0, 0], nodes_falsenodeids = [2, 0, 0], target_treeids = [0], target_nodeids = [1],"
           " target_ids = [0], target_weights = [1.0]> (x) }",
      KVA_INVALID, "node 0: feature 4294967296");
  pk_refuse_text(ONNX "(float[N, 2] x) => (float[N, 2] y) { y = ai.onnx.ml.ZipMap <classlabels_int64s = [1, 2]> (x) }",
                 KVA_UNSUPPORTED, "maps are no tensors; export the model without them");
  pk_refuse_text(
      MACHINE("POLY", "SVMRegressor", "float[N, 1] y", "y") "n_supports = 4, coefficients = [1.0], rho = [0.0]> (x) }",
      KVA_INVALID, "1 coefficients for 4 support vectors");
  pk_refuse_text(MACHINE("COSINE", "SVMRegressor", "float[N, 1] y",
                         "y") "n_supports = 4, coefficients = [1.0], rho = [0.0]> (x) }",
                 KVA_INVALID, "kernel_type 'COSINE'");
  pk_refuse_text(TWO("[1.0, 0.5, 1.5, 0.5]", "NONE") "> (x) }", KVA_UNSUPPORTED, "coefficients that are all positive");
  pk_refuse_text(TWO("[1.0, 0.5, -1.5, -0.5]", "SOFTMAX") "> (x) }", KVA_UNSUPPORTED, "post_transform SOFTMAX");
  pk_refuse_text(TWO("[1.0, 0.5, -1.5, -0.5]", "SOFTMAX_ZERO") "> (x) }", KVA_UNSUPPORTED,
                 "post_transform SOFTMAX_ZERO");
  pk_refuse_text(MACHINE("RBF", "SVMClassifier", "int64[N] label, float[N, C] y",
                         "label, y") "vectors_per_class = [2, 1, 1], classlabels_ints = [5, 6, 7],"
                                     " coefficients = [1.0, 0.5], rho = [0.1, -0.2, 0.3]> (x) }",
                 KVA_INVALID, "expected 8");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_features),
                                     cmocka_unit_test(test_linear),
                                     cmocka_unit_test(test_trees),
                                     cmocka_unit_test(test_modes),
                                     cmocka_unit_test(test_large),
                                     cmocka_unit_test(test_machines),
                                     cmocka_unit_test(test_one_score_for_two_classes),
                                     cmocka_unit_test(test_transforms),
                                     cmocka_unit_test(test_refusals)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
