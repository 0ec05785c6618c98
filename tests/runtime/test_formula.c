/* Size formulas: values, overflow, well-formedness, text. */
#include "runtime/formula.h"
#include "tests/runtime/sample.h"

#include <setjmp.h>
#include <cmocka.h>

static const char *const names[] = {"B", "T"};

static void expect(kva_formula f, int64_t value, const char *text) {
  const int64_t symbols[] = {6, -7};
  int64_t got;
  assert_true(kva_formula_is_valid(&f, 2));
  assert_true(kva_formula_eval(&f, symbols, &got));
  assert_int_equal(got, value);
  kva_text printed = {0};
  kva_formula_print(&f, names, &printed);
  assert_string_equal(printed.data, text);
  kva_text_free(&printed);
}

static void values_and_text(void **unused) {
  (void)unused;
  expect((kva_formula)FORMULA(NUMBER(5)), 5, "5");
  expect((kva_formula)FORMULA(SYMBOL(1)), -7, "T");
  expect((kva_formula)FORMULA(NUMBER(2), SYMBOL(0), OP(MUL), NUMBER(1), OP(ADD)), 13, "(2*B) + 1");
  expect((kva_formula)FORMULA(NUMBER(2), SYMBOL(0), NUMBER(1), OP(ADD), OP(MUL)), 14, "2*(B + 1)");
  expect((kva_formula)FORMULA(SYMBOL(1), NUMBER(2), OP(DIV)), -4, "T / 2");
  expect((kva_formula)FORMULA(SYMBOL(1), NUMBER(-2), OP(DIV)), 3, "T / -2");
  expect((kva_formula)FORMULA(SYMBOL(1), NUMBER(4), OP(MOD)), 1, "T % 4");
  expect((kva_formula)FORMULA(NUMBER(7), NUMBER(-4), OP(MOD)), -1, "7 % -4");
  expect((kva_formula)FORMULA(SYMBOL(0), SYMBOL(1), OP(MIN), NUMBER(9), OP(MAX)), 9, "max(min(B, T), 9)");
}

static void overflow_and_zero_are_refused(void **unused) {
  (void)unused;
  const int64_t symbols[] = {INT64_MAX, INT64_MIN};
  const kva_formula bad[] = {
      FORMULA(SYMBOL(0), NUMBER(1), OP(ADD)),  FORMULA(SYMBOL(0), NUMBER(2), OP(MUL)),
      FORMULA(SYMBOL(0), NUMBER(0), OP(DIV)),  FORMULA(SYMBOL(0), NUMBER(0), OP(MOD)),
      FORMULA(SYMBOL(1), NUMBER(-1), OP(DIV)), FORMULA(SYMBOL(1), NUMBER(-1), OP(MOD)),
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    int64_t value;
    assert_true(kva_formula_is_valid(&bad[i], 2));
    assert_false(kva_formula_eval(&bad[i], symbols, &value));
  }
}

static void malformed_formulas_are_seen(void **unused) {
  (void)unused;
  const kva_formula bad[] = {
      {NULL, 0},
      {NULL, 3},
      FORMULA(OP(ADD)),
      FORMULA(NUMBER(1), OP(ADD)),
      FORMULA(NUMBER(1), NUMBER(2)),
      FORMULA(SYMBOL(2)),
      FORMULA(SYMBOL(-1)),
      FORMULA({KVA_FORMULA_MAX + 1, 0}),
      FORMULA({-1, 0}),
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(kva_formula_is_valid(&bad[i], 2));
  kva_formula_word deep[2 * KVA_FORMULA_DEPTH + 1];
  for (int i = 0; i < 2 * KVA_FORMULA_DEPTH + 1; i++)
    deep[i] = i <= KVA_FORMULA_DEPTH ? (kva_formula_word)NUMBER(1) : (kva_formula_word)OP(ADD);
  assert_false(kva_formula_is_valid(&(kva_formula){deep, 2 * KVA_FORMULA_DEPTH + 1}, 0));
  assert_true(kva_formula_is_valid(&(kva_formula){deep + 1, 2 * KVA_FORMULA_DEPTH - 1}, 0));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_and_text),
      cmocka_unit_test(overflow_and_zero_are_refused),
      cmocka_unit_test(malformed_formulas_are_seen),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
