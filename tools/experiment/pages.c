/* What an experiment leaves: results as JSON, a page, figures as SVG files.
 *
 * The JSON of two runs of one command is the same but for the object "machine". */
#include "tools/experiment/figures.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <unistd.h>

static const char *const scales[KVA_N_SCALES] = {"default", "quick", "paper"};

/* ---- the machine ------------------------------------------------------------------------------------------------- */

static const char *processor(kva_arena *arena) {
  FILE *f = fopen("/proc/cpuinfo", "re");
  char line[256];
  const char *found = NULL;
  while (f && !found && fgets(line, sizeof line, f)) {
    if (strncmp(line, "model name", 10) != 0 || !strchr(line, ':')) continue;
    line[strcspn(line, "\n")] = 0;
    found = kva_arena_strdup(arena, strchr(line, ':') + 2);
  }
  if (f) fclose(f);
  return found ? found : "unknown processor";
}

static const char *machine(kva_arena *arena) {
  struct utsname u;
  if (uname(&u)) return processor(arena);
  return kva_arena_printf(arena, "%s, %s, %ld cores, %s %s", processor(arena), u.machine, sysconf(_SC_NPROCESSORS_ONLN),
                          u.sysname, u.release);
}

static double seconds_of(const kva_exp_outcome *o) {
  double sum = 0;
  for (int64_t i = 0; i < o->experiment->runs.len * o->seeds; i++) sum += o->jobs[i].seconds;
  return sum;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *number(double v) {
  return isfinite(v) ? json_real(v) : json_null();
}

static json_t *values_json(const kva_exp_job *job) {
  json_t *values = json_object();
  for (uint32_t i = 0; i < job->values.len; i++)
    json_object_set_new(values, job->values.data[i].name, number(job->values.data[i].value));
  for (int i = 0; job->history && i < kva_history_count(job->history); i++) {
    kva_series s = kva_history_at(job->history, i);
    char name[160];
    snprintf(name, sizeof name, "%s%s", s.evaluation ? "eval " : "", s.name);
    if (s.n && strcmp(s.name, "seconds") != 0) json_object_set_new(values, name, number(s.values[s.n - 1]));
  }
  return values;
}

static json_t *commands_json(const kva_exp_job *job) {
  json_t *commands = json_array();
  for (uint32_t i = 0; i < job->commands.len; i++)
    if (job->commands.data[i].text) json_array_append_new(commands, json_string(job->commands.data[i].text));
  return commands;
}

static json_t *outcome_json(const kva_exp_outcome *o, const kva_exp_settings *settings, kva_arena *arena) {
  const kva_experiment *e = o->experiment;
  json_t *runs = json_array(), *claims = json_array();
  for (uint32_t i = 0; i < e->runs.len * o->seeds; i++) {
    const kva_exp_job *job = &o->jobs[i];
    json_array_append_new(runs, json_pack("{s:s, s:I, s:o, s:s*, s:o}", "run", e->runs.data[job->run].name, "seed",
                                          (json_int_t)job->seed, "commands", commands_json(job), "failed", job->failure,
                                          "values", values_json(job)));
  }
  for (uint32_t i = 0; i < e->claims.len; i++)
    json_array_append_new(claims,
                          json_pack("{s:s, s:s?, s:s, s:b, s:I}", "claim", e->claims.data[i].text, "paper",
                                    e->claims.data[i].paper, "ours", o->verdicts[i].ours, "holds",
                                    (int)o->verdicts[i].holds, "seeds that hold", (json_int_t)o->verdicts[i].held));
  return json_pack("{s:s, s:s, s:s?, s:s, s:I, s:s, s:o, s:o, s:{s:s, s:f}}", "experiment", e->name, "title", e->title,
                   "paper", e->paper, "scale", scales[settings->scale], "seeds", (json_int_t)o->seeds, "version",
                   KVA_VERSION, "claims", claims, "runs", runs, "machine", "name", machine(arena), "seconds",
                   seconds_of(o));
}

static kva_status write_json(const kva_exp_outcome *o, const kva_exp_settings *settings, kva_arena *arena,
                             kva_diag *diag) {
  json_t *root = outcome_json(o, settings, arena);
  char *text = root ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(17)) : NULL;
  json_decref(root);
  if (!text) return kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory for the results of %s", o->experiment->name);
  const char *path = kva_arena_printf(arena, "%s/%s.json", settings->folder, o->experiment->name);
  kva_status status = kva_file_write(path, text, strlen(text), diag);
  free(text);
  return status;
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

/* The mean of the seeds' curves; a single one is borrowed. */
static kva_status mean_of(const kva_exp_outcome *o, uint32_t run, kva_arena *arena, const kva_history **out) {
  const kva_history **all = KVA_NEW_ARRAY(arena, const kva_history *, o->seeds);
  for (int64_t s = 0; s < o->seeds; s++) all[s] = o->jobs[run * o->seeds + s].history;
  *out = o->seeds == 1 ? all[0] : kva_history_mean((int)o->seeds, all);
  return *out ? KVA_OK : KVA_NO_MEMORY;
}

static kva_status add_runs(const kva_exp_outcome *o, kva_arena *arena, kva_report *r) {
  const kva_experiment *e = o->experiment;
  kva_report_run *runs = KVA_NEW_ARRAY(arena, kva_report_run, e->runs.len);
  r->runs = runs;
  if (strcmp(e->verb, "train") != 0) return KVA_OK;
  for (uint32_t i = 0; i < e->runs.len; i++) {
    kva_report_run *run = &runs[r->n_runs];
    if (kva_exp_failure(o->jobs, o->seeds, i)) continue;
    run->name = e->runs.data[i].name;
    KVA_TRY(mean_of(o, i, arena, &run->history));
    run->n_shifts = kva_history_shifts(run->history, &run->shifts);
    r->n_runs++;
  }
  return KVA_OK;
}

static void free_means(const kva_exp_outcome *o, const kva_report *r) {
  for (int i = 0; i < r->n_runs && o->seeds > 1; i++) kva_history_destroy((kva_history *)r->runs[i].history);
}

static void add_claims(const kva_exp_outcome *o, kva_arena *arena, kva_report *r) {
  const kva_experiment *e = o->experiment;
  kva_report_claim *claims = KVA_NEW_ARRAY(arena, kva_report_claim, e->claims.len + 1);
  for (uint32_t i = 0; i < e->claims.len; i++)
    claims[i] =
        (kva_report_claim){e->claims.data[i].text, e->claims.data[i].paper, o->verdicts[i].ours, o->verdicts[i].holds};
  r->claims = claims;
  r->n_claims = (int)e->claims.len;
}

typedef struct items {
  KVA_VEC(kva_report_item) list;
} items;

/* Commands of the first seed. */
static void add_commands(const kva_exp_outcome *o, kva_arena *arena, items *out) {
  for (uint32_t i = 0; i < o->experiment->runs.len; i++) {
    const kva_exp_job *job = &o->jobs[i * o->seeds];
    for (uint32_t k = 0; k < job->commands.len; k++) {
      kva_report_item item = {job->commands.data[k].name, job->commands.data[k].text};
      if (item.value) KVA_PUSH(arena, &out->list, item);
    }
  }
}

static bool is_common(const kva_exp_outcome *o, const char *name, const char *value) {
  for (uint32_t i = 0; i < o->experiment->runs.len; i++) {
    const char *other = kva_exp_config_of(&o->jobs[i * o->seeds], name);
    if (other && strcmp(other, value) != 0) return false;
  }
  return true;
}

/* Data, batch, rate and so on: once where all runs have the same, else for each. */
static void add_settings(const kva_exp_outcome *o, kva_arena *arena, items *out) {
  const kva_exp_job *first = &o->jobs[0];
  for (uint32_t i = 0; i < first->config.len; i++) {
    kva_report_item item = first->config.data[i];
    bool common = is_common(o, item.name, item.value);
    if (common) KVA_PUSH(arena, &out->list, item);
    for (uint32_t run = 0; !common && run < o->experiment->runs.len; run++) {
      kva_report_item own = {kva_arena_printf(arena, "%s, %s", item.name, o->experiment->runs.data[run].name),
                             kva_exp_config_of(&o->jobs[run * o->seeds], item.name)};
      if (own.value) KVA_PUSH(arena, &out->list, own);
    }
  }
}

/* All that a reader needs to run any curve again. */
static void add_config(const kva_exp_outcome *o, const kva_exp_settings *s, kva_arena *arena, kva_report *r) {
  const kva_experiment *e = o->experiment;
  items own = {0};
  kva_report_item all = {"all of it", kva_arena_printf(arena, "kvasir experiment %s%s --seeds %lld%s", e->path,
                                                       s->scale == KVA_SCALE_QUICK   ? " --quick"
                                                       : s->scale == KVA_SCALE_PAPER ? " --paper"
                                                                                     : "",
                                                       (long long)o->seeds, s->given)};
  KVA_PUSH(arena, &own.list, all);
  add_commands(o, arena, &own);
  add_settings(o, arena, &own);
  const kva_report_item rest[] = {
      {"seeds", o->seeds == 1 ? "0" : kva_arena_printf(arena, "0 to %lld (--seed)", (long long)o->seeds - 1)},
      {"version", "Kvasir " KVA_VERSION},
      {"machine", machine(arena)},
      {"time of all runs", kva_arena_printf(arena, "%.1f s", seconds_of(o))}};
  for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) KVA_PUSH(arena, &own.list, rest[i]);
  r->config = own.list.data;
  r->n_config = (int)own.list.len;
}

static kva_status add_figures(const kva_exp_outcome *o, const kva_exp_settings *settings, kva_arena *arena,
                              kva_diag *diag, kva_report *r) {
  const kva_experiment *e = o->experiment;
  const char **figures = KVA_NEW_ARRAY(arena, const char *, e->plots.len + 1);
  const char **curves = KVA_NEW_ARRAY(arena, const char *, e->plots.len + 1);
  int n_curves = 0;
  r->figures = figures;
  r->metrics = curves;
  r->without_shifts = true;
  for (uint32_t i = 0; i < e->plots.len; i++) {
    const kva_exp_plot *plot = &e->plots.data[i];
    const char *figure;
    KVA_TRY(kva_exp_figure(o, plot, r, arena, diag, &figure));
    const char *path = kva_arena_printf(arena, "%s/%s-%u.svg", settings->folder, e->name, i + 1);
    if (figure && plot->kind != KVA_PLOT_TABLE) KVA_TRY(kva_report_write_svg(path, figure, diag));
    if (plot->kind == KVA_PLOT_CURVES)
      curves[n_curves++] = plot->metric;
    else if (figure)
      figures[r->n_figures++] = figure;
    if (plot->kind == KVA_PLOT_SHIFTS) r->without_shifts = false;
  }
  return KVA_OK;
}

static kva_status make_report(const kva_exp_outcome *o, const kva_exp_settings *settings, kva_arena *arena,
                              kva_diag *diag, kva_report *r) {
  const kva_experiment *e = o->experiment;
  *r = (kva_report){
      .title = kva_arena_printf(arena, "%s: %s", e->name, e->title), .source = e->paper, .about = e->about};
  KVA_TRY(add_runs(o, arena, r));
  add_claims(o, arena, r);
  add_config(o, settings, arena, r);
  return add_figures(o, settings, arena, diag, r);
}

static kva_status write_one(const kva_exp_outcome *o, const kva_exp_settings *settings, kva_arena *arena,
                            kva_diag *diag, kva_report *r) {
  KVA_TRY(write_json(o, settings, arena, diag));
  KVA_TRY(make_report(o, settings, arena, diag, r));
  return kva_report_write(kva_arena_printf(arena, "%s/%s.html", settings->folder, o->experiment->name), r, diag);
}

kva_status kva_exp_write(const kva_exp_outcome *outcomes, uint32_t n, const kva_exp_settings *o, kva_arena *arena,
                         kva_diag *diag) {
  kva_report *reports = KVA_NEW_ARRAY(arena, kva_report, n);
  kva_status status = KVA_OK;
  uint32_t made = 0;
  for (; made < n && status == KVA_OK; made++) status = write_one(&outcomes[made], o, arena, diag, &reports[made]);
  if (status == KVA_OK && n > 1)
    status = kva_report_write_all(kva_arena_printf(arena, "%s/all.html", o->folder),
                                  "KV shifting attention: the paper's experiments", (int)n, reports, diag);
  for (uint32_t i = 0; i < made; i++) free_means(&outcomes[i], &reports[i]);
  return status;
}
