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
  kva_nest_begin(l, KVA_K_PARALLEL, t->rank, t->dims, loops, idx);
  l->store(l, n, 0, idx, code(l, n, 0, idx));
  kva_nest_end(l, t->rank, loops);
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
