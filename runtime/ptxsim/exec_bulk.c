/* Bulk copies: cp.async.bulk, including tensors, and cp.reduce.async.bulk. An agent (clock.c) makes their accesses to
 * shared memory. Eager mode copies at issue. In lazy mode loads land when nothing else can run, newest first (in random
 * order with a schedule seed), and stores read shared memory at the wait that covers their group. */
#include "runtime/ptxsim/exec.h"

#include <stdlib.h>

struct ptx_bulk {
  const ptx_ins *i;
  ptx_warp *w;
  ptx_cta *at_cta; /* whose shared memory it uses */
  int lane;
  uint32_t kind, shared, mbarrier, stamp, group, mark;
  uint64_t global; /* unused by tensors */
  uint32_t bytes;
  int32_t at[KVA_PTXSIM_MAP_RANK];
  ptx_tensor_map map;
  bool done; /* a store made at issue, which its wait has not yet covered */
};

/* Operands in list: shared address, mbarrier, global address or tensor map, size, mask of CTAs, coordinates. */
enum { SHARED, MBARRIER, GLOBAL, SIZE, RANKS, COORDINATES };

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static bool misaligned(const ptx_bulk *c, uint64_t address, uint32_t align, const char *what) {
  if (!(address & (align - 1))) return false;
  kva_ptx_detail(kva_ptx_add_finding(c->w->cta, KVA_PTX_MISALIGNED, c->i, c->w, c->lane),
                 "%s: %s 0x%llx is no multiple of %u", c->i->text, what, (unsigned long long)address, align);
  return true;
}

static bool shared_fits(const ptx_bulk *c, uint64_t address) {
  uint32_t limit = c->w->cta->launch->shared_bytes;
  if (misaligned(c, address, c->i->flag2 ? 128 : 16, "shared address")) return false;
  if (c->bytes <= limit && address <= limit - c->bytes) return true;
  kva_ptx_detail(kva_ptx_add_finding(c->w->cta, KVA_PTX_SHARED_BOUNDS, c->i, c->w, c->lane),
                 "%s of %u bytes at address %llu, of %u", c->i->text, c->bytes, (unsigned long long)address, limit);
  return false;
}

/* `size` bytes of global memory; NULL after a finding. */
static unsigned char *global_place(const ptx_bulk *c, uint64_t address, uint32_t size, bool write) {
  ptx_warp *w = c->w;
  const ptx_range *r = kva_ptx_find_range(&w->cta->launch->memory, address, size, &w->last_range);
  if (r && (r->writable || !write)) {
    if (w->cta->launch->tracks_global && c->kind == PTX_BULK_REDUCE)
      kva_ptx_global_atomic(w, c->i, c->lane, address, size);
    else if (w->cta->launch->tracks_global)
      kva_ptx_global_access(w, c->i, c->lane, address, size, write, NULL);
    return (unsigned char *)(uintptr_t)address;
  }
  kva_ptx_finding *f =
      kva_ptx_add_finding(w->cta, r ? KVA_PTX_GLOBAL_READ_ONLY : KVA_PTX_GLOBAL_BOUNDS, c->i, w, c->lane);
  const ptx_range *near = kva_ptx_nearest_range(&w->cta->launch->memory, address);
  kva_ptx_detail(f, "%s of %u bytes at offset %llu of '%s', which has %llu bytes", c->i->text, size,
                 (unsigned long long)(near ? address - near->base : address), near ? near->name : "nothing",
                 (unsigned long long)(near ? near->size : 0));
  return NULL;
}

static bool read_map(ptx_bulk *c, uint64_t address) {
  for (uint32_t k = 0; k < 2; k++) {
    const unsigned char *half = kva_ptx_resolve(c->w, c->i, PTX_GENERIC, c->lane, address + 64 * k, 64, false);
    if (!half) return false;
    memcpy((unsigned char *)&c->map + 64 * k, half, 64);
  }
  if (kva_ptx_tensor_map_valid(&c->map) && c->map.rank == c->i->n) return true;
  kva_ptx_detail(kva_ptx_add_finding(c->w->cta, KVA_PTX_OPERAND, c->i, c->w, c->lane),
                 "%s: no tensor map of %u dimensions is there", c->i->text, c->i->n);
  return false;
}

/* ---- copying ----------------------------------------------------------------------------------------------------- */

static void reduce(const ptx_bulk *c, unsigned char *to, const unsigned char *from, uint32_t bytes) {
  ptx_ins add = {
      .sub = PTX_ATOM_ADD, .type = c->i->type, .bytes = (uint8_t)(kva_ptx_type_bits((ptx_type)c->i->type) / 8)};
  for (uint32_t k = 0; k < bytes; k += add.bytes) {
    uint64_t value = 0;
    memcpy(&value, from + k, add.bytes);
    kva_ptx_atomic_update(to + k, &add, value, 0);
  }
}

static void move_out(const ptx_bulk *c, unsigned char *to, const unsigned char *from, uint32_t bytes) {
  if (c->kind == PTX_BULK_REDUCE)
    reduce(c, to, from, bytes);
  else
    memcpy(to, from, bytes);
}

static void perform_plain(const ptx_bulk *c) {
  unsigned char *shared = c->at_cta->shared + c->shared;
  unsigned char *global = global_place(c, c->global, c->bytes, c->kind != PTX_BULK_LOAD);
  if (!global) return;
  if (c->kind == PTX_BULK_LOAD)
    memcpy(shared, global, c->bytes);
  else
    move_out(c, global, shared, c->bytes);
}

/* The address of row `row` of the box in global memory; false if it is outside the tensor. */
static bool find_row(const ptx_bulk *c, uint32_t row, uint64_t *out) {
  const ptx_tensor_map *m = &c->map;
  *out = m->address;
  for (uint32_t d = 1; d < m->rank; d++) {
    int64_t at = (int64_t)c->at[d] + row % m->box[d];
    row /= m->box[d];
    if (at < 0 || (uint64_t)at >= m->dims[d]) return false;
    *out += (uint64_t)at * m->strides[d - 1];
  }
  return true;
}

/* Copies the innermost extent of the box in 16-byte pieces, the unit of the swizzle. */
static void copy_pieces(const ptx_bulk *c, uint32_t first, unsigned char *row, uint32_t bytes, bool to_shared) {
  unsigned char *shared = c->at_cta->shared;
  for (uint32_t b = 0; b < bytes; b += 16) {
    uint32_t at = ptx_swizzle(first + b, c->map.swizzle);
    memcpy(to_shared ? shared + at : row + b, to_shared ? row + b : shared + at, 16);
  }
}

static void perform_row(const ptx_bulk *c, uint32_t row) {
  const ptx_tensor_map *m = &c->map;
  unsigned char bytes[256 * 8] = {0};
  uint32_t width = (uint32_t)m->box[0] * m->element, first = c->shared + row * width;
  uint64_t place;
  bool inside = find_row(c, row, &place);
  int64_t begin = c->at[0] < 0 ? 0 : c->at[0], end = (int64_t)c->at[0] + m->box[0];
  if (end > (int64_t)m->dims[0]) end = (int64_t)m->dims[0];
  inside &= begin < end;
  unsigned char *in_row = inside ? bytes + (begin - c->at[0]) * m->element : NULL;
  uint32_t n = inside ? (uint32_t)(end - begin) * m->element : 0;
  bool load = c->kind == PTX_BULK_LOAD;
  unsigned char *global = inside ? global_place(c, place + (uint64_t)begin * m->element, n, !load) : NULL;
  if (load && global) memcpy(in_row, global, n);
  copy_pieces(c, first, bytes, width, load);
  if (!load && global) move_out(c, global, in_row, n);
}

static void perform(const ptx_bulk *c) {
  if (!c->i->flag2) {
    perform_plain(c);
    return;
  }
  uint32_t rows = 1;
  for (uint32_t d = 1; d < c->map.rank; d++) rows *= c->map.box[d];
  for (uint32_t row = 0; row < rows; row++) perform_row(c, row);
}

static void land(const ptx_bulk *c) {
  ptx_cta *cta = c->at_cta;
  ptx_mbarrier *b = kva_ptx_mbarrier_at(cta, c->mbarrier);
  if (c->kind == PTX_BULK_ARRIVE) {
    kva_ptx_copies_land(c->w, c->mark);
    kva_ptx_clocks_release(c->w, &b->coming, 1u << c->lane);
    kva_ptx_mbarrier_arrive(c->w, c->i, c->lane, b, 1);
    return;
  }
  perform(c);
  kva_ptx_agent_end(&b->coming, c->stamp);
  kva_ptx_mbarrier_complete_tx(cta, b, c->bytes);
}

/* ---- issue ------------------------------------------------------------------------------------------------------- */

static void keep(const ptx_bulk *c) {
  ptx_cta *cta = c->at_cta;
  if (cta->n_bulks == cta->cap_bulks) {
    uint32_t cap = cta->cap_bulks ? 2 * cta->cap_bulks : 16;
    ptx_bulk *more = realloc(cta->bulks, cap * sizeof *more);
    if (!more) {
      cta->stopped = true;
      return;
    }
    cta->bulks = more;
    cta->cap_bulks = cap;
  }
  cta->bulks[cta->n_bulks++] = *c;
}

static void issue_load(ptx_bulk *c) {
  ptx_cta *cta = c->w->cta;
  const ptx_mbarrier *b = kva_ptx_mbarrier_find(c->w, c->i, c->lane, c->at_cta, c->mbarrier);
  if (!b) return;
  c->stamp = kva_ptx_agent_begin(cta->cluster);
  if (!b->fenced) {
    kva_ptx_finding *f = kva_ptx_add_finding(cta, KVA_PTX_MISSING_FENCE, c->i, c->w, c->lane);
    if (f) f->other_line = b->init_line;
    kva_ptx_detail(f, "%s: no fence.mbarrier_init or fence.proxy.async follows the mbarrier.init at line %u",
                   c->i->text, b->init_line);
  }
  kva_ptx_race_async_write(c->w, c->i, c->lane, ptx_window(c->at_cta, c->shared), c->bytes, c->stamp);
  if (cta->launch->options.lazy)
    keep(c);
  else
    land(c);
}

/* One copy for each CTA of the mask, to the same places in each. */
static void issue_multicast(ptx_bulk *c, uint32_t ranks) {
  const ptx_cluster *cluster = c->w->cta->cluster;
  if (!ranks || ranks >> cluster->n)
    kva_ptx_detail(kva_ptx_add_finding(c->w->cta, KVA_PTX_OPERAND, c->i, c->w, c->lane),
                   "%s to CTAs of mask 0x%x, in a cluster of %u", c->i->text, ranks, cluster->n);
  for (uint32_t k = 0; k < cluster->n; k++) {
    c->at_cta = &cluster->ctas[k];
    if (ranks >> k & 1) issue_load(c);
  }
}

static void issue_store(ptx_bulk *c) {
  c->stamp = kva_ptx_agent_begin(c->w->cta->cluster);
  kva_ptx_race_async_read(c->w, c->i, c->lane, c->shared, c->bytes, c->stamp);
  c->group = c->w->bulk_group[c->lane];
  c->done = !c->w->cta->launch->options.lazy;
  if (c->done) perform(c);
  keep(c);
}

static uint32_t coordinate(const ptx_warp *w, const ptx_ins *i, uint32_t d, int lane) {
  return ptx_reg32(w, i->list[COORDINATES + d])[lane];
}

/* The CTA that a load's addresses lie in, which become addresses in it; NULL after a finding. */
static ptx_cta *destination(const ptx_bulk *c, uint64_t *shared, uint64_t *mbarrier) {
  ptx_cta *to = ptx_owner(c->w, shared), *counts = ptx_owner(c->w, mbarrier);
  if (to && to == counts) return to;
  kva_ptx_detail(kva_ptx_add_finding(c->w->cta, KVA_PTX_OPERAND, c->i, c->w, c->lane),
                 "%s: shared address and mbarrier do not lie in one CTA of the cluster", c->i->text);
  return NULL;
}

/* Describes the copy of one lane; false after a finding. */
static bool describe(ptx_warp *w, const ptx_ins *i, int lane, ptx_bulk *c) {
  *c = (ptx_bulk){.i = i, .w = w, .at_cta = w->cta, .lane = lane, .kind = i->sub};
  uint64_t shared = ptx_reg64(w, i->list[SHARED])[lane], global = ptx_reg64(w, i->list[GLOBAL])[lane];
  uint64_t mbarrier = c->kind == PTX_BULK_LOAD ? ptx_reg64(w, i->list[MBARRIER])[lane] : 0;
  if (c->kind == PTX_BULK_LOAD && !(c->at_cta = destination(c, &shared, &mbarrier))) return false;
  if (i->flag2) {
    if (!read_map(c, global)) return false;
    c->bytes = c->map.element;
    for (uint32_t d = 0; d < c->map.rank; d++) {
      c->bytes *= c->map.box[d];
      c->at[d] = (int32_t)coordinate(w, i, d, lane);
    }
  } else {
    c->global = global;
    c->bytes = ptx_reg32(w, i->list[SIZE])[lane];
    if (misaligned(c, c->bytes, 16, "size") || misaligned(c, global, 16, "global address")) return false;
  }
  if (!c->bytes || !shared_fits(c, shared)) return false;
  c->shared = (uint32_t)shared;
  c->mbarrier = (uint32_t)mbarrier;
  return true;
}

void kva_ptx_exec_bulk(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  for (uint32_t m = mask; m; m &= m - 1) {
    ptx_bulk c;
    if (!describe(w, i, ptx_first(m), &c)) continue;
    if (c.kind != PTX_BULK_LOAD)
      issue_store(&c);
    else if (i->imm2)
      issue_multicast(&c, ptx_reg32(w, i->list[RANKS])[c.lane]);
    else
      issue_load(&c);
  }
}

void kva_ptx_copies_arrive(ptx_warp *w, const ptx_ins *i, int lane, uint32_t mbarrier) {
  ptx_mbarrier *b = kva_ptx_mbarrier_find(w, i, lane, w->cta, mbarrier);
  if (!b) return;
  if (!i->flag2) b->pending++;
  ptx_bulk c = {.i = i, .w = w, .at_cta = w->cta, .lane = lane, .kind = PTX_BULK_ARRIVE, .mbarrier = mbarrier};
  c.mark = kva_ptx_copies_mark(w, lane);
  if (w->cta->launch->options.lazy)
    keep(&c);
  else
    land(&c);
}

/* ---- completion -------------------------------------------------------------------------------------------------- */

static bool is_load(const ptx_bulk *c) {
  return c->kind == PTX_BULK_LOAD || c->kind == PTX_BULK_ARRIVE;
}

static ptx_bulk take(ptx_cta *cta, uint32_t k) {
  ptx_bulk c = cta->bulks[k];
  memmove(cta->bulks + k, cta->bulks + k + 1, (--cta->n_bulks - k) * sizeof c);
  return c;
}

bool kva_ptx_bulk_land_one(ptx_cta *cta) {
  uint32_t n = 0;
  for (uint32_t k = 0; k < cta->n_bulks; k++) n += is_load(&cta->bulks[k]);
  if (!n) return false;
  if (cta->launch->options.schedule_seed) {
    cta->random = cta->random * 6364136223846793005u + 1442695040888963407u;
    n = 1 + (uint32_t)((cta->random >> 33) % n);
  }
  for (uint32_t k = 0; k < cta->n_bulks; k++) {
    if (!is_load(&cta->bulks[k]) || --n) continue;
    ptx_bulk c = take(cta, k);
    land(&c);
    return true;
  }
  return false;
}

void kva_ptx_exec_bulk_commit(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  (void)i;
  for (uint32_t m = mask; m; m &= m - 1) w->bulk_group[ptx_first(m)]++;
}

static void finish_store(const ptx_bulk *c) {
  if (!c->done) perform(c);
  kva_ptx_agent_end(&c->w->before, c->stamp);
}

void kva_ptx_exec_bulk_wait(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  ptx_cta *cta = w->cta;
  uint32_t k = 0;
  while (k < cta->n_bulks) {
    const ptx_bulk *c = &cta->bulks[k];
    bool mine = c->w == w && !is_load(c) && mask >> c->lane & 1;
    if (!mine || c->group + (uint64_t)i->imm >= w->bulk_group[c->lane]) {
      k++;
      continue;
    }
    ptx_bulk taken = take(cta, k);
    finish_store(&taken);
  }
}

void kva_ptx_bulk_check_exit(ptx_cta *cta) {
  for (uint32_t k = 0; k < cta->n_bulks; k++) {
    const ptx_bulk *c = &cta->bulks[k];
    kva_ptx_detail(kva_ptx_add_finding(cta, KVA_PTX_ASYNC_PENDING, c->i, c->w, c->lane),
                   "%s is not waited for before the CTA ends and its shared memory goes", c->i->text);
    if (!c->done) perform(c);
  }
  cta->n_bulks = 0;
}
