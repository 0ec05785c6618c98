/* Compiled code on disk, found by its inputs.
 *
 * A folder with one file for each entry, named by the hash of its key. The file holds the whole key, which is compared,
 * so a hash collision is a miss; and a checksum of the code, so a damaged entry is a miss. Nothing here is an error:
 * without a usable folder there is no cache. A folder that others may write to is not used, because its code would be
 * executed. Processes may share a folder: renaming makes entries appear complete. */
#ifndef KVA_CODEGEN_CACHE_H
#define KVA_CODEGEN_CACHE_H

#include "runtime/base/platform.h"

typedef struct kva_cache {
  const char *folder; /* created when the first entry is added */
  int64_t max_bytes;  /* of all entries; beyond it the least recently used ones are removed; 0: no limit */
} kva_cache;

/* Everything that the code depends on, in two parts. */
typedef struct kva_cache_key {
  kva_file_part parts[2];
} kva_cache_key;

/* Finds an entry; false: none. *out_code points into *out_entry, which the caller unmaps. */
bool kva_cache_find(const kva_cache *cache, const kva_cache_key *key, kva_file *out_entry, kva_file_part *out_code);
void kva_cache_add(const kva_cache *cache, const kva_cache_key *key, kva_file_part code);

typedef struct kva_cache_usage {
  bool usable; /* the folder does not exist yet, or belongs to the user alone */
  int64_t entries, bytes;
} kva_cache_usage;
kva_cache_usage kva_cache_measure(const kva_cache *cache);

#endif
