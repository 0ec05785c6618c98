/* max_pool_grad(indices[N, C, out], dy[N, C, out]) -> dx[N, C, spatial]: each dy goes to the element that won its
 * window in max_pool; indices are (row-major) positions in the flat dx,
 *
 *   dx[n,c,i] = sum over o with indices[n,c,o] == position of (n,c,i) of dy[n,c,o]
 *
 * Only windows that cover i are examined: the sum runs over taps. Tolerance 8: a sum of at most |kernel| terms. */
#include "ops/check.h"
#include "ops/element.h"
#include "ops/pool.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(max_pool_grad)

enum { INDICES, DY };

kva_status kva_max_pool_grad_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_max_pool_grad_attrs *a = n->attrs;
  KVA_TRY(kva_check_int(m, n, INDICES));
  KVA_TRY(kva_check_float(m, n, DY));
  KVA_TRY(kva_check_min_rank(m, n, DY, 3));
  const kva_type *dy = kva_operand_type(n, DY);
  KVA_TRY(kva_check_shape(m, n, INDICES, dy->rank, dy->dims));
  KVA_TRY(kva_window_check(m, n, dy->rank - 2, KVA_POOL_LISTS(a)));
  kva_window w = KVA_POOL_WINDOW(a);
  return kva_pool_grad_infer(m, n, DY, &w, a->spatial, &out_types[0]);
}

kva_status kva_max_pool_grad_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                                 kva_ref_tensor *const *out) {
  for (int64_t i = 0; i < in[DY]->n; i++) {
    int64_t to = in[INDICES]->i[i];
    if (to < -1 || to >= out[0]->n) {
      return kva_error(r->diag, &n->loc, "max_pool_grad: index %lld is outside the %lld elements", (long long)to,
                       (long long)out[0]->n);
    }
    if (to >= 0) out[0]->f[to] += in[DY]->f[i];
  }
  return KVA_OK;
}

typedef struct grad_body {
  kva_window_site at;
  kva_kval position; /* position of idx in dx */
} grad_body;

static kva_kval tap(kva_kb *kb, void *user, const kva_expr *const *vars) {
  const grad_body *body = user;
  const kva_type *dy = kva_operand_type(body->at.n, DY);
  const kva_expr *at[KVA_MAX_RANK] = {body->at.idx[0], body->at.idx[1]};
  kva_kval cond = kva_window_reader(kb, body->at.window, dy->dims + 2, body->at.idx + 2, vars, at + 2);
  kva_kval winner = kva_k_convert(kb, kva_masked_operand(body->at.l, body->at.n, INDICES, at, cond), KVA_I64);
  cond = kva_k_and(kb, cond, kva_k2(kb, KVA_K_eq, winner, body->position));
  return kva_masked_operand(body->at.l, body->at.n, DY, at, cond);
}

kva_kval kva_max_pool_grad_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  const kva_max_pool_grad_attrs *a = n->attrs;
  const kva_type *dx = n->results[0].type;
  kva_window w = KVA_POOL_WINDOW(a);
  kva_kval position = kva_k_index(l->kb, kva_shape_linear(l->kb->exprs, dx->rank, dx->dims, idx));
  grad_body body = {{l, n, &w, idx}, position};
  return kva_window_reduce(l->kb, &w, KVA_COMBINE_ADD, kva_k_compute_type(dx->dtype), NULL, tap, &body);
}
