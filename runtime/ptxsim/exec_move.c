/* Moves, selection, predicate logic, address spaces. */
#include "runtime/ptxsim/exec.h"

static void copy32(ptx_warp *w, uint32_t to, const uint32_t *from, uint32_t mask) {
  uint32_t *d = ptx_reg32(w, to);
  if (mask == PTX_ALL)
    memmove(d, from, PTX_LANES * sizeof *d);
  else
    ptx_blend32(d, from, mask);
}
static void copy64(ptx_warp *w, uint32_t to, const uint64_t *from, uint32_t mask) {
  uint64_t *d = ptx_reg64(w, to);
  if (mask == PTX_ALL)
    memmove(d, from, PTX_LANES * sizeof *d);
  else
    ptx_blend64(d, from, mask);
}

void kva_ptx_exec_mov32(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  copy32(w, i->dst, ptx_reg32(w, i->src[0]), mask);
}
void kva_ptx_exec_mov64(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  copy64(w, i->dst, ptx_reg64(w, i->src[0]), mask);
}
void kva_ptx_exec_mov_pred(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  ptx_set_pred(w, i->dst, ptx_pred(w, i->src[0]), mask);
}
void kva_ptx_exec_widen(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  const uint32_t *a = ptx_reg32(w, i->src[0]);
  uint64_t *d = ptx_reg64(w, i->dst);
  (void)mask; /* only the next instruction reads the result */
  for (int l = 0; l < PTX_LANES; l++) d[l] = a[l];
}

/* The clocks count instructions of this warp: monotonic and reproducible, unlike time. */
void kva_ptx_exec_clock(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint64_t wide[PTX_LANES];
  uint32_t narrow[PTX_LANES];
  for (int l = 0; l < PTX_LANES; l++) wide[l] = w->steps, narrow[l] = (uint32_t)w->steps;
  if (i->flag)
    copy64(w, i->dst, wide, mask);
  else
    copy32(w, i->dst, narrow, mask);
}

/* Packs parts of 1, 2 or 4 bytes; the first is the lowest. */
void kva_ptx_exec_pack(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  bool wide = i->bytes * i->n == 8;
  uint64_t whole[PTX_LANES] = {0};
  for (uint32_t k = 0; k < i->n; k++) {
    const uint32_t *part = ptx_reg32(w, i->list[k]);
    uint32_t shift = k * i->bytes * 8, keep = i->bytes == 4 ? PTX_ALL : (1u << i->bytes * 8) - 1;
    for (int l = 0; l < PTX_LANES; l++) whole[l] |= (uint64_t)(part[l] & keep) << shift;
  }
  uint32_t narrow[PTX_LANES];
  for (int l = 0; l < PTX_LANES; l++) narrow[l] = (uint32_t)whole[l];
  if (wide)
    copy64(w, i->dst, whole, mask);
  else
    copy32(w, i->dst, narrow, mask);
}
void kva_ptx_exec_unpack(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint64_t whole[PTX_LANES];
  uint32_t part[PTX_LANES], keep = i->bytes == 4 ? PTX_ALL : (1u << i->bytes * 8) - 1;
  bool wide = i->bytes * i->n == 8;
  for (int l = 0; l < PTX_LANES; l++) whole[l] = wide ? ptx_reg64(w, i->src[0])[l] : ptx_reg32(w, i->src[0])[l];
  for (uint32_t k = 0; k < i->n; k++) {
    for (int l = 0; l < PTX_LANES; l++) part[l] = (uint32_t)(whole[l] >> k * i->bytes * 8) & keep;
    copy32(w, i->list[k], part, mask);
  }
}

void kva_ptx_exec_selp32(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint32_t out[PTX_LANES];
  memcpy(out, ptx_reg32(w, i->src[1]), sizeof out);
  ptx_blend32(out, ptx_reg32(w, i->src[0]), ptx_pred(w, i->src[2]));
  copy32(w, i->dst, out, mask);
}
void kva_ptx_exec_selp64(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint64_t out[PTX_LANES];
  memcpy(out, ptx_reg64(w, i->src[1]), sizeof out);
  ptx_blend64(out, ptx_reg64(w, i->src[0]), ptx_pred(w, i->src[2]));
  copy64(w, i->dst, out, mask);
}

void kva_ptx_exec_pred_logic(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint32_t a = ptx_pred(w, i->src[0]), b = i->sub == 3 ? 0 : ptx_pred(w, i->src[1]);
  uint32_t value = i->sub == 0 ? a & b : i->sub == 1 ? a | b : i->sub == 2 ? a ^ b : ~a;
  ptx_set_pred(w, i->dst, value, mask);
}

/* Global and constant addresses are generic addresses; the other spaces have windows. */
static uint64_t window(ptx_space space) {
  switch (space) {
  case PTX_SHARED: return PTX_SHARED_WINDOW;
  case PTX_LOCAL: return PTX_LOCAL_WINDOW;
  case PTX_PARAM: return PTX_PARAM_WINDOW;
  default: return 0;
  }
}
void kva_ptx_exec_cvta(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint64_t base = window((ptx_space)i->space), out[PTX_LANES];
  const uint64_t *a = ptx_reg64(w, i->src[0]);
  for (int l = 0; l < PTX_LANES; l++) out[l] = i->flag ? a[l] - base : a[l] + base;
  copy64(w, i->dst, out, mask);
}
void kva_ptx_exec_isspace(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint64_t base = window((ptx_space)i->space);
  const uint64_t *a = ptx_reg64(w, i->src[0]);
  uint32_t value = 0;
  for (int l = 0; l < PTX_LANES; l++) value |= (uint32_t)(a[l] >> PTX_WINDOW_SHIFT == base >> PTX_WINDOW_SHIFT) << l;
  ptx_set_pred(w, i->dst, value, mask);
}

static uint32_t with_boolean(const ptx_warp *w, const ptx_ins *i, uint32_t value) {
  if (!i->sub) return value;
  uint32_t c = ptx_pred(w, i->src[2]);
  return i->sub == 1 ? value & c : i->sub == 2 ? value | c : value ^ c;
}
void kva_ptx_exec_setp(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint32_t value = i->compare(w, i), first = with_boolean(w, i, value), second = with_boolean(w, i, ~value);
  ptx_set_pred(w, i->dst, first, mask);
  if (i->dst2 != PTX_NONE) ptx_set_pred(w, i->dst2, second, mask);
}
void kva_ptx_exec_setp_pair(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  ptx_ins low = *i, high = *i;
  for (int k = 0; k < 2; k++) {
    const uint32_t *from = ptx_reg32(w, i->src[k]);
    uint32_t *lo = ptx_reg32(w, low.src[k] = i->list[k]), *hi = ptx_reg32(w, high.src[k] = i->list[2 + k]);
    for (int l = 0; l < PTX_LANES; l++) lo[l] = from[l] & 0xffffu, hi[l] = from[l] >> 16;
  }
  uint32_t first = with_boolean(w, i, i->compare(w, &low)), second = with_boolean(w, i, i->compare(w, &high));
  ptx_set_pred(w, i->dst, first, mask);
  ptx_set_pred(w, i->dst2, second, mask);
}
void kva_ptx_exec_set(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint32_t value = with_boolean(w, i, i->compare(w, i)), out[PTX_LANES];
  for (int l = 0; l < PTX_LANES; l++) out[l] = value >> l & 1 ? (uint32_t)i->imm : 0;
  copy32(w, i->dst, out, mask);
}
