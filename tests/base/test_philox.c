/* Philox against the known answers that its authors publish with Random123 (kat_vectors, philox4x32 10). */
#include "runtime/base/platform.h"

#include <setjmp.h>
#include <cmocka.h>

static void assert_philox(kva_philox r, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  assert_true(r.v[0] == a && r.v[1] == b && r.v[2] == c && r.v[3] == d);
}

static void known_answers(void **state) {
  (void)state;
  assert_philox(kva_philox4x32(0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
  assert_philox(kva_philox4x32(UINT64_MAX, UINT64_MAX, UINT64_MAX), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
  assert_philox(kva_philox4x32(0x85a308d3243f6a88u, 0x0370734413198a2eu, 0x299f31d0a4093822u), 0xd16cfe09, 0x94fdcceb,
                0x5001e420, 0x24126ea1);
}

static void uniform_is_open_and_exact(void **state) {
  (void)state;
  assert_true(kva_uniform01(0) == 0x1p-24);
  assert_true(kva_uniform01(UINT32_MAX) == 1 - 0x1p-24);
  for (uint32_t i = 0; i < 100000; i++) {
    double u = kva_uniform01(i * 42949u);
    assert_true(u > 0 && u < 1 && (double)(float)u == u);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(known_answers), cmocka_unit_test(uniform_is_open_and_exact)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
