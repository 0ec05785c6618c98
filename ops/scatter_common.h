/* Operators that write to data-dependent positions. */
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

/* The mode of a `reduction` attribute: NULL, "add", "mul", "max", "min". */
kva_scatter_mode kva_scatter_mode_of(const char *reduction);
KVA_MUST_USE kva_status kva_scatter_check(kva_module *m, const kva_node *n, const char *reduction);
/* Element `to` of y = mode(itself, element `from` of x), rounded at every step like kernels do. */
void kva_scatter_ref(kva_scatter_mode mode, const kva_ref_tensor *x, int64_t from, kva_ref_tensor *y, int64_t to);

#endif
