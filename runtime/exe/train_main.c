/* The training executable: trains the model it was compiled from; the train block's settings are the defaults. */
#include "runtime/base/platform.h"
#include "runtime/exe/exe.h"
#include "runtime/exe/processes.h"
#include "runtime/exe/streams.h"
#include "runtime/exe/train.h"
#include "runtime/train.h"

#include <stdlib.h>

static double number(const char *const *info, const char *key) {
  const char *text = kva_info_get(info, key);
  return text ? strtod(text, NULL) : 0;
}

static int64_t integer(const char *const *info, const char *key) {
  const char *text = kva_info_get(info, key);
  return text ? strtoll(text, NULL, 10) : 0;
}

/* "induction:pool=48,length=64" from train.data and train.data.<argument>. */
static const char *data_text(const char *const *info, kva_arena *arena) {
  static const char prefix[] = "train.data.";
  const char *name = kva_info_get(info, "train.data");
  if (!name) return NULL;
  const char *text = name;
  bool first = !strchr(name, ':');
  for (; info[0]; info += 2) {
    if (strncmp(info[0], prefix, sizeof prefix - 1)) continue;
    text = kva_arena_printf(arena, "%s%c%s=%s", text, first ? ':' : ',', info[0] + sizeof prefix - 1, info[1]);
    first = false;
  }
  return text;
}

static kva_data_range range_of(const char *const *info, const char *input, kva_arena *arena) {
  const char *text = kva_info_get(info, kva_arena_printf(arena, "train.range.%s", input ? input : ""));
  long long low, high, ignored;
  int n = text ? sscanf(text, "%lld %lld %lld", &low, &high, &ignored) : 0;
  if (n < 2) return (kva_data_range){.known = false};
  return (kva_data_range){
      .known = true, .low = low, .high = high, .has_ignored = n > 2, .ignored = n > 2 ? ignored : 0};
}

static const kva_data_range *ranges_of(const kva_artifact *a, const char *const *info, kva_arena *arena) {
  const kva_program *p = kva_train_data_program(a);
  kva_data_range *ranges = KVA_NEW_ARRAY(arena, kva_data_range, p ? p->n_inputs + 1 : 1);
  for (int32_t i = 0; p && i < p->n_inputs; i++) ranges[i] = range_of(info, p->buffers[p->inputs[i]].name, arena);
  return ranges;
}

static kva_train_defaults defaults_of(const kva_artifact *a, const char *const *info, kva_arena *arena) {
  return (kva_train_defaults){.schedule = kva_info_get(info, "train.schedule"),
                              .data = data_text(info, arena),
                              .lr = number(info, "train.lr"),
                              .final_ratio = number(info, "train.final_ratio"),
                              .steps = integer(info, "train.steps"),
                              .batch = integer(info, "train.batch"),
                              .warmup = integer(info, "train.warmup"),
                              .total = integer(info, "train.total"),
                              .length = integer(info, "train.data.length"),
                              .vocab = integer(info, "train.vocab"),
                              .ranges = ranges_of(a, info, arena)};
}

/* Sequences per micro-batch that the programs were compiled for; 0: any number. */
static int64_t pinned_rows(const kva_artifact *a) {
  const kva_program *p = kva_train_data_program(a);
  return p ? kva_train_pinned_rows(p) : 0;
}

static int64_t parameters_of(const kva_artifact *a) {
  int64_t sum = 0;
  for (int32_t i = 0; i < a->n_states; i++) {
    int64_t n = 1;
    for (int32_t k = 0; k < a->states[i].rank; k++) n *= a->states[i].dims[k];
    if (a->states[i].role == KVA_ROLE_PARAMETER) sum += n;
  }
  return sum;
}

/* Prints "f32", or "bf16, with parameters, moments and sums in f32". */
static void describe_precision(const char *const *info, kva_text *text) {
  const char *precision = kva_info_get(info, "train.precision");
  bool mixed = precision && strcmp(precision, "f32") != 0;
  kva_text_add(text, "Products are computed in %s%s.\n", precision ? precision : "f32",
               mixed ? ", with parameters, moments and sums in f32" : "");
}

static void describe(const kva_artifact *a, const char *const *info, const kva_train_defaults *d, kva_text *text) {
  const char *description = kva_info_get(info, "description"), *optimizer = kva_info_get(info, "train.optimizer");
  int64_t rows = pinned_rows(a);
  if (description) kva_text_add(text, "%s\n\n", description);
  kva_text_add(text, "Model %s with %lld parameters, of which %lld train, compiled for %s.\n",
               a->model ? a->model : "unnamed", (long long)parameters_of(a), (long long)integer(info, "train.trained"),
               a->target ? a->target : "unknown");
  describe_precision(info, text);
  kva_text_add(text, "Defaults: ");
  if (d->steps) kva_text_add(text, "%lld steps of ", (long long)d->steps);
  kva_text_add(text, "%lld sequences, optimiser %s, learning rate %g, schedule %s, data %s%s.\n",
               (long long)kva_train_rows(&(kva_train_settings)KVA_TRAIN_SETTINGS, d), optimizer ? optimizer : "none",
               d->lr, d->schedule ? d->schedule : "constant", d->data ? d->data : "none (give --data)",
               d->steps ? "" : "; give --steps");
  if (rows)
    kva_text_add(text,
                 "It was compiled for micro-batches of %lld sequences: a step of more takes several micro-batches.\n",
                 (long long)rows);
  kva_text_add(text, "Optimiser, what decays, and precision are fixed when the executable is built.\n"
                     "Ctrl-C and SIGTERM end the run after the current step and save, with exit code 4; --resume "
                     "continues with the same bits.\n");
}

static kva_status write_report(const kva_artifact *a, const kva_train_settings *o, const kva_train_result *result,
                               kva_arena *arena, kva_diag *diag) {
  const kva_report_item config[] = {{"model", a->model ? a->model : "unnamed"},
                                    {"target", a->target ? a->target : "unknown"}};
  int n = sizeof config / sizeof *config;
  KVA_TRY(kva_train_write_report(o->report, 1, result, n, config, arena, diag));
  if (!o->json) printf("report: %s\n", o->report);
  return KVA_OK;
}

static kva_status train(const kva_artifact *a, const kva_train_settings *o, const char *device,
                        const kva_train_defaults *d, kva_arena *arena, kva_diag *diag) {
  kva_session *s;
  kva_session_options options = {.threads = (int)o->threads,
                                 .seed = o->seed > 0 ? (uint64_t)o->seed : 0,
                                 .profile = o->profile || o->report,
                                 .device = device,
                                 .comm = o->comm};
  kva_train_result result = {.name = "train"};
  if (o->report) KVA_TRY(kva_file_prepare(o->report, diag));
  KVA_TRY(kva_session_create(a, &options, diag, &s));
  kva_diag_print(diag, stderr); /* warnings */
  kva_diag_clear(diag);
  kva_train_catch_signals();
  kva_status status = kva_train_session(s, o, d, o->metrics, arena, diag, &result);
  if (o->report && result.history && !kva_comm_rank(o->comm)) {
    kva_status written = write_report(a, o, &result, arena, diag);
    if (status == KVA_OK) status = written;
  }
  kva_history_destroy(result.history);
  kva_session_destroy(s);
  return status;
}

int kva_train_main(int argc, char **argv, const kva_artifact *artifact, const char *const *info) {
  kva_train_settings o = KVA_TRAIN_SETTINGS;
  const char *device = kva_artifact_arch(artifact) ? "cuda" : "cpu";
  const kva_option options[] = {KVA_TRAIN_OPTIONS(&o),
                                {"--device", NULL, "NAME", KVA_OPTION_STRING, &device,
                                 "where to train: cpu, or for code of a GPU cuda (what the code is for)"}};
  kva_streams_open();
  kva_arena *arena = kva_arena_create();
  kva_train_defaults d = defaults_of(artifact, info, arena);
  kva_text text = {0};
  describe(artifact, info, &d, &text);
  const char *none[1];
  const kva_usage usage = {kva_exe_name(argc, argv), "[options]", "trains the model that it was compiled from",
                           kva_text_string(&text)};
  int n, code = kva_options_parse(&usage, argc - 1, argv + 1, options, sizeof options / sizeof *options, none, 0, &n);
  if (text.cut) code = kva_exit_code(usage.program, KVA_NO_MEMORY, NULL);
  kva_train_take_sources(&o, arena);
  const char *misused = code < 0 ? kva_train_misused(&o) : NULL;
  if (misused) {
    fprintf(stderr, "%s: %s\n", usage.program, misused);
    code = EXIT_USAGE;
  }
  if (code < 0) {
    kva_diag *diag = kva_diag_create();
    const kva_comm_mesh mesh = kva_artifact_mesh(artifact);
    kva_status status = kva_processes_join(&mesh, o.rank_logs, diag, &o.comm);
    if (status == KVA_OK) status = train(artifact, &o, device, &d, arena, diag);
    if (status != KVA_OK) kva_processes_quieten(o.comm);
    code = kva_exit_code(usage.program, status, diag);
    kva_comm_destroy(o.comm, code);
    kva_diag_destroy(diag);
  }
  kva_text_free(&text);
  kva_arena_destroy(arena);
  return kva_streams_close(usage.program, code);
}
