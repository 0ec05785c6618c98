/* See contraction.h. */
#include "codegen/kernels/any/contract/contraction.h"
#include "ops/ids.h"

static const struct {
  kva_op_id op;
  kva_contraction (*get)(kva_lower *l, const kva_node *n);
} operators[] = {{KVA_OP_matmul, kva_contract_of_matmul},
                 {KVA_OP_conv, kva_contract_of_conv},
                 {KVA_OP_conv_input_grad, kva_contract_of_conv_input_grad},
                 {KVA_OP_conv_weight_grad, kva_contract_of_conv_weight_grad}};

kva_contraction kva_contract_of(kva_lower *l, const kva_node *n) {
  size_t i = 0;
  while (!kva_is(n, operators[i].op)) {
    i++;
    KVA_ASSERT(i < sizeof operators / sizeof *operators);
  }
  return operators[i].get(l, n);
}

kva_kval kva_contract_multiply(const kva_contraction *c, kva_kval a, kva_kval b, kva_kval sum) {
  if (!c->words) return kva_k_op(c->l->kb, KVA_K_fma, a, b, sum);
  if (c->type == KVA_F32) return kva_k_op(c->l->kb, KVA_K_dot2, a, b, sum);
  return kva_k_op(c->l->kb, KVA_K_dot4, c->b_unsigned ? b : a, c->b_unsigned ? a : b, sum);
}

bool kva_contract_has_rows(const kva_contraction *c, int64_t rows) {
  int64_t known;
  return !kva_expr_is_const(c->rows, &known) || known >= rows;
}

void kva_contract_store(const kva_contraction *c, const kva_contract_at *at, kva_kval v) {
  const kva_expr *idx[KVA_MAX_RANK];
  kva_kval there = c->result(c, at, idx), outer = NULL;
  if (there) outer = kva_k_guard_begin(c->l->kb, there);
  c->l->store(c->l, c->n, 0, idx, v);
  if (there) kva_k_guard_end(c->l->kb, outer);
}
