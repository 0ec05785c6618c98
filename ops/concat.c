/* concat: y = the operands one after the other along `axis`. Gradients: the slices of g.
 * Exact: a view. */
#include "ops/check.h"
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/shape.h"
#include "ops/shape_values.h"

KVA_OP_FUNCTIONS(concat)

static uint32_t axis_of(const kva_node *n) {
  return kva_axis(((const kva_concat_attrs *)n->attrs)->axis, kva_operand_type(n, 0)->rank);
}

int kva_concat_agrees(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis) {
  (void)operand;
  return axis == kva_axis(((const kva_concat_attrs *)attrs)->axis, t->rank) ? -1 : (int)axis | KVA_AGREES_FULL;
}

static kva_status check_operand(kva_module *m, const kva_node *n, uint32_t i, uint32_t axis) {
  const kva_type *first = kva_operand_type(n, 0);
  if (!kva_operand(n, i)) return kva_operand_error(m, n, i, "is missing");
  KVA_TRY(kva_check_same_dtype(m, n, i, 0));
  KVA_TRY(kva_check_rank(m, n, i, first->rank));
  kva_dim expected[KVA_MAX_RANK];
  for (uint32_t k = 0; k < first->rank; k++) expected[k] = k == axis ? kva_operand_type(n, i)->dims[k] : first->dims[k];
  return kva_check_shape(m, n, i, first->rank, expected);
}

kva_status kva_concat_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *first = kva_operand_type(n, 0);
  uint32_t axis;
  kva_dim dims[KVA_MAX_RANK];
  KVA_TRY(kva_normalize_axis(m, n, ((const kva_concat_attrs *)n->attrs)->axis, first->rank, &axis));
  for (uint32_t k = 0; k < first->rank; k++) dims[k] = first->dims[k];
  for (uint32_t i = 1; i < n->n_operands; i++) {
    KVA_TRY(check_operand(m, n, i, axis));
    dims[axis] = kva_expr_add(m->exprs, dims[axis], kva_operand_type(n, i)->dims[axis]);
  }
  out_types[0] = kva_type_tensor(m, first->dtype, first->rank, dims);
  return KVA_OK;
}

kva_status kva_concat_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  (void)r;
  uint32_t axis = axis_of(n);
  int64_t offset = 0;
  for (uint32_t k = 0; k < n->n_operands; k++) {
    int64_t idx[KVA_MAX_RANK] = {0};
    for (int64_t i = 0; i < in[k]->n; i++, kva_next_index(in[k]->rank, in[k]->dims, idx)) {
      idx[axis] += offset;
      int64_t at = kva_ref_offset(out[0], idx);
      idx[axis] -= offset;
      kva_ref_copy(in[k], i, out[0], at);
    }
    offset += in[k]->dims[axis];
  }
  return KVA_OK;
}

kva_status kva_concat_vjp(kva_vjp *c, kva_node *n) {
  kva_expr_ctx *e = c->b->m->exprs;
  uint32_t axis = axis_of(n), rank = kva_operand_type(n, 0)->rank;
  kva_dim starts[KVA_MAX_RANK];
  for (uint32_t k = 0; k < rank; k++) starts[k] = kva_expr_const(e, 0);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_type *x = kva_operand_type(n, i);
    kva_slice_attrs a = {.starts = {rank, starts}, .shape = {rank, x->dims}};
    if (c->wants[i]) c->grad_in[i] = kva_build(c->b, KVA_OP_slice, 1, c->grad_out, &a);
    starts[axis] = kva_expr_add(e, starts[axis], x->dims[axis]);
  }
  return KVA_OK;
}

enum { MAX_TURNS = 4 };

/* A few operands take turns along the last axis: lanes read all of them without conditions. */
static bool take_turns(const kva_node *n, uint32_t axis) {
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (!kva_expr_is(kva_operand_type(n, i)->dims[axis], 1)) return false;
  return n->n_operands <= MAX_TURNS && axis + 1 == kva_operand_type(n, 0)->rank;
}

/* A chain of selections; each operand is read only within its own part. */
kva_kval kva_concat_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  kva_kb *b = l->kb;
  uint32_t axis = axis_of(n), rank = kva_operand_type(n, 0)->rank;
  const kva_expr *at[KVA_MAX_RANK], *offset = kva_expr_const(b->exprs, 0);
  for (uint32_t k = 0; k < rank; k++) at[k] = idx[k];
  bool turns = take_turns(n, axis);
  kva_kval v = NULL;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_expr *end = kva_expr_add(b->exprs, offset, kva_operand_type(n, i)->dims[axis]);
    kva_kval after = kva_k_index_le(b, offset, idx[axis]);
    at[axis] = turns ? kva_expr_const(b->exprs, 0) : kva_expr_sub(b->exprs, idx[axis], offset);
    kva_kval inside = turns ? NULL : kva_k_and(b, after, kva_k_index_lt(b, idx[axis], end));
    kva_kval guard = kva_k_guard_begin(b, inside);
    kva_kval own = l->operand(l, n, i, at);
    kva_k_guard_end(b, guard);
    v = v ? kva_k_select(b, after, own, v) : own;
    offset = end;
  }
  return v;
}

bool kva_concat_shape_values(kva_shape_values *v, const kva_node *n) {
  uint32_t at = 0;
  if (n->results[0].type->rank != 1) return false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_dims *a = v->operand(v, n, i);
    if (!a || a->n > v->len - at) return false;
    for (uint32_t j = 0; j < a->n; j++) v->out[at++] = a->v[j];
  }
  return at == v->len;
}

int kva_concat_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  (void)operand;
  return axis == axis_of(n) ? KVA_MIXED : (int)axis;
}

kva_value *kva_concat_lifted(kva_incremental *c, const kva_node *n, kva_value *const *operands, const void *attrs) {
  (void)attrs;
  kva_value **in = KVA_NEW_ARRAY(c->scratch, kva_value *, n->n_operands);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_type *t = operands[i]->type;
    kva_dims shape = kva_dims_behind(c, c->batch, (kva_dims){t->rank, t->dims});
    in[i] = kva_is_lifted(n, i, operands) ? operands[i] : kva_expand(c->b, operands[i], shape.n, shape.v);
  }
  return kva_build(c->b, KVA_OP_concat, n->n_operands, in, &(kva_concat_attrs){1 + (int64_t)axis_of(n)});
}

kva_value *kva_concat_permute(kva_builder *b, const kva_node *n, kva_value *const *operands, const uint32_t *moved) {
  kva_concat_attrs attrs = *(const kva_concat_attrs *)n->attrs;
  attrs.axis = moved[axis_of(n)];
  return kva_build(b, KVA_OP_concat, n->n_operands, operands, &attrs);
}
