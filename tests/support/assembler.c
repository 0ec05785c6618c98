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

/* ---- the baseline ---------------------------------------------------------------------------------------------------
 */

static const char baseline_path[] = "tests/codegen/gpu_registers.txt";
enum { REGISTER_STEP = 8 };

/* Registers of the row for key; 0: none. The other rows go to `others` if that is not NULL. */
static uint32_t read_baseline(const char *key, kva_text *others) {
  FILE *f = fopen(baseline_path, "r");
  char line[256], found[200];
  uint32_t registers = 0, n;
  while (f && fgets(line, sizeof line, f)) {
    bool same = sscanf(line, "%199s %u", found, &n) == 2 && !strcmp(found, key);
    if (same) registers = n;
    if (others && !same) kva_text_add(others, "%s", line);
  }
  if (f) fclose(f);
  return registers;
}

static void update_baseline(const char *key, uint32_t registers) {
  kva_text rows = {0};
  read_baseline(key, &rows);
  kva_text_add(&rows, "%s %u\n", key, registers);
  FILE *f = fopen(baseline_path, "w");
  assert_non_null(f);
  fputs(rows.data, f);
  assert_int_equal(fclose(f), 0);
  kva_text_free(&rows);
}

void assert_registers(const char *key, const char *text, size_t size, const char *arch) {
  if (!assembler_found()) return;
  kva_text log = {0};
  assembled a;
  uint32_t count = 0;
  bool ok = assembler_run(text, size, arch, 1, &a, &count, &log);
  if (!ok || count != 1 || assembler_log_has_trouble(log.data)) fail_msg("%s: %s", key, log.data);
  kva_text_free(&log);
  if (a.stack || a.spill_stores || a.spill_loads)
    fail_msg("%s: stack of %u bytes, spills of %u and %u bytes", key, a.stack, a.spill_stores, a.spill_loads);
  if (getenv("KVA_UPDATE_BASELINE")) update_baseline(key, a.registers);
  uint32_t known = read_baseline(key, NULL);
  if (!known) fail_msg("%s has no row for %s", baseline_path, key);
  if (a.registers > known + REGISTER_STEP) fail_msg("%s: %u registers, the baseline has %u", key, a.registers, known);
}
