/* partial_sum: sums over blocks of rows, the first of two steps that sum columns. The `leading` axes of x index its N
 * rows. Result p is the sum of rows R p, ..., R p + R - 1 below N; a block has at least `rows` rows, and there are at
 * most `blocks` results:
 *
 *   P = max(1, min(blocks, ceil(N / rows))),   R = ceil(N / P),   y[p, ...] = sum over r of x[R p + r, ...]
 *
 * The order of additions depends on N only. passes/opt_split.c creates it after differentiation, so it has no gradient.
 * Tolerance 8: as reduce_sum. */
#include "ops/partial_sum.h"

#include "ops/check.h"
#include "ops/facts.h"
#include "ops/shape.h"

KVA_OP_FUNCTIONS(partial_sum)

static const kva_partial_sum_attrs *attrs_of(const kva_node *n) {
  return n->attrs;
}

kva_partial kva_partial_of(kva_module *m, const kva_node *n) {
  kva_expr_ctx *c = m->exprs;
  const kva_partial_sum_attrs *a = attrs_of(n);
  kva_partial p = {.axes = (uint32_t)a->leading};
  p.n = kva_shape_product(c, p.axes, kva_operand_type(n, 0)->dims);
  const kva_expr *full = kva_expr_ceildiv(c, p.n, kva_expr_const(c, a->rows));
  p.parts = kva_expr_max(c, kva_expr_const(c, 1), kva_expr_min(c, kva_expr_const(c, a->blocks), full));
  p.rows = kva_expr_ceildiv(c, p.n, p.parts);
  return p;
}

int64_t kva_partial_subgroup(int64_t columns) {
  int64_t subgroup = 32;
  while (subgroup < KVA_PARTIAL_BLOCK && columns > 8 * subgroup) subgroup *= 2;
  return subgroup;
}

const kva_expr *kva_partial_count(kva_expr_ctx *c, const kva_partial *p, const kva_expr *part) {
  const kva_expr *left = kva_expr_sub(c, p->n, kva_expr_mul(c, part, p->rows));
  return kva_expr_max(c, kva_expr_const(c, 0), kva_expr_min(c, p->rows, left));
}

void kva_partial_row(kva_expr_ctx *c, const kva_partial *p, const kva_type *x, const kva_expr *part, const kva_expr *r,
                     const kva_expr **out_idx) {
  kva_shape_split(c, p->axes, x->dims, kva_expr_add(c, kva_expr_mul(c, part, p->rows), r), out_idx);
}

kva_status kva_partial_sum_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_partial_sum_attrs *a = attrs_of(n);
  const kva_type *x = kva_operand_type(n, 0);
  KVA_TRY(kva_check_float(m, n, 0));
  if (a->leading < 1 || a->leading > x->rank)
    return kva_error(m->diag, &n->loc, "kv.%s: leading = %lld, expected 1 to %u, the operand's rank", n->op->name,
                     (long long)a->leading, x->rank);
  if (a->rows < 1 || a->blocks < 1)
    return kva_error(m->diag, &n->loc, "kv.%s: rows = %lld and blocks = %lld must be positive", n->op->name,
                     (long long)a->rows, (long long)a->blocks);
  kva_partial p = kva_partial_of(m, n);
  kva_dim dims[KVA_MAX_RANK] = {p.parts};
  for (uint32_t d = p.axes; d < x->rank; d++) dims[1 + d - p.axes] = x->dims[d];
  out_types[0] = kva_type_tensor(m, x->dtype, 1 + x->rank - p.axes, dims);
  return KVA_OK;
}

kva_status kva_partial_sum_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in,
                               kva_ref_tensor *const *out) {
  (void)r;
  int64_t rows = 1, parts = out[0]->dims[0], columns = out[0]->n / parts;
  for (uint32_t d = 0; d < (uint32_t)attrs_of(n)->leading; d++) rows *= in[0]->dims[d];
  int64_t each = (rows + parts - 1) / parts;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t j = 0; j < columns; j++) out[0]->f[i / each * columns + j] += in[0]->f[i * columns + j];
  return KVA_OK;
}

typedef struct summand {
  kva_lower *l;
  const kva_node *n;
  const kva_partial *p;
  const kva_expr *const *idx; /* index of the result */
} summand;

static kva_kval element(kva_kb *b, void *user, const kva_expr *const *vars) {
  const summand *s = user;
  const kva_type *x = kva_operand_type(s->n, 0);
  const kva_expr *idx[KVA_MAX_RANK];
  kva_partial_row(b->exprs, s->p, x, s->idx[0], vars[0], idx);
  for (uint32_t d = s->p->axes; d < x->rank; d++) idx[d] = s->idx[1 + d - s->p->axes];
  return s->l->operand(s->l, s->n, 0, idx);
}

kva_kval kva_partial_sum_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  kva_partial p = kva_partial_of(l->module, n);
  summand s = {l, n, &p, idx};
  const kva_expr *count = kva_partial_count(l->kb->exprs, &p, idx[0]);
  return kva_k_reduce_over(l->kb, KVA_COMBINE_ADD, kva_k_compute_type(kva_operand_type(n, 0)->dtype), 1, &count,
                           element, &s);
}

int kva_partial_sum_row_dims(const kva_node *n) {
  return (int)attrs_of(n)->leading;
}
