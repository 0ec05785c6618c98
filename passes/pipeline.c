/* The pipeline: what happens to a graph, in order. */
#include "passes/passes_internal.h"

/* A pass that asks for the options. */
typedef kva_status (*kva_pass_with)(kva_module *m, const kva_pass_options *o, bool *changed);

typedef struct pass_row {
  const char *name;
  kva_pass run;
  kva_pass_with run_with; /* instead */
} pass_row;

static const pass_row clean_up[] = {{"fold", kva_opt_fold, NULL},
                                    {"simplify", kva_opt_simplify, NULL},
                                    {"control", kva_opt_control, NULL},
                                    {"cse", kva_opt_cse, NULL},
                                    {"dce", kva_opt_dce, NULL}};

enum { MAX_ROUNDS = 8 }; /* of clean-up; real models settle after two or three */

static void print_module(kva_module *m, const char *pass, const kva_pass_options *o) {
  kva_text text = {0};
  kva_module_print(m, &text);
  fprintf(o->print_to ? o->print_to : stdout, "// after %s\n%s\n", pass, text.data ? text.data : "");
  kva_text_free(&text);
}

static kva_status check_reparse(kva_module *m, const char *pass, const kva_pass_options *o) {
  kva_text before = {0}, after = {0};
  kva_module *again = NULL;
  kva_module_print(m, &before);
  kva_status status = o->reparse_fn(before.data, &again, m->diag);
  if (status == KVA_OK) {
    kva_module_print(again, &after);
    if (strcmp(before.data, after.data) != 0)
      status = kva_error(m->diag, NULL, "the dump after pass '%s' does not print the same after parsing", pass);
    kva_module_destroy(again);
  }
  kva_text_free(&before);
  kva_text_free(&after);
  return status;
}

static kva_status run_pass(kva_module *m, const pass_row *row, const kva_pass_options *o, bool *changed) {
  double start = kva_now();
  bool progress = false;
  KVA_TRY(row->run ? row->run(m, &progress) : row->run_with(m, o, &progress));
  *changed |= progress;
  if (o->timing)
    fprintf(stderr, "%-10s %8.2f ms%s\n", row->name, (kva_now() - start) * 1e3, progress ? "" : "  no change");
  if (o->verify) KVA_TRY(kva_module_verify(m));
  if (o->reparse && o->reparse_fn) KVA_TRY(check_reparse(m, row->name, o));
  if (o->print_after && (!strcmp(o->print_after, row->name) || !strcmp(o->print_after, "all")))
    print_module(m, row->name, o);
  return KVA_OK;
}

static kva_status run_clean_up(kva_module *m, const kva_pass_options *o) {
  bool changed = true;
  for (int round = 0; changed && round < MAX_ROUNDS; round++) {
    changed = false;
    for (size_t i = 0; i < sizeof clean_up / sizeof *clean_up; i++) KVA_TRY(run_pass(m, &clean_up[i], o, &changed));
  }
  return KVA_OK;
}

bool kva_pass_exists(const char *name) {
  static const char *const others[] = {"raise", "splat", "split", "fuse"};
  for (size_t i = 0; i < sizeof clean_up / sizeof *clean_up; i++)
    if (!strcmp(clean_up[i].name, name)) return true;
  for (size_t i = 0; i < sizeof others / sizeof *others; i++)
    if (!strcmp(others[i], name)) return true;
  return false;
}

kva_status kva_optimize(kva_module *m, const kva_pass_options *options) {
  bool raised = false;
  KVA_TRY(run_clean_up(m, options));
  KVA_TRY(run_pass(m, &(pass_row){"raise", kva_raise, NULL}, options, &raised));
  return raised ? run_clean_up(m, options) : KVA_OK;
}

kva_status kva_prepare(kva_module *m, const kva_pass_options *options) {
  bool changed = false;
  KVA_TRY(run_pass(m, &(pass_row){"splat", kva_opt_splat, NULL}, options, &changed));
  if (options->compute) {
    KVA_TRY(kva_precision(m, options->compute));
    KVA_TRY(run_clean_up(m, options));
  }
  KVA_TRY(run_pass(m, &(pass_row){"split", NULL, kva_opt_split}, options, &changed));
  return run_pass(m, &(pass_row){"fuse", NULL, kva_fuse}, options, &changed);
}
