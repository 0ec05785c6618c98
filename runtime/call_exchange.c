/* What the processes of a run exchange: sums of tensors, and tensors that each of them has a part of. */
#include "runtime/calls.h"
#include "runtime/comm.h"
#include "runtime/session.h"

static bool is_exchange(const kva_step_desc *s) {
  return s->kind == KVA_STEP_CALL &&
         (s->call == KVA_CALL_ALL_REDUCE || s->call == KVA_CALL_REDUCE_SCATTER || s->call == KVA_CALL_ALL_GATHER ||
          s->call == KVA_CALL_OWN_PART || s->call == KVA_CALL_PROCESS_INDEX || s->call == KVA_CALL_NEIGHBOUR);
}

static const kva_exchange_desc *desc_of(const kva_step_desc *s) {
  return s->desc;
}

static int32_t parts_of(const kva_step_desc *s) {
  return desc_of(s)->parts;
}

/* Ranks that a group spans; as the checks of a step, that it fits. */
static int64_t span_of(const kva_step_desc *s) {
  return (int64_t)parts_of(s) * desc_of(s)->stride;
}

/* The processes of the step; NULL, with a text: the run has no such group. */
static kva_comm *group_of(const kva_session *s, const kva_step_desc *step) {
  return kva_comm_group(s->options.comm, parts_of(step), desc_of(step)->stride);
}

static kva_dtype type_of(const kva_program *p, const kva_step_desc *s, int32_t arg) {
  return (kva_dtype)p->buffers[s->args[arg]].dtype;
}

static int64_t width_of(const kva_device_call *call) {
  return kva_dtype_bits(type_of(call->program, call->step, 0)) / 8;
}

/* As many results as tensors, all of one type. */
static bool check(const kva_program *p, const kva_step_desc *s, kva_text *why) {
  int32_t n = s->n_results;
  bool same = s->n_args == 2 * n && n > 0 && parts_of(s) > 0 && kva_dtype_bits(type_of(p, s, 0)) >= 8;
  same = same && desc_of(s)->stride > 0 && span_of(s) <= INT32_MAX;
  for (int32_t i = 0; same && i < s->n_args; i++) same = type_of(p, s, i) == type_of(p, s, 0);
  if (!same) kva_text_add(why, "it makes %d tensors of %d over %d parts", n, s->n_args - n, parts_of(s));
  return same;
}

int32_t kva_artifact_processes(const kva_artifact *a) {
  kva_comm_mesh mesh = kva_artifact_mesh(a);
  int64_t most = kva_comm_mesh_size(&mesh);
  for (int32_t i = 0; i < a->n_programs; i++)
    for (int32_t k = 0; k < a->programs[i].n_steps; k++) {
      const kva_step_desc *s = &a->programs[i].steps[k];
      if (is_exchange(s) && span_of(s) > most) most = span_of(s);
    }
  return (int32_t)most;
}

static int32_t extent(int32_t axis) {
  return axis > 1 ? axis : 1;
}

kva_comm_mesh kva_artifact_mesh(const kva_artifact *a) {
  return (kva_comm_mesh){.data = extent(a->mesh_data),
                         .pipeline = extent(a->mesh_pipeline),
                         .sequence = extent(a->mesh_sequence),
                         .tensor = extent(a->mesh_tensor)};
}

bool kva_step_is_collective(const kva_step_desc *s) {
  return is_exchange(s) && s->call != KVA_CALL_OWN_PART && s->call != KVA_CALL_PROCESS_INDEX && parts_of(s) > 1;
}

bool kva_program_is_collective(const kva_program *p) {
  for (int32_t i = 0; i < p->n_steps; i++)
    if (kva_step_is_collective(&p->steps[i])) return true;
  return false;
}

static kva_status end(kva_session *s, const kva_program *p, kva_status status) {
  if (status == KVA_OK) return KVA_OK;
  return kva_session_fail(s, status, "%s: %s", p->name, kva_comm_error(s->options.comm));
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static bool sums_fit(const kva_program *p, const kva_step_desc *s, const int64_t *sizes, const int64_t *bytes) {
  (void)p, (void)sizes;
  for (int32_t i = 0; i < s->n_results; i++)
    if (bytes[s->args[i]] != bytes[s->args[s->n_results + i]]) return false;
  return true;
}

/* kva_session_create has compared the number of processes with the mesh's. */
static kva_status all_reduce(kva_comm *c, const kva_device_call *call) {
  const kva_step_desc *step = call->step;
  int32_t n = step->n_results;
  kva_comm_pack pack = {.dtype = type_of(call->program, step, 0)};
  kva_status status = KVA_OK;
  for (int32_t i = 0; status == KVA_OK && i < n; i++)
    status = kva_comm_pack_add(c, &pack, call->bytes[step->args[i]] / width_of(call), call->args[i], call->args[n + i]);
  return status == KVA_OK ? kva_comm_pack_flush(c, &pack) : status;
}

/* ---- parts ------------------------------------------------------------------------------------------------------- */

/* Whether argument `part` is one of the parts of argument `whole`. */
static bool is_part(const kva_program *p, const kva_step_desc *s, const int64_t *bytes, int32_t whole, int32_t part) {
  int64_t all;
  if (desc_of(s)->stacks)
    return s->n_results == 1 && kva_mul_size(bytes[s->args[part]], parts_of(s), &all) && all == bytes[s->args[whole]];
  int64_t width = kva_dtype_bits(type_of(p, s, 0)) / 8;
  return s->n_results == 1 &&
         bytes[s->args[part]] == kva_part_elements(bytes[s->args[whole]] / width, parts_of(s)) * width;
}

static bool part_fits(const kva_program *p, const kva_step_desc *s, const int64_t *sizes, const int64_t *bytes) {
  (void)sizes;
  return is_part(p, s, bytes, 0, 1);
}

static bool whole_fits(const kva_program *p, const kva_step_desc *s, const int64_t *sizes, const int64_t *bytes) {
  (void)sizes;
  return is_part(p, s, bytes, 1, 0);
}

static kva_status reduce_scatter(kva_comm *c, const kva_device_call *call) {
  const kva_step_desc *step = call->step;
  int64_t width = width_of(call), total = call->bytes[step->args[0]] / width, n = call->bytes[step->args[1]] / width;
  return kva_comm_reduce_scatter(c, type_of(call->program, step, 0), n, total, call->args[0], call->args[1]);
}

static kva_status all_gather(kva_comm *c, const kva_device_call *call) {
  const int32_t *args = call->step->args;
  return kva_comm_all_gather(c, call->bytes[args[0]], call->bytes[args[1]], call->args[0], call->args[1]);
}

static bool neighbour_fits(const kva_program *p, const kva_step_desc *s, const int64_t *sizes, const int64_t *bytes) {
  (void)p, (void)sizes;
  return s->n_results == 1 && bytes[s->args[0]] == bytes[s->args[1]];
}

static kva_status neighbour(kva_comm *c, const kva_device_call *call) {
  int by = desc_of(call->step)->next ? -1 : 1;
  return kva_comm_shift(c, by, call->bytes[call->step->args[0]], call->args[0], call->args[1]);
}

/* The number of this process among those of the step. */
static kva_status find_index(kva_session *s, const kva_device_call *call, int64_t *out) {
  kva_comm *c = parts_of(call->step) > 1 ? group_of(s, call->step) : NULL;
  *out = kva_comm_rank(c);
  return end(s, call->program, c || parts_of(call->step) == 1 ? KVA_OK : KVA_INVALID);
}

static kva_status own_part(kva_session *s, const kva_device_call *call) {
  const int32_t *args = call->step->args;
  int64_t each = call->bytes[args[1]], rank;
  KVA_TRY(find_index(s, call, &rank));
  int64_t filled = kva_part_filled(call->bytes[args[0]], each, rank);
  if (filled) memcpy(call->args[1], (const char *)call->args[0] + rank * each, (size_t)filled);
  memset((char *)call->args[1] + filled, 0, (size_t)(each - filled));
  return KVA_OK;
}

static bool check_index(const kva_program *p, const kva_step_desc *s, kva_text *why) {
  if (type_of(p, s, 0) == KVA_I64 && parts_of(s) > 0 && desc_of(s)->stride > 0 && span_of(s) <= INT32_MAX) return true;
  kva_text_add(why, "it makes a number of %d parts", parts_of(s));
  return false;
}

static bool index_fits(const kva_program *p, const kva_step_desc *s, const int64_t *sizes, const int64_t *bytes) {
  (void)p, (void)sizes;
  return bytes[s->args[0]] == (int64_t)sizeof(int64_t);
}

static kva_status process_index(kva_session *s, const kva_device_call *call) {
  int64_t index;
  KVA_TRY(find_index(s, call, &index));
  memcpy(call->args[0], &index, sizeof index);
  return KVA_OK;
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static kva_status exchange(kva_comm *c, const kva_device_call *call) {
  switch (call->step->call) {
  case KVA_CALL_ALL_REDUCE: return all_reduce(c, call);
  case KVA_CALL_REDUCE_SCATTER: return reduce_scatter(c, call);
  case KVA_CALL_ALL_GATHER: return all_gather(c, call);
  default: return neighbour(c, call);
  }
}

/* One process: results begin with what the tensors have. */
static kva_status alone(const kva_device_call *call) {
  const kva_step_desc *step = call->step;
  bool moves = step->call == KVA_CALL_NEIGHBOUR; /* which there is none of */
  int32_t n = step->n_results;
  for (int32_t i = 0; i < n; i++) {
    int64_t from = moves ? 0 : call->bytes[step->args[i]], to = call->bytes[step->args[n + i]];
    int64_t least = from < to ? from : to;
    if (least) memmove(call->args[n + i], call->args[i], (size_t)least);
    if (to > least) memset((char *)call->args[n + i] + least, 0, (size_t)(to - least));
  }
  return KVA_OK;
}

static kva_status run_job(void *user) {
  const kva_exchange *x = user;
  return exchange(x->comm, &x->call);
}

/* kva_session_create has compared the number of processes with the mesh's. */
static kva_status run(kva_session *s, const kva_device_call *call) {
  if (!kva_step_is_collective(call->step)) return alone(call);
  kva_exchange x = {.job = {.run = run_job, .user = &x}, .call = *call, .comm = group_of(s, call->step)};
  return end(s, call->program, x.comm ? kva_comm_run(x.comm, &x.job) : KVA_INVALID);
}

/* ---- exchange that goes on while steps run ----------------------------------------------------------------------- */

int32_t kva_started_args(const kva_program *p) {
  int32_t n = 0;
  for (int32_t i = 0; i < p->n_steps; i++) n += p->steps[i].wait ? p->steps[i].n_args : 0;
  return n;
}

int32_t kva_started_steps(const kva_program *p) {
  int32_t n = 0;
  for (int32_t i = 0; i < p->n_steps; i++) n += p->steps[i].wait != 0;
  return n;
}

void kva_exchange_prepare(kva_program_state *sp) {
  const kva_program *p = sp->desc;
  void **args = sp->exchange_args;
  for (int32_t i = 0, k = 0; i < p->n_steps; i++) {
    const kva_step_desc *step = &p->steps[i];
    if (!step->wait) continue;
    kva_exchange *x = &sp->exchanges[k++];
    *x = (kva_exchange){.job = {.run = run_job, .user = x, .done = true},
                        .call = {.program = p, .step = step, .symbols = sp->symbols, .args = args, .bytes = sp->bytes},
                        .args = args};
    args += step->n_args;
  }
}

static kva_exchange *exchange_of(const kva_program_state *sp, const kva_step_desc *start) {
  kva_exchange *x = sp->exchanges;
  while (x->call.step != start) x++;
  return x;
}

kva_status kva_exchange_start(kva_session *s, kva_program_state *sp, const kva_step_desc *step) {
  kva_exchange *x = exchange_of(sp, step);
  x->comm = group_of(s, step);
  if (!x->comm) return end(s, sp->desc, KVA_INVALID);
  for (int32_t i = 0; i < step->n_args; i++) x->args[i] = sp->pointers[step->args[i]];
  kva_comm_post(x->comm, &x->job);
  return KVA_OK;
}

/* ---- exchange in a device's memory ------------------------------------------------------------------------------- */

bool kva_exchange_is_on_device(const kva_session *s, const kva_program *p, const kva_step_desc *step) {
  return s->exchanges && step->kind == KVA_STEP_CALL && kva_step_is_collective(step) &&
         s->device->class->exchanges(s->device, p, step);
}

static kva_status device_error(kva_session *s, const kva_program *p, kva_status status) {
  return status == KVA_OK ? KVA_OK : kva_session_device_error(s, status, p, "exchange");
}

/* Number 0 is that of exchanges which are waited for at once. */
static int32_t number_of(const kva_program_state *sp, const kva_step_desc *start) {
  return start->wait ? (int32_t)(exchange_of(sp, start) - sp->exchanges) + 1 : 0;
}

/* With profiling the device has nothing else to do, so what it waits is what the host sees. */
static kva_status await_on_device(kva_session *s, kva_program_state *sp, int32_t number) {
  const kva_device_class *class = s->device->class;
  kva_comm_times times = {.waited = -kva_now()};
  kva_status status = class->await(s->device, number);
  if (status == KVA_OK && s->options.profile) {
    status = class->synchronise(s->device);
    times.waited += kva_now();
    if (status == KVA_OK) status = class->exchanged(s->device, number, &times.exchange);
    kva_comm_add_times(s->options.comm, &times);
  }
  return device_error(s, sp->desc, status);
}

kva_status kva_exchange_on_device(kva_session *s, kva_program_state *sp, const kva_device_call *call) {
  const kva_device_class *class = s->device->class;
  int32_t number = number_of(sp, call->step);
  kva_comm *group = group_of(s, call->step);
  if (!group) return end(s, sp->desc, KVA_INVALID);
  KVA_TRY(device_error(s, sp->desc, class->exchange(s->device, group, call, number)));
  return call->step->wait ? KVA_OK : await_on_device(s, sp, number);
}

/* Of what the host exchanges for a device with its own memory, all was done when it was to start. */
kva_status kva_exchange_wait(kva_session *s, kva_program_state *sp, const kva_step_desc *step) {
  const kva_step_desc *start = &sp->desc->steps[((const kva_wait_desc *)step->desc)->start];
  if (kva_exchange_is_on_device(s, sp->desc, start)) return await_on_device(s, sp, number_of(sp, start));
  if (!kva_exchange_is_started(s, start)) return KVA_OK;
  kva_exchange *x = exchange_of(sp, start);
  return end(s, sp->desc, kva_comm_wait(x->comm, &x->job));
}

bool kva_exchange_is_started(const kva_session *s, const kva_step_desc *step) {
  return step->wait && s->device->class->host_memory && kva_step_is_collective(step);
}

const kva_call_class kva_call_all_reduce = {
    .n_args = -1, .n_results = -1, .check = check, .fits = sums_fit, .run = run};
const kva_call_class kva_call_reduce_scatter = {
    .n_args = 2, .n_results = 1, .check = check, .fits = part_fits, .run = run};
const kva_call_class kva_call_all_gather = {
    .n_args = 2, .n_results = 1, .check = check, .fits = whole_fits, .run = run};
const kva_call_class kva_call_own_part = {
    .n_args = 2, .n_results = 1, .check = check, .fits = part_fits, .run = own_part};
const kva_call_class kva_call_process_index = {
    .n_args = 1, .n_results = 1, .check = check_index, .fits = index_fits, .run = process_index};
const kva_call_class kva_call_neighbour = {
    .n_args = 2, .n_results = 1, .check = check, .fits = neighbour_fits, .run = run};
