/* Which exponentials and quotients GPUs approximate (codegen/legalize_near.c). */
#include "tests/support/schedule.h"

#include <setjmp.h>
#include <string.h>
#include <cmocka.h>

/* Exponentials and quotients that reach results of 16 bits alone need not be exact. The quotients of a sum that is a
 * result of 32 bits, and what a comparison takes, are exact. */
static void test_near(void **state) {
  (void)state;
  static const char before[] =
      "kernel \"near\" (read float x[64*B], write float16 y[64*B], write float16 z[64*B], write float s[B]) {\n"
      "  parallel b < B {\n"
      "    serial i < 64 carry (add float 0.0) {\n"
      "      %0 = load x[64*b + i]\n"
      "      %1 = sqrt %0 : float\n"
      "      %2 = div %0, %1 : float\n"
      "      yield %2\n"
      "    }\n"
      "    %3 = reduce i[0]\n"
      "    parallel j < 64 {\n"
      "      %4 = load x[64*b + j]\n"
      "      %5 = div %4, %3 : float\n"
      "      store y[64*b + j], %5\n"
      "      %6 = neg %4 : float\n"
      "      %7 = exp %6 : float\n"
      "      %8 = add %7, 1.0 : float\n"
      "      %9 = div %4, %8 : float\n"
      "      %10 = div %4, 3.0 : float\n"
      "      %11 = lt %10, %3 : float\n"
      "      %12 = select %11, %9, %4 : float\n"
      "      store z[64*b + j], %12\n"
      "    }\n"
      "    store s[b], %3\n"
      "  }\n"
      "}\n";
  static const char after[] =
      "kernel \"near\" (read float x[64*B], write float16 y[64*B], write float16 z[64*B], write float s[B]) threads "
      "256 blocks 2 {\n"
      "  grid item < floordiv(B + 15, 16) {\n"
      "    thread row < min(16, B - 16*item) subgroup 16 {\n"
      "      thread i < 64 carry (add float 0.0) width 4 {\n"
      "        %0 = load x[i + 1024*item + 64*row]\n"
      "        %1 = sqrt %0 : float\n"
      "        %2 = div %0, %1 : float\n"
      "        yield %2\n"
      "      }\n"
      "      %3 = reduce i[0]\n"
      "      thread j < 64 width 4 {\n"
      "        %4 = load x[1024*item + j + 64*row]\n"
      "        %5 = near_div %4, %3 : float\n"
      "        store y[1024*item + j + 64*row], %5\n"
      "        %6 = neg %4 : float\n"
      "        %7 = mul %6, 1.442695 : float\n"
      "        %8 = near_logistic %7 : float\n"
      "        %9 = mul %4, %8 : float\n"
      "        %10 = div %4, 3.0 : float\n"
      "        %11 = lt %10, %3 : float\n"
      "        %12 = select %11, %9, %4 : float\n"
      "        store z[1024*item + j + 64*row], %12\n"
      "      }\n"
      "      thread first < 1 {\n"
      "        store s[16*item + row], %3\n"
      "      }\n"
      "    }\n"
      "  }\n"
      "}\n";
  kva_text text = scheduled_text("sm_80", before);
  assert_string_equal(text.data, after);
  kva_text_free(&text);
}

/* A row's sum of e^(x - m), a float. */
static void check_sum(const char *dtype, const char *combine, bool near) {
  kva_text source = {0};
  kva_text_add(&source,
               "kernel \"sum\" (read %s x[64*B], write float s[B]) {\n"
               "  parallel b < B {\n"
               "    serial i < 64 carry (%s float 0.0) {\n"
               "      %%0 = load x[64*b + i]\n"
               "      yield %%0\n"
               "    }\n"
               "    %%1 = reduce i[0]\n"
               "    serial j < 64 carry (add float 0.0) {\n"
               "      %%2 = load x[64*b + j]\n"
               "      %%3 = sub %%2, %%1 : float\n"
               "      %%4 = exp %%3 : float\n"
               "      yield %%4\n"
               "    }\n"
               "    %%5 = reduce j[0]\n"
               "    store s[b], %%5\n"
               "  }\n"
               "}\n",
               dtype, combine);
  kva_text text = scheduled_text("sm_80", source.data);
  assert_int_equal(strstr(text.data, "near_exp2") != NULL, near);
  kva_text_free(&text);
  kva_text_free(&source);
}

static void test_short_elements(void **state) {
  (void)state;
  check_sum("bfloat16", "max", true);
  check_sum("float16", "max", true);
}

/* The rounding of float elements does not hide the error. */
static void test_float_elements(void **state) {
  (void)state;
  check_sum("float", "max", false);
}

/* What is subtracted may be far from every element, and so the error large. */
static void test_no_maximum(void **state) {
  (void)state;
  check_sum("bfloat16", "add", false);
  check_sum("bfloat16", "min", false);
}

/* Of e^x - 1 near 0 nothing is left but the error. */
static void check_shifted(const char *operation, bool near) {
  kva_text source = {0};
  kva_text_add(&source,
               "kernel \"shifted\" (read float16 x[B], write float16 y[B]) {\n"
               "  parallel b < B {\n"
               "    %%0 = load x[b]\n"
               "    %%1 = exp %%0 : float\n"
               "    %%2 = %s : float\n"
               "    store y[b], %%2\n"
               "  }\n"
               "}\n",
               operation);
  kva_text text = scheduled_text("sm_80", source.data);
  assert_int_equal(strstr(text.data, "near_exp2") != NULL, near);
  kva_text_free(&text);
  kva_text_free(&source);
}

static void test_cancelling(void **state) {
  (void)state;
  check_shifted("sub %1, 1.0", false);
  check_shifted("sub 1.0, %1", false);
  check_shifted("add %1, -1.0", false);
  check_shifted("add -1.0, %1", false);
  check_shifted("add %1, 1.0", true);
  check_shifted("mul %1, -1.0", true);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_near), cmocka_unit_test(test_short_elements),
                                     cmocka_unit_test(test_float_elements), cmocka_unit_test(test_no_maximum),
                                     cmocka_unit_test(test_cancelling)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
