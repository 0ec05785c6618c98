/* Address resolution with bounds and alignment checks, and the registered ranges of global memory. */
#include "runtime/ptxsim/exec.h"

#include <stdlib.h>

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

kva_ptx_memory *kva_ptx_memory_create(void) {
  return calloc(1, sizeof(kva_ptx_memory));
}
static void free_range(ptx_range *r) {
  free(r->name);
  free(r->written);
}
void kva_ptx_memory_destroy(kva_ptx_memory *memory) {
  if (!memory) return;
  for (uint32_t i = 0; i < memory->n; i++) free_range(&memory->ranges[i]);
  free(memory->ranges);
  free(memory);
}

static bool reserve(kva_ptx_memory *m) {
  if (m->n < m->cap) return true;
  uint32_t cap = m->cap ? 2 * m->cap : 16;
  ptx_range *more = realloc(m->ranges, cap * sizeof *more);
  if (!more) return false;
  m->ranges = more;
  m->cap = cap;
  return true;
}

kva_status kva_ptx_memory_add(kva_ptx_memory *m, void *base, size_t size, bool writable, const char *name) {
  uint64_t b = (uintptr_t)base;
  if (b >> 47 || (uint64_t)size > (1ull << 47) - b) return KVA_INVALID;
  uint32_t at = 0;
  while (at < m->n && m->ranges[at].base < b) at++;
  if (at && m->ranges[at - 1].base + m->ranges[at - 1].size > b) return KVA_INVALID;
  if (at < m->n && b + size > m->ranges[at].base) return KVA_INVALID;
  char *copy = strdup(name);
  if (!copy || !reserve(m)) {
    free(copy);
    return KVA_NO_MEMORY;
  }
  memmove(m->ranges + at + 1, m->ranges + at, (m->n - at) * sizeof *m->ranges);
  m->ranges[at] = (ptx_range){.base = b, .size = size, .writable = writable, .name = copy};
  m->n++;
  return KVA_OK;
}

kva_status kva_ptx_memory_add_undefined(kva_ptx_memory *m, void *base, size_t size, const char *name) {
  uint8_t *written = calloc(size / 4 + 2, 1);
  if (!written) return KVA_NO_MEMORY;
  kva_status status = kva_ptx_memory_add(m, base, size, true, name);
  for (uint32_t i = 0; status == KVA_OK && i < m->n; i++)
    if (m->ranges[i].base == (uintptr_t)base && m->ranges[i].size == size) {
      m->ranges[i].written = written;
      return KVA_OK;
    }
  free(written);
  return status;
}

/* The last range that begins at or below an address. */
const ptx_range *kva_ptx_nearest_range(const kva_ptx_memory *m, uint64_t address) {
  uint32_t lo = 0, hi = m->n;
  while (lo < hi) {
    uint32_t mid = (lo + hi) / 2;
    if (m->ranges[mid].base <= address)
      lo = mid + 1;
    else
      hi = mid;
  }
  return lo ? &m->ranges[lo - 1] : NULL;
}

static bool inside(const ptx_range *r, uint64_t address, uint64_t size) {
  return address >= r->base && size <= r->size && address - r->base <= r->size - size;
}
const ptx_range *kva_ptx_find_range(const kva_ptx_memory *m, uint64_t address, uint64_t size, uint32_t *last) {
  if (*last < m->n && inside(&m->ranges[*last], address, size)) return &m->ranges[*last];
  const ptx_range *r = kva_ptx_nearest_range(m, address);
  if (!r || !inside(r, address, size)) return NULL;
  *last = (uint32_t)(r - m->ranges);
  return r;
}

/* ---- addresses --------------------------------------------------------------------------------------------------- */

void kva_ptx_addresses(const ptx_warp *w, uint32_t slot, int64_t offset, uint64_t out[PTX_LANES]) {
  if (slot == PTX_NONE) {
    for (int l = 0; l < PTX_LANES; l++) out[l] = (uint64_t)offset;
    return;
  }
  const uint64_t *base = ptx_reg64(w, slot);
  for (int l = 0; l < PTX_LANES; l++) out[l] = base[l] + (uint64_t)offset;
}

ptx_space kva_ptx_space_of(uint64_t *address) {
  uint64_t window = *address >> PTX_WINDOW_SHIFT;
  if (window == 0 || window > 3) return PTX_GLOBAL;
  *address &= (1ull << PTX_WINDOW_SHIFT) - 1;
  return window == 1 ? PTX_SHARED : window == 2 ? PTX_LOCAL : PTX_PARAM;
}

bool kva_ptx_is_shared(const ptx_ins *i, uint64_t *address) {
  if (i->space == PTX_GENERIC) return kva_ptx_space_of(address) == PTX_SHARED;
  return i->space == PTX_SHARED || i->space == PTX_CLUSTER;
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

static void global_fault(ptx_warp *w, const ptx_ins *i, int lane, uint64_t address, uint32_t size) {
  kva_ptx_finding *f = kva_ptx_add_finding(w->cta, KVA_PTX_GLOBAL_BOUNDS, i, w, lane);
  if (!f) return;
  const ptx_range *r = kva_ptx_nearest_range(&w->cta->launch->memory, address);
  if (!r)
    kva_ptx_detail(f, "%s of %u bytes at 0x%llx, in no registered memory", i->text, size, (unsigned long long)address);
  else
    kva_ptx_detail(f, "%s of %u bytes at offset %llu of '%s', which has %llu bytes", i->text, size,
                   (unsigned long long)(address - r->base), r->name, (unsigned long long)r->size);
}

static void window_fault(ptx_warp *w, const ptx_ins *i, kva_ptx_finding_kind kind, int lane, uint64_t address,
                         uint32_t size, uint64_t limit) {
  kva_ptx_finding *f = kva_ptx_add_finding(w->cta, kind, i, w, lane);
  kva_ptx_detail(f, "%s of %u bytes at address %lld, of %llu", i->text, size, (long long)address,
                 (unsigned long long)limit);
}

static unsigned char *global_place(ptx_warp *w, const ptx_ins *i, int lane, uint64_t address, uint32_t size,
                                   bool write) {
  const ptx_range *r = kva_ptx_find_range(&w->cta->launch->memory, address, size, &w->last_range);
  if (!r) {
    global_fault(w, i, lane, address, size);
    return NULL;
  }
  if (write && !r->writable) {
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_GLOBAL_READ_ONLY, i, w, lane), "%s to offset %llu of '%s'",
                   i->text, (unsigned long long)(address - r->base), r->name);
    return NULL;
  }
  return (unsigned char *)(uintptr_t)address;
}

static unsigned char *windowed(ptx_warp *w, const ptx_ins *i, kva_ptx_finding_kind kind, int lane, uint64_t address,
                               uint32_t size, unsigned char *base, uint64_t limit) {
  if (size <= limit && address <= limit - size) return base + address;
  window_fault(w, i, kind, lane, address, size, limit);
  return NULL;
}

static unsigned char *shared_place(ptx_warp *w, const ptx_ins *i, int lane, uint64_t address, uint32_t size) {
  uint32_t limit = w->cta->launch->shared_bytes;
  const ptx_cta *owner = ptx_owner(w, &address);
  return windowed(w, i, KVA_PTX_SHARED_BOUNDS, lane, address, size, owner ? owner->shared : NULL, owner ? limit : 0);
}

unsigned char *kva_ptx_resolve(ptx_warp *w, const ptx_ins *i, ptx_space space, int lane, uint64_t address,
                               uint32_t size, bool write) {
  const ptx_launch *launch = w->cta->launch;
  if (space == PTX_GENERIC && (space = kva_ptx_space_of(&address)) == PTX_SHARED) space = PTX_CLUSTER;
  if (address & (size - 1)) {
    kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_MISALIGNED, i, w, lane),
                   "%s of %u bytes at address 0x%llx, which is no multiple of %u", i->text, size,
                   (unsigned long long)address, size);
    return NULL;
  }
  switch (space) {
  case PTX_SHARED:
    return windowed(w, i, KVA_PTX_SHARED_BOUNDS, lane, address, size, w->cta->shared, launch->shared_bytes);
  case PTX_CLUSTER: return shared_place(w, i, lane, address, size);
  case PTX_LOCAL: {
    uint64_t thread = (uint64_t)w->id * PTX_LANES + (uint64_t)lane;
    unsigned char *own = w->cta->local ? w->cta->local + thread * launch->kernel->local_bytes : NULL;
    return windowed(w, i, KVA_PTX_LOCAL_BOUNDS, lane, address, size, own, launch->kernel->local_bytes);
  }
  case PTX_PARAM:
    return windowed(w, i, KVA_PTX_PARAM_BOUNDS, lane, address, size, launch->params, launch->kernel->param_bytes);
  default: return global_place(w, i, lane, address, size, write);
  }
}
