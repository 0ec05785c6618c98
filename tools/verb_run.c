/* kvasir run: compiles a model in process and runs it once. */
#include "tools/cli.h"
#include "tools/driver/trained.h"
#include "runtime/exe/files.h"

static int run(int argc, char **argv);

const kva_verb kva_verb_run = {
    "run", "MODEL [options]", "compile a model and run it on tensors",
    "Inputs are .npy files, or bare elements where the shape is known, by name or in order; those "
    "not given are filled with\n"
    "random numbers (integers: 0 or 1), for which every symbolic dimension must be pinned. "
    "Parameters of a .kv model start\n"
    "from --seed. Prints a line for every output.\n\n"
    "Examples:\n"
    "  kvasir run model.onnx --input x=x.npy --output out/\n"
    "  kvasir run models/lm.kv -D preset=small --pin B=1 --pin T=16",
    run};

typedef struct run_options {
  kva_strings inputs, defines, pins;
  const char *output_dir, *precision, *weights;
  int64_t threads, seed, repeat;
  bool check_indices;
  kva_pass_choice passes;
  kva_device_choice device;
} run_options;

static int run(int argc, char **argv) {
  run_options o = {.check_indices = KVA_CLI_CHECK_INDICES};
  const kva_option options[] = {
      {"--input", "-i", "[NAME=]FILE", KVA_OPTION_LIST, &o.inputs, "a .npy file for an input"},
      {"--output", "-o", "DIR", KVA_OPTION_STRING, &o.output_dir, "write every output as DIR/<name>.npy"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &o.pins, "fix a shape symbol"},
      {"--threads", NULL, "N", KVA_OPTION_INT32, &o.threads, "worker threads (all)"},
      {"--seed", NULL, "N", KVA_OPTION_INT, &o.seed, "of parameters and random inputs (0)"},
      {"--repeat", NULL, "N", KVA_OPTION_COUNT, &o.repeat, "run N times and print the best time"},
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &o.weights, "trained values: a safetensors file or checkpoint"},
      {"--precision", NULL, "P", KVA_OPTION_STRING, &o.precision, "of products: f32 (default), bf16 or f16"},
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
  if ((code = kva_cli_passes(&kva_verb_run, &o.passes)) >= 0) return code;
  kva_diag *diag = kva_diag_create();
  kva_module *m = NULL;
  kva_compiled *c = NULL;
  kva_session *s = NULL;
  kva_compile_options co = {.target = {.opt_level = 2, .cache = kva_cli_cache(NULL)},
                            .passes = {.control = &o.passes.control, .check_indices = o.check_indices}};
  kva_status status = kva_cli_target(&o.device, diag, &co.target);
  if (status == KVA_OK) status = kva_precision_named(o.precision, diag, &co.passes.compute);
  code = status == KVA_OK ? kva_cli_load(path, &o.defines, &o.pins, diag, &m) : kva_cli_fail(status, diag);
  if (code < 0) {
    status = o.weights ? kva_load_weights(m, o.weights, diag) : KVA_OK;
    if (status == KVA_OK)
      status = kva_compile(m, &co, diag, &c);
    else
      kva_module_destroy(m);
    if (status == KVA_OK && o.passes.timing) kva_cli_print_compiled(c);
    kva_cli_print_passes(&o.passes);
    kva_run_request request = {
        .files = &o.inputs, .seed = (uint64_t)o.seed, .repeat = o.repeat, .output_dir = o.output_dir};
    kva_session_options so = {.threads = (int)o.threads, .seed = (uint64_t)o.seed, .device = o.device.device};
    if (status == KVA_OK) status = kva_session_create(c->artifact, &so, diag, &s);
    if (status == KVA_OK) status = kva_run_files(s, 0, &request, diag);
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
  }
  kva_session_destroy(s);
  kva_compiled_destroy(c);
  kva_diag_destroy(diag);
  return code;
}
