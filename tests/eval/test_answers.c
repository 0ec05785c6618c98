/* Error bars by resampling; which answers are the same. */
#include "tools/eval/task.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* The standard error of a share p of n items is sqrt(p (1 - p) / n). */
static void errors_are_those_of_a_share(void **state) {
  double values[400];
  (void)state;
  for (int i = 0; i < 400; i++) values[i] = i % 4 == 0;
  const double expected = sqrt(0.25 * 0.75 / 400);
  struct kva_measured a = kva_bootstrap(400, values, 2000, 1), b = kva_bootstrap(400, values, 2000, 1),
                      c = kva_bootstrap(400, values, 2000, 2);
  assert_true(a.n == 400 && a.mean == 0.25);
  assert_true(fabs(a.error - expected) < 0.06 * expected);
  assert_true(a.error == b.error && a.error != c.error);
}

static void errors_of_little(void **state) {
  const double equal[] = {3, 3, 3};
  (void)state;
  assert_true(kva_bootstrap(0, NULL, 100, 0).n == 0);
  assert_true(kva_bootstrap(3, equal, 100, 0).error == 0 && kva_bootstrap(3, equal, 100, 0).mean == 3);
  assert_true(kva_bootstrap(3, equal, 1, 0).error == 0);
}

static void boxes(void **state) {
  (void)state;
  kva_arena *arena = kva_arena_create();
  assert_string_equal(kva_boxed("so \\boxed{3}, then \\boxed{\\frac{1}{2}}.", arena), "\\frac{1}{2}");
  assert_null(kva_boxed("nothing", arena));
  assert_null(kva_boxed("\\boxed{{1}", arena));
  kva_arena_destroy(arena);
}

static void answers(void **state) {
  (void)state;
  assert_true(kva_same_answer(" Paris\n", "Paris", false));
  assert_false(kva_same_answer("Paris", "paris", false));
  assert_false(kva_same_answer("$1$", "1", false));
  assert_true(kva_same_answer("$\\dfrac{1}{2}$.", "\\frac{1}{2}", true));
  assert_true(kva_same_answer("thus \\boxed{\\left( 3, 4 \\right)}", "(3,4)", true));
  assert_true(kva_same_answer("50\\%", "50%", true));
  assert_false(kva_same_answer("\\frac{1}{3}", "\\frac{1}{2}", true));
  assert_false(kva_same_answer("", "1", true));
  assert_true(kva_same_answer("", " ", false));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(errors_are_those_of_a_share), cmocka_unit_test(errors_of_little),
                                     cmocka_unit_test(boxes), cmocka_unit_test(answers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
