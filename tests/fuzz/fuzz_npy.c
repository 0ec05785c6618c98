/* Bytes as a .npy file. */
#include "tests/fuzz/fuzz.h"
#include "runtime/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kva_diag *diag = kva_diag_create();
  kva_tensor copy = {0}, view = {0};
  kva_status parsed = kva_npy_parse("fuzz.npy", data, size, KVA_DTYPE_NONE, diag, &copy);
  fuzz_answer(parsed, parsed == KVA_OK, diag);
  kva_status viewed = kva_npy_view("fuzz.npy", data, size, diag, &view);
  fuzz_answer(viewed, viewed == KVA_OK, diag);
  if (parsed == KVA_OK && viewed == KVA_OK) {
    int64_t bytes = kva_tensor_bytes(&view);
    fuzz_require(bytes >= 0 && bytes == kva_tensor_bytes(&copy), "copy and view differ in size");
    fuzz_require(!bytes || !memcmp(copy.data, view.data, (size_t)bytes), "copy and view differ");
  }
  if (parsed == KVA_OK) kva_npy_free(&copy);
  kva_diag_destroy(diag);
  return 0;
}
