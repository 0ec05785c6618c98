/* Shared by cache_append and its kernel. */
#ifndef KVA_OPS_CACHE_APPEND_H
#define KVA_OPS_CACHE_APPEND_H

#include "ops/build.h"

enum { KVA_CACHE, KVA_CACHE_ROWS, KVA_CACHE_POSITION };

/* The axis that counts rows, of a checked node. */
uint32_t kva_cache_axis(const kva_node *n);

#endif
