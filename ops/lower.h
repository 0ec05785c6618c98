/* The context in which element code (kva_<op>_lower) and hand-written kernels (codegen/kernels) emit code for a
 * node. */
#ifndef KVA_OPS_LOWER_H
#define KVA_OPS_LOWER_H

#include "ir/op_info.h"
#include "ir/target.h"

/* Context of lowering one kernel, provided by codegen. */
struct kva_lower {
  kva_kb *kb;
  kva_module *module;
  const kva_target *target;
  /* Element idx of operand `operand` of n, in the compute type of its dtype: the producer's code if that is in the same
   * kernel, else a load. idx has the operand's rank and is not NULL. */
  kva_kval (*operand)(kva_lower *l, const kva_node *n, uint32_t operand, const kva_expr *const *idx);
  /* v's producer is in the same kernel. */
  bool (*computes)(const kva_lower *l, const kva_value *v);
  /* For whole-kernel operators: element idx of result `result` is v. Runs the fused epilogue and stores. */
  void (*store)(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx, kva_kval v);
};
/* Operand of an elementwise node at result index idx: aligns ranks from the right; extents of 1 use index 0. */
kva_kval kva_lower_broadcast(kva_lower *l, const kva_node *n, uint32_t operand, const kva_expr *const *idx);
static inline const kva_type *kva_operand_type(const kva_node *n, uint32_t i) {
  return n->operands[i].value->type;
}

#endif
