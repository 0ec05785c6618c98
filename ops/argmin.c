/* argmin: y = index (int64) of the least element along `axis`; ties take the first, or with select_last the last. NaN
 * counts as the least. Gradient: zero. Exact: comparisons. */
#include "ops/reduce_common.h"

KVA_OP_FUNCTIONS(argmin)

kva_status kva_argmin_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  return kva_arg_infer(m, n, out_types);
}

kva_status kva_argmin_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  return kva_arg_ref(r, n, in[0], out[0], false);
}

kva_kval kva_argmin_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  return kva_arg_lower(l, n, idx, false);
}
