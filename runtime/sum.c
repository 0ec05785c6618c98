/* See sum.h. */
#include "runtime/sum.h"

uint64_t kva_sum_bytes(uint64_t sum, const void *data, size_t size) {
  const char *at = data;
  for (; size >= 8; size -= 8, at += 8) {
    uint64_t word;
    memcpy(&word, at, 8);
    sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
    sum ^= sum >> 29;
  }
  return kva_hash(sum, at, size);
}

uint64_t kva_sum_text(uint64_t sum, const char *text) {
  return kva_hash(sum, text, strlen(text) + 1);
}

uint64_t kva_sum_tensor(uint64_t sum, const char *name, const kva_tensor *t) {
  const int64_t type[2] = {t->dtype, t->rank};
  sum = kva_sum_text(sum, name);
  sum = kva_hash(sum, type, sizeof type);
  sum = kva_hash(sum, t->dims, (size_t)t->rank * sizeof *t->dims);
  return kva_sum_bytes(sum, t->data, (size_t)kva_tensor_bytes(t));
}
