/* kva_peak: the machine's peak throughput, measured beside the programs that are compared with it.
 *
 *   fma          f32 multiply-adds in registers, the CPU's widest vectors, on every thread; 2 flops per lane
 *   dot          sums of four products of bytes likewise, 2 operations each; 0 where the CPU has no AVX-512 VNNI
 *   copy:BYTES   dst = src with plain vector loads and stores, BYTES per stream in total, divided among the threads
 *   stream:BYTES likewise with stores that bypass the cache: the peak for streams that exceed the cache
 *   read:BYTES   plain vector loads alone: the peak for weights
 *
 * The first line gives a call's work: flops (fma, dot) or bytes moved (read, and written but for read). */
#include "tools/bench/serve.h"
#include "tools/profile/loops.h"

#include <stdlib.h>

typedef enum peak_kind { PEAK_FMA, PEAK_DOT, PEAK_COPY, PEAK_STREAM, PEAK_READ } peak_kind;

typedef struct peak_case {
  peak_kind kind;
  int64_t bytes; /* of one stream */
  char *from, *to;
} peak_case;

typedef struct peak {
  kva_pool *pool;
  int threads;
  kva_loops machine;
  peak_case *cases;
} peak;

enum { FMA_ROUNDS = 20000, CHAINS = KVA_LOOP_CHAINS, ALIGN = 2 << 20, BLOCK = KVA_LOOP_BLOCK };

/* ---- one call of a case ------------------------------------------------------------------------------------------ */

typedef struct job {
  const peak *p;
  const peak_case *c;
} job;

static _Thread_local volatile float sink; /* keeps the loops alive */

static void run_fma(void *ctx, int64_t begin, int64_t end) {
  const job *j = ctx;
  for (int64_t i = begin; i < end; i++) sink = j->p->machine.fma(FMA_ROUNDS);
}

static void run_dot(void *ctx, int64_t begin, int64_t end) {
  const job *j = ctx;
  for (int64_t i = begin; i < end && j->p->machine.dot; i++) sink = (float)j->p->machine.dot(FMA_ROUNDS);
}

static void run_copy(void *ctx, int64_t begin, int64_t end) {
  const job *j = ctx;
  void (*copy)(char *, const char *, int64_t) = j->c->kind == PEAK_COPY ? j->p->machine.copy : j->p->machine.stream;
  copy(j->c->to + begin * BLOCK, j->c->from + begin * BLOCK, (end - begin) * BLOCK);
}

static void run_read(void *ctx, int64_t begin, int64_t end) {
  const job *j = ctx;
  sink = (float)j->p->machine.read(j->c->from + begin * BLOCK, (end - begin) * BLOCK);
}

static bool run_case(void *user, int i) {
  peak *p = user;
  job j = {p, &p->cases[i]};
  if (j.c->kind == PEAK_FMA || j.c->kind == PEAK_DOT)
    kva_pool_run(p->pool, p->threads, j.c->kind == PEAK_FMA ? run_fma : run_dot, &j);
  else
    kva_pool_run(p->pool, j.c->bytes / BLOCK, j.c->kind == PEAK_READ ? run_read : run_copy, &j);
  return true;
}

/* ---- preparing --------------------------------------------------------------------------------------------------- */

static bool parse_case(const char *text, peak_case *c) {
  bool dot = !strcmp(text, "dot");
  if (dot) c->kind = PEAK_DOT;
  if (dot || !strcmp(text, "fma")) return true;
  bool stream = !strncmp(text, "stream:", 7), read = !strncmp(text, "read:", 5);
  if (!stream && !read && strncmp(text, "copy:", 5) != 0) return false;
  c->kind = stream ? PEAK_STREAM : read ? PEAK_READ : PEAK_COPY;
  c->bytes = (atoll(strchr(text, ':') + 1) + BLOCK - 1) / BLOCK * BLOCK;
  if (c->bytes < BLOCK || c->bytes > (int64_t)1 << 36) return false;
  size_t size = ((size_t)c->bytes + ALIGN - 1) / ALIGN * ALIGN;
  c->from = aligned_alloc(ALIGN, size);
  c->to = aligned_alloc(ALIGN, size);
  if (!c->from || !c->to) return false;
  memset(c->from, 1, size);
  memset(c->to, 2, size);
  return true;
}

static void print_ready(const peak *p, const bench_options *o) {
  printf("{\"ready\": true, \"isa\": \"%s\", \"threads\": %d, \"cases\": [", p->machine.isa, p->threads);
  for (int i = 0; i < o->n_cases; i++) {
    const peak_case *c = &p->cases[i];
    double steps = c->kind == PEAK_FMA ? 1 : c->kind == PEAK_DOT && p->machine.dot ? 4 : 0;
    double flops = 2.0 * steps * FMA_ROUNDS * CHAINS * p->machine.lanes * p->threads;
    printf("%s{\"case\": \"%s\", \"flops\": %.0f, \"bytes\": %lld}", i ? ", " : "", o->cases[i], flops,
           (long long)(c->kind == PEAK_READ ? c->bytes : 2 * c->bytes));
  }
  printf("]}\n");
  fflush(stdout);
}

static int prepare_and_run(peak *p, const bench_options *o) {
  if (!p->pool || !p->cases) return 3;
  for (int i = 0; i < o->n_cases; i++) {
    if (parse_case(o->cases[i], &p->cases[i])) continue;
    fprintf(stderr, "kva_peak: expected fma, dot, copy:BYTES, stream:BYTES or read:BYTES, found %s (or no memory)\n",
            o->cases[i]);
    return 2;
  }
  print_ready(p, o);
  return bench_run(o, run_case, p);
}

int main(int argc, char **argv) {
  bench_options o;
  if (!bench_parse(argc, argv, "CASE: fma, copy:BYTES, stream:BYTES, read:BYTES\n", &o)) return 2;
  peak p = {.pool = kva_pool_create(o.threads),
            .threads = o.threads,
            .machine = kva_find_loops(),
            .cases = calloc((size_t)o.n_cases, sizeof(peak_case))};
  int code = prepare_and_run(&p, &o);
  for (int i = 0; p.cases && i < o.n_cases; i++) {
    free(p.cases[i].from);
    free(p.cases[i].to);
  }
  free(p.cases);
  if (p.pool) kva_pool_destroy(p.pool);
  return code;
}
