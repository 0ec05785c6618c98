/* Sessions: creation, states, queries about programs. execute.c runs programs. */
#include "runtime/calls.h"
#include "runtime/comm.h"
#include "runtime/session.h"

#include <stdlib.h>

int64_t kva_tensor_bytes(const kva_tensor *t) {
  int64_t n = 1, bytes;
  for (int32_t i = 0; i < t->rank; i++)
    if (!kva_mul_size(n, t->dims[i], &n)) return -1;
  return kva_dtype_bytes(t->dtype, n, &bytes) ? bytes : -1;
}

static void *new_array(const kva_session *s, int64_t n, size_t item_size, bool *ok) {
  void *p = kva_allocate(s->options.allocator, n > 0 ? (size_t)n * item_size : 1, _Alignof(max_align_t));
  *ok = *ok && p;
  return p;
}

/* Counts the sizes of all steps; out_at[i] is the index of step i's first size. out_at NULL (no memory): returns 0. */
static int64_t count_sizes(const kva_program *p, int32_t *out_at) {
  int32_t n = 0;
  for (int32_t i = 0; out_at && i < p->n_steps; i++) {
    out_at[i] = n;
    n += kva_step_size_count(&p->steps[i]);
  }
  return n;
}

static bool create_segments(const kva_session *s, kva_program_state *sp) {
  const kva_program *p = sp->desc;
  bool ok = true;
  sp->symbol_segments = new_array(s, p->n_symbols, sizeof *sp->symbol_segments, &ok);
  sp->buffer_segments = new_array(s, p->n_buffers, sizeof *sp->buffer_segments, &ok);
  if (!ok) return false;
  int32_t n = kva_symbol_segments(s->artifact, p, sp->symbol_segments);
  for (int32_t i = 0; i < p->n_buffers; i++)
    sp->buffer_segments[i] = kva_buffer_segment(&p->buffers[i], sp->symbol_segments);
  sp->segments = new_array(s, n, sizeof *sp->segments, &ok);
  if (!ok) return false;
  sp->n_segments = n;
  for (int32_t i = 0; i < n; i++) sp->segments[i].symbols = new_array(s, p->n_symbols, sizeof(int64_t), &ok);
  for (int32_t i = 0, k = 1; i < p->n_steps; i++)
    if (kva_step_binds(&p->steps[i], 0) >= 0) sp->segments[k++].first_step = i + 1;
  return ok;
}

static bool create_program(const kva_session *s, kva_program_state *sp, const kva_program *p) {
  bool ok = true;
  int64_t max_args = 0;
  for (int32_t i = 0; i < p->n_steps; i++)
    if (p->steps[i].n_args > max_args) max_args = p->steps[i].n_args;
  *sp = (kva_program_state){.desc = p, .commit = kva_commit_step(p)};
  sp->symbols = new_array(s, p->n_symbols, sizeof *sp->symbols, &ok);
  sp->candidate = new_array(s, p->n_symbols, sizeof *sp->candidate, &ok);
  sp->bytes = new_array(s, p->n_buffers, sizeof *sp->bytes, &ok);
  sp->offsets = new_array(s, p->n_buffers, sizeof *sp->offsets, &ok);
  sp->lifetimes = new_array(s, p->n_buffers, sizeof *sp->lifetimes, &ok);
  sp->order = new_array(s, 2 * (int64_t)p->n_buffers, sizeof *sp->order, &ok);
  sp->pointers = new_array(s, p->n_buffers, sizeof *sp->pointers, &ok);
  sp->resident = new_array(s, p->n_buffers, sizeof *sp->resident, &ok);
  sp->grids = new_array(s, p->n_steps, sizeof *sp->grids, &ok);
  sp->serial = new_array(s, p->n_steps, sizeof *sp->serial, &ok);
  sp->args = new_array(s, max_args, sizeof *sp->args, &ok);
  sp->staged = new_array(s, max_args, sizeof *sp->staged, &ok);
  sp->sizes_at = new_array(s, p->n_steps, sizeof *sp->sizes_at, &ok);
  sp->sizes = new_array(s, count_sizes(p, sp->sizes_at), sizeof *sp->sizes, &ok);
  if (p->is_internal) sp->collected = new_array(s, p->n_outputs, sizeof *sp->collected, &ok);
  ok = create_segments(s, sp) && ok;
  sp->exchanges = new_array(s, kva_started_steps(p), sizeof *sp->exchanges, &ok);
  sp->exchange_args = new_array(s, kva_started_args(p), sizeof *sp->exchange_args, &ok);
  if (ok) kva_exchange_prepare(sp);
  if (!s->options.profile) return ok;
  sp->seconds = new_array(s, p->n_steps, sizeof *sp->seconds, &ok);
  sp->calls = new_array(s, p->n_steps, sizeof *sp->calls, &ok);
  return ok;
}

static void free_blocks(kva_session *s, kva_program_state *sp) {
  const kva_device_class *class = s->device->class;
  kva_block *const blocks[] = {&sp->outputs, &sp->constants, &sp->iteration};
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) class->free(s->device, blocks[i]);
  for (int32_t i = 0; i < sp->n_segments; i++) class->free(s->device, &sp->segments[i].block);
  for (int32_t i = 0; sp->collected && i < sp->desc->n_outputs; i++) class->free(s->device, &sp->collected[i]);
}

static void destroy_program(kva_session *s, kva_program_state *sp) {
  if (s->device) free_blocks(s, sp);
  kva_block_destroy(&sp->host_outputs);
  for (int32_t i = 0; i < sp->n_segments; i++) kva_release(s->options.allocator, sp->segments[i].symbols);
  void *const arrays[] = {sp->symbols,       sp->candidate, sp->bytes,           sp->offsets,         sp->lifetimes,
                          sp->order,         sp->pointers,  sp->grids,           sp->serial,          sp->args,
                          sp->staged,        sp->seconds,   sp->calls,           sp->sizes,           sp->sizes_at,
                          sp->segments,      sp->collected, sp->symbol_segments, sp->buffer_segments, sp->exchanges,
                          sp->exchange_args, sp->resident};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) kva_release(s->options.allocator, arrays[i]);
}

static bool borrows(const kva_session *s, int32_t index) {
  return s->options.borrow_states && s->device->class->host_memory &&
         s->artifact->states[index].init == KVA_STATE_INIT_DATA && !kva_state_is_divided(&s->artifact->states[index]) &&
         !kva_state_is_written(s->artifact, index);
}

static void lend_state(kva_session *s, int32_t index, int64_t offset) {
  const kva_state_desc *d = &s->artifact->states[index];
  kva_tensor *t = &s->states[index];
  void *data = borrows(s, index) ? (void *)(uintptr_t)d->data : kva_block_at(&s->state_memory, offset);
  if (!kva_session_holds(s, index)) data = NULL;
  *t = (kva_tensor){.dtype = (kva_dtype)d->dtype, .rank = d->rank, .data = data};
  memcpy(t->dims, d->dims, sizeof t->dims);
}

/* Aligned bytes of a state in the session's memory. */
static bool own_bytes(const kva_session *s, int32_t index, int64_t *out_size) {
  bool own = kva_session_holds(s, index) && !borrows(s, index);
  return kva_align_size(own ? s->artifact->states[index].bytes : 0, out_size);
}

/* States of the session's own share one block, each aligned separately. */
static kva_status create_states(kva_session *s, kva_diag *diag) {
  const kva_artifact *a = s->artifact;
  int64_t total = 0, size;
  for (int32_t i = 0; i < a->n_states; i++)
    if (!own_bytes(s, i, &size) || !kva_add_size(total, size, &total))
      return kva_fail(diag, KVA_NO_MEMORY, NULL, "the model's states need more memory than can be addressed");
  bool failed = kva_block_create_from(s->options.allocator, total, &s->state_memory) != KVA_OK;
  if (!failed && !s->device->class->host_memory)
    failed = s->device->class->allocate(s->device, total, &s->device_states) != KVA_OK;
  if (failed)
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the model's states: %.1f MiB", (double)total / (1 << 20));
  int64_t offset = 0;
  for (int32_t i = 0; i < a->n_states; i++) {
    lend_state(s, i, offset);
    if (own_bytes(s, i, &size)) offset += size;
  }
  return KVA_OK;
}

/* Without a library for it, the host exchanges what devices have. */
static kva_status join(kva_session *s, kva_diag *diag) {
  kva_status status = s->device->class->join(s->device, s->options.comm, diag);
  s->exchanges = status == KVA_OK;
  return status == KVA_MISSING ? KVA_OK : status;
}

static kva_status create_device(kva_session *s, kva_diag *diag) {
  const kva_device_class *class;
  const kva_artifact *a = s->artifact;
  KVA_TRY(kva_device_find(s->options.device, diag, &class));
  const char *arch = kva_artifact_arch(a);
  bool runs = kva_device_code(class, a, 0) >= 0;
  if (!runs && arch)
    return kva_error(diag, NULL,
                     "this artefact is code for the GPU architecture %s, which device %s cannot run; compile "
                     "it for a CPU, or run it on device ptxsim",
                     arch, class->name);
  if (!runs)
    return kva_error(diag, NULL,
                     "this artefact is code for the CPU (%s), device %s runs code for GPUs; compile it for "
                     "%s",
                     a->target ? a->target : "unnamed", class->name, class->arch);
  KVA_TRY(class->create(s->pool, diag, &s->device));
  KVA_TRY(class->load(s->device, a, diag));
  return kva_artifact_processes(a) > 1 && class->join ? join(s, diag) : KVA_OK;
}

static kva_status create_parts(kva_session *s, kva_diag *diag) {
  const kva_artifact *a = s->artifact;
  bool ok = true;
  s->states = new_array(s, a->n_states, sizeof *s->states, &ok);
  s->programs = new_array(s, a->n_programs, sizeof *s->programs, &ok);
  for (int32_t i = 0; ok && i < a->n_programs; i++) ok = create_program(s, &s->programs[i], &a->programs[i]);
  if (!ok) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the tables of the model's programs");
  s->pool = kva_pool_create_with(&(kva_pool_options){.threads = s->options.threads,
                                                     .sleep = s->options.sleep,
                                                     .parallel = s->options.parallel,
                                                     .allocator = s->options.allocator});
  if (!s->pool) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the session's threads");
  KVA_TRY(create_device(s, diag));
  return create_states(s, diag);
}

/* Runs before anything refers to the tables. */
static kva_status attach_weights(kva_session *s, kva_diag *diag) {
  const char *path = s->options.weights;
  if (!path && !kva_weights_needed(s->artifact)) return KVA_OK;
  KVA_TRY(kva_weights_attach(s->artifact, path, diag, &s->weights));
  s->artifact = kva_weights_artifact(s->weights);
  return KVA_OK;
}

static kva_status check_processes(const kva_artifact *a, const kva_comm *c, kva_diag *diag) {
  int expected = kva_artifact_processes(a), found = kva_comm_size(c);
  if (expected == found || expected == 1) return KVA_OK;
  return kva_error(diag, NULL, "'%s' was compiled for a mesh of %d processes, and the run has %d",
                   a->model ? a->model : "the model", expected, found);
}

kva_status kva_session_create(const kva_artifact *artifact, const kva_session_options *options, kva_diag *diag,
                              kva_session **out_session) {
  if (!out_session) return kva_error(diag, NULL, "kva_session_create: out_session must not be null");
  *out_session = NULL;
  if (!artifact) return kva_error(diag, NULL, "kva_session_create: the artefact must not be null");
  KVA_TRY(kva_artifact_check(artifact, diag));
  KVA_TRY(check_processes(artifact, options ? options->comm : NULL, diag));
  const kva_allocator *allocator = options ? options->allocator : NULL;
  kva_session *s = kva_allocate(allocator, sizeof *s, _Alignof(max_align_t));
  if (!s) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a session");
  if (options) s->options = *options;
  if (s->options.comm) s->stage = kva_comm_place(s->options.comm, kva_comm_rank(s->options.comm)).pipeline;
  kva_status status = kva_device_choose(s->options.device, artifact, diag, &s->artifact);
  if (status == KVA_OK) status = attach_weights(s, diag);
  if (status == KVA_OK) status = create_parts(s, diag);
  if (status) {
    kva_session_destroy(s);
    return status;
  }
  kva_initialise_states(s);
  s->host_states = true;
  *out_session = s;
  return KVA_OK;
}

void kva_session_destroy(kva_session *s) {
  if (!s) return;
  for (int32_t i = 0; s->programs && i < s->artifact->n_programs; i++) destroy_program(s, &s->programs[i]);
  if (s->device) {
    s->device->class->free(s->device, &s->temps);
    s->device->class->free(s->device, &s->device_states);
    s->device->class->destroy(s->device);
  }
  kva_pool_destroy(s->pool);
  if (s->string_memory) kva_arena_destroy(s->string_memory);
  kva_block_destroy(&s->state_memory);
  kva_block_destroy(&s->staging);
  free(s->resident);
  const kva_allocator *allocator = s->options.allocator;
  kva_release(allocator, s->programs);
  kva_release(allocator, s->states);
  kva_weights_destroy(s->weights);
  kva_release(allocator, s);
}

const kva_artifact *kva_session_artifact(const kva_session *s) {
  return s->artifact;
}

int32_t kva_artifact_programs(const kva_artifact *a) {
  int32_t n = 0;
  while (n < a->n_programs && !a->programs[n].is_internal) n++;
  return n;
}

int kva_session_program(const kva_session *s, const char *name) {
  for (int32_t i = 0; i < kva_artifact_programs(s->artifact); i++)
    if (!strcmp(s->artifact->programs[i].name, name)) return i;
  return -1;
}

const kva_program *kva_session_program_desc(const kva_session *s, int program) {
  return program >= 0 && program < s->artifact->n_programs ? &s->artifact->programs[program] : NULL;
}

const int64_t *kva_session_symbols(const kva_session *s, int program) {
  return s->programs[program].symbols;
}

bool kva_session_state(kva_session *s, const char *name, kva_tensor *out_tensor) {
  if (kva_transfer_states(s) != KVA_OK) return false;
  for (int32_t i = 0; i < s->artifact->n_states; i++) {
    if (strcmp(s->artifact->states[i].name, name) || !kva_session_holds(s, i)) continue;
    *out_tensor = s->states[i];
    return true;
  }
  return false;
}

int kva_session_state_count(const kva_session *s) {
  return s->artifact->n_states;
}

const kva_state_desc *kva_session_state_desc(kva_session *s, int i, kva_tensor *out_tensor) {
  if (out_tensor) {
    *out_tensor = s->states[i];
    if (kva_transfer_states(s) != KVA_OK) out_tensor->data = NULL;
  }
  return &s->artifact->states[i];
}

static int64_t *category_of(const kva_buffer_desc *b, kva_memory_report *r) {
  switch (b->kind) {
  case KVA_BUFFER_INPUT: return &r->inputs;
  case KVA_BUFFER_OUTPUT: return &r->outputs;
  case KVA_BUFFER_CONST: return &r->constants;
  default: return NULL; /* states are counted once, temporaries as part of the arena */
  }
}

void kva_session_memory(const kva_session *s, int program, kva_memory_report *out) {
  *out = (kva_memory_report){0};
  for (int32_t i = 0; i < s->artifact->n_states; i++) {
    const kva_state_desc *d = &s->artifact->states[i];
    if (!kva_session_holds(s, i)) continue;
    *(d->role == KVA_ROLE_PARAMETER ? &out->params
      : d->role == KVA_ROLE_MOMENT  ? &out->moments
                                    : &out->other_state) += d->bytes;
  }
  if (program < 0 || program >= s->artifact->n_programs || !s->programs[program].segments[0].planned) return;
  const kva_program_state *sp = &s->programs[program];
  for (int32_t i = 0; i < sp->n_segments; i++) out->temps += sp->segments[i].bytes;
  for (int32_t i = 0; i < sp->desc->n_buffers; i++) {
    int64_t *category = category_of(&sp->desc->buffers[i], out);
    if (category) *category += sp->bytes[i];
  }
}

const char *kva_session_error(const kva_session *s) {
  return s ? s->error : "the session is null";
}

kva_status kva_session_device_error(kva_session *s, kva_status status, const kva_program *p, const char *what) {
  const char *why = s->device->class->error(s->device);
  return kva_session_fail(s, status, "%s: %s on device %s: %s", p ? p->name : "states", what, s->device->class->name,
                          *why ? why : kva_status_name(status));
}

kva_status kva_session_fail(kva_session *s, kva_status status, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  vsnprintf(s->error, sizeof s->error, fmt, args);
  va_end(args);
  return status;
}
