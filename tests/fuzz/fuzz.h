/* Fuzz targets: tests/fuzz/fuzz_<name>.c each, a row of targets.txt for every one. libFuzzer drives them in builds with
 * -DKVASIR_FUZZ=ON (clang), driver.c in all others. A target judges one input and returns; a finding ends the process
 * with a message. */
#ifndef KVA_TESTS_FUZZ_FUZZ_H
#define KVA_TESTS_FUZZ_FUZZ_H

#include "runtime/base/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the process where `holds` is false. */
void fuzz_require(bool holds, const char *what);
/* KVA_FUZZ_PRINT=1: targets print what they make of an input. */
bool fuzz_prints(void);

/* A file with these bytes, until the next call: for readers that take a path. */
const char *fuzz_file(const uint8_t *data, size_t size);
/* A reader's answer is a result, or an error with at least one message. */
void fuzz_answer(kva_status status, bool has_result, const kva_diag *diag);

/* Bytes that decide something, one after the other; 0 after the last. */
typedef struct fuzz_bytes {
  const uint8_t *data;
  size_t n;
} fuzz_bytes;
uint32_t fuzz_below(fuzz_bytes *b, uint32_t n);

#endif
