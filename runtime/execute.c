/* The executor: runs a program's steps in order.
 *
 * A run binds symbols from the inputs' shapes. If these differ from the last run's, sizes, grids and the arena are
 * planned again (segments.c). The device then gets every step: a kernel over its work items, a copy or a call; nothing
 * is allocated. control.c runs data-dependent steps. transfer.c serves devices with their own memory; on the CPU
 * callers' tensors are used in place. */
#include "runtime/calls.h"
#include "runtime/formula.h"
#include "runtime/session.h"

/* ---- pointers of a run ------------------------------------------------------------------------------------------- */

static void *own_memory(const kva_session *s, const kva_program_state *sp, int32_t buffer) {
  const kva_buffer_desc *b = &sp->desc->buffers[buffer];
  if (!s->device->class->host_memory)
    return b->kind == KVA_BUFFER_STATE ? kva_device_state(s, b->state)
                                       : kva_block_at(&sp->constants, sp->offsets[buffer]);
  return b->kind == KVA_BUFFER_STATE ? s->states[b->state].data : (void *)(uintptr_t)b->data;
}

kva_status kva_program_start(kva_session *s, kva_program_state *sp) {
  for (int32_t i = 0; i < sp->desc->n_buffers; i++) sp->pointers[i] = NULL;
  KVA_TRY(kva_session_rewind(s, sp));
  for (int32_t i = 0; i < sp->desc->n_buffers; i++) {
    int32_t kind = sp->desc->buffers[i].kind;
    if (kind == KVA_BUFFER_STATE || kind == KVA_BUFFER_CONST) sp->pointers[i] = own_memory(s, sp, i);
  }
  return KVA_OK;
}

static kva_status check_inputs(kva_session *s, const kva_program_state *sp, const kva_tensor *inputs) {
  for (int32_t i = 0; i < sp->desc->n_inputs; i++) {
    int32_t b = sp->desc->inputs[i];
    if (!inputs[i].data && sp->bytes[b])
      return kva_session_fail(s, KVA_INVALID, "%s: input '%s' has no data", sp->desc->name, sp->desc->buffers[b].name);
  }
  return KVA_OK;
}

static const kva_tensor *replaced_input(const kva_program *p, const kva_tensor *inputs, int32_t output) {
  for (int32_t i = 0; i < p->n_inputs; i++)
    if (p->inputs[i] == p->outputs[output]) return &inputs[i];
  return NULL;
}

static kva_status point_at_replaced(kva_session *s, const kva_program_state *sp, const kva_tensor *inputs,
                                    kva_tensor *outputs) {
  const kva_program *p = sp->desc;
  for (int32_t i = 0; i < p->n_outputs; i++) {
    if (p->buffers[p->outputs[i]].kind != KVA_BUFFER_INPUT) continue;
    const kva_tensor *input = replaced_input(p, inputs, i);
    if (outputs[i].data && outputs[i].data != input->data)
      return kva_session_fail(s, KVA_INVALID,
                              "%s: output %d replaces input '%s': expected no memory for it, or the input's", p->name,
                              i, p->buffers[p->outputs[i]].name);
    outputs[i].data = input->data;
  }
  return KVA_OK;
}

kva_status kva_session_output(kva_session *s, const kva_program_state *sp, int32_t index, kva_tensor *out) {
  const kva_program *p = sp->desc;
  const kva_buffer_desc *b = &p->buffers[p->outputs[index]];
  return kva_eval_dims(b, sp->symbols, out) ? KVA_OK : kva_bad_size(s, p, "output", index, b->name);
}

/* The first caller's memory for a buffer is written directly. Outputs that name the same buffer again, or one that is
 * not an output buffer (a state), get a copy in deliver_outputs. Outputs of unknown size get the session's memory once
 * the size is known. */
static kva_status point_at_outputs(kva_session *s, kva_program_state *sp, kva_tensor *outputs) {
  const kva_program *p = sp->desc;
  for (int32_t i = 0; i < p->n_outputs; i++) {
    const kva_buffer_desc *b = &p->buffers[p->outputs[i]];
    if (b->kind == KVA_BUFFER_OUTPUT && !sp->pointers[p->outputs[i]]) sp->pointers[p->outputs[i]] = outputs[i].data;
  }
  for (int32_t i = 0; i < p->n_buffers; i++) {
    if (p->buffers[i].kind != KVA_BUFFER_OUTPUT || sp->pointers[i] || sp->buffer_segments[i]) continue;
    KVA_TRY(kva_session_grow(s, p, "outputs", &sp->outputs, sp->output_bytes));
    sp->pointers[i] = kva_block_at(&sp->outputs, sp->offsets[i]);
  }
  return KVA_OK;
}

static kva_status point_at_host(kva_session *s, kva_program_state *sp, const kva_tensor *inputs, kva_tensor *outputs) {
  for (int32_t i = 0; i < sp->desc->n_inputs; i++) sp->pointers[sp->desc->inputs[i]] = inputs[i].data;
  return point_at_outputs(s, sp, outputs);
}

static kva_status deliver_outputs(kva_session *s, const kva_program_state *sp, kva_tensor *outputs) {
  for (int32_t i = 0; i < sp->desc->n_outputs; i++) {
    int32_t b = sp->desc->outputs[i];
    KVA_TRY(kva_session_output(s, sp, i, &outputs[i]));
    if (!outputs[i].data)
      outputs[i].data = sp->pointers[b];
    else if (outputs[i].data != sp->pointers[b] && sp->bytes[b])
      memcpy(outputs[i].data, sp->pointers[b], (size_t)sp->bytes[b]);
  }
  return KVA_OK;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

kva_status kva_step_error(kva_session *s, const kva_program *p, int32_t index, kva_status status) {
  const char *origin = p->steps[index].origin;
  char what[128];
  snprintf(what, sizeof what, "step %d (%.100s)", index, origin ? origin : "unnamed");
  return kva_session_device_error(s, status, p, what);
}

/* Whether the host performs this step on every device, so that no recording contains it. */
static bool is_on_host(const kva_session *s, const kva_step_desc *step) {
  const kva_device_class *class = s->device->class;
  if (step->kind == KVA_STEP_CALL) return !(class->supports && class->supports(s->device, step->call));
  return step->kind >= KVA_STEP_BRANCH;
}

/* Copies the arguments of a call to host memory, one after the other; `out`: copies those that it writes back to the
 * device. */
static kva_status stage(kva_session *s, const kva_device_call *call, void **staged, bool out) {
  const kva_step_desc *step = call->step;
  const kva_device_class *class = s->device->class;
  char *next = s->staging.data;
  for (int32_t i = 0; i < step->n_args; i++) {
    int64_t bytes = call->bytes[step->args[i]], size = 0;
    bool result = i >= step->n_args - step->n_results;
    kva_status status = KVA_OK;
    staged[i] = next;
    if (bytes && !result && !out) status = class->copy_out(s->device, next, call->args[i], bytes);
    if (bytes && result && out) status = class->copy_in(s->device, call->args[i], next, bytes);
    KVA_TRY(status);
    if (kva_align_size(bytes, &size)) next += size;
  }
  return KVA_OK;
}

static kva_status grow_staging(kva_session *s, const kva_device_call *call) {
  int64_t total = 0, size;
  for (int32_t i = 0; i < call->step->n_args; i++)
    if (!kva_align_size(call->bytes[call->step->args[i]], &size) || !kva_add_size(total, size, &total))
      return KVA_NO_MEMORY;
  if (total <= s->staging.bytes) return KVA_OK;
  kva_block_destroy(&s->staging);
  return kva_block_create_from(s->options.allocator, total, &s->staging);
}

/* Performs a call on the host. For a device with its own memory, arguments are copied to the host and results back. */
static kva_status call_host(kva_session *s, kva_program_state *sp, kva_device_call *call) {
  const kva_call_class *class = kva_call_class_of(call->step);
  if (s->device->class->host_memory) return class->run(s, call);
  if (grow_staging(s, call))
    return kva_session_fail(s, KVA_NO_MEMORY, "%s: no memory for the arguments of a call", sp->desc->name);
  kva_status status = stage(s, call, sp->staged, false);
  if (status != KVA_OK) return kva_session_device_error(s, status, sp->desc, "copying from memory");
  void *const *device_args = call->args;
  call->args = sp->staged;
  KVA_TRY(class->run(s, call));
  call->args = device_args;
  status = stage(s, call, sp->staged, true);
  return status == KVA_OK ? KVA_OK : kva_session_device_error(s, status, sp->desc, "copying to memory");
}

static kva_status run_call(kva_session *s, kva_program_state *sp, int32_t index) {
  const kva_step_desc *step = &sp->desc->steps[index];
  kva_device_call call = {.program = sp->desc,
                          .step = step,
                          .sizes = &sp->sizes[sp->sizes_at[index]],
                          .symbols = sp->symbols,
                          .args = sp->args,
                          .bytes = sp->bytes};
  if (kva_exchange_is_started(s, step)) return kva_exchange_start(s, sp, step);
  if (kva_exchange_is_on_device(s, sp->desc, step)) return kva_exchange_on_device(s, sp, &call);
  if (is_on_host(s, step)) return call_host(s, sp, &call);
  kva_status status = s->device->class->call(s->device, &call);
  return status == KVA_OK ? KVA_OK : kva_step_error(s, sp->desc, index, status);
}

static kva_status launch(kva_session *s, kva_program_state *sp, int32_t index) {
  const kva_device_launch l = {.program = sp->desc,
                               .step = &sp->desc->steps[index],
                               .items = sp->grids[index],
                               .serial = sp->serial[index],
                               .symbols = sp->symbols,
                               .args = sp->args,
                               .bytes = sp->bytes};
  kva_status status = s->device->class->launch(s->device, &l);
  return status == KVA_OK ? KVA_OK : kva_step_error(s, sp->desc, index, status);
}

static kva_status copy(kva_session *s, kva_program_state *sp, int32_t index) {
  int64_t bytes = sp->bytes[sp->desc->steps[index].args[0]];
  kva_status status = s->device->class->copy(s->device, sp->args[0], sp->args[1], bytes);
  return status == KVA_OK ? KVA_OK : kva_step_error(s, sp->desc, index, status);
}

kva_status kva_session_step(kva_session *s, kva_program_state *sp, int32_t index) {
  const kva_step_desc *step = &sp->desc->steps[index];
  for (int32_t i = 0; i < step->n_args; i++) sp->args[i] = sp->pointers[step->args[i]];
  switch (step->kind) {
  case KVA_STEP_COPY: return copy(s, sp, index);
  case KVA_STEP_CALL: return run_call(s, sp, index);
  case KVA_STEP_BRANCH: return kva_run_branch(s, sp, index);
  case KVA_STEP_LOOP: return kva_run_loop(s, sp, index);
  case KVA_STEP_BIND: return kva_run_bind(s, sp, index);
  case KVA_STEP_WAIT: return kva_exchange_wait(s, sp, step);
  default: return launch(s, sp, index);
  }
}

static kva_status check_commit(kva_session *s, const kva_program_state *sp, int32_t index) {
  if (index != sp->commit || !s->guarded || !s->device->class->host_memory || kva_outputs_finite(sp)) return KVA_OK;
  return kva_session_fail(s, KVA_NOT_FINITE, "%s: the loss or the norm of its gradient is not finite", sp->desc->name);
}

static kva_status run_profiled(kva_session *s, kva_program_state *sp) {
  double before = kva_now();
  for (int32_t i = 0; i < sp->desc->n_steps; i++) {
    KVA_TRY(check_commit(s, sp, i));
    KVA_TRY(kva_session_step(s, sp, i));
    kva_status status = s->device->class->synchronise(s->device);
    if (status != KVA_OK) return kva_step_error(s, sp->desc, i, status);
    double after = kva_now();
    sp->seconds[i] += after - before;
    sp->calls[i]++;
    before = after;
  }
  return KVA_OK;
}

static kva_status wait(kva_session *s, const kva_program_state *sp) {
  kva_status status = s->device->class->synchronise(s->device);
  return status == KVA_OK ? KVA_OK : kva_session_device_error(s, status, sp->desc, "waiting for the device");
}

/* Measures with the device's clock, so that steps follow each other without waiting. */
static kva_status run_marked(kva_session *s, kva_program_state *sp) {
  const kva_device_class *class = s->device->class;
  if (!sp->desc->n_steps) return KVA_OK;
  kva_status status = class->mark(s->device, 0);
  for (int32_t i = 0; status == KVA_OK && i < sp->desc->n_steps; i++) {
    KVA_TRY(kva_session_step(s, sp, i));
    status = class->mark(s->device, i + 1);
  }
  if (status == KVA_OK) KVA_TRY(wait(s, sp));
  for (int32_t i = 0; status == KVA_OK && i < sp->desc->n_steps; i++) {
    double seconds = 0;
    status = class->elapsed(s->device, i + 1, &seconds);
    sp->seconds[i] += seconds;
    sp->calls[i]++;
  }
  return status == KVA_OK ? KVA_OK : kva_session_device_error(s, status, sp->desc, "measuring time");
}

/* Runs steps [first, first + n); the device may have a recording of them. */
static kva_status run_range(kva_session *s, kva_program_state *sp, int32_t first, int32_t n) {
  const kva_device_class *class = s->device->class;
  const kva_device_run run = {
      .program = sp->desc, .first = first, .n = n, .symbols = sp->symbols, .pointers = sp->pointers};
  bool done = false;
  kva_status status = class->begin ? class->begin(s->device, &run, &done) : KVA_OK;
  if (status != KVA_OK) return kva_session_device_error(s, status, sp->desc, "starting the program");
  if (done) return KVA_OK;
  for (int32_t i = first; status == KVA_OK && i < first + n; i++) {
    status = check_commit(s, sp, i);
    if (status == KVA_OK) status = kva_session_step(s, sp, i);
  }
  kva_status ended = class->end ? class->end(s->device, &run, status != KVA_OK) : KVA_OK;
  KVA_TRY(status); /* the message is already set */
  return ended == KVA_OK ? KVA_OK : kva_session_device_error(s, ended, sp->desc, "starting the program");
}

static kva_status run_steps(kva_session *s, kva_program_state *sp) {
  const kva_program *p = sp->desc;
  for (int32_t i = 0, n; i < p->n_steps; i += n) {
    for (n = 0; i + n < p->n_steps && !is_on_host(s, &p->steps[i + n]);) n++;
    if (n) {
      KVA_TRY(run_range(s, sp, i, n));
      continue;
    }
    n = 1;
    KVA_TRY(check_commit(s, sp, i));
    KVA_TRY(kva_session_step(s, sp, i));
  }
  return KVA_OK;
}

/* Marks measure the time between steps of the device; the host measures its own steps. */
static bool has_host_steps(const kva_session *s, const kva_program *p) {
  for (int32_t i = 0; i < p->n_steps; i++)
    if (is_on_host(s, &p->steps[i])) return true;
  return false;
}

kva_status kva_run_internal(kva_session *s, kva_program_state *sp) {
  return s->options.profile ? run_profiled(s, sp) : run_steps(s, sp);
}

static kva_status run_as_asked(kva_session *s, kva_program_state *sp) {
  if (s->options.profile && s->device->class->mark && !has_host_steps(s, sp->desc)) return run_marked(s, sp);
  KVA_TRY(kva_run_internal(s, sp));
  return s->options.profile ? KVA_OK : wait(s, sp);
}

/* Prepares for running the steps again from the first one. */
kva_status kva_session_rewind(kva_session *s, kva_program_state *sp) {
  for (int32_t i = 0; i < sp->desc->n_symbols; i++)
    if (sp->symbol_segments[i]) sp->symbols[i] = KVA_UNBOUND;
  return kva_segment_enter(s, sp, 0);
}

/* Binds symbols from the inputs, and plans for them. */
static kva_status bind(kva_session *s, kva_program_state *sp, const kva_tensor *inputs) {
  kva_resident_note(s, sp, inputs);
  KVA_TRY(kva_bind_symbols(s, sp, inputs, sp->candidate));
  if (sp->desc->n_symbols) memcpy(sp->symbols, sp->candidate, (size_t)sp->desc->n_symbols * sizeof *sp->symbols);
  return kva_program_start(s, sp);
}

/* Numbers of strings mean something in one run only. */
static void forget_strings(kva_session *s) {
  if (s->string_memory) kva_arena_destroy(s->string_memory);
  s->string_memory = NULL;
  s->strings = NULL;
}

/* What comes before the steps: all but the outputs' memory is in place afterwards. */
static kva_status enter(kva_session *s, int program, const kva_tensor *inputs, kva_tensor *outputs) {
  if (!s) return KVA_INVALID;
  s->error[0] = 0;
  forget_strings(s);
  if (program < 0 || program >= kva_artifact_programs(s->artifact))
    return kva_session_fail(s, KVA_INVALID, "program %d does not exist; the artefact has %d", program,
                            kva_artifact_programs(s->artifact));
  kva_program_state *sp = &s->programs[program];
  if ((sp->desc->n_inputs && !inputs) || (sp->desc->n_outputs && !outputs))
    return kva_session_fail(s, KVA_INVALID, "%s: inputs and outputs must not be null", sp->desc->name);
  KVA_TRY(bind(s, sp, inputs));
  KVA_TRY(check_inputs(s, sp, inputs));
  KVA_TRY(point_at_replaced(s, sp, inputs, outputs));
  kva_refresh_copies(s);
  return s->device->class->host_memory ? point_at_host(s, sp, inputs, outputs) : kva_transfer_in(s, sp, inputs);
}

static kva_status leave(kva_session *s, kva_program_state *sp, kva_tensor *outputs) {
  return s->device->class->host_memory ? deliver_outputs(s, sp, outputs) : kva_transfer_out(s, sp, outputs);
}

/* After the steps; status: theirs. */
static kva_status end_run(kva_session *s, kva_program_state *sp, kva_tensor *outputs, kva_status status) {
  if (status == KVA_OK) return leave(s, sp, outputs);
  kva_comm_drain(s->options.comm); /* what was started reads and writes memory of the run */
  return status;
}

kva_status kva_session_run(kva_session *s, int program, const kva_tensor *inputs, kva_tensor *outputs) {
  KVA_TRY(enter(s, program, inputs, outputs));
  kva_program_state *sp = &s->programs[program];
  return end_run(s, sp, outputs, run_as_asked(s, sp));
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

/* Notes the time as that of mark `index`: on the device, else on the host when all before is done. */
static kva_status note_time(kva_session *s, kva_program_state *sp, int index, double *out_now) {
  const kva_device_class *class = s->device->class;
  if (!class->mark) KVA_TRY(wait(s, sp));
  kva_status status = class->mark ? class->mark(s->device, index) : KVA_OK;
  *out_now = kva_now();
  return status == KVA_OK ? KVA_OK : kva_session_device_error(s, status, sp->desc, "measuring time");
}

/* n times `runs` runs; out_seconds[i]: of one run in part i. */
static kva_status time_runs(kva_session *s, kva_program_state *sp, int64_t runs, int n, double *out_seconds) {
  double before, now;
  KVA_TRY(note_time(s, sp, 0, &before));
  for (int i = 0; i < n; i++) {
    for (int64_t run = 0; run < runs; run++) {
      KVA_TRY(kva_session_rewind(s, sp));
      KVA_TRY(run_steps(s, sp));
    }
    KVA_TRY(note_time(s, sp, i + 1, &now));
    out_seconds[i] = (now - before) / (double)runs;
    before = now;
  }
  KVA_TRY(wait(s, sp));
  for (int i = 0; i < n && s->device->class->mark; i++) {
    kva_status status = s->device->class->elapsed(s->device, i + 1, &out_seconds[i]);
    if (status != KVA_OK) return kva_session_device_error(s, status, sp->desc, "measuring time");
    out_seconds[i] /= (double)runs;
  }
  return KVA_OK;
}

/* The first run finds library algorithms, the second is recorded: the third and fourth tell how long one takes. */
static kva_status time_for(kva_session *s, kva_program_state *sp, double seconds, int n, double *out_seconds) {
  enum { FEW = 2, MOST_RUNS = 100000 };
  double first[FEW];
  KVA_TRY(time_runs(s, sp, FEW, FEW, first));
  double runs = first[FEW - 1] > 0 ? seconds / first[FEW - 1] : 1;
  int64_t count = runs < 1 ? 1 : runs > MOST_RUNS ? MOST_RUNS : (int64_t)runs;
  KVA_TRY(time_runs(s, sp, count, 1, first));
  return time_runs(s, sp, count, n, out_seconds);
}

kva_status kva_session_time(kva_session *s, int program, const kva_tensor *inputs, kva_tensor *outputs, double seconds,
                            int n, double *out_seconds) {
  KVA_TRY(enter(s, program, inputs, outputs));
  kva_program_state *sp = &s->programs[program];
  return end_run(s, sp, outputs, time_for(s, sp, seconds, n, out_seconds));
}
