/* Products of integers, but for those that a CPU multiplies by words (words.c): loops over batch, rows and columns, one
 * sum over k. */
#include "codegen/kernels/kernels.h"
#include "ops/matmul.h"

typedef struct dot_body {
  kva_lower *l;
  const kva_node *n;
  const kva_matmul_shape *s;
  const kva_expr *const *idx; /* of the result */
} dot_body;

/* Element (row, column) of operand i in the matrix that the result's batch index names. */
static kva_kval element(const dot_body *body, uint32_t i, const kva_expr *row, const kva_expr *column,
                        bool transposed) {
  const kva_type *t = kva_operand_type(body->n, i);
  uint32_t skipped = body->n->results[0].type->rank - t->rank;
  const kva_expr *idx[KVA_MAX_RANK];
  for (uint32_t k = 0; k + 2 < t->rank; k++) {
    idx[k] = kva_expr_is(t->dims[k], 1) ? kva_expr_const(body->l->kb->exprs, 0) : body->idx[skipped + k];
  }
  idx[t->rank - 2] = transposed ? column : row;
  idx[t->rank - 1] = transposed ? row : column;
  return body->l->operand(body->l, body->n, i, idx);
}

static kva_kval product(kva_kb *kb, void *user, const kva_expr *const *vars) {
  const dot_body *body = user;
  uint32_t rank = body->n->results[0].type->rank;
  kva_kval x = element(body, 0, body->idx[rank - 2], vars[0], body->s->transpose_a);
  kva_kval y = element(body, 1, vars[0], body->idx[rank - 1], body->s->transpose_b);
  kva_dtype t = kva_k_compute_type(body->n->results[0].type->dtype);
  return kva_k2(kb, KVA_K_mul, kva_k_convert(kb, x, t), kva_k_convert(kb, y, t));
}

void kva_matmul_plain_emit(kva_lower *l, const kva_node *n) {
  kva_matmul_shape s = kva_matmul_get(n);
  const kva_type *c = n->results[0].type;
  kva_kloop *loops[KVA_MAX_RANK];
  const kva_expr *idx[KVA_MAX_RANK];
  for (uint32_t i = 0; i < c->rank; i++) {
    loops[i] = kva_k_loop_begin(l->kb, KVA_K_PARALLEL, c->dims[i], i + 2 < c->rank ? "b" : i + 1 < c->rank ? "m" : "n");
    idx[i] = loops[i]->var;
  }
  dot_body body = {l, n, &s, idx};
  kva_dtype t = kva_k_compute_type(c->dtype);
  l->store(l, n, 0, idx, kva_k_reduce_over(l->kb, KVA_COMBINE_ADD, t, 1, &s.K, product, &body));
  for (uint32_t i = c->rank; i > 0; i--) kva_k_loop_end(l->kb, loops[i - 1]);
}

const char *kva_matmul_plain_refuses(kva_lower *l, const kva_node *n) {
  (void)l;
  return kva_dtype_is_float(n->results[0].type->dtype) ? "floats" : NULL;
}
