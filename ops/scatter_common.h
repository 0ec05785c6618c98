/* Operators that write at places that are data: their kernels read and write the result buffer, so they stand alone in
 * a kernel (no KVA_TILE: nothing fuses into them). Deterministic without atomics: a work item owns a slice of the
 * result, walks all indices in order and applies what falls into its slice. */
#ifndef KVA_OPS_SCATTER_COMMON_H
#define KVA_OPS_SCATTER_COMMON_H

#include "ops/build.h"

typedef enum kva_scatter_mode {
  KVA_SCATTER_SET,
  KVA_SCATTER_ADD,
  KVA_SCATTER_MUL,
  KVA_SCATTER_MAX,
  KVA_SCATTER_MIN,
  KVA_SCATTER_UNKNOWN,
} kva_scatter_mode;

/* Of a `reduction` attribute: NULL, "add", "mul", "max", "min". */
kva_scatter_mode kva_scatter_mode_of(const char *reduction);
KVA_MUST_USE kva_status kva_scatter_check(kva_module *m, const kva_node *n, const char *reduction);
/* Element `to` of y = mode(itself, element `from` of x), rounded, as kernels do at every step. */
void kva_scatter_ref(kva_scatter_mode mode, const kva_ref_tensor *x, int64_t from, kva_ref_tensor *y, int64_t to);
/* The same in a kernel on the result's buffer. */
void kva_scatter_store(kva_lower *l, kva_scatter_mode mode, kva_kbuf *buf, const kva_expr *at, kva_kval v);

/* Buffer of a result in a kernel that holds n alone: results are the kernel's last parameters (codegen.h). Only before
 * local buffers are made. */
kva_kbuf *kva_scatter_result(kva_lower *l, const kva_node *n, uint32_t result);

/* Loops over `n` extents, one inside the other; vars[k] become their variables. */
void kva_nest_begin(kva_lower *l, kva_kloop_kind kind, uint32_t n, const kva_dim *extents, kva_kloop **out_loops,
                    const kva_expr **out_vars);
void kva_nest_end(kva_lower *l, uint32_t n, kva_kloop *const *loops);

/* Slices of a row of `extent` elements, a cache line of floats each, for work items to own: begin enters a PARALLEL
 * loop over slices; within it slice->width elements from slice->start. */
typedef struct kva_slice_loop {
  kva_kloop *loop;
  const kva_expr *start, *width;
} kva_slice_loop;
kva_slice_loop kva_slices_begin(kva_lower *l, const kva_expr *extent);
void kva_slices_end(kva_lower *l, const kva_slice_loop *slice);

#endif
