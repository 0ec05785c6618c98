/* Tensors that are one number throughout stay so: a rule of pass simplify.
 *
 * What: what moves, picks or converts elements of an `expand` of a number gives that number again, and an elementwise
 * operator of such operands works on the numbers; both become an `expand` to the result's shape. So a mask that shows
 * every token ends where it is read, with the indices that would have picked its elements. Exact: the same operation on
 * the same numbers, once. */
#include "passes/passes_internal.h"

static bool is_number(const kva_value *v) {
  for (uint32_t i = 0; i < v->type->rank; i++)
    if (!kva_expr_is(v->type->dims[i], 1)) return false;
  return true;
}

/* The number that v is everywhere; NULL: none. */
static kva_value *number_of(kva_value *v) {
  const kva_node *spread = kva_def_if(v, KVA_OP_expand);
  kva_value *x = spread ? kva_operand(spread, 0) : v;
  return is_number(x) ? x : NULL;
}

static bool moves_elements(const kva_node *n) {
  switch ((kva_op_id)n->op->id) {
  case KVA_OP_reshape:
  case KVA_OP_transpose:
  case KVA_OP_slice:
  case KVA_OP_gather:
  case KVA_OP_gather_nd:
  case KVA_OP_gather_elements: return true;
  default: return false;
  }
}

/* n of the numbers that its operands are; NULL: one is none. */
static kva_value *of_numbers(kva_builder *b, const kva_node *n) {
  kva_value **numbers = KVA_NEW_ARRAY(b->m->arena, kva_value *, n->n_operands + 1);
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (kva_operand(n, i) && !(numbers[i] = number_of(kva_operand(n, i)))) return NULL;
  return kva_build(b, n->op->id, n->n_operands, numbers, n->attrs);
}

static bool reads_spread(const kva_node *n) {
  for (uint32_t i = 0; i < n->n_operands; i++)
    if (kva_operand(n, i) && kva_def_if(kva_operand(n, i), KVA_OP_expand) && number_of(kva_operand(n, i))) return true;
  return false;
}

kva_value *kva_simplify_uniform(kva_builder *b, kva_node *n) {
  bool moves = moves_elements(n), computes = n->op->traits & KVA_ELEMENTWISE && !kva_is(n, KVA_OP_dropout);
  if (n->n_results != 1 || (!moves && !computes) || !reads_spread(n)) return NULL;
  kva_value *x = moves ? number_of(kva_operand(n, 0)) : of_numbers(b, n);
  if (!x || b->failed) return NULL;
  if (moves && !kva_def_if(kva_operand(n, 0), KVA_OP_expand)) return NULL;
  if (x->type->rank) x = kva_reshape(b, x, 0, NULL);
  return kva_expand_like(b, x, n->results[0].type);
}
