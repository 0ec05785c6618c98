/* Confirms a plan's in-place proposals on scheduled kernels, or replaces them by a temporary and a copy. */
#include "codegen/codegen.h"
#include "ops/ids.h"

static bool shares_buffer(const kva_plan_step *s, uint32_t operand, uint32_t result) {
  return s->args[operand] == s->args[result];
}

/* A sum over processes may take the place of its own operand. */
static bool sums_in_place(const kva_plan_step *s, uint32_t operand, uint32_t result) {
  return kva_is(s->node, KVA_OP_all_reduce) && result == operand + s->node->n_results;
}

/* Relies on the kernel's parameters being in the order of the step's arguments. */
static bool is_safe(const kva_plan_step *s, uint32_t result, const kva_kernel *k) {
  uint32_t n_operands = s->n_args - s->node->n_results;
  for (uint32_t i = 0; i < n_operands; i++)
    if (shares_buffer(s, i, result) && !sums_in_place(s, i, result) &&
        !(k && kva_kernel_in_place(k, k->bufs.data[result], k->bufs.data[i])))
      return false;
  return true;
}

void kva_codegen_settle_step(kva_arena *arena, kva_memory_plan *plan, uint32_t step, const kva_kernel *k) {
  uint32_t n_args = plan->steps.data[step].n_args, n_results = plan->steps.data[step].node->n_results;
  for (uint32_t i = n_args - n_results; i < n_args; i++)
    if (!is_safe(&plan->steps.data[step], i, k)) kva_plan_separate(plan, arena, step, i);
}

static bool proposes(const kva_plan_step *s) {
  if (!s->node) return false;
  uint32_t n_operands = s->n_args - s->node->n_results;
  for (uint32_t i = 0; i < n_operands; i++)
    for (uint32_t r = n_operands; r < s->n_args; r++)
      if (shares_buffer(s, i, r)) return true;
  return false;
}

static kva_status settle(kva_arena *arena, kva_memory_plan *plan, const kva_target *target, kva_kernel_set *kernels) {
  for (uint32_t i = 0; i < plan->steps.len; i++) {
    for (int k = 0; k < 2 && plan->steps.data[i].programs[k]; k++)
      KVA_TRY(settle(arena, plan->steps.data[i].programs[k], target, kernels));
    if (!proposes(&plan->steps.data[i])) continue;
    const kva_kernel *k = NULL;
    if (plan->steps.data[i].kind == KVA_PLAN_KERNEL && !kva_codegen_is_call(target, plan->steps.data[i].node)) {
      KVA_TRY(kva_kernel_set_get(kernels, plan->steps.data[i].node, &k));
    }
    kva_codegen_settle_step(arena, plan, i, k);
  }
  return KVA_OK;
}

kva_status kva_codegen_settle(kva_arena *arena, kva_memory_plan *plan, const kva_target *target) {
  kva_kernel_set *kernels = kva_kernel_set_create(target, NULL);
  kva_status status = settle(arena, plan, target, kernels);
  kva_kernel_set_destroy(kernels);
  return status;
}
