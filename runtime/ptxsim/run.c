/* Runs the warps of a cluster's CTAs. A warp keeps a stack of divergence levels. A divergent branch leaves a level that
 * waits at the branch's immediate post-dominator and pushes one for each side. A level that reaches its reconvergence
 * point is popped. Levels with the same reconvergence point share it. */
#include "runtime/ptxsim/exec.h"

enum { SLICE = 1 << 14 }; /* instructions before another warp gets a turn; needed by spinning warps */

static void exit_lanes(ptx_warp *w, uint32_t lanes) {
  for (uint32_t k = 0; k < w->depth; k++) w->levels[k].mask &= ~lanes;
  w->live &= ~lanes;
}

static void push(ptx_warp *w, uint32_t pc, uint32_t reconverge, uint32_t mask) {
  if (pc == reconverge || !mask) return;
  KVA_ASSERT(w->depth < PTX_MAX_LEVELS);
  w->levels[w->depth++] = (ptx_level){pc, reconverge, mask};
}

/* Moves the level to the reconvergence point, unless the level below already waits there. */
static void open_levels(ptx_warp *w, const ptx_ins *i) {
  ptx_level *top = &w->levels[w->depth - 1];
  w->cta->counters.divergent_branches++;
  if (top->reconverge == i->reconverge)
    w->depth--;
  else
    top->pc = i->reconverge;
}

static void branch(ptx_warp *w, const ptx_ins *i, uint32_t taken) {
  ptx_level *top = &w->levels[w->depth - 1];
  uint32_t mask = top->mask, next = top->pc + 1;
  w->cta->counters.branches++;
  if (!taken || taken == mask) {
    top->pc = taken ? i->target : next;
    return;
  }
  if (i->flag)
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_OPERAND, i, w, ptx_first(taken)),
                   "bra.uni taken by lanes 0x%08x of 0x%08x", taken, mask);
  open_levels(w, i);
  push(w, next, i->reconverge, mask & ~taken);
  push(w, i->target, i->reconverge, taken);
}

static void branch_table(ptx_warp *w, const ptx_ins *i, uint32_t lanes) {
  const uint32_t *index = ptx_reg32(w, i->src[0]);
  uint32_t rest = w->levels[w->depth - 1].mask & ~lanes, next = w->levels[w->depth - 1].pc + 1;
  w->cta->counters.branches++;
  open_levels(w, i);
  push(w, next, i->reconverge, rest);
  while (lanes) {
    uint32_t k = index[ptx_first(lanes)], same = 0;
    for (uint32_t m = lanes; m; m &= m - 1) same |= (uint32_t)(index[ptx_first(m)] == k) << ptx_first(m);
    if (k < (uint64_t)i->imm) {
      push(w, i->list[k], i->reconverge, same);
    } else {
      kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_OPERAND, i, w, ptx_first(same)), "index %u of %lld targets", k,
                     (long long)i->imm);
      exit_lanes(w, same);
    }
    lanes &= ~same;
  }
}

/* Pops finished levels; false if none is left. */
static bool settle(ptx_warp *w) {
  while (w->depth) {
    const ptx_level *top = &w->levels[w->depth - 1];
    if (top->mask && top->pc != top->reconverge) return true;
    w->depth--;
  }
  w->wait = PTX_EXITED;
  return false;
}

static bool waits(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  switch (i->op) {
  case PTX_OP_MBARRIER: return kva_ptx_mbarrier_wait(w, i, mask);
  case PTX_OP_SETMAXNREG: return kva_ptx_setmaxnreg(w, i, mask);
  case PTX_OP_WGMMA_WAIT: return kva_ptx_wgmma_wait(w, i, mask);
  case PTX_OP_CLUSTER_WAIT: return kva_ptx_cluster_wait(w, i, mask);
  default: return kva_ptx_arrive(w, i, mask);
  }
}

/* Executes operations other than PTX_OP_EXEC. Returns false if the warp must stop here. */
static bool control(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  ptx_level *top = &w->levels[w->depth - 1];
  switch (i->op) {
  case PTX_OP_BRANCH: branch(w, i, mask); return settle(w);
  case PTX_OP_BRANCH_TABLE:
    if (mask)
      branch_table(w, i, mask);
    else
      top->pc++;
    return settle(w);
  case PTX_OP_EXIT:
    top->pc++;
    exit_lanes(w, mask);
    return settle(w);
  default:
    top->pc++;
    if (mask && waits(w, i, mask)) return false;
    return settle(w);
  }
}

static void run_warp(ptx_warp *w, uint64_t slice) {
  ptx_cta *cta = w->cta;
  const ptx_ins *ins = cta->launch->kernel->ins;
  if (!settle(w)) return;
  w->polled = false;
  ptx_level *top = &w->levels[w->depth - 1];
  uint64_t end = w->steps + slice;
  while (w->steps < end && !cta->stopped && !w->polled) {
    uint32_t pc = top->pc, mask = top->mask;
    const ptx_ins *i = &ins[pc];
    if (i->guard != PTX_NONE) mask &= ptx_pred(w, i->guard);
    cta->executed[pc].warps++;
    cta->executed[pc].threads += ptx_count(mask);
    w->steps++;
    if (w->written && mask) kva_ptx_wgmma_check(w, i);
    if (i->op != PTX_OP_EXEC) {
      if (!control(w, i, mask)) return;
      top = &w->levels[w->depth - 1];
      continue;
    }
    if (mask) i->exec(w, i, mask);
    top->pc = pc + 1;
    if (top->pc == top->reconverge) {
      if (!settle(w)) return;
      top = &w->levels[w->depth - 1];
    }
  }
}

/* ---- running a cluster ------------------------------------------------------------------------------------------- */

static uint32_t draw(ptx_cta *cta, uint32_t n) {
  cta->random = cta->random * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((cta->random >> 33) % n);
}

/* Gives one turn to every warp that can run; false: none could. */
static bool run_round(ptx_cta *cta) {
  uint32_t n = cta->launch->n_warps;
  bool shuffled = cta->launch->options.schedule_seed != 0, ran = false;
  uint32_t first = shuffled ? draw(cta, n) : 0, stride = shuffled && n > 1 && draw(cta, 2) ? n - 1 : 1;
  for (uint32_t k = 0; k < n && !cta->stopped; k++) {
    ptx_warp *w = &cta->warps[(first + (uint64_t)k * stride) % n];
    if (w->wait != PTX_READY) continue;
    uint64_t before = w->steps;
    run_warp(w, shuffled ? 1 + draw(cta, 64) : SLICE);
    cta->steps += w->steps - before;
    ran = true;
  }
  return ran;
}

static void report_wait(ptx_cta *cta, const ptx_warp *w, kva_ptx_finding *f) {
  if (w->wait == PTX_AT_BARRIER) {
    kva_ptx_detail(f, "warp %u waits for ever at barrier %u, where %u threads have arrived", w->id, w->barrier,
                   cta->barriers[w->barrier].arrived);
    return;
  }
  if (w->wait == PTX_AT_REGISTERS) {
    kva_ptx_detail(f, "warp %u waits for ever for registers; %u are free", w->id, cta->free_registers);
    return;
  }
  if (w->wait == PTX_AT_WGMMA) {
    kva_ptx_detail(f, "warp %u waits for ever for products that other warps of its warpgroup did not commit", w->id);
    return;
  }
  if (w->wait == PTX_AT_CLUSTER) {
    kva_ptx_detail(f, "warp %u waits for ever for threads of the cluster that do not arrive", w->id);
    return;
  }
  uint64_t a[PTX_LANES];
  kva_ptx_addresses(w, w->at->src[0], w->at->imm, a);
  uint64_t address = a[ptx_first(w->wait_mask)];
  kva_ptx_is_shared(w->at, &address);
  const ptx_mbarrier *b = kva_ptx_mbarrier_at(cta, address);
  if (!b) return;
  kva_ptx_detail(f,
                 "warp %u waits for ever at the mbarrier at shared address %u: phase %u lacks %u arrivals, %lld bytes",
                 w->id, b->address, b->phase, b->pending, (long long)b->tx);
}

static void report_deadlock(ptx_cta *cta) {
  for (uint32_t k = 0; k < cta->launch->n_warps; k++) {
    const ptx_warp *w = &cta->warps[k];
    if (w->wait == PTX_READY || w->wait == PTX_EXITED) continue;
    report_wait(cta, w, kva_ptx_add_finding(cta, KVA_PTX_DEADLOCK, w->at, w, -1));
  }
}

static void report_running(ptx_cta *cta, kva_ptx_finding_kind kind, const char *what) {
  for (uint32_t k = 0; k < cta->launch->n_warps; k++) {
    const ptx_warp *w = &cta->warps[k];
    if (w->wait != PTX_READY || !w->depth) continue;
    const ptx_ins *i = &cta->launch->kernel->ins[w->levels[w->depth - 1].pc];
    kva_ptx_detail(kva_ptx_add_finding(cta, kind, i, w, -1), "warp %u %s after %llu instructions", k, what,
                   (unsigned long long)w->steps);
  }
}

void kva_ptx_report_polling(ptx_cluster *cluster) {
  for (uint32_t c = 0; c < cluster->n; c++)
    report_running(&cluster->ctas[c], KVA_PTX_DEADLOCK, "polls global memory here, which no other CTA will write,");
}

typedef bool (*cta_test)(ptx_cta *cta);

/* Calls f for every CTA; whether any was true. */
static bool any_cta(ptx_cluster *cluster, cta_test f) {
  bool any = false;
  for (uint32_t c = 0; c < cluster->n; c++) any |= f(&cluster->ctas[c]);
  return any;
}

static bool is_running(ptx_cta *cta) {
  for (uint32_t k = 0; k < cta->launch->n_warps; k++)
    if (cta->warps[k].wait != PTX_EXITED) return true;
  return false;
}

static bool was_stopped(ptx_cta *cta) {
  return cta->stopped;
}

static bool release_all(ptx_cta *cta) {
  bool woke = kva_ptx_release_barriers(cta);
  woke |= kva_ptx_release_mbarriers(cta, false);
  woke |= kva_ptx_release_wgmma(cta);
  return kva_ptx_release_registers(cta) || woke;
}

static bool give_up_mbarriers(ptx_cta *cta) {
  return kva_ptx_release_mbarriers(cta, true);
}

static uint64_t progress_of(const ptx_cluster *cluster) {
  uint64_t sum = 0;
  for (uint32_t c = 0; c < cluster->n; c++) sum += cluster->ctas[c].progress;
  return sum;
}

static bool land_one(ptx_cluster *cluster) {
  for (uint32_t c = 0; c < cluster->n; c++)
    if (kva_ptx_bulk_land_one(&cluster->ctas[c])) return true;
  return false;
}

/* Nothing can run: the next asynchronous copy lands, or mbarrier waits return false. Retries a few times without
 * progress, since a warp may test one mbarrier and then wait at another. Returns false for a deadlock. */
static bool help(ptx_cluster *cluster) {
  enum { MAX_STALLS = 4 };
  if (land_one(cluster)) return true;
  uint64_t progress = progress_of(cluster);
  if (progress != cluster->progress) cluster->n_stalls = 0;
  cluster->progress = progress;
  return cluster->n_stalls++ < MAX_STALLS && any_cta(cluster, give_up_mbarriers);
}

static void check_cta_exit(ptx_cta *cta) {
  kva_ptx_bulk_check_exit(cta);
  kva_ptx_copies_check_exit(cta);
  kva_ptx_mbarrier_check_exit(cta);
  kva_ptx_wgmma_check_exit(cta);
  kva_ptx_registers_check_exit(cta);
}

static void check_exit(ptx_cluster *cluster) {
  while (land_one(cluster)) continue;
  for (uint32_t c = 0; c < cluster->n; c++) check_cta_exit(&cluster->ctas[c]);
  kva_ptx_cluster_check_exit(cluster);
}

static bool has_polled(ptx_cta *cta) {
  return cta->polled;
}

static bool went_on(ptx_cta *cta) {
  return cta->went_on;
}

/* Whether a warp can run that did not poll. */
static bool can_go_on(ptx_cta *cta) {
  for (uint32_t k = 0; k < cta->launch->n_warps; k++)
    if (cta->warps[k].wait == PTX_READY && !cta->warps[k].polled) return true;
  return false;
}

/* Adds what cta has run to the launch's sum. */
static void tell_steps(ptx_cta *cta) {
  atomic_fetch_add(&cta->launch->budget->spent, cta->steps - cta->told);
  cta->told = cta->steps;
}

/* Whether the CTA or the launch has run all that it may; asked when a CTA starts, too. */
static bool has_run_out(ptx_cta *cta) {
  enum { TELL = 1 << 16 };
  const kva_ptx_options *o = &cta->launch->options;
  if (cta->steps > o->max_steps) return true;
  if (cta->told && cta->steps - cta->told < TELL) return false;
  tell_steps(cta);
  return atomic_load(&cta->launch->budget->spent) > o->max_total;
}

static void report_limit(ptx_cluster *cluster) {
  for (uint32_t c = 0; c < cluster->n; c++) report_running(&cluster->ctas[c], KVA_PTX_STEP_LIMIT, "is here");
  atomic_store(&cluster->launch->budget->over, true);
}

static bool run_turn(ptx_cluster *cluster) {
  for (uint32_t c = 0; c < cluster->n; c++) cluster->ctas[c].polled = cluster->ctas[c].went_on = false;
  while (!any_cta(cluster, was_stopped) && any_cta(cluster, is_running)) {
    if (atomic_load_explicit(&cluster->launch->budget->over, memory_order_relaxed)) return true;
    if (any_cta(cluster, has_run_out)) {
      report_limit(cluster);
      return true;
    }
    bool ran = any_cta(cluster, run_round), woke = any_cta(cluster, release_all);
    woke |= kva_ptx_release_cluster(cluster);
    if (any_cta(cluster, has_polled)) {
      if (!any_cta(cluster, can_go_on)) help(cluster);
      return false;
    }
    if (ran || woke || !any_cta(cluster, is_running) || help(cluster)) continue;
    for (uint32_t c = 0; c < cluster->n; c++) report_deadlock(&cluster->ctas[c]);
    return true;
  }
  if (!any_cta(cluster, was_stopped)) check_exit(cluster);
  return true;
}

bool kva_ptx_run_cluster(ptx_cluster *cluster) {
  bool ended = run_turn(cluster);
  for (uint32_t c = 0; ended && c < cluster->n; c++) tell_steps(&cluster->ctas[c]);
  cluster->n_waiting = any_cta(cluster, went_on) ? 0 : cluster->n_waiting + 1;
  return ended;
}
