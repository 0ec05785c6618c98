/* Many kernels that only run in process: several modules, which threads compile, each with its entry in the cache. */
#include "codegen/cache.h"
#include "codegen/codegen.h"
#include "runtime/base/trap.h"
#include "tests/support/target.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { KERNELS = 300, N = 5 };

static char folder[] = "/tmp/kva_modules_XXXXXX";
static kva_cache cache = {.folder = folder};

typedef struct compiled {
  kva_arena *arena;
  kva_diag *diag;
  kva_codegen *cg;
  int32_t numbers[KERNELS];
} compiled;

/* y = x * i + i + 1 */
static kva_kernel *build(compiled *c, kva_expr_ctx *exprs, int i) {
  kva_kernel *k = kva_kernel_create(c->arena, exprs, "scale");
  kva_kb *kb = kva_kb_create(k);
  const kva_expr *extent = kva_expr_const(exprs, N);
  kva_kbuf *x = kva_k_param(kb, "x", KVA_F32, extent), *y = kva_k_param(kb, "y", KVA_F32, extent);
  kva_kloop *l = kva_k_loop_begin(kb, KVA_K_PARALLEL, extent, "i");
  kva_kval v =
      kva_k_op(kb, KVA_K_fma, kva_k_load(kb, x, l->var), kva_k_const(kb, KVA_F32, i), kva_k_const(kb, KVA_F32, i + 1));
  kva_k_store(kb, y, l->var, v);
  kva_k_loop_end(kb, l);
  kva_codegen_schedule(k, kva_codegen_target(c->cg));
  return k;
}

static compiled add_kernels(bool in_process, const kva_cache *stored) {
  compiled c = {.arena = kva_arena_create(), .diag = kva_diag_create()};
  const kva_target_options options = {.opt_level = 2, .cache = stored, .in_process = in_process};
  kva_expr_ctx *exprs = kva_expr_ctx_create(c.arena);
  assert_int_equal(kva_codegen_create(&options, c.diag, &c.cg), KVA_OK);
  for (int i = 0; i < KERNELS; i++)
    assert_int_equal(kva_codegen_add(c.cg, build(&c, exprs, i), 0, NULL, &c.numbers[i]), KVA_OK);
  return c;
}

static compiled compile(bool in_process) {
  compiled c = add_kernels(in_process, &cache);
  assert_int_equal(kva_codegen_jit(c.cg), KVA_OK);
  assert_int_equal(kva_diag_count(c.diag), 0);
  return c;
}

static void check_kernels(const compiled *c) {
  float x[N] = {0, 1, -2, 3, 0.5f}, y[N];
  void *buffers[] = {x, y};
  for (int i = 0; i < KERNELS; i++) {
    kva_codegen_function(c->cg, c->numbers[i])(buffers, NULL, 0, 1);
    for (int j = 0; j < N; j++) assert_float_equal(y[j], x[j] * (float)i + (float)(i + 1), 0);
  }
}

static void destroy(compiled *c) {
  kva_codegen_destroy(c->cg);
  kva_diag_destroy(c->diag);
  kva_arena_destroy(c->arena);
}

/* Compiles all kernels, checks them, and returns whether all of their code came from the cache. */
static bool all_cached(bool in_process) {
  compiled c = compile(in_process);
  check_kernels(&c);
  bool cached = kva_codegen_cached(c.cg);
  destroy(&c);
  return cached;
}

static void cut_an_entry(void) {
  DIR *dir = opendir(folder);
  const struct dirent *e;
  assert_non_null(dir);
  do {
    e = readdir(dir);
    assert_non_null(e);
  } while (e->d_name[0] == '.');
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
  assert_int_equal(truncate(path, 100), 0);
  closedir(dir);
}

static void modules_have_entries_of_their_own(void **state) {
  (void)state;
  assert_false(all_cached(true));
  int64_t modules = kva_cache_measure(&cache).entries;
  assert_in_range(modules, 3, KERNELS / 10);
  assert_true(all_cached(true));
  cut_an_entry();
  assert_false(all_cached(true));
  assert_true(all_cached(true));
  assert_int_equal(kva_cache_measure(&cache).entries, modules);
}

/* What is written is one module. */
static void others_are_one_module(void **state) {
  (void)state;
  int64_t before = kva_cache_measure(&cache).entries;
  assert_false(all_cached(false));
  assert_int_equal(kva_cache_measure(&cache).entries, before + 1);
}

/* Leaves the process a few blocks of memory: enough to begin to compile. */
static bool take_memory(void) {
  enum { BLOCKS = 64, BYTES = 64 << 10 };
  void *kept[BLOCKS];
  for (int i = 0; i < BLOCKS; i++) kept[i] = malloc(BYTES);
  const struct rlimit none = {1, RLIM_INFINITY}; /* malloc has what it took of the system */
  if (setrlimit(RLIMIT_AS, &none)) return false;
  for (size_t size = BYTES; size; size /= 2)
    while (malloc(size)) continue;
  for (int i = 0; i < BLOCKS; i++) free(kept[i]);
  return true;
}

/* 0: the trap of this thread got what no memory was left for. */
static int compile_without_memory(void) {
  compiled c = add_kernels(true, NULL);
  kva_codegen_catch_memory_errors();
  kva_trap trap;
  if (setjmp(trap.at)) return trap.memory && strstr(trap.text, "LLVM asked for more") ? 0 : 2;
  kva_trap_enter(&trap);
  if (!take_memory()) return 3;
  return kva_codegen_jit(c.cg) == KVA_OK ? 4 : 5;
}

/* A failure in a thread that compiles is one of the thread that waits. In a process of its own. */
static void traps_get_what_threads_met(void **state) {
  (void)state;
  if (sanitized()) {
    print_message("SKIP: the sanitizer's allocator ends the process\n");
    skip();
  }
  pid_t child = fork();
  assert_true(child >= 0);
  if (!child) _exit(compile_without_memory());
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  assert_int_equal(WEXITSTATUS(status), 0);
}

static int teardown(void **state) {
  (void)state;
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", folder);
  return system(command);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(modules_have_entries_of_their_own),
      cmocka_unit_test(others_are_one_module),
      cmocka_unit_test(traps_get_what_threads_met),
  };
  if (!mkdtemp(folder)) return 1;
  return cmocka_run_group_tests(tests, NULL, teardown);
}
