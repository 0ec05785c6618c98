/* The GPU schedule: GRID items are blocks, THREAD loops divide work among a block's threads (ir/kernel.h).
 *
 *   1. Loops of extent 0 go and perfectly nested PARALLEL loops merge, as on a CPU; code between two of them sinks into
 *      the inner one.
 *   2. A nest without loops in its core is tiled where it transposes (schedule_gpu_transpose.c), gets threads that take
 *      an element with its neighbours where it reads those (schedule_gpu_neighbours.c), else a thread for every element
 *      or for as many as 16 bytes hold, if all accesses are consecutive and aligned (schedule_gpu_width.c). Rows that
 *      suit subgroups stay rows, so that index divisions happen once a row; short or odd rows are flattened.
 *   3. A core with column reductions: a thread for every column, or a block for every 32 if columns are few and long
 *      (schedule_gpu_columns.c).
 *   4. Other reductions go along rows: a warp for each row, a part of a warp for short rows, a block for long ones
 *      (schedule_gpu_subgroup.c).
 *   5. Rows that are sequential or too short for a warp: a thread for each.
 *   6. Full reductions, and nests that depend on each other: one block.
 *   7. Kernels that arrive with a CPU schedule (attention's query tiles): a thread for every item. */
#include "codegen/schedule_gpu.h"

enum {
  MAX_NEST = 32,
  THREADS = 256,
  LARGE_BLOCK = 1024,
  TILE_THREADS = 64,     /* for items that are heavy by themselves */
  LONG_ROW = 4096,       /* bytes: worth a block */
  LONGEST_ROW = 1 << 15, /* bytes that a block of THREADS keeps in registers (llvm_keep.c) */
  LONG_BLOCK = 512,      /* for rows longer than that */
  SHORT_ROW = 24,        /* elements: not worth a warp */
  BUSY_THREADS = 1 << 15,
  LONG_COLUMN = 1024, /* cycles */
  FEW_ROWS = 256,     /* one warp each would leave multiprocessors idle */
  MAX_SUBGROUP_ROWS = 32,
};

typedef struct gpu_schedule {
  kva_kernel *k;
  const kva_target *target;
} gpu_schedule;

/* ---- perfect nests ----------------------------------------------------------------------------------------------- */

/* Sinks code between two PARALLEL loops of a nest into the inner one. Recomputing it in many threads is cheaper than
 * running the inner loop in few. */
static void sink(kva_kernel *k, kva_kregion *r) {
  for (kva_kinstr *i = r->first; i; i = i->next) {
    if (i->op != KVA_K_LOOP || i->loop->kind != KVA_K_PARALLEL) continue;
    if (kva_sched_sole_map(k, i->loop)) kva_sched_sink(i->loop);
    sink(k, i->loop->body);
  }
}

/* ---- schedule of one nest ---------------------------------------------------------------------------------------- */

static kva_kloop *only_loop(const kva_kregion *r) {
  KVA_ASSERT(r->first && r->first->op == KVA_K_LOOP);
  return r->first->loop;
}

typedef struct weight_search {
  uint32_t n;
  kva_kloop *const *rows;
  const kva_kregion *row;
  bool found;
} weight_search;

static void find_weight(void *user, kva_kinstr *i) {
  weight_search *s = user;
  if (i->op != KVA_K_LOAD || i->region == s->row || i->n_args || i->buf->written) return;
  bool invariant = !kva_expr_is_const(i->index, NULL);
  for (uint32_t d = 0; d < s->n; d++) invariant &= !kva_expr_uses(i->index, s->rows[d]->var);
  s->found |= invariant;
}

static bool reads_weights(kva_kernel *k, uint32_t n, kva_kloop *const *rows) {
  if (kva_expr_is(kva_sched_count(k, n, rows), 1)) return false;
  weight_search s = {n, rows, rows[n - 1]->body, false};
  kva_k_each_instr_in(rows[n - 1]->body, find_weight, &s);
  return s.found;
}

/* Rows that a subgroup takes one after the other: several where all rows read the same weights, which the subgroup
 * keeps in registers (llvm_keep.c) or its block stages (schedule_gpu_stage.c), but few enough to keep all
 * multiprocessors busy. */
static const kva_expr *rows_of_subgroup(const gpu_schedule *s, uint32_t n, kva_kloop *const *rows, int64_t subgroups) {
  kva_expr_ctx *c = s->k->exprs;
  const kva_expr *busy = kva_expr_const(c, s->target->multiprocessors * subgroups);
  const kva_expr *share = kva_expr_div(c, kva_sched_count(s->k, n, rows), busy);
  return kva_expr_max(c, kva_expr_const(c, 1), kva_expr_min(c, share, kva_expr_const(c, MAX_SUBGROUP_ROWS)));
}

/* A subgroup for each row; a block has as many subgroups as fit its threads. */
static void grid_of_subgroups(const gpu_schedule *s, uint32_t n, kva_kloop *const *rows, int64_t subgroup) {
  kva_kernel *k = s->k;
  bool weights = reads_weights(k, n, rows);
  const kva_expr *each = weights ? rows_of_subgroup(s, n, rows, THREADS / subgroup) : kva_expr_const(k->exprs, 1);
  kva_kloop *grid = kva_sched_grid(k, n, rows, rows, kva_expr_muli(k->exprs, each, THREADS / subgroup));
  if (subgroup == THREADS) return;
  kva_kloop *row = only_loop(grid->body);
  row->kind = KVA_K_THREAD;
  row->subgroup = (uint32_t)subgroup;
  row->stage = weights;
}

/* A thread for every iteration of the whole nest. */
static void grid_of_threads(kva_kernel *k, uint32_t n, kva_kloop *const *nest) {
  KVA_ASSERT(n > 0 && nest[n - 1]->kind == KVA_K_PARALLEL);
  kva_sched_serialize(nest[n - 1]->body);
  kva_kloop *grid = kva_sched_grid(k, n, nest, nest, kva_expr_const(k->exprs, THREADS));
  only_loop(grid->body)->kind = KVA_K_THREAD;
}

static kva_kloop *block_of_leaf(kva_kernel *k, kva_kloop *leaf, uint32_t width, kva_kloop **out_within) {
  KVA_ASSERT(width >= 1 && width <= 16);
  kva_kloop *blocks = kva_sched_split(k, leaf, (int64_t)THREADS * width);
  *out_within = only_loop(blocks->body);
  return blocks;
}

static void set_thread(kva_kloop *l, uint32_t width) {
  KVA_ASSERT(l->instr->region && width >= 1);
  l->kind = KVA_K_THREAD;
  l->width = width > 1 ? width : 0;
  kva_sched_serialize(l->body);
}

static int64_t subgroup_for(double threads) {
  int64_t subgroup = 1;
  while (subgroup < THREADS && (double)subgroup < threads) subgroup *= 2;
  return subgroup;
}

/* Threads along the leaf. */
static void schedule_map(const gpu_schedule *s, uint32_t n, kva_kloop **nest) {
  kva_kernel *k = s->k;
  kva_kloop *leaf = nest[n - 1];
  uint32_t width = kva_sched_width(k, leaf);
  double extent = kva_cost_extent(leaf->extent), threads = extent / width;
  bool known = kva_expr_is_const(leaf->extent, NULL);
  int64_t subgroup = known ? subgroup_for(threads) : s->target->subgroup_width;
  bool wasteful = known && threads < THREADS && threads < 0.75 * (double)subgroup;
  if (n > 1 && (wasteful || subgroup == 1)) {
    grid_of_threads(k, n, nest);
    return;
  }
  if (n == 1 || threads >= 2 * THREADS) {
    nest[n - 1] = block_of_leaf(k, leaf, width, &leaf);
    set_thread(leaf, width);
    kva_sched_grid(k, n, nest, nest, kva_expr_const(k->exprs, 1));
    return;
  }
  set_thread(leaf, width);
  grid_of_subgroups(s, n - 1, nest, subgroup);
}

static double rows_of(uint32_t n, kva_kloop *const *rows) {
  double total = 1;
  for (uint32_t d = 0; d < n; d++) {
    if (!kva_expr_is_const(rows[d]->extent, NULL)) return 1e9;
    total *= kva_cost_extent(rows[d]->extent);
  }
  return total;
}

static void find_lanes(void *user, kva_kinstr *i) {
  int64_t *most = user, extent;
  if (i->op != KVA_K_LOOP || i->loop->kind != KVA_K_THREAD) return;
  if (!kva_expr_is_const(i->loop->extent, &extent)) extent = INT64_MAX;
  if (i->loop->width > 1 && extent < INT64_MAX) extent = (extent + i->loop->width - 1) / i->loop->width;
  if (extent > *most) *most = extent;
}

/* The smallest subgroup, at most a warp, whose lanes cover the widest THREAD loop of r. */
static int64_t subgroup_for_row(const gpu_schedule *s, const kva_kregion *r) {
  int64_t lanes = 1, subgroup = 2;
  kva_k_each_instr_in(r, find_lanes, &lanes);
  while (subgroup < s->target->subgroup_width && subgroup < lanes) subgroup *= 2;
  return subgroup;
}

static bool has_loops(const kva_kregion *r) {
  for (const kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    if (i->op == KVA_K_LOOP || has_loops(i->then) || has_loops(i->orelse)) return true;
  }
  return false;
}

/* Merges reductions where no index needs a division. */
static void merge_below(kva_kernel *k, kva_kregion *r) {
  for (kva_kinstr *i = r ? r->first : NULL, *next; i; i = next) {
    next = i->next;
    if (i->op == KVA_K_LOOP) merge_below(k, kva_sched_merge_reductions(k, i->loop, false)->body);
    merge_below(k, i->then);
    merge_below(k, i->orelse);
  }
}

/* Fewer columns than threads that keep a GPU busy, each with a long reduction. */
static bool few_columns(uint32_t n, kva_kloop *const *nest) {
  double columns = 1;
  for (uint32_t d = 0; d < n; d++) columns *= kva_cost_extent(nest[d]->extent);
  return columns < BUSY_THREADS && kva_cost_region(nest[n - 1]->body, 1) > LONG_COLUMN;
}

/* Bodies of THREAD loops of single threads become sequential. */
static void serialize_threads(kva_kregion *r) {
  for (kva_kinstr *i = r->first; i; i = i->next) {
    if (i->op != KVA_K_LOOP) continue;
    if (i->loop->subgroup > 1)
      serialize_threads(i->loop->body);
    else
      kva_sched_serialize(i->loop->body);
  }
}

static void schedule_nest(const gpu_schedule *s, kva_kloop *outer) {
  kva_kernel *k = s->k;
  kva_kloop *nest[MAX_NEST];
  uint32_t n = 0;
  for (kva_kloop *l = outer; l && n < MAX_NEST; l = kva_sched_inner(l)) nest[n++] = l;
  kva_kloop *leaf = nest[n - 1];
  merge_below(k, leaf->body);
  bool columns =
      !kva_sched_has_map(leaf->body) && kva_sched_at_unit_stride(k, leaf) && kva_cost_extent(leaf->extent) >= 8;
  if (columns && few_columns(n, nest) && kva_sched_columns(k, &nest[n - 1], THREADS)) {
    kva_kloop *grid = kva_sched_grid(k, n, nest, nest, kva_expr_const(k->exprs, 1));
    serialize_threads(grid->body);
    return;
  }
  if (columns || !has_loops(leaf->body)) {
    if (!kva_sched_transpose(k, n, nest) && !kva_sched_neighbours(k, n, nest, THREADS)) schedule_map(s, n, nest);
    return;
  }
  if (kva_sched_subgroups(leaf->body)) {
    kva_sched_distribute(k, leaf->body);
    kva_sched_grid(k, n, nest, nest, kva_expr_const(k->exprs, 1));
    return;
  }
  double extent = kva_sched_subgroup_extent(k, leaf->body);
  if (extent < SHORT_ROW) {
    grid_of_threads(k, n, nest);
    return;
  }
  kva_sched_distribute(k, leaf->body);
  double bytes = extent * kva_sched_widest_element(leaf->body);
  bool block = bytes >= LONG_ROW || (extent >= THREADS && rows_of(n, nest) <= FEW_ROWS);
  if (bytes > LONGEST_ROW) k->threads = LONG_BLOCK;
  grid_of_subgroups(s, n, nest, block ? THREADS : subgroup_for_row(s, leaf->body));
}

/* ---- schedule of the kernel -------------------------------------------------------------------------------------- */

static bool is_nest(const kva_kinstr *i) {
  return i->op == KVA_K_LOOP && i->loop->kind == KVA_K_PARALLEL && !i->loop->carries.len;
}

/* All loops are independent nests; every other effect is left to a single thread. */
static bool suits_grid(const kva_kernel *k) {
  bool nests = false;
  for (kva_kinstr *i = k->body->first; i; i = i->next) {
    nests |= is_nest(i);
    if (i->op == KVA_K_LOOP && !is_nest(i)) return false;
  }
  return nests && kva_sched_independent(k);
}

typedef KVA_VEC(kva_kinstr *) instr_list;

/* Schedules i. If it has effects, the instruction that replaces it joins the nests. */
static void schedule_top(const gpu_schedule *s, kva_kinstr *i, instr_list *nests) {
  kva_kernel *k = s->k;
  kva_kinstr *before = i->prev;
  if (is_nest(i))
    schedule_nest(s, i->loop);
  else if (kva_sched_has_effects(i))
    kva_sched_wrap(k, i);
  kva_kinstr *now = before ? before->next : k->body->first;
  if (kva_sched_has_effects(now)) KVA_PUSH(k->arena, nests, now);
}

/* Versions of a nest store to the same buffers. The schedule of one must not see the others' stores, so each is linked
 * alone while it is scheduled. */
static void schedule_versions(const gpu_schedule *s, uint32_t n, kva_kinstr **versions, kva_kinstr *before,
                              instr_list *nests) {
  kva_kernel *k = s->k;
  uint32_t first = nests->len;
  for (uint32_t i = 0; i < n; i++) {
    kva_k_insert(k->body, before, versions[i]);
    schedule_top(s, versions[i], nests);
    kva_k_unlink(nests->data[first + i]);
  }
  for (uint32_t i = 0; i < n; i++) kva_k_insert(k->body, before, nests->data[first + i]);
}

static void schedule_grid(const gpu_schedule *s) {
  kva_kernel *k = s->k;
  instr_list nests = {0};
  for (kva_kinstr *i = k->body->first, *next; i; i = next) {
    next = i->next;
    kva_kinstr *versions[KVA_MAX_VERSIONS];
    uint32_t n = is_nest(i) ? kva_sched_versions(k, i->loop, versions) : 0;
    if (n) kva_k_unlink(i);
    if (n)
      schedule_versions(s, n, versions, next, &nests);
    else
      schedule_top(s, i, &nests);
  }
  if (nests.len > 1) kva_sched_share_grid(k, nests.len, nests.data);
}

static void schedule_one_block(kva_kernel *k) {
  double extent = kva_sched_subgroup_extent(k, k->body);
  if (extent > 4 * THREADS && !kva_sched_subgroups(k->body)) k->threads = LARGE_BLOCK;
  if (extent > 0)
    kva_sched_distribute(k, k->body);
  else
    kva_sched_wrap_all(k);
}

/* The GRID loop of the kernel's body if it is the only effect there. */
static kva_kloop *only_grid(kva_kernel *k) {
  kva_kloop *grid = NULL;
  for (kva_kinstr *i = k->body->first; i; i = i->next) {
    if (kva_sched_is_grid(i) && !grid)
      grid = i->loop;
    else if (kva_sched_has_effects(i))
      return NULL;
  }
  return grid;
}

void kva_sched_gpu_items(kva_kernel *k) {
  kva_kloop *grid = only_grid(k);
  k->threads = TILE_THREADS;
  if (!grid) {
    kva_sched_wrap_all(k);
    return;
  }
  kva_kloop *blocks = kva_sched_split(k, grid, TILE_THREADS);
  blocks->kind = KVA_K_GRID;
  set_thread(only_loop(blocks->body), 1);
}

/* By default ptxas aims at full occupancy and spills where a few more registers would do: allow 128 for each thread. */
void kva_sched_gpu_registers(kva_kernel *k, const kva_target *target) {
  enum { OF_THREAD = 128 };
  uint32_t resident = target->registers / OF_THREAD;
  if (!k->blocks) k->blocks = k->threads < resident ? resident / k->threads : 1;
}

static void find_subgroups(void *user, kva_kinstr *i) {
  int64_t n;
  if (i->op != KVA_K_LOOP || i->loop->subgroup <= 1) return;
  bool known = kva_expr_is_const(i->loop->extent, &n);
  KVA_ASSERT(known);
  *(uint32_t *)user = (uint32_t)n * i->loop->subgroup;
}

void kva_sched_gpu_threads(kva_kernel *k) {
  k->threads = THREADS;
  kva_k_each_instr(k, find_subgroups, &k->threads);
}

void kva_sched_gpu_sink(kva_kernel *k) {
  sink(k, k->body);
}

void kva_sched_gpu_blocks(kva_kernel *k, const kva_target *target) {
  if (suits_grid(k))
    schedule_grid(&(gpu_schedule){k, target});
  else
    schedule_one_block(k);
}

void kva_sched_gpu_long(kva_kernel *k, const kva_target *target) {
  KVA_ASSERT(k->threads <= LARGE_BLOCK && k->threads % (uint32_t)target->subgroup_width == 0);
  if (k->threads == LONG_BLOCK) kva_sched_keep_long(k, target);
}
