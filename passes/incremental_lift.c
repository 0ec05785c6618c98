/* Pass incremental: values that depend on the position of a row, and not on the sequence, differ between sequences,
 * since each is at a position of its own. They get an axis of sequences before their own dimensions, by the operators'
 * rules (kva_op_info.lifted). */
#include "passes/incremental.h"

/* An operand that has the sequences already, so that its result has. */
static bool has_sequences(const kva_chunks *p, const kva_node *n, kva_value *const *operands) {
  uint32_t rank = n->results[0].type->rank;
  for (uint32_t i = 0; i < n->n_operands; i++) {
    const kva_type *t = operands[i] ? operands[i]->type : NULL;
    if (t && !kva_is_lifted(n, i, operands) && t->rank == rank && rank && t->dims[0] == p->c.batch) return true;
  }
  return false;
}

static kva_value *lift(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs) {
  if (n->op->lifted) return n->op->lifted(&p->c, n, operands, attrs);
  if (!(n->op->traits & KVA_ELEMENTWISE)) return NULL;
  uint32_t rank = n->results[0].type->rank + !has_sequences(p, n, operands);
  return kva_broadcast_lifted(&p->c, n, operands, attrs, rank);
}

kva_value *kva_build_lifted(kva_chunks *p, const kva_node *n, kva_value *const *operands, const void *attrs) {
  bool any = false;
  for (uint32_t i = 0; i < n->n_operands; i++) any |= kva_is_lifted(n, i, operands);
  if (!any) return kva_build(p->c.b, n->op->id, n->n_operands, operands, attrs);
  kva_value *v = lift(p, n, operands, attrs);
  if (!v)
    kva_refuse_chunks(&p->c, n,
                      "it reads values made of positions, which differ between sequences, and has no rule for that");
  return v;
}
