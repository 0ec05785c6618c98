/* kvasir check: reports everything unsupported in a model at once. */
#include "tools/cli.h"

static int run(int argc, char **argv);

const kva_verb kva_verb_check = {"check", "MODEL [options]",
                                 "list what a model uses and everything that is unsupported",
                                 "Reads the model and prints one row per (domain, operator, version) with its count; "
                                 "unsupported rows carry the reason\n"
                                 "and the first node. Of a text (.kv) the rows are the operators that it becomes. Then "
                                 "all else that is missing or wrong:\n"
                                 "attributes, types, shapes, inputs; only what reads the result of such a node is not "
                                 "looked at. Exit code 0: all\n"
                                 "supported; 1: something is not, or the model is wrong.\n\n"
                                 "Examples:\n  kvasir check model.onnx\n  kvasir check models/lm.kv -D preset=small",
                                 run};

static const char *or_else(const char *text, const char *otherwise) {
  return text && *text ? text : otherwise;
}

/* A name, padded to `width`. */
static void print_column(const char *name, int width) {
  kva_print_escaped(name, stdout);
  printf("%*s", strlen(name) < (size_t)width ? width - (int)strlen(name) : 0, "");
}

static void print_row(const kva_check_row *r) {
  printf("%-4s ", r->supported ? "ok" : "NO");
  print_column(or_else(r->domain, "ai.onnx"), 21);
  print_column(r->op_type, 25);
  printf("%4lld  x%-6lld", (long long)r->version, (long long)r->count);
  if (!r->supported) {
    printf(" %s (first: ", or_else(r->reason, ""));
    kva_print_escaped(or_else(r->first_node, "unnamed"), stdout);
    printf(")");
  }
  printf("\n");
}

static void print_json_row(const kva_check_row *r) {
  kva_text t = {0};
  kva_text_add(&t, "{\"domain\": ");
  kva_text_add_quoted(&t, or_else(r->domain, "ai.onnx"));
  kva_text_add(&t, ", \"operator\": ");
  kva_text_add_quoted(&t, r->op_type);
  kva_text_add(&t, ", \"version\": %lld, \"count\": %lld, \"supported\": %s", (long long)r->version,
               (long long)r->count, r->supported ? "true" : "false");
  if (!r->supported) {
    kva_text_add(&t, ", \"reason\": ");
    kva_text_add_quoted(&t, or_else(r->reason, ""));
    kva_text_add(&t, ", \"first_node\": ");
    kva_text_add_quoted(&t, or_else(r->first_node, ""));
  }
  printf("%s}", t.data);
  kva_text_free(&t);
}

/* Starts one more element of a list that has `n` of them. */
static void add_element(kva_text *t, uint32_t n) {
  kva_text_add(t, "%s\n  ", n ? "," : "");
}

static void add_field(kva_text *t, const char *name, const char *value) {
  kva_text_add(t, ", \"%s\": ", name);
  kva_text_add_quoted(t, value);
}

/* An object of a diagnostic, without its closing brace, as notes may follow. */
static void add_message(kva_text *t, const char *message, const kva_loc *loc) {
  kva_text_add(t, "{\"message\": ");
  kva_text_add_quoted(t, message);
  if (loc->file) add_field(t, "file", loc->file);
  if (loc->line) kva_text_add(t, ", \"line\": %u", loc->line);
  if (loc->node) add_field(t, "node", loc->node);
}

/* All diagnostics of one severity, each with the notes that follow it. */
static void print_json_messages(const char *name, const kva_diag *diag, kva_severity wanted) {
  kva_text t = {0};
  bool open = false;
  uint32_t n = 0;
  for (size_t i = 0; i < kva_diag_count(diag); i++) {
    kva_severity severity;
    kva_loc loc;
    const char *message = kva_diag_message(diag, i, &severity, &loc);
    if (severity == KVA_NOTE && open) add_field(&t, "note", message);
    if (severity == KVA_NOTE) continue;
    if (open) kva_text_add(&t, "}");
    open = severity == wanted;
    if (!open) continue;
    add_element(&t, n++);
    add_message(&t, message, &loc);
  }
  printf("\"%s\": [%s%s]", name, or_else(t.data, ""), open ? "}" : "");
  kva_text_free(&t);
}

static void print_json(const kva_check_report *report, const kva_diag *diag) {
  printf("{\"unsupported\": %lld, ", (long long)report->unsupported);
  print_json_messages("gaps", diag, KVA_ERROR);
  printf(", ");
  print_json_messages("warnings", diag, KVA_WARNING);
  printf(", \"operators\": [");
  for (uint32_t i = 0; i < report->rows.len; i++) {
    printf("%s\n  ", i ? "," : "");
    print_json_row(&report->rows.data[i]);
  }
  printf("]}\n");
}

static void count_nodes(const kva_graph *g, int64_t *counts) {
  for (const kva_node *n = g->first; n; n = n->next) {
    counts[n->op->id]++;
    for (uint32_t i = 0; i < n->n_graphs; i++) count_nodes(n->graphs[i], counts);
  }
}

/* Counts the operators of a text; after loading these are internal operators. */
static void count_loaded(const kva_module *m, kva_arena *arena, kva_check_report *out) {
  int64_t *counts = KVA_NEW_ARRAY(arena, int64_t, kva_ops.n);
  for (uint32_t f = 0; f < m->functions.len; f++) count_nodes(m->functions.data[f]->graph, counts);
  for (uint32_t i = 0; i < kva_ops.n; i++) {
    if (!counts[i] || (kva_ops.ops[i]->traits & KVA_RETURN)) continue;
    kva_check_row row = {
        .domain = "kv", .op_type = kva_ops.ops[i]->name, .version = 1, .count = counts[i], .supported = true};
    KVA_PUSH(arena, &out->rows, row);
  }
}

static void print_text(const char *path, const kva_check_report *report, int code) {
  for (uint32_t i = 0; i < report->rows.len; i++) print_row(&report->rows.data[i]);
  if (code == EXIT_DONE) printf("%s: everything is supported\n", path);
  if (report->unsupported) printf("%lld nodes are not supported\n", (long long)report->unsupported);
}

/* Loads the model, also where operators are missing: shapes, types and attributes are checked as far as they can be. */
static int check(const char *path, const kva_strings *defines, const kva_strings *pins, bool json) {
  kva_diag *diag = kva_diag_create();
  kva_arena *arena = kva_arena_create();
  kva_check_report report = {0};
  kva_module *m = NULL;
  kva_status status = kva_check_model(path, arena, diag, &report);
  const kva_cli_source source = {.path = path, .defines = defines, .pins = pins, .keep_messages = true};
  int code = status ? kva_status_exit_code(status) : kva_cli_load_from(&source, diag, &m);
  if (code < 0) code = EXIT_DONE;
  if (m && report.rows.len == 0) count_loaded(m, arena, &report);
  if (json)
    print_json(&report, diag);
  else
    print_text(path, &report, code), kva_cli_warn(diag);
  kva_module_destroy(m);
  kva_arena_destroy(arena);
  kva_diag_destroy(diag);
  return code;
}

static int run(int argc, char **argv) {
  bool json = false;
  kva_strings defines = {0}, pins = {0};
  const kva_option options[] = {
      {"--json", NULL, NULL, KVA_OPTION_FLAG, &json,
       "print a JSON object, with what is missing or wrong as its list gaps"},
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
  return check(path, &defines, &pins, json);
}
