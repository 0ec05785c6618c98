/* assume(x): y = x, with the dims of `shape` in place of x's own, which are taken to be equal.
 *
 * Where a model's extents agree only for the sizes that it is meant for (min(S, 512) and S), the importer puts this
 * before the operator that needs them equal. Each pair of dims that differs is a condition of the program
 * (kva_program.conditions), checked when its symbols are bound, before any step of its segment runs. `user` names the
 * operand that is read so. It is no alias: memory is sized by one expression, which may be known later than the other.
 * Gradient: g with x's dims. Exact: a view. */
#include "ops/facts.h"
#include "ops/ids.h"
#include "ops/incremental.h"
#include "ops/shape.h"
#include "ops/shape_values.h"

KVA_OP_FUNCTIONS(assume)

static kva_status refuse(kva_module *m, const kva_node *n, const kva_type *x, kva_dims shape) {
  kva_text a = {0}, b = {0};
  kva_shape_print(x->rank, x->dims, &a);
  kva_shape_print(shape.n, shape.v, &b);
  kva_error(m->diag, &n->loc, "kv.assume: %s is never %s", a.data, b.data);
  kva_text_free(&a);
  kva_text_free(&b);
  return KVA_INVALID;
}

kva_status kva_assume_infer(kva_module *m, const kva_node *n, const kva_type **out_types) {
  const kva_type *x = kva_operand_type(n, 0);
  kva_dims shape = ((const kva_assume_attrs *)n->attrs)->shape;
  if (shape.n != x->rank) return refuse(m, n, x, shape);
  for (uint32_t k = 0; k < shape.n; k++) {
    bool known = kva_expr_is_const(shape.v[k], NULL) && kva_expr_is_const(x->dims[k], NULL);
    if (known && shape.v[k] != x->dims[k]) return refuse(m, n, x, shape);
  }
  out_types[0] = kva_type_tensor(m, x->dtype, shape.n, shape.v);
  return KVA_OK;
}

kva_status kva_assume_ref(kva_ref *r, const kva_node *n, const kva_ref_tensor *const *in, kva_ref_tensor *const *out) {
  for (uint32_t k = 0; k < in[0]->rank; k++)
    if (in[0]->dims[k] != out[0]->dims[k])
      return kva_error(r->diag, &n->loc, "kv.assume: axis %u has %lld elements, not %lld as assumed", k,
                       (long long)in[0]->dims[k], (long long)out[0]->dims[k]);
  for (int64_t i = 0; i < out[0]->n; i++) kva_ref_copy(in[0], i, out[0], i);
  return KVA_OK;
}

kva_value *kva_assume(kva_builder *b, kva_value *x, const kva_dim *dims, const char *user) {
  if (kva_type_tensor(b->m, x->type->dtype, x->type->rank, dims) == x->type) return x;
  return kva_build(b, KVA_OP_assume, 1, &x, &(kva_assume_attrs){.shape = {x->type->rank, dims}, .user = user});
}

kva_status kva_assume_vjp(kva_vjp *c, kva_node *n) {
  const char *user = ((const kva_assume_attrs *)n->attrs)->user;
  c->grad_in[0] = kva_assume(c->b, c->grad_out[0], kva_operand_type(n, 0)->dims, user);
  return KVA_OK;
}

kva_kval kva_assume_lower(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx) {
  (void)result;
  return l->operand(l, n, 0, idx);
}

bool kva_assume_shape_values(kva_shape_values *v, const kva_node *n) {
  return kva_shape_values_same(v, n);
}

int kva_assume_source_axis(const kva_node *n, uint32_t operand, uint32_t axis) {
  (void)n, (void)operand;
  return (int)axis;
}

/* ---- operands whose extents must agree --------------------------------------------------------------------------- */

enum { MAX_GROUPS = 2 * KVA_MAX_RANK };

int kva_agrees_aligned(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis) {
  (void)attrs, (void)operand;
  return (int)(t->rank - 1 - axis);
}

int kva_agrees_with_first(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis) {
  return kva_agrees_aligned(attrs, t, operand, axis) | (operand ? 0 : KVA_AGREES_FULL);
}

bool kva_at_most_one(kva_dim d) {
  int64_t high;
  return kva_expr_upper_bound(d, &high) && high <= 1;
}

/* The better of two extents that are taken to be equal, neither of which is a 1 that broadcasts: a number, else one
 * that may exceed 1 where operands broadcast, else the smaller expression, else the older one. */
static kva_dim better(kva_dim a, kva_dim b, bool broadcast) {
  if (!a) return b;
  if (kva_expr_is_const(a, NULL)) return a;
  if (kva_expr_is_const(b, NULL)) return b;
  if (broadcast && kva_at_most_one(a) != kva_at_most_one(b)) return kva_at_most_one(a) ? b : a;
  uint32_t p = kva_expr_size(a), q = kva_expr_size(b);
  return p < q || (p == q && a->id <= b->id) ? a : b;
}

typedef int (*group_of_axis)(const void *attrs, const kva_type *t, uint32_t operand, uint32_t axis);

static group_of_axis groups_of(const kva_op_info *op) {
  return op->agrees ? op->agrees : op->traits & KVA_ELEMENTWISE ? kva_agrees_aligned : NULL;
}

/* What an operand's extent is taken to be: the one of its group, or 1 if it broadcasts. */
static kva_dim assumed(kva_builder *b, kva_dim own, kva_dim chosen, bool broadcast) {
  if (kva_expr_is_const(own, NULL)) return own;
  bool single = broadcast && kva_at_most_one(own) && !kva_at_most_one(chosen);
  return single ? kva_expr_const(b->m->exprs, 1) : chosen;
}

void kva_assume_agreement(kva_builder *b, const kva_op_info *op, const void *attrs, uint32_t n, kva_value **operands) {
  kva_dim chosen[MAX_GROUPS] = {NULL}, dims[KVA_MAX_RANK];
  group_of_axis group = groups_of(op);
  bool broadcast = op->traits & KVA_ELEMENTWISE;
  if (!group || n < 2) return;
  for (uint32_t i = 0; i < n; i++)
    for (uint32_t k = 0; operands[i] && k < operands[i]->type->rank; k++) {
      int g = group(attrs, operands[i]->type, i, k);
      kva_dim own = operands[i]->type->dims[k];
      if (g < 0 || (kva_expr_is(own, 1) && !(g & KVA_AGREES_FULL))) continue;
      g &= ~KVA_AGREES_FULL;
      chosen[g] = better(chosen[g], own, broadcast);
    }
  for (uint32_t i = 0; i < n; i++) {
    const kva_type *t = operands[i] ? operands[i]->type : NULL;
    for (uint32_t k = 0; t && k < t->rank; k++) {
      int g = group(attrs, t, i, k);
      kva_dim common = g < 0 ? NULL : chosen[g & ~KVA_AGREES_FULL];
      dims[k] = common ? assumed(b, t->dims[k], common, broadcast) : t->dims[k];
    }
    if (t)
      operands[i] = kva_assume(b, operands[i], dims, kva_arena_printf(b->m->arena, "operand %u of %s", i, op->name));
  }
}
