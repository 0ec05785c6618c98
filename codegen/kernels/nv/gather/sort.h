/* Integers that a block of a GPU sorts in shared memory. All its threads call these, outside of THREAD loops. */
#ifndef KVA_KERNELS_NV_GATHER_SORT_H
#define KVA_KERNELS_NV_GATHER_SORT_H

#include "ops/build.h"

typedef struct kva_gpu_list {
  kva_kbuf *buf;          /* two halves that take turns */
  int64_t half;           /* elements of each, a power of two */
  const kva_expr *stages; /* there are 2^stages elements, at most `half` */
  const kva_expr *first;  /* where in buf */
} kva_gpu_list;

/* A list in the first half, whose 2^stages elements are the caller's to write: `count` of them, 0 <= count <= half, and
 * larger ones up to kva_gpu_list_length. */
kva_gpu_list kva_gpu_list_begin(kva_kb *b, kva_kbuf *buf, int64_t half, const kva_expr *count);
const kva_expr *kva_gpu_list_length(kva_kb *b, const kva_gpu_list *list);
/* Ascending. The list is in memory before and after; where equal elements go is not said. */
void kva_gpu_list_sort(kva_kb *b, kva_gpu_list *list);
/* Does sorting n elements, a power of two, leave them in the other half? */
bool kva_gpu_list_moves(int64_t n);
/* How many elements of a sorted list are below `limit`; by any threads. */
kva_kval kva_gpu_list_below(kva_kb *b, const kva_gpu_list *list, const kva_expr *limit);

#endif
