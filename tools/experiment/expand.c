/* From an experiment to commands, each with a folder of its own for results. The folder's name is a hash of all that
 * goes in: words of the command, bytes of model and text, and of the tool itself. */
#include "tools/experiment/experiment.h"

#include "runtime/base/platform.h"

#include <stdlib.h>

typedef struct expander {
  const kva_experiment *e;
  const kva_exp_settings *o;
  kva_arena *arena;
  kva_diag *diag;
  uint64_t tool; /* hash of the executable */
} expander;

typedef struct words {
  KVA_VEC(char *) list;
} words;

static void add_word(const expander *x, words *w, const char *word) {
  KVA_PUSH(x->arena, &w->list, kva_arena_strdup(x->arena, word));
}

/* The words of `text`, between blanks; "{text}" in them is the token file. */
static void add_words(const expander *x, words *w, const char *text) {
  static const char mark[] = "{text}";
  for (const char *p = text ? text : ""; *p;) {
    p += strspn(p, " ");
    size_t n = strcspn(p, " ");
    char *word = kva_arena_strndup(x->arena, p, n);
    char *at = strstr(word, mark);
    if (at) word = kva_arena_printf(x->arena, "%.*s%s%s", (int)(at - word), word, x->o->text, at + sizeof mark - 1);
    if (n) add_word(x, w, word);
    p += n;
  }
}

/* What changes the results. The seed is a word of those commands that draw. */
static words command_words(const expander *x, const kva_exp_run *run, int64_t seed) {
  words w = {0};
  bool draws = !strcmp(x->e->verb, "train") || !strcmp(x->e->verb, "run");
  add_word(x, &w, x->e->verb);
  add_word(x, &w, run->model);
  add_words(x, &w, x->e->options[KVA_SCALE_FILE]);
  if (x->o->scale != KVA_SCALE_FILE) add_words(x, &w, x->e->options[x->o->scale]);
  add_words(x, &w, run->options);
  if (draws) add_words(x, &w, kva_arena_printf(x->arena, "--seed %lld", (long long)seed));
  if (draws && x->o->device) add_words(x, &w, kva_arena_printf(x->arena, "--device %s", x->o->device));
  return w;
}

static kva_status hash_file(const char *path, kva_diag *diag, uint64_t *hash) {
  kva_file file;
  KVA_TRY(kva_file_map(path, diag, &file));
  *hash = kva_hash(*hash, file.data, file.size);
  kva_file_unmap(&file);
  return KVA_OK;
}

static kva_status hash_inputs(const expander *x, const kva_exp_run *run, const words *w, uint64_t *hash) {
  *hash = x->tool;
  KVA_TRY(hash_file(run->model, x->diag, hash));
  for (uint32_t i = 0; i < w->list.len; i++) {
    *hash = kva_hash(*hash, w->list.data[i], strlen(w->list.data[i]) + 1);
    if (x->o->text && strstr(w->list.data[i], x->o->text)) KVA_TRY(hash_file(x->o->text, x->diag, hash));
  }
  return KVA_OK;
}

static const char *command_text(const expander *x, const words *w) {
  kva_text text = {0};
  kva_text_add(&text, "kvasir");
  for (uint32_t i = 0; i < w->list.len; i++) kva_text_add(&text, " %s", w->list.data[i]);
  const char *copy = kva_arena_strdup(x->arena, text.data);
  kva_text_free(&text);
  return copy;
}

/* Where results go and how many threads compute them changes nothing in them. */
static void add_outputs(const expander *x, const char *folder, words *w) {
  bool trains = !strcmp(x->e->verb, "train"), runs = !strcmp(x->e->verb, "run");
  if (trains) add_words(x, w, "--threads 1 --metrics");
  if (trains) add_word(x, w, kva_arena_printf(x->arena, "%s.tmp/metrics.jsonl", folder));
  if (runs) add_words(x, w, "--threads 1 --output");
  if (runs) add_word(x, w, kva_arena_printf(x->arena, "%s.tmp", folder));
}

static kva_status make_job(const expander *x, uint32_t run, int64_t seed, kva_exp_job *job) {
  words w = command_words(x, &x->e->runs.data[run], seed);
  uint64_t hash;
  KVA_TRY(hash_inputs(x, &x->e->runs.data[run], &w, &hash));
  *job = (kva_exp_job){.experiment = x->e, .run = run, .seed = seed, .command = command_text(x, &w)};
  job->folder = kva_arena_printf(x->arena, "%s/runs/%016llx", x->o->folder, (unsigned long long)hash);
  words all = {0};
  add_word(x, &all, "kvasir");
  for (uint32_t i = 0; i < w.list.len; i++) KVA_PUSH(x->arena, &all.list, w.list.data[i]);
  add_outputs(x, job->folder, &all);
  KVA_PUSH(x->arena, &all.list, NULL);
  job->argv = all.list.data;
  return KVA_OK;
}

static bool needs_text(const kva_experiment *e, kva_scale scale) {
  bool needs = false;
  const char *texts[] = {e->options[KVA_SCALE_FILE], scale == KVA_SCALE_FILE ? NULL : e->options[scale]};
  for (int i = 0; i < 2; i++) needs = needs || (texts[i] && strstr(texts[i], "{text}"));
  for (uint32_t i = 0; i < e->runs.len; i++)
    needs = needs || (e->runs.data[i].options && strstr(e->runs.data[i].options, "{text}"));
  return needs;
}

kva_status kva_exp_expand(const kva_experiment *e, const kva_exp_settings *o, kva_arena *arena, kva_diag *diag,
                          kva_exp_job **out_jobs, uint32_t *out_n) {
  expander x = {.e = e, .o = o, .arena = arena, .diag = diag};
  int64_t seeds = o->seeds ? o->seeds : e->seeds;
  if (needs_text(e, o->scale) && !o->text)
    return kva_error(diag, &(kva_loc){.file = e->path}, "the experiment needs a text; give --text FOLDER");
  KVA_TRY(hash_file("/proc/self/exe", diag, &x.tool));
  *out_n = 0;
  *out_jobs = KVA_NEW_ARRAY(arena, kva_exp_job, (int64_t)e->runs.len * seeds);
  for (uint32_t run = 0; run < e->runs.len; run++)
    for (int64_t seed = 0; seed < seeds; seed++) KVA_TRY(make_job(&x, run, seed, &(*out_jobs)[(*out_n)++]));
  return KVA_OK;
}
