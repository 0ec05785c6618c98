/* reduce_mean: y = (sum of x over `axes`) / (number of them); NaN over nothing. Gradient: g / number, broadcast.
 * Tolerance 8: that of the sum. */
#include "ops/reduce_common.h"

KVA_REDUCE_INFER(reduce_mean)

static double sum_f(double acc, double x) {
  return acc + x;
}

kva_status kva_reduce_mean_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                               kva_ref_tensor *const *out) {
  (void)r;
  kva_reduce_ref(n, in[0], out[0], (kva_reduce_step){.f = sum_f}, 0, 0);
  bool reduced[KVA_MAX_RANK];
  kva_reduction_axes(n, reduced);
  double count = 1;
  for (uint32_t k = 0; k < in[0]->rank; k++) count *= reduced[k] ? (double)in[0]->dims[k] : 1;
  for (int64_t i = 0; i < out[0]->n; i++) out[0]->f[i] /= count;
  return KVA_OK;
}

kva_status kva_reduce_mean_vjp(kva_vjp *c, kva_node *n) {
  kva_value *g = c->grad_out[0];
  kva_value *count = kva_dim_scalar(c->b, g->type->dtype, kva_reduce_count(c->b->m, n));
  kva_value *share = kva_reduce_keep(c->b, n, kva_div(c->b, g, count));
  c->grad_in[0] = kva_expand_like(c->b, share, kva_operand_type(n, 0));
  return KVA_OK;
}

kva_kval kva_reduce_mean_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  kva_kval sum = kva_reduce_lower(l, n, KVA_COMBINE_ADD, idx);
  kva_kval count = kva_k_convert(l->kb, kva_k_index(l->kb, kva_reduce_count(l->module, n)), sum->dtype);
  return kva_k2(l->kb, KVA_K_div, sum, count);
}
