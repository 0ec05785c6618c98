/* Bytes as a GGUF file: every tensor lies in the file, is found by its name, and decodes. */
#include "tests/fuzz/fuzz.h"
#include "tools/checkpoint/checkpoint.h"

#include <stdlib.h>

enum { MOST_DECODED = 1 << 16 };

static void check_tensor(const kva_foreign *f, const kva_foreign_tensor *t, const uint8_t *data, size_t size) {
  int64_t elements = kva_foreign_elements(t), blocks = elements / t->packing->elements;
  int64_t bytes = blocks * t->packing->bytes;
  fuzz_require(elements >= 0 && elements % t->packing->elements == 0, "a tensor that is no whole blocks");
  fuzz_require(t->data >= data && (size_t)(t->data - data) <= size && (size_t)bytes <= size - (size_t)(t->data - data),
               "a tensor outside of the file");
  fuzz_require(kva_foreign_find(f, t->name) == t, "a name that is not found");
  if (elements > MOST_DECODED) return;
  float *values = malloc((size_t)(elements + 1) * sizeof *values);
  if (values) t->packing->decode(t->data, blocks, values);
  free(values);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  kva_diag *diag = kva_diag_create();
  kva_foreign *f = kva_foreign_create("fuzz.gguf", "gguf");
  uint8_t *copy = malloc(size + 1); /* of its own size: reading behind the end shows */
  if (!copy) return 0;
  memcpy(copy, data, size);
  kva_status status = kva_gguf_parse(f, copy, size, diag);
  fuzz_answer(status, status == KVA_OK, diag);
  for (uint32_t i = 0; status == KVA_OK && i < f->tensors.len; i++) check_tensor(f, &f->tensors.data[i], copy, size);
  kva_foreign_close(f);
  kva_diag_destroy(diag);
  free(copy);
  return 0;
}
