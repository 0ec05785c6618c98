/* Data-dependent steps: binding a symbol, branches, loops.
 *
 * Their operands are read from the device. Internal programs write into their caller's buffers if the sizes are known
 * before; otherwise into their own memory, from which results are copied once the caller has planned the new sizes. */
#include "runtime/formula.h"
#include "runtime/session.h"

/* ---- values ------------------------------------------------------------------------------------------------------ */

static kva_status device_failed(kva_session *s, const kva_program_state *sp, int32_t index, kva_status status) {
  return status == KVA_OK ? KVA_OK : kva_step_error(s, sp->desc, index, status);
}

/* Reads an integer or bool scalar. */
static kva_status read_scalar(kva_session *s, const kva_program_state *sp, int32_t index, int32_t buffer,
                              int64_t *out) {
  kva_dtype t = (kva_dtype)sp->desc->buffers[buffer].dtype;
  int64_t value = 0;
  const void *data = sp->pointers[buffer];
  if (!s->device->class->host_memory) {
    kva_status status = s->device->class->copy_out(s->device, &value, data, sp->bytes[buffer]);
    if (status != KVA_OK) return kva_step_error(s, sp->desc, index, status);
    data = &value;
  }
  *out = kva_load_i64(t, data, 0);
  return KVA_OK;
}

static kva_status copy(kva_session *s, const kva_program_state *sp, int32_t index, void *to, const void *from,
                       int64_t bytes) {
  if (!bytes || to == from) return KVA_OK;
  return device_failed(s, sp, index, s->device->class->copy(s->device, to, from, bytes));
}

static const char *origin_of(const kva_program_state *sp, int32_t index) {
  const char *origin = sp->desc->steps[index].origin;
  return origin ? origin : "unnamed";
}

/* ---- bind -------------------------------------------------------------------------------------------------------- */

kva_status kva_run_bind(kva_session *s, kva_program_state *sp, int32_t index) {
  const kva_step_desc *step = &sp->desc->steps[index];
  const kva_bind_desc *b = step->desc;
  const char *symbol = sp->desc->symbols[b->symbol];
  int64_t value, bound;
  KVA_TRY(read_scalar(s, sp, index, step->args[0], &value));
  if (value < 0)
    return kva_session_fail(s, KVA_INVALID, "%s: step %d (%s): size '%s' is negative: %lld", sp->desc->name, index,
                            origin_of(sp, index), symbol, (long long)value);
  if (b->bound.n && (!kva_formula_eval(&b->bound, sp->symbols, &bound) || value > bound))
    return kva_session_fail(s, KVA_INVALID, "%s: step %d (%s): size '%s' is %lld, more than its bound", sp->desc->name,
                            index, origin_of(sp, index), symbol, (long long)value);
  sp->symbols[b->symbol] = value;
  return kva_segment_enter(s, sp, sp->segment + 1);
}

/* ---- internal programs ------------------------------------------------------------------------------------------- */

/* Programs fit together: sizes of inputs, and of outputs in the caller's memory, equal those of the caller's
 * buffers. */
static kva_status check_size(kva_session *s, const kva_program_state *sub, int32_t buffer, int64_t bytes) {
  if (sub->bytes[buffer] == bytes) return KVA_OK;
  return kva_session_fail(s, KVA_INVALID, "%s: buffer %d has %lld bytes, its caller's %lld", sub->desc->name, buffer,
                          (long long)sub->bytes[buffer], (long long)bytes);
}

/* Outputs without memory of the caller get their own. */
static kva_status place_rest(kva_session *s, kva_program_state *sub) {
  for (int32_t i = 0; i < sub->desc->n_outputs; i++) {
    int32_t b = sub->desc->outputs[i];
    if (sub->pointers[b] || sub->buffer_segments[b]) continue;
    KVA_TRY(kva_session_grow(s, sub->desc, "outputs", &sub->outputs, sub->output_bytes));
    sub->pointers[b] = kva_block_at(&sub->outputs, sub->offsets[b]);
  }
  return KVA_OK;
}

/* Begins a run of an internal program with its caller's symbols. */
static kva_status begin(kva_session *s, const kva_program_state *sp, kva_program_state *sub) {
  if (sp->desc->n_symbols) memcpy(sub->symbols, sp->symbols, (size_t)sp->desc->n_symbols * sizeof *sp->symbols);
  return kva_program_start(s, sub);
}

static kva_status lend(kva_session *s, const kva_program_state *sp, kva_program_state *sub, int32_t input,
                       int32_t buffer) {
  int32_t b = sub->desc->inputs[input];
  sub->pointers[b] = sp->pointers[buffer];
  return check_size(s, sub, b, sp->bytes[buffer]);
}

/* ---- branch ------------------------------------------------------------------------------------------------------ */

static bool is_known(const kva_program_state *sp, int32_t buffer) {
  return sp->buffer_segments[buffer] <= sp->segment;
}

static kva_status bind_extents(kva_session *s, kva_program_state *sp, const kva_program_state *sub, int32_t index) {
  const kva_branch_desc *b = sp->desc->steps[index].desc;
  for (int32_t i = 0; i < b->n_binds; i += KVA_BRANCH_BIND) {
    const kva_buffer_desc *output = &sub->desc->buffers[sub->desc->outputs[b->binds[i + 1]]];
    int64_t *value = &sp->symbols[b->binds[i]];
    if (!kva_formula_eval(&output->dims[b->binds[i + 2]], sub->symbols, value) || *value < 0)
      return kva_bad_size(s, sub->desc, "output", b->binds[i + 1], output->name);
  }
  return b->n_binds ? kva_segment_enter(s, sp, sp->segment + 1) : KVA_OK;
}

/* Outputs whose sizes both programs know before are written directly to the caller's memory. */
static kva_status place_results(kva_session *s, const kva_program_state *sp, kva_program_state *sub, int32_t n,
                                const int32_t *results) {
  for (int32_t i = 0; i < n; i++) {
    int32_t output = sub->desc->outputs[i];
    if (!is_known(sp, results[i]) || sub->buffer_segments[output]) continue;
    sub->pointers[output] = sp->pointers[results[i]];
    KVA_TRY(check_size(s, sub, output, sp->bytes[results[i]]));
  }
  return place_rest(s, sub);
}

kva_status kva_run_branch(kva_session *s, kva_program_state *sp, int32_t index) {
  const kva_step_desc *step = &sp->desc->steps[index];
  const kva_branch_desc *b = step->desc;
  int64_t condition;
  KVA_TRY(read_scalar(s, sp, index, step->args[0], &condition));
  kva_program_state *sub = &s->programs[condition ? b->then : b->orelse];
  int32_t n_inputs = sub->desc->n_inputs;
  const int32_t *inputs = &step->args[1], *results = &inputs[n_inputs];
  KVA_TRY(begin(s, sp, sub));
  for (int32_t i = 0; i < n_inputs; i++) KVA_TRY(lend(s, sp, sub, i, inputs[i]));
  KVA_TRY(place_results(s, sp, sub, step->n_results, results));
  KVA_TRY(kva_run_internal(s, sub));
  KVA_TRY(bind_extents(s, sp, sub, index));
  for (int32_t i = 0; i < step->n_results; i++) {
    int32_t output = sub->desc->outputs[i];
    KVA_TRY(check_size(s, sub, output, sp->bytes[results[i]]));
    KVA_TRY(copy(s, sp, index, sp->pointers[results[i]], sub->pointers[output], sp->bytes[results[i]]));
  }
  return KVA_OK;
}

/* ---- loop -------------------------------------------------------------------------------------------------------- */

/* A LOOP step in progress. */
typedef struct loop {
  kva_session *s;
  kva_program_state *sp, *body;
  const kva_loop_desc *desc;
  int32_t index;
  int32_t n_inputs, n_rows;                        /* further inputs; stacked results */
  const int32_t *initial, *inputs, *finals, *rows; /* buffers of sp */
  int64_t done;
} loop;

static loop loop_of(kva_session *s, kva_program_state *sp, int32_t index) {
  const kva_step_desc *step = &sp->desc->steps[index];
  const kva_loop_desc *d = step->desc;
  const int32_t *initial = step->args + (d->has_count != 0) + (d->has_cond != 0);
  const int32_t *finals = step->args + step->n_args - step->n_results;
  return (loop){.s = s,
                .sp = sp,
                .body = &s->programs[d->body],
                .desc = d,
                .index = index,
                .n_inputs = (int32_t)(finals - initial) - d->n_carried,
                .n_rows = step->n_results - d->n_carried,
                .initial = initial,
                .inputs = initial + d->n_carried,
                .finals = finals,
                .rows = finals + d->n_carried};
}

/* The buffers of the final values hold the carried values during the loop. */
static kva_status carry_in(const loop *l) {
  for (int32_t i = 0; i < l->desc->n_carried; i++) {
    int32_t to = l->finals[i], from = l->initial[i];
    KVA_TRY(copy(l->s, l->sp, l->index, l->sp->pointers[to], l->sp->pointers[from], l->sp->bytes[to]));
  }
  return KVA_OK;
}

static kva_status carry_on(const loop *l) {
  for (int32_t i = 0; i < l->desc->n_carried; i++) {
    int32_t to = l->finals[i], from = l->body->desc->outputs[1 + i];
    KVA_TRY(check_size(l->s, l->body, from, l->sp->bytes[to]));
    KVA_TRY(copy(l->s, l->sp, l->index, l->sp->pointers[to], l->body->pointers[from], l->sp->bytes[to]));
  }
  return KVA_OK;
}

static kva_status set_iteration(const loop *l) {
  const kva_device_class *class = l->s->device->class;
  KVA_TRY(kva_session_grow(l->s, l->sp->desc, "a loop's counter", &l->body->iteration, sizeof l->done));
  l->body->pointers[l->body->desc->inputs[0]] = l->body->iteration.data;
  kva_status status = class->copy_in(l->s->device, l->body->iteration.data, &l->done, sizeof l->done);
  return device_failed(l->s, l->sp, l->index, status);
}

static kva_status run_body(const loop *l) {
  KVA_TRY(begin(l->s, l->sp, l->body));
  KVA_TRY(set_iteration(l));
  for (int32_t i = 0; i < l->desc->n_carried; i++) KVA_TRY(lend(l->s, l->sp, l->body, 1 + i, l->finals[i]));
  for (int32_t i = 0; i < l->n_inputs; i++)
    KVA_TRY(lend(l->s, l->sp, l->body, 1 + l->desc->n_carried + i, l->inputs[i]));
  KVA_TRY(place_rest(l->s, l->body));
  return kva_run_internal(l->s, l->body);
}

/* If the number of rows is known only after the loop, they are collected in memory that doubles. */
static kva_status grow_rows(const loop *l, kva_block *block, int64_t bytes) {
  const kva_device_class *class = l->s->device->class;
  if (block->bytes >= bytes) return KVA_OK;
  kva_block more = {0};
  int64_t wanted = bytes < INT64_MAX / 2 ? 2 * bytes : bytes;
  KVA_TRY(kva_session_grow(l->s, l->sp->desc, "a loop's results", &more, wanted));
  kva_status status = copy(l->s, l->sp, l->index, more.data, block->data, block->bytes);
  class->free(l->s->device, block);
  *block = more;
  return status;
}

static kva_status too_many(const loop *l) {
  return kva_session_fail(l->s, KVA_INVALID, "%s: step %d (%s): the loop runs more or less often than its results say",
                          l->sp->desc->name, l->index, origin_of(l->sp, l->index));
}

static kva_status add_row(const loop *l, int32_t i) {
  int32_t output = l->body->desc->outputs[1 + l->desc->n_carried + i];
  int64_t bytes = l->body->bytes[output], at, end;
  kva_block *collected = &l->body->collected[i];
  if (bytes == 0) return KVA_OK; /* a row of no elements has no memory */
  if (!kva_mul_size(l->done, bytes, &at) || !kva_add_size(at, bytes, &end)) return KVA_NO_MEMORY;
  bool known = is_known(l->sp, l->rows[i]);
  if (known && end > l->sp->bytes[l->rows[i]]) return too_many(l);
  if (!known) KVA_TRY(grow_rows(l, collected, end));
  char *to = known ? l->sp->pointers[l->rows[i]] : collected->data;
  return copy(l->s, l->sp, l->index, to + at, l->body->pointers[output], bytes);
}

static kva_status iterate(loop *l, int64_t count, int64_t condition) {
  for (l->done = 0; l->done < count && condition; l->done++) {
    KVA_TRY(run_body(l));
    KVA_TRY(carry_on(l));
    for (int32_t i = 0; i < l->n_rows; i++) KVA_TRY(add_row(l, i));
    if (l->desc->has_cond) KVA_TRY(read_scalar(l->s, l->body, l->index, l->body->desc->outputs[0], &condition));
  }
  return KVA_OK;
}

/* Copies the rows after the caller has planned their number. */
static kva_status deliver_rows(const loop *l, int32_t before) {
  for (int32_t i = 0; i < l->n_rows; i++) {
    int32_t to = l->rows[i];
    int64_t row = l->done ? l->body->bytes[l->body->desc->outputs[1 + l->desc->n_carried + i]] : 0;
    if (l->sp->bytes[to] != row * l->done) return too_many(l);
    if (l->sp->buffer_segments[to] > before)
      KVA_TRY(copy(l->s, l->sp, l->index, l->sp->pointers[to], l->body->collected[i].data, l->sp->bytes[to]));
  }
  return KVA_OK;
}

kva_status kva_run_loop(kva_session *s, kva_program_state *sp, int32_t index) {
  loop l = loop_of(s, sp, index);
  const int32_t *args = sp->desc->steps[index].args;
  int64_t count = INT64_MAX, condition = 1;
  int32_t before = sp->segment;
  if (l.desc->has_count) KVA_TRY(read_scalar(s, sp, index, args[0], &count));
  if (l.desc->has_cond) KVA_TRY(read_scalar(s, sp, index, args[l.desc->has_count != 0], &condition));
  KVA_TRY(carry_in(&l));
  KVA_TRY(iterate(&l, count, condition));
  if (l.desc->symbol >= 0) {
    sp->symbols[l.desc->symbol] = l.done;
    KVA_TRY(kva_segment_enter(s, sp, sp->segment + 1));
  }
  return deliver_rows(&l, before);
}
