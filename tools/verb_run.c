/* kvasir run: compiles a model in process and runs it once. */
#include "tools/cli.h"
#include "runtime/exe/files.h"

static int run(int argc, char **argv);

const kva_verb kva_verb_run = {
    "run", "MODEL [options]", "compile a model and run it on tensors",
    "Inputs are .npy files, tensors of ONNX (.pb), or bare elements where the shape is known, by name or in order; "
    "those "
    "not given are filled with\n"
    "random numbers (integers: 0 or 1), for which every symbolic dimension must be pinned. Strings are lines of a "
    "text.\n"
    "Parameters of a .kv model start from --seed. Prints a line for every output.\n\n"
    "Examples:\n"
    "  kvasir run model.onnx --input x=x.npy --output out/\n"
    "  kvasir run models/lm.kv -D preset=small --pin B=1 --pin T=16",
    run};

typedef struct run_options {
  kva_strings inputs, defines, pins;
  const char *output_dir, *precision, *weights;
  int64_t threads, seed, repeat;
  bool check_indices, proto, inference;
  kva_pass_choice passes;
  kva_device_choice device;
} run_options;

static kva_status run_program(kvasir_program *p, const run_options *o, kva_diag *diag) {
  const kva_session_options options = {.threads = (int)o->threads, .seed = (uint64_t)o->seed, .borrow_states = true};
  const kva_run_request request = {.files = &o->inputs,
                                   .seed = (uint64_t)o->seed,
                                   .repeat = o->repeat,
                                   .output_dir = o->output_dir,
                                   .read_proto = kva_cli_read_proto,
                                   .write_proto = o->proto ? kva_cli_write_proto : NULL};
  kvasir_session *session;
  kva_cli_warn(diag);
  KVA_TRY(kva_program_session(p, &options, diag, &session));
  kva_cli_warn(diag);
  kva_status status = kva_run_files(session->s, 0, &request, diag);
  kvasir_session_destroy(session);
  return status;
}

static int load_and_run(const char *path, run_options *o, kva_arena *arena, kva_diag *diag) {
  kva_compile_options options = {.target = {.opt_level = 2, .cache = kva_user_cache(arena, NULL)},
                                 .passes = {.control = &o->passes.control, .check_indices = o->check_indices}};
  const kva_cli_source from = {.path = path,
                               .defines = &o->defines,
                               .pins = &o->pins,
                               .weights = o->weights,
                               .inference = o->inference,
                               .packed = true,
                               .fixed = true};
  kva_module *m = NULL;
  kvasir_program *program = NULL;
  kva_status status = o->output_dir ? kva_folder_make(o->output_dir, 0777, diag) : KVA_OK;
  if (status == KVA_OK) status = kva_cli_device(&o->device, diag, &options);
  if (status == KVA_OK) status = kva_precision_named(o->precision, diag, &options.passes.compute);
  int code = status == KVA_OK ? kva_cli_load_from(&from, diag, &m) : kva_cli_fail(status, diag);
  if (code >= 0) return code;
  status = kva_program_compile(m, &options, o->device.device, diag, &program);
  if (status == KVA_OK && o->passes.timing) kva_cli_print_compiled(program->compiled);
  kva_cli_print_passes(&o->passes);
  if (status == KVA_OK) status = run_program(program, o, diag);
  kvasir_program_destroy(program);
  return status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
}

static int run(int argc, char **argv) {
  run_options o = {.check_indices = KVA_CLI_CHECK_INDICES};
  const kva_option options[] = {
      {"--input", "-i", "[NAME=]FILE", KVA_OPTION_LIST, &o.inputs, "a .npy or .pb file for an input"},
      {"--output", "-o", "DIR", KVA_OPTION_STRING, &o.output_dir, "write every output as DIR/<name>.npy"},
      {"--pb", NULL, NULL, KVA_OPTION_FLAG, &o.proto, "... as tensors of ONNX, DIR/<name>.pb"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &o.pins, "fix a shape symbol"},
      {"--threads", NULL, "N", KVA_OPTION_INT32, &o.threads, "worker threads (all)"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &o.seed, "of parameters and random inputs (0)"},
      {"--repeat", NULL, "N", KVA_OPTION_COUNT, &o.repeat, "run N times and print median and spread"},
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &o.weights, KVA_WEIGHTS_HELP},
      KVA_INFERENCE_OPTION(&o.inference),
      {"--precision", NULL, KVA_PRECISIONS, KVA_OPTION_WORD, &o.precision, "of products (f32)"},
      KVA_CHECK_INDICES_OPTION(&o.check_indices),
      KVA_PASS_OPTIONS(&o.passes),
      KVA_DEVICE_OPTIONS(&o.device),
  };
  const char *path;
  int n, code = kva_cli_parse(&kva_verb_run, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0) return code;
  if (n == 0) {
    fprintf(stderr, "kvasir run: a model is missing\n");
    return EXIT_USAGE;
  }
  if (o.proto && !o.output_dir) {
    fprintf(stderr, "kvasir run: --pb says how outputs are written; give --output, too\n");
    return EXIT_USAGE;
  }
  if ((code = kva_cli_passes(&kva_verb_run, &o.passes)) >= 0) return code;
  kva_arena *arena = kva_arena_create();
  kva_diag *diag = kva_diag_create();
  code = load_and_run(path, &o, arena, diag);
  kva_diag_destroy(diag);
  kva_arena_destroy(arena);
  return code;
}
