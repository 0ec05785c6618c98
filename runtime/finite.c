/* Finds values that are not finite, and the step that produced the first one.
 *
 * A training step reads its states, computes loss and gradients, then updates. At the plan's step `commit` loss and
 * gradient norm are known and no parameter has changed. A run that stops there loses nothing, and running the first
 * part again gives the same values. The exception: running statistics, which the forward pass updates, may have
 * changed. */
#include "runtime/comm.h"
#include "runtime/session.h"

#include <math.h>

static kva_output_role output_role(const kva_program *p, int32_t output) {
  return p->output_roles ? (kva_output_role)p->output_roles[output] : KVA_OUTPUT_VALUE;
}

int32_t kva_loss_output(const kva_program *p) {
  for (int32_t i = 0; i < p->n_outputs; i++)
    if (output_role(p, i) == KVA_OUTPUT_LOSS) return i;
  return -1;
}

/* Whether the output is the loss or the norm of its gradient. */
static bool is_watched(const kva_program *p, int32_t output) {
  const kva_buffer_desc *b = &p->buffers[p->outputs[output]];
  if (b->rank || !kva_dtype_is_float((kva_dtype)b->dtype)) return false;
  kva_output_role role = output_role(p, output);
  return role == KVA_OUTPUT_LOSS || role == KVA_OUTPUT_GRAD_NORM;
}

int32_t kva_step_writes(const kva_step_desc *step, int32_t *out_first) {
  bool copy = step->kind == KVA_STEP_COPY;
  int32_t n = copy ? 1 : step->n_results;
  *out_first = copy ? 0 : step->n_args - n;
  return n;
}

static bool step_writes_state(const kva_program *p, const kva_step_desc *step, int32_t state) {
  int32_t first, n = kva_step_writes(step, &first);
  for (int32_t i = first; i < first + n; i++) {
    const kva_buffer_desc *b = &p->buffers[step->args[i]];
    if (b->kind == KVA_BUFFER_STATE && b->state == state) return true;
  }
  return false;
}

bool kva_program_writes_state(const kva_program *p, int32_t state) {
  for (int32_t k = 0; k < p->n_steps; k++)
    if (step_writes_state(p, &p->steps[k], state)) return true;
  return false;
}

bool kva_state_is_written(const kva_artifact *a, int32_t state) {
  for (int32_t i = 0; i < a->n_programs; i++)
    if (kva_program_writes_state(&a->programs[i], state)) return true;
  return false;
}

static bool writes(const kva_program *p, const kva_step_desc *step, int32_t buffer, bool any_state) {
  int32_t first, n = kva_step_writes(step, &first);
  for (int32_t i = first; i < first + n; i++)
    if (step->args[i] == buffer || (any_state && p->buffers[step->args[i]].kind == KVA_BUFFER_STATE)) return true;
  return false;
}

int32_t kva_commit_step(const kva_program *p) {
  int32_t known = 0;
  bool watches = false;
  for (int32_t o = 0; o < p->n_outputs; o++) {
    if (!is_watched(p, o)) continue;
    watches = true;
    for (int32_t i = known; i < p->n_steps; i++)
      if (writes(p, &p->steps[i], p->outputs[o], false)) known = i + 1;
  }
  int32_t commit = watches ? known : p->n_steps;
  while (commit < p->n_steps && !writes(p, &p->steps[commit], -1, true)) commit++;
  return commit;
}

bool kva_outputs_finite(const kva_program_state *sp) {
  const kva_program *p = sp->desc;
  for (int32_t o = 0; o < p->n_outputs; o++) {
    int32_t b = p->outputs[o];
    if (is_watched(p, o) && !isfinite(kva_load_f64((kva_dtype)p->buffers[b].dtype, sp->pointers[b], 0))) return false;
  }
  return true;
}

/* ---- the search for the first such value ------------------------------------------------------------------------- */

/* Where a value was first found. */
typedef struct sight {
  bool found;
  int64_t element;
} sight;
typedef struct search {
  const kva_program_state *sp;
  sight nan, infinity; /* in the buffer scanned last */
  kva_text *out;
  bool told_nan, told_infinity;
} search;

static void look(search *q, kva_dtype type, const void *data, int64_t bytes) {
  q->nan = q->infinity = (sight){0};
  if (!kva_dtype_is_float(type)) return;
  int64_t n = bytes * 8 / kva_dtype_bits(type);
  for (int64_t i = 0; i < n; i++) {
    double v = type == KVA_F32 ? ((const float *)data)[i] : kva_load_f64(type, data, i);
    if (isfinite(v)) continue;
    sight *s = isnan(v) ? &q->nan : &q->infinity;
    if (!s->found) *s = (sight){true, i};
  }
}

static void tell(search *q, const char *what, bool *told, const sight *s, const char *where) {
  if (*told || !s->found) return;
  *told = true;
  kva_text_add(q->out, "%sthe first %s is element %lld of %s", q->out->len ? "; " : "", what, (long long)s->element,
               where);
}

static void look_at(search *q, int32_t buffer, const char *where) {
  const kva_buffer_desc *b = &q->sp->desc->buffers[buffer];
  if (!q->sp->pointers[buffer]) return;
  look(q, (kva_dtype)b->dtype, q->sp->pointers[buffer], q->sp->bytes[buffer]);
  tell(q, "NaN", &q->told_nan, &q->nan, where);
  tell(q, "infinity", &q->told_infinity, &q->infinity, where);
}

static void look_at_step(search *q, int32_t index) {
  const kva_step_desc *step = &q->sp->desc->steps[index];
  int32_t first, n = kva_step_writes(step, &first);
  for (int32_t i = first; i < first + n; i++) {
    const char *name = q->sp->desc->buffers[step->args[i]].name;
    char where[256];
    snprintf(where, sizeof where, "'%.80s', which step %d (%.100s) computes", name ? name : "a temporary", index,
             step->origin ? step->origin : "unnamed");
    look_at(q, step->args[i], where);
  }
}

/* Whether the search is over. It ends together in all processes: they wait for each other in what they exchange. */
static bool is_over(const search *q, kva_session *s, const kva_step_desc *next) {
  if (!kva_step_is_collective(next)) return q->told_nan && !s->options.comm;
  double found = q->told_nan;
  return kva_comm_all_reduce(s->options.comm, KVA_F64, 1, &found, &found) != KVA_OK || found > 0;
}

/* Caches hold gradients of earlier micro-batches, which this run overwrites. */
static bool is_cache(const kva_session *s, const kva_buffer_desc *b) {
  return b->kind == KVA_BUFFER_STATE && s->artifact->states[b->state].role == KVA_ROLE_CACHE;
}

/* Reports inputs and states that were not finite before the first step. */
static void look_at_sources(search *q, const kva_session *s) {
  const kva_program *p = q->sp->desc;
  for (int32_t b = 0; b < p->n_buffers; b++) {
    const char *kind = p->buffers[b].kind == KVA_BUFFER_INPUT   ? "input"
                       : p->buffers[b].kind == KVA_BUFFER_STATE ? "state"
                                                                : NULL;
    if (!kind || is_cache(s, &p->buffers[b])) continue;
    char where[256];
    snprintf(where, sizeof where, "%s '%.200s', before any step", kind, p->buffers[b].name ? p->buffers[b].name : "");
    look_at(q, b, where);
  }
}

void kva_explain_not_finite(kva_session *s, int program, bool all, kva_text *out) {
  kva_program_state *sp = &s->programs[program];
  search q = {.sp = sp, .out = out};
  int32_t n = all ? sp->desc->n_steps : sp->commit;
  if (!s->device->class->host_memory || (!all && n == sp->desc->n_steps) || kva_session_rewind(s, sp)) return;
  look_at_sources(&q, s);
  for (int32_t i = 0; i < n && !is_over(&q, s, &sp->desc->steps[i]); i++) {
    kva_status status = kva_session_step(s, sp, i);
    kva_comm_drain(s->options.comm); /* also what the step only starts */
    if (status != KVA_OK) return;
    look_at_step(&q, i);
  }
  kva_comm_share(s->options.comm, out);
}
