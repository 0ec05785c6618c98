/* Loads and stores. In the common case, a full warp that accesses consecutive global elements, they are one check and
 * one copy. A load that faults gives all ones. */
#include "runtime/ptxsim/exec.h"

/* Loads one element into a lane, extended to the register's width according to the type. */
static inline void put(const ptx_warp *w, const ptx_ins *i, uint32_t slot, int lane, const unsigned char *from) {
  uint64_t v = 0;
  memcpy(&v, from, i->bytes);
  if (i->type == PTX_S8)
    v = (uint64_t)(int8_t)v;
  else if (i->type == PTX_S16)
    v = (uint64_t)(int16_t)v;
  else if (i->type == PTX_S32)
    v = (uint64_t)(int32_t)v;
  if (i->width == 8)
    ptx_reg64(w, slot)[lane] = v;
  else
    ptx_reg32(w, slot)[lane] = (uint32_t)v & (i->width == 4 ? PTX_ALL : 0xffffu);
}
static inline void get(const ptx_warp *w, const ptx_ins *i, uint32_t slot, int lane, unsigned char *to) {
  if (i->width == 8)
    memcpy(to, &ptx_reg64(w, slot)[lane], i->bytes);
  else
    memcpy(to, &ptx_reg32(w, slot)[lane], i->bytes);
}

/* The host address if lanes access consecutive aligned elements of 4 or 8 bytes in one range; else NULL. */
static unsigned char *consecutive(ptx_warp *w, const ptx_ins *i, const uint64_t *a, uint32_t mask, bool write) {
  if (mask != PTX_ALL || i->n != 1 || i->bytes < 4 || i->width != i->bytes || a[0] & (i->bytes - 1u)) return NULL;
  uint64_t differs = 0;
  for (int l = 0; l < PTX_LANES; l++) differs |= a[l] ^ (a[0] + (uint64_t)l * i->bytes);
  if (differs) return NULL;
  const ptx_range *r = kva_ptx_find_range(&w->cta->launch->memory, a[0], PTX_LANES * i->bytes, &w->last_range);
  return r && (r->writable || !write) ? (unsigned char *)(uintptr_t)a[0] : NULL;
}

static void count(ptx_warp *w, const ptx_ins *i, const uint64_t *a, uint32_t mask, bool store) {
  if (w->cta->launch->options.no_counters) return;
  uint32_t size = (uint32_t)i->bytes * i->n;
  ptx_space space = (ptx_space)i->space;
  uint64_t first = a[ptx_first(mask)];
  if (space == PTX_GENERIC) space = kva_ptx_space_of(&first);
  if (space == PTX_GLOBAL)
    kva_ptx_count_global(w->cta, a, mask, size, store);
  else if (space == PTX_SHARED || space == PTX_CLUSTER)
    kva_ptx_count_shared(w->cta, i, a, mask, size);
}

/* Passes accesses to global memory to the checks that track them. */
static void note_global(ptx_warp *w, const ptx_ins *i, const uint64_t *a, uint32_t mask, bool write) {
  uint32_t size = (uint32_t)i->bytes * i->n;
  if (i->space != PTX_GLOBAL && i->space != PTX_GENERIC) return;
  for (uint32_t m = mask; m; m &= m - 1) {
    int lane = ptx_first(m);
    uint64_t address = a[lane];
    unsigned char data[16];
    if (i->space == PTX_GENERIC && kva_ptx_space_of(&address) != PTX_GLOBAL) continue;
    for (uint32_t k = 0; write && k < i->n; k++) get(w, i, i->list[k], lane, data + k * i->bytes);
    kva_ptx_global_access(w, i, lane, address, size, write, write ? data : NULL);
  }
}

static void load_lane(ptx_warp *w, const ptx_ins *i, int lane, uint64_t address) {
  static const unsigned char poison[8] = {255, 255, 255, 255, 255, 255, 255, 255};
  uint32_t size = (uint32_t)i->bytes * i->n;
  const unsigned char *from = kva_ptx_resolve(w, i, (ptx_space)i->space, lane, address, size, false);
  if (from && kva_ptx_is_shared(i, &address)) kva_ptx_race_read(w, i, lane, (uint32_t)address, size);
  for (uint32_t k = 0; k < i->n; k++) put(w, i, i->list[k], lane, from ? from + k * i->bytes : poison);
}

/* Whether every lane's access is aligned and within one range or shared memory; lane l then accesses *out_base + a[l].
 * Most requests are, and skip the per-lane checks. */
static bool all_inside(ptx_warp *w, const ptx_ins *i, const uint64_t *a, uint32_t mask, bool write,
                       uint64_t *out_base) {
  const ptx_launch *launch = w->cta->launch;
  uint64_t lowest = a[ptx_first(mask)], highest = lowest, bits = 0, size = (uint64_t)i->bytes * i->n;
  for (uint32_t l = 0; l < PTX_LANES; l++) {
    uint64_t at = mask >> l & 1 ? a[l] : lowest;
    bits |= at;
    lowest = at < lowest ? at : lowest;
    highest = at > highest ? at : highest;
  }
  if (bits & (size - 1)) return false;
  if (i->space == PTX_SHARED) {
    *out_base = (uintptr_t)w->cta->shared;
    return size <= launch->shared_bytes && highest <= launch->shared_bytes - size;
  }
  *out_base = 0;
  if (i->space != PTX_GLOBAL || highest >> 47) return false;
  const ptx_range *r = kva_ptx_find_range(&launch->memory, lowest, highest - lowest + size, &w->last_range);
  return r && (r->writable || !write);
}

static void load_all(ptx_warp *w, const ptx_ins *i, const uint64_t *a, uint32_t mask, uint64_t base) {
  bool words = i->bytes == 4 && i->width == 4;
  if (i->space == PTX_SHARED)
    for (uint32_t m = mask; m; m &= m - 1)
      kva_ptx_race_read(w, i, ptx_first(m), (uint32_t)a[ptx_first(m)], (uint32_t)i->bytes * i->n);
  for (uint32_t k = 0; k < i->n; k++) {
    uint32_t *d = words ? ptx_reg32(w, i->list[k]) : NULL;
    for (uint32_t m = mask; m; m &= m - 1) {
      int lane = ptx_first(m);
      const unsigned char *from = (const unsigned char *)(uintptr_t)(base + a[lane]) + k * i->bytes;
      if (words)
        memcpy(&d[lane], from, 4);
      else
        put(w, i, i->list[k], lane, from);
    }
  }
}

/* Loads of parameters and other uniform addresses without a base: one value for all lanes. */
static void load_uniform(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  int first = ptx_first(mask);
  load_lane(w, i, first, (uint64_t)i->imm);
  for (uint32_t k = 0; k < i->n; k++) {
    if (i->width == 8) {
      uint64_t *d = ptx_reg64(w, i->list[k]), v = d[first];
      for (int l = 0; l < PTX_LANES; l++) d[l] = mask >> l & 1 ? v : d[l];
    } else {
      uint32_t *d = ptx_reg32(w, i->list[k]), v = d[first];
      for (int l = 0; l < PTX_LANES; l++) d[l] = mask >> l & 1 ? v : d[l];
    }
  }
}

static void load(ptx_warp *w, const ptx_ins *i, const uint64_t *a, uint32_t mask) {
  count(w, i, a, mask, false);
  if (w->cta->launch->tracks_global) note_global(w, i, a, mask, false);
  const unsigned char *all = i->space == PTX_GLOBAL ? consecutive(w, i, a, mask, false) : NULL;
  if (all) {
    memcpy(w->regs + i->list[0], all, PTX_LANES * (size_t)i->bytes);
    return;
  }
  uint64_t base;
  if (all_inside(w, i, a, mask, false, &base)) {
    load_all(w, i, a, mask, base);
    return;
  }
  for (uint32_t m = mask; m; m &= m - 1) load_lane(w, i, ptx_first(m), a[ptx_first(m)]);
}

/* FNV-1a */
static uint64_t digest(uint64_t h, uint64_t v) {
  return (h ^ v) * 0x100000001b3u;
}

/* Records a load whose purpose is to see writes of other CTAs. */
static void note_poll(ptx_warp *w, const ptx_ins *i, const uint64_t *a, uint32_t mask) {
  uint64_t poll = digest(0xcbf29ce484222325u, (uintptr_t)i);
  for (uint32_t m = mask; m; m &= m - 1) {
    int lane = ptx_first(m);
    poll = digest(poll, a[lane]);
    for (uint32_t k = 0; k < i->n; k++)
      poll = digest(poll, i->width == 8 ? ptx_reg64(w, i->list[k])[lane] : ptx_reg32(w, i->list[k])[lane]);
  }
  w->polled = w->cta->polled = true;
  w->cta->went_on |= poll != w->last_poll;
  w->last_poll = poll;
}

void kva_ptx_exec_load(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  if (i->space == PTX_PARAM && i->src[0] == PTX_NONE) {
    load_uniform(w, i, mask);
    return;
  }
  uint64_t a[PTX_LANES];
  kva_ptx_addresses(w, i->src[0], i->imm, a);
  load(w, i, a, mask);
  if (i->flag && i->space == PTX_GLOBAL) note_poll(w, i, a, mask);
}

void kva_ptx_exec_store(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint64_t a[PTX_LANES];
  uint32_t size = (uint32_t)i->bytes * i->n;
  kva_ptx_addresses(w, i->src[0], i->imm, a);
  w->cta->went_on |= i->space != PTX_SHARED && i->space != PTX_CLUSTER;
  count(w, i, a, mask, true);
  if (w->cta->launch->tracks_global) note_global(w, i, a, mask, true);
  unsigned char *all = i->space == PTX_GLOBAL ? consecutive(w, i, a, mask, true) : NULL;
  if (all) {
    memcpy(all, w->regs + i->list[0], PTX_LANES * (size_t)i->bytes);
    return;
  }
  uint64_t base;
  bool inside = all_inside(w, i, a, mask, true, &base);
  for (uint32_t m = mask; m; m &= m - 1) {
    int lane = ptx_first(m);
    uint64_t address = a[lane];
    unsigned char data[16], *to = inside ? (unsigned char *)(uintptr_t)(base + address)
                                         : kva_ptx_resolve(w, i, (ptx_space)i->space, lane, address, size, true);
    if (!to) continue;
    for (uint32_t k = 0; k < i->n; k++) get(w, i, i->list[k], lane, data + k * i->bytes);
    if (kva_ptx_is_shared(i, &address)) kva_ptx_race_write(w, i, lane, (uint32_t)address, size, data);
    memcpy(to, data, size);
  }
}
