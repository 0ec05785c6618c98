/* Traps: a failed assertion and an arena that cannot grow come back to the innermost trap of the thread. */
#include "runtime/base/memory.h"
#include "runtime/base/trap.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static void fail_assertion(void) {
  KVA_ASSERT(1 + 1 == 3);
}

static kva_arena *arena;

static void want_too_much(void) {
  kva_arena_alloc(arena, SIZE_MAX / 2);
}

/* Does not end its task. */
static void fail_in_task(void) {
  kva_task task = {.what = "pass", .name = "broken"};
  kva_task_begin(&task);
  fail_assertion();
}

static void want_nothing(void) {}

/* Whether f came back through the trap. */
static bool trapped(void (*f)(void), kva_trap *trap) {
  if (setjmp(trap->at)) return true;
  kva_trap_enter(trap);
  f();
  kva_trap_leave(trap);
  return false;
}

static void test_reasons(void **state) {
  (void)state;
  kva_trap trap;
  assert_false(trapped(want_nothing, &trap));
  assert_true(trapped(fail_assertion, &trap));
  assert_false(trap.memory);
  assert_non_null(strstr(trap.text, "test_trap.c:"));
  assert_non_null(strstr(trap.text, "1 + 1 == 3"));
}

static void test_tasks(void **state) {
  (void)state;
  kva_trap trap;
  assert_true(trapped(fail_in_task, &trap));
  assert_non_null(strstr(trap.text, "in pass 'broken'"));
  assert_true(trapped(fail_assertion, &trap));
  assert_null(strstr(trap.text, "broken"));
}

static void test_memory(void **state) {
  (void)state;
  kva_trap trap;
  assert_true(trapped(want_too_much, &trap));
  assert_true(trap.memory);
  assert_non_null(strstr(trap.text, "out of memory"));
}

static void fail_inside(void) {
  kva_trap inner;
  assert_true(trapped(fail_assertion, &inner));
  want_too_much();
}

static void test_nested(void **state) {
  (void)state;
  kva_trap outer;
  assert_true(trapped(fail_inside, &outer));
  assert_true(outer.memory);
}

static void *fail_in_thread(void *failures) {
  kva_trap trap;
  for (int i = 0; i < 1000; i++) *(int *)failures += trapped(fail_assertion, &trap);
  return NULL;
}

static void test_threads(void **state) {
  (void)state;
  enum { N = 4 };
  pthread_t threads[N];
  int failures[N] = {0};
  for (int i = 0; i < N; i++) assert_int_equal(pthread_create(&threads[i], NULL, fail_in_thread, &failures[i]), 0);
  for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < N; i++) assert_int_equal(failures[i], 1000);
}

static int state_of_child(void (*f)(void)) {
  int status = 0;
  pid_t child = fork();
  if (!child) {
    fclose(stderr);
    f();
    _exit(0);
  }
  waitpid(child, &status, 0);
  return status;
}

static void test_without(void **state) {
  (void)state;
  int status = state_of_child(fail_assertion);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
  status = state_of_child(want_too_much);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
}

static int create_arena(void **state) {
  (void)state;
  arena = kva_arena_create();
  return 0;
}

static int destroy_arena(void **state) {
  (void)state;
  kva_arena_destroy(arena);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_reasons), cmocka_unit_test(test_tasks),   cmocka_unit_test(test_memory),
      cmocka_unit_test(test_nested),  cmocka_unit_test(test_threads), cmocka_unit_test(test_without),
  };
  return cmocka_run_group_tests(tests, create_arena, destroy_arena);
}
