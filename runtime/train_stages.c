/* Training in stages: the axis pipeline of a mesh (passes/stages.c makes the programs).
 *
 * Process s of P runs forward.s and backward.s for every micro-batch. It takes from its neighbours what are inputs of
 * its programs and outputs or inputs of theirs, by name: of forward.s from s - 1, of backward.s from s + 1, but for
 * what its own forward.s has made or been given, which it keeps until then.
 *
 * The order is one forward, one backward (1F1B; Narayanan et al., arXiv 2104.04473): with w = min(P - 1 - s, m) of m
 * micro-batches, forward passes 0 to w - 1, then for i = 0, 1, ...: forward pass i + w, backward pass i. So P - s
 * micro-batches at most are kept, and gradients are added in the order of micro-batches.
 *
 * No process waits for ever, even if every message waits for its receiver. Let f(s, k) be the message of forward pass k
 * from s to s + 1, and b(s, i) that of backward pass i from s + 1 to s. A process goes through its messages in the
 * order
 * ..., f(s - 1, i + w) in, b(s, i) in, f(s, i + w) out, b(s - 1, i) out, ...: it takes the gradient before it gives its
 * result away, which s + 1 wants only after it has given that gradient. With the times 2 k + s of f(s, k) and
 * 2 P - 5/2 - s + 2 i of b(s, i) both ends of all messages are in order of time in every process, warm-up and end
 * included, so the earliest message that is not done can always be. Processes that share a stage go through the same
 * programs, and what they exchange with each other is inside of these. */
#include "runtime/train.h"

#include "runtime/comm.h"
#include "runtime/session.h"

#include <math.h>
#include <stdlib.h>

/* Where a value is that an input is made of. */
typedef enum source_kind { OF_OUTPUT, OF_INPUT, FROM_NEIGHBOUR } source_kind;
typedef struct source {
  source_kind kind;
  int32_t index; /* of the forward pass, or of the program itself */
} source;

/* A program of this stage. Memory of what crosses is the program's; that of the forward pass a slot's. */
typedef struct stage_program {
  int number;
  const kva_program *p; /* NULL: there is none */
  int32_t own;          /* inputs that are no other program's: data and scalars */
  kva_tensor *inputs, *outputs;
} stage_program;

/* What is kept of a micro-batch between its passes: memory by input and by output of the forward pass. */
typedef struct slot {
  void **inputs, **outputs;
} slot;

/* A value of norm of a stage that all need. */
typedef struct shared_value {
  int stage;
  int64_t bytes;
  void *data;
} shared_value;

/* A state that another stage than those that have it updates. */
typedef struct moved_state {
  int32_t state;
  int from, to;
} moved_state;

struct kva_train_stages {
  kva_comm *c;
  int stage, n;
  int32_t n_data, n_reported; /* data inputs; outputs of the last stage */
  stage_program forward, backward, eval, norm, apply;
  int64_t n_slots;
  slot *slots;
  slot eval_slot;
  source *backward_from;        /* by input of backward */
  int32_t n_up, n_down, n_eval; /* values for the neighbours */
  source *up, *down, *eval_up;
  int32_t n_shared, n_moved;
  shared_value *shared;
  moved_state *moved;
  void *spare; /* for shared values that this stage does not read */
  int64_t n_owned;
  void **owned;     /* memory of tensors */
  int32_t n_values; /* of a step: what is reported, then outputs of apply */
  const char **names;
  double *values, *evaluated;
};

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static const kva_program *program_of(const kva_trainer *t, const char *name, int stage, int *out_number) {
  char text[64];
  snprintf(text, sizeof text, "%s.%d", name, stage);
  int number = kva_session_program(t->s, text);
  if (out_number) *out_number = number;
  return number < 0 ? NULL : kva_session_program_desc(t->s, number);
}

static const char *input_name(const kva_program *p, int32_t i) {
  return p->buffers[p->inputs[i]].name;
}

static int32_t find_input(const kva_program *p, int32_t own, const char *name) {
  for (int32_t i = own; p && i < p->n_inputs; i++)
    if (!strcmp(input_name(p, i), name)) return i;
  return -1;
}

static int32_t find_output(const kva_program *p, const char *name) {
  for (int32_t i = 0; p && i < p->n_outputs; i++) {
    const char *found = p->buffers[p->outputs[i]].name;
    if (found && !strcmp(found, name)) return i;
  }
  return -1;
}

/* What a program has under this name. */
static source find(const kva_program *p, int32_t own, const char *name) {
  int32_t i = find_output(p, name);
  if (i >= 0) return (source){OF_OUTPUT, i};
  i = find_input(p, own, name);
  return i >= 0 ? (source){OF_INPUT, i} : (source){FROM_NEIGHBOUR, -1};
}

static kva_status shape(const kva_trainer *t, const kva_program *p, int32_t buffer, kva_diag *diag, kva_tensor *out) {
  return kva_train_shape(t, p, &p->buffers[buffer], t->options.micro_batch, diag, out);
}

static kva_status create_program(const kva_trainer *t, const char *name, int32_t own, bool optional, kva_diag *diag,
                                 stage_program *sp) {
  const kva_train_stages *g = t->stages;
  sp->p = program_of(t, name, g->stage, &sp->number);
  sp->own = own;
  if (!sp->p && optional) return KVA_OK;
  if (!sp->p) return kva_error(diag, NULL, "the artefact has no program '%s.%d'", name, g->stage);
  sp->inputs = calloc((size_t)sp->p->n_inputs + 1, sizeof *sp->inputs);
  sp->outputs = calloc((size_t)sp->p->n_outputs + 1, sizeof *sp->outputs);
  if (!sp->inputs || !sp->outputs) return KVA_NO_MEMORY;
  for (int32_t i = 0; i < sp->p->n_inputs; i++) KVA_TRY(shape(t, sp->p, sp->p->inputs[i], diag, &sp->inputs[i]));
  for (int32_t i = 0; i < sp->p->n_outputs; i++) KVA_TRY(shape(t, sp->p, sp->p->outputs[i], diag, &sp->outputs[i]));
  return KVA_OK;
}

/* Zeroed memory for a tensor, until the end. */
static kva_status give(kva_train_stages *g, const kva_tensor *t, void **out) {
  enum { STEP = 64 };
  int64_t bytes = kva_tensor_bytes(t);
  if (g->n_owned % STEP == 0) {
    void **more = realloc(g->owned, (size_t)(g->n_owned + STEP) * sizeof *more);
    if (!more) return KVA_NO_MEMORY;
    g->owned = more;
  }
  *out = bytes < 0 ? NULL : calloc((size_t)bytes + 1, 1);
  if (*out) g->owned[g->n_owned++] = *out;
  return *out ? KVA_OK : KVA_NO_MEMORY;
}

static kva_status give_all(kva_train_stages *g, int32_t first, int32_t n, kva_tensor *tensors) {
  for (int32_t i = first; i < n; i++) KVA_TRY(give(g, &tensors[i], &tensors[i].data));
  return KVA_OK;
}

static kva_status create_slot(kva_train_stages *g, const stage_program *sp, slot *out) {
  out->inputs = calloc((size_t)sp->p->n_inputs + 1, sizeof *out->inputs);
  out->outputs = calloc((size_t)sp->p->n_outputs + 1, sizeof *out->outputs);
  if (!out->inputs || !out->outputs) return KVA_NO_MEMORY;
  for (int32_t i = sp->own; i < sp->p->n_inputs; i++) KVA_TRY(give(g, &sp->inputs[i], &out->inputs[i]));
  for (int32_t i = 0; i < sp->p->n_outputs; i++) KVA_TRY(give(g, &sp->outputs[i], &out->outputs[i]));
  return KVA_OK;
}

/* ---- what crosses ------------------------------------------------------------------------------------------------ */

static kva_status lost(const kva_program *p, const char *name, kva_diag *diag) {
  return kva_error(diag, NULL, "%s: nothing gives it its input '%s'", p->name, name);
}

/* For each value that program `name` of stage `to` takes from this stage: where it is in `p`. keeps: the program whose
 * values the other stage has itself. */
static kva_status list_sent(const kva_program *to, int32_t own, const kva_program *keeps, const stage_program *from,
                            kva_diag *diag, source **out, int32_t *out_n) {
  if (!to) return KVA_OK;
  *out = calloc((size_t)to->n_inputs + 1, sizeof **out);
  if (!*out) return KVA_NO_MEMORY;
  for (int32_t i = own; i < to->n_inputs; i++) {
    if (keeps && find(keeps, from->own, input_name(to, i)).kind != FROM_NEIGHBOUR) continue;
    source found = find(from->p, from->own, input_name(to, i));
    if (found.kind == FROM_NEIGHBOUR) return lost(to, input_name(to, i), diag);
    (*out)[(*out_n)++] = found;
  }
  return KVA_OK;
}

static kva_status list_crossing(const kva_trainer *t, kva_train_stages *g, kva_diag *diag) {
  int up = g->stage + 1, down = g->stage - 1, passes = g->n_data + 1;
  KVA_TRY(list_sent(program_of(t, "forward", up, NULL), passes, NULL, &g->forward, diag, &g->up, &g->n_up));
  KVA_TRY(list_sent(program_of(t, "eval", up, NULL), g->n_data, NULL, &g->eval, diag, &g->eval_up, &g->n_eval));
  KVA_TRY(list_sent(program_of(t, "backward", down, NULL), passes, program_of(t, "forward", down, NULL), &g->backward,
                    diag, &g->down, &g->n_down));
  g->backward_from = calloc((size_t)g->backward.p->n_inputs + 1, sizeof *g->backward_from);
  if (!g->backward_from) return KVA_NO_MEMORY;
  for (int32_t i = passes; i < g->backward.p->n_inputs; i++) {
    g->backward_from[i] = find(g->forward.p, passes, input_name(g->backward.p, i));
    if (g->backward_from[i].kind != FROM_NEIGHBOUR) continue;
    if (up == g->n) return lost(g->backward.p, input_name(g->backward.p, i), diag);
    KVA_TRY(give(g, &g->backward.inputs[i], &g->backward.inputs[i].data));
  }
  return KVA_OK;
}

/* ---- updates: what stages share ---------------------------------------------------------------------------------- */

static bool others_read(const kva_trainer *t, int stage, const char *name) {
  for (int i = 0; i < t->stages->n; i++)
    if (i != stage && find_input(program_of(t, "apply", i, NULL), 2, name) >= 0) return true;
  return false;
}

/* Memory of a shared value: what this stage's norm writes, or its apply reads. */
static void *place_of(const kva_train_stages *g, int stage, const char *name) {
  int32_t made = stage == g->stage ? find_output(g->norm.p, name) : -1, read = find_input(g->apply.p, 2, name);
  return made >= 0 ? g->norm.outputs[made].data : read >= 0 ? g->apply.inputs[read].data : NULL;
}

static kva_status add_shared(const kva_trainer *t, int stage, kva_diag *diag, int64_t *most) {
  kva_train_stages *g = t->stages;
  const kva_program *p = program_of(t, "norm", stage, NULL);
  if (!p) return KVA_OK;
  shared_value *all = realloc(g->shared, (size_t)(g->n_shared + p->n_outputs + 1) * sizeof *all);
  if (!all) return KVA_NO_MEMORY;
  g->shared = all;
  for (int32_t i = 0; i < p->n_outputs; i++) {
    kva_tensor value;
    const char *name = p->buffers[p->outputs[i]].name;
    if (!others_read(t, stage, name)) continue;
    KVA_TRY(shape(t, p, p->outputs[i], diag, &value));
    shared_value *v = &all[g->n_shared++];
    *v = (shared_value){.stage = stage, .bytes = kva_tensor_bytes(&value), .data = place_of(g, stage, name)};
    if (v->bytes > *most) *most = v->bytes;
  }
  return KVA_OK;
}

/* What this stage's norm makes for its apply is read where it is. */
static kva_status create_updates(kva_train_stages *g) {
  if (g->norm.p) KVA_TRY(give_all(g, 0, 2, g->norm.inputs));
  if (g->norm.p) KVA_TRY(give_all(g, 0, g->norm.p->n_outputs, g->norm.outputs));
  KVA_TRY(give_all(g, 0, 2, g->apply.inputs));
  for (int32_t i = 2; i < g->apply.p->n_inputs; i++) {
    int32_t made = find_output(g->norm.p, input_name(g->apply.p, i));
    if (made < 0) KVA_TRY(give(g, &g->apply.inputs[i], &g->apply.inputs[i].data));
    if (made >= 0) g->apply.inputs[i].data = g->norm.outputs[made].data;
  }
  return give_all(g, 0, g->apply.p->n_outputs, g->apply.outputs);
}

static kva_status list_shared(const kva_trainer *t, kva_diag *diag) {
  kva_train_stages *g = t->stages;
  int64_t most = 0;
  for (int i = 0; i < g->n; i++) KVA_TRY(add_shared(t, i, diag, &most));
  g->spare = malloc((size_t)most + 1);
  return g->spare ? KVA_OK : KVA_NO_MEMORY;
}

/* The stage whose update writes the state; -1: none does. */
static int writer_of(const kva_trainer *t, int32_t state) {
  for (int i = 0; i < t->stages->n; i++) {
    const kva_program *p = program_of(t, "apply", i, NULL);
    if (p && kva_program_writes_state(p, state)) return i;
  }
  return -1;
}

static kva_status list_moved(const kva_trainer *t) {
  kva_train_stages *g = t->stages;
  const kva_artifact *a = kva_session_artifact(t->s);
  g->moved = calloc((size_t)a->n_states * (size_t)g->n + 1, sizeof *g->moved);
  for (int32_t i = 0; g->moved && i < a->n_states; i++) {
    int from = a->states[i].stages ? writer_of(t, i) : -1;
    for (int to = 0; from >= 0 && to < g->n; to++)
      if (to != from && a->states[i].stages >> to & 1) g->moved[g->n_moved++] = (moved_state){i, from, to};
  }
  return g->moved ? KVA_OK : KVA_NO_MEMORY;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static kva_status create_programs(const kva_trainer *t, kva_diag *diag) {
  kva_train_stages *g = t->stages;
  KVA_TRY(create_program(t, "forward", g->n_data + 1, false, diag, &g->forward));
  KVA_TRY(create_program(t, "backward", g->n_data + 1, false, diag, &g->backward));
  KVA_TRY(create_program(t, "eval", g->n_data, false, diag, &g->eval));
  KVA_TRY(create_program(t, "norm", 2, true, diag, &g->norm));
  return create_program(t, "apply", 2, false, diag, &g->apply);
}

/* Micro-batches in flight, and what a backward pass takes and makes, which is one at a time. */
static kva_status create_memory(const kva_trainer *t, kva_diag *diag) {
  kva_train_stages *g = t->stages;
  int64_t most = g->n - g->stage;
  int32_t scalar = g->n_data; /* `first` */
  g->n_slots = t->micro_batches < most ? t->micro_batches : most;
  g->slots = calloc((size_t)g->n_slots, sizeof *g->slots);
  if (!g->slots) return KVA_NO_MEMORY;
  for (int64_t k = 0; k < g->n_slots; k++) KVA_TRY(create_slot(g, &g->forward, &g->slots[k]));
  KVA_TRY(create_slot(g, &g->eval, &g->eval_slot));
  KVA_TRY(list_crossing(t, g, diag));
  KVA_TRY(give(g, &g->backward.inputs[scalar], &g->backward.inputs[scalar].data));
  g->forward.inputs[scalar].data = g->backward.inputs[scalar].data;
  KVA_TRY(give_all(g, 0, g->backward.p->n_outputs, g->backward.outputs));
  KVA_TRY(create_updates(g));
  KVA_TRY(list_shared(t, diag));
  return list_moved(t);
}

static kva_status name_outputs(const kva_trainer *t) {
  kva_train_stages *g = t->stages;
  const kva_program *last = program_of(t, "eval", g->n - 1, NULL), *apply = g->apply.p;
  g->n_reported = last->n_outputs;
  g->n_values = last->n_outputs + apply->n_outputs;
  g->names = calloc((size_t)g->n_values + 1, sizeof *g->names);
  g->values = calloc((size_t)g->n_values + 1, sizeof *g->values);
  g->evaluated = calloc((size_t)g->n_reported + 1, sizeof *g->evaluated);
  if (!g->names || !g->values || !g->evaluated) return KVA_NO_MEMORY;
  for (int32_t i = 0; i < last->n_outputs; i++) g->names[i] = last->buffers[last->outputs[i]].name;
  for (int32_t i = 0; i < apply->n_outputs; i++) g->names[g->n_reported + i] = apply->buffers[apply->outputs[i]].name;
  return KVA_OK;
}

kva_status kva_train_stages_create(kva_trainer *t, kva_diag *diag) {
  const kva_program *first = program_of(t, "eval", 0, NULL);
  kva_comm *c = kva_comm_stages(kva_train_comm(t));
  if (!first || !c) return KVA_OK;
  kva_train_stages *g = t->stages = calloc(1, sizeof *g);
  if (!g) return KVA_NO_MEMORY;
  g->c = c;
  g->stage = kva_comm_rank(c);
  g->n = kva_comm_size(c);
  g->n_data = first->n_inputs;
  if (!program_of(t, "eval", g->n - 1, NULL)) return kva_error(diag, NULL, "the artefact has too few stages");
  KVA_TRY(create_programs(t, diag));
  KVA_TRY(create_memory(t, diag));
  return name_outputs(t);
}

static void destroy_slot(const slot *x) {
  free(x->inputs);
  free(x->outputs);
}

void kva_train_stages_destroy(kva_train_stages *g) {
  if (!g) return;
  for (int64_t i = 0; i < g->n_owned; i++) free(g->owned[i]);
  for (int64_t k = 0; g->slots && k < g->n_slots; k++) destroy_slot(&g->slots[k]);
  destroy_slot(&g->eval_slot);
  const stage_program *const programs[] = {&g->forward, &g->backward, &g->eval, &g->norm, &g->apply};
  for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
    free(programs[i]->inputs);
    free(programs[i]->outputs);
  }
  void *const arrays[] = {g->owned, g->slots, g->backward_from, g->up,     g->down,     g->eval_up, g->shared,
                          g->moved, g->spare, (void *)g->names, g->values, g->evaluated};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
  free(g);
}

int32_t kva_train_stages_values(const kva_train_stages *g, const char *const **out_names, const double **out_values) {
  *out_names = g->names;
  *out_values = g->values;
  return g->n_values;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static kva_status exchanged(const kva_trainer *t, kva_status status, kva_diag *diag) {
  return status == KVA_OK ? KVA_OK : kva_fail(diag, status, NULL, "%s", kva_comm_error(kva_train_comm(t)));
}

static kva_status receive(const kva_trainer *t, int from, const kva_tensor *x, void *data, kva_diag *diag) {
  return exchanged(t, kva_comm_receive(t->stages->c, from, kva_tensor_bytes(x), data), diag);
}

/* Values of a program, those of a forward pass in a slot. */
static kva_status send_all(const kva_trainer *t, int to, int32_t n, const source *what, const stage_program *sp,
                           const slot *kept, kva_diag *diag) {
  for (int32_t i = 0; i < n; i++) {
    int32_t k = what[i].index;
    bool made = what[i].kind == OF_OUTPUT;
    const kva_tensor *x = made ? &sp->outputs[k] : &sp->inputs[k];
    const void *data = !kept ? x->data : made ? kept->outputs[k] : kept->inputs[k];
    KVA_TRY(exchanged(t, kva_comm_send(t->stages->c, to, kva_tensor_bytes(x), data), diag));
  }
  return KVA_OK;
}

/* ---- runs -------------------------------------------------------------------------------------------------------- */

static kva_status run(const kva_trainer *t, stage_program *sp, bool guarded, kva_diag *diag) {
  t->s->guarded = guarded;
  kva_status status = kva_session_run(t->s, sp->number, sp->inputs, sp->outputs);
  t->s->guarded = false;
  if (status == KVA_OK || status == KVA_NOT_FINITE) return status;
  return kva_fail(diag, status, NULL, "%s", kva_session_error(t->s));
}

static void take_batch(const kva_trainer *t, const kva_train_call *batch, int64_t k, stage_program *sp) {
  for (int32_t i = 0; i < t->stages->n_data; i++)
    sp->inputs[i].data = (char *)batch->batch[i].data + k * kva_tensor_bytes(&sp->inputs[i]);
}

/* Outputs of the last stage, the loss first. */
static void report(const kva_trainer *t, const stage_program *sp, double *values) {
  const kva_train_stages *g = t->stages;
  for (int32_t i = 0; g->stage + 1 == g->n && i < g->n_reported; i++) values[i] += kva_train_scalar(&sp->outputs[i]);
}

/* A pass of forward or eval in a slot. */
static kva_status pass(const kva_trainer *t, stage_program *sp, const slot *x, double *values, kva_diag *diag) {
  for (int32_t i = sp->own; i < sp->p->n_inputs; i++) {
    sp->inputs[i].data = x->inputs[i];
    KVA_TRY(receive(t, t->stages->stage - 1, &sp->inputs[i], x->inputs[i], diag));
  }
  for (int32_t i = 0; i < sp->p->n_outputs; i++) sp->outputs[i].data = x->outputs[i];
  KVA_TRY(run(t, sp, false, diag));
  report(t, sp, values);
  return KVA_OK;
}

static slot *slot_of(const kva_train_stages *g, int64_t k) {
  return &g->slots[k % g->n_slots];
}

static kva_status forward(const kva_trainer *t, int64_t k, double *values, kva_diag *diag) {
  kva_train_stages *g = t->stages;
  take_batch(t, &t->step, k, &g->forward);
  kva_train_set_pass(t, k);
  return pass(t, &g->forward, slot_of(g, k), values, diag);
}

static kva_status send_up(const kva_trainer *t, int64_t k, kva_diag *diag) {
  const kva_train_stages *g = t->stages;
  return send_all(t, g->stage + 1, g->n_up, g->up, &g->forward, slot_of(g, k), diag);
}

/* Gradients of the stage behind, and what forward pass k has left. */
static kva_status take_kept(const kva_trainer *t, int64_t k, kva_diag *diag) {
  kva_train_stages *g = t->stages;
  const slot *kept = slot_of(g, k);
  stage_program *sp = &g->backward;
  for (int32_t i = sp->own; i < sp->p->n_inputs; i++) {
    const source *from = &g->backward_from[i];
    if (from->kind == FROM_NEIGHBOUR)
      KVA_TRY(receive(t, g->stage + 1, &sp->inputs[i], sp->inputs[i].data, diag));
    else
      sp->inputs[i].data = from->kind == OF_OUTPUT ? kept->outputs[from->index] : kept->inputs[from->index];
  }
  return KVA_OK;
}

static kva_status backward(const kva_trainer *t, int64_t k, kva_diag *diag) {
  kva_train_stages *g = t->stages;
  kva_tensor *first = &g->backward.inputs[g->n_data];
  take_batch(t, &t->step, k, &g->backward);
  kva_store_f64(first->dtype, first->data, 0, k == 0);
  kva_train_set_pass(t, k);
  KVA_TRY(run(t, &g->backward, false, diag));
  return send_all(t, g->stage - 1, g->n_down, g->down, &g->backward, NULL, diag);
}

/* All micro-batches, one forward, one backward. */
static kva_status run_passes(const kva_trainer *t, kva_diag *diag) {
  kva_train_stages *g = t->stages;
  int64_t m = t->micro_batches, ahead = g->n - 1 - g->stage < m ? g->n - 1 - g->stage : m;
  for (int64_t k = 0; k < ahead; k++) {
    KVA_TRY(forward(t, k, g->values, diag));
    KVA_TRY(send_up(t, k, diag));
  }
  for (int64_t i = 0; i < m; i++) {
    int64_t k = i + ahead;
    if (k < m) KVA_TRY(forward(t, k, g->values, diag));
    KVA_TRY(take_kept(t, i, diag));
    if (k < m) KVA_TRY(send_up(t, k, diag));
    KVA_TRY(backward(t, i, diag));
  }
  return KVA_OK;
}

/* ---- updates ----------------------------------------------------------------------------------------------------- */

static void set_scalars(stage_program *sp, double scale, double lr) {
  kva_store_f64(sp->inputs[0].dtype, sp->inputs[0].data, 0, scale);
  kva_store_f64(sp->inputs[1].dtype, sp->inputs[1].data, 0, lr);
}

static kva_status share_values(const kva_trainer *t, kva_diag *diag) {
  const kva_train_stages *g = t->stages;
  for (int32_t i = 0; i < g->n_shared; i++) {
    const shared_value *v = &g->shared[i];
    KVA_TRY(exchanged(t, kva_comm_broadcast(g->c, v->stage, v->bytes, v->data ? v->data : g->spare), diag));
  }
  return KVA_OK;
}

/* Parameters that several stages read, from the one that updates them. All go through the states in one order. */
static kva_status move_states(const kva_trainer *t, kva_diag *diag) {
  const kva_train_stages *g = t->stages;
  for (int32_t i = 0; i < g->n_moved; i++) {
    const moved_state *v = &g->moved[i];
    kva_tensor x;
    if (v->from != g->stage && v->to != g->stage) continue;
    (void)kva_session_state_desc(t->s, v->state, &x);
    if (!x.data) return kva_fail(diag, KVA_IO, NULL, "cannot read a state from the device");
    if (v->to == g->stage) KVA_TRY(receive(t, v->from, &x, x.data, diag));
    if (v->from == g->stage) KVA_TRY(exchanged(t, kva_comm_send(g->c, v->to, kva_tensor_bytes(&x), x.data), diag));
  }
  return KVA_OK;
}

static kva_status update(const kva_trainer *t, double lr, kva_diag *diag) {
  kva_train_stages *g = t->stages;
  double scale = 1 / (double)(t->micro_batches * kva_comm_size(kva_train_data_comm(t)));
  if (g->norm.p) set_scalars(&g->norm, scale, lr);
  set_scalars(&g->apply, scale, lr);
  if (g->norm.p) KVA_TRY(run(t, &g->norm, false, diag));
  KVA_TRY(share_values(t, diag));
  KVA_TRY(run(t, &g->apply, true, diag));
  for (int32_t i = 0; i < g->apply.p->n_outputs; i++)
    g->values[g->n_reported + i] = kva_train_scalar(&g->apply.outputs[i]);
  return move_states(t, diag);
}

/* ---- a step, an evaluation --------------------------------------------------------------------------------------- */

/* What the last stage has reported, in all. */
static kva_status share_reported(const kva_trainer *t, double *values, kva_diag *diag) {
  const kva_train_stages *g = t->stages;
  int64_t bytes = g->n_reported * (int64_t)sizeof *values;
  return exchanged(t, kva_comm_broadcast(g->c, g->n - 1, bytes, values), diag);
}

kva_status kva_train_stages_step(kva_trainer *t, double lr, kva_diag *diag) {
  kva_train_stages *g = t->stages;
  memset(g->values, 0, (size_t)g->n_values * sizeof *g->values);
  int64_t first = kva_train_begin_passes(t);
  kva_status status = run_passes(t, diag);
  if (status == KVA_OK) status = share_reported(t, g->values, diag);
  bool finite = status == KVA_OK && isfinite(g->values[0]);
  kva_train_end_passes(t, first, finite);
  KVA_TRY(status);
  for (int32_t i = 0; i < g->n_reported; i++) g->values[i] /= (double)t->micro_batches;
  if (!finite) return kva_train_not_finite(t, NULL, g->values[0], lr, diag);
  status = update(t, lr, diag);
  return status == KVA_NOT_FINITE ? kva_train_not_finite(t, NULL, 0, lr, diag) : status;
}

bool kva_train_stages_collective(const kva_trainer *t) {
  for (int i = 0; i < t->stages->n; i++)
    if (kva_program_is_collective(program_of(t, "eval", i, NULL))) return true;
  return false;
}

int32_t kva_train_stages_evaluated(kva_train_stages *g, const char *const **out_names, double **out_values) {
  *out_names = g->names;
  *out_values = g->evaluated;
  return g->n_reported;
}

kva_status kva_train_stages_evaluate(kva_trainer *t, kva_diag *diag) {
  kva_train_stages *g = t->stages;
  take_batch(t, &t->eval, 0, &g->eval);
  KVA_TRY(pass(t, &g->eval, &g->eval_slot, g->evaluated, diag));
  return send_all(t, g->stage + 1, g->n_eval, g->eval_up, &g->eval, &g->eval_slot, diag);
}

kva_status kva_train_stages_share_evaluated(const kva_trainer *t, kva_diag *diag) {
  return share_reported(t, t->stages->evaluated, diag);
}
