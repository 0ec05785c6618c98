/* Elaboration: hyper-parameters, presets, pins, unrolling, scopes, values, train blocks. Numbers are checked by running
 * the module on the reference evaluator. */
#include "tests/frontend/kv_test.h"

static const kva_load_options *defines(uint32_t n, const kva_define *d) {
  static kva_load_options options;
  options = (kva_load_options){.n_defines = n, .defines = d};
  return &options;
}
#define DEFINES(...) defines(sizeof((kva_define[]){__VA_ARGS__}) / sizeof(kva_define), (kva_define[]){__VA_ARGS__})

/* Output 0 of function main for x = {1, 2, 3, ...} of the type of input 0, which is static. */
static kva_ref_tensor *run_main(kva_module *m) {
  kva_function *f = m->functions.data[0];
  int64_t dims[KVA_MAX_RANK];
  const kva_type *t = f->graph->inputs.data[0]->type;
  for (uint32_t i = 0; i < t->rank; i++) assert_true(kva_expr_is_const(t->dims[i], &dims[i]));
  kva_ref_tensor *x = kva_ref_tensor_create(t->dtype, t->rank, dims), *y = NULL;
  for (int64_t i = 0; i < x->n; i++) {
    if (x->f)
      x->f[i] = (double)(i + 1);
    else
      x->i[i] = i + 1;
  }
  kva_diag *diag = kva_diag_create();
  kva_status status = kva_ref_run(m, f, (const kva_ref_tensor *const[]){x}, &y, NULL, NULL, NULL, NULL, diag);
  kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  kva_diag_destroy(diag);
  kva_ref_tensor_free(x);
  return y;
}

static void assert_result(const char *text, const kva_load_options *options, uint32_t n, const double *expected) {
  loaded l = load_ok(text, options);
  kva_ref_tensor *y = run_main(l.m);
  assert_int_equal(y->n, n);
  for (uint32_t i = 0; i < n; i++) assert_float_equal(kva_ref_tensor_get(y, i), expected[i], 1e-6);
  kva_ref_tensor_free(y);
  unload(&l);
}
#define ASSERT_RESULT(text, options, ...) \
  assert_result(text, options, sizeof((double[]){__VA_ARGS__}) / sizeof(double), (double[]){__VA_ARGS__})

static void operators_and_precedence(void **state) {
  (void)state;
  ASSERT_RESULT("model m (float[3] x) => (float[3] y) { y = 2 * x - 1 / 4 }", NULL, 1.75, 3.75, 5.75);
  ASSERT_RESULT("model m (float[3] x) => (float[3] y) { y = -(x - 1) * (x + x / 2) }", NULL, 0, -3, -9);
  ASSERT_RESULT("model m (float[2, 2] x) => (float[2, 2] y) { y = x @ x - x }", NULL, 6, 8, 12, 18);
  ASSERT_RESULT("model m (int32[3] x) => (int32[3] y) { y = kv.cast <to = int32> (x > 1 and not x == 3) }", NULL, 0, 1,
                0);
  ASSERT_RESULT("model m (int32[3] x) => (int32[3] y) { y = kv.cast <to = int32> (x != 2 or 2 <= x) }", NULL, 1, 1, 1);
}

static void compile_time_values(void **state) {
  (void)state;
  ASSERT_RESULT("model m <a = 7, b = a / 2, c = floor(b), e = max(a, 9, c) - min(2, 1)> (float[1] x) => (float[1] y) {"
                " y = x * (a + b * c) + e * 1000 }",
                NULL, 8017.5);
  ASSERT_RESULT("model m (float[1] x) => (float[1] y) { y = x * (sqrt(16) + log2(8) + ceil(1.5) + int(2.9) + float(1) "
                "+ mod(7, 4) + floordiv(7, 2) + ceildiv(7, 2)) }",
                NULL, 4 + 3 + 2 + 2 + 1 + 3 + 3 + 4);
  ASSERT_RESULT("model m <s = \"a\"> (float[1] x) => (float[1] y) { if s == \"a\" and not (1 > 2 or false) { y = x } }",
                NULL, 1);
}

static void hyper_parameters_come_from_the_command_line(void **state) {
  (void)state;
  const char *text = "model m <a = 1, b = a * 10, c = 0.5, f = false, s = \"no\"> (float[1] x) => (float[1] y) {\n"
                     "  y = x * a + b + c\n  if f { y = y + 1000 }\n  if s == \"yes\" { y = y + 10000 }\n}\n";
  ASSERT_RESULT(text, NULL, 11.5);
  ASSERT_RESULT(text, DEFINES({"a", "2"}), 22.5);
  ASSERT_RESULT(text, DEFINES({"a", "2"}, {"b", "0"}, {"c", "4"}), 6);
  ASSERT_RESULT(text, DEFINES({"f", "true"}, {"s", "yes"}), 11011.5);
  ASSERT_RESULT(text, DEFINES({"a", "5"}, {"a", "3"}), 33.5);
  ASSERT_RESULT("model m <n> (float[1] x) => (float[1] y) { y = x * n }", DEFINES({"n", "0.5"}), 0.5);
}

static void presets_are_weaker_than_defines(void **state) {
  (void)state;
  const char *text = "model m <a = 1, b = 2, c = a + b> (float[1] x) => (float[1] y) { y = x * c + b * 100 }\n"
                     "preset \"big\" <a = 10, b = a * 2>\npreset \"huge\" <a = 100>\n";
  ASSERT_RESULT(text, NULL, 203);
  ASSERT_RESULT(text, DEFINES({"preset", "big"}), 2030);
  ASSERT_RESULT(text, DEFINES({"preset", "big"}, {"a", "1"}), 203);
  ASSERT_RESULT(text, DEFINES({"preset", "huge"}), 302);
}

/* Also where the default, which is not taken, is of another kind: 7 / 2. */
static void annotations_say_what_values_are(void **state) {
  (void)state;
  const char *text =
      "model m <a = 7, b: int = a / 2, c: float = 1> (float[1] x) => (float[1] y) { y = x * (b + c / 2) }\n"
      "preset \"p\" <b = 5>\n";
  ASSERT_RESULT(text, DEFINES({"b", "3"}), 3.5);
  ASSERT_RESULT(text, DEFINES({"preset", "p"}), 5.5);
  ASSERT_RESULT(text, DEFINES({"a", "8"}, {"c", "3"}), 5.5);
}

static void pins_replace_symbols(void **state) {
  (void)state;
  kva_load_options options = {.n_pins = 1, .pins = (kva_define[]){{"T", "3"}}};
  loaded l = load_ok("model m (float[B, T, 2*T] x) => (float[B, 2 * T * T] y) {\n"
                     "  y = kv.reshape <shape = [B, T * dim(x, -1)]> (x)\n}",
                     &options);
  assert_type(l.m->functions.data[0]->graph->inputs.data[0], "float[B, 3, 6]");
  assert_type(kva_graph_output(l.m->functions.data[0]->graph, 0), "float[B, 18]");
  unload(&l);
}

static void loops_and_conditions_unroll(void **state) {
  (void)state;
  ASSERT_RESULT("model m <n = 4> (float[1] x) => (float[1] y) {\n  y = x * 0\n  for i in 1 : n + 1 {\n"
                "    if i == 2 { y = y + 10 } else if i > 2 { for j in 0 : i { y = y + 100 } } else { y = y + i }\n"
                "  }\n}",
                NULL, 711);
  ASSERT_RESULT("model m (float[1] x) => (float[1] y) { y = x for i in 3 : 3 { y = nothing } }", NULL, 1);
}

static void functions_inline(void **state) {
  (void)state;
  ASSERT_RESULT(
      "model m <k = 5> (float[1] x) => (float[1] y) { a, b = both <by = k * 2> (x, 3) y = a + b * twice(b) }\n"
      "def both <by, off = by + 1> (x, n) { return x * by + n, off + x - x }\n"
      "def twice (x) { if k == 5 { return 2 * x } return x }",
      NULL, 10 + 3 + 11 * 22);
  ASSERT_RESULT("model m (float[2, 3] x) => (float[2] y) { y = total <axis = -1> (x) }\n"
                "def total <axis> (float[2, 3] x) { return kv.reduce_sum <axes = [axis], keepdims = false> (x) }",
                NULL, 6, 15);
}

static void numbers_take_the_type_of_tensors(void **state) {
  (void)state;
  ASSERT_RESULT("model m (int64[2] x) => (int64[2] y) { y = kv.where(x == 1, x + 9007199254740993, 7) }", NULL,
                9007199254740994.0, 7);
  ASSERT_RESULT("model m (float16[2] x) => (float16[2] y) { y = kv.max(x, 1.5) }", NULL, 1.5, 2);
}

static void literals(void **state) {
  (void)state;
  ASSERT_RESULT("model m (float[2, 2] x) => (float[2, 2] y) { w = float[2, 1] {0.5, -2} y = w * x }", NULL, 0.5, 1, -6,
                -8);
  ASSERT_RESULT("model m (float[1] x) => (double[3] y) { y = double[3] {1, -1e3, 2.5e-1} }", NULL, 1, -1000, 0.25);
  ASSERT_RESULT("model m (float[1] x) => (bool[3] y) { y = bool[3] {true, 0, 1} }", NULL, 1, 0, 1);
  ASSERT_RESULT("model m (float[1] x) => (float[2] y) { y = 2 * float[2] {1, 2} + 1 }", NULL, 3, 5);
  /* ONNX: integers are the bits of narrow floats */
  ASSERT_RESULT("model m (float[1] x) => (float16[2] y) { y = float16[2] {15360, 2.0} }", NULL, 1, 2);
  ASSERT_RESULT("model m (float[1] x) => (int64[2] y) { y = int64[2] {-9223372036854775808, 9223372036854775807} }",
                NULL, -9223372036854775808.0, 9223372036854775807.0);
  loaded l = load_ok("model m (float x) => (uint64 y) { y = uint64 {18446744073709551615} }", NULL);
  const kva_node *n = kva_graph_output(l.m->functions.data[0]->graph, 0)->def;
  assert_int_equal((uint64_t)kva_load_i64(KVA_U64, ((const kva_constant_attrs *)n->attrs)->value->data, 0), UINT64_MAX);
  unload(&l);
}

static void parameters_are_named_by_scope(void **state) {
  (void)state;
  loaded l = load_ok("model m <d = 2> (float[B, d] x) => (float[B, d] y) {\n"
                     "  for l in 0 : 2 {\n    x = block(norm(x))\n    x = norm(x)\n    param float[d] bias ~ zeros\n"
                     "    x = x + bias\n  }\n  [last] x = norm(x)\n  y = norm(x)\n}\n"
                     "def block (x) { for h in 0 : 2 { x = head(x) } return x }\n"
                     "def head (x) { param float[d, d] w ~ normal(0.1) return norm(x @ w) }\n"
                     "def norm (x) { param float[d] g ~ ones return x * g }",
                     NULL);
  static const char *const names[] = {"norm.0.g",
                                      "block.0.head.0.w",
                                      "block.0.head.0.norm.g",
                                      "block.0.head.1.w",
                                      "block.0.head.1.norm.g",
                                      "norm_2.0.g",
                                      "bias.0",
                                      "norm.1.g",
                                      "block.1.head.0.w",
                                      "block.1.head.0.norm.g",
                                      "block.1.head.1.w",
                                      "block.1.head.1.norm.g",
                                      "norm_2.1.g",
                                      "bias.1",
                                      "last.g",
                                      "norm.g"};
  assert_int_equal(l.m->states.len, sizeof names / sizeof *names);
  for (uint32_t i = 0; i < l.m->states.len; i++) assert_string_equal(l.m->states.data[i]->name, names[i]);
  unload(&l);
}

static void initialisers_and_flags(void **state) {
  (void)state;
  loaded l = load_ok("model m (float[2] x) => (float[2] y) {\n"
                     "  param float[2] a ~ zeros\n  param float[2] b ~ ones frozen\n  param float[2] c ~ constant(-3)\n"
                     "  param float[2, 2] d ~ normal(1 / 4)\n  param float[2, 2] e ~ uniform(-1, 1) nodecay\n"
                     "  param float[2, 2] f ~ one_minus(e)\n  param float[2] g ~ data(float[2] {5, 6})\n  y = x\n}",
                     NULL);
  kva_state *const *s = l.m->states.data;
  assert_int_equal(s[0]->init, KVA_INIT_ZEROS);
  assert_true(s[1]->init == KVA_INIT_CONSTANT && s[1]->init_a == 1 && s[1]->frozen && !s[0]->frozen);
  assert_true(s[2]->init == KVA_INIT_CONSTANT && s[2]->init_a == -3);
  assert_true(s[3]->init == KVA_INIT_NORMAL && s[3]->init_a == 0.25 && s[3]->decay);
  assert_true(s[4]->init == KVA_INIT_UNIFORM && s[4]->init_a == -1 && s[4]->init_b == 1 && !s[4]->decay);
  assert_true(s[5]->init == KVA_INIT_ONE_MINUS && s[5]->of == s[4] && s[5]->decay);
  assert_true(s[6]->init == KVA_INIT_DATA && kva_load_f64(KVA_F32, s[6]->data->data, 1) == 6);
  for (uint32_t i = 0; i < l.m->states.len; i++) assert_int_equal(s[i]->kind, KVA_STATE_PARAM);
  unload(&l);
}

static void train_block(void **state) {
  (void)state;
  loaded l = load_ok("model m <d = 2> (float[B, d] x) => (float[B, d] y) {\n"
                     "  param float[d, d] w ~ normal(0.1)\n  param float[d] b ~ zeros\n"
                     "  param float[d, d] s ~ ones nodecay\n  y = x @ (w * s) + b\n}\n"
                     "train m <rate = 0.5> (float[B, d] t) {\n  e = y - t\n"
                     "  loss = kv.reduce_mean <keepdims = false> (e * e)\n"
                     "  metric size = kv.reduce_max <keepdims = false> (kv.abs(y))\n"
                     "  optimizer = AdamW <lr = rate, beta2 = 0.95, weight_decay = 0.1, decay = all>\n"
                     "  schedule = cosine(10, 100, 0.1)\n  clip = 2\n  steps = 7\n  batch = 3\n"
                     "  data = induction <pool = 48, fresh = true>\n}",
                     DEFINES({"rate", "0.25"}));
  const kva_train_spec *t = l.m->train;
  assert_string_equal(t->optimizer, "adamw");
  assert_true(t->lr == 0.25 && t->beta1 == 0.9 && t->beta2 == 0.95 && t->eps == 1e-8 && t->weight_decay == 0.1);
  assert_string_equal(t->schedule, "cosine");
  assert_true(t->warmup_steps == 10 && t->total_steps == 100 && t->final_lr_ratio == 0.1);
  assert_true(t->clip == 2 && t->steps == 7 && t->batch == 3);
  assert_string_equal(t->data, "induction");
  assert_true(*(double *)kva_map_get_str(t->data_args, "pool") == 48);
  assert_true(*(double *)kva_map_get_str(t->data_args, "fresh") == 1);
  assert_true(l.m->states.data[0]->decay && l.m->states.data[1]->decay && !l.m->states.data[2]->decay);
  assert_int_equal(l.m->states.len, 3);
  assert_int_equal(l.m->functions.len, 2);
  const kva_function *loss = kva_module_find_function(l.m, "loss");
  assert_int_equal(loss->graph->inputs.len, 2);
  assert_string_equal(loss->output_names[0], "loss");
  assert_string_equal(loss->output_names[1], "size");
  assert_type(kva_graph_output(loss->graph, 0), "float");
  unload(&l);
}

static void settings_by_condition(void **state) {
  (void)state;
  loaded l = load_ok("model m <plain = true> (float[B] x) => (float[B] y) {\n  param float w ~ ones\n  y = x * w\n}\n"
                     "train m () {\n  loss = kv.reduce_sum <keepdims = false> (y)\n"
                     "  if plain {\n    optimizer = SGD <lr = 0.25>\n    decay = all\n  } else {\n    steps = 9\n  }\n"
                     "  for i in 0 : 3 {\n    clip = i\n  }\n}",
                     NULL);
  const kva_train_spec *t = l.m->train;
  assert_string_equal(t->optimizer, "sgd");
  assert_true(t->lr == 0.25 && t->clip == 2 && t->steps == 0 && l.m->states.data[0]->decay);
  unload(&l);
}

static void later_settings_replace_earlier_ones(void **state) {
  (void)state;
  loaded l = load_ok("model m (float[2] x) => (float[2] y) { y = x }\ntrain m (float t) {\n  loss = t\n"
                     "  schedule = cosine(1, 10, 0.5)\n  schedule = linear(2, 20)\n"
                     "  data = induction <pool = 8>\n  data = random <all = 1>\n}",
                     NULL);
  const kva_train_spec *t = l.m->train;
  assert_string_equal(t->schedule, "linear");
  assert_true(t->warmup_steps == 2 && t->total_steps == 20 && t->final_lr_ratio == 0);
  assert_string_equal(t->data, "random");
  assert_int_equal(kva_map_len(t->data_args), 1);
  unload(&l);
}

static void optimizers_have_their_own_defaults(void **state) {
  (void)state;
  static const struct {
    const char *settings;
    double eps;
  } cases[] = {{"optimizer = Adagrad", 1e-10},
               {"optimizer = Adagrad <eps = 1e-8>", 1e-8},
               {"eps = 1e-8 optimizer = Adagrad", 1e-8}, /* as AdamW's default */
               {"optimizer = Adagrad optimizer = AdamW", 1e-8}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[256];
    snprintf(text, sizeof text, "model m (float[2] x) => (float[2] y) { y = x }\ntrain m (float t) { loss = t %s }",
             cases[i].settings);
    loaded l = load_ok(text, NULL);
    assert_true(l.m->train->eps == cases[i].eps);
    unload(&l);
  }
}

static void decay_of_matrices(void **state) {
  (void)state;
  static const struct {
    const char *setting;
    bool matrix, vector;
  } cases[] = {{"", true, false},
               {"decay = matrices", true, false},
               {"decay = all", true, true},
               {"decay = none", false, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[512];
    snprintf(text, sizeof text,
             "model m (float[1, 1] x) => (float[1, 1] y) {\n  param float[1, 1] w ~ ones\n"
             "  param float[1] b ~ zeros\n  y = x @ w + b\n}\ntrain m () {\n"
             "  loss = kv.reduce_sum <keepdims = false> (y)\n  %s\n}",
             cases[i].setting);
    loaded l = load_ok(text, NULL);
    assert_int_equal(l.m->states.data[0]->decay, cases[i].matrix);
    assert_int_equal(l.m->states.data[1]->decay, cases[i].vector);
    unload(&l);
  }
}

static void shipped_models_elaborate(void **state) {
  (void)state;
  static const struct {
    const char *path;
    kva_define define;
    uint32_t states;
  } cases[] = {
      {"models/mlp.kv", {"layers", "3"}, 9},
      {"models/induction.kv", {"layers", "2"}, 29},
      {"models/induction.kv", {"shift_k", "false"}, 14},
      {"models/induction.kv", {"shift_q", "true"}, 18},
      {"models/induction.kv", {"gate", "gate"}, 14},
      {"models/induction.kv", {"gate", "clamp"}, 16},
      {"models/induction.kv", {"window", "3"}, 20},
      {"models/induction.kv", {"kv_heads", "1"}, 16},
      {"models/lm.kv", {"preset", "small"}, 29},
      {"models/lm.kv", {"preset", "2.9B"}, 32 * 13 + 3},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char *text = read_text(cases[i].path);
    loaded l = load_ok(text, DEFINES(cases[i].define));
    assert_int_equal(l.m->states.len, cases[i].states);
    assert_int_equal(l.m->functions.len, 2);
    assert_non_null(l.m->train);
    unload(&l);
    free(text);
  }
}

/* Parameters of the 2.9B preset, embedding and output matrix aside: the paper's size. */
static void preset_has_the_size_it_says(void **state) {
  (void)state;
  char *text = read_text("models/lm.kv");
  loaded l = load_ok(text, DEFINES({"preset", "2.9B"}));
  int64_t total = 0;
  for (uint32_t i = 0; i < l.m->states.len; i++) {
    int64_t n;
    assert_true(kva_expr_is_const(kva_type_elements(l.m, l.m->states.data[i]->type), &n));
    bool outer = strstr(l.m->states.data[i]->name, "embed") != NULL;
    total += outer ? 0 : n;
  }
  assert_in_range(total, 2600000000, 2900000000);
  unload(&l);
  free(text);
}

static void locations_point_into_the_text(void **state) {
  (void)state;
  loaded l = load_ok("model m (float[2] x) => (float[2] y) {\n  a = x\n  y = kv.relu(a)\n}", NULL);
  const kva_node *n = kva_graph_output(l.m->functions.data[0]->graph, 0)->def;
  assert_int_equal(n->loc.line, 3);
  assert_int_equal(n->loc.column, 7);
  assert_string_equal(n->loc.file, "test.kv");
  assert_non_null(strstr(n->loc.source, "kv.relu(a)"));
  unload(&l);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(operators_and_precedence),
      cmocka_unit_test(compile_time_values),
      cmocka_unit_test(hyper_parameters_come_from_the_command_line),
      cmocka_unit_test(presets_are_weaker_than_defines),
      cmocka_unit_test(annotations_say_what_values_are),
      cmocka_unit_test(pins_replace_symbols),
      cmocka_unit_test(loops_and_conditions_unroll),
      cmocka_unit_test(functions_inline),
      cmocka_unit_test(numbers_take_the_type_of_tensors),
      cmocka_unit_test(literals),
      cmocka_unit_test(parameters_are_named_by_scope),
      cmocka_unit_test(initialisers_and_flags),
      cmocka_unit_test(train_block),
      cmocka_unit_test(settings_by_condition),
      cmocka_unit_test(later_settings_replace_earlier_ones),
      cmocka_unit_test(optimizers_have_their_own_defaults),
      cmocka_unit_test(decay_of_matrices),
      cmocka_unit_test(shipped_models_elaborate),
      cmocka_unit_test(preset_has_the_size_it_says),
      cmocka_unit_test(locations_point_into_the_text),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
