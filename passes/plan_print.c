/* Plans as text, for tests and for inspection. */
#include "passes/passes_internal.h"

static void print_buffer(const kva_memory_plan *p, uint32_t i, kva_text *out) {
  static const char *const places[] = {[KVA_PLACE_INPUT] = "input",
                                       [KVA_PLACE_OUTPUT] = "output",
                                       [KVA_PLACE_STATE] = "state",
                                       [KVA_PLACE_CONST] = "const",
                                       [KVA_PLACE_TEMP] = "temp"};
  const kva_plan_buffer *b = &p->buffers.data[i];
  kva_text_add(out, "buffer %u: %s", i, places[b->place]);
  if (b->place != KVA_PLACE_TEMP && b->place != KVA_PLACE_CONST) kva_text_add(out, " %s", b->name);
  kva_text_add(out, " ");
  kva_type_print(b->type, out);
  if (b->place == KVA_PLACE_TEMP) kva_text_add(out, ", steps %d to %d", b->first_step, b->last_step);
  kva_text_add(out, "\n");
}

static void print_step(const kva_memory_plan *p, uint32_t i, kva_text *out) {
  const kva_plan_step *s = &p->steps.data[i];
  if (s->kind == KVA_PLAN_WAIT) {
    kva_text_add(out, "step %u: wait for step %d\n", i, kva_plan_start(p, i));
    return;
  }
  if (!s->node) {
    kva_text_add(out, "step %u: copy %d <- %d\n", i, s->args[0], s->args[1]);
    return;
  }
  bool group = kva_is(s->node, KVA_OP_kernel);
  kva_text_add(out, "step %u: %s (", i, group ? ((const kva_kernel_attrs *)s->node->attrs)->name : s->node->op->name);
  uint32_t n_in = s->n_args - s->node->n_results;
  for (uint32_t k = 0; k < s->n_args; k++) {
    if (k == n_in) kva_text_add(out, ") -> ");
    kva_text_add(out, k == 0 || k == n_in ? "%d" : ", %d", s->args[k]);
  }
  kva_text_add(out, n_in == s->n_args ? ")\n" : "\n");
}

void kva_plan_print(const kva_memory_plan *plan, kva_text *out) {
  for (uint32_t i = 0; i < plan->buffers.len; i++) print_buffer(plan, i, out);
  for (uint32_t i = 0; i < plan->steps.len; i++) print_step(plan, i, out);
  for (uint32_t i = 0; i < plan->steps.len; i++)
    for (int k = 0; k < 2 && plan->steps.data[i].programs[k]; k++) {
      kva_text_add(out, "plan %s\n", plan->steps.data[i].programs[k]->name);
      kva_plan_print(plan->steps.data[i].programs[k], out);
    }
}
