/* Operators that write at data-dependent places. Their kernels read and write the result buffer, so nothing fuses into
 * them (no KVA_TILE). Deterministic without atomics: a work item owns a slice of the result, walks all indices in order
 * and applies those in its slice. */
#ifndef KVA_KERNELS_ANY_SCATTER_SCATTER_H
#define KVA_KERNELS_ANY_SCATTER_SCATTER_H

#include "codegen/kernels/kernels.h"
#include "ops/scatter_common.h"

/* Element `at` of a result's buffer = mode(itself, v). */
void kva_scatter_store(kva_lower *l, kva_scatter_mode mode, kva_kbuf *buf, const kva_expr *at, kva_kval v);

/* Buffer of a result in a kernel that holds only n: results are the kernel's last parameters (codegen.h). Call it
 * before creating local buffers. */
kva_kbuf *kva_scatter_result(kva_lower *l, const kva_node *n, uint32_t result);

/* Slices of a row of `extent` elements, a cache line of floats each, which work items own: begin enters a PARALLEL loop
 * over slices; inside, a slice is slice->width elements from slice->start. */
typedef struct kva_slice_loop {
  kva_kloop *loop;
  const kva_expr *start, *width;
} kva_slice_loop;
kva_slice_loop kva_slices_begin(kva_lower *l, const kva_expr *extent);
void kva_slices_end(kva_lower *l, const kva_slice_loop *slice);

#endif
