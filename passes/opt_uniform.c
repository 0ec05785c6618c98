/* Tensors that are one number throughout stay so, and those that are one row of constants: a rule of pass simplify.
 *
 * What: what moves, picks or converts elements of an `expand` of a number gives that number again, and an elementwise
 * operator of such operands works on the numbers; both become an `expand` to the result's shape. So a mask that shows
 * every token ends where it is read, with the indices that would have picked its elements. Elementwise operators work
 * on rows of constants, too, so that folding computes them: the frequencies of a rotary embedding are the same for all
 * positions. Exact: the same operation on the same numbers, once. */
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

static bool computes(const kva_node *n) {
  return n->op->traits & KVA_ELEMENTWISE && !kva_is(n, KVA_OP_dropout);
}

enum { DEPTH = 8 }; /* of operators that folding has not computed yet */

static bool is_constant(const kva_value *v, int depth) {
  const kva_node *n = v->def;
  if (!n || !n->n_operands) return n && (kva_is(n, KVA_OP_constant) || kva_is(n, KVA_OP_iota));
  bool known = depth > 0 && computes(n);
  for (uint32_t i = 0; known && i < n->n_operands; i++)
    known = kva_operand(n, i) && is_constant(kva_operand(n, i), depth - 1);
  return known;
}

/* Or the row of constants. */
static kva_value *spread_row(const kva_value *v) {
  const kva_node *spread = kva_def_if(v, KVA_OP_expand);
  return spread && is_constant(kva_operand(spread, 0), DEPTH) ? kva_operand(spread, 0) : NULL;
}

/* n of the numbers that its operands are, or of those and rows of one type, at least one of which is spread; NULL: one
 * is neither. */
static kva_value *of_spread(kva_builder *b, const kva_node *n) {
  kva_value **parts = KVA_NEW_ARRAY(b->m->arena, kva_value *, n->n_operands);
  const kva_type *row = NULL;
  bool spread = false;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    kva_value *v = kva_operand(n, i), *x = v ? spread_number(v) : NULL;
    if (v && !x && !is_number(v)) {
      x = spread_row(v);
      if (!x || (row && row != x->type)) return NULL;
      row = x->type;
    }
    spread |= x != NULL;
    parts[i] = x ? x : v;
  }
  return spread ? kva_build(b, n->op->id, n->n_operands, parts, n->attrs) : NULL;
}

kva_value *kva_simplify_uniform(kva_builder *b, kva_node *n) {
  if (n->n_results != 1 || (!computes(n) && !moves_elements(n))) return NULL;
  kva_value *x = computes(n) ? of_spread(b, n) : spread_number(kva_operand(n, 0));
  if (!x || b->failed) return NULL;
  if (is_number(x) && x->type->rank) x = kva_reshape(b, x, 0, NULL);
  return kva_expand_like(b, x, n->results[0].type);
}
