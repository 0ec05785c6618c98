/* Atomics. Global ones are compare-and-swap loops on host memory, since CTAs run in parallel. The order of float sums
 * across CTAs depends on the scheduling of host threads. */
#include "runtime/ptxsim/exec.h"

bool kva_ptx_atomic_supported(ptx_atomic op, ptx_type type) {
  char kind = kva_ptx_type_kind(type);
  int bits = kva_ptx_type_bits(type);
  bool integer = (kind == 'u' || kind == 's') && bits >= 32;
  switch (op) {
  case PTX_ATOM_ADD: return integer || kind == 'f' || type == PTX_F16X2 || type == PTX_BF16X2;
  case PTX_ATOM_MIN:
  case PTX_ATOM_MAX: return integer;
  case PTX_ATOM_INC:
  case PTX_ATOM_DEC: return type == PTX_U32;
  case PTX_ATOM_CAS: return kind == 'b' && bits >= 16;
  default: return kind == 'b' && bits >= 32;
  }
}

static uint64_t add_float(ptx_type t, uint64_t a, uint64_t b) {
  uint32_t x = (uint32_t)a, y = (uint32_t)b;
  switch (t) {
  case PTX_F64: return ptx_bits64(ptx_f64(a) + ptx_f64(b));
  case PTX_F32: return ptx_bits32(ptx_f32(x) + ptx_f32(y));
  case PTX_F16: return store_f16(load_f16(x) + load_f16(y));
  case PTX_BF16: return store_bf16(load_bf16(x & 0xffffu) + load_bf16(y & 0xffffu));
  case PTX_F16X2: return add_float(PTX_F16, x & 0xffffu, y & 0xffffu) | add_float(PTX_F16, x >> 16, y >> 16) << 16;
  case PTX_BF16X2: return add_float(PTX_BF16, x & 0xffffu, y & 0xffffu) | add_float(PTX_BF16, x >> 16, y >> 16) << 16;
  default: return a + b;
  }
}

static bool less(ptx_type t, uint64_t a, uint64_t b) {
  if (t == PTX_S32) return (int32_t)a < (int32_t)b;
  return t == PTX_S64 ? (int64_t)a < (int64_t)b : a < b;
}

static uint64_t combine(const ptx_ins *i, uint64_t old, uint64_t b, uint64_t c) {
  ptx_type t = (ptx_type)i->type;
  switch (i->sub) {
  case PTX_ATOM_ADD: return add_float(t, old, b);
  case PTX_ATOM_MIN: return less(t, b, old) ? b : old;
  case PTX_ATOM_MAX: return less(t, old, b) ? b : old;
  case PTX_ATOM_AND: return old & b;
  case PTX_ATOM_OR: return old | b;
  case PTX_ATOM_XOR: return old ^ b;
  case PTX_ATOM_EXCH: return b;
  case PTX_ATOM_CAS: return old == b ? c : old;
  case PTX_ATOM_INC: return old >= b ? 0 : old + 1;
  default: return old == 0 || old > b ? b : old - 1;
  }
}

/* Replaces the value at `place` and returns the old one. */
#define UPDATE(T)                                                                                         \
  static uint64_t update_##T(T *place, const ptx_ins *i, uint64_t b, uint64_t c) {                        \
    T old = __atomic_load_n(place, __ATOMIC_RELAXED), value;                                              \
    do {                                                                                                  \
      value = (T)combine(i, old, b, c);                                                                   \
    } while (!__atomic_compare_exchange_n(place, &old, value, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)); \
    return old;                                                                                           \
  }
UPDATE(uint16_t)
UPDATE(uint32_t)
UPDATE(uint64_t)

uint64_t kva_ptx_atomic_update(unsigned char *place, const ptx_ins *i, uint64_t b, uint64_t c) {
  void *p = place;
  if (i->bytes == 8) return update_uint64_t(p, i, b, c);
  return i->bytes == 4 ? update_uint32_t(p, i, b, c) : update_uint16_t(p, i, b, c);
}

static uint64_t lane_value(const ptx_warp *w, const ptx_ins *i, uint32_t slot, int lane) {
  return i->bytes == 8 ? ptx_reg64(w, slot)[lane] : ptx_reg32(w, slot)[lane];
}

/* A failed compare-and-swap is a poll: another CTA gets a turn before it is retried. */
static void note_global(ptx_warp *w, bool changed) {
  w->cta->went_on |= changed;
  if (!changed && w->cta->launch->kernel->polls) w->polled = w->cta->polled = true;
}

void kva_ptx_exec_atom(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint64_t a[PTX_LANES];
  kva_ptx_addresses(w, i->src[0], i->imm, a);
  for (uint32_t m = mask; m; m &= m - 1) {
    int lane = ptx_first(m);
    uint64_t address = a[lane], old = ~0ull;
    unsigned char *place = kva_ptx_resolve(w, i, (ptx_space)i->space, lane, address, i->bytes, true);
    bool shared = kva_ptx_is_shared(i, &address);
    if (place && shared) kva_ptx_race_atomic(w, i, lane, (uint32_t)address, i->bytes);
    if (place && !shared && w->cta->launch->tracks_global) kva_ptx_global_atomic(w, i, lane, address, i->bytes);
    uint64_t c = i->sub == PTX_ATOM_CAS ? lane_value(w, i, i->src[2], lane) : 0;
    uint64_t b = lane_value(w, i, i->src[1], lane);
    if (place) old = kva_ptx_atomic_update(place, i, b, c);
    if (!shared) note_global(w, i->sub != PTX_ATOM_CAS || old == b);
    if (i->dst == PTX_NONE) continue;
    if (i->bytes == 8)
      ptx_reg64(w, i->dst)[lane] = old;
    else
      ptx_reg32(w, i->dst)[lane] = (uint32_t)old & (i->bytes == 4 ? PTX_ALL : 0xffffu);
  }
}
