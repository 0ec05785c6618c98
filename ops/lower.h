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
/* a * b + c in a sum of products: rounded once where the target has an instruction for that, else twice. */
static inline kva_kval kva_lower_multiply_add(kva_lower *l, kva_kval a, kva_kval b, kva_kval c) {
  if (kva_target_has(l->target, KVA_TARGET_FMA)) return kva_k_op(l->kb, KVA_K_fma, a, b, c);
  return kva_k2(l->kb, KVA_K_add, kva_k2(l->kb, KVA_K_mul, a, b), c);
}
static inline const kva_type *kva_operand_type(const kva_node *n, uint32_t i) {
  return n->operands[i].value->type;
}

#endif
