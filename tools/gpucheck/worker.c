/* Runs cases in this process: on the device, and where that is quick on the simulator, against expected results or the
 * oracle; then times them. */
#include "runtime/device.h"
#include "tools/gpucheck/check.h"

#include <math.h>
#include <stdlib.h>

enum {
  RUNS = 3,  /* launched directly, while recording, and from the recording */
  PARTS = 5, /* of a measurement: the median counts */
  WARM_STEPS = 3,
  TIMED_STEPS = 8,
  MAX_SAMPLES = 4096,
  SAMPLES_AT_ONCE = 64,
  LONGEST_ROWS = 40, /* of a profile in Markdown */
};
#define PART_SECONDS   0.1
#define SAMPLE_SECONDS 1.0

struct gpu_worker {
  const char *device, *arch;
  kva_diag *diag;
  kva_device *held; /* keeps the driver's context between sessions; making one takes long */
  kva_pool *pool;   /* of the oracle */
};

gpu_worker *gpu_worker_create(const char *device, const char *arch) {
  gpu_worker *w = calloc(1, sizeof *w);
  if (w) *w = (gpu_worker){.device = device, .arch = arch, .diag = kva_diag_create()};
  return w;
}

void gpu_worker_destroy(gpu_worker *w) {
  if (w->held) w->held->class->destroy(w->held);
  kva_pool_destroy(w->pool);
  kva_diag_destroy(w->diag);
  free(w);
}

static bool is_simulator(const char *device) {
  return !strcmp(device, "ptxsim");
}

static void hold_device(gpu_worker *w) {
  const kva_device_class *class;
  if (w->held || kva_device_find(w->device, NULL, &class) != KVA_OK) return;
  if (class->create(NULL, NULL, &w->held) != KVA_OK) w->held = NULL;
}

static kva_status open_session(gpu_worker *w, const gpu_item *it, const char *device, bool profile, kva_session **out) {
  const kva_session_options o = {.device = device, .profile = profile, .sleep = true};
  setenv("KVASIR_CUDA_CODE", it->c->machine ? "cubin" : "ptx", 1);
  return kva_session_create(gpu_artifacts[it->c->artifact](), &o, w->diag, out);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

typedef struct filling {
  kva_tensor t;
  uint64_t index;
} filling;

/* SplitMix64's finaliser: the element's number, mixed. */
static uint64_t mixed(uint64_t i) {
  i += 0x9E3779B97F4A7C15u;
  i = (i ^ i >> 30) * 0xBF58476D1CE4E5B9u;
  i = (i ^ i >> 27) * 0x94D049BB133111EBu;
  return i ^ i >> 31;
}

/* Floats: random in [-1, 1); integers: numbers of documents, each 97 long. */
static void fill(void *user, int64_t begin, int64_t end) {
  const filling *f = user;
  for (int64_t i = begin; i < end; i++) {
    float v = (float)(mixed((uint64_t)i + (f->index << 40)) >> 40) * 0x1p-23f - 1;
    if (f->t.dtype == KVA_BF16)
      ((uint16_t *)f->t.data)[i] = kva_f32_to_bf16(v);
    else if (kva_dtype_is_float(f->t.dtype))
      kva_store_f64(f->t.dtype, f->t.data, i, v);
    else
      kva_store_i64(f->t.dtype, f->t.data, i, i / 97);
  }
}

static kva_tensor tensor_of(const gpu_tensor *t) {
  kva_tensor out = {.dtype = (kva_dtype)t->dtype, .rank = t->rank};
  memcpy(out.dims, t->dims, sizeof out.dims);
  return out;
}

static int64_t elements(const kva_tensor *t) {
  int64_t n = 1;
  for (int32_t d = 0; d < t->rank; d++) n *= t->dims[d];
  return n;
}

/* Packed inputs are used where they are; others are made, and freed with `owned`. */
static void bind(gpu_worker *w, const gpu_item *it, kva_tensor *in, void **owned) {
  bool made = it->c->kind == GPU_TIMING || it->c->kind == GPU_SHAPE;
  for (int i = 0; i < it->c->n_inputs; i++) {
    in[i] = tensor_of(it->tensors[i]);
    in[i].data = (void *)(uintptr_t)it->data[i];
    if (!made) continue;
    in[i].data = owned[i] = malloc((size_t)kva_tensor_bytes(&in[i]) + 1);
    filling f = {in[i], (uint64_t)i + 1};
    if (owned[i]) kva_pool_run(w->pool, elements(&in[i]), fill, &f);
  }
}

static void free_all(void **owned) {
  for (int i = 0; i < GPU_MAX_TENSORS; i++) free(owned[i]);
}

/* ---- comparison -------------------------------------------------------------------------------------------------- */

/* Largest difference to packed results in units of the tolerance; NaN agrees with NaN. */
static double difference(const gpu_tensor *t, const void *expected, const kva_tensor *found) {
  double worst = 0;
  bool is_float = kva_dtype_is_float((kva_dtype)t->dtype);
  if ((int32_t)found->dtype != t->dtype || elements(found) != t->bytes / 8) return INFINITY;
  for (int64_t i = 0; i < t->bytes / 8; i++) {
    if (!is_float) {
      if (((const int64_t *)expected)[i] != kva_load_i64(found->dtype, found->data, i)) return INFINITY;
      continue;
    }
    double a = ((const double *)expected)[i], b = kva_load_f64(found->dtype, found->data, i);
    if (a == b || (isnan(a) && isnan(b))) continue;
    double d = fabs(a - b) / t->tolerance;
    if (!(d <= worst)) worst = isfinite(d) ? d : INFINITY;
  }
  return worst;
}

typedef struct sampling {
  const gpu_kernel *k;
  const kva_tensor *in, *out;
  int output;
  double tolerance;
  int64_t first;
  double worst[SAMPLES_AT_ONCE];
} sampling;

/* The first two samples are the first and the last element; the others are spread at random. */
static int64_t place_of(int64_t sample, int64_t n) {
  if (sample < 2) return sample ? n - 1 : 0;
  return (int64_t)(mixed((uint64_t)sample) % (uint64_t)n);
}

static void sample(void *user, int64_t begin, int64_t end) {
  sampling *s = user;
  for (int64_t i = begin; i < end; i++) {
    int64_t place = place_of(s->first + i, elements(s->out)), rest = place, at[KVA_ABI_MAX_RANK];
    for (int32_t d = s->out->rank; d-- > 0; rest /= s->out->dims[d]) at[d] = rest % s->out->dims[d];
    gpu_element e = s->k->oracle(&s->k->form, s->in, s->output, at);
    double found = kva_load_f64(s->out->dtype, s->out->data, place), scale = fmax(fabs(e.value), e.scale);
    double d = found == e.value ? 0 : fabs(found - e.value) / (s->tolerance * scale);
    s->worst[i] = isfinite(d) ? d : INFINITY;
  }
}

/* As many elements as some time allows, at least SAMPLES_AT_ONCE. */
static double sample_output(gpu_worker *w, const gpu_item *it, const kva_tensor *in, const kva_tensor *out, int output,
                            int64_t *out_samples) {
  sampling s = {.k = &gpu_kernels[it->c->kernel],
                .in = in,
                .out = &out[output],
                .output = output,
                .tolerance = it->tensors[it->c->n_inputs + output]->tolerance};
  double worst = 0, end = kva_now() + SAMPLE_SECONDS;
  for (; s.first < MAX_SAMPLES && (!s.first || kva_now() < end); s.first += SAMPLES_AT_ONCE) {
    kva_pool_run(w->pool, SAMPLES_AT_ONCE, sample, &s);
    for (int i = 0; i < SAMPLES_AT_ONCE; i++) worst = fmax(worst, s.worst[i]);
  }
  *out_samples += s.first;
  return worst;
}

static bool all_finite(const kva_tensor *t) {
  int64_t n = elements(t);
  for (int64_t i = 0; i < n; i++)
    if (!isfinite(kva_load_f64(t->dtype, t->data, i))) return false;
  return true;
}

/* Compares all outputs: with packed results where there are some, and with the oracle where there is one. */
static double compare(gpu_worker *w, const gpu_item *it, const kva_tensor *in, const kva_tensor *out,
                      gpu_outcome *outcome) {
  double worst = 0;
  for (int i = 0; i < it->c->n_outputs; i++) {
    const gpu_tensor *t = it->tensors[it->c->n_inputs + i];
    if (it->c->kind == GPU_OPERATOR || it->c->kind == GPU_KERNEL) {
      worst = fmax(worst, difference(t, it->data[it->c->n_inputs + i], &out[i]));
      continue;
    }
    if (!elements(&out[i])) continue;
    worst = fmax(worst, sample_output(w, it, in, out, i, &outcome->samples));
    if (!all_finite(&out[i])) worst = INFINITY;
  }
  return worst;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static uint64_t hash_of(const gpu_item *it, const kva_tensor *out) {
  uint64_t h = 0;
  for (int i = 0; i < it->c->n_outputs; i++)
    if (elements(&out[i])) h = kva_hash(h, out[i].data, (size_t)kva_tensor_bytes(&out[i]));
  return h;
}

/* Runs of the same code on the same operands give the same bits: what does not is a race. */
static kva_status run_again(gpu_worker *w, const gpu_item *it, kva_session *s, const kva_tensor *in, kva_tensor *out,
                            gpu_outcome *outcome) {
  uint64_t first = hash_of(it, out);
  for (int run = 1; run < RUNS; run++) {
    for (int i = 0; i < it->c->n_outputs; i++) out[i].data = NULL;
    kva_status status = kva_session_run(s, 0, in, out);
    if (status != KVA_OK) return kva_fail(w->diag, status, NULL, "%s", kva_session_error(s));
    if (hash_of(it, out) == first || outcome->verdict != GPU_AGREES) continue;
    outcome->verdict = GPU_WRONG;
    snprintf(outcome->message, sizeof outcome->message, "run %d gives other bits than the first", run + 1);
  }
  return KVA_OK;
}

static void note_kernels(const kva_session *s, const gpu_case *c, gpu_outcome *o) {
  kva_kernel_facts f;
  o->refused = c->machine && kva_session_kernel(s, 0, &f) && f.code != KVA_CODE_CUBIN;
  for (int i = 0; i < kva_session_kernels(s) && kva_session_kernel(s, i, &f); i++)
    kva_text_add(&o->kernels,
                 "%s{\"name\": \"%s\", \"registers\": %d, \"threads\": %d, \"local\": %lld, \"shared\": %lld}",
                 i ? ", " : "", f.name, f.registers, f.threads, (long long)f.local_bytes, (long long)f.shared_bytes);
}

static kva_status run_session(gpu_worker *w, const gpu_item *it, kva_session *s, bool again, gpu_outcome *outcome,
                              double *out_worst) {
  kva_tensor in[GPU_MAX_TENSORS] = {0}, out[GPU_MAX_TENSORS] = {0};
  void *owned[GPU_MAX_TENSORS] = {0};
  bind(w, it, in, owned);
  kva_status status = kva_session_run(s, 0, in, out);
  if (status != KVA_OK) kva_fail(w->diag, status, NULL, "%s", kva_session_error(s));
  if (status == KVA_OK) *out_worst = compare(w, it, in, out, outcome);
  if (status == KVA_OK && again) status = run_again(w, it, s, in, out, outcome);
  free_all(owned);
  return status;
}

/* *out_worst is in units of the tolerance. */
static kva_status run_on(gpu_worker *w, const gpu_item *it, const char *device, gpu_outcome *o, double *out_worst) {
  kva_session *s;
  KVA_TRY(open_session(w, it, device, false, &s));
  if (gpu_device_has_driver(device)) note_kernels(s, it->c, o);
  kva_status status = run_session(w, it, s, !is_simulator(device), o, out_worst);
  kva_session_destroy(s);
  return status;
}

/* ---- training ---------------------------------------------------------------------------------------------------- */

typedef struct curve {
  const double *expected;
  double worst;
} curve;

static bool compare_loss(void *user, const kva_train_event *e) {
  curve *c = user;
  double d = fabs(e->values[0] - c->expected[e->step - 1]);
  if (!(d <= c->worst)) c->worst = isfinite(d) ? d : INFINITY;
  return true;
}

static kva_status train_on(gpu_worker *w, const gpu_item *it, const char *device, gpu_outcome *o, double *out_worst) {
  kva_session *s;
  kva_train_options options;
  kva_data_source data = {0};
  KVA_TRY(gpu_training(it->c->training, &options, &data, w->diag));
  curve c = {.expected = it->data[0]};
  options.progress = compare_loss, options.user = &c;
  kva_status status = open_session(w, it, device, false, &s);
  if (status == KVA_OK) {
    if (gpu_device_has_driver(device)) note_kernels(s, it->c, o);
    status = kva_train(s, &data, &options, w->diag);
    kva_session_destroy(s);
  }
  data.destroy(data.self);
  *out_worst = c.worst / it->tensors[0]->tolerance;
  return status;
}

/* ---- times ------------------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void note_times(double *seconds, gpu_outcome *o) {
  qsort(seconds, PARTS, sizeof *seconds, by_value);
  o->seconds = seconds[PARTS / 2];
  if (o->seconds > 0) o->spread = (seconds[PARTS - 1] - seconds[0]) / o->seconds;
}

/* Copies stay outside of the time; the clocks are warm by then. */
static kva_status time_session(gpu_worker *w, const gpu_item *it, kva_session *s, gpu_outcome *o) {
  kva_tensor in[GPU_MAX_TENSORS] = {0}, out[GPU_MAX_TENSORS] = {0};
  void *owned[GPU_MAX_TENSORS] = {0};
  double seconds[PARTS];
  bind(w, it, in, owned);
  kva_status status = kva_session_time(s, 0, in, out, PART_SECONDS, PARTS, seconds);
  if (status == KVA_OK) o->device = compare(w, it, in, out, o);
  if (status == KVA_OK) note_times(seconds, o);
  if (status != KVA_OK) kva_fail(w->diag, status, NULL, "%s", kva_session_error(s));
  free_all(owned);
  return status;
}

static kva_status time_kernel(gpu_worker *w, const gpu_item *it, gpu_outcome *o) {
  kva_session *s;
  KVA_TRY(open_session(w, it, w->device, false, &s));
  note_kernels(s, it->c, o);
  kva_status status = time_session(w, it, s, o);
  kva_session_destroy(s);
  return status;
}

/* ---- training steps of a large model ----------------------------------------------------------------------------- */

typedef struct step_clock {
  double start, stop; /* of the steps after the warm-up */
  double loss;
} step_clock;

static bool note_time(void *user, const kva_train_event *e) {
  step_clock *c = user;
  *(e->step <= WARM_STEPS ? &c->start : &c->stop) = e->seconds;
  c->loss = e->values[0];
  return true;
}

static kva_status train_steps(gpu_worker *w, const gpu_item *it, kva_session *s, int64_t steps, step_clock *clock) {
  kva_data_source data;
  const kva_train_options options = {.steps = steps,
                                     .batch = it->tensors[0]->dims[0],
                                     .schedule = {.kind = KVA_SCHEDULE_CONSTANT, .lr = GPU_STEPS_RATE},
                                     .progress = note_time,
                                     .user = clock};
  KVA_TRY(kva_data_create("random", 0, NULL, it->c->vocab, w->diag, &data));
  kva_status status = kva_train(s, &data, &options, w->diag);
  data.destroy(data.self);
  return status;
}

typedef struct share {
  const char *kernel, *origin;
  double seconds, bytes;
  int64_t calls;
} share;

static int by_seconds(const void *a, const void *b) {
  double x = ((const share *)a)->seconds, y = ((const share *)b)->seconds;
  return (x < y) - (x > y);
}

static void add_share(share *list, int *n, share s) {
  for (int i = 0; i < *n; i++) {
    if (strcmp(list[i].kernel, s.kernel) != 0 || strcmp(list[i].origin, s.origin) != 0) continue;
    list[i].seconds += s.seconds, list[i].bytes += s.bytes, list[i].calls += s.calls;
    return;
  }
  list[(*n)++] = s;
}

/* Steps of one kernel from one place in the model are one share. */
static int collect_shares(const kva_session *s, int program, share *list) {
  const double *seconds;
  const int64_t *calls;
  int steps = kva_session_profile(s, program, &seconds, &calls), n = 0;
  const kva_program *p = kva_session_program_desc(s, program);
  for (int i = 0; i < steps; i++) {
    const kva_step_desc *step = &p->steps[i];
    const char *kernel = step->kind == KVA_STEP_KERNEL ? kva_session_artifact(s)->kernels[step->kernel].name
                         : step->kind == KVA_STEP_COPY ? "copy"
                                                       : "library";
    if (calls[i])
      add_share(list, &n,
                (share){kernel, step->origin ? step->origin : "", seconds[i] / (double)calls[i],
                        (double)kva_session_step_bytes(s, program, i), 1});
  }
  qsort(list, (size_t)n, sizeof *list, by_seconds);
  return n;
}

static void note_share(const share *s, double total, int i, gpu_outcome *o) {
  kva_text_add(&o->profile, "%s{\"kernel\": ", i ? ", " : "");
  kva_text_add_quoted(&o->profile, s->kernel);
  kva_text_add(&o->profile, ", \"origin\": ");
  kva_text_add_quoted(&o->profile, s->origin);
  kva_text_add(&o->profile, ", \"calls\": %lld, \"ms\": %.6g, \"bytes\": %.9g}", (long long)s->calls, s->seconds * 1e3,
               s->bytes);
  if (i < LONGEST_ROWS)
    kva_text_add(&o->table, "| %s | %s | %lld | %.3f | %.1f %% | %.2f |\n", s->kernel, s->origin, (long long)s->calls,
                 s->seconds * 1e3, 100 * s->seconds / total, s->bytes / s->seconds * 1e-12);
}

static void note_profile(const kva_session *s, const gpu_case *c, gpu_outcome *o) {
  int program = kva_session_program(s, "train_step");
  if (program < 0) return;
  share *list = calloc((size_t)kva_session_program_desc(s, program)->n_steps + 1, sizeof *list);
  if (!list) return;
  double total = 0;
  int n = collect_shares(s, program, list);
  for (int i = 0; i < n; i++) total += list[i].seconds;
  kva_text_add(&o->table, "\n%s, %s: %.2f ms in %d kinds of launches\n\n", c->name, c->machine ? "ptxas" : "the driver",
               total * 1e3, n);
  kva_text_add(&o->table, "| kernel | of | launches | ms | share | TB/s of operands |\n|---|---|---|---|---|---|\n");
  for (int i = 0; i < n; i++) note_share(&list[i], total, i, o);
  free(list);
}

static kva_status profile_steps(gpu_worker *w, const gpu_item *it, gpu_outcome *o) {
  kva_session *s;
  step_clock ignored = {0};
  KVA_TRY(open_session(w, it, w->device, true, &s));
  kva_status status = train_steps(w, it, s, 2, &ignored);
  if (status == KVA_OK) note_profile(s, it->c, o);
  kva_session_destroy(s);
  return status;
}

/* Steps as kvasir train runs them, recorded once, the loss read after each; then some of them by kernel. */
static kva_status time_steps(gpu_worker *w, const gpu_item *it, gpu_outcome *o) {
  kva_session *s;
  step_clock clock = {0};
  KVA_TRY(open_session(w, it, w->device, false, &s));
  note_kernels(s, it->c, o);
  kva_status status = train_steps(w, it, s, WARM_STEPS + TIMED_STEPS, &clock);
  kva_session_destroy(s);
  KVA_TRY(status);
  o->seconds = (clock.stop - clock.start) / TIMED_STEPS;
  if (!isfinite(clock.loss)) o->verdict = GPU_WRONG;
  snprintf(o->message, sizeof o->message, "loss %.4f after %d steps", clock.loss, WARM_STEPS + TIMED_STEPS);
  return profile_steps(w, it, o);
}

/* ---- a case ------------------------------------------------------------------------------------------------------ */

/* What is small runs on the simulator, too: where that agrees, the device is wrong, and not the code. */
static kva_status check_values(gpu_worker *w, const gpu_item *it, gpu_outcome *o) {
  bool is_training = it->c->kind == GPU_TRAINING;
  kva_status (*run)(gpu_worker *, const gpu_item *, const char *, gpu_outcome *, double *) =
      is_training ? train_on : run_on;
  KVA_TRY(run(w, it, w->device, o, &o->device));
  bool small = it->c->kind == GPU_OPERATOR || it->c->kind == GPU_KERNEL || (is_training && it->c->phase == 'A');
  if (!small || !gpu_device_has_driver(w->device)) return KVA_OK;
  return run(w, it, "ptxsim", o, &o->simulator);
}

void gpu_worker_run(gpu_worker *w, const gpu_item *it, gpu_outcome *out) {
  *out = (gpu_outcome){.device = -1, .simulator = -1};
  kva_diag_clear(w->diag);
  char name[160];
  snprintf(name, sizeof name, "%s, %s, %s", it->c->name, it->c->target, gpu_case_code(it->c));
  setenv("KVASIR_GPU_CASE", name, 1); /* for a debugger, and for the faults of a stand-in */
  if (!w->pool) w->pool = kva_pool_create_with(&(kva_pool_options){.sleep = true});
  hold_device(w);
  kva_status status = it->c->kind == GPU_STEPS    ? time_steps(w, it, out)
                      : it->c->kind == GPU_TIMING ? time_kernel(w, it, out)
                                                  : check_values(w, it, out);
  size_t n = kva_diag_count(w->diag);
  if (n && !out->message[0])
    snprintf(out->message, sizeof out->message, "%s", kva_diag_message(w->diag, n - 1, NULL, NULL));
  if (status != KVA_OK)
    out->verdict = GPU_FAILED;
  else if (out->device > 1 || out->simulator > 1)
    out->verdict = GPU_WRONG;
}
