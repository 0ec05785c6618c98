/* What a plan's tensors take, and the message for a plan that does not fit. */
#include "passes/passes_internal.h"

static kva_status elements(kva_module *m, const kva_type *t, const kva_sizes *sizes, int64_t *out_n) {
  const kva_expr *n = kva_type_elements(m, t);
  *out_n = 0;
  if (!sizes && !kva_expr_is_const(n, NULL)) return KVA_OK;
  if (sizes ? kva_expr_eval(n, sizes->lookup, sizes->user, out_n) : kva_expr_is_const(n, out_n)) return KVA_OK;
  return kva_error(m->diag, NULL, "a tensor's size does not fit 64 bits");
}

static kva_status bytes_of(kva_module *m, const kva_type *t, const kva_sizes *sizes, int64_t *out_bytes) {
  int64_t n;
  KVA_TRY(elements(m, t, sizes, &n));
  if (kva_dtype_bytes(t->dtype, n, out_bytes)) return KVA_OK;
  return kva_error(m->diag, NULL, "a tensor's size does not fit 64 bits");
}

static kva_status add(kva_module *m, int64_t bytes, int64_t *total) {
  return kva_add_size(*total, bytes, total) ? KVA_OK : kva_error(m->diag, NULL, "a plan's size does not fit 64 bits");
}

/* Those of the processes that run f. */
static kva_status count_states(kva_module *m, const kva_function *f, const kva_sizes *sizes, kva_plan_bytes *b) {
  for (uint32_t i = 0; i < m->states.len; i++) {
    const kva_state *state = m->states.data[i];
    int64_t n, bytes;
    if (f->stage && state->stages && !(state->stages >> (f->stage - 1) & 1)) continue;
    KVA_TRY(elements(m, state->type, sizes, &n));
    KVA_TRY(bytes_of(m, state->type, sizes, &bytes));
    if (state->kind == KVA_STATE_PARAM) KVA_TRY(add(m, n, &b->parameters));
    if (state->init == KVA_INIT_DATA) KVA_TRY(add(m, bytes, &b->initial));
    KVA_TRY(add(m, bytes,
                state->kind == KVA_STATE_PARAM    ? &b->params
                : state->kind == KVA_STATE_MOMENT ? &b->moments
                                                  : &b->other_states));
  }
  return KVA_OK;
}

static int64_t *category_of(kva_place place, kva_plan_bytes *b) {
  switch (place) {
  case KVA_PLACE_INPUT: return &b->inputs;
  case KVA_PLACE_OUTPUT: return &b->outputs;
  case KVA_PLACE_CONST: return &b->constants;
  case KVA_PLACE_TEMP: return &b->temporaries;
  case KVA_PLACE_STATE: break; /* states are counted once, whatever reads them */
  }
  return NULL;
}

kva_status kva_plan_measure(kva_module *m, const kva_memory_plan *plan, const kva_sizes *sizes, kva_arena *arena,
                            kva_plan_bytes *out_bytes) {
  *out_bytes = (kva_plan_bytes){.of = KVA_NEW_ARRAY(arena, int64_t, plan->buffers.len + 1)};
  for (uint32_t i = 0; i < plan->buffers.len; i++) {
    const kva_plan_buffer *buffer = &plan->buffers.data[i];
    int64_t *category = category_of(buffer->place, out_bytes);
    KVA_TRY(bytes_of(m, buffer->type, sizes, &out_bytes->of[i]));
    if (category) KVA_TRY(add(m, out_bytes->of[i], category));
  }
  KVA_TRY(count_states(m, plan->function, sizes, out_bytes));
  const int64_t fixed[] = {out_bytes->params,    out_bytes->moments, out_bytes->other_states,
                           out_bytes->constants, out_bytes->inputs,  out_bytes->outputs};
  for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) KVA_TRY(add(m, fixed[i], &out_bytes->fixed));
  return KVA_OK;
}

/* The largest buffer that is smaller than the one before, or follows it; -1: there is none. */
static int32_t next_largest(const kva_memory_plan *plan, const kva_plan_bytes *b, int32_t before) {
  int32_t best = -1;
  for (int32_t i = 0; i < (int32_t)plan->buffers.len; i++) {
    bool named = before >= 0 && (b->of[i] > b->of[before] || (b->of[i] == b->of[before] && i <= before));
    if (b->of[i] && !named && (best < 0 || b->of[i] > b->of[best])) best = i;
  }
  return best;
}

static void name_largest(const kva_memory_plan *plan, const kva_plan_bytes *b, kva_text *out) {
  for (int32_t k = 0, i = -1; k < 3 && (i = next_largest(plan, b, i)) >= 0; k++) {
    const kva_plan_buffer *buffer = &plan->buffers.data[i];
    kva_text_add(out, "%s", k ? ", " : "; the largest tensors: ");
    kva_type_print(buffer->type, out);
    kva_text_add(out, " %s (%lld bytes)", buffer->name ? buffer->name : "between two steps", (long long)b->of[i]);
  }
}

kva_status kva_plan_too_large(kva_module *m, const kva_memory_plan *plan, const kva_plan_bytes *b,
                              const kva_excess *excess) {
  kva_text largest = {0};
  name_largest(plan, b, &largest);
  kva_status status =
      kva_fail(m->diag, excess->status, &plan->function->loc,
               "program '%s' does not fit %lld bytes%s: parameters, moments, inputs and outputs take %lld, and what it "
               "computes at least %lld more%s; %s",
               plan->name, (long long)excess->limit, excess->whose, (long long)excess->fixed,
               (long long)excess->temporaries, largest.data ? largest.data : "", excess->advice);
  kva_text_free(&largest);
  return status;
}
