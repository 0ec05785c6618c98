/* Shuffles, votes and other exchanges between the lanes of a warp. */
#include "runtime/ptxsim/exec.h"

void kva_ptx_exec_nothing(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  (void)w, (void)i, (void)mask;
}

void kva_ptx_exec_trap(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_TRAP, i, w, ptx_first(mask)), "the kernel trapped");
  w->cta->stopped = true;
}

/* The member mask must contain the executing lanes, and every member that has not exited must execute. Returns the
 * executing members. */
static uint32_t members(ptx_warp *w, const ptx_ins *i, uint32_t slot, uint32_t mask) {
  const uint32_t *named = ptx_reg32(w, slot);
  uint32_t all = named[ptx_first(mask)], missing = all & w->live & ~mask;
  for (uint32_t m = mask; m; m &= m - 1)
    if (!(named[ptx_first(m)] >> ptx_first(m) & 1)) missing |= 1u << ptx_first(m);
  if (missing)
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_INACTIVE_LANE, i, w, ptx_first(mask)),
                   "%s with member mask 0x%08x is run by lanes 0x%08x of 0x%08x", i->text, all, mask, w->live);
  return mask & all;
}

typedef void (*exec_group)(ptx_warp *w, const ptx_ins *i, uint32_t mask);

/* Lanes with different member masks form separate groups, which exchange values among themselves. */
static void for_groups(ptx_warp *w, const ptx_ins *i, uint32_t slot, uint32_t mask, exec_group exec) {
  const uint32_t *named = ptx_reg32(w, slot);
  for (uint32_t rest = mask, group; rest; rest &= ~group) {
    group = 0;
    for (uint32_t m = rest; m; m &= m - 1)
      group |= (uint32_t)(named[ptx_first(m)] == named[ptx_first(rest)]) << ptx_first(m);
    exec(w, i, group);
  }
}

static void warp_sync(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  members(w, i, i->src[0], mask);
  kva_ptx_clocks_warp_sync(w);
}

void kva_ptx_exec_warp_sync(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  for_groups(w, i, i->src[0], mask, warp_sync);
}

/* The source lane, or -1 if it is outside the segment. PTX ISA, shfl.sync: c holds the clamp and the segment mask. */
static int source_lane(int mode, int lane, uint32_t b, uint32_t c) {
  int by = (int)(b & 31), clamp = (int)(c & 31), segment = (int)(c >> 8 & 31);
  int last = (lane & segment) | (clamp & ~segment), from;
  switch (mode) {
  case PTX_SHFL_UP: from = lane - by; return from >= last ? from : -1;
  case PTX_SHFL_DOWN: from = lane + by; break;
  case PTX_SHFL_BFLY: from = lane ^ by; break;
  default: from = (lane & segment) | (by & ~segment); break;
  }
  return from <= last ? from : -1;
}

static void shfl(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  const uint32_t *a = ptx_reg32(w, i->src[0]), *b = ptx_reg32(w, i->src[1]), *c = ptx_reg32(w, i->src[2]);
  uint32_t out[PTX_LANES], inside = 0, active = members(w, i, i->src[3], mask);
  for (int l = 0; l < PTX_LANES; l++) {
    int from = source_lane(i->sub, l, b[l], c[l]);
    inside |= (uint32_t)(from >= 0) << l;
    if (from < 0) from = l;
    out[l] = a[from];
    if (!(mask >> l & 1) || active >> from & 1) continue;
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_INACTIVE_LANE, i, w, l),
                   "%s reads lane %d, which does not run it", i->text, from);
    out[l] = PTX_NONE;
  }
  ptx_blend32(ptx_reg32(w, i->dst), out, mask);
  if (i->dst2 != PTX_NONE) ptx_set_pred(w, i->dst2, inside, mask);
}

void kva_ptx_exec_shfl(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  for_groups(w, i, i->src[3], mask, shfl);
}

static void set_all(ptx_warp *w, uint32_t slot, uint32_t value, uint32_t mask) {
  uint32_t *d = ptx_reg32(w, slot);
  for (int l = 0; l < PTX_LANES; l++) d[l] = mask >> l & 1 ? value : d[l];
}

static void vote(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint32_t active = members(w, i, i->src[1], mask), yes = ptx_pred(w, i->src[0]) & active;
  if (i->sub == PTX_VOTE_BALLOT) {
    set_all(w, i->dst, yes, mask);
    return;
  }
  bool value = i->sub == PTX_VOTE_ANY ? yes != 0 : i->sub == PTX_VOTE_ALL ? yes == active : yes == 0 || yes == active;
  ptx_set_pred(w, i->dst, value ? PTX_ALL : 0, mask);
}

void kva_ptx_exec_vote(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  for_groups(w, i, i->src[1], mask, vote);
}

static void match(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint32_t active = members(w, i, i->src[1], mask), out[PTX_LANES] = {0}, same = 0;
  uint64_t v[PTX_LANES];
  for (int l = 0; l < PTX_LANES; l++) v[l] = i->flag2 ? ptx_reg64(w, i->src[0])[l] : ptx_reg32(w, i->src[0])[l];
  for (int l = 0; l < PTX_LANES; l++) {
    for (uint32_t m = active; m; m &= m - 1) out[l] |= (uint32_t)(v[ptx_first(m)] == v[l]) << ptx_first(m);
    if (i->sub && out[l] != active) out[l] = 0;
    same |= (uint32_t)(out[l] == active) << l;
  }
  ptx_blend32(ptx_reg32(w, i->dst), out, mask);
  if (i->dst2 != PTX_NONE) ptx_set_pred(w, i->dst2, same, mask);
}

void kva_ptx_exec_match(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  for_groups(w, i, i->src[1], mask, match);
}

static uint32_t reduce(int op, ptx_type type, uint32_t a, uint32_t b) {
  bool less = type == PTX_S32 ? (int32_t)a < (int32_t)b : a < b;
  switch (op) {
  case PTX_ATOM_ADD: return a + b;
  case PTX_ATOM_MIN: return less ? a : b;
  case PTX_ATOM_MAX: return less ? b : a;
  case PTX_ATOM_AND: return a & b;
  case PTX_ATOM_OR: return a | b;
  default: return a ^ b;
  }
}
static void redux(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint32_t active = members(w, i, i->src[1], mask) | 1u << ptx_first(mask);
  const uint32_t *a = ptx_reg32(w, i->src[0]);
  uint32_t value = a[ptx_first(active)];
  for (uint32_t m = active & (active - 1); m; m &= m - 1)
    value = reduce(i->sub, (ptx_type)i->type, value, a[ptx_first(m)]);
  set_all(w, i->dst, value, mask);
}

void kva_ptx_exec_redux(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  for_groups(w, i, i->src[1], mask, redux);
}

void kva_ptx_exec_activemask(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  set_all(w, i->dst, mask, mask);
}

static void elect(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint32_t active = members(w, i, i->src[1], mask), leader = active ? (uint32_t)ptx_first(active) : 0;
  set_all(w, i->dst, leader, mask);
  ptx_set_pred(w, i->dst2, 1u << leader, mask);
}

void kva_ptx_exec_elect(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  for_groups(w, i, i->src[1], mask, elect);
}
