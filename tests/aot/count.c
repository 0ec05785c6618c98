/* Preloaded: counts what asks for memory, the allocator's functions and mmap. */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

static atomic_long n;

long count_allocations(void) {
  return atomic_load(&n);
}
void *malloc(size_t size) {
  atomic_fetch_add(&n, 1);
  return __libc_malloc(size);
}
void *calloc(size_t count, size_t size) {
  atomic_fetch_add(&n, 1);
  return __libc_calloc(count, size);
}
void *realloc(void *p, size_t size) {
  atomic_fetch_add(&n, 1);
  return __libc_realloc(p, size);
}
void *aligned_alloc(size_t alignment, size_t size) {
  atomic_fetch_add(&n, 1);
  return __libc_memalign(alignment, size);
}
void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
  atomic_fetch_add(&n, 1);
  return (void *)syscall(SYS_mmap, at, length, protection, flags, fd, offset);
}
