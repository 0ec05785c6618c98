/* kvasir.h: sessions on several threads; preset tsan runs this. */
#include "tests/support/library_fixture.h"

#include <pthread.h>
#include <math.h>

typedef struct worker {
  kvasir_program *shared;
  pthread_barrier_t *all_compiled; /* so that the steps of all threads run at the same time */
  int index;
  kvasir_session *s, *own; /* of the shared program, and of one that the thread compiled */
  bool ok;
} worker;

static bool prepare(worker *w) {
  kvasir_model *m;
  kvasir_program *p;
  const kvasir_session_options options = {.threads = 1, .seed = 3};
  if (kvasir_session_create(w->shared, &options, &w->s, NULL)) return false;
  if (kvasir_model_open_bytes(line_model, strlen(line_model), NULL, NULL, &m, NULL)) return false;
  if (kvasir_compile_training(m, &uncached, NULL, &p, NULL)) return false;
  if (kvasir_session_create(p, &options, &w->own, NULL)) return false;
  kvasir_program_destroy(p);
  kvasir_model_destroy(m);
  return true;
}

static bool take_equal_steps(const worker *w) {
  float x[ROWS * 3], target[ROWS * 2];
  const kvasir_tensor in[] = {floats(2, ROWS, 3, x), floats(2, ROWS, 2, target)};
  double shared[8], alone[8];
  for (int i = 0; i < 500; i++) {
    make_batch((unsigned)(1000 * w->index + i), x, target);
    if (kvasir_session_train(w->s, in, 2, 0.05, shared, NULL)) return false;
    if (kvasir_session_train(w->own, in, 2, 0.05, alone, NULL)) return false;
    if (shared[0] != alone[0]) return false;
  }
  target[0] = NAN; /* messages, too */
  kvasir_messages *messages;
  bool refused = kvasir_session_train(w->s, in, 2, 0.05, shared, &messages) == KVASIR_NOT_FINITE;
  kvasir_messages_destroy(messages);
  return refused;
}

static void *run_worker(void *user) {
  worker *w = user;
  w->ok = prepare(w);
  pthread_barrier_wait(w->all_compiled);
  w->ok = w->ok && take_equal_steps(w);
  kvasir_session_destroy(w->s);
  kvasir_session_destroy(w->own);
  return NULL;
}

/* Four threads, each with a session of one program and with one of a program of its own. */
static void test_threads(void **state) {
  (void)state;
  enum { N = 4 };
  kvasir_model *m = open_text(line_model);
  kvasir_program *p;
  pthread_t threads[N];
  pthread_barrier_t all_compiled;
  worker workers[N];
  assert_int_equal(pthread_barrier_init(&all_compiled, NULL, N), 0);
  assert_ok(kvasir_compile_training(m, &uncached, NULL, &p, &messages));
  for (int i = 0; i < N; i++) {
    workers[i] = (worker){.shared = p, .all_compiled = &all_compiled, .index = i};
    assert_int_equal(pthread_create(&threads[i], NULL, run_worker, &workers[i]), 0);
  }
  kvasir_model_destroy(m);
  for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
  pthread_barrier_destroy(&all_compiled);
  kvasir_program_destroy(p);
  for (int i = 0; i < N; i++) assert_true(workers[i].ok);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      silent(test_threads),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
