/* The kernel of convolutions with channels last: filters in panels, images behind a transposition. */
#include "codegen/codegen.h"
#include "ops/ids.h"
#include "tests/support/evaluate.h"
#include "tests/support/target.h"

#include <setjmp.h>
#include <cmocka.h>

/* Extents of x, of the panels and of y, filters, attributes of the convolution;
 * permutations of y and of x, whose channels are last. */
#define PROGRAM(x, w, filters, attrs, y, last, first)                                                              \
  "main (float[" x "] x, float[" w "] w, float[" filters "] bias, float[" y "] rest) => (float[" y "] y) {\n"      \
  "  c = kv.conv " attrs " (kv.transpose <perm = [" first "]> (x), kv.join_filters <filters = " filters "> (w))\n" \
  "  y = kv.relu(kv.transpose <perm = [" last "]> (c) + bias) + rest\n}"
#define PLANE(x, w, filters, attrs, y) PROGRAM(x, w, filters, attrs, y, "0, 2, 3, 1", "0, 3, 1, 2")
#define LINE(x, w, filters, attrs, y)  PROGRAM(x, w, filters, attrs, y, "0, 2, 1", "0, 2, 1")

static const char *const programs[] = {
    /* products: whole tiles, a tile that moves back, one position, several blocks, an unknown number of images */
    PLANE("2, 7, 8, 64", "2, 1, 1, 64, 32", "64", "", "2, 7, 8, 64"),
    PLANE("1, 5, 3, 20", "2, 1, 1, 20, 32", "40", "", "1, 5, 3, 40"),
    PLANE("1, 1, 1, 9", "1, 1, 1, 9, 16", "11", "", "1, 1, 1, 11"),
    PLANE("3, 31, 17, 33", "3, 1, 1, 33, 48", "130", "", "3, 31, 17, 130"),
    PLANE("B, 5, 7, 24", "1, 1, 1, 24, 32", "32", "", "B, 5, 7, 32"),
    /* windows: padding on each side, strides, dilation, extents that tiles do not divide */
    PLANE("2, 14, 14, 16", "1, 3, 3, 16, 32", "32", "<pads = [1, 1, 1, 1]>", "2, 14, 14, 32"),
    PLANE("1, 9, 23, 5", "2, 3, 2, 5, 16", "19", "<pads = [2, 0, 1, 1], strides = [2, 1]>", "1, 5, 23, 19"),
    PLANE("B, 20, 31, 12", "1, 5, 3, 12, 48", "33", "<pads = [2, 1, 2, 1], strides = [1, 3]>", "B, 20, 11, 33"),
    PLANE("1, 17, 19, 8", "1, 3, 3, 8, 16", "16", "<dilations = [2, 3], pads = [2, 3, 2, 3]>", "1, 17, 19, 16"),
    PLANE("1, 4, 300, 64", "1, 3, 3, 64, 32", "32", "<pads = [1, 1, 1, 1]>", "1, 4, 300, 32"),
    PLANE("1, 40, 40, 64", "2, 3, 3, 64, 32", "64", "<pads = [1, 1, 1, 1]>", "1, 40, 40, 64"),
    PLANE("1, 8, 8, 40", "2, 1, 1, 40, 32", "64", "<strides = [2, 2]>", "1, 4, 4, 64"),
    /* windows from where many channels lie: rows and columns outside on each side, strides, a dilation, a group */
    PLANE("2, 5, 29, 256", "2, 3, 3, 256, 32", "40", "<pads = [1, 1, 1, 1]>", "2, 5, 29, 40"),
    PLANE("1, 9, 38, 128", "1, 5, 3, 128, 32", "32", "<pads = [6, 0, 0, 3], strides = [3, 2]>", "1, 4, 20, 32"),
    PLANE("B, 4, 20, 260", "1, 1, 2, 260, 16", "16", "<pads = [0, 1, 0, 1], dilations = [1, 2]>", "B, 4, 20, 16"),
    PLANE("1, 3, 15, 512", "2, 3, 1, 256, 16", "32", "<group = 2, pads = [1, 0, 1, 0]>", "1, 3, 15, 32"),
    /* and dilation: taps that only some results of a tile have inside of the image, and that none has */
    PLANE("2, 20, 33, 260", "1, 3, 3, 260, 32", "32", "<dilations = [3, 5], pads = [2, 5, 4, 5], strides = [2, 1]>",
          "2, 10, 33, 32"),
    PLANE("1, 14, 14, 256", "2, 3, 3, 256, 16", "32", "<dilations = [12, 24], pads = [12, 24, 12, 24]>",
          "1, 14, 14, 32"),
    PLANE("B, 4, 40, 256", "1, 5, 3, 256, 32", "32", "<dilations = [9, 17], pads = [18, 17, 18, 17]>", "B, 4, 40, 32"),
    /* groups of whole panels; depthwise, with a part of a panel, and more channels than a patch has room for */
    PLANE("2, 9, 9, 24", "4, 3, 3, 12, 32", "128", "<group = 2, pads = [1, 1, 1, 1]>", "2, 9, 9, 128"),
    PLANE("2, 12, 15, 40", "2, 3, 3, 1, 32", "40", "<group = 40, pads = [1, 1, 1, 1]>", "2, 12, 15, 40"),
    PLANE("B, 7, 7, 1000", "63, 5, 5, 1, 16", "1000", "<group = 1000, pads = [2, 2, 2, 2], strides = [2, 2]>",
          "B, 4, 4, 1000"),
    /* depthwise, from where the image lies: more columns than a tile, wide windows, padding beyond the image, dilation
     */
    PLANE("2, 9, 37, 48", "3, 3, 3, 1, 16", "48", "<group = 48, pads = [1, 1, 1, 1]>", "2, 9, 37, 48"),
    PLANE("B, 23, 31, 33", "3, 5, 5, 1, 16", "33", "<group = 33, pads = [2, 2, 2, 2], strides = [2, 2]>",
          "B, 12, 16, 33"),
    PLANE("1, 2, 8, 64", "2, 3, 7, 1, 32", "64", "<group = 64, pads = [4, 5, 6, 3]>", "1, 10, 10, 64"),
    PLANE("1, 11, 40, 20", "2, 3, 3, 1, 16", "20", "<group = 20, pads = [1, 2, 1, 2], dilations = [1, 2]>",
          "1, 11, 40, 20"),
    /* one spatial axis */
    LINE("2, 50, 24", "2, 4, 1, 16", "24", "<group = 24, pads = [1, 2]>", "2, 50, 24"),
    LINE("2, 50, 12", "1, 3, 12, 32", "20", "<pads = [1, 1], strides = [2]>", "2, 25, 20"),
    LINE("1, 90, 256", "1, 3, 256, 32", "32", "<pads = [80, 80], dilations = [80]>", "1, 90, 32"),
    LINE("B, 33, 12", "2, 1, 12, 16", "32", "", "B, 33, 32"),
};

/* Bytes of one sign and of the other, whose filters are words; extents as above, of w in words. Inputs are small, so
 * words get bits everywhere by a product. */
#define BYTES(a, x, w, b, filters, channels, attrs, y)                                                           \
  "main (" a "[" x "] x, uint32[" w "] w, int32[" filters "] bias) => (int32[" y "] y) {\n"                      \
  "  many = kv.constant <value = uint32 {1442695041}> ()\n"                                                      \
  "  f = kv.unpack <axis = 1, extent = " channels ", to = " b "> (kv.join_filters <filters = " filters "> (w * " \
  "many))\n"                                                                                                     \
  "  c = kv.conv " attrs " (kv.transpose <perm = [0, 3, 1, 2]> (x), f)\n"                                        \
  "  y = kv.relu(kv.transpose <perm = [0, 2, 3, 1]> (c) + bias)\n}"

static const char *const byte_programs[] = {
    BYTES("uint8", "2, 7, 8, 64", "2, 1, 1, 16, 32", "int8", "64", "64", "<to = int32>", "2, 7, 8, 64"),
    BYTES("int8", "B, 5, 3, 20", "2, 1, 1, 5, 32", "uint8", "40", "20", "<to = int32>", "B, 5, 3, 40"),
    BYTES("uint8", "B, 14, 15, 16", "1, 3, 3, 4, 32", "int8", "32", "16", "<pads = [1, 1, 1, 1], to = int32>",
          "B, 14, 15, 32"),
    BYTES("uint8", "2, 17, 19, 132", "2, 3, 2, 33, 16", "int8", "19", "132",
          "<pads = [2, 0, 1, 1], strides = [2, 1], dilations = [1, 2], to = int32>", "2, 9, 18, 19"),
    BYTES("int8", "2, 9, 9, 24", "4, 3, 3, 3, 32", "uint8", "128", "12", "<group = 2, pads = [1, 1, 1, 1], to = int32>",
          "2, 9, 9, 128"),
    BYTES("uint8", "1, 8, 8, 128", "2, 1, 1, 32, 32", "int8", "64", "128", "<strides = [2, 2], to = int32>",
          "1, 4, 4, 64"),
};

/* The whole way from filters of bytes that pass layout puts into words, where an image of 63 channels gets one. */
static const char bytes_of_network[] =
    "main (uint8[B, 63, 16, 16] x) => (int32[B, 12, 8, 8] y) {\n"
    "  w = kv.cast <to = int8> (kv.reshape <shape = [12, 63, 3, 3]> (kv.iota <shape = [6804]> ()))\n"
    "  y = kv.relu(kv.conv <strides = [2, 2], pads = [1, 1, 1, 1], to = int32> (x, w))\n}";

/* An image whose channels are not last, as at the beginning of a network. */
static const char first_of_network[] =
    "main (float[B, 3, 30, 34] x, float[1, 7, 7, 3, 32] w) => (float[B, 15, 17, 20] y) {\n"
    "  c = kv.conv <strides = [2, 2], pads = [3, 3, 3, 3]> (x, kv.join_filters <filters = 20> (w))\n"
    "  y = kv.transpose <perm = [0, 2, 3, 1]> (c)\n}";

enum { LANES = 16 };

static const eval_size sizes[] = {{"B", 3}, {NULL, 0}};

static kva_module *load(const char *text, kva_diag *diag) {
  kva_module *m = NULL;
  kva_status status = kva_load_text(text, "channels.kv", NULL, diag, &m);
  kva_diag_print(diag, stderr);
  assert_int_equal(status, KVA_OK);
  return m;
}

/* The one step of the program that is a convolution takes this kernel, where panels are few vectors: of 512 bits. */
static void check_choice(const kva_compiled *c, const char *text) {
  kva_target target;
  kva_diag *diag = kva_diag_create();
  bool found = false;
  assert_int_equal(kva_codegen_describe(&(kva_target_options){0}, diag, &target), KVA_OK);
  for (const kva_node *n = c->module->functions.data[0]->graph->first; n; n = n->next) {
    const kva_node *operator;
    if (!kva_is(n, KVA_OP_kernel)) continue;
    kva_kernel_choice choice = kva_codegen_choose(n, &target, &operator);
    if (!operator) continue;
    bool wide = kva_target_lanes(&target, KVA_F32) >= LANES;
    if (wide && strcmp(choice.row->name, "channels") != 0) fail_msg("%s: kernel %s", text, choice.row->name);
    found = true;
  }
  if (!found) fail_msg("%s: the convolution is alone", text);
  kva_diag_destroy(diag);
}

static void check_program(const char *text) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = load(text, diag);
  kva_compiled *c;
  assert_int_equal(kva_compile(load(text, diag), &(kva_compile_options){.target = test_target(0, NULL)}, diag, &c),
                   KVA_OK);
  check_choice(c, text);
  evaluated found = evaluate_compiled(c, c->module->functions.data[0], sizes);
  evaluated expected = evaluate_reference(m, m->functions.data[0], sizes);
  assert_true(evaluated_equal(text, m, &expected, &found, 1e-4));
  evaluated_free(&expected);
  evaluated_free(&found);
  kva_compiled_destroy(c);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
}

static void test_programs(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) check_program(programs[i]);
  check_program(first_of_network);
}

static void test_bytes(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof byte_programs / sizeof *byte_programs; i++) check_program(byte_programs[i]);
  check_program(bytes_of_network);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_programs), cmocka_unit_test(test_bytes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
