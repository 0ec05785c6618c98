/* Weights are in memory once: what pass pack has read is given back, unless something else reads it. Matrices of floats
 * go into panels where products of few rows read them, or of an unknown number, and matrices of bytes where words are
 * multiplied. */
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

/* w in codes, in blocks along its rows or its columns. */
static const kva_tensor_data *codes_of(const char *name, const int64_t *blocks) {
  static const int64_t dims[] = {N, N};
  static int8_t codes[N * N];
  static float scales[N / 32 * N];
  static const kva_tensor_data w = {.dtype = KVA_I8, .rank = 2, .dims = dims, .data = codes, .bytes = sizeof codes};
  static kva_tensor_data scale = {.dtype = KVA_F32, .rank = 2, .data = scales, .bytes = sizeof scales};
  scale.dims = blocks;
  memset(codes, 7, sizeof codes);
  return !strcmp(name, "w") ? &w : !strcmp(name, "w.scale") ? &scale : NULL;
}

static const kva_tensor_data *find(void *user, const char *name) {
  static const int64_t blocks[] = {N / 32, N};
  (void)user;
  return codes_of(name, blocks);
}

static const kva_tensor_data *find_rows(void *user, const char *name) {
  static const int64_t blocks[] = {N, N / 32};
  (void)user;
  return codes_of(name, blocks);
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

/* An embedding that is the output layer: products read codes in panels, lookups those that there were. */
static void codes_that_are_looked_up_stay(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  int64_t used;
  bool changed = false;
  static const char tied[] = "model test (int64[4] tokens) => (float[4, 256] y) {\n"
                             "  param float[256, 256] w ~ normal(1)\n"
                             "  y = kv.matmul <transpose_b = true> (kv.gather(w, tokens), w)\n"
                             "}\n";
  assert_int_equal(kva_load_text(tied, "test", NULL, diag, &m), KVA_OK);
  assert_int_equal(kva_set_weights(m, find_rows, NULL, &used), KVA_OK);
  assert_int_equal(kva_run_pass(m, KVA_PASS_cse, &(kva_pass_options){0}, &changed), KVA_OK);
  assert_int_equal(kva_run_pass(m, KVA_PASS_pack, &(kva_pass_options){0}, &changed), KVA_OK);
  const kva_node *gather = first_of(m, KVA_OP_gather), *product = first_of(m, KVA_OP_matmul);
  const kva_node *rows = gather->operands[0].value->def, *panels = product->operands[1].value->def;
  assert_true(kva_is(rows, KVA_OP_dequantize) && kva_is(panels, KVA_OP_dequantize) && rows != panels);
  assert_true(kva_is(panels->operands[0].value->def, KVA_OP_join_panels));
  assert_false(((const kva_matmul_attrs *)product->attrs)->transpose_b);
  const int8_t *data = kva_constant_of(rows->operands[0].value)->data;
  assert_int_equal(data[N * N / 2], 7);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static const kva_tensor_data *find_either(void *user, const char *name) {
  static kva_tensor_data codes_of_v;
  if (!strcmp(name, "v.scale")) return find(user, "w.scale");
  if (strcmp(name, "v")) return find(user, name);
  codes_of_v = *find(user, "w");
  codes_of_v.dtype = KVA_U8;
  return &codes_of_v;
}

/* Two tensors of a file whose bytes are the same, once with a sign. */
static void shared_bytes_keep_their_types(void **state) {
  (void)state;
  static const char two[] = "model test (float[4, 256] x) => (float[4, 256] y, float[4, 256] z) {\n"
                            "  param float[256, 256] w ~ normal(1)\n"
                            "  param float[256, 256] v ~ normal(1)\n"
                            "  y = kv.matmul(x, w)\n"
                            "  z = kv.matmul(x, v)\n"
                            "}\n";
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_tensor_data *codes[2] = {NULL};
  int64_t used, n_codes = 0, of_type[2] = {0};
  bool changed = false;
  assert_int_equal(kva_load_text(two, "test", NULL, diag, &m), KVA_OK);
  assert_int_equal(kva_set_weights(m, find_either, NULL, &used), KVA_OK);
  kva_graph *g = m->functions.data[0]->graph;
  for (kva_node *n = g->first; n; n = n->next)
    if (kva_is(n, KVA_OP_dequantize))
      codes[n_codes++] = (kva_tensor_data *)(uintptr_t)kva_constant_of(n->operands[0].value);
  assert_int_equal(n_codes, 2);
  codes[0]->spare = codes[1]->spare = false;
  codes[1]->data = codes[0]->data;
  assert_int_equal(kva_run_pass(m, KVA_PASS_pack, &(kva_pass_options){0}, &changed), KVA_OK);
  for (kva_node *n = g->first; n; n = n->next)
    if (kva_is(n, KVA_OP_dequantize)) of_type[n->operands[0].value->type->dtype == KVA_U8]++;
  assert_true(of_type[0] == 1 && of_type[1] == 1);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

/* ---- floats ------------------------------------------------------------------------------------------------------ */

static const kva_tensor_data *find_floats(void *user, const char *name) {
  static const int64_t dims[] = {N, N};
  static float numbers[N * N];
  static const kva_tensor_data w = {
      .dtype = KVA_F32, .rank = 2, .dims = dims, .data = numbers, .bytes = sizeof numbers};
  (void)user;
  for (int i = 0; i < N * N; i++) numbers[i] = (float)(i + 1);
  return strcmp(name, "w") ? NULL : &w;
}

/* The products of w and x, of `rows` rows, and of w and z, of `others`, after pass pack. */
static kva_module *pack_floats(kva_diag *diag, const char *rows, const char *others, bool transposed, bool *changed) {
  char model[600];
  const char *product = transposed ? "kv.matmul <transpose_b = true>" : "kv.matmul";
  snprintf(model, sizeof model,
           "model test (float[%s, 256] x, float[%s, 256] z) => (float[%s, 256] y, float[%s, 256] u) {\n"
           "  param float[256, 256] w ~ normal(1)\n  y = %s (x, w)\n  u = %s (z, w)\n}\n",
           rows, others, rows, others, product, product);
  kva_module *m = NULL;
  int64_t used;
  assert_int_equal(kva_load_text(model, "test", NULL, diag, &m), KVA_OK);
  assert_int_equal(kva_set_weights(m, find_floats, NULL, &used), KVA_OK);
  assert_int_equal(m->states.len, 1);
  assert_int_equal(kva_set_constants(m), KVA_OK);
  assert_int_equal(m->states.len, 0);
  *changed = false;
  assert_int_equal(kva_run_pass(m, KVA_PASS_cse, &(kva_pass_options){0}, changed), KVA_OK);
  *changed = false;
  assert_int_equal(kva_run_pass(m, KVA_PASS_pack, &(kva_pass_options){0}, changed), KVA_OK);
  return m;
}

static const float *constant_under(kva_module *m, kva_op_id op) {
  kva_node *def = first_of(m, op)->operands[0].value->def;
  return ((const kva_constant_attrs *)def->attrs)->value->data;
}

static void check_panels(const char *rows, bool transposed) {
  kva_diag *diag = kva_diag_create();
  bool changed;
  kva_module *m = pack_floats(diag, rows, "9", transposed, &changed);
  assert_true(changed);
  const float *panels = constant_under(m, KVA_OP_join_panels);
  for (int row = 0; row < N; row++)
    for (int column = 0; column < N; column++)
      assert_int_equal((int)panels[(column / 64 * N + row) * 64 + column % 64],
                       (transposed ? column * N + row : row * N + column) + 1);
  assert_false(((const kva_matmul_attrs *)first_of(m, KVA_OP_matmul)->attrs)->transpose_b);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void few_rows_read_panels(void **state) {
  (void)state;
  check_panels("2", false);
  check_panels("2", true);
}

static void unknown_rows_read_panels(void **state) {
  (void)state;
  check_panels("M", false);
  check_panels("M", true);
}

static void many_rows_read_matrices(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  bool changed;
  kva_module *m = pack_floats(diag, "9", "16", false, &changed);
  assert_false(changed);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static const kva_tensor_data *find_bytes(void *user, const char *name) {
  static const int64_t dims[] = {N, N};
  static uint8_t bytes[N * N];
  static const kva_tensor_data w = {.dtype = KVA_I8, .rank = 2, .dims = dims, .data = bytes, .bytes = sizeof bytes};
  (void)user;
  for (int i = 0; i < N * N; i++) bytes[i] = (uint8_t)(i * 7 / 3);
  return strcmp(name, "w") ? NULL : &w;
}

/* The product of x, of this type, and int8 w after pass pack; out_bytes: where w was. */
static kva_module *pack_bytes(kva_diag *diag, const char *type, bool transposed, const uint8_t **out_bytes,
                              bool *changed) {
  char model[400];
  snprintf(model, sizeof model,
           "model test (%s[M, 256] x) => (int32[M, 256] y) {\n  param int8[256, 256] w ~ normal(1)\n"
           "  y = kv.matmul <to = int32%s> (x, w)\n}\n",
           type, transposed ? ", transpose_b = true" : "");
  kva_module *m = NULL;
  int64_t used;
  assert_int_equal(kva_load_text(model, "test", NULL, diag, &m), KVA_OK);
  assert_int_equal(kva_set_weights(m, find_bytes, NULL, &used), KVA_OK);
  assert_int_equal(kva_set_constant(m, m->states.data[0], m->states.data[0]->data), KVA_OK);
  *out_bytes = ((const kva_constant_attrs *)first_of(m, KVA_OP_constant)->attrs)->value->data;
  assert_int_equal((*out_bytes)[N * N / 2], (uint8_t)(N * N / 2 * 7 / 3));
  *changed = false;
  assert_int_equal(kva_run_pass(m, KVA_PASS_pack, &(kva_pass_options){0}, changed), KVA_OK);
  return m;
}

static void check_words(bool transposed) {
  kva_diag *diag = kva_diag_create();
  bool changed;
  const uint8_t *bytes;
  kva_module *m = pack_bytes(diag, "uint8", transposed, &bytes, &changed);
  assert_true(changed);
  assert_int_equal(bytes[N * N / 2], 0); /* given back */
  const kva_node *def = first_of(m, KVA_OP_join_panels)->operands[0].value->def;
  const uint32_t *words = ((const kva_constant_attrs *)def->attrs)->value->data;
  for (int row = 0; row < N; row++)
    for (int column = 0; column < N; column++) {
      uint32_t word = words[(column / 64 * (N / 4) + row / 4) * 64 + column % 64];
      int at = transposed ? column * N + row : row * N + column;
      assert_int_equal(word >> row % 4 * 8 & 0xff, (uint8_t)(at * 7 / 3));
    }
  assert_true(kva_is(kva_operand(first_of(m, KVA_OP_matmul), 1)->def, KVA_OP_unpack));
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void products_of_both_signs_read_words(void **state) {
  (void)state;
  check_words(false);
  check_words(true);
}

static void products_of_one_sign_read_bytes(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  bool changed;
  const uint8_t *bytes;
  kva_module *m = pack_bytes(diag, "int8", false, &bytes, &changed);
  assert_false(changed);
  assert_int_equal(bytes[N * N / 2], (uint8_t)(N * N / 2 * 7 / 3));
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

/* A part of a module borrows its data, which are not its to give back. */
static void parts_leave_data(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  int64_t used;
  bool keep[64] = {false}, changed = false;
  assert_int_equal(kva_load_text(text, "test", NULL, diag, &m), KVA_OK);
  assert_int_equal(kva_set_weights(m, find_floats, NULL, &used), KVA_OK);
  assert_int_equal(kva_set_constants(m), KVA_OK);
  kva_node *constant = first_of(m, KVA_OP_constant), *product = first_of(m, KVA_OP_matmul);
  assert_true(m->next_node_id < 64);
  keep[constant->id] = keep[product->id] = true;
  const kva_value *y = &product->results[0];
  kva_module *part = kva_module_part(m, keep, 1, &y);
  assert_int_equal(kva_run_pass(part, KVA_PASS_pack, &(kva_pass_options){0}, &changed), KVA_OK);
  assert_false(changed);
  const float *data = ((const kva_constant_attrs *)constant->attrs)->value->data;
  assert_int_equal((int)data[N * N / 2], N * N / 2 + 1);
  kva_module_destroy(part);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(codes_are_given_back),
                                     cmocka_unit_test(codes_with_other_readers_stay),
                                     cmocka_unit_test(codes_that_are_looked_up_stay),
                                     cmocka_unit_test(shared_bytes_keep_their_types),
                                     cmocka_unit_test(few_rows_read_panels),
                                     cmocka_unit_test(unknown_rows_read_panels),
                                     cmocka_unit_test(many_rows_read_matrices),
                                     cmocka_unit_test(products_of_both_signs_read_words),
                                     cmocka_unit_test(products_of_one_sign_read_bytes),
                                     cmocka_unit_test(parts_leave_data)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
