/* One training run of a command line: resume, progress, metrics, checkpoints, completion.
 *
 * A signal ends the run after its current step, and the state is saved as at its end. The reader of standard output
 * that goes away is such a signal, too: SIGPIPE, or EPIPE where metrics are written to it.
 *
 * A checkpoint that cannot be written during a run causes a warning, since the run and older checkpoints are intact; at
 * the end of the run it is an error. A step with a loss that is not finite has changed nothing, so the state before it
 * is saved, too. */
#include "runtime/exe/train.h"

#include "runtime/exe/processes.h"

#include "runtime/base/platform.h"
#include "runtime/shards.h"
#include "runtime/train.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static volatile sig_atomic_t stop_requested;
static void request_stop(int signal) {
  (void)signal;
  stop_requested = 1;
}

static void catch_unless_ignored(int number) {
  if (signal(number, request_stop) == SIG_IGN) signal(number, SIG_IGN);
}

void kva_train_catch_signals(void) {
  signal(SIGINT, request_stop);
  signal(SIGTERM, request_stop);
  catch_unless_ignored(SIGHUP);
  catch_unless_ignored(SIGPIPE);
}

bool kva_train_stopped(void) {
  return stop_requested;
}

typedef struct run {
  const kva_train_settings *o;
  kva_train_result *result;
  kva_metrics *metrics[2]; /* of --metrics and of --json; NULL: without */
  kva_session *session;
  kva_trainer *trainer;
  kva_diag *diag;
  int64_t resumed, saved; /* steps; saved -1: none yet */
  char *loaded;           /* the checkpoint that the run goes on from; NULL: none */
  double best;            /* evaluation loss; infinity before the first */
  bool improved;          /* it is that of the current state, which is not saved as the best yet */
  bool tokens;            /* evaluations have a perplexity */
  kva_train_event shown;  /* an evaluation with it */
  const char **names;     /* of it, owned */
  double *values;
  int lock;    /* of the folder of checkpoints; -1: none */
  bool writes; /* files: it is rank 0 */
  bool terminal;
  double last_print, begin;
  kva_status status;
} run;

/* ---- progress ---------------------------------------------------------------------------------------------------- */

static void print_event(const run *r, const kva_train_event *e, bool live) {
  printf("%s%-10s step %lld/%lld", live ? "\r\033[K" : "", r->result->name, (long long)e->step, (long long)e->steps);
  for (int i = 0; i < e->n; i++) printf("  %s%s %.4g", e->evaluation ? "eval " : "", e->names[i], e->values[i]);
  double rate = e->seconds > 0 ? (double)(e->step - r->resumed) / e->seconds : 0;
  if (!e->evaluation && rate > 0)
    printf("  lr %.3g  %.1f steps/s  %.0f s left", e->lr, rate, (double)(e->steps - e->step) / rate);
  printf("%s", live ? "" : "\n");
  fflush(stdout);
}

static void show(run *r, const kva_train_event *e) {
  double now = kva_now();
  bool last = e->step == e->steps;
  if (r->o->json) return; /* standard output carries the metrics */
  if (e->evaluation) {
    if (r->terminal) printf("\r\033[K");
    print_event(r, e, false);
  } else if (now - r->last_print > (r->terminal ? 0.1 : 2) || last) {
    print_event(r, e, r->terminal);
    r->last_print = now;
  }
}

static bool has_metric(const kva_train_event *e, const char *name) {
  int i = 0;
  while (i < e->n && strcmp(e->names[i], name) != 0) i++;
  return i < e->n;
}

/* Adds the perplexity, exp(loss), to an evaluation of a model of tokens that has no metric of this name. NULL: no
 * memory. */
static const kva_train_event *complete(run *r, const kva_train_event *e) {
  if (!e->evaluation || !r->tokens || e->n < 1 || has_metric(e, "perplexity")) return e;
  size_t n = (size_t)e->n;
  if (!r->names) r->names = calloc(n + 1, sizeof *r->names);
  if (!r->values) r->values = calloc(n + 1, sizeof *r->values);
  if (!r->names || !r->values) return NULL;
  memcpy(r->names, e->names, n * sizeof *r->names);
  memcpy(r->values, e->values, n * sizeof *r->values);
  r->names[n] = "perplexity";
  r->values[n] = exp(e->values[0]);
  r->shown = *e;
  r->shown.n++;
  r->shown.names = r->names;
  r->shown.values = r->values;
  return &r->shown;
}

static void compare(run *r, const kva_train_event *e) {
  if (!e->evaluation || e->n < 1 || !(e->values[0] < r->best)) return;
  r->best = e->values[0];
  r->improved = true;
}

static bool stops(const run *r) {
  return stop_requested || (r->o->time_limit > 0 && kva_now() - r->begin >= r->o->time_limit);
}

/* An evaluation may take longer than all steps. */
static bool goes_on(void *user) {
  run *r = user;
  if (!stops(r)) return true;
  if (r->status == KVA_OK) r->status = KVA_INTERRUPTED;
  return false;
}

static kva_status add_metrics(const run *r, const kva_train_event *e) {
  for (int i = 0; i < 2; i++)
    if (r->metrics[i]) KVA_TRY(kva_metrics_add(r->metrics[i], e, r->diag));
  return KVA_OK;
}

static bool on_event(void *user, const kva_train_event *event) {
  run *r = user;
  if (r->status != KVA_OK && r->status != KVA_INTERRUPTED) return false;
  const kva_train_event *e = complete(r, event);
  if (!e) {
    r->status = KVA_NO_MEMORY;
    return false;
  }
  compare(r, e);
  r->result->seconds = e->seconds;
  r->status = kva_history_add(r->result->history, e);
  if (r->status == KVA_OK) r->status = add_metrics(r, e);
  if (r->status == KVA_OK && r->o->observe && r->writes)
    r->status = r->o->observe(r->o->observer, e, r->resumed, r->diag);
  show(r, e);
  bool stop = stops(r);
  if (r->status == KVA_OK && stop && e->step < e->steps) r->status = KVA_INTERRUPTED;
  r->status = kva_comm_agree(r->o->comm, r->status, r->diag);
  return r->status == KVA_OK && !(stop && !r->o->comm);
}

/* Prints warnings at once; the caller prints errors. */
static void print_warnings(const run *r, kva_diag *diag) {
  if (kva_diag_errors(diag)) return;
  if (r->writes) kva_diag_print(diag, stderr);
  kva_diag_clear(diag);
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

static bool in_shards(const run *r) {
  return kva_checkpoint_in_shards(kva_session_artifact(r->session));
}

static kva_status save(run *r, kva_diag *diag) {
  int64_t step = kva_trainer_done(r->trainer);
  if (!r->o->checkpoint || r->saved == step) return KVA_OK;
  KVA_TRY(kva_trainer_compare(r->trainer, diag));
  char *path = kva_checkpoint_path(r->o->checkpoint, step, in_shards(r));
  kva_status status = kva_trainer_save(r->trainer, path, diag);
  free(path);
  KVA_TRY(status);
  bool prunes = r->writes && r->o->keep > 0;
  KVA_TRY(kva_comm_agree(r->o->comm, prunes ? kva_checkpoint_prune(r->o->checkpoint, r->o->keep, diag) : KVA_OK, diag));
  r->saved = step;
  return KVA_OK;
}

/* Saves the best state. A mesh that divides other states has left its own in the other form. */
static kva_status write_best(run *r, kva_diag *diag) {
  char *path = kva_checkpoint_best(r->o->checkpoint, in_shards(r));
  char *other = kva_checkpoint_best(r->o->checkpoint, !in_shards(r));
  kva_status status = kva_trainer_save(r->trainer, path, diag);
  if (status == KVA_OK && r->writes) status = other ? kva_checkpoint_remove(other, diag) : KVA_NO_MEMORY;
  free(path);
  free(other);
  return status;
}

/* A failure is a warning, as for every checkpoint during a run. */
static void save_best(run *r) {
  if (!r->improved || !r->o->keep_best) return;
  kva_diag *own = kva_diag_create();
  r->improved = false;
  if (write_best(r, own) != KVA_OK && r->writes) {
    kva_diag_print(own, stderr);
    fprintf(stderr, "the best state, of step %lld, is not saved; the run goes on\n",
            (long long)kva_trainer_done(r->trainer));
  }
  kva_diag_destroy(own);
}

static void measure(run *r, const char *path) {
  kva_train_event event;
  kva_diag *own = kva_diag_create();
  if (kva_trainer_load(r->trainer, path, own) == KVA_OK && kva_trainer_evaluate(r->trainer, own, &event) == KVA_OK)
    compare(r, &event);
  else if (r->writes && r->status != KVA_INTERRUPTED)
    fprintf(stderr, "%s cannot be read; the next evaluation is the best one\n", path);
  r->improved = false;
  kva_diag_destroy(own);
}

/* What process 0 knows: whether it is so. */
static kva_status share_answer(const run *r, bool *answer) {
  int64_t number = *answer;
  kva_status status = r->o->comm ? kva_comm_broadcast(r->o->comm, 0, sizeof number, &number) : KVA_OK;
  *answer = number;
  return status;
}

/* Measures the best state of a form, if there is one. */
static kva_status measure_form(run *r, bool shards, bool *out_measured) {
  char *path = kva_checkpoint_best(r->o->checkpoint, shards);
  bool measures = path && !access(path, F_OK);
  kva_status status = share_answer(r, &measures);
  if (status == KVA_OK && measures) measure(r, path);
  *out_measured |= measures;
  free(path);
  return status;
}

/* The loss of the best state so far is measured again: evaluations are functions of the state. */
static kva_status measure_best(run *r, kva_diag *diag) {
  bool measured = false;
  if (!r->o->keep_best || !r->loaded) return KVA_OK;
  KVA_TRY(measure_form(r, false, &measured));
  KVA_TRY(measure_form(r, true, &measured));
  if (!measured || kva_trainer_load(r->trainer, r->loaded, NULL) == KVA_OK) return KVA_OK;
  return kva_fail(diag, KVA_IO, NULL, "%s cannot be read a second time", r->loaded);
}

static kva_status after_step(void *user, kva_trainer *t, bool last, kva_diag *diag) {
  run *r = user;
  bool due = r->o->checkpoint_every > 0 && kva_trainer_done(t) % r->o->checkpoint_every == 0;
  save_best(r);
  if (last) return save(r, diag);
  if (!due) return KVA_OK;
  kva_diag *own = kva_diag_create();
  if (save(r, own) != KVA_OK && r->writes) {
    kva_diag_print(own, stderr);
    fprintf(stderr, "no checkpoint of step %lld; the run goes on\n", (long long)kva_trainer_done(t));
  }
  kva_diag_destroy(own);
  return KVA_OK;
}

/* Path of the newest checkpoint; *out_path is NULL if the folder has none. */
static kva_status find_checkpoint(const char *folder, kva_diag *diag, char **out_path) {
  int64_t n, *steps;
  KVA_TRY(kva_checkpoint_list(folder, diag, &n, &steps));
  *out_path = n ? kva_checkpoint_find(folder, steps[n - 1]) : NULL;
  kva_status status = n && !*out_path ? KVA_NO_MEMORY : KVA_OK;
  free(steps);
  return status;
}

/* Whether it is a folder of checkpoints, and not one in shards. */
static bool has_checkpoints(const char *path) {
  return kva_is_folder(path) && !kva_shards_is(path);
}

/* All processes read what process 0 found. */
static kva_status share_path(run *r, const char *path) {
  kva_text text = {0};
  if (path) kva_text_add(&text, "%s", path);
  kva_status status = kva_comm_broadcast_text(r->o->comm, 0, &text);
  free(r->loaded);
  r->loaded = text.data && !text.cut ? strdup(text.data) : NULL;
  kva_text_free(&text);
  return kva_comm_agree(r->o->comm, status == KVA_OK && !r->loaded ? KVA_NO_MEMORY : status, NULL);
}

/* path: process 0's. */
static kva_status load(run *r, const char *path, kva_diag *diag) {
  KVA_TRY(share_path(r, path));
  path = r->loaded;
  KVA_TRY(kva_trainer_load(r->trainer, path, diag));
  uint64_t seed = kva_trainer_seed(r->trainer);
  if (r->o->seed >= 0 && (uint64_t)r->o->seed != seed)
    kva_warn(diag, &(kva_loc){.file = path},
             "--seed %lld has no effect: a resumed run keeps the seed that it began with, %llu", (long long)r->o->seed,
             (unsigned long long)seed);
  print_warnings(r, diag);
  r->resumed = kva_trainer_done(r->trainer);
  if (!r->o->json) printf("%-10s resumed at step %lld from %s\n", r->result->name, (long long)r->resumed, path);
  return KVA_OK;
}

static kva_status load_step(run *r, const char *folder, int64_t step, kva_diag *diag) {
  char *path = r->writes ? kva_checkpoint_find(folder, step) : NULL;
  kva_status status = load(r, path, diag);
  free(path);
  return status;
}

/* Loads the newest checkpoint of a folder that is not damaged: *out_i of the n steps; -1: there is none. Process 0
 * knows the steps. */
static kva_status load_newest(run *r, const char *folder, int64_t n, const int64_t *steps, kva_diag *diag,
                              int64_t *out_i) {
  kva_status status = KVA_DAMAGED;
  for (*out_i = n; status == KVA_DAMAGED && *out_i > 0;) {
    --*out_i;
    status = load_step(r, folder, steps ? steps[*out_i] : 0, diag);
    if (status != KVA_DAMAGED) return status;
    kva_diag_demote(diag);
  }
  *out_i = -1;
  return n ? kva_fail(diag, KVA_DAMAGED, NULL, "no checkpoint in %s is whole", folder) : KVA_OK;
}

/* Damaged files do not count as later checkpoints, nor are they kept in the place of new ones. */
static kva_status set_aside(const run *r, const char *folder, int64_t n, const int64_t *steps, kva_diag *diag) {
  for (int64_t i = 0; i < n; i++) {
    KVA_TRY(kva_checkpoint_set_aside(folder, steps[i], diag));
    kva_warn(diag, &(kva_loc){.file = folder}, "the damaged checkpoint of step %lld got the suffix .damaged",
             (long long)steps[i]);
  }
  print_warnings(r, diag);
  return KVA_OK;
}

static bool writes_checkpoints(const run *r) {
  return r->o->checkpoint && r->o->steps != 0;
}

static kva_status no_checkpoint(const char *folder, kva_diag *diag) {
  return kva_error(diag, NULL, "--resume: there is no checkpoint in %s", folder);
}

/* A run's own folder may be empty. */
static bool is_own(const kva_train_settings *o, const char *folder) {
  return o->checkpoint && !strcmp(folder, o->checkpoint);
}

static kva_status load_folder(run *r, const char *folder, int64_t n, const int64_t *steps, kva_diag *diag) {
  bool own = is_own(r->o, folder);
  int64_t i;
  KVA_TRY(load_newest(r, folder, n, steps, diag, &i));
  if (n && own) r->saved = r->resumed;
  bool renames = n && own && writes_checkpoints(r) && r->writes;
  KVA_TRY(kva_comm_agree(r->o->comm, renames ? set_aside(r, folder, n - 1 - i, steps + i + 1, diag) : KVA_OK, diag));
  if (n) return KVA_OK;
  if (!own) return no_checkpoint(folder, diag);
  if (!r->o->json) printf("%-10s starts anew: no checkpoint in %s\n", r->result->name, folder);
  return KVA_OK;
}

static kva_status resume_folder(run *r, const char *folder, kva_diag *diag) {
  int64_t n = 0, *steps = NULL;
  kva_status status = r->writes ? kva_checkpoint_list(folder, diag, &n, &steps) : KVA_OK;
  status = kva_comm_agree(r->o->comm, status, diag);
  if (status == KVA_OK && r->o->comm) status = kva_comm_broadcast(r->o->comm, 0, sizeof n, &n);
  if (status == KVA_OK) status = load_folder(r, folder, n, steps, diag);
  free(steps);
  return status;
}

/* What --resume names: a file, or a folder of checkpoints. */
static const char *find_resumed(const kva_train_settings *o, bool *out_is_file) {
  const char *path = *o->resume ? o->resume : o->checkpoint;
  *out_is_file = *o->resume && !has_checkpoints(path);
  return path;
}

static kva_status note_resume(kva_status status, kva_diag *diag) {
  if (status != KVA_OK) kva_note(diag, NULL, "nothing was changed; --resume=FILE takes another checkpoint");
  return status;
}

static kva_status check_resumed(const kva_train_settings *o, kva_diag *diag) {
  bool is_file;
  int64_t n, *steps;
  const char *from = find_resumed(o, &is_file);
  if (is_file) return kva_checkpoint_check(from, diag);
  if (is_own(o, from)) return KVA_OK;
  KVA_TRY(kva_checkpoint_list(from, diag, &n, &steps));
  free(steps);
  return n ? KVA_OK : no_checkpoint(from, diag);
}

static kva_status resume(run *r, kva_diag *diag) {
  bool is_file;
  const char *from = find_resumed(r->o, &is_file);
  KVA_TRY(share_answer(r, &is_file));
  kva_status status = is_file ? load(r, from, diag) : resume_folder(r, from, diag);
  return note_resume(status, diag);
}

/* A new run must not mix with the checkpoints of another, nor prune them. */
static kva_status check_unused(const char *folder, kva_diag *diag) {
  char *path = NULL;
  KVA_TRY(find_checkpoint(folder, diag, &path));
  kva_status status = path ? kva_error(diag, NULL,
                                       "there are checkpoints already, up to %s; give --resume to go on "
                                       "from it, or another folder",
                                       path)
                           : KVA_OK;
  free(path);
  return status;
}

/* A run that resumes from an earlier step would prune its own new checkpoints as older than the existing ones. */
static kva_status check_not_later(const run *r, kva_diag *diag) {
  int64_t n, *steps;
  KVA_TRY(kva_checkpoint_list(r->o->checkpoint, diag, &n, &steps));
  int64_t last = n ? steps[n - 1] : 0;
  free(steps);
  if (last <= r->resumed) return KVA_OK;
  return kva_error(diag, NULL,
                   "%s has checkpoints up to step %lld, and this run goes on from step %lld; move those after "
                   "it away, or give another folder",
                   r->o->checkpoint, (long long)last, (long long)r->resumed);
}

/* Process 0's part, before and after what all read. */
static kva_status open_checkpoints(run *r, kva_diag *diag) {
  if (r->o->checkpoint) KVA_TRY(kva_checkpoint_prepare(r->o->checkpoint, diag));
  return writes_checkpoints(r) ? kva_checkpoint_lock(r->o->checkpoint, diag, &r->lock) : KVA_OK;
}

static kva_status check_checkpoints(const run *r, kva_diag *diag) {
  if (!r->o->checkpoint) return KVA_OK;
  return r->o->resume ? check_not_later(r, diag) : check_unused(r->o->checkpoint, diag);
}

static kva_status prepare_checkpoints(run *r, kva_diag *diag) {
  const kva_artifact *a = kva_session_artifact(r->session);
  r->saved = -1;
  KVA_TRY(kva_comm_agree(r->o->comm, writes_checkpoints(r) ? kva_checkpoint_possible(a, diag) : KVA_OK, diag));
  KVA_TRY(kva_comm_agree(r->o->comm, r->writes ? open_checkpoints(r, diag) : KVA_OK, diag));
  if (r->o->resume) KVA_TRY(resume(r, diag));
  KVA_TRY(kva_comm_agree(r->o->comm, r->writes ? check_checkpoints(r, diag) : KVA_OK, diag));
  return measure_best(r, diag);
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

/* Metrics are cut when the run begins, and a report replaces a file when it ends. */
static kva_status check_outputs(const kva_train_settings *o, const char *data, const char *metrics, kva_diag *diag) {
  const struct { const char *option, *path; } outputs[] = {{"--metrics", metrics}, {"--report", o->report}};
  kva_arena *arena = kva_arena_create();
  kva_status status = KVA_OK;
  for (size_t i = 0; status == KVA_OK && i < sizeof outputs / sizeof *outputs; i++) {
    const char *path = outputs[i].path, *file = kva_train_reads(o, data, path, arena);
    if (file)
      status = kva_error(diag, NULL, "%s %s would replace %s, which is read; write elsewhere", outputs[i].option, path,
                         file);
  }
  kva_arena_destroy(arena);
  return status;
}

static kva_status open_data(const kva_train_settings *o, const kva_train_defaults *d, int n, const char *const *inputs,
                            kva_diag *diag, kva_data_source *out) {
  const char *text = kva_train_data(o, d);
  if (!text) return kva_error(diag, NULL, "the train block names no data; give --data induction or --data tokens:FILE");
  const kva_comm *data = kva_comm_data(o->comm);
  kva_part part = o->comm ? (kva_part){kva_comm_rank(data), kva_comm_size(data)} : o->shard;
  const kva_data_options options = {
      .vocab = d->vocab, .n_inputs = n, .inputs = inputs, .ranges = d->ranges, .rank = part.index, .world = part.count};
  KVA_TRY(kva_data_open(text, &options, diag, out));
  /* Another part of the batches is other data. Those of a mesh are all read. */
  if (!o->comm && part.count > 1) out->id = kva_hash(out->id, &part, sizeof part);
  return KVA_OK;
}

kva_status kva_train_check(const kva_train_settings *o, const kva_train_defaults *d, int n, const char *const *inputs,
                           kva_diag *diag) {
  kva_data_source data;
  KVA_TRY(open_data(o, d, n, inputs, diag, &data));
  data.destroy(data.self);
  KVA_TRY(check_outputs(o, kva_train_data(o, d), o->metrics, diag));
  return o->resume ? note_resume(check_resumed(o, diag), diag) : KVA_OK;
}

static kva_status open_data_of(kva_session *s, const kva_train_settings *o, const kva_train_defaults *d,
                               kva_arena *arena, kva_diag *diag, kva_data_source *out) {
  const kva_program *p = kva_train_data_program(kva_session_artifact(s));
  if (!p) return kva_error(diag, NULL, "the model was compiled without training programs");
  const char **inputs = KVA_NEW_ARRAY(arena, const char *, p->n_inputs + 1);
  for (int32_t i = 0; i < p->n_inputs; i++) inputs[i] = p->buffers[p->inputs[i]].name;
  return open_data(o, d, p->n_inputs, inputs, diag, out);
}

static kva_status open_metrics(run *r, const char *path, kva_diag *diag) {
  if (!r->writes) return KVA_OK;
  if (r->o->json) KVA_TRY(kva_metrics_create(NULL, false, diag, &r->metrics[1]));
  if (!path) return KVA_OK;
  if (r->o->resume) KVA_TRY(kva_metrics_cut(path, r->resumed, kva_trainer_is_due(r->trainer), diag));
  return kva_metrics_create(path, r->o->resume, diag, &r->metrics[0]);
}

static kva_status add_not_finite(const run *r, kva_diag *diag) {
  for (int i = 0; i < 2; i++)
    if (r->metrics[i]) KVA_TRY(kva_metrics_add_not_finite(r->metrics[i], kva_trainer_done(r->trainer) + 1, diag));
  return KVA_OK;
}

/* The state as it is: nothing is learned and nothing saved. */
static kva_status evaluate(run *r, kva_diag *diag) {
  kva_train_event event;
  kva_status status = kva_trainer_evaluate(r->trainer, diag, &event);
  if (status == KVA_INTERRUPTED && !r->o->json) printf("%-10s interrupted in the evaluation\n", r->result->name);
  KVA_TRY(status);
  on_event(r, &event);
  return r->status;
}

static void print_interruption(const run *r) {
  if (r->terminal) printf("\n");
  printf("%-10s interrupted after step %lld, %s%s\n", r->result->name, (long long)kva_trainer_done(r->trainer),
         r->o->checkpoint ? "saved in " : "not saved: no --checkpoint", r->o->checkpoint ? r->o->checkpoint : "");
}

/* A step that failed has changed nothing: its loss is not finite, which all processes see, or its data are refused. */
static bool keeps_state(const run *r, kva_status status) {
  bool unchanged = status == KVA_NOT_FINITE || (status == KVA_INVALID && !r->o->comm);
  return unchanged && r->o->checkpoint && kva_trainer_done(r->trainer) > r->resumed;
}

/* What interrupts an evaluation leaves a checkpoint of its step. So the run that goes on from there evaluates first. */
static kva_status evaluate_resumed(run *r, kva_diag *diag) {
  if (!r->loaded || !kva_trainer_is_due(r->trainer)) return KVA_OK;
  KVA_TRY(evaluate(r, diag));
  save_best(r);
  return KVA_OK;
}

static kva_status run_all(run *r, const char *metrics, kva_diag *diag) {
  KVA_TRY(prepare_checkpoints(r, diag));
  KVA_TRY(kva_comm_agree(r->o->comm, open_metrics(r, metrics, diag), diag));
  r->begin = kva_now();
  if (r->o->steps == 0) return evaluate(r, diag);
  KVA_TRY(evaluate_resumed(r, diag));
  kva_status status = kva_trainer_run(r->trainer, diag);
  int64_t steps = kva_trainer_done(r->trainer) - r->resumed;
  if (steps > 0) r->result->sent = kva_trainer_sent(r->trainer) / steps;
  if (r->o->comm) r->result->exchange = kva_comm_measured(r->o->comm);
  if (status == KVA_NOT_FINITE) r->status = add_not_finite(r, diag);
  if (keeps_state(r, status) && save(r, diag) == KVA_OK)
    kva_note(diag, NULL, "the state before that step is saved in %s", r->o->checkpoint);
  if (status == KVA_OK) status = kva_trainer_compare(r->trainer, diag);
  if (status == KVA_OK && r->status == KVA_INTERRUPTED && !r->o->json) print_interruption(r);
  bool known = status == KVA_OK || status == KVA_NOT_FINITE; /* by all processes: they see the same loss */
  if (status == KVA_OK) status = r->status;
  if (r->o->comm && known) kva_comm_note_agreed(r->o->comm, status != KVA_OK);
  return status;
}

static kva_status train(run *r, kva_session *s, const kva_train_defaults *d, kva_data_source *data, const char *metrics,
                        kva_diag *diag) {
  kva_train_options options;
  KVA_TRY(kva_train_make_options(r->o, d, diag, &options));
  const char *text = kva_train_data(r->o, d);
  int64_t length = text ? kva_data_length(text) : 0;
  kva_symbol_value symbol = {"T", length ? length : d->length};
  options.symbols = &symbol;
  options.n_symbols = symbol.value > 0;
  options.progress = on_event;
  options.after_step = after_step;
  options.goes_on = goes_on;
  options.user = r;
  KVA_TRY(kva_comm_agree(r->o->comm, kva_trainer_create(s, &options, diag, &r->trainer), diag));
  KVA_TRY(kva_processes_compare(s, r->o, &options, data->id, r->trainer, diag));
  kva_trainer_bind(r->trainer, data);
  r->tokens = kva_train_reads_tokens(kva_train_data_program(kva_session_artifact(s)));
  return run_all(r, metrics, diag);
}

/* The end of the metrics. */
static kva_status add_shifts(const run *r, kva_diag *diag) {
  for (int w = 0; w < 2; w++)
    for (int i = 0; r->metrics[w] && i < r->result->n_shifts; i++)
      KVA_TRY(kva_metrics_add_shift(r->metrics[w], kva_trainer_done(r->trainer), &r->result->shifts[i], diag));
  return KVA_OK;
}

kva_status kva_train_session(kva_session *s, const kva_train_settings *o, const kva_train_defaults *d,
                             const char *metrics, kva_arena *arena, kva_diag *diag, kva_train_result *result) {
  run r = {.o = o,
           .result = result,
           .diag = diag,
           .session = s,
           .lock = -1,
           .best = INFINITY,
           .writes = !kva_comm_rank(o->comm),
           .terminal = isatty(STDOUT_FILENO)};
  kva_data_source data = {0};
  kva_status status = open_data_of(s, o, d, arena, diag, &data);
  if (status == KVA_OK) status = check_outputs(o, kva_train_data(o, d), metrics, diag);
  status = kva_comm_agree(o->comm, status, diag);
  if (status == KVA_OK) result->history = kva_history_create(); /* what is refused has none, and no report */
  if (status == KVA_OK && !result->history) status = KVA_NO_MEMORY;
  if (status == KVA_OK) status = train(&r, s, d, &data, metrics, diag);
  if (r.terminal && !o->json) printf("\n");
  kva_status collected = kva_train_collect(s, o, d, status == KVA_OK, arena, result);
  if (status == KVA_OK && collected != KVA_OK)
    status = kva_fail(diag, collected, NULL, "the learned shifts of other processes are missing");
  if (status == KVA_OK) status = add_shifts(&r, diag);
  kva_trainer_destroy(r.trainer);
  for (int i = 0; i < 2; i++) kva_metrics_destroy(r.metrics[i]);
  if (data.destroy) data.destroy(data.self);
  kva_checkpoint_unlock(r.lock);
  free(r.loaded);
  free(r.names);
  free(r.values);
  return status;
}
