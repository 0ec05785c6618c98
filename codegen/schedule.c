/* The CPU schedule: which loop runs over work items, which in lanes, which are unrolled.
 *
 *   1. Loops of extent 0 go. Perfectly nested PARALLEL loops merge where that costs no division, so that dense
 *      elementwise code becomes one loop.
 *   2. In every top-level nest the loops around its core become one GRID loop (delinearised by division, once per row).
 *      An item takes several rows if they are short, a block of a row if they are long.
 *   3. In the core the innermost PARALLEL loop becomes VECTOR if it accesses memory at unit stride, else the innermost
 *      reduction does. Short constant loops unroll, the rest is serial.
 *   4. Several independent nests share one GRID loop, which branches on the item's number. Nests that depend on each
 *      other run in sequence in a single work item.
 *   5. Costly values that two loops over a row share are kept in a local row (schedule_reuse.c).
 *   6. A VECTOR loop over joined tensors becomes one for each of them (schedule_pieces.c).
 *   7. Mathematical functions are expanded (legalize_math.c).
 *
 * Kernels that arrive with a schedule (tile kernels) only get step 7. */
#include "codegen/schedule_internal.h"

enum {
  MAX_NEST = 32,
  UNROLL_EXTENT = 8,
  UNROLL_INSTRS = 64,
  SHORT_EXTENT = 8,   /* not worth lanes of its own */
  MAX_WIDTH = 4,      /* vectors side by side: 256 bytes of a row, if they are wide */
  SUMS = 4,           /* accumulators of a reduction, at most */
  SQUARE_INSTRS = 16, /* of the code for an element that is repeated for a square */
  WALK_INSTRS = 12,   /* of a reduction that lanes run side by side; more need registers for themselves */
};

typedef struct schedule {
  kva_kernel *k;
  const kva_target *target;
  int lanes; /* of f32 */
} schedule;

/* ---- loop kinds inside the core ---------------------------------------------------------------------------------- */

bool kva_sched_has_map(const kva_kregion *r) {
  for (const kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    if (i->op == KVA_K_LOOP && (i->loop->kind == KVA_K_PARALLEL || kva_sched_has_map(i->loop->body))) return true;
    if (i->op == KVA_K_IF && (kva_sched_has_map(i->then) || kva_sched_has_map(i->orelse))) return true;
  }
  return false;
}

static uint32_t unrolled_size(const kva_kregion *r) {
  uint32_t n = 0;
  for (const kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    n += 1 + unrolled_size(i->then) + unrolled_size(i->orelse);
    if (i->op != KVA_K_LOOP) continue;
    int64_t extent;
    bool small = kva_expr_is_const(i->loop->extent, &extent) && extent <= UNROLL_EXTENT;
    n += small ? (uint32_t)extent * unrolled_size(i->loop->body) : UNROLL_INSTRS;
  }
  return n;
}

kva_kloop_kind kva_sched_sequential_kind(const kva_kloop *l) {
  int64_t extent;
  if (!kva_expr_is_const(l->extent, &extent) || extent > UNROLL_EXTENT) return KVA_K_SERIAL;
  return (uint32_t)extent * unrolled_size(l->body) <= UNROLL_INSTRS ? KVA_K_UNROLL : KVA_K_SERIAL;
}

static bool is_short(const kva_kloop *l) {
  int64_t extent;
  return kva_expr_is_const(l->extent, &extent) && extent < SHORT_EXTENT;
}

static bool prefers_lanes(const schedule *s, const kva_kloop *l) {
  kva_strides strides = kva_strides_of(s->k, l);
  return strides.legal && strides.unit > 0 && strides.strided == 0 && !is_short(l);
}

/* Some loop below r suits lanes. */
static bool better_inside(const schedule *s, const kva_kregion *r) {
  for (const kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    if (i->op != KVA_K_LOOP) continue;
    if (better_inside(s, i->loop->body) || prefers_lanes(s, i->loop)) return true;
  }
  return false;
}

/* l, without PARALLEL loops inside, should run in lanes. With some strided accesses it does if no inner loop suits
 * lanes better: gathers still beat one element at a time. */
static bool wants_lanes(const schedule *s, const kva_kloop *l) {
  kva_strides strides = kva_strides_of(s->k, l);
  if (!strides.legal) return false;
  if (strides.strided == 0 && strides.unit > 0 && !is_short(l)) return true;
  if (better_inside(s, l->body)) return false;
  return strides.unit + strides.near >= strides.strided && !is_short(l);
}

static void assign(const schedule *s, kva_kregion *r, bool in_lanes);

static void assign_loop(const schedule *s, kva_kloop *l, bool in_lanes) {
  bool vector = !in_lanes && !kva_sched_has_map(l->body) && wants_lanes(s, l);
  assign(s, l->body, in_lanes || vector);
  l->kind = vector ? KVA_K_VECTOR : kva_sched_sequential_kind(l);
}

static void assign(const schedule *s, kva_kregion *r, bool in_lanes) {
  for (kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    if (i->op == KVA_K_LOOP) assign_loop(s, i->loop, in_lanes);
    if (i->then) assign(s, i->then, in_lanes);
    if (i->orelse) assign(s, i->orelse, in_lanes);
  }
}

/* ---- the grid ---------------------------------------------------------------------------------------------------- */

static int64_t power_of_two(double at_least) {
  int64_t p = 1;
  while ((double)p < at_least && p < (int64_t)1 << 40) p *= 2;
  return p;
}

static double rows_extent(uint32_t n, kva_kloop *const *rows) {
  double total = 1;
  for (uint32_t d = 0; d < n; d++) total *= kva_cost_extent(rows[d]->extent);
  return total;
}

static bool all_const(uint32_t n, kva_kloop *const *rows) {
  for (uint32_t d = 0; d < n; d++) {
    if (!kva_expr_is_const(rows[d]->extent, NULL)) return false;
  }
  return true;
}

/* Makes rows of `cost` cycles each the grid. Nests too small for two work items stay loops. */
static void make_grid(schedule *s, uint32_t n, kva_kloop *const *rows, kva_kloop *const *order, double cost) {
  KVA_ASSERT(n > 0 && cost >= 0);
  int64_t per_item = power_of_two(KVA_ITEM_CYCLES / (cost + 1) / 2);
  if (all_const(n, rows) && rows_extent(n, rows) <= (double)per_item) {
    for (uint32_t d = 0; d < n; d++) rows[d]->kind = KVA_K_SERIAL;
    return;
  }
  kva_sched_grid(s->k, n, rows, order, kva_expr_const(s->k->exprs, per_item));
}

/* Instructions of r but for the loop `inner`; more than SQUARE_INSTRS if others do not suit a square. */
static uint32_t square_instrs(const kva_kregion *r, const kva_kloop *inner) {
  uint32_t n = 0;
  for (const kva_kinstr *i = r->first; i; i = i->next) {
    if (i->op == KVA_K_LOOP && i->loop == inner) continue;
    bool other_size = i->op == KVA_K_LOAD && kva_dtype_bits(i->buf->dtype) != 32;
    n += i->op == KVA_K_LOOP || i->op == KVA_K_IF || other_size ? SQUARE_INSTRS + 1 : 1;
  }
  return n;
}

/* Where lanes and rounds of an UNROLL loop are a square of elements, a strided load is whole vectors that are shuffled
 * (llvm_transpose.c). So `dense`, a loop around the VECTOR loop `lanes`, gets such a loop inside of it. Returns the
 * rounds: 1 if there is none, since squares would not be whole, the code too long, or elements of
 * another size. */
static int64_t make_squares(const schedule *s, kva_kloop *dense, kva_kloop *lanes) {
  int64_t extent, n = s->lanes;
  bool whole = kva_expr_is_const(dense->extent, &extent) && extent % n == 0;
  if (!whole || square_instrs(lanes->body, NULL) > SQUARE_INSTRS || dense->carries.len) return 1;
  kva_expr_ctx *c = s->k->exprs;
  kva_kloop *round = kva_k_loop_create(s->k, KVA_K_UNROLL, kva_expr_const(c, n), dense->var->name);
  kva_sched_move(lanes->body, round->body);
  kva_k_insert(lanes->body, NULL, round->instr);
  dense->extent = kva_expr_const(c, extent / n);
  const kva_expr *i = kva_expr_add(c, kva_expr_muli(c, dense->var, n), round->var);
  kva_k_replace_index(s->k, 1, &dense->var, &i);
  return n;
}

/* A transposition: where the leaf is strided, another loop of the nest has stride 1. That loop becomes the innermost
 * one, inside narrow blocks of the leaf, so that all elements of a fetched cache line are used. */
static bool transpose_blocks(schedule *s, uint32_t n, kva_kloop **nest) {
  kva_kloop *leaf = nest[n - 1], *order[MAX_NEST];
  if (kva_strides_of(s->k, leaf).strided == 0 || kva_cost_extent(leaf->extent) <= 2 * s->lanes) return false;
  uint32_t dense = n - 1;
  while (dense-- > 0 && kva_strides_of(s->k, nest[dense]).unit == 0) continue;
  if (dense >= n) return false;
  double per_vector = 2 + kva_cost_region(leaf->body, s->lanes);
  nest[n - 1] = kva_sched_split(s->k, leaf, (int64_t)2 * s->lanes);
  per_vector *= (double)make_squares(s, nest[dense], nest[n - 1]->body->first->loop);
  uint32_t len = 0;
  for (uint32_t d = 0; d < n; d++) {
    if (d != dense) order[len++] = nest[d];
  }
  order[len] = nest[dense];
  make_grid(s, n, nest, order, 2 * per_vector);
  return true;
}

/* Accumulators of the reductions in a leaf's body, which are few instructions each; 0 if there are none, or others. */
static uint32_t walking_sums(const kva_kloop *leaf) {
  uint32_t most = 0;
  for (const kva_kinstr *i = leaf->body->first; i; i = i->next) {
    if (i->op == KVA_K_IF) return 0;
    if (i->op != KVA_K_LOOP) continue;
    uint32_t n = 0;
    for (const kva_kinstr *j = i->loop->body->first; j; j = j->next, n++)
      if (j->op == KVA_K_LOOP || j->op == KVA_K_IF) return 0;
    if (n > WALK_INSTRS) return 0;
    most = i->loop->carries.len > most ? i->loop->carries.len : most;
  }
  return most * SUMS;
}

/* Lanes that reduce columns read one vector of every row, so a page or a cache line that is fetched gives little. With
 * several vectors side by side it gives more, as long as the accumulators fit into half of the registers and all cores
 * have items. Every lane adds what it added before, in the same order. `rows`: iterations around the leaf. */
static uint32_t side_by_side(const schedule *s, const kva_kloop *leaf, double rows) {
  uint32_t sums = walking_sums(leaf), width = MAX_WIDTH;
  int64_t extent;
  if (!sums || !kva_expr_is_const(leaf->extent, &extent)) return 1;
  for (; width > 1; width /= 2) {
    int64_t lanes = (int64_t)width * s->lanes, blocks = (extent + lanes - 1) / lanes;
    bool fits = sums * width <= (uint32_t)s->target->vector_registers / 2, full = blocks * lanes <= extent + extent / 8;
    if (fits && full && rows * (double)blocks >= 2 * s->target->cores) break;
  }
  return width;
}

/* A nest whose innermost loop runs in lanes. Cuts the leaf into blocks if one row is worth several work items or is the
 * whole nest. */
static void grid_over_lanes(schedule *s, uint32_t n, kva_kloop **nest) {
  KVA_ASSERT(n > 0 && s->lanes > 0);
  kva_kloop *leaf = nest[n - 1];
  assign(s, leaf->body, true);
  leaf->kind = KVA_K_VECTOR;
  if (n > 1 && transpose_blocks(s, n, nest)) return;
  uint32_t width = leaf->width = side_by_side(s, leaf, rows_extent(n - 1, nest));
  double pieces = kva_sched_count_pieces(s->k, leaf, s->lanes), extent = kva_cost_extent(leaf->extent);
  double per_vector = 2 + kva_cost_region(leaf->body, s->lanes) / pieces; /* of which each does its part */
  double row = per_vector * extent / s->lanes;
  if (n > 1 && row <= 2 * KVA_ITEM_CYCLES) {
    make_grid(s, n - 1, nest, nest, row);
    return;
  }
  int64_t size = power_of_two(KVA_ITEM_CYCLES / per_vector / 2) * s->lanes;
  if (size < (int64_t)width * s->lanes) size = (int64_t)width * s->lanes;
  if (n == 1 && kva_expr_is_const(leaf->extent, NULL) && extent <= (double)size) return;
  nest[n - 1] = kva_sched_split(s->k, leaf, size);
  make_grid(s, n, nest, nest, per_vector * (double)size / s->lanes);
}

/* The body of `leaf` accesses memory at unit stride in l's variable. */
static bool is_dense_in(const schedule *s, const kva_kloop *leaf, const kva_kloop *l) {
  kva_kloop probe = *leaf;
  probe.var = l->var;
  return kva_strides_of(s->k, &probe).unit > 0;
}

/* What a transposition computes once for a column, such as a bias, goes into its innermost loop: squares take a perfect
 * nest. */
static void close_nest(const schedule *s, kva_kloop *outer) {
  kva_kloop *leaf = outer, *inner;
  uint32_t instrs = 0;
  bool dense = false;
  for (; (inner = kva_sched_sole_map(s->k, leaf)); leaf = inner) instrs += square_instrs(leaf->body, inner);
  instrs += square_instrs(leaf->body, NULL);
  if (instrs > SQUARE_INSTRS || !wants_lanes(s, leaf) || kva_strides_of(s->k, leaf).strided == 0) return;
  for (kva_kloop *l = outer; l != leaf; l = kva_sched_sole_map(s->k, l)) dense |= is_dense_in(s, leaf, l);
  for (kva_kloop *l = outer; dense && l != leaf; l = kva_sched_inner(l)) kva_sched_sink(l);
}

static void schedule_nest(schedule *s, kva_kloop *outer) {
  kva_kloop *nest[MAX_NEST];
  uint32_t n = 0;
  close_nest(s, outer);
  for (kva_kloop *l = outer; l && n < MAX_NEST; l = kva_sched_inner(l)) nest[n++] = l;
  kva_kloop *leaf = nest[n - 1];
  if (!kva_sched_has_map(leaf->body) && wants_lanes(s, leaf)) {
    grid_over_lanes(s, n, nest);
    return;
  }
  assign(s, leaf->body, false);
  make_grid(s, n, nest, nest, 2 + kva_cost_region(leaf->body, s->lanes));
}

/* ---- schedule of the kernel -------------------------------------------------------------------------------------- */

static void schedule_top(schedule *s, kva_kinstr *i) {
  if (i->op != KVA_K_LOOP) {
    assign(s, i->then, false);
    assign(s, i->orelse, false);
    return;
  }
  if (i->loop->kind == KVA_K_PARALLEL && !i->loop->carries.len)
    schedule_nest(s, i->loop);
  else
    assign_loop(s, i->loop, false);
}

static void schedule_body(schedule *s) {
  KVA_VEC(kva_kinstr *) nests = {0};
  bool free_order = kva_sched_cut_rows(s->k) || kva_sched_independent(s->k); /* pieces of a loop write apart */
  for (kva_kinstr *i = s->k->body->first, *next; i; i = next) {
    next = i->next;
    kva_kinstr *before = i->prev;
    schedule_top(s, i);
    kva_kinstr *now = before ? before->next : s->k->body->first;
    if (kva_sched_has_effects(now)) KVA_PUSH(s->k->arena, &nests, now);
  }
  if (free_order) {
    if (nests.len > 1) kva_sched_share_grid(s->k, nests.len, nests.data);
    return;
  }
  for (uint32_t i = 0; i < nests.len; i++) {
    if (kva_sched_is_grid(nests.data[i])) nests.data[i]->loop->kind = KVA_K_SERIAL;
  }
}

static void find_kind(void *user, kva_kinstr *i) {
  if (i->op != KVA_K_LOOP) return;
  *(bool *)user |= i->loop->kind != KVA_K_PARALLEL && i->loop->kind != KVA_K_SERIAL;
}

bool kva_sched_is_scheduled(const kva_kernel *k) {
  bool found = false;
  kva_k_each_instr(k, find_kind, &found);
  return found;
}

void kva_sched_cpu_nests(kva_kernel *k, const kva_target *target) {
  schedule_body(&(schedule){k, target, target->vector_bytes / 4});
}

const kva_expr *kva_codegen_grid(const kva_kernel *k) {
  for (const kva_kinstr *i = k->body->first; i; i = i->next) {
    if (kva_sched_is_grid(i)) return i->loop->extent;
  }
  return kva_expr_const(k->exprs, 1);
}
