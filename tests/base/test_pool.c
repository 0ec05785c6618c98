/* The pool: every index once, the same partition each time, nesting, sleeping workers. */
#include "runtime/base/platform.h"

#include <setjmp.h>
#include <stdatomic.h>
#include <time.h>
#include <cmocka.h>

enum { MOST = 1000 };

typedef struct job {
  atomic_int visits[MOST];
  atomic_int pieces;
  atomic_llong begins; /* a sum that depends on where the pieces begin */
  kva_pool *pool;
} job;

static void visit(void *ctx, int64_t begin, int64_t end) {
  job *j = ctx;
  atomic_fetch_add(&j->pieces, 1);
  atomic_fetch_add(&j->begins, begin * begin);
  for (int64_t i = begin; i < end; i++) atomic_fetch_add(&j->visits[i], 1);
}

static void covers_every_index_once(void **state) {
  (void)state;
  for (int threads = 1; threads <= 7; threads += 2) {
    kva_pool *pool = kva_pool_create(threads);
    assert_non_null(pool);
    assert_int_equal(kva_pool_threads(pool), threads);
    for (int n = 0; n < MOST; n += n < 20 ? 1 : 97) {
      job j = {0};
      kva_pool_run(pool, n, visit, &j);
      assert_true(j.pieces <= n && (n == 0 || j.pieces > 0));
      for (int i = 0; i < MOST; i++) assert_int_equal(j.visits[i], i < n);
    }
    kva_pool_destroy(pool);
  }
}

static void partition_is_always_the_same(void **state) {
  (void)state;
  kva_pool *pool = kva_pool_create(3);
  job first = {0};
  kva_pool_run(pool, 100, visit, &first);
  for (int i = 0; i < 2000; i++) {
    job j = {0};
    kva_pool_run(pool, 100, visit, &j);
    assert_int_equal(j.begins, first.begins);
  }
  kva_pool_destroy(pool);
}

static void works_without_a_pool(void **state) {
  (void)state;
  job j = {0};
  kva_pool_run(NULL, 10, visit, &j);
  assert_int_equal(j.pieces, 1);
  assert_int_equal(kva_pool_threads(NULL), 1);
  kva_pool_destroy(NULL);
}

static void run_inside(void *ctx, int64_t begin, int64_t end) {
  job *j = ctx;
  for (int64_t i = begin; i < end; i++) kva_pool_run(j->pool, 10, visit, j);
}

static void a_job_inside_a_job_runs_in_place(void **state) {
  (void)state;
  job j = {.pool = kva_pool_create(4)};
  kva_pool_run(j.pool, 8, run_inside, &j);
  for (int i = 0; i < 10; i++) assert_int_equal(j.visits[i], 8);
  kva_pool_destroy(j.pool);
}

/* Pauses of 3 ms outlast the spin, so that workers are woken from the kernel; small jobs leave some asleep. */
static void sleepers_wake(void **state) {
  (void)state;
  kva_pool *pool = kva_pool_create(4);
  for (int i = 0; i < 50; i++) {
    job j = {0};
    kva_pool_run(pool, i % 3 ? 100 : 2, visit, &j);
    assert_int_equal(j.visits[1], 1);
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
  }
  kva_pool_destroy(pool);
}

static void uses_all_cpus_by_default(void **state) {
  (void)state;
  kva_pool *pool = kva_pool_create(0);
  assert_true(kva_pool_threads(pool) >= 1);
  kva_pool_destroy(pool);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(covers_every_index_once), cmocka_unit_test(partition_is_always_the_same),
      cmocka_unit_test(works_without_a_pool),    cmocka_unit_test(a_job_inside_a_job_runs_in_place),
      cmocka_unit_test(sleepers_wake),           cmocka_unit_test(uses_all_cpus_by_default),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
