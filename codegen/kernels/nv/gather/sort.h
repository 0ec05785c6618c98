/* Integers that a block of a GPU sorts in shared memory. All its threads call these, outside of THREAD loops. */
#ifndef KVA_KERNELS_NV_GATHER_SORT_H
#define KVA_KERNELS_NV_GATHER_SORT_H

#include "ops/build.h"

typedef struct kva_gpu_list {
  kva_kbuf *buf;          /* two alternating halves */
  int64_t half;           /* elements of each, a power of two */
  const kva_expr *stages; /* there are 2^stages elements, at most `half` */
  const kva_expr *first;  /* position in buf */
} kva_gpu_list;

/* A list in the first half, whose 2^stages elements the caller writes: `count` of them, 0 <= count <= half, padded with
 * larger ones up to kva_gpu_list_length. */
kva_gpu_list kva_gpu_list_begin(kva_kb *b, kva_kbuf *buf, int64_t half, const kva_expr *count);
const kva_expr *kva_gpu_list_length(kva_kb *b, const kva_gpu_list *list);
/* Sorts ascending, with barriers before and after; the order of equal elements is unspecified. */
void kva_gpu_list_sort(kva_kb *b, kva_gpu_list *list);
/* Sorting n elements, a power of two, leaves them in the other half. */
bool kva_gpu_list_moves(int64_t n);
/* The number of elements of a sorted list below `limit`; any threads may call it. */
kva_kval kva_gpu_list_below(kva_kb *b, const kva_gpu_list *list, const kva_expr *limit);

#endif
