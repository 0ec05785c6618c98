/* Memory of a program: the layout of temporaries in one arena, and the arena. */
#ifndef KVA_RUNTIME_MEMORY_PLAN_H
#define KVA_RUNTIME_MEMORY_PLAN_H

#include "runtime/base/base.h"

enum { KVA_ALIGNMENT = 64 }; /* a cache line and the widest vector */

/* A buffer that is live in steps first..last, inclusive. */
typedef struct kva_lifetime {
  int64_t bytes;
  int32_t first, last;
  int64_t offset;         /* result; a multiple of KVA_ALIGNMENT */
  int64_t at_first, most; /* of kva_plan_memory's own: bytes that are live in step `first`, and most in first..last */
} kva_lifetime;

/* Assigns offsets such that items live at the same step do not overlap; *out_bytes is the arena's size. Depends only on
 * the items and their order. scratch: 2 * n pointers. Allocates nothing. KVA_NO_MEMORY: sizes overflow. */
KVA_MUST_USE kva_status kva_plan_memory(int32_t n, kva_lifetime *items, kva_lifetime **scratch, int64_t *out_bytes);

/* Zeroed memory from the operating system, in huge pages from 4 MiB up. */
typedef struct kva_block {
  void *data; /* KVA_ALIGNMENT-aligned; NULL for 0 bytes */
  int64_t bytes;
  void *mapping;
  size_t mapped;
  const kva_allocator *allocator; /* whose memory it is; NULL: the system's */
} kva_block;
KVA_MUST_USE kva_status kva_block_create(int64_t bytes, kva_block *out_block);
/* Like kva_block_create, from a caller's allocator; NULL: the system's. */
KVA_MUST_USE kva_status kva_block_create_from(const kva_allocator *allocator, int64_t bytes, kva_block *out_block);
void kva_block_destroy(kva_block *block);
/* NULL for any offset into a block of 0 bytes: what lies there has none. */
void *kva_block_at(const kva_block *block, int64_t offset);

/* `bytes` rounded up to KVA_ALIGNMENT; false on overflow. */
bool kva_align_size(int64_t bytes, int64_t *out_bytes);

#endif
