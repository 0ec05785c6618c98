/* conv and its gradients as element code in plain loops: for too few rows, and for depthwise convolution. */
#include "codegen/kernels/kernels.h"

KVA_OP_FUNCTIONS(conv)
KVA_OP_FUNCTIONS(conv_input_grad)
KVA_OP_FUNCTIONS(conv_weight_grad)

typedef kva_kval (*element_code)(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx);
static void element_kernel(kva_lower *l, const kva_node *n, element_code code) {
  const kva_type *t = n->results[0].type;
  kva_kloop *loops[KVA_MAX_RANK];
  const kva_expr *idx[KVA_MAX_RANK];
  for (uint32_t d = 0; d < t->rank; d++) {
    loops[d] = kva_k_loop_begin(l->kb, KVA_K_PARALLEL, t->dims[d], "i");
    idx[d] = loops[d]->var;
  }
  l->store(l, n, 0, idx, code(l, n, 0, idx));
  for (uint32_t d = t->rank; d > 0; d--) kva_k_loop_end(l->kb, loops[d - 1]);
}

void kva_conv_elements_emit(kva_lower *l, const kva_node *n) {
  element_kernel(l, n, kva_conv_lower);
}

void kva_conv_input_grad_elements_emit(kva_lower *l, const kva_node *n) {
  element_kernel(l, n, kva_conv_input_grad_lower);
}

void kva_conv_weight_grad_elements_emit(kva_lower *l, const kva_node *n) {
  element_kernel(l, n, kva_conv_weight_grad_lower);
}
