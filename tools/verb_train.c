/* kvasir train: compiles a model with its train block and trains it, one or several variants. */
#include "tools/tune.h"
#include "runtime/report.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_train = {
    "train", "MODEL [options]", "train a model by its train block",
    "Shows loss, metrics, rate and time left on a terminal, plain lines otherwise. Several --variant options train the "
    "model\n"
    "several times, each with its own settings, into one report. Ctrl-C ends the run after the current step; metrics "
    "and\n"
    "report are still written.\n\n"
    "Examples:\n"
    "  kvasir train models/induction.kv --report induction.html\n"
    "  kvasir train models/induction.kv --variant \"KV shift\" --variant \"vanilla:shift_k=false,shift_v=false\"\n"
    "  kvasir train models/lm.kv -D preset=small --data random --steps 20",
    run};

typedef struct train_options {
  const char *model, *metrics, *report, *data, *precision;
  kva_strings defines, pins, variants;
  int64_t steps, batch, seed, threads, eval_every, eval_batches;
  double lr;
  bool json, profile;
  kva_device_choice device;
  kva_tune_choice tune;
} train_options;

typedef struct variant {
  const char *name;
  kva_strings defines;
  kva_history *history;
  kva_report_shift *shifts;
  int n_shifts;
  double seconds; /* of training */
  kva_memory_report memory;
  kva_report_time *times; /* of the training step's kernels, longest first */
  int n_times;
} variant;

/* ---- progress
 * ------------------------------------------------------------------------------------------------------------ */

static volatile sig_atomic_t stop_requested;
static void request_stop(int signal) {
  (void)signal;
  stop_requested = 1;
}

typedef struct progress {
  const char *name;
  kva_history *history;
  kva_metrics *metrics;
  kva_diag *diag;
  bool terminal, json;
  double last_print, seconds;
  kva_status status;
} progress;

static void print_event(const progress *p, const kva_train_event *e, bool live) {
  printf("%s%-10s step %lld/%lld", live ? "\r\033[K" : "", p->name, (long long)e->step, (long long)e->steps);
  for (int i = 0; i < e->n; i++) printf("  %s%s %.4g", e->evaluation ? "eval " : "", e->names[i], e->values[i]);
  double rate = e->seconds > 0 ? (double)e->step / e->seconds : 0;
  if (!e->evaluation && rate > 0)
    printf("  lr %.3g  %.1f steps/s  %.0f s left", e->lr, rate, (double)(e->steps - e->step) / rate);
  printf("%s", live ? "" : "\n");
  fflush(stdout);
}

static bool on_event(void *user, const kva_train_event *e) {
  progress *p = user;
  p->seconds = e->seconds;
  p->status = kva_history_add(p->history, e);
  if (p->status == KVA_OK && p->metrics) p->status = kva_metrics_add(p->metrics, e, p->diag);
  double now = kva_now();
  bool last = e->step == e->steps;
  if (p->json) {
    /* metrics go to standard output below */
  } else if (e->evaluation) {
    if (p->terminal) printf("\r\033[K");
    print_event(p, e, false);
  } else if (p->terminal && (now - p->last_print > 0.1 || last)) {
    print_event(p, e, true);
    p->last_print = now;
  } else if (!p->terminal && (now - p->last_print > 2 || last)) {
    print_event(p, e, false);
    p->last_print = now;
  }
  return p->status == KVA_OK && !stop_requested;
}

/* ---- settings
 * -------------------------------------------------------------------------------------------------------------- */

static kva_schedule schedule_of(const kva_train_spec *spec, double lr, int64_t steps) {
  static const char *const names[] = {"constant", "warmup", "cosine", "linear"};
  kva_schedule s = {.lr = lr > 0 ? lr : spec->lr,
                    .final_ratio = spec->final_lr_ratio,
                    .warmup = spec->warmup_steps,
                    .total = spec->total_steps > 0 ? spec->total_steps : steps};
  for (int i = 0; i < 4; i++)
    if (spec->schedule && !strcmp(spec->schedule, names[i])) s.kind = (kva_schedule_kind)i;
  return s;
}

static bool is_pinned(const kva_strings *pins, const char *symbol) {
  size_t len = strlen(symbol);
  for (uint32_t i = 0; i < pins->n; i++)
    if (!strncmp(pins->v[i], symbol, len) && pins->v[i][len] == '=') return true;
  return false;
}

/* The data source as one text: --data, else what the train block says, NAME:ARGUMENT=VALUE,... NULL: neither says.
 * --pin T has precedence over the train block's length. */
static const char *data_text(const kva_train_spec *spec, const train_options *o, kva_arena *arena) {
  if (o->data || !spec->data || !spec->data_args) return o->data ? o->data : spec->data;
  kva_text text = {0};
  kva_text_add(&text, "%s", spec->data);
  bool first = !strchr(spec->data, ':');
  for (uint32_t i = 0; i < kva_map_len(spec->data_args); i++) {
    const char *name = kva_map_key_at(spec->data_args, i, NULL);
    if (!strcmp(name, "length") && is_pinned(&o->pins, "T")) continue;
    kva_text_add(&text, "%c%s=", first ? ':' : ',', name);
    kva_text_add_double(&text, *(const double *)kva_map_value_at(spec->data_args, i));
    first = false;
  }
  const char *copy = kva_arena_strdup(arena, text.data);
  kva_text_free(&text);
  return copy;
}

static kva_status create_data(const kva_module *m, const kva_program *p, const char *text, kva_arena *arena,
                              kva_diag *diag, kva_data_source *out) {
  if (!text)
    return kva_error(diag, &m->train->loc,
                     "the train block names no data; give --data induction or --data tokens:FILE");
  const kva_type *logits = kva_graph_output(m->functions.data[0]->graph, 0)->type;
  int64_t vocab = 0;
  if (logits->rank == 0 || !kva_expr_is_const(logits->dims[logits->rank - 1], &vocab)) vocab = 0;
  const char **inputs = KVA_NEW_ARRAY(arena, const char *, p->n_inputs + 1);
  for (int32_t i = 0; i < p->n_inputs; i++) inputs[i] = p->buffers[p->inputs[i]].name;
  /* The last input of a training step is the learning rate. */
  kva_data_options options = {.vocab = vocab, .n_inputs = p->n_inputs - (p->n_inputs > 0), .inputs = inputs};
  return kva_data_open(text, &options, diag, out);
}

/* Shift scalars by name: "<layer>.k.current", "<layer>.k.previous" and v likewise, each with one value a head. */
static bool shift_state(kva_session *s, const char *layer, size_t len, const char *suffix, kva_tensor *out) {
  char name[512];
  snprintf(name, sizeof name, "%.*s.%s", (int)len, layer, suffix);
  return kva_session_state(s, name, out) && out->dtype == KVA_F32;
}

static float head_value(const kva_tensor *t, bool present, int64_t h) {
  return present ? ((const float *)t->data)[h] : 0;
}

static void collect_shifts(kva_session *s, kva_arena *arena, variant *v) {
  KVA_VEC(kva_report_shift) rows = {0};
  for (int i = 0; i < kva_session_state_count(s); i++) {
    kva_tensor k1, k2 = {0}, v1 = {0}, v2 = {0};
    static const char suffix[] = ".k.current";
    const char *name = kva_session_state_desc(s, i, &k1)->name;
    if (strlen(name) < sizeof suffix || k1.dtype != KVA_F32) continue;
    size_t len = strlen(name) - (sizeof suffix - 1);
    if (strcmp(name + len, suffix) != 0) continue;
    bool has_k2 = shift_state(s, name, len, "k.previous", &k2);
    bool has_v1 = shift_state(s, name, len, "v.current", &v1), has_v2 = shift_state(s, name, len, "v.previous", &v2);
    int64_t heads = 1;
    for (int32_t d = 0; d < k1.rank; d++) heads *= k1.dims[d];
    for (int64_t h = 0; h < heads; h++) {
      kva_report_shift row = {kva_arena_strndup(arena, name, len),
                              (int)h,
                              head_value(&k1, true, h),
                              head_value(&k2, has_k2, h),
                              head_value(&v1, has_v1, h),
                              head_value(&v2, has_v2, h)};
      KVA_PUSH(arena, &rows, row);
    }
  }
  v->shifts = rows.data;
  v->n_shifts = (int)rows.len;
}

/* ---- one variant
 * -------------------------------------------------------------------------------------------------------------- */

/* Dropout draws from this seed too; models without dropout have no such state. */
static void set_seed(kva_session *s, int64_t seed) {
  kva_tensor t;
  if (kva_session_state(s, "train.seed", &t)) memcpy(t.data, &seed, sizeof seed);
}

static kva_status train_session(kva_session *s, const kva_module *m, const train_options *o, progress *p,
                                kva_arena *arena, kva_diag *diag) {
  const kva_train_spec *spec = m->train;
  int64_t steps = o->steps > 0 ? o->steps : spec->steps;
  if (steps <= 0) return kva_error(diag, &spec->loc, "the train block gives no number of steps; give --steps N");
  int program = kva_session_program(s, "train_step");
  if (program < 0) return kva_error(diag, &spec->loc, "the model was compiled without a training step");
  kva_data_source data = {0};
  KVA_TRY(create_data(m, kva_session_program_desc(s, program), data_text(spec, o, arena), arena, diag, &data));
  kva_train_options t = {.steps = steps,
                         .batch = o->batch,
                         .eval_every = o->eval_every,
                         .eval_batches = o->eval_batches,
                         .schedule = schedule_of(spec, o->lr, steps),
                         .seed = (uint64_t)o->seed,
                         .progress = on_event,
                         .user = p};
  kva_status status = kva_train(s, &data, &t, diag);
  if (data.destroy) data.destroy(data.self);
  return status == KVA_OK ? p->status : status;
}

static int longer_first(const void *a, const void *b) {
  double x = ((const kva_report_time *)a)->seconds, y = ((const kva_report_time *)b)->seconds;
  return x < y ? 1 : x > y ? -1 : 0;
}

/* Time of the steps by kernel: equal kernels add up. */
static void collect_times(kva_session *s, int program, kva_arena *arena, variant *v) {
  const double *seconds;
  const int64_t *calls;
  int n = kva_session_profile(s, program, &seconds, &calls);
  const kva_program *p = kva_session_program_desc(s, program);
  v->times = KVA_NEW_ARRAY(arena, kva_report_time, n + 1);
  for (int i = 0; i < n; i++) {
    const char *name = p->steps[i].origin ? p->steps[i].origin : "copy";
    int k = 0;
    while (k < v->n_times && strcmp(v->times[k].name, name) != 0) k++;
    if (k == v->n_times) v->times[v->n_times++] = (kva_report_time){.name = kva_arena_strdup(arena, name)};
    v->times[k].seconds += seconds[i];
    v->times[k].calls += calls[i];
  }
  qsort(v->times, (size_t)v->n_times, sizeof *v->times, longer_first);
}

static void print_times(const variant *v) {
  for (int i = 0; i < v->n_times && i < 30; i++)
    printf("%-10s %9.3f s  %8lld calls  %s\n", v->name, v->times[i].seconds, (long long)v->times[i].calls,
           v->times[i].name);
}

static void print_shifts(const variant *v) {
  for (int i = 0; i < v->n_shifts; i++)
    printf("%-10s %s head %d: K current %.3f previous %.3f, V current %.3f previous %.3f\n", v->name,
           v->shifts[i].layer, v->shifts[i].head, v->shifts[i].k_current, v->shifts[i].k_previous,
           v->shifts[i].v_current, v->shifts[i].v_previous);
}

static kva_status train_compiled(kva_compiled *c, const train_options *o, variant *v, kva_metrics *metrics,
                                 kva_arena *arena, kva_diag *diag) {
  kva_session *s;
  KVA_TRY(kva_session_create(
      c->artifact,
      &(kva_session_options){
          .threads = (int)o->threads, .seed = (uint64_t)o->seed, .profile = o->profile, .device = o->device.device},
      diag, &s));
  progress p = {.name = v->name,
                .history = v->history,
                .metrics = metrics,
                .diag = diag,
                .terminal = isatty(STDOUT_FILENO),
                .json = o->json};
  if (!o->json)
    printf("%-10s compiled in %.2f s (passes %.2f, code %.2f), %d kernels\n", v->name,
           c->pass_seconds + c->codegen_seconds, c->pass_seconds, c->codegen_seconds, c->artifact->n_kernels);
  set_seed(s, o->seed);
  kva_status status = train_session(s, c->module, o, &p, arena, diag);
  v->seconds = p.seconds;
  int program = kva_session_program(s, "train_step");
  if (program >= 0) kva_session_memory(s, program, &v->memory);
  if (program >= 0 && o->profile) collect_times(s, program, arena, v);
  collect_shifts(s, arena, v);
  if (p.terminal && !o->json) printf("\n");
  if (!o->json) {
    printf("%-10s trained in %.2f s\n", v->name, p.seconds);
    print_shifts(v);
    print_times(v);
  }
  kva_session_destroy(s);
  return status;
}

/* Whether an input has this symbol as an extent. */
static bool has_symbol(const kva_module *m, const char *symbol) {
  for (uint32_t f = 0; f < m->functions.len; f++) {
    const kva_graph *g = m->functions.data[f]->graph;
    for (uint32_t i = 0; i < g->inputs.len; i++) {
      const kva_type *t = g->inputs.data[i]->type;
      for (uint32_t d = 0; d < t->rank; d++)
        if (t->dims[d]->kind == KVA_EXPR_SYMBOL && !strcmp(t->dims[d]->name, symbol)) return true;
    }
  }
  return false;
}

/* Batch size and sequence length are known before compiling: as constants they make better schedules. */
static void pin_shapes(train_options *o, const kva_module *m, kva_strings *pins, kva_arena *arena) {
  const kva_train_spec *spec = m->train;
  if (o->batch == 0) o->batch = spec->batch > 0 ? spec->batch : 32;
  if (has_symbol(m, "B") && !is_pinned(pins, "B") && pins->n < 64)
    pins->v[pins->n++] = kva_arena_printf(arena, "B=%lld", (long long)o->batch);
  const char *data = data_text(spec, o, arena);
  int64_t length = data ? kva_data_length(data) : 0;
  const double *usual = spec->data_args ? kva_map_get_str(spec->data_args, "length") : NULL;
  if (!length && usual) length = (int64_t)*usual;
  if (length && has_symbol(m, "T") && !is_pinned(pins, "T") && pins->n < 64)
    pins->v[pins->n++] = kva_arena_printf(arena, "T=%lld", (long long)length);
}

/* The model with a loss, and with what trains chosen. */
static int load(const train_options *o, const kva_strings *defines, const kva_strings *pins, kva_diag *diag,
                kva_module **out) {
  /* Imported models are often made for a batch of 1; one without a loss is trained with any. */
  int code = kva_cli_load_batch(o->model, defines, pins, o->tune.loss && o->batch != 1, diag, out);
  if (code >= 0) return code;
  kva_status status = kva_cli_tune(*out, &o->tune, o->lr, diag);
  if (status != KVA_OK) return kva_cli_fail(status, diag);
  if ((*out)->train) return -1;
  fprintf(stderr, "%s: error: the model has no train block, so there is nothing to train it by; give --loss\n",
          o->model);
  return EXIT_NO;
}

static int train_variant(train_options *o, variant *v, kva_metrics *metrics, kva_arena *arena) {
  kva_diag *diag = kva_diag_create();
  kva_strings defines = o->defines, pins = o->pins;
  for (uint32_t i = 0; i < v->defines.n && defines.n < 64; i++) defines.v[defines.n++] = v->defines.v[i];
  kva_module *m = NULL;
  kva_compiled *c = NULL;
  kva_compile_options options = {.train = true, .target = {.opt_level = 2}};
  kva_status status = kva_cli_target(&o->device, diag, &options.target);
  if (status == KVA_OK) status = kva_cli_precision(o->precision, diag, &options.passes.compute);
  int code = status == KVA_OK ? load(o, &defines, &pins, diag, &m) : kva_cli_fail(status, diag);
  if (code < 0) {
    pin_shapes(o, m, &pins, arena);
    kva_module_destroy(m);
    m = NULL;
    code = load(o, &defines, &pins, diag, &m);
  }
  if (code < 0) {
    if (!o->json) kva_cli_print_trained(m, &o->tune);
    status = kva_compile(m, &options, diag, &c);
    if (status == KVA_OK) status = train_compiled(c, o, v, metrics, arena, diag);
    m = NULL; /* kva_compile took it */
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
  }
  kva_module_destroy(m);
  kva_compiled_destroy(c);
  kva_diag_destroy(diag);
  return code;
}

/* ---- all variants
 * ---------------------------------------------------------------------------------------------------------------- */

/* "name:a=1,b=2" */
static void parse_variant(const char *text, kva_arena *arena, variant *v) {
  const char *colon = strchr(text, ':');
  v->name = colon ? kva_arena_strndup(arena, text, (size_t)(colon - text)) : text;
  for (const char *p = colon ? colon + 1 : NULL; p && *p && v->defines.n < 64;) {
    size_t len = strcspn(p, ",");
    v->defines.v[v->defines.n++] = kva_arena_strndup(arena, p, len);
    p += len + (p[len] == ',');
  }
}

static const char *metrics_path(const train_options *o, uint32_t i, uint32_t n, kva_arena *arena) {
  if (!o->metrics || n == 1) return o->metrics;
  const char *dot = strrchr(o->metrics, '.');
  size_t stem = dot ? (size_t)(dot - o->metrics) : strlen(o->metrics);
  return kva_arena_printf(arena, "%.*s-%u%s", (int)stem, o->metrics, i, dot ? dot : "");
}

static kva_status write_report(const train_options *o, const variant *v, uint32_t n, kva_arena *arena, kva_diag *diag) {
  kva_report_run *runs = KVA_NEW_ARRAY(arena, kva_report_run, n);
  kva_report_item *config = KVA_NEW_ARRAY(arena, kva_report_item, n + o->defines.n + 4);
  int k = 0;
  config[k++] = (kva_report_item){"model", o->model};
  config[k++] = (kva_report_item){"batch", kva_arena_printf(arena, "%lld", (long long)o->batch)};
  config[k++] = (kva_report_item){"seed", kva_arena_printf(arena, "%lld", (long long)o->seed)};
  for (uint32_t i = 0; i < o->defines.n; i++) config[k++] = (kva_report_item){"-D", o->defines.v[i]};
  for (uint32_t i = 0; i < n; i++) {
    runs[i] = (kva_report_run){v[i].name, v[i].history, v[i].n_shifts, v[i].shifts};
    config[k++] = (kva_report_item){kva_arena_printf(arena, "training time, %s", v[i].name),
                                    kva_arena_printf(arena, "%.2f s", v[i].seconds)};
  }
  kva_report r = {.title = "Kvasir training report",
                  .n_runs = (int)n,
                  .runs = runs,
                  .n_config = k,
                  .config = config,
                  .n_times = v[0].n_times,
                  .times = v[0].times,
                  .memory = &v[0].memory};
  return kva_report_write(o->report, &r, diag);
}

static int train_all(train_options *o) {
  kva_arena *arena = kva_arena_create();
  kva_diag *diag = kva_diag_create();
  uint32_t n = o->variants.n ? o->variants.n : 1;
  variant *v = KVA_NEW_ARRAY(arena, variant, n);
  int code = EXIT_DONE;
  for (uint32_t i = 0; i < n && code == EXIT_DONE && !stop_requested; i++) {
    parse_variant(o->variants.n ? o->variants.v[i] : "train", arena, &v[i]);
    v[i].history = kva_history_create();
    kva_metrics *metrics = NULL;
    const char *path = o->json ? "/dev/stdout" : metrics_path(o, i, n, arena);
    kva_status status = path ? kva_metrics_create(path, false, diag, &metrics) : KVA_OK;
    code = status == KVA_OK ? train_variant(o, &v[i], metrics, arena) : kva_cli_fail(status, diag);
    kva_metrics_destroy(metrics);
  }
  if (o->report && v[0].history) {
    uint32_t done = 0;
    while (done < n && v[done].history) done++;
    kva_status status = write_report(o, v, done, arena, diag);
    if (status == KVA_OK)
      printf("report: %s\n", o->report);
    else
      code = kva_cli_fail(status, diag);
  }
  for (uint32_t i = 0; i < n; i++) kva_history_destroy(v[i].history);
  kva_diag_destroy(diag);
  kva_arena_destroy(arena);
  return code;
}

static int run(int argc, char **argv) {
  train_options o = {.eval_every = 100, .eval_batches = 8, .tune = KVA_TUNE_DEFAULTS};
  const kva_option options[] = {
      {"--steps", NULL, "N", KVA_OPTION_INT, &o.steps, "optimiser steps (the train block's)"},
      {"--batch", NULL, "N", KVA_OPTION_INT, &o.batch, "sequences a step (the train block's, else 32)"},
      {"--lr", NULL, "X", KVA_OPTION_FLOAT, &o.lr, "learning rate (the train block's)"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &o.seed, "of initial values and data (0)"},
      {"--threads", NULL, "N", KVA_OPTION_INT, &o.threads, "worker threads (all); results do not depend on it"},
      {"--data", NULL, "SOURCE", KVA_OPTION_STRING, &o.data,
       "instead of the train block's: induction, ngram, random, tokens:FILE, npy:INPUT=FILE,..."},
      {"--eval-every", NULL, "N", KVA_OPTION_INT, &o.eval_every, "steps between evaluations (100; 0: never)"},
      {"--eval-batches", NULL, "N", KVA_OPTION_INT, &o.eval_batches, "batches of an evaluation (8)"},
      {"--variant", NULL, "NAME[:D,...]", KVA_OPTION_LIST, &o.variants,
       "a run with its own -D settings; may be given often"},
      {"--metrics", NULL, "FILE", KVA_OPTION_STRING, &o.metrics, "write JSON lines; with variants FILE-0, FILE-1, ..."},
      {"--report", NULL, "FILE.html", KVA_OPTION_STRING, &o.report, "write one page with curves and shift scalars"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &o.pins, "fix a shape symbol"},
      {"--precision", NULL, "P", KVA_OPTION_STRING, &o.precision,
       "f32 (default), or bf16 or f16: products in it, parameters and sums in f32"},
      KVA_TUNE_OPTIONS(&o.tune),
      KVA_DEVICE_OPTIONS(&o.device),
      {"--profile", NULL, NULL, KVA_OPTION_FLAG, &o.profile, "time every kernel; print the longest"},
      {"--json", NULL, NULL, KVA_OPTION_FLAG, &o.json, "print the JSON lines instead of progress"},
  };
  int n, code = kva_cli_parse(&kva_verb_train, argc, argv, options, sizeof options / sizeof *options, &o.model, 1, &n);
  if (code >= 0) return code;
  if (n == 0) {
    fprintf(stderr, "kvasir train: a model is missing\n");
    return EXIT_USAGE;
  }
  signal(SIGINT, request_stop);
  signal(SIGTERM, request_stop);
  return train_all(&o);
}
