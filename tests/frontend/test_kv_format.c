/* Grammar and canonical text: what ONNX's parser accepts, dumps, models; comments and long lines. */
#include "tests/frontend/kv_test.h"

/* The canonical text of a text that must parse; freed by the caller. */
static char *formatted(const char *text) {
  kva_diag *diag = kva_diag_create();
  kva_text out = {0};
  kva_status status = kva_format_text(text, "test.kv", diag, &out);
  kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  kva_diag_destroy(diag);
  return out.data;
}

static void assert_canonical(const char *text) {
  char *out = formatted(text);
  assert_string_equal(out, text);
  free(out);
}

static void assert_formatted(const char *text, const char *expected) {
  char *out = formatted(text);
  assert_string_equal(out, expected);
  free(out);
  assert_canonical(expected);
}

static void assert_statement(const char *text, const char *expected) {
  char from[2048], to[2048];
  snprintf(from, sizeof from, "g (float[N] x) => (float[N] y) { %s }", text);
  snprintf(to, sizeof to, "g (float[N] x) => (float[N] y) {\n  %s\n}\n", expected);
  assert_formatted(from, to);
}

static void onnx_types(void **state) {
  (void)state;
  assert_formatted("g (float[N,128] a,float b, float[] c, float[N,?,K] d, seq(float[]) e, optional(float) f,"
                   "sparse_tensor(float[1000]) g, map(int32,float[N]) h, opaque(test.rng.RNG) i, opaque() j, k,"
                   "float[\"a b\"] \"l m\") => () {}",
                   "g (float[N, 128] a, float b, float[] c, float[N, ?, K] d, seq(float[]) e, optional(float) f,\n"
                   "    sparse_tensor(float[1000]) g, map(int32, float[N]) h, opaque(test.rng.RNG) i, opaque() j, k, "
                   "float[\"a b\"] \"l m\")\n    => () {}\n");
}

static void onnx_attributes(void **state) {
  (void)state;
  assert_statement("y=Op<a=2,b=0.625,c=[2,4,6],d=[0.125,0.625]>(x)",
                   "y = Op <a = 2, b = 0.625, c = [2, 4, 6], d = [0.125, 0.625]> (x)");
  assert_statement("y = Op <a = \"astring\", b = [\"abc\", \"d\\\"ef\"], c : ints = @xyz, d : float = 2> (x)",
                   "y = Op <a = \"astring\", b = [\"abc\", \"d\\\"ef\"], c: ints = @xyz, d: float = 2> (x)");
  assert_statement("y = Op <t = float[3] {2.1, -4.1, 6.1e-2}, u = int32[2] T {1, 2}, v = float[2] X = {1, 2}> (x)",
                   "y = Op <t = float[3] {2.1, -4.1, 6.1e-2}, u = int32[2] T {1, 2}, v = float[2] X {1, 2}> (x)");
  assert_statement("y = Op <a = -inf, b = nan, c = float, d = seq(float[N]), e : strings = []> (x)",
                   "y = Op <a = -inf, b = nan, c = float, d = seq(float[N]), e: strings = []> (x)");
  assert_statement("y = Op (x) <axis = 1>", "y = Op <axis = 1> (x)");
  assert_statement("y = Op <> (x)", "y = Op <> (x)");
}

static void onnx_nodes(void **state) {
  (void)state;
  assert_statement("y = com.example.foo(x, y)", "y = com.example.foo(x, y)");
  assert_statement("y = local.foo:bar <a = 1> (x)", "y = local.foo:bar <a = 1> (x)");
  assert_statement("[label] y, z = Op (x, , \"\", \"a b\")", "[label] y, z = Op(x, , \"\", \"a b\")");
  assert_statement("[\"a b\"] y, = Op (x,)", "[\"a b\"] y = Op(x)");
  assert_statement("= Op ()", "= Op()");
  assert_statement(", = Op (x)", "\"\" = Op(x)");
  assert_statement("y, , = Op (x)", "y, \"\" = Op(x)");
  assert_statement("y, , z = Op (,x)", "y, , z = Op(, x)");
}

static void onnx_words_are_names(void **state) {
  (void)state;
  assert_formatted("model (float for, float if) => (float return) { param = Op(for) return = Op(param, if) }",
                   "model (float for, float if) => (float return) {\n  param = Op(for)\n  return = Op(param, if)\n}\n");
  assert_formatted("train <a> (def) => (state) { state = Op(def) }",
                   "train <a> (def) => (state) {\n  state = Op(def)\n}\n");
  assert_statement("not = Op(x) or = Op(not, and) and, y = Op(or) z = or and, y = Op(z)",
                   "not = Op(x)\n  or = Op(not, and)\n  and, y = Op(or)\n  z = or\n  and, y = Op(z)");
  assert_formatted("g => (float y) { y = If <a = h => (float z) {}> (c) }",
                   "g => (float y) {\n  y = If <a = h => (float z) {}> (c)\n}\n");
}

static void onnx_graph_attributes(void **state) {
  (void)state;
  assert_statement("z = If (b) < then_branch = g1 () => (float[N] z_then) { z_then = foo(y) },"
                   " else_branch = g2 () => (float[N] z_else) { z_else = bar(x) } >",
                   "z = If <then_branch = g1 () => (float[N] z_then) {\n"
                   "    z_then = foo(y)\n"
                   "  }, else_branch = g2 () => (float[N] z_else) {\n"
                   "    z_else = bar(x)\n"
                   "  }> (b)");
}

static void onnx_model(void **state) {
  (void)state;
  assert_formatted(
      "<\n ir_version: 7, opset_import: [ \"\" : 10, \"local\" : 1 ], producer_name: \"T\",\n"
      " model_version: 1, doc_string: \"d\", metadata_props: [ \"k\" : \"v\", \"k2\" : \"v2\" ] >\n"
      "agraph (float y = {1.0}, float[N] z) => (float[N] w)\n"
      "<float[2] w1 = {1.0, 2.0}, float[3] w2 = [\"location\": \"w.bin\", \"offset\": \"4\"], float[N] x>\n"
      "{\n # This is a comment.\n x = foo(y, z, w1) # More comments.\n\n\n w = bar(x, y, w2) }\n"
      "<opset_import: [\"\" : 15], domain: \"local\">\n"
      "f <alpha: float=4.0, gamma> (X, float[N] Y) => (C) <float[N] t> { C = Add(X, Y) }",
      "<ir_version: 7, opset_import: [\"\" : 10, \"local\" : 1], producer_name: \"T\", model_version: 1, "
      "doc_string: \"d\",\n    metadata_props: [\"k\" : \"v\", \"k2\" : \"v2\"]>\n"
      "agraph (float y = {1.0}, float[N] z) => (float[N] w) <float[2] w1 = {1.0, 2.0}, float[3] w2 = "
      "[\"location\" : \"w.bin\",\n    \"offset\" : \"4\"], float[N] x> {\n"
      "  # This is a comment.\n"
      "  x = foo(y, z, w1)  # More comments.\n\n"
      "  w = bar(x, y, w2)\n"
      "}\n\n"
      "<opset_import: [\"\" : 15], domain: \"local\">\n"
      "f <alpha: float = 4.0, gamma> (X, float[N] Y) => (C) <float[N] t> {\n"
      "  C = Add(X, Y)\n"
      "}\n");
}

static void expressions(void **state) {
  (void)state;
  assert_statement("y = a+b*c-d/e", "y = a + b * c - d / e");
  assert_statement("y = ((a+b))*(c-(d-e))", "y = (a + b) * (c - (d - e))");
  assert_statement("y = (a*b)@c", "y = (a * b) @ c");
  assert_statement("y = a@b@c", "y = a @ b @ c");
  assert_statement("y = -(a+b) - -1", "y = -(a + b) - -1");
  assert_statement("if not(a==1)and(b<2 or c>=3) { y = f<e = (a > b)>(-x) }",
                   "if not a == 1 and (b < 2 or c >= 3) {\n    y = f <e = (a > b)> (-x)\n  }");
  assert_statement("for l in 0:n-1{x=f(x)}", "for l in 0 : n - 1 {\n    x = f(x)\n  }");
}

static void language_statements(void **state) {
  (void)state;
  assert_formatted(
      "model m<d=4,b=true,s=\"x\">(float[B,T,d/2] x)=>(float[B] y){param float[d,2*d] w~normal(0.02)nodecay "
      "frozen\nif b{}else if d==4{y=x}else{}\nkv.state_write<state=\"w\">(x)}"
      "def f<eps=1e-5>(x,float[B] z){return(x+1)*2,z}def g(){return (x)}preset \"p\"<d=2>"
      "train m<lr=0.1>(int32[B] t){metric acc=f(t) schedule=warmup(10) optimizer=AdamW<lr=lr>}",
      "model m <d = 4, b = true, s = \"x\"> (float[B, T, d / 2] x) => (float[B] y) {\n"
      "  param float[d, 2 * d] w ~ normal(0.02) nodecay frozen\n"
      "  if b {} else if d == 4 {\n    y = x\n  } else {}\n"
      "  kv.state_write <state = \"w\"> (x)\n"
      "}\n\n"
      "def f <eps = 1e-5> (x, float[B] z) {\n  return (x + 1) * 2, z\n}\n\n"
      "def g () {\n  return (x)\n}\n\n"
      "preset \"p\" <d = 2>\n\n"
      "train m <lr = 0.1> (int32[B] t) {\n"
      "  metric acc = f(t)\n  schedule = warmup(10)\n  optimizer = AdamW <lr = lr>\n}\n");
}

static void quotes_stay(void **state) {
  (void)state;
  assert_canonical("state float[2] \"s\" : \"a b\"\n");
  assert_canonical("<\"ir_version\": 8>\ng (float[N] x) => (float[N] y) {\n  y = x\n}\n");
}

static void dumps(void **state) {
  (void)state;
  assert_formatted(
      "module \"demo\"\nstate float[256,64] \"embed\" : param ~ normal(0.02)\n"
      "state float[256,64] \"embed.m\" : moment of \"embed\" ~ zeros nodecay\n"
      "main (float[B, T] x) => (float[2*T, floordiv(B, 2)] y)\n{\n"
      "  v4, \"a.0\" = kv.split <axis = 1, t = float[100] [\"hash\": \"9f\"]> (x, ,)\n"
      "  k = kv.kernel <name = \"k0\"> (p) { (float[B] q) => (float[B] r)\n r = kv.add (q, q)\n return (r)\n}\n"
      "  return (k)\n}\ntrain {\n  optimizer = \"adamw\"\n  lr = 0.002\n}\n",
      "module \"demo\"\nstate float[256, 64] \"embed\" : param ~ normal(0.02)\n"
      "state float[256, 64] \"embed.m\" : moment of \"embed\" ~ zeros nodecay\n\n"
      "main (float[B, T] x) => (float[2 * T, floordiv(B, 2)] y) {\n"
      "  v4, \"a.0\" = kv.split <axis = 1, t = float[100] [\"hash\" : \"9f\"]> (x, ,)\n"
      "  k = kv.kernel <name = \"k0\"> (p) { (float[B] q) => (float[B] r)\n"
      "    r = kv.add(q, q)\n    return (r)\n  }\n"
      "  return (k)\n}\n\ntrain {\n  optimizer = \"adamw\"\n  lr = 0.002\n}\n");
}

static void comments_stay(void **state) {
  (void)state;
  assert_canonical(
      "# top\n\n# of m\nmodel m <\n    a = 1,  # one\n    # above b\n    b = 2\n"
      "> (float[B] x) => (float[B] y) {\n"
      "  # first\n\n  # second\n  y = x  # trailing\n\n  if a == 1 {  # why\n    # inside\n  }\n  # last\n}\n\n"
      "# end\n");
  assert_formatted("g (float x) => (float y) {\n y = Op(x, # left\n z) # right\n}",
                   "g (float x) => (float y) {\n  # left\n  y = Op(x, z)  # right\n}\n");
}

static void strings_may_span_lines(void **state) {
  (void)state;
  assert_canonical("g (float x) => (float y) {\n  y = Op <a = \"one\n two\"> (x)\n  z = x\n\n  w = \"a\nb\"  # c\n}\n");
}

static void long_lines_break(void **state) {
  (void)state;
  assert_statement(
      "y = Concat(aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb, "
      "cccccccccccccc + ddddddddddddddddddddd)",
      "y = Concat(aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb, "
      "cccccccccccccc\n      + ddddddddddddddddddddd)");
}

static void shipped_models_are_canonical(void **state) {
  (void)state;
  static const char *const paths[] = {"models/mlp.kv",   "models/induction.kv", "models/lm.kv",
                                      "models/llama.kv", "models/gpt2.kv",      "models/baichuan_m1.kv"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    char *text = read_text(paths[i]);
    assert_canonical(text);
    free(text);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(onnx_types),
      cmocka_unit_test(onnx_attributes),
      cmocka_unit_test(onnx_nodes),
      cmocka_unit_test(onnx_words_are_names),
      cmocka_unit_test(onnx_graph_attributes),
      cmocka_unit_test(onnx_model),
      cmocka_unit_test(expressions),
      cmocka_unit_test(language_statements),
      cmocka_unit_test(quotes_stay),
      cmocka_unit_test(dumps),
      cmocka_unit_test(comments_stay),
      cmocka_unit_test(strings_may_span_lines),
      cmocka_unit_test(long_lines_break),
      cmocka_unit_test(shipped_models_are_canonical),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
