/* The happens-before order of the accesses of a cluster, mostly one CTA: vector clocks (Flanagan, Freund: FastTrack,
 * 2009) over warps and asynchronous agents.
 *
 * Every warp has a clock, which its releases (barriers, arrivals) advance. A bulk copy or a wgmma group is an agent.
 * Its accesses are ordered before others only through its completion: the phase of an mbarrier, or a wait for its
 * group. Agents reuse 64 ids in turn, each with its own clock, so a missing wait is hidden only by the completion of
 * the agent 64 later.
 *
 * If one lane of a warp releases (an elected thread arrives at an mbarrier), only its own accesses become ordered, not
 * those of its neighbours since the last bar.warp.sync: `some_seen` with `some_lanes`. Orders that cannot be
 * represented count as established: races can be missed, but none are invented. Acquires hold for the whole warp.
 *
 * Clocks continue from cluster to cluster, so that stamps of earlier ones are ordered before everything. */
#include "runtime/ptxsim/exec.h"

static const uint32_t most_clock = (1u << (32 - PTX_CLOCK_SHIFT)) - 1;

static void forget_accesses(ptx_cluster *cluster) {
  const ptx_launch *launch = cluster->launch;
  for (uint32_t c = 0; c < cluster->n; c++) {
    ptx_shadow *shadow = cluster->ctas[c].shadow;
    if (shadow) memset(shadow, 0, sizeof *shadow * ((launch->shared_bytes >> launch->kernel->shadow_shift) + 1));
  }
}

static void begin_warp(ptx_warp *w) {
  const ptx_cluster *cluster = w->cta->cluster;
  w->clock = cluster->top_clock;
  memset(&w->before, 0, sizeof w->before);
  for (uint32_t j = 0; j < PTX_N_CLOCKS; j++) w->before.seen[j] = cluster->base_clock;
  for (uint32_t j = 0; j < PTX_MAX_WARPS; j++) w->before.fenced[j] = cluster->base_clock;
}

void kva_ptx_clocks_begin(ptx_cluster *cluster) {
  if (cluster->top_clock > most_clock / 2) {
    forget_accesses(cluster);
    cluster->top_clock = 0;
  }
  cluster->base_clock = cluster->top_clock;
  cluster->top_clock++;
  cluster->next_agent = 0;
  for (uint32_t a = 0; a < PTX_N_AGENTS; a++) cluster->agent_clocks[a] = cluster->base_clock;
  for (uint32_t c = 0; c < cluster->n; c++)
    for (uint32_t k = 0; k < cluster->launch->n_warps; k++) begin_warp(&cluster->ctas[c].warps[k]);
}

/* At the last representable clock all accesses count as ordered. */
static void advance(ptx_warp *w) {
  uint32_t *top = &w->cta->cluster->top_clock;
  if (w->clock < most_clock) w->clock++;
  if (w->clock > *top) *top = w->clock;
}

void kva_ptx_clocks_warp_sync(ptx_warp *w) {
  w->before.seen[w->number] = w->clock;
  advance(w);
}

static void raise_to(uint32_t *clock, uint32_t to) {
  if (to > *clock) *clock = to;
}

/* Only one set of lanes can be kept; two different sets become the whole warp. */
static void join_lanes(ptx_clocks *to, uint32_t warp, uint32_t clock, uint32_t lanes) {
  if (!lanes || clock <= to->seen[warp]) return;
  uint32_t have = to->some_seen[warp] > to->seen[warp] ? to->some_lanes[warp] : 0;
  if (!have || (!(have & ~lanes) && clock >= to->some_seen[warp])) {
    to->some_seen[warp] = clock;
    to->some_lanes[warp] = lanes;
  } else if (clock == to->some_seen[warp]) {
    to->some_lanes[warp] |= lanes;
  } else if (lanes & ~have || clock > to->some_seen[warp]) {
    raise_to(&to->seen[warp], clock > to->some_seen[warp] ? clock : to->some_seen[warp]);
  }
}

void kva_ptx_clocks_join(ptx_clocks *to, const ptx_clocks *from) {
  for (int k = 0; k < PTX_N_CLOCKS; k++) to->seen[k] = from->seen[k] > to->seen[k] ? from->seen[k] : to->seen[k];
  for (int k = 0; k < PTX_MAX_WARPS; k++)
    to->fenced[k] = from->fenced[k] > to->fenced[k] ? from->fenced[k] : to->fenced[k];
  for (uint32_t k = 0; k < PTX_MAX_WARPS; k++) join_lanes(to, k, from->some_seen[k], from->some_lanes[k]);
}

void kva_ptx_clocks_release(ptx_warp *w, ptx_clocks *to, uint32_t mask) {
  kva_ptx_clocks_join(to, &w->before);
  if (mask == w->live)
    raise_to(&to->seen[w->number], w->clock);
  else
    join_lanes(to, w->number, w->clock, mask);
  advance(w);
}

void kva_ptx_clocks_proxy_fence(ptx_warp *w) {
  for (uint32_t k = 0; k < PTX_MAX_WARPS; k++) {
    uint32_t known = w->before.seen[k];
    if (w->before.some_lanes[k]) raise_to(&known, w->before.some_seen[k]);
    raise_to(&w->before.fenced[k], known);
  }
  w->before.fenced[w->number] = w->clock;
  advance(w);
}

uint32_t kva_ptx_agent_begin(ptx_cluster *cluster) {
  uint32_t agent = cluster->next_agent++ % PTX_N_AGENTS, *clock = &cluster->agent_clocks[agent];
  if (*clock < most_clock) ++*clock;
  raise_to(&cluster->top_clock, *clock);
  return *clock << PTX_CLOCK_SHIFT | (PTX_FIRST_AGENT + agent);
}

void kva_ptx_agent_end(ptx_clocks *to, uint32_t stamp) {
  raise_to(&to->seen[PTX_MAX_WARPS + ptx_stamp_thread(stamp) - PTX_FIRST_AGENT], ptx_stamp_clock(stamp));
}
