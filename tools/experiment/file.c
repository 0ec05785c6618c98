/* Reads the file of an experiment: JSON, whose keys are all known. */
#include "tools/experiment/experiment.h"

#include "runtime/base/platform.h"

#include <jansson.h>
#include <math.h>

typedef struct reader {
  const char *path;
  kva_arena *arena;
  kva_diag *diag;
  kva_experiment *e;
  const char *model; /* of runs that have none */
} reader;

static kva_status wrong(const reader *r, const char *what, const char *why) {
  return kva_error(r->diag, &(kva_loc){.file = r->path}, "%s: %s", what, why);
}

/* "a/b/../c" as "a/c": what a reader would type. */
static const char *joined(const reader *r, const char *name) {
  const char *slash = strrchr(r->path, '/');
  size_t n = slash && *name != '/' ? (size_t)(slash + 1 - r->path) : 0;
  while (!strncmp(name, "../", 3) && n > 1) {
    size_t parent = n - 1;
    while (parent && r->path[parent - 1] != '/') parent--;
    if (!strncmp(r->path + parent, "../", 3) || !strncmp(r->path + parent, "./", 2)) break;
    name += 3;
    n = parent;
  }
  return kva_arena_printf(r->arena, "%.*s%s", (int)n, r->path, name);
}

static const char *copy(const reader *r, const char *s) {
  return s ? kva_arena_strdup(r->arena, s) : NULL;
}

static kva_status read_run(reader *r, json_t *item) {
  const char *name, *model = NULL, *options = NULL, *full = NULL, *group = NULL;
  double x = NAN;
  json_error_t error;
  if (json_unpack_ex(item, &error, JSON_STRICT, "{s:s, s?s, s?s, s?s, s?s, s?F}", "name", &name, "model", &model,
                     "options", &options, "full", &full, "group", &group, "x", &x))
    return wrong(r, "a run", error.text);
  if (!model && !r->model) return wrong(r, name, "there is no \"model\", neither here nor in the file");
  for (uint32_t i = 0; i < r->e->runs.len; i++)
    if (!strcmp(r->e->runs.data[i].name, name)) return wrong(r, name, "two runs have this name");
  kva_exp_run run = {.name = copy(r, name),
                     .model = joined(r, model ? model : r->model),
                     .options = copy(r, options),
                     .full = copy(r, full),
                     .group = copy(r, group),
                     .x = x};
  KVA_PUSH(r->arena, &r->e->runs, run);
  return KVA_OK;
}

/* In the order of kva_exp_plot_kind. */
static const char *const kinds[] = {"curves", "points", "table", "field", "shifts"};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* One number a value. */
static kva_status read_places(reader *r, json_t *at, kva_exp_plot *plot) {
  if (!at) return KVA_OK;
  if (json_array_size(at) != plot->n_values) return wrong(r, "\"at\"", "expected as many numbers as \"values\"");
  double *places = KVA_NEW_ARRAY(r->arena, double, plot->n_values + 1);
  for (uint32_t i = 0; i < plot->n_values; i++) places[i] = json_number_value(json_array_get(at, i));
  plot->at = places;
  return KVA_OK;
}

static kva_status read_plot(reader *r, json_t *item) {
  const char *kind, *title = NULL, *metric = NULL, *x_title = NULL, *y_title = NULL;
  int log_x = 0, fit = 0;
  json_t *values = NULL, *at = NULL;
  json_error_t error;
  if (json_unpack_ex(item, &error, JSON_STRICT, "{s:s, s?s, s?s, s?s, s?s, s?b, s?b, s?o, s?o}", "kind", &kind, "title",
                     &title, "value", &metric, "x", &x_title, "y", &y_title, "log", &log_x, "fit", &fit, "values",
                     &values, "at", &at))
    return wrong(r, "a plot", error.text);
  kva_exp_plot plot = {.title = copy(r, title    ? title
                                        : metric ? metric
                                                 : kind),
                       .metric = copy(r, metric),
                       .x_title = copy(r, x_title ? x_title : "x"),
                       .y_title = copy(r, y_title ? y_title : "y"),
                       .log_x = log_x,
                       .fit = fit,
                       .n_values = (uint32_t)json_array_size(values)};
  int k = 0;
  while (k < N_KINDS && strcmp(kinds[k], kind) != 0) k++;
  if (k == N_KINDS) return wrong(r, kind, "a plot is one of curves, points, table, field, shifts");
  plot.kind = (kva_exp_plot_kind)k;
  bool has_places = plot.kind == KVA_PLOT_POINTS && at;
  if (plot.kind == KVA_PLOT_TABLE || has_places ? !plot.n_values : plot.kind != KVA_PLOT_SHIFTS && !metric)
    return wrong(r, kind, plot.kind == KVA_PLOT_TABLE ? "a table needs \"values\"" : "the plot needs a \"value\"");
  plot.values = KVA_NEW_ARRAY(r->arena, const char *, plot.n_values + 1);
  for (uint32_t i = 0; i < plot.n_values; i++) {
    plot.values[i] = copy(r, json_string_value(json_array_get(values, i)));
    if (!plot.values[i]) return wrong(r, "\"values\"", "expected names");
  }
  KVA_TRY(read_places(r, at, &plot));
  KVA_PUSH(r->arena, &r->e->plots, plot);
  return KVA_OK;
}

static kva_status find_run(const reader *r, const char *name, uint32_t *out) {
  for (*out = 0; *out < r->e->runs.len; ++*out)
    if (!strcmp(r->e->runs.data[*out].name, name)) return KVA_OK;
  return wrong(r, name, "a claim names this run, but no run has the name");
}

static kva_status read_claim(reader *r, json_t *item) {
  const char *text, *paper = NULL, *value, *of = NULL, *is;
  kva_exp_claim c = {.than_run = -1, .times = 1};
  json_t *than;
  json_error_t error;
  if (json_unpack_ex(item, &error, JSON_STRICT, "{s:s, s?s, s:s, s?s, s:s, s:o, s?F, s?F}", "claim", &text, "paper",
                     &paper, "value", &value, "of", &of, "is", &is, "than", &than, "times", &c.times, "within",
                     &c.within))
    return wrong(r, "a claim", error.text);
  if (strcmp(is, "<") && strcmp(is, ">") && strcmp(is, "=")) return wrong(r, text, "\"is\" must be <, > or =");
  if (of) KVA_TRY(find_run(r, of, &c.of));
  c.text = copy(r, text);
  c.paper = copy(r, paper);
  c.value = copy(r, value);
  c.is = copy(r, is);
  c.than = json_number_value(than);
  if (json_is_string(than)) {
    uint32_t run;
    KVA_TRY(find_run(r, json_string_value(than), &run));
    c.than_run = run;
  } else if (!json_is_number(than)) {
    return wrong(r, text, "\"than\" must be a number or the name of a run");
  }
  KVA_PUSH(r->arena, &r->e->claims, c);
  return KVA_OK;
}

static kva_status read_eval(reader *r, json_t *item) {
  kva_exp_eval eval;
  json_error_t error;
  if (json_unpack_ex(item, &error, JSON_STRICT, "{s:s, s:s}", "name", &eval.name, "options", &eval.options))
    return wrong(r, "an evaluation", error.text);
  if (strchr(eval.name, '/')) return wrong(r, eval.name, "the name of an evaluation cannot have a slash");
  if (!strcmp(eval.name, "config"))
    return wrong(r, eval.name, "no evaluation can have this name: the configuration of a run has it");
  for (uint32_t i = 0; i < r->e->evals.len; i++)
    if (!strcmp(r->e->evals.data[i].name, eval.name)) return wrong(r, eval.name, "two evaluations have this name");
  eval = (kva_exp_eval){copy(r, eval.name), copy(r, eval.options)};
  KVA_PUSH(r->arena, &r->e->evals, eval);
  return KVA_OK;
}

static kva_status read_files(reader *r, json_t *files) {
  const char *name;
  json_t *path;
  json_object_foreach(files, name, path) {
    if (!json_is_string(path)) return wrong(r, name, "expected a path");
    kva_exp_file file = {copy(r, name), joined(r, json_string_value(path))};
    KVA_PUSH(r->arena, &r->e->files, file);
  }
  return KVA_OK;
}

static kva_status read_list(reader *r, const char *key, json_t *list, kva_status (*read)(reader *, json_t *)) {
  size_t i;
  json_t *item;
  if (list && !json_is_array(list)) return wrong(r, key, "expected a list");
  json_array_foreach(list, i, item) KVA_TRY(read(r, item));
  return KVA_OK;
}

static const char *name_of(kva_arena *arena, const char *path) {
  const char *base = kva_file_name(path), *dot = strrchr(base, '.');
  return dot && dot > base ? kva_arena_strndup(arena, base, (size_t)(dot - base)) : kva_arena_strdup(arena, base);
}

static kva_status read_root(reader *r, json_t *root) {
  kva_experiment *e = r->e;
  const char *title, *paper = NULL, *about = NULL, *verb = "train", *options = NULL, *quick = NULL, *full = NULL;
  json_t *runs, *plots = NULL, *claims = NULL, *files = NULL, *evals = NULL;
  json_int_t seeds = 1;
  json_error_t error;
  if (json_unpack_ex(root, &error, JSON_STRICT,
                     "{s:s, s?s, s?s, s?s, s?s, s?s, s?s, s?s, s?I, s?o, s?o, s:o, s?o, s?o}", "title", &title, "paper",
                     &paper, "about", &about, "verb", &verb, "model", &r->model, "options", &options, "quick", &quick,
                     "full", &full, "seeds", &seeds, "files", &files, "evals", &evals, "runs", &runs, "plots", &plots,
                     "claims", &claims))
    return wrong(r, "the experiment", error.text);
  if (strcmp(verb, "train") && strcmp(verb, "run") && strcmp(verb, "show") && strcmp(verb, "eval"))
    return wrong(r, verb, "\"verb\" must be train, run, show or eval");
  if (seeds < 1 || seeds > 1000) return wrong(r, "\"seeds\"", "expected 1 to 1000");
  *e = (kva_experiment){.name = name_of(r->arena, r->path),
                        .path = copy(r, r->path),
                        .title = copy(r, title),
                        .paper = copy(r, paper),
                        .about = copy(r, about),
                        .verb = copy(r, verb),
                        .options = {copy(r, options), copy(r, quick), copy(r, full)},
                        .seeds = seeds};
  KVA_TRY(read_files(r, files));
  KVA_TRY(read_list(r, "\"evals\"", evals, read_eval));
  if (e->evals.len && strcmp(verb, "train") && strcmp(verb, "eval"))
    return wrong(r, "\"evals\"", "only the verbs train and eval have evaluations");
  KVA_TRY(read_list(r, "\"runs\"", runs, read_run));
  if (!e->runs.len) return wrong(r, "\"runs\"", "there is none");
  KVA_TRY(read_list(r, "\"plots\"", plots, read_plot));
  return read_list(r, "\"claims\"", claims, read_claim);
}

kva_status kva_experiment_read(const char *path, kva_arena *arena, kva_diag *diag, kva_experiment *out) {
  kva_file file;
  KVA_TRY(kva_file_map(path, diag, &file));
  json_error_t error;
  json_t *root = json_loadb(file.data ? file.data : "", file.size, JSON_REJECT_DUPLICATES, &error);
  kva_file_unmap(&file);
  if (!root) {
    kva_loc loc = {.file = path, .line = (uint32_t)error.line, .column = (uint32_t)error.column};
    return kva_error(diag, &loc, "%s", error.text);
  }
  reader r = {.path = path, .arena = arena, .diag = diag, .e = out};
  kva_status status = read_root(&r, root);
  json_decref(root);
  return status;
}
