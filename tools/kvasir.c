/* kvasir: one binary, one verb per task. Start reading here: each verb is a file verb_<name>.c that loads a model with
 * frontend/, transforms it with passes/, compiles it with codegen/ and runs it with runtime/, through driver/. */
#include "tools/cli.h"
#include "runtime/exe/streams.h"

static const kva_verb *const verbs[] = {&kva_verb_run,     &kva_verb_generate, &kva_verb_serve,    &kva_verb_train,
                                        &kva_verb_eval,    &kva_verb_check,    &kva_verb_conform,  &kva_verb_diff,
                                        &kva_verb_reduce,  &kva_verb_show,     &kva_verb_opt,      &kva_verb_export,
                                        &kva_verb_build,   &kva_verb_data,     &kva_verb_quantize, &kva_verb_experiment,
                                        &kva_verb_profile, &kva_verb_report,   &kva_verb_ops,      &kva_verb_ptxsim,
                                        &kva_verb_doctor};
enum { N_VERBS = sizeof verbs / sizeof *verbs };

static void print_usage(FILE *out) {
  fprintf(out, "kvasir VERB ...: compiles, runs and trains ONNX and .kv models\n\n");
  for (int i = 0; i < N_VERBS; i++) fprintf(out, "  %-10s %s\n", verbs[i]->name, verbs[i]->summary);
  fprintf(out, "\nkvasir VERB --help explains a verb. Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 3 the "
               "machine lacks "
               "something,\n4 training was interrupted.\n");
}

static int run(int argc, char **argv) {
  if (argc < 2) {
    print_usage(stderr);
    return EXIT_USAGE;
  }
  if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
    print_usage(stdout);
    return EXIT_DONE;
  }
  if (!strcmp(argv[1], "--version")) {
    printf("kvasir %s\n", KVA_VERSION);
    return EXIT_DONE;
  }
  for (int i = 0; i < N_VERBS; i++)
    if (!strcmp(argv[1], verbs[i]->name)) return verbs[i]->run(argc - 2, argv + 2);
  fprintf(stderr, "kvasir: unknown verb '%s'\n\n", argv[1]);
  print_usage(stderr);
  return EXIT_USAGE;
}

int main(int argc, char **argv) {
  kva_streams_open();
  kva_codegen_catch_memory_errors();
  return kva_streams_close("kvasir", run(argc, argv));
}
