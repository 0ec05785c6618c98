/* Device memory as pages that the host cannot touch, and pinned memory. */
#include "tests/fake_cuda/fake.h"

#include <stdlib.h>
#include <sys/mman.h>

typedef struct block {
  char *data;
  size_t bytes, mapped;
  bool pinned, live;
} block;

static block *blocks;
static size_t n_blocks;
enum { PATTERN = 0xA5, PAGE = 4096 };

static cu_result add(size_t bytes, bool pinned, block **out) {
  if (!bytes) return CU_ERROR_INVALID_VALUE;
  block *more = realloc(blocks, sizeof *more * (n_blocks + 1));
  if (!more) return CU_ERROR_OUT_OF_MEMORY;
  blocks = more;
  size_t mapped = (bytes + PAGE - 1) / PAGE * PAGE;
  char *data = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return CU_ERROR_OUT_OF_MEMORY;
  memset(data, PATTERN, bytes);
  if (!pinned) mprotect(data, mapped, PROT_NONE);
  *out = &blocks[n_blocks++];
  **out = (block){data, bytes, mapped, pinned, true};
  return CU_SUCCESS;
}

static block *find(const void *p, size_t bytes, bool pinned) {
  for (size_t i = 0; i < n_blocks; i++) {
    block *b = &blocks[i];
    const char *c = p;
    if (b->live && b->pinned == pinned && c >= b->data && c + bytes <= b->data + b->bytes) return b;
  }
  return NULL;
}

/* By its first byte: blocks may be neighbours, where one begins another ends. */
static block *find_start(const void *p, bool pinned) {
  for (size_t i = 0; i < n_blocks; i++)
    if (blocks[i].live && blocks[i].pinned == pinned && blocks[i].data == p) return &blocks[i];
  return NULL;
}

/* Addresses stay reserved, so that nothing else comes to lie there. */
static cu_result drop(const void *p, bool pinned) {
  block *b = find_start(p, pinned);
  if (!b) {
    fake_violation("free of %p, which is no live block", p);
    return CU_ERROR_INVALID_VALUE;
  }
  mprotect(b->data, b->mapped, PROT_READ | PROT_WRITE);
  madvise(b->data, b->mapped, MADV_DONTNEED);
  mprotect(b->data, b->mapped, PROT_NONE);
  b->live = false;
  return CU_SUCCESS;
}

bool fake_is_device(const void *p, size_t bytes) {
  return find(p, bytes, false);
}

bool fake_is_pinned(const void *p, size_t bytes) {
  return find(p, bytes, true);
}

void fake_open_memory(bool open) {
  for (size_t i = 0; i < n_blocks; i++)
    if (blocks[i].live && !blocks[i].pinned)
      mprotect(blocks[i].data, blocks[i].mapped, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

kva_status fake_register(kva_ptx_memory *memory) {
  for (size_t i = 0; i < n_blocks; i++)
    if (blocks[i].live && !blocks[i].pinned)
      KVA_TRY(kva_ptx_memory_add(memory, blocks[i].data, blocks[i].bytes, true, "device memory"));
  return KVA_OK;
}

int fake_live_blocks(void) {
  int n = 0;
  for (size_t i = 0; i < n_blocks; i++) n += blocks[i].live;
  return n;
}

static cu_result refuse_in_capture(void) {
  if (!fake_capturing()) return CU_SUCCESS;
  fake_invalidate_capture();
  return ERROR_CAPTURE_UNSUPPORTED;
}

static cu_result allocate(size_t bytes, bool pinned, void **out) {
  cu_result r = fake_state();
  if (r == CU_SUCCESS) r = refuse_in_capture();
  block *b;
  if (r == CU_SUCCESS) r = add(bytes, pinned, &b);
  if (r == CU_SUCCESS) *out = b->data;
  return r;
}

cu_result fake_cuMemAlloc(cu_pointer *out_pointer, size_t bytes) {
  void *p;
  cu_result r = allocate(bytes, false, &p);
  if (r == CU_SUCCESS) *out_pointer = (cu_pointer)(uintptr_t)p;
  return r;
}

cu_result fake_cuMemAllocHost(void **out_data, size_t bytes) {
  return allocate(bytes, true, out_data);
}

/* Frees wait for the device, as the driver's do. */
static cu_result release(void *p, bool pinned) {
  cu_result r = refuse_in_capture();
  if (r == CU_SUCCESS) r = fake_wait(NULL);
  cu_result dropped = drop(p, pinned);
  return r == CU_SUCCESS ? dropped : r;
}

cu_result fake_cuMemFree(cu_pointer pointer) {
  return release((void *)(uintptr_t)pointer, false);
}

cu_result fake_cuMemFreeHost(void *data) {
  return release(data, true);
}
