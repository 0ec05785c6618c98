/* Explicit windows of convolutions and pools, from the attributes of ONNX nodes. */
#ifndef KVA_FRONTEND_ONNX_WINDOW_H
#define KVA_FRONTEND_ONNX_WINDOW_H

#include "frontend/onnx_rules.h"
#include "ops/codes.h"

enum { KVA_ONNX_MAX_SPATIAL = KVA_MAX_RANK - 2 };

typedef enum kva_onnx_auto_pad {
  KVA_PAD_EXPLICIT,
  KVA_PAD_SAME_UPPER,
  KVA_PAD_SAME_LOWER,
  KVA_PAD_VALID
} kva_onnx_auto_pad;

typedef struct kva_onnx_window {
  uint32_t n; /* spatial axes */
  int64_t kernel[KVA_ONNX_MAX_SPATIAL], strides[KVA_ONNX_MAX_SPATIAL], dilations[KVA_ONNX_MAX_SPATIAL];
  int64_t pads[2 * KVA_ONNX_MAX_SPATIAL]; /* all begins, then all ends */
  kva_onnx_auto_pad auto_pad;
  bool free; /* the weights have a symbolic extent, for which the kernel has 0 */
} kva_onnx_window;

/* The weights with the extents that attribute kernel_shape gives their windows. */
kva_value *kva_onnx_shaped_weight(kva_onnx_call *k, kva_value *weight);
/* Reads the attributes for an input of rank n + 2. The kernel comes from kernel_shape or, if `weight` is not NULL, from
 * its dimensions. auto_pad is read but not resolved to pads. */
KVA_MUST_USE kva_status kva_onnx_read_window(kva_onnx_call *k, const kva_value *weight, kva_onnx_window *out);
/* Means of x (input 0, possibly transformed) over windows according to the node's attributes. */
KVA_MUST_USE kva_status kva_onnx_average(kva_onnx_call *k, kva_value *x, kva_value **out);
/* Convolution of x (input 0, possibly transformed) with w according to the node's attributes, without bias. */
KVA_MUST_USE kva_status kva_onnx_convolve(kva_onnx_call *k, kva_value *x, kva_value *w, kva_value **out);
/* The same of codes, in int32. x.zero is a scalar, w.zero a scalar or one for each channel of the result. */
KVA_MUST_USE kva_status kva_onnx_convolve_codes(kva_onnx_call *k, kva_codes x, kva_codes w, kva_value **out);
/* kva_onnx_convolve for a kernel whose extents are symbolic (w->free): padding and one product. */
KVA_MUST_USE kva_status kva_onnx_convolve_free(kva_onnx_call *k, kva_value *x, kva_value *weight,
                                               const kva_onnx_window *w, int64_t group, kva_value **out);
/* ConvTranspose of input 0. wanted: attribute output_shape, for spatial axes; or empty. */
KVA_MUST_USE kva_status kva_onnx_convolve_transposed_free(kva_onnx_call *k, kva_value *weight, const kva_onnx_window *w,
                                                          int64_t group, kva_ints wanted, kva_value **out);
/* y[n, m, o] = sum of x[n, c, o * stride + tap * dilation] w[m, c, tap] over the channels of m's group and all taps:
 * Conv without padding. `group` may be symbolic, and divides the channels. */
KVA_MUST_USE kva_status kva_onnx_correlate(kva_onnx_call *k, kva_value *x, kva_value *w, kva_dim group,
                                           const int64_t *strides, const int64_t *dilations, kva_value **out);
/* x with a scalar (NULL: zero) around its spatial axes; negative amounts crop. */
kva_value *kva_onnx_pad_spatial(kva_onnx_call *k, kva_value *x, kva_value *fill, const kva_dim *before,
                                const kva_dim *after);
/* Whether auto_pad's amounts depend on a symbolic extent; and x padded by them, after which w pads no more. */
bool kva_onnx_pads_by_extent(const kva_onnx_window *w, const kva_value *x);
kva_value *kva_onnx_pad_same(kva_onnx_call *k, kva_value *x, kva_value *fill, kva_onnx_window *w);
/* The padding that auto_pad SAME_* adds around spatial axis i of input 0 for a window that spans `span` elements. */
void kva_onnx_same_padding(kva_onnx_call *k, const kva_onnx_window *w, uint32_t i, kva_dim span, kva_dim *before,
                           kva_dim *after);
/* Resolves auto_pad SAME_* to pads for the forward direction (Conv and pools). */
KVA_MUST_USE kva_status kva_onnx_resolve_same(kva_onnx_call *k, kva_onnx_window *w);
/* (kernel - 1) * dilation + 1 */
static inline int64_t kva_onnx_span(const kva_onnx_window *w, uint32_t i) {
  return (w->kernel[i] - 1) * w->dilations[i] + 1;
}

#endif
