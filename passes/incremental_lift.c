/* Pass incremental: values that depend on the position of a row, and not on the sequence, differ between sequences,
 * since each is at a position of its own. They get an axis of sequences before their own dimensions. */
#include "passes/incremental.h"

#include "ops/check.h"

static bool is_lifted(const kva_node *n, uint32_t operand, kva_value *const *operands) {
  return operands[operand] && operands[operand]->type->rank > kva_operand_type(n, operand)->rank;
}

/* before, then n dims. */
static kva_dims prefixed(const kva_chunks *p, kva_dim before, kva_dims dims) {
  kva_dim *v = KVA_NEW_ARRAY(p->scratch, kva_dim, dims.n + 1);
  v[0] = before;
  for (uint32_t i = 0; i < dims.n; i++) v[i + 1] = dims.v[i];
  return (kva_dims){dims.n + 1, v};
}

kva_value *kva_align_lifted(kva_chunks *p, kva_value *v, uint32_t rank) {
  const kva_type *t = v->type;
  bool drops_one = rank + 1 == t->rank && kva_expr_is(t->dims[1], 1);
  if (rank < t->rank && !drops_one) return NULL;
  kva_dim shape[KVA_MAX_RANK];
  for (uint32_t i = 0; i < rank; i++) {
    uint32_t from_right = rank - i;
    shape[i] = i == 0                 ? p->c.batch
               : from_right < t->rank ? t->dims[t->rank - from_right]
                                      : kva_expr_const(p->c.b->m->exprs, 1);
  }
  return kva_reshape(p->c.b, v, rank, shape);
}

/* Operands of a node that broadcasts, for a result of `rank` dimensions. */
static kva_value *broadcast(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs,
                            uint32_t rank) {
  kva_value **in = KVA_NEW_ARRAY(p->scratch, kva_value *, n->n_operands + 1);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    in[i] = is_lifted(n, i, operands) ? kva_align_lifted(p, operands[i], rank) : operands[i];
    if (operands[i] && !in[i]) return NULL;
  }
  return kva_build(p->c.b, n->op->id, n->n_operands, in, attrs);
}

/* An operand that has the sequences already, so that its result has. */
static bool has_sequences(const kva_chunks *p, const kva_node *n, kva_value *const *operands) {
  uint32_t rank = n->results[0].type->rank;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_type *t = operands[i] ? operands[i]->type : NULL;
    if (t && !is_lifted(n, i, operands) && t->rank == rank && rank && t->dims[0] == p->c.batch) return true;
  }
  return false;
}

static kva_value *lift_broadcast(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs) {
  return broadcast(p, n, operands, attrs, n->results[0].type->rank + !has_sequences(p, n, operands));
}

static kva_value *lift_reshape(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs) {
  (void)n;
  kva_reshape_attrs a = {prefixed(p, p->c.batch, ((const kva_reshape_attrs *)attrs)->shape)};
  return kva_build(p->c.b, KVA_OP_reshape, 1, operands, &a);
}

static kva_value *lift_expand(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs) {
  kva_dims shape = ((const kva_expand_attrs *)attrs)->shape;
  if (shape.n && shape.v[0] == p->c.batch) return broadcast(p, n, operands, attrs, shape.n);
  kva_expand_attrs a = {prefixed(p, p->c.batch, shape)};
  return broadcast(p, n, operands, &a, a.shape.n);
}

static kva_value *lift_transpose(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs) {
  (void)attrs;
  int64_t perm[KVA_MAX_RANK + 1] = {0};
  uint32_t rank = n->results[0].type->rank;
  for (uint32_t i = 0; i < rank; i++) perm[i + 1] = 1 + kva_source_axis(n, 0, i);
  return kva_transpose(p->c.b, operands[0], perm);
}

static kva_value *lift_slice(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs) {
  const kva_slice_attrs *a = attrs;
  int64_t steps[KVA_MAX_RANK + 1] = {1};
  for (uint32_t i = 0; i < a->shape.n; i++) steps[i + 1] = i < a->steps.n ? a->steps.v[i] : 1;
  (void)n;
  kva_slice_attrs b = {.starts = prefixed(p, kva_expr_const(p->c.b->m->exprs, 0), a->starts),
                       .shape = prefixed(p, p->c.batch, a->shape),
                       .steps = {a->shape.n + 1, steps}};
  return kva_build(p->c.b, KVA_OP_slice, 1, operands, &b);
}

static kva_value *lift_concat(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs) {
  kva_value **in = KVA_NEW_ARRAY(p->scratch, kva_value *, n->n_operands);
  kva_concat_attrs a = {1 + (int64_t)kva_axis(((const kva_concat_attrs *)attrs)->axis, n->results[0].type->rank)};
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_type *t = operands[i]->type;
    kva_dims shape = prefixed(p, p->c.batch, (kva_dims){t->rank, t->dims});
    in[i] = is_lifted(n, i, operands) ? operands[i] : kva_expand(p->c.b, operands[i], shape.n, shape.v);
  }
  return kva_build(p->c.b, KVA_OP_concat, n->n_operands, in, &a);
}

/* Rows of a table at positions; or of a lifted table at fixed indices. */
static kva_value *lift_gather(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs) {
  uint32_t axis = kva_axis(((const kva_gather_attrs *)attrs)->axis, kva_operand_type(n, 0)->rank);
  bool table = is_lifted(n, 0, operands), indices = is_lifted(n, 1, operands);
  if ((table && indices) || (indices && axis)) return NULL;
  return kva_build(p->c.b, KVA_OP_gather, 2, operands, &(kva_gather_attrs){.axis = axis + table});
}

/* Angles of x's rows. */
static kva_value *lift_rope(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs) {
  if (is_lifted(n, 0, operands)) return NULL;
  return broadcast(p, n, operands, attrs, operands[0]->type->rank);
}

static kva_value *lift_matmul(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs) {
  return broadcast(p, n, operands, attrs, n->results[0].type->rank + 1);
}

typedef kva_value *(*lift_rule)(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs);
static const lift_rule rules[KVA_OP_COUNT] = {
    [KVA_OP_reshape] = lift_reshape, [KVA_OP_expand] = lift_expand, [KVA_OP_transpose] = lift_transpose,
    [KVA_OP_slice] = lift_slice,     [KVA_OP_concat] = lift_concat, [KVA_OP_gather] = lift_gather,
    [KVA_OP_rope] = lift_rope,       [KVA_OP_matmul] = lift_matmul,
};

kva_value *kva_build_lifted(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs) {
  bool any = false;
  for (uint32_t i = 0; i < n->n_operands; i++) any |= is_lifted(n, i, operands);
  if (!any) return kva_build(p->c.b, n->op->id, n->n_operands, operands, attrs);
  lift_rule rule = n->op->traits & KVA_ELEMENTWISE ? lift_broadcast : rules[n->op->id];
  kva_value *v = rule ? rule(p, n, operands, attrs) : NULL;
  if (!v)
    kva_refuse_chunks(&p->c, n,
                      "it reads values made of positions, which differ between sequences, and has no rule for that");
  return v;
}
