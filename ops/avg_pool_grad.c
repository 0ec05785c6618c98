/* avg_pool_grad(dy[N, C, out]) -> dx[N, C, spatial]: the transpose of avg_pool,
 *
 *   dx[n,c,i] = sum over taps k and outputs o that read i with k of dy[n,c,o] / count(o)
 *
 * Tolerance 8: as avg_pool. */
#include "ops/check.h"
#include "ops/element.h"
#include "ops/pool.h"

KVA_OP_FUNCTIONS(avg_pool_grad)

kva_status kva_avg_pool_grad_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_avg_pool_grad_attrs *a = n->attrs;
  KVA_TRY(kva_check_float(m, n, 0));
  KVA_TRY(kva_check_min_rank(m, n, 0, 3));
  KVA_TRY(kva_window_check(m, n, kva_operand_type(n, 0)->rank - 2, KVA_POOL_LISTS(a)));
  kva_window w = KVA_POOL_WINDOW(a);
  return kva_pool_grad_infer(m, n, 0, &w, a->spatial, &out_types[0]);
}

kva_status kva_avg_pool_grad_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                 kva_ref_tensor *const *out) {
  (void)r;
  const kva_avg_pool_grad_attrs *a = n->attrs;
  const kva_ref_tensor *dy = in[0];
  kva_ref_tensor *dx = out[0];
  kva_window w = KVA_POOL_WINDOW(a);
  int64_t idx[KVA_MAX_RANK] = {0}, image = 1, at = 0;
  for (uint32_t i = 0; i < w.n; i++) image *= dx->dims[2 + i];
  if (dy->n == 0) return KVA_OK;
  do {
    int64_t k[KVA_MAX_SPATIAL] = {0}, base = (idx[0] * dx->dims[1] + idx[1]) * image;
    int64_t count = kva_avg_pool_count(&w, dx->dims + 2, idx + 2, a->count_include_pad);
    double share = count ? dy->f[at] / (double)count : 0;
    at++;
    do {
      int64_t offset = kva_window_offset(&w, dx->dims + 2, idx + 2, k);
      if (offset >= 0) dx->f[base + offset] += share;
    } while (kva_next_index(w.n, w.kernel, k));
  } while (kva_next_index(dy->rank, dy->dims, idx));
  return KVA_OK;
}

static kva_kval tap(kva_kb *kb, void *user, const kva_expr *const *vars) {
  const kva_window_site *at = user;
  const kva_avg_pool_grad_attrs *a = at->n->attrs;
  const kva_type *dy = kva_operand_type(at->n, 0);
  const kva_expr *source[KVA_MAX_RANK] = {at->idx[0], at->idx[1]};
  kva_kval cond = kva_window_reader(kb, at->window, dy->dims + 2, at->idx + 2, vars, source + 2);
  kva_kval v = kva_masked_operand(at->l, at->n, 0, source, cond);
  return kva_k2(kb, KVA_K_div, v,
                kva_avg_pool_divisor(kb, at->window, a->spatial.v, source + 2, a->count_include_pad, v->dtype));
}

kva_kval kva_avg_pool_grad_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_avg_pool_grad_attrs *a = n->attrs;
  kva_dtype t = kva_k_compute_type(kva_operand_type(n, 0)->dtype);
  kva_window w = KVA_POOL_WINDOW(a);
  kva_window_site at = {l, n, &w, idx};
  return kva_window_reduce(l->kb, &w, KVA_COMBINE_ADD, t, NULL, tap, &at);
}
