/* Bytes as a tokenizer.json and, behind a zero byte, a text. Every id that comes out of a text is in the vocabulary. */
#include "tests/fuzz/fuzz.h"
#include "tools/tokenizer/tokenizer.h"

#include <stdlib.h>

static void check_text(kva_tokenizer *t, const char *text, size_t size) {
  kva_diag *diag = kva_diag_create();
  kva_token_ids ids = {0};
  kva_text back = {0};
  int64_t replaced = 0;
  kva_status status = kva_tokenizer_encode(t, text, size, diag, &ids, &replaced);
  fuzz_answer(status, status == KVA_OK, diag);
  for (int64_t i = 0; i < ids.n; i++) {
    fuzz_require(ids.data[i] < kva_tokenizer_vocab(t), "a token outside of the vocabulary");
    kva_tokenizer_decode(t, ids.data[i], &back);
  }
  kva_text_free(&back);
  free(ids.data);
  kva_diag_destroy(diag);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char usual[] = " The quick br\xC3\xB6wn fox: 12345 \xF0\x9F\xA6\x8A\xFF\n\n  e\xCC\x81<|endoftext|>";
  const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
  size_t json = zero ? (size_t)(zero - data) : size;
  kva_diag *diag = kva_diag_create();
  kva_tokenizer *t = NULL;
  kva_status status = kva_tokenizer_parse("fuzz.json", (const char *)data, json, diag, &t);
  fuzz_answer(status, t != NULL, diag);
  if (t) {
    check_text(t, usual, sizeof usual - 1);
    if (zero) check_text(t, (const char *)zero + 1, size - json - 1);
    kva_tokenizer_destroy(t);
  }
  kva_diag_destroy(diag);
  return 0;
}
