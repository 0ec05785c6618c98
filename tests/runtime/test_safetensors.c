/* safetensors files: what is written reads back; what the format forbids is refused with the reason; damaged headers,
 * 12000 of them, never crash and never hand out tensors outside of the file. */
#include "runtime/base/platform.h"
#include "runtime/safetensors.h"

#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static char path[] = "/tmp/kvasir-safetensors-XXXXXX";

static int make_file(void **state) {
  (void)state;
  int fd = mkstemp(path);
  return fd < 0 || close(fd);
}

static int remove_file(void **state) {
  (void)state;
  return remove(path);
}

static const float floats[6] = {1, -2, 0.5f, 3e8f, 1e-30f, -0.0f};
static const uint8_t bytes[3] = {7, 0, 255};
static const int64_t longs[2] = {INT64_MIN, 42};
static const uint16_t halves[5] = {0x3f80, 0x4000, 0, 1, 0xffff};

static const kva_named_tensor samples[] = {
    {"w", {.dtype = KVA_F32, .rank = 2, .dims = {2, 3}, .data = (void *)floats}},
    {"b\"ytes\n\xc3\xa4", {.dtype = KVA_U8, .rank = 1, .dims = {3}, .data = (void *)bytes}},
    {"long", {.dtype = KVA_I64, .rank = 1, .dims = {2}, .data = (void *)longs}},
    {"scalar", {.dtype = KVA_F8E4M3FN, .rank = 0, .data = (void *)bytes}},
    {"bf16", {.dtype = KVA_BF16, .rank = 1, .dims = {5}, .data = (void *)halves}},
    {"f16", {.dtype = KVA_F16, .rank = 3, .dims = {1, 5, 1}, .data = (void *)halves}},
    {"empty", {.dtype = KVA_F64, .rank = 2, .dims = {0, 7}, .data = NULL}},
};
enum { N_SAMPLES = sizeof samples / sizeof *samples };

static void write_samples(void) {
  const kva_metadata metadata[] = {{"format", "pt"}, {"quoted", "a \"b\" \\ \t"}};
  assert_int_equal(kva_safetensors_write(path, N_SAMPLES, samples, 2, metadata, NULL), KVA_OK);
}

static void what_is_written_reads_back(void **state) {
  (void)state;
  kva_safetensors *f;
  write_samples();
  assert_int_equal(kva_safetensors_open(path, NULL, &f), KVA_OK);
  assert_int_equal(kva_safetensors_count(f), N_SAMPLES);
  for (int i = 0; i < N_SAMPLES; i++) {
    kva_tensor t;
    const kva_tensor *own = &samples[i].tensor;
    assert_true(kva_safetensors_find(f, samples[i].name, &t));
    assert_int_equal(t.dtype, own->dtype);
    assert_int_equal(t.rank, own->rank);
    for (int d = 0; d < t.rank; d++) assert_int_equal(t.dims[d], own->dims[d]);
    if (kva_tensor_bytes(own)) assert_memory_equal(t.data, own->data, (size_t)kva_tensor_bytes(own));
  }
  assert_string_equal(kva_safetensors_metadata(f, "quoted"), "a \"b\" \\ \t");
  assert_null(kva_safetensors_metadata(f, "other"));
  kva_tensor t;
  assert_false(kva_safetensors_find(f, "wx", &t));
  kva_safetensors_close(f);
  kva_named_tensor strings = {"s", {.dtype = KVA_STRING, .rank = 0}};
  assert_int_equal(kva_safetensors_write(path, 1, &strings, 0, NULL, NULL), KVA_UNSUPPORTED);
}

/* Data behind a header of odd length are copies, which releasing must not clear. */
static void released_data_are_read_again(void **state) {
  (void)state;
  enum { N = 1 << 18 }; /* whole pages of memory of its own */
  static const char header[] = "{\"w\":{\"dtype\":\"U16\",\"shape\":[262144],\"data_offsets\":[0,524288]}}";
  for (size_t blanks = 0; blanks < 2; blanks++) {
    static uint16_t values[N];
    const uint64_t length = sizeof header - 1 + blanks;
    const kva_file_part parts[] = {{&length, 8}, {header, sizeof header - 1}, {" ", blanks}, {values, sizeof values}};
    kva_safetensors *f;
    kva_tensor t;
    for (int i = 0; i < N; i++) values[i] = (uint16_t)(i + 1);
    assert_int_equal(kva_file_write_parts(path, 4, parts, NULL), KVA_OK);
    assert_int_equal(kva_safetensors_open(path, NULL, &f), KVA_OK);
    kva_safetensors_release(f, 0);
    (void)kva_safetensors_at(f, 0, &t);
    assert_memory_equal(t.data, values, sizeof values);
    kva_safetensors_close(f);
  }
}

/* A file of this header and n bytes of data. */
static kva_status parse_text(const char *header, size_t n, kva_diag *diag, kva_safetensors **out) {
  static _Alignas(8) unsigned char file[4096];
  size_t length = strlen(header);
  assert_true(8 + length + n <= sizeof file);
  memset(file, 0, sizeof file);
  memcpy(file, &length, 8);
  memcpy(file + 8, header, length);
  for (size_t i = 0; i < n; i++) file[8 + length + i] = (unsigned char)i;
  return kva_safetensors_parse("test", file, 8 + length + n, diag, out);
}

#define F32(begin, end) "{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[" #begin "," #end "]}"

static void misfits_are_explained(void **state) {
  (void)state;
  static const struct {
    const char *header;
    size_t n;
    const char *message;
  } cases[] = {
      {"", 0, "expected '{'"},
      {" {}", 0, "expected '{'"},
      {"{} x", 0, "nothing but spaces"},
      {"{", 0, "expected a string"},
      {"{\"a\"}", 0, "expected ':'"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"data_offsets\" of every tensor"},
      {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 4, "once"},
      {"{\"a\":{\"dtype\":\"Q5\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "type 'Q5', which is unknown"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "whole number"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[01],\"data_offsets\":[0,4]}}", 4, "whole number"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[9223372036854775808],\"data_offsets\":[0,4]}}", 4, "below 2^63"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,8],\"data_offsets\":[0,4]}}", 4, "its shape needs"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, "more than 8 dimensions"},
      {"{\"a\":" F32(0, 8) "}", 8, "its shape needs"},
      {"{\"a\":" F32(4, 0) "}", 4, "its shape needs"},
      {"{\"a\":" F32(0, 4) "}", 3, "the file is cut off"},
      {"{\"a\":" F32(0, 4) "}", 5, "1 bytes of data belong to no tensor"},
      {"{\"a\":" F32(0, 4) ",\"b\":" F32(0, 4) "}", 4, "neither overlap"},
      {"{\"a\":" F32(0, 4) ",\"b\":" F32(8, 12) "}", 12, "nor leave gaps"},
      {"{\"a\":" F32(0, 4) ",\"a\":" F32(4, 8) "}", 8, "two tensors 'a'"},
      {"{\"a\":" F32(0, 4) ",}", 4, "expected a string"},
      {"{\"a\\u0000\":" F32(0, 4) "}", 4, "escape sequence"},
      {"{\"\\ud800\":" F32(0, 4) "}", 4, "escape sequence"},
      {"{\"\xc0\x80\":" F32(0, 4) "}", 4, "UTF-8"},
      {"{\"a\nb\":" F32(0, 4) "}", 4, "control characters"},
      {"{\"__metadata__\":{\"a\":1}}", 0, "expected a string"},
      {"{\"__metadata__\":{\"a\":{}}}", 0, "expected a string"},
      {"{\"__metadata__\":{\"a\":\"1\"},\"__metadata__\":{}}", 0, "\"__metadata__\" once"},
      {"{\"a\":[[[[[[[[[[", 0, "'{' after a tensor's name"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    kva_safetensors *f;
    kva_diag *diag = kva_diag_create();
    assert_int_not_equal(parse_text(cases[i].header, cases[i].n, diag, &f), KVA_OK);
    assert_null(f);
    const char *message = kva_diag_message(diag, 0, NULL, NULL);
    if (!strstr(message, cases[i].message)) fail_msg("%s: %s", cases[i].header, message);
    kva_diag_destroy(diag);
  }
}

static void lengths_of_headers_are_checked(void **state) {
  (void)state;
  kva_safetensors *f;
  unsigned char file[16] = {0};
  assert_int_equal(kva_safetensors_parse("test", file, 7, NULL, &f), KVA_INVALID);
  memset(file, 0xff, 8);
  assert_int_equal(kva_safetensors_parse("test", file, sizeof file, NULL, &f), KVA_INVALID);
  memset(file, 0, 8);
  file[0] = 9; /* one more than there is */
  assert_int_equal(kva_safetensors_parse("test", file, sizeof file, NULL, &f), KVA_INVALID);
}

static void names_are_decoded_and_data_aligned(void **state) {
  (void)state;
  kva_safetensors *f;
  kva_tensor t;
  const char *header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                       "\"\\u00e4\\ud83d\\ude00\\/\":" F32(1, 5) "}   ";
  assert_int_equal(parse_text(header, 5, NULL, &f), KVA_OK);
  assert_true(kva_safetensors_find(f, "\xc3\xa4\xf0\x9f\x98\x80/", &t));
  assert_int_equal((uintptr_t)t.data % 4, 0);
  static const unsigned char expected[4] = {1, 2, 3, 4};
  assert_memory_equal(t.data, expected, 4);
  kva_safetensors_close(f);
}

/* ---- damage ------------------------------------------------------------------------------------------------------ */

static uint32_t draw(uint64_t *counter, uint32_t n) {
  kva_philox r = kva_philox4x32((*counter)++, 0, 77);
  return r.v[0] % n;
}

static size_t damage(unsigned char *file, size_t size, size_t header, uint64_t *counter) {
  static const char interesting[] = "{}[]:,\"\\u0123456789-eE. \n\0\x80\xc3\xff";
  int changes = 1 + (int)draw(counter, 4);
  for (int i = 0; i < changes; i++) {
    size_t at = draw(counter, 10) ? 8 + draw(counter, (uint32_t)header) : draw(counter, 8);
    switch (draw(counter, 6)) {
    case 0: file[at] ^= (unsigned char)(1u << draw(counter, 8)); break;
    case 1: file[at] = (unsigned char)interesting[draw(counter, sizeof interesting)]; break;
    case 2: file[at] = (unsigned char)draw(counter, 256); break;
    case 3: { /* a piece moves */
      size_t from = 8 + draw(counter, (uint32_t)header), n = 1 + draw(counter, 24);
      if (at + n < size && from + n < size) memmove(file + at, file + from, n);
      break;
    }
    case 4: /* digits grow */
      for (size_t k = at; k < size && k < at + 12; k++)
        if (file[k] >= '0' && file[k] <= '9') file[k] = '9';
      break;
    default: /* cut off */
      if (draw(counter, 4) == 0) size = at + 1;
    }
    if (size <= 8 + header) return size;
  }
  return size;
}

/* Every byte that the reader hands out is read: outside of the file, or of memory, the sanitiser or the system stops
 * the test. */
static void read_everything(const kva_safetensors *f, const unsigned char *file, size_t size) {
  static volatile unsigned sum;
  for (int64_t i = 0; i < kva_safetensors_count(f); i++) {
    kva_tensor t;
    assert_non_null(kva_safetensors_at(f, i, &t));
    int64_t n = kva_tensor_bytes(&t);
    assert_true(n >= 0 && (size_t)n <= size);
    for (int64_t k = 0; k < n; k++) sum += ((const unsigned char *)t.data)[k];
  }
  (void)file;
}

static void damaged_headers_never_crash(void **state) {
  (void)state;
  kva_file original;
  write_samples();
  assert_int_equal(kva_file_map(path, NULL, &original), KVA_OK);
  uint64_t header, counter = 0;
  memcpy(&header, original.data, 8);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 12000; i++) {
    unsigned char *file = malloc(original.size); /* exactly as long, so that the sanitiser sees its end */
    assert_non_null(file);
    memcpy(file, original.data, original.size);
    size_t size = damage(file, original.size, (size_t)header, &counter);
    unsigned char *cut = malloc(size);
    assert_non_null(cut);
    memcpy(cut, file, size);
    kva_safetensors *f;
    kva_diag *diag = kva_diag_create();
    if (kva_safetensors_parse("fuzz", cut, size, diag, &f) == KVA_OK) {
      read_everything(f, cut, size);
      kva_safetensors_close(f);
      accepted++;
    } else {
      assert_int_equal(kva_diag_errors(diag), 1);
      refused++;
    }
    kva_diag_destroy(diag);
    free(cut);
    free(file);
  }
  assert_true(refused > 8000 && accepted > 100); /* names may change: those files are sound */
  kva_file_unmap(&original);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_written_reads_back),
      cmocka_unit_test(released_data_are_read_again),
      cmocka_unit_test(misfits_are_explained),
      cmocka_unit_test(lengths_of_headers_are_checked),
      cmocka_unit_test(names_are_decoded_and_data_aligned),
      cmocka_unit_test(damaged_headers_never_crash),
  };
  return cmocka_run_group_tests(tests, make_file, remove_file);
}
