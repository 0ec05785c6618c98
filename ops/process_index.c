/* process_index() -> int64: the number of this process in its group, from 0 up (ops/exchange.h). Nothing is sent.
 * Reference: 0. */
#include "ops/exchange.h"

KVA_OP_FUNCTIONS(process_index)

kva_status kva_process_index_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_check_exchange(m, n));
  out_types[0] = kva_type_scalar(m, KVA_I64);
  return KVA_OK;
}

kva_status kva_process_index_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                 kva_ref_tensor *const *out) {
  (void)r, (void)n, (void)in;
  out[0]->i[0] = 0;
  return KVA_OK;
}
