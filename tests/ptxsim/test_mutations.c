/* Every synchronising instruction of the kernels of tests/data/ptx is needed: without it the simulator reports
 * something or the result is wrong. The kernels that Kvasir generates: tests/codegen/test_mutations_*.c. */
#include "tests/support/ptx_mutate.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void mutants_are_caught(void **state) {
  (void)state;
  static ptx_mutations t;
  ptx_mutations_begin(&t, "tests/data/ptx/mutations.txt");
  for (uint32_t k = 0; k < ptx_n_subjects; k++) ptx_mutations_check(&t, &ptx_subjects[k]);
  ptx_mutations_end(&t);
  assert_int_equal(t.failures, 0);
}

/* Finding statements: comments, labels, scopes, guards, vectors. */
static void finding(void **state) {
  (void)state;
  static const char text[] = "// bar.sync 0;\n.entry k(.param .u64 a) {\nL: bar.sync 0; { .reg .pred p;\n"
                             "@p mbarrier.arrive.shared::cta.b64 _, [%r1]; st.v2.f32 [%d1], {%f1, %f2}; }\n"
                             "W: mbarrier.try_wait.parity.b64 p, [%r1], 0; bar.sync 0;\n}\n";
  ptx_mutant m[8];
  assert_int_equal(ptx_find_mutants(text, m, 8), 4);
  assert_string_equal(m[0].mnemonic, "bar.sync");
  assert_int_equal(m[0].line, 3);
  assert_string_equal(m[1].mnemonic, "mbarrier.arrive.shared::cta.b64");
  assert_int_equal(m[3].number, 2);
  char *without = ptx_mutate(text, &m[1]);
  assert_null(strstr(without, "@p"));
  free(without);
  without = ptx_mutate(text, &m[2]);
  assert_non_null(strstr(without, "W: setp.eq.u32 p, 0, 0; bar.sync"));
  free(without);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(finding), cmocka_unit_test(mutants_are_caught)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
