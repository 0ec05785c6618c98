/* Undefined reads and data races in tracked global memory.
 *
 * Races (options.check_global): within a cluster, as for shared memory (race.c). Accesses of others are unordered,
 * unless the earlier CTA executed a fence of scope gpu and then an atomic, and the later one an atomic and then such a
 * fence. The check ignores whether the two atomics synchronise with each other, so races can be missed. */
#include "runtime/base/platform.h"
#include "runtime/ptxsim/exec.h"

#include <stdlib.h>

enum { MAX_CTAS = 1 << 16 };

typedef struct stamp {
  uint32_t cta, stamp, line; /* cta: number + 1; 0: none */
} stamp;

/* State of a granule, whose size is the kernel's narrowest access, at most 4 bytes. other_reader: the last reader in a
 * CTA other than reader's. */
typedef struct ptx_global_shadow {
  stamp writer, reader, other_reader;
  uint32_t value; /* value that `writer` wrote */
} ptx_global_shadow;

/* Ten times as large as what it describes, and new for each launch. NULL: no memory. */
static ptx_global_shadow *create_shadow(const ptx_range *r, uint32_t shift) {
  size_t n = (r->size >> shift) + 2;
  ptx_global_shadow *shadow = calloc(n, sizeof *shadow);
  if (shadow) kva_pages_enlarge(shadow, n * sizeof *shadow);
  return shadow;
}

bool kva_ptx_global_prepare(ptx_launch *launch) {
  kva_ptx_memory *m = &launch->memory;
  uint64_t n = (uint64_t)launch->grid.x * launch->grid.y * launch->grid.z;
  if (n > MAX_CTAS) launch->options.check_global = false;
  for (uint32_t k = 0; k < m->n; k++) {
    if (launch->options.check_global && m->ranges[k].writable) {
      m->ranges[k].shadow = create_shadow(&m->ranges[k], launch->kernel->global_shift);
      if (!m->ranges[k].shadow) return false;
    }
    launch->tracks_global |= m->ranges[k].shadow || m->ranges[k].written;
  }
  if (launch->options.check_global) launch->released = calloc(n, sizeof *launch->released);
  return launch->released || !launch->options.check_global;
}

void kva_ptx_global_clean(ptx_launch *launch) {
  uint64_t n = (uint64_t)launch->grid.x * launch->grid.y * launch->grid.z;
  for (uint32_t k = 0; k < launch->memory.n; k++) free(launch->memory.ranges[k].shadow);
  for (uint64_t k = 0; launch->released && k < n; k++) free(launch->released[k]);
  free(launch->released);
}

static bool is_in(const ptx_clocks *c, uint32_t s) {
  uint32_t who = ptx_stamp_thread(s), warp = who / PTX_LANES, clock = ptx_stamp_clock(s);
  if (clock <= c->seen[warp]) return true;
  return clock <= c->some_seen[warp] && c->some_lanes[warp] >> (who % PTX_LANES) & 1;
}

static bool is_in_cluster(const ptx_cluster *cluster, uint32_t cta) {
  for (uint32_t k = 0; k < cluster->n; k++)
    if (cluster->ctas[k].number == cta) return true;
  return false;
}

static bool conflicts(const ptx_warp *w, const stamp *earlier, uint32_t mine) {
  const ptx_cta *cta = w->cta;
  if (!earlier->cta || earlier->stamp & mine & PTX_STRONG) return false;
  if (is_in_cluster(cta->cluster, earlier->cta - 1)) return ptx_unordered(w, earlier->stamp, ptx_stamp_thread(mine));
  const ptx_clocks *released = cta->launch->released[earlier->cta - 1];
  return !(cta->acquired && released && is_in(released, earlier->stamp));
}

static void race(ptx_warp *w, const ptx_ins *i, int lane, const ptx_range *r, uint64_t address, const char *what,
                 const stamp *earlier) {
  kva_ptx_finding *f = kva_ptx_add_finding(w->cta, KVA_PTX_GLOBAL_RACE, i, w, lane);
  if (!f) return;
  f->other_line = earlier->line;
  kva_ptx_detail(f, "%s at offset %llu of '%s', %s by thread %u of CTA %u at line %u with nothing between", i->text,
                 (unsigned long long)(address - r->base), r->name, what,
                 ptx_stamp_thread(earlier->stamp) % (w->cta->launch->n_warps * PTX_LANES), earlier->cta - 1,
                 earlier->line);
}

static void read_granule(ptx_warp *w, const ptx_ins *i, int lane, const ptx_range *r, uint64_t address,
                         ptx_global_shadow *s, stamp mine) {
  if (conflicts(w, &s->writer, mine.stamp)) race(w, i, lane, r, address, "written", &s->writer);
  if (s->reader.cta != mine.cta) s->other_reader = s->reader;
  s->reader = mine;
}

static void write_granule(ptx_warp *w, const ptx_ins *i, int lane, const ptx_range *r, uint64_t address,
                          ptx_global_shadow *s, stamp mine, bool same) {
  if (!same && conflicts(w, &s->writer, mine.stamp))
    race(w, i, lane, r, address, "written", &s->writer);
  else if (conflicts(w, &s->reader, mine.stamp))
    race(w, i, lane, r, address, "read", &s->reader);
  else if (conflicts(w, &s->other_reader, mine.stamp))
    race(w, i, lane, r, address, "read", &s->other_reader);
  s->writer = mine;
}

/* Two stores of the same value are not a race. */
static void check_races(ptx_warp *w, const ptx_ins *i, int lane, const ptx_range *r, uint64_t address, uint32_t size,
                        bool write, const void *data, bool strong) {
  uint32_t shift = w->cta->launch->kernel->global_shift, bytes = 1u << shift;
  stamp mine = {(uint32_t)w->cta->number + 1, ptx_stamp_of(w, lane, strong), i->line};
  if (data && address & (bytes - 1)) return; /* misaligned: reported elsewhere */
  for (uint64_t at = address >> shift << shift; at < address + size; at += bytes) {
    ptx_global_shadow *s = &r->shadow[(at >> shift) - (r->base >> shift)];
    uint32_t value = data ? 0 : ~s->value;
    if (data) memcpy(&value, (const unsigned char *)data + (at - address), bytes);
    if (write)
      write_granule(w, i, lane, r, at, s, mine, value == s->value);
    else
      read_granule(w, i, lane, r, at, s, mine);
    if (write) s->value = value;
  }
}

/* Reports loads of words that nothing has written. */
static void check_written(ptx_warp *w, const ptx_ins *i, int lane, const ptx_range *r, uint64_t address, uint32_t size,
                          bool write) {
  for (uint64_t word = (address - r->base) / 4; word <= (address - r->base + size - 1) / 4; word++) {
    if (write)
      __atomic_store_n(&r->written[word], 1, __ATOMIC_RELAXED);
    else if (!__atomic_load_n(&r->written[word], __ATOMIC_RELAXED))
      kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_GLOBAL_UNINITIALIZED, i, w, lane),
                     "%s at offset %llu of '%s', which no kernel has written", i->text,
                     (unsigned long long)(address - r->base), r->name);
  }
}

void kva_ptx_global_access(ptx_warp *w, const ptx_ins *i, int lane, uint64_t address, uint32_t size, bool write,
                           const void *data) {
  const ptx_range *r = kva_ptx_find_range(&w->cta->launch->memory, address, size, &w->last_range);
  if (!r || (write && !r->writable)) return;
  if (r->written) check_written(w, i, lane, r, address, size, write);
  if (r->shadow) check_races(w, i, lane, r, address, size, write, data, i->flag);
}

/* An atomic publishes what its CTA's last fence released. */
static void publish(ptx_warp *w) {
  ptx_clocks **place = &w->cta->launch->released[w->cta->number];
  w->atomic_seen = true;
  if (!w->fence_released) return;
  if (!*place) *place = calloc(1, sizeof **place);
  if (*place) kva_ptx_clocks_join(*place, w->released);
}

void kva_ptx_global_atomic(ptx_warp *w, const ptx_ins *i, int lane, uint64_t address, uint32_t size) {
  const ptx_range *r = kva_ptx_find_range(&w->cta->launch->memory, address, size, &w->last_range);
  if (!r || !r->writable) return;
  if (r->written) check_written(w, i, lane, r, address, size, true);
  if (!r->shadow) return;
  check_races(w, i, lane, r, address, size, true, NULL, true);
  publish(w);
}

void kva_ptx_exec_fence(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  (void)i;
  if (!w->released) return;
  kva_ptx_clocks_release(w, w->released, mask);
  w->fence_released = true;
  w->cta->acquired |= w->atomic_seen;
}
