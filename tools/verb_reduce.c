/* kvasir reduce: the smallest part of a model that fails as the whole does. */
#include "tools/compared.h"

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
  kva_compared model;
  const char *output_dir;
  int64_t seconds;
} reduce_options;

static int report(const kva_diff_values *v, kva_diff_check *check, kva_diff_failure failure, kva_diff_part *part,
                  const char *dir, kva_diag *diag) {
  printf("%u trials\n", kva_diff_reduce(v, check, failure, part));
  kva_diff_describe(v, part);
  kva_status status = kva_diff_write(v, part, check, dir, diag);
  return status ? kva_cli_fail(status, diag) : EXIT_DONE;
}

/* Values are needed only where the model compiles. */
static int reduce(void *user, kva_diff_values *v, kva_module *whole, const kva_run_request *request, kva_diag *diag) {
  static const char *const names[] = {"agrees", "is refused", "differs from the reference", "does not end well"};
  const reduce_options *o = user;
  kva_diff_check check = {&o->model.target, &o->model.tolerance, o->seconds, true};
  kva_diff_part part = kva_diff_whole(v);
  char why[1024];
  kva_diff_failure failure = kva_diff_fails(v, &part, &check, why, sizeof why);
  if (failure) {
    kva_module_destroy(whole);
  } else {
    check.only_compile = false;
    kva_status status = kva_diff_begin(v, whole, check.target, request, diag, NULL);
    if (status == KVA_OK) status = kva_diff_evaluate(v, diag);
    if (status) return kva_cli_fail(status, diag);
    failure = kva_diff_fails(v, &part, &check, why, sizeof why);
  }
  printf("the model %s%s%s\n", names[failure], *why ? ": " : "", why);
  return failure ? report(v, &check, failure, &part, o->output_dir, diag) : EXIT_NO;
}

static int run(int argc, char **argv) {
  reduce_options o = {.model = KVA_COMPARED, .seconds = 60};
  const kva_option options[] = {
      KVA_COMPARED_OPTIONS(&o.model),
      {"--output", "-o", "DIR", KVA_OPTION_STRING, &o.output_dir, "where to write"},
      {"--time-limit", NULL, "SECONDS", KVA_OPTION_COUNT, &o.seconds, "of one trial (60)"},
  };
  const char *path;
  int n, code = kva_cli_parse(&kva_verb_reduce, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0) return code;
  if (n == 0 || !o.output_dir) {
    fprintf(stderr, "kvasir reduce: needs a model and -o DIR\n");
    return EXIT_USAGE;
  }
  if (kva_compared_replaces("reduce", &o.model, path, o.output_dir)) return EXIT_USAGE;
  return kva_compared_run(&o.model, path, reduce, &o);
}
