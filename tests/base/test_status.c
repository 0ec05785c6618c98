/* Diagnostics as a person sees them. */
#include "runtime/base/base.h"

#include <setjmp.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static void assert_printed(const kva_diag *diag, const char *expected) {
  char *text = NULL;
  size_t size = 0;
  FILE *out = open_memstream(&text, &size);
  kva_diag_print(diag, out);
  fclose(out);
  assert_string_equal(text, expected);
  free(text);
}

static void caret_points_at_the_column(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_loc loc = {.file = "m.kv", .source = "one\n\tx = y @ z\nlast", .line = 2, .column = 6};
  assert_int_equal(kva_error(diag, &loc, "expected %s", "f32"), KVA_INVALID);
  kva_note(diag, &(kva_loc){.file = "m.kv", .source = loc.source, .line = 3, .column = 5}, "here");
  assert_printed(diag, "m.kv:2:6: error: expected f32\n  \tx = y @ z\n  \t    ^\n"
                       "m.kv:3:5: note: here\n  last\n      ^\n");
  kva_diag_destroy(diag);
}

static void caret_counts_characters(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_error(diag, &(kva_loc){.file = "a", .source = "\xc3\xa9\xc3\xa9 \x1b!", .line = 1, .column = 7}, "no");
  assert_printed(diag, "a:1:7: error: no\n  \xc3\xa9\xc3\xa9 ?!\n      ^\n");
  kva_diag_destroy(diag);
}

static void long_lines_are_cut(void **state) {
  (void)state;
  char line[2001];
  memset(line, 'x', 2000);
  line[2000] = 0;
  kva_diag *diag = kva_diag_create();
  kva_error(diag, &(kva_loc){.file = "a", .source = line, .line = 1, .column = 1500}, "no");
  char expected[400];
  snprintf(expected, sizeof expected, "a:1:1500: error: no\n  %.160s\n  %100s^\n", line, "");
  assert_printed(diag, expected);
  kva_diag_destroy(diag);
}

static void demoted_errors_are_warnings(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_error(diag, NULL, "one");
  kva_note(diag, NULL, "of two");
  assert_int_equal(kva_diag_errors(diag), 1);
  kva_diag_demote(diag);
  assert_int_equal(kva_diag_errors(diag), 0);
  assert_printed(diag, "warning: one\nnote: of two\n");
  kva_diag_demote(NULL);
  kva_diag_destroy(diag);
}

static void places_may_be_incomplete(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  kva_warn(diag, NULL, "plain");
  assert_int_equal(kva_fail(diag, KVA_UNSUPPORTED, &(kva_loc){.file = "m.onnx", .node = "conv1"}, "no"),
                   KVA_UNSUPPORTED);
  kva_error(diag, &(kva_loc){.file = "m.kv", .source = "one line", .line = 7, .column = 1}, "past the end");
  assert_printed(diag, "warning: plain\nm.onnx: node 'conv1': error: no\nm.kv:7:1: error: past the end\n");
  kva_diag_destroy(diag);
}

static void counts_and_clears(void **state) {
  (void)state;
  kva_diag *diag = kva_diag_create();
  for (int i = 0; i < 100; i++) kva_error(diag, NULL, "e%d", i);
  kva_note(diag, NULL, "n");
  assert_int_equal(kva_diag_errors(diag), 100);
  assert_int_equal(kva_diag_count(diag), 101);
  kva_severity severity;
  kva_loc loc;
  assert_string_equal(kva_diag_message(diag, 99, &severity, &loc), "e99");
  assert_int_equal(severity, KVA_ERROR);
  assert_null(loc.file);
  kva_diag_clear(diag);
  assert_int_equal(kva_diag_errors(diag) + kva_diag_count(diag), 0);
  assert_printed(diag, "");
  kva_diag_destroy(diag);
  kva_diag_destroy(NULL);
  assert_int_equal(kva_error(NULL, NULL, "nobody listens"), KVA_INVALID);
}

static void statuses(void **state) {
  (void)state;
  assert_string_equal(kva_status_name(KVA_OK), "ok");
  assert_string_equal(kva_status_name(KVA_NOT_FINITE), "not finite");
  assert_int_equal(kva_status_exit_code(KVA_OK), 0);
  assert_int_equal(kva_status_exit_code(KVA_INVALID), 1);
  assert_int_equal(kva_status_exit_code(KVA_MISSING), 3);
}

/* In a process of its own: its standard error until it aborted. */
static void fail_apart(void (*run)(void), char *text, size_t size) {
  int ends[2], state;
  assert_int_equal(pipe(ends), 0);
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    run();
    _exit(0);
  }
  close(ends[1]);
  size_t n = 0;
  for (ssize_t got = 1; got > 0 && n < size - 1; n += (size_t)got)
    if ((got = read(ends[0], text + n, size - 1 - n)) < 0) got = 0;
  text[n] = 0;
  close(ends[0]);
  assert_int_equal(waitpid(child, &state, 0), child);
  assert_true(WIFSIGNALED(state) && WTERMSIG(state) == SIGABRT);
}

static void fail_in_tasks(void) {
  kva_loc loc = {.file = "m.onnx", .line = 7, .node = "Reshape_3"};
  kva_task pass = {.what = "pass", .name = "lower"}, over = {.what = "pass", .name = "over"};
  kva_task node = {.what = "operator", .name = "reshape", .loc = &loc};
  kva_task_begin(&pass);
  kva_task_begin(&over);
  kva_task_end(&over);
  kva_task_begin(&node);
  KVA_ASSERT(!"this is a test");
}

static void assertions_name_tasks(void **state) {
  (void)state;
  char text[1024];
  fail_apart(fail_in_tasks, text, sizeof text);
  assert_ptr_equal(strstr(text, "kvasir: internal error at tests/base/test_status.c:"), text);
  assert_non_null(strstr(text, "does not hold. This is a fault of Kvasir, not of its input.\n"
                               "  in operator 'reshape' of node 'Reshape_3' at m.onnx:7\n  in pass 'lower'\n"));
  assert_null(strstr(text, "over"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(caret_points_at_the_column),
      cmocka_unit_test(caret_counts_characters),
      cmocka_unit_test(long_lines_are_cut),
      cmocka_unit_test(demoted_errors_are_warnings),
      cmocka_unit_test(places_may_be_incomplete),
      cmocka_unit_test(counts_and_clears),
      cmocka_unit_test(statuses),
      cmocka_unit_test(assertions_name_tasks),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
