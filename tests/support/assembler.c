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

/* ---- several modules --------------------------------------------------------------------------------------------- */

/* Version, target and size of addresses. */
static size_t header_size(const char *ptx) {
  const char *last = strstr(ptx, ".address_size");
  assert_non_null(last);
  return (size_t)(last - ptx) + strcspn(last, "\n");
}

static size_t name_length(const char *s) {
  return strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_$%0123456789");
}

/* Shared memory that is outside of the kernel: its buffers have any name. */
static kva_map *shared_names(kva_arena *arena, const char *ptx) {
  static const char declaration[] = "\n.shared ";
  kva_map *names = kva_map_create(arena);
  while ((ptx = strstr(ptx, declaration))) {
    ptx += strlen(declaration);
    const char *end = ptx + strcspn(ptx, "["), *begin = end;
    while (name_length(begin - 1)) begin--;
    kva_map_set(names, begin, (size_t)(end - begin), names);
  }
  return names;
}

/* Everything else that a module defines begins with kva_. */
static void add_numbered(kva_text *out, const char *ptx, const kva_map *shared, uint32_t number) {
  while (*ptx) {
    size_t n = name_length(ptx);
    bool defined = n && (!strncmp(ptx, "kva_", 4) || kva_map_get(shared, ptx, n));
    n = n ? n : 1;
    kva_text_add_bytes(out, ptx, n);
    if (defined) kva_text_add(out, "_%u", number);
    ptx += n;
  }
}

void joined_ptx_add(joined_ptx *joined, const char *ptx) {
  size_t header = header_size(ptx);
  if (!joined->arena) {
    joined->arena = kva_arena_create();
    joined->known = kva_map_create(joined->arena);
    kva_text_add_bytes(&joined->text, ptx, header);
  }
  assert_memory_equal(ptx, joined->text.data, header);
  if (kva_map_get_str(joined->known, ptx)) return;
  kva_map_set_str(joined->known, ptx, joined);
  add_numbered(&joined->text, ptx + header, shared_names(joined->arena, ptx), kva_map_len(joined->known));
}

void joined_ptx_free(joined_ptx *joined) {
  kva_text_free(&joined->text);
  if (joined->arena) kva_arena_destroy(joined->arena);
  *joined = (joined_ptx){0};
}

/* ---- the baseline ------------------------------------------------------------------------------------------------ */

static const char baseline_path[] = "tests/codegen/gpu_kernels.txt";
enum { REGISTER_STEP = 8, MIX_PERCENT = 10 };

/* Instructions of PTX by class: the first row that is a prefix of the opcode. */
static const struct {
  const char *prefix;
  uint32_t class;
} opcodes[] = {{"mma", MIX_TENSOR},
               {"wgmma.mma", MIX_TENSOR},
               {"ldmatrix", MIX_SHARED},
               {"stmatrix", MIX_SHARED},
               {"ld.shared", MIX_SHARED},
               {"st.shared", MIX_SHARED},
               {"cp.async.commit", MIX_SYNC},
               {"cp.async.wait", MIX_SYNC},
               {"cp.async", MIX_COPY},
               {"ld.global", MIX_GLOBAL},
               {"st.global", MIX_GLOBAL},
               {"ld.const", MIX_GLOBAL},
               {"bar", MIX_SYNC},
               {"fence", MIX_SYNC},
               {"mbarrier", MIX_SYNC},
               {"wgmma", MIX_SYNC},
               {"setmaxnreg", MIX_SYNC},
               {"ex2", MIX_SPECIAL},
               {"lg2", MIX_SPECIAL},
               {"rcp", MIX_SPECIAL},
               {"sqrt", MIX_SPECIAL},
               {"div", MIX_SPECIAL},
               {"shfl", MIX_SPECIAL},
               {"bra", MIX_BRANCH},
               {"", MIX_OTHER}};

static uint32_t class_of(const char *opcode) {
  if (strstr(opcode, ".f32 ") || strstr(opcode, ".f16x2 ") || strstr(opcode, ".bf16x2 ")) {
    static const char *const arithmetic[] = {"add", "sub", "mul", "fma", "max", "min", "neg", "cvt", "setp", "selp"};
    for (size_t i = 0; i < sizeof arithmetic / sizeof *arithmetic; i++)
      if (!strncmp(opcode, arithmetic[i], strlen(arithmetic[i]))) return MIX_FLOAT;
  }
  for (size_t i = 0;; i++)
    if (!strncmp(opcode, opcodes[i].prefix, strlen(opcodes[i].prefix))) return opcodes[i].class;
}

/* Of the text of one kernel, as it stands: a loop's body counts once. */
static void count_mix(const char *text, uint32_t *mix) {
  memset(mix, 0, sizeof *mix * MIX_CLASSES);
  char statement[64]; /* the opcode alone counts */
  for (const char *at = text; *at; at += strcspn(at, ";\n"), at += *at != '\0') {
    snprintf(statement, sizeof statement, "%.*s", (int)strcspn(at, ";\n"), at);
    char *opcode = statement + strspn(statement, " \t{");
    if (*opcode == '@') opcode += strcspn(opcode, " \t"), opcode += strspn(opcode, " \t");
    size_t length = strlen(opcode);
    bool label = length && opcode[length - 1] == ':';
    if (!label && *opcode >= 'a' && *opcode <= 'z') mix[class_of(opcode)]++;
  }
}

typedef struct baseline {
  uint32_t registers, mix[MIX_CLASSES];
} baseline;

static bool parse_row(const char *line, char *key, baseline *b) {
  int used;
  if (sscanf(line, "%199s %u%n", key, &b->registers, &used) != 2) return false;
  for (uint32_t i = 0; i < MIX_CLASSES; i++) {
    int n;
    if (sscanf(line + used, "%u%n", &b->mix[i], &n) != 1) return false;
    used += n;
  }
  return true;
}

/* The row for key, registers 0: none. The other rows go to `others` if that is not NULL. */
static baseline read_baseline(const char *key, kva_text *others) {
  FILE *f = fopen(baseline_path, "r");
  char line[512], found[200];
  baseline result = {0}, row;
  while (f && fgets(line, sizeof line, f)) {
    bool same = parse_row(line, found, &row) && !strcmp(found, key);
    if (same) result = row;
    if (others && !same) kva_text_add(others, "%s", line);
  }
  if (f) fclose(f);
  return result;
}

static void update_baseline(const char *key, const baseline *b) {
  kva_text rows = {0};
  read_baseline(key, &rows);
  kva_text_add(&rows, "%-40s %4u", key, b->registers);
  for (uint32_t i = 0; i < MIX_CLASSES; i++) kva_text_add(&rows, " %5u", b->mix[i]);
  kva_text_add(&rows, "\n");
  FILE *f = fopen(baseline_path, "w");
  assert_non_null(f);
  fputs(rows.data, f);
  assert_int_equal(fclose(f), 0);
  kva_text_free(&rows);
}

static void compare_with_baseline(const char *key, const baseline *found) {
  static const char *const classes[] = {MIX_NAMES};
  baseline known = read_baseline(key, NULL);
  if (!known.registers) fail_msg("%s has no row for %s", baseline_path, key);
  if (found->registers > known.registers + REGISTER_STEP)
    fail_msg("%s: %u registers, the baseline has %u", key, found->registers, known.registers);
  for (uint32_t i = 0; i < MIX_CLASSES; i++) {
    uint32_t most = known.mix[i] + known.mix[i] * MIX_PERCENT / 100 + 1;
    if (i == MIX_TENSOR) most = known.mix[i];
    if (found->mix[i] > most)
      fail_msg("%s: %u instructions of class '%s', the baseline has %u", key, found->mix[i], classes[i], known.mix[i]);
  }
}

void assert_kernel(const char *key, const char *text, size_t size, const char *arch, uint32_t spill) {
  if (!assembler_found()) return;
  kva_text log = {0};
  assembled a;
  uint32_t count = 0;
  bool ok = assembler_run(text, size, arch, 1, &a, &count, &log);
  if (!ok || count != 1 || assembler_log_has_trouble(log.data)) fail_msg("%s: %s", key, log.data);
  kva_text_free(&log);
  if (a.spill_stores > spill || a.spill_loads > spill || (a.stack && !spill))
    fail_msg("%s: stack of %u bytes, spills of %u and %u bytes", key, a.stack, a.spill_stores, a.spill_loads);
  baseline found = {.registers = a.registers};
  count_mix(text, found.mix);
  if (getenv("KVA_UPDATE_BASELINE")) update_baseline(key, &found);
  compare_with_baseline(key, &found);
}
