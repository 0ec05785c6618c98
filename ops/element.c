/* Implements element.h. */
#include "ops/element.h"

kva_kval kva_masked_operand(kva_lower *l, const kva_node *n, uint32_t operand, const kva_expr *const *idx,
                            kva_kval cond) {
  if (!cond) return l->operand(l, n, operand, idx);
  kva_kval outer = kva_k_guard_begin(l->kb, cond);
  kva_kval v = l->operand(l, n, operand, idx);
  kva_k_guard_end(l->kb, outer);
  return kva_k_select(l->kb, cond, v, kva_k_const(l->kb, v->dtype, 0));
}

typedef struct axes_body {
  kva_lower *l;
  const kva_node *n;
  const kva_expr *const *idx;
  uint32_t axis, n_axes;
  kva_term term;
  void *user;
} axes_body;

static kva_kval axes_term(kva_kb *kb, void *user, const kva_expr *const *vars) {
  (void)kb;
  axes_body *body = user;
  const kva_expr *idx[KVA_MAX_RANK] = {0};
  uint32_t rank = kva_operand_type(body->n, 0)->rank;
  for (uint32_t i = 0; i < rank; i++) {
    bool reduced = i >= body->axis && i < body->axis + body->n_axes;
    idx[i] = reduced ? vars[i - body->axis] : body->idx[i];
  }
  return body->term(body->l, body->n, idx, body->user);
}

kva_kval kva_reduce_axes(kva_lower *l, const kva_node *n, kva_combine combine, const kva_expr *const *idx,
                         uint32_t axis, uint32_t n_axes, kva_term term, void *user) {
  const kva_type *t = kva_operand_type(n, 0);
  axes_body body = {l, n, idx, axis, n_axes, term, user};
  return kva_k_reduce_over(l->kb, combine, kva_k_compute_type(t->dtype), n_axes, t->dims + axis, axes_term, &body);
}

kva_kval kva_term_element(kva_lower *l, const kva_node *n, const kva_expr *const *idx, void *user) {
  (void)user;
  return l->operand(l, n, 0, idx);
}
