/* Offsets for temporaries: greedy, best fit, in the best of three orders.
 *
 * Each item takes the tightest gap that fits between already placed items that are live at the same time, else the
 * space above them. From the largest to the smallest, large items lie side by side in an empty arena, and small ones
 * fill the gaps. From the peak on, what is live when most is lies without gaps, the longest-lived at the bottom, and
 * what is live at lesser times only lies around it. The third order is by size times life. Quadratic in the number of
 * items, once per binding of shapes. The result is usually within a few per cent of the lower bound, the largest sum of
 * sizes live in one step; the exact problem is NP-hard. See Pisarchyk and Lee, Efficient memory management for deep
 * neural net inference, 2020. */
#include "runtime/memory_plan.h"

#include <sys/mman.h>

enum { HUGE_PAGE = 2 << 20, HUGE_FROM = 4 << 20 };

bool kva_align_size(int64_t bytes, int64_t *out_bytes) {
  int64_t padded;
  if (!kva_add_size(bytes, KVA_ALIGNMENT - 1, &padded)) return false;
  *out_bytes = padded / KVA_ALIGNMENT * KVA_ALIGNMENT;
  return true;
}

/* Cannot overflow: kva_plan_memory checked the sum. */
static int64_t padded(const kva_lifetime *item) {
  return (item->bytes + KVA_ALIGNMENT - 1) / KVA_ALIGNMENT * KVA_ALIGNMENT;
}

typedef bool (*placing_order)(const kva_lifetime *x, const kva_lifetime *y);

/* Largest first; ties by creation, then by number, so that the order is total. */
static bool is_larger(const kva_lifetime *x, const kva_lifetime *y) {
  if (x->bytes != y->bytes) return x->bytes > y->bytes;
  if (x->first != y->first) return x->first < y->first;
  return x < y;
}

/* What is live together with more first; of that the longest-lived. */
static bool is_nearer_to_peak(const kva_lifetime *x, const kva_lifetime *y) {
  int64_t a = (int64_t)x->last - x->first, b = (int64_t)y->last - y->first;
  if (x->most != y->most) return x->most > y->most;
  return a != b ? a > b : is_larger(x, y);
}

/* Size times life. */
static bool takes_more(const kva_lifetime *x, const kva_lifetime *y) {
  double a = (double)x->bytes * (x->last - x->first + 1), b = (double)y->bytes * (y->last - y->first + 1);
  return a != b ? a > b : is_larger(x, y);
}

/* Sizes are largest where an item begins. */
static void find_pressure(int32_t n, kva_lifetime *items) {
  for (int32_t i = 0; i < n; i++) {
    items[i].at_first = 0;
    for (int32_t k = 0; k < n; k++)
      if (items[k].first <= items[i].first && items[i].first <= items[k].last) items[i].at_first += padded(&items[k]);
  }
  for (int32_t i = 0; i < n; i++) {
    items[i].most = 0;
    for (int32_t k = 0; k < n; k++) {
      bool within = items[i].first <= items[k].first && items[k].first <= items[i].last;
      if (within && items[k].at_first > items[i].most) items[i].most = items[k].at_first;
    }
  }
}

/* Not qsort, which allocates. */
static void insert_in_order(int32_t n, kva_lifetime **sorted, kva_lifetime *item, placing_order goes_before) {
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
    int64_t end = other->offset + padded(other);
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

/* Returns the arena's size. */
static int64_t place_all(int32_t n, kva_lifetime *items, kva_lifetime **scratch, placing_order goes_before) {
  kva_lifetime **order = scratch, **placed = scratch + n;
  int64_t bytes = 0;
  int32_t n_placed = 0;
  for (int32_t i = 0; i < n; i++) insert_in_order(i, order, &items[i], goes_before);
  for (int32_t i = 0; i < n; i++) {
    kva_lifetime *item = order[i];
    item->offset = 0;
    if (item->bytes == 0) continue;
    int64_t size = padded(item);
    item->offset = best_offset(item, size, n_placed, placed);
    insert_by_offset(n_placed++, placed, item);
    if (item->offset + size > bytes) bytes = item->offset + size;
  }
  return bytes;
}

kva_status kva_plan_memory(int32_t n, kva_lifetime *items, kva_lifetime **scratch, int64_t *out_bytes) {
  *out_bytes = 0;
  int64_t sum = 0;
  for (int32_t i = 0; i < n; i++) {
    int64_t size;
    if (!kva_align_size(items[i].bytes, &size) || !kva_add_size(sum, size, &sum)) return KVA_NO_MEMORY;
  }
  find_pressure(n, items);
  static const placing_order orders[] = {is_larger, is_nearer_to_peak, takes_more};
  int32_t n_orders = sizeof orders / sizeof *orders, best = 0;
  for (int32_t i = 0; i < n_orders; i++) {
    int64_t bytes = place_all(n, items, scratch, orders[i]);
    if (i == 0 || bytes < *out_bytes) *out_bytes = bytes, best = i;
  }
  if (best != n_orders - 1) (void)place_all(n, items, scratch, orders[best]);
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
