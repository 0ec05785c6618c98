/* Offsets for temporaries: greedy by size, best fit.
 *
 * Items are placed from the largest to the smallest. Each takes the tightest gap that fits between already placed items
 * that are live at the same time, else the space above them. So large items lie side by side in an empty arena, and
 * small ones fill the gaps. Quadratic in the number of items, once per binding of shapes. The result is usually within
 * a few per cent of the lower bound, the largest sum of sizes live in one step; the exact problem is NP-hard. See
 * Pisarchyk and Lee, Efficient memory management for deep neural net inference, 2020. */
#include "runtime/memory_plan.h"

#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20, HUGE_FROM = 4 << 20 };

bool kva_align_size(int64_t bytes, int64_t *out_bytes) {
  int64_t padded;
  if (!kva_add_size(bytes, KVA_ALIGNMENT - 1, &padded)) return false;
  *out_bytes = padded / KVA_ALIGNMENT * KVA_ALIGNMENT;
  return true;
}

/* Largest first; ties by creation, then by number, so that the order is total. */
static bool goes_before(const kva_lifetime *x, const kva_lifetime *y) {
  if (x->bytes != y->bytes) return x->bytes > y->bytes;
  if (x->first != y->first) return x->first < y->first;
  return x < y;
}

/* Not qsort, which allocates. */
static void insert_by_size(int32_t n, kva_lifetime **sorted, kva_lifetime *item) {
  while (n > 0 && goes_before(item, sorted[n - 1])) {
    sorted[n] = sorted[n - 1];
    n--;
  }
  sorted[n] = item;
}

static bool live_together(const kva_lifetime *a, const kva_lifetime *b) {
  return a->first <= b->last && b->first <= a->last;
}

/* The offset for an item, given the `n` placed ones sorted by offset. Cannot overflow: no end exceeds the sum of the
 * sizes, which kva_plan_memory checked. */
static int64_t best_offset(const kva_lifetime *item, int64_t size, int32_t n, kva_lifetime *const *placed) {
  int64_t top = 0, best = -1, best_gap = INT64_MAX;
  for (int32_t i = 0; i < n; i++) {
    const kva_lifetime *other = placed[i];
    if (!live_together(item, other)) continue;
    int64_t gap = other->offset - top;
    if (gap >= size && gap < best_gap) {
      best = top;
      best_gap = gap;
    }
    int64_t end = other->offset + (other->bytes + KVA_ALIGNMENT - 1) / KVA_ALIGNMENT * KVA_ALIGNMENT;
    if (end > top) top = end;
  }
  return best >= 0 ? best : top;
}

static void insert_by_offset(int32_t n, kva_lifetime **placed, kva_lifetime *item) {
  while (n > 0 && placed[n - 1]->offset > item->offset) {
    placed[n] = placed[n - 1];
    n--;
  }
  placed[n] = item;
}

static void place_all(int32_t n, kva_lifetime **order, kva_lifetime **placed, int64_t *out_bytes) {
  int64_t bytes = 0;
  int32_t n_placed = 0;
  for (int32_t i = 0; i < n; i++) {
    kva_lifetime *item = order[i];
    item->offset = 0;
    if (item->bytes == 0) continue;
    int64_t size = (item->bytes + KVA_ALIGNMENT - 1) / KVA_ALIGNMENT * KVA_ALIGNMENT;
    item->offset = best_offset(item, size, n_placed, placed);
    insert_by_offset(n_placed++, placed, item);
    if (item->offset + size > bytes) bytes = item->offset + size;
  }
  *out_bytes = bytes;
}

kva_status kva_plan_memory(int32_t n, kva_lifetime *items, kva_lifetime **scratch, int64_t *out_bytes) {
  *out_bytes = 0;
  int64_t sum = 0;
  for (int32_t i = 0; i < n; i++) {
    int64_t size;
    if (!kva_align_size(items[i].bytes, &size) || !kva_add_size(sum, size, &sum)) return KVA_NO_MEMORY;
  }
  for (int32_t i = 0; i < n; i++) insert_by_size(i, scratch, &items[i]);
  place_all(n, scratch, scratch + n, out_bytes);
  return KVA_OK;
}

kva_status kva_block_create(int64_t bytes, kva_block *out_block) {
  *out_block = (kva_block){0};
  if (bytes == 0) return KVA_OK;
  int64_t mapped = bytes;
  bool huge = bytes >= HUGE_FROM;
  if (huge && !kva_add_size(bytes, HUGE_PAGE, &mapped)) return KVA_NO_MEMORY;
  void *mapping = mmap(NULL, (size_t)mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return KVA_NO_MEMORY;
  char *data = mapping;
  if (huge) {
    data += (HUGE_PAGE - (uintptr_t)data % HUGE_PAGE) % HUGE_PAGE;
    (void)madvise(data, (size_t)bytes, MADV_HUGEPAGE); /* a hint: kernels without huge pages reject it */
  }
  *out_block = (kva_block){.data = data, .bytes = bytes, .mapping = mapping, .mapped = (size_t)mapped};
  return KVA_OK;
}

kva_status kva_block_create_from(const kva_allocator *allocator, int64_t bytes, kva_block *out_block) {
  if (!allocator) return kva_block_create(bytes, out_block);
  *out_block = (kva_block){0};
  if (bytes == 0) return KVA_OK;
  void *data = kva_allocate(allocator, (size_t)bytes, KVA_ALIGNMENT);
  if (!data) return KVA_NO_MEMORY;
  *out_block = (kva_block){.data = data, .bytes = bytes, .mapping = data, .allocator = allocator};
  return KVA_OK;
}

void kva_block_destroy(kva_block *block) {
  if (block->allocator)
    kva_release(block->allocator, block->mapping);
  else if (block->mapping)
    munmap(block->mapping, block->mapped);
  *block = (kva_block){0};
}

void *kva_block_at(const kva_block *block, int64_t offset) {
  return block->data ? (char *)block->data + offset : NULL;
}
