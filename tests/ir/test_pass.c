/* The harness of passes on a level of its own, whose unit is a number. */
#include "ir/pass.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

typedef struct unit {
  int64_t value;
  bool broken;
} unit;

static kva_status increment(void *ir, const void *options, bool *changed) {
  (void)options;
  ((unit *)ir)->value++;
  *changed = true;
  return KVA_OK;
}

static kva_status rest(void *ir, const void *options, bool *changed) {
  (void)ir, (void)options, (void)changed;
  return KVA_OK;
}

static kva_status wreck(void *ir, const void *options, bool *changed) {
  (void)options;
  ((unit *)ir)->broken = true;
  *changed = true;
  return KVA_OK;
}

/* Three single changes. */
static kva_status count_three(void *ir, const void *options, bool *changed) {
  kva_pass_control *c = *(kva_pass_control *const *)options;
  for (int i = 0; i < 3 && kva_pass_may_change(c); i++) {
    ((unit *)ir)->value++;
    *changed = true;
    kva_pass_count_change(c, NULL, "one of three");
  }
  return KVA_OK;
}

static bool is_even(const void *ir) {
  return ((const unit *)ir)->value % 2 == 0;
}

static kva_status verify(void *ir, kva_diag *diag) {
  return ((unit *)ir)->broken ? kva_error(diag, NULL, "broken") : KVA_OK;
}

static void print(void *ir, const kva_pass *after, kva_text *out) {
  kva_text_add(out, "%s %lld", after->name, (long long)((unit *)ir)->value);
}

static const kva_pass passes[] = {{"increment", 0, "", "", "", increment},
                                  {"rest", 0, "", "", "", rest},
                                  {"wreck", 0, "", "", "", wreck},
                                  {"three", KVA_PASS_COUNTS, "", "", "", count_three},
                                  {"required", KVA_PASS_REQUIRED, "", "", "", increment},
                                  {"needs_even", 0, "even", "", "", increment}};
static const kva_pass_property properties[] = {{"even", "the value is even", is_even}};
static const kva_pass_level level = {.name = "number",
                                     .n_passes = sizeof passes / sizeof *passes,
                                     .n_properties = 1,
                                     .passes = passes,
                                     .properties = properties,
                                     .verify = verify,
                                     .print = print};

typedef struct fixture {
  unit u;
  kva_diag *diag;
  kva_pass_control control;
  bool changed;
} fixture;

static kva_status run(fixture *f, const char *name) {
  kva_pass_control *control = &f->control;
  const kva_pass_unit on = {&level, &f->u, "n", f->diag};
  const kva_pass *pass = kva_pass_find(&level, name);
  assert_non_null(pass);
  return kva_pass_run(pass, &on, &control, control, &f->changed);
}

static fixture create(void) {
  return (fixture){.diag = kva_diag_create()};
}

static void test_changed_is_reported(void **state) {
  (void)state;
  fixture f = create();
  assert_int_equal(run(&f, "rest"), KVA_OK);
  assert_false(f.changed);
  assert_int_equal(run(&f, "increment"), KVA_OK);
  assert_true(f.changed);
  assert_int_equal(run(&f, "rest"), KVA_OK);
  assert_true(f.changed); /* stays */
  assert_null(kva_pass_find(&level, "incremen"));
  kva_diag_destroy(f.diag);
}

static void test_the_verifier_names_the_pass(void **state) {
  (void)state;
  fixture f = create();
  f.control.verify_each = true;
  assert_int_equal(run(&f, "increment"), KVA_OK);
  assert_int_equal(run(&f, "wreck"), KVA_INVALID);
  assert_int_equal(kva_diag_count(f.diag), 2);
  assert_string_equal(kva_diag_message(f.diag, 1, NULL, NULL), "number 'n' does not verify after pass 'wreck'");
  kva_diag_destroy(f.diag);
}

static void test_requirements_are_checked_by_name(void **state) {
  (void)state;
  fixture f = create();
  f.control.by_name = true;
  assert_int_equal(run(&f, "needs_even"), KVA_OK);
  assert_int_equal(run(&f, "needs_even"), KVA_INVALID);
  assert_int_equal(f.u.value, 1);
  assert_string_equal(kva_diag_message(f.diag, 0, NULL, NULL),
                      "pass 'needs_even' requires property 'even', which number 'n' lacks: the value is even");
  kva_diag_destroy(f.diag);
}

/* For every limit the first changes are made, the required pass runs, and nothing else does. */
static void test_limit_of_changes(void **state) {
  (void)state;
  static const char *const order[] = {"increment", "three", "rest", "required", "increment"};
  static const int64_t expected[] = {1, 2, 3, 4, 5, 6, 6};
  for (int64_t limit = 0; limit < 7; limit++) {
    fixture f = create();
    f.control.bisect = true;
    f.control.max_changes = limit;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) assert_int_equal(run(&f, order[i]), KVA_OK);
    assert_int_equal(f.u.value, expected[limit]);
    kva_diag_destroy(f.diag);
  }
}

static char *text_of(fixture *f, const char *name, kva_status expected) {
  char *text = NULL;
  size_t size = 0;
  f->control.print_to = open_memstream(&text, &size);
  assert_non_null(f->control.print_to);
  assert_int_equal(run(f, name), expected);
  fclose(f->control.print_to);
  return text;
}

static void check_text(fixture *f, const char *name, kva_status status, const char *expected) {
  char *text = text_of(f, name, status);
  assert_string_equal(text, expected);
  free(text);
}

static void test_print_and_stop(void **state) {
  (void)state;
  fixture f = create();
  f.control.print_after = "increment";
  f.control.stop_after = "rest";
  check_text(&f, "increment", KVA_OK, "// after increment\nincrement 1\n");
  check_text(&f, "required", KVA_OK, "");
  check_text(&f, "rest", KVA_STOPPED, "// after rest\nrest 2\n");
  f.control.print_after = "all";
  check_text(&f, "required", KVA_OK, "// after required\nrequired 3\n");
  assert_int_equal(kva_status_exit_code(KVA_STOPPED), 0);
  kva_diag_destroy(f.diag);
}

static kva_status refuse(void *user, const kva_pass *pass, const kva_pass_unit *on) {
  (*(int *)user)++;
  return strcmp(pass->name, "rest") ? KVA_OK : kva_error(on->diag, NULL, "no rest");
}

static void test_callback_and_statistics(void **state) {
  (void)state;
  fixture f = create();
  int calls = 0;
  f.control.after_each = refuse;
  f.control.user = &calls;
  assert_int_equal(run(&f, "increment"), KVA_OK);
  assert_int_equal(run(&f, "rest"), KVA_INVALID);
  assert_int_equal(run(&f, "increment"), KVA_OK);
  assert_int_equal(calls, 3);
  assert_int_equal(f.control.n_statistics, 2);
  assert_string_equal(f.control.statistics[0].pass->name, "increment");
  assert_int_equal(f.control.statistics[0].runs, 2);
  assert_int_equal(f.control.statistics[0].changing_runs, 2);
  assert_int_equal(f.control.statistics[1].changing_runs, 0);
  kva_diag_destroy(f.diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_changed_is_reported),
      cmocka_unit_test(test_the_verifier_names_the_pass),
      cmocka_unit_test(test_requirements_are_checked_by_name),
      cmocka_unit_test(test_limit_of_changes),
      cmocka_unit_test(test_print_and_stop),
      cmocka_unit_test(test_callback_and_statistics),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
