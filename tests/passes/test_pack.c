/* Quantised weights are in memory once: what pass pack has read is given back, unless something else reads it. */
#include "passes/passes_internal.h"
#include "passes/tune.h"
#include "tools/driver/driver.h"

#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { N = 256 };

static const char text[] = "model test (float[4, 256] x) => (float[4, 256] y) {\n"
                           "  param float[256, 256] w ~ normal(1)\n"
                           "  y = kv.matmul(x, w)\n"
                           "}\n";

static const kva_tensor_data *find(void *user, const char *name) {
  static const int64_t dims[] = {N, N}, blocks[] = {N / 32, N};
  static int8_t codes[N * N];
  static float scales[N / 32 * N];
  static const kva_tensor_data w = {.dtype = KVA_I8, .rank = 2, .dims = dims, .data = codes, .bytes = sizeof codes};
  static const kva_tensor_data scale = {
      .dtype = KVA_F32, .rank = 2, .dims = blocks, .data = scales, .bytes = sizeof scales};
  (void)user;
  memset(codes, 7, sizeof codes);
  return !strcmp(name, "w") ? &w : !strcmp(name, "w.scale") ? &scale : NULL;
}

static kva_node *first_of(kva_module *m, kva_op_id op) {
  kva_node *n = m->functions.data[0]->graph->first;
  while (n && !kva_is(n, op)) n = n->next;
  assert_non_null(n);
  return n;
}

/* The byte in the middle of the codes after pass pack, with another reader of them or without. */
static int byte_after(bool read_twice) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  int64_t used;
  bool changed = false;
  assert_int_equal(kva_load_text(text, "test", NULL, diag, &m), KVA_OK);
  assert_int_equal(kva_set_weights(m, find, NULL, &used), KVA_OK);
  kva_node *dequantize = first_of(m, KVA_OP_dequantize);
  kva_value *codes = dequantize->operands[0].value;
  const int8_t *data = ((const kva_constant_attrs *)codes->def->attrs)->value->data;
  kva_builder b = kva_builder_before(m, dequantize);
  if (read_twice) kva_cast(&b, codes, KVA_F32);
  assert_int_equal(data[N * N / 2], 7);
  assert_int_equal(kva_run_pass(m, KVA_PASS_pack, &(kva_pass_options){0}, &changed), KVA_OK);
  assert_true(changed);
  int byte = data[N * N / 2];
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return byte;
}

static void codes_are_given_back(void **state) {
  (void)state;
  assert_int_equal(byte_after(false), 0);
}

static void codes_with_other_readers_stay(void **state) {
  (void)state;
  assert_int_equal(byte_after(true), 7);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(codes_are_given_back),
                                     cmocka_unit_test(codes_with_other_readers_stay)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
