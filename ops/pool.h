/* What the pools share: attributes (made by one list in attrs.h), types, and the window of a node. */
#ifndef KVA_OPS_POOL_H
#define KVA_OPS_POOL_H

#include "ops/window.h"

/* The attributes that max_pool, avg_pool and their gradients begin with, as a list of arguments. */
#define KVA_POOL_LISTS(a) (a)->kernel, (a)->strides, (a)->pads, (a)->dilations
#define KVA_POOL_WINDOW(a) \
  kva_window_get((a)->kernel.n, (a)->kernel.v, (a)->strides, (a)->pads, (a)->dilations, (a)->ceil_mode)

/* Result type of a pool over operand i. */
KVA_MUST_USE kva_status kva_pool_infer(kva_module *m, const kva_node *n, const kva_window *w,
                                       const kva_type **out_type);
/* Type of x from dy (operand i): its batch and channels with `spatial` extents; checks that the window maps them to
 * dy's. */
KVA_MUST_USE kva_status kva_pool_grad_infer(kva_module *m, const kva_node *n, uint32_t i, const kva_window *w,
                                            kva_dims spatial, const kva_type **out_type);

/* avg_pool's divisor for output position o: taps that count. */
int64_t kva_avg_pool_count(const kva_window *w, const int64_t *in, const int64_t *o, bool include_pad);
kva_kval kva_avg_pool_divisor(kva_kb *kb, const kva_window *w, const kva_dim *in, const kva_expr *const *o,
                              bool include_pad, kva_dtype t);

#endif
