/* kvasir experiment: runs experiments that files describe, and judges what they claim. */
#include "tools/cli.h"
#include "tools/experiment/experiment.h"
#include "runtime/checkpoint.h"
#include "runtime/exe/train.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int run(int argc, char **argv);

const kva_verb kva_verb_experiment = {
    "experiment", "NAME|FILE.exp ... [options]", "run experiments and compare them with a paper's claims",
    "NAME is one of those that ship (--list), most of them a figure or table of KV Shifting Attention (arXiv "
    "2411.19574).\n"
    "Each run is a command of this tool in a process of its own; what is done is kept in the output folder and not\n"
    "repeated. Writes NAME.json, NAME.html and its figures as SVG; prints every verdict. A run that fails stops no "
    "other.\n"
    "The exit code is 1 if a claim or a run fails.\n\n"
    "Examples:\n"
    "  kvasir experiment --list\n"
    "  kvasir experiment fig1a --quick\n"
    "  kvasir experiment --all --quick --seeds 3 -o results\n"
    "  kvasir experiment my.exp",
    run};

typedef struct experiment_options {
  kva_exp_settings settings;
  const char *text;
  kva_strings files;
  bool all, list, quick, paper;
} experiment_options;

/* ---- which ------------------------------------------------------------------------------------------------------- */

/* Where the experiments that ship lie: below the current folder, beside an installed tool, or in the source of a built
 * one. */
static const char *shipped_folder(kva_arena *arena) {
  static const char *const places[] = {"/../share/kvasir/models/experiments", "/../../models/experiments"};
  char exe[4096];
  ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
  if (!access("models/experiments", F_OK)) return "models/experiments";
  while (n > 0 && exe[n] != '/') n--;
  for (size_t i = 0; n > 0 && i < sizeof places / sizeof *places; i++) {
    char *real = realpath(kva_arena_printf(arena, "%.*s%s", (int)n, exe, places[i]), NULL);
    const char *found = real ? kva_arena_strdup(arena, real) : NULL;
    free(real);
    if (found) return found;
  }
  return NULL;
}

static int is_experiment(const struct dirent *entry) {
  size_t n = strlen(entry->d_name);
  return n > 4 && !strcmp(entry->d_name + n - 4, ".exp");
}

typedef struct paths {
  KVA_VEC(const char *) list;
} paths;

static kva_status add_shipped(kva_arena *arena, kva_diag *diag, paths *out) {
  const char *folder = shipped_folder(arena);
  struct dirent **entries;
  int n = folder ? scandir(folder, &entries, is_experiment, versionsort) : -1;
  if (n < 0)
    return kva_fail(diag, KVA_MISSING, NULL, "the folder models/experiments is neither here nor beside the tool");
  for (int i = 0; i < n; i++) {
    const char *path = kva_arena_printf(arena, "%s/%s", folder, entries[i]->d_name);
    KVA_PUSH(arena, &out->list, path);
    free(entries[i]);
  }
  free(entries);
  return KVA_OK;
}

/* A name stands for a file that ships. */
static kva_status add_named(const char *name, kva_arena *arena, kva_diag *diag, paths *out) {
  const char *folder = strchr(name, '/') || strstr(name, ".exp") ? NULL : shipped_folder(arena);
  const char *path = folder ? kva_arena_printf(arena, "%s/%s.exp", folder, name) : name;
  if (access(path, R_OK))
    return kva_error(diag, NULL, "there is no experiment '%s'; --list names those that ship, others are files FILE.exp",
                     name);
  KVA_PUSH(arena, &out->list, path);
  return KVA_OK;
}

/* Results and pages have the names of their experiments, and the page of all together is all.html. */
static kva_status check_names(const kva_experiment *e, uint32_t n, kva_diag *diag) {
  for (uint32_t i = 0; i < n; i++) {
    if (n > 1 && !strcmp(e[i].name, "all"))
      return kva_error(diag, &(kva_loc){.file = e[i].path},
                       "among several, no experiment can be called 'all': their common page is; run it alone, or "
                       "rename the file");
    for (uint32_t k = 0; k < i; k++)
      if (!strcmp(e[i].name, e[k].name))
        return kva_error(diag, &(kva_loc){.file = e[i].path},
                         "results would replace those of %s, which has the same name; run one after the other, with "
                         "an -o for each, or rename the file",
                         e[k].path);
  }
  return KVA_OK;
}

static kva_status read_all(const paths *p, kva_arena *arena, kva_diag *diag, kva_experiment **out) {
  *out = KVA_NEW_ARRAY(arena, kva_experiment, p->list.len + 1);
  for (uint32_t i = 0; i < p->list.len; i++) KVA_TRY(kva_experiment_read(p->list.data[i], arena, diag, &(*out)[i]));
  return check_names(*out, p->list.len, diag);
}

static void print_list(const kva_experiment *e, uint32_t n) {
  for (uint32_t i = 0; i < n; i++)
    printf("%-10s %s%s%s%s\n", e[i].name, e[i].title, e[i].paper ? " (" : "", e[i].paper ? e[i].paper : "",
           e[i].paper ? ")" : "");
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

/* Texts as bytes, for experiments with {text} in their options. Made by every command, since texts change: what a run
 * is depends on the bytes of this file, not on where the texts lie. */
static kva_status make_tokens(const char *given, kva_exp_settings *o, kva_arena *arena, kva_diag *diag) {
  const char *from = given ? given : "/usr/share/common-licenses";
  const char *to =
      kva_arena_printf(arena, "%s/text-%016llx.tok", o->folder, (unsigned long long)kva_hash(0, from, strlen(from)));
  char *argv[] = {"kvasir", "data", (char *)from, "-o", (char *)to, NULL};
  if (access(from, R_OK) && !given) return KVA_OK; /* an experiment that needs one says so */
  kva_exp_file text = {"text", to};
  KVA_PUSH(arena, &o->files, text);
  fflush(NULL);
  pid_t pid = fork();
  int status = 0;
  if (pid == 0) {
    if (freopen("/dev/null", "w", stdout)) execv("/proc/self/exe", argv);
    _exit(127);
  }
  if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
    return kva_error(diag, NULL, "cannot make tokens of the text %s", from);
  return KVA_OK;
}

/* "NAME=PATH" */
static kva_status add_files(experiment_options *o, kva_arena *arena, kva_diag *diag) {
  for (uint32_t i = 0; i < o->files.n; i++) {
    const char *equals = strchr(o->files.v[i], '=');
    if (!equals) return kva_error(diag, NULL, "--file: expected NAME=PATH, found '%s'", o->files.v[i]);
    kva_exp_file file = {kva_arena_strndup(arena, o->files.v[i], (size_t)(equals - o->files.v[i])), equals + 1};
    if (access(file.path, R_OK)) return kva_error(diag, NULL, "--file: cannot read '%s'", file.path);
    KVA_PUSH(arena, &o->settings.files, file);
  }
  return make_tokens(o->text, &o->settings, arena, diag);
}

/* For whoever runs it again. */
static const char *given_text(const experiment_options *o, kva_arena *arena) {
  const char *text = "";
  if (o->text) text = kva_arena_printf(arena, " --text %s", o->text);
  for (uint32_t i = 0; i < o->files.n; i++) text = kva_arena_printf(arena, "%s --file %s", text, o->files.v[i]);
  return o->settings.device ? kva_arena_printf(arena, "%s --device %s", text, o->settings.device) : text;
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static void print_verdicts(const kva_exp_outcome *o) {
  printf("%s: %s\n", o->experiment->name, o->experiment->title);
  for (uint32_t i = 0; i < o->experiment->claims.len; i++)
    printf("  %-6s  %s\n          %s\n", o->verdicts[i].holds ? "holds" : "FAILED", o->experiment->claims.data[i].text,
           o->verdicts[i].ours);
}

static bool all_hold(const kva_exp_outcome *o) {
  for (uint32_t c = 0; c < o->experiment->claims.len; c++)
    if (!o->verdicts[c].holds) return false;
  return true;
}

/* Names the runs that failed. */
static bool all_ran(const kva_exp_outcome *o) {
  bool all = true;
  for (int64_t i = 0; i < o->experiment->runs.len * o->seeds; i++) {
    const kva_exp_job *job = &o->jobs[i];
    if (!job->failure) continue;
    all = false;
    fprintf(stderr, "%s: the run '%s' with seed %lld %s\n  %s\n", o->experiment->path,
            o->experiment->runs.data[job->run].name, (long long)job->seed, job->failure,
            job->commands.data[job->at].text ? job->commands.data[job->at].text : "its configuration");
  }
  return all;
}

static int code_of(const kva_exp_outcome *outcomes, uint32_t n, bool dry_run) {
  bool good = true;
  for (uint32_t i = 0; i < n; i++) {
    bool ran = all_ran(&outcomes[i]);
    good = good && ran && (dry_run || all_hold(&outcomes[i]));
  }
  return good ? EXIT_DONE : EXIT_NO;
}

static kva_status run_jobs(const kva_experiment *e, uint32_t n, const kva_exp_settings *o, kva_arena *arena,
                           kva_diag *diag, kva_exp_outcome *outcomes) {
  KVA_VEC(kva_exp_job *) jobs = {0};
  for (uint32_t i = 0; i < n; i++) {
    uint32_t own;
    outcomes[i] = (kva_exp_outcome){.experiment = &e[i], .seeds = kva_exp_seeds(&e[i], o)};
    KVA_TRY(kva_exp_expand(&e[i], o, arena, diag, &outcomes[i].jobs, &own));
    for (uint32_t k = 0; k < own; k++)
      if (outcomes[i].jobs[k].commands.len) KVA_PUSH(arena, &jobs, &outcomes[i].jobs[k]);
  }
  return kva_exp_run_jobs(jobs.data, jobs.len, o, arena, diag);
}

/* What the runs of an experiment would take. */
static void print_plans(const kva_exp_outcome *o) {
  printf("%s: %s\n", o->experiment->name, o->experiment->title);
  for (uint32_t i = 0; i < o->experiment->runs.len; i++) {
    kva_exp_cost c;
    printf("  %-28s ", o->experiment->runs.data[i].name);
    if (kva_exp_cost_of(&o->jobs[i], &c))
      printf("%.4g parameters, %.2f GiB, %.3g FLOPs a step, %.0f steps: %.3g FLOPs\n", c.parameters,
             c.bytes / (1 << 30), c.step_flops, c.steps, c.step_flops * c.steps);
    else
      printf("%s\n", o->jobs[i].failure ? o->jobs[i].failure : "no training");
  }
}

static kva_status perform(const kva_experiment *e, uint32_t n, const kva_exp_settings *o, kva_arena *arena,
                          kva_diag *diag, kva_exp_outcome *outcomes) {
  KVA_TRY(run_jobs(e, n, o, arena, diag, outcomes));
  for (uint32_t i = 0; i < n && o->dry_run; i++) print_plans(&outcomes[i]);
  if (o->dry_run) return KVA_OK;
  for (uint32_t i = 0; i < n; i++) {
    KVA_TRY(kva_exp_judge(&e[i], outcomes[i].jobs, outcomes[i].seeds, arena, diag, &outcomes[i].verdicts));
    print_verdicts(&outcomes[i]);
  }
  KVA_TRY(kva_exp_write(outcomes, n, o, arena, diag));
  printf("results: %s/%s.html\n", o->folder, n > 1 ? "all" : e[0].name);
  return KVA_OK;
}

static void free_jobs(const kva_exp_outcome *outcomes, uint32_t n) {
  for (uint32_t i = 0; i < n && outcomes[i].jobs; i++)
    for (int64_t k = 0; k < outcomes[i].experiment->runs.len * outcomes[i].seeds; k++)
      kva_exp_job_free(&outcomes[i].jobs[k]);
}

/* Makes the folder for results, and keeps other commands from writing there, who would remove what this one writes. */
static kva_status take_folder(const char *folder, kva_diag *diag, int *out_lock) {
  KVA_TRY(kva_folder_make(folder, 0777, diag));
  return kva_folder_lock(folder, "another kvasir experiment writes its results to this folder", diag, out_lock);
}

static int run_all(experiment_options *o, const paths *p, kva_arena *arena, kva_diag *diag) {
  kva_experiment *e;
  int lock = -1;
  kva_status status = read_all(p, arena, diag, &e);
  if (status == KVA_OK && o->list) {
    print_list(e, p->list.len);
    return EXIT_DONE;
  }
  if (status == KVA_OK) status = take_folder(o->settings.folder, diag, &lock);
  if (status == KVA_OK) status = add_files(o, arena, diag);
  kva_exp_outcome *outcomes = KVA_NEW_ARRAY(arena, kva_exp_outcome, p->list.len + 1);
  if (status == KVA_OK) status = perform(e, p->list.len, &o->settings, arena, diag, outcomes);
  if (status == KVA_OK) kva_diag_print(diag, stderr); /* warnings */
  int code = status != KVA_OK ? kva_cli_fail(status, diag) : code_of(outcomes, p->list.len, o->settings.dry_run);
  if (status == KVA_INTERRUPTED) fprintf(stderr, "interrupted; the same command goes on with what is not done\n");
  free_jobs(outcomes, p->list.len);
  kva_checkpoint_unlock(lock);
  return code;
}

static int run(int argc, char **argv) {
  experiment_options o = {.settings = {.folder = "experiments"}};
  const kva_option options[] = {
      {"--list", NULL, NULL, KVA_OPTION_FLAG, &o.list, "print the names of those that ship"},
      {"--all", NULL, NULL, KVA_OPTION_FLAG, &o.all, "all that ship, with a page for all"},
      {"--quick", NULL, NULL, KVA_OPTION_FLAG, &o.quick, "smaller: all of them in less than an hour on two cores"},
      {"--paper", NULL, NULL, KVA_OPTION_FLAG, &o.paper, "as large as the paper's, where the file says how"},
      {"--seeds", NULL, "N", KVA_OPTION_COUNT, &o.settings.seeds, "seeds 0 to N - 1 for each run (the file's number)"},
      {"--jobs", "-j", "N", KVA_OPTION_COUNT, &o.settings.jobs, "runs at a time (one a core)"},
      {"--output", "-o", "DIR", KVA_OPTION_STRING, &o.settings.folder, "results and pages (experiments)"},
      {"--text", NULL, "PATH", KVA_OPTION_STRING, &o.text,
       "text of the language models: files or a folder (/usr/share/common-licenses)"},
      {"--file", NULL, "NAME=PATH", KVA_OPTION_LIST, &o.files, "instead of a file or folder that an experiment names"},
      {"--dry-run", NULL, NULL, KVA_OPTION_FLAG, &o.settings.dry_run,
       "print parameters, memory and work of each training, and run none"},
      {"--device", NULL, KVA_DEVICES, KVA_OPTION_WORD, &o.settings.device, "where to train (cpu)"},
  };
  enum { MAX_NAMES = 64 };
  const char *names[MAX_NAMES];
  int n, code = kva_cli_parse(&kva_verb_experiment, argc, argv, options, sizeof options / sizeof *options, names,
                              MAX_NAMES, &n);
  if (code >= 0) return code;
  if ((n > 0) + o.all + o.list != 1 || (o.quick && o.paper)) {
    fprintf(stderr, "kvasir experiment: give names, or --all, or --list; and --quick or --paper or neither\n"
                    "Try: kvasir experiment --help\n");
    return EXIT_USAGE;
  }
  kva_arena *arena = kva_arena_create();
  o.settings.given = given_text(&o, arena);
  o.settings.scale = o.quick ? KVA_SCALE_QUICK : o.paper ? KVA_SCALE_PAPER : KVA_SCALE_FILE;
  kva_diag *diag = kva_diag_create();
  paths p = {0};
  kva_status status = n ? KVA_OK : add_shipped(arena, diag, &p);
  for (int i = 0; i < n && status == KVA_OK; i++) status = add_named(names[i], arena, diag, &p);
  if (!o.list) kva_train_catch_signals(); /* runs are ended by them, a list just ends */
  code = status == KVA_OK ? run_all(&o, &p, arena, diag) : kva_cli_fail(status, diag);
  kva_diag_destroy(diag);
  kva_arena_destroy(arena);
  return code;
}
