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

/* The number that an `expand` spreads; NULL: v is none, or of a row. */
static kva_value *spread_number(const kva_value *v) {
  const kva_node *spread = kva_def_if(v, KVA_OP_expand);
  return spread && is_number(kva_operand(spread, 0)) ? kva_operand(spread, 0) : NULL;
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

/* n of the numbers that its operands are, at least one of which is spread; NULL: one is none. */
static kva_value *of_numbers(kva_builder *b, const kva_node *n) {
  bool spread = false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_value *v = kva_operand(n, i);
    if (v && !is_number(v) && !spread_number(v)) return NULL;
    spread |= v && spread_number(v);
  }
  if (!spread) return NULL;
  kva_value **numbers = KVA_NEW_ARRAY(b->m->arena, kva_value *, n->n_operands);
  for (uint32_t i = 0; i < n->n_operands; i++) {
    kva_value *v = kva_operand(n, i), *x = v ? spread_number(v) : NULL;
    numbers[i] = x ? x : v;
  }
  return kva_build(b, n->op->id, n->n_operands, numbers, n->attrs);
}

kva_value *kva_simplify_uniform(kva_builder *b, kva_node *n) {
  bool computes = n->op->traits & KVA_ELEMENTWISE && !kva_is(n, KVA_OP_dropout);
  if (n->n_results != 1 || (!computes && !moves_elements(n))) return NULL;
  kva_value *x = computes ? of_numbers(b, n) : spread_number(kva_operand(n, 0));
  if (!x || b->failed) return NULL;
  if (x->type->rank) x = kva_reshape(b, x, 0, NULL);
  return kva_expand_like(b, x, n->results[0].type);
}
