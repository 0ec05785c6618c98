/* is_inf: y = whether x is +inf (with detect_positive) or -inf (with detect_negative). Exact. */
#include "ops/elementwise.h"

#include <math.h>

KVA_ELEMENTWISE_INFER(is_inf)

kva_status kva_is_inf_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  const kva_is_inf_attrs *a = n->attrs;
  for (int64_t i = 0; i < out[0]->n; i++) {
    double x = in[0]->f[i];
    out[0]->i[i] = isinf(x) && (x > 0 ? a->detect_positive : a->detect_negative);
  }
  return KVA_OK;
}

static kva_kval lower_is_inf(kva_kb *b, kva_kval x, const kva_is_inf_attrs *a) {
  kva_kval none = kva_k_const_i(b, KVA_BOOL, 0);
  kva_kval positive = a->detect_positive ? kva_k2(b, KVA_K_eq, x, KVA_KNUM((double)INFINITY)) : none;
  kva_kval negative = a->detect_negative ? kva_k2(b, KVA_K_eq, x, KVA_KNUM(-(double)INFINITY)) : none;
  return kva_k2(b, KVA_K_or, positive, negative);
}
KVA_UNARY_LOWER(is_inf, lower_is_inf(b, x, n->attrs))
