/* Executes the examples of docs/language.md: fenced blocks marked `kv`, with options as for the tool, and `error: text`
 * for those that must fail. Examples without an error are in canonical form, dumps aside (the IR's printer writes
 * those). */
#include "tests/frontend/kv_test.h"

enum { MAX_OPTIONS = 8 };

typedef struct example {
  char text[8192];
  char options[256]; /* what follows "kv" */
  kva_define defines[MAX_OPTIONS], pins[MAX_OPTIONS];
  kva_load_options load;
  const char *error; /* NULL: must load */
} example;

static void add_option(const char *word, uint32_t *n, kva_define *list) {
  char *equals = strchr(word, '=');
  assert_non_null(equals);
  assert_true(*n < MAX_OPTIONS);
  *equals = 0;
  list[(*n)++] = (kva_define){word, equals + 1};
}

static void parse_options(example *e) {
  e->load = (kva_load_options){.defines = e->defines, .pins = e->pins};
  char *error = strstr(e->options, "error: ");
  e->error = error ? error + strlen("error: ") : NULL;
  if (error) *error = 0;
  char *save = NULL;
  for (char *w = strtok_r(e->options, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
    bool define = !strcmp(w, "-D");
    if (!define) assert_string_equal(w, "--pin");
    w = strtok_r(NULL, " ", &save);
    assert_non_null(w);
    add_option(w, define ? &e->load.n_defines : &e->load.n_pins, define ? e->defines : e->pins);
  }
}

static bool has_message(const kva_diag *diag, const char *part) {
  for (size_t i = 0; i < kva_diag_count(diag); i++) {
    if (strstr(kva_diag_message(diag, i, NULL, NULL), part)) return true;
  }
  return false;
}

static void check_canonical(const example *e) {
  kva_diag *diag = kva_diag_create();
  kva_text out = {0};
  assert_int_equal(kva_format_text(e->text, "language.md", diag, &out), KVA_OK);
  if (strncmp(e->text, "module", 6)) assert_string_equal(out.data, e->text);
  kva_text_free(&out);
  kva_diag_destroy(diag);
}

static void check(example *e) {
  parse_options(e);
  loaded l = load_with(e->text, &e->load);
  bool as_said = e->error ? has_message(l.diag, e->error) : l.status == KVA_OK;
  if (!as_said) {
    kva_diag_print(l.diag, stderr);
    fail_msg("expected %s:\n%s", e->error ? e->error : "no error", e->text);
  }
  if (!e->error) check_canonical(e);
  unload(&l);
}

/* Copies the block that starts at `line` (its fence); returns what follows it. */
static const char *take_block(const char *line, example *e) {
  const char *end = strchr(line, '\n');
  assert_non_null(end);
  snprintf(e->options, sizeof e->options, "%.*s", (int)(end - line - 5), line + 5);
  const char *close = strstr(end, "\n```");
  assert_non_null(close);
  assert_true((size_t)(close - end) < sizeof e->text);
  snprintf(e->text, sizeof e->text, "%.*s\n", (int)(close - end - 1), end + 1);
  return close + 4;
}

static void examples(void **state) {
  (void)state;
  char *text = read_text("docs/language.md");
  int n = 0, errors = 0;
  for (const char *p = strstr(text, "```kv"); p; p = strstr(p, "```kv")) {
    static example e;
    p = take_block(p, &e);
    check(&e);
    n++;
    errors += e.error != NULL;
  }
  assert_true(n >= 15 && errors >= 4);
  free(text);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(examples)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
