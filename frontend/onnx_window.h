/* Explicit windows of convolutions and pools, from the attributes of ONNX nodes. */
#ifndef KVA_FRONTEND_ONNX_WINDOW_H
#define KVA_FRONTEND_ONNX_WINDOW_H

#include "frontend/onnx_rules.h"

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
} kva_onnx_window;

/* Reads the attributes for an input of rank n + 2. The kernel comes from kernel_shape or, if `weight` is not NULL, from
 * its dimensions. auto_pad is read but not resolved to pads. */
KVA_MUST_USE kva_status kva_onnx_read_window(kva_onnx_call *k, const kva_value *weight, kva_onnx_window *out);
/* Convolution of x (input 0, possibly transformed) with w according to the node's attributes, without bias. */
KVA_MUST_USE kva_status kva_onnx_convolve(kva_onnx_call *k, kva_value *x, kva_value *w, kva_value **out);
/* Resolves auto_pad SAME_* to pads for the forward direction (Conv and pools). */
KVA_MUST_USE kva_status kva_onnx_resolve_same(kva_onnx_call *k, kva_onnx_window *w);
/* (kernel - 1) * dilation + 1 */
static inline int64_t kva_onnx_span(const kva_onnx_window *w, uint32_t i) {
  return (w->kernel[i] - 1) * w->dilations[i] + 1;
}

#endif
