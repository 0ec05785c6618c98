/* Pass recompute: what choosing (recompute.c) and rewriting (recompute_rewrite.c) share. */
#ifndef KVA_PASSES_RECOMPUTE_H
#define KVA_PASSES_RECOMPUTE_H

#include "passes/passes_internal.h"

/* Steps of one function that run again. A step is dropped behind step p if what comes later than p reads results that
 * a copy of it computes, just before they are needed; KVA_KEPT: it is not dropped. */
#define KVA_KEPT INT32_MAX

typedef struct kva_drops {
  const kva_memory_plan *plan; /* of the function before it changes */
  int32_t *made_by;            /* by buffer: the step that computes it; -1: none, or more than one */
  int32_t *behind;             /* by step */
} kva_drops;

/* Whether step `reader` reads a copy of buffer b. */
static inline bool kva_reads_copy(const kva_drops *d, int32_t b, int32_t reader) {
  int32_t step = d->made_by[b];
  return step >= 0 && d->behind[step] < reader;
}

/* Copies the dropped steps to where they are needed. */
void kva_insert_copies(kva_module *m, const kva_drops *d);

#endif
