/* CTA barriers: bar and barrier with sync, arrive, red; 16 of them, with or without a thread count. A warp counts as 32
 * threads, as on the hardware. Without a count, all warps that have not exited are expected. */
#include "runtime/ptxsim/exec.h"

static uint32_t expected_threads(const ptx_cta *cta, const ptx_barrier *b) {
  if (b->expected) return b->expected;
  uint32_t live = 0;
  for (uint32_t k = 0; k < cta->launch->n_warps; k++) live += cta->warps[k].wait != PTX_EXITED;
  return live * PTX_LANES;
}

static bool check_operands(ptx_warp *w, const ptx_ins *i, uint32_t mask, uint32_t id, uint32_t count) {
  const uint32_t *ids = ptx_reg32(w, i->src[0]);
  bool same = true;
  for (uint32_t m = mask; m; m &= m - 1) same &= ids[ptx_first(m)] == id;
  if (id >= PTX_N_BARRIERS || !same) {
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_OPERAND, i, w, ptx_first(mask)),
                   same ? "barrier %u: there are 16" : "barrier %u: another lane names another barrier", id);
    return false;
  }
  uint32_t most = w->cta->launch->n_warps * PTX_LANES;
  if (count % PTX_LANES == 0 && count <= most) return true;
  kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_BARRIER_COUNT, i, w, ptx_first(mask)),
                 "barrier %u with %u threads: a multiple of 32 up to %u is needed", id, count, most);
  return false;
}

static void check_convergence(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  if (mask == w->live) return;
  kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_DIVERGENT_BARRIER, i, w, ptx_first(mask)),
                 "%s is run by lanes 0x%08x of 0x%08x", i->text, mask, w->live);
}

static void reduce(ptx_barrier *b, uint32_t yes, uint32_t mask) {
  b->reduce_count += (uint32_t)__builtin_popcount(yes & mask);
  b->reduce_some_not |= (~yes & mask) != 0;
}

bool kva_ptx_arrive(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  int first = ptx_first(mask);
  uint32_t id = ptx_reg32(w, i->src[0])[first], count = i->src[1] == PTX_NONE ? 0 : ptx_reg32(w, i->src[1])[first];
  check_convergence(w, i, mask);
  if (!check_operands(w, i, mask, id, count)) {
    w->cta->stopped = true;
    return true;
  }
  ptx_barrier *b = &w->cta->barriers[id];
  if (b->arrived && b->expected != count)
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_BARRIER_COUNT, i, w, first),
                   "barrier %u with %u threads, where others that wait expect %u (0: all)", id, count, b->expected);
  b->expected = count;
  b->arrived += PTX_LANES;
  w->cta->progress++;
  kva_ptx_clocks_release(w, &b->before, w->live);
  if (i->sub == PTX_BAR_ARRIVE) return false;
  if (i->sub != PTX_BAR_SYNC) reduce(b, ptx_pred(w, i->src[2]), mask);
  w->wait = PTX_AT_BARRIER;
  w->barrier = id;
  w->wait_mask = mask;
  w->at = i;
  return true;
}

static void leave(ptx_warp *w, const ptx_barrier *b) {
  const ptx_ins *i = w->at;
  w->wait = PTX_READY;
  kva_ptx_clocks_join(&w->before, &b->before);
  if (i->sub == PTX_BAR_RED_POPC) {
    uint32_t *d = ptx_reg32(w, i->dst);
    for (int l = 0; l < PTX_LANES; l++) d[l] = w->wait_mask >> l & 1 ? b->reduce_count : d[l];
  } else if (i->sub != PTX_BAR_SYNC) {
    bool value = i->sub == PTX_BAR_RED_AND ? !b->reduce_some_not : b->reduce_count > 0;
    ptx_set_pred(w, i->dst, value ? PTX_ALL : 0, w->wait_mask);
  }
}

static bool release(ptx_cta *cta, uint32_t id) {
  ptx_barrier *b = &cta->barriers[id];
  if (!b->arrived) return false;
  uint32_t expected = expected_threads(cta, b);
  bool woke = false;
  if (b->arrived < expected) return false;
  for (uint32_t k = 0; k < cta->launch->n_warps; k++) {
    ptx_warp *w = &cta->warps[k];
    if (w->wait != PTX_AT_BARRIER || w->barrier != id) continue;
    if (b->arrived > expected)
      kva_ptx_detail(kva_ptx_add_finding(cta, KVA_PTX_BARRIER_COUNT, w->at, w, -1),
                     "%u threads arrived at barrier %u, which takes %u", b->arrived, id, expected);
    leave(w, b);
    woke = true;
  }
  *b = (ptx_barrier){0};
  return woke;
}

bool kva_ptx_release_barriers(ptx_cta *cta) {
  bool woke = false;
  for (uint32_t id = 0; id < PTX_N_BARRIERS; id++) woke |= release(cta, id);
  return woke;
}

void kva_ptx_exec_proxy_fence(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  (void)i, (void)mask;
  kva_ptx_clocks_proxy_fence(w);
  kva_ptx_mbarrier_fence(w);
}
void kva_ptx_exec_mbarrier_fence(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  (void)i, (void)mask;
  kva_ptx_mbarrier_fence(w);
}
