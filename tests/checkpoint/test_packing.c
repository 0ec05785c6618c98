/* Elements in blocks: what the gguf package of Python decodes from the same bytes; what is encoded decodes to it again.
 */
#include "tools/checkpoint/checkpoint.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

enum { MOST = 256, LISTED = 11 };

typedef struct sample {
  int at;
  float value;
} sample;

typedef struct expected {
  const char *packing;
  int scale_at;             /* of the half 0.25 */
  int minimum_at;           /* of the half 0.5, if there is one: not 0 */
  double sum, weighted_sum; /* of all values; of |value| times 1, 2, 3, ... */
  sample some[LISTED];
} expected;

/* Byte i of a block is (37 i + 11) mod 251, but for its scales. */
static void make_block(const kva_packing *p, const expected *e, unsigned char *block) {
  for (int i = 0; i < p->bytes; i++) block[i] = (unsigned char)((37 * i + 11) % 251);
  block[e->scale_at] = 0;
  block[e->scale_at + 1] = 0x34;
  if (!e->minimum_at) return;
  block[e->minimum_at] = 0;
  block[e->minimum_at + 1] = 0x38;
}

static void check_decoded(const expected *e) {
  unsigned char block[MOST];
  float values[MOST];
  const kva_packing *p = kva_packing_named(e->packing);
  assert_non_null(p);
  make_block(p, e, block);
  p->decode(block, 1, values);
  double sum = 0, weighted = 0;
  for (int i = 0; i < p->elements; i++) sum += values[i], weighted += fabs(values[i]) * (i + 1);
  if (sum != e->sum || weighted != e->weighted_sum) fail_msg("%s: sums %g and %g", e->packing, sum, weighted);
  for (int i = 0; i < LISTED && (i == 0 || e->some[i].at); i++)
    if (values[e->some[i].at] != e->some[i].value)
      fail_msg("%s: element %d is %g, expected %g", e->packing, e->some[i].at, values[e->some[i].at], e->some[i].value);
}

static void blocks_decode_like_their_author(void **state) {
  (void)state;
  static const expected cases[] = {
      {"Q8_0", 0, 0, -24.25, 8666.5, {{0, 21.25F}, {1, 30.5F}, {17, -11}, {31, -7}}},
      {"q4_0", 0, 0, -5.25, 478.75, {{0, -0.75F}, {1, 0.5F}, {17, -0.25F}, {31, 0}}},
      {"Q4_K",
       0,
       2,
       10727,
       1850753.25,
       {{0, 10.75F},
        {1, 49.5F},
        {17, 3},
        {31, 3},
        {32, -8.5F},
        {63, 0.5F},
        {100, 32.75F},
        {127, 28},
        {128, 16},
        {200, 101.5F},
        {255, -18}}},
      {"Q6_K",
       208,
       0,
       -2620.25,
       8903343,
       {{0, -108.75F},
        {1, 348},
        {17, -186},
        {31, -186},
        {32, 23.75F},
        {63, -43.5F},
        {100, -159.5F},
        {127, -261.25F},
        {128, -248},
        {200, -159.5F},
        {255, 580}}},
      {"Q4_1", 0, 2, 78.5, 1315, {{0, 4.25F}, {1, 1.5F}, {17, 3.5F}, {31, 3.75F}}},
      {"Q5_0", 0, 0, 3.75, 1062.5, {{0, 2.25F}, {1, -3.25F}, {17, 0.25F}, {31, 0.5F}}},
      {"Q5_1", 0, 2, 144.75, 2281.25, {{0, 6.5F}, {1, 7.75F}, {17, 1.75F}, {31, 2}}},
      {"Q2_K",
       80,
       82,
       -208,
       106840.75,
       {{0, 2.75F},
        {1, 5.5F},
        {17, -1.5F},
        {31, -1.5F},
        {32, -1.25F},
        {63, -1},
        {100, -0.25F},
        {127, 1.75F},
        {128, 2.5F},
        {200, -6},
        {255, -2}}},
      {"Q3_K",
       108,
       0,
       26.75,
       213927.25,
       {{0, 0.75F},
        {1, -1},
        {17, -5.5F},
        {31, -5.5F},
        {32, -15.75F},
        {63, 0},
        {100, 1},
        {127, 6.25F},
        {128, 13},
        {200, 2},
        {255, 0}}},
      {"Q5_K",
       0,
       2,
       27019.25,
       4055323.25,
       {{0, 204.5F},
        {1, -4.75F},
        {17, 72.75F},
        {31, 72.75F},
        {32, -13.5F},
        {63, -4.5F},
        {100, 85},
        {127, 9},
        {128, 115},
        {200, -1.75F},
        {255, -18}}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_decoded(&cases[i]);
}

static void encoding_ends_after_one_round(void **state) {
  (void)state;
  static const char *const names[] = {"F32", "F16", "BF16", "Q8_0"};
  float values[32], once[32], twice[32];
  unsigned char bytes[MOST];
  for (int i = 0; i < 32; i++) values[i] = sinf((float)i) * (i % 5 ? 1 : 40);
  for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
    const kva_packing *p = kva_packing_named(names[k]);
    int64_t blocks = 32 / p->elements;
    p->encode(values, blocks, bytes);
    p->decode(bytes, blocks, once);
    for (int i = 0; i < 32; i++) assert_true(fabsf(once[i] - values[i]) <= 0.16F);
    p->encode(once, blocks, bytes);
    p->decode(bytes, blocks, twice);
    assert_memory_equal(once, twice, sizeof once);
  }
}

static void zeros_stay_zeros(void **state) {
  (void)state;
  float zeros[32] = {0}, out[32];
  unsigned char bytes[MOST];
  const kva_packing *p = kva_packing_named("Q8_0");
  p->encode(zeros, 1, bytes);
  p->decode(bytes, 1, out);
  assert_memory_equal(zeros, out, sizeof out);
}

static void numbers_name_packings(void **state) {
  (void)state;
  assert_ptr_equal(kva_packing_of_ggml(14), kva_packing_named("Q6_K"));
  assert_ptr_equal(kva_packing_of_dtype(KVA_BF16), kva_packing_of_ggml(30));
  assert_null(kva_packing_of_ggml(15)); /* Q8_K, which no file has */
  assert_null(kva_packing_of_dtype(KVA_I8));
  assert_null(kva_packing_of_dtype(KVA_DTYPE_NONE));
  assert_null(kva_packing_named("Q8_K"));
}

static void stars_stand_for_text_without_dots(void **state) {
  (void)state;
  assert_true(kva_name_matches("*_token_id", "eos_token_id"));
  assert_true(kva_name_matches("h.*.attn.bias", "h.11.attn.bias"));
  assert_false(kva_name_matches("general.*", "general.file.type"));
  assert_false(kva_name_matches("h.*", "h"));
  assert_true(kva_name_matches("*", ""));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(blocks_decode_like_their_author),
      cmocka_unit_test(encoding_ends_after_one_round),
      cmocka_unit_test(zeros_stay_zeros),
      cmocka_unit_test(numbers_name_packings),
      cmocka_unit_test(stars_stand_for_text_without_dots),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
