/* avg_pool(x[N, C, spatial]): y[n,c,o] = (sum over taps k inside x of x[n,c,at(o,k)]) / count(o); window.h defines
 * where taps read. count is the number of taps inside x or, with count_include_pad, inside x and its padding; positions
 * that ceil_mode adds beyond the padding never count (ONNX AveragePool 19, PyTorch). An empty window gives 0. Gradient:
 * avg_pool_grad. Tolerance 8: a sum of |kernel| terms and one division. */
#include "ops/check.h"
#include "ops/element.h"
#include "ops/ids.h"
#include "ops/pool.h"

KVA_OP_FUNCTIONS(avg_pool)

kva_status kva_avg_pool_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_avg_pool_attrs *a = n->attrs;
  KVA_TRY(kva_check_float(m, n, 0));
  KVA_TRY(kva_check_min_rank(m, n, 0, 3));
  KVA_TRY(kva_window_check(m, n, kva_operand_type(n, 0)->rank - 2, KVA_POOL_LISTS(a)));
  kva_window w = KVA_POOL_WINDOW(a);
  return kva_pool_infer(m, n, &w, &out_types[0]);
}

kva_status kva_avg_pool_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                            kva_ref_tensor *const *out) {
  (void)r;
  const kva_avg_pool_attrs *a = n->attrs;
  const kva_ref_tensor *x = in[0];
  kva_window w = KVA_POOL_WINDOW(a);
  int64_t idx[KVA_MAX_RANK] = {0}, image = 1, at = 0;
  for (uint32_t i = 0; i < w.n; i++) image *= x->dims[2 + i];
  if (out[0]->n == 0) return KVA_OK;
  do {
    int64_t k[KVA_MAX_SPATIAL] = {0}, base = (idx[0] * x->dims[1] + idx[1]) * image;
    double sum = 0;
    do {
      int64_t offset = kva_window_offset(&w, x->dims + 2, idx + 2, k);
      if (offset >= 0) sum += x->f[base + offset];
    } while (kva_next_index(w.n, w.kernel, k));
    int64_t count = kva_avg_pool_count(&w, x->dims + 2, idx + 2, a->count_include_pad);
    out[0]->f[at++] = count ? sum / (double)count : 0;
  } while (kva_next_index(out[0]->rank, out[0]->dims, idx));
  return KVA_OK;
}

kva_status kva_avg_pool_vjp(kva_vjp *c, kva_node *n) {
  const kva_avg_pool_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  kva_avg_pool_grad_attrs attrs = {KVA_POOL_LISTS(a), a->ceil_mode, a->count_include_pad, {x->rank - 2, x->dims + 2}};
  kva_value *dy = c->grad_out[0];
  c->grad_in[0] = kva_build(c->b, KVA_OP_avg_pool_grad, 1, &dy, &attrs);
  return KVA_OK;
}

static kva_kval tap(kva_kb *kb, void *user, const kva_expr *const *vars) {
  const kva_window_site *at = user;
  const kva_type *x = kva_operand_type(at->n, 0);
  const kva_expr *source[KVA_MAX_RANK] = {at->idx[0], at->idx[1]};
  kva_kval cond = kva_window_read(kb, at->window, x->dims + 2, at->idx + 2, vars, source + 2);
  return kva_masked_operand(at->l, at->n, 0, source, cond);
}

kva_kval kva_avg_pool_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_avg_pool_attrs *a = n->attrs;
  const kva_type *x = kva_operand_type(n, 0);
  kva_window w = KVA_POOL_WINDOW(a);
  kva_window_site at = {l, n, &w, idx};
  kva_kval sum = kva_window_reduce(l->kb, &w, KVA_COMBINE_ADD, kva_k_compute_type(x->dtype), NULL, tap, &at);
  kva_kval count = kva_avg_pool_divisor(l->kb, &w, x->dims + 2, idx + 2, a->count_include_pad, sum->dtype);
  return kva_k2(l->kb, KVA_K_div, sum, count);
}
