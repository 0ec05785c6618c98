/* Compiled code on disk, found by what it was made from.
 *
 * A folder with one file an entry, named by the hash of its key. The file holds the whole key, which is compared, so
 * equal hashes of different keys are a miss; and a sum of the code, so damaged entries are a miss. Nothing here is an
 * error: without a folder that can be used there is no cache. A folder that others than its user may write to is not
 * used, because its code would be run. Processes may share a folder: entries appear complete, by renaming. */
#ifndef KVA_CODEGEN_CACHE_H
#define KVA_CODEGEN_CACHE_H

#include "runtime/base/platform.h"

typedef struct kva_cache {
  const char *folder; /* made when the first entry is added */
  int64_t max_bytes;  /* of all entries; the longest unused are removed beyond it */
} kva_cache;

/* All that code depends on, in two pieces. */
typedef struct kva_cache_key {
  kva_file_part parts[2];
} kva_cache_key;

/* false: no such entry. Else the code lies in *out_entry, which the caller unmaps. */
bool kva_cache_find(const kva_cache *cache, const kva_cache_key *key, kva_file *out_entry, kva_file_part *out_code);
void kva_cache_add(const kva_cache *cache, const kva_cache_key *key, kva_file_part code);

typedef struct kva_cache_usage {
  bool usable; /* there is no folder yet, or one that is the user's own */
  int64_t entries, bytes;
} kva_cache_usage;
kva_cache_usage kva_cache_measure(const kva_cache *cache);

#endif
