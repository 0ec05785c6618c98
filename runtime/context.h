/* A compiled model inside another program: generated headers declare wrappers of these functions. Every compiled model
 * defines <prefix>_create, <prefix>_destroy, <prefix>_error and one function per program, which call these.
 *
 * No global state: contexts are independent, and different threads may use different contexts; one thread at a time
 * uses one context. Nothing is printed and nothing ends the process. A null pointer where none is allowed is wrong
 * input. Functions that return int give 0 for success, else 1 wrong input, 2 unsupported, 3 the machine lacks
 * something, 4 input or output failed, 5 no memory. */
#ifndef KVA_RUNTIME_CONTEXT_H
#define KVA_RUNTIME_CONTEXT_H

#include "runtime/base/host.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kva_artifact;
typedef struct kva_context kva_context;

/* All zero, or a null pointer in its place, is a good default: one thread, the system's memory. */
typedef struct kva_context_options {
  int threads;   /* 0: the caller's thread only; -1: as many as the process may use */
  int spin;      /* not 0: threads spin briefly before they sleep: faster, but busy for a while after each call */
  uint64_t seed; /* for parameters without values */
  const kva_allocator *allocator; /* NULL: the system's. Must outlive the context; accessed through the pointer */
  const kva_parallel *parallel;   /* the caller's threads in place of own ones; same lifetime as allocator */
  void *arena;                    /* memory for temporaries, aligned to 64 bytes; NULL: allocated when shapes change */
  size_t arena_bytes;             /* see kva_context_arena_bytes */
  const char *weights;            /* path of the file that `kvasir build --weights FILE` wrote; else NULL */
  const char *device;             /* "cpu" (NULL), or a device of kvasir run --device that the runtime includes */
} kva_context_options;

/* On failure, `message` (may be NULL) receives the reason, cut to message_size bytes. */
int kva_context_create(const struct kva_artifact *artifact, const kva_context_options *options,
                       kva_context **out_context, char *message, size_t message_size);
void kva_context_destroy(kva_context *context);
/* Why the last call failed; "" after a success. Never null, also for a null context. */
const char *kva_context_error(const kva_context *context);

/* Runs a program of the artefact. inputs and outputs hold one pointer per input and output, in the program's order;
 * dims holds the values of its shape symbols, in its order. A null output is set to memory of the context, valid until
 * the program's next run. A call with the same dims as the last one allocates nothing. */
int kva_context_run(kva_context *context, int program, const void *inputs, void *outputs, const void *dims);

/* The values of the shape symbols in the program's last run, in its order. For a program whose sizes depend on data: it
 * ignores what `dims` of a run says of symbols that its steps find, and gives them here. */
void kva_context_dims(const kva_context *context, int program, void *out_dims);

/* Bytes of temporaries for these shapes, as needed by kva_context_options.arena; -1: no such program, or
 * impossible shapes. */
int64_t kva_context_arena_bytes(const struct kva_artifact *artifact, int program, const void *dims);

#ifdef __cplusplus
}
#endif

#endif
