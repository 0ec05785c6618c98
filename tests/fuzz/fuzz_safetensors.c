/* Bytes as a safetensors file: every tensor lies in the file or is a copy, and is found by its name. */
#include "tests/fuzz/fuzz.h"
#include "runtime/safetensors.h"

#include <stdlib.h>

static volatile uint8_t seen;

/* A tensor lies in the file, or in a copy where its elements would not be aligned there. Sanitizers see a byte that is
 * read behind the end of either. */
static void check_tensor(const kva_safetensors *file, int64_t i, const uint8_t *data, size_t size) {
  kva_tensor t, found;
  const char *name = kva_safetensors_at(file, i, &t);
  int64_t bytes = kva_tensor_bytes(&t);
  const uint8_t *at = t.data;
  bool copied = at < data || at > data + size;
  size_t room = copied ? size : size - (size_t)(at - data);
  fuzz_require(bytes >= 0 && (size_t)bytes <= room, "a tensor outside of the file");
  for (int64_t k = 0; k < bytes; k++) seen ^= at[k];
  fuzz_require(kva_safetensors_find(file, name, &found) && found.data == t.data, "a name that is not found");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kva_diag *diag = kva_diag_create();
  kva_safetensors *file = NULL;
  uint8_t *copy = malloc(size + 1); /* of its own size: reading behind the end shows */
  if (!copy) return 0;
  memcpy(copy, data, size);
  kva_status status = kva_safetensors_parse("fuzz.safetensors", copy, size, diag, &file);
  fuzz_answer(status, file != NULL, diag);
  for (int64_t i = 0; file && i < kva_safetensors_count(file); i++) check_tensor(file, i, copy, size);
  if (file) kva_safetensors_metadata(file, "kvasir.step");
  if (file) kva_safetensors_close(file);
  kva_diag_destroy(diag);
  free(copy);
  return 0;
}
