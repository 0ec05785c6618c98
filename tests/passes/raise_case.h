/* Cases of the raise pass, as .kv text, and what checks one: it is loaded, evaluated by the reference, optimised with
 * the verifier on, searched for the operators that it should and should not have, evaluated again, and raised once more
 * without change. */
#ifndef KVA_TESTS_PASSES_RAISE_CASE_H
#define KVA_TESTS_PASSES_RAISE_CASE_H

#include "frontend/frontend.h"
#include "passes/passes.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

/* Operands and body of a function that returns y. `expect` lists operators that the optimised function must have, once
 * or as often as it says ("kv_shift*2"), or with '!' must not have; `dump` is a text that its dump must hold.
 * tolerance: of the results against those before, relative; 0: 1e-12. */
typedef struct raise_case {
  const char *name, *inputs, *body, *expect, *dump;
  double tolerance;
} raise_case;

/* Sizes of the symbols that cases use; every case runs with each of the lengths T. */
static const int64_t raise_lengths[] = {6, 1, 2};
static inline bool raise_size(void *user, const kva_expr *symbol, int64_t *out_v) {
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
static inline kva_wide *raise_input(const kva_type *t, int64_t length, uint32_t *seed) {
  int64_t dims[KVA_MAX_RANK];
  for (uint32_t k = 0; k < t->rank; k++) assert_true(kva_expr_eval(t->dims[k], raise_size, &length, &dims[k]));
  kva_wide *w = kva_wide_create(t->dtype, t->rank, dims);
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

static inline kva_wide *raise_evaluate(const raise_case *c, kva_module *m, int64_t length, kva_diag *diag) {
  kva_function *f = m->functions.data[0];
  kva_wide *inputs[8], *y = NULL;
  uint32_t seed = 1, n = f->graph->inputs.len;
  assert_in_range(n, 1, 8);
  for (uint32_t i = 0; i < n; i++) inputs[i] = raise_input(f->graph->inputs.data[i]->type, length, &seed);
  kva_status status = kva_ref_run(m, f, (const kva_wide *const *)inputs, &y, NULL, NULL, NULL, NULL, diag);
  if (status != KVA_OK) {
    kva_diag_print(diag, stderr);
    fail_msg("%s: the reference failed", c->name);
  }
  for (uint32_t i = 0; i < n; i++) kva_wide_free(inputs[i]);
  return y;
}

static inline bool raise_is_near(double a, double b, double tolerance) {
  return a == b || (isnan(a) && isnan(b)) || fabs(a - b) <= tolerance * fmax(1, fmax(fabs(a), fabs(b)));
}

static inline void raise_compare(const raise_case *c, const kva_wide *before, const kva_wide *after) {
  assert_int_equal(before->n, after->n);
  assert_int_equal(before->rank, after->rank);
  assert_true(before->n > 0);
  for (int64_t i = 0; i < before->n; i++) {
    double a = kva_wide_get(before, i), b = kva_wide_get(after, i);
    if (!raise_is_near(a, b, c->tolerance > 0 ? c->tolerance : 1e-12))
      fail_msg("%s: element %lld was %.17g, is %.17g", c->name, (long long)i, a, b);
  }
}

static inline void raise_fail(const raise_case *c, kva_module *m, const char *what) {
  kva_text text = {0};
  kva_module_print(m, &text);
  fprintf(stderr, "%s", text.data);
  kva_text_free(&text);
  fail_msg("%s: %s", c->name, what);
}

static inline void raise_check_ops(const raise_case *c, kva_module *m) {
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
    raise_fail(c, m, what);
  }
}

static inline void raise_check_dump(const raise_case *c, kva_module *m) {
  kva_text text = {0};
  kva_module_print(m, &text);
  bool found = !c->dump || strstr(text.data, c->dump);
  kva_text_free(&text);
  if (!found) raise_fail(c, m, c->dump);
}

static inline void raise_check(const raise_case *c) {
  enum { LENGTHS = sizeof raise_lengths / sizeof *raise_lengths };
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_wide *before[LENGTHS];
  char text[8192];
  snprintf(text, sizeof text, "g (%s) => (y) {\n%s\n}\n", c->inputs, c->body);
  bool loaded = kva_load_text(text, c->name, NULL, diag, &m) == KVA_OK;
  for (int i = 0; loaded && i < LENGTHS; i++) before[i] = raise_evaluate(c, m, raise_lengths[i], diag);
  bool good = loaded && kva_optimize(m, &(kva_pass_options){.verify = true}) == KVA_OK && !kva_diag_count(diag);
  if (!good) {
    kva_diag_print(diag, stderr);
    fail_msg("%s: failed", c->name);
  }
  raise_check_ops(c, m);
  raise_check_dump(c, m);
  for (int i = 0; i < LENGTHS; i++) {
    kva_wide *after = raise_evaluate(c, m, raise_lengths[i], diag);
    raise_compare(c, before[i], after);
    kva_wide_free(before[i]);
    kva_wide_free(after);
  }
  bool again = false;
  assert_int_equal(kva_raise(m, &again), KVA_OK);
  if (again) raise_fail(c, m, "a second run still changes something");
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static inline void raise_check_all(void **state) {
  const raise_case *const *cases = (void *)state;
  for (const raise_case *c = *cases; c->name; c++) raise_check(c);
}

/* A cmocka test over a table that ends with {0}. */
#define RAISE_TEST(table) \
  { #table, raise_check_all, NULL, NULL, (void *)table }

#endif
