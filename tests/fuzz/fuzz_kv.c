/* Text as a model description: formatted, parsed, elaborated, or refused with a message. Formatted text is formatted
 * already, and means the same. */
#include "tests/fuzz/fuzz.h"
#include "frontend/frontend.h"

#include <stdlib.h>

static void check_format(const char *text) {
  kva_diag *diag = kva_diag_create();
  kva_text once = {0}, twice = {0};
  kva_status status = kva_format_text(text, "fuzz.kv", diag, &once);
  fuzz_require(status == KVA_OK || kva_diag_errors(diag) > 0, "an error without a message");
  if (status == KVA_OK) {
    status = kva_format_text(once.data ? once.data : "", "formatted.kv", diag, &twice);
    bool equal = status == KVA_OK && once.len == twice.len && !memcmp(once.data, twice.data, once.len);
    if (!equal) fprintf(stderr, "%s\n----\n%s\n", once.data, twice.data ? twice.data : "");
    if (!equal) kva_diag_print(diag, stderr);
    fuzz_require(equal, "formatted text is not in canonical form");
  }
  kva_text_free(&once);
  kva_text_free(&twice);
  kva_diag_destroy(diag);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1);
  if (!text) return 0;
  memcpy(text, data, size);
  text[size] = 0;
  check_format(text);
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_status status = kva_load_text(text, "fuzz.kv", &(kva_load_options){0}, diag, &m);
  fuzz_answer(status, m != NULL, diag);
  if (fuzz_prints()) kva_diag_print(diag, stderr);
  if (m) fuzz_require(kva_module_verify(m) == KVA_OK, "a loaded model is not valid");
  if (m) kva_module_destroy(m);
  kva_diag_destroy(diag);
  free(text);
  return 0;
}
