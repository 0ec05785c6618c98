/* The GPU schedule: GRID items are blocks, THREAD loops divide work among a block's threads (ir/kernel.h).
 *
 *   1. loops without iterations go, perfectly nested MAP loops merge, as on a CPU;
 *   2. a nest without loops in its core: a thread for every element, or for the few that 16 bytes hold where all
 * accesses are consecutive and aligned (schedule_gpu_width.c). Rows that suit teams of threads stay rows, so that their
 *      index costs one division a row; short or odd ones are numbered through;
 *   3. a core with reductions along its leaf's neighbours (columns): a thread for every column,
 *      or a block for every 32 where columns are few and long (schedule_gpu_columns.c);
 *   4. else rows: a warp for each, or a block for long ones; the innermost loops at unit stride become THREAD loops,
 * the rest runs the same in all threads. Effects between THREAD loops belong to the team's first thread;
 *   5. rows that are too short for a warp, or sequential: a thread for each;
 *   6. full reductions, and nests that depend on each other: one block;
 *   7. kernels that arrive with a CPU's schedule (attention's strips): a thread for every item.
 *
 * Barriers stand before what touches a buffer that is read and written, and before single stores, whose value another
 * thread may still be computing from what they overwrite (results in place of operands). */
#include "codegen/legalize.h"
#include "codegen/schedule_gpu.h"

enum {
  MAX_NEST = 32,
  THREADS = 256,
  LARGE_BLOCK = 1024,
  WARP = 32,
  TILE_THREADS = 64, /* for items that are heavy by themselves */
  LONG_ROW = 2048,   /* worth a block */
  SHORT_ROW = 24,    /* not worth a warp */
  BUSY_THREADS = 1 << 15,
  LONG_COLUMN = 1024, /* cycles */
  FEW_ROWS = 256,     /* warps for each would leave multiprocessors idle */
};

/* ---- one thread
 * ------------------------------------------------------------------------------------------------------------ */

/* Everything below r is one thread's. */
static void serialize(kva_kregion *r) {
  for (kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    serialize(i->then);
    serialize(i->orelse);
    if (i->op != KVA_K_LOOP) continue;
    serialize(i->loop->body);
    if (i->loop->kind != KVA_K_UNROLL) i->loop->kind = kva_sched_sequential_kind(i->loop);
  }
}

static void make_thread(kva_kernel *k, kva_kloop *l) {
  uint32_t width = kva_sched_width(k, l);
  l->kind = KVA_K_THREAD;
  l->width = width > 1 ? width : 0;
  serialize(l->body);
}

static void insert_barrier(kva_kernel *k, kva_kinstr *before) {
  kva_k_insert(before->region, before, kva_k_instr_create(k, KVA_K_BARRIER, KVA_DTYPE_NONE));
}

static kva_kloop *single_thread(kva_kernel *k) {
  kva_kloop *l = kva_k_loop_create(k, KVA_K_THREAD, kva_expr_const(k->exprs, 1), "first");
  return l;
}

/* i becomes the work of the team's first thread. */
static kva_kinstr *wrap(kva_kernel *k, kva_kinstr *i) {
  kva_kloop *l = single_thread(k);
  kva_k_insert(i->region, i, l->instr);
  kva_k_unlink(i);
  kva_k_insert(l->body, NULL, i);
  serialize(l->body);
  return l->instr;
}

static void wrap_all(kva_kernel *k) {
  kva_kloop *l = single_thread(k);
  kva_sched_move(k->body, l->body);
  kva_k_insert(k->body, NULL, l->instr);
  serialize(l->body);
}

/* ---- a team
 * ------------------------------------------------------------------------------------------------------------ */

static void find_store(void *user, kva_kinstr *i) {
  *(bool *)user |= i->op == KVA_K_STORE || i->op == KVA_K_BARRIER;
}

static bool has_stores(const kva_kregion *r) {
  bool found = false;
  kva_k_each_instr_in(r, find_store, &found);
  return found;
}

static bool is_sequential(const kva_kloop *l) {
  for (uint32_t c = 0; c < l->carries.len; c++) {
    if (l->carries.data[c].combine == KVA_COMBINE_NONE) return true;
  }
  return l->strict_order;
}

static bool is_parallel(const kva_kloop *l) {
  if (is_sequential(l)) return false;
  return l->kind == KVA_K_MAP || (l->carries.len && !has_stores(l->body));
}

static bool at_unit_stride(kva_kernel *k, const kva_kloop *l) {
  kva_strides s = kva_strides_of(k, l);
  return s.unit > 0 && s.strided == 0;
}

static bool better_inside(kva_kernel *k, const kva_kregion *r) {
  for (const kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    if (better_inside(k, i->then) || better_inside(k, i->orelse)) return true;
    if (i->op != KVA_K_LOOP) continue;
    if (is_parallel(i->loop) && at_unit_stride(k, i->loop)) return true;
    if (better_inside(k, i->loop->body)) return true;
  }
  return false;
}

/* Should a team share l's iterations? */
static bool is_shared(kva_kernel *k, const kva_kloop *l) {
  return is_parallel(l) && (at_unit_stride(k, l) || !better_inside(k, l->body));
}

typedef struct team_facts {
  bool ok;
  double longest; /* iterations that a team would share */
} team_facts;

/* around: iterations of the reductions around r, which may merge with one in it. */
static void look_for_team(kva_kernel *k, const kva_kregion *r, bool repeated, double around, team_facts *f) {
  for (const kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    if (i->op == KVA_K_STORE && repeated) f->ok = false;
    look_for_team(k, i->then, repeated, 1, f);
    look_for_team(k, i->orelse, repeated, 1, f);
    if (i->op != KVA_K_LOOP) continue;
    double extent = kva_cost_extent(i->loop->extent) * around;
    if (is_shared(k, i->loop)) {
      if (extent > f->longest) f->longest = extent;
    } else if (is_sequential(i->loop)) {
      f->ok = false;
    } else {
      look_for_team(k, i->loop->body, true, i->loop->carries.len ? extent : 1, f);
    }
  }
}

static bool writes_locals(const kva_kernel *k) {
  for (uint32_t b = 0; b < k->bufs.len; b++) {
    if (k->bufs.data[b]->space == KVA_K_LOCAL && k->bufs.data[b]->written) return true;
  }
  return false;
}

/* The longest loop that a team could share in r; 0: a team is no use there. */
static double team_extent(kva_kernel *k, const kva_kregion *r) {
  team_facts f = {!writes_locals(k), 0};
  look_for_team(k, r, false, 1, &f);
  return f.ok ? f.longest : 0;
}

static bool is_ordered(const kva_kbuf *buf) {
  return buf && buf->read && buf->written;
}

static void find_ordered(void *user, kva_kinstr *i) {
  *(bool *)user |= is_ordered(i->buf);
}

static bool touches_ordered(kva_kloop *l) {
  bool found = false;
  kva_k_each_instr_in(l->body, find_ordered, &found);
  return found;
}

static void distribute(kva_kernel *k, kva_kregion *r);

static void distribute_loop(kva_kernel *k, kva_kloop *l) {
  l = kva_sched_merge_reductions(k, l, true);
  if (is_shared(k, l)) {
    make_thread(k, l);
    if (touches_ordered(l)) insert_barrier(k, l->instr);
    return;
  }
  distribute(k, l->body);
  l->kind = kva_sched_sequential_kind(l);
}

/* r is run by a team. */
static void distribute(kva_kernel *k, kva_kregion *r) {
  for (kva_kinstr *i = r ? r->first : NULL, *next; i; i = next) {
    next = i->next;
    if (i->op == KVA_K_LOOP) distribute_loop(k, i->loop);
    if (i->op == KVA_K_LOAD && is_ordered(i->buf)) insert_barrier(k, i);
    if (i->op == KVA_K_STORE) insert_barrier(k, wrap(k, i));
    distribute(k, i->then);
    distribute(k, i->orelse);
  }
}

/* ---- perfect nests
 * -------------------------------------------------------------------------------------------------------------- */

static void find_value(void *user, const kva_expr *symbol) {
  const void **search = user; /* kernel, region, found */
  if (kva_k_symbol_region(search[0], symbol) == search[1]) search[2] = symbol;
}

/* The MAP loop in l's body, when all else there is pure, free of loops, and not in its extent. */
static kva_kloop *sole_map(const kva_kernel *k, const kva_kloop *l) {
  kva_kloop *inner = NULL;
  for (const kva_kinstr *i = l->body->first; i; i = i->next) {
    bool effect = i->op == KVA_K_STORE || i->op == KVA_K_IF || i->op == KVA_K_BARRIER || i->op == KVA_K_CARRY;
    if (effect || inner || (i->op == KVA_K_LOAD && is_ordered(i->buf))) return NULL;
    if (i->op == KVA_K_LOOP) inner = i->loop;
  }
  if (!inner || inner->kind != KVA_K_MAP || inner->carries.len) return NULL;
  const void *search[] = {k, l->body, NULL};
  kva_expr_each_symbol(inner->extent, find_value, search);
  return search[2] ? NULL : inner;
}

/* What stands between two MAP loops of a nest moves into the inner one: many threads compute it again rather than few
 * run the inner loop. */
static void sink(kva_kernel *k, kva_kregion *r) {
  for (kva_kinstr *i = r->first; i; i = i->next) {
    if (i->op != KVA_K_LOOP || i->loop->kind != KVA_K_MAP) continue;
    kva_kloop *inner = sole_map(k, i->loop);
    kva_kinstr *before = inner ? inner->body->first : NULL;
    while (inner && i->loop->body->first != inner->instr) {
      kva_kinstr *pure = i->loop->body->first;
      kva_k_unlink(pure);
      kva_k_insert(inner->body, before, pure);
    }
    sink(k, i->loop->body);
  }
}

/* ---- nests
 * -------------------------------------------------------------------------------------------------------------- */

static kva_kloop *only_loop(const kva_kregion *r) {
  KVA_ASSERT(r->first && r->first->op == KVA_K_LOOP);
  return r->first->loop;
}

/* Rows, `per_block` to a block, each for a team. */
static void grid_of_teams(kva_kernel *k, uint32_t n, kva_kloop *const *rows, int64_t team) {
  kva_kloop *grid = kva_sched_grid(k, n, rows, rows, THREADS / team);
  if (team == THREADS) return;
  kva_kloop *row = only_loop(grid->body);
  row->kind = KVA_K_THREAD;
  row->team = (uint32_t)team;
}

/* A thread for every iteration of the whole nest. */
static void grid_of_threads(kva_kernel *k, uint32_t n, kva_kloop *const *nest) {
  serialize(nest[n - 1]->body);
  kva_kloop *grid = kva_sched_grid(k, n, nest, nest, THREADS);
  only_loop(grid->body)->kind = KVA_K_THREAD;
}

static kva_kloop *block_of_leaf(kva_kernel *k, kva_kloop *leaf, uint32_t width, kva_kloop **out_within) {
  kva_kloop *blocks = kva_sched_split(k, leaf, (int64_t)THREADS * width);
  *out_within = only_loop(blocks->body);
  return blocks;
}

static void set_thread(kva_kloop *l, uint32_t width) {
  l->kind = KVA_K_THREAD;
  l->width = width > 1 ? width : 0;
  serialize(l->body);
}

static int64_t team_for(double threads) {
  int64_t team = 1;
  while (team < THREADS && (double)team < threads) team *= 2;
  return team;
}

/* Threads along the leaf. */
static void schedule_map(kva_kernel *k, uint32_t n, kva_kloop **nest) {
  kva_kloop *leaf = nest[n - 1];
  uint32_t width = kva_sched_width(k, leaf);
  double extent = kva_cost_extent(leaf->extent), threads = extent / width;
  bool known = kva_expr_is_const(leaf->extent, NULL);
  int64_t team = known ? team_for(threads) : WARP;
  bool wasteful = known && threads < THREADS && threads < 0.75 * (double)team;
  if (n > 1 && (wasteful || team == 1)) {
    grid_of_threads(k, n, nest);
    return;
  }
  if (n == 1 || threads >= 2 * THREADS) {
    nest[n - 1] = block_of_leaf(k, leaf, width, &leaf);
    set_thread(leaf, width);
    kva_sched_grid(k, n, nest, nest, 1);
    return;
  }
  set_thread(leaf, width);
  grid_of_teams(k, n - 1, nest, team);
}

static double rows_of(uint32_t n, kva_kloop *const *rows) {
  double total = 1;
  for (uint32_t d = 0; d < n; d++) {
    if (!kva_expr_is_const(rows[d]->extent, NULL)) return 1e9;
    total *= kva_cost_extent(rows[d]->extent);
  }
  return total;
}

static bool has_loops(const kva_kregion *r) {
  for (const kva_kinstr *i = r ? r->first : NULL; i; i = i->next) {
    if (i->op == KVA_K_LOOP || has_loops(i->then) || has_loops(i->orelse)) return true;
  }
  return false;
}

/* Reductions that merge at no cost. */
static void merge_below(kva_kernel *k, kva_kregion *r) {
  for (kva_kinstr *i = r ? r->first : NULL, *next; i; i = next) {
    next = i->next;
    if (i->op == KVA_K_LOOP) merge_below(k, kva_sched_merge_reductions(k, i->loop, false)->body);
    merge_below(k, i->then);
    merge_below(k, i->orelse);
  }
}

/* Fewer than threads that a GPU keeps busy, each with a long reduction. */
static bool few_columns(uint32_t n, kva_kloop *const *nest) {
  double columns = 1;
  for (uint32_t d = 0; d < n; d++) columns *= kva_cost_extent(nest[d]->extent);
  return columns < BUSY_THREADS && kva_cost_region(nest[n - 1]->body, 1) > LONG_COLUMN;
}

/* What is in the THREAD loops of single threads is theirs. */
static void serialize_threads(kva_kregion *r) {
  for (kva_kinstr *i = r->first; i; i = i->next) {
    if (i->op != KVA_K_LOOP) continue;
    if (i->loop->team > 1)
      serialize_threads(i->loop->body);
    else
      serialize(i->loop->body);
  }
}

static void schedule_nest(kva_kernel *k, kva_kloop *outer) {
  kva_kloop *nest[MAX_NEST];
  uint32_t n = 0;
  for (kva_kloop *l = outer; l && n < MAX_NEST; l = kva_sched_inner(l)) nest[n++] = l;
  kva_kloop *leaf = nest[n - 1];
  merge_below(k, leaf->body);
  bool columns = !kva_sched_has_map(leaf->body) && at_unit_stride(k, leaf) && kva_cost_extent(leaf->extent) >= 8;
  if (columns && few_columns(n, nest) && kva_sched_columns(k, &nest[n - 1], THREADS)) {
    kva_kloop *grid = kva_sched_grid(k, n, nest, nest, 1);
    serialize_threads(grid->body);
    return;
  }
  if (columns || !has_loops(leaf->body)) {
    schedule_map(k, n, nest);
    return;
  }
  double extent = team_extent(k, leaf->body);
  if (extent < SHORT_ROW) {
    grid_of_threads(k, n, nest);
    return;
  }
  distribute(k, leaf->body);
  bool block = extent >= LONG_ROW || (extent >= THREADS && rows_of(n, nest) <= FEW_ROWS);
  grid_of_teams(k, n, nest, block ? THREADS : WARP);
}

/* ---- the whole kernel
 * ----------------------------------------------------------------------------------------------------------- */

static bool is_nest(const kva_kinstr *i) {
  return i->op == KVA_K_LOOP && i->loop->kind == KVA_K_MAP && !i->loop->carries.len;
}

/* Independent nests; every other effect is a single thread's. */
static bool suits_grid(const kva_kernel *k) {
  bool nests = false;
  for (kva_kinstr *i = k->body->first; i; i = i->next) {
    nests |= is_nest(i);
    if (i->op == KVA_K_LOOP && !is_nest(i)) return false;
  }
  return nests && kva_sched_independent(k);
}

static void schedule_grid(kva_kernel *k) {
  KVA_VEC(kva_kinstr *) nests = {0};
  for (kva_kinstr *i = k->body->first, *next; i; i = next) {
    next = i->next;
    kva_kinstr *before = i->prev;
    if (is_nest(i))
      schedule_nest(k, i->loop);
    else if (kva_sched_has_effects(i))
      wrap(k, i);
    kva_kinstr *now = before ? before->next : k->body->first;
    if (kva_sched_has_effects(now)) KVA_PUSH(k->arena, &nests, now);
  }
  if (nests.len > 1) kva_sched_share_grid(k, nests.len, nests.data);
}

static void schedule_one_block(kva_kernel *k) {
  double extent = team_extent(k, k->body);
  if (extent > 4 * THREADS) k->threads = LARGE_BLOCK;
  if (extent > 0)
    distribute(k, k->body);
  else
    wrap_all(k);
}

/* The only effect of the kernel's body, when that is a GRID loop. */
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

static void schedule_items(kva_kernel *k) {
  kva_kloop *grid = only_grid(k);
  k->threads = TILE_THREADS;
  if (!grid) {
    wrap_all(k);
    return;
  }
  kva_kloop *blocks = kva_sched_split(k, grid, TILE_THREADS);
  blocks->kind = KVA_K_GRID;
  set_thread(only_loop(blocks->body), 1);
}

void kva_codegen_schedule_gpu(kva_kernel *k, const kva_target *target) {
  (void)target;
  if (!k->threads) {
    k->threads = THREADS;
    kva_sched_drop_empty(k->body);
    if (kva_sched_is_scheduled(k)) {
      schedule_items(k);
    } else {
      sink(k, k->body);
      kva_sched_collapse(k, k->body);
      if (suits_grid(k))
        schedule_grid(k);
      else
        schedule_one_block(k);
    }
  }
  kva_legalize_math(k);
  kva_legalize_rem(k);
  kva_kernel_sweep(k);
}
