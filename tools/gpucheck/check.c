/* The checker: every case in a worker process, which may hang or die without loss of the others.
 *
 *   kva_gpu_check CASES -o DIR [--phase A|B|C] [--device cuda|ptxsim|cpu] [--only TEXT]... [--no-times]
 *                 [--limit SECONDS] [--budget SECONDS] [--direct]
 *
 * DIR gets results.jsonl, a line when a case starts and one when it ends, report.md and profiles.md; each is on disk
 * before the next case begins. A run that finds results in DIR goes on behind them; a case that had only started
 * there counts as one that died. --limit ends a case (90 s; training steps have four times that), --budget begins no
 * case after that time (all day), and 20 s later gives up the one that runs, for the next run. --direct runs cases in
 * this process and writes no files: for profilers and debuggers. Exit code 0: all agree; 1: something does not; 3: the
 * device is missing; 4: the budget ended it. */
#include "tools/gpucheck/check.h"
#include "runtime/base/platform.h"
#include "runtime/cuda/query.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STEPS_FACTOR = 4, REAP_SECONDS = 20, MOST_BARREN = 3, LAST_WORDS = 4096, GRACE_SECONDS = 20 };

typedef struct settings {
  const char *cases, *device, *folder;
  const char *only[GPU_MAX_ONLY];
  int n_only;
  char phase; /* 0: all */
  double limit, budget;
  bool no_times, direct;
} settings;

typedef struct tally {
  int verdicts[GPU_VERDICTS], foreign;
} tally;

typedef struct check {
  settings o;
  char arch[16], gpu[160];
  kva_diag *diag;
  gpu_item *items;
  int64_t n_items;
  bool *done;
  uint64_t archive; /* hash of the cases */
  FILE *results, *report, *profiles;
  tally kinds[GPU_KINDS];
  kva_text bad; /* a line for every case that does not agree */
  int n_left;   /* cases for which no time was left */
  double start;
} check;

/* ---- cases ------------------------------------------------------------------------------------------------------- */

typedef struct cursor {
  const char *at, *end;
} cursor;

static const void *take(cursor *c, size_t size) {
  size_t padded = (size + 7) / 8 * 8;
  if ((size_t)(c->end - c->at) < padded) return NULL;
  const void *p = c->at;
  c->at += padded;
  return p;
}

static bool next_item(cursor *at, gpu_item *it) {
  it->c = take(at, sizeof *it->c);
  if (!it->c || it->c->artifact < 0 || it->c->artifact >= gpu_n_artifacts || it->c->n_inputs > GPU_MAX_TENSORS ||
      it->c->n_outputs > GPU_MAX_TENSORS || it->c->kind < 0 || it->c->kind >= GPU_KINDS)
    return false;
  for (int i = 0; i < it->c->n_inputs + it->c->n_outputs; i++) {
    it->tensors[i] = take(at, sizeof *it->tensors[i]);
    if (!it->tensors[i] || it->tensors[i]->bytes < 0) return false;
    it->data[i] = take(at, (size_t)it->tensors[i]->bytes);
    if (!it->data[i]) return false;
  }
  return true;
}

static kva_status read_cases(check *k, const kva_file *file) {
  cursor at = {file->data, (const char *)file->data + file->size};
  const gpu_header *header = take(&at, sizeof *header);
  if (!header || memcmp(header->magic, GPU_CHECK_MAGIC, sizeof header->magic) != 0 || header->n_cases < 0)
    return kva_error(k->diag, NULL, "%s is no file of cases", k->o.cases);
  k->items = calloc((size_t)header->n_cases + 1, sizeof *k->items);
  k->done = calloc((size_t)header->n_cases + 1, sizeof *k->done);
  if (!k->items || !k->done) return kva_fail(k->diag, KVA_NO_MEMORY, NULL, "no memory for the cases");
  for (; k->n_items < header->n_cases; k->n_items++)
    if (!next_item(&at, &k->items[k->n_items]))
      return kva_error(k->diag, NULL, "%s is damaged at case %lld", k->o.cases, (long long)k->n_items);
  k->archive = kva_hash(0, file->data, file->size);
  return KVA_OK;
}

static bool is_wanted(const check *k, const gpu_case *c) {
  bool large = c->kind == GPU_TIMING || c->kind == GPU_STEPS;
  if ((k->o.phase && c->phase != k->o.phase) || (large && k->o.no_times)) return false;
  for (int i = 0; i < k->o.n_only; i++)
    if (strstr(c->name, k->o.only[i])) return true;
  return !k->o.n_only;
}

/* Code for "sm_90a" runs on 9.0 only, other code on its architecture and newer ones; machine code on those of the same
 * major number. The simulator is too slow for what is timed, and compiles nothing. */
static bool fits(const check *k, const gpu_case *c) {
  bool cpu = gpu_case_is_cpu(c);
  if (cpu || gpu_device_is_cpu(k->o.device)) return cpu && gpu_device_is_cpu(k->o.device);
  if (!strcmp(k->o.device, "ptxsim")) return c->kind != GPU_STEPS && c->kind != GPU_TIMING && !c->machine;
  int code = atoi(c->target + 3), present = atoi(k->arch + 3);
  if (c->machine && code / 10 != present / 10) return false;
  return strchr(c->target, 'a') ? code == present : code <= present;
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void emit(FILE *out, const char *text) {
  if (!out) return;
  fputs(text, out);
  fflush(out);
  fsync(fileno(out));
}

static void emit_event(check *k, const char *event, int64_t id, const char *more) {
  kva_text line = {0};
  kva_text_add(&line, "{\"event\": \"%s\", ", event);
  gpu_case_members(k->items[id].c, id, &line);
  kva_text_add(&line, "%s}\n", more);
  emit(k->results, line.data);
  kva_text_free(&line);
}

static void count(check *k, int64_t id, gpu_verdict v, const char *message) {
  const gpu_case *c = k->items[id].c;
  k->done[id] = true;
  k->kinds[c->kind].verdicts[v]++;
  if (v == GPU_AGREES) return;
  kva_text_add(&k->bad, "- %s: %s, %s, %s, %s%s%s\n", gpu_verdict_name(v), gpu_kind_name(c->kind), c->name, c->target,
               gpu_case_compiler(c), message && *message ? ": " : "", message ? message : "");
}

static void show_row(check *k, const char *row) {
  if (!*row) return;
  emit(k->report, row);
  emit(k->report, "\n");
  printf("%s\n", row);
  fflush(stdout);
}

/* What the supervisor says of a case whose worker cannot. */
static void record_loss(check *k, int64_t id, gpu_verdict v, const char *message) {
  gpu_outcome o = {.verdict = v, .device = -1, .simulator = -1};
  kva_text row = {0}, members = {0};
  snprintf(o.message, sizeof o.message, "%s", message);
  gpu_outcome_row(k->items[id].c, &o, &row);
  gpu_outcome_members(k->items[id].c, &o, &members);
  emit_event(k, "result", id, members.data);
  show_row(k, row.data ? row.data : "");
  count(k, id, v, message);
  kva_text_free(&row);
  kva_text_free(&members);
}

static gpu_verdict verdict_in(const char *line) {
  for (gpu_verdict v = GPU_AGREES; v < GPU_VERDICTS; v++) {
    char text[32];
    snprintf(text, sizeof text, "\"result\": \"%s\"", gpu_verdict_name(v));
    if (strstr(line, text)) return v;
  }
  return GPU_DIED;
}

/* Takes over the results of an earlier run. *out_open: a case that had started and not ended; -1: none. */
static kva_status read_results(check *k, const char *path, int64_t *out_open) {
  FILE *in = fopen(path, "r");
  char *line = NULL;
  size_t size = 0;
  unsigned long long archive = k->archive;
  long long id;
  *out_open = -1;
  while (in && getline(&line, &size, in) >= 0) {
    if (sscanf(line, "{\"event\": \"archive\", \"hash\": \"%llx\"", &archive) == 1) continue;
    if (sscanf(line, "{\"event\": \"started\", \"id\": %lld,", &id) == 1) *out_open = id;
    if (!strncmp(line, "{\"event\": \"stopped\"", 19)) *out_open = -1;
    if (sscanf(line, "{\"event\": \"result\", \"id\": %lld,", &id) != 1 || id < 0 || id >= k->n_items) continue;
    count(k, id, verdict_in(line), "in an earlier run");
    *out_open = -1;
  }
  free(line);
  if (in) fclose(in);
  if (archive == k->archive) return KVA_OK;
  return kva_error(k->diag, NULL, "%s has results of another archive: remove it, or name another folder", path);
}

static FILE *open_file(check *k, const char *name) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", k->o.folder, name);
  FILE *f = fopen(path, "a");
  if (!f) kva_fail(k->diag, KVA_IO, NULL, "cannot write %s: %s", path, strerror(errno));
  return f;
}

static kva_status open_files(check *k) {
  char path[4096];
  int64_t open;
  mkdir(k->o.folder, 0777);
  snprintf(path, sizeof path, "%s/results.jsonl", k->o.folder);
  KVA_TRY(read_results(k, path, &open));
  k->results = open_file(k, "results.jsonl");
  k->report = open_file(k, "report.md");
  k->profiles = open_file(k, "profiles.md");
  if (!k->results || !k->report || !k->profiles) return KVA_IO;
  char line[64];
  snprintf(line, sizeof line, "{\"event\": \"archive\", \"hash\": \"%llx\"}\n", (unsigned long long)k->archive);
  emit(k->results, line);
  if (open >= 0 && open < k->n_items && !k->done[open])
    record_loss(k, open, GPU_DIED, "an earlier run of the checker ended in it");
  return KVA_OK;
}

static void write_heading(check *k) {
  char date[32], text[512], phase[16] = "all phases";
  time_t now = time(NULL);
  struct tm utc;
  strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", gmtime_r(&now, &utc));
  if (k->o.phase) snprintf(phase, sizeof phase, "phase %c", k->o.phase);
  snprintf(text, sizeof text,
           "\n## %s, %s\n\nKvasir %s, %s, device %s (%s). Differences are in units of the tolerance; operators: those "
           "that do not agree.\n\n" GPU_REPORT_HEADER,
           phase, date, KVA_VERSION, k->gpu, k->o.device, k->arch);
  emit(k->report, text);
  printf("%s", text);
}

static void write_summary(check *k) {
  kva_text text = {0};
  kva_text_add(&text, "\n");
  for (int i = 0; i < GPU_KINDS; i++) {
    const int *v = k->kinds[i].verdicts;
    kva_text_add(&text, "%s: %d agree, %d wrong, %d failed, %d hang, %d died, %d for other GPUs\n", gpu_kind_name(i),
                 v[GPU_AGREES], v[GPU_WRONG], v[GPU_FAILED], v[GPU_HANGS], v[GPU_DIED], k->kinds[i].foreign);
  }
  if (k->n_left)
    kva_text_add(&text, "\nNo time was left for %d cases; run the same command again for them.\n", k->n_left);
  if (k->bad.len) kva_text_add(&text, "\nWhat does not agree:\n\n%s", k->bad.data);
  emit(k->report, text.data);
  printf("%s", text.data);
  kva_text_free(&text);
}

/* ---- a worker process -------------------------------------------------------------------------------------------- */

/* Lines to the supervisor: `S id`, then for what there is of it `P profile, its lines separated by \1`, `M row`, and at
 * last `R id verdict members` and `E message`. */
static void tell(int pipe, kva_text *line) {
  for (size_t i = 0; i < line->len; i++)
    if (line->data[i] == '\n') line->data[i] = '\1';
  kva_text_add(line, "\n");
  for (size_t at = 0; at < line->len;) {
    ssize_t n = write(pipe, line->data + at, line->len - at);
    if (n < 0 && errno != EINTR) _exit(GPU_DIED);
    if (n > 0) at += (size_t)n;
  }
  kva_text_free(line);
}

static void tell_outcome(int pipe, int64_t id, const gpu_case *c, const gpu_outcome *o) {
  kva_text line = {0};
  if (o->table.len) {
    kva_text_add(&line, "P %s", o->table.data);
    tell(pipe, &line);
  }
  kva_text_add(&line, "M ");
  gpu_outcome_row(c, o, &line);
  tell(pipe, &line);
  kva_text_add(&line, "E %s", o->message);
  tell(pipe, &line);
  kva_text_add(&line, "R %lld %d ", (long long)id, (int)o->verdict);
  gpu_outcome_members(c, o, &line);
  tell(pipe, &line);
}

static bool same_group(const gpu_case *a, const gpu_case *b) {
  return a->kind == b->kind && a->machine == b->machine && !strcmp(a->target, b->target);
}

static bool is_due(const check *k, int64_t id) {
  return !k->done[id] && is_wanted(k, k->items[id].c) && fits(k, k->items[id].c);
}

/* A worker does what follows of its first case's group. After an error the driver's context may be dead: then another
 * process goes on. */
static void work(const check *k, int64_t first, int pipe) {
  gpu_worker *w = gpu_worker_create(k->o.device, k->arch);
  bool usable = w != NULL;
  for (int64_t i = first; usable && i < k->n_items; i++) {
    if (!is_due(k, i)) continue;
    if (!same_group(k->items[i].c, k->items[first].c)) break;
    kva_text line = {0};
    kva_text_add(&line, "S %lld", (long long)i);
    tell(pipe, &line);
    gpu_outcome o;
    gpu_worker_run(w, &k->items[i], &o);
    tell_outcome(pipe, i, k->items[i].c, &o);
    usable = o.verdict != GPU_FAILED;
    gpu_outcome_free(&o);
  }
  if (usable) gpu_worker_destroy(w);
}

/* ---- the supervisor ---------------------------------------------------------------------------------------------- */

typedef struct watch {
  pid_t worker;
  int pipe;
  kva_text unread, row, message;
  int64_t current; /* case that has started; -1: none */
  double since;    /* when the worker, or the case, started */
} watch;

static void take_result(check *k, watch *w, const char *text) {
  long long id;
  int verdict, at = 0;
  if (sscanf(text, "%lld %d %n", &id, &verdict, &at) < 2 || id != w->current || !at) return;
  emit_event(k, "result", id, text + at);
  show_row(k, w->row.data ? w->row.data : "");
  count(k, id, (gpu_verdict)verdict, w->message.data);
  w->current = -1;
  w->since = kva_now();
}

static void take_line(check *k, watch *w, char *line) {
  for (char *c = line; *c; c++)
    if (*c == '\1') *c = line[0] == 'P' ? '\n' : ' ';
  const char *text = line[0] && line[1] ? line + 2 : "";
  kva_text *kept = line[0] == 'M' ? &w->row : line[0] == 'E' ? &w->message : NULL;
  if (kept) {
    kva_text_free(kept);
    kva_text_add(kept, "%s", text);
  }
  if (line[0] == 'P') emit(k->profiles, text);
  if (line[0] == 'R') take_result(k, w, text);
  if (line[0] != 'S') return;
  w->current = atoll(text);
  w->since = kva_now();
  emit_event(k, "started", w->current, "");
}

/* Takes what is complete. */
static void take_lines(check *k, watch *w) {
  char *line = w->unread.data, *end;
  while (line && (end = strchr(line, '\n'))) {
    *end = 0;
    take_line(k, w, line);
    line = end + 1;
  }
  kva_text rest = {0};
  if (line && *line) kva_text_add(&rest, "%s", line);
  kva_text_free(&w->unread);
  w->unread = rest;
}

static double limit_of(const check *k, const watch *w) {
  bool steps = w->current >= 0 && k->items[w->current].c->kind == GPU_STEPS;
  return k->o.limit * (steps ? STEPS_FACTOR : 1);
}

static bool is_out_of_time(const check *k, double grace) {
  return kva_now() - k->start > k->o.budget + grace;
}

/* false: the worker has closed its end, has been silent for too long (*out_late), or there is no time left. */
static bool listen_to(check *k, watch *w, bool *out_late) {
  char buffer[65536];
  double left = fmin(w->since + limit_of(k, w), k->start + k->o.budget + GRACE_SECONDS) - kva_now();
  if (is_out_of_time(k, w->current < 0 ? 0 : GRACE_SECONDS)) return false;
  struct pollfd p = {.fd = w->pipe, .events = POLLIN};
  *out_late = left <= 0;
  if (*out_late) return false;
  if (poll(&p, 1, (int)(left * 1e3) + 1) <= 0) return true;
  ssize_t n = read(w->pipe, buffer, sizeof buffer);
  if (n < 0) return errno == EINTR;
  if (n > 0) kva_text_add_bytes(&w->unread, buffer, (size_t)n);
  take_lines(k, w);
  return n > 0;
}

/* A process whose kernel does not end may outlive its signal for a while: nobody waits for it longer than this. */
static int reap(pid_t worker) {
  double end = kva_now() + REAP_SECONDS;
  int state = 0;
  while (waitpid(worker, &state, WNOHANG) == 0) {
    if (kva_now() > end) return -1;
    usleep(10000);
  }
  return state;
}

static void describe_end(int state, char *text, size_t size) {
  if (state == -1)
    snprintf(text, size, "its process cannot be ended");
  else if (WIFSIGNALED(state))
    snprintf(text, size, "its process died of signal %d (%s)", WTERMSIG(state), strsignal(WTERMSIG(state)));
  else
    snprintf(text, size, "its process ended with code %d", WEXITSTATUS(state));
}

/* Ends what is left of a worker and says what became of its case. late: it was silent for too long. */
static void finish(check *k, watch *w, bool late) {
  char text[128];
  bool stopped = !late && w->current >= 0 && is_out_of_time(k, GRACE_SECONDS);
  if (late || stopped || w->current < 0) kill(w->worker, SIGKILL);
  int state = reap(w->worker);
  close(w->pipe);
  if (stopped) {
    emit_event(k, "stopped", w->current, "");
  } else if (w->current >= 0 && late) {
    snprintf(text, sizeof text, "no result after %.0f s", limit_of(k, w));
    record_loss(k, w->current, GPU_HANGS, text);
  } else if (w->current >= 0) {
    describe_end(state, text, sizeof text);
    record_loss(k, w->current, GPU_DIED, text);
  }
  kva_text_free(&w->unread);
  kva_text_free(&w->row);
  kva_text_free(&w->message);
}

/* Starts a process that writes to a pipe. The parent has no threads and never touches the device. */
static kva_status start(check *k, void (*body)(const check *, int64_t, int), int64_t first, watch *w) {
  int ends[2];
  if (pipe(ends) != 0) return kva_fail(k->diag, KVA_IO, NULL, "no pipe: %s", strerror(errno));
  fflush(NULL);
  *w = (watch){.worker = fork(), .pipe = ends[0], .current = -1, .since = kva_now()};
  if (w->worker == 0) {
    close(ends[0]);
    body(k, first, ends[1]);
    _exit(0);
  }
  close(ends[1]);
  return w->worker > 0 ? KVA_OK : kva_fail(k->diag, KVA_IO, NULL, "no process: %s", strerror(errno));
}

static int64_t first_due(const check *k, int64_t from) {
  while (from < k->n_items && !is_due(k, from)) from++;
  return from;
}

static kva_status supervise(check *k) {
  int barren = 0; /* successive workers that began no case */
  for (int64_t i = first_due(k, 0); i < k->n_items && !is_out_of_time(k, 0); i = first_due(k, 0)) {
    watch w;
    bool late = false;
    KVA_TRY(start(k, work, i, &w));
    while (listen_to(k, &w, &late)) continue;
    finish(k, &w, late);
    barren = k->done[i] ? 0 : barren + 1;
    if (barren == MOST_BARREN && !is_out_of_time(k, 0))
      return kva_fail(k->diag, KVA_MISSING, NULL, "%d processes in a row ended before their first case", barren);
  }
  for (int64_t i = 0; i < k->n_items; i++) k->n_left += is_due(k, i);
  return KVA_OK;
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

/* In a process of its own: one that has used the driver cannot have children that do. */
static void ask_device(const check *k, int64_t first, int pipe) {
  (void)first;
  const char *arch = NULL;
  kva_text line = {0};
  kva_gpu_report r = {0};
  kva_status status = kva_device_check(k->o.device, k->diag, &arch);
  bool is_gpu = status == KVA_OK && gpu_device_has_driver(k->o.device);
  if (is_gpu) kva_gpu_query(&r);
  if (is_gpu)
    kva_text_add(&line, "%d sm_%d%d %s, driver for CUDA %d.%d, cuBLASLt %zu", (int)status, r.gpus[0].major,
                 r.gpus[0].minor, r.gpus[0].name, r.driver / 1000, r.driver / 10 % 100, r.blas);
  else
    kva_text_add(&line, "%d %s %s", (int)status, arch ? arch : "-",
                 kva_diag_count(k->diag)          ? kva_diag_message(k->diag, 0, NULL, NULL)
                 : gpu_device_is_cpu(k->o.device) ? "the CPU"
                                                  : "the simulator");
  tell(pipe, &line);
}

static kva_status find_device(check *k) {
  watch w;
  char text[LAST_WORDS] = "";
  KVA_TRY(start(k, ask_device, 0, &w));
  struct pollfd p = {.fd = w.pipe, .events = POLLIN};
  ssize_t n = poll(&p, 1, (int)(k->o.limit * 1e3)) > 0 ? read(w.pipe, text, sizeof text - 1) : 0;
  finish(k, &w, n <= 0);
  int status, at = 0;
  if (n <= 0 || sscanf(text, "%d %15s %n", &status, k->arch, &at) < 2 || !at)
    return kva_fail(k->diag, KVA_MISSING, NULL, "device %s does not answer", k->o.device);
  text[strcspn(text, "\n")] = 0;
  snprintf(k->gpu, sizeof k->gpu, "%s", text + at);
  return status == KVA_OK ? KVA_OK : kva_fail(k->diag, (kva_status)status, NULL, "%s", text + at);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static kva_status run_direct(check *k) {
  gpu_worker *w = gpu_worker_create(k->o.device, k->arch);
  if (!w) return kva_fail(k->diag, KVA_NO_MEMORY, NULL, "no memory");
  for (int64_t i = 0; i < k->n_items; i++) {
    if (!is_due(k, i)) continue;
    gpu_outcome o;
    kva_text row = {0};
    gpu_worker_run(w, &k->items[i], &o);
    gpu_outcome_row(k->items[i].c, &o, &row);
    show_row(k, row.data ? row.data : "");
    count(k, i, o.verdict, o.message);
    kva_text_free(&row);
    gpu_outcome_free(&o);
  }
  gpu_worker_destroy(w);
  return KVA_OK;
}

static kva_status run_checks(check *k) {
  KVA_TRY(find_device(k));
  for (int64_t i = 0; i < k->n_items; i++)
    k->kinds[k->items[i].c->kind].foreign += is_wanted(k, k->items[i].c) && !fits(k, k->items[i].c);
  if (k->o.direct) return run_direct(k);
  KVA_TRY(open_files(k));
  write_heading(k);
  return supervise(k);
}

static bool read_value(settings *o, const char *name, const char *value) {
  if (!strcmp(name, "--device")) return o->device = value, true;
  if (!strcmp(name, "-o")) return o->folder = value, true;
  if (!strcmp(name, "--limit")) return (o->limit = atof(value)) > 0;
  if (!strcmp(name, "--budget")) return (o->budget = atof(value)) > 0;
  if (!strcmp(name, "--phase")) return o->phase = value[0], value[0] >= 'A' && value[0] <= 'C' && !value[1];
  if (strcmp(name, "--only") != 0 || o->n_only == GPU_MAX_ONLY) return false;
  o->only[o->n_only++] = value;
  return true;
}

static bool read_options(int argc, char **argv, settings *o) {
  *o = (settings){.device = "cuda", .limit = 90, .budget = 86400};
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--no-times"))
      o->no_times = true;
    else if (!strcmp(argv[i], "--direct"))
      o->direct = true;
    else if (argv[i][0] != '-' && !o->cases)
      o->cases = argv[i];
    else if (i + 1 == argc || !read_value(o, argv[i], argv[i + 1]))
      return false;
    else
      i++;
  }
  return o->cases && (o->folder || o->direct);
}

static int exit_code(const check *k, kva_status status) {
  if (status != KVA_OK) return kva_status_exit_code(status);
  return k->bad.len ? 1 : k->n_left ? 4 : 0;
}

static void close_all(check *k) {
  FILE *const files[] = {k->results, k->report, k->profiles};
  for (int i = 0; i < 3; i++)
    if (files[i]) fclose(files[i]);
  kva_text_free(&k->bad);
  free(k->items);
  free(k->done);
  kva_diag_destroy(k->diag);
}

int main(int argc, char **argv) {
  check k = {.diag = kva_diag_create(), .start = kva_now()};
  kva_file file = {0};
  if (!read_options(argc, argv, &k.o)) {
    fprintf(stderr,
            "kva_gpu_check CASES -o DIR [--phase A|B|C] [--device cuda|ptxsim|cpu] [--only TEXT]... [--no-times]\n"
            "              [--limit SECONDS] [--budget SECONDS] [--direct]\n");
    return 2;
  }
  kva_status status = kva_file_map(k.o.cases, k.diag, &file);
  if (status == KVA_OK) status = read_cases(&k, &file);
  if (status == KVA_OK) status = run_checks(&k);
  kva_diag_print(k.diag, stderr);
  if (k.items) write_summary(&k);
  int code = exit_code(&k, status);
  close_all(&k);
  kva_file_unmap(&file);
  return code;
}
