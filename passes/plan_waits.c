/* Where exchanges between processes end.
 *
 * What: an exchange whose results are not read by the next step only starts in its step; a step WAIT ends it, right
 * before the first step that touches a result, writes an operand (an update of a state that is sent), or runs programs
 * of its own, whose states are not looked into; else at the end. Operands and results live until then.
 * Requires: a plan with all its steps. Breaks: nothing. Why not in the graph: nodes have one place, and a value that is
 * there but not yet to be read would be a second kind of value. Why not in the runtime: memory that is used again is
 * the plan's, so what must not be used again is, too. */
#include "ops/exchange.h"
#include "passes/passes_internal.h"

/* A result may share a buffer with its own operand alone. Any other value in that buffer would be overwritten while the
 * transfer is still running. */
static bool may_start(const kva_plan_step *s) {
  const kva_node *n = s->node;
  if (s->kind != KVA_PLAN_KERNEL || kva_exchange_parts(n) < 2) return false;
  if (!kva_is(n, KVA_OP_all_reduce) && !kva_is(n, KVA_OP_reduce_scatter) && !kva_is(n, KVA_OP_all_gather)) return false;
  uint32_t n_in = s->n_args - n->n_results;
  for (uint32_t i = 0; i < n_in; i++)
    for (uint32_t r = n_in; r < s->n_args; r++)
      if (s->args[i] == s->args[r] && r != i + n_in) return false;
  return true;
}

static bool writes(const kva_plan_step *s, uint32_t arg) {
  return s->node ? arg >= s->n_args - s->node->n_results : arg == 0;
}

/* Whether the exchange x must have ended before s. */
static bool needs(const kva_plan_step *s, const kva_plan_step *x) {
  if (s->kind == KVA_PLAN_WAIT) return false;
  if (s->kind > KVA_PLAN_KERNEL) return true;
  for (uint32_t i = 0; i < s->n_args; i++)
    for (uint32_t k = 0; k < x->n_args; k++)
      if (s->args[i] == x->args[k] && (writes(x, k) || writes(s, i))) return true;
  return false;
}

static uint32_t end_of(const kva_memory_plan *p, uint32_t start) {
  uint32_t end = start + 1;
  while (end < p->steps.len && !needs(&p->steps.data[end], &p->steps.data[start])) end++;
  return end;
}

static void insert_wait(kva_memory_plan *p, kva_arena *arena, uint32_t start, uint32_t end) {
  kva_plan_step *wait = kva_plan_insert(p, arena, end);
  const kva_plan_step *x = &p->steps.data[start];
  *wait = (kva_plan_step){.kind = KVA_PLAN_WAIT, .started = x->node, .n_args = x->n_args, .args = x->args};
  for (uint32_t i = 0; i < x->n_args; i++) {
    kva_plan_buffer *b = &p->buffers.data[x->args[i]];
    if (b->place == KVA_PLACE_TEMP && b->last_step < (int32_t)end) b->last_step = (int32_t)end;
  }
}

void kva_plan_waits(kva_memory_plan *plan, kva_arena *arena) {
  for (uint32_t start = 0; start < plan->steps.len; start++) {
    if (!may_start(&plan->steps.data[start])) continue;
    uint32_t end = end_of(plan, start);
    if (end > start + 1) insert_wait(plan, arena, start, end);
  }
}
