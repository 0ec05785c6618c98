/* The online softmax of a warp's 16 rows (flash.h): maxima and sums over the far positions seen so far. */
#ifndef KVA_KERNELS_NV_ATTENTION_SOFTMAX_H
#define KVA_KERNELS_NV_ATTENTION_SOFTMAX_H

#include "codegen/kernels/nv/attention/flash.h"

/* Of the thread's two rows, except s. */
typedef struct kva_flash_softmax {
  const kva_flash *f;
  kva_kbuf *s;         /* the thread's part of [16][far]: scores, in units of f->factor, then their exponentials */
  kva_kbuf *max, *sum; /* sum: of this thread's columns */
  kva_kbuf *shift;     /* kva_flash_shift of max, 0 while a row has seen nothing */
  kva_kbuf *rescale;   /* factor for earlier sums when the maximum rises; finally 1 / sum */
} kva_flash_softmax;

/* Creates the other buffers, for rows that have seen nothing. */
void kva_flash_softmax_start(kva_flash_softmax *x, const kva_flash *f, kva_kbuf *s);
/* s: products -> scores of keys key0 on; `masked`: some may be invisible, or past the end. */
void kva_flash_softmax_scores(const kva_flash_softmax *x, const kva_expr *key0, bool masked);
/* Raises max to that of s; updates shift and rescale; rescales sum. */
void kva_flash_softmax_raise(const kva_flash_softmax *x);
/* s = exp2(factor * (s - max)), added to sum. */
void kva_flash_softmax_exponentials(const kva_flash_softmax *x);
/* Stores lse, -inf for a row that saw nothing; rescale = 1 / sum, 0 for such a row. */
void kva_flash_softmax_finish(const kva_flash_softmax *x);

#endif
