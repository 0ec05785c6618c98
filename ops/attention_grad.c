/* attention_grad(q, k, v, mask, slopes, delta, lse, dy) -> dq, dk, dv: the results of attention_grad_q.c and
 * attention_grad_kv.c, so that scores and their gradients can be computed once. passes/opt_join.c creates this operator
 * for CPUs after differentiation: no gradient. Tolerance 64: as theirs. */
#include "ops/attention.h"
#include "ops/facts.h"

KVA_OP_FUNCTIONS(attention_grad)
KVA_OP_FUNCTIONS(attention_grad_q)
KVA_OP_FUNCTIONS(attention_grad_kv)

enum { MAX_ELEMENTS = 1 << 17 }; /* that a core keeps */

int64_t kva_attention_grad_rows(const kva_type *q, const kva_type *k) {
  int64_t heads, heads_kv, rows, channels;
  if (!kva_expr_is_const(q->dims[1], &heads) || !kva_expr_is_const(k->dims[1], &heads_kv)) return -1;
  if (!kva_expr_is_const(q->dims[2], &rows) || !kva_expr_is_const(q->dims[3], &channels)) return -1;
  if (!heads_kv || !channels || rows > MAX_ELEMENTS || heads / heads_kv > MAX_ELEMENTS) return -1;
  int64_t all = heads / heads_kv * rows;
  return all <= MAX_ELEMENTS / channels ? all : -1;
}

kva_status kva_attention_grad_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  KVA_TRY(kva_attention_grad_check(m, n));
  out_types[0] = kva_operand_type(n, KVA_ATTENTION_Q);
  out_types[1] = kva_operand_type(n, KVA_ATTENTION_K);
  out_types[2] = kva_operand_type(n, KVA_ATTENTION_V);
  return KVA_OK;
}

kva_status kva_attention_grad_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                  kva_ref_tensor *const *out) {
  KVA_TRY(kva_attention_grad_q_ref(r, n, in, out));
  return kva_attention_grad_kv_ref(r, n, in, out + 1);
}

double kva_attention_grad_flops(const kva_node *n, const kva_sizes *s) {
  return kva_attention_products(n, s, 5); /* scores, their gradients, dq, dk, dv */
}
