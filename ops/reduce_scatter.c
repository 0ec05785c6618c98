/* reduce_scatter(x) -> y: this process's part of the sum of x over the `parts` processes of a mesh (ops/exchange.h).
 * Each sends what it has of the others' parts, half of what all_reduce sends. Reference: parts x, the part of process
 * 0. */
#include "ops/exchange.h"

KVA_OP_FUNCTIONS(reduce_scatter)

kva_status kva_reduce_scatter_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  return kva_infer_part(m, n, out_types);
}

kva_status kva_reduce_scatter_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                  kva_ref_tensor *const *out) {
  (void)r;
  kva_ref_part(in[0], out[0], kva_exchange_parts(n));
  return KVA_OK;
}
