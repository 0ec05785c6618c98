/* The thread pool: fork-join over a static partition.
 *
 * A job is announced by one atomic word, the ticket: (number of the job << 16) | pieces. Who reads it knows without
 * touching the job whether it takes part (thread i runs piece i), so that a thread that sleeps through a job it has no
 * piece of never races with the next one. The caller runs piece 0 and returns when `pending` is 0, hence a thread that
 * has a piece cannot miss its job.
 *
 * Threads spin before they sleep: a futex wake costs 20 to 45 us where the spin answers in 0.1 us. The bound keeps an
 * idle pool from burning a core. */
#include "runtime/base/platform.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 20000, PIECES_BITS = 16, MAX_THREADS = (1 << PIECES_BITS) - 1, LINE = 64 };

typedef struct worker {
  pthread_t thread;
  kva_pool *pool;
  int index;
} worker;

struct kva_pool {
  int threads;
  int spins;
  worker *workers; /* threads - 1 of them; the caller is thread 0 */
  kva_pool_fn fn;
  void *ctx;
  int64_t n;
  atomic_bool stop;
  atomic_flag busy;
  _Alignas(LINE) atomic_uint ticket;
  _Alignas(LINE) atomic_uint pending;
  _Alignas(LINE) atomic_uint sleepers; /* workers that wait, or are about to, in the kernel */
  atomic_bool caller_sleeps;
};

static void pause_briefly(void) {
#if defined __x86_64__
  __builtin_ia32_pause();
#elif defined __aarch64__
  __asm__ volatile("isb");
#endif
}

static void futex_wait(atomic_uint *word, unsigned expected) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static void run_piece(const kva_pool *pool, int64_t piece, int64_t pieces) {
  int64_t share = pool->n / pieces, rest = pool->n % pieces;
  int64_t begin = piece * share + (piece < rest ? piece : rest);
  pool->fn(pool->ctx, begin, begin + share + (piece < rest));
}

/* The next ticket after `seen`. Sequentially consistent on both sides: either the announcer sees the sleeper or the
 * sleeper sees the new ticket. */
static unsigned next_ticket(kva_pool *pool, unsigned seen) {
  for (int i = 0; i < pool->spins; i++) {
    unsigned ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    if (ticket != seen) return ticket;
    pause_briefly();
  }
  atomic_fetch_add(&pool->sleepers, 1);
  unsigned ticket;
  while ((ticket = atomic_load(&pool->ticket)) == seen) futex_wait(&pool->ticket, seen);
  atomic_fetch_sub(&pool->sleepers, 1);
  return ticket;
}

static void *work(void *argument) {
  const worker *self = argument;
  kva_pool *pool = self->pool;
  unsigned ticket = 0;
  for (;;) {
    ticket = next_ticket(pool, ticket);
    if (atomic_load(&pool->stop)) return NULL;
    int pieces = (int)(ticket & MAX_THREADS);
    if (self->index >= pieces) continue;
    run_piece(pool, self->index, pieces);
    if (atomic_fetch_sub(&pool->pending, 1) == 1 && atomic_load(&pool->caller_sleeps)) futex_wake_all(&pool->pending);
  }
}

static void announce(kva_pool *pool, unsigned pieces) {
  unsigned number = (atomic_load_explicit(&pool->ticket, memory_order_relaxed) >> PIECES_BITS) + 1;
  atomic_store(&pool->ticket, number << PIECES_BITS | pieces);
  if (atomic_load(&pool->sleepers)) futex_wake_all(&pool->ticket);
}

static void join(kva_pool *pool) {
  for (int i = 0; i < pool->spins; i++) {
    if (!atomic_load_explicit(&pool->pending, memory_order_acquire)) return;
    pause_briefly();
  }
  atomic_store(&pool->caller_sleeps, true);
  for (unsigned left; (left = atomic_load(&pool->pending));) futex_wait(&pool->pending, left);
  atomic_store(&pool->caller_sleeps, false);
}

static int available_cpus(void) {
  cpu_set_t set;
  if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
  long n = sysconf(_SC_NPROCESSORS_ONLN); /* more CPUs than a cpu_set_t holds */
  return n > 0 ? (int)n : 1;
}

/* Signals are for the program's own threads. */
static bool start_worker(worker *w) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = !pthread_create(&w->thread, NULL, work, w);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

kva_pool *kva_pool_create(int threads) {
  int cpus = available_cpus();
  if (threads <= 0) threads = cpus;
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  kva_pool *pool = aligned_alloc(LINE, sizeof *pool);
  worker *workers = calloc((size_t)threads, sizeof *workers);
  if (!pool || !workers) {
    free(pool);
    free(workers);
    return NULL;
  }
  memset(pool, 0, sizeof *pool);
  pool->workers = workers;
  pool->spins = threads <= cpus ? SPINS : 0;
  for (pool->threads = 1; pool->threads < threads; pool->threads++) {
    worker *w = &workers[pool->threads - 1];
    *w = (worker){.pool = pool, .index = pool->threads};
    if (start_worker(w)) continue;
    kva_pool_destroy(pool);
    return NULL;
  }
  return pool;
}

void kva_pool_destroy(kva_pool *pool) {
  if (!pool) return;
  atomic_store(&pool->stop, true);
  announce(pool, 0);
  for (int i = 0; i < pool->threads - 1; i++) pthread_join(pool->workers[i].thread, NULL);
  free(pool->workers);
  free(pool);
}

int kva_pool_threads(const kva_pool *pool) {
  return pool ? pool->threads : 1;
}

/* A job inside a job, or from a second caller, runs where it is: the pool holds one. */
void kva_pool_run(kva_pool *pool, int64_t n, kva_pool_fn fn, void *ctx) {
  if (n <= 0) return;
  if (!pool || pool->threads == 1 || n == 1 || atomic_flag_test_and_set(&pool->busy)) {
    fn(ctx, 0, n);
    return;
  }
  unsigned pieces = n < pool->threads ? (unsigned)n : (unsigned)pool->threads;
  pool->fn = fn;
  pool->ctx = ctx;
  pool->n = n;
  atomic_store(&pool->pending, pieces - 1);
  announce(pool, pieces);
  run_piece(pool, 0, pieces);
  join(pool);
  atomic_flag_clear(&pool->busy);
}
