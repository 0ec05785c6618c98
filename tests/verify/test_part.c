/* Parts of long tests: every case is in exactly one. */
#include "tests/support/part.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static void test_all_without_parts(void **state) {
  (void)state;
  unsetenv("KVASIR_PART");
  for (uint64_t i = 0; i < 10; i++) assert_true(in_part(i));
}

static void test_each_case_once(void **state) {
  (void)state;
  enum { CASES = 11, PARTS = 4 };
  int seen[CASES] = {0};
  for (int part = 1; part <= PARTS; part++) {
    char text[32];
    snprintf(text, sizeof text, "%d/%d", part, PARTS);
    setenv("KVASIR_PART", text, 1);
    for (uint64_t i = 0; i < CASES; i++) seen[i] += in_part(i);
  }
  for (int i = 0; i < CASES; i++) assert_int_equal(seen[i], 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_without_parts), cmocka_unit_test(test_each_case_once)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
