/* Sums over what files hold. They detect damage, not attacks. Chained by passing the previous result; begin with 0. */
#ifndef KVA_RUNTIME_SUM_H
#define KVA_RUNTIME_SUM_H

#include "runtime/runtime.h"

/* Reads whole words, since files are large. */
uint64_t kva_sum_bytes(uint64_t sum, const void *data, size_t size);
/* A text with its end. */
uint64_t kva_sum_text(uint64_t sum, const char *text);
/* Name, type, shape and data. */
uint64_t kva_sum_tensor(uint64_t sum, const char *name, const kva_tensor *t);

#endif
