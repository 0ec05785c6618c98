/* kvasir reduce: the smallest part of a model that fails as the whole does. */
#include "tools/cli.h"
#include "tools/diff/diff.h"

static int run(int argc, char **argv);

const kva_verb kva_verb_reduce = {
    "reduce", "MODEL -o DIR [options]", "shrink a model that fails, and its inputs",
    "Finds out how the model fails: it does not compile, it crashes or takes too long, it ends with an error, or its\n"
    "outputs differ from the reference. Then takes nodes away as long as what is left fails in the same way; values "
    "of\n"
    "the reference take the place of what is no longer computed. Every trial is a process of its own. Writes\n"
    "DIR/model.kv, or DIR/model.onnx where constants are large, and DIR/input<i>.npy, and prints the command that "
    "shows\n"
    "the failure. Holds all values of the model in memory. Exit code 0: reduced; 1: the model does not fail.\n\n"
    "Example:\n"
    "  kvasir reduce model.onnx --input x=x.npy -o small/",
    run};

typedef struct reduce_options {
  kva_strings inputs, defines, pins;
  const char *weights, *output_dir;
  int64_t seed, threads, seconds;
  kva_device_choice device;
  kva_diff_target target;
  kva_diff_tolerance tolerance;
} reduce_options;

static int report(const kva_diff_values *v, kva_diff_check *check, kva_diff_failure failure, kva_diff_part *part,
                  const char *dir, kva_diag *diag) {
  printf("%u trials\n", kva_diff_reduce(v, check, failure, part));
  kva_diff_describe(v, part);
  kva_status status = kva_diff_write(v, part, check, dir, diag);
  return status ? kva_cli_fail(status, diag) : EXIT_DONE;
}

/* Values are needed only where the model compiles. */
static int reduce(kva_diff_values *v, kva_module *whole, const reduce_options *o, kva_diag *diag) {
  static const char *const names[] = {"agrees", "is refused", "differs from the reference", "does not end well"};
  const kva_run_request request = {.files = &o->inputs, .seed = (uint64_t)o->seed, .read_proto = kva_cli_read_proto};
  kva_diff_check check = {&o->target, &o->tolerance, o->seconds, true};
  kva_diff_part part = kva_diff_whole(v);
  char why[1024];
  kva_diff_failure failure = kva_diff_fails(v, &part, &check, why, sizeof why);
  if (failure) {
    kva_module_destroy(whole);
  } else {
    check.only_compile = false;
    kva_status status = kva_diff_begin(v, whole, &o->target, &request, diag, NULL);
    if (status == KVA_OK) status = kva_diff_evaluate(v, diag);
    if (status) return kva_cli_fail(status, diag);
    failure = kva_diff_fails(v, &part, &check, why, sizeof why);
  }
  printf("the model %s%s%s\n", names[failure], *why ? ": " : "", why);
  return failure ? report(v, &check, failure, &part, o->output_dir, diag) : EXIT_NO;
}

static int load_and_reduce(const char *path, reduce_options *o) {
  kva_diag *diag = kva_diag_create();
  const kva_cli_source from = {.path = path, .defines = &o->defines, .pins = &o->pins, .weights = o->weights};
  kva_module *m = NULL, *whole = NULL;
  kva_status status = kva_cli_target(&o->device, diag, &o->target.options);
  int code = status == KVA_OK ? kva_cli_load_from(&from, diag, &m) : kva_cli_fail(status, diag);
  if (code < 0) code = kva_cli_load_from(&from, diag, &whole);
  if (code < 0) {
    kva_diff_values v;
    kva_diff_values_init(&v, m);
    code = reduce(&v, whole, o, diag);
    kva_diff_values_free(&v);
  }
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return code;
}

static int run(int argc, char **argv) {
  reduce_options o = {.seconds = 60, .target.options.opt_level = 2, .tolerance = KVA_DIFF_TOLERANCE};
  const kva_option options[] = {
      {"--input", "-i", "[NAME=]FILE", KVA_OPTION_LIST, &o.inputs, "a .npy or .pb file for an input"},
      {"--output", "-o", "DIR", KVA_OPTION_STRING, &o.output_dir, "where to write"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &o.pins, "fix a shape symbol"},
      {"--weights", NULL, "FILE", KVA_OPTION_STRING, &o.weights, KVA_WEIGHTS_HELP},
      {"--seed", NULL, "N", KVA_OPTION_INT, &o.seed, "of parameters and random inputs (0)"},
      {"--threads", NULL, "N", KVA_OPTION_INT32, &o.threads, "worker threads (all)"},
      {"--time-limit", NULL, "SECONDS", KVA_OPTION_COUNT, &o.seconds, "of one trial (60)"},
      KVA_DIFF_TOLERANCE_OPTIONS(&o.tolerance),
      KVA_DEVICE_OPTIONS(&o.device),
  };
  const char *path;
  int n, code = kva_cli_parse(&kva_verb_reduce, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0) return code;
  if (n == 0 || !o.output_dir) {
    fprintf(stderr, "kvasir reduce: needs a model and -o DIR\n");
    return EXIT_USAGE;
  }
  o.target.device = o.device.device;
  o.target.threads = (int)o.threads;
  return load_and_reduce(path, &o);
}
