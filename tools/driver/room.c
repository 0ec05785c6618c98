/* Whether the programs of a module fit the memory of the machine or the GPU that is to run them. Only what is certain
 * counts: states, and where extents are known also inputs, outputs and temporaries. */
#include "tools/driver/summary.h"

/* What is free costs a GPU's context to know: programs that take less of the whole are not worth it. */
enum { ASKING_SHARE = 4 };

static bool temporaries_are_known(kva_module *m, const kva_memory_plan *plan) {
  for (uint32_t i = 0; i < plan->buffers.len; i++) {
    const kva_plan_buffer *b = &plan->buffers.data[i];
    if (b->place == KVA_PLACE_TEMP && !kva_expr_is_const(kva_type_elements(m, b->type), NULL)) return false;
  }
  return true;
}

/* On the CPU constants, and in inference states that begin with data, stay where the model has them, which is loaded.
 */
static int64_t loaded_bytes(const kva_compile_options *o, const kva_plan_bytes *b) {
  if (o->target.arch) return 0;
  return b->constants + (o->train ? 0 : b->initial);
}

static const char *advice(const kva_compile_options *o, const kva_plan_bytes *b) {
  if (b->params + b->moments + b->other_states > o->room.whole) return "a smaller model, or more memory, is needed";
  if (!o->train) return "smaller inputs take less";
  return "a smaller --batch or --micro-batch, shorter sequences, or --memory N, which computes values again instead of "
         "keeping them, take less";
}

static kva_status check(kva_module *m, const kva_memory_plan *plan, const kva_compile_options *o, kva_arena *scratch) {
  const kva_room *room = &o->room;
  kva_plan_bytes bytes;
  kva_excess excess = {.status = KVA_NO_MEMORY, .limit = room->whole, .whose = room->what};
  KVA_TRY(kva_plan_measure(m, plan, NULL, scratch, &bytes));
  excess.advice = advice(o, &bytes);
  excess.fixed = bytes.fixed - loaded_bytes(o, &bytes);
  if (temporaries_are_known(m, plan)) KVA_TRY(kva_plan_peak(plan, &bytes, scratch, &excess.temporaries));
  if (excess.fixed > room->whole || excess.temporaries > room->whole - excess.fixed)
    return kva_plan_too_large(m, plan, &bytes, &excess);
  int64_t needed = excess.fixed + excess.temporaries, available;
  if (needed <= room->whole / ASKING_SHARE || !room->available) return KVA_OK;
  available = room->available();
  if (available && needed > available)
    kva_warn(m->diag, &plan->function->loc, "program '%s' takes %lld bytes%s, of which %lld are free now", plan->name,
             (long long)needed, room->what, (long long)available);
  return KVA_OK;
}

/* What every step of a training run calls, or what a run without training calls. */
static bool is_needed(const kva_compile_options *o, uint32_t i, const kva_memory_plan *plan) {
  return o->train ? kva_writes_states(plan->function) || plan->function->stage : i == 0;
}

kva_status kva_check_room(kva_module *m, uint32_t n, kva_memory_plan *const *plans, const kva_compile_options *o) {
  kva_status status = KVA_OK;
  for (uint32_t i = 0; i < n && o->room.whole && !status; i++) {
    kva_arena *scratch = kva_arena_create();
    if (is_needed(o, i, plans[i])) status = check(m, plans[i], o, scratch);
    kva_arena_destroy(scratch);
  }
  return status;
}
