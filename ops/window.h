/* Sliding windows over the spatial axes of x[N, C, spatial...], for convolutions and pools. Tap k of output position o
 * reads position o * stride + k * dilation - before on every axis. Attributes follow ONNX: one entry per spatial axis,
 * pads with all begins first; empty lists mean 1 (strides, dilations) or 0 (pads). */
#ifndef KVA_OPS_WINDOW_H
#define KVA_OPS_WINDOW_H

#include "ops/build.h"

enum { KVA_MAX_SPATIAL = KVA_MAX_RANK - 2 };

typedef struct kva_window {
  uint32_t n; /* spatial axes */
  int64_t kernel[KVA_MAX_SPATIAL], stride[KVA_MAX_SPATIAL], dilation[KVA_MAX_SPATIAL];
  int64_t before[KVA_MAX_SPATIAL], after[KVA_MAX_SPATIAL];
  bool ceil_mode; /* the last window may begin inside x and end beyond the padding */
} kva_window;

/* Checks lengths and values of the lists (n: spatial axes). `kernel` may come from a weight's shape. */
KVA_MUST_USE kva_status kva_window_check(kva_module *m, const kva_node *n, uint32_t n_spatial, kva_ints kernel,
                                         kva_ints strides, kva_ints pads, kva_ints dilations);
kva_window kva_window_get(uint32_t n_spatial, const int64_t *kernel, kva_ints strides, kva_ints pads,
                          kva_ints dilations, bool ceil_mode);
/* Output extents for input extents `in`; reports at n if a window does not fit. */
KVA_MUST_USE kva_status kva_window_extents(kva_module *m, const kva_node *n, const kva_window *w, const kva_dim *in,
                                           kva_dim *out);

static inline int64_t kva_window_position(const kva_window *w, uint32_t axis, int64_t o, int64_t k) {
  return o * w->stride[axis] + k * w->dilation[axis] - w->before[axis];
}
/* Offset, among the spatial elements `dims`, of the element that taps k read for o; -1: outside. */
int64_t kva_window_offset(const kva_window *w, const int64_t *dims, const int64_t *o, const int64_t *k);

/* ---- lowering ---------------------------------------------------------------------------------------------------- */

/* Position that taps k read for o, per axis; returns the condition that all are inside [0, in) (NULL: always). */
kva_kval kva_window_read(kva_kb *kb, const kva_window *w, const kva_dim *in, const kva_expr *const *o,
                         const kva_expr *const *k, const kva_expr **out_at);
/* The inverse: the output position whose taps k read `at`; returns the condition that it exists in [0, out). */
kva_kval kva_window_reader(kva_kb *kb, const kva_window *w, const kva_dim *out, const kva_expr *const *at,
                           const kva_expr *const *k, const kva_expr **out_o);
/* Kernel extents as expressions. */
void kva_window_kernel(kva_expr_ctx *c, const kva_window *w, const kva_expr **out_extents);
/* Context of a tap's code: the node and the element idx of its result. */
typedef struct kva_window_site {
  kva_lower *l;
  const kva_node *n;
  const kva_window *window;
  const kva_expr *const *idx;
} kva_window_site;
/* Combines tap(user, variables) over all taps; the first variable is a channel less than `channels`, unless that is
 * NULL. */
kva_kval kva_window_reduce(kva_kb *kb, const kva_window *w, kva_combine combine, kva_dtype t, const kva_expr *channels,
                           kva_k_body tap, void *user);

#endif
