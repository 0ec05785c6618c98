/* Memory and threads that a program may provide when it embeds a model. Standalone: includes nothing of Kvasir, so that
 * it can be copied into generated headers. */
#ifndef KVA_BASE_HOST_H
#define KVA_BASE_HOST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory. Called when objects are created and when shapes change, never inside a step, by one thread at a time. */
typedef struct kva_allocator {
  /* `alignment` is a power of two, at most 64; the content is undefined. NULL: no memory. */
  void *(*allocate)(void *user, size_t bytes, size_t alignment);
  void (*release)(void *user, void *memory); /* `memory` came from allocate and is not NULL */
  void *user;
} kva_allocator;

/* Threads: run calls work(ctx, begin, end) for ranges that partition [0, n), in any order and on any threads, and
 * returns when all calls are done. Results do not depend on the partition. */
typedef struct kva_parallel {
  int threads; /* how many may work at once; informative */
  void (*run)(void *user, int64_t n, void (*work)(void *ctx, int64_t begin, int64_t end), void *ctx);
  void *user;
} kva_parallel;

#ifdef __cplusplus
}
#endif

#endif
