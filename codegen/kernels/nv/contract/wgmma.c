/* Blocks by warpgroups: one warp fills the ring through tensor maps, two warpgroups multiply from it, 64 rows of the
 * block each.
 *
 *   producer:  for every slice s: wait until stage s % stages is empty; announce its bytes; load the boxes
 *   consumers: for every slice s: wait until it is full; 4 products of depth 16; when those of slice s - 1 are done,
 *              its stage is empty
 *
 * Barriers carry the parity of their phase: the n-th use of a stage waits for parity n mod 2 when full, and before that
 * for the other parity when empty, which holds immediately the first time.
 *
 * A box is 128 bytes wide, which the 128-byte swizzle keeps free of bank conflicts: 64 of the depth by the whole tile
 * if the depth is contiguous in memory, else 64 of the tile by the slice's 64 of the depth. Elements past the edges are
 * 0. One producer warp instead of a warpgroup: registers go to warps in fours, so 288 threads have 168 each, as 384
 * would. Consumers need no more, none are moved between warpgroups (setmaxnreg), and all threads store results. */
#include "ir/dialect.h"
#include "codegen/kernels/nv/contract/contract.h"
#include "ir/dialect_nv.h"

enum {
  CONSUMERS = 256, /* threads */
  THREADS = CONSUMERS + 32,
  GROUP_THREADS = 128,
  GROUP_ROWS = 64,
  BOX = 64, /* elements of 128 bytes, and depth of a slice */
  STEP = 16,
  ROWS = 128,
  STAGES = 4,
  MANY_BLOCKS = 120, /* for wide tiles */
  SOME_BLOCKS = 60,  /* fewer are for smaller tiles */
};

/* ---- tensor maps ------------------------------------------------------------------------------------------------- */

/* index = steps[OUTER] * outer + steps[DEPTH] * k + steps[BATCH] * batch. */
static bool steps_of(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr **steps) {
  const kva_expr *rest = f->index;
  for (int i = 0; i < KVA_GPU_PROBES; i++) {
    if (!kva_expr_affine(x->e, rest, f->symbols[i], &steps[i], &rest)) return false;
  }
  for (int i = 0; i < KVA_GPU_PROBES; i++) {
    for (int k = 0; k < KVA_GPU_PROBES; k++)
      if (kva_expr_uses(steps[i], f->symbols[k])) return false;
  }
  return kva_expr_is(rest, 0);
}

static bool can_map(const kva_gpu_tile *x, const kva_gpu_factor *f) {
  const kva_expr *steps[KVA_GPU_PROBES];
  return f->from && steps_of(x, f, steps);
}

/* Bytes between rows or matrices. Tensor maps have no stride of 0, as an empty row would have. */
static const kva_expr *stride_of(const kva_gpu_tile *x, const kva_expr *step) {
  return kva_expr_max(x->e, kva_gpu_times(x, step, 2), kva_gpu_num(x, 16));
}

/* A factor that is the same for the whole batch has a map of one matrix. */
static int32_t create_map(const kva_gpu_tile *x, kva_gpu_factor *f) {
  const kva_expr *steps[KVA_GPU_PROBES];
  bool ok = steps_of(x, f, steps);
  KVA_ASSERT(ok);
  f->batched = !kva_expr_is(x->c->batch, 1) && !kva_expr_is(steps[KVA_GPU_BATCH], 0);
  kva_dim outer = f->is_b ? x->columns : x->c->rows;
  kva_ktensor_map m = {.buf = f->from, .rank = f->batched ? 3 : 2, .swizzle = 2 * BOX};
  kva_dim depth = kva_expr_max(x->e, x->depth, kva_gpu_num(x, 1)); /* tensor maps cannot be empty */
  m.dims[0] = f->along_depth ? depth : outer;
  m.dims[1] = f->along_depth ? outer : depth;
  m.dims[2] = x->c->batch;
  m.strides[1] = stride_of(x, steps[f->along_depth ? KVA_GPU_OUTER : KVA_GPU_DEPTH]);
  m.strides[2] = stride_of(x, steps[KVA_GPU_BATCH]);
  m.box[0] = BOX;
  m.box[1] = (int32_t)(f->along_depth ? f->outer : BOX);
  m.box[2] = 1;
  return kva_k_tensor_map(x->kb, &m);
}

/* ---- tile -------------------------------------------------------------------------------------------------------- */

static void place_factor(kva_gpu_tile *x, kva_gpu_factor *f) {
  f->outer = f->is_b ? x->bn : x->bm;
  f->at = x->stage;
  f->map = create_map(x, f);
  x->stage += f->outer * BOX;
}

const char *kva_gpu_wgmma_refuses(const kva_gpu_tile *x) {
  bool has = kva_target_has(x->c->l->target, KVA_TARGET_TENSOR_MAPS | KVA_TARGET_WARPGROUP_MMA);
  if (!has) return "no warpgroup mma";
  if (!kva_is_half(x->dtype)) return "factors not of 16 bits";
  if (x->c->any || !can_map(x, &x->a) || !can_map(x, &x->b)) return "no tensor map describes a factor";
  return kva_expr_is(x->depth, 0) || kva_gpu_blocks(x, ROWS, 128) < SOME_BLOCKS ? "few blocks" : NULL;
}

void kva_gpu_wgmma_set(kva_gpu_tile *x) {
  x->engine = NULL;
  x->bm = ROWS;
  x->bn = kva_gpu_blocks(x, ROWS, 256) < MANY_BLOCKS ? 128 : 256;
  x->bk = BOX;
  x->stages = STAGES;
  x->threads = THREADS;
  place_factor(x, &x->a);
  place_factor(x, &x->b);
  x->barriers = kva_k_shared(x->kb, "barriers", KVA_U64, 2 * STAGES);
  x->sums = kva_k_local(x->kb, "sums", KVA_F32, x->bm * x->bn / CONSUMERS);
}

/* ---- barriers ---------------------------------------------------------------------------------------------------- */

static const kva_expr *stage_of(const kva_gpu_tile *x, const kva_expr *slice) {
  return kva_gpu_mod(x, slice, STAGES);
}

static const kva_expr *phase_of(const kva_gpu_tile *x, const kva_expr *slice) {
  return kva_gpu_mod(x, kva_gpu_div(x, slice, STAGES), 2);
}

static kva_kplace full(const kva_gpu_tile *x, const kva_expr *stage) {
  return (kva_kplace){x->barriers, stage};
}

static kva_kplace empty(const kva_gpu_tile *x, const kva_expr *stage) {
  return (kva_kplace){x->barriers, kva_expr_addi(x->e, stage, STAGES)};
}

static void barrier(const kva_gpu_tile *x, kva_intrinsic_id op, kva_kplace at, const kva_expr *index, int32_t number) {
  kva_kintrinsic m = {.op = op, .places = {at}, .indices = {index}, .numbers = {number}};
  kva_k_intrinsic(x->kb, &m, NULL);
}

static void plain(const kva_gpu_tile *x, kva_intrinsic_id op, int32_t first, int32_t second) {
  kva_kintrinsic m = {.op = op, .numbers = {first, second}};
  kva_k_intrinsic(x->kb, &m, NULL);
}

static void create_barriers(const kva_gpu_tile *x) {
  kva_kb *kb = x->kb;
  kva_kinstr *first = kva_k_if_begin(kb, kva_k_index_eq(kb, x->thread, kva_gpu_num(x, 0)));
  for (int64_t s = 0; s < STAGES; s++) {
    barrier(x, KVA_NV_mbarrier_init, full(x, kva_gpu_num(x, s)), NULL, 1);
    barrier(x, KVA_NV_mbarrier_init, empty(x, kva_gpu_num(x, s)), NULL, CONSUMERS / 32);
  }
  plain(x, KVA_NV_mbarrier_fence, 0, 0);
  kva_k_if_end(kb, first);
  plain(x, KVA_TILE_block_barrier, 0, 0);
}

/* ---- producer ---------------------------------------------------------------------------------------------------- */

static void load_box(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *slice, int64_t from) {
  const kva_expr *stage = stage_of(x, slice), *k = kva_gpu_times(x, slice, BOX);
  const kva_expr *outer = kva_expr_addi(x->e, f->is_b ? x->col0 : x->row0, from);
  const kva_expr *to = kva_expr_addi(x->e, kva_gpu_times(x, stage, x->stage), f->at + from * BOX);
  kva_kintrinsic m = {.op = KVA_NV_tensor_load,
                      .places = {{x->ring, to}, full(x, stage)},
                      .indices = {f->along_depth ? k : outer, f->along_depth ? outer : k},
                      .numbers = {f->map}};
  if (f->batched) m.indices[2] = x->batch;
  kva_k_intrinsic(x->kb, &m, NULL);
}

static void load_factor(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *slice) {
  int64_t box = f->along_depth ? f->outer : BOX;
  for (int64_t from = 0; from < f->outer; from += box) load_box(x, f, slice, from);
}

static void produce(const kva_gpu_tile *x) {
  kva_kb *kb = x->kb;
  kva_kinstr *one = kva_k_if_begin(kb, kva_k_index_eq(kb, x->thread, kva_gpu_num(x, CONSUMERS)));
  kva_kloop *s = kva_k_loop_begin(kb, KVA_K_SERIAL, x->slices, "s");
  const kva_expr *stage = stage_of(x, s->var);
  const kva_expr *before = kva_expr_sub(x->e, kva_gpu_num(x, 1), phase_of(x, s->var));
  barrier(x, KVA_NV_mbarrier_wait, empty(x, stage), before, 0);
  barrier(x, KVA_NV_mbarrier_expect, full(x, stage), NULL, (int32_t)(2 * x->stage));
  load_factor(x, &x->a, s->var);
  load_factor(x, &x->b, s->var);
  kva_k_loop_end(kb, s);
  kva_k_if_end(kb, one);
}

/* ---- consumers --------------------------------------------------------------------------------------------------- */

/* Step k of the depth in a factor's tile, `from` elements of `outer` further. */
static kva_kplace operand(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *slice, const kva_expr *from,
                          int64_t k) {
  const kva_expr *tile = kva_expr_addi(x->e, kva_gpu_times(x, stage_of(x, slice), x->stage), f->at);
  int64_t advance = f->along_depth ? k * STEP : k * STEP * BOX;
  return (kva_kplace){x->ring, kva_expr_addi(x->e, kva_gpu_plus(x, tile, kva_gpu_times(x, from, BOX)), advance)};
}

static void over_sums(const kva_gpu_tile *x, kva_intrinsic_id op, int32_t first, int32_t second) {
  kva_kintrinsic m = {.op = op, .places = {{x->sums, kva_gpu_num(x, 0)}}, .numbers = {first, second}};
  kva_k_intrinsic(x->kb, &m, NULL);
}

static int32_t sums_of(const kva_gpu_tile *x) {
  return (int32_t)(x->bm * x->bn / CONSUMERS);
}

static void multiply(const kva_gpu_tile *x, const kva_expr *slice) {
  enum { CHUNK_BYTES = BOX * BOX * 2 }; /* between groups of 64 of `outer` if the depth is not contiguous */
  const kva_expr *group = kva_gpu_div(x, x->thread, GROUP_THREADS);
  over_sums(x, KVA_NV_wgmma_fence, sums_of(x), 0);
  for (int64_t k = 0; k < BOX / STEP; k++) {
    kva_kintrinsic m = {.op = KVA_NV_wgmma,
                        .places = {{x->sums, kva_gpu_num(x, 0)},
                                   operand(x, &x->a, slice, kva_gpu_times(x, group, GROUP_ROWS), k),
                                   operand(x, &x->b, slice, kva_gpu_num(x, 0), k)},
                        .indices = {kva_gpu_num(x, 1)},
                        .numbers = {(int32_t)x->bn, !x->a.along_depth, !x->b.along_depth, CHUNK_BYTES, CHUNK_BYTES}};
    kva_k_intrinsic(x->kb, &m, NULL);
  }
  plain(x, KVA_NV_wgmma_commit, 0, 0);
}

static void clear_sums(const kva_gpu_tile *x) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_UNROLL, x->sums->extent, "i");
  kva_k_store(x->kb, x->sums, i->var, kva_k_const(x->kb, KVA_F32, 0));
  kva_k_loop_end(x->kb, i);
}

/* 1 for one thread of each warp, except 0 in the first slice, before which no slice was read. */
static const kva_expr *releases(const kva_gpu_tile *x, const kva_expr *slice) {
  const kva_expr *others = kva_expr_min(x->e, kva_gpu_mod(x, x->thread, 32), kva_gpu_num(x, 1));
  return kva_expr_mul(x->e, kva_expr_sub(x->e, kva_gpu_num(x, 1), others),
                      kva_expr_min(x->e, slice, kva_gpu_num(x, 1)));
}

/* The products of a slice run while the warpgroup waits for the next one. The condition keeps registers from being
 * copied where the path without any slice joins, which must not happen while products run. */
static void over_slices(const kva_gpu_tile *x) {
  kva_kb *kb = x->kb;
  kva_kinstr *some = kva_gpu_if_needed(x, kva_k_index_lt(kb, kva_gpu_num(x, 0), x->slices));
  kva_kloop *s = kva_k_loop_begin(kb, KVA_K_SERIAL, x->slices, "s");
  barrier(x, KVA_NV_mbarrier_wait, full(x, stage_of(x, s->var)), phase_of(x, s->var), 0);
  multiply(x, s->var);
  over_sums(x, KVA_NV_wgmma_wait, 1, sums_of(x));
  const kva_expr *last = stage_of(x, kva_expr_addi(x->e, s->var, STAGES - 1));
  barrier(x, KVA_NV_mbarrier_arrive_if, empty(x, last), releases(x, s->var), 0);
  kva_k_loop_end(kb, s);
  over_sums(x, KVA_NV_wgmma_wait, 0, sums_of(x));
  if (some) kva_k_if_end(kb, some);
}

static void consume(const kva_gpu_tile *x) {
  clear_sums(x);
  over_slices(x);
  plain(x, KVA_NV_named_barrier, 1, CONSUMERS); /* the ring has been read: `staged` may alias it */
  const kva_expr *row = kva_gpu_times(x, kva_gpu_div(x, x->thread, 32), 16);
  kva_gpu_stage_fragments(x, row, kva_gpu_num(x, 0), 16, x->bn);
}

void kva_gpu_wgmma_block(kva_gpu_tile *x) {
  kva_kb *kb = x->kb;
  create_barriers(x);
  kva_kinstr *role = kva_k_if_begin(kb, kva_k_index_lt(kb, x->thread, kva_gpu_num(x, CONSUMERS)));
  consume(x);
  kva_k_if_else(kb, role);
  produce(x);
  kva_k_if_end(kb, role);
}
