#include "tests/support/assembler.h"

#include <setjmp.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

bool assembler_found(void) {
  return system("command -v ptxas >/dev/null 2>&1") == 0;
}

bool assembler_log_has_trouble(const char *log) {
  static const char *const notes[] = {"C7504", "C7508", "C7510", "C7511", "C7512", "C7513", "C7514", "C7515"};
  for (size_t i = 0; i < sizeof notes / sizeof *notes; i++) {
    if (strstr(log, notes[i])) return true;
  }
  return false;
}

/* "ptxas info : Compiling entry function 'name' for 'sm_80'", then its stack frame and spills, then its registers. */
static void read_line(const char *line, uint32_t max, assembled *out, uint32_t *n) {
  assembled a = {0};
  const char *at = strstr(line, "Compiling entry function '");
  if (at && *n < max && sscanf(at, "Compiling entry function '%127[^']'", a.name) == 1) out[(*n)++] = a;
  if (!*n) return;
  assembled *last = &out[*n - 1];
  if (strstr(line, "bytes stack frame"))
    sscanf(line, " %u bytes stack frame, %u bytes spill stores, %u bytes spill loads", &last->stack,
           &last->spill_stores, &last->spill_loads);
  at = strstr(line, "Used ");
  if (at) sscanf(at, "Used %u registers", &last->registers);
}

static bool collect(FILE *pipe, uint32_t max, assembled *out, uint32_t *n, kva_text *log) {
  char line[512];
  while (fgets(line, sizeof line, pipe)) {
    if (max) read_line(line, max, out, n);
    kva_text_add(log, "%s", line);
  }
  return pclose(pipe) == 0;
}

bool assembler_run(const char *text, size_t size, const char *arch, uint32_t max, assembled *out, uint32_t *out_n,
                   kva_text *out_log) {
  char name[] = "/tmp/kva_test_ptx_XXXXXX", command[200];
  int fd = mkstemp(name);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, text, size), (ssize_t)size);
  close(fd);
  snprintf(command, sizeof command, "ptxas -v -arch=%s %s -o /dev/null 2>&1", arch, name);
  FILE *pipe = popen(command, "r");
  assert_non_null(pipe);
  uint32_t n = 0;
  kva_text log = {0};
  bool ok = collect(pipe, max, out, &n, &log);
  unlink(name);
  if (out_n) *out_n = n;
  if (out_log)
    *out_log = log;
  else
    kva_text_free(&log);
  return ok;
}

void assert_assembles(const char *text, size_t size, const char *arch) {
  if (!assembler_found()) {
    print_message("no ptxas on PATH: not assembled\n");
    return;
  }
  kva_text log = {0};
  bool ok = assembler_run(text, size, arch, 0, NULL, NULL, &log);
  if (!ok || assembler_log_has_trouble(log.data)) fail_msg("%s", log.data);
  kva_text_free(&log);
}
