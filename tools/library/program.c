/* Programs: compiled models, shared by their sessions. */
#include "passes/tune.h"
#include "tools/driver/ranges.h"
#include "tools/library/tune.h"
#include "runtime/exe/train.h"
#include "runtime/formula.h"
#include "runtime/session.h"

#include <stdlib.h>

/* ---- compiling --------------------------------------------------------------------------------------------------- */

static kva_status compile(kvasir_program *p, kva_module *m, const kva_compile_options *options, const char *device,
                          kva_diag *diag) {
  p->arena = kva_arena_create();
  p->device = device ? kva_arena_strdup(p->arena, device) : NULL;
  return kva_compile(m, options, diag, &p->compiled);
}

kva_status kva_program_compile(kva_module *m, const kva_compile_options *options, const char *device, kva_diag *diag,
                               kvasir_program **out_program) {
  *out_program = NULL;
  kvasir_program *p = calloc(1, sizeof *p);
  if (!p) {
    kva_module_destroy(m);
    return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for a program");
  }
  atomic_init(&p->references, 1);
  kva_status status = compile(p, m, options, device, diag);
  if (status == KVA_OK)
    *out_program = p;
  else
    kvasir_program_destroy(p);
  return status;
}

/* The last owner frees it, whichever thread that is. */
void kvasir_program_destroy(kvasir_program *p) {
  if (!p || atomic_fetch_sub(&p->references, 1) > 1) return;
  kva_compiled_destroy(p->compiled);
  kva_arena_destroy(p->arena);
  free(p);
}

/* ---- training programs ------------------------------------------------------------------------------------------- */

static void port_of_buffer(const kva_program *p, const kva_buffer_desc *b, kva_arena *arena, kvasir_port *out) {
  *out = (kvasir_port){.name = kva_arena_strdup(arena, b->name), .type = b->dtype, .rank = b->rank};
  for (int32_t d = 0; d < b->rank; d++) {
    const kva_formula *f = &b->dims[d];
    if (f->n == 1 && f->words[0].op == KVA_FORMULA_CONST) {
      out->dims[d] = f->words[0].arg;
      continue;
    }
    kva_text text = {0};
    kva_formula_print(f, p->symbols, &text);
    out->dims[d] = -1;
    out->symbols[d] = kva_arena_strdup(arena, text.data);
    kva_text_free(&text);
  }
}

static const kva_program *find_program(const kva_artifact *a, const char *name) {
  for (int32_t i = 0; i < kva_artifact_programs(a); i++)
    if (!strcmp(a->programs[i].name, name)) return &a->programs[i];
  return NULL;
}

/* The caller decides on the number of steps; a schedule that ends and names no end has that of the train block. */
static kva_status find_schedule(const kva_train_spec *spec, kva_diag *diag, kva_schedule *out) {
  kva_train_settings settings = KVA_TRAIN_SETTINGS;
  settings.steps = spec->steps > 0 ? spec->steps : 1;
  const kva_train_defaults d = {.schedule = spec->schedule,
                                .lr = spec->lr,
                                .final_ratio = spec->final_lr_ratio,
                                .steps = spec->steps,
                                .batch = spec->batch,
                                .warmup = spec->warmup_steps,
                                .total = spec->total_steps};
  kva_train_options options;
  KVA_TRY(kva_train_make_options(&settings, &d, diag, &options));
  *out = options.schedule;
  return KVA_OK;
}

/* Checks a training program's inputs and outputs and fills in what kvasir.h says of them. */
static kva_status describe_training(kvasir_program *p, kva_diag *diag) {
  const kva_program *step = find_program(p->compiled->artifact, "train_step");
  KVA_ASSERT(step && step->n_inputs > 0 && kva_loss_output(step) == 0);
  p->n_inputs = (size_t)step->n_inputs - 1; /* the last one is the rate */
  p->inputs = KVA_NEW_ARRAY(p->arena, kvasir_port, p->n_inputs + 1);
  for (size_t i = 0; i < p->n_inputs; i++)
    port_of_buffer(step, &step->buffers[step->inputs[i]], p->arena, &p->inputs[i]);
  p->n_values = (size_t)step->n_outputs;
  p->values = KVA_NEW_ARRAY(p->arena, const char *, p->n_values + 1);
  for (size_t i = 0; i < p->n_values; i++) {
    const kva_buffer_desc *b = &step->buffers[step->outputs[i]];
    p->values[i] = b->name ? b->name : "";
  }
  return find_schedule(p->compiled->module->train, diag, &p->schedule);
}

/* ---- kvasir.h ---------------------------------------------------------------------------------------------------- */

typedef struct compile_job {
  kvasir_model *model;
  const kvasir_compile_options *options;
  const kvasir_training *training; /* NULL: inference */
  kvasir_program **out;
  kva_arena *arena;
} compile_job;

static kva_status choose(const kvasir_compile_options *o, kva_arena *arena, kva_diag *diag, kva_compile_options *out) {
  bool gpu = o->target && !strncmp(o->target, "sm_", 3);
  bool on_cpu = !o->device || !strcmp(o->device, "cpu");
  out->target = kva_target_named(on_cpu ? o->target : NULL);
  if (on_cpu && gpu) return kva_error(diag, NULL, "target %s is a GPU, and the device is a CPU", o->target);
  if (!on_cpu && o->target && !gpu)
    return kva_error(diag, NULL, "device %s: target must be a GPU such as sm_80, found '%s'", o->device, o->target);
  KVA_TRY(kva_math_named(o->math, diag, &out->target));
  KVA_TRY(kva_choose_target(o->device, gpu ? o->target : NULL, o->gemm, diag, &out->target));
  bool off = o->cache && !strcmp(o->cache, "off");
  out->target.cache = off ? NULL : o->cache ? kva_cache_in(arena, o->cache) : kva_user_cache(arena, NULL);
  out->passes.check_indices = o->check_indices != 0;
  return kva_precision_named(o->precision, diag, &out->passes.compute);
}

static kva_status tune(const compile_job *j, kva_module *m, kva_diag *diag) {
  kva_tune_choice choice;
  KVA_TRY(kva_tune_choice_of(j->training, diag, &choice));
  KVA_TRY(kva_tune_module(m, &choice, 0, NULL, diag));
  if (m->train) return KVA_OK;
  return kva_error(diag, NULL, "the model has no train block, so there is nothing to train it by; choose a loss");
}

/* Of the values of the data inputs; compiling takes the module. */
static const kva_data_range *ranges_of(const kva_module *m, kva_arena *arena, uint32_t *out_n) {
  const kva_function *loss = kva_module_find_function(m, "loss");
  KVA_ASSERT(loss);
  *out_n = loss->graph->inputs.len;
  return kva_input_ranges(m, loss, arena);
}

static kva_status compile_with(const compile_job *j, kva_diag *diag) {
  static const kvasir_compile_options defaults;
  kva_compile_options options = {.train = j->training != NULL};
  kva_module *m;
  KVA_TRY(choose(j->options ? j->options : &defaults, j->arena, diag, &options));
  KVA_TRY(kva_model_take(j->model, diag, &m));
  kva_status status = j->training ? tune(j, m, diag) : KVA_OK;
  if (status != KVA_OK) {
    kva_module_destroy(m);
    return status;
  }
  uint32_t n = 0;
  const kva_data_range *ranges = j->training ? ranges_of(m, j->arena, &n) : NULL;
  KVA_TRY(kva_program_compile(m, &options, j->options ? j->options->device : NULL, diag, j->out));
  if (!j->training) return KVA_OK;
  (*j->out)->ranges = kva_arena_memdup((*j->out)->arena, ranges, n * sizeof *ranges);
  status = describe_training(*j->out, diag);
  if (status == KVA_OK) return KVA_OK;
  kvasir_program_destroy(*j->out);
  *j->out = NULL;
  return status;
}

static kva_status compile_model(void *job, kva_diag *diag) {
  compile_job *j = job;
  if (!j->model) return kva_error(diag, NULL, "the model is a null pointer");
  j->arena = kva_arena_create();
  kva_status status = compile_with(j, diag);
  kva_arena_destroy(j->arena);
  return status;
}

kvasir_status kvasir_compile(kvasir_model *model, const kvasir_compile_options *options, kvasir_program **out_program,
                             kvasir_messages **out_messages) {
  if (!out_program) return kva_library_no_place(out_messages);
  *out_program = NULL;
  compile_job j = {.model = model, .options = options, .out = out_program};
  return kva_library_call(compile_model, &j, out_messages);
}

kvasir_status kvasir_compile_training(kvasir_model *model, const kvasir_compile_options *options,
                                      const kvasir_training *training, kvasir_program **out_program,
                                      kvasir_messages **out_messages) {
  static const kvasir_training defaults;
  if (!out_program) return kva_library_no_place(out_messages);
  *out_program = NULL;
  compile_job j = {model, options, training ? training : &defaults, out_program, NULL};
  return kva_library_call(compile_model, &j, out_messages);
}

size_t kvasir_program_train_input_count(const kvasir_program *p) {
  return p ? p->n_inputs : 0;
}

const kvasir_port *kvasir_program_train_input(const kvasir_program *p, size_t i) {
  return i < kvasir_program_train_input_count(p) ? &p->inputs[i] : NULL;
}

size_t kvasir_program_value_count(const kvasir_program *p) {
  return p ? p->n_values : 0;
}

const char *kvasir_program_value_name(const kvasir_program *p, size_t i) {
  return i < kvasir_program_value_count(p) ? p->values[i] : NULL;
}

double kvasir_program_rate(const kvasir_program *p, int64_t step) {
  return kvasir_program_value_count(p) ? kva_schedule_at(&p->schedule, step) : 0;
}
