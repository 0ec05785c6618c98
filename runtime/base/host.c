/* Memory from the embedding program's allocator, or from the system. */
#include "runtime/base/platform.h"

#include <stdlib.h>

void *kva_allocate(const kva_allocator *allocator, size_t bytes, size_t alignment) {
  if (bytes > SIZE_MAX / 2) return NULL;
  if (bytes == 0) bytes = 1;
  size_t padded = (bytes + alignment - 1) / alignment * alignment;
  void *memory = allocator ? allocator->allocate(allocator->user, padded, alignment) : aligned_alloc(alignment, padded);
  return memory ? memset(memory, 0, bytes) : NULL;
}

void kva_release(const kva_allocator *allocator, void *memory) {
  if (!memory) return;
  if (allocator)
    allocator->release(allocator->user, memory);
  else
    free(memory);
}
