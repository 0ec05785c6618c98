/* Element types: every code of every narrow float, ties, special values, packing. */
#include "runtime/base/base.h"

#include <math.h>
#include <setjmp.h>
#include <cmocka.h>

static const kva_dtype narrow_floats[] = {KVA_F16,    KVA_BF16,       KVA_F8E4M3FN, KVA_F8E4M3FNUZ,
                                          KVA_F8E5M2, KVA_F8E5M2FNUZ, KVA_F4E2M1,   KVA_F8E8M0};
enum { NARROW_FLOATS = sizeof narrow_floats / sizeof *narrow_floats };

static double value_of(kva_dtype t, unsigned code) {
  uint16_t bits = (uint16_t)code;
  return kva_load_f64(t, &bits, 0);
}

static unsigned code_of(kva_dtype t, double v) {
  uint16_t bits = 0;
  kva_store_f64(t, &bits, 0, v);
  return bits;
}

static unsigned unsaturated(kva_dtype t, double v) {
  uint16_t bits = 0;
  kva_store_f64_as(t, &bits, 0, v, false, KVA_E8M0_NEAREST);
  return bits;
}

static void assert_code(kva_dtype t, double v, unsigned expected) {
  if (code_of(t, v) != expected) fail_msg("%s(%a): 0x%x, expected 0x%x", kva_dtype_name(t), v, code_of(t, v), expected);
}

static void names_and_sizes(void **state) {
  (void)state;
  for (int t = 1; t < KVA_DTYPE_COUNT; t++) {
    const char *name = kva_dtype_name((kva_dtype)t);
    assert_int_equal(kva_dtype_from_name(name, strlen(name)), t);
  }
  assert_string_equal(kva_dtype_name(KVA_BOOL), "bool");
  assert_int_equal(kva_dtype_from_name("int99", 5), KVA_DTYPE_NONE);
  int64_t bytes = 0;
  assert_true(kva_dtype_bytes(KVA_I4, 5, &bytes) && bytes == 3);
  assert_true(kva_dtype_bytes(KVA_U2, 9, &bytes) && bytes == 3);
  assert_true(kva_dtype_bytes(KVA_C128, 3, &bytes) && bytes == 48);
  assert_true(kva_dtype_bytes(KVA_I4, INT64_MAX, &bytes) && bytes == INT64_MAX / 2 + 1);
  assert_false(kva_dtype_bytes(KVA_F32, INT64_MAX / 2, &bytes));
  assert_false(kva_dtype_bytes(KVA_F32, -1, &bytes));
  assert_true(kva_dtype_is_float(KVA_F8E8M0) && !kva_dtype_is_float(KVA_C64) && !kva_dtype_is_int(KVA_BOOL));
}

static void every_code_reads_back(void **state) {
  (void)state;
  for (int k = 0; k < NARROW_FLOATS; k++) {
    kva_dtype t = narrow_floats[k];
    for (unsigned code = 0; code < 1u << kva_dtype_bits(t); code++) {
      double v = value_of(t, code);
      if (isnan(v)) {
        assert_true(isnan(value_of(t, code_of(t, v))));
      } else {
        assert_code(t, v, code);
      }
    }
  }
}

static bool has_next(kva_dtype t, unsigned code) {
  double next = value_of(t, code + 1);
  return isfinite(next) && next > value_of(t, code);
}

/* Between neighbours: below the midpoint goes down, above goes up, the midpoint to the even code; mirrored for < 0. */
static void midpoints_go_to_even(void **state) {
  (void)state;
  for (int k = 0; k < NARROW_FLOATS - 1; k++) {
    kva_dtype t = narrow_floats[k];
    unsigned sign = 1u << (kva_dtype_bits(t) - 1);
    for (unsigned code = 0; code + 1 < sign && has_next(t, code); code++) {
      double middle = (value_of(t, code) + value_of(t, code + 1)) / 2;
      assert_code(t, middle, code + (code & 1));
      assert_code(t, nextafter(middle, 0), code);
      assert_code(t, nextafter(middle, INFINITY), code + 1);
      unsigned even = code + (code & 1);
      bool lost_zero = even == 0 && (t == KVA_F8E4M3FNUZ || t == KVA_F8E5M2FNUZ);
      assert_code(t, -middle, lost_zero ? 0 : even | sign);
    }
  }
}

static void agrees_with_the_compiler_on_f16(void **state) {
  (void)state;
#ifdef __FLT16_MAX__
  for (uint32_t i = 0; i < 1u << 22; i++) {
    uint32_t bits = i * 1021;
    float f;
    memcpy(&f, &bits, sizeof f);
    _Float16 h = (_Float16)f;
    uint16_t expected;
    memcpy(&expected, &h, sizeof expected);
    if (isnan(f)) {
      assert_true(isnan(kva_f16_to_f32(kva_f32_to_f16(f))));
    } else {
      assert_int_equal(kva_f32_to_f16(f), expected);
    }
  }
#endif
}

static void bf16_is_the_top_of_f32(void **state) {
  (void)state;
  for (uint32_t code = 0; code < 1u << 16; code++) {
    uint32_t bits = code << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    float g = kva_bf16_to_f32((uint16_t)code);
    assert_true(isnan(f) ? isnan(g) : !memcmp(&f, &g, sizeof f));
  }
}

/* The tables of ONNX Cast, version 25. */
static void overflow_and_specials(void **state) {
  (void)state;
  assert_code(KVA_F16, 65519.99, 0x7BFF);
  assert_code(KVA_F16, 65520, 0x7C00);
  assert_code(KVA_F16, -INFINITY, 0xFC00);
  assert_code(KVA_BF16, 3.4e38, 0x7F80);
  assert_code(KVA_F8E4M3FN, 1e6, 0x7E);
  assert_code(KVA_F8E4M3FN, -INFINITY, 0xFE);
  assert_code(KVA_F8E4M3FN, (double)NAN, 0x7F);
  assert_code(KVA_F8E4M3FN, -0.0, 0x80);
  assert_code(KVA_F8E4M3FNUZ, INFINITY, 0x7F);
  assert_code(KVA_F8E4M3FNUZ, -0.0, 0);
  assert_code(KVA_F8E4M3FNUZ, -1e-9, 0);
  assert_code(KVA_F8E5M2, 1e9, 0x7B);
  assert_code(KVA_F8E5M2, -INFINITY, 0xFC);
  assert_code(KVA_F8E5M2FNUZ, -1e9, 0xFF);
  assert_code(KVA_F4E2M1, 1e9, 0x7);
  assert_code(KVA_F4E2M1, -5.0, 0xE);
  assert_int_equal(unsaturated(KVA_F8E4M3FN, 464), 0x7E);
  assert_int_equal(unsaturated(KVA_F8E4M3FN, 465), 0x7F);
  assert_int_equal(unsaturated(KVA_F8E4M3FN, -INFINITY), 0xFF);
  assert_int_equal(unsaturated(KVA_F8E4M3FNUZ, 1e9), 0x80);
  assert_int_equal(unsaturated(KVA_F8E5M2, 61440), 0x7C);
  assert_int_equal(unsaturated(KVA_F8E5M2FNUZ, -INFINITY), 0x80);
  assert_true(value_of(KVA_F8E4M3FN, 0x7E) == 448 && value_of(KVA_F8E4M3FNUZ, 0x7F) == 240);
  assert_true(value_of(KVA_F8E5M2, 0x7B) == 57344 && value_of(KVA_F8E5M2FNUZ, 0x7F) == 57344);
  assert_true(value_of(KVA_F8E4M3FN, 1) == 0x1p-9 && value_of(KVA_F8E5M2FNUZ, 1) == 0x1p-17);
}

static unsigned e8m0(double v, bool saturate, kva_e8m0_rounding rounding) {
  uint8_t code;
  kva_store_f64_as(KVA_F8E8M0, &code, 0, v, saturate, rounding);
  return code;
}

static void e8m0_rounds_three_ways(void **state) {
  (void)state;
  assert_int_equal(e8m0(1.0, true, KVA_E8M0_UP), 127);
  assert_int_equal(e8m0(1.001, true, KVA_E8M0_UP), 128);
  assert_int_equal(e8m0(1.999, true, KVA_E8M0_DOWN), 127);
  assert_int_equal(e8m0(1.499, true, KVA_E8M0_NEAREST), 127);
  assert_int_equal(e8m0(1.5, true, KVA_E8M0_NEAREST), 128);
  assert_int_equal(e8m0(0, true, KVA_E8M0_UP), 0);
  assert_int_equal(e8m0(0, false, KVA_E8M0_NEAREST), 255);
  assert_int_equal(e8m0(1e300, true, KVA_E8M0_UP), 254);
  assert_int_equal(e8m0(1e300, false, KVA_E8M0_NEAREST), 255);
  assert_int_equal(e8m0(1e-300, true, KVA_E8M0_DOWN), 0);
  assert_int_equal(e8m0(1e-300, false, KVA_E8M0_NEAREST), 255);
  assert_int_equal(e8m0(INFINITY, true, KVA_E8M0_UP), 254);
  assert_int_equal(e8m0((double)NAN, true, KVA_E8M0_UP), 255);
  assert_true(kva_round_f64(KVA_F8E8M0, 3.0) == 4.0);
}

static void packed_integers(void **state) {
  (void)state;
  unsigned char bytes[4] = {0};
  for (int i = 0; i < 8; i++) kva_store_i64(KVA_I4, bytes, i, i - 4);
  assert_int_equal(bytes[0], 0xDC); /* -4 in the low nibble, -3 in the high one */
  for (int i = 0; i < 8; i++) assert_int_equal(kva_load_i64(KVA_I4, bytes, i), i - 4);
  for (int i = 0; i < 16; i++) kva_store_i64(KVA_U2, bytes, i, i);
  assert_int_equal(bytes[0], 0xE4);
  for (int i = 0; i < 16; i++) assert_int_equal(kva_load_i64(KVA_U2, bytes, i), i % 4);
  kva_store_i64(KVA_I2, bytes, 1, 2);
  assert_int_equal(kva_load_i64(KVA_I2, bytes, 1), -2);
  assert_int_equal(kva_load_i64(KVA_I2, bytes, 0), 0);
}

static void integers_wrap(void **state) {
  (void)state;
  assert_int_equal(kva_wrap_i64(KVA_I8, 200), -56);
  assert_int_equal(kva_wrap_i64(KVA_U8, -1), 255);
  assert_int_equal(kva_wrap_i64(KVA_U4, 17), 1);
  assert_int_equal(kva_wrap_i64(KVA_I64, INT64_MIN), INT64_MIN);
  assert_int_equal(kva_wrap_i64(KVA_BOOL, 256), 1);
  uint64_t big = 0;
  kva_store_f64(KVA_U64, &big, 0, 0x1p63);
  assert_true(big == (uint64_t)1 << 63 && kva_load_f64(KVA_U64, &big, 0) == 0x1p63);
}

/* 2^62 + 2^54 is the midpoint of two bf16 values; with 1 more it must go up although a double cannot see the 1. */
static void wide_integers_round_once(void **state) {
  (void)state;
  int64_t middle = ((int64_t)1 << 62) + ((int64_t)1 << 54);
  uint16_t at, above, below;
  kva_store_i64(KVA_BF16, &at, 0, middle);
  kva_store_i64(KVA_BF16, &above, 0, middle + 1);
  kva_store_i64(KVA_BF16, &below, 0, -middle - 1);
  assert_true(kva_load_f64(KVA_BF16, &at, 0) == 0x1p62);
  assert_true(kva_load_f64(KVA_BF16, &above, 0) == 0x1p62 + 0x1p55);
  assert_true(kva_load_f64(KVA_BF16, &below, 0) == -0x1p62 - 0x1p55);
  float f;
  for (int64_t v = INT64_MAX; v > 1000; v -= v / 77 + 3) {
    kva_store_i64(KVA_F32, &f, 0, v);
    assert_true(f == (float)v);
  }
}

static void floats_to_integers(void **state) {
  (void)state;
  int32_t i = 0;
  kva_store_f64(KVA_I32, &i, 0, -3.9);
  assert_int_equal(i, -3);
  unsigned char b = 0;
  kva_store_f64(KVA_BOOL, &b, 0, 0.25);
  assert_int_equal(b, 1);
  kva_store_f64(KVA_BOOL, &b, 0, -0.0);
  assert_int_equal(b, 0);
  float f = 1e30f;
  assert_true(kva_load_i64(KVA_F32, &f, 0) == INT64_MAX);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(names_and_sizes),        cmocka_unit_test(every_code_reads_back),
      cmocka_unit_test(midpoints_go_to_even),   cmocka_unit_test(agrees_with_the_compiler_on_f16),
      cmocka_unit_test(bf16_is_the_top_of_f32), cmocka_unit_test(overflow_and_specials),
      cmocka_unit_test(e8m0_rounds_three_ways), cmocka_unit_test(packed_integers),
      cmocka_unit_test(integers_wrap),          cmocka_unit_test(wide_integers_round_once),
      cmocka_unit_test(floats_to_integers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
