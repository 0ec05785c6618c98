/* kvasir check: everything of a model that is unsupported, at once. */
#include "tools/cli.h"

static int run(int argc, char **argv);

const kva_verb kva_verb_check = {
    "check", "MODEL [options]", "list what a model uses and everything that is unsupported",
    "Reads the model and prints one row per (domain, operator, version) with its count; unsupported rows carry the reason\n"
    "and the first node. Exit code 0: all supported; 1: something is not, or the model is wrong.\n\n"
    "Examples:\n  kvasir check model.onnx\n  kvasir check models/lm.kv -D preset=small",
    run};

static void print_rows(const kva_check_report *report, bool json) {
  if (json) printf("{\"unsupported\": %lld, \"operators\": [", (long long)report->unsupported);
  for (uint32_t i = 0; i < report->rows.len; i++) {
    const kva_check_row *r = &report->rows.data[i];
    const char *domain = r->domain && *r->domain ? r->domain : "ai.onnx";
    if (!json) {
      printf("%-4s %-20s %-24s %4lld  x%-6lld %s%s%s%s%s\n", r->supported ? "ok" : "NO", domain, r->op_type, (long long)r->version,
             (long long)r->count, r->supported ? "" : r->reason ? r->reason : "", r->supported ? "" : " (first: ",
             r->supported ? "" : r->first_node ? r->first_node : "unnamed", r->supported ? "" : ")", "");
      continue;
    }
    kva_text t = {0};
    kva_text_add(&t, "%s\n  {\"domain\": \"%s\", \"operator\": \"%s\", \"version\": %lld, \"count\": %lld, \"supported\": %s", i ? "," : "",
                 domain, r->op_type, (long long)r->version, (long long)r->count, r->supported ? "true" : "false");
    if (!r->supported) {
      kva_text_add(&t, ", \"reason\": ");
      kva_text_add_quoted(&t, r->reason ? r->reason : "");
      kva_text_add(&t, ", \"first_node\": ");
      kva_text_add_quoted(&t, r->first_node ? r->first_node : "");
    }
    printf("%s}", t.data);
    kva_text_free(&t);
  }
  if (json) printf("]}\n");
}

static int run(int argc, char **argv) {
  bool json = false;
  kva_strings defines = {0}, pins = {0};
  const kva_option options[] = {
      {"--json", NULL, NULL, KVA_OPTION_FLAG, &json, "print a JSON object"},
      {"--define", "-D", "NAME=VALUE", KVA_OPTION_LIST, &defines, "set a hyper-parameter of a .kv model"},
      {"--pin", NULL, "SYMBOL=N", KVA_OPTION_LIST, &pins, "fix a shape symbol"},
  };
  const char *path;
  int n, code = kva_cli_parse(&kva_verb_check, argc, argv, options, 3, &path, 1, &n);
  if (code >= 0) return code;
  if (n == 0) {
    fprintf(stderr, "kvasir check: a model is missing\n");
    return EXIT_USAGE;
  }
  kva_diag *diag = kva_diag_create();
  kva_arena *arena = kva_arena_create();
  kva_check_report report = {0};
  kva_status status = kva_check_model(path, arena, diag, &report);
  print_rows(&report, json);
  kva_module *m = NULL;
  if (status == KVA_OK && report.unsupported == 0) {
    code = kva_cli_load(path, &defines, &pins, diag, &m); /* shapes and types, not just names */
    if (code < 0) code = EXIT_DONE;
  } else {
    code = status == KVA_OK ? EXIT_NO : kva_cli_fail(status, diag);
  }
  if (!json && code == EXIT_DONE) printf("%s: everything is supported\n", path);
  if (!json && report.unsupported) printf("%lld nodes are not supported\n", (long long)report.unsupported);
  kva_module_destroy(m);
  kva_arena_destroy(arena);
  kva_diag_destroy(diag);
  return code;
}
