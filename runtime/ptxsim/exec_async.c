/* cp.async. Eager mode copies at issue. Lazy mode copies at the wait that covers the group, so that a missing wait
 * leaves poison behind. In both modes the destination is pending until that wait, and any access to it is a finding. */
#include "runtime/ptxsim/exec.h"

#include <stdlib.h>

struct ptx_copy {
  uint64_t from;
  uint32_t to, group;
  uint8_t size, read, lane;
  uint32_t mark; /* not 0: the mark of kva_ptx_copies_mark that completes it */
  const ptx_ins *ins;
};

static void land(ptx_warp *w, const ptx_copy *c) {
  unsigned char data[16] = {0};
  unsigned char *from = c->read ? kva_ptx_resolve(w, c->ins, PTX_GLOBAL, c->lane, c->from, c->size, false) : data;
  if (from) memcpy(data, from, c->read);
  memcpy(w->cta->shared + c->to, data, c->size);
}

static ptx_copy *append(ptx_warp *w) {
  if (w->n_copies == w->cap_copies) {
    uint32_t cap = w->cap_copies ? 2 * w->cap_copies : 256;
    ptx_copy *more = realloc(w->copies, cap * sizeof *more);
    if (!more) return NULL;
    w->copies = more;
    w->cap_copies = cap;
  }
  return &w->copies[w->n_copies++];
}

static void issue(ptx_warp *w, const ptx_ins *i, int lane, uint64_t to, uint64_t from, uint32_t read) {
  ptx_cta *cta = w->cta;
  if (!kva_ptx_resolve(w, i, PTX_SHARED, lane, to, i->bytes, true)) return;
  if (read > i->bytes) {
    kva_ptx_detail(kva_ptx_add_finding(cta, KVA_PTX_OPERAND, i, w, lane), "%u bytes to read of %u", read, i->bytes);
    read = i->bytes;
  }
  ptx_copy copy = {from, (uint32_t)to, w->group, i->bytes, (uint8_t)read, (uint8_t)lane, 0, i};
  kva_ptx_race_write(w, i, lane, (uint32_t)to, i->bytes, NULL);
  if (cta->launch->tracks_global && read) kva_ptx_global_access(w, i, lane, from, read, false, NULL);
  if (!cta->launch->options.lazy) land(w, &copy);
  ptx_copy *place = append(w);
  if (!place) return;
  *place = copy;
  memset(cta->pending + to, 1, i->bytes);
}

void kva_ptx_exec_cp_async(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint64_t to[PTX_LANES], from[PTX_LANES];
  kva_ptx_addresses(w, i->dst, i->imm2, to);
  kva_ptx_addresses(w, i->src[0], i->imm, from);
  if (!w->cta->launch->options.no_counters) {
    kva_ptx_count_global(w->cta, from, mask, i->bytes, false);
    kva_ptx_count_shared(w->cta, i, to, mask, i->bytes);
  }
  for (uint32_t m = mask; m; m &= m - 1) {
    int lane = ptx_first(m);
    issue(w, i, lane, to[lane], from[lane], i->src[1] == PTX_NONE ? i->bytes : ptx_reg32(w, i->src[1])[lane]);
  }
}

/* Groups are counted per warp: lanes that commit separately are not distinguished. */
void kva_ptx_exec_cp_commit(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  (void)i, (void)mask;
  w->group++;
}

static void complete(ptx_warp *w, const ptx_copy *c) {
  if (w->cta->launch->options.lazy) land(w, c);
  memset(w->cta->pending + c->to, 0, c->size);
  kva_ptx_race_landed(w, c->lane, c->to, c->size);
}

/* Completes the copies of groups less than `below`. */
static void drain(ptx_warp *w, uint32_t below) {
  uint32_t kept = 0;
  for (uint32_t k = 0; k < w->n_copies; k++) {
    const ptx_copy c = w->copies[k];
    if (c.group >= below)
      w->copies[kept++] = c;
    else
      complete(w, &c);
  }
  w->n_copies = kept;
}

void kva_ptx_exec_cp_wait(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  (void)mask;
  uint64_t left = (uint64_t)i->imm;
  drain(w, i->flag ? PTX_NONE : left >= w->group ? 0 : w->group - (uint32_t)left);
}

uint32_t kva_ptx_copies_mark(ptx_warp *w, int lane) {
  uint32_t mark = ++w->n_marks;
  for (uint32_t k = 0; k < w->n_copies; k++)
    if (w->copies[k].lane == lane && !w->copies[k].mark) w->copies[k].mark = mark;
  return mark;
}

void kva_ptx_copies_land(ptx_warp *w, uint32_t mark) {
  uint32_t kept = 0;
  for (uint32_t k = 0; k < w->n_copies; k++) {
    const ptx_copy c = w->copies[k];
    if (c.mark != mark)
      w->copies[kept++] = c;
    else
      complete(w, &c);
  }
  w->n_copies = kept;
}

/* Copies that land later could overwrite shared memory of another CTA. */
void kva_ptx_copies_check_exit(ptx_cta *cta) {
  for (uint32_t k = 0; k < cta->launch->n_warps; k++) {
    ptx_warp *w = &cta->warps[k];
    if (w->n_copies)
      kva_ptx_detail(kva_ptx_add_finding(cta, KVA_PTX_ASYNC_PENDING, w->copies[0].ins, w, w->copies[0].lane),
                     "%s is not waited for before the CTA ends and its shared memory goes", w->copies[0].ins->text);
    drain(w, PTX_NONE);
  }
}
