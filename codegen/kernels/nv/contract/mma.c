/* Slices by tensor cores (mma of 16 x 8 x 16): four warps, two by two, each wm x wn results in fragments of registers.
 *
 * Rows of the ring are 64 bytes along the depth, or 128 or 256 along `outer`. A matrix instruction loads the same 16
 * bytes of eight adjacent rows at once, a bank conflict without swizzling. So 16-byte pieces are rotated by the row:
 * within 64 bytes by row / 2 (two rows fill the banks), within 128 by row. */
#include "codegen/kernels/nv/contract/contract.h"

enum { WARP = 32, PIECE = 8 /* elements of 16 bytes */, PIECES_OF_BANKS = 8, DEPTH = 16 /* of an instruction */ };

/* `rotation`: row modulo 8. */
static const kva_expr *piece_at(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *piece,
                                const kva_expr *rotation) {
  int64_t pieces = f->length / PIECE;
  if (pieces >= PIECES_OF_BANKS) {
    const kva_expr *group = kva_gpu_times(x, kva_gpu_div(x, piece, PIECES_OF_BANKS), PIECES_OF_BANKS);
    return kva_gpu_plus(x, group, kva_gpu_mod(x, kva_gpu_plus(x, piece, rotation), PIECES_OF_BANKS));
  }
  return kva_gpu_mod(x, kva_gpu_plus(x, piece, kva_gpu_div(x, rotation, PIECES_OF_BANKS / pieces)), pieces);
}

static const kva_expr *place(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *row,
                             const kva_expr *position) {
  const kva_expr *piece = piece_at(x, f, kva_gpu_div(x, position, PIECE), kva_gpu_mod(x, row, PIECES_OF_BANKS));
  const kva_expr *within = kva_gpu_plus(x, kva_gpu_times(x, piece, PIECE), kva_gpu_mod(x, position, PIECE));
  return kva_gpu_plus(x, kva_gpu_times(x, row, f->length), within);
}

static const kva_expr *lane_of(const kva_gpu_tile *x) {
  return kva_gpu_mod(x, x->thread, WARP);
}

/* The warp's first row or column in the block. */
static const kva_expr *warp_start(const kva_gpu_tile *x, bool is_b) {
  const kva_expr *warp = kva_gpu_div(x, x->thread, WARP);
  return is_b ? kva_gpu_times(x, kva_gpu_div(x, warp, 2), x->wn) : kva_gpu_times(x, kva_gpu_mod(x, warp, 2), x->wm);
}

/* Four 8 x 8 matrices: 16 of `outer` from `first` on by 16 of the depth from k on. Their order in registers is that of
 * the instruction's operand: of a first along the rows, of b first along the depth. */
static void load(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *stage, const kva_expr *first,
                 int64_t k, kva_kbuf *to, const kva_expr *at) {
  const kva_expr *lane = lane_of(x), *low = kva_gpu_mod(x, lane, 8);
  const kva_expr *second = kva_gpu_mod(x, kva_gpu_div(x, lane, 8), 2), *third = kva_gpu_div(x, lane, 16);
  const kva_expr *along_outer = f->is_b ? third : second, *along_depth = f->is_b ? second : third;
  const kva_expr *row, *piece;
  if (f->row_is_step) {
    row = kva_gpu_plus(x, kva_expr_addi(x->e, low, k), kva_gpu_times(x, along_depth, 8));
    piece = kva_gpu_plus(x, kva_gpu_div(x, first, PIECE), along_outer);
  } else {
    row = kva_gpu_plus(x, kva_gpu_plus(x, first, low), kva_gpu_times(x, along_outer, 8));
    piece = kva_expr_addi(x->e, along_depth, k / PIECE);
  }
  const kva_expr *in_tile =
      kva_gpu_plus(x, kva_gpu_times(x, row, f->length), kva_gpu_times(x, piece_at(x, f, piece, low), PIECE));
  const kva_expr *from = kva_gpu_plus(x, kva_gpu_times(x, stage, x->stage), kva_expr_addi(x->e, in_tile, f->at));
  kva_kintrinsic m = {
      .op = KVA_TILE_load_matrix, .places = {{to, at}, {x->ring, from}}, .numbers = {4, f->row_is_step ? 1 : 0}};
  kva_k_intrinsic(x->kb, &m, NULL);
}

/* All fragments of a warp's rows (columns) at depth k of the slice. */
static void load_fragments(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *stage, int64_t k) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_gpu_num(x, (f->is_b ? x->wn : x->wm) / 16), "i");
  const kva_expr *first = kva_gpu_plus(x, warp_start(x, f->is_b), kva_gpu_times(x, i->var, 16));
  load(x, f, stage, first, k, f->is_b ? x->fragments_b : x->fragments_a, kva_gpu_times(x, i->var, 8));
  kva_k_loop_end(x->kb, i);
}

static const kva_expr *sum_at(const kva_gpu_tile *x, const kva_expr *i, const kva_expr *j) {
  return kva_gpu_times(x, kva_gpu_plus(x, kva_gpu_times(x, i, x->wn / 8), j), 4);
}

static void multiply_fragments(const kva_gpu_tile *x) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_gpu_num(x, x->wm / 16), "i");
  kva_kloop *j = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_gpu_num(x, x->wn / 8), "j");
  kva_kintrinsic m = {.op = KVA_TILE_mma,
                      .places = {{x->sums, sum_at(x, i->var, j->var)},
                                 {x->fragments_a, kva_gpu_times(x, i->var, 8)},
                                 {x->fragments_b, kva_gpu_times(x, j->var, 4)}}};
  kva_k_intrinsic(x->kb, &m, NULL);
  kva_k_loop_end(x->kb, j);
  kva_k_loop_end(x->kb, i);
}

static void multiply(const kva_gpu_tile *x, const kva_expr *stage) {
  for (int64_t k = 0; k < x->bk; k += DEPTH) {
    load_fragments(x, &x->a, stage, k);
    load_fragments(x, &x->b, stage, k);
    multiply_fragments(x);
  }
}

/* A thread has pairs of columns in row lane / 4 and in the row 8 further. */
void kva_gpu_stage_fragments(const kva_gpu_tile *x, const kva_expr *row, const kva_expr *column, int64_t rows,
                             int64_t columns) {
  kva_kb *kb = x->kb;
  const kva_expr *lane = lane_of(x);
  row = kva_gpu_plus(x, row, kva_gpu_div(x, lane, 4));
  column = kva_gpu_plus(x, column, kva_gpu_times(x, kva_gpu_mod(x, lane, 4), 2));
  kva_kloop *i = kva_k_loop_begin(kb, KVA_K_UNROLL, kva_gpu_num(x, rows / 16), "i");
  kva_kloop *j = kva_k_loop_begin(kb, KVA_K_UNROLL, kva_gpu_num(x, columns / 8), "j");
  kva_kloop *half = kva_k_loop_begin(kb, KVA_K_UNROLL, kva_gpu_num(x, 2), "half");
  const kva_expr *down = kva_gpu_plus(x, kva_gpu_times(x, i->var, 16), kva_gpu_times(x, half->var, 8));
  const kva_expr *to =
      kva_gpu_staged(x, kva_gpu_plus(x, row, down), kva_gpu_plus(x, column, kva_gpu_times(x, j->var, 8)));
  const kva_expr *pair = kva_gpu_plus(x, kva_gpu_times(x, i->var, columns / 8), j->var);
  const kva_expr *from = kva_gpu_plus(x, kva_gpu_times(x, pair, 4), kva_gpu_times(x, half->var, 2));
  for (int64_t c = 0; c < 2; c++)
    kva_k_store(kb, x->staged, kva_expr_addi(x->e, to, c), kva_k_load(kb, x->sums, kva_expr_addi(x->e, from, c)));
  kva_k_loop_end(kb, half);
  kva_k_loop_end(kb, j);
  kva_k_loop_end(kb, i);
}

static void stage_sums(const kva_gpu_tile *x) {
  kva_gpu_stage_fragments(x, warp_start(x, false), warp_start(x, true), x->wm, x->wn);
}

const kva_gpu_engine kva_gpu_mma = {place, multiply, stage_sums};
