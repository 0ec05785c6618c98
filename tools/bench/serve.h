/* Taking samples of prepared cases, alone or on command.
 *
 * A measuring program prepares its cases once, prints one line of JSON about them and then serves: every line
 * "CASE SECONDS" on standard input is answered by one sample of that case, lasting at least that long. So
 * tools/bench/bench can interleave several such programs and repeat a sample that something disturbed. Without
 * --serve, every case is sampled once. */
#ifndef KVA_TOOLS_BENCH_SERVE_H
#define KVA_TOOLS_BENCH_SERVE_H

#include "runtime/base/base.h"

/* Runs case i once; false: it failed (message printed to stderr). */
typedef bool (*bench_call)(void *user, int i);

typedef struct bench_options {
  bool serve;
  int threads;
  double seconds; /* of a sample without --serve */
  int n_cases;
  char **cases; /* the positional arguments, in argv */
} bench_options;

/* Reads [--serve] [--threads N] [--seconds S] CASE...; false after printing usage. */
bool bench_parse(int argc, char **argv, const char *usage, bench_options *out);
/* Returns the exit code. */
int bench_run(const bench_options *o, bench_call call, void *user);

#endif
