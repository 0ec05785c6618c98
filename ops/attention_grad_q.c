/* attention_grad_q(q, k, v, mask, slopes, delta[B,H,T], lse, dy) -> dq: with p and the notation of attention.c,
 *
 *   dp_ts = dy_t . v_s,   delta_t = dy_t . y_t,   ds_ts = scale * cap'_ts * p_ts * (dp_ts - delta_t)
 *   dq_t = sum_s ds_ts k_s
 *
 * Tolerance 64: as attention; the difference dp - delta cancels, so the error is relative to the largest dp. */
#include "ops/attention.h"
#include "ops/check.h"
#include "ops/facts.h"

KVA_OP_FUNCTIONS(attention_grad_q)

kva_status kva_attention_grad_q_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_attention_grad_check(m, n));
  out_types[0] = kva_operand_type(n, KVA_ATTENTION_Q);
  return KVA_OK;
}

kva_status kva_attention_grad_q_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                    kva_ref_tensor *const *out) {
  kva_attention_oracle a;
  KVA_TRY(kva_attention_oracle_get(r, n, in, &a));
  int64_t dims[4] = {a.B, a.H, a.T, a.S}, i[4] = {0};
  if (a.B * a.H * a.T * a.S == 0) return KVA_OK;
  do {
    kva_attention_at at = {i[0], i[1], i[2], i[3]};
    double ds = kva_attention_grad_at(&a, at).ds;
    double *dq = out[0]->f + kva_attention_q_row(&a, at);
    const double *k = a.k->f + kva_attention_k_row(&a, at);
    for (int64_t d = 0; d < a.D; d++) dq[d] += ds * k[d];
  } while (kva_next_index(4, dims, i));
  return KVA_OK;
}

double kva_attention_grad_q_flops(const kva_node *n, const kva_sizes *s) {
  return kva_attention_products(n, s, 3); /* scores, their gradients, dq */
}
