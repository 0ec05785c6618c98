/* mbarriers: arrivals, expected bytes, waits. Their state is kept outside the simulated memory, indexed by address; the
 * eight bytes themselves stay poison. A wait is one control operation: the warp stops until the phases of all its lanes
 * are complete. If nothing else can run, waits give up once and return false, as test_wait and try_wait may. If that
 * makes no progress, it is a deadlock (run.c). */
#include "runtime/ptxsim/exec.h"

#include <stdlib.h>

enum { MAX_COUNT = (1 << 20) - 1, MAX_BARRIERS = 4096 };

static void misuse(ptx_warp *w, const ptx_ins *i, int lane, const ptx_mbarrier *b, const char *what) {
  kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_MBARRIER, i, w, lane), "%s: mbarrier at shared address %u %s",
                 i->text, b->address, what);
}

/* The CTA whose shared memory *address lies in, which becomes an address in that CTA; NULL after a finding. */
static ptx_cta *to_shared(ptx_warp *w, const ptx_ins *i, int lane, uint64_t *address) {
  if (!kva_ptx_resolve(w, i, (ptx_space)i->space, lane, *address, 8, false)) return NULL;
  if (kva_ptx_is_shared(i, address)) return ptx_owner(w, address);
  kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_MBARRIER, i, w, lane), "%s at an address that is not shared",
                 i->text);
  return NULL;
}

/* The same, where only the CTA's own shared memory will do. */
static bool to_own(ptx_warp *w, const ptx_ins *i, int lane, uint64_t *address) {
  const ptx_cta *owner = to_shared(w, i, lane, address);
  if (!owner || owner == w->cta) return owner;
  kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_MBARRIER, i, w, lane), "%s of CTA %u of the cluster by CTA %u",
                 i->text, owner->rank, w->cta->rank);
  return false;
}

ptx_mbarrier *kva_ptx_mbarrier_at(ptx_cta *cta, uint64_t address) {
  uint64_t limit = cta->launch->shared_bytes;
  if (address & 7 || limit < 8 || address > limit - 8) return NULL;
  uint32_t number = cta->mbarrier_at[address / 8];
  return number ? &cta->mbarriers[number - 1] : NULL;
}

ptx_mbarrier *kva_ptx_mbarrier_find(ptx_warp *w, const ptx_ins *i, int lane, ptx_cta *owner, uint64_t address) {
  ptx_mbarrier *b = kva_ptx_mbarrier_at(owner, address);
  kva_ptx_reach(w, i, lane, owner, ptx_stamp_of(w, lane, true));
  if (!b || !b->live) {
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_MBARRIER, i, w, lane),
                   "%s: no mbarrier was initialised at shared address %llu", i->text, (unsigned long long)address);
    return NULL;
  }
  if (w->cta->shadow && ptx_unordered(w, b->init_stamp, w->number * PTX_LANES + (uint32_t)lane)) {
    kva_ptx_finding *f = kva_ptx_add_finding(w->cta, KVA_PTX_SHARED_RACE, i, w, lane);
    if (f) f->other_line = b->init_line;
    kva_ptx_detail(f, "%s: mbarrier at shared address %u, initialised at line %u with no barrier between", i->text,
                   b->address, b->init_line);
  }
  return b;
}

/* The live mbarrier that a lane's operand addresses. */
static ptx_mbarrier *named(ptx_warp *w, const ptx_ins *i, int lane, uint64_t address) {
  ptx_cta *owner = to_shared(w, i, lane, &address);
  return owner ? kva_ptx_mbarrier_find(w, i, lane, owner, address) : NULL;
}
static ptx_mbarrier *named_own(ptx_warp *w, const ptx_ins *i, int lane, uint64_t address) {
  return to_own(w, i, lane, &address) ? kva_ptx_mbarrier_find(w, i, lane, w->cta, address) : NULL;
}

static ptx_mbarrier *create(ptx_cta *cta, uint64_t address) {
  ptx_mbarrier *known = kva_ptx_mbarrier_at(cta, address);
  if (known) return known;
  if (cta->n_mbarriers == MAX_BARRIERS) return NULL;
  if (cta->n_mbarriers == cta->cap_mbarriers) {
    uint32_t cap = cta->cap_mbarriers ? 2 * cta->cap_mbarriers : 8;
    ptx_mbarrier *more = realloc(cta->mbarriers, cap * sizeof *more);
    if (!more) return NULL;
    cta->mbarriers = more;
    cta->cap_mbarriers = cap;
  }
  ptx_mbarrier *b = &cta->mbarriers[cta->n_mbarriers++];
  *b = (ptx_mbarrier){.address = (uint32_t)address};
  cta->mbarrier_at[address / 8] = (uint16_t)cta->n_mbarriers;
  return b;
}

static void init(ptx_warp *w, const ptx_ins *i, int lane, uint64_t address, uint32_t count) {
  if (!to_own(w, i, lane, &address)) return;
  ptx_mbarrier *b = create(w->cta, address);
  if (!b) {
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_MBARRIER, i, w, lane), "more than %d mbarriers", MAX_BARRIERS);
    return;
  }
  if (b->live) misuse(w, i, lane, b, "is in use: mbarrier.inval must come first");
  if (!count || count > MAX_COUNT) misuse(w, i, lane, b, "takes a count of 1 to 2^20 - 1");
  kva_ptx_race_write(w, i, lane, (uint32_t)address, 8, NULL);
  *b = (ptx_mbarrier){.address = (uint32_t)address,
                      .init_stamp = ptx_stamp_of(w, lane, false),
                      .init_line = i->line,
                      .live = true,
                      .expected = count,
                      .pending = count};
}

static void invalidate(ptx_warp *w, const ptx_ins *i, int lane, uint64_t address) {
  ptx_mbarrier *b = named_own(w, i, lane, address);
  if (!b) return;
  if (b->tx) misuse(w, i, lane, b, "still expects bytes");
  b->live = false;
}

/* ---- phases ------------------------------------------------------------------------------------------------------ */

static void complete(ptx_mbarrier *b) {
  if (b->pending || b->tx) return;
  b->done = b->coming;
  b->pending = b->expected;
  b->phase++;
}

void kva_ptx_mbarrier_arrive(ptx_warp *w, const ptx_ins *i, int lane, ptx_mbarrier *b, uint32_t count) {
  w->cta->progress++;
  if (!count || count > b->pending) {
    misuse(w, i, lane, b, count ? "gets more arrivals than its phase expects" : "gets an arrival that counts 0");
    count = b->pending;
  }
  b->pending -= count;
  complete(b);
}

void kva_ptx_mbarrier_complete_tx(ptx_cta *cta, ptx_mbarrier *b, int64_t bytes) {
  cta->progress++;
  b->tx -= bytes;
  complete(b);
}

static void expect_tx(ptx_warp *w, const ptx_ins *i, int lane, ptx_mbarrier *b, uint32_t bytes) {
  b->tx += bytes;
  b->tx_line = i->line;
  if (b->tx > MAX_COUNT) misuse(w, i, lane, b, "expects more than 2^20 - 1 bytes");
}

static void put_state(ptx_warp *w, const ptx_ins *i, int lane, const ptx_mbarrier *b) {
  if (i->dst != PTX_NONE) ptx_reg64(w, i->dst)[lane] = (uint64_t)b->phase << 32 | b->pending;
}

/* The arrivals of one instruction are one release: all lanes publish the same clock. */
static void arrive_lanes(ptx_warp *w, const ptx_ins *i, const uint64_t *a, uint32_t mask) {
  uint32_t clock = w->clock;
  const ptx_mbarrier *last = NULL;
  for (uint32_t m = mask; m; m &= m - 1) {
    int lane = ptx_first(m);
    ptx_mbarrier *b = named(w, i, lane, a[lane]);
    if (!b) continue;
    if (b != last) {
      w->clock = clock;
      kva_ptx_clocks_release(w, &b->coming, mask);
    }
    last = b;
    put_state(w, i, lane, b);
    uint32_t amount = i->src[1] == PTX_NONE ? 1 : ptx_reg32(w, i->src[1])[lane];
    if (i->sub == PTX_MBARRIER_ARRIVE_TX) expect_tx(w, i, lane, b, amount);
    kva_ptx_mbarrier_arrive(w, i, lane, b, i->sub == PTX_MBARRIER_ARRIVE ? amount : 1);
  }
}

void kva_ptx_exec_mbarrier(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint64_t a[PTX_LANES];
  kva_ptx_addresses(w, i->src[0], i->imm, a);
  if (i->sub == PTX_MBARRIER_ARRIVE || i->sub == PTX_MBARRIER_ARRIVE_TX) {
    arrive_lanes(w, i, a, mask);
    return;
  }
  for (uint32_t m = mask; m; m &= m - 1) {
    int lane = ptx_first(m);
    uint32_t amount = i->src[1] == PTX_NONE ? 0 : ptx_reg32(w, i->src[1])[lane];
    ptx_mbarrier *b = NULL;
    if (i->sub == PTX_MBARRIER_INIT)
      init(w, i, lane, a[lane], amount);
    else if (i->sub == PTX_MBARRIER_INVAL)
      invalidate(w, i, lane, a[lane]);
    else if ((b = named(w, i, lane, a[lane])) && i->sub == PTX_MBARRIER_EXPECT_TX)
      expect_tx(w, i, lane, b, amount);
    else if (b && i->sub == PTX_MBARRIER_COMPLETE_TX)
      kva_ptx_mbarrier_complete_tx(w->cta, b, amount);
  }
}

/* cp.async.mbarrier.arrive: each lane arrives once its preceding copies are complete. Without .noinc the instruction
 * first increments the pending count, so that the arrival leaves it unchanged. */
void kva_ptx_exec_copy_arrive(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint64_t a[PTX_LANES];
  kva_ptx_addresses(w, i->src[0], i->imm, a);
  for (uint32_t m = mask; m; m &= m - 1) {
    uint64_t address = a[ptx_first(m)];
    if (to_own(w, i, ptx_first(m), &address)) kva_ptx_copies_arrive(w, i, ptx_first(m), (uint32_t)address);
  }
}

/* ---- waits ------------------------------------------------------------------------------------------------------- */

/* Whether the phase that a lane waits for is complete; the phase is given by parity or by the state that an arrival
 * returned. */
static bool is_over(const ptx_warp *w, const ptx_ins *i, int lane, const ptx_mbarrier *b) {
  if (i->flag2) return (b->phase & 1) != (ptx_reg32(w, i->src[1])[lane] & 1);
  return b->phase != (uint32_t)(ptx_reg64(w, i->src[1])[lane] >> 32);
}

/* The lanes whose phases are complete. */
static uint32_t ready_lanes(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint64_t a[PTX_LANES];
  uint32_t ready = 0;
  kva_ptx_addresses(w, i->src[0], i->imm, a);
  for (uint32_t m = mask; m; m &= m - 1) {
    int lane = ptx_first(m);
    const ptx_mbarrier *b = named_own(w, i, lane, a[lane]);
    if (!b || is_over(w, i, lane, b)) ready |= 1u << lane;
  }
  return ready;
}

static void resume(ptx_warp *w, const ptx_ins *i, uint32_t ready, uint32_t mask) {
  uint64_t a[PTX_LANES];
  kva_ptx_addresses(w, i->src[0], i->imm, a);
  w->wait = PTX_READY;
  ptx_set_pred(w, i->dst, ready, mask);
  const ptx_mbarrier *last = NULL;
  for (uint32_t m = ready; m; m &= m - 1) {
    uint64_t address = a[ptx_first(m)];
    kva_ptx_is_shared(i, &address);
    const ptx_mbarrier *b = ptx_owner(w, &address) == w->cta ? kva_ptx_mbarrier_at(w->cta, address) : NULL;
    if (b && b != last) kva_ptx_clocks_join(&w->before, &b->done);
    last = b;
  }
}

bool kva_ptx_mbarrier_wait(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint32_t ready = ready_lanes(w, i, mask);
  if (ready == mask) {
    resume(w, i, ready, mask);
    return false;
  }
  w->wait = PTX_AT_MBARRIER;
  w->wait_mask = mask;
  w->at = i;
  return true;
}

bool kva_ptx_release_mbarriers(ptx_cta *cta, bool give_up) {
  bool woke = false;
  for (uint32_t k = 0; k < cta->launch->n_warps; k++) {
    ptx_warp *w = &cta->warps[k];
    if (w->wait != PTX_AT_MBARRIER) continue;
    uint32_t ready = ready_lanes(w, w->at, w->wait_mask);
    if (ready != w->wait_mask && !give_up) continue;
    resume(w, w->at, ready, w->wait_mask);
    woke = true;
  }
  return woke;
}

/* ---- fences, exit ------------------------------------------------------------------------------------------------ */

/* fence.mbarrier_init and fence.proxy.async make this warp's initialisations visible to the async proxy. */
void kva_ptx_mbarrier_fence(ptx_warp *w) {
  for (uint32_t k = 0; k < w->cta->n_mbarriers; k++) {
    ptx_mbarrier *b = &w->cta->mbarriers[k];
    if (ptx_stamp_thread(b->init_stamp) / PTX_LANES == w->number) b->fenced = true;
  }
}

void kva_ptx_mbarrier_check_exit(ptx_cta *cta) {
  for (uint32_t k = 0; k < cta->n_mbarriers; k++) {
    const ptx_mbarrier *b = &cta->mbarriers[k];
    if (!b->live || !b->tx) continue;
    ptx_ins at = {.line = b->tx_line ? b->tx_line : b->init_line, .text = "mbarrier"};
    kva_ptx_detail(kva_ptx_add_finding(cta, KVA_PTX_TX_LEAK, &at, &cta->warps[0], -1),
                   "the mbarrier at shared address %u ends with %lld bytes to come", b->address, (long long)b->tx);
  }
}
