/* Uninitialised reads and data races of shared memory.
 *
 * Every warp has a clock, which barriers advance, and knows for every warp up to which clock its accesses happened
 * before (a vector clock; Flanagan, Freund: FastTrack, 2009). A granule of shared memory (the kernel's narrowest
 * access) remembers its last writer and two readers as stamps: clock, thread, and whether the access was atomic or
 * volatile. Two accesses of different threads race when one writes, not both are strong, and the earlier stamp is not
 * ordered before the later access.
 *
 * Threads of one warp are ordered by bar.warp.sync and CTA barriers only, not by running in step. Two writes of the
 * same value are let pass. With more than two unordered readers a race with the others can be missed; nothing that is
 * ordered is ever reported. Clocks go on from CTA to CTA, so that old stamps are ordered before everything, and a
 * granule is uninitialised while its writer is from an earlier CTA. */
#include "runtime/ptxsim/exec.h"

enum { THREAD_BITS = 10, STRONG = 1 << THREAD_BITS, CLOCK_SHIFT = THREAD_BITS + 1 };
static const uint32_t most_clock = (1u << (32 - CLOCK_SHIFT)) - 1;

static uint32_t clock_of(uint32_t stamp) {
  return stamp >> CLOCK_SHIFT;
}
static uint32_t thread_of(uint32_t stamp) {
  return stamp & (STRONG - 1);
}
static uint32_t stamp_of(const ptx_warp *w, int lane, bool strong) {
  return w->clock << CLOCK_SHIFT | (strong ? STRONG : 0) | (w->id * PTX_LANES + (uint32_t)lane);
}

static bool conflicts(const ptx_warp *w, uint32_t earlier, uint32_t mine) {
  return thread_of(earlier) != thread_of(mine) && !(earlier & mine & STRONG) &&
         clock_of(earlier) > w->ordered[thread_of(earlier) / PTX_LANES];
}

/* ---- clocks --------------------------------------------------------------------------------------------------------
 */

void kva_ptx_race_begin(ptx_cta *cta) {
  uint32_t n = cta->launch->n_warps;
  if (cta->top_clock > most_clock / 2) {
    if (cta->shadow)
      memset(cta->shadow, 0,
             sizeof *cta->shadow * ((cta->launch->shared_bytes >> cta->launch->kernel->shadow_shift) + 1));
    cta->top_clock = 0;
  }
  cta->base_clock = cta->top_clock;
  cta->top_clock++;
  for (uint32_t k = 0; k < n; k++) {
    cta->warps[k].clock = cta->top_clock;
    for (uint32_t j = 0; j < n; j++) cta->warps[k].ordered[j] = cta->base_clock;
  }
}

/* Past the last clock everything counts as ordered: races are missed, none invented. */
static void advance(ptx_warp *w) {
  if (w->clock < most_clock) w->clock++;
  if (w->clock > w->cta->top_clock) w->cta->top_clock = w->clock;
}

void kva_ptx_race_warp_sync(ptx_warp *w) {
  w->ordered[w->id] = w->clock;
  advance(w);
}

void kva_ptx_race_arrive(ptx_warp *w, ptx_barrier *barrier) {
  for (uint32_t k = 0; k < w->cta->launch->n_warps; k++)
    if (w->ordered[k] > barrier->ordered[k]) barrier->ordered[k] = w->ordered[k];
  barrier->ordered[w->id] = w->clock;
  advance(w);
}
void kva_ptx_race_leave(ptx_warp *w, const ptx_barrier *barrier) {
  for (uint32_t k = 0; k < w->cta->launch->n_warps; k++)
    if (barrier->ordered[k] > w->ordered[k]) w->ordered[k] = barrier->ordered[k];
}

/* ---- accesses ------------------------------------------------------------------------------------------------------
 */

static void race(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, const char *what, uint32_t earlier,
                 uint32_t line) {
  kva_ptx_finding *f = kva_ptx_add_finding(w->cta, KVA_PTX_SHARED_RACE, i, w, lane);
  if (!f) return;
  f->other_line = line;
  kva_ptx_detail(f, "%s at shared address %u, %s by thread %u at line %u with no barrier between", i->text, address,
                 what, thread_of(earlier), line);
}

static void read_granule(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, ptx_shadow *s, uint32_t mine) {
  if (clock_of(s->writer) <= w->cta->base_clock)
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_SHARED_UNINITIALIZED, i, w, lane),
                   "%s at shared address %u, which no thread has written", i->text, address);
  else if (conflicts(w, s->writer, mine))
    race(w, i, lane, address, "written", s->writer, s->writer_line);
  if (conflicts(w, s->reader, mine)) {
    s->last_reader = mine;
  } else {
    s->reader = mine;
    s->reader_line = i->line;
  }
}

/* now: the bytes to be written, or NULL: taken as different from what is there. */
static void write_granule(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, ptx_shadow *s, uint32_t mine,
                          const void *now) {
  size_t width = (size_t)1 << w->cta->launch->kernel->shadow_shift;
  bool unordered = conflicts(w, s->writer, mine);
  if (unordered && (!now || memcmp(w->cta->shared + address, now, width)))
    race(w, i, lane, address, "written", s->writer, s->writer_line);
  else if (conflicts(w, s->reader, mine))
    race(w, i, lane, address, "read", s->reader, s->reader_line);
  else if (conflicts(w, s->last_reader, mine))
    race(w, i, lane, address, "read", s->last_reader, s->reader_line);
  s->writer = mine;
  s->writer_line = i->line;
}

static void check_pending(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, uint32_t size) {
  for (uint32_t b = 0; b < size; b++) {
    if (!w->cta->pending[address + b]) continue;
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_ASYNC_PENDING, i, w, lane),
                   "%s at shared address %u, which a cp.async that no wait covers will write", i->text, address + b);
    return;
  }
}

void kva_ptx_race_read(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, uint32_t size) {
  ptx_cta *cta = w->cta;
  if (cta->pending) check_pending(w, i, lane, address, size);
  if (!cta->shadow) return;
  uint32_t shift = cta->launch->kernel->shadow_shift, mine = stamp_of(w, lane, i->flag);
  for (uint32_t g = address >> shift; g << shift < address + size; g++)
    read_granule(w, i, lane, g << shift, &cta->shadow[g], mine);
}

void kva_ptx_race_write(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, uint32_t size, const void *data) {
  ptx_cta *cta = w->cta;
  if (cta->pending) check_pending(w, i, lane, address, size);
  if (!cta->shadow) return;
  uint32_t shift = cta->launch->kernel->shadow_shift, mine = stamp_of(w, lane, i->flag);
  for (uint32_t g = address >> shift; g << shift < address + size; g++) {
    const void *now = data ? (const unsigned char *)data + ((g << shift) - address) : NULL;
    write_granule(w, i, lane, g << shift, &cta->shadow[g], mine, now);
  }
}

void kva_ptx_race_atomic(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, uint32_t size) {
  ptx_cta *cta = w->cta;
  if (cta->pending) check_pending(w, i, lane, address, size);
  if (!cta->shadow) return;
  uint32_t shift = cta->launch->kernel->shadow_shift, mine = stamp_of(w, lane, true);
  for (uint32_t g = address >> shift; g << shift < address + size; g++) {
    ptx_shadow *s = &cta->shadow[g];
    if (clock_of(s->writer) <= cta->base_clock)
      kva_ptx_detail(kva_ptx_add_finding(cta, KVA_PTX_SHARED_UNINITIALIZED, i, w, lane),
                     "%s at shared address %u, which no thread has written", i->text, g << shift);
    write_granule(w, i, lane, g << shift, s, mine, NULL);
  }
}
