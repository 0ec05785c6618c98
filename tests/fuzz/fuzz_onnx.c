/* Bytes as an ONNX model: loaded, or refused with a message. What loads is a valid module, whose dump reads back. */
#include "tests/fuzz/fuzz.h"
#include "frontend/frontend.h"

static void read_back(kva_module *m, kva_diag *diag) {
  kva_text text = {0}, again = {0};
  kva_module *copy;
  kva_module_print(m, &text);
  kva_status status = kva_load_text(text.data, "dump", &(kva_load_options){.data_from = m}, diag, &copy);
  if (status == KVA_OK) {
    kva_module_print(copy, &again);
    kva_module_destroy(copy);
  }
  bool equal = status == KVA_OK && !strcmp(text.data, again.data);
  if (!equal) fprintf(stderr, "%s\n%s\n", text.data, again.data ? again.data : "");
  if (!equal) kva_diag_print(diag, stderr);
  fuzz_require(equal, "the dump of a model does not read back");
  kva_text_free(&text);
  kva_text_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  const char *path = fuzz_file(data, size);
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_ref_tensor *tensor = NULL;
  kva_status status = kva_load_model(path, &(kva_load_options){0}, diag, &m);
  fuzz_answer(status, m != NULL, diag);
  if (fuzz_prints()) kva_diag_print(diag, stderr);
  if (m) {
    fuzz_require(kva_module_verify(m) == KVA_OK, "a loaded model is not valid");
    read_back(m, diag);
    kva_module_destroy(m);
  }
  kva_diag_destroy(diag);
  diag = kva_diag_create();
  status = kva_read_tensor_proto(path, diag, &tensor);
  fuzz_answer(status, tensor != NULL, diag);
  kva_ref_tensor_free(tensor);
  kva_diag_destroy(diag);
  return 0;
}
