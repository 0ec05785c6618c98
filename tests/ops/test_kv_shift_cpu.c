/* Prefill followed by decode gives the bits of one run, in compiled code and in float: whatever the extent of the time
 * axis, and so the vector loop and its remainder, every row adds its taps in the same order with the same roundings. */
#include "tests/ops/fixture.h"
#include "ops/ids.h"
#include "tools/verify/compiled.h"

#include <setjmp.h>
#include <cmocka.h>

enum { T = 21 };

static kva_ref_tensor *to_f32(const kva_ref_tensor *x) {
  kva_ref_tensor *y = fx_tensor(KVA_F32, x->rank, x->dims);
  for (int64_t i = 0; i < x->n; i++) y->f[i] = kva_round_f64(KVA_F32, x->f[i]);
  return y;
}

static fx_shifted compiled_shift(const char *boundary, const kva_ref_tensor *x, const kva_ref_tensor *w,
                                 const kva_ref_tensor *past) {
  fx_graph g = fx_graph_create();
  kva_kv_shift_attrs a = {.time_axis = 2, .boundary = boundary};
  kva_node *n = fx_shift_node(&g, &a, &(fx_shift_operands){.x = x, .w = w, .past = past});
  kva_value *results[2] = {kva_result(n, 0), kva_result(n, 1)};
  kva_ref_tensor *out[2] = {0};
  kva_build_node(&g.b, KVA_OP_return, 2, results, 0, NULL);
  assert_false(g.b.failed);
  kva_status status = kva_run_compiled(NULL, g.m, g.f, g.inputs, out, g.diag);
  if (status != KVA_OK) kva_diag_print(g.diag, stderr);
  assert_int_equal(status, KVA_OK);
  fx_graph_destroy(&g);
  return (fx_shifted){fx_keep(out[0]), fx_keep(out[1])};
}

static void check_split(const char *boundary, const kva_ref_tensor *w, const int64_t *lengths, uint32_t n) {
  kva_ref_tensor *x = to_f32(fx_random_rows(1, 2, T)), *past = NULL;
  fx_shifted whole = compiled_shift(boundary, x, w, NULL);
  for (int64_t i = 0, at = 0; i < n; at += lengths[i++]) {
    fx_shifted s = compiled_shift(boundary, fx_rows(x, 2, at, lengths[i]), w, past);
    kva_ref_tensor *expected = fx_rows(whole.y, 2, at, lengths[i]);
    assert_memory_equal(s.y->f, expected->f, (size_t)s.y->n * sizeof(double));
    past = s.state;
  }
  assert_memory_equal(past->f, whole.state->f, (size_t)past->n * sizeof(double));
}

/* Windows on both sides of where taps stop being unrolled. */
static void test_chunks_bit_for_bit(void **state) {
  (void)state;
  static const int64_t splits[3][4] = {{20, 1}, {1, 16, 4}, {7, 1, 1, 12}}, windows[4] = {2, 3, 4, 18};
  for (int i = 0; i < 3 * 4; i++) {
    uint32_t n = (uint32_t[]){2, 3, 4}[i % 3];
    kva_ref_tensor *w = to_f32(FX_RANDOM(2, FX_H, windows[i / 3]));
    check_split(fx_boundaries[i % 3], w, splits[i % 3], n);
    check_split(fx_boundaries[i / 3 % 3], to_f32(FX_RANDOM(3, FX_H, windows[i / 3], FX_D)), splits[i % 3], n);
    fx_free(NULL);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(test_chunks_bit_for_bit, fx_free)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
