#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void fuzz_require(bool holds, const char *what) {
  if (holds) return;
  fprintf(stderr, "finding: %s\n", what);
  abort();
}

bool fuzz_prints(void) {
  const char *s = getenv("KVA_FUZZ_PRINT");
  return s && *s == '1';
}

const char *fuzz_file(const uint8_t *data, size_t size) {
  static char path[64];
  static int file = -1;
  if (file >= 0) close(file);
  file = memfd_create("fuzz", 0);
  fuzz_require(file >= 0 && write(file, data, size) == (ssize_t)size, "no file in memory");
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  return path;
}

void fuzz_answer(kva_status status, bool has_result, const kva_diag *diag) {
  fuzz_require((status == KVA_OK) == has_result, "status and result contradict each other");
  fuzz_require(status == KVA_OK || kva_diag_errors(diag) > 0, "an error without a message");
}

uint32_t fuzz_below(fuzz_bytes *b, uint32_t n) {
  if (!b->n || !n) return 0;
  b->n--;
  return *b->data++ % n;
}
