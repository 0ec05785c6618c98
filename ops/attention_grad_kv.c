/* attention_grad_kv(q, k, v, mask, slopes, delta, lse, dy) -> dk, dv: with ds of attention_grad_q.c,
 *
 *   dk_s = sum_h sum_t ds_ts q_t,   dv_s = sum_h sum_t p_ts dy_t
 *
 * over the query heads h of the key-value head's group, heads in order and rows in order within a head: a fixed order,
 * so that training is reproducible.
 * Tolerance 64: as attention_grad_q, with sums over group and rows. */
#include "ops/attention.h"
#include "ops/check.h"
#include "ops/facts.h"

KVA_OP_FUNCTIONS(attention_grad_kv)

kva_status kva_attention_grad_kv_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_attention_grad_check(m, n));
  out_types[0] = kva_operand_type(n, KVA_ATTENTION_K);
  out_types[1] = kva_operand_type(n, KVA_ATTENTION_V);
  return KVA_OK;
}

kva_status kva_attention_grad_kv_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                     kva_ref_tensor *const *out) {
  kva_attention_oracle a;
  KVA_TRY(kva_attention_oracle_get(r, n, in, &a));
  int64_t dims[4] = {a.B, a.H, a.T, a.S}, i[4] = {0};
  if (a.B * a.H * a.T * a.S == 0) return KVA_OK;
  do {
    kva_attention_at at = {i[0], i[1], i[2], i[3]};
    kva_attention_slope g = kva_attention_grad_at(&a, at);
    double *dk = out[0]->f + kva_attention_k_row(&a, at), *dv = out[1]->f + kva_attention_v_row(&a, at);
    const double *q = a.q->f + kva_attention_q_row(&a, at), *dy = a.dy->f + kva_attention_y_row(&a, at);
    for (int64_t d = 0; d < a.D; d++) dk[d] += g.ds * q[d];
    for (int64_t d = 0; d < a.D_v; d++) dv[d] += g.p * dy[d];
  } while (kva_next_index(4, dims, i));
  return KVA_OK;
}

double kva_attention_grad_kv_flops(const kva_node *n, const kva_sizes *s) {
  return kva_attention_products(n, s, 4); /* scores, their gradients, dk, dv */
}
