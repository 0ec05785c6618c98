/* Samples: a warm-up call, then calls until the time is over, with wall and CPU time. See serve.h. */
#include "tools/bench/serve.h"

#include <stdlib.h>
#include <time.h>

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Reads an option with a value; false: not this option. */
static bool option_value(int argc, char **argv, int *i, const char *name, const char **out) {
  if (strcmp(argv[*i], name) != 0 || *i + 1 >= argc) return false;
  *out = argv[++*i];
  return true;
}

bool bench_parse(int argc, char **argv, const char *usage, bench_options *out) {
  *out = (bench_options){.threads = 1, .seconds = 0.1, .cases = argv + 1};
  for (int i = 1; i < argc; i++) {
    const char *value;
    if (!strcmp(argv[i], "--serve"))
      out->serve = true;
    else if (option_value(argc, argv, &i, "--threads", &value))
      out->threads = atoi(value);
    else if (option_value(argc, argv, &i, "--seconds", &value))
      out->seconds = atof(value);
    else if (argv[i][0] != '-')
      out->cases[out->n_cases++] = argv[i];
    else
      out->threads = 0;
  }
  if (out->n_cases > 0 && out->threads > 0 && out->seconds > 0) return true;
  fprintf(stderr, "usage: %s [--serve] [--threads N] [--seconds S] CASE...\n%s", argv[0], usage);
  return false;
}

/* Calls between two readings of the clock: about a tenth of the sample, so that the clock does not distort short
 * cases. */
static int64_t calls_per_look(double seconds, double seconds_per_call) {
  double n = 0.1 * seconds / (seconds_per_call > 1e-9 ? seconds_per_call : 1e-9);
  return n < 1 ? 1 : (int64_t)n;
}

static bool sample(int i, double seconds, bench_call call, void *user) {
  double start = kva_now();
  if (!call(user, i)) return false; /* warm-up */
  int64_t chunk = calls_per_look(seconds, kva_now() - start), calls = 0;
  double cpu = cpu_seconds(), wall = 0;
  start = kva_now();
  while (wall < seconds) {
    for (int64_t k = 0; k < chunk; k++)
      if (!call(user, i)) return false;
    calls += chunk;
    wall = kva_now() - start;
    if (calls == chunk) chunk = calls_per_look(seconds, wall / (double)calls); /* the first call was cold */
  }
  printf("{\"case\": %d, \"seconds\": %.9g, \"calls\": %lld, \"wall\": %.6f, \"cpu\": %.6f}\n", i, wall / (double)calls,
         (long long)calls, wall, cpu_seconds() - cpu);
  fflush(stdout);
  return true;
}

static int serve(const bench_options *o, bench_call call, void *user) {
  char line[128];
  while (fgets(line, sizeof line, stdin)) {
    int i;
    double seconds;
    if (sscanf(line, "%d %lf", &i, &seconds) != 2 || i < 0 || i >= o->n_cases) {
      fprintf(stderr, "expected CASE SECONDS with CASE < %d, found %s", o->n_cases, line);
      return 2;
    }
    if (!sample(i, seconds, call, user)) return 1;
  }
  return 0;
}

int bench_run(const bench_options *o, bench_call call, void *user) {
  if (o->serve) return serve(o, call, user);
  int code = 0;
  for (int i = 0; i < o->n_cases; i++)
    if (!sample(i, o->seconds, call, user)) code = 1;
  return code;
}
