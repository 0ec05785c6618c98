/* The checker: every case on the device and on the simulator, against the reference's results; then times.
 *
 *   kva_gpu_check CASES [--device cuda|ptxsim] [--no-times] [--peer FILE] [--only TEXT]
 *
 * Prints a table in Markdown. Exit code 0: all agree; 1: something does not; 3: the device is missing. */
#include "runtime/device.h"
#include "tools/gpucheck/check.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_TENSORS = 8, WARM_UPS = 3, RUNS = 10 };

typedef struct settings {
  const char *cases, *device, *peer, *only;
  bool no_times;
} settings;

typedef struct item {
  const gpu_case *c;
  const gpu_tensor *tensors[2 * MAX_TENSORS]; /* inputs, then expected outputs */
  const void *data[2 * MAX_TENSORS];
} item;

typedef struct tally {
  int passed, failed, skipped;
} tally;

typedef struct check {
  settings o;
  const char *arch; /* of the device */
  kva_diag *diag;
  kva_device *held; /* keeps the driver's context between sessions; making one takes long */
  tally kinds[GPU_KINDS];
} check;

/* A fault invalidates the context for all later work; `again` then creates a new one. */
static void hold_device(check *k, bool again) {
  const kva_device_class *class;
  if (again && k->held) k->held->class->destroy(k->held);
  if (again) k->held = NULL;
  if (!k->held && kva_device_find(k->o.device, NULL, &class) == KVA_OK && class->create(NULL, NULL, &k->held) != KVA_OK)
    k->held = NULL;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static kva_status open_session(const check *k, const item *it, const char *device, bool profile, kva_session **out) {
  const kva_session_options o = {.device = device, .profile = profile};
  return kva_session_create(gpu_artifacts[it->c->artifact](), &o, k->diag, out);
}

/* Random values in [-1, 1) for inputs without data. */
static void *make_input(const gpu_tensor *t, int index) {
  kva_tensor shape = {.dtype = (kva_dtype)t->dtype, .rank = t->rank};
  memcpy(shape.dims, t->dims, sizeof shape.dims);
  int64_t bytes = kva_tensor_bytes(&shape), n = bytes * 8 / kva_dtype_bits(shape.dtype);
  void *data = malloc((size_t)bytes + 1);
  for (int64_t i = 0; data && i < n; i += 4) {
    kva_philox bits = kva_philox4x32((uint64_t)i, (uint64_t)index, 1);
    for (int64_t j = 0; j < 4 && i + j < n; j++) {
      float v = (float)(2 * kva_uniform01(bits.v[j]) - 1);
      if (shape.dtype == KVA_BF16)
        ((uint16_t *)data)[i + j] = kva_f32_to_bf16(v);
      else
        kva_store_f64(shape.dtype, data, i + j, v);
    }
  }
  return data;
}

static void bind(const item *it, kva_tensor *in, void **owned) {
  for (int i = 0; i < it->c->n_inputs; i++) {
    const gpu_tensor *t = it->tensors[i];
    in[i] = (kva_tensor){.dtype = (kva_dtype)t->dtype, .rank = t->rank};
    memcpy(in[i].dims, t->dims, sizeof in[i].dims);
    bool empty = kva_tensor_bytes(&in[i]) == 0;
    owned[i] = it->c->kind == GPU_TIMING && !empty ? make_input(t, i) : NULL;
    in[i].data = owned[i] ? owned[i] : (void *)(uintptr_t)it->data[i];
  }
}

/* Largest difference in units of the tolerance; NaN agrees with NaN. */
static double difference(const gpu_tensor *t, const void *expected, const kva_tensor *found) {
  double worst = 0;
  bool is_float = kva_dtype_is_float((kva_dtype)t->dtype);
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

/* Runs on one device; *out_worst is in units of the tolerance. */
static kva_status run_on(const check *k, const item *it, const char *device, double *out_worst) {
  kva_session *s;
  kva_tensor in[MAX_TENSORS] = {0}, out[MAX_TENSORS] = {0};
  void *owned[MAX_TENSORS] = {0};
  *out_worst = INFINITY;
  KVA_TRY(open_session(k, it, device, false, &s));
  bind(it, in, owned);
  kva_status status = KVA_OK;
  *out_worst = 0;
  for (int run = 0; status == KVA_OK && run < 3; run++) { /* launched directly, captured, replayed */
    for (int i = 0; i < it->c->n_outputs; i++) out[i].data = NULL;
    status = kva_session_run(s, 0, in, out);
    for (int i = 0; status == KVA_OK && i < it->c->n_outputs; i++)
      *out_worst =
          fmax(*out_worst, difference(it->tensors[it->c->n_inputs + i], it->data[it->c->n_inputs + i], &out[i]));
    if (!strcmp(device, "ptxsim")) break; /* deterministic: one run suffices */
  }
  if (status != KVA_OK) kva_fail(k->diag, status, NULL, "%s", kva_session_error(s));
  for (int i = 0; i < MAX_TENSORS; i++) free(owned[i]);
  kva_session_destroy(s);
  return status;
}

typedef struct curve {
  const double *expected;
  double worst;
  double first, last;
} curve;

static bool compare_loss(void *user, const kva_train_event *e) {
  curve *c = user;
  double d = fabs(e->values[0] - c->expected[e->step - 1]);
  if (!(d <= c->worst)) c->worst = isfinite(d) ? d : INFINITY;
  if (e->step == 1) c->first = e->values[0];
  c->last = e->values[0];
  return true;
}

static kva_status train_on(const check *k, const item *it, const char *device, double *out_worst) {
  kva_session *s;
  kva_train_options options;
  kva_data_source data = {0};
  *out_worst = INFINITY;
  KVA_TRY(gpu_training(&options, &data, k->diag));
  curve c = {.expected = it->data[0]};
  options.progress = compare_loss, options.user = &c;
  kva_status status = open_session(k, it, device, false, &s);
  if (status == KVA_OK) {
    status = kva_train(s, &data, &options, k->diag);
    kva_session_destroy(s);
  }
  data.destroy(data.self);
  if (status == KVA_OK) *out_worst = c.worst / it->tensors[0]->tolerance;
  return status;
}

/* ---- times ------------------------------------------------------------------------------------------------------- */

/* Seconds of all steps so far. */
static double time_of(const kva_session *s) {
  const double *seconds;
  const int64_t *calls;
  double total = 0;
  int n = kva_session_profile(s, 0, &seconds, &calls);
  for (int i = 0; i < n; i++) total += seconds[i];
  return total;
}

static kva_status time_on(const check *k, const item *it, double *out_seconds) {
  kva_session *s;
  kva_tensor in[MAX_TENSORS] = {0}, out[MAX_TENSORS] = {0};
  void *owned[MAX_TENSORS] = {0};
  *out_seconds = 0;
  KVA_TRY(open_session(k, it, k->o.device, true, &s));
  bind(it, in, owned);
  kva_status status = KVA_OK;
  double before = 0;
  for (int run = 0; status == KVA_OK && run < WARM_UPS + RUNS; run++) {
    if (run == WARM_UPS) before = time_of(s);
    for (int i = 0; i < MAX_TENSORS; i++) out[i].data = NULL;
    status = kva_session_run(s, 0, in, out);
  }
  *out_seconds = (time_of(s) - before) / RUNS;
  if (status != KVA_OK) kva_fail(k->diag, status, NULL, "%s", kva_session_error(s));
  for (int i = 0; i < MAX_TENSORS; i++) free(owned[i]);
  kva_session_destroy(s);
  return status;
}

typedef struct step_clock {
  double start, stop; /* of the steps after the warm-up */
} step_clock;

static bool note_time(void *user, const kva_train_event *e) {
  step_clock *c = user;
  *(e->step <= WARM_UPS ? &c->start : &c->stop) = e->seconds;
  return true;
}

/* Times steps as kvasir train runs them: recorded once, the loss read after each. */
static kva_status time_steps(const check *k, const item *it, double *out_seconds) {
  kva_session *s;
  kva_data_source data;
  step_clock c = {0};
  const kva_train_options options = {.steps = WARM_UPS + RUNS,
                                     .batch = it->tensors[0]->dims[0],
                                     .schedule = {.kind = KVA_SCHEDULE_CONSTANT, .lr = GPU_STEPS_RATE},
                                     .progress = note_time,
                                     .user = &c};
  *out_seconds = 0;
  KVA_TRY(open_session(k, it, k->o.device, false, &s));
  kva_status status = kva_data_create("random", 0, NULL, it->c->vocab, k->diag, &data);
  if (status == KVA_OK) {
    status = kva_train(s, &data, &options, k->diag);
    data.destroy(data.self);
  }
  kva_session_destroy(s);
  *out_seconds = (c.stop - c.start) / RUNS;
  return status;
}

/* The peer's milliseconds for a name, from lines `name<tab>milliseconds<tab>who`. */
static double peer_time(const check *k, const char *name, char *who, size_t size) {
  FILE *in = k->o.peer ? fopen(k->o.peer, "r") : NULL;
  char line[256];
  double found = 0;
  snprintf(who, size, "-");
  while (in && fgets(line, sizeof line, in)) {
    size_t len = strcspn(line, "\t");
    if (strlen(name) != len || strncmp(line, name, len) != 0) continue;
    char *rest = line + len;
    found = strtod(rest, &rest);
    snprintf(who, size, "%s", rest + strspn(rest, "\t"));
    who[strcspn(who, "\n")] = 0;
  }
  if (in) fclose(in);
  return found;
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const char *const kind_names[GPU_KINDS] = {"operator", "kernel", "training", "time", "steps"};

/* Code for "sm_90a" runs on 9.0 only, other code on its architecture and newer ones. Steps need a GPU. */
static bool fits(const check *k, const gpu_case *c) {
  if (!strcmp(k->o.device, "ptxsim")) return c->kind != GPU_STEPS;
  bool exact = strchr(c->target, 'a') != NULL;
  return exact ? !strcmp(c->target, k->arch) : atoi(c->target + 3) <= atoi(k->arch + 3);
}

static void print_failure(check *k) {
  size_t n = kva_diag_count(k->diag);
  if (n) printf("\n    %s\n\n", kva_diag_message(k->diag, n - 1, NULL, NULL));
  kva_diag_clear(k->diag);
}

static void check_values(check *k, const item *it) {
  kva_status (*run)(const check *, const item *, const char *, double *) =
      it->c->kind == GPU_TRAINING ? train_on : run_on;
  double device = 0, simulated = 0;
  bool is_simulated = !strcmp(k->o.device, "ptxsim");
  kva_status status = run(k, it, k->o.device, &device);
  if (status == KVA_OK && !is_simulated) status = run(k, it, "ptxsim", &simulated);
  bool ok = status == KVA_OK && device <= 1 && simulated <= 1;
  tally *t = &k->kinds[it->c->kind];
  *(ok ? &t->passed : &t->failed) += 1;
  if (ok && it->c->kind == GPU_OPERATOR) return;
  printf("| %s | %s | %s | %s | %.3g | ", kind_names[it->c->kind], it->c->name, it->c->target, ok ? "agrees" : "WRONG",
         device);
  printf(is_simulated ? "- |\n" : "%.3g |\n", simulated);
  if (status != KVA_OK) {
    print_failure(k);
    hold_device(k, true);
  }
  fflush(stdout);
}

static void check_time(check *k, const item *it) {
  double seconds = 0, peer;
  char who[64], rate[32] = "-";
  kva_status status = (it->c->kind == GPU_STEPS ? time_steps : time_on)(k, it, &seconds);
  k->kinds[it->c->kind].passed += status == KVA_OK;
  k->kinds[it->c->kind].failed += status != KVA_OK;
  peer = peer_time(k, it->c->name, who, sizeof who);
  if (it->c->flops > 0) snprintf(rate, sizeof rate, "%.1f TFLOP/s", it->c->flops / seconds * 1e-12);
  if (it->c->bytes > 0) snprintf(rate, sizeof rate, "%.2f TB/s", it->c->bytes / seconds * 1e-12);
  printf("| %s | %s | %.3f | %s | ", it->c->name, it->c->target, seconds * 1e3, status == KVA_OK ? rate : "FAILED");
  if (peer > 0)
    printf("%.3f | %s |\n", peer, who);
  else
    printf("- | - |\n");
  if (status != KVA_OK) {
    print_failure(k);
    hold_device(k, true);
  }
  fflush(stdout);
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

typedef struct cursor {
  const char *at, *end;
} cursor;

static const void *take(cursor *c, size_t size) {
  size_t padded = (size + 7) / 8 * 8;
  if ((size_t)(c->end - c->at) < padded) return NULL;
  const void *p = c->at;
  c->at += padded;
  return p;
}

static bool next_item(cursor *at, item *it) {
  it->c = take(at, sizeof *it->c);
  if (!it->c || it->c->artifact < 0 || it->c->artifact >= gpu_n_artifacts || it->c->n_inputs > MAX_TENSORS ||
      it->c->n_outputs > MAX_TENSORS)
    return false;
  for (int i = 0; i < it->c->n_inputs + it->c->n_outputs; i++) {
    it->tensors[i] = take(at, sizeof *it->tensors[i]);
    if (!it->tensors[i] || it->tensors[i]->bytes < 0) return false;
    it->data[i] = take(at, (size_t)it->tensors[i]->bytes);
    if (!it->data[i]) return false;
  }
  return true;
}

static void check_item(check *k, const item *it, bool times) {
  if (times != (it->c->kind == GPU_TIMING || it->c->kind == GPU_STEPS)) return;
  if (k->o.only && !strstr(it->c->name, k->o.only)) return;
  if (!fits(k, it->c))
    k->kinds[it->c->kind].skipped++;
  else if (times)
    check_time(k, it);
  else
    check_values(k, it);
}

static kva_status check_all(check *k, const kva_file *file, bool times) {
  cursor at = {file->data, (const char *)file->data + file->size};
  const gpu_header *header = take(&at, sizeof *header);
  if (!header || memcmp(header->magic, GPU_CHECK_MAGIC, sizeof header->magic) != 0)
    return kva_error(k->diag, NULL, "%s is no file of cases", k->o.cases);
  for (int64_t i = 0; i < header->n_cases; i++) {
    item it;
    if (!next_item(&at, &it)) return kva_error(k->diag, NULL, "%s is damaged at case %lld", k->o.cases, (long long)i);
    check_item(k, &it, times);
  }
  return KVA_OK;
}

static kva_status run_checks(check *k) {
  char date[32];
  time_t now = time(NULL);
  struct tm utc;
  strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &utc));
  KVA_TRY(kva_device_check(k->o.device, k->diag, &k->arch));
  kva_file file;
  KVA_TRY(kva_file_map(k->o.cases, k->diag, &file));
  hold_device(k, false);
  printf("Kvasir %s, %s, device %s (%s)\n\n", KVA_VERSION, date, k->o.device, k->arch);
  printf("Differences from the reference, in units of the tolerance (operators: failures alone):\n\n");
  printf("| what | name | code for | result | device | simulator |\n|---|---|---|---|---|---|\n");
  kva_status status = check_all(k, &file, false);
  if (status == KVA_OK && !k->o.no_times) {
    printf("\n| time of | code for | ms | rate | peer, ms | peer |\n|---|---|---|---|---|---|\n");
    status = check_all(k, &file, true);
  }
  if (k->held) k->held->class->destroy(k->held);
  kva_file_unmap(&file);
  return status;
}

static bool read_options(int argc, char **argv, settings *o) {
  *o = (settings){.device = "cuda"};
  for (int i = 1; i < argc; i++) {
    const char **value = !strcmp(argv[i], "--device") ? &o->device
                         : !strcmp(argv[i], "--peer") ? &o->peer
                         : !strcmp(argv[i], "--only") ? &o->only
                                                      : NULL;
    if (value && i + 1 < argc)
      *value = argv[++i];
    else if (!strcmp(argv[i], "--no-times"))
      o->no_times = true;
    else if (argv[i][0] != '-' && !o->cases)
      o->cases = argv[i];
    else
      return false;
  }
  return o->cases;
}

int main(int argc, char **argv) {
  check k = {.diag = kva_diag_create()};
  if (!read_options(argc, argv, &k.o)) {
    fprintf(stderr, "kva_gpu_check CASES [--device cuda|ptxsim] [--no-times] [--peer FILE] [--only TEXT]\n");
    return 2;
  }
  kva_status status = run_checks(&k);
  kva_diag_print(k.diag, stderr);
  int failed = 0;
  printf("\n");
  for (int i = 0; i < GPU_KINDS; i++) {
    failed += k.kinds[i].failed;
    printf("%s: %d passed, %d failed, %d for other GPUs\n", kind_names[i], k.kinds[i].passed, k.kinds[i].failed,
           k.kinds[i].skipped);
  }
  kva_diag_destroy(k.diag);
  return status != KVA_OK ? kva_status_exit_code(status) : failed > 0;
}
