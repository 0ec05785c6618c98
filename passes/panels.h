/* Matrices in panels, as kernels of a CPU read constant ones: for the passes that make them. */
#ifndef KVA_PASSES_PANELS_H
#define KVA_PASSES_PANELS_H

#include "runtime/base/base.h"

/* A matrix [rows, columns]: element (r, c) is in panel c / width, whose rows lie one after the other. */
typedef struct kva_panels {
  int64_t rows, columns, width;
} kva_panels;

/* The index of element (r, c). */
static inline int64_t kva_panels_place(const kva_panels *p, int64_t r, int64_t c) {
  return (c / p->width * p->rows + r) * p->width + c % p->width;
}

/* Copies elements of `size` bytes, from rows of p->columns, or with `transposed` from columns of p->rows, to panels.
 * What the last panel has beyond the columns stays as it is. */
void kva_panels_fill(const kva_panels *p, void *to, const void *from, size_t size, bool transposed);

#endif
