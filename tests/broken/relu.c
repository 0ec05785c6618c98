/* Operator relu for kvasir_broken: with KVA_BREAK=kernel its compiled code gives 0 below 1, not below 0;
 * tests/e2e/test_diff.sh finds it. */
#define kva_relu_lower right_relu_lower
#include "ops/relu.c"
#undef kva_relu_lower

#include <stdlib.h>

kva_kval kva_relu_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx);

kva_kval kva_relu_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  const char *how = getenv("KVA_BREAK");
  kva_kval y = right_relu_lower(l, n, result, idx);
  if (!how || strcmp(how, "kernel") != 0) return y;
  kva_kval one = kva_k_const(l->kb, y->dtype, 1), zero = kva_k_const(l->kb, y->dtype, 0);
  return kva_k_select(l->kb, kva_k2(l->kb, KVA_K_lt, y, one), zero, y);
}
