/* cumsum: y[k] = x[0] + ... + x[k] along `axis`; exclusive: without x[k]; reverse: x[k] + ... + x[last]. Gradient: the
 * same sum of g from the other end.
 * Tolerance 8: the reference adds in double, kernels in the compute type. */
#include "ops/ids.h"
#include "ops/scan_common.h"

KVA_OP_FUNCTIONS(cumsum)

kva_status kva_cumsum_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  return kva_scan_infer(m, n, out_types);
}

kva_status kva_cumsum_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  kva_scan_ref(n, in[0], out[0], false);
  return KVA_OK;
}

kva_status kva_cumsum_vjp(kva_vjp *c, kva_node *n) {
  kva_cumsum_attrs attrs = *(const kva_cumsum_attrs *)n->attrs;
  attrs.reverse = !attrs.reverse;
  c->grad_in[0] = kva_build(c->b, KVA_OP_cumsum, 1, c->grad_out, &attrs);
  return KVA_OK;
}
