/* Clusters: CTAs that run at once, have a barrier in common, and reach each other's shared memory.
 *
 * An address of shared memory with bits from PTX_RANK_SHIFT up lies in the window of the cluster: these bits are the
 * rank of a CTA plus 1, the others an address in that CTA. Addresses without such bits are the CTA's own.
 *
 * A CTA may end only when the last access to it by another CTA has happened, and is accessed only when it has started.
 * Both are judged by the happens-before order, not by the simulated one: some warp of the accessed CTA must have
 * released something that the accessing one acquired, and acquired something that it released afterwards. */
#include "runtime/ptxsim/exec.h"

/* ---- addresses --------------------------------------------------------------------------------------------------- */

void kva_ptx_exec_mapa(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  const uint32_t *rank = ptx_reg32(w, i->src[1]);
  for (uint32_t m = mask; m; m &= m - 1) {
    int lane = ptx_first(m);
    uint64_t a = i->flag2 ? ptx_reg64(w, i->src[0])[lane] : ptx_reg32(w, i->src[0])[lane];
    if (rank[lane] >= w->cta->cluster->n)
      kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_OPERAND, i, w, lane), "%s: CTA %u of a cluster of %u", i->text,
                     rank[lane], w->cta->cluster->n);
    uint64_t window = i->flag2 ? a >> PTX_WINDOW_SHIFT << PTX_WINDOW_SHIFT : 0;
    uint64_t mapped = window | (uint64_t)(rank[lane] + 1) << PTX_RANK_SHIFT | (a & ((1u << PTX_RANK_SHIFT) - 1));
    if (i->flag2)
      ptx_reg64(w, i->dst)[lane] = mapped;
    else
      ptx_reg32(w, i->dst)[lane] = (uint32_t)mapped;
  }
}

void kva_ptx_exec_ctarank(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  for (uint32_t m = mask; m; m &= m - 1) {
    int lane = ptx_first(m);
    uint64_t a = i->flag2 ? ptx_reg64(w, i->src[0])[lane] : ptx_reg32(w, i->src[0])[lane];
    a &= (UINT64_C(1) << PTX_WINDOW_SHIFT) - 1;
    const ptx_cta *owner = ptx_owner(w, &a);
    ptx_reg32(w, i->dst)[lane] = owner ? owner->rank : PTX_NONE;
  }
}

/* ---- whether a CTA runs ------------------------------------------------------------------------------------------ */

static uint32_t clock_index(uint32_t stamp) {
  uint32_t who = ptx_stamp_thread(stamp);
  return who >= PTX_FIRST_AGENT ? PTX_MAX_WARPS + who - PTX_FIRST_AGENT : who / PTX_LANES;
}

/* Whether w knows of accesses up to this clock; those of some lanes stand for their warp. */
static bool knows(const ptx_warp *w, uint32_t index, uint32_t clock) {
  return w->before.seen[index] >= clock || (index < PTX_MAX_WARPS && w->before.some_seen[index] >= clock);
}

static bool has_started(const ptx_warp *w, const ptx_cta *owner) {
  for (uint32_t k = 0; k < owner->launch->n_warps; k++)
    if (knows(w, owner->warps[k].number, owner->cluster->base_clock + 1)) return true;
  return false;
}

void kva_ptx_reach(ptx_warp *w, const ptx_ins *i, int lane, ptx_cta *owner, uint32_t stamp) {
  if (owner == w->cta || !owner->shadow) return;
  if (!has_started(w, owner))
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_CLUSTER, i, w, lane),
                   "%s reaches CTA %u of the cluster, which may not have started", i->text, owner->rank);
  ptx_reached *r = &owner->reached[clock_index(stamp)];
  *r = (ptx_reached){ptx_stamp_clock(stamp), i, w};
}

static void check_reached(const ptx_cta *owner, uint32_t index) {
  const ptx_reached *r = &owner->reached[index];
  for (uint32_t k = 0; k < owner->launch->n_warps; k++)
    if (knows(&owner->warps[k], index, r->clock)) return;
  kva_ptx_detail(kva_ptx_add_finding(r->from->cta, KVA_PTX_CLUSTER, r->by, r->from, -1),
                 "%s reaches CTA %u of the cluster, which may have ended: none of its waits covers this", r->by->text,
                 owner->rank);
}

void kva_ptx_cluster_check_exit(ptx_cluster *cluster) {
  for (uint32_t c = 0; c < cluster->n; c++)
    for (uint32_t k = 0; k < PTX_N_CLOCKS; k++)
      if (cluster->ctas[c].reached[k].by) check_reached(&cluster->ctas[c], k);
}

/* ---- the barrier ------------------------------------------------------------------------------------------------- */

static void check_convergence(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  if (!i->flag || mask == w->live) return;
  kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_DIVERGENT_BARRIER, i, w, ptx_first(mask)),
                 "%s is run by lanes 0x%08x of 0x%08x", i->text, mask, w->live);
}

static void misuse(ptx_warp *w, const ptx_ins *i, uint32_t lanes, const char *what) {
  if (!lanes) return;
  kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_BARRIER_COUNT, i, w, ptx_first(lanes)), "%s: lanes 0x%08x %s",
                 i->text, lanes, what);
}

void kva_ptx_exec_cluster_arrive(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  check_convergence(w, i, mask);
  misuse(w, i, mask & (w->cluster_arrived | w->cluster_passed), "arrive twice with no wait between");
  w->cluster_arrived |= mask & ~w->cluster_passed;
  w->cta->progress++;
  if (!i->flag2) kva_ptx_clocks_release(w, &w->cta->cluster->coming, mask);
}

static void leave(ptx_warp *w, uint32_t mask) {
  w->cluster_passed &= ~mask;
  w->wait = PTX_READY;
  kva_ptx_clocks_join(&w->before, &w->cta->cluster->done);
}

bool kva_ptx_cluster_wait(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  check_convergence(w, i, mask);
  misuse(w, i, mask & ~(w->cluster_arrived | w->cluster_passed), "wait, but have not arrived");
  mask &= w->cluster_arrived | w->cluster_passed;
  if (!(mask & ~w->cluster_passed)) {
    leave(w, mask);
    return false;
  }
  w->wait = PTX_AT_CLUSTER;
  w->wait_mask = mask;
  w->at = i;
  return true;
}

typedef bool (*warp_test)(ptx_warp *w);

static bool any_warp(ptx_cluster *cluster, warp_test f) {
  bool any = false;
  for (uint32_t c = 0; c < cluster->n; c++)
    for (uint32_t k = 0; k < cluster->launch->n_warps; k++) any |= f(&cluster->ctas[c].warps[k]);
  return any;
}

static bool has_arrived(ptx_warp *w) {
  return w->cluster_arrived != 0;
}
static bool is_missing(ptx_warp *w) {
  return w->wait != PTX_EXITED && w->live & ~w->cluster_arrived;
}
static bool pass(ptx_warp *w) {
  w->cluster_passed |= w->cluster_arrived;
  w->cluster_arrived = 0;
  return true;
}
static bool wake(ptx_warp *w) {
  if (w->wait != PTX_AT_CLUSTER || w->wait_mask & ~w->cluster_passed) return false;
  leave(w, w->wait_mask);
  return true;
}

bool kva_ptx_release_cluster(ptx_cluster *cluster) {
  if (any_warp(cluster, has_arrived) && !any_warp(cluster, is_missing)) {
    any_warp(cluster, pass);
    cluster->done = cluster->coming;
    memset(&cluster->coming, 0, sizeof cluster->coming);
  }
  return any_warp(cluster, wake);
}
