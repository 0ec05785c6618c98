/* Prefix sums and products along an axis: y[k] combines x[0..k], or with `exclusive` x[0..k-1]; with `reverse` from the
 * other end. */
#ifndef KVA_OPS_SCAN_COMMON_H
#define KVA_OPS_SCAN_COMMON_H

#include "ops/build.h"

KVA_MUST_USE kva_status kva_scan_infer(kva_module *m, const kva_node *n, const kva_type **out_types);
void kva_scan_ref(const kva_node *n, const kva_ref_tensor *x, kva_ref_tensor *y, bool product);

#endif
