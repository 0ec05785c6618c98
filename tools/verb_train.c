/* kvasir train: compiles a model with its train block and trains one or several variants of it. */
#include "tools/samples.h"
#include "tools/tune.h"
#include "runtime/data.h"
#include "runtime/exe/processes.h"
#include "runtime/exe/exe.h"
#include "runtime/exe/train.h"
#include "tools/board/board.h"
#include "tools/driver/ranges.h"
#include "tools/driver/summary.h"

#include <stdlib.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_train = {
    "train", "MODEL [options]", "train a model by its train block",
    "Shows loss, metrics, rate and time left on a terminal, plain lines otherwise. Several --variant options train the "
    "model\n"
    "several times, each with its own settings, into one report. Ctrl-C and SIGTERM end the run after the current "
    "step;\n"
    "metrics, report and checkpoint are still written, and the exit code is 4. --resume continues with the same "
    "bits.\n\n"
    "Examples:\n"
    "  kvasir train models/induction.kv --report induction.html\n"
    "  kvasir train models/induction.kv --variant \"KV shift\" --variant \"vanilla:shift_k=false,shift_v=false\"\n"
    "  kvasir train models/lm.kv -D preset=small --data random --steps 20\n"
    "  kvasir train models/lm.kv --data tokens:text.tokens --checkpoint run --resume --time-limit 8h",
    run};

/* Who else sees the events of a run. */
typedef struct watchers {
  kva_board *board;     /* NULL: none */
  kva_samples *samples; /* NULL: none */
  int64_t every;        /* steps between samples */
} watchers;

typedef struct train_options {
  const char *board; /* folder of event files */
  int64_t sample_every;
  kva_samples_options samples;
  watchers watchers;
  const char *model, *precision, *mesh_text;
  kva_mesh mesh; /* value of --mesh */
  kva_strings defines, pins, variants;
  kva_train_settings settings;
  bool check_indices, dry_run;
  int64_t memory;
  kva_device_choice device;
  kva_tune_choice tune;
  kva_pass_choice passes;
} train_options;

typedef struct variant {
  kva_strings defines;
  kva_train_result result;
  const kva_data_range *ranges; /* of data inputs */
} variant;

/* ---- settings ---------------------------------------------------------------------------------------------------- */

/* The train block's data source as text, NAME:ARGUMENT=VALUE,... A --pin T overrides its length. */
static const char *data_text(const kva_train_spec *spec, const kva_strings *pins, kva_arena *arena) {
  if (!spec->data || !spec->data_args) return spec->data;
  kva_text text = {0};
  kva_text_add(&text, "%s", spec->data);
  bool first = !strchr(spec->data, ':');
  for (uint32_t i = 0; i < kva_map_len(spec->data_args); i++) {
    const char *name = kva_map_key_at(spec->data_args, i, NULL);
    if (!strcmp(name, "length") && kva_cli_pin_of(pins, "T")) continue;
    kva_text_add(&text, "%c%s=", first ? ':' : ',', name);
    kva_text_add(&text, "%.17g", *(const double *)kva_map_value_at(spec->data_args, i));
    first = false;
  }
  const char *copy = kva_arena_strdup(arena, text.data);
  kva_text_free(&text);
  return copy;
}

/* Each item of a source after a comma. */
static kva_status items_below(const char *folder, const kva_data_spec *spec, kva_text *out, kva_diag *diag) {
  for (int i = 0; i < spec->n_items; i++) {
    const kva_data_item *item = &spec->items[i];
    kva_file file;
    if (folder) KVA_TRY(kva_file_map_below(folder, item->value, diag, &file));
    if (folder) kva_file_unmap(&file);
    kva_text_add(out, ",%s%s%s%s%s", item->name ? item->name : "", item->name ? "=" : "", folder ? folder : "",
                 folder ? "/" : "", item->value);
  }
  if (spec->length) kva_text_add(out, ",length=%lld", (long long)spec->length);
  if (spec->eval >= 0) kva_text_add(out, ",eval=%.17g", spec->eval);
  if (spec->weight) kva_text_add(out, ",weight=%.17g", spec->weight);
  if (spec->split) kva_text_add(out, ",split=%s", spec->split == KVA_SPLIT_END ? "end" : "documents");
  return KVA_OK;
}

/* A source as text, with its files in `folder`, below which they must be; NULL: it has none. */
static kva_status source_below(const char *folder, const kva_data_spec *spec, kva_text *out, kva_diag *diag) {
  kva_text items = {0};
  kva_status status = items_below(folder, spec, &items, diag);
  kva_text_add(out, "%s%s%s", spec->kind, items.len ? ":" : "", items.len ? items.data + 1 : "");
  kva_text_free(&items);
  return status;
}

/* A model reads nothing outside its folder: files that its train block names are taken from there. */
static kva_status find_data(const kva_module *m, const char *model, kva_diag *diag) {
  kva_data_spec *specs;
  int n;
  if (!m->train || !m->train->data) return KVA_OK;
  KVA_TRY(kva_data_parse(m->train->data, m->arena, diag, &n, &specs));
  const char *folder = kva_file_folder(m->arena, model);
  kva_text source = {0};
  kva_status status = KVA_OK;
  bool files = false;
  for (int i = 0; status == KVA_OK && i < n; i++) {
    files |= kva_data_reads_files(specs[i].kind);
    kva_text_add(&source, "%s", i ? ";" : "");
    status = source_below(kva_data_reads_files(specs[i].kind) ? folder : NULL, &specs[i], &source, diag);
  }
  if (status == KVA_OK && files) m->train->data = kva_arena_strdup(m->arena, source.data);
  kva_text_free(&source);
  return status;
}

static kva_train_defaults defaults_of(const kva_module *m, const kva_strings *pins, kva_arena *arena) {
  const kva_train_spec *spec = m->train;
  const double *length = spec->data_args ? kva_map_get_str(spec->data_args, "length") : NULL;
  const kva_type *logits = kva_graph_output(m->functions.data[0]->graph, 0)->type;
  kva_train_defaults d = {.schedule = spec->schedule,
                          .data = data_text(spec, pins, arena),
                          .lr = spec->lr,
                          .final_ratio = spec->final_lr_ratio,
                          .steps = spec->steps,
                          .batch = spec->batch,
                          .warmup = spec->warmup_steps,
                          .total = spec->total_steps,
                          .length = length ? (int64_t)*length : 0};
  if (logits->rank == 0 || !kva_expr_is_const(logits->dims[logits->rank - 1], &d.vocab)) d.vocab = 0;
  return d;
}

/* The rows that every input of the model has; 0: any number. */
static int64_t fixed_rows(const kva_module *m) {
  const kva_function *loss = kva_module_find_function(m, "loss");
  int64_t all = 0, rows;
  for (uint32_t i = 0; loss && i < loss->graph->inputs.len; i++) {
    const kva_type *t = loss->graph->inputs.data[i]->type;
    if (!t->rank || !kva_expr_is_const(t->dims[0], &rows) || (all && rows != all)) return 0;
    all = rows;
  }
  return all;
}

/* Rows of a micro-batch and length of sequences are known before compiling: constants give better schedules. Returns
 * the rows of a micro-batch; each: those of a process in a step. */
static int64_t pin_shapes(const train_options *o, const kva_module *m, int64_t each, kva_strings *pins,
                          kva_arena *arena) {
  kva_train_defaults d = defaults_of(m, pins, arena);
  const char *data = kva_train_data(&o->settings, &d);
  int64_t length = data ? kva_data_length(data) : 0, rows = kva_train_pass_rows(&o->settings, &d);
  const char *batch = kva_cli_batch_symbol(m);
  if (!rows) rows = kva_cli_pin_of(pins, batch);
  if (!rows) rows = fixed_rows(m);
  if (!rows) rows = each;
  kva_cli_pin(m, batch, rows, pins, arena);
  kva_cli_pin(m, "T", length ? length : d.length, pins, arena);
  return rows;
}

static kva_strings defines_of(const train_options *o, const variant *v) {
  kva_strings defines = o->defines;
  for (uint32_t i = 0; i < v->defines.n && defines.n < 64; i++) defines.v[defines.n++] = v->defines.v[i];
  return defines;
}

/* ---- watching a run ---------------------------------------------------------------------------------------------- */

static kva_status watch(void *user, const kva_train_event *event, int64_t resumed, kva_diag *diag) {
  const watchers *w = user;
  if (w->board) KVA_TRY(kva_board_add(w->board, event, resumed, diag));
  if (w->samples) KVA_TRY(kva_samples_begin(w->samples, resumed));
  bool due = w->samples && !event->evaluation && event->step % w->every == 0;
  return due ? kva_samples_write(w->samples, event->step) : KVA_OK;
}

/* The model as it is continued, beside the one that trains. -1, or an exit code. */
static int open_samples(train_options *o, const kva_strings *defines, kva_session *trained, kva_diag *diag) {
  const kva_cli_source from = {
      .path = o->model, .defines = defines, .pins = &(kva_strings){0}, .weights = o->tune.weights};
  kva_module *m = NULL;
  if (!o->sample_every || kva_comm_rank(o->settings.comm)) return -1;
  o->samples.threads = o->settings.threads;
  o->samples.seed = o->settings.seed > 0 ? (uint64_t)o->settings.seed : 0;
  int code = kva_cli_load_from(&from, diag, &m);
  if (code >= 0) return code;
  kva_status status = kva_samples_create(m, trained, &o->samples, diag, &o->watchers.samples);
  o->watchers.every = o->sample_every;
  return status == KVA_OK ? -1 : kva_cli_fail(status, diag);
}

/* ---- one variant ------------------------------------------------------------------------------------------------- */

/* Operations are counted on the graph, which a session does not have. Every step of a program is called equally often.
 */
static void add_flops(const kva_compiled *c, kva_train_result *result) {
  if (result->program < 0) return;
  const kva_program *p = &c->artifact->programs[result->program];
  const kva_memory_plan *plan = kva_plan_of_program(c, p);
  for (int t = 0; plan && t < result->n_times; t++) {
    kva_report_time *time = &result->times[t];
    double sum = 0, n = 0;
    for (int32_t i = 0; i < p->n_steps; i++) {
      if (!p->steps[i].origin || strcmp(p->steps[i].origin, time->name)) continue;
      sum += kva_plan_step_flops(c->module, plan, (uint32_t)i);
      n++;
    }
    if (n > 0) time->flops = sum * (double)time->calls / n;
  }
}

/* -1, or an exit code. */
static int train_compiled(kvasir_program *program, train_options *o, const kva_strings *pins, const char *metrics,
                          variant *v, kva_arena *arena, kva_diag *diag) {
  const kva_train_settings *settings = &o->settings;
  const kva_compiled *c = program->compiled;
  kva_train_defaults d = defaults_of(c->module, pins, arena);
  d.ranges = v->ranges;
  kva_session_options options = {.threads = (int)settings->threads,
                                 .seed = settings->seed > 0 ? (uint64_t)settings->seed : 0,
                                 .profile = settings->profile || settings->report,
                                 .comm = settings->comm};
  kva_strings defines = defines_of(o, v);
  kvasir_session *session;
  kva_cli_warn(diag);
  kva_status status = kva_program_session(program, &options, diag, &session);
  if (status != KVA_OK) return kva_cli_fail(status, diag);
  kva_cli_warn(diag);
  int code = open_samples(o, &defines, session->s, diag);
  if (code < 0) {
    if (!settings->json) {
      printf("%-10s ", v->result.name);
      kva_cli_print_compiled(c);
    }
    status = kva_train_session(session->s, settings, &d, metrics, arena, diag, &v->result);
    if (status != KVA_OK) kva_processes_quieten(settings->comm);
    code = status == KVA_OK ? -1 : kva_cli_fail(status, diag);
  }
  add_flops(c, &v->result);
  kva_samples_destroy(o->watchers.samples);
  o->watchers.samples = NULL;
  kvasir_session_destroy(session);
  return code;
}

/* Loads the model, adds a loss and selects the trained parameters. */
static int load(const train_options *o, const kva_strings *defines, const kva_strings *pins, kva_pass_control *control,
                kva_diag *diag, kva_module **out) {
  /* imported models often have a fixed batch of 1; with --loss any batch is allowed */
  bool free_batch = o->tune.loss && o->settings.batch != 1;
  const kva_tune_load how = {defines,           pins, .free_batch = free_batch, .lr = o->settings.lr, .train = true,
                             .control = control};
  int code = kva_cli_load_tuned(o->model, &how, &o->tune, diag, out);
  if (code >= 0 || o->settings.data) return code;
  kva_status status = find_data(*out, o->model, diag);
  return status == KVA_OK ? code : kva_cli_fail(status, diag);
}

/* What a run opens later, before the model is compiled. */
static kva_status check_inputs(const train_options *o, const kva_module *m, const kva_train_defaults *d,
                               kva_arena *arena, kva_diag *diag) {
  const kva_function *loss = kva_module_find_function(m, "loss");
  uint32_t n = loss ? loss->graph->inputs.len : 0;
  const char **names = KVA_NEW_ARRAY(arena, const char *, n + 1);
  for (uint32_t i = 0; i < n; i++) names[i] = loss->graph->inputs.data[i]->name;
  return kva_train_check(&o->settings, d, (int)n, names, diag);
}

static int64_t count_quantised(const kva_module *m) {
  int64_t count = 0;
  for (const kva_node *n = m->functions.data[0]->graph->first; n; n = n->next)
    count += (n->op->traits & KVA_UNPACKS) != 0;
  return count;
}

/* An evaluation trains nothing. */
static void warn_of_quantised(const train_options *o, const kva_module *m, kva_diag *diag) {
  int64_t count = o->settings.steps ? count_quantised(m) : 0;
  if (count)
    kva_warn(diag, &(kva_loc){.file = o->tune.weights ? o->tune.weights : o->model},
             "%lld weights are quantised and do not train, only the others may; start from weights in float",
             (long long)count);
}

/* ---- dry runs ---------------------------------------------------------------------------------------------------- */

/* What is the same for all variants. Returns their number; room for 3 and the -D. */
static int common_config(const train_options *o, kva_report_item *out) {
  int n = 0;
  out[n++] = (kva_report_item){"model", o->model};
  out[n++] = (kva_report_item){"device", o->device.device ? o->device.device : "cpu"};
  out[n++] = (kva_report_item){"precision", o->precision ? o->precision : "f32"};
  for (uint32_t i = 0; i < o->defines.n; i++) out[n++] = (kva_report_item){"-D", o->defines.v[i]};
  return n;
}

static void print_config(int n, const kva_report_item *items) {
  for (int i = 0; i < n; i++) printf("%-22s %s\n", items[i].name, items[i].value);
}

/* The start of an object that the plan ends. */
static void print_config_json(int n, const kva_report_item *items) {
  kva_text text = {0};
  for (int i = 0; i < n; i++) {
    if (!strcmp(items[i].name, "-D")) continue; /* a name of several */
    if (i) kva_text_add(&text, ", ");
    kva_text_add_quoted(&text, items[i].name);
    kva_text_add(&text, ": ");
    kva_text_add_quoted(&text, items[i].value);
  }
  printf("{\"config\": {%s}, \"plan\": ", text.data);
  kva_text_free(&text);
}

/* What a run would be and what it would take; compiles nothing. */
static kva_status describe_run(const train_options *o, kva_module *m, const kva_compile_options *options,
                               const kva_strings *pins, kva_arena *arena, kva_diag *diag) {
  kva_train_defaults d = defaults_of(m, pins, arena);
  kva_report_item *items = KVA_NEW_ARRAY(arena, kva_report_item, o->defines.n + 16);
  const kva_report_item *own;
  int n = common_config(o, items), n_own = kva_train_config(&o->settings, &d, arena, &own);
  memcpy(items + n, own, (size_t)n_own * sizeof *items);
  bool changed = false, json = o->settings.json;
  kva_codegen *cg;
  KVA_TRY(kva_compile_graph(m, options));
  KVA_TRY(kva_run_pass(m, KVA_PASS_plan, &options->passes, &changed));
  KVA_TRY(kva_codegen_create(&options->target, diag, &cg));
  (json ? print_config_json : print_config)(n + n_own, items);
  kva_status status = (json ? kva_print_plans_json : kva_print_plans)(cg, m, stdout);
  if (json) printf("}\n");
  kva_codegen_destroy(cg);
  return status;
}

/* Checks what the run needs besides the model, and fixes its shapes. */
static kva_status prepare(const train_options *o, const kva_module *m, variant *v, kva_strings *pins,
                          kva_compile_options *options, kva_arena *arena, kva_diag *diag) {
  const kva_function *loss = kva_module_find_function(m, "loss");
  kva_train_defaults d = defaults_of(m, pins, arena);
  int64_t each;
  KVA_TRY(kva_train_rows_each(&o->settings, &d, diag, &each));
  if (each > pin_shapes(o, m, each, pins, arena)) options->passes.train = KVA_TRAIN_MICRO_BATCHES;
  d = defaults_of(m, pins, arena);
  v->ranges = loss ? kva_input_ranges(m, loss, arena) : NULL;
  return check_inputs(o, m, &d, arena, diag);
}

/* Compiles a variant. Returns -1 and the program, or an exit code. */
static int compile_variant(const train_options *o, variant *v, kva_arena *arena, kva_diag *diag,
                           kvasir_program **out_program) {
  kva_strings defines = defines_of(o, v), pins = o->pins;
  kva_module *m = NULL;
  kva_pass_choice passes = o->passes;
  kva_compile_options options = {.train = true,
                                 .target = {.opt_level = 2, .cache = kva_user_cache(arena, NULL)},
                                 .passes = {.control = &passes.control,
                                            .adjustable = true,
                                            .check_indices = o->check_indices,
                                            .memory = o->memory,
                                            .mesh = o->mesh}};
  kva_status status = kva_cli_device(&o->device, diag, &options);
  if (status == KVA_OK) status = kva_precision_named(o->precision, diag, &options.passes.compute);
  int code = status == KVA_OK ? load(o, &defines, &pins, NULL, diag, &m) : kva_cli_fail(status, diag);
  if (code < 0) {
    status = prepare(o, m, v, &pins, &options, arena, diag);
    if (status != KVA_OK) code = kva_cli_fail(status, diag);
    kva_module_destroy(m);
    m = NULL;
  }
  if (code < 0) code = load(o, &defines, &pins, &passes.control, diag, &m);
  if (code < 0 && o->dry_run) {
    status = describe_run(o, m, &options, &o->pins, arena, diag);
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
  }
  if (code < 0) {
    if (!o->settings.json) kva_cli_print_trained(m, &o->tune);
    warn_of_quantised(o, m, diag);
    status = kva_program_compile(m, &options, o->device.device, diag, out_program);
    kva_cli_print_passes(&passes);
    m = NULL; /* the program owns it now */
    if (status != KVA_OK) code = kva_cli_fail(status, diag);
  }
  kva_module_destroy(m);
  return code;
}

/* Rank 0 compiles first: what is wrong with the model is said once, and the others find the code on disk. */
static int compile_in_order(const train_options *o, variant *v, kva_arena *arena, kva_diag *diag,
                            kvasir_program **out_program) {
  kva_comm *c = o->settings.comm;
  int32_t code = kva_comm_rank(c) ? 0 : compile_variant(o, v, arena, diag, out_program);
  if (!c) return code;
  kva_status status = kva_comm_broadcast(c, 0, sizeof code, &code);
  if (status != KVA_OK) return kva_cli_fail(kva_fail(diag, status, NULL, "%s", kva_comm_error(c)), diag);
  kva_comm_note_agreed(c, code >= 0);
  return code >= 0 || !kva_comm_rank(c) ? code : compile_variant(o, v, arena, diag, out_program);
}

/* A sum over the graphs of a compiled model. */
static uint64_t model_sum(const kva_module *m) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < m->functions.len; i++) {
    uint64_t graph = kva_graph_hash(m->functions.data[i]->graph);
    sum = kva_hash(sum, &graph, sizeof graph);
  }
  return sum;
}

static int train_variant(train_options *o, variant *v, const char *metrics, kva_arena *arena) {
  kva_diag *diag = kva_diag_create();
  kvasir_program *program = NULL;
  int code = compile_in_order(o, v, arena, diag, &program);
  if (code < 0) {
    o->settings.model = model_sum(program->compiled->module);
    code = train_compiled(program, o, &o->pins, metrics, v, arena, diag);
    if (code < 0) code = EXIT_DONE;
  }
  kvasir_program_destroy(program);
  kva_diag_destroy(diag);
  return code;
}

/* ---- all variants ------------------------------------------------------------------------------------------------ */

/* Up to the next comma that stands in no list. */
static size_t define_length(const char *p) {
  size_t n = 0;
  for (bool list = false; p[n] && (list || p[n] != ','); n++) list = p[n] == '[' || (list && p[n] != ']');
  return n;
}

/* "name:a=1,b=2" */
static void parse_variant(const char *text, kva_arena *arena, variant *v) {
  const char *colon = strchr(text, ':');
  v->result.name = colon ? kva_arena_strndup(arena, text, (size_t)(colon - text)) : text;
  for (const char *p = colon ? colon + 1 : NULL; p && *p && v->defines.n < 64;) {
    size_t len = define_length(p);
    v->defines.v[v->defines.n++] = kva_arena_strndup(arena, p, len);
    p += len + (p[len] == ',');
  }
}

/* A variant that does not load is reported before the first one trains. */
static int check_variant(const train_options *o, const variant *v) {
  kva_diag *diag = kva_diag_create();
  kva_strings defines = defines_of(o, v);
  kva_module *m = NULL;
  int code = load(o, &defines, &o->pins, NULL, diag, &m);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return code < 0 ? EXIT_DONE : code;
}

static const char *metrics_path(const train_options *o, uint32_t i, uint32_t n, kva_arena *arena) {
  const char *path = o->settings.metrics;
  if (!path || n == 1) return path;
  const char *slash = strrchr(path, '/'), *dot = strrchr(slash ? slash : path, '.');
  size_t stem = dot ? (size_t)(dot - path) : strlen(path);
  return kva_arena_printf(arena, "%.*s-%u%s", (int)stem, path, i, dot ? dot : "");
}

static kva_status write_report(const train_options *o, const variant *v, uint32_t n, kva_arena *arena, kva_diag *diag) {
  kva_train_result *results = KVA_NEW_ARRAY(arena, kva_train_result, n);
  kva_report_item *config = KVA_NEW_ARRAY(arena, kva_report_item, o->defines.n + 3);
  int k = common_config(o, config);
  for (uint32_t i = 0; i < n; i++) results[i] = v[i].result;
  return kva_train_write_report(o->settings.report, (int)n, results, k, config, arena, diag);
}

/* Trains with event files in `folder`, if it is not NULL. */
static int train_watched(train_options *o, const char *folder, variant *v, const char *metrics, kva_arena *arena) {
  if (folder && !(o->watchers.board = kva_board_create(folder))) return kva_cli_fail(KVA_NO_MEMORY, NULL);
  o->settings.observe = watch;
  o->settings.observer = &o->watchers;
  int code = train_variant(o, v, metrics, arena);
  kva_board_destroy(o->watchers.board);
  return code;
}

static int train_all(train_options *o) {
  kva_arena *arena = kva_arena_create();
  kva_train_take_sources(&o->settings, arena);
  kva_diag *diag = kva_diag_create();
  uint32_t n = o->variants.n ? o->variants.n : 1;
  variant *v = KVA_NEW_ARRAY(arena, variant, n);
  int code = EXIT_DONE;
  for (uint32_t i = 0; i < n && code == EXIT_DONE; i++) {
    parse_variant(o->variants.n ? o->variants.v[i] : "train", arena, &v[i]);
    if (i > 0) code = check_variant(o, &v[i]);
  }
  for (uint32_t i = 0; i < n && code == EXIT_DONE; i++) {
    train_options own = *o;
    if (o->settings.checkpoint && n > 1)
      own.settings.checkpoint = kva_arena_printf(arena, "%s-%u", o->settings.checkpoint, i);
    if (o->samples.file && n > 1) own.samples.file = kva_arena_printf(arena, "%s-%u", o->samples.file, i);
    const char *board = o->board && n > 1 ? kva_arena_printf(arena, "%s-%u", o->board, i) : o->board;
    code =
        kva_train_stopped() ? EXIT_INTERRUPTED : train_watched(&own, board, &v[i], metrics_path(o, i, n, arena), arena);
  }
  if (o->settings.report && v[0].result.history && !kva_comm_rank(o->settings.comm)) {
    uint32_t done = 0;
    while (done < n && v[done].result.history) done++;
    kva_status status = write_report(o, v, done, arena, diag);
    if (status != KVA_OK)
      code = kva_cli_fail(status, diag);
    else if (!o->settings.json)
      printf("report: %s\n", o->settings.report);
  }
  for (uint32_t i = 0; i < n; i++) kva_history_destroy(v[i].result.history);
  kva_diag_destroy(diag);
  kva_arena_destroy(arena);
  return code;
}

static int usage_error(const char *what) {
  fprintf(stderr, "kvasir train: %s\nTry: kvasir train --help\n", what);
  return EXIT_USAGE;
}

/* The report comes last, when the work is done. */
static int check_report(const char *path) {
  kva_diag *diag = kva_diag_create();
  kva_status status = path ? kva_file_prepare(path, diag) : KVA_OK;
  int code = status == KVA_OK ? -1 : kva_cli_fail(status, diag);
  kva_diag_destroy(diag);
  return code;
}

static bool replaces_input(const train_options *o) {
  const struct {
    const char *option, *path;
  } outputs[] = {{"--metrics", o->settings.metrics}, {"--report", o->settings.report}, {"--samples", o->samples.file}};
  const char *inputs[4] = {o->model, o->tune.weights, o->samples.tokenizer};
  bool replaces = false;
  kva_arena *arena = kva_arena_create();
  kva_train_settings all = o->settings;
  kva_train_take_sources(&all, arena);
  for (size_t i = 0; !replaces && i < sizeof outputs / sizeof *outputs; i++) {
    inputs[3] = kva_train_reads(&all, all.data, outputs[i].path, arena);
    replaces = kva_cli_replaces_input("train", outputs[i].option, outputs[i].path, 4, inputs);
  }
  kva_arena_destroy(arena);
  return replaces;
}

/* The processes of the mesh. */
static int join(train_options *o) {
  kva_diag *diag = kva_diag_create();
  const kva_comm_mesh axes = {.data = (int)kva_mesh_extent(o->mesh.data),
                              .pipeline = (int)kva_mesh_extent(o->mesh.pipeline),
                              .sequence = (int)kva_mesh_extent(o->mesh.sequence),
                              .tensor = (int)kva_mesh_extent(o->mesh.tensor)};
  kva_status status = kva_processes_join(&axes, o->settings.rank_logs, diag, &o->settings.comm);
  if (status != KVA_OK) kva_processes_quieten(o->settings.comm);
  int code = status == KVA_OK ? -1 : kva_cli_fail(status, diag);
  if (status == KVA_OK) kva_cli_warn(diag);
  if (code >= 0) kva_comm_destroy(o->settings.comm, code);
  kva_diag_destroy(diag);
  return code;
}

static int run(int argc, char **argv) {
  train_options o = {.check_indices = KVA_CLI_CHECK_INDICES, .settings = KVA_TRAIN_SETTINGS, .tune = KVA_TUNE_NOTHING};
  const kva_option options[] = {
      KVA_TRAIN_OPTIONS(&o.settings),
      {"--tensorboard", NULL, "DIR", KVA_OPTION_STRING, &o.board, "write event files for TensorBoard into this folder"},
      {"--sample-every", NULL, "N", KVA_OPTION_COUNT, &o.sample_every,
       "every N steps, continue a prompt with what the language model has learned"},
      {"--sample-prompt", NULL, "TEXT", KVA_OPTION_STRING, &o.samples.prompt, "the prompt (a new line)"},
      {"--samples", NULL, "FILE", KVA_OPTION_STRING, &o.samples.file,
       "write these texts there, as JSON lines (standard output)"},
      {"--tokenizer", NULL, "FILE", KVA_OPTION_STRING, &o.samples.tokenizer,
       "a tokenizer.json, for these texts (tokens are bytes)"},
      {"--variant", NULL, "NAME[:D,...]", KVA_OPTION_LIST, &o.variants,
       "a run with its own -D settings; may be given often; --metrics gets FILE-0, ..., --checkpoint DIR-0, ..."},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &o.pins, "fix a shape symbol"},
      {"--precision", NULL, KVA_PRECISIONS, KVA_OPTION_WORD, &o.precision,
       "products in it, parameters and sums in f32 (f32)"},
      {"--train", NULL, "PATTERN", KVA_OPTION_LIST, &o.tune.train,
       "train what matches, freeze the rest; may be given often"},
      KVA_TUNE_OPTIONS(&o.tune),
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &o.tune.weights,
       "start from these: a safetensors file or checkpoint"},
      {"--dry-run", NULL, NULL, KVA_OPTION_FLAG, &o.dry_run,
       "print the configuration and the plan of a step, and train nothing; --json: as one object"},
      KVA_CHECK_INDICES_OPTION(&o.check_indices),
      KVA_MEMORY_OPTION(&o.memory),
      KVA_MESH_OPTION(&o.mesh_text),
      KVA_PASS_OPTIONS(&o.passes),
      KVA_DEVICE_OPTIONS(&o.device),
  };
  int n, code = kva_cli_parse(&kva_verb_train, argc, argv, options, sizeof options / sizeof *options, &o.model, 1, &n);
  if (code >= 0) return code;
  if (n == 0) return usage_error("a model is missing");
  if (kva_train_misused(&o.settings)) return usage_error(kva_train_misused(&o.settings));
  if ((code = kva_cli_passes(&kva_verb_train, &o.passes)) >= 0) return code;
  if ((code = kva_cli_check_tune(&o.tune)) >= 0) return code;
  if (!o.sample_every && (o.samples.prompt || o.samples.file || o.samples.tokenizer))
    return usage_error("--sample-prompt, --samples and --tokenizer are for --sample-every N");
  if (kva_exe_same_output(o.samples.file, o.settings.metrics) || kva_exe_same_output(o.samples.file, o.settings.report))
    return usage_error("--samples names the file of --metrics or --report; give each its own");
  if (!o.samples.prompt) o.samples.prompt = "\n";
  if (o.variants.n > 1 && o.settings.resume && *o.settings.resume)
    return usage_error("--resume=PATH is for a single run; --resume continues each variant from its own checkpoints");
  if (o.settings.weight_decay > 0) o.tune.weight_decay = o.settings.weight_decay;
  if (o.settings.clip > 0) o.tune.clip = o.settings.clip;
  if (replaces_input(&o)) return EXIT_USAGE;
  if ((code = check_report(o.settings.report)) >= 0) return code;
  if ((code = kva_cli_mesh(o.mesh_text, &o.mesh)) >= 0 || (code = join(&o)) >= 0) return code;
  if (kva_train_misused(&o.settings)) code = usage_error(kva_train_misused(&o.settings));
  if (o.sample_every && o.mesh.pipeline > 1)
    code = usage_error("--sample-every continues texts in one process, and none has all stages of a pipeline");
  kva_train_catch_signals();
  if (code < 0) code = train_all(&o);
  kva_comm_destroy(o.settings.comm, code);
  return code;
}
