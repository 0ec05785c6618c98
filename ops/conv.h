/* Shared by conv and its gradients: x[N, C, spatial], w[M, C/group, kernel], y[N, M, out]. Definition: conv.c. */
#ifndef KVA_OPS_CONV_H
#define KVA_OPS_CONV_H

#include "ops/window.h"

/* Checks that `group` divides the channels. */
KVA_MUST_USE kva_status kva_conv_check_group(kva_module *m, const kva_node *n, int64_t group, kva_dim channels,
                                             const char *of);

/* Checks and reads the window given by the shape of the weights (operand 1). */
KVA_MUST_USE kva_status kva_conv_check_kernel(kva_module *m, const kva_node *n, kva_ints strides, kva_ints pads,
                                              kva_ints dilations);
kva_window kva_conv_window(const kva_type *w, kva_ints strides, kva_ints pads, kva_ints dilations);

/* Reference of all three: y[n,m,o] is a sum of products x * w. `result` says which of x, w, y is accumulated; a and b
 * are the other two in this order. */
typedef enum kva_conv_role { KVA_CONV_X, KVA_CONV_W, KVA_CONV_Y } kva_conv_role;
typedef struct kva_conv_oracle {
  kva_window window;
  int64_t group, N, C, M;  /* all channels */
  const int64_t *in, *out; /* spatial extents of x and y */
} kva_conv_oracle;
void kva_conv_accumulate(const kva_conv_oracle *c, kva_conv_role result, const double *a, const double *b, double *sum);

/* Floating-point operations of all three. */
double kva_conv_products(const kva_sizes *s, const kva_type *y, const kva_type *w);

/* Lowering: base index of a group's first channel plus `channel`, i.e. group_of * per_group + channel. */
static inline const kva_expr *kva_conv_channel(kva_expr_ctx *c, const kva_expr *group, const kva_expr *per_group,
                                               const kva_expr *channel) {
  return kva_expr_add(c, kva_expr_mul(c, group, per_group), channel);
}
/* channels / group */
static inline const kva_expr *kva_conv_per_group(kva_expr_ctx *c, kva_dim channels, int64_t group) {
  return kva_expr_div(c, channels, kva_expr_const(c, group));
}

#endif
