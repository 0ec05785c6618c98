/* See contraction.h. */
#include "codegen/kernels/any/contract/contraction.h"
#include "ops/codes.h"
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
  if (c->b_mask) b = kva_k2(c->l->kb, KVA_K_and, b, kva_k_const_i(c->l->kb, KVA_I32, c->b_mask));
  if (c->byte_blocks) return kva_k_op(c->l->kb, KVA_K_dot4, b, a, sum);
  if (!c->words) return kva_lower_multiply_add(c->l, a, b, sum);
  if (c->type == KVA_F32) return kva_k_op(c->l->kb, KVA_K_dot2, a, b, sum);
  return kva_k_op(c->l->kb, KVA_K_dot4, c->b_unsigned ? b : a, c->b_unsigned ? a : b, sum);
}

kva_kval kva_contract_block_sum(const kva_contraction *c, const kva_contract_at *at) {
  kva_kb *kb = c->l->kb;
  kva_kval zero = kva_k_const(kb, kva_contract_block_type(c), 0);
  int64_t elements = c->byte_blocks ? KVA_CODES_PER_WORD : 1; /* of a step */
  kva_kloop *lane = kva_k_loop_begin(kb, KVA_K_VECTOR, kva_expr_const(kb->exprs, c->factor_block * elements), "lane");
  kva_contract_at here = *at;
  here.k = kva_expr_add(kb->exprs, kva_expr_muli(kb->exprs, at->k, elements), lane->var);
  kva_kval sum = kva_k_reduce(kb, lane, KVA_COMBINE_ADD, zero, (c->byte_blocks ? c->a_byte : c->a)(c, &here));
  kva_k_loop_end(kb, lane);
  sum = kva_k2(kb, KVA_K_sub, zero, sum);
  here = *at;
  here.position = here.line = kva_expr_const(kb->exprs, 0);
  return c->one_zero ? kva_k2(kb, KVA_K_mul, sum, c->b_zero(c, &here)) : sum;
}

kva_kval kva_contract_add_block(const kva_contraction *c, const kva_contract_at *at, kva_kval sum, kva_kval factor,
                                kva_kval block) {
  kva_kb *kb = c->l->kb;
  if (c->byte_blocks) {
    sum = kva_k_convert(kb, sum, c->type);
    factor = kva_k2(kb, KVA_K_mul, factor, c->a_factor(c, at));
  }
  return kva_lower_multiply_add(c->l, sum, factor, block);
}

void kva_contract_split(kva_expr_ctx *e, const kva_expr *flat, uint32_t n, const kva_dim *extents,
                        const kva_expr **out_idx) {
  for (uint32_t d = n; d-- > 0;) {
    out_idx[d] = d == 0 ? flat : kva_expr_mod(e, flat, extents[d]);
    if (d) flat = kva_expr_div(e, flat, extents[d]);
  }
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
