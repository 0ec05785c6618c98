/* What code for a node is made with: the context that element code (kva_<op>_lower) and hand-written kernels
 * (codegen/kernels) get. */
#ifndef KVA_OPS_LOWER_H
#define KVA_OPS_LOWER_H

#include "ir/op_info.h"
#include "ir/target.h"

/* Context of lowering one kernel; codegen fills it. */
struct kva_lower {
  kva_kb *kb;
  kva_module *module;
  const kva_target *target;
  /* Element idx of operand `operand` of n (idx has the operand's rank): its producer's code when that is in the same
   * kernel, else a load. In the compute type of the operand's dtype. */
  kva_kval (*operand)(kva_lower *l, const kva_node *n, uint32_t operand, const kva_expr *const *idx);
  /* For whole-kernel operators: element idx of result `result` is v. Runs the fused epilogue and stores. */
  void (*store)(kva_lower *l, const kva_node *n, uint32_t result, const kva_expr *const *idx, kva_kval v);
};
/* Many light threads: no tiles in a work item's own memory. */
static inline bool kva_lower_for_gpu(const kva_lower *l) {
  return l->target->kind == KVA_TARGET_GPU;
}
/* Operand of an elementwise node for result index idx: aligns ranks from the right, extent-1 dims at 0. */
kva_kval kva_lower_broadcast(kva_lower *l, const kva_node *n, uint32_t operand, const kva_expr *const *idx);
static inline const kva_type *kva_operand_type(const kva_node *n, uint32_t i) {
  return n->operands[i].value->type;
}

#endif
