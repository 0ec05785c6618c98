/* own_part(x) -> y: this process's part of x, which all `parts` processes of a mesh have (ops/exchange.h). Nothing is
 * sent. Exact: a copy. Reference: the part of process 0. */
#include "ops/exchange.h"

KVA_OP_FUNCTIONS(own_part)

kva_status kva_own_part_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  return kva_infer_part(m, n, out_types);
}

kva_status kva_own_part_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                            kva_ref_tensor *const *out) {
  (void)r, (void)n;
  kva_ref_part(in[0], out[0], 1);
  return KVA_OK;
}
