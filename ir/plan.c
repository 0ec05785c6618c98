/* Edits of a finished memory plan. */
#include "ir/plan.h"

kva_plan_step *kva_plan_insert(kva_memory_plan *p, kva_arena *arena, uint32_t step) {
  kva_plan_step none = {0};
  KVA_PUSH(arena, &p->steps, none);
  memmove(&p->steps.data[step + 1], &p->steps.data[step], (p->steps.len - 1 - step) * sizeof none);
  for (uint32_t i = 0; i < p->buffers.len; i++) {
    kva_plan_buffer *b = &p->buffers.data[i];
    if (b->place != KVA_PLACE_TEMP) continue;
    b->first_step += b->first_step >= (int32_t)step;
    b->last_step += b->last_step >= (int32_t)step;
  }
  return &p->steps.data[step];
}

int32_t kva_plan_start(const kva_memory_plan *p, uint32_t wait) {
  const kva_plan_step *w = &p->steps.data[wait];
  uint32_t start = wait;
  while (start > 0 && p->steps.data[start].node != w->started) start--;
  KVA_ASSERT(w->kind == KVA_PLAN_WAIT && p->steps.data[start].node == w->started);
  return (int32_t)start;
}

/* The arguments of a step from the n-th on that are `from` become `to`. */
static void replace_args(kva_plan_step *s, kva_arena *arena, uint32_t n, int32_t from, int32_t to) {
  int32_t *args = NULL;
  for (uint32_t i = n; i < s->n_args; i++) {
    if (s->args[i] != from) continue;
    if (!args) s->args = args = kva_arena_memdup(arena, s->args, s->n_args * sizeof *args);
    args[i] = to;
  }
}

/* The result has memory of its own from the step on. */
static void separate_temporary(kva_memory_plan *p, kva_arena *arena, uint32_t step, uint32_t arg) {
  const kva_node *n = p->steps.data[step].node;
  const kva_value *result = &n->results[arg - (p->steps.data[step].n_args - n->n_results)];
  int32_t home = p->steps.data[step].args[arg], own = (int32_t)p->buffers.len;
  kva_plan_buffer temporary = p->buffers.data[home];
  for (int32_t i = (int32_t)step; i <= temporary.last_step; i++)
    replace_args(&p->steps.data[i], arena, i == (int32_t)step ? arg : 0, home, own);
  temporary.type = result->type, temporary.name = result->name, temporary.first_step = (int32_t)step;
  p->buffers.data[home].last_step = (int32_t)step;
  KVA_PUSH(arena, &p->buffers, temporary);
}

void kva_plan_separate(kva_memory_plan *p, kva_arena *arena, uint32_t step, uint32_t arg) {
  kva_plan_step *s = &p->steps.data[step];
  int32_t home = s->args[arg], own = (int32_t)p->buffers.len;
  kva_plan_buffer temporary = p->buffers.data[home];
  if (temporary.place == KVA_PLACE_TEMP) {
    separate_temporary(p, arena, step, arg);
    return;
  }
  temporary = (kva_plan_buffer){.place = KVA_PLACE_TEMP,
                                .type = temporary.type,
                                .name = temporary.name,
                                .first_step = (int32_t)step,
                                .last_step = (int32_t)step + 1};
  int32_t *args = kva_arena_memdup(arena, s->args, s->n_args * sizeof *args);
  args[arg] = own;
  s->args = args;
  const int32_t copy[] = {home, own};
  *kva_plan_insert(p, arena, step + 1) =
      (kva_plan_step){.kind = KVA_PLAN_COPY, .n_args = 2, .args = kva_arena_memdup(arena, copy, sizeof copy)};
  KVA_PUSH(arena, &p->buffers, temporary);
}

bool kva_assumed_extent(void *module, const kva_expr *symbol, int64_t *out_extent) {
  const kva_train_spec *t = ((const kva_module *)module)->train;
  const double *length = t && t->data_args ? kva_map_get_str(t->data_args, "length") : NULL;
  const char *name = symbol->name ? symbol->name : "";
  *out_extent = !strcmp(name, "B") ? 1 : !strcmp(name, "T") && length && *length > 0 ? (int64_t)*length : 2048;
  return true;
}
