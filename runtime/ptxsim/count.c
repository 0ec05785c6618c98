/* Counters of memory requests: 32-byte sectors for global memory, passes over 32 banks of 4 bytes for shared memory. */
#include "runtime/ptxsim/exec.h"

#include <stdlib.h>

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x < y ? -1 : x > y;
}

/* Number of distinct sectors: a bit set if all lie within 64 of the lowest, else sorting. */
static uint32_t sectors(const uint64_t *a, uint32_t mask, uint32_t size) {
  uint64_t lowest = ~0ull, highest = 0, list[PTX_LANES];
  uint32_t n = 0;
  for (uint32_t m = mask; m; m &= m - 1) {
    uint64_t s = a[ptx_first(m)] >> 5;
    list[n++] = s;
    lowest = s < lowest ? s : lowest;
    highest = s > highest ? s : highest;
  }
  (void)size; /* aligned accesses of at most 16 bytes touch one sector */
  if (highest - lowest < 64) {
    uint64_t set = 0;
    for (uint32_t k = 0; k < n; k++) set |= 1ull << (list[k] - lowest);
    return (uint32_t)__builtin_popcountll(set);
  }
  qsort(list, n, sizeof *list, by_value);
  uint32_t distinct = 1;
  for (uint32_t k = 1; k < n; k++) distinct += list[k] != list[k - 1];
  return distinct;
}

void kva_ptx_count_global(ptx_cta *cta, const uint64_t *a, uint32_t mask, uint32_t size, bool store) {
  kva_ptx_counters *c = &cta->counters;
  uint32_t n = sectors(a, mask, size), bytes = ptx_count(mask) * size;
  if (store) {
    c->global_store_requests++;
    c->global_store_sectors += n;
    c->global_store_bytes += bytes;
  } else {
    c->global_load_requests++;
    c->global_load_sectors += n;
    c->global_load_bytes += bytes;
  }
}

/* Whether no two lanes use the same bank, the common case: one pass. */
static bool banks_differ(const uint64_t *a, uint32_t mask) {
  uint32_t used = 0;
  for (uint32_t m = mask; m; m &= m - 1) {
    uint32_t bank = 1u << (a[ptx_first(m)] >> 2 & 31);
    if (used & bank) return false;
    used |= bank;
  }
  return true;
}

/* Passes for a group of lanes: the number of distinct words in the fullest bank. */
static uint32_t passes(const uint64_t *a, uint32_t mask, uint32_t size) {
  uint32_t words[PTX_LANES * 4], next[PTX_LANES * 4], head[32], fill[32] = {0}, n = 0, worst = 1;
  if (size <= 4 && banks_differ(a, mask)) return 1;
  memset(head, 0xff, sizeof head);
  for (uint32_t m = mask; m; m &= m - 1) {
    uint32_t first = (uint32_t)(a[ptx_first(m)] >> 2);
    for (uint32_t k = 0; k < (size + 3) / 4; k++) {
      uint32_t word = first + k, bank = word & 31, at = head[bank];
      while (at != PTX_NONE && words[at] != word) at = next[at];
      if (at != PTX_NONE) continue;
      words[n] = word;
      next[n] = head[bank];
      head[bank] = n++;
      if (++fill[bank] > worst) worst = fill[bank];
    }
  }
  return worst;
}

/* The hardware splits a request of 8-byte lanes into half warps, and one of 16-byte lanes into quarter warps. */
void kva_ptx_count_shared(ptx_cta *cta, const ptx_ins *i, const uint64_t *a, uint32_t mask, uint32_t size) {
  kva_ptx_counters *c = &cta->counters;
  uint32_t groups = size > 8 ? 4 : size > 4 ? 2 : 1, lanes = PTX_LANES / groups, took = 0, ideal = 0;
  for (uint32_t g = 0; g < groups; g++) {
    uint32_t part = mask & ((groups == 1 ? PTX_ALL : (1u << lanes) - 1) << g * lanes);
    if (!part) continue;
    took += passes(a, part, size);
    ideal++;
  }
  c->shared_requests++;
  c->shared_wavefronts += took;
  c->shared_wavefronts_ideal += ideal;
  uint32_t degree = took / ideal;
  if (degree <= c->shared_degree_max) return;
  c->shared_degree_max = degree;
  c->shared_degree_max_line = i->line;
}
