/* Preloaded: counts a program's allocations between the begin and the end of main, and fails one of them.
 *
 *   KVA_FAIL_AT=N       the Nth allocation (from 1) gives NULL; the others succeed
 *   KVA_FAIL_COUNT=FILE the number of allocations is written to the file when main returns or the program exits
 *
 * Allocations before main are those of other libraries' constructors. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_long count, fail_at;
static atomic_bool in_main;

/* dlsym may allocate: from here, until the real functions are known. */
static _Alignas(16) char early[16 << 10];
static size_t early_used;
static bool is_early(const void *p) {
  return (const char *)p >= early && (const char *)p < early + sizeof early;
}
static void *allocate_early(size_t size) {
  void *p = early + early_used;
  early_used += (size + 15) & ~(size_t)15;
  return early_used <= sizeof early ? p : NULL;
}

static struct {
  void *(*malloc)(size_t);
  void *(*calloc)(size_t, size_t);
  void *(*realloc)(void *, size_t);
  int (*posix_memalign)(void **, size_t, size_t);
  void *(*aligned_alloc)(size_t, size_t);
  void (*free)(void *);
} real;

static bool resolve(void) {
  static bool begun;
  if (begun) return real.free != NULL;
  begun = true;
  *(void **)&real.malloc = dlsym(RTLD_NEXT, "malloc");
  *(void **)&real.calloc = dlsym(RTLD_NEXT, "calloc");
  *(void **)&real.realloc = dlsym(RTLD_NEXT, "realloc");
  *(void **)&real.posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
  *(void **)&real.aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
  *(void **)&real.free = dlsym(RTLD_NEXT, "free");
  return true;
}

static bool fails(void) {
  if (!atomic_load(&in_main)) return false;
  bool is_it = atomic_fetch_add(&count, 1) + 1 == atomic_load(&fail_at);
  if (is_it) errno = ENOMEM;
  return is_it;
}

void *malloc(size_t size) {
  if (!resolve()) return allocate_early(size);
  return fails() ? NULL : real.malloc(size);
}
void *calloc(size_t n, size_t size) {
  if (!resolve()) return allocate_early(n * size); /* static memory is zero */
  return fails() ? NULL : real.calloc(n, size);
}
void *realloc(void *p, size_t size) {
  if (!resolve() || is_early(p)) abort();
  return fails() ? NULL : real.realloc(p, size);
}
int posix_memalign(void **out, size_t alignment, size_t size) {
  if (!resolve()) abort();
  return fails() ? ENOMEM : real.posix_memalign(out, alignment, size);
}
void *aligned_alloc(size_t alignment, size_t size) {
  if (!resolve()) abort();
  return fails() ? NULL : real.aligned_alloc(alignment, size);
}
void free(void *p) {
  if (p && !is_early(p) && resolve()) real.free(p);
}

static void end(void) {
  const char *path = getenv("KVA_FAIL_COUNT");
  if (!atomic_exchange(&in_main, false) || !path) return;
  char text[32];
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666),
      n = snprintf(text, sizeof text, "%ld\n", atomic_load(&count));
  if (fd < 0 || write(fd, text, (size_t)n) != n) abort();
  close(fd);
}

static int (*real_main)(int, char **, char **);
static int counted_main(int argc, char **argv, char **environment) {
  const char *at = getenv("KVA_FAIL_AT");
  atomic_store(&fail_at, at ? atol(at) : 0);
  atexit(end);
  atomic_store(&in_main, true);
  int code = real_main(argc, argv, environment);
  end();
  return code;
}

int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end);
int __libc_start_main(int (*main)(int, char **, char **), int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end) {
  typedef int start(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void),
                    void *);
  start *next;
  *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
  real_main = main;
  return next(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}
