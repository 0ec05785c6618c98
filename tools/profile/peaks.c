/* The machine's peak throughput, measured with the threads that a run has. */
#include "runtime/base/platform.h"
#include "tools/profile/loops.h"
#include "tools/profile/profile.h"

#include <stdlib.h>

enum {
  ROUNDS = 1 << 18,       /* about 10 ms */
  READ_BYTES = 128 << 20, /* more than caches hold */
  PARTS = 5,
  ALIGN = 4096,
};

typedef struct job {
  kva_loops loops;
  const char *from;
} job;

static _Thread_local volatile float sink; /* keeps the loops alive */

static void multiply(void *ctx, int64_t begin, int64_t end) {
  const job *j = ctx;
  for (int64_t i = begin; i < end; i++) sink = j->loops.fma(ROUNDS);
}

static void read_memory(void *ctx, int64_t begin, int64_t end) {
  const job *j = ctx;
  sink = (float)j->loops.read(j->from + begin * KVA_LOOP_BLOCK, (end - begin) * KVA_LOOP_BLOCK);
}

/* The shortest of several parts: a peak. */
static double shortest(kva_pool *pool, int64_t n, kva_pool_fn run, job *j) {
  double best = 0;
  for (int i = 0; i < PARTS; i++) {
    double start = kva_now();
    kva_pool_run(pool, n, run, j);
    double seconds = kva_now() - start;
    if (!i || seconds < best) best = seconds;
  }
  return best;
}

kva_status kva_peaks_measure(int threads, kva_diag *diag, kva_peaks *out) {
  job j = {.loops = kva_find_loops()};
  kva_pool *pool = kva_pool_create(threads);
  char *memory = aligned_alloc(ALIGN, READ_BYTES);
  *out = (kva_peaks){.isa = j.loops.isa};
  if (pool && memory) {
    out->threads = kva_pool_threads(pool);
    memset(memory, 1, READ_BYTES);
    j.from = memory;
    double work = 2.0 * ROUNDS * KVA_LOOP_CHAINS * j.loops.lanes * out->threads;
    out->flops = work / shortest(pool, out->threads, multiply, &j);
    out->bytes = READ_BYTES / shortest(pool, READ_BYTES / KVA_LOOP_BLOCK, read_memory, &j);
  }
  if (pool) kva_pool_destroy(pool);
  free(memory);
  return out->flops > 0 ? KVA_OK : kva_fail(diag, KVA_NO_MEMORY, NULL, "no memory to measure the machine");
}
