/* Every synchronising instruction of every subject is needed: without it the simulator reports something or the result
 * is wrong, unless tests/data/ptx/mutations.txt argues otherwise. */
#include "tests/support/ptx_mutate.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { MOST_MUTANTS = 512 };

/* Whether the list of exceptions has this mutant. */
static bool is_argued(const ptx_subject *subject, const ptx_mutant *m) {
  FILE *file = fopen("tests/data/ptx/mutations.txt", "r");
  assert_non_null(file);
  char line[600], kernel[100], mnemonic[100], number[20];
  bool found = false;
  while (fgets(line, sizeof line, file)) {
    int reason = 0;
    if (line[0] == '#' || sscanf(line, "%99s %99s %19s %n", kernel, mnemonic, number, &reason) != 3) continue;
    bool same = !strcmp(kernel, subject->name) && !strcmp(mnemonic, m->mnemonic) &&
                (!strcmp(number, "*") || strtoul(number, NULL, 10) == m->number);
    if (same) assert_true(strlen(line + reason) > 20);
    found |= same;
  }
  fclose(file);
  return found;
}

static void check_subject(const ptx_subject *subject) {
  static ptx_mutant mutants[MOST_MUTANTS];
  char *text = ptx_subject_text(subject);
  assert_non_null(text);
  ptx_verdict right = ptx_judge(subject, text);
  if (right.caught) fail_msg("%s itself: %s", subject->name, right.how);
  uint32_t n = ptx_find_mutants(text, mutants, MOST_MUTANTS), failed = 0;
  assert_true(n > 0 && n < MOST_MUTANTS);
  for (uint32_t k = 0; k < n; k++) {
    char *mutated = ptx_mutate(text, &mutants[k]);
    ptx_verdict v = ptx_judge(subject, mutated);
    bool argued = is_argued(subject, &mutants[k]);
    printf("%s:%u: without %s (%u): %s%s\n", subject->name, mutants[k].line, mutants[k].mnemonic, mutants[k].number,
           v.how, argued ? " [argued]" : "");
    failed += v.caught == argued;
    free(mutated);
  }
  free(text);
  assert_int_equal(failed, 0);
}

static void mutants_are_caught(void **state) {
  (void)state;
  for (uint32_t k = 0; k < ptx_n_subjects; k++) check_subject(&ptx_subjects[k]);
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
