/* Slices without tensor cores, for f32 and f64: a thread's wm x wn sums are runs of 4 rows by 4 columns, 64 apart in
 * the block, so that a warp reads each step's columns as consecutive 16-byte pieces and its rows as broadcasts. The
 * ring's rows are steps of the depth, 16 bytes longer than the tile: threads that store a run of the depth access
 * different banks. */
#include "codegen/kernels/nv/contract/contract.h"

enum { RUN = 4, SIDE = 16 /* threads along each edge of a block */ };

static const kva_expr *place(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *row,
                             const kva_expr *position) {
  return kva_gpu_plus(x, kva_gpu_times(x, row, f->length), position);
}

/* The row (column) of the block that is this thread's i-th; i = RUN * g + r. */
static const kva_expr *row_of(const kva_gpu_tile *x, bool is_b, const kva_expr *g, const kva_expr *r) {
  const kva_expr *side = is_b ? kva_gpu_mod(x, x->thread, SIDE) : kva_gpu_div(x, x->thread, SIDE);
  return kva_gpu_plus(x, kva_gpu_plus(x, kva_gpu_times(x, g, RUN * SIDE), kva_gpu_times(x, side, RUN)), r);
}

static void load_fragments(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *stage, const kva_expr *k) {
  int64_t n = f->is_b ? x->wn : x->wm;
  kva_kloop *g = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_gpu_num(x, n / RUN), "g");
  kva_kloop *r = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_gpu_num(x, RUN), "r");
  const kva_expr *in_tile = place(x, f, k, row_of(x, f->is_b, g->var, r->var));
  const kva_expr *from = kva_gpu_plus(x, kva_gpu_times(x, stage, x->stage), kva_expr_addi(x->e, in_tile, f->at));
  kva_kbuf *to = f->is_b ? x->fragments_b : x->fragments_a;
  kva_k_store(x->kb, to, kva_gpu_plus(x, kva_gpu_times(x, g->var, RUN), r->var), kva_k_load(x->kb, x->ring, from));
  kva_k_loop_end(x->kb, r);
  kva_k_loop_end(x->kb, g);
}

static void multiply(const kva_gpu_tile *x, const kva_expr *stage) {
  kva_kb *kb = x->kb;
  kva_kloop *k = kva_k_loop_begin(kb, KVA_K_UNROLL, kva_gpu_num(x, x->bk), "k");
  load_fragments(x, &x->a, stage, k->var);
  load_fragments(x, &x->b, stage, k->var);
  kva_kloop *i = kva_k_loop_begin(kb, KVA_K_UNROLL, kva_gpu_num(x, x->wm), "i");
  kva_kloop *j = kva_k_loop_begin(kb, KVA_K_UNROLL, kva_gpu_num(x, x->wn), "j");
  const kva_expr *at = kva_gpu_plus(x, kva_gpu_times(x, i->var, x->wn), j->var);
  kva_kval a = kva_k_load(kb, x->fragments_a, i->var), b = kva_k_load(kb, x->fragments_b, j->var);
  kva_k_store(kb, x->sums, at, kva_k_op(kb, KVA_K_fma, a, b, kva_k_load(kb, x->sums, at)));
  kva_k_loop_end(kb, j);
  kva_k_loop_end(kb, i);
  kva_k_loop_end(kb, k);
}

static void stage_sums(const kva_gpu_tile *x) {
  kva_kb *kb = x->kb;
  kva_kloop *i = kva_k_loop_begin(kb, KVA_K_UNROLL, kva_gpu_num(x, x->wm / RUN), "i");
  kva_kloop *r = kva_k_loop_begin(kb, KVA_K_UNROLL, kva_gpu_num(x, RUN), "r");
  kva_kloop *j = kva_k_loop_begin(kb, KVA_K_UNROLL, kva_gpu_num(x, x->wn / RUN), "j");
  const kva_expr *sum = kva_gpu_plus(x, kva_gpu_times(x, i->var, RUN), r->var), *zero = kva_gpu_num(x, 0);
  sum = kva_gpu_plus(x, kva_gpu_times(x, sum, x->wn), kva_gpu_times(x, j->var, RUN));
  const kva_expr *to = kva_gpu_staged(x, row_of(x, false, i->var, r->var), row_of(x, true, j->var, zero));
  for (int64_t c = 0; c < RUN; c++)
    kva_k_store(kb, x->staged, kva_expr_addi(x->e, to, c), kva_k_load(kb, x->sums, kva_expr_addi(x->e, sum, c)));
  kva_k_loop_end(kb, j);
  kva_k_loop_end(kb, r);
  kva_k_loop_end(kb, i);
}

const kva_gpu_engine kva_gpu_simt = {place, multiply, stage_sums};
