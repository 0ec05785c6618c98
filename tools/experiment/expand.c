/* From an experiment to commands, each job with a folder of its own for results. The folder's name is a hash of all
 * that goes in: words of the commands, bytes of model and files, and of the tool itself. */
#include "tools/experiment/experiment.h"

#include "runtime/base/platform.h"

#include <stdlib.h>

typedef struct words {
  KVA_VEC(char *) list;
} words;

typedef struct expander {
  const kva_experiment *e;
  const kva_exp_settings *o;
  kva_arena *arena;
  kva_diag *diag;
  uint64_t tool; /* hash of the executable */
  words paths;   /* of the files that the job at hand names */
} expander;

/* ---- words ------------------------------------------------------------------------------------------------------- */

static void add_word(const expander *x, words *w, const char *word) {
  KVA_PUSH(x->arena, &w->list, kva_arena_strdup(x->arena, word));
}

static const char *path_of(const expander *x, const char *name, size_t n) {
  for (uint32_t i = 0; i < x->o->files.len; i++)
    if (strlen(x->o->files.data[i].name) == n && !memcmp(x->o->files.data[i].name, name, n))
      return x->o->files.data[i].path;
  for (uint32_t i = 0; i < x->e->files.len; i++)
    if (strlen(x->e->files.data[i].name) == n && !memcmp(x->e->files.data[i].name, name, n))
      return x->e->files.data[i].path;
  return NULL;
}

/* Every "{NAME}" in a word is a path. */
static kva_status add_file_word(expander *x, words *w, const char *word) {
  const char *open, *close, *whole = "";
  while ((open = strchr(word, '{')) && (close = strchr(open, '}'))) {
    int n = (int)(close - open - 1);
    const char *path = path_of(x, open + 1, (size_t)n);
    if (!path)
      return kva_error(x->diag, &(kva_loc){.file = x->e->path}, "there is no path for {%.*s}; give %s", n, open + 1,
                       !strncmp(open, "{text}", 6) ? "--text FOLDER" : "--file NAME=PATH");
    add_word(x, &x->paths, path);
    whole = kva_arena_printf(x->arena, "%s%.*s%s", whole, (int)(open - word), word, path);
    word = close + 1;
  }
  add_word(x, w, kva_arena_printf(x->arena, "%s%s", whole, word));
  return KVA_OK;
}

/* The words of `text`, between blanks. */
static kva_status add_words(expander *x, words *w, const char *text) {
  for (const char *p = text ? text : ""; *p;) {
    p += strspn(p, " ");
    size_t n = strcspn(p, " ");
    if (n) KVA_TRY(add_file_word(x, w, kva_arena_strndup(x->arena, p, n)));
    p += n;
  }
  return KVA_OK;
}

/* The value of an option, in any of its spellings, at word *i, which moves to the last word of it; NULL: another word.
 * letter: its short name, or NULL. */
static const char *option_at(const words *w, uint32_t *i, const char *letter, const char *name) {
  const char *word = w->list.data[*i];
  size_t n = strlen(name);
  if (!strncmp(word, name, n) && word[n] == '=') return word + n + 1;
  bool is_short = letter && !strncmp(word, letter, 2);
  if (is_short && word[2]) return word + 2;
  if ((!is_short && strcmp(word, name) != 0) || *i + 1 >= w->list.len) return NULL;
  return w->list.data[++*i];
}

/* Sources of data add up within a command; here those of `text` replace the ones before, as other options do. */
static void drop_data(words *w, const char *text) {
  uint32_t kept = 0;
  if (!text || !strstr(text, "--data")) return;
  for (uint32_t i = 0; i < w->list.len; i++) {
    char *word = w->list.data[i];
    if (!option_at(w, &i, NULL, "--data")) w->list.data[kept++] = word;
  }
  w->list.len = kept;
}

static kva_status add_options(expander *x, words *w, const char *text) {
  drop_data(w, text);
  return add_words(x, w, text);
}

static bool is_verb(const expander *x, const char *verb) {
  return !strcmp(x->e->verb, verb);
}

/* What changes the results. The seed is a word of those commands that draw. */
static kva_status command_words(expander *x, const kva_exp_run *run, int64_t seed, words *w) {
  bool draws = is_verb(x, "train") || is_verb(x, "run"), full = x->o->scale == KVA_SCALE_PAPER && run->full;
  add_word(x, w, x->e->verb);
  add_word(x, w, run->model);
  KVA_TRY(add_options(x, w, x->e->options[KVA_SCALE_FILE]));
  if (x->o->scale != KVA_SCALE_FILE) KVA_TRY(add_options(x, w, x->e->options[x->o->scale]));
  KVA_TRY(add_options(x, w, full ? run->full : run->options));
  if (draws) KVA_TRY(add_words(x, w, kva_arena_printf(x->arena, "--seed %lld", (long long)seed)));
  if (draws && x->o->device) KVA_TRY(add_words(x, w, kva_arena_printf(x->arena, "--device %s", x->o->device)));
  return KVA_OK;
}

static void add_all(const expander *x, words *w, const words *more) {
  for (uint32_t i = 0; i < more->list.len; i++) KVA_PUSH(x->arena, &w->list, more->list.data[i]);
}

/* The model and hyper-parameters of a training. */
static void add_model(const expander *x, const words *train, words *w) {
  add_word(x, w, train->list.data[1]);
  for (uint32_t i = 2; i < train->list.len; i++) {
    const char *define = option_at(train, &i, "-D", "--define");
    if (!define) continue;
    add_word(x, w, "-D");
    add_word(x, w, define);
  }
}

/* ---- hashes ------------------------------------------------------------------------------------------------------ */

static void hash_words(const words *w, uint64_t *hash) {
  for (uint32_t i = 0; i < w->list.len; i++) *hash = kva_hash(*hash, w->list.data[i], strlen(w->list.data[i]) + 1);
}

/* ---- commands ---------------------------------------------------------------------------------------------------- */

static const char *text_of(const expander *x, const words *w) {
  kva_text text = {0};
  kva_text_add(&text, "kvasir");
  for (uint32_t i = 0; i < w->list.len; i++) kva_text_add(&text, " %s", w->list.data[i]);
  const char *copy = kva_arena_strdup(x->arena, text.data);
  kva_text_free(&text);
  return copy;
}

/* `hidden` words, as where results go and how many threads compute them, change nothing in them. */
static void add_command(const expander *x, kva_exp_job *job, const char *name, const char *output, const words *w,
                        const words *hidden, const char *text) {
  words all = {0};
  add_word(x, &all, "kvasir");
  add_all(x, &all, w);
  add_all(x, &all, hidden);
  KVA_PUSH(x->arena, &all.list, NULL);
  kva_exp_command command = {all.list.data, output, name, text};
  KVA_PUSH(x->arena, &job->commands, command);
}

/* What a training is and takes; the only command of a dry run. */
static kva_status add_config(expander *x, kva_exp_job *job, const words *w) {
  words hidden = {0};
  KVA_TRY(add_words(x, &hidden, "--threads 1 --dry-run --json"));
  add_command(x, job, NULL, "config.json", w, &hidden, NULL);
  return KVA_OK;
}

static kva_status add_main(expander *x, kva_exp_job *job, const words *w) {
  words hidden = {0};
  if (is_verb(x, "train")) KVA_TRY(add_words(x, &hidden, "--threads 1 --metrics"));
  if (is_verb(x, "train")) add_word(x, &hidden, kva_arena_printf(x->arena, "%s.tmp/metrics.jsonl", job->folder));
  if (is_verb(x, "run")) KVA_TRY(add_words(x, &hidden, "--threads 1 --output"));
  if (is_verb(x, "run")) add_word(x, &hidden, kva_arena_printf(x->arena, "%s.tmp", job->folder));
  if (x->e->evals.len) {
    add_word(x, &hidden, "--checkpoint");
    add_word(x, &hidden, kva_arena_printf(x->arena, "%s.tmp", job->folder));
    add_word(x, &hidden, "--keep-best");
  }
  add_command(x, job, x->e->runs.data[job->run].name, "stdout", w, &hidden, text_of(x, w));
  return KVA_OK;
}

/* Of the state with the least evaluation loss, in `folder`, or of the weights that the options name. */
static words eval_words(const expander *x, const words *main, const words *options, const char *folder) {
  words w = {0};
  if (is_verb(x, "train")) {
    add_word(x, &w, "eval");
    add_model(x, main, &w);
    add_word(x, &w, "--weights");
    add_word(x, &w, kva_arena_printf(x->arena, "%s/best.safetensors", folder));
  } else {
    add_all(x, &w, main);
  }
  add_all(x, &w, options);
  add_word(x, &w, "--json");
  return w;
}

static kva_status add_eval(expander *x, kva_exp_job *job, uint32_t i, const words *main, const words *options) {
  const char *name = x->e->evals.data[i].name;
  words hidden = {0};
  words run = eval_words(x, main, options, kva_arena_printf(x->arena, "%s.tmp", job->folder));
  words shown = eval_words(x, main, options, job->folder);
  KVA_TRY(add_words(x, &hidden, "--threads 1"));
  add_command(x, job, kva_arena_printf(x->arena, "%s, %s", x->e->runs.data[job->run].name, name),
              kva_arena_printf(x->arena, "%s.json", name), &run, &hidden, text_of(x, &shown));
  return KVA_OK;
}

int64_t kva_exp_seeds(const kva_experiment *e, const kva_exp_settings *o) {
  return o->dry_run ? 1 : o->seeds ? o->seeds : e->seeds;
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

static kva_status add_commands(expander *x, kva_exp_job *job, const words *main, const words *evals) {
  uint32_t n = x->e->evals.len;
  if (is_verb(x, "train")) KVA_TRY(add_config(x, job, main));
  if (x->o->dry_run) return KVA_OK;
  if (!n || is_verb(x, "train")) KVA_TRY(add_main(x, job, main));
  for (uint32_t i = 0; i < n; i++) KVA_TRY(add_eval(x, job, i, main, &evals[i]));
  return KVA_OK;
}

static kva_status make_job(expander *x, uint32_t run, int64_t seed, kva_exp_job *job) {
  words main = {0}, *evals = KVA_NEW_ARRAY(x->arena, words, x->e->evals.len + 1);
  uint64_t hash = kva_hash(x->tool, &x->o->dry_run, 1);
  x->paths.list.len = 0;
  KVA_TRY(command_words(x, &x->e->runs.data[run], seed, &main));
  hash_words(&main, &hash);
  for (uint32_t i = 0; i < x->e->evals.len; i++) {
    KVA_TRY(add_words(x, &evals[i], x->e->evals.data[i].options));
    hash_words(&evals[i], &hash);
  }
  KVA_TRY(kva_exp_hash(x->e->runs.data[run].model, x->arena, x->diag, &hash));
  for (uint32_t i = 0; i < x->paths.list.len; i++)
    KVA_TRY(kva_exp_hash(x->paths.list.data[i], x->arena, x->diag, &hash));
  *job = (kva_exp_job){.experiment = x->e, .run = run, .seed = seed};
  job->folder = kva_arena_printf(x->arena, "%s/runs/%016llx", x->o->folder, (unsigned long long)hash);
  return add_commands(x, job, &main, evals);
}

kva_status kva_exp_expand(const kva_experiment *e, const kva_exp_settings *o, kva_arena *arena, kva_diag *diag,
                          kva_exp_job **out_jobs, uint32_t *out_n) {
  expander x = {.e = e, .o = o, .arena = arena, .diag = diag};
  int64_t seeds = kva_exp_seeds(e, o);
  KVA_TRY(kva_exp_hash("/proc/self/exe", arena, diag, &x.tool));
  *out_n = 0;
  *out_jobs = KVA_NEW_ARRAY(arena, kva_exp_job, (int64_t)e->runs.len * seeds);
  for (uint32_t run = 0; run < e->runs.len; run++)
    for (int64_t seed = 0; seed < seeds; seed++) KVA_TRY(make_job(&x, run, seed, &(*out_jobs)[(*out_n)++]));
  return KVA_OK;
}
