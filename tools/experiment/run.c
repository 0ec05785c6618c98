/* Runs commands of this tool, several at a time, each in a process of its own. A command writes to FOLDER.tmp, which
 * gets its name when the command is done: what has the name is complete, and is not run again. */
#include "tools/experiment/experiment.h"

#include "runtime/base/platform.h"
#include "runtime/exe/train.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at) {
  (void)st, (void)type, (void)at;
  return remove(path);
}

static void remove_folder(const char *path) {
  nftw(path, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static kva_status cannot(kva_diag *diag, const char *path, const char *what) {
  return kva_fail(diag, KVA_IO, &(kva_loc){.file = path}, "cannot %s: %s", what, strerror(errno));
}

/* ---- processes --------------------------------------------------------------------------------------------------- */

static const char *temporary(const kva_exp_job *job, kva_arena *arena, const char *name) {
  return kva_arena_printf(arena, "%s.tmp%s", job->folder, name);
}

/* In the child: only calls that are safe between fork and exec. It ends with its parent, also one that was killed. */
static void become(const kva_exp_job *job, pid_t parent, int out, int err) {
  if (prctl(PR_SET_PDEATHSIG, SIGTERM) || getppid() != parent) _exit(127);
  if (dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0)
    execv("/proc/self/exe", job->commands.data[job->at].argv);
  _exit(127);
}

static kva_status start_command(kva_exp_job *job, kva_arena *arena, kva_diag *diag) {
  const char *output = kva_arena_printf(arena, "/%s", job->commands.data[job->at].output);
  int out = open(temporary(job, arena, output), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  int err = open(temporary(job, arena, "/stderr"), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  pid_t self = getpid();
  fflush(NULL);
  job->pid = out >= 0 && err >= 0 ? fork() : -1;
  if (job->pid == 0) become(job, self, out, err);
  int failure = errno;
  if (out >= 0) close(out);
  if (err >= 0) close(err);
  errno = failure;
  if (job->pid > 0) return KVA_OK;
  job->pid = 0;
  return cannot(diag, job->folder, "start a run for it");
}

static kva_status start(kva_exp_job *job, kva_arena *arena, kva_diag *diag) {
  const char *folder = temporary(job, arena, "");
  remove_folder(folder);
  if (mkdir(folder, 0777)) return cannot(diag, folder, "make the folder");
  job->began = kva_now();
  job->at = 0;
  return start_command(job, arena, diag);
}

/* What a failed command said. */
static const char *failure_text(const kva_exp_job *job, int code, kva_arena *arena) {
  kva_file file;
  const char *path = temporary(job, arena, "/stderr"), *said = "";
  if (kva_file_map(path, NULL, &file) == KVA_OK) {
    said = kva_arena_strndup(arena, file.data ? file.data : "", file.size < 2000 ? file.size : 2000);
    kva_file_unmap(&file);
  }
  return kva_arena_printf(arena, "ended with code %d: %.*s", code, (int)strcspn(said, "\n"), said);
}

/* Whether the metrics end with a loss that is not finite: that is a result. */
static bool has_diverged(const kva_exp_job *job, kva_arena *arena) {
  kva_file file;
  if (kva_file_map(temporary(job, arena, "/metrics.jsonl"), NULL, &file) != KVA_OK) return false;
  static const char mark[] = "\"event\": \"not_finite\"}\n";
  size_t n = sizeof mark - 1;
  bool found = file.size >= n && !memcmp((const char *)file.data + file.size - n, mark, n);
  kva_file_unmap(&file);
  return found;
}

/* The hash of a folder's results, as it stands in the folder's file .sum. */
static kva_status sum_text(const char *folder, kva_arena *arena, kva_diag *diag, const char **out) {
  uint64_t sum = 0;
  KVA_TRY(kva_exp_hash(folder, arena, diag, &sum));
  *out = kva_arena_printf(arena, "%016llx\n", (unsigned long long)sum);
  return KVA_OK;
}

/* Gives results their name, and the time that they took. */
static kva_status complete(kva_exp_job *job, kva_arena *arena, kva_diag *diag) {
  const char *seconds = kva_arena_printf(arena, "%.3f\n", job->seconds), *sum;
  KVA_TRY(kva_file_write(temporary(job, arena, "/seconds"), seconds, strlen(seconds), diag));
  KVA_TRY(sum_text(temporary(job, arena, ""), arena, diag, &sum));
  KVA_TRY(kva_file_write(temporary(job, arena, "/.sum"), sum, strlen(sum), diag));
  if (rename(temporary(job, arena, ""), job->folder)) return cannot(diag, job->folder, "rename the results");
  job->done = true;
  return KVA_OK;
}

/* Whether the results are those that a command left: a full disk, a crash of the machine or a hand may have changed
 * them since. */
static bool is_whole(const kva_exp_job *job, kva_arena *arena) {
  kva_file file;
  const char *sum;
  if (sum_text(job->folder, arena, NULL, &sum) != KVA_OK) return false;
  if (kva_file_map(kva_arena_printf(arena, "%s/.sum", job->folder), NULL, &file) != KVA_OK) return false;
  bool same = file.size == strlen(sum) && !memcmp(file.data, sum, file.size);
  kva_file_unmap(&file);
  return same;
}

/* A command of the job has ended: starts the next one, or completes the job. */
static kva_status finish(kva_exp_job *job, int wait_status, kva_arena *arena, kva_diag *diag) {
  int code = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128;
  job->pid = 0;
  job->seconds = kva_now() - job->began;
  if (kva_train_stopped()) return KVA_INTERRUPTED;
  bool diverged = code != 0 && has_diverged(job, arena);
  if (code != 0 && !diverged) {
    job->failure = failure_text(job, code, arena);
    return KVA_OK;
  }
  if (++job->at < job->commands.len && !diverged) return start_command(job, arena, diag);
  return complete(job, arena, diag);
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

typedef struct queue {
  kva_exp_job **jobs;
  uint32_t n, next, finished, cached, running;
  double began;
  bool terminal;
} queue;

/* One line for all: how many are done, what runs, and when the rest will be done at this pace. */
static void show(const queue *q) {
  if (!q->terminal) return;
  double elapsed = kva_now() - q->began;
  printf("\r\033[K%u of %u runs", q->finished, q->n);
  if (q->finished > q->cached)
    printf(", about %.0f s left", elapsed / (q->finished - q->cached) * (q->n - q->finished));
  for (uint32_t i = 0; i < q->next; i++) {
    const kva_exp_job *job = q->jobs[i];
    if (job->pid)
      printf(", %s %s/%lld", job->experiment->name, job->experiment->runs.data[job->run].name, (long long)job->seed);
  }
  fflush(stdout);
}

static void tell(const queue *q, const kva_exp_job *job) {
  printf("%s%-10s %-28s seed %lld  %7.1f s  (%u of %u)%s%s\n", q->terminal ? "\r\033[K" : "", job->experiment->name,
         job->experiment->runs.data[job->run].name, (long long)job->seed, job->seconds, q->finished, q->n,
         job->failure ? "  FAILED: " : "", job->failure ? job->failure : "");
  fflush(stdout);
}

/* ---- the queue --------------------------------------------------------------------------------------------------- */

static kva_status reap(queue *q, kva_arena *arena, kva_diag *diag) {
  for (uint32_t i = 0; i < q->next; i++) {
    kva_exp_job *job = q->jobs[i];
    int wait_status;
    if (!job->pid || waitpid(job->pid, &wait_status, WNOHANG) != job->pid) continue;
    KVA_TRY(finish(job, wait_status, arena, diag));
    if (job->pid) continue;
    q->running--;
    q->finished++;
    tell(q, job);
  }
  return KVA_OK;
}

/* The same command may be in several experiments: one that runs already is waited for. */
static bool runs_elsewhere(const queue *q, const kva_exp_job *job) {
  for (uint32_t i = 0; i < q->next; i++)
    if (q->jobs[i]->pid && !strcmp(q->jobs[i]->folder, job->folder)) return true;
  return false;
}

static kva_status start_next(queue *q, kva_arena *arena, kva_diag *diag) {
  kva_exp_job *job = q->jobs[q->next];
  if (runs_elsewhere(q, job)) return KVA_OK;
  q->next++;
  if (!access(job->folder, F_OK)) {
    if (is_whole(job, arena)) {
      job->done = job->cached = true;
      q->cached++;
      q->finished++;
      return KVA_OK;
    }
    kva_warn(diag, &(kva_loc){.file = job->folder},
             "the results of a run have changed since they were made; it is run again");
    remove_folder(job->folder);
  }
  KVA_TRY(start(job, arena, diag));
  q->running++;
  return KVA_OK;
}

static void stop_all(queue *q) {
  for (uint32_t i = 0; i < q->next; i++)
    if (q->jobs[i]->pid) kill(q->jobs[i]->pid, SIGTERM);
  for (uint32_t i = 0; i < q->next; i++) {
    if (q->jobs[i]->pid) waitpid(q->jobs[i]->pid, NULL, 0);
    q->jobs[i]->pid = 0;
  }
}

static kva_status work(queue *q, uint32_t parallel, kva_arena *arena, kva_diag *diag) {
  while (q->finished < q->n) {
    if (kva_train_stopped()) return KVA_INTERRUPTED;
    if (q->next < q->n && q->running < parallel) KVA_TRY(start_next(q, arena, diag));
    KVA_TRY(reap(q, arena, diag));
    show(q);
    if (q->running) nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
  }
  return KVA_OK;
}

kva_status kva_exp_run_jobs(kva_exp_job **jobs, uint32_t n, const kva_exp_settings *o, kva_arena *arena,
                            kva_diag *diag) {
  const char *runs = kva_arena_printf(arena, "%s/runs", o->folder);
  if (mkdir(runs, 0777) && errno != EEXIST) return cannot(diag, runs, "make the folder");
  queue q = {.jobs = jobs, .n = n, .began = kva_now(), .terminal = isatty(STDOUT_FILENO)};
  uint32_t parallel = o->jobs > 0 ? (uint32_t)o->jobs : (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
  kva_status status = work(&q, parallel ? parallel : 1, arena, diag);
  stop_all(&q);
  if (q.terminal) printf("\r\033[K");
  if (status == KVA_OK && q.cached) printf("%u of %u runs were done before\n", q.cached, n);
  for (uint32_t i = 0; i < n && status == KVA_OK; i++)
    if (jobs[i]->done) status = kva_exp_load(jobs[i], arena, diag);
  return status;
}

void kva_exp_job_free(kva_exp_job *job) {
  kva_history_destroy(job->history);
  job->history = NULL;
}
