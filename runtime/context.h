/* A compiled model inside of another program: what generated headers are made of. Every compiled model defines
 * <prefix>_create, <prefix>_destroy, <prefix>_error and a function for each of its programs, which call these.
 *
 * No global state: contexts are independent of each other and may be used by different threads; one context is used by
 * one thread at a time. Nothing is printed, nothing ends the process. Functions that return int give 0 for success,
 * else 1 wrong input, 2 unsupported, 3 the machine lacks something, 4 input or output failed, 5 no memory. */
#ifndef KVA_RUNTIME_CONTEXT_H
#define KVA_RUNTIME_CONTEXT_H

#include "runtime/base/host.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kva_artifact;
typedef struct kva_context kva_context;

/* All zero, or a null pointer instead, is a good choice: one thread, memory of the system. */
typedef struct kva_context_options {
  int threads;                    /* 0: the caller's alone; -1: as many as the process may use */
  int spin;                       /* not 0: threads spin for a moment before they sleep. Faster, but for a little while
                                     after every call they use the processor */
  uint64_t seed;                  /* of parameters that have no value */
  const kva_allocator *allocator; /* NULL: the system's. Must outlive the context; read through the pointer */
  const kva_parallel *parallel;   /* the caller's threads instead of own ones; likewise */
  void *arena;                    /* memory for temporaries, aligned to 64 bytes; NULL: allocated when shapes change */
  size_t arena_bytes;             /* see kva_context_arena_bytes */
  const char *device;             /* "cpu" (NULL), or what kvasir run --device knows and the runtime was built with */
} kva_context_options;

/* `message` (may be NULL) gets the reason of a failure, cut to message_size bytes. */
int kva_context_create(const struct kva_artifact *artifact, const kva_context_options *options,
                       kva_context **out_context, char *message, size_t message_size);
void kva_context_destroy(kva_context *context);
/* Why the last call failed; "" when it did not. */
const char *kva_context_error(const kva_context *context);

/* Runs a program of the artefact. inputs, outputs: as many pointers as it has, in its order; dims: the values of its
 * shape symbols, in its order. A null output becomes a pointer to memory of the context, valid until the program's next
 * run. When the values of dims are those of the last call, nothing is allocated. */
int kva_context_run(kva_context *context, int program, const void *inputs, void *outputs, const void *dims);

/* Bytes of temporaries that a run needs for these shapes: for kva_context_options.arena. -1: impossible shapes. */
int64_t kva_context_arena_bytes(const struct kva_artifact *artifact, int program, const void *dims);

#ifdef __cplusplus
}
#endif

#endif
