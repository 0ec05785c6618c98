/* kvasir opt: runs selected passes over a model. */
#include "tools/cli.h"
#include "tools/driver/opt.h"
#include "tools/tune.h"

static int run(int argc, char **argv);

const kva_verb kva_verb_opt = {
    "opt", "MODEL --passes=A,B,... [options]", "run chosen passes over a model and print what they make",
    "The passes run in the given order and no others do. What they leave is printed as text that reads back: as a "
    "module;\n"
    "behind pass plan as plans; behind pass lower as kernels, for --target. --list names the passes and pipelines.\n\n"
    "Examples:\n"
    "  kvasir opt model.onnx --passes=fold,simplify,dce --verify-each\n"
    "  kvasir opt models/lm.kv -D preset=small --passes=optimize,training,prepare,plan\n"
    "  kvasir opt models/mlp.kv --passes=optimize,prepare --target sm_80 -o fused.kv",
    run};

typedef struct opt_options {
  kva_opt_choice choice;
  kva_strings defines, pins;
  kva_tune_choice tune;
  const char *output;
  int64_t memory;
  bool list, json;
  kva_pass_choice passes;
} opt_options;

static int print_list(bool json) {
  kva_text text = {0};
  kva_opt_list(json, &text);
  fputs(text.data, stdout);
  kva_text_free(&text);
  return EXIT_DONE;
}

static kva_status write_text(const char *path, const kva_text *text, kva_diag *diag) {
  if (!path) {
    fwrite(text->data, 1, text->len, stdout);
    return KVA_OK;
  }
  KVA_TRY(kva_file_prepare(path, diag));
  return kva_file_write(path, text->data, text->len, diag);
}

static int opt(const char *path, opt_options *o) {
  kva_diag *diag = kva_diag_create();
  kva_arena *arena = kva_arena_create();
  kva_module *m = NULL;
  kva_text text = {0};
  bool changed = false;
  kva_pass_options passes = {.control = &o->passes.control, .memory = o->memory};
  int code = kva_cli_load(path, &o->defines, &o->pins, diag, &m);
  if (code < 0) {
    kva_status status = kva_tune_options_of(&o->tune, 0, arena, diag, &passes);
    if (status == KVA_OK) status = kva_opt(m, &o->choice, &passes, &changed, &text);
    if (status == KVA_OK) status = write_text(o->output, &text, diag);
    kva_cli_print_passes(&o->passes);
    code = status == KVA_OK ? EXIT_DONE : kva_cli_fail(status, diag);
  }
  kva_text_free(&text);
  kva_module_destroy(m);
  kva_arena_destroy(arena);
  kva_diag_destroy(diag);
  return code;
}

static int run(int argc, char **argv) {
  opt_options o = {.tune = KVA_TUNE_NOTHING};
  const kva_option options[] = {
      KVA_OPT_OPTIONS(&o.choice),
      {"--output", "-o", "FILE", KVA_OPTION_STRING, &o.output, "where to write (standard output)"},
      {"--list", NULL, NULL, KVA_OPTION_FLAG, &o.list, "print the table of passes"},
      {"--json", NULL, NULL, KVA_OPTION_FLAG, &o.json, "with --list: as JSON"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &o.defines, "set a hyper-parameter of a .kv model"},
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &o.pins, "fix a shape symbol"},
      {"--train", NULL, "PATTERN", KVA_OPTION_LIST, &o.tune.train, "pass tune: train what matches, freeze the rest"},
      KVA_MEMORY_OPTION(&o.memory),
      KVA_TUNE_OPTIONS(&o.tune),
      KVA_PASS_OPTIONS(&o.passes),
  };
  const char *path = NULL;
  int n, code = kva_cli_parse(&kva_verb_opt, argc, argv, options, sizeof options / sizeof *options, &path, 1, &n);
  if (code >= 0 || (code = kva_cli_passes(&kva_verb_opt, &o.passes)) >= 0) return code;
  if ((code = kva_cli_check_tune(&o.tune)) >= 0) return code;
  if (o.list || (o.choice.passes && !strcmp(o.choice.passes, "help"))) return print_list(o.json);
  if (o.json) {
    fprintf(stderr, "kvasir opt: --json is for --list\nTry: kvasir opt --help\n");
    return EXIT_USAGE;
  }
  if (n == 0 || !o.choice.passes) {
    fprintf(stderr, "kvasir opt: needs a model and --passes=A,B,...\nTry: kvasir opt --help\n");
    return EXIT_USAGE;
  }
  if (kva_cli_replaces_input("opt", "-o", o.output, 1, &path)) return EXIT_USAGE;
  return opt(path, &o);
}
