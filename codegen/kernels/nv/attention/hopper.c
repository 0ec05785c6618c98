/* See hopper.h. */
#include "codegen/kernels/nv/attention/hopper.h"
#include "codegen/kernels/nv/contract/contract.h"
#include "ir/dialect_nv.h"

enum {
  GROUPS = 2,
  GROUP_ROWS = 64,
  GROUP_THREADS = 128,
  ROWS = GROUPS * GROUP_ROWS,
  THREADS = GROUPS * GROUP_THREADS,
  LOADER = THREADS - GROUP_THREADS, /* the first thread of the last group to have its turn: the others have released */
  CHUNK = 8,                        /* elements of 16 bytes */
  TURN = 2,                         /* and 3 */
  OWN = 4,                          /* and 5: named barriers */
  BOX = 64,                         /* elements of 128 bytes */
  STEP = 16,
  TILES_BYTES = 200 * 1024, /* in shared memory */
  AXES = 4,
  WIDEST_GRADIENT = 128,
};

/* One barrier of each kind for every stage of each ring; the last for the own tiles. */
enum { FULL, EMPTY = KVA_HOPPER_RINGS, KINDS = 2 * KVA_HOPPER_RINGS };
/* What the loader loads next into a ring: a tile of the walk, of a head; left: how many tiles. It is in shared memory,
 * where it costs the other threads no registers. */
enum { NEXT_TILE, NEXT_LEFT, NEXT_HEAD, NEXT_BATCH, NEXT_FIELDS };

static kva_expr_ctx *exprs(const kva_hopper *w) {
  return w->f.s.kb->exprs;
}
static const kva_expr *num(const kva_hopper *w, int64_t v) {
  return kva_expr_const(exprs(w), v);
}
static const kva_expr *plus(const kva_hopper *w, const kva_expr *a, const kva_expr *b) {
  return kva_expr_add(exprs(w), a, b);
}
static const kva_expr *times(const kva_hopper *w, const kva_expr *a, int64_t v) {
  return kva_expr_muli(exprs(w), a, v);
}
static const kva_expr *over(const kva_hopper *w, const kva_expr *a, int64_t v) {
  return kva_expr_div(exprs(w), a, num(w, v));
}
static const kva_expr *modulo(const kva_hopper *w, const kva_expr *a, int64_t v) {
  return kva_expr_mod(exprs(w), a, num(w, v));
}

static void intrinsic(const kva_hopper *w, const kva_kintrinsic *m) {
  kva_k_intrinsic(w->f.s.kb, m, NULL);
}
static void plain(const kva_hopper *w, kva_intrinsic_id op, int32_t first, int32_t second) {
  intrinsic(w, &(kva_kintrinsic){.op = op, .numbers = {first, second}});
}

/* ---- tensor maps ------------------------------------------------------------------------------------------------- */

static bool is_multiple(const kva_expr *e, int64_t n) {
  bool ok = e->kind == KVA_EXPR_SUM && e->constant % n == 0;
  for (uint32_t t = 0; ok && t < e->n_terms; t++) ok = e->terms[t].coefficient % n == 0;
  return ok;
}

/* index = sum of steps[i] * symbols[i], with steps free of symbols. */
static bool steps_of(kva_expr_ctx *c, const kva_expr *index, const kva_expr *const *symbols, const kva_expr **steps) {
  for (int i = 0; i < AXES; i++) {
    if (!kva_expr_affine(c, index, symbols[i], &steps[i], &index)) return false;
  }
  for (int i = 0; i < AXES; i++) {
    for (int k = 0; k < AXES; k++)
      if (kva_expr_uses(steps[i], symbols[k])) return false;
  }
  return kva_expr_is(index, 0);
}

/* The tensor map of operand [b, head, position, d] if it is stored in memory with the elements of a head contiguous.
 * The load that is emitted to find out is dead code. */
static bool find_map(kva_lower *l, const kva_node *n, uint32_t operand, int64_t rows, kva_ktensor_map *out) {
  kva_expr_ctx *c = l->kb->exprs;
  const kva_type *t = kva_operand_type(n, operand);
  const kva_expr *symbols[AXES], *steps[AXES];
  for (int i = 0; i < AXES; i++) symbols[i] = kva_expr_fresh(c, "axis", 0, t->dims[i]);
  kva_kval v = l->operand(l, n, operand, symbols);
  bool plain_load = v->op == KVA_K_LOAD && !v->n_args && v->buf->space == KVA_K_PARAM && !v->buf->written;
  if (!plain_load || v->buf->dtype != t->dtype || !steps_of(c, v->index, symbols, steps)) return false;
  if (!kva_expr_is(steps[AXES - 1], 1)) return false;
  const kva_expr *row = kva_expr_muli(c, t->dims[AXES - 1], 2);
  *out = (kva_ktensor_map){.buf = v->buf, .rank = AXES, .swizzle = 2 * BOX};
  for (int i = 0; i < AXES; i++) {
    int axis = AXES - 1 - i;
    out->dims[i] = kva_expr_max(c, t->dims[axis], kva_expr_const(c, 1));      /* tensor maps cannot be empty */
    out->strides[i] = kva_expr_max(c, kva_expr_muli(c, steps[axis], 2), row); /* without rows it would be 0 */
    out->box[i] = 1;
    if (!i) continue;
    if (!is_multiple(steps[axis], 8)) return false;
    if (!kva_expr_is(steps[axis], 0)) continue;
    if (!kva_expr_is(t->dims[axis], 1)) return false; /* the same for all */
    out->strides[i] = kva_expr_mul(c, out->strides[i - 1], out->dims[i - 1]);
  }
  out->box[0] = BOX;
  out->box[1] = (int32_t)rows;
  return true;
}

/* A block with few rows is better served by the smaller one of flash_forward.c and flash_backward.c. */
static bool has_many_rows(const kva_hopper *w, const kva_node *n) {
  int64_t rows;
  return !kva_expr_is_const(kva_operand_type(n, w->own[0])->dims[2], &rows) || rows > KVA_FLASH_ROWS;
}

static bool find_maps(kva_hopper *w, kva_lower *l, const kva_node *n) {
  bool ok = true;
  for (uint32_t i = 0; ok && i < KVA_HOPPER_RINGS; i++)
    ok = find_map(l, n, w->far_side[i], w->far, &w->maps[w->far_side[i]]);
  for (uint32_t i = 0; ok && i < w->n_own; i++) ok = find_map(l, n, w->own[i], ROWS, &w->maps[w->own[i]]);
  return ok;
}

const char *kva_hopper_choose(kva_hopper *w, kva_lower *l, const kva_node *n, int64_t most, int64_t tile_bytes) {
  int64_t d = 0;
  kva_expr_is_const(kva_operand_type(n, KVA_ATTENTION_Q)->dims[3], &d);
  int64_t row_bytes = (d + BOX - 1) / BOX * BOX * 2;
  w->far = most;
  while (w->far * row_bytes > tile_bytes) w->far /= 2;
  w->stages = (TILES_BYTES - w->n_own * ROWS * row_bytes) / (2 * w->far * row_bytes) >= 4 ? 4 : 2;
  bool half = kva_dtype_bits(kva_operand_type(n, KVA_ATTENTION_Q)->dtype) == 16;
  if (!kva_target_has(l->target, KVA_TARGET_TENSOR_MAPS | KVA_TARGET_WARPGROUP_MMA)) return "no warpgroup mma";
  if (!half) return "not of 16 bits";
  if (!has_many_rows(w, n)) return "few rows";
  return find_maps(w, l, n) ? NULL : "no tensor map describes an operand";
}

bool kva_hopper_has_gradients(const kva_node *n, kva_expr_ctx *c) {
  kva_attention a = kva_attention_get(n, c);
  bool operands = kva_operand(n, KVA_ATTENTION_MASK) || kva_operand(n, KVA_ATTENTION_SLOPES);
  return !operands && a.attrs.softcap <= 0 && a.attrs.scale > 0 && a.D <= WIDEST_GRADIENT;
}

/* ---- range of positions ------------------------------------------------------------------------------------------ */

static const kva_expr *at_least_0(const kva_hopper *w, const kva_expr *x) {
  return kva_expr_max(exprs(w), num(w, 0), x);
}

static bool is_causal(const kva_hopper *w) {
  return w->f.s.a.attrs.causal || w->f.s.a.attrs.window > 0;
}

static const kva_expr *most_tiles(const kva_hopper *w) {
  return kva_expr_ceildiv(exprs(w), w->f.s.far_extent, num(w, w->far));
}

/* The walk takes far positions begin .. end in whole tiles. (Bounds of names are tight, so that empty loops are
 * recognised.) */
static void set_walk(kva_hopper *w, const kva_expr *begin, const kva_expr *end) {
  kva_expr_ctx *c = exprs(w);
  const kva_expr *most = kva_expr_addi(c, most_tiles(w), 1);
  w->first_tile = kva_k_name(w->f.s.kb, kva_expr_min(c, over(w, begin, w->far), most), most);
  const kva_expr *tiles = kva_expr_sub(c, kva_expr_ceildiv(c, end, num(w, w->far)), w->first_tile);
  w->tiles = kva_k_name(w->f.s.kb, at_least_0(w, tiles), most);
}

/* The keys that the block's queries see. The last tile may extend past the end, which must be masked, too. */
static void walk_keys(kva_hopper *w) {
  kva_expr_ctx *c = exprs(w);
  const kva_attention *a = &w->f.s.a;
  const kva_expr *position = plus(w, w->f.s.first, a->offset);
  const kva_expr *begin = num(w, 0), *end = a->S, *seen_by_all = a->S;
  if (is_causal(w)) {
    end = at_least_0(w, kva_expr_min(c, a->S, kva_expr_addi(c, position, ROWS)));
    seen_by_all = at_least_0(w, kva_expr_min(c, a->S, kva_expr_addi(c, position, 1)));
  }
  if (a->attrs.window > 0) begin = at_least_0(w, kva_expr_addi(c, position, 1 - a->attrs.window));
  set_walk(w, begin, end);
  bool tests = a->attrs.window > 0 || kva_operand(a->n, KVA_ATTENTION_MASK);
  const kva_expr *masked = kva_expr_max(c, num(w, 1), kva_expr_sub(c, w->tiles, over(w, seen_by_all, w->far)));
  w->masked = tests ? w->tiles : kva_k_name(w->f.s.kb, masked, kva_expr_addi(c, most_tiles(w), 2));
}

/* The queries that see the block's keys. Those past the end have probability 0. */
static void walk_queries(kva_hopper *w) {
  kva_expr_ctx *c = exprs(w);
  const kva_attention *a = &w->f.s.a;
  const kva_expr *position = kva_expr_sub(c, w->f.s.first, a->offset), *begin = num(w, 0), *end = a->T;
  if (is_causal(w)) begin = at_least_0(w, position);
  if (a->attrs.window > 0)
    end = at_least_0(w, kva_expr_min(c, a->T, kva_expr_addi(c, position, ROWS - 1 + a->attrs.window)));
  set_walk(w, begin, end);
  const kva_expr *see_all = at_least_0(w, kva_expr_addi(c, position, ROWS - 1));
  const kva_expr *masked = kva_expr_sub(c, kva_expr_ceildiv(c, see_all, num(w, w->far)), w->first_tile);
  w->masked = a->attrs.window > 0 ? w->tiles : num(w, 0);
  if (a->attrs.window <= 0 && is_causal(w))
    w->masked =
        kva_k_name(w->f.s.kb, kva_expr_min(c, w->tiles, at_least_0(w, masked)), kva_expr_addi(c, most_tiles(w), 1));
}

const kva_expr *kva_hopper_position(const kva_hopper *w, const kva_expr *i) {
  if (w->by_key) return times(w, plus(w, w->first_tile, i), w->far);
  const kva_expr *last = kva_expr_addi(exprs(w), plus(w, w->first_tile, w->tiles), -1);
  return times(w, kva_expr_sub(exprs(w), last, i), w->far);
}

kva_kloop *kva_hopper_each_head(kva_hopper *w) {
  kva_query_tile *s = &w->f.s;
  kva_kloop *head = kva_k_loop_begin(s->kb, KVA_K_SERIAL, s->a.group, "head");
  s->h = plus(w, kva_expr_mul(exprs(w), s->h_kv, s->a.group), head->var);
  return head;
}

/* ---- rings and barriers ------------------------------------------------------------------------------------------ */

static int64_t tile_elements(const kva_hopper *w) {
  return w->far * w->f.width;
}

static const kva_expr *stage_of(const kva_hopper *w, const kva_expr *i) {
  return modulo(w, i, w->stages);
}
static const kva_expr *phase_of(const kva_hopper *w, const kva_expr *i) {
  return modulo(w, over(w, i, w->stages), 2);
}

static const kva_expr *tile_at(const kva_hopper *w, kva_hopper_ring ring, const kva_expr *i) {
  return times(w, kva_expr_addi(exprs(w), stage_of(w, i), ring * w->stages), tile_elements(w));
}

static kva_kplace barrier_at(const kva_hopper *w, int64_t kind, const kva_expr *i) {
  return (kva_kplace){w->barriers, kva_expr_addi(exprs(w), stage_of(w, i), kind * w->stages)};
}
static kva_kplace barrier_of_own(const kva_hopper *w) {
  return (kva_kplace){w->barriers, num(w, KINDS * w->stages)};
}

static void barrier(const kva_hopper *w, kva_intrinsic_id op, kva_kplace at, const kva_expr *index, int64_t number) {
  intrinsic(w, &(kva_kintrinsic){.op = op, .places = {at}, .indices = {index}, .numbers = {(int32_t)number}});
}

void kva_hopper_wait_own(const kva_hopper *w) {
  barrier(w, KVA_NV_mbarrier_wait, barrier_of_own(w), num(w, 0), 0);
}

void kva_hopper_wait_full(const kva_hopper *w, kva_hopper_ring ring, const kva_expr *i) {
  barrier(w, KVA_NV_mbarrier_wait, barrier_at(w, FULL + ring, i), phase_of(w, i), 0);
}

void kva_hopper_release(const kva_hopper *w, kva_hopper_ring ring, const kva_expr *i) {
  kva_expr_ctx *c = exprs(w);
  const kva_expr *first = kva_expr_sub(c, num(w, 1), kva_expr_min(c, w->f.lane, num(w, 1)));
  barrier(w, KVA_NV_mbarrier_arrive_if, barrier_at(w, EMPTY + ring, i), first, 0);
}

static void create_barriers(const kva_hopper *w) {
  kva_kb *kb = w->f.s.kb;
  kva_kinstr *first = kva_k_if_begin(kb, kva_k_index_eq(kb, w->f.thread, num(w, 0)));
  for (int64_t i = 0; i < KINDS * w->stages; i++) {
    int64_t arrivals = i < EMPTY * w->stages ? 1 : THREADS / 32;
    barrier(w, KVA_NV_mbarrier_init, (kva_kplace){w->barriers, num(w, i)}, NULL, arrivals);
  }
  barrier(w, KVA_NV_mbarrier_init, barrier_of_own(w), NULL, 1);
  plain(w, KVA_NV_mbarrier_fence, 0, 0);
  kva_k_if_end(kb, first);
  plain(w, KVA_TILE_block_barrier, 0, 0);
}

/* ---- loads ------------------------------------------------------------------------------------------------------- */

typedef struct tile_load {
  uint32_t operand;
  kva_kplace full, to; /* counts on the barrier `full`, which expects these bytes */
  const kva_expr *b, *head, *position;
} tile_load;

static void load(const kva_hopper *w, const tile_load *x) {
  int64_t rows = w->maps[x->operand].box[1];
  for (int64_t column = 0; column < w->f.width; column += BOX) {
    kva_kplace part = {x->to.buf, kva_expr_addi(exprs(w), x->to.index, column * rows)};
    intrinsic(w, &(kva_kintrinsic){.op = KVA_NV_tensor_load,
                                   .places = {part, x->full},
                                   .indices = {num(w, column), x->position, x->head, x->b},
                                   .numbers = {w->map_number[x->operand]}});
  }
}

static void load_own(const kva_hopper *w) {
  const kva_query_tile *s = &w->f.s;
  const kva_expr *head = w->by_key ? s->h_kv : s->h;
  int64_t elements = ROWS * w->f.width;
  barrier(w, KVA_NV_mbarrier_expect, barrier_of_own(w), NULL, w->n_own * elements * 2);
  for (uint32_t i = 0; i < w->n_own; i++) {
    kva_kplace to = {w->own_tiles, num(w, i * elements)};
    load(w, &(tile_load){w->own[i], barrier_of_own(w), to, s->b, head, s->first});
  }
}

static kva_kval is_loader(const kva_hopper *w) {
  return kva_k_index_eq(w->f.s.kb, w->f.thread, num(w, LOADER));
}

static bool has_walks(const kva_hopper *w) {
  return w->by_key && !kva_expr_is(w->f.s.a.group, 1);
}

static const kva_expr *next_at(const kva_hopper *w, kva_hopper_ring ring, int field) {
  return num(w, (int64_t)ring * NEXT_FIELDS + field);
}
static const kva_expr *get_next(const kva_hopper *w, kva_hopper_ring ring, int field) {
  return kva_k_symbol(w->f.s.kb, kva_k_load(w->f.s.kb, w->next, next_at(w, ring, field)));
}
static void set_next(const kva_hopper *w, kva_hopper_ring ring, int field, const kva_expr *v) {
  kva_k_store(w->f.s.kb, w->next, next_at(w, ring, field), kva_k_index(w->f.s.kb, v));
}

/* To the next tile of the walk, or the first of the next head's. */
static void advance(const kva_hopper *w, kva_hopper_ring ring, const kva_expr *tile, const kva_expr *left) {
  kva_kb *kb = w->f.s.kb;
  const kva_expr *behind = kva_expr_addi(exprs(w), tile, 1);
  set_next(w, ring, NEXT_LEFT, kva_expr_addi(exprs(w), left, -1));
  set_next(w, ring, NEXT_TILE, behind);
  if (!has_walks(w)) return;
  kva_kinstr *last = kva_k_if_begin(kb, kva_k_index_le(kb, w->tiles, behind));
  set_next(w, ring, NEXT_TILE, num(w, 0));
  set_next(w, ring, NEXT_HEAD, kva_expr_addi(exprs(w), get_next(w, ring, NEXT_HEAD), 1));
  kva_k_if_end(kb, last);
}

/* Loads the next tile, if there is one, into the rings' stages of tile i. released: when every warp has released i. */
static void load_next(const kva_hopper *w, kva_hopper_ring first, kva_hopper_ring last, const kva_expr *i,
                      bool released) {
  kva_kb *kb = w->f.s.kb;
  const kva_expr *left = get_next(w, first, NEXT_LEFT);
  kva_kinstr *some = kva_k_if_begin(kb, kva_k_index_lt(kb, num(w, 0), left));
  const kva_expr *tile = get_next(w, first, NEXT_TILE), *head = get_next(w, first, NEXT_HEAD);
  const kva_expr *b = get_next(w, first, NEXT_BATCH);
  if (released) barrier(w, KVA_NV_mbarrier_wait, barrier_at(w, EMPTY + first, i), phase_of(w, i), 0);
  for (kva_hopper_ring ring = first; ring <= last; ring++) {
    kva_kplace full = barrier_at(w, FULL + ring, i), to = {w->ring, tile_at(w, ring, i)};
    barrier(w, KVA_NV_mbarrier_expect, full, NULL, tile_elements(w) * 2);
    load(w, &(tile_load){w->far_side[ring], full, to, b, head, kva_hopper_position(w, tile)});
  }
  advance(w, first, tile, left);
  kva_k_if_end(kb, some);
}

static void set_first(const kva_hopper *w, kva_hopper_ring ring) {
  const kva_query_tile *s = &w->f.s;
  const kva_expr *walks = w->by_key ? s->a.group : num(w, 1);
  set_next(w, ring, NEXT_TILE, num(w, 0));
  set_next(w, ring, NEXT_LEFT, kva_expr_mul(exprs(w), walks, w->tiles));
  set_next(w, ring, NEXT_HEAD, has_walks(w) ? kva_expr_mul(exprs(w), s->h_kv, s->a.group) : s->h_kv);
  set_next(w, ring, NEXT_BATCH, s->b);
}

/* The own tiles, and what the rings hold. */
static void load_first(const kva_hopper *w) {
  kva_kb *kb = w->f.s.kb;
  kva_kinstr *one = kva_k_if_begin(kb, kva_k_and(kb, is_loader(w), kva_hopper_has_tiles(w)));
  load_own(w);
  for (kva_hopper_ring ring = 0; ring < KVA_HOPPER_RINGS; ring++) set_first(w, ring);
  kva_kloop *i = kva_k_loop_begin(kb, KVA_K_SERIAL, num(w, w->stages), "tile");
  for (kva_hopper_ring ring = 0; ring < KVA_HOPPER_RINGS; ring++) load_next(w, ring, ring, i->var, false);
  kva_k_loop_end(kb, i);
  kva_k_if_end(kb, one);
}

void kva_hopper_refill(const kva_hopper *w, kva_hopper_ring released, kva_hopper_ring last, const kva_expr *i) {
  kva_kinstr *one = kva_k_if_begin(w->f.s.kb, is_loader(w));
  load_next(w, released, last, i, true);
  kva_k_if_end(w->f.s.kb, one);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static int32_t scores_of(const kva_hopper *w) {
  return (int32_t)w->far / 2;
}
static int32_t results_of(const kva_hopper *w) {
  return (int32_t)w->f.s.a.D / 2;
}

kva_kbuf *kva_hopper_sums(const kva_hopper *w, const char *name) {
  kva_kb *kb = w->f.s.kb;
  kva_kbuf *y = kva_k_local(kb, name, KVA_F32, results_of(w));
  kva_kloop *clear = kva_k_loop_begin(kb, KVA_K_UNROLL, y->extent, "i");
  kva_k_store(kb, y, clear->var, kva_k_const_f(kb, KVA_F32, 0));
  kva_k_loop_end(kb, clear);
  return y;
}

kva_kbuf *kva_hopper_scores(const kva_hopper *w, const char *name) {
  return kva_k_local(w->f.s.kb, name, KVA_F32, scores_of(w));
}

kva_kbuf *kva_hopper_operand(const kva_hopper *w, const char *name) {
  return kva_k_local(w->f.s.kb, name, w->f.type, scores_of(w));
}

void kva_hopper_begin_scores(const kva_hopper *w, kva_kbuf *out, int64_t own, kva_hopper_ring ring, const kva_expr *i) {
  kva_expr_ctx *c = exprs(w);
  const kva_expr *tile = tile_at(w, ring, i);
  const kva_expr *rows = times(w, over(w, w->f.thread, GROUP_THREADS), GROUP_ROWS * BOX);
  kva_kplace s = {out, num(w, 0)};
  intrinsic(w, &(kva_kintrinsic){.op = KVA_NV_wgmma_fence, .places = {s}, .numbers = {scores_of(w)}});
  for (int64_t k = 0; k < w->f.depth16; k++) {
    int64_t part = k * STEP / BOX * BOX, within = k * STEP % BOX;
    kva_kplace a = {w->own_tiles, kva_expr_addi(c, rows, (own * w->f.width + part) * ROWS + within)};
    kva_kplace b = {w->ring, kva_expr_addi(c, tile, part * w->far + within)};
    intrinsic(w, &(kva_kintrinsic){.op = KVA_NV_wgmma,
                                   .places = {s, a, b},
                                   .indices = {num(w, k > 0)},
                                   .numbers = {(int32_t)w->far, 0, 0, 0, 0}});
  }
  plain(w, KVA_NV_wgmma_commit, 0, 0);
}

void kva_hopper_begin_results(const kva_hopper *w, kva_kbuf *y, kva_kbuf *p, kva_hopper_ring ring, const kva_expr *i) {
  int32_t part_bytes = (int32_t)(w->far * BOX * 2), pairs = scores_of(w) / 2;
  kva_kplace sums = {y, num(w, 0)}, left = {p, num(w, 0)};
  intrinsic(w, &(kva_kintrinsic){.op = KVA_NV_wgmma_fence2, .places = {sums, left}, .numbers = {results_of(w), pairs}});
  for (int64_t k = 0; k < w->far / STEP; k++) {
    kva_kplace a = {p, num(w, 8 * k)};
    kva_kplace b = {w->ring, kva_expr_addi(exprs(w), tile_at(w, ring, i), k * STEP * BOX)};
    intrinsic(w, &(kva_kintrinsic){.op = KVA_NV_wgmma_registers,
                                   .places = {sums, a, b},
                                   .indices = {num(w, 1)},
                                   .numbers = {(int32_t)w->f.s.a.D, 1, part_bytes}});
  }
  plain(w, KVA_NV_wgmma_commit, 0, 0);
}

void kva_hopper_wait_scores(const kva_hopper *w, kva_kbuf *m, int32_t groups) {
  kva_kplace at = {m, num(w, 0)};
  intrinsic(w, &(kva_kintrinsic){.op = KVA_NV_wgmma_wait, .places = {at}, .numbers = {groups, scores_of(w)}});
}

void kva_hopper_wait_results(const kva_hopper *w, kva_kbuf *y, kva_kbuf *m) {
  int32_t n_m = (int32_t)m->extent->constant;
  kva_kplace sums = {y, num(w, 0)}, at = {m, num(w, 0)};
  intrinsic(w, &(kva_kintrinsic){.op = KVA_NV_wgmma_wait2, .places = {sums, at}, .numbers = {0, results_of(w), n_m}});
}

void kva_hopper_round(const kva_hopper *w, kva_kbuf *p, kva_kbuf *s) {
  kva_kb *kb = w->f.s.kb;
  kva_kloop *i = kva_k_loop_begin(kb, KVA_K_UNROLL, num(w, scores_of(w) / 2), "i");
  const kva_expr *at = times(w, i->var, 2);
  intrinsic(w, &(kva_kintrinsic){.op = KVA_TILE_round_pair, .places = {{p, at}, {s, at}}});
  kva_k_loop_end(kb, i);
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

static void each_group(const kva_hopper *w, kva_intrinsic_id op, int32_t of_first, int32_t of_second, int32_t threads) {
  kva_kb *kb = w->f.s.kb;
  kva_kinstr *first = kva_k_if_begin(kb, kva_k_index_lt(kb, w->f.thread, num(w, GROUP_THREADS)));
  if (of_first) plain(w, op, of_first, threads);
  kva_k_if_else(kb, first);
  if (of_second) plain(w, op, of_second, threads);
  kva_k_if_end(kb, first);
}

void kva_hopper_barrier(const kva_hopper *w) {
  each_group(w, KVA_NV_named_barrier, OWN, OWN + 1, GROUP_THREADS);
}

void kva_hopper_begin_turns(const kva_hopper *w) {
  each_group(w, KVA_NV_named_arrive, 0, TURN, THREADS);
}

void kva_hopper_await_turn(const kva_hopper *w) {
  each_group(w, KVA_NV_named_barrier, TURN, TURN + 1, THREADS);
}

void kva_hopper_pass_turn(const kva_hopper *w) {
  each_group(w, KVA_NV_named_arrive, TURN + 1, TURN, THREADS);
}

/* Takes the remaining turn. */
void kva_hopper_end_turns(const kva_hopper *w) {
  each_group(w, KVA_NV_named_barrier, TURN, 0, THREADS);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Stages rounded results in place of the first own tile, from which whole rows are stored. */
static kva_gpu_tile staging(const kva_hopper *w, kva_kbuf *y) {
  return (kva_gpu_tile){
      .kb = w->f.s.kb, .e = exprs(w), .bn = w->f.width, .thread = w->f.thread, .sums = y, .staged = w->staged};
}

/* Stores CHUNK elements of a row. */
static void store_chunk(const kva_hopper *w, uint32_t result, const kva_expr *row, const kva_expr *column) {
  kva_kb *kb = w->f.s.kb;
  const kva_query_tile *s = &w->f.s;
  kva_gpu_tile x = staging(w, NULL);
  kva_kloop *i = kva_k_loop_begin(kb, KVA_K_UNROLL, num(w, CHUNK), "i");
  const kva_expr *from = plus(w, kva_gpu_staged(&x, row, column), i->var);
  const kva_expr *to[] = {s->b, w->by_key ? s->h_kv : s->h, plus(w, s->first, row), plus(w, column, i->var)};
  s->l->store(s->l, s->a.n, result, to, kva_k_load(kb, w->staged, from));
  kva_k_loop_end(kb, i);
}

void kva_hopper_scale(const kva_hopper *w, kva_kbuf *y, double factor) {
  kva_kb *kb = w->f.s.kb;
  kva_kloop *i = kva_k_loop_begin(kb, KVA_K_UNROLL, y->extent, "i");
  kva_k_store(kb, y, i->var, kva_k2(kb, KVA_K_mul, kva_k_load(kb, y, i->var), kva_k_const_f(kb, KVA_F32, factor)));
  kva_k_loop_end(kb, i);
}

void kva_hopper_begin_stores(const kva_hopper *w) {
  plain(w, KVA_TILE_block_barrier, 0, 0);
}

/* Each warp stores its own 16 rows. */
void kva_hopper_store(const kva_hopper *w, kva_kbuf *y, uint32_t result) {
  kva_kb *kb = w->f.s.kb;
  int64_t chunks = w->f.width / CHUNK;
  kva_gpu_tile x = staging(w, y);
  const kva_expr *row0 = times(w, w->f.warp, STEP);
  if (result) plain(w, KVA_TILE_subgroup_barrier, 0, 0); /* the previous result has been stored */
  kva_gpu_stage_fragments(&x, row0, num(w, 0), STEP, w->f.s.a.D);
  plain(w, KVA_TILE_subgroup_barrier, 0, 0);
  kva_kloop *i = kva_k_loop_begin(kb, KVA_K_UNROLL, num(w, STEP * chunks / 32), "i");
  const kva_expr *chunk = plus(w, times(w, i->var, 32), w->f.lane), *row = plus(w, row0, over(w, chunk, chunks));
  const kva_expr *column = times(w, modulo(w, chunk, chunks), CHUNK);
  kva_kval inside = kva_k_index_lt(kb, plus(w, w->f.s.first, row), w->f.s.extent);
  kva_kval used = kva_k_index_lt(kb, column, num(w, w->f.s.a.D));
  kva_kinstr *branch = kva_k_if_begin(kb, kva_k_and(kb, inside, used));
  store_chunk(w, result, row, column);
  kva_k_if_end(kb, branch);
  kva_k_loop_end(kb, i);
}

/* ---- kernel ------------------------------------------------------------------------------------------------------ */

static void create_map(kva_hopper *w, uint32_t operand) {
  w->map_number[operand] = kva_k_tensor_map(w->f.s.kb, &w->maps[operand]);
}

static void create_buffers(kva_hopper *w) {
  kva_kb *kb = w->f.s.kb;
  w->own_tiles = kva_k_shared(kb, "own", w->f.type, w->n_own * ROWS * w->f.width);
  w->ring = kva_k_shared(kb, "ring", w->f.type, KVA_HOPPER_RINGS * w->stages * tile_elements(w));
  w->barriers = kva_k_shared(kb, "barriers", KVA_U64, KINDS * w->stages + 1);
  w->next = kva_k_shared(kb, "next", KVA_I64, KVA_HOPPER_RINGS * NEXT_FIELDS);
  w->staged = kva_k_shared(kb, "staged", w->f.type, ROWS * w->f.width);
  w->staged->over = w->own_tiles;
  for (uint32_t i = 0; i < w->n_own; i++) create_map(w, w->own[i]);
  for (uint32_t i = 0; i < KVA_HOPPER_RINGS; i++) create_map(w, w->far_side[i]);
}

void kva_hopper_begin(kva_hopper *w, kva_lower *l, const kva_node *n) {
  kva_flash_begin_block(&w->f, l, n, &(kva_flash_block){w->by_key, w->far, 1, ROWS, THREADS, 1}, NULL);
  create_buffers(w);
  (w->by_key ? walk_queries : walk_keys)(w);
  create_barriers(w);
  load_first(w);
}

void kva_hopper_end(kva_hopper *w) {
  kva_flash_end(&w->f);
}
