/* Temporaries that take the memory of others.
 *
 * What: a result of a kernel shares the buffer of an operand that nothing reads after it, if both have as many elements
 * of one type. That is a proposal, like a state that is written in place: kva_codegen_settle gives the result memory of
 * its own unless the scheduled kernel loads every element before it stores it.
 * Requires: a plan with all its steps, waits too: what an exchange reads lives until it has ended. Breaks: nothing.
 * Why not in plan.c: recompute.c asks which step made what is in a buffer. */
#include "passes/passes_internal.h"

typedef struct sharing {
  kva_module *m;
  kva_memory_plan *plan;
  int32_t *home; /* by buffer: the one whose memory it takes; itself: it has its own */
} sharing;

static bool is_temporary(const sharing *x, int32_t buffer) {
  return x->plan->buffers.data[buffer].place == KVA_PLACE_TEMP;
}

static bool may_share(const sharing *x, int32_t result, int32_t operand, int32_t step) {
  const kva_plan_buffer *r = &x->plan->buffers.data[result], *o = &x->plan->buffers.data[operand];
  if (!is_temporary(x, result) || !is_temporary(x, operand) || r->first_step != step || o->last_step != step)
    return false;
  bool whole = kva_dtype_bits(r->type->dtype) >= 8; /* elements that are bytes of their own */
  return whole && r->type->dtype == o->type->dtype &&
         kva_type_elements(x->m, r->type) == kva_type_elements(x->m, o->type);
}

static bool computes(const kva_plan_step *s) {
  return s->kind == KVA_PLAN_KERNEL && s->node->op->lower_kind != KVA_LOWER_CALL &&
         !(s->node->op->traits & KVA_UPDATES_PART);
}

/* Another result of the step has it already. */
static bool is_taken(const sharing *x, const kva_plan_step *s, int32_t home) {
  for (uint32_t r = s->n_args - s->node->n_results; r < s->n_args; r++)
    if (x->home[s->args[r]] == home) return true;
  return false;
}

static void share(sharing *x, int32_t step) {
  const kva_plan_step *s = &x->plan->steps.data[step];
  uint32_t n_operands = s->n_args - s->node->n_results;
  for (uint32_t r = n_operands; r < s->n_args; r++)
    for (uint32_t i = 0; i < n_operands && x->home[s->args[r]] == s->args[r]; i++) {
      int32_t home = x->home[s->args[i]];
      if (!may_share(x, s->args[r], home, step) || is_taken(x, s, home)) continue;
      x->home[s->args[r]] = home;
      x->plan->buffers.data[home].last_step = x->plan->buffers.data[s->args[r]].last_step;
    }
}

/* Buffers without memory of their own go. */
static void renumber(sharing *x, kva_arena *arena) {
  kva_memory_plan *p = x->plan;
  int32_t *number = KVA_NEW_ARRAY(arena, int32_t, p->buffers.len + 1), n = 0;
  for (uint32_t i = 0; i < p->buffers.len; i++) {
    if (x->home[i] != (int32_t)i) continue;
    number[i] = n;
    p->buffers.data[n++] = p->buffers.data[i];
  }
  p->buffers.len = (uint32_t)n;
  for (uint32_t s = 0; s < p->steps.len; s++) {
    kva_plan_step *step = &p->steps.data[s];
    int32_t *args = kva_arena_memdup(arena, step->args, step->n_args * sizeof *args);
    for (uint32_t i = 0; i < step->n_args; i++) args[i] = number[x->home[args[i]]];
    step->args = args;
  }
  for (uint32_t i = 0; i < p->inputs.len; i++) p->inputs.data[i] = number[p->inputs.data[i]];
  for (uint32_t i = 0; i < p->outputs.len; i++) p->outputs.data[i] = number[p->outputs.data[i]];
}

void kva_plan_in_place(kva_module *m, kva_memory_plan *plan, kva_arena *arena) {
  sharing x = {m, plan, KVA_NEW_ARRAY(arena, int32_t, plan->buffers.len + 1)};
  for (uint32_t i = 0; i < plan->buffers.len; i++) x.home[i] = (int32_t)i;
  for (uint32_t i = 0; i < plan->steps.len; i++) {
    for (int k = 0; k < 2 && plan->steps.data[i].programs[k]; k++)
      kva_plan_in_place(m, plan->steps.data[i].programs[k], arena);
    if (computes(&plan->steps.data[i])) share(&x, (int32_t)i);
  }
  renumber(&x, arena);
}
