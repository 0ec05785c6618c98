/* Sessions: memory and states of a program, and its runs. */
#include "tools/library/session.h"

#include <stdlib.h>

/* ---- creation ---------------------------------------------------------------------------------------------------- */

static kva_status create_tables(kvasir_session *s, kva_diag *diag) {
  const kva_artifact *a = kva_session_artifact(s->s);
  size_t n_inputs = 0, n_outputs = 0;
  for (int32_t i = 0; i < a->n_programs; i++) {
    const kva_program *p = &a->programs[i];
    if ((size_t)p->n_inputs > n_inputs) n_inputs = (size_t)p->n_inputs;
    if ((size_t)p->n_outputs > n_outputs) n_outputs = (size_t)p->n_outputs;
  }
  s->inputs = calloc(n_inputs + 1, sizeof *s->inputs);
  s->outputs = calloc(n_outputs + 1, sizeof *s->outputs);
  return s->inputs && s->outputs ? KVA_OK : kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a session's tables");
}

kva_status kva_program_session(kvasir_program *p, const kva_session_options *options, kva_diag *diag,
                               kvasir_session **out_session) {
  *out_session = NULL;
  kva_session_options own = *options;
  own.device = p->device;
  kvasir_session *s = calloc(1, sizeof *s);
  if (!s) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a session");
  atomic_fetch_add(&p->references, 1);
  *s = (kvasir_session){.program = p, .seed = options->seed};
  kva_status status = kva_session_create(p->compiled->artifact, &own, diag, &s->s);
  if (status == KVA_OK) status = create_tables(s, diag);
  if (status == KVA_OK)
    *out_session = s;
  else
    kvasir_session_destroy(s);
  return status;
}

void kvasir_session_destroy(kvasir_session *s) {
  if (!s) return;
  kva_session_destroy(s->s);
  kvasir_program_destroy(s->program);
  free(s->inputs);
  free(s->outputs);
  free(s);
}

typedef struct create_job {
  kvasir_program *program;
  const kvasir_session_options *options;
  kvasir_session **out;
} create_job;

static kva_status create(void *job, kva_diag *diag) {
  static const kvasir_session_options defaults;
  create_job *j = job;
  const kvasir_session_options *o = j->options ? j->options : &defaults;
  if (!j->program) return kva_error(diag, NULL, "the program is a null pointer");
  if (o->threads < 0) return kva_error(diag, NULL, "threads must not be negative, found %d", o->threads);
  const kva_session_options options = {.threads = o->threads, .seed = o->seed, .sleep = !o->spin};
  KVA_TRY(kva_program_session(j->program, &options, diag, j->out));
  if (!j->program->n_values) return KVA_OK;
  return kva_library_seed(*j->out, diag);
}

kvasir_status kvasir_session_create(kvasir_program *program, const kvasir_session_options *options,
                                    kvasir_session **out_session, kvasir_messages **out_messages) {
  if (!out_session) return kva_library_no_place(out_messages);
  *out_session = NULL;
  create_job j = {program, options, out_session};
  return kva_library_call(create, &j, out_messages);
}

/* ---- tensors of callers ------------------------------------------------------------------------------------------ */

static kva_tensor library_tensor(const kvasir_tensor *t) {
  kva_tensor own = {.dtype = (kva_dtype)t->type, .rank = t->rank, .data = t->data};
  memcpy(own.dims, t->dims, sizeof own.dims);
  return own;
}

int64_t kvasir_tensor_bytes(const kvasir_tensor *t) {
  if (!t || !kvasir_type_name(t->type) || t->rank < 0 || t->rank > KVASIR_MAX_RANK) return -1;
  const kva_tensor own = library_tensor(t);
  return kva_tensor_bytes(&own);
}

const char *kvasir_type_name(int32_t type) {
  bool known = type > KVA_DTYPE_NONE && type < KVA_DTYPE_COUNT && type != KVA_STRING;
  return known ? kva_dtype_name((kva_dtype)type) : NULL;
}

kvasir_tensor kva_public_tensor(const kva_tensor *t) {
  kvasir_tensor out = {.type = (int32_t)t->dtype, .rank = t->rank, .data = t->data};
  memcpy(out.dims, t->dims, sizeof out.dims);
  return out;
}

static const char *name_of(const kva_program *p, int32_t buffer) {
  return p->buffers[buffer].name ? p->buffers[buffer].name : "";
}

/* Bytes that elements must be aligned to. */
static uintptr_t alignment(kva_dtype t) {
  int bits = kva_dtype_bits(t);
  return t == KVA_C128 ? 8 : t == KVA_C64 ? 4 : bits < 8 ? 1 : (uintptr_t)bits / 8;
}

/* Before anything reads its dims. */
static kva_status check_tensor(const kva_program *p, const kvasir_tensor *t, const char *what, const char *name,
                               kva_diag *diag) {
  if (kvasir_tensor_bytes(t) >= 0) return KVA_OK;
  return kva_error(diag, NULL, "%s: %s '%s' has a type (%d), rank (%d) or size that no tensor has", p->name, what, name,
                   t->type, t->rank);
}

kva_status kva_library_inputs(kvasir_session *s, const kva_program *p, size_t n_program, const kvasir_tensor *inputs,
                              size_t n, bool read, kva_diag *diag) {
  if (n != n_program) return kva_error(diag, NULL, "%s: expected %zu inputs, found %zu", p->name, n_program, n);
  if (n && !inputs) return kva_error(diag, NULL, "%s: inputs is a null pointer", p->name);
  for (size_t i = 0; i < n; i++) {
    const char *name = name_of(p, p->inputs[i]);
    KVA_TRY(check_tensor(p, &inputs[i], "input", name, diag));
    if (read && !inputs[i].data && kvasir_tensor_bytes(&inputs[i]))
      return kva_error(diag, NULL, "%s: input '%s' has no data", p->name, name);
    s->inputs[i] = library_tensor(&inputs[i]);
    if ((uintptr_t)inputs[i].data % alignment(s->inputs[i].dtype))
      return kva_error(diag, NULL, "%s: the data of input '%s' is not aligned to its elements", p->name, name);
  }
  return KVA_OK;
}

/* ---- shapes of results ------------------------------------------------------------------------------------------- */

static kva_status bind_shapes(kvasir_session *s, kva_program_state *sp, kva_diag *diag) {
  kva_status status = kva_bind_symbols(s->s, sp, s->inputs, sp->candidate);
  return status == KVA_OK ? KVA_OK : kva_fail(diag, status, NULL, "%s", kva_session_error(s->s));
}

/* A dimension that depends on what a step binds is -1. */
static void shape_of(const kva_program_state *sp, int32_t output, kva_tensor *out) {
  const kva_buffer_desc *b = &sp->desc->buffers[sp->desc->outputs[output]];
  *out = (kva_tensor){.dtype = (kva_dtype)b->dtype, .rank = b->rank};
  for (int32_t d = 0; d < b->rank; d++) {
    bool known = kva_formula_segment(&b->dims[d], sp->symbol_segments) == 0;
    if (!known || !kva_formula_eval(&b->dims[d], sp->candidate, &out->dims[d])) out->dims[d] = -1;
  }
}

static void print_shape(const kva_tensor *t, kva_text *out) {
  kva_text_add(out, "%s[", kva_dtype_name(t->dtype));
  for (int32_t d = 0; d < t->rank; d++) kva_text_add(out, "%s%lld", d ? ", " : "", (long long)t->dims[d]);
  kva_text_add(out, "]");
}

static kva_status wrong_shape(const kva_program *p, int32_t output, const kva_tensor *expected, const kva_tensor *found,
                              kva_diag *diag) {
  kva_text text = {0};
  print_shape(expected, &text);
  kva_text_add(&text, ", found ");
  print_shape(found, &text);
  kva_status status = kva_error(diag, NULL, "%s: the memory for output '%s' must be %s", p->name,
                                name_of(p, p->outputs[output]), text.data);
  kva_text_free(&text);
  return status;
}

static bool overlap(const kva_tensor *a, const kva_tensor *b) {
  const char *pa = a->data, *pb = b->data;
  int64_t na = kva_tensor_bytes(a), nb = kva_tensor_bytes(b);
  return pa && pb && na > 0 && nb > 0 && pa < pb + nb && pb < pa + na;
}

/* Memory of the caller for an output: of the result's shape, and of nothing else. */
static kva_status check_output(const kvasir_session *s, const kva_program_state *sp, int32_t index, kva_diag *diag) {
  const kva_program *p = sp->desc;
  const kva_tensor *t = &s->outputs[index];
  const char *name = name_of(p, p->outputs[index]);
  kva_tensor expected;
  shape_of(sp, index, &expected);
  for (int32_t d = 0; d < expected.rank; d++)
    if (expected.dims[d] < 0)
      return kva_error(diag, NULL, "%s: dimension %d of output '%s' is known only after the run; let data be NULL",
                       p->name, d, name);
  size_t bytes = sizeof *expected.dims * (size_t)expected.rank;
  if (t->dtype != expected.dtype || t->rank != expected.rank || memcmp(t->dims, expected.dims, bytes) != 0)
    return wrong_shape(p, index, &expected, t, diag);
  if ((uintptr_t)t->data % alignment(t->dtype))
    return kva_error(diag, NULL, "%s: the memory for output '%s' is not aligned to its elements", p->name, name);
  for (int32_t i = 0; i < p->n_inputs; i++)
    if (overlap(t, &s->inputs[i]))
      return kva_error(diag, NULL, "%s: the memory for output '%s' overlaps input '%s'", p->name, name,
                       name_of(p, p->inputs[i]));
  for (int32_t i = 0; i < index; i++)
    if (overlap(t, &s->outputs[i]))
      return kva_error(diag, NULL, "%s: the memory for output '%s' overlaps that for '%s'", p->name, name,
                       name_of(p, p->outputs[i]));
  return KVA_OK;
}

static kva_status take_outputs(kvasir_session *s, kva_program_state *sp, const kvasir_tensor *outputs, kva_diag *diag) {
  const kva_program *p = sp->desc;
  bool bound = false;
  for (int32_t i = 0; i < p->n_outputs; i++) {
    s->outputs[i] = (kva_tensor){.data = outputs[i].data};
    if (!outputs[i].data) continue;
    KVA_TRY(check_tensor(p, &outputs[i], "the memory for output", name_of(p, p->outputs[i]), diag));
    if (!bound) KVA_TRY(bind_shapes(s, sp, diag));
    bound = true;
    s->outputs[i] = library_tensor(&outputs[i]);
    KVA_TRY(check_output(s, sp, i, diag));
  }
  return KVA_OK;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

typedef struct run_job {
  kvasir_session *s;
  const kvasir_tensor *inputs;
  kvasir_tensor *outputs;
  size_t n_inputs, n_outputs;
} run_job;

static kva_status check_run(const run_job *j, bool read, kva_diag *diag) {
  if (!j->s) return kva_error(diag, NULL, "the session is a null pointer");
  const kva_program *p = kva_session_program_desc(j->s->s, 0);
  KVA_TRY(kva_library_inputs(j->s, p, (size_t)p->n_inputs, j->inputs, j->n_inputs, read, diag));
  if (j->n_outputs != (size_t)p->n_outputs)
    return kva_error(diag, NULL, "%s: expected %d outputs, found %zu", p->name, p->n_outputs, j->n_outputs);
  if (p->n_outputs && !j->outputs) return kva_error(diag, NULL, "%s: outputs is a null pointer", p->name);
  return KVA_OK;
}

static kva_status run(void *job, kva_diag *diag) {
  run_job *j = job;
  KVA_TRY(check_run(j, true, diag));
  kvasir_session *s = j->s;
  KVA_TRY(take_outputs(s, &s->s->programs[0], j->outputs, diag));
  kva_status status = kva_session_run(s->s, 0, s->inputs, s->outputs);
  if (status != KVA_OK) return kva_fail(diag, status, NULL, "%s", kva_session_error(s->s));
  for (size_t i = 0; i < j->n_outputs; i++) j->outputs[i] = kva_public_tensor(&s->outputs[i]);
  return KVA_OK;
}

kvasir_status kvasir_session_run(kvasir_session *s, const kvasir_tensor *inputs, size_t n_inputs,
                                 kvasir_tensor *outputs, size_t n_outputs, kvasir_messages **out_messages) {
  run_job j = {s, inputs, outputs, n_inputs, n_outputs};
  return kva_library_call(run, &j, out_messages);
}

static kva_status shapes(void *job, kva_diag *diag) {
  run_job *j = job;
  KVA_TRY(check_run(j, false, diag));
  kva_program_state *sp = &j->s->s->programs[0];
  KVA_TRY(bind_shapes(j->s, sp, diag));
  for (int32_t i = 0; i < sp->desc->n_outputs; i++) {
    kva_tensor t;
    shape_of(sp, i, &t);
    j->outputs[i] = kva_public_tensor(&t);
  }
  return KVA_OK;
}

kvasir_status kvasir_session_shapes(kvasir_session *s, const kvasir_tensor *inputs, size_t n_inputs,
                                    kvasir_tensor *outputs, size_t n_outputs, kvasir_messages **out_messages) {
  run_job j = {s, inputs, outputs, n_inputs, n_outputs};
  return kva_library_call(shapes, &j, out_messages);
}
