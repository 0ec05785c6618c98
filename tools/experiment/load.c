/* What a command left in its folder, as numbers: metrics of a training, scalars that a model computed, JSON that a verb
 * printed. Matrices stay in their files. */
#include "tools/experiment/experiment.h"

#include "runtime/npy.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static void add_value(kva_exp_job *job, kva_arena *arena, const char *name, double value) {
  kva_exp_value v = {kva_arena_strdup(arena, name), value};
  KVA_PUSH(arena, &job->values, v);
}

/* ---- trainings --------------------------------------------------------------------------------------------------- */

/* The paper's table 4: heads by whether the current or the previous token has the greater weight. */
static void add_quadrants(kva_exp_job *job, kva_arena *arena) {
  static const char *const names[4] = {"heads K current V current", "heads K previous V current",
                                       "heads K current V previous", "heads K previous V previous"};
  const kva_report_shift *shifts;
  int n = kva_history_shifts(job->history, &shifts), count[4] = {0};
  for (int i = 0; i < n; i++)
    count[(shifts[i].k_current <= shifts[i].k_previous) + 2 * (shifts[i].v_current <= shifts[i].v_previous)]++;
  for (int i = 0; n && i < 4; i++) add_value(job, arena, names[i], count[i]);
}

static kva_status load_metrics(kva_exp_job *job, kva_arena *arena, kva_diag *diag) {
  KVA_TRY(kva_metrics_read(kva_arena_printf(arena, "%s/metrics.jsonl", job->folder), diag, &job->history));
  add_quadrants(job, arena);
  return KVA_OK;
}

/* ---- outputs of models ------------------------------------------------------------------------------------------- */

static kva_status load_tensor(kva_exp_job *job, const char *file, kva_arena *arena, kva_diag *diag) {
  kva_tensor t;
  int64_t n = 1;
  KVA_TRY(kva_npy_read(kva_arena_printf(arena, "%s/%s", job->folder, file), KVA_DTYPE_NONE, diag, &t));
  for (int32_t d = 0; d < t.rank; d++) n *= t.dims[d];
  if (n == 1)
    add_value(job, arena, kva_arena_strndup(arena, file, strlen(file) - 4),
              kva_dtype_is_float(t.dtype) ? kva_load_f64(t.dtype, t.data, 0)
                                          : (double)kva_load_i64(t.dtype, t.data, 0));
  kva_npy_free(&t);
  return KVA_OK;
}

static int is_npy(const struct dirent *entry) {
  size_t n = strlen(entry->d_name);
  return n > 4 && !strcmp(entry->d_name + n - 4, ".npy");
}

static kva_status load_outputs(kva_exp_job *job, kva_arena *arena, kva_diag *diag) {
  struct dirent **entries;
  int n = scandir(job->folder, &entries, is_npy, alphasort);
  kva_status status = KVA_OK;
  for (int i = 0; i < n; i++) {
    if (status == KVA_OK) status = load_tensor(job, entries[i]->d_name, arena, diag);
    free(entries[i]);
  }
  if (n >= 0) free(entries);
  return status;
}

/* ---- printed JSON ------------------------------------------------------------------------------------------------ */

/* {"a": {"b": 1}} is the value a.b; texts, lists and null are none, and no result is the time it took. */
static void add_json(kva_exp_job *job, kva_arena *arena, const char *prefix, json_t *item) {
  const char *key;
  json_t *value;
  if (json_is_number(item)) add_value(job, arena, prefix, json_number_value(item));
  json_object_foreach(item, key, value) if (strcmp(key, "seconds") != 0)
      add_json(job, arena, *prefix ? kva_arena_printf(arena, "%s.%s", prefix, key) : key, value);
}

static kva_status read_json(const char *path, kva_diag *diag, json_t **out) {
  json_error_t error;
  *out = json_load_file(path, 0, &error);
  if (*out) return KVA_OK;
  return kva_error(diag, &(kva_loc){.file = path, .line = (uint32_t)error.line}, "%s", error.text);
}

static kva_status load_json(kva_exp_job *job, const char *file, const char *prefix, kva_arena *arena, kva_diag *diag) {
  json_t *root;
  KVA_TRY(read_json(kva_arena_printf(arena, "%s/%s", job->folder, file), diag, &root));
  add_json(job, arena, prefix, root);
  json_decref(root);
  return KVA_OK;
}

/* What `kvasir train --dry-run --json` said. */
static kva_status load_config(kva_exp_job *job, kva_arena *arena, kva_diag *diag) {
  json_t *root, *value;
  const char *key;
  KVA_TRY(read_json(kva_arena_printf(arena, "%s/config.json", job->folder), diag, &root));
  json_object_foreach(json_object_get(root, "config"), key, value) {
    if (!json_is_string(value) || !strcmp(key, "seed")) continue;
    kva_report_item item = {kva_arena_strdup(arena, key), kva_arena_strdup(arena, json_string_value(value))};
    KVA_PUSH(arena, &job->config, item);
  }
  json_t *plan = json_object_get(root, "plan"), *whole = json_object_get(plan, "train_step");
  add_json(job, arena, "plan", whole ? whole : json_object_get(plan, "grad_step"));
  json_decref(root);
  return KVA_OK;
}

/* A training whose loss was not finite has no evaluations. */
static kva_status load_evals(kva_exp_job *job, kva_arena *arena, kva_diag *diag) {
  for (uint32_t i = 0; i < job->experiment->evals.len; i++) {
    const char *name = job->experiment->evals.data[i].name, *file = kva_arena_printf(arena, "%s.json", name);
    if (job->history && access(kva_arena_printf(arena, "%s/%s", job->folder, file), F_OK)) continue;
    KVA_TRY(load_json(job, file, name, arena, diag));
  }
  return KVA_OK;
}

/* ---- all --------------------------------------------------------------------------------------------------------- */

static kva_status load_seconds(kva_exp_job *job, kva_arena *arena, kva_diag *diag) {
  kva_file file;
  KVA_TRY(kva_file_map(kva_arena_printf(arena, "%s/seconds", job->folder), diag, &file));
  job->seconds = strtod(kva_arena_strndup(arena, file.data, file.size), NULL);
  kva_file_unmap(&file);
  return KVA_OK;
}

kva_status kva_exp_load(kva_exp_job *job, kva_arena *arena, kva_diag *diag) {
  const char *verb = job->experiment->verb;
  KVA_TRY(load_seconds(job, arena, diag));
  if (!strcmp(verb, "run")) return load_outputs(job, arena, diag);
  if (strcmp(verb, "train") != 0 && !job->experiment->evals.len) return load_json(job, "stdout", "", arena, diag);
  if (!strcmp(verb, "train")) {
    KVA_TRY(load_config(job, arena, diag));
    if (job->commands.len == 1) return KVA_OK; /* a dry run */
    KVA_TRY(load_metrics(job, arena, diag));
  }
  return load_evals(job, arena, diag);
}
