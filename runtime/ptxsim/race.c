/* Uninitialised reads, data races and missing proxy fences in shared memory.
 *
 * A granule of shared memory (the kernel's narrowest access) remembers its last writer and two readers as stamps
 * (exec.h): clock, thread or agent, and whether the access was atomic or volatile. Two accesses of different threads
 * race if one writes, not both are strong, and the earlier stamp is not ordered before the later access (clock.c).
 *
 * Only bar.warp.sync and CTA barriers order the threads of a warp, not lockstep execution. Two writes of the same value
 * are accepted. With more than two unordered readers, races with the others can be missed; ordered accesses are never
 * reported. A granule is uninitialised while its writer is from an earlier CTA.
 *
 * The async proxy (bulk copies, wgmma) sees an ordinary write only if a fence.proxy.async lies between the two in the
 * happens-before order. */
#include "runtime/ptxsim/exec.h"

/* The access being checked: by w to shared memory of `cta`. */
typedef struct access {
  ptx_warp *w;
  ptx_cta *cta;
  const ptx_ins *i;
  int lane;
  uint32_t stamp;
  uint32_t thread; /* the thread whose earlier accesses program order covers; PTX_NONE: none */
  bool async;
} access;

/* The owner of the memory at an address, which becomes one in it. The access has been resolved or checked before. */
static ptx_cta *owner_of(const ptx_warp *w, uint32_t *address) {
  uint64_t at = *address;
  ptx_cta *cta = ptx_owner(w, &at);
  KVA_ASSERT(cta);
  *address = (uint32_t)at;
  return cta;
}

static access by_lane(ptx_warp *w, const ptx_ins *i, int lane, ptx_cta *cta, bool strong) {
  uint32_t stamp = ptx_stamp_of(w, lane, strong);
  if (cta != w->cta) kva_ptx_reach(w, i, lane, cta, stamp);
  return (access){w, cta, i, lane, stamp, ptx_stamp_thread(stamp), false};
}
static access by_agent(ptx_warp *w, const ptx_ins *i, int lane, ptx_cta *cta, uint32_t stamp) {
  uint32_t thread = lane < 0 ? PTX_NONE : w->number * PTX_LANES + (uint32_t)lane;
  if (cta != w->cta) kva_ptx_reach(w, i, lane < 0 ? 0 : lane, cta, stamp);
  return (access){w, cta, i, lane < 0 ? 0 : lane, stamp, thread, true};
}

static bool conflicts(const access *a, uint32_t earlier) {
  if (ptx_stamp_thread(earlier) == ptx_stamp_thread(a->stamp) || earlier & a->stamp & PTX_STRONG) return false;
  return ptx_unordered(a->w, earlier, a->thread);
}

static void race(const access *a, uint32_t address, const char *what, uint32_t earlier, uint32_t line) {
  kva_ptx_finding *f = kva_ptx_add_finding(a->w->cta, KVA_PTX_SHARED_RACE, a->i, a->w, a->lane);
  if (!f) return;
  f->other_line = line;
  uint32_t who = ptx_stamp_thread(earlier), threads = a->cta->launch->n_warps * PTX_LANES;
  if (who >= PTX_FIRST_AGENT)
    kva_ptx_detail(f, "%s at shared address %u, %s asynchronously since line %u with no wait between", a->i->text,
                   address, what, line);
  else if (a->cta->cluster->n > 1)
    kva_ptx_detail(f,
                   "%s at shared address %u of CTA %u of the cluster, %s by thread %u of CTA %u at line %u with no "
                   "barrier between",
                   a->i->text, address, a->cta->rank, what, who % threads, who / threads, line);
  else
    kva_ptx_detail(f, "%s at shared address %u, %s by thread %u at line %u with no barrier between", a->i->text,
                   address, what, who, line);
}

static void uninitialised(const access *a, uint32_t address) {
  kva_ptx_detail(kva_ptx_add_finding(a->w->cta, KVA_PTX_SHARED_UNINITIALIZED, a->i, a->w, a->lane),
                 "%s at shared address %u, which no thread has written", a->i->text, address);
}

static bool check_proxy(const access *a, uint32_t address, const ptx_shadow *s) {
  uint32_t who = ptx_stamp_thread(s->writer);
  if (who >= PTX_FIRST_AGENT || ptx_stamp_clock(s->writer) <= a->w->before.fenced[who / PTX_LANES]) return true;
  kva_ptx_finding *f = kva_ptx_add_finding(a->w->cta, KVA_PTX_MISSING_FENCE, a->i, a->w, a->lane);
  if (!f) return false;
  f->other_line = s->writer_line;
  kva_ptx_detail(f, "%s at shared address %u, written at line %u with no fence.proxy.async between", a->i->text,
                 address, s->writer_line);
  return false;
}

/* Whether a read may see what the granule's writer left. */
static bool check_writer(const access *a, uint32_t address, const ptx_shadow *s) {
  if (ptx_stamp_clock(s->writer) <= a->cta->cluster->base_clock) {
    uninitialised(a, address);
    return false;
  }
  if (conflicts(a, s->writer)) {
    race(a, address, "written", s->writer, s->writer_line);
    return false;
  }
  return !a->async || check_proxy(a, address, s);
}

/* Whether nothing that was done to the granule may be concurrent. now: the bytes to be written; NULL: assume that they
 * differ from the present ones. */
static bool check_write(const access *a, uint32_t address, const ptx_shadow *s, const void *now) {
  size_t width = (size_t)1 << a->cta->launch->kernel->shadow_shift;
  bool unordered = conflicts(a, s->writer);
  if (unordered && (!now || memcmp(a->cta->shared + address, now, width)))
    race(a, address, "written", s->writer, s->writer_line);
  else if (conflicts(a, s->reader))
    race(a, address, "read", s->reader, s->reader_line);
  else if (conflicts(a, s->last_reader))
    race(a, address, "read", s->last_reader, s->reader_line);
  else
    return !unordered;
  return false;
}

static void check_pending(ptx_warp *w, const ptx_ins *i, int lane, const ptx_cta *cta, uint32_t address,
                          uint32_t size) {
  for (uint32_t b = 0; cta->pending && b < size; b++) {
    if (!cta->pending[address + b]) continue;
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_ASYNC_PENDING, i, w, lane),
                   "%s at shared address %u, which a cp.async that no wait covers will write", i->text, address + b);
    return;
  }
}

/* What a read finds depends on a granule's stamps alone: a neighbour with the same ones needs no second look, unless
 * there is something to report. */
static void read_all(const access *a, uint32_t address, uint32_t size) {
  ptx_cta *cta = a->cta;
  uint32_t shift = cta->launch->kernel->shadow_shift, writer = 0, reader = 0;
  bool right = false, known_reader = false, keeps_reader = false;
  for (uint32_t g = address >> shift; g << shift < address + size; g++) {
    ptx_shadow *s = &cta->shadow[g];
    if (!right || s->writer != writer) right = check_writer(a, g << shift, s);
    if (!known_reader || s->reader != reader) keeps_reader = conflicts(a, s->reader);
    writer = s->writer;
    reader = s->reader;
    known_reader = true;
    if (keeps_reader) {
      s->last_reader = a->stamp;
    } else {
      s->reader = a->stamp;
      s->reader_line = a->i->line;
    }
  }
}

/* Neighbours with the same stamps as in read_all. */
static void write_all(const access *a, uint32_t address, uint32_t size, const void *data) {
  ptx_cta *cta = a->cta;
  uint32_t shift = cta->launch->kernel->shadow_shift, writer = 0, reader = 0, last_reader = 0;
  bool ordered = false;
  for (uint32_t g = address >> shift; g << shift < address + size; g++) {
    ptx_shadow *s = &cta->shadow[g];
    const void *now = data ? (const unsigned char *)data + ((g << shift) - address) : NULL;
    if (!ordered || s->writer != writer || s->reader != reader || s->last_reader != last_reader)
      ordered = check_write(a, g << shift, s, now);
    writer = s->writer;
    reader = s->reader;
    last_reader = s->last_reader;
    s->writer = a->stamp;
    s->writer_line = a->i->line;
  }
}

void kva_ptx_race_read(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, uint32_t size) {
  ptx_cta *cta = owner_of(w, &address);
  check_pending(w, i, lane, cta, address, size);
  if (!cta->shadow) return;
  access a = by_lane(w, i, lane, cta, i->flag);
  read_all(&a, address, size);
}

void kva_ptx_race_write(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, uint32_t size, const void *data) {
  ptx_cta *cta = owner_of(w, &address);
  check_pending(w, i, lane, cta, address, size);
  if (!cta->shadow) return;
  access a = by_lane(w, i, lane, cta, i->flag);
  write_all(&a, address, size, data);
}

void kva_ptx_race_landed(ptx_warp *w, int lane, uint32_t address, uint32_t size) {
  ptx_cta *cta = w->cta;
  if (!cta->shadow) return;
  uint32_t stamp = ptx_stamp_of(w, lane, false), shift = cta->launch->kernel->shadow_shift;
  for (uint32_t g = address >> shift; g << shift < address + size; g++)
    if (ptx_stamp_thread(cta->shadow[g].writer) == ptx_stamp_thread(stamp)) cta->shadow[g].writer = stamp;
}

void kva_ptx_race_atomic(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, uint32_t size) {
  ptx_cta *cta = owner_of(w, &address);
  check_pending(w, i, lane, cta, address, size);
  if (!cta->shadow) return;
  access a = by_lane(w, i, lane, cta, true);
  uint32_t shift = cta->launch->kernel->shadow_shift;
  for (uint32_t g = address >> shift; g << shift < address + size; g++)
    if (ptx_stamp_clock(cta->shadow[g].writer) <= cta->cluster->base_clock) uninitialised(&a, g << shift);
  write_all(&a, address, size, NULL);
}

void kva_ptx_race_async_read(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, uint32_t size, uint32_t stamp) {
  ptx_cta *cta = owner_of(w, &address);
  check_pending(w, i, lane < 0 ? 0 : lane, cta, address, size);
  if (!cta->shadow) return;
  access a = by_agent(w, i, lane, cta, stamp);
  read_all(&a, address, size);
}

void kva_ptx_race_async_write(ptx_warp *w, const ptx_ins *i, int lane, uint32_t address, uint32_t size,
                              uint32_t stamp) {
  ptx_cta *cta = owner_of(w, &address);
  check_pending(w, i, lane < 0 ? 0 : lane, cta, address, size);
  if (!cta->shadow) return;
  access a = by_agent(w, i, lane, cta, stamp);
  write_all(&a, address, size, NULL);
}
