/* Contexts: a session and the tensors of its programs' calls, behind plain pointers. */
#include "runtime/context.h"
#include "runtime/formula.h"
#include "runtime/memory_plan.h"
#include "runtime/runtime.h"

struct kva_context {
  kva_session *session;
  const kva_artifact *artifact;
  const kva_allocator *allocator;
  kva_tensor *inputs, *outputs; /* as many as the largest program has */
  char error[256];              /* errors that the session does not see */
};

static int fail(kva_context *c, kva_status status, const char *text) {
  snprintf(c->error, sizeof c->error, "%s", text);
  return (int)status;
}

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static kva_session_options session_options(const kva_context_options *o) {
  return (kva_session_options){.threads = o->threads == 0  ? 1
                                          : o->threads < 0 ? 0
                                                           : o->threads,
                               .seed = o->seed,
                               .device = o->device,
                               .weights = o->weights,
                               .sleep = !o->spin,
                               .allocator = o->allocator,
                               .parallel = o->parallel,
                               .arena = o->arena,
                               .arena_bytes = (int64_t)o->arena_bytes};
}

static kva_tensor *new_tensors(const kva_context *c, int32_t n) {
  return kva_allocate(c->allocator, ((size_t)n + 1) * sizeof(kva_tensor), _Alignof(kva_tensor));
}

static kva_status fill(kva_context *c, const kva_context_options *o, kva_diag *diag) {
  kva_session_options so = session_options(o);
  if ((uintptr_t)o->arena % KVA_ALIGNMENT)
    return kva_error(diag, NULL, "the arena is not aligned to %d bytes", KVA_ALIGNMENT);
  KVA_TRY(kva_session_create(c->artifact, &so, diag, &c->session));
  c->artifact = kva_session_artifact(c->session); /* the alternative for this device */
  int32_t n_inputs = 0, n_outputs = 0;
  for (int32_t i = 0; i < c->artifact->n_programs; i++) {
    const kva_program *p = &c->artifact->programs[i];
    if (p->n_inputs > n_inputs) n_inputs = p->n_inputs;
    if (p->n_outputs > n_outputs) n_outputs = p->n_outputs;
  }
  c->inputs = new_tensors(c, n_inputs);
  c->outputs = new_tensors(c, n_outputs);
  return c->inputs && c->outputs ? KVA_OK
                                 : kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the tables of a context");
}

static void tell(const kva_diag *diag, kva_status status, char *message, size_t size) {
  if (!message || !size) return;
  kva_loc loc = {0};
  const char *text = kva_diag_count(diag) ? kva_diag_message(diag, 0, NULL, &loc) : kva_status_name(status);
  if (status == KVA_OK)
    message[0] = 0;
  else
    snprintf(message, size, "%s%s%s", loc.file ? loc.file : "", loc.file ? ": " : "", text);
}

static bool has_functions(const kva_context_options *o) {
  const kva_allocator *a = o->allocator;
  return (!a || (a->allocate && a->release)) && (!o->parallel || o->parallel->run);
}

int kva_context_create(const kva_artifact *artifact, const kva_context_options *options, kva_context **out_context,
                       char *message, size_t message_size) {
  static const kva_context_options defaults;
  if (out_context) *out_context = NULL;
  if (!out_context || !artifact) {
    if (message && message_size) snprintf(message, message_size, "artifact and out_context must not be null");
    return KVA_INVALID;
  }
  if (!options) options = &defaults;
  if (!has_functions(options)) {
    if (message && message_size) snprintf(message, message_size, "allocator or parallel lacks a function");
    return KVA_INVALID;
  }
  kva_diag *diag = kva_diag_create();
  kva_context *c = kva_allocate(options->allocator, sizeof *c, _Alignof(kva_context));
  kva_status status = KVA_NO_MEMORY;
  if (c) {
    c->artifact = artifact;
    c->allocator = options->allocator;
    status = fill(c, options, diag);
  }
  tell(diag, status, message, message_size);
  kva_diag_destroy(diag);
  if (status == KVA_OK)
    *out_context = c;
  else
    kva_context_destroy(c);
  return (int)status;
}

void kva_context_destroy(kva_context *c) {
  if (!c) return;
  kva_session_destroy(c->session);
  kva_release(c->allocator, c->inputs);
  kva_release(c->allocator, c->outputs);
  kva_release(c->allocator, c);
}

const char *kva_context_error(const kva_context *c) {
  if (!c) return "the context is null";
  return c->error[0] ? c->error : kva_session_error(c->session);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* The caller's struct is an array of pointers to different types: copy members instead of reading them as void *. */
static void *member(const void *record, int32_t i) {
  void *p;
  memcpy(&p, (const char *)record + (size_t)i * sizeof p, sizeof p);
  return p;
}

static bool set_input(const kva_program *p, int32_t i, void *data, const int64_t *symbols, kva_tensor *out) {
  const kva_buffer_desc *b = &p->buffers[p->inputs[i]];
  *out = (kva_tensor){.dtype = (kva_dtype)b->dtype, .rank = b->rank, .data = data};
  for (int32_t d = 0; d < b->rank; d++)
    if (!kva_formula_eval(&b->dims[d], symbols, &out->dims[d]) || out->dims[d] < 0) return false;
  return true;
}

int kva_context_run(kva_context *c, int program, const void *inputs, void *outputs, const void *dims) {
  if (!c) return KVA_INVALID;
  c->error[0] = 0;
  const kva_program *p = kva_session_program_desc(c->session, program);
  if (!p) return fail(c, KVA_INVALID, "there is no such program");
  if ((p->n_inputs && !inputs) || (p->n_outputs && !outputs) || (p->n_symbols && !dims))
    return fail(c, KVA_INVALID, "inputs, outputs and dims must not be null");
  for (int32_t i = 0; i < p->n_inputs; i++)
    if (!set_input(p, i, member(inputs, i), dims, &c->inputs[i]))
      return fail(c, KVA_INVALID, "a dimension is negative or overflows");
  for (int32_t i = 0; i < p->n_outputs; i++) c->outputs[i] = (kva_tensor){.data = member(outputs, i)};
  kva_status status = kva_session_run(c->session, program, c->inputs, c->outputs);
  if (status != KVA_OK) return (int)status;
  for (int32_t i = 0; i < p->n_outputs; i++)
    memcpy((char *)outputs + (size_t)i * sizeof(void *), &c->outputs[i].data, sizeof(void *));
  return 0;
}

void kva_context_dims(const kva_context *c, int program, void *out_dims) {
  const kva_program *p = c && out_dims ? kva_session_program_desc(c->session, program) : NULL;
  if (p && p->n_symbols) memcpy(out_dims, kva_session_symbols(c->session, program), (size_t)p->n_symbols * 8);
}

static int64_t temp_bytes(const kva_program *p, const int64_t *symbols, kva_lifetime *temps, kva_lifetime **scratch) {
  int32_t n = 0;
  int64_t total;
  for (int32_t i = 0; i < p->n_buffers; i++) {
    const kva_buffer_desc *b = &p->buffers[i];
    if (b->kind != KVA_BUFFER_TEMP) continue;
    temps[n] = (kva_lifetime){.first = b->first_step, .last = b->last_step};
    if (!kva_formula_eval(&b->bytes, symbols, &temps[n++].bytes) || temps[n - 1].bytes < 0) return -1;
  }
  return kva_plan_memory(n, temps, scratch, &total) == KVA_OK ? total : -1;
}

int64_t kva_context_arena_bytes(const kva_artifact *artifact, int program, const void *dims) {
  if (!artifact || program < 0 || program >= artifact->n_programs) return -1;
  const kva_program *p = &artifact->programs[program];
  if (p->n_symbols && !dims) return -1;
  for (int32_t i = 0; i < p->n_inputs; i++) {
    kva_tensor t;
    if (!set_input(p, i, NULL, dims, &t) || kva_tensor_bytes(&t) < 0) return -1;
  }
  kva_lifetime *temps = kva_allocate(NULL, ((size_t)p->n_buffers + 1) * sizeof *temps, _Alignof(kva_lifetime));
  kva_lifetime **scratch =
      kva_allocate(NULL, (2 * (size_t)p->n_buffers + 1) * sizeof *scratch, _Alignof(kva_lifetime *));
  int64_t bytes = temps && scratch ? temp_bytes(p, dims, temps, scratch) : -1;
  kva_release(NULL, scratch);
  kva_release(NULL, temps);
  return bytes;
}
