/* .npy files: round trip of every type, headers as NumPy writes them, malformed files. */
#include "runtime/npy.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static char path[] = "/tmp/kva-npy-XXXXXX";

static int make_file(void **unused) {
  (void)unused;
  int fd = mkstemp(path);
  if (fd < 0) return -1;
  close(fd);
  return 0;
}

static int remove_file(void **unused) {
  (void)unused;
  return unlink(path);
}

static kva_status parse(const char *dict, const char *data, size_t data_size, kva_diag *diag, kva_tensor *out) {
  char file[512] = "\x93NUMPY\1\0";
  size_t n = strlen(dict);
  file[8] = (char)(n & 255);
  file[9] = (char)(n >> 8);
  memcpy(file + 10, dict, n);
  memcpy(file + 10 + n, data, data_size);
  char *exact = malloc(10 + n + data_size); /* so that a read beyond the end is seen */
  memcpy(exact, file, 10 + n + data_size);
  kva_status status = kva_npy_parse("x.npy", exact, 10 + n + data_size, KVA_DTYPE_NONE, diag, out);
  free(exact);
  return status;
}

static void types_round_trip(void **unused) {
  (void)unused;
  const kva_dtype types[] = {KVA_F16, KVA_F32, KVA_F64, KVA_I8,  KVA_I16,  KVA_I32, KVA_I64,
                             KVA_U8,  KVA_U16, KVA_U32, KVA_U64, KVA_BOOL, KVA_C64, KVA_C128};
  unsigned char bytes[6 * 16];
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37 + 1);
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    for (int rank = 0; rank <= 3; rank++) {
      kva_tensor t = {
          .dtype = types[i], .rank = rank, .dims = {rank == 1 ? 6 : 3, rank == 2 ? 2 : 1, 2}, .data = bytes};
      kva_tensor back;
      assert_int_equal(kva_npy_write(path, &t, NULL), KVA_OK);
      assert_int_equal(kva_npy_read(path, KVA_DTYPE_NONE, NULL, &back), KVA_OK);
      assert_int_equal(back.dtype, t.dtype);
      assert_int_equal(back.rank, rank);
      for (int d = 0; d < rank; d++) assert_int_equal(back.dims[d], t.dims[d]);
      assert_int_equal((uintptr_t)back.data % 64, 0);
      assert_memory_equal(back.data, bytes, (size_t)kva_tensor_bytes(&t));
      kva_npy_free(&back);
    }
  }
}

/* Type codes of package ml_dtypes: V2 is bfloat16 alone, V1 what the reader expects, f1 one of the float8 types. */
static void types_of_ml_dtypes(void **unused) {
  (void)unused;
  uint16_t bf16[] = {kva_f32_to_bf16(1.5f), kva_f32_to_bf16(-8)};
  kva_tensor t = {KVA_BF16, 1, {2}, bf16}, back;
  assert_int_equal(kva_npy_write(path, &t, NULL), KVA_OK);
  assert_int_equal(kva_npy_read(path, KVA_DTYPE_NONE, NULL, &back), KVA_OK);
  assert_int_equal(back.dtype, KVA_BF16);
  assert_memory_equal(back.data, bf16, sizeof bf16);
  kva_npy_free(&back);
  uint8_t f8[] = {0x38, 0xC0, 0x01};
  t = (kva_tensor){KVA_F8E4M3FN, 1, {3}, f8};
  assert_int_equal(kva_npy_write(path, &t, NULL), KVA_OK);
  assert_int_equal(kva_npy_read(path, KVA_DTYPE_NONE, NULL, &back), KVA_UNSUPPORTED);
  kva_file file;
  assert_int_equal(kva_file_map(path, NULL, &file), KVA_OK);
  assert_int_equal(kva_npy_parse(path, file.data, file.size, KVA_U8, NULL, &back), KVA_UNSUPPORTED);
  assert_int_equal(kva_npy_parse(path, file.data, file.size, KVA_F8E5M2FNUZ, NULL, &back), KVA_OK);
  assert_int_equal(back.dtype, KVA_F8E5M2FNUZ);
  assert_memory_equal(back.data, f8, sizeof f8);
  kva_npy_free(&back);
  kva_file_unmap(&file);
  static const char dict[] = "{'descr': '<f1', 'fortran_order': False, 'shape': (3,), }";
  assert_int_equal(parse(dict, (const char *)f8, sizeof f8, NULL, &back), KVA_OK);
  assert_int_equal(back.dtype, KVA_F8E5M2);
  kva_npy_free(&back);

  /* Types of 4 and 2 bits have a byte for each element, whose other bits mean nothing. */
  static const char bytes[] =
      "\x93NUMPY\1\0\x39\0{'descr': '<V1', 'fortran_order': False, 'shape': (3,), }\x0f\xf8\x02";
  static const struct {
    kva_dtype type;
    uint8_t packed[2];
    int n;
  } cases[] = {{KVA_I4, {0x8F, 2}, 2}, {KVA_U4, {0x8F, 2}, 2}, {KVA_F4E2M1, {0x8F, 2}, 2}, {KVA_I2, {0x23}, 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    assert_int_equal(kva_npy_parse("x.npy", bytes, sizeof bytes - 1, cases[i].type, NULL, &back), KVA_OK);
    assert_int_equal(back.dtype, cases[i].type);
    assert_memory_equal(back.data, cases[i].packed, (size_t)cases[i].n);
    kva_npy_free(&back);
  }
}

static void narrow_types_are_widened(void **unused) {
  (void)unused;
  kva_tensor back;
  uint8_t nibbles[] = {0x8F, 0x07};
  kva_tensor t = {KVA_I4, 1, {3}, nibbles};
  assert_int_equal(kva_npy_write(path, &t, NULL), KVA_OK);
  assert_int_equal(kva_npy_read(path, KVA_DTYPE_NONE, NULL, &back), KVA_OK);
  assert_int_equal(back.dtype, KVA_I8);
  assert_memory_equal(back.data, ((const int8_t[]){-1, -8, 7}), 3);
  kva_npy_free(&back);
  assert_int_equal(kva_npy_read(path, KVA_U4, NULL, &back), KVA_OK); /* of another type */
  assert_int_equal(back.dtype, KVA_I8);
  kva_npy_free(&back);
  assert_int_equal(kva_npy_read(path, KVA_I4, NULL, &back), KVA_OK);
  assert_int_equal(back.dtype, KVA_I4);
  assert_int_equal(back.dims[0], 3);
  assert_memory_equal(back.data, nibbles, 2);
  kva_npy_free(&back);
  assert_int_equal(kva_npy_read(path, KVA_I2, NULL, &back), KVA_INVALID); /* -8 */
  assert_null(back.data);
  t = (kva_tensor){KVA_F4E2M1, 1, {3}, nibbles};
  assert_int_equal(kva_npy_write(path, &t, NULL), KVA_OK);
  assert_int_equal(kva_npy_read(path, KVA_F4E2M1, NULL, &back), KVA_OK);
  assert_int_equal(back.dtype, KVA_F4E2M1);
  assert_memory_equal(back.data, nibbles, 2);
  kva_npy_free(&back);
  t = (kva_tensor){KVA_STRING, 0, {0}, nibbles};
  assert_int_equal(kva_npy_write(path, &t, NULL), KVA_UNSUPPORTED);
}

static void headers_as_numpy_writes_them(void **unused) {
  (void)unused;
  const struct {
    const char *dict;
    int rank;
    int64_t dims[3];
  } good[] = {
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (), }   \n", 0, {0}},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n", 1, {1}},
      {"{\"shape\":(1,1,1),\"fortran_order\":False,\"descr\":\"<f4\"}", 3, {1, 1, 1}},
      {"{'descr': '=f4', 'fortran_order': True, 'shape': (1,)}", 1, {1}},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1, ), }\n", 2, {1, 1}},
  };
  float value = 2.5f;
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    kva_tensor t;
    assert_int_equal(parse(good[i].dict, (char *)&value, 4, NULL, &t), KVA_OK);
    assert_int_equal(t.rank, good[i].rank);
    for (int d = 0; d < t.rank; d++) assert_int_equal(t.dims[d], good[i].dims[d]);
    assert_true(*(float *)t.data == 2.5f);
    kva_npy_free(&t);
  }
  kva_tensor t;
  assert_int_equal(parse("{'descr': '|b1', 'fortran_order': False, 'shape': (0, 7)}", "", 0, NULL, &t), KVA_OK);
  assert_int_equal(t.dims[1], 7);
  kva_npy_free(&t);
}

/* A transposed array is saved in Fortran order, and files of other machines may be big-endian. */
static void other_orders_are_read(void **unused) {
  (void)unused;
  const struct {
    const char *descr, *bytes, *expected;
    int size;
  } cases[] = {
      {"|u1", "AEICGKBFJDHL", "ABCDEFGHIJKL", 1},
      {">i2", "AaEeIiCcGgKkBbFfJjDdHhLl", "aAbBcCdDeEfFgGhHiIjJkKlL", 2},
      {"<i2", "AaEeIiCcGgKkBbFfJjDdHhLl", "AaBbCcDdEeFfGgHhIiJjKkLl", 2},
      {">V2", "AaEeIiCcGgKkBbFfJjDdHhLl", "AaBbCcDdEeFfGgHhIiJjKkLl", 2},
      {">c8", "ABCDabcdABCDabcdABCDabcdABCDabcdABCDabcdABCDabcdABCDabcdABCDabcdABCDabcdABCDabcdABCDabcdABCDabcd",
       "DCBAdcbaDCBAdcbaDCBAdcbaDCBAdcbaDCBAdcbaDCBAdcbaDCBAdcbaDCBAdcbaDCBAdcbaDCBAdcbaDCBAdcbaDCBAdcba", 8},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char dict[128];
    kva_tensor t;
    snprintf(dict, sizeof dict, "{'descr': '%s', 'fortran_order': True, 'shape': (3, 2, 2), }", cases[i].descr);
    assert_int_equal(parse(dict, cases[i].bytes, 12 * (size_t)cases[i].size, NULL, &t), KVA_OK);
    assert_int_equal(kva_tensor_bytes(&t), 12 * cases[i].size);
    assert_memory_equal(t.data, cases[i].expected, 12 * (size_t)cases[i].size);
    kva_npy_free(&t);
  }
}

/* What is used in place cannot be put in order. */
static void views_are_in_order(void **unused) {
  (void)unused;
  static const char big[] = "\x93NUMPY\1\0\x39\0{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }abcd";
  static const char fortran[] = "\x93NUMPY\1\0\x3a\0{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1), }abcd";
  kva_tensor t;
  assert_int_equal(kva_npy_view("x.npy", big, sizeof big - 1, NULL, &t), KVA_UNSUPPORTED);
  assert_int_equal(kva_npy_view("x.npy", fortran, sizeof fortran - 1, NULL, &t), KVA_UNSUPPORTED);
  assert_null(t.data);
}

static void written_header_is_what_numpy_expects(void **unused) {
  (void)unused;
  int32_t v[] = {1, 2};
  kva_tensor t = {KVA_I32, 1, {2}, v};
  assert_int_equal(kva_npy_write(path, &t, NULL), KVA_OK);
  FILE *f = fopen(path, "rb");
  char file[256];
  size_t n = fread(file, 1, sizeof file, f);
  fclose(f);
  assert_int_equal(n, 128 + 8);
  assert_memory_equal(file, "\x93NUMPY\1\0v\0{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }", 67);
  assert_int_equal(file[127], '\n');
}

static void malformed_files_are_refused(void **unused) {
  (void)unused;
  const struct {
    const char *dict, *message;
  } bad[] = {
      {"", "expected '{'"},
      {"{", "expected a key"},
      {"{'descr", "expected a key"},
      {"{'descr'", "expected ':'"},
      {"{'descr': ", "expected a type"},
      {"{'descr': [('a', '<f4')]}", "structured types"},
      {"{'descr': '<V3', 'fortran_order': False, 'shape': ()}", "elements of type '<V3'"},
      {"{'descr': '', 'fortran_order': False, 'shape': ()}", "elements of type ''"},
      {"{'descr': '<f4', 'fortran_order': Maybe, 'shape': ()}", "True or False"},
      {"{'descr': '<f4', 'fortran_order': False}", "all of the keys"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': 4}", "a tuple"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (", "an extent"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", "an extent"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1 1)}", "',' or ')'"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", "an extent"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,)}", "too large"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}", "too large"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,1,1,1,1,1,1,1,1)}", "more than 8"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", "needs 8 bytes of elements, the file has 4"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}", "needs 0 bytes of elements, the file has 4"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': ()} x", "the end of the header"},
      {"{'descr': '<f4', 'fortran_order': False, 'shape': (), 'extra': 1}", "one of the keys"},
      {"{'descr': '<f4' 'shape': ()}", "',' or '}'"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    kva_diag *diag = kva_diag_create();
    kva_tensor t;
    assert_int_not_equal(parse(bad[i].dict, "abcd", 4, diag, &t), KVA_OK);
    const char *text = kva_diag_message(diag, 0, NULL, NULL);
    if (!strstr(text, bad[i].message)) fail_msg("case %zu: expected '%s' in '%s'", i, bad[i].message, text);
    assert_null(t.data);
    kva_diag_destroy(diag);
  }
}

/* Every prefix of a good file, and a version and length that lie. */
static void truncated_files_are_refused(void **unused) {
  (void)unused;
  static const char good[] = "\x93NUMPY\2\0\x37\0\0\0{'descr': '<f4', 'fortran_order': False, 'shape': (), }abcd";
  kva_tensor t;
  for (size_t n = 0; n <= sizeof good - 1; n++) {
    char *exact = malloc(n + 1);
    memcpy(exact + 1, good, n);
    kva_status status = kva_npy_parse("x.npy", exact + 1, n, KVA_DTYPE_NONE, NULL, &t);
    assert_int_equal(status == KVA_OK, n == sizeof good - 1);
    if (!status) kva_npy_free(&t);
    free(exact);
  }
  char file[sizeof good];
  memcpy(file, good, sizeof good);
  file[6] = 4;
  assert_int_equal(kva_npy_parse("x.npy", file, sizeof good - 1, KVA_DTYPE_NONE, NULL, &t), KVA_UNSUPPORTED);
  file[6] = 2;
  file[11] = (char)0xff;
  assert_int_equal(kva_npy_parse("x.npy", file, sizeof good - 1, KVA_DTYPE_NONE, NULL, &t), KVA_INVALID);
  kva_diag *diag = kva_diag_create();
  assert_int_equal(kva_npy_read("no/such/file.npy", KVA_DTYPE_NONE, diag, &t), KVA_IO);
  assert_int_equal(kva_diag_errors(diag), 1);
  kva_diag_destroy(diag);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(types_round_trip),
      cmocka_unit_test(types_of_ml_dtypes),
      cmocka_unit_test(narrow_types_are_widened),
      cmocka_unit_test(headers_as_numpy_writes_them),
      cmocka_unit_test(other_orders_are_read),
      cmocka_unit_test(views_are_in_order),
      cmocka_unit_test(written_header_is_what_numpy_expects),
      cmocka_unit_test(malformed_files_are_refused),
      cmocka_unit_test(truncated_files_are_refused),
  };
  return cmocka_run_group_tests(tests, make_file, remove_file);
}
