/* Shared by cache_append and its kernel. */
#ifndef KVA_OPS_CACHE_APPEND_H
#define KVA_OPS_CACHE_APPEND_H

#include "ops/build.h"

enum { KVA_CACHE, KVA_CACHE_ROWS, KVA_CACHE_POSITION, KVA_CACHE_PAGES };

/* The axis that counts rows, of a checked node. */
uint32_t kva_cache_axis(const kva_node *n);
/* Rows that the cache has room for in a sequence. */
kva_dim kva_cache_capacity(const kva_node *n, kva_expr_ctx *c);

/* Page tables int32[sequences, N], here and of attention_cached: the check of their type, and of the values. */
KVA_MUST_USE kva_status kva_cache_check_pages(kva_module *m, const kva_node *n, uint32_t operand, kva_dim sequences);
KVA_MUST_USE kva_status kva_cache_ref_pages(kva_ref *r, const kva_node *n, const kva_ref_tensor *pages,
                                            int64_t n_pages);

#endif
