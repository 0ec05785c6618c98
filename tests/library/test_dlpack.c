/* kvasir.h: tensors from and to DLPack. */
#include "tests/support/library_fixture.h"

#include <stdlib.h>

static void test_dlpack_in(void **state) {
  (void)state;
  float data[7] = {0, 1, 2, 3, 4, 5, 6};
  int64_t dims[] = {2, 3}, rows[] = {3, 1}, columns[] = {1, 2}, one[] = {1, 3}, any[] = {99, 1};
  kvasir_dl_tensor dl = {.data = data,
                         .device_type = 1,
                         .rank = 2,
                         .type_code = 2,
                         .type_bits = 32,
                         .type_lanes = 1,
                         .dims = dims,
                         .byte_offset = 4},
                   saved = dl;
  kvasir_tensor t;
  assert_ok(kvasir_tensor_from_dlpack(&dl, &t, &messages));
  assert_true(t.data == data + 1 && t.type == KVASIR_FLOAT && t.rank == 2 && t.dims[1] == 3);
  dl.strides = rows;
  assert_ok(kvasir_tensor_from_dlpack(&dl, &t, &messages));
  dl.dims = one, dl.strides = any;
  assert_ok(kvasir_tensor_from_dlpack(&dl, &t, &messages));
#define dl_fails(status, text) assert_fails(status, text, kvasir_tensor_from_dlpack(&dl, &t, &messages))
  dl = saved, dl.strides = columns;
  dl_fails(KVASIR_UNSUPPORTED, "strides");
  dl = saved, dl.device_type = 2;
  dl_fails(KVASIR_UNSUPPORTED, "device of type 2");
  dl = saved, dl.type_lanes = 4;
  dl_fails(KVASIR_UNSUPPORTED, "4 lanes");
  dl = saved, dl.type_bits = 31;
  dl_fails(KVASIR_UNSUPPORTED, "31 bits");
  dl = saved, dl.rank = 9;
  dl_fails(KVASIR_UNSUPPORTED, "9 dimensions");
  dl = saved, dims[0] = -2;
  dl_fails(KVASIR_INVALID, "negative");
  dims[0] = INT64_MAX;
  dl_fails(KVASIR_INVALID, "overflows");
#undef dl_fails
  assert_fails(KVASIR_INVALID, "null pointer", kvasir_tensor_from_dlpack(NULL, &t, &messages));
}

static void test_dlpack_out(void **state) {
  (void)state;
  float data[6] = {0, 1, 2, 3, 4, 5};
  kvasir_tensor t = floats(2, 2, 3, data), back;
  kvasir_dl_managed *managed;
  assert_ok(kvasir_tensor_to_dlpack(&t, &managed, &messages));
  assert_ok(kvasir_tensor_from_dlpack(&managed->tensor, &back, &messages));
  assert_true(back.data != data && (uintptr_t)back.data % 64 == 0);
  assert_int_equal(back.dims[0], 2);
  assert_memory_equal(back.data, data, sizeof data);
  managed->destroy(managed);
  for (int32_t type = KVASIR_FLOAT; type <= KVASIR_INT2; type++) {
    char room[64] = {0};
    bool packed = type == KVASIR_UINT4 || type == KVASIR_INT4 || type == KVASIR_FLOAT4E2M1 || type >= KVASIR_UINT2;
    t = (kvasir_tensor){.type = type, .rank = 1, .dims = {2}, .data = room};
    if (!kvasir_type_name(type)) continue;
    if (packed) {
      assert_fails(KVASIR_UNSUPPORTED, kvasir_type_name(type), kvasir_tensor_to_dlpack(&t, &managed, &messages));
      continue;
    }
    assert_ok(kvasir_tensor_to_dlpack(&t, &managed, &messages));
    assert_ok(kvasir_tensor_from_dlpack(&managed->tensor, &back, &messages));
    assert_int_equal(back.type, type);
    managed->destroy(managed);
  }
  t.type = 8;
  assert_fails(KVASIR_INVALID, "wrong type", kvasir_tensor_to_dlpack(&t, &managed, &messages));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      silent(test_dlpack_in),
      silent(test_dlpack_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
