/* kvasir profile: where the time of a program goes, step by step. */
#include "tools/tune.h"
#include "runtime/exe/exe.h"
#include "runtime/exe/files.h"
#include "tools/driver/summary.h"
#include "tools/profile/profile.h"

#include <stdlib.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_profile = {
    "profile", "MODEL [options]", "time every step, beside what the machine can do",
    "Runs a model (with --train: a training step, at a rate of 0) several times and takes the median of every step. "
    "Prints "
    "the\n"
    "steps that take longest: time, floating-point operations and bytes a second, and what share they are of what "
    "this\n"
    "machine's CPU reaches with multiply-adds in registers and with reading memory. Operations are those of matrix\n"
    "products, convolutions and attention; bytes are all arguments once. What lies in caches exceeds 100 % of "
    "reading.\n"
    "Steps that a loop or a branch runs have rows of their own, with all of their calls.\n"
    "Inputs are as of run.\n\n"
    "Examples:\n"
    "  kvasir profile model.onnx --input x=x.npy\n"
    "  kvasir profile model.onnx --train='*' --loss cross_entropy --pin B=8\n"
    "  kvasir profile models/lm.kv -D preset=small --train --pin B=4 --pin T=128 --output profile.html",
    run};

typedef struct profile_options {
  kva_strings inputs, defines, pins;
  const char *page, *trace, *precision, *model;
  int64_t threads, seed, repeat, top, memory;
  bool train, json;
  kva_tune_choice tune; /* with the value of --weights */
  kva_pass_choice passes;
  kva_device_choice device;
} profile_options;

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* The plan of a step's program, below that of the program that was run. */
static const kva_memory_plan *plan_of(const kva_profile *p, const kva_profile_step *step, kva_session *s,
                                      const kva_memory_plan *whole) {
  if (step->outer < 0) return whole;
  const kva_profile_step *outer = &p->steps[step->outer];
  const kva_memory_plan *plan = plan_of(p, outer, s, whole);
  int32_t inner[2] = {-1, -1};
  kva_step_programs(&kva_session_program_desc(s, outer->program)->steps[outer->step], inner);
  return plan->steps.data[outer->step].programs[inner[0] == step->program ? 0 : 1];
}

/* Operations are counted on the graph, for sizes that the compiler knows; those of a loop at the steps that it runs. */
static void add_flops(const kva_compiled *c, const kva_program *p, kva_session *s, kva_profile *profile) {
  const kva_memory_plan *whole = p->n_symbols ? NULL : kva_plan_of_program(c, p);
  for (int i = 0; whole && i < profile->n; i++) {
    kva_profile_step *step = &profile->steps[i];
    const kva_memory_plan *plan = plan_of(profile, step, s, whole);
    bool runs_others = plan->steps.data[step->step].programs[0] != NULL;
    if (!runs_others) step->flops = (double)step->calls * kva_plan_step_flops(c->module, plan, (uint32_t)step->step);
  }
}

/* The rate of a training step: parameters do not move, however often it runs. */
static void zero_rate(const kva_program *p, const kva_tensor *in) {
  for (int32_t i = 0; i < p->n_inputs; i++)
    if (!strcmp(p->buffers[p->inputs[i]].name, "lr")) memset(in[i].data, 0, (size_t)kva_tensor_bytes(&in[i]));
}

static kva_status measure(kva_session *s, int program, const profile_options *o, kva_arena *arena, kva_diag *diag,
                          kva_profile *out) {
  const kva_program *p = kva_session_program_desc(s, program);
  const kva_run_request request = {.files = &o->inputs, .seed = (uint64_t)o->seed, .read_proto = kva_cli_read_proto};
  kva_tensor *in = KVA_NEW_ARRAY(arena, kva_tensor, p->n_inputs + 1);
  kva_tensor *results = KVA_NEW_ARRAY(arena, kva_tensor, p->n_outputs + 1);
  kva_status status = kva_run_inputs(p, &request, diag, in);
  if (status == KVA_OK && o->train) zero_rate(p, in);
  if (status == KVA_OK) status = kva_profile_run(s, program, o->repeat, in, results, arena, diag, out);
  for (int32_t i = 0; i < p->n_inputs; i++) free(in[i].data);
  return status;
}

static kva_status write_files(const profile_options *o, const kva_profile *p, kva_diag *diag) {
  if (o->json)
    kva_profile_print_json(p, stdout);
  else
    kva_profile_print(p, (int)o->top, stdout);
  if (o->trace) KVA_TRY(kva_profile_write_trace(p, o->trace, diag));
  return o->page ? kva_profile_write_page(p, o->page, diag) : KVA_OK;
}

static kva_status profile_program(kvasir_program *program, const profile_options *o, kva_arena *arena, kva_diag *diag) {
  const kva_session_options options = {
      .threads = (int)o->threads, .seed = (uint64_t)o->seed, .borrow_states = true, .profile = true};
  bool cpu = !o->device.device || !strcmp(o->device.device, "cpu");
  kva_profile p = {.model = o->model, .device = cpu ? "cpu" : o->device.device};
  kvasir_session *session;
  if (cpu) KVA_TRY(kva_peaks_measure((int)o->threads, diag, &p.peaks));
  KVA_TRY(kva_program_session(program, &options, diag, &session));
  kva_cli_warn(diag);
  int number = o->train ? kva_session_program(session->s, "train_step") : 0;
  kva_status status = measure(session->s, number, o, arena, diag, &p);
  if (status == KVA_OK) add_flops(program->compiled, kva_session_program_desc(session->s, number), session->s, &p);
  if (status == KVA_OK) status = write_files(o, &p, diag);
  kvasir_session_destroy(session);
  return status;
}

/* ---- the command line -------------------------------------------------------------------------------------------- */

static int load(profile_options *o, kva_diag *diag, kva_module **out) {
  const kva_cli_source from = {.path = o->model,
                               .defines = &o->defines,
                               .pins = &o->pins,
                               .weights = o->tune.weights,
                               .packed = true,
                               .fixed = true};
  const kva_tune_load how = {&o->defines, &o->pins, .free_batch = o->tune.loss, .train = true,
                             .control = &o->passes.control};
  return o->train ? kva_cli_load_tuned(o->model, &how, &o->tune, diag, out) : kva_cli_load_from(&from, diag, out);
}

static int load_and_profile(profile_options *o, kva_arena *arena, kva_diag *diag) {
  kva_compile_options options = {.train = o->train,
                                 .target = {.opt_level = 2, .cache = kva_user_cache(arena, NULL)},
                                 .passes = {.control = &o->passes.control, .memory = o->memory}};
  kva_module *m = NULL;
  kvasir_program *program = NULL;
  kva_status status = kva_cli_device(&o->device, diag, &options);
  if (status == KVA_OK) status = kva_precision_named(o->precision, diag, &options.passes.compute);
  int code = status == KVA_OK ? load(o, diag, &m) : kva_cli_fail(status, diag);
  if (code >= 0) return code;
  status = kva_program_compile(m, &options, o->device.device, diag, &program);
  kva_cli_warn(diag);
  kva_cli_print_passes(&o->passes);
  if (status == KVA_OK) status = profile_program(program, o, arena, diag);
  kvasir_program_destroy(program);
  return status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
}

static bool replaces_input(const profile_options *o, const char *option, const char *output) {
  const char *inputs[] = {o->model, o->tune.weights};
  return kva_cli_replaces_input("profile", option, output, 2, inputs) ||
         kva_cli_replaces_named("profile", option, output, &o->inputs);
}

static int run(int argc, char **argv) {
  profile_options o = {.repeat = 20, .top = 20, .tune = KVA_TUNE_NOTHING};
  const kva_option options[] = {
      {"--input", "-i", "[NAME=]FILE", KVA_OPTION_LIST, &o.inputs, "a .npy or .pb file for an input"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &o.pins, "fix a shape symbol"},
      KVA_TRAIN_OPTION(&o.tune, "a training step: gradients and updates, too; of all parameters, or of what matches"),
      KVA_TUNE_OPTIONS(&o.tune),
      KVA_MEMORY_OPTION(&o.memory),
      {"--repeat", NULL, "N", KVA_OPTION_COUNT, &o.repeat, "runs that are measured (20)"},
      {"--top", NULL, "N", KVA_OPTION_COUNT, &o.top, "kinds of steps that are printed (20)"},
      {"--json", NULL, NULL, KVA_OPTION_FLAG, &o.json, "print all as JSON"},
      {"--trace", NULL, "FILE", KVA_OPTION_STRING, &o.trace, "write a run as a trace for Chrome or Perfetto"},
      {"--output", "-o", "FILE.html", KVA_OPTION_STRING, &o.page, "write a page: roofline, memory, times"},
      {"--threads", NULL, "N", KVA_OPTION_INT32, &o.threads, "worker threads (all)"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &o.seed, "of parameters and random inputs (0)"},
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &o.tune.weights, KVA_WEIGHTS_HELP},
      {"--precision", NULL, KVA_PRECISIONS, KVA_OPTION_WORD, &o.precision, "of products (f32)"},
      KVA_PASS_OPTIONS(&o.passes),
      KVA_DEVICE_OPTIONS(&o.device),
  };
  int n,
      code = kva_cli_parse(&kva_verb_profile, argc, argv, options, sizeof options / sizeof *options, &o.model, 1, &n);
  if (code >= 0) return code;
  if (n == 0) {
    fprintf(stderr, "kvasir profile: a model is missing\nTry: kvasir profile --help\n");
    return EXIT_USAGE;
  }
  if ((code = kva_cli_passes(&kva_verb_profile, &o.passes)) >= 0) return code;
  if ((code = kva_cli_take_train(&kva_verb_profile, &o.tune, &o.train)) >= 0) return code;
  if ((code = kva_cli_check_tune(&o.tune)) >= 0) return code;
  if (kva_exe_same_output(o.page, o.trace)) {
    fprintf(stderr, "kvasir profile: -o and --trace name one file; give each its own\n");
    return EXIT_USAGE;
  }
  if (replaces_input(&o, "-o", o.page) || replaces_input(&o, "--trace", o.trace)) return EXIT_USAGE;
  kva_arena *arena = kva_arena_create();
  kva_diag *diag = kva_diag_create();
  code = load_and_profile(&o, arena, diag);
  kva_diag_destroy(diag);
  kva_arena_destroy(arena);
  return code;
}
