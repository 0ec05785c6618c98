/* The thread pool: fork-join over a static partition, with helping.
 *
 * Thread i owns piece i of a job, cut into CHUNKS. Each thread first takes the chunks of its own piece, so that memory
 * stays with the core that touched it before. Then it takes chunks that others have not begun: a thread that the system
 * schedules late, or not at all, delays the job by at most the chunk that it holds. Results never depend on which
 * thread runs a chunk.
 *
 * A chunk is claimed by advancing its piece's word, (job number << 32) | next chunk. A late thread finds another job's
 * number and touches nothing: `pending` keeps a job alive until every claimed chunk is done.
 *
 * Threads spin before they sleep: a futex wake takes 20 to 45 us, the spin loop 0.1 us. The bound keeps an idle pool
 * from occupying cores. */
#include "runtime/base/numbers.h"
#include "runtime/base/platform.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 20000, MAX_THREADS = 1024, CHUNKS = 4, LINE = 64 };

typedef struct worker {
  pthread_t thread;
  kva_pool *pool;
  int index;
} worker;

typedef struct piece {
  _Alignas(LINE) _Atomic uint64_t next; /* job << 32 | chunk */
} piece;

struct kva_pool {
  int threads, started;
  piece *pieces; /* one per thread */
  int spins;
  worker *workers; /* threads - 1 of them; the caller is thread 0 */
  const kva_allocator *allocator;
  const kva_parallel *parallel; /* runs all jobs in place of workers */
  kva_pool_fn fn;
  void *ctx;
  int64_t n;
  atomic_bool stop;
  atomic_flag busy;
  _Alignas(LINE) atomic_uint ticket;   /* number of the latest job */
  _Alignas(LINE) atomic_uint pending;  /* chunks not done */
  _Alignas(LINE) atomic_uint sleepers; /* workers that wait in the kernel, or are about to */
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

static void run_chunk(const kva_pool *pool, int64_t owner, int64_t chunk) {
  int64_t share = pool->n / pool->threads, rest = pool->n % pool->threads;
  int64_t begin = owner * share + (owner < rest ? owner : rest), len = share + (owner < rest);
  int64_t first = begin + len * chunk / CHUNKS, last = begin + len * (chunk + 1) / CHUNKS;
  if (first < last) pool->fn(pool->ctx, first, last);
}

/* Claims the next chunk of a piece of this job; -1: none is left, or the job is over. */
static int claim(kva_pool *pool, int owner, unsigned job) {
  _Atomic uint64_t *next = &pool->pieces[owner].next;
  uint64_t seen = atomic_load_explicit(next, memory_order_acquire);
  while ((unsigned)(seen >> 32) == job && (uint32_t)seen < CHUNKS) {
    if (atomic_compare_exchange_weak(next, &seen, seen + 1)) return (int)(uint32_t)seen;
  }
  return -1;
}

static void take_part(kva_pool *pool, int self, unsigned job) {
  for (int i = 0; i < pool->threads; i++) {
    int owner = (self + i) % pool->threads;
    for (int chunk; (chunk = claim(pool, owner, job)) >= 0;) {
      run_chunk(pool, owner, chunk);
      if (atomic_fetch_sub(&pool->pending, 1) == 1 && atomic_load(&pool->caller_sleeps)) futex_wake_all(&pool->pending);
    }
  }
}

/* Waits for the ticket after `seen`. Both sides are sequentially consistent: either the announcer sees the sleeper, or
 * the sleeper sees the new ticket. */
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
  (void)kva_numbers_enter();
  for (;;) {
    ticket = next_ticket(pool, ticket);
    if (atomic_load(&pool->stop)) return NULL;
    take_part(pool, self->index, ticket);
  }
}

/* Opens the pieces before it publishes the ticket: a thread that sees the ticket finds them open. */
static unsigned announce(kva_pool *pool) {
  unsigned job = atomic_load_explicit(&pool->ticket, memory_order_relaxed) + 1;
  for (int i = 0; i < pool->threads; i++)
    atomic_store_explicit(&pool->pieces[i].next, (uint64_t)job << 32, memory_order_release);
  atomic_store(&pool->ticket, job);
  if (atomic_load(&pool->sleepers)) futex_wake_all(&pool->ticket);
  return job;
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
  long n = sysconf(_SC_NPROCESSORS_ONLN); /* fallback for more CPUs than cpu_set_t holds */
  return n > 0 ? (int)n : 1;
}

/* Workers block all signals: these belong to the program's own threads. */
static bool start_worker(worker *w) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool started = !pthread_create(&w->thread, NULL, work, w);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

static void start_workers(kva_pool *pool) {
  while (pool->started < pool->threads - 1) {
    worker *w = &pool->workers[pool->started];
    *w = (worker){.pool = pool, .index = pool->started + 1};
    if (!start_worker(w)) break;
    pool->started++;
  }
  pool->threads = pool->started + 1; /* fewer if the system cannot start more: slower, same results */
}

kva_pool *kva_pool_create_with(const kva_pool_options *options) {
  int cpus = available_cpus(), threads = options->threads > 0 ? options->threads : cpus;
  if (options->parallel) threads = 1;
  if (threads > MAX_THREADS) threads = MAX_THREADS;
  const kva_allocator *allocator = options->allocator;
  kva_pool *pool = kva_allocate(allocator, sizeof *pool, LINE);
  if (!pool) return NULL;
  pool->allocator = allocator;
  pool->parallel = options->parallel;
  pool->workers = kva_allocate(allocator, (size_t)threads * sizeof *pool->workers, _Alignof(worker));
  pool->pieces = kva_allocate(allocator, (size_t)threads * sizeof *pool->pieces, LINE);
  pool->threads = pool->workers && pool->pieces ? threads : 1;
  pool->spins = threads <= cpus && !options->sleep ? SPINS : 0;
  if (pool->workers && pool->pieces) {
    start_workers(pool);
    return pool;
  }
  kva_pool_destroy(pool);
  return NULL;
}

kva_pool *kva_pool_create(int threads) {
  return kva_pool_create_with(&(kva_pool_options){.threads = threads});
}

void kva_pool_destroy(kva_pool *pool) {
  if (!pool) return;
  atomic_store(&pool->stop, true);
  if (pool->started) announce(pool);
  for (int i = 0; i < pool->started; i++) pthread_join(pool->workers[i].thread, NULL);
  kva_release(pool->allocator, pool->workers);
  kva_release(pool->allocator, pool->pieces);
  kva_release(pool->allocator, pool);
}

int kva_pool_threads(const kva_pool *pool) {
  if (!pool) return 1;
  return pool->parallel ? pool->parallel->threads : pool->threads;
}

const kva_allocator *kva_pool_allocator(const kva_pool *pool) {
  return pool ? pool->allocator : NULL;
}

/* The pool holds one job: a nested job, or one of a second caller, runs in the calling thread. */
void kva_pool_run(kva_pool *pool, int64_t n, kva_pool_fn fn, void *ctx) {
  if (n <= 0) return;
  if (pool && pool->parallel && n > 1) {
    pool->parallel->run(pool->parallel->user, n, fn, ctx);
    return;
  }
  if (!pool || pool->threads == 1 || n == 1 || atomic_flag_test_and_set(&pool->busy)) {
    fn(ctx, 0, n);
    return;
  }
  pool->fn = fn;
  pool->ctx = ctx;
  pool->n = n;
  atomic_store(&pool->pending, (unsigned)pool->threads * CHUNKS);
  take_part(pool, 0, announce(pool));
  join(pool);
  atomic_flag_clear(&pool->busy);
}
