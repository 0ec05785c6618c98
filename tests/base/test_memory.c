/* Arena, growable array, hash map, text. */
#include "runtime/base/base.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static void arena_is_aligned_and_zeroed(void **state) {
  (void)state;
  kva_arena *arena = kva_arena_create();
  for (size_t size = 0; size < 3000; size += 7) {
    unsigned char *p = kva_arena_alloc(arena, size);
    assert_int_equal((uintptr_t)p % 16, 0);
    for (size_t i = 0; i < size; i++) assert_int_equal(p[i], 0);
    memset(p, 0xAB, size);
  }
  unsigned char *big = kva_arena_alloc(arena, 9 << 20);
  big[(9 << 20) - 1] = 1;
  assert_string_equal(kva_arena_printf(arena, "%s-%d", "x", 7), "x-7");
  assert_string_equal(kva_arena_strndup(arena, "abcdef", 3), "abc");
  assert_string_equal(kva_arena_strdup(arena, ""), "");
  assert_memory_equal(kva_arena_memdup(arena, "a\0b", 3), "a\0b", 3);
  kva_arena_destroy(arena);
  kva_arena_destroy(NULL);
}

static void vec_grows(void **state) {
  (void)state;
  kva_arena *arena = kva_arena_create();
  KVA_VEC(int) v = {0};
  for (int i = 0; i < 1000; i++) KVA_PUSH(arena, &v, i * i);
  assert_int_equal(v.len, 1000);
  for (int i = 0; i < 1000; i++) assert_int_equal(v.data[i], i * i);
  kva_arena_destroy(arena);
}

static void map_keeps_insertion_order(void **state) {
  (void)state;
  kva_arena *arena = kva_arena_create();
  kva_map *map = kva_map_create(arena);
  assert_null(kva_map_get_str(map, "absent"));
  static int values[5000];
  char key[16];
  for (int i = 0; i < 5000; i++) {
    snprintf(key, sizeof key, "k%d", i * 7919 % 5000);
    kva_map_set_str(map, key, &values[i]);
  }
  assert_int_equal(kva_map_len(map), 5000);
  for (int i = 0; i < 5000; i++) {
    snprintf(key, sizeof key, "k%d", i * 7919 % 5000);
    assert_ptr_equal(kva_map_get_str(map, key), &values[i]);
    size_t size = 0;
    assert_memory_equal(kva_map_key_at(map, (uint32_t)i, &size), key, strlen(key));
    assert_int_equal(size, strlen(key));
    assert_ptr_equal(kva_map_value_at(map, (uint32_t)i), &values[i]);
  }
  kva_map_set_str(map, "k0", &values[42]);
  assert_ptr_equal(kva_map_get_str(map, "k0"), &values[42]);
  assert_int_equal(kva_map_len(map), 5000);
  kva_arena_destroy(arena);
}

static void map_takes_any_bytes(void **state) {
  (void)state;
  kva_arena *arena = kva_arena_create();
  kva_map *map = kva_map_create(arena);
  int a, b, c;
  kva_map_set(map, "x\0y", 3, &a);
  kva_map_set(map, "x", 1, &b);
  kva_map_set(map, NULL, 0, &c);
  assert_ptr_equal(kva_map_get(map, "x\0y", 3), &a);
  assert_ptr_equal(kva_map_get_str(map, "x"), &b);
  assert_ptr_equal(kva_map_get(map, "", 0), &c);
  assert_null(kva_map_get(map, "x\0z", 3));
  kva_arena_destroy(arena);
}

static void hash_is_stable(void **state) {
  (void)state;
  assert_true(kva_hash(0, "", 0) == 0xcbf29ce484222325u);
  assert_true(kva_hash(0, "a", 1) == 0xaf63dc4c8601ec8cu); /* the published FNV-1a value */
  assert_true(kva_hash(kva_hash(0, "a", 1), "b", 1) != kva_hash(kva_hash(0, "b", 1), "a", 1));
}

static void assert_double(double v, const char *expected) {
  kva_text text = {0};
  kva_text_add_double(&text, v);
  assert_string_equal(text.data, expected);
  kva_text_free(&text);
}

static void doubles_are_shortest(void **state) {
  (void)state;
  assert_double(0.1, "0.1");
  assert_double(1, "1.0");
  assert_double(-0.0, "-0.0");
  assert_double(10, "10.0");
  assert_double(123456789, "123456789.0");
  assert_double(1e15, "1000000000000000.0");
  assert_double(1e16, "1e+16");
  assert_double(1e-5, "1e-05");
  assert_double(0.00012, "0.00012");
  assert_double(1.0 / 3, "0.3333333333333333");
  assert_double(5e-324, "5e-324");
  assert_double(1.7976931348623157e308, "1.7976931348623157e+308");
  assert_double(9007199254740993, "9007199254740992.0");
  assert_double(INFINITY, "inf");
  assert_double(-INFINITY, "-inf");
  assert_double((double)NAN, "nan");
}

static void every_number_reads_back(void **state) {
  (void)state;
  uint64_t bits = 88172645463325252u;
  for (int i = 0; i < 20000; i++) {
    bits ^= bits << 13, bits ^= bits >> 7, bits ^= bits << 17;
    double d;
    float f;
    memcpy(&d, &bits, sizeof d);
    memcpy(&f, &bits, sizeof f);
    kva_text text = {0};
    kva_text_add_double(&text, d);
    assert_true(isnan(d) || strtod(text.data, NULL) == d);
    text.len = 0;
    kva_text_add_float(&text, f);
    assert_true(isnan(f) || (strtof(text.data, NULL) == f && (float)strtod(text.data, NULL) == f));
    kva_text_free(&text);
  }
}

static void floats_are_shortest(void **state) {
  (void)state;
  kva_text text = {0};
  kva_text_add_float(&text, 0.1f);
  kva_text_add(&text, " ");
  kva_text_add_float(&text, 16777216.0f);
  kva_text_add(&text, " ");
  kva_text_add_float(&text, 3.4028234663852886e38f);
  assert_string_equal(text.data, "0.1 16777216.0 3.4028235e+38");
  kva_text_free(&text);
}

static void quoting(void **state) {
  (void)state;
  kva_text text = {0};
  kva_text_add_quoted(&text, "a\"b\\c\n\t\x01 \xc3\xa9");
  assert_string_equal(text.data, "\"a\\\"b\\\\c\\n\\t\\u0001 \xc3\xa9\"");
  kva_text_free(&text);
  assert_null(text.data);
}

static void text_grows(void **state) {
  (void)state;
  kva_text text = {0};
  for (int i = 0; i < 10000; i++) kva_text_add(&text, "%d,", i % 10);
  assert_int_equal(text.len, 20000);
  assert_int_equal(strlen(text.data), 20000);
  kva_text_free(&text);
}

/* Subnormal numbers are numbers; what rounds to 0 or infinity is not what the text says. */
static void numbers_are_parsed(void **state) {
  (void)state;
  double v;
  assert_true(kva_parse_double("1e-310", &v) && v == 1e-310);
  assert_true(kva_parse_double("-5e-324", &v) && v == -5e-324);
  assert_true(kva_parse_double("0", &v) && v == 0);
  assert_true(kva_parse_double("inf", &v) && isinf(v));
  static const char *const wrong[] = {"", "x", "1x", "1e-400", "1e999", "-1e999"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) assert_false(kva_parse_double(wrong[i], &v));
}

static void checked_sizes(void **state) {
  (void)state;
  int64_t out = 5;
  assert_false(kva_mul_size(INT64_MAX, 2, &out));
  assert_false(kva_mul_size(-1, 2, &out));
  assert_false(kva_add_size(INT64_MAX, 1, &out));
  assert_true(kva_mul_size(3, 4, &out) && out == 12);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(arena_is_aligned_and_zeroed),
      cmocka_unit_test(vec_grows),
      cmocka_unit_test(map_keeps_insertion_order),
      cmocka_unit_test(map_takes_any_bytes),
      cmocka_unit_test(hash_is_stable),
      cmocka_unit_test(doubles_are_shortest),
      cmocka_unit_test(every_number_reads_back),
      cmocka_unit_test(floats_are_shortest),
      cmocka_unit_test(quoting),
      cmocka_unit_test(text_grows),
      cmocka_unit_test(numbers_are_parsed),
      cmocka_unit_test(checked_sizes),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
