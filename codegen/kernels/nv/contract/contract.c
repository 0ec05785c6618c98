/* See contract.h. Windows are products of matrices, too: the columns are all used positions of all lines, the depth is
 * (k, lead, tap), and elements are computed from these coordinates. A block of threads computes bm x bn results. It
 * walks the depth in slices of bk; a ring of `stages` tiles in shared memory holds the next slices:
 *
 *   fill slices 0 .. stages - 2
 *   for every slice s:  wait until its copies are complete; barrier
 *                       start filling slice s + stages - 1, in place of slice s - 1
 *                       sums += tile of a * tile of b
 *   sums -> shared memory, in place of the ring if they fit there: barrier before
 *   barrier; every warp takes rows of the block through the epilogue to memory
 *
 * A factor that is a tensor in memory, with rows at multiples of 16 bytes, is copied asynchronously; elements past the
 * edges are 0. Any other factor (a fused producer, odd row lengths) is computed element by element into registers
 * during the products of the current slice, and stored after them. Neither requires the tile to divide the shape.
 *
 * Every result is one sum over k in the order of the target's instructions, whatever the grid. */
#include "codegen/kernels/nv/contract/contract.h"
#include "ir/dialect.h"
#include "ir/dialect_nv.h"

enum {
  COPY_BYTES = 16,
  GROUP = 8,        /* rows of blocks that run concurrently, to share columns in L2 */
  FEW_BLOCKS = 160, /* fewer leave multiprocessors idle: smaller tiles */
  WARP = 32,
  LARGE_BLOCK = 256,
};

/* ---- tile -------------------------------------------------------------------------------------------------------- */

static int64_t ceil_of(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

double kva_gpu_blocks(const kva_gpu_tile *x, int64_t bm, int64_t bn) {
  int64_t m = 4096, n = 4096, batch = 1;
  kva_expr_is_const(x->c->rows, &m);
  kva_expr_is_const(x->columns, &n);
  kva_expr_is_const(x->c->batch, &batch);
  return (double)ceil_of(m, bm) * (double)ceil_of(n, bn) * (double)batch;
}

/* Tensor cores multiply factors of 16 bits (both have one type). Sums are floats, whatever the type of the results. */
static bool suits_tensor_cores(const kva_node *n) {
  return kva_is_half(kva_operand_type(n, 0)->dtype);
}

static void set_engine(kva_gpu_tile *x, const kva_gpu_engine *engine) {
  bool matrix = engine == &kva_gpu_mma;
  x->dtype = matrix ? kva_operand_type(x->c->n, 0)->dtype : x->c->type;
  x->engine = engine;
  x->bk = matrix ? 32 : 8;
  x->stages = matrix ? 4 : 3;
  x->threads = matrix ? 128 : 256;
}

/* 128 if the extent fills that, blocks are many, and registers suffice for what passes through them. */
static void choose_tile(kva_gpu_tile *x) {
  int64_t n;
  x->bm = x->bn = 128;
  if (kva_expr_is_const(x->c->rows, &n) && n <= 64) x->bm = 64;
  if (kva_expr_is_const(x->columns, &n) && n <= 64) x->bn = 64;
  if (x->bn == 128 && kva_gpu_blocks(x, x->bm, x->bn) < FEW_BLOCKS) x->bn = 64;
  if (x->bm == 128 && kva_gpu_blocks(x, x->bm, x->bn) < FEW_BLOCKS) x->bm = 64;
  bool crowded = x->engine == &kva_gpu_mma && !x->a.from && !x->b.from;
  if (crowded || x->c->type == KVA_F64) x->bm = x->bn = 64;
  int64_t across = x->engine == &kva_gpu_mma ? 2 : 16; /* warps, threads */
  x->wm = x->bm / across, x->wn = x->bn / across;
}

static int64_t element_bytes(const kva_gpu_tile *x) {
  return kva_dtype_bits(x->dtype) / 8;
}

static int64_t copy_elements(const kva_gpu_tile *x) {
  return COPY_BYTES / element_bytes(x);
}

/* ---- elements and edges ------------------------------------------------------------------------------------------ */

static kva_dim outer_extent(const kva_gpu_tile *x, const kva_gpu_factor *f) {
  return f->is_b ? x->columns : x->c->rows;
}

static const kva_expr *outer_start(const kva_gpu_tile *x, const kva_gpu_factor *f) {
  return f->is_b ? x->col0 : x->row0;
}

/* Column `j` of all: its line and position. */
static void find_column(const kva_gpu_tile *x, const kva_expr *j, kva_contract_at *at) {
  bool one = kva_expr_is(x->c->lines, 1);
  at->line = one ? kva_gpu_num(x, 0) : kva_expr_div(x->e, j, x->c->used);
  at->position = one ? j : kva_expr_mod(x->e, j, x->c->used);
}

/* Splits step kk of the whole depth: taps vary fastest, then leads. */
static void depth_at(const kva_gpu_tile *x, const kva_expr *kk, kva_contract_at *at) {
  const kva_expr *lead = kva_gpu_div(x, kk, x->c->taps);
  at->tap = kva_gpu_mod(x, kk, x->c->taps);
  at->lead = kva_gpu_mod(x, lead, x->c->leads);
  at->k = kva_gpu_div(x, lead, x->c->leads);
}

static kva_kval element(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *batch, const kva_expr *outer,
                        const kva_expr *kk) {
  kva_contract_at at = {.batch = batch};
  depth_at(x, kk, &at);
  if (!f->is_b) {
    at.row = outer;
    return x->c->a(x->c, &at);
  }
  const kva_expr *moved = kva_gpu_times(x, at.tap, x->c->spread);
  find_column(x, outer, &at);
  at.phase = kva_gpu_mod(x, moved, x->c->stride);
  at.position = kva_gpu_plus(x, at.position, kva_gpu_div(x, moved, x->c->stride));
  return x->c->b(x->c, &at);
}

/* Slices and tiles that end with the extent need no checks. */
static bool is_whole(kva_dim extent, int64_t tile) {
  int64_t n;
  return kva_expr_is_const(extent, &n) && n % tile == 0;
}

/* How many of `n` elements from `first` on are inside. */
static const kva_expr *inside(const kva_gpu_tile *x, kva_dim extent, int64_t tile, const kva_expr *first, int64_t n) {
  if (is_whole(extent, tile)) return kva_gpu_num(x, n);
  const kva_expr *left = kva_expr_max(x->e, kva_expr_sub(x->e, extent, first), kva_gpu_num(x, 0));
  return kva_expr_min(x->e, left, kva_gpu_num(x, n));
}

static kva_kval is_inside(const kva_gpu_tile *x, kva_dim extent, int64_t tile, const kva_expr *at) {
  return is_whole(extent, tile) ? kva_k_const_i(x->kb, KVA_BOOL, 1) : kva_k_index_lt(x->kb, at, extent);
}

/* ---- factors that can be copied ---------------------------------------------------------------------------------- */

static bool is_multiple(const kva_expr *e, int64_t n) {
  if (e->kind != KVA_EXPR_SUM) return false;
  bool ok = e->constant % n == 0;
  for (uint32_t t = 0; t < e->n_terms; t++) ok &= e->terms[t].coefficient % n == 0;
  return ok;
}

/* A factor is copied if its element is a plain load whose index has stride 1 along the ring's rows and is otherwise a
 * multiple of the copy size, as is the run's length. The load that is emitted to find out is dead code. */
static void probe(kva_gpu_tile *x, kva_gpu_factor *f) {
  const kva_expr *const *p = f->symbols, *along = p[f->along_depth ? KVA_GPU_DEPTH : KVA_GPU_OUTER], *coefficient,
                        *rest;
  kva_kval v = element(x, f, p[KVA_GPU_BATCH], p[KVA_GPU_OUTER], p[KVA_GPU_DEPTH]);
  if (f->along_depth == f->row_is_step || v->op != KVA_K_LOAD || v->n_args) return;
  if (v->buf->space != KVA_K_PARAM || v->buf->dtype != x->dtype || v->buf->written) return;
  if (!kva_expr_affine(x->e, v->index, along, &coefficient, &rest) || !kva_expr_is(coefficient, 1)) return;
  kva_dim run = f->along_depth ? x->depth : outer_extent(x, f);
  if (!is_multiple(rest, copy_elements(x)) || !is_whole(run, copy_elements(x))) return;
  f->from = v->buf;
  f->index = v->index;
}

static void look_at_factor(kva_gpu_tile *x, kva_gpu_factor *f, bool is_b) {
  f->is_b = is_b;
  f->along_depth = is_b ? x->c->along_depth : !x->c->across_rows;
  f->row_is_step = x->engine == &kva_gpu_simt || !f->along_depth;
  f->symbols[KVA_GPU_BATCH] = kva_expr_fresh(x->e, "batch", 0, x->c->batch);
  f->symbols[KVA_GPU_OUTER] = kva_expr_fresh(x->e, "outer", 0, outer_extent(x, f));
  f->symbols[KVA_GPU_DEPTH] = kva_expr_fresh(x->e, "k", 0, x->depth);
  probe(x, f);
}

static void place_factor(kva_gpu_tile *x, kva_gpu_factor *f) {
  bool simt = x->engine == &kva_gpu_simt;
  f->outer = f->is_b ? x->bn : x->bm;
  f->length = (f->row_is_step ? f->outer : x->bk) + (simt ? copy_elements(x) : 0);
  f->at = x->stage;
  x->stage += f->length * (f->row_is_step ? x->bk : f->outer);
  if (!f->from)
    f->fetched = kva_k_local(x->kb, f->is_b ? "next_b" : "next_a", x->c->type, f->outer * x->bk / x->threads);
}

/* ---- filling the ring -------------------------------------------------------------------------------------------- */

/* Element i of this thread's share of a tile: adjacent threads take adjacent memory. */
typedef struct share {
  const kva_expr *outer, *k; /* in the tile */
} share;

static share share_of(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *i) {
  const kva_expr *at = kva_gpu_plus(x, x->thread, kva_gpu_times(x, i, x->threads));
  int64_t run = f->along_depth ? x->bk : f->outer;
  const kva_expr *within = kva_gpu_mod(x, at, run), *row = kva_gpu_div(x, at, run);
  return f->along_depth ? (share){row, within} : (share){within, row};
}

static const kva_expr *ring_at(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *stage,
                               const kva_expr *row, const kva_expr *position) {
  const kva_expr *in_stage = kva_expr_addi(x->e, x->engine->place(x, f, row, position), f->at);
  return kva_gpu_plus(x, kva_gpu_times(x, stage, x->stage), in_stage);
}

/* Registers: elements of the slice that starts at k0. */
static void fetch(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *k0) {
  kva_kb *kb = x->kb;
  kva_kloop *i = kva_k_loop_begin(kb, KVA_K_UNROLL, kva_gpu_num(x, f->outer * x->bk / x->threads), "i");
  share s = share_of(x, f, i->var);
  const kva_expr *outer = kva_gpu_plus(x, outer_start(x, f), s.outer), *k = kva_gpu_plus(x, k0, s.k);
  kva_kval there = kva_k_and(kb, is_inside(x, outer_extent(x, f), f->outer, outer), is_inside(x, x->depth, x->bk, k));
  kva_kval before = kva_k_guard_begin(kb, there);
  kva_kval v = element(x, f, x->batch, outer, k);
  kva_k_guard_end(kb, before);
  kva_k_store(kb, f->fetched, i->var, kva_k_select(kb, there, v, kva_k_const(kb, x->c->type, 0)));
  kva_k_loop_end(kb, i);
}

static void put(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *stage) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_gpu_num(x, f->outer * x->bk / x->threads), "i");
  share s = share_of(x, f, i->var);
  const kva_expr *to = ring_at(x, f, stage, f->row_is_step ? s.k : s.outer, f->row_is_step ? s.outer : s.k);
  kva_k_store(x->kb, x->ring, to, kva_k_load(x->kb, f->fetched, i->var));
  kva_k_loop_end(x->kb, i);
}

/* Copy number `at` of a tile. */
static void copy(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *stage, const kva_expr *k0,
                 const kva_expr *at) {
  int64_t n = copy_elements(x), run = f->along_depth ? x->bk : f->outer;
  const kva_expr *position = kva_gpu_times(x, kva_gpu_mod(x, at, run / n), n), *row = kva_gpu_div(x, at, run / n);
  const kva_expr *o = kva_gpu_plus(x, outer_start(x, f), f->along_depth ? row : position);
  const kva_expr *k = kva_gpu_plus(x, k0, f->along_depth ? position : row);
  const kva_expr *bytes = kva_expr_mul(x->e, inside(x, outer_extent(x, f), f->outer, o, f->along_depth ? 1 : n),
                                       inside(x, x->depth, x->bk, k, f->along_depth ? n : 1));
  const kva_expr *to[] = {x->batch, o, k};
  kva_kintrinsic m = {.op = KVA_NV_copy_async,
                      .places = {{x->ring, ring_at(x, f, stage, row, position)},
                                 {f->from, kva_expr_substitute(x->e, f->index, KVA_GPU_PROBES, f->symbols, to)}}};
  m.indices[0] = kva_gpu_times(x, bytes, element_bytes(x));
  kva_k_intrinsic(x->kb, &m, NULL);
}

static void copy_tile(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *stage, const kva_expr *k0) {
  int64_t copies = f->outer * x->bk / copy_elements(x), rounds = ceil_of(copies, x->threads);
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_UNROLL, kva_gpu_num(x, rounds), "i");
  const kva_expr *at = kva_gpu_plus(x, x->thread, kva_gpu_times(x, i->var, x->threads));
  kva_kinstr *some =
      copies % x->threads ? kva_k_if_begin(x->kb, kva_k_index_lt(x->kb, at, kva_gpu_num(x, copies))) : NULL;
  copy(x, f, stage, k0, at);
  if (some) kva_k_if_end(x->kb, some);
  kva_k_loop_end(x->kb, i);
}

static void intrinsic(const kva_gpu_tile *x, kva_intrinsic_id op, int32_t number) {
  kva_kintrinsic m = {.op = op, .numbers = {number}};
  kva_k_intrinsic(x->kb, &m, NULL);
}

typedef void (*factor_step)(const kva_gpu_tile *x, const kva_gpu_factor *f, const kva_expr *at);

/* For factors that pass through registers. */
static void computed(const kva_gpu_tile *x, factor_step step, const kva_expr *at) {
  if (!x->a.from) step(x, &x->a, at);
  if (!x->b.from) step(x, &x->b, at);
}

static bool has_copies(const kva_gpu_tile *x) {
  return x->a.from || x->b.from;
}

/* The part of filling slice s that does not wait: copies and loads. Slices after the last are omitted, but their copy
 * group is committed, so that waiting can count groups: at the end all open groups are empty. */
static kva_kval start_slice(const kva_gpu_tile *x, const kva_expr *s) {
  kva_kval any = kva_k_index_lt(x->kb, s, x->slices);
  const kva_expr *k0 = kva_gpu_times(x, s, x->bk), *stage = kva_gpu_mod(x, s, x->stages);
  kva_kinstr *branch = kva_gpu_if_needed(x, any);
  if (x->a.from) copy_tile(x, &x->a, stage, k0);
  if (x->b.from) copy_tile(x, &x->b, stage, k0);
  computed(x, fetch, k0);
  if (branch) kva_k_if_end(x->kb, branch);
  if (has_copies(x)) intrinsic(x, KVA_NV_copy_commit, 0);
  return any;
}

static void finish_slice(const kva_gpu_tile *x, const kva_expr *s, kva_kval any) {
  if (x->a.from && x->b.from) return;
  kva_kinstr *branch = kva_gpu_if_needed(x, any);
  computed(x, put, kva_gpu_mod(x, s, x->stages));
  if (branch) kva_k_if_end(x->kb, branch);
}

static void over_depth(const kva_gpu_tile *x) {
  /* Unrolled if the code is small: ptxas spills in some f32 kernels after a loop. */
  kva_kloop_kind kind = x->engine == &kva_gpu_simt ? KVA_K_UNROLL : KVA_K_SERIAL;
  kva_kloop *first = kva_k_loop_begin(x->kb, kind, kva_gpu_num(x, x->stages - 1), "first");
  finish_slice(x, first->var, start_slice(x, first->var));
  kva_k_loop_end(x->kb, first);
  kva_kloop *s = kva_k_loop_begin(x->kb, KVA_K_SERIAL, x->slices, "s");
  if (has_copies(x)) intrinsic(x, KVA_NV_copy_wait, (int32_t)x->stages - 2);
  intrinsic(x, KVA_TILE_block_barrier, 0);
  const kva_expr *next = kva_expr_addi(x->e, s->var, x->stages - 1);
  kva_kval any = start_slice(x, next);
  x->engine->multiply(x, kva_gpu_mod(x, s->var, x->stages));
  finish_slice(x, next, any);
  kva_k_loop_end(x->kb, s);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Elements that a thread stores at once if rows of the result start at multiples of them. */
static uint32_t store_width(const kva_gpu_tile *x) {
  int64_t n, width = COPY_BYTES * 8 / kva_dtype_bits(x->c->type);
  bool rows = kva_expr_is(x->c->lines, 1) && kva_expr_is_const(x->columns, &n) && n % width == 0;
  return rows ? (uint32_t)width : 1;
}

static void store_results(const kva_gpu_tile *x) {
  kva_kb *kb = x->kb;
  kva_k_barrier(kb);
  kva_kloop *r = kva_k_loop_begin(kb, KVA_K_THREAD, inside(x, x->c->rows, x->bm, x->row0, x->bm), "row");
  r->subgroup = WARP;
  kva_kloop *j = kva_k_loop_begin(kb, KVA_K_THREAD, inside(x, x->columns, x->bn, x->col0, x->bn), "column");
  j->width = store_width(x);
  kva_contract_at at = {.batch = x->batch, .row = kva_gpu_plus(x, x->row0, r->var)};
  find_column(x, kva_gpu_plus(x, x->col0, j->var), &at);
  kva_contract_store(x->c, &at, kva_k_load(kb, x->staged, kva_gpu_staged(x, r->var, j->var)));
  kva_k_loop_end(kb, j);
  kva_k_loop_end(kb, r);
}

/* ---- kernel ------------------------------------------------------------------------------------------------------ */

/* Block -> (batch, block of rows, block of columns): GROUP blocks of rows vary before the columns advance. */
static void place_block(kva_gpu_tile *x, const kva_expr *item, const kva_expr *rows, const kva_expr *columns) {
  const kva_expr *matrix = kva_expr_mul(x->e, rows, columns), *in = kva_expr_mod(x->e, item, matrix);
  const kva_expr *group = kva_gpu_times(x, columns, GROUP),
                 *first = kva_gpu_times(x, kva_expr_div(x->e, in, group), GROUP);
  const kva_expr *within = kva_expr_mod(x->e, in, group);
  const kva_expr *height = kva_expr_min(x->e, kva_gpu_num(x, GROUP), kva_expr_sub(x->e, rows, first));
  const kva_expr *row = kva_gpu_plus(x, first, kva_expr_mod(x->e, within, height));
  x->batch = kva_expr_div(x->e, item, matrix);
  x->row0 = kva_gpu_times(x, kva_k_name(x->kb, row, rows), x->bm);
  x->col0 = kva_gpu_times(x, kva_k_name(x->kb, kva_expr_div(x->e, within, height), columns), x->bn);
}

static void clear_sums(const kva_gpu_tile *x) {
  kva_kloop *i = kva_k_loop_begin(x->kb, KVA_K_UNROLL, x->sums->extent, "i");
  kva_k_store(x->kb, x->sums, i->var, kva_k_const(x->kb, x->c->type, 0));
  kva_k_loop_end(x->kb, i);
}

static void create_buffers(kva_gpu_tile *x) {
  bool matrix = x->engine == &kva_gpu_mma;
  x->sums = kva_k_local(x->kb, "sums", x->c->type, x->bm * x->bn / x->threads);
  x->fragments_a = kva_k_local(x->kb, "fragments_a", matrix ? x->dtype : x->c->type, matrix ? x->wm / 2 : x->wm);
  x->fragments_b = kva_k_local(x->kb, "fragments_b", matrix ? x->dtype : x->c->type, matrix ? x->wn / 2 : x->wn);
}

/* Results reuse the ring's memory if they fit. */
static void create_shared(kva_gpu_tile *x) {
  x->ring = kva_k_shared(x->kb, "ring", x->dtype, x->stages * x->stage);
  x->staged = kva_k_shared(x->kb, "staged", x->c->type, x->bm * x->bn);
  int64_t ring = x->stages * x->stage * element_bytes(x), staged = x->bm * x->bn * kva_dtype_bits(x->c->type) / 8;
  if (staged <= ring) x->staged->over = x->ring;
}

/* Engine and factors. Warpgroups begin with kva_gpu_mma, whose factors are theirs. */
static void look_at(kva_gpu_tile *x, const kva_contraction *c, const kva_gpu_engine *engine) {
  *x = (kva_gpu_tile){.c = c, .kb = c->l->kb, .e = c->l->kb->exprs};
  x->columns = kva_expr_mul(x->e, c->lines, c->used);
  x->depth = kva_expr_muli(x->e, c->depth, c->leads * c->taps);
  set_engine(x, engine);
  look_at_factor(x, &x->a, false);
  look_at_factor(x, &x->b, true);
}

static void prepare(kva_gpu_tile *x, bool wgmma) {
  if (wgmma) {
    kva_gpu_wgmma_set(x);
  } else {
    choose_tile(x);
    place_factor(x, &x->a);
    place_factor(x, &x->b);
    create_buffers(x);
  }
  create_shared(x);
  x->kb->kernel->threads = (uint32_t)x->threads;
  /* One block per multiprocessor because of its shared memory: its threads may have all registers. */
  if (x->threads >= LARGE_BLOCK) x->kb->kernel->blocks = 1;
  x->slices = kva_expr_ceildiv(x->e, x->depth, kva_gpu_num(x, x->bk));
}

static void make_sums(kva_gpu_tile *x) {
  if (!x->engine) {
    kva_gpu_wgmma_block(x);
    return;
  }
  clear_sums(x);
  kva_kval any = x->c->any ? x->c->any(x->c, &(kva_contract_at){.batch = x->batch}) : NULL;
  kva_kinstr *branch = any ? kva_gpu_if_needed(x, any) : NULL;
  over_depth(x);
  if (branch) kva_k_if_end(x->kb, branch);
  if (x->staged->over) intrinsic(x, KVA_TILE_block_barrier, 0); /* other warps may still read the ring */
  x->engine->stage_sums(x);
}

static void emit(kva_lower *l, const kva_node *n, const kva_gpu_engine *engine, bool wgmma) {
  kva_contraction contraction = kva_contract_of(l, n), *c = &contraction;
  kva_kb *kb = l->kb;
  kva_gpu_tile x;
  look_at(&x, c, engine);
  prepare(&x, wgmma);
  const kva_expr *rows = kva_expr_ceildiv(x.e, c->rows, kva_gpu_num(&x, x.bm));
  const kva_expr *columns = kva_expr_ceildiv(x.e, x.columns, kva_gpu_num(&x, x.bn));
  const kva_expr *items = kva_expr_mul(x.e, kva_expr_mul(x.e, rows, columns), c->batch);
  kva_kloop *g = kva_k_loop_begin(kb, KVA_K_GRID, items, "item");
  place_block(&x, g->var, rows, columns);
  kva_kloop *t = kva_k_loop_begin(kb, KVA_K_THREAD, kva_gpu_num(&x, x.threads), "thread");
  x.thread = t->var;
  make_sums(&x);
  kva_k_loop_end(kb, t);
  store_results(&x);
  kva_k_loop_end(kb, g);
}

/* ---- refusal ----------------------------------------------------------------------------------------------------- */

/* Why blocks do not compute c's results at all. */
static const char *refuses(const kva_contraction *c) {
  if (!kva_dtype_is_float(c->type)) return "integers";
  return kva_contract_has_rows(c, c->gpu_rows) ? NULL : "few rows";
}

const char *kva_nv_wgmma_refuses(kva_lower *l, const kva_node *n) {
  kva_contraction c = kva_contract_of(l, n);
  const char *reason = refuses(&c);
  kva_gpu_tile x;
  if (reason) return reason;
  look_at(&x, &c, &kva_gpu_mma);
  return kva_gpu_wgmma_refuses(&x);
}

const char *kva_nv_mma_refuses(kva_lower *l, const kva_node *n) {
  kva_contraction c = kva_contract_of(l, n);
  const char *reason = refuses(&c);
  return reason || suits_tensor_cores(n) ? reason : "factors not of 16 bits";
}

const char *kva_nv_simt_refuses(kva_lower *l, const kva_node *n) {
  kva_contraction c = kva_contract_of(l, n);
  return refuses(&c);
}

void kva_nv_wgmma_emit(kva_lower *l, const kva_node *n) {
  emit(l, n, &kva_gpu_mma, true);
}

void kva_nv_mma_emit(kva_lower *l, const kva_node *n) {
  emit(l, n, &kva_gpu_mma, false);
}

void kva_nv_simt_emit(kva_lower *l, const kva_node *n) {
  emit(l, n, &kva_gpu_simt, false);
}
