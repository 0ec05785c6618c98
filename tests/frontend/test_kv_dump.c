/* Dumps read back to equal modules: equal text and equal graph hashes. */
#include "tests/frontend/kv_test.h"
#include "ops/ids.h"

static void assert_reads_back(kva_module *m) {
  char *text = printed(m);
  loaded l = load_ok(text, &(kva_load_options){.data_from = m});
  char *again = printed(l.m);
  assert_string_equal(again, text);
  assert_int_equal(l.m->functions.len, m->functions.len);
  for (uint32_t i = 0; i < m->functions.len; i++) {
    assert_int_equal(kva_graph_hash(l.m->functions.data[i]->graph), kva_graph_hash(m->functions.data[i]->graph));
  }
  /* The canonical text of a dump means the same. */
  kva_text formatted = {0};
  assert_int_equal(kva_format_text(text, "dump.kv", l.diag, &formatted), KVA_OK);
  loaded f = load_ok(formatted.data, &(kva_load_options){.data_from = m});
  char *third = printed(f.m);
  assert_string_equal(third, text);
  unload(&f);
  unload(&l);
  kva_text_free(&formatted);
  free(third);
  free(again);
  free(text);
}

static void shipped_models(void **state) {
  (void)state;
  static const struct {
    const char *path;
    kva_define define;
  } cases[] = {{"models/mlp.kv", {"layers", "2"}},         {"models/induction.kv", {"layers", "2"}},
               {"models/induction.kv", {"gate", "gate"}},  {"models/induction.kv", {"window", "3"}},
               {"models/induction.kv", {"kv_heads", "1"}}, {"models/lm.kv", {"preset", "small"}}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *text = read_text(cases[i].path);
    loaded l = load_ok(text, &(kva_load_options){.n_defines = 1, .defines = &cases[i].define});
    assert_reads_back(l.m);
    unload(&l);
    free(text);
  }
}

/* ONNX has extents and values of one name. */
static void symbols_named_like_values(void **state) {
  (void)state;
  loaded l =
      load_ok("main (float[x, 12] x, float[n] n) => (float[m] m) {\n"
              "  y = kv.reshape <shape = [12*x + 0*dim(n, 0)]> (x)\n"
              "  m = kv.concat <axis = 0> (y, kv.expand <shape = [min(x, n)]> (kv.reduce_sum <axes = [0]> (n)))\n"
              "}\n",
              NULL);
  assert_reads_back(l.m);
  unload(&l);
}

static const char *const dump =
    "module \"demo\"\n"
    "state float[2] \"layer.0.w\" : param ~ uniform(-1.0, 1.0) frozen decay\n"
    "state float[2] \"layer.0.w.m\" : moment of \"layer.0.w\" ~ zeros\n"
    "state float[2] \"v\" : param ~ one_minus(\"layer.0.w\")\n"
    "state int64 \"step\" : buffer ~ constant(3.0)\n"
    "state float[2, 2] \"k\" : cache ~ data(float[2, 2] {1.0, -2.5, inf, 0.0}) nodecay\n"
    "main (float[B, \"a b\"] x, float[2] \"float\") => (float[B, \"a b\"] y, float[2] z)\n"
    "{\n"
    "  \"layer.0.w\" = kv.state_read <state = \"layer.0.w\"> ()\n"
    "  z = kv.kernel <name = \"k0\"> (\"layer.0.w\", \"float\") { (float[2] p, float[2] q) => (float[2] r)\n"
    "    v5 = kv.add (p, q)\n"
    "    r = kv.relu (v5)\n"
    "    return (r)\n"
    "  }\n"
    "  a = kv.reshape <shape = [\"a b\"*B]> (x)\n"
    "  y = kv.reshape <shape = [B, \"a b\"]> (a)\n"
    "  v10 = kv.dims <values = [2*B, min(B, 7), floordiv(B, 2)]> ()\n"
    "  kv.state_write <state = \"v\"> (z)\n"
    "  return (y, z)\n"
    "}\n"
    "other () => (float16[2] c)\n"
    "{\n"
    "  c = kv.constant <value = float16[2] {0.5, -1.0}> ()\n"
    "  return (c)\n"
    "}\n"
    "train {\n"
    "  optimizer = \"sgd\"\n"
    "  lr = 0.25\n"
    "  beta1 = 0.5\n"
    "  beta2 = 0.75\n"
    "  eps = 1e-09\n"
    "  weight_decay = 0.0\n"
    "  momentum = 0.5\n"
    "  clip = 1.5\n"
    "  schedule = \"linear\"\n"
    "  warmup_steps = 1\n"
    "  total_steps = 20\n"
    "  batch = 16\n"
    "  steps = 300\n"
    "  final_lr_ratio = 0.125\n"
    "  data = induction <pool = 48.0, batch = 2.0>\n"
    "}\n";

static void every_construct(void **state) {
  (void)state;
  loaded l = load_ok(dump, NULL);
  assert_string_equal(l.m->name, "demo");
  assert_int_equal(l.m->states.len, 5);
  const kva_state *w = l.m->states.data[0], *moment = l.m->states.data[1];
  assert_true(w->frozen && w->decay && moment->kind == KVA_STATE_MOMENT && moment->of == w);
  assert_int_equal(l.m->states.data[3]->kind, KVA_STATE_BUFFER);
  assert_int_equal(l.m->states.data[4]->kind, KVA_STATE_CACHE);
  const kva_function *main_function = l.m->functions.data[0];
  assert_string_equal(main_function->name, "main");
  assert_int_equal(count_ops(main_function, KVA_OP_kernel), 1);
  assert_int_equal(count_ops(main_function, KVA_OP_state_write), 1);
  assert_true(l.m->train->eps == 1e-9 && l.m->train->steps == 300 && l.m->train->final_lr_ratio == 0.125);
  assert_reads_back(l.m);
  unload(&l);
}

static void large_constants_come_from_the_module(void **state) {
  (void)state;
  kva_text text = {0};
  kva_text_add(&text, "main () => (float[100] y)\n{\n  y = kv.constant <value = float[100] {");
  for (int i = 0; i < 100; i++) kva_text_add(&text, "%s%d.5", i ? ", " : "", i);
  kva_text_add(&text, "}> ()\n  return (y)\n}\n");
  loaded l = load_ok(text.data, NULL);
  char *hashed = printed(l.m);
  assert_non_null(strstr(hashed, "\"hash\""));
  assert_reads_back(l.m);
  loaded alone = load_with(hashed, NULL);
  assert_int_equal(alone.status, KVA_INVALID);
  unload(&alone);
  unload(&l);
  free(hashed);
  kva_text_free(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(shipped_models),
      cmocka_unit_test(symbols_named_like_values),
      cmocka_unit_test(every_construct),
      cmocka_unit_test(large_constants_come_from_the_module),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
