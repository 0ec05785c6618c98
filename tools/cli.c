/* Model loading and device selection, shared by the verbs. */
#include "tools/cli.h"
#include "passes/tune.h"
#include "runtime/base/platform.h"
#include "runtime/exe/exe.h"
#include "runtime/shards.h"
#include "tools/checkpoint/checkpoint.h"
#include "tools/driver/opt.h"
#include "tools/driver/trained.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

int kva_cli_parse(const kva_verb *verb, int argc, char **argv, const kva_option *options, uint32_t n_options,
                  const char **positional, int max_positional, int *n_positional) {
  char program[32];
  snprintf(program, sizeof program, "kvasir %s", verb->name);
  const kva_usage usage = {program, verb->arguments, verb->summary, verb->details};
  return kva_options_parse(&usage, argc, argv, options, n_options, positional, max_positional, n_positional);
}

/* Splits "name=value" options into defines; the last value of a name applies. false (message printed) if there is no
 * '='. */
static bool split_defines(const kva_strings *list, const char *option, kva_arena *arena, uint32_t *out_n,
                          const kva_define **out_defines) {
  kva_define *d = KVA_NEW_ARRAY(arena, kva_define, list->n + 1);
  *out_n = 0;
  for (uint32_t i = 0; i < list->n; i++) {
    const char *equals = strchr(list->v[i], '=');
    if (!equals || equals == list->v[i]) {
      fprintf(stderr, "kvasir: %s needs name=value, found '%s'\n", option, list->v[i]);
      return false;
    }
    const char *name = kva_arena_strndup(arena, list->v[i], (size_t)(equals - list->v[i]));
    uint32_t k = 0;
    while (k < *out_n && strcmp(d[k].name, name) != 0) k++;
    d[k] = (kva_define){name, equals + 1};
    *out_n += k == *out_n;
  }
  *out_defines = d;
  return true;
}

int kva_cli_passes(const kva_verb *verb, kva_pass_choice *c) {
  const char *const names[] = {c->control.print_after, c->control.stop_after};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    if (!names[i] || (i == 0 && !strcmp(names[i], "all")) || kva_pass_exists(names[i])) continue;
    fprintf(stderr, "kvasir %s: no pass is called '%s'; kvasir opt --list names them\n", verb->name, names[i]);
    return EXIT_USAGE;
  }
  if (!c->bisect_limit) return -1;
  char *end;
  c->control.bisect = true;
  c->control.max_changes = strtoll(c->bisect_limit, &end, 10);
  if (*c->bisect_limit && !*end && c->control.max_changes >= 0) return -1;
  fprintf(stderr, "kvasir %s: --bisect-limit: expected a number of changes, found '%s'\n", verb->name, c->bisect_limit);
  return EXIT_USAGE;
}

void kva_cli_print_passes(const kva_pass_choice *c) {
  if (c->timing) kva_pass_print_timing(&c->control, stderr);
}

int kva_cli_mesh(const char *text, kva_mesh *out) {
  kva_diag *diag = kva_diag_create();
  bool ok = kva_mesh_named(text, diag, out) == KVA_OK;
  kva_diag_print(diag, stderr);
  kva_diag_destroy(diag);
  return ok ? -1 : EXIT_USAGE;
}

kva_status kva_cli_target(const kva_device_choice *choice, kva_diag *diag, kva_target_options *target) {
  KVA_TRY(kva_math_named(choice->math, diag, target));
  return kva_choose_target(choice->device, choice->target, choice->gemm, diag, target);
}

kva_status kva_cli_device(const kva_device_choice *choice, kva_diag *diag, kva_compile_options *options) {
  KVA_TRY(kva_cli_target(choice, diag, &options->target));
  return kva_choose_room(choice->device, diag, &options->room);
}

void kva_cli_print_compiled(const kva_compiled *c) {
  printf("compiled in %.2f s (passes %.2f, code %.2f%s), %d kernels\n", c->pass_seconds + c->codegen_seconds,
         c->pass_seconds, c->codegen_seconds, c->cached ? " from the cache" : "", c->artifact->n_kernels);
}

int kva_cli_fail(kva_status status, const kva_diag *diag) {
  return kva_exit_code("kvasir", status, diag);
}

/* kva_file_unfinished of what this process writes. */
static const char *unfinished;

static void remove_and_end(int number) {
  unlink(unfinished);
  signal(number, SIG_DFL);
  raise(number);
}

void kva_cli_clean_at_signal(const char *output) {
  static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
  unfinished = kva_file_unfinished(output);
  for (size_t i = 0; unfinished && i < sizeof numbers / sizeof *numbers; i++)
    if (signal(numbers[i], remove_and_end) == SIG_IGN) signal(numbers[i], SIG_IGN); /* as nohup wants it */
}

bool kva_cli_replaces_input(const char *verb, const char *option, const char *output, int n,
                            const char *const *inputs) {
  for (int i = 0; output && i < n; i++) {
    if (!inputs[i] || !kva_exe_same_file(inputs[i], output)) continue;
    fprintf(stderr, "kvasir %s: %s %s would replace %s, which is read; write elsewhere\n", verb, option, output,
            inputs[i]);
    return true;
  }
  return false;
}

bool kva_cli_replaces_named(const char *verb, const char *option, const char *output, const kva_strings *inputs) {
  for (uint32_t i = 0; i < inputs->n; i++) {
    const char *equals = strchr(inputs->v[i], '='), *files[] = {inputs->v[i], equals ? equals + 1 : NULL};
    if (kva_cli_replaces_input(verb, option, output, 2, files)) return true;
  }
  return false;
}

int kva_cli_load(const char *path, const kva_strings *defines, const kva_strings *pins, kva_diag *diag,
                 kva_module **out_module) {
  return kva_cli_load_from(&(kva_cli_source){.path = path, .defines = defines, .pins = pins}, diag, out_module);
}

void kva_cli_warn(kva_diag *diag) {
  kva_diag_print(diag, stderr);
  kva_diag_clear(diag);
}

/* A checkpoint of another program, as the weights or in the place of a model. */
static kva_status load_foreign(const kva_model_source *source, const char *checkpoint, bool packed, kva_diag *diag,
                               kva_module **out_module) {
  kva_foreign *f;
  KVA_TRY(kva_foreign_open(checkpoint, diag, &f));
  const char *model = checkpoint == source->path ? NULL : source->path;
  kva_status status = kva_foreign_load(model, f, &source->load, packed, diag, out_module);
  kva_foreign_close(f);
  return status;
}

/* The checkpoint is the model; its values give way to those of `weights`, if there are some. */
static kva_status load_in_place(const kva_model_source *source, bool packed, kva_diag *diag, kva_module **out_module) {
  KVA_TRY(load_foreign(source, source->path, packed && !source->weights, diag, out_module));
  kva_status status = source->weights ? kva_load_weights(*out_module, source->weights, diag) : KVA_OK;
  if (status == KVA_OK) return KVA_OK;
  kva_module_destroy(*out_module);
  *out_module = NULL;
  return status;
}

static kva_status load(const kva_model_source *source, bool packed, kva_diag *diag, kva_module **out_module) {
  if (source->weights && kva_foreign_is(source->weights) && kva_foreign_is(source->path))
    return kva_error(diag, &(kva_loc){.file = source->path},
                     "is a checkpoint of another program, and so is %s: give one of them", source->weights);
  if (source->weights && kva_foreign_is(source->weights))
    return load_foreign(source, source->weights, packed, diag, out_module);
  if (!source->weights && kva_shards_is(source->path))
    return kva_error(diag, &(kva_loc){.file = source->path},
                     "is a checkpoint, which has no model in it; give the model, and this folder by --weights");
  if (kva_foreign_is(source->path)) return load_in_place(source, packed, diag, out_module);
  kvasir_model *model;
  KVA_TRY(kva_model_open(source, diag, &model));
  kva_status status = kva_model_take(model, diag, out_module);
  kvasir_model_destroy(model);
  return status;
}

static void print_loaded(kva_status status, kva_diag *diag) {
  if (status == KVA_OK)
    kva_cli_warn(diag);
  else
    (void)kva_cli_fail(status, diag);
  kva_diag_clear(diag);
}

int kva_cli_load_from(const kva_cli_source *from, kva_diag *diag, kva_module **out_module) {
  kva_arena *arena = kva_arena_create();
  kva_model_source source = {.path = from->path,
                             .weights = from->weights,
                             .load.free_batch = from->free_batch,
                             .load.inference = from->inference,
                             .load.language = from->language};
  int code = EXIT_USAGE;
  if (split_defines(from->defines, "-D", arena, &source.load.n_defines, &source.load.defines) &&
      split_defines(from->pins, "--pin", arena, &source.load.n_pins, &source.load.pins)) {
    kva_status status = load(&source, from->packed, diag, out_module);
    if (status == KVA_OK && from->fixed) status = kva_set_constants(*out_module);
    code = status == KVA_OK ? -1 : kva_status_exit_code(status);
    if (!from->keep_messages) print_loaded(status, diag);
  }
  kva_arena_destroy(arena);
  return code;
}

kva_status kva_cli_read_proto(const char *path, kva_diag *diag, kva_tensor *out) {
  kva_ref_tensor *w = NULL;
  KVA_TRY(kva_read_tensor_proto(path, diag, &w));
  *out = (kva_tensor){.dtype = w->dtype, .rank = (int32_t)w->rank};
  memcpy(out->dims, w->dims, sizeof *w->dims * w->rank);
  int64_t bytes = kva_tensor_bytes(out);
  out->data = bytes < 0 ? NULL : malloc((size_t)bytes + 1);
  if (out->data) kva_ref_tensor_to_data(w, out->data);
  kva_ref_tensor_free(w);
  return out->data ? KVA_OK : kva_fail(diag, KVA_NO_MEMORY, &(kva_loc){.file = path}, "no memory for the tensor");
}

kva_status kva_cli_write_proto(const char *path, const char *name, const kva_tensor *t, kva_diag *diag) {
  const kva_tensor_data data = {
      .dtype = t->dtype, .rank = (uint32_t)t->rank, .dims = t->dims, .data = t->data, .bytes = kva_tensor_bytes(t)};
  return kva_write_tensor_proto(path, name, &data, diag);
}

int64_t kva_cli_pin_of(const kva_strings *pins, const char *symbol) {
  size_t len = strlen(symbol);
  for (uint32_t i = pins->n; i-- > 0;)
    if (!strncmp(pins->v[i], symbol, len) && pins->v[i][len] == '=') return strtoll(pins->v[i] + len + 1, NULL, 10);
  return 0;
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

const char *kva_cli_batch_symbol(const kva_module *m) {
  const kva_function *loss = kva_module_find_function(m, "loss");
  const char *batch = NULL;
  for (uint32_t i = 0; loss && i < loss->graph->inputs.len; i++) {
    const kva_type *t = loss->graph->inputs.data[i]->type;
    if (!t->rank || t->dims[0]->kind != KVA_EXPR_SYMBOL) return "B";
    if (batch && strcmp(batch, t->dims[0]->name) != 0) return "B";
    batch = t->dims[0]->name;
  }
  return batch && !has_symbol(m, "B") ? batch : "B";
}

int64_t kva_cli_length_of(const kva_train_spec *spec) {
  const double *length = spec->data_args ? kva_map_get_str(spec->data_args, "length") : NULL;
  return length ? (int64_t)*length : spec->data ? kva_data_length(spec->data) : 0;
}

void kva_cli_pin(const kva_module *m, const char *symbol, int64_t value, kva_strings *pins, kva_arena *arena) {
  if (value > 0 && has_symbol(m, symbol) && !kva_cli_pin_of(pins, symbol) && pins->n < 64)
    pins->v[pins->n++] = kva_arena_printf(arena, "%s=%lld", symbol, (long long)value);
}
