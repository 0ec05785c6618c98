/* ldmatrix, stmatrix, mma.sync. Fragment layout as in the PTX ISA (matrix fragments for mma.m16n8k16): lane l holds row
 * l / 4 and columns 2 (l % 4), + 1 of each 8 x 8 block. Products are summed in f32 in order of k, one of the orders
 * that the hardware may use. */
#include "runtime/ptxsim/exec.h"

enum { ROWS = 8, ROW_BYTES = 16 };

static bool whole_warp(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  if (mask == PTX_ALL) return true;
  kva_ptx_detail(kva_ptx_add_finding(w->cta, KVA_PTX_INACTIVE_LANE, i, w, ptx_first(mask)),
                 "%s is run by lanes 0x%08x only", i->text, mask);
  return false;
}

/* Lane 8 q + r supplies the address of row r of matrix q. */
static unsigned char *row_place(ptx_warp *w, const ptx_ins *i, const uint64_t *a, int lane, bool write,
                                uint32_t *address) {
  uint64_t at = a[lane];
  unsigned char *place = kva_ptx_resolve(w, i, (ptx_space)i->space, lane, at, ROW_BYTES, write);
  if (i->space == PTX_GENERIC && kva_ptx_space_of(&at) != PTX_SHARED) return NULL;
  *address = (uint32_t)at;
  return place;
}

static void count(ptx_warp *w, const ptx_ins *i, const uint64_t *a) {
  for (uint32_t q = 0; q < i->n && !w->cta->launch->options.no_counters; q++)
    kva_ptx_count_shared(w->cta, i, a, 0xffu << 8 * q, ROW_BYTES);
}

/* Row and column of the element in a lane's half-register. */
static int row_of(int lane, int half, bool transposed) {
  return transposed ? 2 * (lane & 3) + half : lane >> 2;
}
static int column_of(int lane, int half, bool transposed) {
  return transposed ? lane >> 2 : 2 * (lane & 3) + half;
}

void kva_ptx_exec_ldmatrix(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint64_t a[PTX_LANES];
  if (!whole_warp(w, i, mask)) return;
  kva_ptx_addresses(w, i->src[0], i->imm, a);
  count(w, i, a);
  uint16_t m[4][ROWS][ROWS];
  memset(m, 0xff, sizeof m);
  for (int lane = 0; lane < ROWS * i->n; lane++) {
    uint32_t address = 0;
    const unsigned char *row = row_place(w, i, a, lane, false, &address);
    if (!row) continue;
    kva_ptx_race_read(w, i, lane, address, ROW_BYTES);
    memcpy(m[lane / ROWS][lane % ROWS], row, ROW_BYTES);
  }
  for (int q = 0; q < i->n; q++) {
    uint32_t *d = ptx_reg32(w, i->list[q]);
    for (int l = 0; l < PTX_LANES; l++)
      d[l] = m[q][row_of(l, 0, i->sub)][column_of(l, 0, i->sub)] |
             (uint32_t)m[q][row_of(l, 1, i->sub)][column_of(l, 1, i->sub)] << 16;
  }
}

void kva_ptx_exec_stmatrix(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  uint64_t a[PTX_LANES];
  if (!whole_warp(w, i, mask)) return;
  kva_ptx_addresses(w, i->src[0], i->imm, a);
  count(w, i, a);
  uint16_t m[4][ROWS][ROWS];
  for (int q = 0; q < i->n; q++) {
    const uint32_t *s = ptx_reg32(w, i->list[q]);
    for (int l = 0; l < PTX_LANES; l++) {
      m[q][row_of(l, 0, i->sub)][column_of(l, 0, i->sub)] = (uint16_t)s[l];
      m[q][row_of(l, 1, i->sub)][column_of(l, 1, i->sub)] = (uint16_t)(s[l] >> 16);
    }
  }
  for (int lane = 0; lane < ROWS * i->n; lane++) {
    uint32_t address = 0;
    unsigned char *row = row_place(w, i, a, lane, true, &address);
    if (!row) continue;
    kva_ptx_race_write(w, i, lane, address, ROW_BYTES, m[lane / ROWS][lane % ROWS]);
    memcpy(row, m[lane / ROWS][lane % ROWS], ROW_BYTES);
  }
}

static float half(const ptx_ins *i, uint32_t bits) {
  return i->type == PTX_BF16 ? load_bf16(bits & 0xffffu) : load_f16(bits);
}

/* Register r of A holds rows + 8 (r % 2) and columns + 8 (r / 2); of B, rows + 8 r; of C and D, two registers per row,
 * rows + 8 (r / 2). */
static void load_a(const ptx_warp *w, const ptx_ins *i, const uint32_t *slots, float a[16][16]) {
  for (int r = 0; r < i->n / 4; r++) {
    const uint32_t *s = ptx_reg32(w, slots[r]);
    for (int l = 0; l < PTX_LANES; l++) {
      int row = (l >> 2) + 8 * (r & 1), column = 2 * (l & 3) + 8 * (r >> 1);
      a[row][column] = half(i, s[l]);
      a[row][column + 1] = half(i, s[l] >> 16);
    }
  }
}
static void load_b(const ptx_warp *w, const ptx_ins *i, const uint32_t *slots, float b[16][8]) {
  for (int r = 0; r < i->n / 8; r++) {
    const uint32_t *s = ptx_reg32(w, slots[r]);
    for (int l = 0; l < PTX_LANES; l++) {
      int row = 2 * (l & 3) + 8 * r;
      b[row][l >> 2] = half(i, s[l]);
      b[row + 1][l >> 2] = half(i, s[l] >> 16);
    }
  }
}
static void load_c(const ptx_warp *w, const uint32_t *slots, float c[16][8]) {
  for (int r = 0; r < 4; r++) {
    const uint32_t *s = ptx_reg32(w, slots[r]);
    for (int l = 0; l < PTX_LANES; l++) c[(l >> 2) + 8 * (r >> 1)][2 * (l & 3) + (r & 1)] = ptx_f32(s[l]);
  }
}

void kva_ptx_exec_mma(ptx_warp *w, const ptx_ins *i, uint32_t mask) {
  if (!whole_warp(w, i, mask)) return;
  float a[16][16], b[16][8], c[16][8];
  int na = i->n / 4, nb = i->n / 8;
  load_a(w, i, i->list + 4, a);
  load_b(w, i, i->list + 4 + na, b);
  load_c(w, i->list + 4 + na + nb, c);
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < i->n; k++)
      for (int column = 0; column < 8; column++) c[row][column] += a[row][k] * b[k][column];
  for (int r = 0; r < 4; r++) {
    uint32_t *d = ptx_reg32(w, i->list[r]);
    for (int l = 0; l < PTX_LANES; l++) d[l] = ptx_bits32(c[(l >> 2) + 8 * (r >> 1)][2 * (l & 3) + (r & 1)]);
  }
  w->cta->counters.matrix_flops += 2ull * 16 * 8 * i->n;
}
