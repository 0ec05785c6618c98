/* States that an inference program only reads become constants: their initial values are computed here once instead of
 * at every start of the program. */
#include "tools/driver/build.h"

#include "ops/attrs.h"
#include "ops/ids.h"

static void note_writes(const kva_graph *g, bool *written) {
  for (const kva_node *n = g->first; n; n = n->next) {
    if (kva_is(n, KVA_OP_state_write)) written[((const kva_state_write_attrs *)n->attrs)->state->id] = true;
    for (uint32_t i = 0; i < n->n_graphs; i++) note_writes(n->graphs[i], written);
  }
}

/* Large uniform values are filled at startup instead of being stored. */
static bool stays(const kva_state_desc *d, bool written) {
  enum { STORED_BYTES = 4096 };
  return written || (d->init == KVA_STATE_INIT_CONSTANT && d->bytes > STORED_BYTES);
}

/* Initial values of states[i]: existing data, or the session's. */
static const void *value_of(const kva_artifact *a, kva_session *s, int32_t i) {
  const kva_state_desc *d = &a->states[i];
  if (d->init == KVA_STATE_INIT_DATA) return d->data;
  if (stays(d, false)) return NULL;
  kva_tensor t;
  kva_session_state_desc(s, i, &t);
  return t.data;
}

static void freeze_buffers(kva_program *p, const void *const *values, const int32_t *numbers, kva_arena *arena) {
  kva_buffer_desc *buffers = kva_arena_memdup(arena, p->buffers, sizeof *buffers * (size_t)p->n_buffers);
  for (int32_t i = 0; i < p->n_buffers; i++) {
    kva_buffer_desc *b = &buffers[i];
    if (b->kind != KVA_BUFFER_STATE) continue;
    if (numbers[b->state] >= 0) {
      b->state = numbers[b->state];
      continue;
    }
    b->kind = KVA_BUFFER_CONST;
    b->data = values[b->state];
    b->state = -1;
  }
  p->buffers = buffers;
}

/* Renumbers the states that stay, from 0 on. States initialised from another state, which may be gone, get their
 * values. */
static void keep_states(kva_artifact *a, const void *const *values, const int32_t *numbers, kva_arena *arena) {
  kva_state_desc *states = KVA_NEW_ARRAY(arena, kva_state_desc, a->n_states + 1);
  int32_t n = 0;
  for (int32_t i = 0; i < a->n_states; i++) {
    if (numbers[i] < 0) continue;
    states[n] = a->states[i];
    states[n].of = -1;
    if (states[n].init != KVA_STATE_INIT_CONSTANT) {
      states[n].init = KVA_STATE_INIT_DATA;
      states[n].data = values[i];
    }
    n++;
  }
  a->states = states;
  a->n_states = n;
}

static void freeze(kva_artifact *a, kva_session *s, const bool *written, kva_arena *arena) {
  const void **values = KVA_NEW_ARRAY(arena, const void *, a->n_states + 1);
  int32_t *numbers = KVA_NEW_ARRAY(arena, int32_t, a->n_states + 1), n = 0;
  for (int32_t i = 0; i < a->n_states; i++) {
    values[i] = value_of(a, s, i);
    numbers[i] = stays(&a->states[i], written[i]) ? n++ : -1;
  }
  kva_program *programs = kva_arena_memdup(arena, a->programs, sizeof *programs * (size_t)a->n_programs);
  for (int32_t i = 0; i < a->n_programs; i++) freeze_buffers(&programs[i], values, numbers, arena);
  a->programs = programs;
  keep_states(a, values, numbers, arena);
}

kva_status kva_initial_values(const kva_artifact *a, uint64_t seed, kva_arena *arena, kva_diag *diag,
                              kva_session **out_session) {
  static const kva_code functions = {.format = KVA_CODE_FUNCTIONS};
  kva_artifact *states = kva_arena_memdup(arena, a, sizeof *a);
  states->n_programs = states->n_kernels = 0;
  states->n_codes = 1;
  states->codes = &functions;
  return kva_session_create(states, &(kva_session_options){.seed = seed}, diag, out_session);
}

void kva_freeze_states(const kva_module *m, kva_artifact *a, kva_session *values, kva_arena *arena) {
  bool *written = KVA_NEW_ARRAY(arena, bool, m->states.len + 1);
  for (uint32_t i = 0; i < m->functions.len; i++) note_writes(m->functions.data[i]->graph, written);
  freeze(a, values, written, arena);
}
