/* setmaxnreg: warpgroups release and acquire registers of the CTA's share, at first 64 Ki divided equally. */
#include "runtime/ptxsim/exec.h"

enum { GROUP = 4 };

static bool register_error(ptx_warp *w, const ptx_ins *i, const char *what) {
  kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_OPERAND, i, w, 0), "%s %lld: %s, the warp has %u", i->text,
                 (long long)i->imm, what, w->n_registers);
  return false;
}

/* Returns true if the warp must wait until enough registers are released. */
bool kva_ptx_setmaxnreg(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  if (!kva_ptx_warpgroup(w, i, mask)) return false;
  uint32_t want = (uint32_t)i->imm;
  w->registers_set = i;
  if (!i->flag && want > w->n_registers) return register_error(w, i, "no decrease");
  if (i->flag && want < w->n_registers) return register_error(w, i, "no increase");
  w->at = i;
  w->wait_mask = mask;
  w->wait = PTX_AT_REGISTERS;
  kva_ptx_release_registers(w->cta);
  return w->wait != PTX_READY;
}

bool kva_ptx_release_registers(ptx_cta *cta) {
  bool woke = false;
  for (uint32_t k = 0; k < cta->launch->n_warps; k++) {
    ptx_warp *w = &cta->warps[k];
    if (w->wait != PTX_AT_REGISTERS) continue;
    int64_t more = (w->at->imm - (int64_t)w->n_registers) * PTX_LANES;
    if (more > (int64_t)cta->free_registers) continue;
    cta->free_registers = (uint32_t)(cta->free_registers - more);
    w->n_registers = (uint32_t)w->at->imm;
    w->wait = PTX_READY;
    cta->progress++;
    woke = true;
  }
  return woke;
}

void kva_ptx_registers_check_exit(ptx_cta *cta) {
  for (uint32_t k = 0; k < cta->launch->n_warps; k++) {
    const ptx_warp *w = &cta->warps[k], *leader = &cta->warps[k / GROUP * GROUP];
    if (w->n_registers == leader->n_registers) continue;
    const ptx_ins *at = (w->registers_set ? w : leader)->registers_set;
    kva_ptx_detail(kva_ptx_add_finding(cta, KVA_PTX_OPERAND, at, w, -1),
                   "warps of one warpgroup end with %u and %u registers", leader->n_registers, w->n_registers);
  }
}
