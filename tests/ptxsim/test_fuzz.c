/* Mutated PTX: whatever the text, the parser returns, with a line and a reason where it refuses, and what it accepts
 * runs within its limit of steps. Seeds are the kernels of tests/data/ptx. KVA_FUZZ_SECONDS of CPU time (3),
 * KVA_FUZZ_SEED (1); a text that crashes is left in the file that KVA_FUZZ_KEEP names. */
#include "tests/ptxsim/ptx_test.h"

#include <ctype.h>
#include <dirent.h>
#include <time.h>

enum { CAP = 1 << 16, MAX_SEEDS = 64 };

typedef struct seed {
  char *text;
  size_t n;
} seed;
static seed seeds[MAX_SEEDS];
static uint32_t n_seeds;

static uint64_t draw(uint64_t *state, uint64_t n) {
  return n ? ptx_random(state) % n : 0;
}

static void read_seed(const char *name) {
  char path[300];
  snprintf(path, sizeof path, "tests/data/ptx/%s", name);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  seed *s = &seeds[n_seeds++];
  s->text = malloc(CAP);
  assert_non_null(s->text);
  s->n = fread(s->text, 1, CAP / 2, file);
  fclose(file);
}

static int load_seeds(void **state) {
  (void)state;
  DIR *dir = opendir("tests/data/ptx");
  if (!dir) return -1;
  for (struct dirent *e; (e = readdir(dir)) && n_seeds < MAX_SEEDS;)
    if (strstr(e->d_name, ".ptx")) read_seed(e->d_name);
  closedir(dir);
  return n_seeds ? 0 : -1;
}
static int free_seeds(void **state) {
  (void)state;
  for (uint32_t k = 0; k < n_seeds; k++) free(seeds[k].text);
  return 0;
}

/* ---- mutations --------------------------------------------------------------------------------------------------- */

static bool in_word(char c) {
  return isalnum((unsigned char)c) || c == '_' || c == '%' || c == '.' || c == ':';
}

/* The word at or behind a place: its beginning; *out_n 0: none. */
static size_t word_at(const char *text, size_t n, size_t at, size_t *out_n) {
  while (at < n && !in_word(text[at])) at++;
  while (at && at < n && in_word(text[at - 1])) at--;
  size_t end = at;
  while (end < n && in_word(text[end])) end++;
  *out_n = end - at;
  return at;
}

static size_t replace(char *text, size_t n, size_t at, size_t old, const char *with, size_t len) {
  if (n - old + len > CAP / 2) return n;
  memmove(text + at + len, text + at + old, n - at - old);
  memcpy(text + at, with, len);
  return n - old + len;
}

/* A word becomes another word of some seed. */
static size_t swap_word(char *text, size_t n, uint64_t *state) {
  const seed *other = &seeds[draw(state, n_seeds)];
  size_t len, from_len, at = word_at(text, n, draw(state, n), &len);
  size_t from = word_at(other->text, other->n, draw(state, other->n), &from_len);
  if (!len || !from_len || from_len > 200) return n;
  return replace(text, n, at, len, other->text + from, from_len);
}

static size_t change_number(char *text, size_t n, uint64_t *state) {
  static const char *const numbers[] = {
      "0",      "1", "-1", "3", "7", "16", "32", "33", "64", "77", "4294967295", "2147483648", "0x7fffffffffffffff",
      "1048576"};
  size_t at = draw(state, n), end;
  while (at < n && !isdigit((unsigned char)text[at])) at++;
  for (end = at; end < n && isdigit((unsigned char)text[end]); end++) continue;
  if (at == n) return n;
  if (draw(state, 2)) {
    text[at] = (char)('0' + draw(state, 10));
    return n;
  }
  const char *with = numbers[draw(state, sizeof numbers / sizeof *numbers)];
  return replace(text, n, at, end - at, with, strlen(with));
}

/* A line goes away, or comes again elsewhere. */
static size_t move_line(char *text, size_t n, uint64_t *state) {
  size_t at = draw(state, n), to = draw(state, n);
  while (at && text[at - 1] != '\n') at--;
  while (to && text[to - 1] != '\n') to--;
  const char *end = memchr(text + at, '\n', n - at);
  size_t len = end ? (size_t)(end + 1 - (text + at)) : n - at;
  char line[512];
  if (len > sizeof line) return n;
  memcpy(line, text + at, len);
  return draw(state, 2) ? replace(text, n, at, len, "", 0) : replace(text, n, to, 0, line, len);
}

static size_t change_bytes(char *text, size_t n, uint64_t *state) {
  static const char alphabet[] = "%rdfph0123456789.,;:{}[]<>()@!|+-_$ \n\"/*xABbu";
  size_t at = draw(state, n), len = 1 + draw(state, 12), from = draw(state, n);
  if (at + len > n) len = n - at;
  if (from + len > n) from = 0;
  char piece[16];
  memcpy(piece, text + from, len);
  switch (draw(state, 4)) {
  case 0: text[at] = alphabet[draw(state, sizeof alphabet - 1)]; return n;
  case 1: text[at] = (char)(text[at] ^ 1 << draw(state, 8)); return n;
  case 2: return replace(text, n, at, len, "", 0);
  default: return replace(text, n, at, draw(state, 2) ? len : 0, piece, len);
  }
}

static size_t mutate(char *text, size_t n, uint64_t *state) {
  if (!n) return n;
  switch (draw(state, 16)) {
  case 0: return draw(state, n);
  case 1:
  case 2: return change_bytes(text, n, state);
  case 3:
  case 4:
  case 5: return move_line(text, n, state);
  case 6:
  case 7:
  case 8:
  case 9: return swap_word(text, n, state);
  default: return change_number(text, n, state);
  }
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static char data[4096] __attribute__((aligned(128)));
static unsigned char map[KVA_PTXSIM_MAP_BYTES] __attribute__((aligned(64)));

static void make_map(void) {
  kva_ptxsim_map m = {.dtype = KVA_BF16,
                      .rank = 2,
                      .address = data,
                      .dims = {64, 32},
                      .strides = {2, 128},
                      .box = {64, 32},
                      .swizzle = 128};
  assert_int_equal(kva_ptxsim_encode_map(&m, NULL, map), KVA_OK);
}

static void run_kernel(const kva_ptx_kernel *kernel, uint64_t *state) {
  static const uint32_t blocks[] = {32, 64, 128, 256};
  static const char record[40000];
  const kva_ptx_kernel_info *info = kva_ptx_kernel_get_info(kernel);
  const void *params[16];
  void *pointer = data;
  uint32_t few = 2;
  if (info->n_params > 16) return;
  for (uint32_t k = 0; k < info->n_params; k++) {
    uint32_t size = info->params[k].size;
    params[k] = size == 8 ? (const void *)&pointer : size == 128 ? map : size == 4 ? (const void *)&few : record;
  }
  kva_ptx_memory *memory = kva_ptx_memory_create();
  assert_int_equal(kva_ptx_memory_add(memory, data, sizeof data, true, "data"), KVA_OK);
  kva_ptx_options options = {.max_steps = 20000,
                             .lazy = draw(state, 2),
                             .schedule_seed = draw(state, 3),
                             .check_global = draw(state, 4) == 0,
                             .unchecked_shared = draw(state, 8) == 0};
  kva_ptx_dim3 grid = {1 + (uint32_t)draw(state, 2), 1, 1}, block = {blocks[draw(state, 4)], 1, 1};
  kva_ptx_report report;
  kva_diag *diag = kva_diag_create();
  kva_status status = kva_ptx_launch(kernel, memory, grid, block, (uint32_t)draw(state, 2) * 33024, params,
                                     info->n_params, &options, diag, &report);
  assert_true(status == KVA_OK || kva_diag_errors(diag) > 0);
  if (status == KVA_OK) kva_ptx_report_free(&report);
  kva_diag_destroy(diag);
  kva_ptx_memory_destroy(memory);
}

static void keep_text(const char *text, size_t n) {
  const char *path = getenv("KVA_FUZZ_KEEP");
  FILE *file = path ? fopen(path, "w") : NULL;
  if (!file) return;
  fwrite(text, 1, n, file);
  fclose(file);
}

/* Whether the text was accepted. */
static bool try_text(const char *text, size_t n, uint64_t *state) {
  kva_diag *diag = kva_diag_create();
  kva_ptx_module *m = NULL;
  kva_status status = kva_ptx_module_create(text, n, "mutant.ptx", diag, &m);
  assert_true((status == KVA_OK) == (m != NULL));
  if (status != KVA_OK) {
    assert_true(kva_diag_errors(diag) > 0);
    kva_loc loc = {0};
    assert_true(strlen(kva_diag_message(diag, 0, NULL, &loc)) > 3);
    assert_true(loc.line > 0);
  }
  for (uint32_t k = 0; m && k < kva_ptx_module_n_kernels(m) && k < 2; k++)
    run_kernel(kva_ptx_module_kernel_at(m, k), state);
  kva_ptx_module_destroy(m);
  kva_diag_destroy(diag);
  return status == KVA_OK;
}

static double cpu_seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void mutated_texts(void **unused) {
  (void)unused;
  static char text[CAP + 1];
  const char *seconds = getenv("KVA_FUZZ_SECONDS"), *number = getenv("KVA_FUZZ_SEED");
  double end = cpu_seconds() + (seconds ? strtod(seconds, NULL) : 3);
  uint64_t state = (number ? strtoull(number, NULL, 10) : 1) << 32;
  uint32_t n_texts = 0, accepted = 0;
  make_map();
  for (uint32_t k = 0; k < n_seeds; k++) assert_true(try_text(seeds[k].text, seeds[k].n, &state));
  for (; cpu_seconds() < end; n_texts++) {
    const seed *s = &seeds[draw(&state, n_seeds)];
    size_t n = s->n;
    memcpy(text, s->text, n);
    for (uint64_t k = 1 + draw(&state, 4); k > 0; k--) n = mutate(text, n, &state);
    text[n] = 0;
    keep_text(text, n);
    accepted += try_text(text, n, &state);
  }
  printf("%u texts, %u of them ran\n", n_texts, accepted);
  assert_true(n_texts > 50 && accepted > 5);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(mutated_texts)};
  return cmocka_run_group_tests(tests, load_seeds, free_seeds);
}
