/* The raise pass, over the case files raise/<name>.cases. A file holds cases, each of them
 *
 *   case: gelu, half first            a name
 *   in: double[N] x                   the operands of a function that returns y
 *   expect: gelu !erf                 operators that the optimised function must have, once or as often as it says
 *                                     ("kv_shift*2"), or with '!' must not have
 *   dump: tanh = true                 (optional) a text that its dump must hold
 *   tolerance: 1e-3                   (optional) of results, relative; 1e-12 without
 *   y = 0.5 * x * (1 + ...)           the body
 *
 * Every case is evaluated by the reference, optimised with the verifier on, searched, evaluated again for several
 * lengths T, and raised once more without change. */
#include "frontend/frontend.h"
#include "ops/ids.h"
#include "passes/passes.h"

#include <math.h>
#include <stdlib.h>

#include <setjmp.h>
#include <cmocka.h>

typedef struct raise_case {
  const char *name, *in, *expect, *dump, *body;
  double tolerance;
} raise_case;

/* ---- one case ---------------------------------------------------------------------------------------------------- */

/* Sizes of the symbols that cases use; every case runs with each of the lengths T. */
static const int64_t lengths[] = {6, 1, 2};
static bool size(void *user, const kva_expr *symbol, int64_t *out_v) {
  const struct {
    const char *name;
    int64_t size;
  } sizes[] = {{"B", 2}, {"T", *(const int64_t *)user}, {"S", 7}, {"H", 4}, {"N", 5}, {"C", 3}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    if (strcmp(symbol->name, sizes[i].name)) continue;
    *out_v = sizes[i].size;
    return true;
  }
  return false;
}

/* Floats in (-2, 2), integers in [0, 3). */
static kva_ref_tensor *input(const kva_type *t, int64_t length, uint32_t *seed) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t k = 0; k < t->rank; k++) assert_true(kva_expr_eval(t->dims[k], size, &length, &dims[k]));
  kva_ref_tensor *w = kva_ref_tensor_create(t->dtype, t->rank, dims);
  assert_non_null(w);
  for (int64_t i = 0; i < w->n; i++) {
    *seed = *seed * 1664525u + 1013904223u;
    if (w->f)
      w->f[i] = kva_round_f64(t->dtype, (double)(*seed >> 8) / (1 << 22) - 2);
    else
      w->i[i] = t->dtype == KVA_BOOL ? *seed >> 31 : (*seed >> 8) % 3;
  }
  return w;
}

static kva_ref_tensor *evaluate(const raise_case *c, kva_module *m, int64_t length, kva_diag *diag) {
  kva_function *f = m->functions.data[0];
  kva_ref_tensor *inputs[8], *y = NULL;
  uint32_t seed = 1, n = f->graph->inputs.len;
  assert_in_range(n, 1, 8);
  for (uint32_t i = 0; i < n; i++) inputs[i] = input(f->graph->inputs.data[i]->type, length, &seed);
  kva_status status = kva_ref_run(m, f, (const kva_ref_tensor *const *)inputs, &y, NULL, NULL, NULL, NULL, diag);
  if (status != KVA_OK) {
    kva_diag_print(diag, stderr);
    fail_msg("%s: the reference failed", c->name);
  }
  for (uint32_t i = 0; i < n; i++) kva_ref_tensor_free(inputs[i]);
  return y;
}

static bool is_near(double a, double b, double tolerance) {
  return a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= tolerance * fmax(1, fmax(fabs(a), fabs(b)));
}

static void compare(const raise_case *c, const kva_ref_tensor *before, const kva_ref_tensor *after) {
  assert_int_equal(before->n, after->n);
  assert_int_equal(before->rank, after->rank);
  assert_true(before->n > 0);
  for (int64_t i = 0; i < before->n; i++) {
    double a = kva_ref_tensor_get(before, i), b = kva_ref_tensor_get(after, i);
    if (!is_near(a, b, c->tolerance)) fail_msg("%s: element %lld was %.17g, is %.17g", c->name, (long long)i, a, b);
  }
}

static void complain(const raise_case *c, kva_module *m, const char *what) {
  kva_text text = {0};
  kva_module_print(m, &text);
  fprintf(stderr, "%s", text.data);
  kva_text_free(&text);
  fail_msg("%s: %s", c->name, what);
}

static void check_ops(const raise_case *c, kva_module *m) {
  char words[128];
  snprintf(words, sizeof words, "%s", c->expect);
  for (char *save = NULL, *word = strtok_r(words, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
    bool wanted = *word != '!';
    char *name = word + !wanted, *star = strchr(name, '*');
    long count = star ? strtol(star + 1, NULL, 10) : wanted, found = 0;
    if (star) *star = 0;
    const kva_op_info *op = kva_op_set_find(&kva_ops, name, strlen(name));
    assert_non_null(op);
    for (const kva_node *n = m->functions.data[0]->graph->first; n; n = n->next) found += n->op == op;
    if (found == count) continue;
    char what[160];
    snprintf(what, sizeof what, "%ld kv.%s, expected %ld", found, name, count);
    complain(c, m, what);
  }
}

static void check_dump(const raise_case *c, kva_module *m) {
  kva_text text = {0};
  kva_module_print(m, &text);
  bool found = !c->dump || strstr(text.data, c->dump);
  kva_text_free(&text);
  if (!found) complain(c, m, c->dump);
}

static void check(const raise_case *c) {
  enum { LENGTHS = sizeof lengths / sizeof *lengths };
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_ref_tensor *before[LENGTHS];
  char text[8192];
  snprintf(text, sizeof text, "g (%s) => (y) {\n%s\n}\n", c->in, c->body);
  bool loaded = kva_load_text(text, c->name, NULL, diag, &m) == KVA_OK;
  for (int i = 0; loaded && i < LENGTHS; i++) before[i] = evaluate(c, m, lengths[i], diag);
  bool good = loaded &&
              kva_optimize(m, &(kva_pass_options){.control = &(kva_pass_control){.verify_each = true}}) == KVA_OK &&
              !kva_diag_count(diag);
  if (!good) {
    kva_diag_print(diag, stderr);
    fail_msg("%s: failed", c->name);
  }
  check_ops(c, m);
  check_dump(c, m);
  for (int i = 0; i < LENGTHS; i++) {
    kva_ref_tensor *after = evaluate(c, m, lengths[i], diag);
    compare(c, before[i], after);
    kva_ref_tensor_free(before[i]);
    kva_ref_tensor_free(after);
  }
  bool again = false;
  assert_int_equal(kva_raise(m, &(kva_pass_options){0}, &again), KVA_OK);
  if (again) complain(c, m, "a second run still changes something");
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

/* ---- case files -------------------------------------------------------------------------------------------------- */

/* The text after `key` when the line begins with it. */
static const char *after(const char *line, const char *key) {
  size_t n = strlen(key);
  return strncmp(line, key, n) ? NULL : line + n;
}

/* Adds one line of a case, which the caller has cut off at its end. */
static void read_line(raise_case *c, kva_text *body, const char *line) {
  const char *value;
  if ((value = after(line, "in: ")))
    c->in = value;
  else if ((value = after(line, "expect: ")))
    c->expect = value;
  else if ((value = after(line, "dump: ")))
    c->dump = value;
  else if ((value = after(line, "tolerance: ")))
    c->tolerance = strtod(value, NULL);
  else if (*line != '#')
    kva_text_add(body, "%s\n", line);
}

static void finish_case(raise_case *c, kva_text *body) {
  c->body = body->data;
  if (c->name) check(c);
  kva_text_free(body);
  *c = (raise_case){.tolerance = 1e-12};
  *body = (kva_text){0};
}

static void check_file(void **state) {
  char path[256];
  snprintf(path, sizeof path, "tests/passes/raise/%s.cases", (const char *)*state);
  kva_diag *diag = kva_diag_create();
  kva_file file;
  assert_int_equal(kva_file_map(path, diag, &file), KVA_OK);
  kva_arena *arena = kva_arena_create();
  char *text = kva_arena_strndup(arena, file.data, file.size);
  kva_file_unmap(&file);
  raise_case c = {.tolerance = 1e-12};
  kva_text body = {0};
  int cases = 0;
  for (char *save = NULL, *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
    const char *name = after(line, "case: ");
    if (name) finish_case(&c, &body);
    if (name)
      c.name = name, cases++;
    else
      read_line(&c, &body, line);
  }
  finish_case(&c, &body);
  assert_true(cases > 0);
  kva_arena_destroy(arena);
  kva_diag_destroy(diag);
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

/* Attention has no gradient for its mask, and rope a costly one for its angles: neither takes in what training changes.
 */
static uint32_t count_after_raise(const char *text, kva_op_id op) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_status status = kva_load_text(text, "trained.kv", NULL, diag, &m);
  if (status == KVA_OK)
    status = kva_optimize(m, &(kva_pass_options){.control = &(kva_pass_control){.verify_each = true}});
  kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  uint32_t found = 0;
  for (uint32_t f = 0; f < m->functions.len; f++)
    for (const kva_node *n = m->functions.data[f]->graph->first; n; n = n->next) found += kva_is(n, op);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return found;
}

#define BIASED                                                                         \
  "model m (double[B, 2, 6, 4] q, double[B, 2, 6, 4] k) => (double[B, 2, 6, 4] y) {\n" \
  "  param double[6, 6] bias ~ normal(0.02)\n"                                         \
  "  a = (q @ kv.transpose <perm = [0, 1, 3, 2]> (k)) * 0.5 + kv.tanh(bias)\n"         \
  "  y = kv.softmax <axis = -1> (a) @ k\n"                                             \
  "}\n"
#define ROTATED                                                                               \
  "model m (double[B, 2, 6, 4] x) => (double[B, 2, 6, 4] y) {\n"                              \
  "  param double[6, 2] angle ~ normal(0.02)\n"                                               \
  "  f = kv.concat <axis = 1> (angle, angle)\n"                                               \
  "  r = kv.concat <axis = 3> (-kv.slice <starts = [0, 0, 0, 2], shape = [B, 2, 6, 2]> (x), " \
  "kv.slice <starts = [0, 0, 0, 0], shape = [B, 2, 6, 2]> (x))\n"                             \
  "  y = x * kv.cos(f) + r * kv.sin(f)\n"                                                     \
  "}\n"
#define TRAIN "train m {\n  loss = kv.reduce_sum <keepdims = false> (y)\n  optimizer = SGD <lr = 0.1>\n}\n"

static void trained_parameters_stay_outside(void **state) {
  (void)state;
  assert_int_equal(count_after_raise(BIASED, KVA_OP_attention), 1);
  assert_int_equal(count_after_raise(BIASED TRAIN, KVA_OP_attention), 0);
  assert_int_equal(count_after_raise(ROTATED, KVA_OP_rope), 1);
  assert_int_equal(count_after_raise(ROTATED TRAIN, KVA_OP_rope), 0);
}

#define MASKED(queries, score)                                                                  \
  "model m (float[B, 2, 6, 4] x, bool[B, 1, " queries ", 6] seen) => (float[B, 2, 6, 4] y) {\n" \
  "  param float[4, 4] w ~ normal(0.02)\n"                                                      \
  "  k = x @ w\n"                                                                               \
  "  a = kv.where(seen, (k @ kv.transpose <perm = [0, 1, 3, 2]> (x)) * 0.5, " score ")\n"       \
  "  y = kv.softmax <axis = -1> (a) @ x\n"                                                      \
  "}\n"

/* Gradients of attention take the probabilities of a query without visible keys for 1, where hidden keys have a finite
 * score: a mask that may leave a query without any stays outside in training. */
static void masks_of_whole_queries_stay_outside(void **state) {
  (void)state;
  assert_int_equal(count_after_raise(MASKED("6", "-1e9"), KVA_OP_attention), 1);
  assert_int_equal(count_after_raise(MASKED("6", "-1e9") TRAIN, KVA_OP_attention), 0);
  assert_true(count_after_raise(MASKED("1", "-1e9") TRAIN, KVA_OP_attention) > 0);
  assert_true(count_after_raise(MASKED("6", "-inf") TRAIN, KVA_OP_attention) > 0);
}

#define CASES(name) \
  { name, check_file, NULL, NULL, (void *)(uintptr_t)name }

int main(void) {
  const struct CMUnitTest tests[] = {
      CASES("activation"),
      CASES("softmax"),
      CASES("norm"),
      CASES("shift_moves"),
      CASES("shift_mixes"),
      CASES("shift_windows"),
      CASES("attention"),
      CASES("attention_causal"),
      CASES("attention_grouped"),
      CASES("rope"),
      CASES("cross_entropy"),
      cmocka_unit_test(trained_parameters_stay_outside),
      cmocka_unit_test(masks_of_whole_queries_stay_outside),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
