/* Wrong and hostile texts: each message names the cause and stands at its line and column; nothing crashes or leaks. */
#include "tests/frontend/kv_test.h"

typedef struct wrong {
  const char *text;
  uint32_t line, column;
  const char *message;
} wrong;

static void check(const wrong *cases, size_t n) {
  for (size_t i = 0; i < n; i++) {
    loaded l = load_with(cases[i].text, NULL);
    if (l.status == KVA_OK) fail_msg("accepted: %s", cases[i].text);
    assert_error(&l, cases[i].line, cases[i].column, cases[i].message);
    unload(&l);
  }
}
#define CHECK(cases) check(cases, sizeof(cases) / sizeof(*(cases)))

static void lexical(void **state) {
  (void)state;
  static const wrong cases[] = {
      {"g (float x) => (float y) {\n  y = $x\n}", 2, 7, "the character '$' has no meaning"},
      {"g (float x) => (float y) {\n  y = \x01x\n}", 2, 7, "the byte 0x01"},
      {"g (float x) => (float y) {\n  y = \xff\n}", 2, 7, "the byte 0xff"},
      {"g (float x) => (float y) { y = Op <a = \"abc> (x) }", 1, 40, "no closing quote"},
      {"g (float x) => (float y) { y = Op <a = \"abc\\", 1, 40, "no closing quote"},
      {"g (float x) => (float y) { y = x + 12abc }", 1, 36, "'12abc' is not a number"},
      {"g (float x) => (float y) { y = x + 1e+ }", 1, 36, "'1e+' is not a number"},
      {"g (float x) => (float y) { y = x + 99999999999999999999 }", 1, 36, "does not fit 64 bits"},
      {"g (float x) => (float y) { y = % }", 1, 32, "the character '%'"},
      {"", 1, 1, "there is nothing in this file"},
      {"# only a comment", 1, 17, "there is nothing in this file"},
  };
  CHECK(cases);
}

static void syntax(void **state) {
  (void)state;
  static const wrong cases[] = {
      {"model", 1, 6, "expected '(', found the end of the file"},
      {"model m (float x) => (float y)", 1, 31, "expected '{'"},
      {"model m (float x) (float y) { }", 1, 19, "expected '=>', found '('"},
      {"model m (float[N x) => (float y) { }", 1, 18, "expected ']', found 'x'"},
      {"model m (float[] {1} x) => (float y) { }", 1, 18, "expected a name, found '{'"},
      {"model m (floaty x) => (float y) { }", 1, 17, "expected ')', found 'x'"},
      {"g (float x) => (float y) { y Relu(x) }", 1, 30, "expected '=' after the name"},
      {"g (float x) => (float y) { y = }", 1, 32, "expected a value, found '}'"},
      {"g (float x) => (float y) { y = a.b }", 1, 36, "expected '(', found '}'"},
      {"g (float x) => (float y) { y = Op <a = 1, > (x) }", 1, 43, "expected a name, found '>'"},
      {"g (float x) => (float y) { y = Op <a = 1, b = 2, a = 3> (x) }", 1, 50, "'a' is given twice"},
      {"model m <a = 1, a = 2> (float x) => (float y) { y = x }", 1, 17, "'a' is given twice"},
      {"g (float x) => (float y) { y = Op <a : int> (x) }", 1, 43, "expected '=', found '>'"},
      {"g (float x) => (float y) <w = {1}> { y = x }", 1, 27, "needs a type"},
      {"g (float x) => (float y) { for i on 0 : 2 { } }", 1, 34, "expected 'in'"},
      {"g (float x) => (float y) { for i in 0 { } }", 1, 39, "expected ':', found '{'"},
      {"g (float x) => (float y) { param w float }", 1, 34, "expected an element type"},
      {"<ir_versio: 7> g () => () { }", 1, 2, "'ir_versio' is not a header field"},
      {"<opset_import: [1 : 7]> g () => () { }", 1, 17, "expected a string"},
      {"g (map(N, float) x) => () { }", 1, 8, "expected an element type"},
      {"state float \"w\" param ~ zeros", 1, 17, "expected ':'"},
  };
  CHECK(cases);
}

static void no_graph_yet(void **state) {
  (void)state;
  static const wrong cases[] = {
      {"model m <a = f(2)> (float x) => (float y) { y = x }\ndef f (a) { return a }", 1, 14, "'f' is none"},
      {"model m <a = kv.relu(2)> (float x) => (float y) { y = x }", 1, 14, "'relu' is none"},
      {"model m <a = Relu(2) + 1> (float x) => (float y) { y = x }", 1, 14, "'Relu' is none"},
      {"model m <a = float {1} + 1> (float x) => (float y) { y = x }", 1, 14, "only compile-time values"},
      {"state float \"w\" : param ~ normal(f(1))\nmain () => () { return () }", 1, 34, "'f' is none"},
      {"model m (float x) => (float y) { y = x }\npreset \"p\" <b = 1>", 2, 13, "no hyper-parameter 'b'"},
      {"model m <a = 1> (float x) => (float y) { y = x }\npreset \"p\" <a = 1>\npreset \"p\" <a = 2>", 3, 8,
       "there are two presets called 'p'"},
  };
  CHECK(cases);
}

static void several_errors_in_one_run(void **state) {
  (void)state;
  loaded l =
      load_with("model m (float[N] x) => (float[N] y) {\n  a = f(\n  b = g(x) )\n  if x { c = ) }\n  d = 1 +\n}\n"
                "def f (x { return x }\ndef g (x) { return x y }\n",
                NULL);
  assert_error(&l, 3, 5, "expected ')', found '='");
  assert_error(&l, 4, 14, "expected a value, found ')'");
  assert_error(&l, 6, 1, "expected a value, found '}'");
  assert_error(&l, 7, 10, "expected ')', found '{'");
  assert_error(&l, 8, 24, "expected '='");
  unload(&l);
  l = load_with("model m (float[2] x) => (float[2] y, float[3] z) {\n  a = nope + 1\n  b = a * also_no\n"
                "  y = kv.relu(x, x)\n  z = kv.missing(b)\n}",
                NULL);
  assert_error(&l, 2, 7, "'nope' is not defined here");
  assert_error(&l, 3, 11, "'also_no' is not defined here");
  assert_error(&l, 4, 7, "kv.relu: expected 1 to 1 operands, found 2");
  assert_error(&l, 5, 7, "there is no operator kv.missing");
  assert_int_equal(kva_diag_errors(l.diag), 4); /* and none that follow from these */
  unload(&l);
  l = load_with("model m (float[2] x) => (float[2] y) {\n  a = kv.exp <k = 1>\n  b = kv.exp <k = 1>\n"
                "  y = kv.missing(x)\n}",
                NULL);
  assert_error(&l, 2, 7, "'exp' is called without operands");
  assert_error(&l, 3, 7, "'exp' is called without operands");
  assert_error(&l, 4, 7, "there is no operator kv.missing");
  unload(&l);
}

static void names_and_values(void **state) {
  (void)state;
  static const wrong cases[] = {
      {"model m (float x) => (float y) { }", 1, 29, "the output 'y' is never assigned"},
      {"model m (float x, float x) => (float y) { y = x }", 1, 25, "two inputs called 'x'"},
      {"model m (x) => (float y) { y = x }", 1, 10, "the input 'x' needs a type"},
      {"model m (float[] x) => (float y) { y = x }", 1, 10, "unknown rank"},
      {"model m (seq(float) x) => (float y) { y = x }", 1, 10, "only tensors"},
      {"model m (float[1,1,1,1,1,1,1,1,1] x) => (float y) { y = x }", 1, 10, "rank 9"},
      {"model m (float[0 - 2] x) => (float y) { y = x }", 1, 16, "must not be negative"},
      {"model m <d = 7> (float[d / 2] x) => (float y) { y = x }", 1, 24, "found the float 3.5"},
      {"model m (float[9223372036854775807 * 2] x) => (float y) { y = x }", 1, 16, "does not fit 64 bits"},
      {"model m (float[B] x) => (float[B, 1] y) { y = x }", 1, 26, "declared float[B, 1], but its value is float[B]"},
      {"model m (float[B] x) => (float[T] y) { y = x }", 1, 26, "declared float[T], but its value is float[B]"},
      {"model m (int64 x) => (int64 y) { y = x + 0.5 }", 1, 42, "0.5 cannot become int64"},
      {"model m (int8 x) => (int8 y) { y = x + 300 }", 1, 40, "300 cannot become int8"},
      {"model m (bool x) => (bool y) { y = x == 2 }", 1, 41, "2 cannot become bool"},
      {"model m (complex64 x) => (complex64 y) { y = x + 1 }", 1, 50, "1 cannot become complex64"},
      {"model m (float[N] x, string z) => (string y) { y = z + N }", 1, 56, "an extent cannot become string"},
      {"model m (float x) => (float y) { y = x if x { y = x } }", 1, 43, "true or false at compile time"},
      {"model m (float x) => (float y) { y = x for i in 0 : 1.5 { } }", 1, 53, "the end of the loop"},
      {"model m (float[N] x) => (float y) { if N > 2 { y = x } }", 1, 40, "cannot compare shape symbols"},
      {"model m (float x) => (float y) { y = x / (1 / 0) }", 1, 47, "division by zero"},
      {"model m (float x) => (float y) { y = true + 1 }", 1, 38, "'+' does not apply to a bool and an integer"},
      {"model m (float x) => (float y) { a, b = x y = a }", 1, 34, "the right side has one value"},
      {"model m (float x) => (float y) { y = sqrt(-1) + x }", 1, 38, "sqrt of the negative number"},
      {"model m (float x) => (float y) { y = sqrt(1, 2) + x }", 1, 38, "sqrt takes 1 value"},
      {"model m (float x) => (float y) { y = min(x, 2) }", 1, 42, "min expects integers or extents"},
      {"model m (float x) => (float y) { y = dim(x, 0) }", 1, 45, "axis 0 of a tensor of rank 0"},
      {"model m (float x) => (float y) { return x, x }", 1, 34, "returns 2 values, but 1 output is declared"},
      {"model m (float x) => (float y) { y = kv.softmax <axs = 0> (x) }", 1, 50, "no attribute 'axs'; it has: axis"},
      {"model m (float x) => (float y) { y = kv.softmax <axis = x> (x) }", 1, 57,
       "expected an integer, found a tensor"},
      {"model m (float x) => (float y) { y = kv.transpose <perm = 1> (x) }", 1, 59, "expected a list"},
      {"model m (float x) => (float y) { y = kv.cast <to = \"flot\"> (x) }", 1, 52, "expected an element type"},
      {"model m (float x) => (float y) { y, z, w = kv.cross_entropy(x, x) }", 1, 44, "has 2 results"},
      {"model m (float x) => (float y) { y = x metric z = y }", 1, 40, "'metric' belongs into a train block"},
      {"model m (float x) => (float y) { y = x } def f (a) { metric b = a return a } train m { loss = f(y) }", 1, 54,
       "'metric' belongs into a train block"},
      {"model m (float x) => (float y) { y = x } train m { loss = y for i in 0 : 2 { metric b = y } }", 1, 85,
       "there is a metric 'b' already"},
      {"model m (float x) => (float y) { y = x } train m { loss = y metric loss = kv.abs(y) }", 1, 68,
       "'loss' is what the block trains"},
      {"model m (float x) => (float y) { y = x } train m { loss = y metric grad_norm = kv.abs(y) }", 1, 68,
       "'grad_norm' is what clipping reports"},
      {"model m (float x) => (float y) { y = Op <a = @b> (x) }", 1, 46, "this is not in one"},
      {"model m (float x) => (float y) { y = x + ? }", 1, 42, "expected a value"},
      {"model m (float x) => (float y) { kv.return(x) y = x }", 1, 34, "there is no operator kv.return"},
  };
  CHECK(cases);
}

static void literals(void **state) {
  (void)state;
  static const wrong cases[] = {
      {"model m (float x) => (float y) { y = float[2] {1} }", 1, 38, "has 2 elements, but 1 are given"},
      {"model m (float x) => (float y) { y = float[N] {1} }", 1, 44, "must be numbers"},
      {"model m (float x) => (float y) { y = float[1000000000000, 1000000000000] {1} }", 1, 38, "too large"},
      {"model m (float x) => (float y) { y = float[1000000000000] {1} }", 1, 38, "has 1000000000000 elements"},
      {"model m (float x) => (float y) { y = int8[1] {128} }", 1, 47, "128 does not fit int8"},
      {"model m (float x) => (float y) { y = uint8[1] {-1} }", 1, 48, "-1 does not fit uint8"},
      {"model m (float x) => (float y) { y = int32[1] {0.5} }", 1, 48, "must be an integer"},
      {"model m (float x) => (float y) { y = bool[1] {2} }", 1, 47, "2 does not fit bool"},
      {"model m (float x) => (float y) { y = float[1] {x} }", 1, 48, "expected a number, found a tensor"},
      {"model m (float x) => (float y) { y = string[1] {\"a\"} }", 1, 38, "tensors of strings"},
      {"model m (float x) => (float y) { y = float[1] w = [\"offset\": \"0\"] }", 1, 38, "need \"location\""},
      {"model m (float x) => (float y) { y = float[1] w = [\"location\": \"a\", \"offset\": \"x\"] }", 1, 38,
       "offset is \"x\", not a number"},
      {"model m (float x) => (float y) { y = float[100] [\"hash\" : \"9f\"] }", 1, 38, "only their hash"},
  };
  CHECK(cases);
}

static void parameters(void **state) {
  (void)state;
  static const wrong cases[] = {
      {"model m (float x) => (float y) { y = x param float w }", 1, 52, "needs an initialiser"},
      {"model m (float x) => (float y) { y = x param float[N] w ~ zeros }", 1, 52, "'N' is not a hyper-parameter"},
      {"model m (float x) => (float y) { y = x param float w ~ gauss(1) }", 1, 56, "expected an initialiser"},
      {"model m (float x) => (float y) { y = x param float w ~ normal(1, 2) }", 1, 56, "takes 1 argument, found 2"},
      {"model m (float x) => (float y) { y = x param float w ~ normal(-1) }", 1, 63, "must not be negative"},
      {"model m (float x) => (float y) { y = x param float w ~ uniform(1, 0) }", 1, 64, "needs a < b"},
      {"model m (float x) => (float y) { y = x param float w ~ one_minus(v) }", 1, 66, "name of another parameter"},
      {"model m (float x) => (float y) { y = x param float w ~ ones param float w ~ ones }", 1, 73, "already"},
      {"model m (float x) => (float y) { y = x param float[2] w ~ ones param float v ~ one_minus(w) }", 1, 90,
       "of the same type"},
      {"model m (float x) => (float y) { y = x param float v ~ ones param float w ~ copy(v) }", 1, 77, "kind cache"},
      {"state float \"w\" : parm ~ zeros\nmain () => (float y) { y = float {1} return (y) }", 1, 19, "kind of state"},
      {"state float \"w\" : param ~ zeros\nstate float \"w\" : param ~ zeros\nmain () => () { return () }", 2, 13,
       "already"},
      {"state float \"w\" : moment of \"v\" ~ zeros\nmain () => () { return () }", 1, 29, "there is no state 'v'"},
      {"main () => (float y) { y = kv.state_read <state = \"w\"> () return (y) }", 1, 51, "there is no state 'w'"},
  };
  CHECK(cases);
}

static void functions(void **state) {
  (void)state;
  static const wrong cases[] = {
      {"model m (float x) => (float y) { y = f(x) }\ndef f (a, b) { return a }", 1, 38, "takes 2 arguments, found 1"},
      {"model m (float x) => (float y) { y = f(x) }\ndef f (a) { b = a }", 1, 38, "does not return anything"},
      {"model m (float x) => (float y) { y, z = f(x) }\ndef f (a) { return a }", 1, 41,
       "returns 1 value, but 2 are expected"},
      {"model m (float x) => (float y) { y = f <k = 1> (x) }\ndef f (a) { return a }", 1, 41,
       "has no hyper-parameter 'k'"},
      {"model m (float x) => (float y) { y = f(x) }\ndef f <k> (a) { return a }", 1, 38,
       "needs the hyper-parameter 'k'"},
      {"model m (float x) => (float y) { y = f <j = 1, k> (x) }\ndef f <j, k> (a) { return a }", 1, 38,
       "needs the hyper-parameter 'k'"},
      {"model m (float x) => (float y) { y = f(x) }\ndef f (float[2] a) { return a }", 1, 40,
       "expected float[2], found float"},
      {"model m (float x) => (float y) { y = f(x) }\ndef f (a) { return x }", 2, 20, "'x' is not defined here"},
      {"model m (float x) => (float y) { y = f(x) }\ndef f (a) { return f(a) }", 2, 20, "does 'f' call itself?"},
      {"model m (float x) => (float y) { y = f <a = 1> }\ndef f (a) { return a }", 1, 38, "without operands"},
      {"model m (float x) => (float y) { y = x }\ndef f (a) { return a }\ndef f (a) { return a }", 3, 5,
       "two functions called 'f'"},
      {"def f (a) { return a }", 1, 1, "there is no model in this file"},
      {"model m (float x) => (float y) { y = x }\nmodel n (float x) => (float y) { y = x }", 2, 1,
       "a file has one model"},
      {"model m (float x) => (float y) { y = x }\ng (float x) => (float y) { y = x }", 2, 1,
       "a file with a model has no other graph"},
  };
  CHECK(cases);
}

static void training(void **state) {
  (void)state;
#define MODEL "model m (float[2] x) => (float[2] y) { y = x }\n"
  static const wrong cases[] = {
      {MODEL "train n () { loss = y }", 2, 7, "this trains 'n', but the model is 'm'"},
      {MODEL "train m () { }", 2, 1, "must assign a tensor to 'loss'"},
      {MODEL "train m () { loss = y }", 2, 1, "'loss' must be a float scalar, found float[2]"},
      {MODEL "train m (float x) { loss = x }", 2, 7, "'x' is an input of the model already"},
      {MODEL "train m (float t) { loss = t optimizer = Lion }", 2, 42,
       "'Lion' is not an optimizer; there are: sgd, momentum, adagrad, adamw"},
      {MODEL "train m (float t) { loss = t optimizer = SGD <rate = 1> }", 2, 47,
       "optimizer sgd has no setting 'rate'; there are: lr, weight_decay, decay"},
      {MODEL "train m (float t) { loss = t optimizer = SGD <momentum = 0.9> }", 2, 47,
       "optimizer sgd has no setting 'momentum'; there are: lr, weight_decay, decay"},
      {MODEL "train m (float t) { loss = t optimizer = AdamW <steps = 9> }", 2, 49, "adamw has no setting 'steps'"},
      {MODEL "train m (float t) { loss = t optimizer = SGD <lr = -1> }", 2, 52, "lr must not be negative"},
      {MODEL "train m (float t) { loss = t optimizer = AdamW <beta1 = 1> }", 2, 57, "beta1 must be below 1"},
      {MODEL "train m (float t) { loss = t optimizer = AdamW <beta2 = 1.5> }", 2, 57, "beta2 must be below 1"},
      {MODEL "train m (float t) { loss = t optimizer = SGD <decay = some> }", 2, 55, "there are: matrices, all, none"},
      {MODEL "train m (float t) { loss = t optimizer = SGD(0.1) }", 2, 46, "'SGD' takes no operands here"},
      {MODEL "train m (float t) { loss = t data = random(5) }", 2, 44, "'random' takes no operands here"},
      {MODEL "train m (float t) { loss = t decay = all <eps = 1> }", 2, 43, "'all' takes nothing between"},
      {MODEL "train m (float t) { loss = t schedule = warmup <to = 3> (3) }", 2, 49, "'warmup' takes nothing"},
      {MODEL "train m (float t) { loss = t schedule = warmup }", 2, 41, "warmup(steps)"},
      {MODEL "train m (float t) { loss = t schedule = step(1) }", 2, 41, "not a schedule"},
      {MODEL "train m (float t) { loss = t steps = 1.5 }", 2, 38, "steps: expected an integer"},
      {MODEL "train m (float t) { loss = t data = tokens <file = \"a\"> }", 2, 52, "expected a number"},
      {MODEL "train m (float t) { loss = t data = \"tokens:/etc/passwd\" }", 2, 37,
       "'/etc/passwd': a train block names"},
      {MODEL "train m (float t) { loss = t data = \"npy:x=a.npy,t=b/../../c\" }", 2, 37,
       "'t=b/../../c': a train block"},
      {MODEL "train m (float t) { return t }", 2, 21, "assigns 'loss' instead"},
      {MODEL "train m (float t) { loss = t if true { return t } }", 2, 40, "assigns 'loss' instead"},
      {"main () => () { return () }\ntrain { speed = 1 }", 2, 9, "not a setting of a train block"},
  };
#undef MODEL
  CHECK(cases);
}

static void command_line(void **state) {
  (void)state;
  static const struct {
    kva_define define, pin;
    const char *message;
  } cases[] = {
      {{"z", "1"}, {0}, "there is no hyper-parameter 'z'; the hyper-parameters are: a, b, f, s"},
      {{"a", "1.5"}, {0}, "'a' is an integer; '-D a=1.5' is not"},
      {{"a", "99999999999999999999"}, {0}, "'a' is an integer"},
      {{"a", ""}, {0}, "'a' is an integer"},
      {{"b", "x"}, {0}, "'b' is a float"},
      {{"f", "maybe"}, {0}, "'f' is a bool"},
      {{"preset", "tiny"}, {0}, "there is no preset 'tiny'; the presets are small"},
      {{0}, {"T", "4"}, "there is no shape symbol 'T' to pin; the symbols are: B"},
      {{0}, {"B", "-4"}, "the pin B=-4 is not an extent"},
      {{0}, {"B", "many"}, "the pin B=many is not an extent"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kva_load_options options = {.n_defines = cases[i].define.name != NULL,
                                .defines = &cases[i].define,
                                .n_pins = cases[i].pin.name != NULL,
                                .pins = &cases[i].pin};
    loaded l = load_with("model m <a = 1, b = 0.5, f = true, s = \"x\"> (float[B] x) => (float[B] y) { y = x }\n"
                         "preset \"small\" <a = 2>",
                         &options);
    bool found = false;
    for (size_t k = 0; k < kva_diag_count(l.diag); k++) {
      found |= strstr(kva_diag_message(l.diag, k, NULL, NULL), cases[i].message) != NULL;
    }
    if (!found) kva_diag_print(l.diag, stderr);
    assert_true(found);
    unload(&l);
  }
}

/* ---- hostile texts ----------------------------------------------------------------------------------------------- */

static char *repeated(const char *before, const char *piece, size_t n, const char *after) {
  kva_text t = {0};
  kva_text_add(&t, "%s", before);
  for (size_t i = 0; i < n; i++) kva_text_add(&t, "%s", piece);
  kva_text_add(&t, "%s", after);
  return t.data;
}

static void nesting_is_bounded(void **state) {
  (void)state;
  static const struct {
    const char *before, *piece, *after, *message;
  } cases[] = {
      {"model m (float x) => (float y) { y = ", "(", "x", "nests more than 200 levels"},
      {"model m (float x) => (float y) { y = ", "-", "x }", "nests more than 200 levels"},
      {"model m (float x) => (float y) { y = ", "f(", "x", "nests more than 200 levels"},
      {"model m (float x) => (float y) { y = x", " + x", " }", "more than 200 levels deep; split it"},
      {"model m (float x) => (float y) { y = kv.relu <a = ", "[", "1", "nests more than 200 levels"},
      {"model m (float x) => (float y) { ", "if true { ", "y = x", "nests more than 200 levels"},
      {"model m (float x) => (float y) { ", "for i in 0 : 1 {", "y = x", "nests more than 200 levels"},
      {"model m (", "seq(", "float", "nests more than 200 levels"},
      {"model m (float x) => (float y) { y = ", "kv.kernel(x) { (float x) => (float y) y = ", "x",
       "nests more than 200 levels"},
      {"model m (float x) => (float y) { ", "y = If(x) <b = g () => () {", "", "nests more than 200 levels"},
      {"model m (float[", "min(", "N", "nests more than 200 levels"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *text = repeated(cases[i].before, cases[i].piece, 100000, cases[i].after);
    loaded l = load_with(text, NULL);
    assert_int_not_equal(l.status, KVA_OK);
    const char *first = kva_diag_message(l.diag, 0, NULL, NULL);
    if (!strstr(first, cases[i].message)) fail_msg("case %zu: %s", i, first);
    unload(&l);
    free(text);
  }
}

static void unrolling_is_bounded(void **state) {
  (void)state;
  static const wrong cases[] = {
      {"model m (float x) => (float y) { y = x\n for i in 0 : 9223372036854775807 { } }", 2, 2,
       "more than 1000000 loop"},
      {"model m (float x) => (float y) { y = x\n for i in 0 : 9223372036854775807 { y = f(y) } }\n"
       "def f (x) { param float w ~ ones return x * w }",
       2, 41, "more than 1000000 loop"},
      {"model m (float x) => (float y) { y = x for i in 0 : 100000 { for j in 0 : 100000 { } } }", 1, 62,
       "more than 1000000"},
  };
  CHECK(cases);
  /* 2^60 calls */
  kva_text t = {0};
  kva_text_add(&t, "model m (float x) => (float y) { y = f0(x) }\n");
  for (int i = 0; i < 60; i++) kva_text_add(&t, "def f%d (x) { a = f%d(x) return f%d(x) }\n", i, i + 1, i + 1);
  kva_text_add(&t, "def f60 (x) { return x }\n");
  loaded l = load_with(t.data, NULL);
  assert_non_null(strstr(kva_diag_message(l.diag, 0, NULL, NULL), "more than 1000000 loop iterations and calls"));
  assert_int_equal(kva_diag_errors(l.diag), 1);
  unload(&l);
  kva_text_free(&t);
}

/* Depths that are harmless one by one multiply through calls and sub-graphs. */
static void depth_through_calls_is_bounded(void **state) {
  (void)state;
  kva_text t = {0};
  kva_text_add(&t, "model m (float x) => (float y) { y = f0(x) }\n");
  for (int i = 0; i < 190; i++) {
    kva_text_add(&t, "def f%d (x) { return ", i);
    for (int k = 0; k < 90; k++) kva_text_add(&t, "1 + (x + ");
    kva_text_add(&t, "f%d(x)", i + 1);
    for (int k = 0; k < 90; k++) kva_text_add(&t, ")");
    kva_text_add(&t, " }\n");
  }
  loaded l = load_with(t.data, NULL);
  assert_int_equal(kva_diag_errors(l.diag), 1);
  assert_non_null(strstr(kva_diag_message(l.diag, 0, NULL, NULL), "nests more than 1000 levels"));
  unload(&l);
  kva_text_free(&t);

  kva_text_add(&t, "g (float x) => (float y) { ");
  for (int i = 0; i < 60; i++) {
    kva_text_add(&t, "y = x");
    for (int k = 0; k < 190; k++) kva_text_add(&t, " + x");
    kva_text_add(&t, "y = If(x) <b = g () => () {");
  }
  for (int i = 0; i < 60; i++) kva_text_add(&t, "}>");
  kva_text_add(&t, " }");
  kva_diag *diag = kva_diag_create();
  kva_text out = {0};
  (void)!kva_format_text(t.data, "test.kv", diag, &out);
  kva_text_free(&out);
  kva_diag_destroy(diag);
  l = load_with(t.data, NULL);
  assert_int_not_equal(l.status, KVA_OK);
  unload(&l);
  kva_text_free(&t);
}

static void errors_are_bounded(void **state) {
  (void)state;
  static const char *const pieces[] = {"  y = )\n", "$", "\"", "}\n", "def f (\n", "<", "0x", "\x7f"};
  for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
    char *text = repeated("model m (float x) => (float y) {\n", pieces[i], 20000, "");
    loaded l = load_with(text, NULL);
    assert_int_not_equal(l.status, KVA_OK);
    assert_in_range(kva_diag_errors(l.diag), 1, 60);
    unload(&l);
    free(text);
  }
}

/* Every beginning of a model, and the model with single bytes changed: reported or loaded, never a crash. */
static void mutilated_models(void **state) {
  (void)state;
  char *text = read_text("models/induction.kv");
  size_t n = strlen(text);
  uint32_t random = 1;
  for (size_t i = 0; i < n; i += 7) {
    char kept = text[i];
    text[i] = 0;
    loaded l = load_with(text, NULL);
    unload(&l);
    random = random * 1664525 + 1013904223;
    static const char bytes[] = "(){}[]<>,:=.@?~+-*/\"#%$ 0a\n\x80";
    text[i] = bytes[(random >> 16) % (sizeof bytes - 1)];
    l = load_with(text, NULL);
    unload(&l);
    kva_diag *diag = kva_diag_create();
    kva_text out = {0};
    (void)!kva_format_text(text, "test.kv", diag, &out);
    kva_text_free(&out);
    kva_diag_destroy(diag);
    text[i] = kept;
  }
  free(text);
}

static void files(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_module *m;
  assert_int_equal(kva_load_model("no/such/model.kv", NULL, diag, &m), KVA_IO);
  assert_null(m);
  assert_int_equal(kva_load_model("models/mlp.kv", NULL, diag, &m), KVA_OK);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

/* The module is gone when its errors are printed. */
static void messages_outlive_the_module(void **state) {
  (void)state;
  loaded l = load_with("model m (float x) => (float y) {\n  y = nothing\n}", NULL);
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  kva_diag_print(l.diag, out);
  fclose(out);
  assert_string_equal(text, "test.kv:2:7: error: 'nothing' is not defined here\n    y = nothing\n        ^\n");
  free(text);
  unload(&l);
}

#define NAMED "model m <d = 4> (float[d] x) => (float[d] y) { param float[d] w ~ zeros  y = x + w }\n"

static void checkpoint_blocks(void **state) {
  (void)state;
  static const wrong cases[] = {
      {NAMED "checkpoint hf {\n  e = field(\"e\")\n}", 3, 3, "there is no hyper-parameter 'e'"},
      {NAMED "checkpoint hf {\n  w = tensors(\"w\")\n}", 3, 7, "expected field(...)"},
      {NAMED "checkpoint hf {\n  w = tensor(\"a\", \"b\")\n}", 3, 7, "tensor takes one name of a tensor, found 2"},
      {NAMED "checkpoint hf {\n  w = tensor(d)\n}", 3, 14, "expected a name in quotes"},
      {NAMED "checkpoint hf {\n  \"w.*\" = tensor(\"w\")\n}", 3, 3, "'w.*' has 1 of '*', 'w' has 0"},
      {NAMED "checkpoint hf {\n  w = tensor <pairs = 3> (\"w\")\n}", 3, 23, "which must be even; found 3"},
      {NAMED "checkpoint hf {\n  w = tensor <of = [1]> (\"w\")\n}", 3, 15, "tensor has no attribute 'of'"},
      {NAMED "checkpoint hf {\n  d = field <of = 4> (\"d\")\n}", 3, 19, "'of' expects a list of values"},
      {NAMED "checkpoint hf {\n  w = tensor(\"w\")\n  w = tensor(\"v\")\n}", 4, 3, "a row for 'w' already"},
      {NAMED "checkpoint hf {\n  for l in 0 : 2 { }\n}", 3, 3, "expected a row such as"},
      {NAMED "checkpoint hf <skip = []> { }", 2, 16, "'skip' is no attribute of a checkpoint block"},
      {NAMED "checkpoint hf <ignored = [d]> { }", 2, 16, "expects a list of names in quotes"},
      {NAMED "checkpoint hf { }\ncheckpoint hf { }", 3, 12, "there are two checkpoint blocks 'hf'"},
  };
  CHECK(cases);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(checkpoint_blocks),
      cmocka_unit_test(lexical),
      cmocka_unit_test(syntax),
      cmocka_unit_test(no_graph_yet),
      cmocka_unit_test(several_errors_in_one_run),
      cmocka_unit_test(names_and_values),
      cmocka_unit_test(literals),
      cmocka_unit_test(parameters),
      cmocka_unit_test(functions),
      cmocka_unit_test(training),
      cmocka_unit_test(command_line),
      cmocka_unit_test(nesting_is_bounded),
      cmocka_unit_test(unrolling_is_bounded),
      cmocka_unit_test(depth_through_calls_is_bounded),
      cmocka_unit_test(errors_are_bounded),
      cmocka_unit_test(mutilated_models),
      cmocka_unit_test(files),
      cmocka_unit_test(messages_outlive_the_module),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
