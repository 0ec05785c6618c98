/* Any two passes over modules, in any order: done with a module that verifies, or refused with a reason. */
#include "tools/driver/opt.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { LEAST = 15 };

static kva_status run_pair(const char *a, const char *b, kva_diag *diag) {
  kva_module *m = NULL;
  kva_pass_control control = {.verify_each = true};
  bool changed = false;
  kva_text text = {0};
  assert_int_equal(kva_load_model("models/mlp.kv", &(kva_load_options){0}, diag, &m), KVA_OK);
  const kva_opt_choice choice = {.passes = kva_arena_printf(m->arena, "%s,%s", a, b), .precision = "bf16"};
  kva_status status = kva_opt(m, &choice, &(kva_pass_options){.control = &control}, &changed, &text);
  assert_true(status != KVA_OK || text.len > 0);
  kva_text_free(&text);
  kva_module_destroy(m);
  return status;
}

static void test_pairs(void **state) {
  (void)state;
  const kva_pass_level *level = kva_pass_level_at(0);
  uint32_t done = 0, refused = 0;
  assert_true(level->n_passes >= LEAST);
  for (uint32_t i = 0; i < level->n_passes; i++)
    for (uint32_t j = 0; j < level->n_passes; j++) {
      kva_diag *diag = kva_diag_create();
      kva_status status = run_pair(level->passes[i].name, level->passes[j].name, diag);
      bool right =
          status == KVA_OK || ((status == KVA_INVALID || status == KVA_UNSUPPORTED) && kva_diag_count(diag) > 0);
      if (!right) fail_msg("%s,%s: %s", level->passes[i].name, level->passes[j].name, kva_status_name(status));
      ++*(status == KVA_OK ? &done : &refused);
      kva_diag_destroy(diag);
    }
  print_message("%u pairs of passes done, %u refused\n", done, refused);
  assert_true(done > level->n_passes && refused > 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
