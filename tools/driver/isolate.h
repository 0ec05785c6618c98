/* Work in a process of its own, so that a crash, or a search without end, is an answer. */
#ifndef KVA_TOOLS_ISOLATE_H
#define KVA_TOOLS_ISOLATE_H

#include "runtime/base/base.h"

typedef struct kva_isolated {
  int (*work)(void *user, kva_text *text); /* returns 0 to 255; the text comes back, cut to the caller's size */
  void *user;
  void *result; /* memory of the caller's that the work fills in, or NULL */
  size_t result_size;
  int64_t seconds; /* limit */
} kva_isolated;

/* What `work` returned; -1: the process ended otherwise, and text says how. text: [size], always terminated. */
int kva_isolate(const kva_isolated *job, char *text, size_t size);

#endif
