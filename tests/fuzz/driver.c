/* Drives a fuzz target without libFuzzer:
 *
 *   fuzz_<name> [--seconds N] [--runs N] [--seed N] [--limit N] [--keep FILE] [FILE | FOLDER]...
 *
 * runs the target on every file, then on inputs made from them: mutated files, or random bytes where there are none,
 * for N seconds of CPU time or N runs, whatever comes first. An input that ends the process, or that takes more than
 * --limit seconds of CPU time (60), is left in FILE (finding-<name> in the working folder). */
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutate.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

typedef struct options {
  double seconds;
  uint64_t runs, seed;
  long limit;
} options;

static mutate_corpus corpus;
static const uint8_t *running; /* the input at work; NULL: none */
static size_t running_size;
static char keep[4096];

/* ---- inputs that end the process --------------------------------------------------------------------------------- */

static void keep_input(void) {
  int file = running ? open(keep, O_CREAT | O_TRUNC | O_WRONLY, 0644) : -1;
  if (file < 0) return;
  static const char text[] = "the input is in ";
  ssize_t written = write(file, running, running_size);
  written = write(STDERR_FILENO, text, sizeof text - 1);
  written = write(STDERR_FILENO, keep, strlen(keep));
  written = write(STDERR_FILENO, "\n", 1);
  (void)written;
  running = NULL;
  close(file);
}

static void on_signal(int number) {
  static const char late[] = "finding: takes too long\n";
  if (number == SIGPROF) {
    ssize_t written = write(STDERR_FILENO, late, sizeof late - 1);
    (void)written;
  }
  keep_input();
  signal(number, SIG_DFL);
  raise(number);
}

static void catch_signals(void) {
  static const int signals[] = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGPROF};
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) signal(signals[i], on_signal);
  atexit(keep_input); /* out of memory, sanitizers */
}

static void run(const uint8_t *data, size_t size, long limit) {
  struct itimerval timer = {.it_value.tv_sec = limit};
  running = data;
  running_size = size;
  setitimer(ITIMER_PROF, &timer, NULL);
  LLVMFuzzerTestOneInput(data, size);
  running = NULL;
}

/* ---- the corpus -------------------------------------------------------------------------------------------------- */

static void fail(const char *path) {
  fprintf(stderr, "%s: %s\n", path, strerror(errno));
  exit(2);
}

static void read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  uint8_t *data = malloc(MUTATE_MAX);
  if (!file || !data) fail(path);
  size_t n = fread(data, 1, MUTATE_MAX, file);
  fclose(file);
  if (!mutate_add(&corpus, data, n)) free(data);
}

static void read_path(const char *path) {
  struct stat s;
  if (stat(path, &s)) fail(path);
  if (!S_ISDIR(s.st_mode)) {
    read_file(path);
    return;
  }
  struct dirent **entries;
  int n = scandir(path, &entries, NULL, alphasort);
  if (n < 0) fail(path);
  for (int i = 0; i < n; i++) {
    char name[4096];
    snprintf(name, sizeof name, "%s/%s", path, entries[i]->d_name);
    if (entries[i]->d_name[0] != '.' && !stat(name, &s) && S_ISREG(s.st_mode)) read_file(name);
    free(entries[i]);
  }
  free(entries);
}

/* ---- main -------------------------------------------------------------------------------------------------------- */

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static const char *read_options(int argc, char **argv, options *o) {
  snprintf(keep, sizeof keep, "finding-%s", strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0]);
  for (int i = 1; i < argc; i++) {
    const char *value = i + 1 < argc ? argv[i + 1] : NULL;
    if (argv[i][0] != '-') {
      read_path(argv[i]);
      continue;
    }
    if (!value) return argv[i];
    if (!strcmp(argv[i], "--seconds"))
      o->seconds = strtod(value, NULL);
    else if (!strcmp(argv[i], "--runs"))
      o->runs = strtoull(value, NULL, 10);
    else if (!strcmp(argv[i], "--seed"))
      o->seed = strtoull(value, NULL, 10);
    else if (!strcmp(argv[i], "--limit"))
      o->limit = strtol(value, NULL, 10);
    else if (!strcmp(argv[i], "--keep"))
      snprintf(keep, sizeof keep, "%s", value);
    else
      return argv[i];
    i++;
  }
  return NULL;
}

static bool wants_more(const options *o, uint64_t done) {
  if (o->runs && done >= o->runs) return false;
  return o->seconds > 0 ? cpu_seconds() < o->seconds : o->runs > 0;
}

int main(int argc, char **argv) {
  options o = {.seed = 1, .limit = 60};
  const char *wrong = read_options(argc, argv, &o);
  if (wrong) {
    fprintf(stderr, "%s: what is %s? tests/fuzz/driver.c lists the options\n", argv[0], wrong);
    return 2;
  }
  static uint8_t input[MUTATE_MAX];
  uint64_t done = 0;
  catch_signals();
  for (uint32_t k = 0; k < corpus.n; k++) run(corpus.files[k].data, corpus.files[k].n, o.limit);
  for (; wants_more(&o, done); done++) {
    mutate_random random = {.key = o.seed, .drawn = done << 20};
    run(input, mutate_make(&corpus, &random, input), o.limit);
  }
  printf("%u files, %llu inputs\n", corpus.n, (unsigned long long)done);
  mutate_free(&corpus);
  return 0;
}
