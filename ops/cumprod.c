/* cumprod: y[k] = x[0] ... x[k] along `axis`; exclusive: without x[k]; reverse: x[k] ... x[last]. No gradient rule.
 * Tolerance 16: one rounding per factor; errors of a product accumulate. */
#include "ops/scan_common.h"

KVA_OP_FUNCTIONS(cumprod)

kva_status kva_cumprod_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  return kva_scan_infer(m, n, out_types);
}

kva_status kva_cumprod_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  kva_scan_ref(n, in[0], out[0], true);
  return KVA_OK;
}
