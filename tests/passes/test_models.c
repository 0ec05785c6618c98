/* The models that ship, small: every pass leaves a verified module whose dump reads back to itself, a second run of a
 * pass changes nothing, and what the module computes stays the same from the source to compiled code; so do gradients.
 */
#include "tests/support/evaluate.h"
#include "tests/support/target.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static const eval_size sizes[] = {{"B", 2}, {"T", 5}, {NULL, 0}};

typedef struct setting {
  const char *model, *defines; /* "name=value name=value" */
} setting;

static const setting settings[] = {
    {"mlp", "vocab=5 d=4 hidden=6"},
    {"mlp", "vocab=5 d=4 hidden=6 layers=3"},
    {"induction", "vocab=5 d=8 heads=2 ffn=6"},
    {"induction", "vocab=5 d=8 heads=2 kv_heads=1 ffn=6 layers=2"},
    {"induction", "vocab=5 d=8 heads=2 ffn=6 shift_k=false shift_v=false"},
    {"induction", "vocab=5 d=8 heads=2 ffn=6 gate=gate window=2"},
    {"induction", "vocab=5 d=8 heads=2 ffn=6 gate=clamp window=3 shift_q=true"},
    {"lm", "vocab=5 d=8 heads=2 ffn=6 layers=1"},
    {"lm", "vocab=5 d=8 heads=4 kv_heads=2 ffn=6"},
    {"lm", "vocab=5 d=8 heads=2 ffn=6 layers=1 shift=false"},
    {"lm", "vocab=5 d=8 heads=2 ffn=6 layers=1 shift_q=true window=3 tied=true qk_norm=true dropout=0.5"},
    {"lm", "vocab=5 d=8 heads=2 ffn=6 layers=1 shift_v=false gate=gate window=2"},
    {"lm", "vocab=5 d=8 heads=2 ffn=6 layers=1 gate=clamp separator=2"},
    {"llama", "vocab=5 d=8 heads=2 ffn=6 layers=1 family=qwen3 bias=true rope_type=llama3 window=2"},
    {"gpt2", "vocab=5 d=8 heads=2 layers=1 ctx=8"},
    {"baichuan_m1", "vocab=5 d=8 heads=2 kv_heads=1 ffn=6 layers=2 window_heads=4 window_kv_heads=2 window=2"},
};

/* ---- loading ----------------------------------------------------------------------------------------------------- */

static kva_module *load(const setting *s, kva_diag *diag) {
  char path[64], text[128];
  kva_define defines[16];
  kva_load_options options = {.defines = defines};
  snprintf(path, sizeof path, "models/%s.kv", s->model);
  snprintf(text, sizeof text, "%s", s->defines);
  for (char *save = NULL, *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
    char *equals = strchr(word, '=');
    *equals = 0;
    defines[options.n_defines++] = (kva_define){word, equals + 1};
  }
  kva_module *m;
  if (kva_load_model(path, &options, diag, &m) == KVA_OK) return m;
  kva_diag_print(diag, stderr);
  fail_msg("%s <%s> does not load", s->model, s->defines);
  return NULL;
}

static const kva_module *dumped; /* whose dump is being read: large constants come from it */

/* After every pass the dump reads back, and prints the same. */
static kva_status reparse(void *user, const kva_pass *pass, const kva_pass_unit *unit) {
  (void)user;
  kva_text before = {0}, after = {0};
  kva_module *again = NULL;
  kva_module_print(unit->ir, &before);
  kva_status status = kva_load_text(before.data, "dump", &(kva_load_options){.data_from = dumped}, unit->diag, &again);
  if (status == KVA_OK) {
    kva_module_print(again, &after);
    if (strcmp(before.data, after.data) != 0)
      status =
          kva_error(unit->diag, NULL, "the dump after pass '%s' does not print the same after parsing", pass->name);
    kva_module_destroy(again);
  }
  kva_text_free(&before);
  kva_text_free(&after);
  return status;
}

static kva_pass_control strict_control = {.verify_each = true, .after_each = reparse};
static const kva_pass_options strict = {.control = &strict_control};

static void require(const setting *s, const char *what, kva_status status, kva_diag *diag) {
  if (status == KVA_OK && !kva_diag_count(diag)) return;
  kva_diag_print(diag, stderr);
  fail_msg("%s <%s>: %s", s->model, s->defines, what);
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

static void check_settled(const setting *s, kva_module *m) {
  static const kva_graph_pass passes[] = {KVA_PASS_fold, KVA_PASS_simplify, KVA_PASS_cse, KVA_PASS_dce, KVA_PASS_raise};
  for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) {
    bool changed = false;
    assert_int_equal(kva_run_pass(m, passes[i], &strict, &changed), KVA_OK);
    if (changed) fail_msg("%s <%s>: %s is not done", s->model, s->defines, kva_graph_level.passes[passes[i]].name);
  }
}

static void check_fused(const setting *s, kva_module *m) {
  bool changed = false;
  assert_int_equal(kva_run_pass(m, KVA_PASS_fuse, &strict, &changed), KVA_OK);
  if (changed) fail_msg("%s <%s>: fuse is not done", s->model, s->defines);
}

static void check_same(const setting *s, const char *stage, kva_module *m, const char *function,
                       const evaluated *expected) {
  evaluated found = evaluate_reference(m, kva_module_find_function(m, function), sizes);
  if (!evaluated_equal(stage, m, expected, &found, 1e-5))
    fail_msg("%s <%s>: %s, %s", s->model, s->defines, function, stage);
  evaluated_free(&found);
}

static void test_forward(void **state) {
  const setting *s = *state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = load(s, diag);
  dumped = m;
  evaluated expected = evaluate_reference(m, m->functions.data[0], sizes);
  require(s, "optimize", kva_optimize(m, &strict), diag);
  check_settled(s, m);
  check_same(s, "optimised", m, "main", &expected);
  require(s, "prepare", kva_prepare(m, &strict), diag);
  check_fused(s, m);
  check_same(s, "fused", m, "main", &expected);
  evaluated_free(&expected);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

/* The loss with its gradients as outputs, as autodiff leaves it. */
static kva_module *differentiated(const setting *s, kva_diag *diag) {
  kva_module *m = load(s, diag);
  kva_function *f = kva_module_find_function(m, "loss");
  assert_non_null(f);
  kva_value **grads = KVA_NEW_ARRAY(m->arena, kva_value *, m->states.len + 1);
  kva_value **outputs = KVA_NEW_ARRAY(m->arena, kva_value *, m->states.len + 1);
  const char **names = KVA_NEW_ARRAY(m->arena, const char *, m->states.len + 1);
  kva_gradients wanted = {f, kva_graph_output(f->graph, 0), grads};
  bool changed = false;
  require(s, "autodiff", kva_autodiff(m, &(kva_pass_options){.gradients = &wanted}, &changed), diag);
  kva_node *ret = f->graph->last;
  uint32_t n = 0;
  for (uint32_t i = 0; i < m->states.len; i++) {
    if (m->states.data[i]->kind != KVA_STATE_PARAM || m->states.data[i]->frozen) continue;
    if (!grads[i]) fail_msg("%s <%s>: no gradient for %s", s->model, s->defines, m->states.data[i]->name);
    names[n] = kva_arena_printf(m->arena, "d.%s", m->states.data[i]->name);
    outputs[n++] = grads[i];
  }
  kva_node_create(f->graph, ret, ret->op, n, outputs, 0, NULL, ret->loc);
  kva_node_remove(ret);
  f->output_names = names;
  return m;
}

static void test_gradients(void **state) {
  const setting *s = *state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = differentiated(s, diag);
  dumped = m;
  evaluated expected = evaluate_reference(m, kva_module_find_function(m, "loss"), sizes);
  require(s, "optimize", kva_optimize(m, &strict), diag);
  check_same(s, "optimised", m, "loss", &expected);
  require(s, "prepare", kva_prepare(m, &strict), diag);
  check_same(s, "fused", m, "loss", &expected);
  evaluated_free(&expected);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void test_training(void **state) {
  const setting *s = *state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = load(s, diag);
  dumped = m;
  require(s, "optimize", kva_optimize(m, &strict), diag);
  require(s, "train", kva_make_training(m, &strict), diag);
  check_settled(s, m);
  evaluated step = evaluate_reference(m, kva_module_find_function(m, "train_step"), sizes);
  evaluated eval = evaluate_reference(m, kva_module_find_function(m, "eval"), sizes);
  require(s, "prepare", kva_prepare(m, &strict), diag);
  check_fused(s, m);
  check_same(s, "fused", m, "train_step", &step);
  check_same(s, "fused", m, "eval", &eval);
  kva_compiled *c;
  require(s, "compile",
          kva_compile(load(s, diag), &(kva_compile_options){.train = true, .target = test_target(0, NULL)}, diag, &c),
          diag);
  evaluated compiled = evaluate_compiled(c, kva_module_find_function(c->module, "train_step"), sizes);
  if (!evaluated_equal("compiled", m, &step, &compiled, 1e-4)) fail_msg("%s <%s>: compiled code", s->model, s->defines);
  evaluated_free(&compiled);
  evaluated_free(&step);
  evaluated_free(&eval);
  kva_compiled_destroy(c);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

int main(void) {
  enum { N = sizeof settings / sizeof *settings };
  struct CMUnitTest tests[3 * N];
  char names[3 * N][160];
  static const struct {
    const char *name;
    CMUnitTestFunction run;
  } kinds[] = {{"forward", test_forward}, {"gradients", test_gradients}, {"training", test_training}};
  for (size_t i = 0; i < 3 * N; i++) {
    const setting *s = &settings[i / 3];
    snprintf(names[i], sizeof names[i], "%s: %s <%s>", kinds[i % 3].name, s->model, s->defines);
    tests[i] = (struct CMUnitTest){names[i], kinds[i % 3].run, NULL, NULL, (void *)(uintptr_t)s};
  }
  return cmocka_run_group_tests(tests, NULL, NULL);
}
