/* Golden tests of passes: tests/passes/<folder>/<topic>.kv holds options of `kvasir opt` and cases, each a module
 * before the passes and what they leave:
 *
 *   # remarks
 *   #=== opt: --passes=simplify,dce
 *   #=== before: what the case shows
 *   main (float[4] x) => (float[4] y) { ... }
 *   #=== after
 *   ...
 *
 * or, where a pass must refuse, `#=== error` and its messages. KVA_UPDATE=1 rewrites what follows `after` and
 * `error`. Beside the text, every case is checked for meaning: where the passes keep it, the reference agrees before
 * and after (and for fuse and plan compiled code does); a second run of the first pass changes nothing, but for those
 * that make something anew.
 *
 * Meaning is not compared for autodiff and train, nor for splat and copies, whose states are other numbers here; that
 * of precision is kept but for its rounding. */
#include "tests/support/evaluate.h"
#include "tests/support/target.h"
#include "tools/driver/opt.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdlib.h>
#include <cmocka.h>

static const eval_size sizes[] = {{"B", 3}, {"T", 7}, {"N", 5}, {NULL, 0}};

typedef struct golden_case {
  char *title, *before, *expected; /* expected: text after its marker line */
  bool is_error;
} golden_case;

typedef struct golden_file {
  const char *path, *folder;
  char *text, *remarks, *opt;
  kva_opt_choice choice; /* what the file's second line says */
  uint32_t n;
  golden_case cases[64];
} golden_file;

/* ---- files ------------------------------------------------------------------------------------------------------- */

static char *read_text(const char *path) {
  FILE *in = fopen(path, "rb");
  if (!in) fail_msg("cannot open %s", path);
  char *text = calloc(1, 1 << 18);
  assert_non_null(text);
  size_t n = fread(text, 1, (1 << 18) - 1, in);
  assert_true(n < (1 << 18) - 1);
  fclose(in);
  return text;
}

/* Ends the section before the marker at `at` and returns what follows the marker's line. */
static char *cut(char *at) {
  *at = 0;
  char *line = strchr(at + 1, '\n');
  assert_non_null(line);
  *line = 0;
  return line + 1;
}

/* `#=== opt: --passes=a,b --target=sm_80`; words are cut off in place. */
static void parse_options(golden_file *g, char *line) {
  const kva_option options[] = {KVA_OPT_OPTIONS(&g->choice)};
  char *words[16];
  int n = 0;
  for (char *save = NULL, *word = strtok_r(line, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
    assert_true(n < 16);
    words[n++] = word;
  }
  int code = kva_options_parse(&(kva_usage){.program = g->path}, n, words, options, sizeof options / sizeof *options,
                               NULL, 0, &n);
  if (code >= 0 || !g->choice.passes) fail_msg("%s: what its line 'opt' says cannot run", g->path);
}

static void parse_file(golden_file *g) {
  static const char opt[] = "#=== opt: ";
  char *line = strstr(g->text, opt);
  if (!line) fail_msg("%s: no line '%s'", g->path, opt);
  char *rest = cut(line);
  g->opt = strdup(line + strlen(opt));
  parse_options(g, line + strlen(opt));
  static const char before[] = "#=== before: ", after[] = "#=== after", error[] = "#=== error";
  char *at = strstr(rest, before);
  g->remarks = g->text;
  while (at) {
    assert_true(g->n < 64);
    golden_case *c = &g->cases[g->n++];
    c->title = at + strlen(before);
    c->before = cut(at);
    char *ok = strstr(c->before, after), *bad = strstr(c->before, error), *next = strstr(c->before, before);
    c->is_error = bad && (!ok || bad < ok);
    char *marker = c->is_error ? bad : ok;
    if (!marker || (next && marker > next)) fail_msg("%s: case '%s' has no expectation", g->path, c->title);
    c->expected = cut(marker);
    at = strstr(c->expected, before);
  }
}

/* ---- passes ------------------------------------------------------------------------------------------------------ */

typedef struct outcome {
  kva_status status;
  kva_text text;
} outcome;

static kva_module *load(const golden_file *g, const golden_case *c, kva_diag *diag) {
  kva_module *m = NULL;
  if (kva_load_text(c->before, c->title, NULL, diag, &m) == KVA_OK) return m;
  kva_diag_print(diag, stderr);
  fail_msg("%s: '%s' does not load", g->path, c->title);
  return NULL;
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

static bool is(const golden_file *g, const char *pass) {
  return !strcmp(g->folder, pass);
}

/* Passes that make something anew each time they run. */
static bool settles(const golden_file *g) {
  return !is(g, "plan") && !is(g, "autodiff") && !is(g, "precision") && !is(g, "train");
}

/* A second run of the first pass changes nothing. */
static kva_status run_again(const golden_file *g, const golden_case *c, kva_module *m) {
  kva_opt_choice first = g->choice;
  kva_text text = {0};
  bool again = false;
  first.passes = kva_arena_strndup(m->arena, first.passes, strcspn(first.passes, ","));
  kva_status status = kva_opt(m, &first, &(kva_pass_options){0}, &again, &text);
  kva_text_free(&text);
  if (again) fail_msg("%s: '%s': a second run still changes something", g->path, c->title);
  return status;
}

static outcome run(const golden_file *g, const golden_case *c, kva_module *m) {
  outcome o = {0};
  bool changed = false;
  kva_pass_control control = {.verify_each = true};
  o.status = kva_opt(m, &g->choice, &(kva_pass_options){.control = &control}, &changed, &o.text);
  if (o.status == KVA_OK && settles(g)) o.status = run_again(g, c, m);
  for (size_t i = 0; o.status != KVA_OK && i < kva_diag_count(m->diag); i++)
    kva_text_add(&o.text, "%s\n", kva_diag_message(m->diag, i, NULL, NULL));
  return o;
}

static void check_compiled(const golden_file *g, const golden_case *c, const evaluated *before) {
  kva_diag *diag = kva_diag_create();
  kva_compiled *compiled;
  if (kva_compile(load(g, c, diag), &(kva_compile_options){.target = test_target(1, NULL)}, diag, &compiled)) {
    kva_diag_print(diag, stderr);
    fail_msg("%s: '%s' does not compile", g->path, c->title);
  }
  evaluated after = evaluate_compiled(compiled, compiled->module->functions.data[0], sizes);
  if (!evaluated_equal(c->title, compiled->module, before, &after, 1e-5))
    fail_msg("%s: compiled code differs", g->path);
  evaluated_free(&after);
  kva_compiled_destroy(compiled);
  kva_diag_destroy(diag);
}

static bool same_text(const char *a, const char *b) {
  size_t n = strlen(a), k = strlen(b);
  while (n && a[n - 1] == '\n') n--;
  while (k && b[k - 1] == '\n') k--;
  return n == k && !memcmp(a, b, n);
}

/* Runs a case; returns what the file should say. */
static kva_text check_case(const golden_file *g, golden_case *c, bool update) {
  kva_diag *diag = kva_diag_create();
  kva_module *m = load(g, c, diag);
  bool keeps_meaning = !is(g, "autodiff") && !is(g, "train") && !is(g, "splat") && !is(g, "copies") && !c->is_error;
  evaluated before = {0};
  if (keeps_meaning) before = evaluate_reference(m, m->functions.data[0], sizes);
  outcome o = run(g, c, m);
  if (update)
    c->is_error = o.status != KVA_OK;
  else if (c->is_error != (o.status != KVA_OK) || !same_text(o.text.data, c->expected))
    fail_msg("%s: '%s':\nexpected %s:\n%s\nfound %s:\n%s", g->path, c->title, c->is_error ? "an error" : "success",
             c->expected, kva_status_name(o.status), o.text.data);
  if (keeps_meaning && o.status == KVA_OK) {
    evaluated after = evaluate_reference(m, m->functions.data[0], sizes);
    if (!evaluated_equal(c->title, m, &before, &after, is(g, "precision") ? 0.02 : 1e-6))
      fail_msg("%s: the pass changes the meaning", g->path);
    evaluated_free(&after);
    if (!strncmp(g->folder, "fuse", 4) || is(g, "plan")) check_compiled(g, c, &before);
  }
  evaluated_free(&before);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return o.text;
}

static void check_file(const char *path, const char *folder) {
  golden_file *g = calloc(1, sizeof *g);
  bool update = getenv("KVA_UPDATE") != NULL;
  g->path = path;
  g->folder = folder;
  g->text = read_text(path);
  parse_file(g);
  if (!g->n) fail_msg("%s: no cases", path);
  kva_text out = {0};
  kva_text_add(&out, "%s#=== opt: %s\n", g->remarks, g->opt);
  for (uint32_t i = 0; i < g->n; i++) {
    golden_case *c = &g->cases[i];
    kva_text found = check_case(g, c, update);
    kva_text_add(&out, "#=== before: %s\n%s#=== %s\n%s%s", c->title, c->before, c->is_error ? "error" : "after",
                 found.data, i + 1 < g->n ? "\n" : "");
    kva_text_free(&found);
  }
  kva_diag *diag = kva_diag_create();
  if (update) assert_int_equal(kva_file_write(path, out.data, out.len, diag), KVA_OK);
  kva_diag_destroy(diag);
  kva_text_free(&out);
  free(g->text);
  free(g->opt);
  free(g);
}

static int is_case_file(const struct dirent *e) {
  const char *dot = strrchr(e->d_name, '.');
  return dot && !strcmp(dot, ".kv");
}

static void test_pass(void **state) {
  const char *pass = *state;
  char folder[256], path[600];
  snprintf(folder, sizeof folder, "tests/passes/%s", pass);
  struct dirent **entries;
  int n = scandir(folder, &entries, is_case_file, alphasort);
  if (n <= 0) fail_msg("no cases in %s (run in the root of the source tree)", folder);
  for (int i = 0; i < n; i++) {
    snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
    check_file(path, pass);
    free(entries[i]);
  }
  free(entries);
}

#define PASS(name) \
  { name, test_pass, NULL, NULL, name }

int main(void) {
  const struct CMUnitTest tests[] = {
      PASS("dce"),          PASS("cse"),           PASS("fold"),      PASS("simplify"),   PASS("control"),
      PASS("autodiff"),     PASS("train"),         PASS("precision"), PASS("splat"),      PASS("copies"),
      PASS("pack"),         PASS("layout"),        PASS("batch"),     PASS("split"),      PASS("fuse"),
      PASS("fuse_library"), PASS("check_indices"), PASS("plan"),      PASS("split_gpu"),  PASS("fuse_gpu"),
      PASS("incremental"),  PASS("gather_again"),  PASS("integer"),   PASS("plan_waits"), PASS("sums_late"),
      PASS("join"),         PASS("windows")};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
