/* Golden tests: tests/passes/<pass>/<topic>.kv holds cases, each a module before the pass and the dump after it:
 *
 *   # remarks
 *   #=== before: what the case shows
 *   main (float[4] x) => (float[4] y) { ... }
 *   #=== after
 *   ...
 *
 * or, where the pass must refuse, `#=== error` and its messages. KVA_UPDATE=1 rewrites what follows `after` and
 * `error`. Beside the text, every case is checked for meaning: where the pass keeps it, the reference agrees before and
 * after (and for fuse and plan compiled code does); a second run of a pass changes nothing.
 *
 * fold, simplify, control, cse, dce    the pass alone, then dce
 * fuse, fuse_gpu, fuse_library    the pass alone
 * autodiff                    gradients of output 0 become further outputs, then cleaned up
 * train                       kva_make_training
 * splat                       the pass alone; states are other numbers here, so meaning is not compared
 * precision                   to bfloat16, then cse and dce; the meaning is kept but for its rounding
 * plan                        clean-up, fuse, and the plan of function 0 as text, settled */
#include "tests/support/evaluate.h"
#include "ops/ids.h"

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
  const char *path, *pass;
  char *text, *remarks;
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

static void parse_file(golden_file *g) {
  static const char before[] = "#=== before: ", after[] = "#=== after", error[] = "#=== error";
  char *at = strstr(g->text, before);
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

static kva_status split(kva_module *m, bool *changed) {
  return kva_opt_split(m, &(kva_pass_options){0}, changed);
}

static kva_status split_gpu(kva_module *m, bool *changed) {
  return kva_opt_split(m, &(kva_pass_options){.target = kva_target_gpu("sm_80")}, changed);
}

static kva_status fuse(kva_module *m, bool *changed) {
  return kva_fuse(m, &(kva_pass_options){0}, changed);
}

static kva_status fuse_gpu(kva_module *m, bool *changed) {
  return kva_fuse(m, &(kva_pass_options){.target = kva_target_gpu("sm_80")}, changed);
}

static kva_status fuse_library(kva_module *m, bool *changed) {
  kva_target target = *kva_target_gpu("sm_80");
  target.library_gemm = true;
  return kva_fuse(m, &(kva_pass_options){.target = &target}, changed);
}

static kva_pass pass_named(const char *name) {
  static const struct {
    const char *name;
    kva_pass run;
  } rows[] = {{"fold", kva_opt_fold},
              {"simplify", kva_opt_simplify},
              {"control", kva_opt_control},
              {"cse", kva_opt_cse},
              {"dce", kva_opt_dce},
              {"splat", kva_opt_splat},
              {"split", split},
              {"fuse", fuse},
              {"fuse_library", fuse_library},
              {"split_gpu", split_gpu},
              {"fuse_gpu", fuse_gpu}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
    if (!strcmp(rows[i].name, name)) return rows[i].run;
  return NULL;
}

static kva_status run_pass(const golden_file *g, const golden_case *c, kva_module *m) {
  bool changed = false, again = false;
  KVA_TRY(pass_named(g->pass)(m, &changed));
  if (strncmp(g->pass, "fuse", 4) != 0) KVA_TRY(kva_opt_dce(m, &changed));
  KVA_TRY(pass_named(g->pass)(m, &again));
  if (again) fail_msg("%s: '%s': a second run still changes something", g->path, c->title);
  return kva_module_verify(m);
}

static kva_status set_precision(kva_module *m) {
  bool changed = false;
  KVA_TRY(kva_precision(m, KVA_BF16));
  KVA_TRY(kva_module_verify(m));
  KVA_TRY(kva_opt_cse(m, &changed));
  return kva_opt_dce(m, &changed);
}

static kva_status differentiate(kva_module *m) {
  kva_function *f = m->functions.data[0];
  kva_value **grads = KVA_NEW_ARRAY(m->arena, kva_value *, m->states.len + 1);
  KVA_TRY(kva_autodiff(m, f, kva_graph_output(f->graph, 0), grads));
  kva_node *ret = f->graph->last;
  kva_value *outputs[16];
  const char **names = KVA_NEW_ARRAY(m->arena, const char *, 16);
  uint32_t n = 0;
  outputs[n] = kva_operand(ret, 0);
  names[n++] = "loss";
  for (uint32_t i = 0; i < m->states.len; i++) {
    if (!grads[i]) continue;
    outputs[n] = grads[i];
    names[n++] = kva_arena_printf(m->arena, "d %s", m->states.data[i]->name);
  }
  kva_node_create(f->graph, ret, ret->op, n, outputs, 0, NULL, ret->loc);
  kva_node_remove(ret);
  f->output_names = names;
  KVA_TRY(kva_module_verify(m));
  return kva_optimize(m, &(kva_pass_options){.verify = true});
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

static void print_buffer(const kva_memory_plan *p, int32_t i, kva_text *out) {
  static const char *const places[] = {"input", "output", "state", "const", "temp"};
  const kva_plan_buffer *b = &p->buffers.data[i];
  kva_text_add(out, "buffer %d: %s", i, places[b->place]);
  if (b->place != KVA_PLACE_TEMP && b->place != KVA_PLACE_CONST) kva_text_add(out, " %s", b->name);
  kva_text_add(out, " ");
  kva_type_print(b->type, out);
  if (b->place == KVA_PLACE_TEMP) kva_text_add(out, ", steps %d to %d", b->first_step, b->last_step);
  kva_text_add(out, "\n");
}

static void print_step(const kva_memory_plan *p, uint32_t i, kva_text *out) {
  const kva_plan_step *s = &p->steps.data[i];
  if (!s->node) {
    kva_text_add(out, "step %u: copy %d <- %d\n", i, s->args[0], s->args[1]);
    return;
  }
  bool group = kva_is(s->node, KVA_OP_kernel);
  kva_text_add(out, "step %u: %s (", i, group ? ((const kva_kernel_attrs *)s->node->attrs)->name : s->node->op->name);
  uint32_t n_in = s->n_args - s->node->n_results;
  for (uint32_t k = 0; k < s->n_args; k++) {
    if (k == n_in) kva_text_add(out, ") -> ");
    kva_text_add(out, k == 0 || k == n_in ? "%d" : ", %d", s->args[k]);
  }
  kva_text_add(out, n_in == s->n_args ? ")\n" : "\n");
}

static void print_plan(const kva_memory_plan *p, kva_text *out) {
  for (uint32_t i = 0; i < p->buffers.len; i++) print_buffer(p, (int32_t)i, out);
  for (uint32_t i = 0; i < p->steps.len; i++) print_step(p, i, out);
  for (uint32_t i = 0; i < p->steps.len; i++)
    for (int k = 0; k < 2 && p->steps.data[i].programs[k]; k++) {
      kva_text_add(out, "plan %s\n", p->steps.data[i].programs[k]->name);
      print_plan(p->steps.data[i].programs[k], out);
    }
}

/* As settled for this machine's CPU. */
static kva_status plan(kva_module *m, kva_text *out) {
  KVA_TRY(kva_optimize(m, &(kva_pass_options){.verify = true}));
  KVA_TRY(kva_prepare(m, &(kva_pass_options){.verify = true}));
  kva_memory_plan *p;
  kva_codegen *cg;
  KVA_TRY(kva_plan(m, m->functions.data[0], m->arena, &p));
  KVA_TRY(kva_codegen_create(NULL, m->diag, &cg));
  kva_status status = kva_codegen_settle(m->arena, p, kva_codegen_target(cg));
  kva_codegen_destroy(cg);
  KVA_TRY(status);
  print_plan(p, out);
  return KVA_OK;
}

/* ---- checking ---------------------------------------------------------------------------------------------------- */

static bool is(const golden_file *g, const char *pass) {
  return !strcmp(g->pass, pass);
}

static outcome run(const golden_file *g, const golden_case *c, kva_module *m) {
  outcome o = {0};
  if (is(g, "plan"))
    o.status = plan(m, &o.text);
  else if (is(g, "autodiff"))
    o.status = differentiate(m);
  else if (is(g, "precision"))
    o.status = set_precision(m);
  else if (is(g, "train"))
    o.status = kva_make_training(m, &(kva_pass_options){.verify = true});
  else
    o.status = run_pass(g, c, m);
  if (o.status == KVA_OK && !is(g, "plan")) kva_module_print(m, &o.text);
  for (size_t i = 0; o.status != KVA_OK && i < kva_diag_count(m->diag); i++)
    kva_text_add(&o.text, "%s\n", kva_diag_message(m->diag, i, NULL, NULL));
  return o;
}

static void check_compiled(const golden_file *g, const golden_case *c, const evaluated *before) {
  kva_diag *diag = kva_diag_create();
  kva_compiled *compiled;
  if (kva_compile(load(g, c, diag), &(kva_compile_options){.target = {.opt_level = 1}}, diag, &compiled)) {
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
  bool keeps_meaning = !is(g, "autodiff") && !is(g, "train") && !is(g, "splat") && !c->is_error;
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
    if (!strncmp(g->pass, "fuse", 4) || is(g, "plan")) check_compiled(g, c, &before);
  }
  evaluated_free(&before);
  kva_module_destroy(m);
  kva_diag_destroy(diag);
  return o.text;
}

static void check_file(const char *path, const char *pass) {
  golden_file *g = calloc(1, sizeof *g);
  bool update = getenv("KVA_UPDATE") != NULL;
  g->path = path;
  g->pass = pass;
  g->text = read_text(path);
  parse_file(g);
  if (!g->n) fail_msg("%s: no cases", path);
  kva_text out = {0};
  kva_text_add(&out, "%s", g->remarks);
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
  const struct CMUnitTest tests[] = {PASS("dce"),     PASS("cse"),       PASS("fold"),    PASS("simplify"),
                                     PASS("control"), PASS("autodiff"),  PASS("train"),   PASS("precision"),
                                     PASS("splat"),   PASS("split"),     PASS("fuse"),    PASS("fuse_library"),
                                     PASS("plan"),    PASS("split_gpu"), PASS("fuse_gpu")};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
