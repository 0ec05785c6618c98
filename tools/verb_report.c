/* kvasir report: one page with the curves of any runs, from the JSON lines that they wrote. */
#include "tools/cli.h"
#include "runtime/report.h"

#include <stdlib.h>
#include <unistd.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_report = {
    "report", "[NAME=]FILE.jsonl ... -o FILE.html", "draw the curves of several runs on one page",
    "Reads metrics that kvasir train --metrics wrote. Files with one NAME are runs of one setting with several seeds:\n"
    "their mean is drawn, with a band from the least to the greatest value. A file whose path is NAME=FILE as a whole\n"
    "is taken as that file.\n\n"
    "Examples:\n"
    "  kvasir report a.jsonl b.jsonl -o both.html\n"
    "  kvasir report shift=s0.jsonl shift=s1.jsonl vanilla=v0.jsonl vanilla=v1.jsonl -o seeds.html",
    run};

enum { MAX_FILES = 256 };

typedef struct curve {
  const char *name;
  kva_history *history;
} curve;

/* What is there as it stands, as lr=0.1/metrics.jsonl, has no NAME before it. */
static const char *path_of(const char *text) {
  const char *equals = access(text, F_OK) ? strchr(text, '=') : NULL;
  return equals ? equals + 1 : text;
}

static kva_status read_curve(const char *text, kva_arena *arena, kva_diag *diag, curve *out) {
  const char *path = path_of(text);
  out->name = path != text ? kva_arena_strndup(arena, text, (size_t)(path - text - 1)) : text;
  KVA_TRY(kva_metrics_read(path, diag, &out->history));
  if (kva_history_count(out->history)) return KVA_OK;
  return kva_error(diag, &(kva_loc){.file = path}, "has no steps to draw; did the run end before its first step?");
}

static bool is_first(const curve *curves, int i) {
  for (int k = 0; k < i; k++)
    if (!strcmp(curves[k].name, curves[i].name)) return false;
  return true;
}

/* The mean of all that have the name of curve i. */
static kva_history *mean_of(const curve *curves, int n, int i) {
  const kva_history *same[MAX_FILES];
  int n_same = 0;
  for (int k = i; k < n; k++)
    if (!strcmp(curves[k].name, curves[i].name)) same[n_same++] = curves[k].history;
  return kva_history_mean(n_same, same);
}

static kva_status write_report(const curve *curves, int n, const char *path, kva_diag *diag) {
  kva_report_run runs[MAX_FILES];
  int n_runs = 0;
  kva_status status = KVA_OK;
  for (int i = 0; i < n && status == KVA_OK; i++) {
    if (!is_first(curves, i)) continue;
    kva_history *mean = mean_of(curves, n, i);
    if (!mean) status = kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the curves of %s", curves[i].name);
    if (!mean) break;
    runs[n_runs] = (kva_report_run){.name = curves[i].name, .history = mean};
    runs[n_runs].n_shifts = kva_history_shifts(mean, &runs[n_runs].shifts);
    n_runs++;
  }
  kva_report report = {.title = "Kvasir training report", .n_runs = n_runs, .runs = runs};
  if (status == KVA_OK) status = kva_report_write(path, &report, diag);
  for (int i = 0; i < n_runs; i++) kva_history_destroy((kva_history *)runs[i].history);
  return status;
}

static int run(int argc, char **argv) {
  const char *output = NULL, *files[MAX_FILES], *paths[MAX_FILES];
  const kva_option options[] = {{"--output", "-o", "FILE.html", KVA_OPTION_STRING, &output, "the page"}};
  int n, code = kva_cli_parse(&kva_verb_report, argc, argv, options, 1, files, MAX_FILES, &n);
  if (code >= 0) return code;
  if (!n || !output) {
    fprintf(stderr, "kvasir report: %s\nTry: kvasir report --help\n",
            n ? "give --output FILE.html" : "a file is missing");
    return EXIT_USAGE;
  }
  for (int i = 0; i < n; i++) paths[i] = path_of(files[i]);
  if (kva_cli_replaces_input("report", "-o", output, n, paths)) return EXIT_USAGE;
  kva_arena *arena = kva_arena_create();
  kva_diag *diag = kva_diag_create();
  curve curves[MAX_FILES] = {0};
  kva_status status = kva_file_prepare(output, diag);
  for (int i = 0; i < n && status == KVA_OK; i++) status = read_curve(files[i], arena, diag, &curves[i]);
  if (status == KVA_OK) status = write_report(curves, n, output, diag);
  for (int i = 0; i < n; i++) kva_history_destroy(curves[i].history);
  code = kva_cli_fail(status, diag);
  kva_diag_destroy(diag);
  kva_arena_destroy(arena);
  return code;
}
